"""Inferred shapes against those of `onnx.shape_inference`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import onnx
import onnx.inliner
import onnx.shape_inference
import pytest
from onnx import GraphProto, ModelProto
from onnx.backend.test.loader import load_model_tests
from xdsl.dialects.builtin import DYNAMIC_INDEX, ModuleOp, TensorType

from occamy_xdsl.dialects.onnx import OnnxOp
from occamy_xdsl.errors import UnsupportedModelError

LIGHT = sorted((Path(onnx.__file__).parent / "backend/test/data/light").glob("light_*.onnx"))
TRAINED = (
    *("basic_pitch", "blazeface_back", "blazeface_front", "magika_v3_3", "ppocrv4_det", "ppocrv4_rec"),
    *("silero_vad_sequence", "smart_turn_v3_int8"),
)
Infer = Callable[..., ModuleOp]


def known_shapes(graph: GraphProto) -> Iterator[tuple[tuple[str, int], tuple[int, ...]]]:
    """(node name, output index) and shape of every node output whose shape the onnx package knows."""
    producers = {
        name: (node.name or f"{node.op_type}_{i}", index)
        for i, node in enumerate(graph.node)
        for index, name in enumerate(node.output)
    }
    for value in [*graph.value_info, *graph.output]:
        if value.name in producers and value.type.tensor_type.HasField("shape"):
            dims = value.type.tensor_type.shape.dim
            if all(dim.HasField("dim_value") for dim in dims):
                yield producers[value.name], tuple(dim.dim_value for dim in dims)


def compare(model: ModelProto, module: ModuleOp) -> int:
    """The number of values compared."""
    mine = {
        (op.node_name, index): cast("TensorType[Any]", result.type).get_shape()
        for op in module.walk()
        if isinstance(op, OnnxOp)
        for index, result in enumerate(op.results)
        if isinstance(result.type, TensorType)
    }
    model = onnx.inliner.inline_local_functions(model)
    theirs = dict(known_shapes(onnx.shape_inference.infer_shapes(model, data_prop=True).graph))
    common = mine.keys() & theirs.keys()
    assert {name: mine[name] for name in common} == {name: theirs[name] for name in common}
    return len(common)


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_light_networks(inferred: Infer, path: Path) -> None:
    model = onnx.load(path)
    assert compare(model, inferred(path)) > len(model.graph.node) / 2


@pytest.mark.parametrize("name", TRAINED)
def test_trained_models(
    shared: Path, inferred: Infer, fixture_inputs: Callable[[str], dict[str, Any]], name: str
) -> None:
    path = shared / f"models/files/{name}.onnx"
    shapes = {key: array.shape for key, array in fixture_inputs(name).items() if array.ndim}
    model = onnx.load(path)
    del model.graph.value_info[:]
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            dim.dim_value = size
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    assert compare(model, inferred(path, shapes)) > 10


def test_onnx_node_tests(inferred: Infer) -> None:
    """Every twentieth model of ONNX's backend suite: its declared output shapes are those we infer."""
    checked = 0
    for case in load_model_tests(kind="node")[::20]:
        model = case.model
        assert model is not None
        if not all(v.type.HasField("tensor_type") for v in [*model.graph.input, *model.graph.output]):
            continue
        try:
            module = inferred(model)
        except UnsupportedModelError:
            continue
        declared = [
            tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim) for value in model.graph.output
        ]
        function = next(iter(module.ops))
        types: list[Any] = list(cast(Any, function).function_type.outputs)
        for shape, type in zip(declared, types, strict=True):
            if (
                isinstance(type, TensorType)
                and DYNAMIC_INDEX not in cast("TensorType[Any]", type).get_shape()
            ):
                assert cast("TensorType[Any]", type).get_shape() == shape, case.name
                checked += 1
    assert checked > 40
