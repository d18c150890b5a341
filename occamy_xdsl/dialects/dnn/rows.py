"""
Rows of values: which rows of its operands an op needs for a range of rows of its result.

Rows lie along any one dimension: the lines of images, the tokens of a sequence, the images of a batch. An op that
moves dimensions finds the rows of its operand in another dimension than those of its result.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from operator import mul
from typing import cast

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, SSAValue
from xdsl.rewriter import Rewriter

from occamy_xdsl.dialects.dnn.base import (
    KernelOp,
    ValueType,
    i64_array,
    ints,
    shape_of,
    tensor_type,
)
from occamy_xdsl.dialects.dnn.compute import (
    ArgReduceOp,
    ConvOp,
    ConvTransposeOp,
    ElementwiseOp,
    GatherOp,
    LayerNormOp,
    LrnOp,
    MatmulOp,
    PadOp,
    PoolOp,
    ReduceOp,
    ResizeOp,
    SoftmaxOp,
    WindowOp,
)
from occamy_xdsl.dialects.dnn.geometry import window_extent
from occamy_xdsl.dialects.dnn.interpolation import resize_taps
from occamy_xdsl.dialects.dnn.memory import CopyOp
from occamy_xdsl.dialects.dnn.shape import BroadcastOp, ConcatOp, ReshapeOp, SliceOp, TransposeOp

LINES = 2
"""The outermost of the spatial dimensions, the one along which windows are followed."""


@dataclass(frozen=True, slots=True)
class RowMap:
    """
    Row `o` of a result needs rows ceil((o * step - lead) / factor) to floor((o * step - lead + reach - 1) /
    factor) of an operand that has `size` rows, along its dimension `dim`.

    A window has step = stride, lead = begin padding, reach = extent; what enlarges has a factor > 1.
    """

    size: int
    step: int = 1
    lead: int = 0
    reach: int = 1
    factor: int = 1
    dim: int = LINES

    def __call__(self, begin: int, end: int) -> tuple[int, int]:
        """The rows [first, last) that exist of those that the result's rows [begin, end) need; at least one."""
        last = ((end - 1) * self.step - self.lead + self.reach - 1) // self.factor + 1
        first = min(-((self.lead - begin * self.step) // self.factor), last - 1)
        first = min(max(first, 0), self.size - 1)
        return first, min(max(last, first + 1), self.size)


RowMaps = tuple[RowMap | None, ...]
"""A map for each operand of an op, None for one that every row of the result needs whole."""


def row_maps(op: KernelOp, dim: int) -> RowMaps | None:
    """
    The maps of a value-form op whose result's rows lie along `dim`.

    None where rows of the result cannot be computed apart from each other, or where there is but one.
    """
    if len(op.results) != 1:
        return None
    shape = shape_of(op.results[0])
    if not 0 <= dim < len(shape) or 0 in shape or shape[dim] == 1:
        return None
    rank, rows = len(shape), shape[dim]

    def at(own: int) -> RowMap:
        return RowMap(rows, dim=own)

    def aligned(value: SSAValue) -> RowMap | None:
        """For an operand that broadcasts to the result."""
        shape = shape_of(value)
        own = dim - rank + len(shape)
        return at(own) if own >= 0 and shape[own] == rows else None

    match op:
        case ElementwiseOp() | CopyOp() | BroadcastOp():
            return tuple(aligned(value) for value in op.operands)
        case LrnOp():
            return None if dim == 1 else (at(dim),)
        case SoftmaxOp():
            return None if dim == op.axis.value.data else (at(dim),)
        case LayerNormOp():
            return None if dim >= op.axis.value.data else tuple(aligned(value) for value in op.operands)
        case ConcatOp():
            return None if dim == op.axis.value.data else tuple(aligned(value) for value in op.ins)
        case PadOp():
            return (at(dim),) if ints(op.low)[dim] == ints(op.high)[dim] == 0 else None
        case TransposeOp():
            return (at(ints(op.permutation)[dim]),)
        case ReshapeOp():
            own = _regrouped(shape_of(op.input), shape, dim)
            return None if own is None else (own,)
        case SliceOp():
            offset, stride = ints(op.offsets)[dim], ints(op.strides)[dim]
            size = shape_of(op.input)[dim]
            return (RowMap(size, stride, -offset, dim=dim),) if stride > 0 else None
        case ReduceOp() | ArgReduceOp():
            axes = ints(op.axes) if isinstance(op, ReduceOp) else (op.axis.value.data,)
            kept = [d for d in range(len(shape_of(op.input))) if d not in axes]
            return (at(kept[dim]),)
        case GatherOp():
            axis, width = op.axis.value.data, len(shape_of(op.indices))
            if axis <= dim < axis + width:
                return None, at(dim - axis)
            return at(dim if dim < axis else dim - width + 1), None
        case MatmulOp():
            a = at(len(shape_of(op.a)) - 2) if dim == rank - 2 else None
            b = at(len(shape_of(op.b)) - 1) if dim == rank - 1 else None
            if dim < rank - 2:
                a, b = aligned(op.a), aligned(op.b)
            return a, b, *(aligned(value) for value in op.operands[2:])
        case ConvOp() | PoolOp() | ConvTransposeOp():
            own = _window(op) if dim == LINES else at(0) if dim == 0 else None
        case ResizeOp():
            own = _window(op) if dim == LINES else None
        case _:
            return None
    if own is None:
        return None
    maps = list[RowMap | None]()
    for name in op.group_names:
        for value in op.group(name):
            maps.append(own if name in ("input", "joined") else aligned(value) if name == "extras" else None)
    return tuple(maps)


def _regrouped(have: Sequence[int], shape: Sequence[int], dim: int) -> RowMap | None:
    """
    The map of a reshape from `have` to `shape`, whose dimension `dim` is a dimension of the operand, or one
    joined with dimensions after it, or its outer part.
    """
    outer, rows = prod(shape[:dim]), shape[dim]
    for own, size in enumerate(have):
        if size == 1 or prod(have[:own]) != outer:
            continue
        if size % rows == 0 and size // rows in accumulate(shape[dim + 1 :], mul, initial=1):
            step = size // rows
            return RowMap(size, step=step, reach=step, dim=own)
        if rows % size == 0 and rows // size in accumulate(have[own + 1 :], mul, initial=1):
            factor = rows // size
            return RowMap(size, lead=factor - 1, reach=factor, factor=factor, dim=own)
    return None


def row_unit(op: KernelOp, dim: int) -> int:
    """How many rows of the result, along `dim`, an op makes of a row of its operand, all or none of them."""
    if not isinstance(op, ReshapeOp):
        return 1
    own = _regrouped(shape_of(op.input), shape_of(op.results[0]), dim)
    return 1 if own is None else own.factor


def row_dims(ops: Iterable[KernelOp], dims: Mapping[SSAValue, int]) -> dict[SSAValue, int]:
    """
    The dimensions along which the rows of values lie, given those of some: what ops need for their results.

    `ops` are in order of execution. An operand whose rows are needed along two dimensions has the one that the last
    of its readers needs.
    """
    known = dict(dims)
    for op in reversed(list(ops)):
        dim = known.get(op.results[0])
        for value, rows_of in zip(op.operands, (dim is not None and row_maps(op, dim)) or (), strict=False):
            if rows_of is not None:
                known.setdefault(value, rows_of.dim)
    return known


def _window(op: ConvOp | PoolOp | ConvTransposeOp | ResizeOp) -> RowMap | None:
    """The map of the op's input; None where its padding or its resampling is of an unusual kind."""
    size, rows = shape_of(op.input)[LINES], shape_of(op.results[0])[LINES]
    if isinstance(op, ResizeOp):
        factor = rows // size
        return RowMap(size, lead=factor - 1, reach=factor, factor=factor) if _repeats(op) else None
    if min(ints(op.pads)) < 0:
        return None
    kernel = ints(op.kernel) if isinstance(op, PoolOp) else shape_of(op.filter)[2:]
    stride, dilation, (begin, _) = op.window_geometry(len(kernel))[0]
    extent = window_extent(kernel[0], dilation)
    if isinstance(op, ConvTransposeOp):
        return RowMap(size, lead=extent - 1 - begin, reach=extent, factor=stride)
    return RowMap(size, step=stride, lead=begin, reach=extent)


def _repeats(op: ResizeOp) -> bool:
    """Whether each row of the result is input row `row // factor`, in any part of the input of any size."""
    size, rows = shape_of(op.input)[LINES], shape_of(op.results[0])[LINES]
    scale = op.scales.get_values()[LINES]
    if op.mode.data != "nearest" or rows % size or scale != rows // size:
        return False
    if op.coordinate_transformation_mode.data in ("align_corners", "half_pixel_symmetric"):
        return scale == 1
    factor = rows // size
    return all(
        np.array_equal(_taps(op, part), np.arange(part * factor) // factor) for part in {1, 2, 3, size}
    )


def _taps(op: ResizeOp, size: int) -> np.ndarray:
    """The row that each row of a resized input of `size` rows shows."""
    scale = op.scales.get_values()[LINES]
    indices, _ = resize_taps(
        op.mode.data,
        op.coordinate_transformation_mode.data,
        op.nearest_mode.data,
        op.cubic_coeff_a.value.data,
        bool(op.exclude_outside.value.data),
        scale,
        size,
        round(size * scale),
    )
    return indices[:, 0]


def with_rows(type: Attribute, rows: int, dim: int) -> ValueType:
    """A tensor type with another number of rows."""
    assert isinstance(type, TensorType)
    type = cast("ValueType", type)
    shape = list(type.get_shape())
    shape[dim] = rows
    return tensor_type(shape, type.element_type, type.encoding)


def slice_rows(value: SSAValue, begin: int, end: int, dim: int) -> SliceOp:
    """Rows [begin, end) of a value, in the value's order of dimensions."""
    shape = shape_of(value)
    offsets, sizes = [0] * len(shape), list(shape)
    offsets[dim], sizes[dim] = begin, end - begin
    op = SliceOp(value, offsets, sizes, [1] * len(shape))
    Rewriter.replace_value_with_new_type(op.results[0], with_rows(value.type, end - begin, dim))
    return op


def on_rows(op: KernelOp, dim: int, operands: Sequence[SSAValue], begin: int, end: int) -> KernelOp:
    """
    A copy of a row-local op that computes rows [begin, end) of its result, along `dim`.

    `operands` hold, of each operand that has a row map, the rows that the map gives, and are else the op's own.
    """
    clone = op.clone(dict(zip(op.operands, operands, strict=True)))
    for index, operand in enumerate(operands):
        clone.operands[index] = operand
    clone.results[0].name_hint = op.results[0].name_hint
    Rewriter.replace_value_with_new_type(clone.results[0], with_rows(op.results[0].type, end - begin, dim))
    match clone:
        case SliceOp():
            offsets, sizes = list(ints(clone.offsets)), list(ints(clone.sizes))
            offsets[dim], sizes[dim] = 0, end - begin
            clone.properties |= {"offsets": i64_array(offsets), "sizes": i64_array(sizes)}
        case ConvTransposeOp() | ConvOp() | PoolOp() if dim == LINES:
            _set_pads(op, clone, begin, end)
        case _:
            pass
    return clone


def _set_pads(op: KernelOp, clone: WindowOp, begin: int, end: int) -> None:
    """Leaves of the padding of dimension `LINES` what lies above the first and below the last input row."""
    assert isinstance(op, ConvOp | PoolOp | ConvTransposeOp)
    own = _window(op)
    assert own is not None
    first, last = own(begin, end)
    pads, rank = list(ints(op.pads)), len(ints(op.strides))
    if isinstance(op, ConvTransposeOp):
        # Padding crops: what rows [first, last) produce from row first * stride - pad on.
        pads[0] += begin - first * own.factor
        produced = (last - first - 1) * own.factor + own.reach
        spare = produced - pads[0] - (end - begin)
        pads[rank] = max(spare, 0)
        extra = list(ints(op.output_padding))
        extra[0] = max(-spare, 0)
        clone.properties["output_padding"] = i64_array(extra)
    else:
        pads[0] = max(first - (begin * own.step - own.lead), 0)
        pads[rank] = min(max((end - 1) * own.step - own.lead + own.reach - last, 0), pads[rank])
    clone.properties["pads"] = i64_array(pads)
