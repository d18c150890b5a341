"""Skyline best fit: packs 100,000 buffers in seconds, from the floor up, around fixed ones where there are any."""

import heapq
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from occamy_xdsl.planning.intervals import Body

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

Rule = Literal["scarcity", "area", "length", "size"]

RULES: tuple[Rule, ...] = ("scarcity", "area", "length", "size")

BESIDE = 0.6
"""What the spans that fit beside one count in large problems: see `Skyline.place`."""

_PLACED = np.iinfo(np.int32).max


@dataclass(frozen=True)
class Spans:
    """
    Bodies of one part each as arrays, in order of birth.

    Live at op positions `first <= t < last`, `size` bytes at a multiple of `alignment` bytes. `index` is the
    body's place in the sequence that they come from.
    """

    index: Ints
    first: Ints
    last: Ints
    size: Ints
    alignment: Ints

    @classmethod
    def of(cls, bodies: Sequence[Body]) -> "Spans":
        """Those of the bodies that have bytes; each must have one part."""
        solid = [i for i, body in enumerate(bodies) if body.extent]
        solid.sort(key=lambda i: bodies[i].first)
        parts = [bodies[i].parts[0] for i in solid]
        rows = (
            solid,
            [part.first for part in parts],
            [part.last for part in parts],
            [part.size for part in parts],
            [bodies[i].alignment for i in solid],
        )
        return cls(*(np.array(row, np.int64) for row in rows))

    def __len__(self) -> int:
        return len(self.first)

    def take(self, rows: NDArray[np.bool_] | Ints) -> "Spans":
        """Some of the rows."""
        return Spans(
            self.index[rows], self.first[rows], self.last[rows], self.size[rows], self.alignment[rows]
        )


@dataclass(frozen=True)
class Load:
    """Bytes that are live from each of `positions`, at which something is born or dies, to the next one."""

    positions: Ints
    bytes: Ints

    @classmethod
    def of(cls, spans: Spans) -> "Load":
        """That of all spans together."""
        positions = np.unique(np.concatenate((spans.first, spans.last)))
        change = np.zeros(len(positions), np.int64)
        np.add.at(change, positions.searchsorted(spans.first), spans.size)
        np.add.at(change, positions.searchsorted(spans.last), -spans.size)
        return cls(positions, change.cumsum())

    def scarcity(self, capacity: int, softness: float) -> Floats:
        """
        What a byte is worth at each position: the more, the fewer are free there below a capacity.

        A skyline wastes bytes where the spans of one layer meet. They should meet where that does no harm, so
        those that are live at the peaks of the load are laid first, without joints. `softness` is the share of
        the capacity that counts as free even at the peak.
        """
        return 1 / (1 + softness - self.bytes / capacity) ** 2

    def sums(self, spans: Spans, weights: Floats) -> Floats:
        """For each span the integral of weights, one for each position, over its life."""
        sums = np.zeros(len(self.positions))
        np.cumsum(weights[:-1] * np.diff(self.positions), out=sums[1:])
        return sums[self.positions.searchsorted(spans.last)] - sums[self.positions.searchsorted(spans.first)]


class FullError(Exception):
    """No more waste is possible below the limit between the positions `[first, last)`."""

    def __init__(self, first: int, last: int):
        super().__init__(f"the limit is exceeded at positions [{first}, {last})")
        self.first, self.last = first, last


class Skyline:
    """
    The stack of placed spans: its height at every position, in segments of equal height, the lowest one first.

    Best-fit heuristic for strip packing (Burke, Kendall, Whitwell 2004) with positions of time as the fixed axis:
    the lowest segment takes the span with the highest score that lives within it; when there is none, it is
    raised to its lower neighbour. That wastes bytes, the fewer the closer the neighbour and the wider the segment
    that results is. So with some patience (bytes x positions) it is raised at once when the step times its
    positions is at most that.

    Fixed spans lie at their offsets: a segment is raised to the lowest of them, and takes their place.
    """

    def __init__(
        self,
        spans: Spans,
        fixed: Spans | None = None,
        offsets: Ints | None = None,
        limit: int | None = None,
    ):
        """Nothing placed; `offsets` are those of the fixed spans, and nothing may end above `limit` bytes."""
        self.offsets = np.zeros(len(spans), np.int64)
        self.remaining = len(spans)
        self._spans = spans
        everything = [spans] if fixed is None else [spans, fixed]
        self._positions = np.unique(np.concatenate([x for s in everything for x in (s.first, s.last)]))
        count = len(self._positions)
        self._first = self._positions.searchsorted(spans.first).astype(np.int32)
        self._last = self._positions.searchsorted(spans.last).astype(np.int32)
        # Python reads single numbers from lists several times as fast as from arrays.
        arrays = self._positions, self._first, self._last, spans.size, spans.alignment
        self._lists: tuple[list[int], ...] = tuple(array.tolist() for array in arrays)
        self._born: list[int] = self._first.searchsorted(np.arange(count)).tolist()
        self._unplaced = self._last.copy()  # when each dies, if it is not placed
        self._right, self._height, self._left = [-1] * count, [0] * count, [-1] * count
        self._heap: list[tuple[int, int, int]] = []
        self._limit = limit or 1
        self.slack: Ints | None = None  # how many bytes each position may waste from here on
        if limit is not None:
            change = np.zeros(count, np.int64)
            for s in everything:
                np.add.at(change, self._positions.searchsorted(s.first), s.size)
                np.add.at(change, self._positions.searchsorted(s.last), -s.size)
            self.slack = limit - change.cumsum()
        self._obstacles = (
            None if fixed is None or offsets is None else _Obstacles(self._positions, fixed, offsets)
        )
        if count:
            self._link(-1, [(0, count - 1, 0)], count - 1)

    @property
    def tension(self) -> float:
        """How little waste is left below the limit: the tighter a position is, the more it counts."""
        assert self.slack is not None
        return float(((self.slack / self._limit + 0.005) ** -2).sum())

    def copy(self) -> "Skyline":
        """The same stack, to be continued in another way."""
        other = copy(self)
        other.offsets, other._unplaced = self.offsets.copy(), self._unplaced.copy()
        other._right, other._height, other._left = self._right[:], self._height[:], self._left[:]
        other._heap = self._heap[:]
        if self.slack is not None:
            other.slack = self.slack.copy()
        if self._obstacles is not None:
            other._obstacles = self._obstacles.copy()
        return other

    def place(
        self, scores: Floats, patience: float = -1, level: int | None = None, beside: float = 0
    ) -> None:
        """
        Places spans, those with high scores first, until all are, or none can start below a level.

        The score counts together with those of the best two spans that fit on the same segment, one before its
        birth and one after its death, times `beside`: what is left there is wasted if nothing fits. Scores must
        not be negative then. Raises FullError when some span cannot end below the limit.
        """
        positions, first, last, sizes, alignments = self._lists
        born, unplaced, obstacles = self._born, self._unplaced, self._obstacles
        while self.remaining:
            height, left, right = self._heap[0]
            if level is not None and height >= level:
                return
            heapq.heappop(self._heap)
            if self._right[left] != right or self._height[left] != height:
                continue
            ceiling = None
            if obstacles is not None:
                ceiling = obstacles.lowest(left, right)
                if ceiling <= height:
                    self._replace(left, right, obstacles.pieces(left, right, height))
                    continue
            step = self._next_height(left, right) - height
            if step * (positions[right] - positions[left]) > patience:
                begin = born[left]
                (fitting,) = (unplaced[begin : born[right]] <= right).nonzero()
                fitting += begin
                if ceiling is not None and fitting.size:
                    fitting = self._below(fitting, height, ceiling)
                if fitting.size:
                    k = self._choose(fitting, scores, beside)
                    offset = -(-height // alignments[k]) * alignments[k]
                    self.offsets[k] = offset
                    unplaced[k] = _PLACED
                    self.remaining -= 1
                    top = offset + sizes[k]
                    if self.slack is not None and offset > height:
                        self._waste(first[k], last[k], offset - height)
                    pieces = ((left, first[k], height), (first[k], last[k], top), (last[k], right, height))
                    self._replace(left, right, pieces)
                    continue
            self._raise(left, right, step if ceiling is None else min(step, ceiling - height))

    def _choose(self, fitting: NDArray[np.intp], scores: Floats, beside: float) -> int:
        """The one of several spans that has the highest score, with what fits beside it."""
        count = fitting.size
        if count == 1:
            return int(fitting[0])
        score = scores[fitting]
        if beside and count <= _CROWD:
            births, deaths = self._first[fitting], self._last[fitting]
            by_death = deaths.argsort()
            # The best of the n that die first, and of the n that are born last.
            early, late = np.zeros(count + 1), np.zeros(count + 1)
            np.maximum.accumulate(score[by_death], out=early[1:])
            np.maximum.accumulate(score[::-1], out=late[1:])
            before = early[deaths[by_death].searchsorted(births, "right")]
            after = late[count - births.searchsorted(deaths)]
            score = score + beside * (before + after)
        return int(fitting[score.argmax()])

    def _below(self, fitting: NDArray[np.intp], level: int, ceiling: int) -> NDArray[np.intp]:
        """Those that end below the fixed spans above them, when placed at a level."""
        assert self._obstacles is not None
        offsets = -(-level // self._spans.alignment[fitting]) * self._spans.alignment[fitting]
        tops = offsets + self._spans.size[fitting]
        if int(tops.max()) <= ceiling:
            return fitting
        return fitting[tops <= self._obstacles.lowest_of(self._first[fitting], self._last[fitting])]

    def _next_height(self, left: int, right: int) -> int:
        """The height of the lower neighbour."""
        before = self._height[self._left[left]] if left else _HIGH
        after = self._height[right] if right < len(self._positions) - 1 else _HIGH
        return min(before, after)

    def _raise(self, left: int, right: int, step: int) -> None:
        if self.slack is not None:
            self._waste(left, right, step)
        level = self._height[left] + step
        self._right[left] = -1
        before, end = self._left[left], right
        if left and self._height[before] == level:
            self._right[before] = -1
            left, before = before, self._left[before]
        if end < len(self._positions) - 1 and self._height[end] == level:
            after, end = end, self._right[end]
            self._right[after] = -1
        self._link(before, [(left, end, level)], end)

    def _waste(self, left: int, right: int, size: int) -> None:
        assert self.slack is not None
        slack = self.slack[left:right]
        slack -= size
        if int(slack.min()) < 0:
            (lacking,) = (slack < 0).nonzero()
            raise FullError(
                int(self._positions[left + lacking[0]]), int(self._positions[left + lacking[-1] + 1])
            )

    def _replace(self, left: int, right: int, pieces: Sequence[tuple[int, int, int]]) -> None:
        self._right[left] = -1
        self._link(self._left[left], pieces, right)

    def _link(self, before: int, pieces: Sequence[tuple[int, int, int]], end: int) -> None:
        """Segments (left, right, height) in the place of those between two others, without the empty ones."""
        for left, right, height in pieces:
            if left < right:
                self._right[left], self._height[left], self._left[left] = right, height, before
                before = left
                heapq.heappush(self._heap, (height, left, right))
        if end < len(self._positions) - 1:
            self._left[end] = before


_CROWD = 3000
"""Spans that fit on a segment beyond which what is left beside one of them does not matter: something will fit."""

_HIGH = 1 << 62
"""Higher than any offset in bytes."""


class _Obstacles:
    """At each position the lowest fixed span that the skyline has not reached."""

    def __init__(self, positions: Ints, fixed: Spans, offsets: Ints):
        self._first: list[int] = positions.searchsorted(fixed.first).tolist()
        self._last: list[int] = positions.searchsorted(fixed.last).tolist()
        self._top: list[int] = (offsets + fixed.size).tolist()
        self._offset = np.append(offsets, _HIGH)  # of none at all: the last one
        self._next = np.full(len(positions), len(fixed), np.int64)
        # What lies above each one, from its birth to its death.
        self._above: list[Ints] = [self._next[:0]] * len(fixed)
        for k in offsets.argsort()[::-1].tolist():
            life = self._next[self._first[k] : self._last[k]]
            self._above[k] = life.copy()
            life[:] = k
        self._ceiling = self._offset[self._next]

    def copy(self) -> "_Obstacles":
        other = copy(self)
        other._next, other._ceiling = self._next.copy(), self._ceiling.copy()
        return other

    def lowest(self, left: int, right: int) -> int:
        """The lowest offset within a range of positions."""
        return int(self._ceiling[left:right].min())

    def lowest_of(self, first: NDArray[np.int32], last: NDArray[np.int32]) -> Ints:
        """The lowest offset within each of several ranges."""
        ends = np.stack((first, last), axis=1).ravel()
        return np.minimum.reduceat(self._ceiling, ends)[::2]

    def pieces(self, left: int, right: int, level: int) -> list[tuple[int, int, int]]:
        """The segments that a segment falls into when it takes the place of the fixed spans at its level."""
        here = np.where(self._ceiling[left:right] <= level, self._next[left:right], -1)
        cuts = [0, *(np.flatnonzero(here[1:] != here[:-1]) + 1).tolist(), right - left]
        pieces: list[tuple[int, int, int]] = []
        for begin, end in pairwise(cuts):
            k = int(here[begin])
            begin, end = left + begin, left + end
            if k >= 0:
                birth = self._first[k]
                self._next[begin:end] = self._above[k][begin - birth : end - birth]
                self._ceiling[begin:end] = self._offset[self._next[begin:end]]
            pieces.append((begin, end, level if k < 0 else self._top[k]))
        return pieces


def place_skyline(
    bodies: Sequence[Body],
    rule: Rule,
    softness: float = 0.1,
    beside: float = 0,
    waste: float = 0.05,
) -> list[int]:
    """
    Offsets in bytes for bodies of one part each, indexed like `bodies`.

    Of those that fit the longest comes first, or that with the largest area or size, or by "scarcity": that
    which is live longest where few bytes are free, see `Load.scarcity` for its softness, and `Skyline.place`
    for what lies beside it. What may be wasted for a wider segment is the share `waste` of a mean span.
    """
    spans = Spans.of(bodies)
    result = [0] * len(bodies)
    if len(spans):
        if rule == "scarcity":
            load = Load.of(spans)
            scores = load.sums(spans, load.scarcity(int(load.bytes.max()), softness))
            stack = Skyline(spans)
            stack.place(scores, patience(spans, waste), beside=beside)
        else:
            length = spans.last - spans.first
            keys = {
                "area": (length, length * spans.size),
                "length": (spans.size, length),
                "size": (length, spans.size),
            }
            ranks = np.empty(len(spans))
            ranks[np.lexsort((-spans.index, *keys[rule]))] = np.arange(len(spans))
            stack = Skyline(spans)
            stack.place(ranks)
        for i, offset in zip(spans.index.tolist(), stack.offsets.tolist(), strict=True):
            result[i] = offset
    return result


def patience(spans: Spans, share: float = 0.05) -> float:
    """Bytes x positions worth wasting for a wider segment: a share of the mean length times the mean size."""
    return share * float((spans.last - spans.first).mean()) * float(spans.size.mean())
