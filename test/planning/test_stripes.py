"""Stripes: which rows are computed when, against a simulation row by row, and plans of graphs done by hand."""

import numpy as np
import pytest

from occamy_xdsl.dialects.dnn.rows import RowMap
from occamy_xdsl.planning.stripes import Graph, Halo, RowOp, Value, find_stripes, stripe_ends, unroll


def window(size: int, kernel: int, stride: int, pad: int) -> tuple[RowMap, int]:
    """The map of a window, and how many rows it makes of `size` rows."""
    return RowMap(size, stride, pad, kernel), (size + 2 * pad - kernel) // stride + 1


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pad"), [(9, 3, 1, 1), (10, 3, 2, 0), (8, 5, 1, 2), (7, 1, 2, 0)]
)
def test_row_map_of_a_window(size: int, kernel: int, stride: int, pad: int):
    rows_of, rows = window(size, kernel, stride, pad)
    for begin in range(rows):
        for end in range(begin + 1, rows + 1):
            read = [o * stride - pad + i for o in range(begin, end) for i in range(kernel)]
            inside = [row for row in read if 0 <= row < size]
            assert rows_of(begin, end) == (min(inside), max(inside) + 1)


@pytest.mark.parametrize(("kernel", "stride", "pad"), [(2, 2, 0), (3, 2, 1), (4, 2, 1), (3, 1, 1)])
def test_row_map_of_a_transposed_window(kernel: int, stride: int, pad: int):
    size = 6
    rows = (size - 1) * stride + kernel - 2 * pad
    rows_of = RowMap(size, lead=kernel - 1 - pad, reach=kernel, factor=stride)
    for begin in range(rows):
        for end in range(begin + 1, rows + 1):
            writers = [i for i in range(size) for j in range(kernel) if begin <= i * stride + j - pad < end]
            assert rows_of(begin, end) == (min(writers), max(writers) + 1)


def random_graph(rng: np.random.Generator) -> tuple[list[RowOp], list[int], list[int]]:
    """Ops with windows, pointwise joins of values with equally many rows, and the values nobody reads."""
    ops, rows = list[RowOp](), [int(rng.integers(12, 40))]
    for _ in range(int(rng.integers(2, 9))):
        source = int(rng.integers(0, len(rows)))
        twins = [v for v in range(len(rows)) if rows[v] == rows[source] and v != source]
        if twins and rng.random() < 0.4:
            reads = ((source, RowMap(rows[source])), (int(rng.choice(twins)), RowMap(rows[source])))
            made, unit = rows[source], 1
        elif rng.random() < 0.3:  # each row becomes several, all at once
            unit = int(rng.integers(2, 4))
            reads = ((source, RowMap(rows[source], lead=unit - 1, reach=unit, factor=unit)),)
            made = rows[source] * unit
        else:
            kernel = int(rng.integers(1, 5))
            rows_of, made = window(
                rows[source], kernel, int(rng.integers(1, 3)), int(rng.integers(0, kernel))
            )
            reads, unit = ((source, rows_of),), 1
        if made < 2:
            continue
        ops.append(RowOp(reads, (len(rows),), work=1, local=True, unit=unit))
        rows.append(made)
    read = {v for op in ops for v, _ in op.reads}
    outputs = [v for op in ops for v in op.writes if v not in read or rng.random() < 0.2]
    return ops, rows, outputs


@pytest.mark.parametrize("halo", ["keep", "recompute"])
@pytest.mark.parametrize("seed", range(60))
def test_every_row_is_there_when_it_is_needed(seed: int, halo: Halo):
    rng = np.random.default_rng(seed)
    ops, rows, outputs = random_graph(rng)
    if not ops:
        pytest.skip("an empty graph")
    ends = stripe_ends(rows[outputs[-1]], int(rng.integers(1, 8)))
    computed = {op.writes[0]: [0] * rows[op.writes[0]] for op in ops}
    held: dict[int, set[int]] = {0: set(range(rows[0]))}
    for pieces in unroll(ops, rows, outputs, ends, halo):
        now: dict[int, set[int]] = {0: held[0]}
        for piece in pieces:
            value = ops[piece.op].writes[0]
            # Rows below `begin` are those that the stripe before it held.
            assert set(range(piece.stored, piece.begin)) <= held.get(value, set())
            assert piece.begin % ops[piece.op].unit == piece.end % ops[piece.op].unit == 0
            if piece.begin < piece.end:
                for source, rows_of in ops[piece.op].reads:
                    assert rows_of is not None
                    assert set(range(*rows_of(piece.begin, piece.end))) <= now[source]
            for row in range(piece.begin, piece.end):
                computed[value][row] += 1
            now[value] = set(range(piece.stored, piece.end))
        held = now
    for value in outputs:
        assert min(computed[value]) >= 1
    if halo == "keep":
        assert max(max(counts) for counts in computed.values()) <= 1


def chain(rows: int, kernel: int, work: int = 1000) -> Graph:
    """Input, a large value, a small one from a window over it, and a reduction that needs that whole."""
    rows_of, made = window(rows, kernel, 1, kernel // 2)
    ops = [
        RowOp(((0, rows_of),), (1,), work, local=True),
        RowOp(((1, rows_of),), (2,), work, local=True),
        RowOp(((2, None),), (3,), 1),
    ]
    values = [Value(100, rows, pinned=True), Value(100 * rows, rows), Value(10 * made, made), Value(4, 1)]
    return Graph(ops, values, outputs=[3])


def test_a_large_value_never_exists_whole():
    graph = chain(100, 1)
    plan = find_stripes(graph, budget=1e9)
    assert max(graph.plain) == 100 * 100 + 10 * 100
    # Whole: the small value. In stripes: some rows of the large one.
    (segment,) = plan.segments
    assert (segment.first, segment.last) == (0, 2)
    assert 10 * 100 < plan.peak < 10 * 100 + 100 * 10


def test_windows_slide():
    """
    Ten rows of a result need 50 rows of 100 bytes, of which the next ten need 40 again. They are copied next to the
    window, or move within it.
    """
    rows_of, made = window(100, 41, 1, 0)
    ops = [
        RowOp(((0, RowMap(100)),), (1,), 1000, local=True),
        RowOp(((1, rows_of),), (2,), 1000, local=True),
        RowOp(((2, None),), (3,), 1),
    ]
    values = [Value(0, 100, pinned=True), Value(10_000, 100), Value(0, made), Value(4, 1)]
    graph, ends = Graph(ops, values, outputs=[3]), stripe_ends(made, 6)
    copied, moved = (graph.cost(0, 2, ends, "keep", slides=slides) for slides in (False, True))
    assert (copied.peak, moved.peak) == ((50 + 40) * 100, 50 * 100)
    assert (copied.copied, moved.copied) == (5 * 2 * 40 * 100, 5 * 40 * 100)
    assert find_stripes(graph, budget=1e9).peak < 20 * 100 + 40 * 100


def test_a_budget_of_nothing_pays_for_no_stripe():
    assert find_stripes(chain(100, 1), budget=0).segments == ()


def test_what_is_needed_whole_stays_outside():
    """The second op needs all of the first one's result, so that one runs before the stripes."""
    rows_of = RowMap(64)
    ops = [
        RowOp(((0, rows_of),), (1,), 10**9, local=True),
        RowOp(((0, rows_of), (1, None)), (2,), 10**9, local=True),
    ]
    graph = Graph(ops, [Value(0, 64, pinned=True), Value(6400, 64), Value(640, 64)], outputs=[2])
    assert (graph.inside(0, 1), graph.inside(0, 2)) == ([0], [1])
    assert find_stripes(graph, budget=1).segments == ()


@pytest.mark.parametrize("size", [0, 1, 2, 99])
def test_the_search_ends_where_a_few_bytes_are_live(size: int):
    ops = [RowOp(((0, None),), (1,), 1), RowOp(((1, None),), (2,), 1)]
    graph = Graph(ops, [Value(8, 1, pinned=True), Value(size, 1), Value(8, 1, pinned=True)], outputs=[2])
    assert find_stripes(graph, budget=1).segments == ()
