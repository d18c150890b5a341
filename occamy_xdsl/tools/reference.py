"""Other implementations of a model, to compare results and times with."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from occamy_xdsl.errors import UsageError

if TYPE_CHECKING:
    from onnx import ModelProto

    from occamy_xdsl.compiler import Compilation, Model
    from occamy_xdsl.runtime.executable import Array

Run = Callable[[Mapping[str, "Array"]], dict[str, "Array"]]
"""Outputs by name from inputs by name."""


def reference(name: str, compilation: "Compilation") -> Run:
    """
    The implementation called `name`, `onnxruntime` or `reference`, of the model of a compilation.

    Raises UsageError where it is not installed or refuses the model.
    """
    if name == "onnxruntime":
        return onnxruntime(compilation.model, exact=True)
    return interpreter(compilation)


def interpreter(compilation: "Compilation") -> Run:
    """The model's program before fusion, in numpy."""
    from occamy_xdsl.compiler import Compilation
    from occamy_xdsl.interpreters.value import run_named

    unfused = Compilation(compilation.model, replace(compilation.options, fuse=False))
    unfused.run_to("dnn")
    return lambda inputs: cast("dict[str, Array]", run_named(unfused.module, inputs))


def onnxruntime(model: "Model", threads: int = 1, *, exact: bool = False) -> Run:
    """
    ONNX Runtime on `threads` threads of the CPU; raises UsageError.

    With `exact` it keeps activations in f32 that it would round to 8 bits for products by quantised weights, which
    the model does not ask for: that is faster, and off by a hundredth.
    """
    try:
        import onnxruntime  # pyright: ignore[reportMissingTypeStubs]
    except ImportError:
        raise UsageError("onnxruntime is not installed: pip install onnxruntime") from None
    ort = cast(Any, onnxruntime)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors; they come as exceptions anyway
    if exact:
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    source = model.source
    try:
        if not isinstance(source, bytes):
            source = str(source) if isinstance(source, str | Path) else source.SerializeToString()
        session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common base
        raise UsageError(f"onnxruntime refuses the model: {_first_line(error)}") from None
    inputs = [i.name for i in session.get_inputs()]
    outputs = [o.name for o in session.get_outputs()]

    def run(values: Mapping[str, "Array"]) -> dict[str, "Array"]:
        try:
            results = session.run(outputs, {name: values[name] for name in inputs if name in values})
        except Exception as error:
            raise UsageError(f"onnxruntime does not run the model: {_first_line(error)}") from None
        return dict(zip(outputs, results, strict=True))

    return run


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def with_all_values(model: "Model") -> tuple["ModelProto", list[tuple[str, str, list[str]]]]:
    """
    The model with the results of all nodes as outputs, and (name, operator, results) of each node in order.

    Results inside of subgraphs are not made outputs. Raises InvalidInputError for a file that cannot be read.
    """
    import onnx

    source = model.source
    if isinstance(source, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(source)
    elif isinstance(source, bytes):
        proto = onnx.load_from_string(source)
    else:
        proto = onnx.load(str(source))  # pyright: ignore[reportUnknownMemberType]  # a generic path
    known = {output.name for output in proto.graph.output}
    nodes = list[tuple[str, str, list[str]]]()
    for index, node in enumerate(proto.graph.node):
        results = [name for name in node.output if name]
        nodes.append((node.name or f"{node.op_type}_{index}", node.op_type, results))
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in results if name not in known)
    return proto, nodes
