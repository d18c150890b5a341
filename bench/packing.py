"""Gap to the lower bound and CPU time of the default planner on 100,000 synthetic buffers of several kinds."""

import argparse
import random
import time
from collections.abc import Callable, Iterator

from occamy_xdsl.planning.intervals import Body, Buffer
from occamy_xdsl.planning.planners import plan

Trace = Iterator[tuple[int, int, int]]
"""First and last position (exclusive) and bytes of each buffer."""


def uniform(chance: random.Random, count: int) -> Trace:
    """Births, lengths and sizes are all equally likely within their ranges."""
    for _ in range(count):
        first = chance.randrange(count)
        yield first, first + chance.randint(1, 200), 64 * chance.randint(1, 1000)


def heavy_tailed(chance: random.Random, count: int) -> Trace:
    """Most lives are short and most buffers small, but some are thousands of times as long or as large."""
    for first in range(count):
        length = min(int(chance.paretovariate(1.1)), count // 4)
        yield first, first + length, 64 * min(int(chance.paretovariate(1.1)), 100_000)


def mixed(chance: random.Random, count: int) -> Trace:
    """Heavy-tailed lives, sizes of a few tiles."""
    for first in range(count):
        length = min(1 + int(chance.paretovariate(1.2)), count // 2)
        yield first, first + length, 64 * chance.choice((1, 2, 4, 8, 16, 32, 64)) * chance.randint(1, 50)


def stack(chance: random.Random, count: int) -> Trace:
    """Calls within calls: what is born last dies first."""
    open_since = list[tuple[int, int]]()
    position = made = 0
    while made < count or open_since:
        position += 1
        if made < count and (len(open_since) < 2 or chance.random() < 0.5):
            open_since.append((position, 64 * chance.randint(1, 1000)))
            made += 1
        elif open_since:
            first, size = open_since.pop()
            yield first, position, size


def network(chance: random.Random, count: int) -> Trace:
    """Convolutional stages: results read by the next layer, now and then by one further down, and scratch."""
    size = 0
    for position in range(count // 2):
        if position % 50 == 0:
            size = 64 << chance.randint(4, 14)
        reach = chance.choice((1, 1, 1, 2, 3, 8, 24))
        yield position, position + 1 + reach, size * chance.choice((1, 1, 2, 4))
        yield position, position + 1, 64 * chance.randint(1, 4096)


def long_lives(chance: random.Random, count: int) -> Trace:
    """Like uniform, with lives ten times as long: a thousand buffers are live at a time."""
    for _ in range(count):
        first = chance.randrange(count)
        yield first, first + chance.randint(1, 2000), 64 * chance.randint(1, 1000)


def longest_lives(chance: random.Random, count: int) -> Trace:
    """Like uniform, with lives fifty times as long, and sizes of any number of bytes."""
    for _ in range(count):
        first = chance.randrange(count)
        yield first, first + chance.randint(1, 10_000), chance.randint(1, 65_000)


def all_scales(chance: random.Random, count: int) -> Trace:
    """Lives and sizes of every order of magnitude: their logarithms are uniform."""
    for _ in range(count):
        first = chance.randrange(count)
        yield first, first + int(10_000 ** chance.random()), 64 * int(4096 ** chance.random())


def few_sizes(chance: random.Random, count: int) -> Trace:
    """Like uniform, with six distinct sizes."""
    sizes = [64 * chance.randint(1, 1000) for _ in range(6)]
    for _ in range(count):
        first = chance.randrange(count)
        yield first, first + chance.randint(1, 200), chance.choice(sizes)


def correlated(chance: random.Random, count: int) -> Trace:
    """What lives longer is larger."""
    for _ in range(count):
        first, length = chance.randrange(count), 1 + int(200 * chance.random() ** 2)
        yield first, first + length, 64 * max(1, int(length * (2.5 + 5 * chance.random())))


def bursts(chance: random.Random, count: int) -> Trace:
    """Five hundred births at a time, then a pause in which most of them die."""
    for number in range(count):
        first = number // 500 * 300 + chance.randrange(60)
        yield first, first + chance.randint(1, 150), 64 * chance.randint(1, 1000)


TRACES: dict[str, Callable[[random.Random, int], Trace]] = {
    trace.__name__: trace
    for trace in (
        uniform,
        heavy_tailed,
        mixed,
        stack,
        network,
        long_lives,
        longest_lives,
        all_scales,
        few_sizes,
        correlated,
        bursts,
    )
}


def trace(name: str, seed: int, count: int) -> list[Body]:
    """The buffers of a trace, each a body of its own."""
    return [Buffer(i, *span).body() for i, span in enumerate(TRACES[name](random.Random(seed), count))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="*", choices=[[], *TRACES], metavar="TRACE", help=", ".join(TRACES))
    parser.add_argument("--count", type=int, default=100_000, help="buffers of each trace (default 100000)")
    parser.add_argument("--seeds", type=int, default=2, help="traces of each kind (default 2)")
    options = parser.parse_args()
    print(f"{'trace':<14} {'seed':>4} {'buffers':>8} {'bound':>13} {'height':>13} {'gap %':>6} {'CPU s':>6}")
    for name in options.traces or TRACES:
        for seed in range(options.seeds):
            bodies = trace(name, seed, options.count)
            start = time.process_time()
            found = plan(bodies, time_limit=600)  # the node limit ends it, however busy the machine
            seconds = time.process_time() - start
            gap = 100 * (found.height / found.lower_bound - 1)
            print(
                f"{name:<14} {seed:>4} {len(bodies):>8} {found.lower_bound:>13} {found.height:>13} "
                f"{gap:>6.2f} {seconds:>6.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
