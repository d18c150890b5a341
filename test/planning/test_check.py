"""The checker on plans made by hand: what touches is sound, what shares one byte at one position is not."""

import pytest

from occamy_xdsl.planning.check import check_plan
from occamy_xdsl.planning.intervals import Body, Buffer, Part, lower_bound, max_live, simplify
from occamy_xdsl.planning.planners import plan

A = Buffer("a", 0, 4, 10).body()
B = Buffer("b", 3, 6, 10).body()
C = Buffer("c", 4, 8, 10).body()


@pytest.mark.parametrize(
    ("bodies", "offsets"),
    [
        ([], []),
        ([A, B, C], [0, 10, 0]),  # c is born where a dies
        ([A, B], [10, 0]),
        ([A, Buffer("empty", 0, 9, 0).body()], [0, 5]),
        ([Body((Part(0, 2, 0, 8), Part(2, 4, 4, 8)))], [0]),  # the parts overlap in space only
        ([Body((Part(0, 9, 0, 4), Part(0, 9, 8, 4))), Buffer("gap", 0, 9, 4).body()], [0, 4]),
    ],
)
def test_sound_plans(bodies: list[Body], offsets: list[int]):
    check_plan(bodies, offsets, 20)


@pytest.mark.parametrize(
    ("bodies", "offsets", "message"),
    [
        (
            [A, C, B],
            [0, 0, 9],
            r"body a part 0: bytes \[0, 10\) at positions \[0, 4\) overlaps "
            r"body b part 0: bytes \[9, 19\) at positions \[3, 6\)",
        ),
        ([B, C], [0, 0], "body b part 0.* overlaps body c part 0"),
        ([A, Buffer("in", 1, 2, 1).body()], [0, 4], "body a part 0.* overlaps body in part 0"),
        ([Body((Part(0, 3, 0, 8), Part(2, 4, 4, 8)))], [0], "body 0 part 0.* overlaps body 0 part 1"),
        ([A, B], [0, 11], r"body b part 0.* ends beyond the pool of 20 bytes"),
        ([A], [-1], "body a lies at negative offset -1"),
        ([Buffer("d", 0, 1, 1, 4).body()], [2], "body d lies at offset 2, not a multiple of 4"),
        ([A, B], [0], "2 bodies but 1 offsets"),
    ],
)
def test_unsound_plans(bodies: list[Body], offsets: list[int], message: str):
    with pytest.raises(ValueError, match=message):
        check_plan(bodies, offsets, 20)


def test_lower_bound_counts_what_alignment_wastes():
    # Two buffers of 100 bytes at multiples of 64: the upper one starts at 128.
    pair = [Buffer(i, 0, 1, 100, 64).body() for i in range(2)]
    assert max_live(pair) == 200
    assert lower_bound(pair) == 228
    # The one with the larger padding goes on top; the padding of one that is dead does not count.
    three = [*pair, Buffer(2, 0, 1, 65, 64).body(), Buffer(3, 1, 2, 1, 64).body()]
    assert lower_bound(three) == 128 + 128 + 65
    assert plan(three, alignment=1).height == 128 + 128 + 65


def test_a_chain_in_place_is_one_part():
    chain = Body((Part(0, 3, 0, 8), Part(3, 5, 0, 8), Part(5, 9, 0, 8)))
    assert simplify(chain).parts == (Part(0, 9, 0, 8),)
    halves = Body((Part(0, 3, 0, 8), Part(0, 3, 8, 4), Part(4, 5, 0, 12)))
    assert simplify(halves).parts == (Part(0, 3, 0, 12), Part(4, 5, 0, 12))


def test_planners_refuse_what_cannot_be_planned():
    with pytest.raises(ValueError, match="unknown planner 'best'"):
        plan([A], "best")
    with pytest.raises(ValueError, match=r"body x part 0.* overlaps body x part 1"):
        plan([Body((Part(0, 3, 0, 8), Part(2, 4, 4, 8)), id="x")])
    with pytest.raises(ValueError, match=r"2\*\*62"):
        plan([Buffer("huge", 0, 1, 1 << 70).body()])
    with pytest.raises(ValueError, match=r"live range \[2, 2\) is empty"):
        Buffer("never", 2, 2, 1)
    with pytest.raises(ValueError, match="must not be negative"):
        Buffer("negative", 0, 1, -1)
