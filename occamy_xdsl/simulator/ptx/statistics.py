"""Counts of what kernels do: warp instructions, and how much of the memory that moves is used."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from occamy_xdsl.simulator.ptx.arithmetic import Array

SECTOR_BYTES = 32
"""Bytes of device memory that move together (CUDA C++ Best Practices Guide, Coalesced Access)."""
WARP = 32
"""Threads of a warp."""


@dataclass
class AccessStatistics:
    """How one load or store instruction meets global memory."""

    text: str
    """The instruction."""
    is_store: bool
    requests: int = 0
    """Times that a warp ran it."""
    sectors: int = 0
    """Sectors of 32 bytes that these requests moved."""
    used_bytes: int = 0
    """Bytes of them that some thread asked for."""

    @property
    def moved_bytes(self) -> int:
        """Bytes of all sectors."""
        return SECTOR_BYTES * self.sectors

    def add(self, warps: Array, addresses: Array, size: int) -> None:
        """Count one access of `size` bytes by each thread, given its warp and address."""
        self.requests += _distinct(warps, np.zeros_like(addresses))
        self.sectors += _distinct(warps, addresses // SECTOR_BYTES)
        self.used_bytes += size * _distinct(warps, addresses)


def _distinct(warps: Array, keys: Array) -> int:
    """Number of distinct (warp, key) pairs; warps are in ascending order."""
    order = np.lexsort((keys, warps))
    warps, keys = warps[order], keys[order]
    return int(1 + np.count_nonzero((np.diff(warps) != 0) | (np.diff(keys) != 0)))


def efficiency(accesses: Iterable[AccessStatistics]) -> float:
    """Share of the moved bytes that is used, 1 if nothing moved."""
    accesses = list(accesses)
    moved = sum(access.moved_bytes for access in accesses)
    return sum(access.used_bytes for access in accesses) / moved if moved else 1.0


@dataclass
class KernelStatistics:
    """What all launches of one kernel did together."""

    launches: int = 0
    blocks: int = 0
    warp_instructions: int = 0
    """Instructions run, counted once for each warp with an active thread."""
    accesses: dict[int, AccessStatistics] = field(default_factory=dict[int, AccessStatistics])
    """Global loads and stores by PTX line."""

    @property
    def efficiency(self) -> float:
        """Share of the bytes moved to and from global memory that is used."""
        return efficiency(self.accesses.values())

    @property
    def load_efficiency(self) -> float:
        """The same of loads alone."""
        return efficiency(a for a in self.accesses.values() if not a.is_store)

    @property
    def store_efficiency(self) -> float:
        """The same of stores alone."""
        return efficiency(a for a in self.accesses.values() if a.is_store)
