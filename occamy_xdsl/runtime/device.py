"""The GPU of this machine: what it is, its free memory, and the time that work takes on it."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

from occamy_xdsl.lowering.cuda.api import CONSTANTS
from occamy_xdsl.runtime.nvidia import call, create, load_libraries, status


@dataclass(frozen=True)
class Device:
    """What measurements on a GPU depend on."""

    name: str
    architecture: str
    """As in targets: `sm_90`."""
    cudnn: int
    """Version of cuDNN: 10000 major + 100 minor + patch."""
    driver: int
    """CUDA version of the driver: 1000 major + 10 minor."""


def device() -> Device:
    """The current GPU; raises NoDeviceError if there is none."""
    load_libraries()
    number, version = ctypes.c_int(), ctypes.c_int()
    call("cudaGetDevice", ctypes.byref(number))
    # This makes a context, which the functions of the driver need.
    call("cudaSetDevice", number)
    call("cudaDriverGetVersion", ctypes.byref(version))
    name = ctypes.create_string_buffer(256)
    call("cuDeviceGetName", name, len(name), number)
    parts: list[int] = []
    for part in ("Major", "Minor"):
        value = ctypes.c_int()
        attribute = CONSTANTS[f"cudaDevAttrComputeCapability{part}"]
        call("cudaDeviceGetAttribute", ctypes.byref(value), attribute, number)
        parts.append(value.value)
    architecture = f"sm_{10 * parts[0] + parts[1]}"
    return Device(name.value.decode(), architecture, status("cudnnGetVersion"), version.value)


def memory() -> tuple[int, int]:
    """Bytes of device memory that nobody uses, and all there are."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def free_bytes() -> int:
    """Bytes of device memory that nobody uses; differences say what was allocated in between."""
    return memory()[0]


Timer = Callable[[int, Callable[[], None]], float]
"""Milliseconds that the work which a function puts on a stream takes there."""


def elapsed(stream: int, enqueue: Callable[[], None]) -> float:
    """The `Timer` of the device: events before and after the work."""
    start, end = create("cudaEventCreateWithFlags", 0), create("cudaEventCreateWithFlags", 0)
    try:
        call("cudaEventRecord", start, stream)
        enqueue()
        call("cudaEventRecord", end, stream)
        call("cudaEventSynchronize", end)
        milliseconds = ctypes.c_float()
        call("cudaEventElapsedTime", ctypes.byref(milliseconds), start, end)
        return milliseconds.value
    finally:
        call("cudaEventDestroy", start)
        call("cudaEventDestroy", end)
