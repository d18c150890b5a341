"""Which library calls and kernels compute a `dnn` op in buffer form on a GPU."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, f32
from xdsl.ir import Block, SSAValue
from xdsl.utils.hints import isa

from occamy_xdsl.analysis.aliasing import offset_in_root, root_of
from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.weights import Weights
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer
from occamy_xdsl.lowering.cpu.kernels.strided import collapse
from occamy_xdsl.lowering.cuda.convolutions import Problem
from occamy_xdsl.lowering.cuda.kernels import points
from occamy_xdsl.lowering.cuda.kernels.product import product_kernel
from occamy_xdsl.lowering.cuda.kernels.rows import RowLayerNorm, RowReduce, RowSoftmax
from occamy_xdsl.lowering.cuda.kernels.spec import VECTOR_BYTES, GpuKernel
from occamy_xdsl.lowering.cuda.kernels.tiled import copy_kernel, elementwise_kernel
from occamy_xdsl.lowering.cuda.steps import (
    Convolution,
    Deconvolution,
    Launch,
    Matrix,
    Operand,
    Pooling,
    Product,
    Scratch,
    Softmax,
    Step,
    Window,
)
from occamy_xdsl.lowering.interface import DEVICE_ALIGNMENT

ALGORITHM, LIBRARY_BYTES, PROLOGUE_CHANNELS = "cuda.algorithm", "cuda.library_bytes", "cuda.prologue_channels"
"""
Attributes that `cuda-assign-workspaces` gives to an op that a library computes: the algorithm of a convolution,
the bytes of workspace that the library may use, and the channels for which a prologue is computed at once.
"""
PROLOGUE_IN_PLACE = "cuda.prologue_in_place"
"""Attribute that it gives to a convolution whose input nobody needs afterwards: the prologue is computed there."""
PADS_AT_ONCE = "cuda.pads_at_once"
"""
Attribute that it gives to a convolution whose ends are padded unequally and whose whole input may be copied, with
zeros around it. Otherwise only those rows are copied that are computed from zeros, too.
"""
LEAST_CHANNELS = 32
"""Channels for which a prologue is computed at once where memory is short."""


class UnsupportedOpError(Exception):
    """No step computes an op; the message says why."""


@dataclass
class Plan:
    """The steps of one op, and the bytes of the workspace that they use."""

    steps: list[Step] = field(default_factory=list[Step])
    scratch_bytes: int = 0

    def reserve(self, size: int) -> Scratch:
        """A new part of the workspace, of `size` bytes."""
        scratch = Scratch(self.scratch_bytes)
        self.scratch_bytes += -(-size // DEVICE_ALIGNMENT) * DEVICE_ALIGNMENT
        return scratch

    def temporary(self, shape: Sequence[int], dtype: str = "f32") -> Operand:
        """A new row-major array in the workspace."""
        buffer = Buffer.contiguous(shape, dtype)
        return Operand(self.reserve(buffer.extent * buffer.element_bytes), buffer)

    def launch(self, kernel: GpuKernel, *operands: Operand) -> None:
        """Add a launch; nothing is done for a result without elements."""
        if operands[-1].buffer.elements:
            self.steps.append(Launch(kernel, operands))

    def copy(self, source: Operand, target: Operand) -> None:
        """Add a copy between arrays of the same shape and type."""
        kernel = copy_kernel(source.buffer, target.buffer, aligned=is_aligned(source, target))
        self.launch(kernel, source, target)

    def contiguous(self, operand: Operand) -> Operand:
        """The operand, or a row-major copy of it in the workspace."""
        if operand.buffer.is_contiguous:
            return operand
        packed = self.temporary(operand.buffer.shape, operand.buffer.dtype)
        self.copy(operand, packed)
        return packed


def operand_of(value: SSAValue) -> Operand:
    """A memref as an operand."""
    buffer = Buffer(dnn.shape_of(value), dnn.strides_of(value), str(dnn.element_type_of(value)))
    return Operand(value, buffer)


def is_aligned(*operands: Operand) -> bool:
    """Whether all operands start at multiples of 16 bytes, given that whole buffers start at more."""
    return all(
        o.shift % VECTOR_BYTES == 0
        if not isinstance(o.place, SSAValue)
        else (offset_in_root(o.place) + o.offset) * o.buffer.element_bytes % VECTOR_BYTES == 0
        for o in operands
    )


def shares_memory(a: Operand, b: Operand) -> bool:
    """Whether two operands may show the same memory."""
    if isinstance(a.place, SSAValue) and isinstance(b.place, SSAValue):
        return (
            root_of(a.place) is root_of(b.place) and _span(a)[0] < _span(b)[1] and _span(b)[0] < _span(a)[1]
        )
    return a.place == b.place


def _span(operand: Operand) -> tuple[int, int]:
    """The first byte of an operand, and the first after it, from the start of its root."""
    assert isinstance(operand.place, SSAValue)
    buffer = operand.buffer
    first = offset_in_root(operand.place) + operand.offset - buffer.origin
    return first * buffer.element_bytes, (first + buffer.extent) * buffer.element_bytes


def select(op: dnn.KernelOp) -> Plan:
    """The steps for an op in buffer form. Raises UnsupportedOpError."""
    plan = Plan()
    out = operand_of(op.outs[0])
    if not out.buffer.elements:
        return plan
    match op:
        case dnn.ConvOp():
            _conv(plan, op, out)
        case dnn.ConvTransposeOp():
            _conv_transpose(plan, op, out)
        case dnn.MatmulOp():
            _matmul(plan, op, out)
        case dnn.PoolOp():
            _pool(plan, op, out)
        case dnn.SoftmaxOp():
            _softmax(plan, op, out)
        case dnn.ElementwiseOp():
            _elementwise(plan, op.body.block, [operand_of(v) for v in op.ins], out)
        case dnn.CopyOp():
            for source, target in _moves(op):
                plan.copy(source, target)
        case dnn.ReduceOp():
            _reduce(plan, op.kind.data, dnn.ints(op.axes), operand_of(op.input), out)
        case dnn.LayerNormOp():
            _layer_norm(plan, op, out)
        case _:
            _points(plan, op, out)
    return plan


def _moves(op: dnn.CopyOp) -> Iterator[tuple[Operand, Operand]]:
    """
    The copies, one after the other, that a copy consists of.

    Kernels copy in any order. Where the result lies in front of the input and overlaps it, each copy moves as many
    rows as fit in between. Raises UnsupportedOpError where that is no number of rows.
    """
    source, target = operand_of(op.input), operand_of(op.outs[0])
    if not op.overlap:
        yield source, target
        return
    shape, strides = source.buffer.shape, source.buffer.strides
    steps = [
        (dim, op.overlap // stride)
        for dim, (size, stride) in enumerate(zip(shape, strides, strict=True))
        if stride > 0 and op.overlap % stride == 0 and op.overlap // stride < size
    ]
    if not steps:
        raise UnsupportedOpError("on a GPU elements that move in front of themselves do so by whole rows")
    dim, rows = steps[0]
    for begin in range(0, shape[dim], rows):
        part = (*shape[:dim], min(rows, shape[dim] - begin), *shape[dim + 1 :])
        buffer = replace(source.buffer, shape=part)
        yield (
            Operand(source.place, buffer, begin * strides[dim]),
            Operand(target.place, buffer, begin * strides[dim]),
        )


# --- what ends an op --------------------------------------------------------------------------------------


def _elementwise(plan: Plan, body: Block, inputs: Sequence[Operand], out: Operand) -> None:
    shape = out.buffer.shape
    kernel = elementwise_kernel(
        body,
        tuple(operand.buffer.broadcast_to(shape) for operand in inputs),
        out.buffer,
        aligned=is_aligned(*inputs, out),
        in_place=any(shares_memory(operand, out) for operand in inputs),
    )
    plan.launch(kernel, *inputs, out)


def _accumulator(plan: Plan, op: dnn.FusableOp, out: Operand) -> Operand:
    """Where the op itself puts its result, before `_finish`: not over what is read afterwards."""
    extras = [operand_of(value) for value in op.extras]
    if any(shares_memory(extra, out) for extra in extras):
        return plan.temporary(out.buffer.shape)
    return out


@dataclass(frozen=True)
class Residual:
    """What an epilogue adds first, and to nothing else, to the result that a library can add it to."""

    position: int
    """Which of the extras it is."""
    sum: arith.AddfOp


def _residual(op: dnn.FusableOp, out: Operand) -> Residual | None:
    """The extra in whose place the result is written, if the library can add to it and need not keep it."""
    extras = [operand_of(value) for value in op.extras]
    shared = [i for i, extra in enumerate(extras) if shares_memory(extra, out)]
    if op.epilogue is None or len(shared) != 1:
        return None
    extra, arguments = extras[shared[0]], op.epilogue.block.args
    if extra.buffer != out.buffer or offset_in_root(op.extras[shared[0]]) != offset_in_root(op.outs[0]):
        return None
    terms = arguments[0], arguments[1 + shared[0]]
    users = [[use.operation for use in term.uses] for term in terms]
    if users[0] != users[1] or len(users[0]) != 1 or not isinstance(users[0][0], arith.AddfOp):
        return None
    return Residual(shared[0], users[0][0])


def _finish(
    plan: Plan,
    op: dnn.FusableOp,
    result: Operand,
    bias: Operand | None,
    out: Operand,
    residual: Residual | None = None,
) -> None:
    """Bias and epilogue, in one kernel over the result, which may have had the residual added."""
    if bias is None and (op.epilogue is None or (residual is not None and _only_adds(op, residual))):
        if result is not out:
            plan.copy(result, out)
        return
    extras = [operand_of(v) for i, v in enumerate(op.extras) if residual is None or i != residual.position]
    inputs = [result, *([bias] if bias is not None else []), *extras]
    body = Block(arg_types=[f32] * (2 if bias is not None else 1))
    value: SSAValue = body.args[0]
    if bias is not None:
        total = arith.AddfOp(value, body.args[1])
        body.add_op(total)
        value = total.result
    if op.epilogue is None:
        body.add_op(dnn.YieldOp(value))
    else:
        source = op.epilogue.block
        mapping: dict[SSAValue, SSAValue] = {source.args[0]: value}
        if residual is not None:
            mapping[residual.sum.result] = value
        for i, argument in enumerate(source.args[1:]):
            if residual is None or i != residual.position:
                mapping[argument] = body.insert_arg(argument.type, len(body.args))
        for inner in source.ops:
            if residual is None or inner is not residual.sum:
                body.add_op(inner.clone(mapping))
    _elementwise(plan, body, inputs, out)


def _only_adds(op: dnn.FusableOp, residual: Residual) -> bool:
    """Whether the epilogue does nothing but add the residual."""
    assert op.epilogue is not None
    end = op.epilogue.block.last_op
    assert isinstance(end, dnn.YieldOp)
    return end.values[0] is residual.sum.result


def ends_in_relu(op: dnn.FusableOp) -> tuple[bool, SSAValue | None]:
    """Whether the epilogue is `max(x, 0)` or `max(x + extra, 0)`, and the extra."""
    if op.epilogue is None or len(op.extras) > 1:
        return False, None
    block = op.epilogue.block
    end = block.last_op
    assert isinstance(end, dnn.YieldOp)
    last = end.values[0].owner
    if not isinstance(last, arith.MaximumfOp) or not _is_zero(last.rhs):
        return False, None
    if not op.extras:
        return last.lhs is block.args[0], None
    add = last.lhs.owner
    if not isinstance(add, arith.AddfOp) or set(add.operands) != set(block.args):
        return False, None
    return True, op.extras[0]


def _is_zero(value: SSAValue) -> bool:
    constant = value.owner
    return (
        isinstance(constant, arith.ConstantOp)
        and isa(constant.value, FloatAttr)
        and constant.value.value.data == 0
    )


# --- convolutions -----------------------------------------------------------------------------------------


def _require_f32(op: dnn.KernelOp, *operands: Operand) -> None:
    for operand in operands:
        if operand.buffer.dtype != "f32":
            raise UnsupportedOpError(f"on a GPU it computes f32 only, not {operand.buffer.dtype}")


def _flat(operand: Operand) -> Operand:
    """A (N, C, W) array as (N, C, 1, W): cuDNN needs two spatial dimensions."""
    buffer = operand.buffer
    if buffer.rank != 3:
        return operand
    (n, c, w), (step_n, step_c, step_w) = buffer.shape, buffer.strides
    flat = Buffer((n, c, 1, w), (step_n, step_c, w * step_w, step_w), buffer.dtype)
    return replace(operand, buffer=flat)


def _flat_window(window: Window) -> Window:
    if len(window.pads) != 1:
        return window
    return Window((0, *window.pads), (1, *window.strides), (1, *window.dilations), window.groups)


def _describable(operand: Operand) -> bool:
    """Whether a cuDNN descriptor can have the operand's strides: all positive."""
    return min(operand.buffer.strides, default=1) > 0


@dataclass(frozen=True)
class Part:
    """Some channels of a convolution's input, from `first` of all of them on."""

    operand: Operand
    first: int

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.operand.buffer.shape[1]


def prologue_channels(op: dnn.ConvOp) -> int:
    """Channels of the input that a prologue is computed for at once."""
    channels = op.input_shape[1]
    if op.group_.value.data > 1 or PROLOGUE_IN_PLACE in op.attributes:
        return channels
    return _attribute(op, PROLOGUE_CHANNELS) or min(channels, LEAST_CHANNELS)


def _parts(op: dnn.ConvOp) -> list[Part]:
    """The input in the parts that are convolved one after the other, whose sum is the result."""
    most = prologue_channels(op) if op.prologue is not None else op.input_shape[1]
    parts: list[Part] = []
    start = 0
    for operand in map(operand_of, (op.input, *op.joined)):
        channels, stride = operand.buffer.shape[1], operand.buffer.strides[1]
        for first in range(0, channels, most):
            shape = (operand.buffer.shape[0], min(most, channels - first), *operand.buffer.shape[2:])
            buffer = replace(operand.buffer, shape=shape)
            parts.append(Part(replace(operand, buffer=buffer, offset=first * stride), start + first))
        start += channels
    return parts


def problem_of(op: dnn.ConvOp) -> Problem:
    """The convolution that cuDNN is asked for; of several parts the widest."""
    channels = max(part.channels for part in _parts(op))
    x, pads, filter = op.input_shape, dnn.ints(op.pads), dnn.shape_of(op.filter)
    groups = op.group_.value.data
    rank = len(x) - 2
    low, high = pads[:rank], pads[rank:]
    spatial, result = x[2:], dnn.shape_of(op.outs[0])
    if (pieces := padded_rows(op)) is not None:
        # Most rows are those that need no zeros.
        d, rows = pieces.dimension, pieces.plain
        spatial = (*spatial[:d], rows.size, *spatial[d + 1 :])
        result = (*result[: d + 2], rows.count, *result[d + 3 :])
        low = (*low[:d], 0, *low[d + 1 :])
    elif low != high:
        spatial = tuple(a + size + b for a, size, b in zip(low, spatial, high, strict=True))
        low = (0,) * rank
    return Problem(
        (x[0], channels, *spatial), (filter[0], channels // groups, *filter[2:]), result, low,
        dnn.ints(op.strides), dnn.ints(op.dilations), groups,
    )  # fmt: skip


@dataclass(frozen=True)
class Rows:
    """
    `count` rows of a result, from `first` on, along one of its spatial dimensions. They are computed from `size` rows
    of the input, from `source` on, with `low` and `high` rows of zeros before and after them.
    """

    first: int
    count: int
    source: int
    size: int
    low: int = 0
    high: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether no zeros are needed."""
        return not self.low and not self.high


@dataclass(frozen=True)
class PaddedRows:
    """The rows of a convolution along the only spatial dimension whose ends are padded unequally."""

    dimension: int
    pieces: tuple[Rows, ...]

    @property
    def plain(self) -> Rows:
        """Those that need no zeros."""
        (rows,) = (rows for rows in self.pieces if rows.is_plain)
        return rows


def padded_rows(op: dnn.ConvOp) -> PaddedRows | None:
    """How a convolution is computed without a copy of the whole input; None where that is not possible or needed."""
    pads, filter = dnn.ints(op.pads), dnn.shape_of(op.filter)[2:]
    rank = len(pads) // 2
    unequal = [d for d in range(rank) if pads[d] != pads[rank + d]]
    if len(unequal) != 1 or PADS_AT_ONCE in op.attributes or min(pads) < 0:
        return None
    (d,) = unequal
    low, step, rows = pads[d], dnn.ints(op.strides)[d], op.input_shape[2 + d]
    extent, count = dnn.ints(op.dilations)[d] * (filter[d] - 1) + 1, dnn.shape_of(op.outs[0])[2 + d]
    # The first row whose window starts in the input, and the first whose window ends behind it.
    start, end = -(-low // step), min(count, (rows + low - extent) // step + 1)
    if start >= end:
        return None
    pieces = [Rows(start, end - start, start * step - low, (end - start - 1) * step + extent)]
    if start:
        pieces.insert(0, Rows(0, start, 0, (start - 1) * step - low + extent, low=low))
    if end < count:
        source = end * step - low
        high = (count - 1) * step - low + extent - rows
        pieces.append(Rows(end, count - end, source, rows - source, high=high))
    # With strides beyond the window some rows may be computed from nothing but zeros.
    return PaddedRows(d, tuple(pieces)) if all(piece.size > 0 for piece in pieces) else None


def _in_rows(operand: Operand, dimension: int, first: int, count: int) -> Operand:
    """Some rows of an array along a spatial dimension."""
    at, buffer = dimension + 2, operand.buffer
    shape = (*buffer.shape[:at], count, *buffer.shape[at + 1 :])
    return replace(
        operand, buffer=replace(buffer, shape=shape), offset=operand.offset + first * buffer.strides[at]
    )


def _convolved(plan: Plan, op: dnn.ConvOp, part: Part, y: Operand) -> Iterator[tuple[Operand, Operand]]:
    """
    What cuDNN takes in the place of a part: after the prologue, padded where ends differ, with its strides; all of it
    or some rows after the other. And what of the result `y` it computes from that.
    """
    x = part.operand
    if op.prologue is not None:
        extras = [_of_channels(operand_of(value), part) for value in op.prologue_extras]
        result = x if PROLOGUE_IN_PLACE in op.attributes else plan.temporary(x.buffer.shape)
        _elementwise(plan, op.prologue.block, [x, *extras], result)
        x = result
    pads = dnn.ints(op.pads)
    rank = len(pads) // 2
    rows = padded_rows(op)
    if rows is None and pads[:rank] != pads[rank:]:
        yield _padded(plan, x, (0, 0, *pads[:rank]), (0, 0, *pads[rank:])), y
        return
    x = x if _describable(x) else plan.contiguous(x)
    if rows is None:
        yield x, y
        return
    start, d = plan.scratch_bytes, rows.dimension
    for piece in rows.pieces:
        plan.scratch_bytes = start
        source = _in_rows(x, d, piece.source, piece.size)
        if not piece.is_plain:
            low, high = ([0] * source.buffer.rank for _ in range(2))
            low[2 + d], high[2 + d] = piece.low, piece.high
            source = _padded(plan, source, low, high)
        yield source, _in_rows(y, d, piece.first, piece.count)


def _padded(plan: Plan, x: Operand, low: Sequence[int], high: Sequence[int]) -> Operand:
    """A copy in the workspace with zeros around it."""
    padded = plan.temporary([a + size + b for a, size, b in zip(low, x.buffer.shape, high, strict=True)])
    plan.launch(points.Pad(tuple(low), tuple(high), "constant", 0.0, x.buffer, padded.buffer), x, padded)
    return padded


def _of_channels(extra: Operand, part: Part) -> Operand:
    """The elements of a value a channel, or one in all, for a part."""
    at = extra.buffer.rank - part.operand.buffer.rank + 1
    if at < 0 or extra.buffer.shape[at] == 1:
        return extra
    shape = (*extra.buffer.shape[:at], part.channels, *extra.buffer.shape[at + 1 :])
    offset = extra.offset + part.first * extra.buffer.strides[at]
    return replace(extra, buffer=replace(extra.buffer, shape=shape), offset=offset)


def _filter_of(plan: Plan, op: dnn.ConvOp, part: Part) -> Operand:
    """The filter's packed slice for a part; of a constant it is one, too."""
    w = operand_of(op.filter)
    shape = (w.buffer.shape[0], part.channels // op.group_.value.data, *w.buffer.shape[2:])
    if shape == w.buffer.shape:
        return plan.contiguous(w)
    first, end = part.first, part.first + shape[1]
    constant = op.filter.owner
    if isinstance(constant, dnn.ConstantOp):

        def channels(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
            return array[:, first:end]

        weights = constant.weights
        label = f"channels{first}-{end}"
        slice_ = Weights.derived(label, channels, weights, dtype=weights.dtype, shape=shape)
        return Operand(slice_, Buffer.contiguous(shape))
    return plan.contiguous(Operand(w.place, replace(w.buffer, shape=shape), first * w.buffer.strides[1]))


def _conv(plan: Plan, op: dnn.ConvOp, out: Operand) -> None:
    parts, w = _parts(op), operand_of(op.filter)
    _require_f32(op, *(part.operand for part in parts), w, out)
    if w.buffer.rank > 5:
        raise UnsupportedOpError(f"cuDNN convolves 1 to 3 spatial dimensions, not {w.buffer.rank - 2}")
    pads = dnn.ints(op.pads)
    if min(pads) < 0:
        raise UnsupportedOpError(f"negative pads {list(pads)} on a GPU")
    problem = problem_of(op)
    window = Window(problem.pads, problem.strides, problem.dilations, problem.groups)
    bias = None if op.bias is None else plan.contiguous(operand_of(op.bias))
    relu, extra = ends_in_relu(op)
    z = None if extra is None else operand_of(extra)
    # cuDNN fuses over packed tensors, and adds one of the very layout of the result.
    in_workspace = op.prologue is not None and PROLOGUE_IN_PLACE not in op.attributes
    packed = in_workspace or pads[: len(pads) // 2] != pads[len(pads) // 2 :]
    fuses = (
        relu
        and padded_rows(op) is None
        and (packed or parts[-1].operand.buffer.is_contiguous)
        and out.buffer.is_contiguous
        and (z is None or (z.buffer == out.buffer and len(parts) == 1))
    )
    residual = None if fuses else _residual(op, out)
    target = out if fuses or residual is not None else _accumulator(plan, op, out)
    library_bytes = _attribute(op, LIBRARY_BYTES)
    scratch = plan.reserve(library_bytes) if library_bytes else None
    if fuses and bias is None:
        zeros = np.zeros(w.buffer.shape[0], np.float32)
        bias = Operand(Weights.of(zeros, f"zeros.{zeros.size}"), Buffer.contiguous(zeros.shape))
    start = most = plan.scratch_bytes
    for part in parts:
        # The parts come one after the other, in the same memory.
        plan.scratch_bytes = start
        filter = _filter_of(plan, op, part)
        ends = fuses and part is parts[-1]
        for x, y in _convolved(plan, op, part, target):
            most = max(most, plan.scratch_bytes)
            plan.steps.append(
                Convolution(
                    _flat(x),
                    _flat(filter),
                    _flat(y),
                    _flat_window(window),
                    _attribute(op, ALGORITHM),
                    scratch,
                    library_bytes,
                    bias if ends else None,
                    _flat(z) if ends and z is not None else None,
                    part is not parts[0] or residual is not None,
                )
            )
    plan.scratch_bytes = most
    if not fuses:
        _finish(plan, op, target, None if bias is None else _channels(bias, out), out, residual)


def _attribute(op: dnn.KernelOp, name: str) -> int:
    value = op.attributes.get(name)
    return value.value.data if isa(value, IntegerAttr) else 0


def _channels(bias: Operand, out: Operand) -> Operand:
    """A value a channel, with the rank of the result."""
    (count,), (stride,) = bias.buffer.shape, bias.buffer.strides
    rank = out.buffer.rank - 2
    shape, strides = (count, *(1,) * rank), (stride, *(0,) * rank)
    return Operand(bias.place, Buffer(shape, strides, bias.buffer.dtype))


def _conv_transpose(plan: Plan, op: dnn.ConvTransposeOp, out: Operand) -> None:
    x, w = operand_of(op.input), operand_of(op.filter)
    _require_f32(op, x, w, out)
    rank = x.buffer.rank - 2
    pads = dnn.ints(op.pads)
    low, high = pads[:rank], pads[rank:]
    if rank > 3:
        raise UnsupportedOpError(f"cuDNN convolves 1 to 3 spatial dimensions, not {rank}")
    if min(pads) < 0:
        raise UnsupportedOpError(f"negative pads {list(pads)} on a GPU")
    strides = dnn.ints(op.strides)
    if any(extra >= stride for extra, stride in zip(dnn.ints(op.output_padding), strides, strict=True)):
        raise UnsupportedOpError("an output padding of a whole stride or more on a GPU")
    # The convolution that this one inverts pads both ends equally; where the result is cropped more at one
    # end, the rest is computed, too, and left out.
    both = tuple(min(ends) for ends in zip(low, high, strict=True))
    window = Window(both, strides, dnn.ints(op.dilations), op.group_.value.data)
    target = _accumulator(plan, op, out)
    cropped = [a + b - 2 * p for a, b, p in zip(low, high, both, strict=True)]
    whole = result = target
    if any(cropped):
        sizes = (size + more for size, more in zip(out.buffer.shape[2:], cropped, strict=True))
        whole = plan.temporary((*out.buffer.shape[:2], *sizes))
        steps = whole.buffer.strides[2:]
        first = sum((a - p) * step for a, p, step in zip(low, both, steps, strict=True))
        result = Operand(whole.place, replace(whole.buffer, shape=out.buffer.shape), first)
    x = x if _describable(x) else plan.contiguous(x)
    plan.steps.append(Deconvolution(_flat(x), _flat(plan.contiguous(w)), _flat(whole), _flat_window(window)))
    bias = None if op.bias is None else _channels(operand_of(op.bias), out)
    _finish(plan, op, result, bias, out)


# --- matrix products --------------------------------------------------------------------------------------


def _leading(buffer: Buffer) -> tuple[int, bool] | None:
    """Elements between rows, or between columns and True, of row- or column-major matrices; None for others."""
    (rows, columns), (down, across) = buffer.shape[-2:], buffer.strides[-2:]
    if (across == 1 or columns == 1) and (down >= columns or rows == 1):
        return max(columns, 1) if rows == 1 else down, False
    if (down == 1 or rows == 1) and (across >= rows or columns == 1):
        return max(rows, 1) if columns == 1 else across, True
    return None


def _matmul(plan: Plan, op: dnn.MatmulOp, out: Operand) -> None:
    a, b = operand_of(op.a), operand_of(op.b)
    by_integers = has_integer_weights(op)
    _require_f32(op, a, *(() if by_integers else (b,)), out)
    shape = out.buffer.shape
    depth = a.buffer.shape[-1]
    leading = _leading(out.buffer)
    is_row_major = leading is not None and not leading[1]
    residual = _residual(op, out) if depth and not by_integers and is_row_major else None
    target = result = out if residual is not None else _accumulator(plan, op, out)
    if depth and by_integers:
        of_a, of_b = (o.buffer.broadcast_to((*shape[:-2], *o.buffer.shape[-2:])) for o in (a, b))
        plan.launch(product_kernel(of_a, of_b, result.buffer), a, b, result)
    elif depth:
        leading = _leading(target.buffer)
        if leading is None or leading[1]:
            result = plan.temporary(shape)
        a, b = (o if _leading(o.buffer) is not None else plan.contiguous(o) for o in (a, b))
        _products(plan, op, a, b, result, accumulates=residual is not None)
    else:
        zero = Block()
        constant = arith.ConstantOp(FloatAttr(0.0, f32))
        zero.add_ops([constant, dnn.YieldOp(constant.result)])
        _elementwise(plan, zero, [], result)
    bias = None if op.bias is None else operand_of(op.bias)
    if result is not target and bias is None and op.epilogue is None:
        plan.copy(result, out)
        return
    _finish(plan, op, result, bias, out, residual)


def has_integer_weights(op: dnn.MatmulOp) -> bool:
    """Whether the right matrix is of integers, by which a generated kernel multiplies and not cuBLAS."""
    return str(dnn.element_type_of(op.b)) in ("i8", "ui8", "i16", "ui16", "i32")


def _products(plan: Plan, op: dnn.MatmulOp, a: Operand, b: Operand, c: Operand, *, accumulates: bool) -> None:
    """
    `c = a @ b` for all matrices of the batch, or `c += a @ b`.

    cuBLAS has column-major matrices: what it calls C is our result transposed, so its A is our `b`.
    """
    (rows, columns), depth = c.buffer.shape[-2:], a.buffer.shape[-1]
    leading = [_leading(o.buffer) for o in (a, b, c)]
    batch_shape = c.buffer.shape[:-2]
    views = [o.buffer.broadcast_to((*batch_shape, *o.buffer.shape[-2:])) for o in (a, b, c)]
    batch = collapse(batch_shape, [view.strides[:-2] for view in views], key=2)
    if len(batch) == 1 and leading[0] is not None and leading[2] is not None:
        # One matrix `b` for all: the matrices of `a` are one below the other.
        (size, (step_a, step_b, step_c)) = batch[0].size, batch[0].strides
        if (
            step_b == 0
            and not leading[0][1]
            and (step_a, step_c) == (rows * leading[0][0], rows * leading[2][0])
        ):
            rows, batch = rows * size, []
    *outer, inner = batch or [None]
    library_bytes = _attribute(op, LIBRARY_BYTES)
    scratch = plan.reserve(library_bytes) if library_bytes else None
    for point in np.ndindex(*(dim.size for dim in outer if dim is not None)):
        matrices: list[Matrix] = []
        for i, (operand, found) in enumerate(zip((a, b, c), leading, strict=True)):
            assert found is not None
            offset = sum(at * dim.strides[i] for at, dim in zip(point, outer, strict=True) if dim is not None)
            moved = replace(operand, offset=operand.offset + offset)
            matrices.append(Matrix(moved, found[0], inner.strides[i] if inner is not None else 0, found[1]))
        count = inner.size if inner is not None else 1
        plan.steps.append(
            Product(
                matrices[1],
                matrices[0],
                matrices[2],
                columns,
                rows,
                depth,
                count,
                scratch,
                library_bytes,
                accumulates,
            )
        )


# --- pooling, softmax, reductions -------------------------------------------------------------------------


def _pool(plan: Plan, op: dnn.PoolOp, out: Operand) -> None:
    x = operand_of(op.input)
    if len(op.outs) > 1:
        raise UnsupportedOpError("the positions of maxima are not computed on a GPU")
    kernel, strides, dilations = dnn.ints(op.kernel), dnn.ints(op.strides), dnn.ints(op.dilations)
    pads = dnn.ints(op.pads)
    rank = len(kernel)
    target = _accumulator(plan, op, out) if op.epilogue is not None else out
    low, high = pads[:rank], pads[rank:]
    is_average = op.kind.data == "average"
    counts_pads = bool(op.count_include_pad.value.data)
    spatial = tuple(range(2, rank + 2))
    if kernel == x.buffer.shape[2:] and not any(pads) and set(out.buffer.shape[2:]) == {1}:
        kept = replace(target.buffer, shape=target.buffer.shape[:2], strides=target.buffer.strides[:2])
        kind = "mean" if is_average else "max"
        _reduce(plan, kind, spatial, x, replace(target, buffer=kept))
    elif (
        x.buffer.dtype == "f32"
        and rank <= 3
        and set(dilations) == {1}
        and all(0 <= p < k for p, k in zip(low, kernel, strict=True))
        and (low == high or not (is_average and counts_pads))
        # Without rounding up, and with equal pads, cuDNN must come to the same number of windows.
        and all(
            (size + 2 * p - k) // s + 1 == want
            for size, p, k, s, want in zip(
                x.buffer.shape[2:], low, kernel, strides, out.buffer.shape[2:], strict=True
            )
        )
        and _describable(x)
    ):
        suffix = "INCLUDE" if counts_pads else "EXCLUDE"
        mode = f"AVERAGE_COUNT_{suffix}_PADDING" if is_average else "MAX"
        flat = 3 - rank if rank < 2 else 0
        window = _flat_window(Window(low, strides, dilations))
        sizes = (1, *kernel) if flat else kernel
        plan.steps.append(Pooling(_flat(x), _flat(target), f"CUDNN_POOLING_{mode}", sizes, window))
    else:
        plan.launch(
            points.Pool(
                "average" if is_average else "max", kernel, strides, dilations, pads, counts_pads, x.buffer,
                target.buffer,
            ),
            x, target,
        )  # fmt: skip
    _finish_in_own_type(plan, op, target, out)


def _finish_in_own_type(plan: Plan, op: dnn.PoolOp, target: Operand, out: Operand) -> None:
    """The epilogue of a pooling."""
    if op.epilogue is not None:
        inputs = [target, *(operand_of(value) for value in op.extras)]
        _elementwise(plan, op.epilogue.block, inputs, out)


def _last(buffer: Buffer, axis: int) -> Buffer:
    """The buffer with one dimension moved to the end."""
    order = [*(d for d in range(buffer.rank) if d != axis), axis]
    return Buffer(
        tuple(buffer.shape[d] for d in order), tuple(buffer.strides[d] for d in order), buffer.dtype
    )


def _softmax(plan: Plan, op: dnn.SoftmaxOp, out: Operand) -> None:
    x, axis, log = operand_of(op.input), op.axis.value.data, bool(op.log.value.data)
    if x.buffer.dtype == "f32" and x.buffer.is_contiguous and out.buffer.is_contiguous:
        shape = x.buffer.shape
        merged = Buffer.contiguous((prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]), 1))
        plan.steps.append(Softmax(replace(x, buffer=merged), replace(out, buffer=merged), log))
        return
    plan.launch(RowSoftmax(_last(x.buffer, axis), _last(out.buffer, axis), log), x, out)


def _reduce(plan: Plan, kind: str, axes: Sequence[int], x: Operand, out: Operand) -> None:
    buffer = x.buffer
    gone = collapse([buffer.shape[d] for d in axes], [[buffer.strides[d] for d in axes]])
    kept = [d for d in range(buffer.rank) if d not in axes]
    if kind in ("sum", "mean", "max", "min", "prod") and len(gone) == 1 and (
        kind != "mean" or buffer.dtype in ("f16", "bf16", "f32", "f64")
    ):  # fmt: skip
        shape, strides = [buffer.shape[d] for d in kept], [buffer.strides[d] for d in kept]
        source = Buffer((*shape, gone[0].size), (*strides, gone[0].strides[0]), buffer.dtype)
        target = Buffer((*out.buffer.shape, 1), (*out.buffer.strides, 1), out.buffer.dtype)
        plan.launch(RowReduce(source, target, kind), x, out)
        return
    plan.launch(points.Reduce(kind, tuple(axes), buffer, out.buffer), x, out)


def _layer_norm(plan: Plan, op: dnn.LayerNormOp, out: Operand) -> None:
    x, axis = operand_of(op.input), op.axis.value.data
    shape = out.buffer.shape
    if axis < len(shape) - 1 and not x.buffer.is_contiguous:
        x = plan.contiguous(x)
    extras = [operand_of(v) for v in (op.scale, op.bias) if v is not None]
    extras = [replace(plan.contiguous(e) if axis < len(shape) - 1 else e) for e in extras]
    wide = [e.buffer.broadcast_to(shape) for e in extras]
    rows: list[Buffer] = []
    for buffer in (x.buffer, *wide, out.buffer):
        inner = collapse(buffer.shape[axis:], [buffer.strides[axis:]], key=0)
        if len(inner) > 1:
            raise UnsupportedOpError("scale, bias or result change in several dimensions at once on a GPU")
        size, step = (inner[0].size, inner[0].strides[0]) if inner else (1, 1)
        rows.append(Buffer((*buffer.shape[:axis], size), (*buffer.strides[:axis], step), buffer.dtype))
    if not shape[axis:] or not prod(shape[axis:]):
        raise UnsupportedOpError("rows without elements on a GPU")
    kernel = RowLayerNorm(
        rows[0],
        rows[-1],
        rows[1] if op.scale is not None else None,
        rows[-2] if op.bias is not None else None,
        op.epsilon.value.data,
    )
    plan.launch(kernel, x, *extras, out)


# --- one thread an element --------------------------------------------------------------------------------


def _points(plan: Plan, op: dnn.KernelOp, out: Operand) -> None:
    match op:
        case dnn.ArgReduceOp():
            x = operand_of(op.input)
            kernel = points.ArgReduce(
                op.kind.data, op.axis.value.data, bool(op.select_last.value.data), x.buffer, out.buffer
            )
            plan.launch(kernel, x, out)
        case dnn.LrnOp():
            x = operand_of(op.input)
            kernel = points.Lrn(
                op.size.value.data, op.alpha.value.data, op.beta.value.data, op.bias.value.data, x.buffer,
                out.buffer,
            )  # fmt: skip
            plan.launch(kernel, x, out)
        case dnn.PadOp():
            x = operand_of(op.input)
            value = op.value.value.data if isa(op.value, IntegerAttr | FloatAttr) else 0
            kernel = points.Pad(
                dnn.ints(op.low), dnn.ints(op.high), op.mode.data, value, x.buffer, out.buffer
            )
            _with_tables(plan, kernel, x, out)
        case dnn.ResizeOp():
            x = operand_of(op.input)
            kernel = points.Resize(
                op.mode.data,
                op.coordinate_transformation_mode.data,
                op.nearest_mode.data,
                op.cubic_coeff_a.value.data,
                bool(op.exclude_outside.value.data),
                tuple(op.scales.get_values()),
                x.buffer,
                out.buffer,
            )
            _with_tables(plan, kernel, x, out)
        case dnn.GatherOp():
            data, indices = operand_of(op.data), operand_of(op.indices)
            kernel = points.Gather(op.axis.value.data, data.buffer, indices.buffer, out.buffer)
            plan.launch(kernel, data, indices, out)
        case dnn.ControlOp():
            raise UnsupportedOpError("control flow that depends on data runs on the CPU only")
        case _:
            raise UnsupportedOpError("no kernel for a GPU computes it")


def _with_tables(plan: Plan, kernel: points.TableKernel, x: Operand, out: Operand) -> None:
    tables = [
        Operand(Weights.of(table, f"{kernel.symbol}.table{i}"), buffer)
        for i, (table, buffer) in enumerate(zip(kernel.tables, kernel.arguments[1:-1], strict=True))
    ]
    plan.launch(kernel, x, *tables, out)
