"""Every planner on random problems, small optima by brute force, and the MiniMalloc instances."""

import csv
import random
from itertools import permutations
from pathlib import Path

import pytest

from occamy_xdsl.planning.intervals import Body, Buffer, Part, max_live, plan_height
from occamy_xdsl.planning.planners import PLANNERS, plan


def random_bodies(seed: int, count: int | None = None, rigid: bool = True) -> list[Body]:
    """A few bodies with small numbers, so that ties, equal sizes and touching live ranges are frequent."""
    chance = random.Random(seed)
    horizon = chance.choice((4, 8, 20))
    bodies: list[Body] = []
    for i in range(chance.randrange(12) if count is None else count):
        parts: list[Part] = []
        end = 0
        for _ in range(chance.choice((1, 1, 2, 3)) if rigid else 1):
            first = chance.randrange(horizon)
            last = chance.randint(first + 1, horizon)
            size = chance.choice((0, 1, 4, 7, 32, 64, 100))
            parts.append(Part(first, last, end, size))
            end += size + chance.choice((0, 0, 3))
        bodies.append(Body(tuple(parts), chance.choice((1, 1, 4, 64)), i))
    return bodies


def overlaps(bodies: list[Body], offsets: tuple[int, ...]) -> bool:
    """Whether two parts share a byte while both are live: every pair is compared."""
    spans = [
        (p.first, p.last, o + p.offset, o + p.offset + p.size)
        for b, o in zip(bodies, offsets, strict=True)
        for p in b.parts
    ]
    return any(
        max(a[0], b[0]) < min(a[1], b[1]) and max(a[2], b[2]) < min(a[3], b[3])
        for i, a in enumerate(spans)
        for b in spans[:i]
    )


def live_bytes(bodies: list[Body]) -> int:
    """The most bytes live at one position, position by position."""
    positions = {p.first for b in bodies for p in b.parts}
    return max(
        (sum(p.size for b in bodies for p in b.parts if p.first <= t < p.last) for t in positions), default=0
    )


@pytest.mark.parametrize("planner", PLANNERS)
def test_random_problems(planner: str):
    for seed in range(1000):
        bodies = random_bodies(seed)
        alignment = (1, 1, 4, 64)[seed % 4]
        found = plan(bodies, planner, alignment, node_limit=100)
        assert not overlaps(bodies, found.offsets), seed
        assert max_live(bodies) == live_bytes(bodies)
        assert live_bytes(bodies) <= found.lower_bound <= found.height
        assert found.height >= plan_height(bodies, found.offsets)
        for body, offset in zip(bodies, found.offsets, strict=True):
            assert offset % alignment == 0
            assert offset % body.alignment == 0


def lowest_of_all_orders(bodies: list[Body], alignment: int) -> int:
    """
    The optimum for bodies of one part, by placing them in all orders.

    In some optimum no body can be lowered; placing the bodies by increasing offset, each as low as it goes,
    rebuilds it.
    """
    best = 1 << 60
    for order in permutations(range(len(bodies))):
        placed: list[tuple[int, int, int, int]] = []
        for i in order:
            (part,) = bodies[i].parts
            offset = 0
            spans = [(b, e) for f, z, b, e in placed if f < part.last and part.first < z]
            while blocking := [e for b, e in spans if b < offset + part.size and offset < e]:
                offset = -(-max(blocking) // alignment) * alignment
            placed.append((part.first, part.last, offset, offset + part.size))
        best = min(best, max((e for _, _, _, e in placed), default=0))
    return best


def test_search_finds_small_optima():
    gaps = 0
    for seed in range(300):
        bodies = [Body(b.parts) for b in random_bodies(seed, count=2 + seed % 5, rigid=False)]
        alignment = (1, 8)[seed % 2]
        optimum = lowest_of_all_orders(bodies, alignment)
        found = plan(bodies, alignment=alignment)
        assert found.height == optimum, seed
        assert found.optimal
        gaps += optimum > max_live(bodies)
    assert gaps > 5  # the problems are not all trivial


@pytest.mark.parametrize("name", "ABCDEF")
def test_minimalloc_instances(shared: Path, name: str):
    rows = list(csv.DictReader((shared / f"cases/packing/{name}.csv").open()))
    bodies = [Buffer(r["id"], int(r["lower"]), int(r["upper"]), int(r["size"])).body() for r in rows]
    found = plan(bodies, alignment=1, node_limit=None, time_limit=60, capacity=1 << 20)
    assert found.height <= 1 << 20
