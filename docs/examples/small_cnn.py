"""Writes a small convolutional network as an ONNX file: `python small_cnn.py small_cnn.onnx`."""

import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def small_cnn() -> onnx.ModelProto:
    """Three convolutions with a residual connection, global pooling and a classifier of 10 classes."""
    random = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        values = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return numpy_helper.from_array(values.astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["image", "w1"], ["c1"], "stem", pads=[1] * 4, strides=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"], "stem_relu"),
        helper.make_node("Conv", ["r1", "w2"], ["c2"], "body", pads=[1] * 4),
        helper.make_node("Relu", ["c2"], ["r2"], "body_relu"),
        helper.make_node("Conv", ["r2", "w3"], ["c3"], "project"),
        helper.make_node("Add", ["c3", "r1"], ["s"], "residual"),
        helper.make_node("Relu", ["s"], ["r3"], "residual_relu"),
        helper.make_node("GlobalAveragePool", ["r3"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "w4"], ["logits"], "classifier", transB=1),
        helper.make_node("Softmax", ["logits"], ["scores"], "softmax"),
    ]
    graph = helper.make_graph(
        nodes,
        "small_cnn",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 10])],
        [
            weights("w1", 16, 3, 3, 3),
            weights("w2", 32, 16, 3, 3),
            weights("w3", 16, 32, 1, 1),
            weights("w4", 10, 16),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


if __name__ == "__main__":
    onnx.save(small_cnn(), sys.argv[1])
