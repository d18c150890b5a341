"""Planned memory of well-known networks at full size, against what their shapes ask for at least."""

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper, shape_inference

from occamy_xdsl.compiler import Model

TARGET = "cpu:x86-64-v3"
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


def planned_bytes(source: Path | ModelProto) -> int:
    return Model(source).memory_report(TARGET).pool_bytes


def test_densenet121():
    # The last concatenation of the first block, 56 x 56 x 256 floats, and the half as wide transition layer;
    # beside them only the few elements on which the prologue of that layer works.
    needed = 56 * 56 * (256 + 128) * 4
    assert needed <= planned_bytes(LIGHT / "light_densenet121.onnx") <= needed + 2048


def test_shufflenet():
    # The first grouped convolution, 56 x 56 x 112, the depthwise one after it, 28 x 28 x 112, and the pooled
    # shortcut, 28 x 28 x 24; the shuffle between the two takes place behind the second one.
    needed = (56 * 56 * 112 + 28 * 28 * (112 + 24)) * 4
    assert needed <= planned_bytes(LIGHT / "light_shufflenet.onnx") <= 1.05 * needed


def unet(size: int) -> ModelProto:
    """U-Net (arXiv 1505.04597) with padded convolutions; its weights are all 0."""
    nodes = list[onnx.NodeProto]()
    shapes = dict[str, tuple[int, ...]]()

    def op(kind: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"v{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def weight(*shape: int) -> str:
        shapes[f"s{len(shapes)}"] = shape
        return op("ConstantOfShape", f"s{len(shapes) - 1}")

    def double(x: str, cin: int, cout: int) -> str:
        for c in (cin, cout):
            x = op("Relu", op("Conv", x, weight(cout, c, 3, 3), pads=[1, 1, 1, 1]))
        return x

    x, cin, skips = "x", 3, list[str]()
    for cout in (64, 128, 256, 512):
        skips.append(double(x, cin, cout))
        x, cin = op("MaxPool", skips[-1], kernel_shape=[2, 2], strides=[2, 2]), cout
    x = double(x, 512, 1024)
    for cout in (512, 256, 128, 64):
        x = op("ConvTranspose", x, weight(2 * cout, cout, 2, 2), strides=[2, 2])
        x = double(op("Concat", skips.pop(), x, axis=1), 2 * cout, cout)
    x = op("Conv", x, weight(2, 64, 1, 1))
    graph = helper.make_graph(
        nodes,
        "unet",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, size, size))],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, (1, 2, size, size))],
        [numpy_helper.from_array(np.array(shape, np.int64), name) for name, shape in shapes.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    return shape_inference.infer_shapes(model)


def test_unet():
    # The first convolution of the last level reads the skipped and the upsampled tensor, each 256 x 256 x 64,
    # and writes a third one.
    assert planned_bytes(unet(256)) == 3 * 256 * 256 * 64 * 4
