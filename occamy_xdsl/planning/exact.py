"""Exact packing of buffers under a capacity: canonical depth-first search with section bounds."""

import math
import time
from bisect import bisect_left
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from occamy_xdsl.planning.intervals import Body, round_up

_Ints = NDArray[np.integer]
_Choice = tuple[_Ints, int, int]
"""
Unassigned buffers, sorted by begin; the (offset, priority) key that the next one must exceed; and an offset
for which the section bound is known to hold when all of them lie at or above it.
"""

CRITERIA = (
    ("load", "length", "area"),
    ("load", "area", "length"),
    ("length", "area", "load"),
)


@dataclass
class Budget:
    """
    What a search may still spend: `nodes` of a search tree, and a `deadline` in `time.monotonic()` seconds.

    Nodes make a search reproducible; the deadline only guards against slow machines.
    """

    nodes: int
    deadline: float = math.inf

    @property
    def exhausted(self) -> bool:
        return self.nodes <= 0 or time.monotonic() >= self.deadline

    def take(self, share: float) -> "Budget":
        """Takes a share of what is left, in nodes and in time; the caller gives back the nodes not spent."""
        nodes = self.nodes if share == 1 else int(self.nodes * share)
        self.nodes -= nodes
        now = time.monotonic()
        return Budget(nodes, now + (self.deadline - now) * share)


class ExactSearch:
    """
    Decides whether bodies of one part each fit under a capacity, around those that are `fixed` at their offsets.

    If a solution exists there is one in which no buffer can be lowered alone, and its buffers can be assigned
    in the order of (offset, priority), each at its floor: the end of the highest assigned buffer that is live
    together with it. The search enumerates these sequences and prunes by

    - sections: for every moment and every level f, f plus the sizes of the unassigned buffers live then whose
      floor is at least f must not exceed the capacity;
    - decomposition: unassigned buffers that fall apart in time are independent problems, solved one by one;
    - dominance: a buffer that raises no floor need not be tried anywhere else.

    After M. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning",
    ASPLOS 2023. Numbers inside are in units of the greatest common divisor of all sizes.
    """

    def __init__(self, bodies: Sequence[Body], fixed: Mapping[int, int] = {}):
        parts = [body.parts[0] for body in bodies]
        grain = math.gcd(*(body.alignment for body in bodies))
        rounded = [round_up(part.size, grain) for part in parts]
        self.unit = math.gcd(
            *rounded, *fixed.values(), *(body.alignment for body in bodies if body.alignment != grain)
        )
        self.padding = np.array([r - part.size for r, part in zip(rounded, parts, strict=True)], np.int64)
        units = [r // self.unit for r in rounded]
        alignment = np.array([max(1, body.alignment // self.unit) for body in bodies], np.int64)
        self.alignment = alignment if (alignment > 1).any() else None
        # A bound adds a floor to a sum of sizes; without gaps for alignment floors are sums of sizes too.
        dtype = np.int32 if self.alignment is None and 2 * sum(units) < 2**31 else np.int64
        self.size = np.array(units, dtype)

        # A section is a position between a birth and the next death: at all others fewer buffers are live.
        first = np.array([part.first for part in parts], np.int64)
        last = np.array([part.last for part in parts], np.int64)
        moments: list[int] = []
        birth: int | None = None
        for position in np.unique(np.concatenate((first, last))).tolist():
            if birth is not None and (last == position).any():
                moments.append(birth)
                birth = None
            if (first == position).any():
                birth = position
        self.begin = np.searchsorted(moments, first)
        self.end = np.searchsorted(moments, last)
        self.by_begin = np.argsort(self.begin, kind="stable")
        section = np.arange(len(moments))[:, None]
        covers = (self.begin <= section) & (section < self.end)
        self.weight = np.where(covers, self.size, 0).astype(dtype)  # section x buffer
        self.overlap = (first[:, None] < last) & (first < last[:, None])
        np.fill_diagonal(self.overlap, False)

        self.fixed = {i: offset // self.unit for i, offset in fixed.items()}
        # Open intervals in which a buffer cannot start because of fixed ones: their starts and ends.
        self.obstacles = self._obstacles()
        self.length = last - first
        self.area = self.size * self.length.astype(float)

    def priorities(self, criteria: Sequence[str], group: _Ints) -> _Ints:
        """
        Ranks of the group's buffers by decreasing criteria, the first one decisive: 0 is tried first.

        "load" is the largest sum of the group's sizes that are live at one moment of the buffer's life.
        """
        live = self.weight.take(group, axis=1).sum(axis=1)
        load = [live[b:e].max() for b, e in zip(self.begin[group], self.end[group], strict=True)]
        features = {"size": self.size, "length": self.length, "area": self.area}
        columns = [np.array(load) if name == "load" else features[name][group] for name in criteria]
        ranks = np.empty(len(group), np.int64)
        ranks[np.lexsort([group, *(-column for column in reversed(columns))])] = np.arange(len(group))
        return ranks

    def _obstacles(self) -> dict[int, tuple[list[int], list[int]]]:
        obstacles: dict[int, tuple[list[int], list[int]]] = {}
        fixed = np.array(sorted(self.fixed, key=self.fixed.__getitem__), np.int64)
        for i in range(len(self.size)) if self.fixed else ():
            if i in self.fixed:
                continue
            size = int(self.size[i])
            starts, ends = list[int](), list[int]()
            for j in fixed[self.overlap[i].take(fixed)].tolist():
                begin, end = self.fixed[j] - size, self.fixed[j] + int(self.size[j])
                if ends and begin < ends[-1]:
                    ends[-1] = max(ends[-1], end)
                else:
                    starts.append(begin)
                    ends.append(end)
            if starts:
                obstacles[i] = (starts, ends)
        return obstacles

    def lowest_from(self, buffers: _Ints, floor: int) -> _Ints:
        """For each buffer the lowest aligned offset from `floor` up at which no fixed one is in the way, in units."""
        result = np.full(len(buffers), floor, self.size.dtype)
        if self.alignment is not None:
            result = _align(result, self.alignment[buffers])
        for at, i in enumerate(buffers.tolist()) if self.obstacles else ():
            starts, ends = self.obstacles.get(i, ((), ()))
            while (k := bisect_left(starts, int(result[at])) - 1) >= 0 and result[at] < ends[k]:
                result[at] = ends[k] if self.alignment is None else _align(ends[k], self.alignment[i])
        return result

    def height_above(self, capacity: int) -> int:
        """The lowest height in bytes, greater than `capacity`, at which some buffer can end."""
        return int((((capacity + self.padding) // self.unit + 1) * self.unit - self.padding).min())

    def fits(self, capacity: int, budget: Budget) -> list[int] | bool | None:
        """
        Offsets in bytes that end within `capacity` bytes; False when there are none; None when out of budget.

        Restarts round-robin over several priorities with growing node limits, for run times are heavy-tailed.
        The nodes spent are taken from `budget`.
        """
        limit = len(self.size)
        while True:
            limit *= 3
            for criteria in CRITERIA:
                if budget.exhausted:
                    return None
                found = self.attempt(capacity, criteria, limit, budget)
                if found is not None:
                    return found

    def attempt(
        self, capacity: int, criteria: Sequence[str], limit: int, budget: Budget
    ) -> list[int] | bool | None:
        """One run of `fits` with one rule of priority and at most `limit` nodes."""
        highest = (capacity + self.padding) // self.unit - self.size
        if (highest < 0).any():
            return False
        run = _Run(self, criteria, highest, min(limit, budget.nodes), budget.deadline)
        found = run.solve()
        budget.nodes -= run.nodes
        return (run.offset * self.unit).tolist() if found else found


class _Run:
    """One depth-first search with one rule of priority, under a node limit and a deadline."""

    def __init__(
        self, problem: ExactSearch, criteria: Sequence[str], highest: _Ints, limit: int, deadline: float
    ):
        self.nodes = 0
        self.offset = np.zeros(len(highest), np.int64)
        self._problem = problem
        self._criteria = criteria
        self._priority = problem.priorities(criteria, np.arange(len(highest)))
        self._floor = np.zeros(len(highest), problem.size.dtype)
        self._capacity = int((highest + problem.size).max())
        self._highest = highest.astype(problem.size.dtype)
        if problem.fixed:
            self._floor[:] = problem.lowest_from(np.arange(len(highest)), 0)
            for i, offset in problem.fixed.items():
                self._floor[i] = self._highest[i] = offset
        self._limit, self._deadline = limit, deadline

    def solve(self) -> bool | None:
        """True with `offset` set, in units; False when nothing fits; None when out of nodes or time."""
        # Generators on an explicit stack instead of recursion: the search is as deep as there are buffers.
        stack = [_all_of(self._independent(self._problem.by_begin, -1, -1))]
        answer: bool | None = None
        while stack:
            try:
                choice = stack[-1].send(answer)
            except StopIteration as done:
                stack.pop()
                answer = done.value
                continue
            answer = None
            self.nodes += 1
            if self.nodes > self._limit or (self.nodes % 64 == 0 and time.monotonic() >= self._deadline):
                return None
            stack.append(self._branch(*choice))
        return answer

    def _independent(self, group: _Ints, least: int, bounded: int) -> list[_Choice]:
        """Splits the group where no buffer is live across, smallest piece first."""
        if not group.size:
            return []
        reach = np.maximum.accumulate(self._problem.end[group])
        (cuts,) = (self._problem.begin[group[1:]] >= reach[:-1]).nonzero()
        if not cuts.size:
            return [(group, least, bounded)]
        # Pieces do not see each other, so the order of offsets starts anew in each.
        return [(piece, -1, bounded) for piece in sorted(np.split(group, cuts + 1), key=len)]

    def _branch(self, group: _Ints, least: int, bounded: int) -> Generator[_Choice, bool | None, bool]:
        """Tries every buffer of the group that can come next in the order of (offset, priority)."""
        problem = self._problem
        floors, sizes, highest = self._floor[group], problem.size[group], self._highest[group]
        begins, ends = problem.begin[group], problem.end[group]
        keys = floors * np.int64(len(self._floor)) + self._priority[group]
        # A buffer at or above the top of an unassigned one at its floor is not next: that one stays below it.
        (candidates,) = ((keys > least) & (floors < (floors + sizes).min())).nonzero()
        for k in candidates[keys[candidates].argsort()].tolist():
            offset = int(floors[k])
            if offset > bounded:
                # Everything unassigned will lie at this offset or above.
                if self._exceeds(group, begins, ends, np.maximum(floors, offset)):
                    return False
                bounded = offset
            top = offset + sizes[k]
            (risen,) = (problem.overlap[group[k]].take(group) & (floors < top)).nonzero()
            lifted = floors
            if risen.size:
                lifted = floors.copy()
                lifted[risen] = problem.lowest_from(group[risen], int(top))
                if (lifted[risen] > highest[risen]).any():
                    continue
                near = (begins < ends[risen].max()) & (ends > begins[risen[0]])
                near[k] = False
                floors_near = np.maximum(lifted[near], offset)
                if self._exceeds(group[near], begins[risen], ends[risen], floors_near):
                    continue
            others = np.ones(len(group), bool)
            others[k] = False
            rest = group[others]
            self.offset[group[k]] = offset
            self._floor[rest] = lifted[others]
            choices = self._independent(rest, int(keys[k]), offset)
            if len(choices) == 1:
                if (yield choices[0]):
                    return True
            else:
                # In a piece of its own a buffer's urgency is another: rank anew.
                ranks = self._priority[rest]
                for piece, *_ in choices:
                    self._priority[piece] = problem.priorities(self._criteria, piece)
                if (yield from _all_of(choices)):
                    return True
                self._priority[rest] = ranks
            self._floor[rest] = floors[others]
            if not risen.size:
                return False
        return False

    def _exceeds(self, group: _Ints, begins: _Ints, ends: _Ints, floors: _Ints) -> bool:
        """Whether some section of the range that `begins` and `ends` span cannot hold the group's buffers."""
        order = (-floors).argsort()
        # Sizes summed from the highest floor down. Where a buffer is not live its floor is added to the sum
        # of higher ones, or to none: neither exceeds what the section bound finds elsewhere.
        stacks = self._problem.weight[begins[0] : ends.max()].take(group[order], axis=1)
        stacks.cumsum(axis=1, out=stacks)
        stacks += floors[order]
        return bool(stacks.max() > self._capacity)


def _all_of(choices: Sequence[_Choice]) -> Generator[_Choice, bool | None, bool]:
    for choice in choices:
        if not (yield choice):
            return False
    return True


def _align(offset: _Ints | int, alignment: _Ints) -> _Ints:
    return -(-offset // alignment) * alignment
