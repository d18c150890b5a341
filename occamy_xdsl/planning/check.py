"""Proof that a plan is sound, by a sweep over time that shares no code with the planners."""

from bisect import bisect_left, insort
from collections.abc import Sequence

from occamy_xdsl.planning.intervals import Body


def check_plan(bodies: Sequence[Body], offsets: Sequence[int], pool_size: int | None = None) -> None:
    """
    Checks that no two parts share a byte of the pool while both are live, and that all lie inside the pool.

    `offsets[i]` is the offset in bytes of `bodies[i]`; `pool_size` is in bytes, None for no limit.
    Raises ValueError naming the part, or the two conflicting parts. O(n log n) comparisons for n parts.
    """
    if len(offsets) != len(bodies):
        raise ValueError(f"{len(bodies)} bodies but {len(offsets)} offsets")
    spans: list[tuple[int, int, str]] = []  # [begin, end) in the pool
    events: list[tuple[int, bool, int]] = []
    for index, (body, offset) in enumerate(zip(bodies, offsets, strict=True)):
        name = f"body {index if body.id is None else body.id}"
        if offset < 0:
            raise ValueError(f"{name} lies at negative offset {offset}")
        if offset % body.alignment:
            raise ValueError(f"{name} lies at offset {offset}, not a multiple of {body.alignment}")
        for number, part in enumerate(body.parts):
            begin = offset + part.offset
            end = begin + part.size
            where = f"{name} part {number}: bytes [{begin}, {end}) at positions [{part.first}, {part.last})"
            if pool_size is not None and end > pool_size:
                raise ValueError(f"{where} ends beyond the pool of {pool_size} bytes")
            if part.size:
                events.append((part.first, True, len(spans)))
                events.append((part.last, False, len(spans)))
                spans.append((begin, end, where))
    # False sorts before True: a range that ends at a position frees its bytes for one that begins there.
    events.sort()
    live: list[tuple[int, int]] = []  # (begin, span index): disjoint spans, so ordered by begin is by end too
    for _, born, i in events:
        begin, end, where = spans[i]
        at = bisect_left(live, (begin, i))
        if not born:
            del live[at]
            continue
        for j in (at - 1, at):
            if 0 <= j < len(live):
                other_begin, other_end, other_where = spans[live[j][1]]
                if begin < other_end and other_begin < end:
                    raise ValueError(f"{other_where} overlaps {where}")
        insort(live, (begin, i))
