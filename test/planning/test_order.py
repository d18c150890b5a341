"""The order search against brute force on small graphs, and on graphs with the shapes of real nets."""

import random
from collections.abc import Sequence

import pytest

from occamy_xdsl.planning.order import Op, find_order, peak_bytes


class Builder:
    """Collects ops over values with sizes; value 0 is the graph's input."""

    def __init__(self, size: int):
        self.sizes = [size]
        self.ops: list[Op] = []

    def op(self, *reads: int, size: int, inplace: bool = False) -> int:
        self.sizes.append(size)
        written = len(self.sizes) - 1
        self.ops.append(Op(reads, (written,), tuple((written, read) for read in reads) if inplace else ()))
        return written


def naive_peak(
    ops: Sequence[Op], sizes: Sequence[int], sequence: Sequence[int], kept: set[int], pinned: set[int]
) -> int:
    """Asks at every step, for every value, whether it exists: from the definitions, without bookkeeping."""
    time_of = {k: t for t, k in enumerate(sequence)}
    writer = {v: time_of[k] for k, op in enumerate(ops) for v in op.writes}
    readers: dict[int, list[int]] = {}
    for k, op in enumerate(ops):
        for v in op.reads:
            readers.setdefault(v, []).append(time_of[k])
    values = ({*writer, *readers} | kept) - pinned

    def dead_after(v: int) -> float:
        return float("inf") if v in kept else max(readers.get(v, [writer.get(v, -1)]))

    peak = sum(sizes[v] for v in values if v not in writer)
    for t, k in enumerate(sequence):
        live = {v for v in values if writer.get(v, -1) <= t <= dead_after(v)}
        saved = 0
        lenders = {v for v in ops[k].reads if v in values and dead_after(v) == t}
        borrowers = set(ops[k].writes)
        for written, read in ops[k].inplace:
            if read in lenders and written in borrowers and sizes[written] <= sizes[read]:
                lenders.remove(read)
                borrowers.remove(written)
                saved += 0 if written in pinned else sizes[written]
        peak = max(peak, sum(sizes[v] for v in live) - saved)
    return peak


def topological_orders(ops: Sequence[Op]):
    """All of them, by trying every op next."""
    writer = {v: k for k, op in enumerate(ops) for v in op.writes}
    needs = [{writer[v] for v in op.reads if v in writer} for op in ops]

    def extend(done: tuple[int, ...]):
        if len(done) == len(ops):
            yield done
        for k in range(len(ops)):
            if k not in done and needs[k] <= set(done):
                yield from extend((*done, k))

    yield from extend(())


def random_graph(seed: int, count: int) -> tuple[Builder, set[int], set[int]]:
    chance = random.Random(seed)
    graph = Builder(chance.randrange(4))
    for _ in range(count):
        reads = chance.sample(
            range(len(graph.sizes)), min(len(graph.sizes), chance.choice((0, 1, 1, 2, 2, 3)))
        )
        graph.op(*reads, size=chance.choice((0, 1, 2, 3, 8, 20)), inplace=chance.random() < 0.5)
    values = range(len(graph.sizes))
    return graph, {v for v in values if chance.random() < 0.15}, {v for v in values if chance.random() < 0.15}


@pytest.mark.parametrize("count", [0, 1, 3, 5, 6, 7])
def test_proven_orders_are_the_best_of_all(count: int):
    improved = 0
    for seed in range(60):
        graph, kept, pinned = random_graph(seed, count)
        ops, sizes = graph.ops, graph.sizes
        found = find_order(ops, sizes, kept, pinned)
        peaks = {s: naive_peak(ops, sizes, s, kept, pinned) for s in topological_orders(ops)}
        assert found.optimal
        assert found.peak == peaks[found.sequence] == min(peaks.values()), seed
        given = peak_bytes(ops, sizes, None, kept, pinned)
        assert given == peaks[tuple(range(count))]
        improved += found.peak < given
    assert improved > 5 or count < 5


def test_without_states_the_beam_still_never_loses():
    improved = 0
    for seed in range(100):
        graph, kept, pinned = random_graph(seed, 25)
        found = find_order(graph.ops, graph.sizes, kept, pinned, state_limit=1)
        best = find_order(graph.ops, graph.sizes, kept, pinned)
        given = peak_bytes(graph.ops, graph.sizes, None, kept, pinned)
        assert sorted(found.sequence) == list(range(25))
        assert naive_peak(graph.ops, graph.sizes, found.sequence, kept, pinned) == found.peak <= given
        assert best.optimal
        assert best.peak <= found.peak
        assert not found.optimal or found.peak == best.peak
        improved += found.peak < given
    assert improved > 20


def test_order_respects_data_flow():
    for seed in range(30):
        graph, kept, pinned = random_graph(seed, 60)
        at = {k: t for t, k in enumerate(find_order(graph.ops, graph.sizes, kept, pinned, 500).sequence)}
        writer = {v: k for k, op in enumerate(graph.ops) for v in op.writes}
        assert all(at[writer[v]] < at[k] for k, op in enumerate(graph.ops) for v in op.reads if v in writer)


def test_wide_branches_run_one_after_another():
    graph = Builder(1)
    wide = [graph.op(0, size=100) for _ in range(8)]
    narrow = [graph.op(v, size=1) for v in wide]
    out = graph.op(*narrow, size=8)
    assert peak_bytes(graph.ops, graph.sizes, kept={out}) == 1 + 8 * 100 - 1 + 1
    found = find_order(graph.ops, graph.sizes, kept={out})
    # The last branch: its two values and the results of the seven others.
    assert (found.peak, found.optimal) == (100 + 1 + 7, True)


def test_a_short_branch_of_a_diamond_waits_for_the_long_one():
    graph = Builder(10)
    short = graph.op(0, size=50)
    long = graph.op(graph.op(0, size=60), size=10)
    graph.op(short, long, size=1)
    # Given order: input, short and the long branch's first result. Best: the long branch first.
    assert peak_bytes(graph.ops, graph.sizes, kept={4}) == 10 + 50 + 60
    found = find_order(graph.ops, graph.sizes, kept={4})
    assert (found.peak, found.optimal) == (10 + 60 + 10, True)


def randwire(seed: int, stages: int, nodes: int) -> Builder:
    """Stages of a random graph: each node adds up its operands in place, then convolves."""
    chance = random.Random(seed)
    graph = Builder(100)
    last = 0
    for stage in range(stages):
        size = 64 >> stage
        made: list[int] = []
        for i in range(nodes):
            inputs = sorted(
                {chance.randrange(max(0, i - 8), i) for _ in range(chance.choice((1, 2, 3)))} if i else ()
            )
            total = made[inputs[0]] if inputs else last
            for j in inputs[1:]:
                total = graph.op(total, made[j], size=size, inplace=True)
            made.append(graph.op(total, size=size))
        unread = [v for v in made if not any(v in op.reads for op in graph.ops)]
        last = unread[0]
        for v in unread[1:]:
            last = graph.op(last, v, size=size, inplace=True)
    return graph


def nasnet(cells: int) -> Builder:
    """Cells of five sums over the results of the two cells before, which are concatenated in place: atoms."""
    graph = Builder(60)

    def separable(value: int) -> int:
        return graph.op(graph.op(value, size=20), size=20)

    before = last = [0]
    for _ in range(cells):
        p, q = graph.op(*before, size=20), graph.op(*last, size=20)
        pairs = [
            (separable(q), q),
            (separable(p), separable(q)),
            (graph.op(q, size=20), p),
            (graph.op(p, size=20), graph.op(p, size=20)),
            (separable(p), separable(p)),
        ]
        before, last = last, [p, *(graph.op(*pair, size=20, inplace=True) for pair in pairs)]
    graph.op(*last, size=1)
    return graph


@pytest.mark.parametrize(
    "graph", [randwire(0, 3, 32), randwire(2, 3, 32), nasnet(6)], ids=["randwire-0", "randwire-2", "nasnet"]
)
def test_net_sized_graphs_are_proven_optimal(graph: Builder):
    kept = {len(graph.sizes) - 1}
    given = peak_bytes(graph.ops, graph.sizes, kept=kept)
    found = find_order(graph.ops, graph.sizes, kept)
    assert found.optimal
    assert found.peak < given
    assert naive_peak(graph.ops, graph.sizes, found.sequence, kept, set()) == found.peak
    assert find_order(graph.ops, graph.sizes, kept) == found  # the same every time


def test_an_order_that_lowers_no_peak_is_not_taken():
    graph = Builder(1)
    wide = [graph.op(0, size=100) for _ in range(2)]
    narrow = [graph.op(v, size=1) for v in wide]
    last = graph.op(graph.op(*narrow, size=500), size=500)
    found = find_order(graph.ops, graph.sizes, kept={last})
    # One wide branch after the other would need less there, but both 500 are live together in any order.
    assert (found.sequence, found.peak, found.optimal) == (tuple(range(6)), 1000, True)


def test_a_long_chain_needs_no_search():
    graph = Builder(4)
    for i in range(2000):
        graph.op(i, size=1 + i % 7)
    found = find_order(graph.ops, graph.sizes, state_limit=0)
    assert found.sequence == tuple(range(2000))
    assert found.optimal


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ([Op((1,), ()), Op((), (1,))], "op 1 writes value 1, which was read or written before"),
        ([Op((), (1,)), Op((), (1,))], "op 1 writes value 1, which was read or written before"),
        ([Op((1,), (1,))], "op 0 writes value 1, which was read or written before"),
    ],
)
def test_values_are_written_once_and_before_they_are_read(ops: list[Op], message: str):
    with pytest.raises(ValueError, match=message):
        find_order(ops, [1, 1])
