"""Weights that the model stores as integers stay integers in memory, and results are those of ONNX Runtime."""

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from occamy_xdsl.compiler import compile

RNG = np.random.default_rng(5)


def model(layer: str, dtype: type, zero: int | None, axis: int | None, transposed: bool) -> ModelProto:
    """x -> MatMul, Gemm or Conv with dequantised weights -> Relu; 96 output channels."""
    shape = {"MatMul": (128, 96), "Gemm": (96, 128) if transposed else (128, 96), "Conv": (96, 16, 3, 3)}[
        layer
    ]
    limits = np.iinfo(dtype)
    weights = [("q", RNG.integers(limits.min, limits.max + 1, shape).astype(dtype))]
    size = 1 if axis is None else shape[axis]
    scale = RNG.uniform(0.001, 0.01, size).astype(np.float32)
    weights.append(("s", scale if axis is not None else scale.reshape(())))
    names = ["q", "s"]
    if zero is not None:
        weights.append(("z", np.full(size if axis is not None else (), zero, dtype)))
        names.append("z")
    attributes = {} if axis is None else {"axis": axis}
    nodes = [helper.make_node("DequantizeLinear", names, ["w"], **attributes)]
    if layer != "MatMul":
        weights.append(("b", RNG.standard_normal(96).astype(np.float32)))
    if layer == "MatMul":
        nodes.append(helper.make_node("MatMul", ["x", "w"], ["y"]))
    elif layer == "Gemm":
        nodes.append(helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=int(transposed)))
    else:
        nodes.append(helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1, 1, 1]))
    nodes.append(helper.make_node("Relu", ["y"], ["out"]))
    x = (2, 16, 9, 7) if layer == "Conv" else (3, 128)
    y = (2, 96, 9, 7) if layer == "Conv" else (3, 96)
    graph = helper.make_graph(
        nodes,
        "quantised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(a, n) for n, a in weights],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.parametrize(
    ("layer", "dtype", "zero", "axis", "transposed", "bytes_each"),
    [
        ("MatMul", np.int8, None, None, False, 1),
        ("MatMul", np.int8, 0, 1, False, 1),
        ("MatMul", np.uint8, 128, None, False, 1),
        ("MatMul", np.int8, 3, 1, False, 2),
        ("MatMul", np.int8, 0, 0, False, None),  # the scale changes along the sum: no rewrite
        ("Gemm", np.int8, 0, 0, True, 1),
        ("Gemm", np.uint8, 7, None, True, 2),
        ("Conv", np.int8, 0, 0, False, 1),
        ("Conv", np.uint8, 128, 0, False, 1),
        ("Conv", np.int8, -5, None, False, 2),
    ],
)
def test_integers_stay_integers(
    layer: str, dtype: type, zero: int | None, axis: int | None, transposed: bool, bytes_each: int | None
):
    net = model(layer, dtype, zero, axis, transposed)
    exact = onnxruntime.SessionOptions()  # optimised, it would round the activations to 8 bits as well
    exact.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(net.SerializeToString(), exact, providers=["CPUExecutionProvider"])
    x = RNG.standard_normal(session.get_inputs()[0].shape).astype(np.float32)
    (want,) = session.run(None, {"x": x})

    executable = compile(net)
    (got,) = executable.run({"x": x}, poison=True).values()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())
    if bytes_each is not None:
        elements = 96 * (144 if layer == "Conv" else 128)
        assert executable.pool_bytes == 0 or layer == "Conv"
        assert executable.signature.weights_bytes <= bytes_each * elements + 2048
