"""Ops on a GPU against ONNX Runtime, under the simulator: many nodes in one model each."""

from dataclasses import replace

import numpy as np
from nets import Net
from onnx import ModelProto, TensorProto
from onnx.reference import ReferenceEvaluator
from xdsl.dialects.builtin import IntegerAttr
from xdsl.utils.hints import isa

from occamy_xdsl.compiler import Compilation
from occamy_xdsl.dialects import dnn
from occamy_xdsl.lowering.cuda.select import LIBRARY_BYTES, select
from occamy_xdsl.simulator import Simulator

CHIP = "sm_75"


def check(build, model: ModelProto, tolerance: float = 1e-5, **options: object) -> None:
    compiled = build(model, **options)
    with Simulator(architecture=CHIP) as simulator:
        outputs = compiled.run(simulator)
    compiled.check(outputs, tolerance)
    assert simulator.report().refusals == ()


def test_magnitudes_and_remainders_of_every_type(build) -> None:
    """As many at a time as a vector holds, and one by one."""
    n = Net()
    outs = []
    for shape in ((4, 64), (3, 5)):
        name = f"x{shape[0]}"
        scaled = n.op("Mul", name, n.const(20.0))
        integers = (TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64)
        magnitudes = [n.op("Abs", n.op("Cast", scaled, to=type_)) for type_ in integers]
        outs += [n.op("Cast", y, to=TensorProto.FLOAT) for y in magnitudes]
        for type_ in (TensorProto.FLOAT, TensorProto.DOUBLE):
            y = n.op("Cast", scaled, to=type_)
            by = n.op("Cast", n.const(np.full(1, 3.25)), to=type_)
            outs.append(n.op("Cast", n.op("Mod", y, by, fmod=1), to=TensorProto.FLOAT))
    check(build, n.model({"x4": (4, 64), "x3": (3, 5)}, outs))


def test_powers_of_integers(build) -> None:
    """They go through f64, for which libdevice has functions that kernels call."""
    n = Net()
    base = n.op("Cast", n.op("Mul", "x", n.const(3.0)), to=TensorProto.INT32)
    exponent = n.op("Cast", n.op("Abs", n.op("Mul", "x", n.const(2.0))), to=TensorProto.INT64)
    x, magnitude = (n.op("Cast", y, to=TensorProto.DOUBLE) for y in ("x", n.op("Abs", "x")))
    powers = [n.op("Pow", base, exponent), n.op("Pow", magnitude, x)]
    check(build, n.model({"x": (4, 33)}, [n.op("Cast", y, to=TensorProto.FLOAT) for y in powers]))


def test_convolutions(build) -> None:
    """Pads of all kinds, strides, dilations, groups; with what cuDNN fuses, and with what it does not."""
    n, x = Net(), "x"
    outs = [
        n.conv(x, 6, 4, 3, pads=[1, 0, 2, 1]),
        n.conv(x, 6, 4, 3, pads=[0, 0, 1, 1], strides=[2, 2]),
        n.conv(x, 6, 6, 3, group=6, dilations=[2, 1], pads=[2, 1, 2, 1]),
        n.conv(x, 6, 4, 1, group=2, strides=[2, 3], pads=[0, 0, 0, 0]),
        n.op("Relu", n.op("Conv", x, n.random(4, 6, 3, 3))),
        n.op("Conv", x, n.random(4, 6, 3, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
    ]
    for activation in ("Relu", "Sigmoid"):
        residual = n.op("Tanh", n.conv(x, 6, 4, 3))
        outs.append(n.op(activation, n.op("Add", n.conv(x, 6, 4, 3), residual)))
        outs.append(n.op(activation, n.op("Add", n.conv(x, 6, 4, 3), n.random(4, 1, 1))))
    both = n.op("Concat", n.op("Relu", n.conv(x, 6, 4, 3)), n.conv(x, 6, 2, 3), axis=1)
    outs.append(both)
    transposed = n.op("Transpose", n.op("Abs", x), perm=[0, 1, 3, 2])
    outs.append(n.conv(transposed, 6, 4, 3))
    check(build, n.model({"x": (2, 6, 9, 10)}, outs))


def test_prologues_and_joined_inputs(build) -> None:
    """Convolved in parts that are added up: 80 channels at once, or 32 where memory is short."""
    n, x = Net(), "x"
    y = n.conv(x, 80, 7, 1)

    def ready(value: str, channels: int) -> str:
        return n.op("Relu", n.bn(value, channels))

    outs = [
        y,
        n.conv(ready(x, 80), 80, 4, 3),
        n.op("Relu", n.conv(ready(x, 80), 80, 4, 3, pads=[1, 0, 2, 1])),
        n.op("Relu", n.op("Add", n.conv(ready(x, 80), 80, 7, 1), y)),
        n.op("Sigmoid", n.op("Add", n.conv(ready(x, 80), 80, 7, 1), y)),
        n.conv(ready(x, 80), 80, 80, 3, group=80),
        n.op("Relu", n.conv(n.op("Concat", x, y, axis=1), 87, 4, 3)),
        n.conv(ready(n.op("Concat", y, x, axis=1), 87), 87, 4, 3),
    ]
    model = n.model({"x": (2, 80, 5, 6)}, outs)
    counts = list[int]()
    for limit in (1 << 20, None):
        compiled = build(model, workspace_limit=limit)
        with Simulator(architecture=CHIP) as simulator:
            compiled.check(compiled.run(simulator), 1e-5)
        calls = simulator.report().calls
        names = ("cudnnConvolutionForward", "cudnnConvolutionBiasActivationForward")
        counts.append(sum(calls[name] for name in names))
    assert counts[0] == 10 < counts[1], "the last two have two parts"


def test_rows_padded_at_one_end(build) -> None:
    """
    Where memory is short only the rows beside the zeros are copied and convolved apart: at both ends where both are
    padded, with strides and dilations, in either dimension; with prologues, joined inputs and what ends the op.
    """
    n, x, one, line = Net(), "x", "one", "line"

    def ready(value: str, channels: int = 6) -> str:
        return n.op("Relu", n.bn(value, channels))

    def convolved(value: str, *pads: int, cin: int = 6, k: int = 3, **attributes: object) -> str:
        return n.conv(value, cin, 6, k, pads=list(pads), **attributes)

    other = n.op("Softmax", x, axis=3)
    outs = [
        other,
        convolved(x, 1, 1, 0, 1),
        n.op("Relu", convolved(x, 0, 1, 1, 1)),
        convolved(x, 1, 0, 1, 2, group=6),
        convolved(x, 3, 2, 4, 2, k=5, strides=[2, 1]),
        convolved(x, 4, 0, 1, 0, dilations=[2, 1]),
        convolved(x, 0, 0, 2, 0, strides=[3, 2]),
        convolved(ready(one), 1, 1, 0, 1),
        convolved(ready(n.op("Concat", one, n.op("Abs", one), axis=1), 12), 0, 1, 1, 1, cin=12),
        n.op("Relu", n.op("Add", convolved(x, 2, 1, 0, 1), other)),
        n.op("Sigmoid", n.op("Conv", line, n.random(6, 6, 3), n.random(6), pads=[2, 1])),
    ]
    model = n.model({"x": (2, 6, 40, 50), "one": (1, 6, 40, 50), "line": (2, 6, 4000)}, outs)
    counts = list[tuple[int, int]]()
    for limit in (1 << 20, 64 << 10):
        compiled = build(model, workspace_limit=limit)
        with Simulator(architecture=CHIP) as simulator:
            compiled.check(compiled.run(simulator), 1e-5)
        calls, refused = simulator.report().calls, simulator.report().refusals
        assert refused == ()
        names = ("cudnnConvolutionForward", "cudnnConvolutionBiasActivationForward")
        counts.append((calls[names[0]], calls.get(names[1], 0)))
    # Each at once, but the one of two inputs; then in two pieces, or three where both ends are padded.
    assert counts == [(9, 2), (2 * 8 + 3 * 3, 0)]


def test_rows_that_all_need_zeros_are_padded_at_once(build) -> None:
    """Windows that are as high as the input, that skip the rows in the middle, or that have nothing but zeros."""
    n = Net()
    outs = [
        n.conv("x", 3, 4, 1, pads=[0, 0, 5, 0], strides=[3, 1]),
        n.conv("x", 3, 4, 1, pads=[5, 0, 0, 0], strides=[3, 1]),
        n.conv("x", 3, 4, 3, pads=[1, 1, 2, 1]),
        n.conv("x", 3, 4, 3, pads=[2, 1, 1, 1], strides=[3, 1]),
        n.conv("x", 3, 4, 2, pads=[3, 0, 1, 0], strides=[4, 1]),
    ]
    check(build, n.model({"x": (1, 3, 2, 9)}, outs), workspace_limit=1024)


def test_convolutions_of_one_and_three_dimensions(build) -> None:
    n = Net()
    line, volume = n.op("Abs", "line"), n.op("Abs", "volume")
    outs = [
        n.op("Relu", n.op("Conv", line, n.random(4, 3, 3), n.random(4), pads=[1, 1], strides=[2])),
        n.op("MaxPool", line, kernel_shape=[3], strides=[2]),
        n.op("Conv", volume, n.random(2, 2, 2, 2, 2), n.random(2), pads=[0, 1, 0, 0, 1, 0]),
        n.op("AveragePool", volume, kernel_shape=[2, 2, 2], strides=[1, 2, 1]),
        n.op("ConvTranspose", line, n.random(3, 2, 3), strides=[2]),
    ]
    check(build, n.model({"line": (2, 3, 11), "volume": (1, 2, 4, 5, 6)}, outs))


def test_transposed_convolutions(build) -> None:
    n = Net()

    def transposed(*shape: int, **attributes: object) -> str:
        return n.op("ConvTranspose", "x", n.random(*shape), **attributes)

    outs = [
        transposed(4, 3, 3, 3),
        transposed(4, 3, 3, 3, strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]),
        transposed(4, 3, 4, 4, strides=[2, 2], pads=[1, 0, 2, 1]),
        transposed(4, 2, 3, 2, group=2, dilations=[2, 1]),
        n.op("Relu", n.op("ConvTranspose", "x", n.random(4, 3, 2, 2), n.random(3), strides=[2, 2])),
    ]
    check(build, n.model({"x": (2, 4, 5, 6)}, outs))


def test_pools(build) -> None:
    """What cuDNN computes, and what it does not: rounding up, unequal pads, dilations."""
    n = Net()

    def pool(kind: str, **attributes: object) -> str:
        return n.op(kind, "x", kernel_shape=[3, 2], **attributes)

    outs = [
        pool("MaxPool", strides=[2, 2], pads=[1, 0, 1, 0]),
        pool("MaxPool", strides=[2, 2], ceil_mode=1),
        pool("MaxPool", dilations=[2, 2], pads=[1, 1, 1, 1]),
        pool("MaxPool", pads=[2, 1, 0, 0]),
        pool("AveragePool", pads=[1, 1, 1, 1]),
        pool("AveragePool", pads=[1, 1, 1, 1], count_include_pad=1),
        pool("AveragePool", pads=[0, 1, 2, 0], count_include_pad=1),
        pool("AveragePool", pads=[0, 1, 2, 0], strides=[2, 3]),
        n.op("GlobalAveragePool", "x"),
        n.op("GlobalMaxPool", "x"),
        n.op("Sigmoid", pool("MaxPool", strides=[2, 2])),
    ]
    check(build, n.model({"x": (2, 3, 8, 9)}, outs))


def test_nans_spread(build) -> None:
    """Through a pooling and a convolution with fused relu: any NaN in, NaN out."""
    n = Net()
    nan = n.op("Where", n.op("Greater", "x", n.const(1.0)), n.const(np.nan), "x")
    outs = [n.op("MaxPool", nan, kernel_shape=[2, 2]), n.op("Relu", n.conv(nan, 2, 2, 1))]
    model = build(n.model({"x": (1, 2, 8, 8)}, outs))
    with Simulator(architecture=CHIP) as simulator:
        pooled, convolved = model.run(simulator).values()
    holes = model.inputs["x"] > 1
    assert holes.any()
    windows = np.lib.stride_tricks.sliding_window_view(holes, (2, 2), (2, 3))
    np.testing.assert_array_equal(np.isnan(pooled), windows.any((-2, -1)))
    np.testing.assert_array_equal(np.isnan(convolved), np.repeat(holes.any(1, keepdims=True), 2, axis=1))


def test_products(build) -> None:
    """Row- and column-major operands, batches that broadcast, biases, a product over nothing but itself."""
    n = Net()
    t = n.op("Transpose", "a", perm=[0, 2, 1])
    outs = [
        n.op("MatMul", "a", n.random(6, 5)),
        n.op("MatMul", t, n.random(2, 4, 3)),
        n.op("MatMul", "a", n.op("Transpose", "a", perm=[0, 2, 1])),
        n.op("MatMul", n.random(3, 1, 5, 4), "a"),
        n.op("Relu", n.op("Add", n.op("MatMul", "a", n.random(6, 5)), n.random(5))),
        n.op("Add", n.op("MatMul", "a", n.random(6, 6)), "a"),
        n.op("Gemm", n.random(4, 3), n.random(4, 5), n.random(5), transA=1, alpha=0.5, beta=2.0),
        n.op("Gemm", n.random(3, 4), n.random(5, 4), n.random(3, 1), transB=1),
        n.op("MatMul", n.random(6), n.random(6, 5)),
        n.op("MatMul", n.op("Slice", "a", n.const([0, 0, 1], np.int64), n.const([2, 4, 6], np.int64), "",
                            n.const([1, 1, 2], np.int64)), n.random(3, 2)),
        n.op("Transpose", n.op("MatMul", "a", n.random(6, 5)), perm=[0, 2, 1]),
    ]  # fmt: skip
    check(build, n.model({"a": (2, 4, 6)}, outs))


def test_residuals_in_place_are_added_by_the_library(build) -> None:
    """Of a sum that is written over one of its terms, so that the other has no memory of its own."""
    n, x, image = Net(), "x", "image"

    def product(value: str) -> str:
        return n.op("MatMul", n.op("Tanh", n.op("MatMul", value, n.random(24, 40))), n.random(40, 24))

    def convolution(value: str) -> str:
        return n.conv(n.op("Tanh", n.conv(value, 6, 9)), 9, 6)

    def add(a: str, b: str) -> str:
        return n.op("Add", a, b)

    x, image = n.op("Abs", x), n.op("Abs", image)
    x = add(x, product(x))
    x = add(n.op("Add", product(x), n.random(24)), x)
    x = n.op("Sigmoid", add(product(x), x))
    image = add(image, convolution(image))
    image = n.op("LeakyRelu", add(convolution(image), image))
    # What else is done to one of the two, or with one of them, needs both.
    x = n.op("Mul", x, product(x))
    x = add(x, n.op("Sigmoid", product(x)))
    x = n.op("Mul", x, n.op("Sigmoid", add(x, product(x))))
    x = n.op("Sub", product(x), x)
    image = n.op("Mul", image, n.op("Sigmoid", convolution(image)))
    outs = [n.op("Neg", n.op("ReduceMean", x, axes=[2])), n.op("Neg", n.op("ReduceMean", image, axes=[2, 3]))]
    compiled = build(n.model({"x": (2, 3, 24), "image": (2, 6, 7, 8)}, outs))
    with Simulator(architecture=CHIP) as simulator:
        compiled.check(compiled.run(simulator), 1e-5)
    planned = Compilation(compiled.compilation.model, compiled.compilation.options)
    planned.run_to("mem")
    more = dict[str, list[int]]()
    for op in planned.module.walk():
        if isinstance(op, dnn.ConvOp | dnn.MatmulOp) and op.outs[0] in op.extras:
            library_bytes = op.attributes[LIBRARY_BYTES]
            assert isa(library_bytes, IntegerAttr)
            rounded = -(-library_bytes.value.data // 256) * 256
            more.setdefault(op.name, []).append(select(op).scratch_bytes - rounded)
    of_x, of_image = (-(-4 * size // 256) * 256 for size in (2 * 3 * 24, 2 * 6 * 7 * 8))
    assert more == {"dnn.matmul": [0] * 3 + [of_x] * 4, "dnn.conv": [0] * 2 + [of_image]}


def test_reductions(build) -> None:
    n = Net()
    x = "x"
    kinds = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp")
    outs = [n.op(f"Reduce{kind}", x, axes=[1], keepdims=0) for kind in kinds if kind != "Sum"]
    outs += [n.op(f"Reduce{kind}", x, axes=[0, 2], keepdims=1) for kind in kinds if kind != "Sum"]
    outs.append(n.op("ReduceSum", x, n.const([2], np.int64), keepdims=0))
    outs.append(n.op("ReduceSum", x, n.const([0, 2], np.int64), keepdims=0))
    outs += [n.op("Softmax", x, axis=axis) for axis in (0, 1, 2)]
    outs.append(n.op("LogSoftmax", x, axis=1))
    outs.append(n.op("Softmax", n.op("Transpose", n.op("Abs", x), perm=[2, 0, 1]), axis=0))
    outs.append(n.op("LayerNormalization", x, n.random(7), n.random(7)))
    outs.append(n.op("LayerNormalization", x, n.random(5, 7), axis=1))
    outs += [
        n.op("Cast", n.op(kind, x, axis=axis, select_last_index=last), to=1)
        for kind in ("ArgMax", "ArgMin")
        for axis, last in ((0, 0), (2, 1))
    ]
    outs.append(n.op("Cast", n.op("ArgMax", n.op("Round", x), axis=2, select_last_index=1), to=1))
    check(build, n.model({"x": (3, 5, 7)}, outs))


def test_movement(build) -> None:
    """Padding, gathering, resampling, concatenation, slices and transposes."""
    n, x = Net(), "x"
    pads = n.const([0, 0, 1, 2, 0, 1, 2, 0], np.int64)
    outs = [n.op("Pad", x, pads, mode=mode) for mode in ("edge", "reflect")]
    outs.append(n.op("Pad", x, pads, n.const(1.5)))
    outs.append(n.op("Gather", x, n.const([[2, -1], [0, 1]], np.int64), axis=1))
    scales = n.const([1, 1, 1.5, 2])
    for mode, transformation in (
        ("nearest", "half_pixel"),
        ("nearest", "asymmetric"),
        ("linear", "half_pixel"),
        ("linear", "align_corners"),
        ("cubic", "pytorch_half_pixel"),
    ):
        outs.append(n.op("Resize", x, "", scales, mode=mode, coordinate_transformation_mode=transformation))
    outs.append(n.op("LRN", x, size=3, alpha=0.2, beta=0.6, bias=1.5))
    outs.append(n.op("Concat", x, n.op("Abs", x), n.random(2, 1, 6, 4), axis=1))
    outs.append(n.op("Transpose", n.op("Neg", x), perm=[3, 1, 0, 2]))
    steps = [n.const(v, np.int64) for v in ([5, 3], [-9, -9], [2, 3], [-2, -1])]
    outs.append(n.op("Slice", n.op("Abs", x), *steps))
    outs.append(n.op("Expand", n.op("ReduceMean", x, axes=[1]), n.const([2, 3, 6, 4], np.int64)))
    outs.append(n.op("Where", n.op("Greater", x, n.const(0.0)), x, n.op("Exp", x)))
    outs.append(n.op("DepthToSpace", n.op("Concat", x, x, x, x, axis=1), blocksize=2))
    check(build, n.model({"x": (2, 3, 6, 4)}, outs))


def test_without_fusion_reuse_or_reordering(build) -> None:
    from nets import NETS

    for options in ({"fuse": False}, {"reuse": False, "in_place": False}, {"reorder": False}):
        check(build, NETS["resnet"](), 1e-4, **options)


def test_products_by_quantised_weights(build) -> None:
    """int8 and uint8, one scale and zero point or one a channel, few rows and many, with bias and activation."""
    n, x, many = Net(), "x", "many"
    rng = np.random.default_rng(4)

    def weights(dtype: type, *shape: int, axis: int | None = None, zero: int | None = None) -> str:
        info = np.iinfo(dtype)
        q = n.const(rng.integers(info.min, int(info.max) + 1, shape), dtype)
        size = () if axis is None else (shape[axis],)
        scale = n.const(rng.uniform(0.01, 0.02, size), np.float32)
        zeros = [] if zero is None else [n.const(rng.integers(0, zero, size), dtype)]
        return n.op("DequantizeLinear", q, scale, *zeros, **({} if axis is None else {"axis": axis}))

    def product(a: str, b: str) -> str:
        return n.op("MatMul", a, b)

    outs = [
        product(x, weights(np.int8, 40, 64)),
        product(x, weights(np.int8, 40, 64, axis=1)),
        product(x, weights(np.uint8, 40, 65, axis=1, zero=255)),
        product(many, weights(np.uint8, 40, 70, zero=2)),
        n.op("Relu", product(many, weights(np.int8, 40, 77, axis=1, zero=100))),
        n.op("Gemm", x, weights(np.int8, 80, 40, axis=0), n.random(80), transB=1),
        n.op("Sigmoid", n.op("Add", product(many, weights(np.int8, 40, 60, axis=1)), n.random(60))),
        # These are made f32: scales along the terms of a sum, and filters of convolutions.
        product(x, weights(np.int8, 40, 64, axis=0)),
        n.op(
            "Conv", n.op("Reshape", x, n.const([1, 3, 5, 8], np.int64)), weights(np.int8, 2, 3, 3, 3, axis=0)
        ),
    ]
    model = n.model({x: (3, 40), many: (2, 9, 40)}, outs, opset=21)
    compiled = build(model)
    # ONNX Runtime rounds activations to 8 bits for such products.
    values = ReferenceEvaluator(model).run(None, compiled.inputs)
    with Simulator(architecture=CHIP) as simulator:
        outputs = compiled.run(simulator)
    replace(compiled, expected=dict(zip(compiled.expected, values, strict=True))).check(outputs, 1e-5)
    # Weights but the last two, which are made f32, are multiplied as they are stored; small ones would be folded.
    kernels = {n: k for n, k in simulator.report().kernels.items() if n.startswith("product_")}
    assert sum(kernel.launches for kernel in kernels.values()) == 7
    assert {name.rsplit("_", 3)[1] for name in kernels} == {"i8", "ui8", "i16"}, "16 bits hold q - zero"
    assert simulator.report().calls["cublasSgemmStridedBatched"] == 1
