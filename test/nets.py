"""Small networks with the structures of the well-known ones, as ONNX models with seeded random weights."""

from collections.abc import Callable

import numpy as np
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper, shape_inference


class Net:
    """Builds a graph node by node; values are names."""

    def __init__(self, seed: int = 0):
        self.rng = np.random.default_rng(seed)
        self.nodes = []
        self.weights = []

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: object):
        names = [f"{kind.lower()}_{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=f"node_{len(self.nodes)}", **attributes))
        return names[0] if outputs == 1 else names

    def const(self, array: object, dtype: object = np.float32) -> str:
        name = f"w_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def random(self, *shape: int, scale: float = 0.3) -> str:
        return self.const(self.rng.standard_normal(shape) * scale)

    def conv(self, x: str, cin: int, cout: int, k: int = 3, *, group: int = 1, **attributes: object) -> str:
        attributes.setdefault("pads", [k // 2] * 4)
        w = self.random(cout, cin // group, k, k)
        return self.op("Conv", x, w, self.random(cout), group=group, kernel_shape=[k, k], **attributes)

    def bn(self, x: str, c: int) -> str:
        positive = self.const(self.rng.uniform(0.5, 1.5, c))
        return self.op("BatchNormalization", x, self.random(c), self.random(c), self.random(c), positive)

    def model(self, inputs: dict[str, tuple[int, ...]], outputs: list[str], opset: int = 17) -> ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
            [helper.make_empty_tensor_value_info(n) for n in outputs],
            self.weights,
        )
        for value in graph.output:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
        model = shape_inference.infer_shapes(model)
        checker.check_model(model)
        return model


def resnet() -> ModelProto:
    n = Net()
    x = n.op("Relu", n.bn(n.conv("x", 3, 8, 7, strides=[2, 2]), 8))
    x = n.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = n.bn(n.conv(n.op("Relu", n.bn(n.conv(x, 8, 8), 8)), 8, 8), 8)
    x = n.op("Relu", n.op("Add", y, x))
    y = n.bn(n.conv(n.op("Relu", n.bn(n.conv(x, 8, 16, strides=[2, 2]), 16)), 16, 16), 16)
    x = n.op("Relu", n.op("Add", y, n.bn(n.conv(x, 8, 16, 1, strides=[2, 2]), 16)))
    x = n.op("Flatten", n.op("GlobalAveragePool", x))
    return n.model({"x": (1, 3, 33, 33)}, [n.op("Gemm", x, n.random(10, 16), n.random(10), transB=1)])


def densenet() -> ModelProto:
    n = Net()
    x, c = n.conv("x", 3, 8), 8
    for _ in range(3):
        x, c = n.op("Concat", x, n.conv(n.op("Relu", n.bn(x, c)), c, 4), axis=1), c + 4
    x = n.op("AveragePool", n.conv(x, c, 8, 1), kernel_shape=[2, 2], strides=[2, 2])
    return n.model({"x": (2, 3, 8, 8)}, [x])


def preactivation() -> ModelProto:
    """Normalisation before the convolutions, which pad its result; concatenations of all layers so far."""
    n = Net()
    x, c = n.conv("x", 3, 8), 8
    a = n.op("Relu", n.bn(x, c))
    b = n.op("Relu", n.bn(x, c))
    x = n.op("Add", x, n.op("Add", n.conv(a, c, c), n.conv(a, c, c, 1)))
    layers = [n.op("Add", x, n.conv(b, c, c, group=c)), n.conv("x", 3, 5)]
    widths = [8, 5]
    for _ in range(5):
        joined = n.op("Relu", n.bn(n.op("Concat", *layers, axis=1), sum(widths)))
        layers.append(n.conv(joined, sum(widths), 4))
        widths.append(4)
    return n.model({"x": (1, 3, 7, 9)}, [n.conv(n.op("Concat", *layers, axis=1), sum(widths), 6, 1)])


def inception() -> ModelProto:
    n = Net()
    x = n.conv("x", 3, 8)
    branches = [
        n.op("Relu", n.conv(x, 8, 4, 1)),
        n.op("Relu", n.conv(n.op("Relu", n.conv(x, 8, 4, 1)), 4, 6)),
        n.conv(n.op("MaxPool", x, kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1]), 8, 5, 1),
    ]
    y = n.op("Concat", *branches, axis=1)
    y = n.op("LRN", y, size=5, alpha=0.1, beta=0.75, bias=1.0)
    return n.model(
        {"x": (1, 3, 9, 7)}, [n.op("Softmax", n.op("ReduceMean", y, axes=[2, 3], keepdims=0), axis=1)]
    )


def unet() -> ModelProto:
    n = Net()
    skip = n.op("Relu", n.bn(n.conv("x", 3, 8), 8))
    x = n.op("MaxPool", skip, kernel_shape=[2, 2], strides=[2, 2])
    x = n.op("Relu", n.conv(x, 8, 16))
    x = n.op("ConvTranspose", x, n.random(16, 8, 2, 2), n.random(8), kernel_shape=[2, 2], strides=[2, 2])
    x = n.op("Relu", n.conv(n.op("Concat", skip, x, axis=1), 16, 8))
    return n.model({"x": (1, 3, 16, 16)}, [n.op("Sigmoid", n.conv(x, 8, 2, 1))])


def mobilenet() -> ModelProto:
    n = Net()
    low, high = n.const(0.0), n.const(6.0)
    x = n.op("Clip", n.bn(n.conv("x", 3, 8, strides=[2, 2]), 8), low, high)
    y = n.op("Clip", n.bn(n.conv(x, 8, 24, 1), 24), low, high)
    y = n.op("Clip", n.bn(n.conv(y, 24, 24, group=24), 24), low, high)
    gate = n.op("HardSigmoid", n.conv(n.op("GlobalAveragePool", y), 24, 24, 1))
    y = n.op("Mul", y, gate)
    x = n.op("Add", x, n.bn(n.conv(y, 24, 8, 1), 8))
    y = n.op(
        "Resize",
        x,
        "",
        n.const([1, 1, 2, 2]),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    return n.model({"x": (1, 3, 16, 12)}, [y])


def yolo() -> ModelProto:
    n = Net()

    def silu(y: str) -> str:
        return n.op("Mul", y, n.op("Sigmoid", y))

    x = silu(n.conv("x", 3, 40, strides=[2, 2]))
    x = n.op("Add", x, silu(n.bn(n.conv(silu(n.conv(x, 40, 24, 1)), 24, 40), 40)))
    pools = [x, n.op("MaxPool", x, kernel_shape=[5, 5], strides=[1, 1], pads=[2, 2, 2, 2])]
    x = n.conv(n.op("Concat", *pools, axis=1), 80, 12, 1)
    x = n.op("Reshape", x, n.const([1, 2, 6, 10, 9], np.int64))
    x = n.op("Sigmoid", n.op("Transpose", x, perm=[0, 1, 3, 4, 2]))
    xy, wh = n.op("Split", x, n.const([2, 4], np.int64), outputs=2, axis=4)
    wh = n.op("Mul", n.op("Pow", n.op("Mul", wh, n.const(2.0)), n.const(2.0)), n.random(1, 2, 1, 1, 4))
    y = n.op("Reshape", n.op("Concat", xy, wh, axis=4), n.const([1, -1, 6], np.int64))
    return n.model({"x": (1, 3, 20, 18)}, [y])


def ssd() -> ModelProto:
    """Boxes and class scores from feature maps of three sizes, joined over all positions."""
    n = Net()
    maps, x, c = [], n.op("Relu", n.bn(n.conv("x", 3, 8, strides=[2, 2]), 8)), 8
    for width in (12, 16, 16):
        x, c = n.op("Relu", n.bn(n.conv(x, c, width, strides=[2, 2]), width)), width
        maps.append((x, c))
    heads: dict[int, list[str]] = {4: [], 5: []}
    for x, c in maps:
        for values, found in heads.items():
            y = n.op("Transpose", n.conv(x, c, 3 * values), perm=[0, 2, 3, 1])
            found.append(n.op("Reshape", y, n.const([1, -1, values], np.int64)))
    boxes, scores = (n.op("Concat", *found, axis=1) for found in heads.values())
    return n.model({"x": (1, 3, 40, 36)}, [boxes, n.op("Softmax", scores, axis=2)])


def shufflenet() -> ModelProto:
    n = Net()
    x = n.op("Relu", n.conv("x", 3, 12))
    y = n.op("Relu", n.conv(x, 12, 12, 1, group=3))
    y = n.op("Reshape", y, n.const([1, 3, 4, 8, 8], np.int64))
    y = n.op("Reshape", n.op("Transpose", y, perm=[0, 2, 1, 3, 4]), n.const([1, 12, 8, 8], np.int64))
    y = n.conv(y, 12, 12, group=12, strides=[2, 2])
    pooled = n.op("AveragePool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    return n.model({"x": (1, 3, 8, 8)}, [n.op("Relu", n.op("Concat", y, pooled, axis=1))])


def attention() -> ModelProto:
    n = Net()
    heads = []
    for _ in range(3):
        t = n.op("Add", n.op("MatMul", "x", n.random(16, 16)), n.random(16))
        heads.append(n.op("Reshape", t, n.const([1, 6, 2, 8], np.int64)))
    q, v = (n.op("Transpose", t, perm=[0, 2, 1, 3]) for t in (heads[0], heads[2]))
    k = n.op("Transpose", heads[1], perm=[0, 2, 3, 1])
    s = n.op("Softmax", n.op("Mul", n.op("MatMul", q, k), n.const(0.35)), axis=-1)
    y = n.op(
        "Reshape", n.op("Transpose", n.op("MatMul", s, v), perm=[0, 2, 1, 3]), n.const([1, 6, 16], np.int64)
    )
    y = n.op("LayerNormalization", n.op("Add", y, "x"), n.random(16), n.random(16))
    h = n.op("MatMul", y, n.random(16, 32))
    gelu = n.op("Mul", h, n.op("Add", n.op("Erf", n.op("Div", h, n.const(2**0.5))), n.const(1.0)))
    return n.model({"x": (1, 6, 16)}, [n.op("MatMul", gelu, n.random(32, 16))])


def sequences() -> ModelProto:
    """Two sequences through masked attention, and what reduces, joins, pads and cuts tokens or their elements."""
    n = Net()
    x = n.op("LayerNormalization", n.op("Add", "x", n.random(1, 12, 16)), n.random(16), n.random(16))
    qkv = n.op("Add", n.op("MatMul", x, n.random(16, 48)), n.random(48))
    parts = n.op("Split", qkv, n.const([16, 16, 16], np.int64), outputs=3, axis=2)
    q, k, v = (
        n.op("Transpose", n.op("Reshape", part, n.const([2, 12, 4, 4], np.int64)), perm=perm)
        for part, perm in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
    )
    mask = n.const(np.triu(np.full((12, 12), -1e4), 1))
    s = n.op("Softmax", n.op("Add", n.op("MatMul", q, k), mask), axis=-1)
    y = n.op("Transpose", n.op("MatMul", s, v), perm=[0, 2, 1, 3])
    y = n.op("MatMul", n.op("Reshape", y, n.const([2, 12, 16], np.int64)), n.random(16, 16))
    x = n.op("Add", x, y)
    scale = n.op("ReduceMax", n.op("Abs", x), axes=[2], keepdims=1)
    wide = n.op("Relu", n.op("MatMul", n.op("Div", x, scale), n.random(16, 96)))
    wide = n.op("Concat", wide, n.op("Pad", x, n.const([0, 0, 2, 0, 0, 1], np.int64)), axis=2)
    x = n.op("Softmax", n.op("MatMul", wide, n.random(115, 16)), axis=-1)
    first, last, step = (n.const([i], np.int64) for i in (1, 11, 3))
    some = n.op("Slice", x, first, last, n.const([1], np.int64), step)
    table = n.op("Gather", n.random(16, 40), n.op("ArgMax", x, axis=2, keepdims=0), axis=0)
    table = n.op("MatMul", n.op("Tanh", table), n.random(40, 3))
    return n.model({"x": (2, 12, 16)}, [n.op("Reshape", some, n.const([8, 16], np.int64)), table])


def kept() -> ModelProto:
    """A value that is used first and last, while those in between take more memory: it may be computed again."""
    n = Net()
    h = n.op("Exp", "x")
    wide = n.op("Mul", n.op("ReduceMax", h, axes=[1], keepdims=1), n.random(2, 1, 32))
    wide = n.op("Softmax", n.op("Reshape", wide, n.const([1, 2048], np.int64)), axis=1)
    narrow = n.op(
        "ReduceSum", n.op("Reshape", wide, n.const([2, 32, 32], np.int64)), n.const([0], np.int64), keepdims=0
    )
    total = n.op("ReduceSum", n.op("Mul", h, narrow), n.const([1], np.int64), keepdims=0)
    return n.model({"x": (32, 32)}, [n.op("Softmax", total, axis=0)])


def aliases() -> ModelProto:
    """Values that are read in several ways, and outputs that are inputs, slices or each other."""
    n = Net()
    square = n.op("Mul", "x", "x")
    joined = n.op("Concat", square, "x", axis=0)
    total = n.op("Add", n.op("Add", square, square), n.op("Transpose", square, perm=[1, 0]))
    part = n.op(
        "Slice",
        joined,
        n.const([1], np.int64),
        n.const([7], np.int64),
        n.const([0], np.int64),
        n.const([2], np.int64),
    )
    left, right = n.op("Split", total, outputs=2, axis=1)
    back = n.op(
        "Slice",
        total,
        n.const([3], np.int64),
        n.const([-9], np.int64),
        n.const([0], np.int64),
        n.const([-1], np.int64),
    )
    same = n.op("Identity", "x")
    return n.model({"x": (4, 4)}, [joined, part, n.op("Sub", left, right), back, same])


def overwritten() -> ModelProto:
    """A part of a concatenation that is read after the result that takes the concatenation's place."""
    n = Net()
    part = n.op("LogSoftmax", "x", axis=1)
    result = n.op("Relu", n.op("Concat", "x", part, axis=0))
    return n.model({"x": (4, 4)}, [n.op("Unsqueeze", part, n.const([2], np.int64)), result])


def shared_weights() -> ModelProto:
    """Weights that layers see whole, transposed and in parts, each part too large to be folded."""
    n = Net()
    w = n.random(16, 160, scale=0.1)
    y = n.op("MatMul", n.op("MatMul", "x", w), n.op("Transpose", w, perm=[1, 0]))
    filters, start, middle, end = n.random(600, 1, 3, 3), *(n.const([i], np.int64) for i in (0, 280, 600))
    x = n.op("Reshape", y, n.const([1, 1, 6, 16], np.int64))
    parts = [
        n.op("Slice", filters, a, b, n.const([0], np.int64)) for a, b in ((start, middle), (middle, end))
    ]
    convs = [n.op("Conv", x, part, kernel_shape=[3, 3]) for part in (*parts, filters)]
    return n.model({"x": (1, 6, 16)}, [y, *convs])


def superresolution() -> ModelProto:
    """An image that is made coarse, and fine again by shuffles into space of both kinds; its features are returned."""
    n = Net()
    h = n.conv(n.op("SpaceToDepth", "x", blocksize=2), 12, 16)
    features = n.op("Add", h, n.conv(h, 16, 16))
    h = n.op("DepthToSpace", n.conv(features, 16, 64), blocksize=2, mode="CRD")
    h = n.op("PRelu", h, n.random(16, 1, 1))
    h = n.op("LeakyRelu", n.op("DepthToSpace", n.conv(h, 16, 32), blocksize=2, mode="DCR"), alpha=0.1)
    small = n.op("Mul", n.conv(h, 8, 3), n.const(0.001))
    return n.model({"x": (1, 3, 12, 20)}, [n.op("Tanh", small), features])


NETS: dict[str, Callable[[], ModelProto]] = {
    f.__name__: f
    for f in (
        resnet,
        densenet,
        preactivation,
        inception,
        unet,
        mobilenet,
        yolo,
        ssd,
        shufflenet,
        attention,
        sequences,
        kept,
        aliases,
        overwritten,
        shared_weights,
        superresolution,
    )
}
