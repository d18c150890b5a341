"""Placing bodies one by one in a given order, each in a hole among those already placed."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from occamy_xdsl.planning.intervals import Body, Part

Fit = Literal["lowest", "tightest", "lowest-strict"]


def place_in_order(bodies: Sequence[Body], order: Sequence[int], fit: Fit = "lowest") -> list[int]:
    """
    Offsets in bytes, indexed like `bodies`.

    `fit` chooses among the holes that are live-free for the whole body: the lowest one, the tightest one, or
    the lowest one that is strictly larger than the body. Costs one vector operation over what is placed per
    part; when `order` is by first position, over what is still live only.
    """
    in_program_order = all(bodies[a].first <= bodies[b].first for a, b in pairwise(order))
    capacity = sum(len(body.parts) for body in bodies)
    placed = np.empty((4, capacity), np.int64)  # rows: first, last, begin, end
    count = 0
    offsets = [0] * len(bodies)
    for step, index in enumerate(order):
        body = bodies[index]
        if in_program_order and step % 128 == 127:
            alive = placed[:, :count][:, placed[1, :count] > body.first]
            count = alive.shape[1]
            placed[:, :count] = alive
        now = placed[:, :count]
        offset = _hole(_blocked(body.parts, now), body.alignment, fit)
        offsets[index] = offset
        for part in body.parts:
            if part.size:
                begin = offset + part.offset
                placed[:, count] = (part.first, part.last, begin, begin + part.size)
                count += 1
    return offsets


def _blocked(parts: Sequence[Part], placed: NDArray[np.int64]) -> NDArray[np.int64]:
    """Open intervals (column by column) in which the body's offset would make some part overlap."""
    blocked: list[NDArray[np.int64]] = []
    for part in parts:
        if part.size:
            spans = placed[2:, (placed[0] < part.last) & (placed[1] > part.first)] - part.offset
            spans[0] -= part.size
            blocked.append(spans)
    if not blocked:
        return placed[2:, :0]
    return blocked[0] if len(blocked) == 1 else np.concatenate(blocked, axis=1)


def _hole(blocked: NDArray[np.int64], alignment: int, fit: Fit) -> int:
    """An offset outside all open intervals: a hole ends at a start that lies above all ends before it."""
    if not blocked.shape[1]:
        return 0
    blocked = blocked[:, blocked[0].argsort()]
    starts = np.maximum(np.maximum.accumulate(blocked[1]), 0)
    starts = np.concatenate((np.zeros(1, np.int64), starts))
    starts += -starts % alignment
    slack = blocked[0] - starts[:-1]
    (holes,) = np.nonzero(slack > 0 if fit == "lowest-strict" else slack >= 0)
    if not holes.size:
        return int(starts[-1])
    return int(starts[holes[slack[holes].argmin()] if fit == "tightest" else holes[0]])


def placement_orders(bodies: Sequence[Body]) -> dict[str, list[int]]:
    """
    Orders in which greedy placement tends to pack well, by name, the best one first; ties go by index.

    "load" is the number of live bytes at the busiest position of a body's life: bodies that cross the peak
    come first. "size" is the extent, "area" bytes times positions, "length" positions.
    """
    size = np.array([body.extent for body in bodies], np.int64)
    first = np.array([body.first for body in bodies], np.int64)
    last = np.array([body.last for body in bodies], np.int64)
    length = last - first
    area = np.array([float(sum(p.size * (p.last - p.first) for p in body.parts)) for body in bodies])
    load = peak_loads(bodies, first, last)
    keys = {
        "size-first": (first, -size),
        "load-size": (first, -length, -size, -load),
        "size": (first, -length, -size),
        "load-area": (-area, -load),
        "load-length": (-size, -length, -load),
        "area": (-area,),
        "length": (-size, -length),
    }
    return {name: np.lexsort(key).tolist() for name, key in keys.items()}


def peak_loads(
    bodies: Sequence[Body], first: NDArray[np.int64], last: NDArray[np.int64]
) -> NDArray[np.int64]:
    """For each range `first[i] <= t < last[i]`: the largest number of bytes live at one position of it."""
    positions = np.unique(
        np.concatenate((first, last, _ends(bodies, lambda p: p.first), _ends(bodies, lambda p: p.last)))
    )
    change = np.zeros(len(positions), np.int64)
    sizes = _ends(bodies, lambda p: p.size)
    np.add.at(change, np.searchsorted(positions, _ends(bodies, lambda p: p.first)), sizes)
    np.add.at(change, np.searchsorted(positions, _ends(bodies, lambda p: p.last)), -sizes)
    # A sparse table answers every range maximum in two look-ups.
    table = [np.cumsum(change)]
    while (step := 1 << (len(table) - 1)) * 2 <= len(positions):
        table.append(np.maximum(table[-1][:-step], table[-1][step:]))
    low, high = np.searchsorted(positions, first), np.searchsorted(positions, last)
    level = np.frexp(high - low)[1] - 1
    loads = np.empty(len(low), np.int64)
    for k, row in enumerate(table):
        at = level == k
        loads[at] = np.maximum(row[low[at]], row[high[at] - (1 << k)])
    return loads


def _ends(bodies: Sequence[Body], field: Callable[[Part], int]) -> NDArray[np.int64]:
    return np.array([field(part) for body in bodies for part in body.parts], np.int64)
