"""Random planning problems, reproducible from their seed."""

import random

from occamy_xdsl.planning.intervals import Body, Part


def random_bodies(seed: int, count: int | None = None, rigid: bool = True) -> list[Body]:
    """A few bodies with small numbers, so that ties, equal sizes and touching live ranges are frequent."""
    chance = random.Random(seed)
    horizon = chance.choice((4, 8, 20))
    bodies: list[Body] = []
    for i in range(chance.randrange(12) if count is None else count):
        parts: list[Part] = []
        end = 0
        for _ in range(chance.choice((1, 1, 2, 3)) if rigid else 1):
            first = chance.randrange(horizon)
            last = chance.randint(first + 1, horizon)
            size = chance.choice((0, 1, 4, 7, 32, 64, 100))
            parts.append(Part(first, last, end, size))
            end += size + chance.choice((0, 0, 3))
        bodies.append(Body(tuple(parts), chance.choice((1, 1, 4, 64)), i))
    return bodies


def overlaps(bodies: list[Body], offsets: tuple[int, ...]) -> bool:
    """Whether two parts share a byte while both are live: every pair is compared."""
    spans = [
        (p.first, p.last, o + p.offset, o + p.offset + p.size)
        for b, o in zip(bodies, offsets, strict=True)
        for p in b.parts
    ]
    return any(
        max(a[0], b[0]) < min(a[1], b[1]) and max(a[2], b[2]) < min(a[3], b[3])
        for i, a in enumerate(spans)
        for b in spans[:i]
    )
