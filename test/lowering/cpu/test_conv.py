"""Convolution kernels against ONNX's definition, over shapes that reach every path."""

from dataclasses import dataclass, field

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, f32

from occamy_xdsl.lowering.cpu.kernels.conv import Conv
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer


def channels_last(shape):
    """The buffer of a (batch, channels, spatial...) tensor whose channels are next to each other."""
    batch, channels, *spatial = shape
    strides = Buffer.contiguous((batch, *spatial, channels)).strides
    return Buffer(tuple(shape), (strides[0], strides[-1], *strides[1:-1]), "f32")


@dataclass(frozen=True)
class Case:
    """One ONNX Conv; `end` is the padding after each spatial dimension, as much as before it if not given."""

    input: tuple[int, ...]
    filters: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    group: int = 1
    bias: bool = True
    layout: str = "last-last"
    seed: int = field(default=0, compare=False)

    def complete(self):
        rank = len(self.kernel)
        pads = self.pads or (0,) * rank
        return (
            self.strides or (1,) * rank,
            pads,
            self.end or pads,
            self.dilations or (1,) * rank,
        )


def onnx_conv(case, x, w, b):
    """ONNX Runtime's result."""
    strides, pads, end, dilations = case.complete()
    names = ["x", "w"] + (["b"] if b is not None else [])
    node = helper.make_node(
        "Conv", names, ["y"], strides=strides, pads=(*pads, *end), dilations=dilations, group=case.group
    )
    arrays = dict(zip(names, (x, w, b), strict=False))
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in arrays.items()]
    graph = helper.make_graph(
        [node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, arrays)[0]


def prepare(case, isa, epilogue=None, extras=(), seed=0):
    """The kernel of a case, its arguments before the output, and ONNX's result."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(case.input, np.float32)
    w = rng.standard_normal((case.filters, case.input[1] // case.group, *case.kernel), np.float32)
    b = rng.standard_normal(case.filters, np.float32) if case.bias else None
    expected = onnx_conv(case, x, w, b)
    strides, pads, _, dilations = case.complete()
    layouts = {"last": channels_last, "first": Buffer.contiguous, "gap": with_gaps, "back": backwards}
    source, target = (layouts[name] for name in case.layout.split("-"))
    kernel = Conv.create(
        source(case.input),
        target(expected.shape),
        case.kernel,
        isa,
        strides=strides,
        pads=pads,
        dilations=dilations,
        group=case.group,
        has_bias=case.bias,
        epilogue=epilogue,
    )
    return kernel, [x, kernel.pack(w), *([b] if case.bias else []), *extras], expected


def backwards(shape):
    """Channels last, each dimension from its end."""
    last = channels_last(shape)
    return Buffer(last.shape, tuple(-stride for stride in last.strides), "f32")


def with_gaps(shape):
    """Channels last, with room after the channels, the rows and the batches: a slice of a concatenation."""
    _, channels, *spatial = shape
    strides = [1]
    for n in (channels + 5, *reversed(spatial)):
        strides.append(strides[-1] * n + 3)
    column, *outer = strides[1:]
    return Buffer(tuple(shape), (outer[-1], 1, *reversed([column, *outer[:-1]])), "f32")


CASES = [
    Case((1, 3, 9, 11), 16, (3, 3)),
    Case((1, 16, 7, 7), 33, (3, 3), pads=(1, 1)),
    Case((2, 5, 8, 30), 70, (3, 3), pads=(1, 1), bias=False),
    Case((1, 64, 5, 20), 64, (3, 3), pads=(1, 1), strides=(2, 2)),
    Case((1, 3, 23, 25), 24, (7, 7), pads=(3, 3), strides=(2, 2), layout="first-last"),
    Case((1, 8, 6, 6), 20, (1, 1)),
    Case((2, 40, 6, 5), 100, (1, 1)),
    Case((1, 8, 7, 9), 20, (1, 1), strides=(2, 2)),
    Case((1, 8, 7, 9), 20, (1, 1), strides=(3, 2), pads=(1, 1)),
    Case((1, 1, 1, 1), 1, (1, 1)),
    Case((1, 1, 5, 5), 1, (3, 3), pads=(1, 1)),
    Case((1, 6, 2, 2), 7, (5, 5), pads=(2, 2)),
    Case((1, 4, 1, 3), 5, (3, 5), pads=(2, 4)),
    Case((1, 4, 10, 12), 17, (3, 3), pads=(0, 2), end=(3, 1)),
    Case((1, 4, 10, 12), 17, (3, 3), dilations=(2, 3), pads=(2, 3)),
    Case((1, 4, 13, 12), 17, (3, 2), dilations=(3, 2), strides=(2, 3), pads=(4, 1), end=(1, 3)),
    Case((1, 12, 9, 9), 24, (3, 3), pads=(1, 1), group=3),
    Case((1, 32, 6, 7), 32, (3, 3), pads=(1, 1), group=8),
    Case((1, 6, 6, 7), 12, (3, 3), pads=(1, 1), group=6),
    Case((1, 40, 9, 10), 40, (3, 3), pads=(1, 1), group=40),
    Case((2, 16, 11, 23), 16, (5, 5), pads=(2, 2), strides=(2, 2), group=16),
    Case((1, 19, 9, 10), 19, (3, 3), dilations=(2, 2), pads=(2, 2), group=19, layout="first-first"),
    Case((1, 19, 9, 10), 19, (1, 1), group=19),
    Case((1, 16, 7, 7), 33, (3, 3), pads=(1, 1), layout="gap-gap"),
    Case((2, 16, 5, 6), 33, (1, 1), layout="gap-gap"),
    Case((2, 16, 5, 6), 33, (3, 3), pads=(1, 1), layout="back-back"),
    Case((2, 20, 5, 6), 20, (3, 3), pads=(1, 1), group=20, layout="back-back"),
    Case((2, 16, 5, 6), 33, (1, 1), layout="last-first"),
    Case((1, 10, 9, 8), 20, (3, 3), pads=(1, 1), layout="first-first"),
    Case((2, 7, 20), 9, (3,), pads=(1,)),
    Case((1, 7, 20), 9, (4,), strides=(3,), dilations=(2,), pads=(2,)),
    Case((1, 5, 4, 5, 6), 9, (3, 3, 3), pads=(1, 1, 1), strides=(1, 2, 1)),
    Case((1, 3, 2, 2, 2), 9, (1, 1, 1)),
    Case((1, 20, 8, 9), 3, (9, 9), pads=(4, 4)),
    Case((2, 3, 200), 20, (150,), pads=(75,)),
    Case((1, 20, 3, 150), 20, (3, 101), pads=(1, 50), group=20),
    Case((1, 20, 80), 20, (40,), group=20),
]


def close(actual, expected):
    """Whether two sums of some hundred products of standard normal numbers are equal up to rounding."""
    return np.allclose(actual, expected, rtol=1e-4, atol=2e-4)


def test_against_onnxruntime(isa, run):
    prepared = [prepare(case, isa) for case in CASES]
    actual = run([(kernel, arrays) for kernel, arrays, _ in prepared], isa)
    wrong = [case for case, (_, _, e), a in zip(CASES, prepared, actual, strict=True) if not close(a, e)]
    assert not wrong


def test_one_kernel_for_any_rows(isa, run, epilogue):
    """Bit for bit what the kernels for one height compute, and the same function for each height."""
    inputs = [
        *(Case((1, 16, rows, 9), 33, (3, 3), pads=(1, 1)) for rows in (1, 2, 7)),
        *(Case((1, 16, rows, 9), 33, (3, 3), pads=(0, 1), end=(end, 1)) for rows, end in ((3, 0), (4, 1))),
        *(Case((1, 8, rows, 20), 20, (1, 1)) for rows in (1, 2, 5)),
        *(Case((1, 8, rows, 20), 20, (1, 1), strides=(2, 2)) for rows in (1, 4, 5)),
        *(Case((1, 3, rows, 25), 24, (7, 7), pads=(3, 3), strides=(2, 2)) for rows in (2, 9)),
        *(Case((1, 40, rows, 10), 40, (3, 3), dilations=(2, 1), pads=(2, 1), group=40) for rows in (3, 8)),
    ]
    prepared = []
    for case in inputs:
        shape = prepare(case, isa)[2].shape
        residual = np.random.default_rng(1).standard_normal(shape, np.float32)
        work = epilogue([f32, f32], relu_of_sum, [channels_last(shape).broadcast_to(shape)])
        kernel, arrays, expected = prepare(case, isa, work, [residual])
        prepared.append((kernel, arrays, np.maximum(expected + residual, 0)))
    general = [kernel.for_any_rows(isa)[0] for kernel, _, _ in prepared]
    assert len({kernel.symbol for kernel in general}) == 5
    for (kernel, _, _), other in zip(prepared, general, strict=True):
        assert kernel.packing.layout == other.packing.layout
    want = run([(kernel, arrays) for kernel, arrays, _ in prepared], isa)
    got = run([(kernel, arrays) for kernel, arrays, _ in prepared], isa, any_rows=True)
    for case, a, b, (_, _, expected) in zip(inputs, got, want, prepared, strict=True):
        np.testing.assert_array_equal(a, b, str(case))
        assert close(a, expected), case


@pytest.mark.parametrize(
    "case",
    [
        Case((2, 8, 9, 9), 8, (3, 3)),
        Case((1, 8, 9, 5), 8, (3, 3)),
        Case((1, 8, 30), 8, (3,)),
        Case((1, 8, 9, 9), 8, (1, 1), pads=(1, 1)),
        Case((1, 8, 9, 9), 8, (3, 3), layout="back-back"),
    ],
    ids=["batch", "narrow", "line", "padded", "reversed"],
)
def test_no_kernel_for_any_rows(isa, case):
    assert prepare(case, isa)[0].for_any_rows(isa) is None


def relu_of_sum(x, y):
    total = arith.AddfOp(x, y)
    zero = arith.ConstantOp(FloatAttr(0.0, f32))
    return [total, zero, relu := arith.MaximumfOp(total, zero)], relu.result


@pytest.mark.parametrize(
    ("case", "shape"),
    [
        (Case((1, 16, 7, 7), 33, (3, 3), pads=(1, 1)), (1, 33, 7, 7)),
        (Case((1, 16, 7, 7), 33, (1, 1)), (1, 33, 7, 7)),
        (Case((1, 16, 7, 7), 33, (1, 1)), (1, 33, 1, 1)),
        (Case((1, 16, 7, 7), 33, (1, 1), layout="last-first"), (1, 1, 7, 7)),
        (Case((1, 33, 7, 7), 33, (3, 3), pads=(1, 1), group=33), (1, 33, 7, 7)),
        (Case((1, 33, 7, 7), 33, (3, 3), pads=(1, 1), group=33), (1,)),
    ],
    ids=str,
)
def test_epilogue_adds_and_clamps(isa, run, epilogue, case, shape):
    extra = np.random.default_rng(1).standard_normal(shape, np.float32)
    last = channels_last(shape) if len(shape) > 1 else Buffer.contiguous(shape)
    result = (1, case.filters, 7, 7)
    work = epilogue([f32, f32], relu_of_sum, [last.broadcast_to(result)])
    full = np.broadcast_to(extra, result)
    kernel, arrays, expected = prepare(case, isa, work, [full])
    (actual,) = run([(kernel, arrays)], isa)
    assert close(actual, np.maximum(expected + extra, 0))


def test_residual_may_share_the_output(isa, run, epilogue):
    case = Case((1, 16, 9, 7), 33, (3, 3), pads=(1, 1))
    residual = np.random.default_rng(1).standard_normal((1, 33, 9, 7), np.float32)
    work = epilogue([f32, f32], relu_of_sum, [channels_last(residual.shape)])
    kernel, arrays, expected = prepare(case, isa, work, [residual])
    (actual,) = run([(kernel, arrays)], isa, in_place=3)
    assert close(actual, np.maximum(expected + residual, 0))


def relu_of_affine(x, scale, shift):
    """Not 0 where `x` is 0, so that padding shows if it is not left alone."""
    product = arith.MulfOp(x, scale)
    total = arith.AddfOp(product, shift)
    zero = arith.ConstantOp(FloatAttr(0.0, f32))
    return [product, total, zero, relu := arith.MaximumfOp(total, zero)], relu.result


PROLOGUE_CASES = [
    Case((1, 8, 6, 6), 20, (1, 1)),
    Case((2, 40, 6, 5), 100, (1, 1)),
    Case((1, 70, 7, 9), 33, (1, 1), strides=(2, 2), pads=(1, 1)),
    Case((1, 1, 1, 1), 1, (1, 1)),
    Case((1, 33, 7, 7), 17, (3, 3), pads=(1, 1)),
    Case((2, 5, 8, 30), 70, (3, 3), pads=(1, 1), bias=False),
    Case((1, 4, 13, 12), 17, (3, 2), dilations=(3, 2), strides=(2, 3), pads=(4, 1), end=(1, 3)),
    Case((1, 12, 9, 9), 24, (3, 3), pads=(1, 1), group=3),
    Case((1, 40, 9, 10), 40, (3, 3), pads=(1, 1), group=40),
    Case((1, 19, 9, 10), 19, (3, 3), dilations=(2, 2), pads=(2, 2), group=19, layout="first-first"),
    Case((1, 10, 9, 8), 20, (3, 3), pads=(1, 1), layout="first-last"),
    Case((1, 35, 7, 7), 33, (3, 3), pads=(1, 1), layout="gap-gap"),
    Case((2, 35, 5, 6), 33, (1, 1), layout="back-back"),
    Case((2, 7, 20), 9, (3,), pads=(1,)),
    Case((1, 5, 4, 5, 6), 9, (3, 3, 3), pads=(1, 1, 1), strides=(1, 2, 1)),
    Case((2, 3, 200), 20, (150,), pads=(75,)),
]


def parts_of(x, sizes):
    """`x` cut along its channels."""
    return np.split(x, np.cumsum(sizes)[:-1], axis=1)


def prepare_input(case, isa, make_prologue, sizes, *, with_prologue):
    """As `prepare`, for an input in parts of `sizes` channels; ONNX Runtime gets what the prologue makes."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal(case.input, np.float32)
    w = rng.standard_normal((case.filters, case.input[1] // case.group, *case.kernel), np.float32)
    b = rng.standard_normal(case.filters, np.float32) if case.bias else None
    vector = (case.input[1], *(1,) * len(case.kernel))
    scale, shift = rng.standard_normal(vector, np.float32), np.float32([0.5])
    expected = onnx_conv(case, np.maximum(x * scale + shift, 0) if with_prologue else x, w, b)
    strides, pads, _, dilations = case.complete()
    layouts = {"last": channels_last, "first": Buffer.contiguous, "gap": with_gaps, "back": backwards}
    source, target = (layouts[name] for name in case.layout.split("-"))
    first, *others = parts_of(x, sizes)
    extras = [Buffer.contiguous(a.shape).broadcast_to(case.input) for a in (scale, shift)]
    kernel = Conv.create(
        source(first.shape),
        target(expected.shape),
        case.kernel,
        isa,
        joined=[source(part.shape) for part in others],
        strides=strides,
        pads=pads,
        dilations=dilations,
        group=case.group,
        has_bias=case.bias,
        prologue=make_prologue([f32, f32, f32], relu_of_affine, extras) if with_prologue else None,
    )
    full = [np.broadcast_to(a, case.input) for a in (scale, shift)] if with_prologue else []
    return kernel, [first, *others, kernel.pack(w), *([b] if case.bias else []), *full], expected


def test_prologue_leaves_the_padding_alone(isa, run, prologue):
    prepared = [
        prepare_input(case, isa, prologue, case.input[1:2], with_prologue=True) for case in PROLOGUE_CASES
    ]
    actual = run([(kernel, arrays) for kernel, arrays, _ in prepared], isa)
    wrong = [
        case for case, (_, _, e), a in zip(PROLOGUE_CASES, prepared, actual, strict=True) if not close(a, e)
    ]
    assert not wrong


@pytest.mark.parametrize("with_prologue", [False, True])
def test_joined_inputs_are_a_concatenation(isa, run, prologue, with_prologue):
    cases = [
        (Case((1, 20, 6, 7), 33, (3, 3), pads=(1, 1)), (16, 4)),
        (Case((2, 70, 5, 6), 40, (1, 1)), (1, 64, 5)),
        (Case((1, 80, 5, 20), 64, (3, 3), pads=(1, 1), strides=(2, 2)), (40, 40)),
        (Case((1, 9, 10, 12), 17, (3, 3), dilations=(2, 3), pads=(2, 3), layout="first-last"), (3, 3, 1, 2)),
        (Case((1, 40, 7, 7), 33, (3, 3), pads=(1, 1), layout="gap-gap"), (33, 7)),
        (Case((2, 7, 20), 9, (3,), pads=(1,), layout="back-last"), (3, 4)),
    ]
    prepared = [
        prepare_input(case, isa, prologue, sizes, with_prologue=with_prologue) for case, sizes in cases
    ]
    actual = run([(kernel, arrays) for kernel, arrays, _ in prepared], isa)
    wrong = [case for case, (_, _, e), a in zip(cases, prepared, actual, strict=True) if not close(a, e)]
    assert not wrong


def test_prologue_scratch_is_one_register_tile(isa, prologue):
    case = Case((1, 512, 28, 28), 128, (1, 1))
    kernel, _, _ = prepare_input(case, isa, prologue, (512,), with_prologue=True)
    assert 0 < kernel.workspace_bytes <= 14 * 32 * 4
    case = Case((1, 40, 9, 10), 40, (3, 3), group=40)
    kernel, _, _ = prepare_input(case, isa, prologue, (40,), with_prologue=True)
    assert kernel.workspace_bytes == 0


def test_equal_specifications_share_a_symbol(isa, epilogue):
    case = Case((1, 16, 9, 7), 33, (3, 3))
    residual = channels_last((1, 33, 7, 5))
    works = [epilogue([f32, f32], relu_of_sum, [residual]) for _ in range(2)]
    first, second = (prepare(case, isa, work)[0] for work in works)
    assert first == second
    assert first.symbol == second.symbol
    assert first.symbol != prepare(case, isa)[0].symbol
