"""The compiler as an `onnx.backend.base.Backend`, for ONNX's conformance suite and programs written to it."""

from collections.abc import Mapping, Sequence
from typing import Any, cast
from unittest import SkipTest

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

from occamy_xdsl.compiler import Compilation, CompiledExecutable, Model, compile_to_memory
from occamy_xdsl.errors import InvalidInputError, UnsupportedModelError, UsageError
from occamy_xdsl.pipelines import Options
from occamy_xdsl.runtime.executable import Array


class OccamyRep(BackendRep):
    """
    A model prepared to run.

    A model with symbolic dimensions is compiled when it is run, once for each combination of input shapes.
    """

    def __init__(self, model: ModelProto, options: Options):
        self._model = model
        self._options = options
        initialized = {tensor.name for tensor in model.graph.initializer}
        self._inputs = [i.name for i in model.graph.input if i.name not in initialized]
        self._executables: dict[tuple[tuple[int, ...], ...], CompiledExecutable] = {}
        self._static: CompiledExecutable | None = None
        sequences = [i.name for i in model.graph.input if not i.type.HasField("tensor_type")]
        if sequences:
            raise SkipTest(f"input '{sequences[0]}' is no tensor")
        if all(_is_static(i) for i in model.graph.input if i.name in self._inputs):
            self._static = self._compile({})

    def _compile(self, shapes: Mapping[str, Sequence[int]]) -> CompiledExecutable:
        try:
            return compile_to_memory(Compilation(Model(self._model, shapes), self._options))
        except UnsupportedModelError as error:
            # Not onnx's BackendIsNotSupposedToImplementIt: its runner counts that as a test passed.
            raise SkipTest(str(error)) from error

    def _executable(self, inputs: Sequence[Array]) -> CompiledExecutable:
        if self._static is not None:
            return self._static
        shapes = tuple(value.shape for value in inputs)
        if shapes not in self._executables:
            self._executables[shapes] = self._compile(dict(zip(self._inputs, shapes, strict=True)))
        return self._executables[shapes]

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """
        The outputs in graph order, also by name where the name is a Python identifier.

        `inputs` are arrays in graph order or by name. Raises InvalidInputError.
        """
        if isinstance(inputs, Mapping):
            named = cast(Mapping[str, Any], inputs)
            if missing := [name for name in self._inputs if name not in named]:
                raise InvalidInputError(f"input '{missing[0]}' is missing")
            inputs = [named[name] for name in self._inputs]
        values = [np.asarray(value) for value in cast(Sequence[Any], inputs)]
        if len(values) != len(self._inputs):
            raise InvalidInputError(f"expected {len(self._inputs)} inputs, got {len(values)}")
        outputs = self._executable(values).run(*values)
        return namedtupledict("Outputs", list(outputs))(*outputs.values())


def _is_static(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    return tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim)


class OccamyBackend(Backend):
    """Compiles for the CPU and runs in this process."""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether `device`, for example `CPU` or `CUDA:1`, can be compiled for."""
        try:
            return Device(device).type == DeviceType.CPU
        except (AttributeError, ValueError):
            return False

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether every node of the model is supported; symbolic dimensions are given the size 1 for this."""
        try:
            Compilation(Model(model, dims=_symbols(model)), _options(device, kwargs)).run_to("dnn")
        except (UnsupportedModelError, InvalidInputError, UsageError):
            return False
        return True

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> OccamyRep:
        """
        The model ready to run; `kwargs` are fields of `pipelines.Options`.

        Raises unittest.SkipTest for a model that is not supported, UsageError for a device
        that is not.
        """
        return OccamyRep(model, _options(device, kwargs))

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """The outputs of one node; `opset_version` is the newest by default."""
        opset = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        names = [name for name in node.input if name]
        values = [np.asarray(value) for value in inputs]
        graph = helper.make_graph(
            [node],
            "node",
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
                for name, v in zip(names, values, strict=True)
            ],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, opset)])
        return cls.prepare(model, device, **kwargs).run(values)


def _options(device: str, options: Mapping[str, Any]) -> Options:
    if not OccamyBackend.supports_device(device):
        raise UsageError(f"device '{device}': only CPU is available")
    return Options(**options)


def _symbols(model: ModelProto) -> dict[str, int]:
    return {
        dim.dim_param: 1
        for value in model.graph.input
        for dim in value.type.tensor_type.shape.dim
        if dim.dim_param
    }
