"""Transposed convolution kernels against ONNX Runtime, over shapes that reach every path."""

from dataclasses import dataclass

import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from xdsl.dialects import arith
from xdsl.dialects.builtin import f32

from occamy_xdsl.lowering.cpu.kernels.conv_transpose import ConvTranspose
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer


@dataclass(frozen=True)
class Case:
    """One ONNX ConvTranspose; `pads` are those before and then those after each spatial dimension."""

    input: tuple[int, ...]
    filters: int
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[int, ...] = ()
    output_padding: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    group: int = 1
    bias: bool = True
    channels_last: bool = True


def layout(case, shape):
    """Row-major, or with the channels next to each other."""
    if not case.channels_last:
        return Buffer.contiguous(shape)
    batch, channels, *spatial = shape
    strides = Buffer.contiguous((batch, *spatial, channels)).strides
    return Buffer(tuple(shape), (strides[0], strides[-1], *strides[1:-1]), "f32")


def prepare(case, isa, epilogue=None):
    """The kernel of a case, its arguments before the output, and ONNX Runtime's result."""
    rng = np.random.default_rng(0)
    rank = len(case.kernel)
    pads, dilations = case.pads or (0,) * 2 * rank, case.dilations or (1,) * rank
    x = rng.standard_normal(case.input, np.float32)
    w = rng.standard_normal((case.input[1], case.filters // case.group, *case.kernel), np.float32)
    b = rng.standard_normal(case.filters, np.float32)
    arrays = {"x": x, "w": w} | ({"b": b} if case.bias else {})
    node = helper.make_node(
        "ConvTranspose",
        [*arrays],
        ["y"],
        strides=case.strides,
        pads=pads,
        dilations=dilations,
        output_padding=case.output_padding or (0,) * rank,
        group=case.group,
    )
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in arrays.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    model = helper.make_model(
        helper.make_graph([node], "g", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, arrays)
    kernel = ConvTranspose.create(
        layout(case, case.input),
        layout(case, expected.shape),
        case.kernel,
        isa,
        strides=case.strides,
        dilations=dilations,
        pads=pads[:rank],
        group=case.group,
        has_bias=case.bias,
        epilogue=epilogue(expected.shape) if epilogue else None,
    )
    return kernel, [x, kernel.pack(w), *([b] if case.bias else [])], expected


CASES = [
    Case((1, 3, 5, 6), 17, (3, 3), (1, 1)),
    Case((2, 8, 5, 6), 17, (2, 2), (2, 2)),
    Case((1, 8, 5, 9), 40, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    Case((1, 8, 5, 9), 40, (4, 4), (2, 2), (1, 1, 1, 1), bias=False),
    Case((1, 8, 5, 9), 12, (1, 1), (2, 3)),
    Case((1, 8, 5, 9), 12, (2, 5), (3, 2), (0, 2, 1, 0), (2, 1)),
    Case((1, 4, 6, 7), 5, (3, 3), (2, 3), (1, 2, 0, 3), dilations=(2, 2)),
    Case((1, 4, 6, 7), 5, (3, 2), (3, 2), (1, 0, 2, 0), dilations=(2, 3)),
    Case((1, 12, 4, 5), 6, (3, 3), (2, 2), (1, 1, 1, 1), group=3),
    Case((1, 20, 4, 9), 20, (4, 4), (2, 2), (1, 1, 1, 1), group=20),
    Case((1, 6, 4, 5), 7, (3, 3), (2, 2), (1, 1, 1, 1), channels_last=False),
    Case((2, 3, 9), 4, (5,), (3,), (2, 1)),
    Case((1, 2, 3, 3, 4), 5, (3, 2, 3), (2, 2, 1), (1, 0, 1, 1, 0, 1)),
    Case((1, 1, 1, 1), 1, (4, 4), (1, 1)),
]


def test_against_onnxruntime(isa, run):
    prepared = [prepare(case, isa) for case in CASES]
    actual = run([(kernel, arrays) for kernel, arrays, _ in prepared], isa)
    pairs = zip(CASES, prepared, actual, strict=True)
    wrong = [case for case, (_, _, e), a in pairs if not np.allclose(a, e, rtol=1e-4, atol=1e-4)]
    assert not wrong


def test_epilogue_with_a_residual(isa, run, epilogue):
    case = Case((1, 8, 5, 6), 17, (4, 4), (2, 2), (1, 1, 1, 1))

    def work(shape):
        body = lambda x, y: ([z := arith.MulfOp(x, y)], z.result)  # noqa: E731
        return epilogue([f32, f32], body, [layout(case, shape)])

    kernel, arrays, expected = prepare(case, isa, work)
    factor = np.random.default_rng(1).standard_normal(expected.shape, np.float32)
    (actual,) = run([(kernel, [*arrays, factor])], isa)
    assert np.allclose(actual, expected * factor, rtol=1e-4, atol=1e-4)
