"""Striped execution: which parts of a network run in stripes of rows, and which rows each op computes when."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal

Halo = Literal["keep", "recompute"]
RowMap = Callable[[int, int], tuple[int, int]]
"""From rows [begin, end) of a result to the rows [first, last) of an operand that they need."""

STRIPES = (2, 3, 4, 5, 7, 8, 10, 14, 16, 20, 28, 32, 56, 64)
"""Numbers of stripes that are tried, fewest first."""

WORK_PER_BYTE = 3
"""Multiply-accumulates in the time that copying a byte between stripes takes."""

WORK_PER_BYTE_READ = 2
"""Multiply-accumulates in the time that reading a byte once more takes, of matrices that a cache does not keep."""

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
    that dies.
    """

    reads: tuple[tuple[int, RowMap | None], ...]
    writes: tuple[int, ...]
    work: int = 0
    whole: int = 0
    local: bool = False
    view: bool = False
    join: bool = False
    inplace: tuple[int, ...] = ()


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


def unroll(
    ops: Sequence[RowOp], rows: Sequence[int], outputs: Sequence[int], ends: Sequence[int], halo: Halo
) -> list[list[Piece]]:
    """
    The pieces of each stripe, in order of `ops`.

    `rows[v]` counts the rows of value v, `outputs` are the values that are wanted whole; `ends` are rows of the
    last of them. With halo `keep` every row is computed once (views, which cost nothing, apart), and a piece
    whose `stored` is below its `begin` finds rows [stored, begin) left by the stripe before it.
    """
    readers: dict[int, list[tuple[int, RowMap]]] = {}
    for k, op in enumerate(ops):
        for value, rows_of in op.reads:
            if rows_of is not None:
                readers.setdefault(value, []).append((k, rows_of))
    results = [op.writes[0] for op in ops]
    wanted = set(outputs)
    total = rows[outputs[-1]]
    # Row ends come from the rows that later ops need; they only grow.
    reached = [[0] * len(ops)]
    for end in ends:
        now = list(reached[-1])
        for k in reversed(range(len(ops))):
            value = results[k]
            if value in wanted:
                now[k] = max(now[k], -(-rows[value] * end // total))
            for reader, rows_of in readers.get(value, ()):
                if now[reader] > 0:
                    now[k] = max(now[k], rows_of(now[reader] - 1, now[reader])[1])
        reached.append(now)
    needed = list[list[int | None]]()
    begins = list[list[int]]()
    for done, now in pairwise(reached):
        first: list[int | None] = [None] * len(ops)
        begin = list(now)
        for k in reversed(range(len(ops))):
            value = results[k]
            lows = [
                rows_of(begin[reader], now[reader])[0]
                for reader, rows_of in readers.get(value, ())
                if begin[reader] < now[reader]
            ]
            if value in wanted and done[k] < now[k]:
                lows.append(done[k])
            first[k] = low = min(lows, default=None)
            if halo == "keep" and not ops[k].view:
                begin[k] = done[k]
            else:
                begin[k] = now[k] if low is None else min(low, now[k])
        needed.append(first)
        begins.append(begin)
    # What a later stripe needs again must be at hand until then.
    stored = [list(begin) for begin in begins]
    if halo == "keep":
        for k, op in enumerate(ops):
            lowest = rows[results[k]]
            if op.view:
                continue
            for s in reversed(range(len(ends))):
                low = needed[s][k]
                lowest = lowest if low is None else min(lowest, low)
                stored[s][k] = min(lowest, begins[s][k])
    return [
        [
            Piece(k, stored[s][k], begins[s][k], reached[s + 1][k])
            for k in range(len(ops))
            if stored[s][k] < reached[s + 1][k]
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
        self._inside: dict[tuple[int, int], list[int]] = {}
        self._around: dict[tuple[int, int], tuple[int, int]] = {}
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

    def inside(self, first: int, last: int) -> list[int]:
        """
        The ops of a segment: the local ones among [first, last), but for those that others of them need whole.

        These, and the ops that are not local, run before the segment.
        """
        if (first, last) not in self._inside:
            before = set[int]()
            for k in reversed(range(first, last)):
                if not self.ops[k].local or any(
                    reader in before or (reader < last and not self._by_rows(reader, value))
                    for value in self.ops[k].writes
                    for reader in self.readers.get(value, ())
                ):
                    before.add(k)
            self._inside[first, last] = [k for k in range(first, last) if k not in before]
        return self._inside[first, last]

    def connected(self, first: int, last: int) -> bool:
        """Whether a segment is more than several that have nothing to do with each other."""
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
        return sum(i == own for i, own in enumerate(merged)) == 1

    def _by_rows(self, reader: int, value: int) -> bool:
        """Whether an op needs only some rows of a value for some rows of its result."""
        return all(rows_of is not None for v, rows_of in self.ops[reader].reads if v == value)

    def leaving(self, first: int, last: int) -> list[int]:
        """Values that a segment writes and others read, or that are returned."""
        return [
            v
            for k in self.inside(first, last)
            for v in self.ops[k].writes
            if v in self.outputs or any(r >= last for r in self.readers.get(v, ()))
        ]

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

    def cost(self, first: int, last: int, ends: Sequence[int], halo: Halo) -> Cost:
        """
        Models ops [first, last) in stripes; values that cross the segment's ends are whole.

        The first stripes stand for all: the first one is the highest, since it runs ahead of all windows, and
        the others are alike.
        """
        place = {k: i for i, k in enumerate(self.inside(first, last))}
        ops, values = [self.ops[k] for k in place], self.values
        outputs = self.leaving(first, last)
        shown = list(ends[:MODELLED])
        stripes = unroll(ops, [v.rows for v in values], outputs, shown, halo)
        repeats = [1] * len(shown)
        repeats[-1] += len(ends) - len(shown)
        whole = {self.root(v) for v in outputs}
        steps = sum(map(len, stripes))
        read = sum(op.whole for op in ops)
        change = [0] * (steps + 1)
        copied = work = calls = at = 0
        waiting: dict[int, tuple[int, int]] = {}  # op -> (step since which its halo waits, bytes)
        for s, pieces in enumerate(stripes):
            step_of = {piece.op: at + i for i, piece in enumerate(pieces)}
            later = {p.op: p for p in stripes[s + 1]} if s + 1 < len(stripes) else {}
            for piece in pieces:
                op, step = ops[piece.op], step_of[piece.op]
                value = op.writes[0]
                row = values[value].bytes // values[value].rows
                work += repeats[s] * op.work * (piece.end - piece.begin) // values[value].rows
                reads = [step_of[place[k]] for k in self.readers.get(value, ()) if place.get(k) in step_of]
                dies = max(reads, default=step)
                size = (piece.end - piece.stored) * row
                root = self.root(value)
                if op.view or (root in whole and piece.stored == piece.begin):
                    size = 0
                elif root != value and piece.stored == piece.begin:
                    size = 0  # a part of what it is joined to, counted there
                born = step
                if op.join and size:
                    parts = [place.get(self.writer[v]) for v, _ in op.reads if v in self.writer]
                    born = min([step_of[k] for k in parts if k in step_of], default=step)
                if piece.op in waiting:
                    since, held = waiting.pop(piece.op)
                    change[since] += held
                    change[step + 1] -= held
                    copied += repeats[s] * held
                for other in op.inplace:
                    users = [step_of[place[k]] for k in self.readers[other] if place.get(k) in step_of]
                    if place.get(self.writer.get(other, -1)) in step_of and size and max(users) == step:
                        shared = min(size, (piece.end - piece.begin) * row)
                        change[step] -= shared
                        change[step + 1] += shared
                        break
                change[born] += size
                change[dies + 1] -= size
                follower = later.get(piece.op)
                if follower is not None and follower.stored < piece.end and not op.view:
                    held = (piece.end - follower.stored) * row
                    waiting[piece.op] = (dies, held)
                    copied += repeats[s] * held
            at += len(pieces)
            calls += repeats[s] * len(pieces)
        before, whole = self.around(first, last)
        peak = max(before, whole + max(accumulate(change)))
        extra = work - sum(op.work for op in ops) if halo == "recompute" else 0
        again = read * (len(ends) - 1) if read > CACHED else 0
        return Cost(peak, max(extra, 0), copied, again, calls)


def find_stripes(graph: Graph, budget: float) -> Plan:
    """
    The segments that lower the peak of live bytes most, within a budget of work.

    `budget` is a share of the network's work. Work done twice counts against it, and so do copies and calls,
    as the work that could be done in their time. Among plans of one peak, the one with the least work done
    twice, then the least of all three. Only around ops that run above the peak sought are segments formed.

    The peak is sought by bisection down to 1 percent, then raised by a little for far fewer stripes. For each one,
    the cheapest way through the ops is a shortest path over the places where segments may end.
    """
    search = _Search(graph)
    most = int(budget * sum(op.work for op in graph.ops))
    best = Plan((), max(graph.plain, default=0), 0)
    low, high = 0, best.peak
    while high - low > max(high // 100, 1):
        middle = (low + high) // 2
        plan = search.path(middle, most)
        if plan is None:
            low = middle
        else:
            best, high = plan, min(middle, plan.peak)
    if not best.segments:
        return best
    callers = sum(value.bytes for value in graph.values if value.pinned)
    enough = best.peak + max(best.peak // SLACK, callers // CALLERS_SLACK)
    return search.path(min(enough, max(graph.plain) - 1), most) or best


class _Search:
    def __init__(self, graph: Graph):
        self.graph = graph
        self.costs: dict[Segment, Cost] = {}
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
        rows = graph.values[graph.leaving(first, last)[-1]].rows
        counts = [count for count in STRIPES if count <= rows]

        def model(count: int, halo: Halo) -> tuple[Segment, Cost]:
            segment = Segment(first, last, stripe_ends(rows, count), halo)
            if segment not in self.costs:
                self.costs[segment] = graph.cost(first, last, segment.ends, halo)
            return segment, self.costs[segment]

        def fewest(halo: Halo) -> tuple[Segment, Cost] | None:
            # More stripes are lower ones and need less, but for rounding: a few that are fewer may do, too.
            at = bisect_left(counts, True, key=lambda count: model(count, halo)[1].peak <= target)
            if at == len(counts):
                return None
            likely = (model(count, halo) for count in counts[max(at - 3, 0) : at + 1])
            return next(option for option in likely if option[1].peak <= target)

        # Rows that are kept are never computed twice, which is what counts first.
        return fewest("keep") or fewest("recompute")

    def path(self, target: int, most: int) -> Plan | None:
        """The cheapest plan whose peak is at most `target`, with at most `most` extra work."""
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
                if b not in graph.inside(b, end) or max(graph.around(b, end)) > target:
                    continue
                if not graph.connected(b, end):
                    continue
                option = self.options(b, end, target)
                if option is None:
                    continue
                segment, cost = option
                rank = (here[0][0] + cost.rank[0], here[0][1] + cost.rank[1])
                if rank[1] > most:
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
