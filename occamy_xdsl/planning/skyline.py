"""Skyline best fit: packs 100,000 buffers in seconds, near O(n log n)."""

import heapq
from collections.abc import Callable, Sequence
from typing import Literal

from occamy_xdsl.planning.intervals import Body, Part, round_up

Rule = Literal["length", "area", "size"]

RULES: dict[Rule, Callable[[Part], tuple[int, int]]] = {
    "length": lambda p: (p.last - p.first, p.size),
    "area": lambda p: ((p.last - p.first) * p.size, p.last - p.first),
    "size": lambda p: (p.size, p.last - p.first),
}


class _Segment:
    """A maximal range of positions `[left, right)` at which the stack of placed buffers has one height."""

    __slots__ = ("alive", "height", "inside", "left", "next", "previous", "right")

    def __init__(self, left: int, right: int, height: int, previous: "_Segment | None", inside: list[int]):
        self.left, self.right, self.height = left, right, height
        self.previous = previous
        self.next: _Segment | None = None
        self.inside = inside  # unplaced buffers that live only within the segment, best first
        self.alive = True
        if previous is not None:
            previous.next = self


def place_skyline(bodies: Sequence[Body], rule: Rule) -> list[int]:
    """
    Offsets in bytes for bodies of one part each, indexed like `bodies`.

    Takes the lowest segment of the skyline and puts there the best buffer (longest, largest area or largest
    size) that lives within it; when none does, raises the segment to its lower neighbour. Best-fit heuristic
    for strip packing (Burke, Kendall, Whitwell 2004) with positions of time as the fixed axis.
    """
    parts = [body.parts[0] for body in bodies]
    first = [part.first for part in parts]
    last = [part.last for part in parts]
    rank = [0] * len(parts)
    order = sorted(range(len(parts)), key=lambda i: (*RULES[rule](parts[i]), -i), reverse=True)
    for position, i in enumerate(order):
        rank[i] = position
    offsets = [0] * len(parts)
    crossing: dict[int, list[int]] = {}  # boundary between segments -> unplaced buffers that live across it
    heap: list[tuple[int, int, int, _Segment]] = []
    serial = 0

    def segment(left: int, right: int, height: int, previous: _Segment | None, inside: list[int]) -> _Segment:
        nonlocal serial
        new = _Segment(left, right, height, previous, inside)
        serial += 1
        heapq.heappush(heap, (height, left, serial, new))
        return new

    def link(left: _Segment, right: _Segment | None):
        left.next = right
        if right is not None:
            right.previous = left

    unplaced = len(parts)
    if unplaced:
        segment(min(first), max(last), 0, None, order)
    while unplaced:
        lowest = heapq.heappop(heap)[-1]
        if not lowest.alive:
            continue
        lowest.alive = False
        left, right, before, after = lowest.left, lowest.right, lowest.previous, lowest.next
        if lowest.inside:
            # Split around the best buffer; the others stay in one of the three pieces or cross a border.
            chosen, *others = lowest.inside
            begin, end = first[chosen], last[chosen]
            offsets[chosen] = round_up(lowest.height, bodies[chosen].alignment)
            unplaced -= 1
            earlier: list[int] = []
            during: list[int] = []
            later: list[int] = []
            for i in others:
                if last[i] <= begin:
                    earlier.append(i)
                elif first[i] >= end:
                    later.append(i)
                elif first[i] < begin:
                    crossing.setdefault(begin, []).append(i)
                elif last[i] > end:
                    crossing.setdefault(end, []).append(i)
                else:
                    during.append(i)
            if left < begin:
                before = segment(left, begin, lowest.height, before, earlier)
            piece = segment(begin, end, offsets[chosen] + parts[chosen].size, before, during)
            if end < right:
                piece = segment(end, right, lowest.height, piece, later)
            link(piece, after)
            continue
        # Nothing fits: level the segment with its lower neighbour, or with both when they are equally high.
        height = min(n.height for n in (before, after) if n is not None)
        merged: list[list[int]] = []
        freed: list[int] = []
        if before is not None and before.height == height:
            before.alive = False
            merged.append(before.inside)
            freed += crossing.pop(left, [])
            left, before = before.left, before.previous
        if after is not None and after.height == height:
            after.alive = False
            merged.append(after.inside)
            freed += crossing.pop(lowest.right, [])
            right, after = after.right, after.next
        inside: list[int] = []
        for i in freed:
            if first[i] < left:
                crossing.setdefault(left, []).append(i)
            elif last[i] > right:
                crossing.setdefault(right, []).append(i)
            else:
                inside.append(i)
        inside.sort(key=rank.__getitem__)
        merged = [row for row in (*merged, inside) if row]
        inside = merged[0] if len(merged) == 1 else list(heapq.merge(*merged, key=rank.__getitem__))
        link(segment(left, right, height, before, inside), after)
    return offsets
