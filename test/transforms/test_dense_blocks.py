"""Blocks in which each layer reads the results of all before it stay as large as their number of layers."""

import onnx
import pytest
from onnx import ModelProto, TensorProto, helper
from xdsl.dialects.func import FuncOp

from occamy_xdsl.compiler import Compilation, Model
from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.signature import function_named
from occamy_xdsl.pipelines import Options

LAYERS = 24


def dense_block(*, nested: bool) -> ModelProto:
    """Each layer concatenates the input and all results; or, `nested`, the last concatenation and the last result."""
    nodes, parts = list[onnx.NodeProto](), ["x"]
    shapes = list[onnx.TensorProto]()
    whole = "x"
    for k in range(LAYERS):
        shapes.append(helper.make_tensor(f"s{k}", TensorProto.INT64, [4], [3, 3 * (k + 1), 3, 3]))
        nodes.append(helper.make_node("ConstantOfShape", [f"s{k}"], [f"w{k}"]))
        nodes.append(helper.make_node("Conv", [whole, f"w{k}"], [f"c{k}"], pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [f"c{k}"], [f"r{k}"]))
        parts.append(f"r{k}")
        ins = [whole, f"r{k}"] if nested else parts
        whole = f"y{k}"
        nodes.append(helper.make_node("Concat", ins, [whole], axis=1))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 8, 8))]
    outputs = [helper.make_tensor_value_info(whole, TensorProto.FLOAT, (1, 3 * (LAYERS + 1), 8, 8))]
    graph = helper.make_graph(nodes, "block", inputs, outputs, shapes)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def planned(model: ModelProto, stage: str) -> FuncOp:
    compilation = Compilation(Model(model), Options(target="cpu:x86-64-v3"))
    compilation.run_to(stage)
    return function_named(compilation.module)


def test_long_concatenations_become_short():
    """Written out, the lists of inputs are as many as the square of the layers."""
    ops = [op for op in planned(dense_block(nested=False), "dnn").walk() if isinstance(op, dnn.KernelOp)]
    listed = sum(len(op.operands) for op in ops if isinstance(op, dnn.ConcatOp | dnn.ConvOp))
    assert listed <= 8 * LAYERS < LAYERS**2 / 2


@pytest.mark.parametrize("nested", [False, True])
def test_views_do_not_pile_up(nested: bool):
    """The views of a concatenation in a concatenation in ... show the memory of the last one directly."""
    views = [op for op in planned(dense_block(nested=nested), "mem").walk() if isinstance(op, dnn.ViewOp)]
    assert len(views) >= LAYERS
    assert not any(isinstance(op.source.owner, dnn.ViewOp) for op in views)
