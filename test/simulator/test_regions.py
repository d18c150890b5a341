"""Whether strided arrays in device memory share an address, against sets of addresses."""

from itertools import product

import numpy as np
import pytest

from occamy_xdsl.simulator.memory import Region


def addresses(region: Region) -> set[int]:
    """Every byte of every element."""
    size = np.dtype(region.dtype).itemsize
    return {
        region.address + size * sum(i * s for i, s in zip(point, region.strides, strict=True)) + byte
        for point in product(*map(range, region.shape))
        for byte in range(size)
    }


@pytest.mark.parametrize("seed", range(5))
def test_overlaps(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def region() -> Region:
        rank = int(rng.integers(1, 4))
        shape = tuple(int(n) for n in rng.integers(0 if rng.random() < 0.1 else 1, 4, rank))
        strides = tuple(int(n) for n in rng.integers(0, 12, rank))
        return Region(int(rng.integers(64, 128)), shape, strides, np.dtype(rng.choice(["u1", "f4", "f8"])))

    answers = []
    for _ in range(200):
        a, b = region(), region()
        shared = bool(addresses(a) & addresses(b))
        assert a.overlaps(b) == b.overlaps(a) == shared, (a, b)
        answers.append(shared)
    assert 0.1 < np.mean(answers) < 0.9
