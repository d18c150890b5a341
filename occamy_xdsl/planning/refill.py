"""Large layouts that are a little too high: time windows around what ends too high are filled anew."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from occamy_xdsl.planning.exact import Budget
from occamy_xdsl.planning.intervals import Body
from occamy_xdsl.planning.skyline import BESIDE, Floats, FullError, Ints, Load, Skyline, Spans, patience

_STEP = 15
"""Bodies that a step of filling a window places, on average."""

_SOFTNESS = (0.02, 0.05)
"""The ways in which each step is tried: see `Load.scarcity`."""

_BACK = 6
"""Steps taken back when none of the ways leads on; twice as many each time that it does not help."""

_RUNS, _LEAST = 8, 20_000
"""What the steps of a window may place together: so many times its bodies, and so many bodies more."""

_REACH = 3
"""How far a window extends on either side, in births, as a multiple of the spans live at its peak."""

_NOISE = 0.03
"""By how much scores differ at random from one try to the next."""


def refill(bodies: Sequence[Body], offsets: Sequence[int], goal: int, budget: Budget) -> list[int]:
    """
    Offsets in bytes like the given ones, with fewer bodies that end above `goal` bytes, ideally none.

    The bodies that live within a window of time around those are placed anew by skyline, among the others, which
    stay where they are. It is filled from the floor up in many small steps. Each is tried in several ways, of
    which that goes on which wastes least where little is free; when none ends below the goal, some steps are
    taken back, and the places where the goal was exceeded count more from then on.

    Bodies have one part each. A node of `budget` is spent for every third body placed, and for
    fewer in windows of more than two thousand.
    """
    window = _Refill(bodies, offsets, goal)
    failed = np.zeros(len(window.spans), np.bool_)
    while not budget.exhausted:
        (tall,) = ((window.offsets + window.spans.size > goal) & ~failed).nonzero()
        if not tall.size:
            break
        first, last = int(window.spans.first[tall[0]]), int(window.spans.last[tall[0]])
        for k in tall.tolist():
            if window.spans.first[k] >= last:
                break
            last = max(last, int(window.spans.last[k]))
        if not window.lower(first, last, budget):
            failed[tall[window.spans.first[tall] < last]] = True
    result = list(offsets)
    for i, offset in zip(window.spans.index.tolist(), window.offsets.tolist(), strict=True):
        result[i] = offset
    return result


class _Refill:
    """All bodies with their offsets, and the load that they make."""

    def __init__(self, bodies: Sequence[Body], offsets: Sequence[int], goal: int):
        self.spans = Spans.of(bodies)
        self.offsets = np.array(offsets, np.int64)[self.spans.index]
        self._goal = goal
        self._load = Load.of(self.spans)
        self._patience = patience(self.spans)
        self._chance = np.random.default_rng(0)

    def lower(self, first: int, last: int, budget: Budget) -> bool:
        """Whether what lives within a window around `first <= t < last` could be brought below the goal."""
        begin, end = self._window(first, last)
        spans = self.spans
        inside = (spans.first >= begin) & (spans.last <= end)
        fixed = (spans.first < end) & (spans.last > begin) & ~inside & (self.offsets < self._goal)
        offsets = self.offsets[fixed]
        others = spans.take(fixed)
        # Of one that ends above the goal only what lies below is in the way.
        others.size[:] = np.minimum(others.size, self._goal - offsets)
        found = self._fill(spans.take(inside), others, offsets, budget)
        if found is not None:
            self.offsets[inside] = found
        return found is not None

    def _window(self, first: int, last: int) -> tuple[int, int]:
        """Positions on both sides where the load is low, for there the fixed ones leave room."""
        load, births = self._load, self.spans.first
        begin, end = load.positions.searchsorted((first, last)).tolist()
        peak = load.positions[begin + load.bytes[begin:end].argmax()]
        reach = _REACH * int(((births <= peak) & (self.spans.last > peak)).sum())
        left, right = births.searchsorted((first, last)).tolist()

        def lowest(birth: int) -> int:
            ends = births[np.clip((birth, birth + reach // 2), 0, len(births) - 1)]
            low, high = load.positions.searchsorted(ends).tolist()
            return int(load.positions[low + load.bytes[low : high + 1].argmin()])

        # The bodies that end too high are inside, whatever the load at the ends of the trace.
        return min(first, lowest(left - reach)), max(last, lowest(right + reach // 2))

    def _fill(self, free: Spans, fixed: Spans, offsets: Ints, budget: Budget) -> Ints | None:
        weights = np.ones(len(self._load.positions))
        scores = self._scores(free, weights)
        states = [Skyline(free, fixed, offsets, self._goal)]
        spent, back, deepest = 0, _BACK, 1
        levels = len(free) // _STEP + 1
        failed = False
        while spent < _RUNS * len(free) + _LEAST and not budget.exhausted:
            last = len(states) == levels
            level = None if last else self._goal * len(states) // levels
            trials: list[tuple[float, int, Skyline]] = []
            for way, score in enumerate(scores):
                if way or failed:
                    score = score * (1 + _NOISE * self._chance.random(len(free)))
                trial = states[-1].copy()
                try:
                    trial.place(score, self._patience, level, BESIDE)
                    trials.append((trial.tension, way, trial))
                except FullError as full:
                    begin, end = self._load.positions.searchsorted((full.first, full.last)).tolist()
                    weights[max(0, begin - 5) : end + 5] *= 1.5
                cost = 1 + states[-1].remaining - trial.remaining
                spent += cost
                # What a step takes grows with the window.
                budget.nodes -= cost * max(2000, len(free)) // 6000 + 1
                if last and trials:
                    return trials[0][2].offsets
            if trials:
                states.append(min(trials)[2])
                if len(states) > deepest:
                    deepest, back = len(states), _BACK
            else:
                failed = True
                scores = self._scores(free, weights)
                del states[max(1, len(states) - back) :]
                back *= 2
        return None

    def _scores(self, free: Spans, weights: Floats) -> list[NDArray[np.float64]]:
        load = self._load
        return [load.sums(free, weights * load.scarcity(int(load.bytes.max()), soft)) for soft in _SOFTNESS]
