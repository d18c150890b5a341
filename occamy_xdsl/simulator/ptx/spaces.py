"""The memory spaces of a kernel: global memory by protocol, and shared and local memory with their checks."""

from typing import Any, Protocol

import numpy as np

from occamy_xdsl.simulator.ptx.arithmetic import RAW, Array
from occamy_xdsl.simulator.ptx.errors import AccessError

SHARED_WINDOW = 1 << 56
"""First generic address of a block's shared memory; devices have their own addresses far below."""
LOCAL_WINDOW = 2 << 56
"""First generic address of a thread's local memory."""
MODULE_WINDOW = 3 << 56
"""First generic address of the module's constants and variables."""


class GlobalMemory(Protocol):
    """Device memory as a kernel sees it; both methods raise AccessError."""

    def load(self, addresses: Array, size: int) -> Array:
        """The bytes at each address, shape (addresses, size)."""
        ...

    def store(self, addresses: Array, data: Array) -> None:
        """Write the bytes `data`, shape (addresses, size)."""
        ...


def first(condition: Any) -> int:
    """Position of the first true element."""
    return int(np.argmax(condition))


def check_aligned(addresses: Array, size: int) -> None:
    """Raise AccessError unless every address is a multiple of the bytes of the access."""
    wrong = addresses % size != 0
    if wrong.any():
        position = first(wrong)
        raise AccessError(f"misaligned access of {size} bytes at {int(addresses[position]):#x}", position)


class ModuleData:
    """Constants and variables of a PTX module, at MODULE_WINDOW."""

    def __init__(self, data: bytes):
        self._data = np.frombuffer(data, np.uint8)

    def load(self, addresses: Array, size: int) -> Array:
        offsets = addresses - MODULE_WINDOW
        outside = (offsets < 0) | (offsets + size > len(self._data))
        if outside.any():
            raise AccessError("out of bounds of the module's variables", first(outside))
        return self._data[offsets[:, None] + np.arange(size)]

    def store(self, addresses: Array, data: Array) -> None:
        raise AccessError("store to a variable of the module, which this simulator keeps constant")


class LocalMemory:
    """Local memory: `size` bytes for each of `threads` threads."""

    def __init__(self, threads: int, size: int):
        self._data = np.zeros((threads, size), np.uint8)
        self._written = np.zeros((threads, size), np.bool_)

    def _cells(self, threads: Array, addresses: Array, size: int) -> tuple[Array, Array]:
        outside = (addresses < 0) | (addresses + size > self._data.shape[1])
        if outside.any():
            position = first(outside)
            fact = f"{int(addresses[position])} of {self._data.shape[1]} bytes"
            raise AccessError(f"local memory out of bounds: byte {fact}", position)
        return threads[:, None], addresses[:, None] + np.arange(size)

    def load(self, threads: Array, addresses: Array, size: int) -> Array:
        cells = self._cells(threads, addresses, size)
        missing = ~self._written[cells].all(axis=1)
        if missing.any():
            raise AccessError("reads local memory that was never written", first(missing))
        return self._data[cells]

    def store(self, threads: Array, addresses: Array, data: Array) -> None:
        cells = self._cells(threads, addresses, data.shape[1])
        self._data[cells] = data
        self._written[cells] = True


NOBODY = np.int32(np.iinfo(np.int32).max)


class SharedMemory:
    """
    Shared memory of some blocks, `size` bytes each, which knows who touched what since the last barrier.

    A race is a place that one thread writes and another one reads or changes without `bar.sync` in between.
    Orders within a warp are not seen: shuffles and `bar.warp.sync` do not count as barriers. Threads are
    numbered within their block. The record is kept for every `granule` bytes, a power of two up to 16 that
    divides the size of every access.
    """

    def __init__(self, blocks: int, size: int, granule: int):
        self._stride = -(-size // 16) * 16
        self._size = size
        self._granule = granule
        cells = blocks * self._stride // granule
        self._data = np.zeros(blocks * self._stride, np.uint8)
        self._written = np.zeros(cells, np.bool_)
        self._writer = np.full(cells, -1, np.int32)
        self._first_reader = np.full(cells, NOBODY, np.int32)
        self._last_reader = np.full(cells, -1, np.int32)

    def _find(self, blocks: Array, addresses: Array, size: int) -> tuple[Array, Array]:
        """Index of each access in the data as rows of `size` bytes, and of its granules in the records."""
        outside = (addresses < 0) | (addresses + size > self._size)
        if outside.any():
            position = first(outside)
            fact = f"bytes {int(addresses[position])} to {int(addresses[position]) + size - 1}"
            raise AccessError(f"shared memory out of bounds: {fact} of {self._size}", position)
        start = blocks * self._stride + addresses
        cells = (start // self._granule)[:, None] + np.arange(size // self._granule)
        return start // size, cells

    def load(self, blocks: Array, threads: Array, addresses: Array, size: int) -> Array:
        """The bytes that threads load, shape (threads, size); raises AccessError."""
        rows, cells = self._find(blocks, addresses, size)
        missing = ~self._written[cells]
        if missing.any():
            raise AccessError("reads shared memory that was never written", first(missing.any(axis=1)))
        me = threads[:, None].astype(np.int32)
        writers = self._writer[cells]
        race = (writers >= 0) & (writers != me)
        if race.any():
            position = first(race.any(axis=1))
            fact = f"thread {int(writers[position].max())} wrote here since the last barrier"
            raise AccessError(f"shared-memory race: {fact}", position)
        np.minimum.at(self._first_reader, cells, me)
        np.maximum.at(self._last_reader, cells, me)
        return self._data.reshape(-1, size)[rows]

    def store(self, blocks: Array, threads: Array, addresses: Array, data: Array) -> None:
        """Write the bytes that threads store, shape (threads, bytes); raises AccessError."""
        size = data.shape[1]
        rows, cells = self._find(blocks, addresses, size)
        me = threads[:, None].astype(np.int32)
        last_reader = self._last_reader[cells]
        read = (last_reader >= 0) & ((self._first_reader[cells] != me) | (last_reader != me))
        writers = self._writer[cells]
        written = (writers >= 0) & (writers != me)
        race = read.any(axis=1)
        image = self._data.reshape(-1, size)
        if written.any():
            # Writing what another thread has written already changes nothing.
            race |= written.any(axis=1) & (image[rows] != data).any(axis=1)
        image[rows] = data
        # Of threads that store to one place together the last one wins; the others find another's bytes.
        lost = image[rows] != data
        if lost.any():
            race |= lost.any(axis=1)
        if race.any():
            fact = "another thread used these bytes since the last barrier"
            raise AccessError(f"shared-memory race: {fact}", first(race))
        self._writer[cells] = me
        self._written[cells] = True

    def barrier(self, blocks: Array) -> None:
        """Order all accesses of the given blocks before those that follow."""
        cells = self._stride // self._granule
        if cells:
            self._writer.reshape(-1, cells)[blocks] = -1
            self._first_reader.reshape(-1, cells)[blocks] = NOBODY
            self._last_reader.reshape(-1, cells)[blocks] = -1


def as_bytes(raw: Array, bits: int) -> Array:
    """Raw register values as bytes, shape (values, bytes)."""
    return np.ascontiguousarray(raw, dtype=RAW[bits])[:, None].view(np.uint8)
