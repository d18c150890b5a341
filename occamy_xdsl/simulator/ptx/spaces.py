"""The memory spaces of a kernel: global memory by protocol, and shared and local memory with their checks."""

from typing import Any, Protocol

import numpy as np

from occamy_xdsl.simulator.ptx.arithmetic import RAW, Array

SHARED_WINDOW = 1 << 56
"""First generic address of a block's shared memory; devices have their own addresses far below."""
LOCAL_WINDOW = 2 << 56
"""First generic address of a thread's local memory."""
MODULE_WINDOW = 3 << 56
"""First generic address of the module's constants and variables."""


class AccessError(Exception):
    """An access that is not allowed, by the position among the accessing threads of one that is at fault."""

    def __init__(self, message: str, position: int = 0):
        super().__init__(message)
        self.position = position


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
    Shared memory of some blocks, `size` bytes each, which knows who touched a byte since the last barrier.

    A race is a byte that one thread writes and another one reads or changes without `bar.sync` in between.
    Orders within a warp are not seen: shuffles and `bar.warp.sync` do not count as barriers. Threads are
    numbered within their block.
    """

    def __init__(self, blocks: int, size: int):
        self._stride = -(-size // 16) * 16
        self._size = size
        cells = blocks * self._stride
        self._data = np.zeros(cells, np.uint8)
        self._written = np.zeros(cells, np.bool_)
        self._writer = np.full(cells, -1, np.int32)
        self._first_reader = np.full(cells, NOBODY, np.int32)
        self._last_reader = np.full(cells, -1, np.int32)

    def _words(self, blocks: Array, addresses: Array, size: int) -> Array:
        """Index of each access in arrays viewed as rows of `size` bytes."""
        outside = (addresses < 0) | (addresses + size > self._size)
        if outside.any():
            position = first(outside)
            fact = f"bytes {int(addresses[position])} to {int(addresses[position]) + size - 1}"
            raise AccessError(f"shared memory out of bounds: {fact} of {self._size}", position)
        return (blocks * self._stride + addresses) // size

    def load(self, blocks: Array, threads: Array, addresses: Array, size: int) -> Array:
        words = self._words(blocks, addresses, size)
        missing = ~self._written.reshape(-1, size)[words].all(axis=1)
        if missing.any():
            raise AccessError("reads shared memory that was never written", first(missing))
        writers = self._writer.reshape(-1, size)[words]
        race = ((writers >= 0) & (writers != threads[:, None])).any(axis=1)
        if race.any():
            position = first(race)
            other = int(writers[position].max())
            raise AccessError(
                f"shared-memory race: thread {other} wrote here since the last barrier", position
            )
        cells = (words * size)[:, None] + np.arange(size)
        np.minimum.at(self._first_reader, cells, threads[:, None].astype(np.int32))
        np.maximum.at(self._last_reader, cells, threads[:, None].astype(np.int32))
        return self._data.reshape(-1, size)[words]

    def store(self, blocks: Array, threads: Array, addresses: Array, data: Array) -> None:
        size = data.shape[1]
        words = self._words(blocks, addresses, size)
        me = threads[:, None].astype(np.int32)
        readers = self._first_reader.reshape(-1, size)[words], self._last_reader.reshape(-1, size)[words]
        read = (readers[1] >= 0) & ((readers[0] != me) | (readers[1] != me))
        writers = self._writer.reshape(-1, size)[words]
        old = self._data.reshape(-1, size)[words]
        race = (read | ((writers >= 0) & (writers != me) & (old != data))).any(axis=1)
        self._data.reshape(-1, size)[words] = data
        # Of threads that store to one place together the last one wins; the others find another's bytes.
        race |= (self._data.reshape(-1, size)[words] != data).any(axis=1)
        if race.any():
            raise AccessError(
                "shared-memory race: another thread used these bytes since the last barrier", first(race)
            )
        self._writer.reshape(-1, size)[words] = me
        self._written.reshape(-1, size)[words] = True

    def barrier(self, blocks: Array) -> None:
        """Order all accesses of the given blocks before those that follow."""
        rows: list[tuple[Array, Any]] = [
            (self._writer, -1),
            (self._first_reader, NOBODY),
            (self._last_reader, -1),
        ]
        if self._stride:
            for array, value in rows:
                array.reshape(-1, self._stride)[blocks] = value


def as_bytes(raw: Array, bits: int) -> Array:
    """Raw register values as bytes, shape (values, bytes)."""
    return np.ascontiguousarray(raw, dtype=RAW[bits])[:, None].view(np.uint8)
