"""Access to the memory of the simulated program, which lives in this process."""

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from occamy_xdsl.simulator.faults import FaultError
from occamy_xdsl.simulator.ptx.arithmetic import Array


@cache
def _memory_file() -> int | None:
    """This process's memory as a file, through which a wrong address is an error and not a crash."""
    try:
        return os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def read_bytes(address: int | None, size: int, what: str) -> bytes:
    """`size` bytes at an address; raises FaultError if it is null or not mapped."""
    if not size:
        return b""
    if not address:
        raise FaultError(f"{what} is a null pointer")
    file = _memory_file()
    if file is None:
        return ctypes.string_at(address, size)
    try:
        data = os.pread(file, size, address)
    except (OSError, OverflowError):
        data = b""
    if len(data) != size:
        raise FaultError(f"{what}: {size} bytes at {address:#x} are not memory of the host")
    return data


def is_mapped(address: int) -> bool:
    """Whether there is memory at an address."""
    file = _memory_file()
    try:
        return file is None or len(os.pread(file, 1, address)) == 1
    except (OSError, OverflowError):
        return False


def is_writable(address: int) -> bool:
    """Whether this process may write to an address; true where the system does not say."""
    try:
        with Path("/proc/self/maps").open() as maps:
            for line in maps:
                span, permissions, *_ = line.split(maxsplit=2)
                low, high = (int(end, 16) for end in span.split("-"))
                if low <= address < high:
                    return "w" in permissions
    except OSError:
        return True
    return False


def view(address: int, size: int) -> Array:
    """The `size` bytes at an address, which must be mapped as long as the array is used."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))


def write_bytes(address: int | None, data: Array, what: str) -> None:
    """Copy an array to an address; raises FaultError if either end of the target is not mapped."""
    if not data.nbytes:
        return
    read_bytes(address, 1, what)
    assert address is not None
    read_bytes(address + data.nbytes - 1, 1, what)
    contiguous = np.ascontiguousarray(data)
    ctypes.memmove(address, contiguous.ctypes.data, contiguous.nbytes)


def read_string(address: int | None, what: str) -> str:
    """The text at an address up to its NUL."""
    read_bytes(address, 1, what)
    assert address is not None
    return ctypes.string_at(address).decode(errors="replace")


def read_ints(address: int | None, count: int, what: str) -> tuple[int, ...]:
    """An array of C ints."""
    return tuple(int(n) for n in np.frombuffer(read_bytes(address, 4 * count, what), np.int32))


def read_float(address: int | None, what: str, dtype: str = "float32") -> float:
    """One number that a function takes by pointer."""
    return float(np.frombuffer(read_bytes(address, np.dtype(dtype).itemsize, what), dtype)[0])


def read_pointers(address: int | None, count: int, what: str) -> Sequence[int]:
    """An array of pointers."""
    return [int(p) for p in np.frombuffer(read_bytes(address, 8 * count, what), np.uint64)]


def write_result(address: int | None, value: float, dtype: str = "uint64") -> None:
    """Store a result where the caller asked for it; handles and pointers are uint64."""
    write_bytes(address, np.array([value], dtype), "the address for the result")
