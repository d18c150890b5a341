"""
Device memory: addresses that are mapped nowhere, contents with a record of who wrote each byte.

Fresh memory holds 0xFF bytes, which are NaNs in floating-point types. Reading bytes that were never written,
or that a library used as workspace since, is a fault; so is touching what lies outside of every allocation
or has been freed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from occamy_xdsl.simulator.faults import FaultError, RefusalError
from occamy_xdsl.simulator.ptx.arithmetic import Array
from occamy_xdsl.simulator.ptx.errors import AccessError
from occamy_xdsl.simulator.ptx.spaces import first

ALIGNMENT = 512
"""Alignment of allocations in bytes, as cudaMalloc's."""
GAP = 1 << 20
"""Bytes between allocations, so that running over one does not meet the next."""
POISON = 0xFF
"""Byte of memory that holds no value."""
OUT_OF_MEMORY = 2
"""cudaErrorMemoryAllocation."""

_FIRST_ADDRESS = 0x5000_0000_0000
_NEVER, _WORKSPACE = 0, -1


@dataclass
class Allocation:
    """One piece of device memory. Freed ones stay known, so that their use is told from a wrong address."""

    address: int
    bytes: int
    data: Array
    """Contents; longer than `bytes` by padding to whole vectors."""
    writer: Array
    """Number of the operation that wrote each byte, 0 if none, negative if it used it as workspace."""
    live: bool = True

    @property
    def end(self) -> int:
        """First address after it."""
        return self.address + self.bytes


@dataclass(frozen=True)
class Region:
    """A strided array in device memory, with elements of numpy type `dtype`."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """Elements between neighbours, none negative."""
    dtype: Any

    @staticmethod
    def of_bytes(address: int, size: int) -> "Region":
        """`size` bytes."""
        return Region(address, (size,), (1,), np.dtype(np.uint8))

    @property
    def bytes(self) -> int:
        """Bytes from the first element to the last one, both included."""
        if 0 in self.shape:
            return 0
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return (last + 1) * np.dtype(self.dtype).itemsize

    def overlaps(self, other: "Region") -> bool:
        """Whether the two share an address."""
        if not self.bytes or not other.bytes:
            return False
        return self.address < other.address + other.bytes and other.address < self.address + self.bytes


class DeviceMemory:
    """All memory of the device, `capacity` bytes; `operation` numbers whoever touches it at the moment."""

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.used = 0
        """Bytes allocated now."""
        self.peak = 0
        """Most bytes that were allocated at any time."""
        self.operation = 0
        self.operation_names: dict[int, str] = {}
        self._allocations: list[Allocation] = []
        self._next = _FIRST_ADDRESS

    @property
    def live(self) -> list[Allocation]:
        """The allocations that are not freed."""
        return [allocation for allocation in self._allocations if allocation.live]

    def allocate(self, size: int) -> int:
        """Address of `size` fresh bytes; raises RefusalError if the device has too little left."""
        if self.used + size > self.capacity:
            raise RefusalError(
                OUT_OF_MEMORY, f"{size} bytes do not fit, {self.capacity - self.used} are free"
            )
        padded = -(-size // ALIGNMENT) * ALIGNMENT
        allocation = Allocation(
            self._next, size, np.full(padded, POISON, np.uint8), np.full(padded, _NEVER, np.int32)
        )
        self._allocations.append(allocation)
        self._next += -(-(padded + GAP) // GAP) * GAP
        self.used += size
        self.peak = max(self.peak, self.used)
        return allocation.address

    def free(self, address: int) -> None:
        """Free an allocation by its first address."""
        allocation = self._find(address)
        if allocation is None or allocation.address != address:
            raise FaultError(f"{address:#x} is not the address of an allocation")
        if not allocation.live:
            raise FaultError(f"double free of the {allocation.bytes} bytes at {address:#x}")
        allocation.live = False
        allocation.data = allocation.writer = np.zeros(0, np.uint8)
        self.used -= allocation.bytes

    def _find(self, address: int) -> Allocation | None:
        """The allocation, live or not, around an address."""
        return next((a for a in self._allocations if a.address <= address < max(a.end, a.address + 1)), None)

    def _describe(self, address: int, size: int) -> str:
        """Why `size` bytes at an address cannot be touched."""
        allocation = self._find(address)
        if allocation is None:
            before = [a for a in self._allocations if a.end <= address < a.end + GAP]
            if before:
                a = before[-1]
                return f"{address:#x} lies {address - a.end} bytes past the end of an allocation of {a.bytes} bytes"
            return f"{address:#x} is no address of the device"
        offset = address - allocation.address
        if not allocation.live:
            return f"use after free: offset {offset} of {allocation.bytes} freed bytes"
        return (
            f"{size} bytes at offset {offset} run past the end of an allocation of {allocation.bytes} bytes"
        )

    def _locate(self, address: int, size: int) -> tuple[Allocation, int]:
        """The live allocation that holds the bytes, and their offset in it."""
        allocation = self._find(address)
        if allocation is None or not allocation.live or address + size > allocation.end:
            raise FaultError(self._describe(address, size))
        return allocation, address - allocation.address

    # --- arrays, for the libraries ---

    def _views(self, region: Region) -> tuple[Array, Array]:
        """Elements of a region, and the operations that wrote the first byte of each."""
        allocation, offset = self._locate(region.address, region.bytes)
        dtype = np.dtype(region.dtype)
        if region.address % dtype.itemsize:
            raise FaultError(f"misaligned address {region.address:#x} for elements of {dtype.itemsize} bytes")
        steps = [stride * dtype.itemsize for stride in region.strides]
        data = np.ndarray(region.shape, dtype, allocation.data, offset, steps)
        writer = np.ndarray(
            (*region.shape, dtype.itemsize),
            np.int32,
            allocation.writer,
            4 * offset,
            [4 * s for s in steps] + [4],
        )
        return data, writer

    def check(self, region: Region) -> None:
        """Raise FaultError unless a region lies in live memory."""
        if 0 not in region.shape:
            self._views(region)

    def read(self, region: Region) -> Array:
        """A copy of the elements of a region; raises FaultError if one was never written."""
        if 0 in region.shape:
            return np.zeros(region.shape, region.dtype)
        data, writer = self._views(region)
        missing = writer <= 0
        if missing.any():
            where = np.unravel_index(first(missing), missing.shape)
            fact = self._history(int(writer[where]))
            at = tuple(int(i) for i in where[:-1])
            raise FaultError(f"reads {int(missing.sum())} bytes {fact}, first in element {at}")
        return data.copy()

    def _history(self, writer: int) -> str:
        if writer == _NEVER:
            return "that were never written"
        return f"that '{self.operation_names.get(-writer, 'an operation')}' overwrote as workspace"

    def write(self, region: Region, values: Array) -> None:
        """Set the elements of a region."""
        if 0 not in region.shape:
            data, writer = self._views(region)
            data[...] = values
            writer[...] = self.operation

    def clobber(self, address: int, size: int) -> None:
        """Use bytes as workspace: what they hold afterwards is undefined."""
        if size:
            data, writer = self._views(Region.of_bytes(address, size))
            data[...] = POISON
            writer[...] = -self.operation

    # --- words, for kernels ---

    def _gather(self, addresses: Array, size: int) -> tuple[Allocation, Array]:
        """The allocation that holds all addresses, and their index in rows of `size` bytes."""
        low = int(addresses.min())
        allocation = self._find(low)
        if allocation is None or not allocation.live:
            raise AccessError(self._fault("out-of-bounds", low, size), first(addresses == low))
        outside = addresses + size > allocation.end
        if outside.any():
            position = first(outside)
            address = int(addresses[position])
            raise AccessError(self._fault("out-of-bounds", address, size), position)
        return allocation, (addresses - allocation.address) // size

    def _fault(self, kind: str, address: int, size: int) -> str:
        return f"{kind} access of {size} bytes, {self._describe(address, size)}"

    def load(self, addresses: Array, size: int) -> Array:
        """Bytes at aligned addresses, shape (addresses, size); raises AccessError."""
        allocation, rows = self._gather(addresses, size)
        missing = (allocation.writer.reshape(-1, size)[rows] <= 0).any(axis=1)
        if missing.any():
            position = first(missing)
            writer = int(allocation.writer.reshape(-1, size)[rows[position]].min())
            offset = int(addresses[position]) - allocation.address
            raise AccessError(f"reads bytes {self._history(writer)}, at offset {offset}", position)
        return allocation.data.reshape(-1, size)[rows]

    def store(self, addresses: Array, data: Array) -> None:
        """Write bytes, shape (addresses, size), at aligned addresses; raises AccessError."""
        size = data.shape[1]
        allocation, rows = self._gather(addresses, size)
        allocation.data.reshape(-1, size)[rows] = data
        allocation.writer.reshape(-1, size)[rows] = self.operation

    def leaks(self) -> Sequence[str]:
        """One line for each allocation that is not freed."""
        return [f"{a.bytes} bytes of device memory were never freed" for a in self.live]
