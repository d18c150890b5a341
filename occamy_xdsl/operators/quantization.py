"""Quantised operators: to and from integers, and products of integers."""

from collections.abc import Sequence

from xdsl.dialects import math
from xdsl.dialects.builtin import TensorType, f32, f64, i32
from xdsl.ir import Attribute, SSAValue

from occamy_xdsl.dialects import onnx
from occamy_xdsl.dialects.dnn import ConvOp, element_type_of, integer_width, shape_of
from occamy_xdsl.operators.convolution import kernel_of, place_windows
from occamy_xdsl.operators.emitter import ELEMENT_TYPES, Emitter, known_splat
from occamy_xdsl.operators.matmul import multiply
from occamy_xdsl.operators.node import Node
from occamy_xdsl.operators.registry import operator
from occamy_xdsl.operators.scalars import Scalar

LIMITS = "blocks; types other than (u)int8, (u)int16 and int32"


def _along_axis(node: Node, emit: Emitter, value: SSAValue, axis: int) -> SSAValue:
    """A scale or zero point shaped to broadcast against operand 0, whose dimension `axis` it follows."""
    rank, shape = node.rank(), shape_of(value)
    if shape in ((), (1,)):
        return emit.reshape(value, ())
    if len(shape) != 1:
        node.refuse("blocked quantisation")
    axis = node.axis(axis, rank)
    return emit.reshape(value, [shape[0] if d == axis else 1 for d in range(rank)])


def saturate(x: Scalar, element: Attribute) -> Scalar:
    """`x` as an integer `element`, moved to the nearest bound where it lies outside."""
    low, high = Scalar(x.value, element, x.block).bounds
    return x.maximum(float(low)).minimum(float(high)).cast(element)


@operator("QuantizeLinear", since=10, limits=LIMITS)
def quantize_linear(node: Node, emit: Emitter) -> SSAValue:
    """saturate(round_half_even(x / scale) + zero point)."""
    if node.attr("block_size", 0):
        node.refuse("blocked quantisation")
    if node.attr("precision", 0) not in (0, 1):
        node.refuse("a precision other than float")
    zero = node.optional(2)
    stated = node.attr("output_dtype", 0)
    element = onnx.element_type(stated) if stated else onnx.element_type(2)
    if zero is not None:
        element = element_type_of(zero)
    if not integer_width(element) or element not in ELEMENT_TYPES:
        node.refuse(f"quantisation to {element}")
    axis: int = node.attr("axis", 1)
    operands = [node[0], _along_axis(node, emit, node[1], axis)]
    if zero is not None:
        operands.append(_along_axis(node, emit, zero, axis))

    def compute(x: Scalar, scale: Scalar, *zero: Scalar) -> Scalar:
        wide = f64 if x.element == f64 or integer_width(x.element) == 32 else f32
        rounded = (x.cast(wide) / scale.cast(wide)).unary(math.RoundEvenOp)
        for offset in zero:
            rounded = rounded + offset.cast(wide)
        return saturate(rounded, element)

    return emit.elementwise(compute, *operands)


@operator("DequantizeLinear", since=10, limits=LIMITS)
def dequantize_linear(node: Node, emit: Emitter) -> SSAValue:
    """(x - zero point) * scale."""
    if node.attr("block_size", 0):
        node.refuse("blocked quantisation")
    stated = node.attr("output_dtype", 0)
    scale_type = element_type_of(node[1])
    element = onnx.element_type(stated) if stated else scale_type
    axis: int = node.attr("axis", 1)
    operands = [node[0], _along_axis(node, emit, node[1], axis)]
    if (zero := node.optional(2)) is not None:
        operands.append(_along_axis(node, emit, zero, axis))

    def compute(x: Scalar, scale: Scalar, *zero: Scalar) -> Scalar:
        value = x.cast(f32)
        for offset in zero:
            value = value - offset.cast(f32)
        return (value * scale.cast(f32)).cast(element)

    return emit.elementwise(compute, *operands)


# ---- Products of 8-bit integers, summed in 32 bits


def _is_zero(value: SSAValue | None) -> bool:
    return value is None or known_splat(value) == 0


def _shifted(emit: Emitter, value: SSAValue, zero: SSAValue | None, shape: Sequence[int]) -> SSAValue:
    """`value` minus its zero point, of which `shape` is the shape that broadcasts, in 32 bits."""
    if zero is None or _is_zero(zero):
        return value
    zero = emit.reshape(zero, shape if len(shape_of(zero)) else ())
    return emit.elementwise(lambda x, z: x.cast(i32) - z.cast(i32), value, zero)


def _integer_matmul(
    node: Node, emit: Emitter, a: SSAValue, b: SSAValue, a_zero: SSAValue | None, b_zero: SSAValue | None
) -> SSAValue:
    """
    (a - a_zero) * (b - b_zero). Only a zero point of a whole matrix takes the correction by sums of rows and
    columns, which leaves 8-bit operands in 8 bits; one for each row or column shifts its operand first.
    """
    left, right = shape_of(a), shape_of(b)
    for value in (a_zero, b_zero):
        if value is not None and len(shape_of(value)) > 1 and shape_of(value) != (1,):
            node.refuse(f"a zero point of shape {list(shape_of(value))}")
    a_zero, b_zero = (
        emit.reshape(z, ()) if z is not None and shape_of(z) == (1,) else z for z in (a_zero, b_zero)
    )
    if len(left) < 2 or len(right) < 2 or any(z is not None and shape_of(z) for z in (a_zero, b_zero)):
        rows = (-1,) if a_zero is None else (*shape_of(a_zero), 1)
        columns = (-1,) if b_zero is None else shape_of(b_zero)
        return multiply(
            node,
            emit,
            emit.cast(_shifted(emit, a, a_zero, rows), i32),
            emit.cast(_shifted(emit, b, b_zero, columns), i32),
            i32,
        )
    product = multiply(node, emit, a, b, i32)
    depth = left[-1]
    if b_zero is not None and not _is_zero(b_zero):
        ones = emit.fill(1, (depth, 1), element_type_of(b))
        rows_sum = multiply(node, emit, a, ones, i32)
        product = emit.elementwise(lambda p, s, z: p - s * z.cast(i32), product, rows_sum, b_zero)
    if a_zero is not None and not _is_zero(a_zero):
        ones = emit.fill(1, (1, depth), element_type_of(a))
        sums = multiply(node, emit, ones, b, i32)
        if b_zero is not None:
            sums = emit.elementwise(lambda s, z: s - z.cast(i32) * depth, sums, b_zero)
        product = emit.elementwise(lambda p, s, z: p - s * z.cast(i32), product, sums, a_zero)
    return product


@operator("MatMulInteger", since=10, limits="zero points of more than one dimension")
def matmul_integer(node: Node, emit: Emitter) -> SSAValue:
    return _integer_matmul(node, emit, node[0], node[1], node.optional(2), node.optional(3))


def _integer_conv(
    node: Node,
    emit: Emitter,
    filter_index: int,
    x_zero: SSAValue | None,
    w_zero: SSAValue | None,
) -> SSAValue:
    """Convolution of the shifted operands, so that padding, which reads as 0, means the zero point."""
    kernel = kernel_of(node, filter_index)
    windows, sizes = place_windows(node, kernel)
    value, filter = node[0], node[filter_index]
    channels = (-1, *(1,) * (len(kernel) + 1))
    value = _shifted(emit, value, x_zero, ())
    if w_zero is not None and not _is_zero(w_zero) and shape_of(w_zero):
        channels = (*shape_of(w_zero), *channels[1:])
    filter = _shifted(emit, filter, w_zero, channels)
    if i32 in (element_type_of(value), element_type_of(filter)):
        value, filter = emit.cast(value, i32), emit.cast(filter, i32)
    result = TensorType(i32, (node.shape(0)[0], shape_of(filter)[0], *sizes))
    return emit.add(
        ConvOp(
            value,
            filter,
            None,
            result,
            strides=windows.strides,
            pads=windows.pads,
            dilations=windows.dilations,
            group=node.attr("group"),
        )
    )


@operator("ConvInteger", since=10)
def conv_integer(node: Node, emit: Emitter) -> SSAValue:
    return _integer_conv(node, emit, 1, node.optional(2), node.optional(3))


def _requantized(emit: Emitter, value: SSAValue, scales: Sequence[SSAValue], zero: SSAValue) -> SSAValue:
    """saturate(round_half_even(value * scale_a * scale_b / scale_y) + zero)."""
    element = element_type_of(zero)

    def compute(x: Scalar, a: Scalar, b: Scalar, y: Scalar, z: Scalar) -> Scalar:
        rounded = (x.cast(f32) * (a.cast(f32) * b.cast(f32) / y.cast(f32))).unary(math.RoundEvenOp)
        return saturate(rounded + z.cast(f32), element)

    return emit.elementwise(compute, value, *scales, zero)


@operator("QLinearMatMul", since=10, limits="zero points of more than one dimension")
def qlinear_matmul(node: Node, emit: Emitter) -> SSAValue:
    product = _integer_matmul(node, emit, node[0], node[3], node[2], node[5])
    scales = [
        emit.reshape(node[1], (*node.shape(1), 1)) if node.shape(1) not in ((), (1,)) else node[1],
        node[4],
        node[6],
    ]
    return _requantized(emit, product, scales, node[7])


@operator("QLinearConv", since=10)
def qlinear_conv(node: Node, emit: Emitter) -> SSAValue:
    total = _integer_conv(node, emit, 3, node[2], node[5])
    ones = (1,) * (node.rank() - 2)
    if node.has(8):
        bias = emit.reshape(node[8], (*node.shape(8), *ones))
        total = emit.elementwise(lambda x, b: x + b, total, bias)
    scale = node[4] if node.shape(4) in ((), (1,)) else emit.reshape(node[4], (*node.shape(4), *ones))
    return _requantized(emit, total, [node[1], scale, node[6]], node[7])
