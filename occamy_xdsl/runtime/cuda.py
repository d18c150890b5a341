"""Running models compiled for a GPU: on the GPU of this machine, or without one under the simulator."""

from pathlib import Path
from typing import TYPE_CHECKING

from occamy_xdsl.errors import OccamyError
from occamy_xdsl.lowering.cpu.abi import write_header
from occamy_xdsl.lowering.cpu.emit import write_executable, write_library
from occamy_xdsl.lowering.cuda.emit import CompiledCudaModel
from occamy_xdsl.lowering.interface import WeightsPlace
from occamy_xdsl.runtime.executable import Array, Executable, LibraryModel
from occamy_xdsl.runtime.nvidia import load_libraries

if TYPE_CHECKING:
    from occamy_xdsl.simulator import Simulator


class CudaModel(LibraryModel):
    """A model compiled for the GPU of this machine, in a library in `folder`; raises NoDeviceError."""

    def __init__(self, model: CompiledCudaModel, folder: Path):
        load_libraries()
        self._compiled = model
        path = folder / "model.so"
        write_library(model, path, "file" if model.streams_weights else "embed")
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


def simulate(library: Path, inputs: dict[str, Array], simulator: "Simulator") -> dict[str, Array]:
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
