"""
The GPU of this machine: what it is, its memory, streams, and the time that work takes on it.

All through `cuda.bindings`, NVIDIA's Python interface of the driver, whose handles and primary context are those of
the runtime that compiled models call.
"""

import importlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from occamy_xdsl.errors import OccamyError
from occamy_xdsl.runtime.nvidia import INSTALL, load_libraries, no_device, status

Array = np.ndarray[Any, np.dtype[Any]]


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
    """The current GPU; raises NoDeviceError if there is none, or if a library that it needs is missing."""
    load_libraries()
    gpu = _current()
    name = _call("cuDeviceGetName", 256, gpu).partition(b"\0")[0].decode()
    attributes = _driver().CUdevice_attribute
    major, minor = (
        _call(
            "cuDeviceGetAttribute", getattr(attributes, f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{part}"), gpu
        )
        for part in ("MAJOR", "MINOR")
    )
    return Device(name, f"sm_{10 * major + minor}", status("cudnnGetVersion"), _call("cuDriverGetVersion"))


# --- memory -----------------------------------------------------------------------------------------------


def memory() -> tuple[int, int]:
    """Bytes of device memory that nobody uses, and all there are; raises as `device`."""
    _current()
    return _call("cuMemGetInfo")


def free_bytes() -> int:
    """Bytes of device memory that nobody uses; differences say what was allocated in between."""
    return memory()[0]


@contextmanager
def allocated(size: int) -> Generator[int]:
    """The address of `size` bytes of device memory, at least one, which are released afterwards."""
    _current()
    pointer = _call("cuMemAlloc", size)
    try:
        yield int(pointer)
    finally:
        _driver().cuMemFree(pointer)


def upload(array: Array, address: int, stream: int) -> None:
    """Copies a contiguous array to the device, and waits for it."""
    _call("cuMemcpyHtoDAsync", address, array.ctypes.data, array.nbytes, stream)
    synchronize(stream)


def download(address: int, array: Array, stream: int) -> None:
    """Copies from the device to a contiguous array, and waits for it and all before it on the stream."""
    _call("cuMemcpyDtoHAsync", array.ctypes.data, address, array.nbytes, stream)
    synchronize(stream)


# --- streams and events -----------------------------------------------------------------------------------


@contextmanager
def new_stream() -> Generator[int]:
    """A stream that does not wait for the default one, as those of compiled models."""
    _current()
    stream = _call("cuStreamCreate", _driver().CUstream_flags.CU_STREAM_NON_BLOCKING)
    try:
        yield int(stream)
    finally:
        _driver().cuStreamDestroy(stream)


def synchronize(stream: int) -> None:
    """Waits for all work of a stream."""
    _call("cuStreamSynchronize", stream)


@contextmanager
def _new_event() -> Generator[Any]:
    event = _call("cuEventCreate", _driver().CUevent_flags.CU_EVENT_DEFAULT)
    try:
        yield event
    finally:
        _driver().cuEventDestroy(event)


Timer = Callable[[int, Callable[[], None]], float]
"""Milliseconds that the work which a function puts on a stream takes there."""


def elapsed(stream: int, enqueue: Callable[[], None]) -> float:
    """The `Timer` of the device: events before and after the work."""
    _current()
    with _new_event() as start, _new_event() as end:
        _call("cuEventRecord", start, stream)
        enqueue()
        _call("cuEventRecord", end, stream)
        _call("cuEventSynchronize", end)
        return _call("cuEventElapsedTime", start, end)


# --- the driver -------------------------------------------------------------------------------------------


@cache
def _driver() -> Any:
    """The module `cuda.bindings.driver`; raises NoDeviceError if it is not installed."""
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as error:
        raise no_device(str(error), INSTALL) from None


def _call(name: str, *arguments: Any) -> Any:
    """Calls a function of the driver, without its suffix _v2; what it stores. Raises OccamyError if it fails."""
    driver = _driver()
    try:
        error, *results = getattr(driver, name)(*arguments)
    except RuntimeError as missing:
        # The bindings found no driver, or an old one without the function.
        raise OccamyError(f"{name}: {missing}") from None
    if error:
        text = driver.cuGetErrorString(error)[1] or b"unknown error"
        raise OccamyError(f"{name}: {text.decode()} (status {int(error)})")
    return tuple(results) if len(results) > 1 else results[0] if results else None


def _current() -> Any:
    """
    The GPU whose context is current in this thread; where none is, that of the first GPU becomes it.

    Raises NoDeviceError where there is no GPU that can be used.
    """
    _driver()
    try:
        _call("cuInit", 0)
    except OccamyError as error:
        raise no_device(str(error)) from None
    if int(_call("cuCtxGetCurrent")):
        return _call("cuCtxGetDevice")
    gpu = _call("cuDeviceGet", 0)
    _call("cuCtxSetCurrent", _call("cuDevicePrimaryCtxRetain", gpu))
    return gpu
