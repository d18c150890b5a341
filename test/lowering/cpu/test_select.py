"""Whole models whose ops need each of the kernel templates, against ONNX Runtime."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from occamy_xdsl.compiler import Compilation, Model
from occamy_xdsl.pipelines import Options
from occamy_xdsl.runtime.jit import jit

OPSET = 19
LARGE = (1, 20, 9, 8)


def model(nodes, inputs, outputs, constants=()) -> onnx.ModelProto:
    """A model of nodes given as (op type, inputs, output, attributes)."""
    made = [helper.make_node(op, ins, [out], **attributes) for op, ins, out, attributes in nodes]
    graph = helper.make_graph(
        made,
        "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants],
    )
    return onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
    )


def check(proto: onnx.ModelProto, feeds: dict[str, np.ndarray], folder: Path) -> None:
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    wanted = session.run(None, feeds)
    got = jit(Compilation(Model(proto), Options()).compiled(folder)).run(feeds)
    for name, want in zip(names, wanted, strict=True):
        assert got[name].dtype == want.dtype
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5, err_msg=name)


def test_every_template(tmp_path):
    f32, i64 = TensorProto.FLOAT, TensorProto.INT64
    nodes = [
        ("Relu", ["x"], "r", {}),
        ("MaxPool", ["r"], "max_pool", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ("GlobalAveragePool", ["x"], "global_average", {}),
        ("GlobalMaxPool", ["x"], "global_max", {}),
        ("AveragePool", ["x"], "average", {"kernel_shape": [2, 3], "strides": [1, 2]}),
        ("ArgMax", ["x"], "arg_max", {"axis": 1, "keepdims": 0}),
        ("ReduceMean", ["x", "axes"], "mean", {"keepdims": 1}),
        ("Softmax", ["x"], "softmax", {"axis": 1}),
        ("LogSoftmax", ["x"], "log_softmax", {"axis": 3}),
        ("LayerNormalization", ["x", "scale", "bias"], "layer_norm", {"axis": -1}),
        ("InstanceNormalization", ["x", "channels", "channels"], "instance_norm", {}),
        ("LRN", ["x"], "lrn", {"size": 5}),
        ("Pad", ["x", "pads", "value"], "padded", {}),
        ("Pad", ["x", "pads"], "reflected", {"mode": "reflect"}),
        ("Gather", ["table", "ids"], "embedded", {"axis": 0}),
        ("Resize", ["x", "", "", "sizes"], "linear", {"mode": "linear"}),
        ("Resize", ["x", "", "", "sizes"], "cubic", {"mode": "cubic"}),
        ("Resize", ["x", "", "", "doubled"], "nearest",
         {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
        ("Transpose", ["x"], "transposed", {"perm": [3, 0, 2, 1]}),
        ("Slice", ["x", "starts", "ends", "slice_axes", "steps"], "reversed", {}),
        ("Concat", ["reversed", "x"], "joined", {"axis": 1}),
        ("Sigmoid", ["joined"], "sigmoid", {}),
    ]  # fmt: skip
    rng = np.random.default_rng(0)
    constants = {
        "axes": np.array([1, 2]),
        "scale": rng.random(8, np.float32),
        "bias": rng.random(8, np.float32),
        "channels": rng.random(20, np.float32),
        "pads": np.array([0, 0, 1, 2, 0, 0, 2, 1]),
        "value": np.float32(3),
        "table": rng.random((11, 6), np.float32),
        "sizes": np.array([1, 20, 13, 7]),
        "doubled": np.array([1, 20, 18, 24]),
        "starts": np.array([-1, 0]),
        "ends": np.array([-100, 8]),
        "slice_axes": np.array([2, 3]),
        "steps": np.array([-1, 1]),
    }
    inner = {"r", "reversed", "joined"}
    outputs = [(out, i64 if out == "arg_max" else f32) for _, _, out, _ in nodes if out not in inner]
    inputs = [("x", f32, LARGE), ("ids", i64, [2, 3])]
    feeds = {
        "x": rng.standard_normal(LARGE).astype(np.float32),
        "ids": np.array([[0, 10, -1], [-11, 3, 5]]),
    }
    check(model(nodes, inputs, outputs, constants.items()), feeds, tmp_path)
