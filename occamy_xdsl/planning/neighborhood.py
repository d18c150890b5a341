"""Large neighbourhood search: packs anew the bodies around the places where a large layout is too high."""

import random
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from occamy_xdsl.planning.exact import CRITERIA, Budget, ExactSearch
from occamy_xdsl.planning.intervals import Body, Part

_BIRTHS = 400
"""Most bodies that are born in a neighbourhood on either side of its busiest position, times two."""

_ATTEMPTS = 3
"""Neighbourhoods tried around a body for one height."""

_MOST = 1000
"""Bodies of one exact search, with those around: its tables have the square of them."""


def lower_peaks(bodies: Sequence[Body], offsets: Sequence[int], goal: int, budget: Budget) -> list[int]:
    """
    Offsets in bytes like the given ones, with fewer bodies that end above `goal` bytes, ideally none.

    Where the load is close to the goal a layout has to be nearly perfect, which exact search achieves for some
    hundred bodies; everywhere else any layout will do. So the bodies that are live within a range of positions
    around the peak of the load are packed anew, among the others, which stay where they are. The range ends
    where the load is low, for there the fixed bodies leave room. What does not succeed below the goal is tried
    again halfway between the goal and the height reached.

    P. Shaw, "Using Constraint Programming and Local Search Methods to Solve Vehicle Routing Problems", CP 1998.
    Bodies have one part each. The nodes spent are taken from `budget`.
    """
    layout = _Layout(bodies, offsets)
    target = goal
    while layout.height > goal and not budget.exhausted:
        layout.lower(target, budget)
        # A smaller step than the 500th of the height is not worth another round.
        if layout.height > target and (layout.height - target) * 500 < layout.height:
            break
        reached = goal if layout.height <= target else target
        target = goal if layout.height * 500 < goal * 501 else (layout.height + reached) // 2
    result = list(offsets)
    for i, offset in zip(layout.index.tolist(), layout.begin.tolist(), strict=True):
        result[i] = offset
    return result


class _Layout:
    """Bodies in order of birth, their offsets, and the load at each position at which one is born."""

    def __init__(self, bodies: Sequence[Body], offsets: Sequence[int]):
        order: list[int] = sorted(
            (i for i, body in enumerate(bodies) if body.extent), key=lambda i: bodies[i].first
        )
        self.bodies = [bodies[i] for i in order]
        self.index = np.array(order, np.int64)
        self.first = np.array([body.first for body in self.bodies], np.int64)
        self.last = np.array([body.last for body in self.bodies], np.int64)
        self.begin = np.array([offsets[i] for i in order], np.int64)
        self.size = np.array([body.extent for body in self.bodies], np.int64)
        self.births: NDArray[np.int64] = np.unique(self.first)
        change = np.zeros(len(self.births) + 1, np.int64)
        np.add.at(change, np.searchsorted(self.births, self.first), self.size)
        np.add.at(change, np.searchsorted(self.births, self.last), -self.size)
        self.load = np.cumsum(change)[:-1]
        self.peak = np.full(len(order), -1, np.int64)  # where the load is highest, as an index of births
        self.chance = random.Random(0)

    @property
    def height(self) -> int:
        return int((self.begin + self.size).max(initial=0))

    def lower(self, target: int, budget: Budget) -> None:
        """Tries to bring every body below `target` bytes, those at the highest loads first."""
        attempts = np.zeros(len(self.bodies), np.int64)
        while not budget.exhausted:
            high = (self.begin + self.size > target) & (attempts < _ATTEMPTS)
            tall: NDArray[np.int64] = np.flatnonzero(high)
            if not tall.size:
                return
            for k in tall[self.peak[tall] < 0].tolist():
                self.peak[k] = self._peak(k)
            # Few failures count more than a high load.
            k = int(tall[np.lexsort((-self.load[self.peak[tall]], attempts[tall]))[0]])
            chosen = self._around(int(self.peak[k]), vary=bool(attempts[k]))
            self._repack(chosen, target, int(attempts[k]), budget)
            # Others that are too high there need not try the same again.
            attempts[chosen] += 1
            attempts[k] = max(attempts[k], 1)

    def _peak(self, k: int) -> int:
        begin = bisect_left(self.births, self.first[k])
        end = bisect_left(self.births, self.last[k])
        return begin + int(self.load[begin:end].argmax())

    def _around(self, peak: int, *, vary: bool) -> NDArray[np.int64]:
        """The bodies that are live between a low of the load on one side of the peak and one on the other."""
        middle = bisect_left(self.first, self.births[peak])

        def birth(k: int) -> int:
            return bisect_left(self.births, self.first[min(max(k, 0), len(self.first) - 1)])

        far, near = (_BIRTHS * (0.15 + 0.85 * self.chance.random() if vary else 0.5) for _ in range(2))
        left, right = birth(middle - int(far)), birth(middle + int(near * 0.4))
        begin = left + int(self.load[left : birth(middle - int(far * 0.4)) + 1].argmin())
        end = right + int(self.load[right : birth(middle + int(near)) + 1].argmin())
        live = (self.last > self.births[begin]) & (self.first <= self.births[end])
        return np.flatnonzero(live)

    def _repack(self, chosen: NDArray[np.int64], target: int, attempt: int, budget: Budget) -> None:
        """Gives the chosen bodies new offsets that end within `target` bytes, if it finds any."""
        near = (self.first < self.last[chosen].max()) & (self.last > self.first[chosen].min())
        near &= self.begin < target
        near[chosen] = False
        others: NDArray[np.int64] = np.flatnonzero(near)
        if len(chosen) + len(others) > _MOST:
            return
        problem: list[Body] = [self.bodies[int(k)] for k in chosen.tolist()]
        fixed: dict[int, int] = {}
        for k in others.tolist():
            offset = int(self.begin[k])
            body: Body = self.bodies[int(k)]
            (part,) = body.parts
            # Of a body that ends above the target only what lies below is in the way.
            below = Part(part.first, part.last, 0, min(part.size, target - offset))
            fixed[len(problem)] = offset
            problem.append(replace(body, parts=(below,)))
        search = ExactSearch(problem, fixed)
        # Most that succeed do so almost without backtracking.
        found = search.attempt(target, CRITERIA[attempt % len(CRITERIA)], len(problem) * 3 // 2, budget)
        if isinstance(found, list):
            self.begin[chosen] = found[: len(chosen)]
