"""The planners by name, and `plan`, the entry point: bodies in, checked offsets out."""

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from occamy_xdsl.planning.check import check_plan
from occamy_xdsl.planning.exact import Budget, ExactSearch
from occamy_xdsl.planning.intervals import Body, lower_bound, plan_height, round_up, simplify
from occamy_xdsl.planning.neighborhood import lower_peaks
from occamy_xdsl.planning.placement import Fit, place_in_order, placement_orders
from occamy_xdsl.planning.refill import refill
from occamy_xdsl.planning.skyline import BESIDE, RULES, place_skyline

_FEW = 2000
"""Bodies up to which all greedy orders are tried: each costs a vector operation over all bodies per body."""

_MANY = 30_000
"""Bodies beyond which a layout within 1 % of the goal is good enough."""

_SEARCHABLE = 1000
"""Bodies up to which a search follows: each of its nodes costs several vector operations over all bodies."""

_TRIES = ((0.02, BESIDE, 0.05), (0.01, BESIDE, 0.05), (0.05, BESIDE, 0.05), (0.1, 0.0, 0.02))
"""
Softness, weight of what lies beside, and waste that are worth trying in large problems, the most promising ones first:
see `place_skyline`. The last ones are for what nests, as calls do.
"""


@dataclass(frozen=True)
class Plan:
    """
    Where everything goes, in bytes: `offsets[i]` of the i-th body, and the pool's `height`.

    No plan is lower than `lower_bound`; `optimal` tells that none is lower than this one.
    """

    offsets: tuple[int, ...]
    height: int
    lower_bound: int

    @property
    def optimal(self) -> bool:
        return self.height == self.lower_bound


@dataclass(frozen=True)
class Layout:
    """A planner's answer: offsets and height in bytes, and the highest lower bound it has proven, or 0."""

    offsets: Sequence[int]
    height: int
    proven: int = 0


@dataclass(frozen=True)
class Request:
    """Bodies to lay out, the lower bound of any plan, a capacity that would do, and what may be spent."""

    bodies: Sequence[Body]
    bound: int
    capacity: int | None
    budget: Budget

    @property
    def goal(self) -> int:
        """The height in bytes at which nothing is left to improve."""
        return max(self.bound, self.capacity or 0)


Planner = Callable[[Request], Layout]
"""A planner must respect the alignment of each body; `plan` checks every layout for overlaps."""


def plan(
    bodies: Sequence[Body],
    planner: str = "search",
    alignment: int = 64,
    time_limit: float = 60.0,
    node_limit: int | None = 40_000,
    capacity: int | None = None,
) -> Plan:
    """
    Assigns every body its offset in one pool.

    Each body starts at a multiple of both `alignment` and its own alignment, in bytes. With a `capacity` in
    bytes the planner stops at the first plan within it; whether it was met is for the caller to see. The
    result depends on `node_limit` (nodes of the search tree, None for no limit) and not on the machine,
    unless `time_limit` seconds of wall clock run out first.

    Raises ValueError for an unknown planner, for a body whose own parts overlap, and for positions or a sum
    of sizes beyond 64-bit integers.
    """
    if planner not in PLANNERS:
        raise ValueError(f"unknown planner {planner!r}, choose from {', '.join(PLANNERS)}")
    if any(abs(p.first) | abs(p.last) >= 1 << 62 for b in bodies for p in b.parts):
        raise ValueError("positions must lie within 62 bits")
    if sum(round_up(b.extent, math.lcm(b.alignment, alignment)) for b in bodies) >= 1 << 62:
        raise ValueError("sizes must sum up to less than 2**62 bytes")
    aligned = [replace(simplify(b), alignment=math.lcm(b.alignment, alignment)) for b in bodies]
    bound = lower_bound(aligned)
    budget = Budget(10**18 if node_limit is None else node_limit, time.monotonic() + time_limit)
    layout = PLANNERS[planner](Request(aligned, bound, capacity, budget))
    check_plan(aligned, layout.offsets, layout.height)
    return Plan(tuple(layout.offsets), layout.height, max(bound, layout.proven))


def first_fit(request: Request) -> Layout:
    """Program order, each body in the lowest hole that is free for its whole life."""
    return _in_order(request.bodies, _program_order(request.bodies))


def best_fit(request: Request) -> Layout:
    """Program order, each body in the tightest hole that is free for its whole life."""
    return _in_order(request.bodies, _program_order(request.bodies), "tightest")


def greedy_by_size(request: Request) -> Layout:
    """
    Largest body first, each in the lowest hole.

    Y. Pisarchyk, J. Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020 (TensorFlow Lite).
    """
    return _in_order(request.bodies, placement_orders(request.bodies)["size"])


def occamy(request: Request) -> Layout:
    """
    The pool of the original Occamy, for comparison: program-order first fit, sizes rounded up to 32 bytes.

    Its list of free blocks stores inclusive ends but tests `end - start >= size`, so that a hole of exactly
    the requested size is never reused. J. Lee et al., "Occamy: Memory-efficient GPU Compiler for DNN
    Inference", DAC 2023. It has no rigid bodies; the parts of ours keep their sizes.
    """
    rounded = [
        replace(
            body,
            parts=tuple(replace(p, size=round_up(p.size, 32)) for p in body.parts)
            if len(body.parts) == 1
            else body.parts,
            alignment=math.lcm(body.alignment, 32),
        )
        for body in request.bodies
    ]
    layout = _in_order(rounded, _program_order(rounded), "lowest-strict")
    return replace(layout, height=round_up(layout.height, 32))


def search(request: Request) -> Layout:
    """
    The lowest of several greedy orders and skyline packings, then improved by search until the goal is met.

    Ordinary buffers go to the exact search, which may also prove that nothing lower exists; when some body
    has several parts, greedy orders are repaired at random (with a fixed seed) instead.
    """
    best: Layout | None = None
    # In very large problems a layout within 1 % is not worth as much time again.
    enough = request.goal if len(request.bodies) <= _MANY else request.goal * 101 // 100
    for layout in _constructions(request.bodies):
        if best is None or layout.height < best.height:
            best = layout
        if best.height <= enough or request.budget.exhausted:
            return best
    assert best is not None
    if len(request.bodies) > _SEARCHABLE:
        return best if _rigid(request.bodies) else _lower_peaks(request, best, enough)
    return _repair(request, best) if _rigid(request.bodies) else _bisect(request, best)


PLANNERS: dict[str, Planner] = {
    "search": search,
    "greedy-by-size": greedy_by_size,
    "best-fit": best_fit,
    "first-fit": first_fit,
    "occamy": occamy,
}


def _in_order(bodies: Sequence[Body], order: Sequence[int], fit: Fit = "lowest") -> Layout:
    offsets = place_in_order(bodies, order, fit)
    return Layout(offsets, plan_height(bodies, offsets))


def _program_order(bodies: Sequence[Body]) -> list[int]:
    return sorted(range(len(bodies)), key=lambda i: bodies[i].first)


def _rigid(bodies: Sequence[Body]) -> bool:
    return any(len(body.parts) > 1 for body in bodies)


def _constructions(bodies: Sequence[Body]) -> Iterator[Layout]:
    """Layouts, the most promising ones first; beyond `_FEW` bodies in near-linear time where possible."""
    rigid = _rigid(bodies)
    orders = placement_orders(bodies) if len(bodies) <= _FEW or rigid else {}
    if orders:
        yield _in_order(bodies, orders["size-first"])
        yield _in_order(bodies, orders["load-size"])
    if not rigid:
        if len(bodies) <= _SEARCHABLE:
            skylines = (place_skyline(bodies, rule) for rule in RULES)
        else:
            # Only one rule comes near the bound then, which is worth several tries.
            skylines = (place_skyline(bodies, "scarcity", *ways) for ways in _TRIES)
        for offsets in skylines:
            yield Layout(offsets, plan_height(bodies, offsets))
    if len(bodies) <= _FEW:
        for name in ("size", "load-area", "load-length", "area", "length"):
            yield _in_order(bodies, orders[name])


def _lower_peaks(request: Request, best: Layout, enough: int) -> Layout:
    """Lowers the height where it is too high, first to within 1 %, then to what is enough."""
    near = request.goal * 101 // 100
    if best.height > near:
        offsets = refill(request.bodies, best.offsets, near, request.budget)
        best = Layout(offsets, plan_height(request.bodies, offsets))
    for goal in sorted({near, enough}, reverse=True):
        if best.height > goal:
            offsets = lower_peaks(request.bodies, best.offsets, goal, request.budget)
            best = Layout(offsets, plan_height(request.bodies, offsets))
    return best


def _bisect(request: Request, best: Layout) -> Layout:
    """Lowers the height by deciding capacities: first the goal, then halfway between failure and success."""
    solid = [i for i, body in enumerate(request.bodies) if body.extent]
    exact = ExactSearch([request.bodies[i] for i in solid])
    budget = request.budget
    share = 1.0 if request.capacity is not None else 0.75
    lowest = target = request.goal
    while target < best.height and not budget.exhausted:
        attempt = budget.take(share)
        found = exact.fits(target, attempt)
        budget.nodes += attempt.nodes
        if isinstance(found, list):
            offsets = [0] * len(request.bodies)
            for i, offset in zip(solid, found, strict=True):
                offsets[i] = offset
            best = replace(best, offsets=offsets, height=plan_height(request.bodies, offsets))
        else:
            lowest = exact.height_above(target)
            if found is False:
                best = replace(best, proven=lowest)
        share = 0.5
        target = (lowest + best.height) // 2
    return best


def _repair(request: Request, best: Layout) -> Layout:
    """Moves a body that ends above the goal to an earlier place in a greedy order, again and again."""
    bodies, budget = request.bodies, request.budget
    chance = random.Random(0)
    starts = sorted(
        ((order, _in_order(bodies, order)) for order in placement_orders(bodies).values()),
        key=lambda start: start[1].height,
    )
    for attempt in itertools.count():
        order, layout = starts[attempt % 4]
        for _ in range(60):
            if budget.exhausted:
                return best
            budget.nodes -= 1 + len(bodies) // 4  # a placement costs about a quarter of a search node
            tall = [at for at, i in enumerate(order) if layout.offsets[i] + bodies[i].extent > request.goal]
            at = chance.choice(tall)
            to = int(at * chance.random() ** 2)
            changed = [*order[:to], order[at], *order[to:at], *order[at + 1 :]]
            trial = _in_order(bodies, changed)
            if trial.height <= layout.height or chance.random() < 0.05:
                order, layout = changed, trial
            if trial.height < best.height:
                best = trial
                if best.height <= request.goal:
                    return best
    raise AssertionError("unreachable")
