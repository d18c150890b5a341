"""
Numpy meaning of every `dnn` op that computes: one function an op, from arrays to arrays.

Both interpreters share these functions, and so does the constant folder. Arrays have the logical shapes of
the op's operands, whatever lies behind their strides.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, TypeVar, cast

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from xdsl.dialects.builtin import FloatAttr, IntegerAttr
from xdsl.ir import Attribute, SSAValue

from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.dnn.geometry import window_extent
from occamy_xdsl.dialects.dnn.interpolation import resize_taps
from occamy_xdsl.dialects.weights import numpy_dtype
from occamy_xdsl.interpreters.scalars import evaluate_block

Array = NDArray[Any]
Groups = dict[str, tuple[Array, ...]]
"""Arrays of an op's operand groups, by the group's name; an absent group is empty."""

OpT = TypeVar("OpT", bound=dnn.KernelOp)


def evaluate(op: dnn.KernelOp, operands: Sequence[Array]) -> tuple[Array, ...]:
    """
    The arrays that `op` computes, in the dtypes and shapes of its destinations, from arrays of its `inputs`.

    Raises NotImplementedError where the op has no numpy meaning here.
    """
    groups: Groups = {}
    rest = list(operands)
    for name in op.group_names:
        if name not in ("outs", "workspace"):
            count = len(op.group(name))
            groups[name], rest = tuple(rest[:count]), rest[count:]
    function = _FUNCTIONS.get(type(op))
    if function is None:
        raise NotImplementedError(f"'{op.name}' has no numpy meaning")
    with np.errstate(all="ignore"):
        results = function(op, groups)
    if isinstance(op, dnn.FusableOp) and op.epilogue is not None:
        shape = dnn.shape_of(op.destinations[0])
        accumulated = results[0].astype(numpy_dtype(op.accumulated_type), copy=False)
        arguments = [np.broadcast_to(a, shape) for a in (accumulated, *groups["extras"])]
        results = (*evaluate_block(op.epilogue.block, arguments), *results[1:])
    return tuple(_store(r, d.type) for r, d in zip(results, op.destinations, strict=True))


def _store(array: Array, type: Attribute) -> Array:
    """`array` as the elements of a destination: broadcast to its shape, in its dtype."""
    dtype = numpy_dtype(dnn.element_type_of(type))
    if array.dtype.kind == "i" and dtype.kind == "u" and array.dtype.itemsize == dtype.itemsize:
        array = array.view(dtype)
    return np.broadcast_to(array.astype(dtype, copy=False), dnn.shape_of(type))


def _one(groups: Groups, name: str) -> Array | None:
    values = groups[name]
    return values[0] if values else None


def _number(attribute: Any) -> Any:
    return cast(IntegerAttr[Any] | FloatAttr[Any], attribute).value.data


Geometry = list[tuple[int, int, tuple[int, int]]]


def _windows(x: Array, geometry: Geometry, kernel: Sequence[int], result: Sequence[int], fill: Any) -> Array:
    """A view (N, C, spatial of the result..., kernel...) of the padded input; padding reads as `fill`."""
    rank = len(kernel)
    pads = [(0, 0), (0, 0)]
    for have, size, count, (stride, dilation, (begin, _)) in zip(
        x.shape[2:], kernel, result[2:], geometry, strict=True
    ):
        need = (count - 1) * stride + window_extent(size, dilation)
        pads.append((begin, need - begin - have))
    x = x[
        (..., *(slice(0, have + min(end, 0)) for have, (_, end) in zip(x.shape[2:], pads[2:], strict=True)))
    ]
    padded = np.pad(x, [(max(begin, 0), max(end, 0)) for begin, end in pads], constant_values=fill)
    padded = padded[(..., *(slice(max(-begin, 0), None) for begin, _ in pads[2:]))]
    extents = [window_extent(size, g[1]) for size, g in zip(kernel, geometry, strict=True)]
    view = sliding_window_view(padded, extents, axis=tuple(range(2, 2 + rank)))
    steps = tuple(slice(None, None, g[0]) for g in geometry)
    taps = tuple(slice(None, None, g[1]) for g in geometry)
    return view[(slice(None), slice(None), *steps, *taps)]


def _conv(op: dnn.ConvOp, groups: Groups) -> tuple[Array, ...]:
    x, (w,) = np.concatenate([*groups["input"], *groups["joined"]], axis=1), groups["filter"]
    if op.prologue is not None:
        arguments = [np.broadcast_to(a, x.shape) for a in (x, *groups["prologue_extras"])]
        (x,) = evaluate_block(op.prologue.block, arguments)
    wide_type = numpy_dtype(op.accumulated_type)
    x, w = (a.astype(wide_type, copy=False) for a in (x, w))
    result = dnn.shape_of(op.destinations[0])
    kernel, group = w.shape[2:], op.group_.value.data
    geometry = op.window_geometry(len(kernel))
    out = np.empty(result, np.result_type(x, w))
    per, wide = w.shape[1], w.shape[0] // group
    axes = range(2, 2 + len(kernel))
    for g in range(group):
        windows = _windows(x[:, g * per : (g + 1) * per], geometry, kernel, result, 0)
        taps = [windows.ndim - len(kernel) + i for i in range(len(kernel))]
        product_ = np.tensordot(windows, w[g * wide : (g + 1) * wide], ([1, *taps], [1, *axes]))
        out[:, g * wide : (g + 1) * wide] = np.moveaxis(product_, -1, 1)
    bias = _one(groups, "bias")
    return (out if bias is None else out + bias.reshape(-1, *(1,) * len(kernel)),)


def _conv_transpose(op: dnn.ConvTransposeOp, groups: Groups) -> tuple[Array, ...]:
    (x,), (w,) = groups["input"], groups["filter"]
    result = dnn.shape_of(op.destinations[0])
    kernel, group = w.shape[2:], op.group_.value.data
    geometry = op.window_geometry(len(kernel))
    # Scatter into an uncropped result, then crop `pads`; output_padding enlarges the end.
    full = [
        max((size - 1) * stride + window_extent(k, dilation), begin + want)
        for size, k, (stride, dilation, (begin, _)), want in zip(
            x.shape[2:], kernel, geometry, result[2:], strict=True
        )
    ]
    out = np.zeros((result[0], result[1], *full), np.result_type(x, w))
    per, wide = x.shape[1] // group, w.shape[1]
    for g, position in product(range(group), np.ndindex(*kernel)):
        part = np.tensordot(
            x[:, g * per : (g + 1) * per], w[(slice(g * per, (g + 1) * per), ..., *position)], ([1], [0])
        )
        where = tuple(
            slice(p * dilation, p * dilation + (size - 1) * stride + 1, stride)
            for p, size, (stride, dilation, _) in zip(position, x.shape[2:], geometry, strict=True)
        )
        out[(slice(None), slice(g * wide, (g + 1) * wide), *where)] += np.moveaxis(part, -1, 1)
    crop = tuple(slice(g[2][0], g[2][0] + want) for g, want in zip(geometry, result[2:], strict=True))
    out = out[(slice(None), slice(None), *crop)]
    bias = _one(groups, "bias")
    return (out if bias is None else out + bias.reshape(-1, *(1,) * len(kernel)),)


def _lowest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "iu":
        return np.iinfo(dtype).min
    return False if dtype.kind == "b" else -np.inf


def _pool(op: dnn.PoolOp, groups: Groups) -> tuple[Array, ...]:
    (x,) = groups["input"]
    kernel, result = dnn.ints(op.kernel), dnn.shape_of(op.destinations[0])
    geometry = op.window_geometry(len(kernel))
    axes = tuple(range(x.ndim, x.ndim + len(kernel)))
    if op.kind.data == "max":
        windows = _windows(x, geometry, kernel, result, _lowest(x.dtype))
        if len(op.destinations) == 1:
            return (windows.max(axis=axes),)
        positions = np.arange(x.size, dtype=np.int64).reshape(x.shape)
        where = _windows(positions, geometry, kernel, result, -1).reshape(*result, -1)
        flat = windows.reshape(*result, -1)
        # Padding may tie with a genuine lowest value: only positions inside the input compete.
        inside = where >= 0
        best = np.argmax(np.where(inside, _rank_of(flat), -1), axis=-1)[..., None]
        return windows.max(axis=axes), np.take_along_axis(where, best, -1)[..., 0]
    total = _windows(x, geometry, kernel, result, 0).sum(axis=axes)
    ones = np.ones((1, 1, *x.shape[2:]), x.dtype)
    if op.count_include_pad.value.data:
        # Padding counts as data; what a window overhangs beyond it still does not.
        ones = np.pad(ones, [(0, 0), (0, 0), *(pads for _, _, pads in geometry)], constant_values=1)
        geometry = [(stride, dilation, (0, 0)) for stride, dilation, _ in geometry]
    count = _windows(ones, geometry, kernel, (1, 1, *result[2:]), 0).sum(axis=axes)
    return (total / count,)


def _rank_of(x: Array) -> Array:
    """Integers ordered as the elements along the last axis are, NaN on top, equal where these are equal."""
    key = np.where(np.isnan(x), np.inf, x) if x.dtype.kind == "f" else x
    order = (key[..., :, None] > key[..., None, :]).sum(-1)
    return order + np.isnan(x) * x.shape[-1] if x.dtype.kind == "f" else order


def _matmul(op: dnn.MatmulOp, groups: Groups) -> tuple[Array, ...]:
    (a,), (b,) = groups["a"], groups["b"]
    wide = numpy_dtype(op.accumulated_type)
    out = np.matmul(a.astype(wide, copy=False), b.astype(wide, copy=False))
    bias = _one(groups, "bias")
    return (out if bias is None else out + bias,)


def _elementwise(op: dnn.ElementwiseOp, groups: Groups) -> tuple[Array, ...]:
    shape = dnn.shape_of(op.destinations[0])
    return evaluate_block(op.body.block, [np.broadcast_to(a, shape) for a in groups["ins"]])


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    """Of nothing it is 0 / 0: NaN, and 0 in integers."""
    dtype = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
    count = np.prod([x.shape[axis] for axis in axes], dtype=np.int64)
    mean = np.asarray(x.sum(axis=axes, dtype=dtype) / dtype.type(count))
    return mean if x.dtype == dtype else np.nan_to_num(mean)


def _log_sum_exp(x: Array, axes: tuple[int, ...]) -> Array:
    top = x.max(axis=axes, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0)
    return np.log(np.exp(x - top).sum(axis=axes)) + top.reshape(np.sum(x, axis=axes).shape)


_REDUCTIONS: dict[str, Callable[[Array, tuple[int, ...]], Array]] = {
    "sum": lambda x, axes: x.sum(axis=axes, dtype=x.dtype),
    "mean": _mean,
    "max": lambda x, axes: x.max(axis=axes, initial=_lowest(x.dtype)),
    "min": lambda x, axes: x.min(axis=axes, initial=_highest(x.dtype)),
    "prod": lambda x, axes: x.prod(axis=axes, dtype=x.dtype),
    "l1": lambda x, axes: np.abs(x).sum(axis=axes, dtype=x.dtype),
    "l2": lambda x, axes: np.sqrt(np.square(x).sum(axis=axes, dtype=x.dtype)),
    "sum_square": lambda x, axes: np.square(x).sum(axis=axes, dtype=x.dtype),
    "log_sum": lambda x, axes: np.log(x.sum(axis=axes, dtype=x.dtype)),
    "log_sum_exp": _log_sum_exp,
}


def _highest(dtype: np.dtype[Any]) -> Any:
    if dtype.kind in "iu":
        return np.iinfo(dtype).max
    return True if dtype.kind == "b" else np.inf


def _reduce(op: dnn.ReduceOp, groups: Groups) -> tuple[Array, ...]:
    (x,) = groups["input"]
    kind, axes = op.kind.data, dnn.ints(op.axes)
    roots = x.dtype.kind != "f" and kind in ("l2", "log_sum", "log_sum_exp")
    operand = x.astype(np.float64) if roots else x
    result = _REDUCTIONS[kind](operand, axes) if axes else _REDUCTIONS[kind](operand[None], (0,))
    return (_to_integers(result, x.dtype) if roots else result,)


def _to_integers(values: Array, dtype: np.dtype[Any]) -> Array:
    """f64 towards zero; out of the range the nearest f64 in it, and for NaN the least."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    largest = float(high) if float(high) <= high else np.nextafter(float(high), 0)
    return np.fmin(np.fmax(values, low), largest).astype(dtype)


def _arg_reduce(op: dnn.ArgReduceOp, groups: Groups) -> tuple[Array, ...]:
    (x,) = groups["input"]
    axis = op.axis.value.data
    function = np.argmax if op.kind.data == "max" else np.argmin
    if not op.select_last.value.data:
        return (function(x, axis=axis),)
    return (x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis),)


def _softmax(op: dnn.SoftmaxOp, groups: Groups) -> tuple[Array, ...]:
    (x,) = groups["input"]
    axis = op.axis.value.data
    if x.size == 0:
        return (x,)
    shifted = x - x.max(axis=axis, keepdims=True)
    total = np.exp(shifted).sum(axis=axis, keepdims=True)
    return (shifted - np.log(total) if op.log.value.data else np.exp(shifted) / total,)


def _layer_norm(op: dnn.LayerNormOp, groups: Groups) -> tuple[Array, ...]:
    (x,) = groups["input"]
    axes = tuple(range(op.axis.value.data, x.ndim))
    centred = x - x.mean(axis=axes, keepdims=True)
    variance = np.square(centred).mean(axis=axes, keepdims=True)
    out = centred / np.sqrt(variance + np.asarray(_number(op.epsilon), x.dtype))
    for name, function in (("scale", np.multiply), ("bias", np.add)):
        if (value := _one(groups, name)) is not None:
            out = function(out, value)
    return (out,)


def _lrn(op: dnn.LrnOp, groups: Groups) -> tuple[Array, ...]:
    (x,) = groups["input"]
    size = op.size.value.data
    before = (size - 1) // 2
    pads = [(0, 0), (before, size - 1 - before), *((0, 0),) * (x.ndim - 2)]
    total = sliding_window_view(np.pad(np.square(x), pads), size, axis=1).sum(axis=-1)
    scaled = _number(op.bias) + _number(op.alpha) / size * total
    return (x / np.power(scaled, _number(op.beta)),)


def _pad(op: dnn.PadOp, groups: Groups) -> tuple[Array, ...]:
    (x,) = groups["input"]
    widths = list(zip(dnn.ints(op.low), dnn.ints(op.high), strict=True))
    if op.mode.data == "constant":
        return (np.pad(x, widths, constant_values=_number(op.value)),)
    return (np.pad(x, widths, mode=cast(Any, op.mode.data)),)


def _gather(op: dnn.GatherOp, groups: Groups) -> tuple[Array, ...]:
    (data,), (indices,) = groups["data"], groups["indices"]
    size = data.shape[op.axis.value.data]
    wrapped = np.where(indices < 0, indices.astype(np.int64) + size, indices)
    return (np.take(data, np.clip(wrapped, 0, max(size - 1, 0)), axis=op.axis.value.data),)


def _resize(op: dnn.ResizeOp, groups: Groups) -> tuple[Array, ...]:
    (x,) = groups["input"]
    out = x
    for axis, (size, scale) in enumerate(
        zip(dnn.shape_of(op.destinations[0]), op.scales.get_values(), strict=True)
    ):
        if size == x.shape[axis] and scale == 1:
            continue
        indices, weights = resize_taps(
            op.mode.data,
            op.coordinate_transformation_mode.data,
            op.nearest_mode.data,
            _number(op.cubic_coeff_a),
            bool(op.exclude_outside.value.data),
            scale,
            x.shape[axis],
            size,
        )
        taps = np.take(out, indices, axis=axis)
        spread = weights.reshape(*weights.shape, *(1,) * (out.ndim - axis - 1))
        out = (taps * spread).sum(axis=axis + 1)
    return (out,)


def _slice(op: dnn.SliceOp, groups: Groups) -> tuple[Array, ...]:
    index = list[Array]()
    for offset, size, stride in zip(
        dnn.ints(op.offsets), dnn.ints(op.sizes), dnn.ints(op.strides), strict=True
    ):
        index.append(offset + stride * np.arange(size))
    return (groups["input"][0][np.ix_(*index)] if index else groups["input"][0],)


def _stripe(op: dnn.StripeOp, groups: Groups) -> tuple[Array, ...]:
    """The body, run whole."""
    known: dict[SSAValue, Array] = dict(zip(op.body.block.args, groups["ins"], strict=True))
    for inner in op.body.block.ops:
        if isinstance(inner, dnn.KernelOp):
            known.update(zip(inner.results, evaluate(inner, [known[v] for v in inner.operands]), strict=True))
    last = op.body.block.last_op
    assert isinstance(last, dnn.YieldOp)
    return tuple(known[v] for v in last.values)


_FUNCTIONS: dict[type[dnn.KernelOp], Callable[[Any, Groups], tuple[Array, ...]]] = {
    dnn.ArgReduceOp: _arg_reduce,
    dnn.BroadcastOp: lambda op, groups: (np.broadcast_to(groups["input"][0], dnn.shape_of(op.results[0])),),
    dnn.ConcatOp: lambda op, groups: (np.concatenate(groups["ins"], axis=op.axis.value.data),),
    dnn.ConvOp: _conv,
    dnn.ConvTransposeOp: _conv_transpose,
    dnn.CopyOp: lambda op, groups: groups["input"],
    dnn.ElementwiseOp: _elementwise,
    dnn.GatherOp: _gather,
    dnn.LayerNormOp: _layer_norm,
    dnn.LrnOp: _lrn,
    dnn.MatmulOp: _matmul,
    dnn.PadOp: _pad,
    dnn.PoolOp: _pool,
    dnn.ReduceOp: _reduce,
    dnn.ReshapeOp: lambda op, groups: (groups["input"][0].reshape(dnn.shape_of(op.results[0])),),
    dnn.ResizeOp: _resize,
    dnn.SliceOp: _slice,
    dnn.SoftmaxOp: _softmax,
    dnn.StripeOp: _stripe,
    dnn.TransposeOp: lambda op, groups: (groups["input"][0].transpose(dnn.ints(op.permutation)),),
}
