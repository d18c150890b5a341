"""Skyline best fit: packs 100,000 buffers in seconds, near O(n log n)."""

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np

from occamy_xdsl.planning.intervals import Body, Part, round_up

Rule = Literal["area", "length", "size"]

RULES: dict[Rule, Callable[[Part], tuple[int, int]]] = {
    "area": lambda p: ((p.last - p.first) * p.size, p.last - p.first),
    "length": lambda p: (p.last - p.first, p.size),
    "size": lambda p: (p.size, p.last - p.first),
}

_SHORT = 60
"""Items up to which a list is searched faster than an array."""


class _Segment:
    """A maximal range of positions `[left, right)` at which the stack of placed buffers has one height."""

    __slots__ = ("alive", "height", "inside", "left", "next", "previous", "right")

    def __init__(self, left: int, right: int, height: int, inside: list[int]):
        self.left, self.right, self.height = left, right, height
        self.previous: _Segment | None = None
        self.next: _Segment | None = None
        self.inside = inside  # a heap: every unplaced buffer that lives within the segment, and some others
        self.alive = True


class _Table:
    """One number for each unplaced buffer, in rows that are sorted by another: a list and the same as an array."""

    def __init__(self, rows: Sequence[int], number: Sequence[int]):
        self._rows = rows
        self._numbers = [number[k] for k in rows]
        self._rows_array = np.array(rows, np.int32)
        self._numbers_array = np.array(self._numbers, np.int32)
        self._row_of = [0] * len(rows)
        for row, k in enumerate(rows):
            self._row_of[k] = row

    def remove(self, k: int) -> None:
        row = self._row_of[k]
        self._numbers[row] = self._numbers_array[row] = -1

    def select(self, begin: int, end: int, least: int, most: int) -> list[int]:
        """The buffers in rows `begin <= row < end` with numbers from `least` to `most`."""
        if end - begin <= _SHORT:
            rows = zip(self._rows[begin:end], self._numbers[begin:end], strict=True)
            return [k for k, number in rows if least <= number <= most]
        numbers = self._numbers_array[begin:end]
        return self._rows_array[begin:end][(numbers >= least) & (numbers <= most)].tolist()


class _Unplaced:
    """The buffers to be placed, named by rank: 0 is the best. Their positions are numbered without gaps."""

    def __init__(self, parts: Sequence[Part]):
        number = {p: n for n, p in enumerate(sorted({p.first for p in parts} | {p.last for p in parts}))}
        self.positions = len(number)
        self.first = [number[part.first] for part in parts]  # -1 when placed
        self.last = [number[part.last] for part in parts]
        self._by_birth = _Table(sorted(range(len(parts)), key=self.first.__getitem__), self.last)
        self._by_death = _Table(sorted(range(len(parts)), key=self.last.__getitem__), self.first)
        # How many are born, or dead, at all positions before each.
        self.born = _counts(self.first, self.positions)
        self.dead = _counts(self.last, self.positions)

    def remove(self, k: int) -> None:
        self._by_birth.remove(k)
        self._by_death.remove(k)
        self.first[k] = -1

    def within(self, left: int, right: int) -> list[int]:
        """Those that live within a range, as a heap."""
        return sorted(self._by_birth.select(self.born[left], self.born[right], left, right))

    def across(self, left: int, middle: int, right: int) -> list[int]:
        """Those that live within a range on both sides of a position, looked for on the side with fewer."""
        births = self.born[left], self.born[middle]
        deaths = self.dead[middle + 1], self.dead[right + 1]
        if births[1] - births[0] < deaths[1] - deaths[0]:
            return self._by_birth.select(*births, middle + 1, right)
        return self._by_death.select(*deaths, left, middle - 1)


def _counts(numbers: Iterable[int], count: int) -> list[int]:
    histogram = [0] * (count + 1)
    for number in numbers:
        histogram[number + 1] += 1
    return list(accumulate(histogram))


def place_skyline(bodies: Sequence[Body], rule: Rule) -> list[int]:
    """
    Offsets in bytes for bodies of one part each, indexed like `bodies`.

    Takes the lowest segment of the skyline and puts there the best buffer (longest, largest area or largest
    size) that lives within it; when none does, raises the segment to its lower neighbour. Best-fit heuristic
    for strip packing (Burke, Kendall, Whitwell 2004) with positions of time as the fixed axis.

    The largest piece of a segment that is split keeps its heap, from which what lives elsewhere is dropped
    when it comes up: so a placement costs what the smaller pieces hold.
    """
    key = RULES[rule]
    order = sorted(range(len(bodies)), key=lambda i: (*key(bodies[i].parts[0]), -i), reverse=True)
    parts = [bodies[i].parts[0] for i in order]
    alignments = [bodies[i].alignment for i in order]
    unplaced = _Unplaced(parts)
    first, last = unplaced.first, unplaced.last
    offsets = [0] * len(bodies)
    heap: list[tuple[int, int, int, _Segment]] = []
    serial = 0

    def segment(left: int, right: int, height: int, inside: list[int]) -> _Segment:
        nonlocal serial
        new = _Segment(left, right, height, inside)
        serial += 1
        heapq.heappush(heap, (height, left, serial, new))
        return new

    def link(*row: _Segment | None):
        for left, right in pairwise(row):
            if left is not None:
                left.next = right
            if right is not None:
                right.previous = left

    def merge(one: list[int], other: list[int], left: int, middle: int, right: int) -> list[int]:
        """The heap of a range out of those of its two sides."""
        if len(one) < len(other):
            one, other = other, one
        for k in other:
            if left <= first[k] and last[k] <= right:
                heapq.heappush(one, k)
        for k in unplaced.across(left, middle, right):
            heapq.heappush(one, k)
        return one

    remaining = len(parts)
    if remaining:
        segment(0, unplaced.positions - 1, 0, list(range(len(parts))))
    while remaining:
        lowest = heapq.heappop(heap)[-1]
        if not lowest.alive:
            continue
        lowest.alive = False
        left, right, height, inside = lowest.left, lowest.right, lowest.height, lowest.inside
        before, after = lowest.previous, lowest.next
        while inside and not (left <= first[inside[0]] and last[inside[0]] <= right):
            heapq.heappop(inside)
        if inside:
            k = heapq.heappop(inside)
            begin, end = first[k], last[k]
            offset = round_up(height, alignments[k])
            offsets[order[k]] = offset
            remaining -= 1
            unplaced.remove(k)
            pieces = [(left, begin, height), (begin, end, offset + parts[k].size), (end, right, height)]
            pieces = [piece for piece in pieces if piece[0] < piece[1]]
            largest = max(pieces, key=lambda piece: unplaced.born[piece[1]] - unplaced.born[piece[0]])
            row = [
                segment(*piece, inside if piece is largest else unplaced.within(*piece[:2]))
                for piece in pieces
            ]
            link(before, *row, after)
            continue
        # Nothing fits: level the segment with its lower neighbour, or with both when they are equally high.
        height = min(n.height for n in (before, after) if n is not None)
        if before is not None and before.height == height:
            before.alive = False
            inside = merge(before.inside, inside, before.left, left, right)
            left, before = before.left, before.previous
        if after is not None and after.height == height:
            after.alive = False
            inside = merge(inside, after.inside, left, right, after.right)
            right, after = after.right, after.next
        link(before, segment(left, right, height, inside), after)
    return offsets
