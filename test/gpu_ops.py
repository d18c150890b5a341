"""One network for each way in which an op runs on a GPU: every template of a kernel, every library function."""

from collections.abc import Callable

import numpy as np
from nets import Net
from onnx import ModelProto, TensorProto, helper

IMAGE = 1, 64, 56, 56
"""Shape of an activation in the middle of ResNet-50."""


def _one(build: Callable[[Net], str], shape: tuple[int, ...] = IMAGE) -> Callable[[], ModelProto]:
    def model() -> ModelProto:
        n = Net()
        return n.model({"x": shape}, [build(n)])

    return model


def _residual(n: Net) -> str:
    y = n.op("MaxPool", "x", kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    return n.op("Relu", n.op("Add", n.conv("x", 64, 64), y))


def _arg_max() -> ModelProto:
    node = helper.make_node("ArgMax", ["x"], ["y"], "node_0", axis=1)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, IMAGE)
    y = helper.make_tensor_value_info("y", TensorProto.INT64, (1, 1, 56, 56))
    opset = [helper.make_opsetid("", 17)]
    return helper.make_model(helper.make_graph([node], "net", [x], [y]), opset_imports=opset, ir_version=8)


def _quantised(n: Net, columns: int) -> str:
    """A product by int8 weights with a scale a column; they repeat one table, so that they can be carried."""
    table = np.random.default_rng(0).integers(-128, 128, 4093)
    weights = n.const(np.resize(table, (768, columns)), np.int8)
    scales = n.const(np.linspace(1e-3, 2e-3, columns), np.float32)
    return n.op("MatMul", "x", n.op("DequantizeLinear", weights, scales, axis=1))


CASES: dict[str, Callable[[], ModelProto]] = {
    "convolution": _one(lambda n: n.conv("x", 64, 64)),
    "convolution_relu": _one(lambda n: n.op("Relu", n.conv("x", 64, 64))),
    "convolution_residual_relu": _one(_residual),
    "convolution_1x1": _one(lambda n: n.conv("x", 64, 256, 1)),
    "convolution_7x7": _one(lambda n: n.conv("x", 3, 64, 7, strides=[2, 2]), (1, 3, 224, 224)),
    "convolution_depthwise": _one(lambda n: n.conv("x", 64, 64, group=64)),
    "convolution_dilated": _one(lambda n: n.conv("x", 64, 64, dilations=[2, 2], pads=[2] * 4)),
    "convolution_unequal_pads": _one(lambda n: n.conv("x", 64, 64, strides=[2, 2], pads=[0, 0, 1, 1])),
    "transposed_convolution": _one(
        lambda n: n.op("ConvTranspose", "x", n.random(64, 32, 2, 2), n.random(32), strides=[2, 2])
    ),
    "max_pool": _one(
        lambda n: n.op("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    ),
    "average_pool": _one(lambda n: n.op("AveragePool", "x", kernel_shape=[2, 2], strides=[2, 2])),
    "max_pool_dilated": _one(lambda n: n.op("MaxPool", "x", kernel_shape=[3, 3], dilations=[2, 2])),
    "global_average_pool": _one(lambda n: n.op("GlobalAveragePool", "x")),
    "softmax": _one(lambda n: n.op("Softmax", "x", axis=-1), (12, 128, 128)),
    "softmax_of_columns": _one(
        lambda n: n.op("Softmax", n.op("Transpose", "x", perm=[0, 2, 1]), axis=-1), (12, 128, 128)
    ),
    "matrix_product": _one(lambda n: n.op("MatMul", "x", n.random(768, 3072, scale=0.03)), (128, 768)),
    "matrix_products": _one(
        lambda n: n.op("MatMul", "x", n.op("Transpose", "x", perm=[0, 2, 1])), (12, 128, 64)
    ),
    "gemm": _one(lambda n: n.op("Gemm", "x", n.random(1000, 2048, scale=0.03), n.random(1000), transB=1), (1, 2048)),
    "product_by_quantised_weights": _one(lambda n: _quantised(n, 3072), (1, 768)),
    "few_products_by_quantised_weights": _one(lambda n: _quantised(n, 768), (8, 768)),
    "products_by_quantised_weights": _one(lambda n: _quantised(n, 768), (128, 768)),
    "elementwise": _one(lambda n: n.op("Mul", n.op("Sigmoid", "x"), "x")),
    "elementwise_broadcast": _one(lambda n: n.op("Add", "x", n.random(64, 1, 1))),
    "transpose": _one(lambda n: n.op("Transpose", "x", perm=[0, 2, 3, 1])),
    "slice": _one(
        lambda n: n.op("Slice", "x", *(n.const(v, np.int64) for v in ([1], [55], [3], [2])))
    ),
    "concat": _one(lambda n: n.op("Concat", "x", n.op("Relu", "x"), axis=1)),
    "reduce_rows": _one(lambda n: n.op("ReduceMean", "x", axes=[3], keepdims=1)),
    "reduce_scattered": _one(lambda n: n.op("ReduceL2", "x", axes=[1, 3], keepdims=0)),
    "layer_normalization": _one(
        lambda n: n.op("LayerNormalization", "x", n.random(768), n.random(768), axis=-1), (1, 128, 768)
    ),
    "local_response_normalization": _one(
        lambda n: n.op("LRN", "x", size=5, alpha=1e-4, beta=0.75, bias=1.0)
    ),
    "pad": _one(
        lambda n: n.op("Pad", "x", n.const([0, 0, 1, 1, 0, 0, 2, 2], np.int64), mode="reflect")
    ),
    "gather": _one(
        lambda n: n.op("Gather", "x", n.const([5, 0, 63, 5], np.int64), axis=1)
    ),
    "resize": _one(
        lambda n: n.op("Resize", "x", "", n.const([1, 1, 2, 2]), mode="linear"), (1, 64, 28, 28)
    ),
    "arg_max": _arg_max,
}  # fmt: skip
