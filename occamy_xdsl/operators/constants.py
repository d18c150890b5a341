"""Operators whose result does not depend on the elements of a run-time tensor."""

from collections.abc import Sequence
from math import ceil, prod
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import f32, i1, i64
from xdsl.ir import Attribute, SSAValue

from occamy_xdsl.dialects import onnx
from occamy_xdsl.dialects.dnn import element_type_of
from occamy_xdsl.dialects.weights import WeightsRefAttr, element_type, to_array
from occamy_xdsl.operators.emitter import ELEMENT_TYPES, Emitter
from occamy_xdsl.operators.node import Node
from occamy_xdsl.operators.registry import operator


@operator("Constant", limits="strings; sparse tensors")
def constant(node: Node, emit: Emitter) -> SSAValue:
    """The importer gives every Constant the attribute `value`."""
    value = node.op.properties.get("value")
    if value is None:
        node.refuse("a value that is no dense tensor")
    type = node.op.results[0].type
    if (element := element_type_of(type)) not in ELEMENT_TYPES:
        node.refuse(f"element type {element}")
    return emit.literal(value, type)


@operator("ConstantOfShape", since=9)
def constant_of_shape(node: Node, emit: Emitter) -> SSAValue:
    shape = node.known_ints(0, "the shape")
    if min(shape, default=0) < 0:
        node.reject(f"shape {shape} has negative sizes")
    value = node.op.properties.get("value")
    if value is None:
        return emit.fill(0.0, shape, f32)
    if isinstance(value, WeightsRefAttr):  # a value that has no decimal spelling, such as NaN
        array = value.data.array()
        return emit.fill(array.item(), shape, element_type(array.dtype))
    type: Attribute = cast(Any, value).type
    return emit.fill(to_array(value, type).item(), shape, element_type_of(type))


@operator("Shape")
def shape(node: Node, emit: Emitter) -> SSAValue:
    """Of the dimensions from `start` to `end`, negative ones counted from the end, both clamped."""
    start, end = node.attr("start", 0), node.attr("end")
    return emit.constant(np.array(node.shape()[start:end], np.int64), i64)


@operator("Size")
def size(node: Node, emit: Emitter) -> SSAValue:
    return emit.constant(np.array(prod(node.shape()), np.int64), i64)


@operator("Range", since=11, limits="bounds that are computed at run time")
def range_(node: Node, emit: Emitter) -> SSAValue:
    """start + i * delta for max(ceil((limit - start) / delta), 0) elements."""
    bounds: list[Any] = [node.known_scalar(i, name) for i, name in enumerate(("start", "limit", "delta"))]
    start, limit, delta = bounds
    if delta == 0:
        node.reject("delta is 0")
    count = max(ceil((limit - start) / delta), 0)
    emit.check_computed(count, node.element())
    values: list[Any] = [start + i * delta for i in range(count)]
    return emit.constant(np.array(values), node.element())


@operator("EyeLike", since=9)
def eye_like(node: Node, emit: Emitter) -> SSAValue:
    if node.rank() != 2:
        node.reject(f"needs a matrix, got shape {list(node.shape())}")
    stated = node.attr("dtype")
    element = node.element() if stated is None else onnx.element_type(stated)
    if element not in ELEMENT_TYPES:
        node.refuse(f"element type {element}")
    k: int = node.attr("k")
    row, column = (emit.positions(n, axis, 2) for axis, n in enumerate(node.shape()))
    return emit.elementwise(lambda r, c: (c - r == k).cast(element), row, column)


@operator("Trilu", since=14, limits="k that is computed at run time")
def trilu(node: Node, emit: Emitter) -> SSAValue:
    k = int(node.known_scalar(1, "k")) if node.has(1) else 0
    rank, upper = node.rank(), node.flag("upper")
    if rank < 2:
        node.reject(f"needs rank 2 or more, got shape {list(node.shape())}")
    row = emit.positions(node.shape()[-2], rank - 2, rank)
    column = emit.positions(node.shape()[-1], rank - 1, rank)
    return emit.elementwise(
        lambda x, r, c: (c - r >= k if upper else c - r <= k).select(x, x.like(0)), node[0], row, column
    )


@operator("Dropout", since=7, limits="training_mode that is true or computed at run time")
def dropout(node: Node, emit: Emitter) -> Sequence[SSAValue | None]:
    """The identity outside of training; nothing is dropped, so the mask is all true."""
    if node.has(2) and bool(node.known_scalar(2, "training_mode")):
        node.refuse("training_mode")
    mask = emit.fill(True, node.shape(), i1) if node.wants(1) else None
    return node[0], mask


@operator("OneHot", since=9, limits="a depth that is computed at run time")
def one_hot(node: Node, emit: Emitter) -> SSAValue:
    """Where the index, counted from the end if negative, equals the position along `axis`."""
    depth = int(node.known_scalar(1, "depth"))
    rank = node.rank() + 1
    axis = node.axis(node.attr("axis"), rank)
    shape = [*node.shape()[:axis], 1, *node.shape()[axis:]]
    indices = emit.reshape(emit.cast(node[0], i64), shape)
    positions = emit.positions(depth, axis, rank)
    off, on = (emit.reshape(emit.slice(node[2], [i], [1], [1]), ()) for i in range(2))
    return emit.elementwise(
        lambda i, p, no, yes: ((i < 0).select(i + depth, i) == p).select(yes, no), indices, positions, off, on
    )
