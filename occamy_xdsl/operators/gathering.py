"""Gather operators, as one gather with computed positions, and running sums."""

from collections.abc import Callable, Sequence
from math import prod

from xdsl.dialects.builtin import i64
from xdsl.ir import SSAValue

from occamy_xdsl.dialects.dnn import GatherOp, PadOp, shape_of
from occamy_xdsl.dialects.dnn.geometry import contiguous_strides
from occamy_xdsl.operators.emitter import Emitter, known_splat, scalar_attribute
from occamy_xdsl.operators.node import Node
from occamy_xdsl.operators.registry import operator
from occamy_xdsl.operators.scalars import Scalar


@operator("Gather")
def gather(node: Node, emit: Emitter) -> SSAValue:
    """A single known index is a slice."""
    shape = node.shape()
    if not shape:
        node.reject("cannot gather from a scalar")
    axis = node.axis(node.attr("axis"), len(shape))
    known = known_splat(node[1]) if prod(node.shape(1)) == 1 else None
    if known is not None:
        index, size = int(known), shape[axis]
        if not -size <= index < size:
            node.reject(f"index {index} is outside of dimension {axis} of shape {list(shape)}")
        offsets, sizes = [0] * len(shape), list(shape)
        offsets[axis], sizes[axis] = index % size, 1
        taken = emit.slice(node[0], offsets, sizes, [1] * len(shape))
        return emit.reshape(taken, (*shape[:axis], *node.shape(1), *shape[axis + 1 :]))
    return emit.add(GatherOp(node[0], node[1], axis))


def _inside(index: Scalar, size: int) -> Scalar:
    """`index`, counted from the end if negative, within a dimension of `size`."""
    return (index < 0).select(index + size, index).maximum(0).minimum(max(size - 1, 0))


@operator("GatherElements", since=11)
def gather_elements(node: Node, emit: Emitter) -> SSAValue:
    """result[i][j] = data[index[i][j]][j] for axis 0: the flat position is affine in the index."""
    shape, wanted = node.shape(), node.shape(1)
    axis = node.axis(node.attr("axis"), len(shape))
    if len(wanted) != len(shape) or any(
        want > have for d, (want, have) in enumerate(zip(wanted, shape, strict=True)) if d != axis
    ):
        node.reject(f"indices of shape {list(wanted)} do not fit data of shape {list(shape)}")
    strides = contiguous_strides(shape)
    terms = [emit.positions(want, d, len(shape)) for d, want in enumerate(wanted) if d != axis]
    factors = [stride for d, stride in enumerate(strides) if d != axis]

    def position(index: Scalar, *terms: Scalar) -> Scalar:
        total = _inside(index, shape[axis]) * strides[axis]
        for term, factor in zip(terms, factors, strict=True):
            total = total + term * factor
        return total

    flat = emit.elementwise(position, emit.cast(node[1], i64), *terms)
    return emit.add(GatherOp(emit.reshape(node[0], (prod(shape),)), flat, 0))


@operator("GatherND", since=11)
def gather_nd(node: Node, emit: Emitter) -> SSAValue:
    """The last dimension of the indices names elements of as many dimensions, after the batch ones."""
    shape, wanted, batch = node.shape(), node.shape(1), node.attr("batch_dims", 0)
    if not wanted or wanted[:batch] != shape[:batch] or batch + wanted[-1] > len(shape):
        node.reject(f"indices of shape {list(wanted)} do not fit data of shape {list(shape)}")
    outer, depth = wanted[:-1], wanted[-1]
    leading = shape[: batch + depth]
    strides = contiguous_strides(leading)
    last = len(wanted) - 1
    parts = [
        emit.reshape(emit.slice(node[1], [0] * last + [i], [*outer, 1], [1] * len(wanted)), outer)
        for i in range(depth)
    ]
    terms = [emit.positions(shape[d], d, len(outer)) for d in range(batch)]

    def position(*values: Scalar) -> Scalar:
        total = values[0].like(0)
        for value, d in zip(values, (*range(batch, batch + depth), *range(batch)), strict=True):
            total = total + (_inside(value, shape[d]) if d >= batch else value) * strides[d]
        return total

    flat = emit.elementwise(position, *parts, *terms)
    data = emit.reshape(node[0], (prod(leading), *shape[batch + depth :]))
    return emit.add(GatherOp(data, flat, 0))


def _running(
    node: Node, emit: Emitter, combine: Callable[[Scalar, Scalar], Scalar], neutral: int
) -> SSAValue:
    """
    Partial results along an axis by doubling: after step k each element combines the 2^k before it.

    Source: Hillis and Steele, Data Parallel Algorithms, CACM 1986.
    """
    shape = node.shape()
    axis = node.axis(int(node.known_scalar(1, "axis")), len(shape))
    size, reverse = shape[axis], node.flag("reverse")
    value = node[0]
    if node.flag("exclusive"):
        value = _shifted(emit, value, axis, 1, reverse, neutral)
    distance = 1
    while distance < size:
        value = emit.elementwise(combine, value, _shifted(emit, value, axis, distance, reverse, neutral))
        distance *= 2
    return value


def _shifted(emit: Emitter, value: SSAValue, axis: int, by: int, back: bool, fill: int) -> SSAValue:
    """`value` moved `by` elements towards the end of `axis` (the beginning with `back`), filled up."""
    shape = shape_of(value)
    by = min(by, shape[axis])
    offsets, sizes, pads = [0] * len(shape), list(shape), [0] * len(shape)
    offsets[axis], sizes[axis], pads[axis] = by if back else 0, shape[axis] - by, by
    kept = emit.slice(value, offsets, sizes, [1] * len(shape))
    none: Sequence[int] = [0] * len(shape)
    low, high = (none, pads) if back else (pads, none)
    return emit.add(PadOp(kept, low, high, "constant", scalar_attribute(fill, value)))


@operator("CumSum", since=11, limits="an axis that is computed at run time")
def cumulative_sum(node: Node, emit: Emitter) -> SSAValue:
    return _running(node, emit, lambda a, b: a + b, 0)


@operator("CumProd", limits="an axis that is computed at run time")
def cumulative_product(node: Node, emit: Emitter) -> SSAValue:
    return _running(node, emit, lambda a, b: a * b, 1)
