"""Loading NVIDIA's libraries into this process."""

import ctypes
import importlib.util
from pathlib import Path

from occamy_xdsl.errors import NoDeviceError
from occamy_xdsl.lowering.cuda.api import LIBRARIES

_HINT = "`occamy run M.onnx --target cuda --simulate` needs none"


def load_libraries() -> None:
    """
    Loads NVIDIA's libraries, from where the loader finds them or from their wheels.

    Raises NoDeviceError, one line, if one is missing or there is no device.
    """
    for library in LIBRARIES.values():
        errors: list[str] = []
        for candidate in [library.soname, *map(str, _in_wheels(library.soname))]:
            try:
                ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
                break
            except OSError as error:
                errors.append(str(error))
        else:
            raise NoDeviceError(f"no GPU can be used here: {errors[-1]}; {_HINT}")
    count = ctypes.c_int(0)
    runtime = ctypes.CDLL(LIBRARIES["cudart"].soname)
    if runtime.cudaGetDeviceCount(ctypes.byref(count)) or not count.value:
        raise NoDeviceError(f"no GPU can be used here: there is none; {_HINT}")


def _in_wheels(soname: str) -> list[Path]:
    """Files of that name in the wheels `nvidia-*`."""
    spec = importlib.util.find_spec("nvidia")
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    return sorted(path for folder in folders for path in Path(folder).glob(f"**/lib/{soname}"))
