"""NVIDIA's libraries in this process: loading them, and calling those functions that `cuda.bindings` has not."""

import ctypes
import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

from occamy_xdsl.errors import NoDeviceError, OccamyError
from occamy_xdsl.lowering.cuda.api import C_TYPES, FUNCTIONS, LIBRARIES, llvm_type

SIMULATE = "`occamy run M.onnx --target cuda --simulate` needs none"
INSTALL = "`pip install occamy-xdsl[cuda]` brings it"


def no_device(fact: str, hint: str = SIMULATE) -> NoDeviceError:
    """The error that a fact is, with what helps."""
    return NoDeviceError(f"no GPU can be used here: {fact}; {hint}")


def load_libraries() -> None:
    """
    Loads NVIDIA's libraries, from where the loader finds them or from their wheels.

    Raises NoDeviceError, one line, if one is missing or there is no device.
    """
    # The driver is first: without one nothing is loaded, which would stand in the way of a simulator.
    for library in sorted(LIBRARIES.values(), key=lambda library: library is not LIBRARIES["cuda"]):
        errors: list[str] = []
        for candidate in [library.soname, *map(str, _in_wheels(library.soname))]:
            try:
                ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
                break
            except OSError as error:
                errors.append(str(error))
        else:
            raise no_device(errors[-1], SIMULATE if library is LIBRARIES["cuda"] else INSTALL)
    count = ctypes.c_int(0)
    try:
        call("cudaGetDeviceCount", ctypes.byref(count))
    except OccamyError as error:
        raise no_device(str(error)) from None
    if not count.value:
        raise no_device("there is none")


def _in_wheels(soname: str) -> list[Path]:
    """Files of that name in the wheels `nvidia-*`."""
    spec = importlib.util.find_spec("nvidia")
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    return sorted(path for folder in folders for path in Path(folder).glob(f"**/lib/{soname}"))


@cache
def _entry(name: str) -> Any:
    """A function of a library that is loaded, the one that compiled models call: the first in the global scope."""
    function = FUNCTIONS[name]
    entry = getattr(ctypes.CDLL(None), name)
    entry.restype = C_TYPES[llvm_type(function.result)]
    entry.argtypes = [C_TYPES[p.llvm_type] for p in function.parameters]
    return entry


def status(name: str, *arguments: Any) -> int:
    """Calls a function of the table `lowering.cuda.api`, after `load_libraries`; what it returns."""
    return _entry(name)(*arguments)


def call(name: str, *arguments: Any) -> None:
    """Calls a function that returns a status; raises OccamyError where it is not success."""
    check(name, status(name, *arguments))


def check(name: str, code: int) -> None:
    """Raises OccamyError for a status of a function that is not success."""
    if code:
        raise OccamyError(f"{name}: {_text(FUNCTIONS[name].library, code)} (status {code})")


def _text(library: str, code: int) -> str:
    """What a status of the runtime or of cuDNN means, in the library's words."""
    name = {"cudart": "cudaGetErrorString", "cudnn": "cudnnGetErrorString"}[library]
    text = status(name, code)  # null from a stub outside of a simulation
    return ctypes.string_at(text).decode() if text else "unknown error"


def create(name: str, *arguments: Any) -> int:
    """The handle that a function stores through its first parameter; raises as `call`."""
    handle = ctypes.c_void_p()
    call(name, ctypes.byref(handle), *arguments)
    assert handle.value is not None
    return handle.value
