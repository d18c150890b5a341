"""Running models that are compiled into the memory of this process."""

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from occamy_xdsl.errors import OccamyError, UsageError
from occamy_xdsl.lowering.cpu import abi, emit
from occamy_xdsl.lowering.interface import WeightsPlace
from occamy_xdsl.lowering.signature import Signature
from occamy_xdsl.lowering.toolchain import Isa, JitModule
from occamy_xdsl.runtime.executable import Executable


class JitModel:
    """
    A model compiled into the memory of this process.

    The file of the weights is mapped and must not change while the model lives; `save` reads it again.
    Raises UsageError if the model was compiled for another kind of processor.
    """

    def __init__(self, model: emit.CompiledModel):
        host = Isa.host()
        if model.machine != host.machine or model.isa.vector_bytes > host.vector_bytes:
            raise UsageError(f"the model is compiled for {model.isa.cpu}, this processor is {host.cpu}")
        self._model = model
        self._weights = None if model.weights is None else np.memmap(model.weights, np.uint8, mode="r")
        parameters = 2 + len(model.signature.inputs) + len(model.signature.outputs)
        prototype = ctypes.CFUNCTYPE(
            ctypes.c_bool if model.allocates else None, *[ctypes.c_void_p] * parameters
        )
        self._entry = JitModule(model.object_code()).function(abi.ENTRY, prototype)

    @property
    def signature(self) -> Signature:
        """The signature of the model."""
        return self._model.signature

    def bind(self, pool: int) -> Callable[[Sequence[int], Sequence[int]], None]:
        """A function that runs the model in the pool at address `pool`; raises OccamyError."""
        weights = 0 if self._weights is None else self._weights.ctypes.data

        def call(inputs: Sequence[int], outputs: Sequence[int]) -> None:
            if self._entry(pool, weights, *inputs, *outputs) is False:
                raise OccamyError(abi.OUT_OF_MEMORY)

        return call

    def save(self, path: Path, weights: WeightsPlace) -> None:
        """Write an artefact of the kind that the suffix of `path` names; raises UsageError."""
        match path.suffix:
            case ".so":
                emit.write_library(self._model, path, weights)
            case ".o":
                emit.write_object(self._model, path, weights)
            case ".h":
                abi.write_header(self.signature, path)
            case "":
                emit.write_executable(self._model, path, weights)
            case suffix:
                raise UsageError(
                    f"{path}: unknown suffix '{suffix}', known are: .so .o .h and none (program)"
                )


def jit(model: emit.CompiledModel) -> Executable:
    """The executable of `JitModel`; raises as it does."""
    return Executable(JitModel(model))
