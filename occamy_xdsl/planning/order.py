"""Order of execution: the topological order of ops whose largest number of live bytes is smallest."""

import heapq
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter

import numpy as np


@dataclass(frozen=True, slots=True)
class Op:
    """
    One step of the graph over values, which are numbered from 0.

    `inplace` lists pairs (written value, read value) of which the former may take the latter's storage if the
    latter dies at this op and is at least as large. Pairs are taken in the order given, each value once.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    inplace: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """
    Indices of ops in order of execution, the peak of live bytes, and whether no order has a lower one.

    `states` counts the sets of executed ops that the exact search visited: what the search cost on any machine.
    """

    sequence: tuple[int, ...]
    peak: int
    optimal: bool
    states: int


def find_order(
    ops: Sequence[Op],
    sizes: Sequence[int],
    kept: Collection[int] = (),
    pinned: Collection[int] = (),
    state_limit: int = 30_000,
    time_limit: float = 300.0,
) -> Order:
    """
    Searches the order of execution with the lowest peak; the given order of `ops` where none is better.

    `sizes[v]` is the size of value v in bytes. A value lives from the op that writes it, or from the start if
    none does, to the last op that reads it; one that is never read lives only while it is written. Values in
    `kept` live to the end (results that stay in the pool). Values in `pinned` cost nothing and lend no
    storage (the caller's own buffers, weights). A value of size 0 can express a mere dependency.

    Views are for the caller to express through atoms: a value here is a piece of storage, and an op lists the
    atoms that it touches. A reshape is no op at all, its result is the atoms of its operand; the result of a
    concat built in place is the atoms of its inputs; an op that reads it reads all of them.

    The order is cut where all ops of a prefix must precede all others; within a piece, sets of executed ops
    are visited in order of their peak so far, and ops that cost nothing now or later are executed at once.
    After `state_limit` sets a beam search, which visits as many again at most, orders the rest without proof.
    This makes the result reproducible; `time_limit` seconds of wall clock only guard against slow machines.

    Raises ValueError when a value is written twice, or read before the op that writes it in the given order.
    """
    graph = _Graph(ops, sizes, frozenset(kept), frozenset(pinned))
    deadline = time.monotonic() + time_limit
    proven = graph.lower_bound()
    sequence: list[int] = []
    live = graph.initial
    given = peak = proven
    states = 0
    for begin, end in graph.pieces():
        piece = _Piece(graph, begin, end, live)
        # A piece need not stay below what another one reaches in any case.
        found, least, visits = piece.solve(proven, state_limit - states, deadline)
        states += visits
        sequence += (begin + k for k in found)
        given = max(given, piece.run(range(end - begin))[0])
        reached, live = piece.run(found)
        peak, proven = max(peak, reached), max(proven, least)
    return Order(tuple(sequence) if peak < given else tuple(range(len(ops))), peak, peak == proven, states)


def peak_bytes(
    ops: Sequence[Op],
    sizes: Sequence[int],
    sequence: Sequence[int] | None = None,
    kept: Collection[int] = (),
    pinned: Collection[int] = (),
) -> int:
    """The most bytes live at one time when `ops` run in this order; arguments as for `find_order`."""
    graph = _Graph(ops, sizes, frozenset(kept), frozenset(pinned))
    return _Piece(graph, 0, len(ops), graph.initial).run(range(len(ops)) if sequence is None else sequence)[0]


class _Graph:
    """Ops in the given order, who writes and reads each value, and which ops any order runs before which."""

    def __init__(self, ops: Sequence[Op], sizes: Sequence[int], kept: frozenset[int], pinned: frozenset[int]):
        self.ops, self.kept, self.pinned = ops, kept, pinned
        self.sizes = [0 if value in pinned else size for value, size in enumerate(sizes)]
        self.writer: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}
        for k, op in enumerate(ops):
            for value in op.reads:
                self.readers.setdefault(value, []).append(k)
            for value in op.writes:
                if value in self.readers or value in self.writer:
                    raise ValueError(f"op {k} writes value {value}, which was read or written before")
                self.writer[value] = k
        self._reading: dict[int, int] = {}
        self.values = {*self.readers, *self.writer, *kept}
        self.initial = sum(self.sizes[value] for value in self.values if value not in self.writer)
        # Bit masks over ops. The nearest neighbours come first: the others are most often beyond them.
        self.ancestors = [0] * len(ops)
        self.descendants = [0] * len(ops)
        for k, op in enumerate(ops):
            writers = {self.writer[value] for value in op.reads if value in self.writer}
            self.ancestors[k] = _closure(sorted(writers, reverse=True), self.ancestors)
        for k in reversed(range(len(ops))):
            readers = {reader for value in ops[k].writes for reader in self.readers.get(value, ())}
            self.descendants[k] = _closure(sorted(readers), self.descendants)

    def lower_bound(self) -> int:
        """
        Bytes that some op needs at once in any order.

        These are its operands, its results, and all values written by an op that must run before it and kept
        for one that must run after it.
        """
        needed = np.zeros(len(self.ops), np.int64)
        passed: dict[int, int] = {}
        """The ops that run while a value is kept, in any order."""
        for value in self.values - self.pinned:
            before = self.descendants[self.writer[value]] if value in self.writer else -1
            after = (1 << len(self.ops)) - 1 if value in self.kept else 0
            for reader in reversed(self.readers.get(value, ())):
                if not after >> reader & 1:
                    after |= self.ancestors[reader]
            if mask := before & after:
                passed[value] = mask
                first, last = (mask & -mask).bit_length() - 1, mask.bit_length()
                bits = (mask >> first).to_bytes((last - first + 7) // 8, "little")
                ops = np.unpackbits(np.frombuffer(bits, np.uint8), count=last - first, bitorder="little")
                needed[first:last] += ops * np.int64(self.sizes[value])
        for k, op in enumerate(self.ops):
            touched = {v for v in (*op.reads, *op.writes) if not passed.get(v, 0) >> k & 1}
            shared = _match(op.inplace, touched.difference(op.writes, self.pinned), self.sizes)
            needed[k] += sum(self.sizes[value] for value in touched - shared)
        return int(max((self.initial, *needed)))

    def reading(self, value: int) -> int:
        """The ops that read a value, as a bit mask."""
        if value not in self._reading:
            self._reading[value] = _mask(self.readers[value])
        return self._reading[value]

    def pieces(self) -> list[tuple[int, int]]:
        """Ranges [begin, end) of ops such that any order finishes each piece before it starts the next."""
        cuts = [len(self.ops)]
        common = -1  # ancestors of all the ops from k on
        for k in range(len(self.ops) - 1, 0, -1):
            common &= self.ancestors[k]
            prefix = (1 << k) - 1
            if common & prefix == prefix:
                cuts.append(k)
        return list(pairwise([0, *reversed(cuts)]))


def _closure(neighbours: Iterable[int], known: Sequence[int]) -> int:
    """`neighbours` and all that `known` has for them, as a bit mask."""
    mask = 0
    for k in neighbours:
        if not mask >> k & 1:
            mask |= known[k] | 1 << k
    return mask


def _mask(ops: Iterable[int]) -> int:
    mask = 0
    for k in ops:
        mask |= 1 << k
    return mask


def _match(pairs: Sequence[tuple[int, int]], dying: Collection[int], sizes: Sequence[int]) -> set[int]:
    """
    Written values that take the storage of a dying read value.

    More dying values never mean fewer matches, which the search relies on: this is the stable matching for
    one common ranking of pairs.
    """
    taken: set[int] = set()
    shared: set[int] = set()
    for written, read in pairs:
        if read in dying and read not in taken and written not in shared and sizes[written] <= sizes[read]:
            taken.add(read)
            shared.add(written)
    return shared


_Path = tuple[int, "_Path"] | None
"""Executed ops, the last one first."""

_Ready = tuple[int, int, int]
"""An op that can run next, how many bytes more than before it live while it runs, and how many after it."""


@dataclass(slots=True)
class _State:
    """After the ops in the mask `done`: bytes live now, the peak so far, and which ops can run next."""

    done: int
    live: int
    peak: int
    ready: Sequence[_Ready]
    path: _Path

    def sequence(self) -> list[int]:
        ops: list[int] = []
        path = self.path
        while path is not None:
            op, path = path
            ops.append(op)
        return ops[::-1]


class _Piece:
    """Consecutive ops of a graph as a problem of its own, in which they are numbered from 0."""

    def __init__(self, graph: _Graph, begin: int, end: int, live: int):
        self._live = live
        self._sizes = graph.sizes
        self._ops = graph.ops[begin:end]
        self._everything = (1 << end - begin) - 1
        self._needs = [mask >> begin & self._everything for mask in graph.ancestors[begin:end]]
        self._enables: list[list[int]] = []
        self._born: list[tuple[int, int]] = []  # bytes written, and how many of them outlive the op
        self._mortal: list[list[tuple[int, int]]] = []  # values that may die here, other ops that read them
        self._beside: list[int] = []  # mask of the ops that read one of these, too
        for k, op in enumerate(self._ops, begin):
            readers = {reader for value in op.writes for reader in graph.readers.get(value, ())}
            self._enables.append(sorted(reader - begin for reader in readers if reader < end))
            lasting = [v for v in op.writes if v in graph.readers or v in graph.kept]
            sizes = graph.sizes
            self._born.append((sum(sizes[v] for v in op.writes), sum(sizes[v] for v in lasting)))
            mortal: list[tuple[int, int]] = []
            beside = 0
            for value in dict.fromkeys(op.reads):
                if value not in graph.kept and value not in graph.pinned and graph.readers[value][-1] < end:
                    # Ops before this piece have run.
                    others = (graph.reading(value) ^ 1 << k) >> begin
                    mortal.append((value, others))
                    beside |= others
            self._mortal.append(mortal)
            self._beside.append(beside)

    def run(self, sequence: Iterable[int]) -> tuple[int, int]:
        """The peak of live bytes of an order, and how many are live after it."""
        done, live, peak = 0, self._live, self._live
        for k in sequence:
            _, during, after = self._step(done, k)
            peak = max(peak, live + during)
            live += after
            done |= 1 << k
        return peak, live

    def _step(self, done: int, k: int) -> _Ready:
        """Op k after the ops in the mask `done`."""
        during, after = self._born[k]
        dying = [value for value, others in self._mortal[k] if not others & ~done]
        for value in dying:
            after -= self._sizes[value]
        if dying and self._ops[k].inplace:
            for value in _match(self._ops[k].inplace, dying, self._sizes):
                during -= self._sizes[value]
        return k, during, after

    def _after(self, state: _State, op: _Ready) -> _State:
        k, during, after = op
        done = state.done | 1 << k
        beside = self._beside[k]
        ready = [
            self._step(done, other[0]) if beside >> other[0] & 1 else other
            for other in state.ready
            if other is not op
        ]
        ready += [self._step(done, i) for i in self._enables[k] if not self._needs[i] & ~done]
        peak = max(state.peak, state.live + during)
        return _State(done, state.live + after, peak, ready, (k, state.path))

    def _close(self, state: _State) -> _State:
        """
        Runs at once every op that stays within the peak and leaves no more bytes live.

        This loses no order with this peak: moving such an op to the front of any continuation leaves at most
        as many bytes live at every later step, and at least as many operands dying.
        """
        while True:
            spare = state.peak - state.live
            op = next((op for op in state.ready if op[1] <= spare and op[2] <= 0), None)
            if op is None:
                return state
            state = self._after(state, op)

    def solve(self, floor: int, state_limit: int, deadline: float) -> tuple[Sequence[int], int, int]:
        """An order of the piece, the larger of `floor` and what no order stays below, the sets visited."""
        given = range(len(self._ops))
        known = self.run(given)[0]
        if known <= floor:
            return given, floor, 0
        start = _State(0, self._live, floor, [self._step(0, k) for k in given if not self._needs[k]], None)
        # Best first: a set of ops determines what is live, so the first visit of it has the lowest peak. A state is
        # made when it is visited, of the one before it and an op.
        heap: list[tuple[int, int, int, int, _State, _Ready | None]] = [
            (floor, 0, self._live, 0, start, None)
        ]
        seen: set[int] = set()
        reached = {0: floor}
        visits = 0
        while heap:
            peak, _, _, done, state, op = heapq.heappop(heap)
            if done in seen:
                continue
            if visits >= state_limit or (visits % 64 == 63 and time.monotonic() >= deadline):
                return self._beam(start, known, state_limit, deadline) or given, peak, visits
            visits += 1
            seen.add(done)
            state = self._close(state if op is None else self._after(state, op))
            if state.done == self._everything:
                return state.sequence(), state.peak, visits
            seen.add(state.done)
            count = -state.done.bit_count() - 1
            for op in state.ready:
                k, during, after = op
                done, peak = state.done | 1 << k, max(state.peak, state.live + during)
                if peak < min(known, reached.get(done, known)):
                    reached[done] = peak
                    heapq.heappush(heap, (peak, count, state.live + after, done, state, op))
        return given, known, visits

    def _beam(self, start: _State, known: int, state_limit: int, deadline: float) -> list[int] | None:
        """An order whose peak is lower than `known`, keeping only the most promising sets at each step."""
        width = max(1, min(400, state_limit // len(self._ops)))
        beam = [start]
        best: _State | None = None
        while beam and time.monotonic() < deadline:
            following: dict[int, tuple[int, int, int, _State, _Ready]] = {}
            for state in map(self._close, beam):
                if state.done == self._everything:
                    if best is None or state.peak < best.peak:
                        best = state
                    continue
                for op in state.ready:
                    k, during, after = op
                    done, peak = state.done | 1 << k, max(state.peak, state.live + during)
                    rival = following.get(done)
                    if peak < (known if rival is None else rival[0]):
                        following[done] = peak, state.live + after, done, state, op
            chosen = heapq.nsmallest(width, following.values(), key=itemgetter(0, 1, 2))
            beam = [self._after(state, op) for *_, state, op in chosen]
        return None if best is None else best.sequence()
