"""What is planned: rigid bodies of live ranges, and the lower bounds that no plan can beat."""

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True, slots=True)
class Part:
    """
    `size` bytes at `offset` bytes from the start of their body, live at op positions `first <= t < last`.

    Raises ValueError when the live range is empty or a number of bytes is negative.
    """

    first: int
    last: int
    offset: int
    size: int

    def __post_init__(self):
        if self.first >= self.last:
            raise ValueError(f"live range [{self.first}, {self.last}) is empty")
        if self.size < 0 or self.offset < 0:
            raise ValueError(f"size and offset must not be negative, got {self.size} and {self.offset}")


@dataclass(frozen=True, slots=True)
class Body:
    """
    Parts that move together: a concat result and the inputs built inside it, or a chain of in-place results.

    The body's own offset in the pool is a multiple of `alignment` bytes. `id` names it in error messages.
    Two parts of one body may share bytes only at different times; `check_plan` tells.
    """

    parts: tuple[Part, ...]
    alignment: int = 1
    id: str | int | None = None

    def __post_init__(self):
        if not self.parts:
            raise ValueError("a body needs at least one part")
        if self.alignment < 1:
            raise ValueError(f"alignment must be positive, got {self.alignment}")

    @property
    def first(self) -> int:
        """Position at which the earliest part is born."""
        return min(part.first for part in self.parts)

    @property
    def last(self) -> int:
        """Position at which the latest part is dead."""
        return max(part.last for part in self.parts)

    @property
    def extent(self) -> int:
        """Bytes from the start of the body to the end of its highest part."""
        return max(part.offset + part.size for part in self.parts)


@dataclass(frozen=True, slots=True)
class Buffer:
    """
    An ordinary buffer: `size` bytes, live at op positions `first <= t < last`, at a multiple of `alignment`.

    Raises ValueError when the live range is empty, the size negative or the alignment not positive.
    """

    id: str | int
    first: int
    last: int
    size: int
    alignment: int = 1

    def __post_init__(self):
        self.body()

    def body(self) -> Body:
        """The body of one part that planners take."""
        return Body((Part(self.first, self.last, 0, self.size),), self.alignment, self.id)


def simplify(body: Body) -> Body:
    """The same bytes at the same times in fewer parts: joins parts that touch in time, then in space."""
    if len(body.parts) == 1:
        return body
    by_place: dict[tuple[int, int], list[Part]] = {}
    for part in sorted(body.parts, key=lambda p: p.first):
        row = by_place.setdefault((part.offset, part.size), [])
        if row and row[-1].last == part.first:
            row[-1] = Part(row[-1].first, part.last, part.offset, part.size)
        else:
            row.append(part)
    by_time: dict[tuple[int, int], list[Part]] = {}
    for part in sorted((p for row in by_place.values() for p in row), key=lambda p: p.offset):
        row = by_time.setdefault((part.first, part.last), [])
        if row and row[-1].offset + row[-1].size == part.offset:
            row[-1] = Part(part.first, part.last, row[-1].offset, row[-1].size + part.size)
        else:
            row.append(part)
    parts = sorted((p for row in by_time.values() for p in row), key=lambda p: (p.first, p.offset))
    return Body(tuple(parts), body.alignment, body.id)


def max_live(buffers: Iterable[Buffer | Body]) -> int:
    """Bytes live at the busiest position: no plan is lower, whatever its alignment."""
    return lower_bound([b.body() if isinstance(b, Buffer) else b for b in buffers], grain=1)


def common_grain(bodies: Sequence[Body]) -> int:
    """The largest number of bytes of which every part's offset in the pool is a multiple."""
    return math.gcd(*(b.alignment for b in bodies), *(p.offset for b in bodies for p in b.parts)) or 1


def lower_bound(bodies: Sequence[Body], grain: int | None = None) -> int:
    """
    Bytes below which no plan exists: the busiest position, with what alignment wastes there.

    When every part starts at a multiple of `grain` (default: `common_grain`), each live part but the topmost
    one occupies its size rounded up to the grain.
    """
    if not bodies:
        return 0
    grain = common_grain(bodies) if grain is None else grain
    parts = [part for body in bodies for part in body.parts if part.size]
    # Deaths come before births: at one position the range that ends and the one that begins do not meet.
    events = sorted(
        [(p.first, 1, i) for i, p in enumerate(parts)] + [(p.last, 0, i) for i, p in enumerate(parts)]
    )
    live = bound = 0
    paddings: list[tuple[int, int]] = []  # (-padding, last position), dropped lazily
    for position, born, i in events:
        size = parts[i].size
        rounded = round_up(size, grain)
        if not born:
            live -= rounded
            continue
        live += rounded
        if rounded > size:
            heapq.heappush(paddings, (size - rounded, parts[i].last))
        while paddings and paddings[0][1] <= position:
            heapq.heappop(paddings)
        # Any live part without padding at all may be the topmost one, so the saving is the largest padding.
        bound = max(bound, live + (paddings[0][0] if paddings else 0))
    return bound


def plan_height(bodies: Sequence[Body], offsets: Sequence[int]) -> int:
    """Bytes from the start of the pool to the end of the highest body."""
    return max((offset + body.extent for body, offset in zip(bodies, offsets, strict=True)), default=0)
