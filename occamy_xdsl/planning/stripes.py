"""Striped execution: which parts of a network run in stripes of rows, and which rows each op computes when."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain
from typing import Literal

Halo = Literal["keep", "recompute"]
RowMap = Callable[[int, int], tuple[int, int]]
"""From rows [begin, end) of a result to the rows [first, last) of an operand that they need."""

STRIPES = (2, 3, 4, 5, 7, 8, 10, 14, 16, 20, 28, 32, 56, 64)
"""Numbers of stripes that are tried, fewest first."""

WORK_PER_BYTE = 4
"""Multiply-accumulates in the time that copying a byte between stripes takes."""

WORK_PER_BYTE_READ = 3
"""
Multiply-accumulates in the time that reading a byte once more takes, of filters and matrices that a cache does not
keep.
"""

CACHED = 1 << 20
"""Bytes that a core's cache keeps from one stripe to the next: reading them again takes no time."""

WORK_PER_CALL = 20_000
"""Multiply-accumulates in the time that one more call of a kernel takes."""

MODELLED = 4
"""Stripes of a segment that are modelled one by one."""

SLACK = 16
"""The share 1 / SLACK of the lowest peak is given up for fewer stripes."""

CALLERS_SLACK = 64
"""So is the share 1 / CALLERS_SLACK of the caller's own buffers, beside which it does not count."""

LONGEST = 100
"""Most ops that run in stripes together."""


@dataclass(frozen=True, slots=True)
class Value:
    """Bytes and rows of a value; a pinned one is the caller's and costs nothing."""

    bytes: int
    rows: int
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class RowOp:
    """
    One op over values, which are numbered from 0. It may run in stripes if it is `local`.

    `reads` pairs each operand with its row map, None where it is needed whole. `work` is in multiply-accumulates
    for all rows, `whole` are the bytes that any rows of the result need. A `view` needs no memory (a part of its
    operand), a `join` puts its operands together in place. The result may take the place of a value in `inplace`
    that dies. Rows of the result come in groups of `unit`.
    """

    reads: tuple[tuple[int, RowMap | None], ...]
    writes: tuple[int, ...]
    work: int = 0
    whole: int = 0
    local: bool = False
    view: bool = False
    join: bool = False
    inplace: tuple[int, ...] = ()
    unit: int = 1


@dataclass(frozen=True, slots=True)
class Piece:
    """One op in one stripe: it computes rows [begin, end) of its result, of which [stored, end) are at hand."""

    op: int
    stored: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Segment:
    """
    The local ops among [first, last) run in stripes, which end at the rows `ends` of the last value that leaves
    the segment.
    """

    first: int
    last: int
    ends: tuple[int, ...]
    halo: Halo


@dataclass(frozen=True, slots=True)
class Plan:
    """Segments in order, the peak of live bytes that the model expects, and the work that is done twice."""

    segments: tuple[Segment, ...]
    peak: int
    extra_work: int


def stripe_ends(rows: int, stripes: int) -> tuple[int, ...]:
    """Rows at which stripes of equal height end; the last one may be lower."""
    height = -(-rows // stripes)
    return (*range(height, rows, height), rows)


@dataclass(frozen=True, slots=True)
class Rows:
    """
    The rows of one op in each stripe `s`: it computes [begins[s], ends[s + 1]), of which [stored[s], ends[s + 1]) are
    at hand. `ends` starts with 0.
    """

    stored: list[int]
    begins: list[int]
    ends: list[int]

    def in_stripe(self, s: int) -> bool:
        """Whether the op has any rows there."""
        return self.stored[s] < self.ends[s + 1]


def rows_of_op(
    op: RowOp, rows: int, wanted: Sequence[int] | None, readers: Sequence[tuple[Rows, RowMap]], halo: Halo
) -> Rows:
    """
    The rows of `op`, whose result has `rows` rows, from those of the ops that read it.

    `wanted` are the rows that must be there at the end of each stripe, None where no one else wants the result. With
    halo `keep` every row is computed once (views, which cost nothing, apart).
    """
    stripes = len(wanted) if wanted is not None else len(readers[0][0].begins) if readers else 0
    keep = halo == "keep" and not op.view
    begins, ends, needed = list[int](), [0], list[int]()
    for s in range(stripes):
        done = now = ends[-1]
        low = rows
        if wanted is not None and wanted[s] > done:
            now, low = wanted[s], done
        for reader, rows_of in readers:
            begin, end = reader.begins[s], reader.ends[s + 1]
            if begin < end:
                first, last = rows_of(begin, end)
                low, now = min(low, first), max(now, last)
        low, now = low // op.unit * op.unit, -(-now // op.unit) * op.unit
        needed.append(low)
        begins.append(done if keep else min(low, now))
        ends.append(now)
    if not keep:
        return Rows(begins, begins, ends)
    # What a later stripe needs again must be at hand until then.
    lowest = list(accumulate(reversed(needed), min))
    return Rows([min(*pair) for pair in zip(reversed(lowest), begins, strict=True)], begins, ends)


def wanted_rows(rows: int, total: int, ends: Sequence[int]) -> list[int]:
    """How many of `rows` rows are there when as large a part of `total` ones is."""
    return [-(-rows * end // total) for end in ends]


def unroll(
    ops: Sequence[RowOp], rows: Sequence[int], outputs: Sequence[int], ends: Sequence[int], halo: Halo
) -> list[list[Piece]]:
    """
    The pieces of each stripe, in order of `ops`.

    `rows[v]` counts the rows of value v, `outputs` are the values that are wanted whole; `ends` are rows of the
    last of them. With halo `keep` every row is computed once (views, which cost nothing, apart), and a piece
    whose `stored` is below its `begin` finds rows [stored, begin) left by the stripe before it.
    """
    readers: dict[int, list[tuple[Rows, RowMap]]] = {}
    found: dict[int, Rows] = {}
    for k in reversed(range(len(ops))):
        value = ops[k].writes[0]
        wanted = wanted_rows(rows[value], rows[outputs[-1]], ends) if value in outputs else None
        found[k] = own = rows_of_op(ops[k], rows[value], wanted, readers.get(value, []), halo)
        for operand, rows_of in ops[k].reads:
            if rows_of is not None and own.begins:
                readers.setdefault(operand, []).append((own, rows_of))
    return [
        [
            Piece(k, own.stored[s], own.begins[s], own.ends[s + 1])
            for k in range(len(ops))
            if (own := found[k]).begins and own.in_stripe(s)
        ]
        for s in range(len(ends))
    ]


@dataclass(frozen=True)
class Cost:
    """
    What a segment costs: most bytes live inside it, work done twice, bytes copied and bytes read once more, and
    pieces to run.
    """

    peak: int
    extra_work: int
    copied: int
    read: int
    pieces: int

    @property
    def rank(self) -> tuple[int, int]:
        """Extra work; and all that it costs in time, as multiply-accumulates."""
        time = WORK_PER_BYTE * self.copied + WORK_PER_BYTE_READ * self.read + WORK_PER_CALL * self.pieces
        return self.extra_work, self.extra_work + time


class Graph:
    """Ops in order of execution over values, and the storage that each value occupies."""

    def __init__(self, ops: Sequence[RowOp], values: Sequence[Value], outputs: Collection[int] = ()):
        """`outputs` are the values that are returned."""
        self.ops, self.values, self.outputs = list(ops), list(values), frozenset(outputs)
        self.writer = {v: k for k, op in enumerate(ops) for v in op.writes}
        self.readers: dict[int, list[int]] = {}
        for k, op in enumerate(ops):
            for value, _ in op.reads:
                self.readers.setdefault(value, []).append(k)
        self._tails: dict[int, _Tail] = {}
        self._models: dict[tuple[int, tuple[int, ...], Halo, bool], SegmentModel] = {}
        self._around: dict[tuple[int, int], tuple[int, int]] = {}
        self._connected: dict[tuple[int, int], bool] = {}
        self._root = list(range(len(values)))
        for op in ops:
            if op.view and op.reads:
                self._root[op.writes[0]] = op.reads[0][0]
            elif op.join:
                for value, _ in op.reads:
                    free = value in self.writer and not ops[self.writer[value]].view
                    if free and self._root[value] == value:
                        self._root[value] = op.writes[0]

    def root(self, value: int) -> int:
        """The value whose storage holds `value`."""
        while self._root[value] != value:
            value = self._root[value]
        return value

    @cached_property
    def lives(self) -> dict[int, tuple[int, int]]:
        """First and last op that touches each storage; values that no op writes live from -1."""
        lives: dict[int, tuple[int, int]] = {}
        for value in range(len(self.values)):
            first = self.writer.get(value, -1)
            last = max(self.readers.get(value, [first]))
            if value in self.outputs:
                last = len(self.ops)
            root = self.root(value)
            own = lives.get(root, (first, last))
            lives[root] = (min(own[0], first), max(own[1], last))
        return lives

    def bytes_of(self, root: int) -> int:
        return 0 if self.values[root].pinned else self.values[root].bytes

    @property
    def can_slide(self) -> bool:
        """Whether a segment that was modelled has a window of which at least half stays from stripe to stripe."""
        return any(model.can_slide for model in self._models.values())

    @cached_property
    def plain(self) -> list[int]:
        """Bytes live while each op runs whole."""
        change = [0] * (len(self.ops) + 2)
        for root, (first, last) in self.lives.items():
            change[max(first, 0)] += self.bytes_of(root)
            change[min(last, len(self.ops)) + 1] -= self.bytes_of(root)
        live = list(accumulate(change))[: len(self.ops)]
        for k in range(len(self.ops)):
            live[k] -= self._saved_in_place(k, lambda root, k=k: self.lives[root][1] == k)
        return live

    def _saved_in_place(self, k: int, dies: Callable[[int], bool]) -> int:
        """Bytes that op `k` needs less, since its result takes the place of a storage that `dies` there."""
        result = self.root(self.ops[k].writes[0])
        for value in self.ops[k].inplace:
            root = self.root(value)
            if root != result and root == value and dies(root):
                return min(self.bytes_of(result), self.bytes_of(root))
        return 0

    @cached_property
    def crossing(self) -> list[int]:
        """Bytes live between each op and the one before it."""
        change = [0] * (len(self.ops) + 2)
        for root, (first, last) in self.lives.items():
            if last > first:
                change[first + 1] += self.bytes_of(root)
                change[min(last, len(self.ops)) + 1] -= self.bytes_of(root)
        return list(accumulate(change))[: len(self.ops) + 1]

    def tail(self, first: int, last: int) -> "_Tail":
        """The segments that end before op `last`, known as far back as op `first`."""
        if last not in self._tails:
            self._tails[last] = _Tail(self, last)
        self._tails[last].extend(first)
        return self._tails[last]

    def inside(self, first: int, last: int) -> list[int]:
        """
        The ops of a segment: the local ones among [first, last), but for those that others of them need whole.

        These, and the ops that are not local, run before the segment.
        """
        return [k for k in reversed(self.tail(first, last).inside) if k >= first]

    def starts(self, first: int, last: int) -> bool:
        """Whether op `first` is inside the segment [first, last)."""
        return first not in self.tail(first, last).before

    def connected(self, first: int, last: int) -> bool:
        """Whether a segment is more than several that have nothing to do with each other."""
        if (first, last) not in self._connected:
            parts = {k: i for i, k in enumerate(self.inside(first, last))}
            merged = list(range(len(parts)))

            def part(i: int) -> int:
                while merged[i] != i:
                    i = merged[i]
                return i

            for k, i in parts.items():
                for value, _ in self.ops[k].reads:
                    writer = parts.get(self.writer.get(value, -1))
                    if writer is not None:
                        merged[part(writer)] = part(i)
            self._connected[first, last] = sum(i == own for i, own in enumerate(merged)) == 1
        return self._connected[first, last]

    def by_rows(self, reader: int, value: int) -> bool:
        """Whether an op needs only some rows of a value for some rows of its result."""
        return all(rows_of is not None for v, rows_of in self.ops[reader].reads if v == value)

    def leaving(self, first: int, last: int) -> list[int]:
        """Values that a segment writes and others read, or that are returned."""
        return [v for k in self.inside(first, last) for v in self.ops[k].writes if self.leaves(v, last)]

    def leaves(self, value: int, last: int) -> bool:
        """Whether a value is returned, or read by op `last` or one after it."""
        return value in self.outputs or any(reader >= last for reader in self.readers.get(value, ()))

    def around(self, first: int, last: int) -> tuple[int, int]:
        """
        Most bytes live while the ops among [first, last) run that come before the stripes, and the bytes of the
        values that are whole while the stripes run.
        """
        if (first, last) not in self._around:
            inside = set(self.inside(first, last))
            before = {k: i for i, k in enumerate(k for k in range(first, last) if k not in inside)}
            end = len(before)
            change = [0] * (end + 2)
            dies: dict[int, int] = {}
            for root, touches in self._touches:
                born, dead = touches[0], touches[-1]
                if dead < first or born >= last:
                    continue
                early = [before[k] for k in touches if k in before]
                if first <= born and dead < last and not early:
                    continue  # never whole
                in_stripes = dead >= last or any(k in inside for k in touches)
                dies[root] = end if in_stripes else max(early)
                change[0 if born < first else min(early, default=end)] += self.bytes_of(root)
                change[dies[root] + 1] -= self.bytes_of(root)
            live = list(accumulate(change))
            for k, i in before.items():
                live[i] -= self._saved_in_place(k, lambda root, i=i: dies.get(root) == i)
            self._around[first, last] = max(live[:end], default=0), live[end]
        return self._around[first, last]

    @cached_property
    def _touches(self) -> list[tuple[int, list[int]]]:
        """Each storage that costs something, and the ops that write or read it, in order."""
        touches: dict[int, set[int]] = {}
        for k, op in enumerate(self.ops):
            for value in (*op.writes, *(v for v, _ in op.reads)):
                touches.setdefault(self.root(value), set()).add(k)
        for root, (first, last) in self.lives.items():
            touches.setdefault(root, set()).update((first, last))
        return [(root, sorted(ops)) for root, ops in touches.items() if self.bytes_of(root)]

    def cost(self, first: int, last: int, ends: tuple[int, ...], halo: Halo, *, slides: bool = False) -> Cost:
        """
        Models ops [first, last) in stripes; values that cross the segment's ends are whole. With `slides`, windows
        slide where that is better.
        """
        model = self._model(first, last, ends, halo, slides=False)
        inside = model.cost(first)
        if slides and model.can_slide:
            other = self._model(first, last, ends, halo, slides=True).cost(first)
            inside = min(inside, other, key=lambda cost: (cost.peak, cost.copied))
        before, whole = self.around(first, last)
        return replace(inside, peak=max(before, whole + inside.peak))

    def _model(
        self, first: int, last: int, ends: tuple[int, ...], halo: Halo, *, slides: bool
    ) -> "SegmentModel":
        tail = self.tail(first, last)
        key = last, ends, halo, slides
        if key not in self._models:
            self._models[key] = SegmentModel(self, tail, ends, halo, slides=slides)
        return self._models[key]


class _Tail:
    """The segments that end before op `last`, each of which is a part of those that start earlier."""

    def __init__(self, graph: Graph, last: int):
        self.graph, self.last, self.first = graph, last, last
        self.before = set[int]()
        """The ops that run before the stripes."""
        self.inside = list[int]()
        """The ops that run in stripes, the last one first."""
        self.rows = 1
        """Rows of the last value that leaves the segments."""

    def extend(self, first: int) -> None:
        graph = self.graph
        for k in reversed(range(first, self.first)):
            if not graph.ops[k].local or any(
                reader in self.before or (reader < self.last and not graph.by_rows(reader, value))
                for value in graph.ops[k].writes
                for reader in graph.readers.get(value, ())
            ):
                self.before.add(k)
                continue
            if not self.inside:
                self.rows = graph.values[graph.ops[k].writes[-1]].rows
            self.inside.append(k)
        self.first = min(self.first, first)


@dataclass(slots=True)
class _OpModel:
    """One op of a model: its place, its rows, and for each stripe the bytes it needs and where they begin to live."""

    place: int
    rows: Rows
    row_bytes: int
    sizes: list[int]
    born: list[int]
    in_place: list[bool]
    """Whether its result takes the place of an operand."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """Rows that the next stripe needs again."""

    place: int
    """Where this stripe is done with the value."""
    bytes: int
    window: int
    """Bytes of all its rows that are at hand, if half of them stay; else 0."""


class SegmentModel:
    """
    The segments of one tail in one way to run them, modelled from the last op backward.

    The first stripes stand for all: the first one is the highest, since it runs ahead of all windows, and the others
    are alike. What runs in stripes takes places: 1 is the last op, and the others count on backward; place 0 is after
    the last op.

    What the next stripe needs again is copied to memory of its own and from there to the next window; with `slides`,
    where half of a window stays, it moves to the front of the window, which lives on.
    """

    def __init__(self, graph: Graph, tail: _Tail, ends: Sequence[int], halo: Halo, *, slides: bool):
        self.graph, self.tail, self.slides = graph, tail, slides
        self.halo: Halo = halo
        self.can_slide = False
        """Whether there is a window of which at least half stays from one stripe to the next."""
        self.stripes = len(ends)
        self.ends = ends[:MODELLED]
        self.repeats = [1] * len(self.ends)
        self.repeats[-1] += len(ends) - len(self.ends)
        self.ops: dict[int, _OpModel] = {}
        self.whole = set[int]()
        """Storages that are whole when the segment has run."""
        self.change = [[0] for _ in self.ends]
        """By how many bytes more live at each place of each stripe than at the place before."""
        self.work = self.copied = self.read = self.calls = 0
        self.costs: dict[int, Cost] = {}

    def cost(self, first: int) -> Cost:
        """What a segment costs that starts at op `first`, its peak without what is whole around the stripes."""
        for k in self.tail.inside[len(self.ops) :]:
            if k < first:
                break
            self.add(k)
            peak = max(accumulate(chain.from_iterable(map(reversed, self.change))))
            extra = max(self.work, 0) if self.halo == "recompute" else 0
            again = self.read * (self.stripes - 1) if self.read > CACHED else 0
            self.costs[k] = Cost(peak, extra, self.copied, again, self.calls)
        return self.costs[first]

    def add(self, k: int) -> None:
        graph, op = self.graph, self.graph.ops[k]
        value = op.writes[0]
        total, root = graph.values[value].rows, graph.root(value)
        readers = [self.ops[r] for r in graph.readers.get(value, ()) if r in self.ops]
        wanted = None
        if graph.leaves(value, self.tail.last):
            wanted = wanted_rows(total, self.tail.rows, self.ends)
            self.whole.add(root)
        maps = [
            (self.ops[r].rows, rows_of)
            for r in dict.fromkeys(graph.readers.get(value, ()))
            if r in self.ops
            for v, rows_of in graph.ops[r].reads
            if v == value and rows_of is not None
        ]
        rows = rows_of_op(op, total, wanted, maps, self.halo)
        place = len(self.ops) + 1
        own = _OpModel(place, rows, graph.values[value].bytes // total, [], [place] * len(self.ends), [])
        self.ops[k] = own
        self.read += op.whole
        self.work -= op.work
        before: _Kept | None = None
        for s, change in enumerate(self.change):
            change.append(0)
            own.sizes.append(0)
            own.in_place.append(False)
            if not rows.in_stripe(s):
                before = None
                continue
            stored, begin, end = rows.stored[s], rows.begins[s], rows.ends[s + 1]
            self.work += self.repeats[s] * op.work * (end - begin) // total
            self.calls += self.repeats[s]
            dies = min((r.place for r in readers if r.rows.in_stripe(s)), default=place)
            # What is joined, or whole afterwards, is counted there.
            if not op.view and not (stored == begin and (root in self.whole or root != value)):
                own.sizes[s] = size = (end - stored) * own.row_bytes
                change[place] += size
                change[dies - 1] -= size
            if before is not None:
                fits = 0 < own.sizes[s] <= before.window
                self.can_slide |= fits
                if fits and self.slides:
                    # The window lives on, and the next one takes its place.
                    self.change[s - 1][before.place - 1] += before.window
                    change[place] -= before.window
                else:
                    self.change[s - 1][before.place] += before.bytes
                    change[place - 1] -= before.bytes
                    self.copied += self.repeats[s] * before.bytes
                self.copied += self.repeats[s] * before.bytes
                before = None
            if s + 1 < len(self.ends) and not op.view and rows.in_stripe(s + 1) and rows.stored[s + 1] < end:
                kept = (end - rows.stored[s + 1]) * own.row_bytes
                before = _Kept(dies, kept, own.sizes[s] if 2 * kept >= own.sizes[s] else 0)
            self.share(own, value, s, dies)

    def share(self, own: _OpModel, value: int, s: int, dies: int) -> None:
        """Results that take the place of `value` in stripe `s`, and those that it is a part of."""
        change = self.change[s]
        for k in self.graph.readers.get(value, ()):
            reader = self.ops.get(k)
            if reader is None or not reader.sizes[s]:
                continue
            if self.graph.ops[k].join:
                change[reader.born[s]] -= reader.sizes[s]
                change[own.place] += reader.sizes[s]
                reader.born[s] = own.place
            if value in self.graph.ops[k].inplace and dies == reader.place and not reader.in_place[s]:
                fresh = (reader.rows.ends[s + 1] - reader.rows.begins[s]) * reader.row_bytes
                shared = min(reader.sizes[s], fresh)
                change[reader.place] -= shared
                change[reader.place - 1] += shared
                reader.in_place[s] = True


def find_stripes(graph: Graph, budget: float) -> Plan:
    """
    The segments that lower the peak of live bytes most, within a budget of work.

    `budget` is a share of the network's work, which work done twice may cost. Copies, filters that are read once
    more, and calls may cost as much again, as the work that could be done in their time. Among plans of one peak,
    the one with the least work done twice, then the least of all. Only around ops that run above the peak sought
    are segments formed.

    The peak is sought by bisection down to 1 percent, then raised by a little for far fewer stripes. For each one,
    the cheapest way through the ops is a shortest path over the places where segments may end.

    Windows may slide (`dnn-slide-windows`). Since that pass looks at each window by itself, and the model at all of a
    segment together, plans for that are taken only where they lower the peak by more than is given up.
    """
    search = _Search(graph)
    most = int(budget * sum(op.work for op in graph.ops))
    best = search.lowest(Plan((), max(graph.plain, default=0), 0), most)
    if graph.can_slide:
        sliding = _Search(graph, slides=True)
        first = sliding.path(best.peak - best.peak // SLACK, most)
        if first is not None:
            search, best = sliding, sliding.lowest(first, most)
    if not best.segments:
        return best
    callers = sum(value.bytes for value in graph.values if value.pinned)
    enough = best.peak + max(best.peak // SLACK, callers // CALLERS_SLACK)
    return search.path(min(enough, max(graph.plain) - 1), most) or best


class _Search:
    def __init__(self, graph: Graph, *, slides: bool = False):
        self.graph, self.slides = graph, slides
        self.options_known: dict[tuple[int, int, int, Halo], tuple[Segment, Cost]] = {}
        crossing = [1 << 62, *graph.crossing, 1 << 62]
        local = [False, *(op.local for op in graph.ops), False]
        whole = [any(rows_of is None and v in graph.writer for v, rows_of in op.reads) for op in graph.ops]
        self.ends = [
            b
            for b in range(len(graph.ops) + 1)
            if crossing[b] >= crossing[b + 1] <= crossing[b + 2]
            or local[b] != local[b + 1]
            or (b < len(graph.ops) and whole[b])
        ]

    def options(self, first: int, last: int, target: int) -> tuple[Segment, Cost] | None:
        """The cheapest way to run ops [first, last) in stripes below `target` bytes."""
        graph = self.graph
        rows = graph.tail(first, last).rows
        counts = [count for count in STRIPES if count <= rows]

        def model(count: int, halo: Halo) -> tuple[Segment, Cost]:
            key = first, last, count, halo
            if key not in self.options_known:
                ends = stripe_ends(rows, count)
                self.options_known[key] = (
                    Segment(first, last, ends, halo),
                    graph.cost(first, last, ends, halo, slides=self.slides),
                )
            return self.options_known[key]

        def fewest(halo: Halo) -> tuple[Segment, Cost] | None:
            # More stripes are lower ones and need less, but for rounding: a few that are fewer may do, too.
            if not counts or model(counts[-1], halo)[1].peak > target:
                return None
            at = bisect_left(counts, True, key=lambda count: model(count, halo)[1].peak <= target)
            likely = (model(count, halo) for count in counts[max(at - 3, 0) : at + 1])
            return next(option for option in likely if option[1].peak <= target)

        # Rows that are kept are never computed twice, which is what counts first.
        return fewest("keep") or fewest("recompute")

    def lowest(self, best: Plan, most: int) -> Plan:
        """The plan with the lowest peak, to 1 percent, of at most `most` extra work; `best` if none has a lower one."""
        low, high = 0, best.peak
        while high - low > max(high // 100, 1):
            middle = (low + high) // 2
            plan = self.path(middle, most)
            if plan is None:
                low = middle
            else:
                best, high = plan, min(middle, plan.peak)
        return best

    def path(self, target: int, most: int) -> Plan | None:
        """The cheapest plan whose peak is at most `target`, with at most `most` extra work and twice that in all."""
        graph = self.graph
        count = len(graph.ops)
        critical = list(accumulate((p > target for p in graph.plain), initial=0))
        reach: list[tuple[tuple[int, int], int, Segment | None, int] | None] = [None] * (count + 1)
        reach[0] = ((0, 0), -1, None, 0)
        places = [b for b in self.ends if graph.crossing[b] <= target]
        allowed = set(places)
        for b in range(count):
            here = reach[b]
            if here is None:
                continue
            if graph.plain[b] <= target:
                step = (here[0], b, None, max(here[3], graph.plain[b]))
                if (old := reach[b + 1]) is None or step[0] < old[0]:
                    reach[b + 1] = step
            if b not in allowed:
                continue
            for end in places:
                if not b < end <= b + LONGEST or critical[b] == critical[end]:
                    continue
                if (old := reach[end]) is not None and old[0] <= here[0]:
                    continue
                if not graph.starts(b, end) or max(graph.around(b, end)) > target:
                    continue
                if not graph.connected(b, end):
                    continue
                option = self.options(b, end, target)
                if option is None:
                    continue
                segment, cost = option
                rank = (here[0][0] + cost.rank[0], here[0][1] + cost.rank[1])
                if rank[0] > most or rank[1] > 2 * most:
                    continue
                if (old := reach[end]) is None or rank < old[0]:
                    reach[end] = (rank, b, segment, max(here[3], cost.peak))
        final = reach[count]
        if final is None:
            return None
        segments = list[Segment]()
        at = count
        while at > 0:
            entry = reach[at]
            assert entry is not None
            if entry[2] is not None:
                segments.append(entry[2])
            at = entry[1]
        return Plan(tuple(reversed(segments)), final[3], final[0][0])
