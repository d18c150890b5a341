"""Running models compiled for a GPU: on the GPU of this machine, or without one under the simulator."""

import ctypes
import importlib.util
from pathlib import Path

from occamy_xdsl.errors import NoDeviceError, OccamyError
from occamy_xdsl.lowering.cpu.emit import WeightsPlace, write_executable, write_header, write_library
from occamy_xdsl.lowering.cuda.api import LIBRARIES
from occamy_xdsl.lowering.cuda.emit import CompiledCudaModel
from occamy_xdsl.runtime.executable import Array, Executable, LibraryModel
from occamy_xdsl.simulator import Simulator


def load_libraries() -> None:
    """
    Loads NVIDIA's libraries, from where the loader finds them or from their wheels.

    Raises NoDeviceError, one line, if one is missing or there is no device.
    """
    for library in LIBRARIES.values():
        candidates = [library.soname, *map(str, _in_wheels(library.soname))]
        errors: list[str] = []
        for candidate in candidates:
            try:
                ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
                break
            except OSError as error:
                errors.append(str(error))
        else:
            raise NoDeviceError(f"no GPU can be used here: {errors[0]}; `occamy run --simulate` needs none")
    count = ctypes.c_int(0)
    status = ctypes.CDLL(LIBRARIES["cudart"].soname).cudaGetDeviceCount(ctypes.byref(count))
    if status or not count.value:
        raise NoDeviceError("no GPU can be used here: there is none; `occamy run --simulate` needs none")


def _in_wheels(soname: str) -> list[Path]:
    """Files of that name in the wheels `nvidia-*`."""
    spec = importlib.util.find_spec("nvidia")
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    return sorted(path for folder in folders for path in Path(folder).glob(f"**/lib/{soname}"))


class CudaModel(LibraryModel):
    """A model compiled for the GPU of this machine, in a library in `folder`; raises NoDeviceError."""

    def __init__(self, model: CompiledCudaModel, folder: Path):
        load_libraries()
        self._compiled = model
        path = folder / "model.so"
        write_library(model, path)
        super().__init__(path)

    def save(self, path: Path, weights: WeightsPlace) -> None:
        """Write a library, header or program, as the suffix of `path` says; raises UsageError."""
        match path.suffix:
            case ".h":
                write_header(self.signature, path)
            case "":
                write_executable(self._compiled, path, weights)
            case _:
                write_library(self._compiled, path, weights)


def simulate(library: Path, inputs: dict[str, Array], simulator: Simulator) -> dict[str, Array]:
    """
    Loads a compiled library, runs it once and releases it, all under `simulator`; the outputs by name.

    Raises SimulationError if it broke a rule of CUDA, OccamyError with its message if a call failed.
    """
    with simulator:
        try:
            executable = Executable(LibraryModel(library))
            outputs = executable.run(inputs)
        except OccamyError as error:
            facts = [str(violation) for violation in simulator.violations] or simulator.report().refusals
            raise OccamyError("\n".join([str(error), *facts])) from None
        # The model is destroyed with it, which belongs to the simulation.
        del executable
    return outputs
