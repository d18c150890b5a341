"""
Device memory: addresses that are mapped nowhere, contents with a record of who wrote each byte.

Fresh memory holds 0xFF bytes, which are NaNs in floating-point types. Reading bytes that were never written,
or that a library used as workspace since, is a fault; so is touching what lies outside of every allocation
or has been freed.

Memory of the host that a program has mapped for the device has an address here, too, and its contents there. An
integrated device that reaches all memory of the host reads it at the host's addresses.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from occamy_xdsl.simulator import host_memory
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

_READ_ONLY = "writes to memory of the host that is registered as read-only"
_FIRST_ADDRESS = 0x5000_0000_0000
_NEVER, _WORKSPACE = 0, -1


@dataclass
class Allocation:
    """One piece of device memory. Freed ones stay known, so that their use is told from a wrong address."""

    address: int
    bytes: int
    data: Array
    """Contents; longer than `bytes` by padding to whole vectors."""
    writer: Array | None
    """Number of the operation that wrote each byte, 0 if none, negative if it used it as workspace; None where the
    host writes, too."""
    live: bool = True
    read_only: bool = False
    reader: Array | None = None
    """Number of the last operation that read each byte, 0 if none; None where no stream could disturb it."""

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
        """Whether the two share an address; images of which channels alternate with others' do not."""
        begin, end = max(self.address, other.address), min(r.address + r.bytes for r in (self, other))
        if not self.bytes or not other.bytes or begin >= end:
            return False
        if self._is_dense and other._is_dense:
            return True
        low = min(self.address, other.address)
        taken = np.zeros(max(r.address + r.bytes for r in (self, other)) - low, np.bool_)
        self._of(taken, low)[...] = True
        return bool(other._of(taken, low).any())

    @property
    def _is_dense(self) -> bool:
        return self.bytes == np.dtype(self.dtype).itemsize * prod(self.shape)

    def _of(self, memory: Array, low: int) -> Array:
        """The bytes of the elements in `memory`, an array of bytes from address `low` on."""
        size = np.dtype(self.dtype).itemsize
        strides = (*(size * step for step in self.strides), 1)
        return np.lib.stride_tricks.as_strided(memory[self.address - low :], (*self.shape, size), strides)


class DeviceMemory:
    """
    All memory of the device, `capacity` bytes; `operation` numbers whoever touches it at the moment.

    With `reaches_host` the host's addresses are addresses of the device.
    """

    def __init__(self, capacity: int, *, reaches_host: bool = False):
        self.capacity = capacity
        self.reaches_host = reaches_host
        self.used = 0
        """Bytes allocated now."""
        self.peak = 0
        """Most bytes that were allocated at any time."""
        self.operation = 0
        self.is_before: Callable[[int], bool] | None = None
        """Whether an operation, by number, has surely happened before the current one; None for a single stream."""
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
        data, writer = np.full(padded, POISON, np.uint8), np.full(padded, _NEVER, np.int32)
        self.used += size
        self.peak = max(self.peak, self.used)
        return self._add(Allocation(self._next, size, data, writer))

    def _add(self, allocation: Allocation) -> int:
        self._allocations.append(allocation)
        self._next = -(-(allocation.end + GAP) // GAP) * GAP
        return allocation.address

    def map_host(self, address: int, size: int, *, read_only: bool) -> int:
        """The device's address of `size` bytes of the host's memory, which `unmap_host` takes away again."""
        data = host_memory.view(address, size)
        # Another address than the host's, but as far from a multiple of a page.
        start = self._next + address % 4096
        return self._add(Allocation(start, size, data, None, read_only=read_only))

    def unmap_host(self, address: int) -> None:
        """End the use of memory that was mapped at an address of the device."""
        allocation = self._find(address)
        assert allocation is not None
        allocation.live = False
        allocation.data = np.zeros(0, np.uint8)

    def free(self, address: int) -> None:
        """Free an allocation by its first address."""
        allocation = self._find(address)
        if allocation is None or allocation.address != address or allocation.writer is None:
            raise FaultError(f"{address:#x} is not the address of an allocation")
        if not allocation.live:
            raise FaultError(f"double free of the {allocation.bytes} bytes at {address:#x}")
        allocation.live = False
        allocation.data = allocation.writer = np.zeros(0, np.uint8)
        self.used -= allocation.bytes

    def _find(self, address: int, size: int = 1) -> Allocation | None:
        """The allocation, live or not, around an address; where the device reaches them, `size` bytes of the host."""
        found = next((a for a in self._allocations if a.address <= address < max(a.end, a.address + 1)), None)
        if found is None and self.reaches_host and _is_mapped(address, size):
            return Allocation(address, size, host_memory.view(address, size), None)
        return found

    def is_allocated(self, address: int) -> bool:
        """Whether an address is in device memory that is allocated."""
        return any(a.address <= address < a.end and a.writer is not None for a in self.live)

    def _describe(self, address: int, size: int) -> str:
        """Why `size` bytes at an address cannot be touched."""
        allocation = self._find(address)
        if allocation is None:
            before = [a for a in self._allocations if a.end <= address < a.end + GAP]
            if before:
                a = before[-1]
                return f"{address:#x} lies {address - a.end} bytes past the end of an allocation of {a.bytes} bytes"
            if host_memory.is_mapped(address):
                return f"{address:#x} is memory of the host that is not registered, or its address there"
            return f"{address:#x} is no address of the device"
        offset = address - allocation.address
        if not allocation.live:
            return f"use after free: offset {offset} of {allocation.bytes} freed bytes"
        return (
            f"{size} bytes at offset {offset} run past the end of an allocation of {allocation.bytes} bytes"
        )

    def _locate(self, address: int, size: int) -> tuple[Allocation, int]:
        """The live allocation that holds the bytes, and their offset in it."""
        allocation = self._find(address, size)
        if allocation is None or not allocation.live or address + size > allocation.end:
            raise FaultError(self._describe(address, size))
        return allocation, address - allocation.address

    # --- arrays, for the libraries ---

    def _views(self, region: Region) -> tuple[Array, Array | None, Array | None]:
        """Elements of a region, and the operations that wrote and read the bytes of each, where they are known."""
        allocation, offset = self._locate(region.address, region.bytes)
        dtype = np.dtype(region.dtype)
        if region.address % dtype.itemsize:
            raise FaultError(f"misaligned address {region.address:#x} for elements of {dtype.itemsize} bytes")
        steps = [stride * dtype.itemsize for stride in region.strides]
        shape, bytes_ = (*region.shape, dtype.itemsize), [*(4 * step for step in steps), 4]
        data = np.ndarray(region.shape, dtype, allocation.data, offset, steps)
        writer, reader = (
            None if record is None else np.ndarray(shape, np.int32, record, 4 * offset, bytes_)
            for record in (allocation.writer, self._readers_of(allocation))
        )
        return data, writer, reader

    def _readers_of(self, allocation: Allocation) -> Array | None:
        """The record of who reads an allocation, from when there are several streams."""
        if allocation.reader is None and allocation.writer is not None and self.is_before is not None:
            allocation.reader = np.zeros_like(allocation.writer)
        return allocation.reader

    def _races(self, writer: Array, reader: Array | None) -> str | None:
        """What is wrong where nothing orders the current operation and those that touched the bytes before it."""
        if self.is_before is None:
            return None
        for record, verb in ((writer, "writes"), (reader, "reads")):
            for number in () if record is None else np.unique(np.abs(record)):
                if number and not self.is_before(int(number)):
                    name = self.operation_names[int(number)]
                    return f"race between streams: '{name}' {verb} the same bytes, and nothing orders the two"
        return None

    def check(self, region: Region) -> None:
        """Raise FaultError unless a region lies in live memory."""
        if 0 not in region.shape:
            self._views(region)

    def read(self, region: Region) -> Array:
        """A copy of the elements of a region; raises FaultError if one was never written, or may be right now."""
        if 0 in region.shape:
            return np.zeros(region.shape, region.dtype)
        data, writer, reader = self._views(region)
        if writer is not None:
            missing = writer <= 0
            if missing.any():
                where = np.unravel_index(first(missing), missing.shape)
                fact = self._history(int(writer[where]))
                at = tuple(int(i) for i in where[:-1])
                raise FaultError(f"reads {int(missing.sum())} bytes {fact}, first in element {at}")
            if race := self._races(writer, None):
                raise FaultError(race)
        if reader is not None:
            reader[...] = self.operation
        return data.copy()

    def _history(self, writer: int) -> str:
        if writer == _NEVER:
            return "that were never written"
        return f"that '{self.operation_names.get(-writer, 'an operation')}' overwrote as workspace"

    def write(self, region: Region, values: Array) -> None:
        """Set the elements of a region; raises FaultError where the host or another stream must not see that."""
        if 0 not in region.shape:
            self._overwrite(region, values, self.operation)

    def _overwrite(self, region: Region, values: Array | int, mark: int) -> None:
        if self._locate(region.address, region.bytes)[0].read_only:
            raise FaultError(_READ_ONLY)
        data, writer, reader = self._views(region)
        if writer is not None:
            if race := self._races(writer, reader):
                raise FaultError(race)
            writer[...] = mark
        data[...] = values

    def clobber(self, address: int, size: int) -> None:
        """Use bytes as workspace: what they hold afterwards is undefined."""
        if size:
            self._overwrite(Region.of_bytes(address, size), POISON, -self.operation)

    # --- words, for kernels ---

    def _gather(self, addresses: Array, size: int) -> tuple[Allocation, Array]:
        """The allocation that holds all addresses, and their offsets in it."""
        low = int(addresses.min())
        allocation = self._find(low, int(addresses.max()) + size - low)
        if allocation is None or not allocation.live:
            raise AccessError(self._fault("out-of-bounds", low, size), first(addresses == low))
        outside = addresses + size > allocation.end
        if outside.any():
            position = first(outside)
            address = int(addresses[position])
            raise AccessError(self._fault("out-of-bounds", address, size), position)
        return allocation, addresses - allocation.address

    def _fault(self, kind: str, address: int, size: int) -> str:
        return f"{kind} access of {size} bytes, {self._describe(address, size)}"

    def load(self, addresses: Array, size: int) -> Array:
        """Bytes at aligned addresses, shape (addresses, size); raises AccessError."""
        allocation, offsets = self._gather(addresses, size)
        if allocation.writer is None:
            return sliding_window_view(allocation.data, size)[offsets]
        rows = offsets // size
        writer, reader = allocation.writer.reshape(-1, size)[rows], self._readers_of(allocation)
        missing = (writer <= 0).any(axis=1)
        if missing.any():
            position = first(missing)
            fact = self._history(int(writer[position].min()))
            raise AccessError(f"reads bytes {fact}, at offset {offsets[position]}", position)
        if race := self._races(writer, None):
            raise AccessError(race, 0)
        if reader is not None:
            reader.reshape(-1, size)[rows] = self.operation
        return allocation.data.reshape(-1, size)[rows]

    def store(self, addresses: Array, data: Array) -> None:
        """Write bytes, shape (addresses, size), at aligned addresses; raises AccessError."""
        size = data.shape[1]
        allocation, offsets = self._gather(addresses, size)
        if allocation.read_only:
            raise AccessError(_READ_ONLY, 0)
        if allocation.writer is None:
            sliding_window_view(allocation.data, size, writeable=True)[offsets] = data
            return
        rows = offsets // size
        writer, reader = allocation.writer.reshape(-1, size), self._readers_of(allocation)
        if self.is_before is not None:
            assert reader is not None
            if race := self._races(writer[rows], reader.reshape(-1, size)[rows]):
                raise AccessError(race, 0)
        allocation.data.reshape(-1, size)[rows] = data
        writer[rows] = self.operation

    def leaks(self) -> Sequence[str]:
        """One line for each allocation that is not freed."""
        return [
            f"{a.bytes} bytes of device memory were never freed" for a in self.live if a.writer is not None
        ]


def _is_mapped(address: int, size: int) -> bool:
    """Whether both ends of `size` bytes are memory of the host."""
    return host_memory.is_mapped(address) and host_memory.is_mapped(address + size - 1)
