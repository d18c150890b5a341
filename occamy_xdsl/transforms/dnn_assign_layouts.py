"""`dnn-assign-layouts`: chooses the physical order of every tensor's dimensions."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, NoneAttr, TensorType
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Attribute, Block, Operation, OpResult, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from occamy_xdsl.dialects import dnn

Order = tuple[int, ...]


@dataclass(frozen=True)
class DnnAssignLayoutsPass(ModulePass):
    """
    Gives each tensor the order of dimensions that its producer writes best and its users read best.

    Convolutions and pools write channels-last, or row-major without the option `channels_last`; other ops keep
    the order of their largest operand, so that transposes, splits of dimensions and elementwise work in place
    cost nothing. What only the caller reads is row-major. An order that differs from row-major only in
    dimensions of one element is not recorded.

    Results of a `dnn.if` are ordered as its first branch has them, values that a `dnn.loop` carries as its body
    computes them, where that is possible.

    Requires: value form.
    Ensures: tensor types carry a `#dnn.order` where they are not row-major; a `dnn.copy` leads to each result
    that was not row-major, and to values of control flow that come in another order; no other op changes.

    Before:

    ```mlir
    %0 = dnn.conv input(%x : tensor<1x3x8x8xf32>) .. -> tensor<1x4x8x8xf32>
    ```

    After:

    ```mlir
    %0 = dnn.conv input(%x : tensor<1x3x8x8xf32>) .. -> tensor<1x4x8x8xf32, #dnn.order<0, 2, 3, 1>>
    ```
    """

    name = "dnn-assign-layouts"

    channels_last: bool = True
    """Whether the target computes channels-last, as the kernels for CPUs do; cuDNN in f32 takes row-major."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in dnn.functions_in("value", op, self.name):
            assign(function.body.block, self.channels_last)


def assign(block: Block, channels_last: bool = True) -> None:
    for op in block.ops:
        if isinstance(op, dnn.IfOp):
            assign_branches(op, channels_last)
        elif isinstance(op, dnn.LoopOp):
            assign_carried(op, channels_last)
        if not isinstance(op, dnn.KernelOp) or isinstance(op, dnn.ControlOp):
            continue
        for result in op.results:
            shape = dnn.shape_of(result)
            order = tuple(range(len(shape)))
            if any(not isinstance(use.operation, ReturnOp) for use in result.uses):
                order = canonical(shape, preferred(op, result, channels_last))
            encoding = NoneAttr() if order == tuple(range(len(shape))) else dnn.OrderAttr.of(order)
            type = TensorType(dnn.element_type_of(result), shape, encoding)
            set_type(result, type)
    copy_for_caller(block)


def copy_for_caller(block: Block) -> None:
    """Puts a `dnn.copy` to row-major order before the return of a value of another order."""
    end = block.last_op
    if isinstance(end, ReturnOp):
        convert_operands(end, [plain_type(value) for value in end.arguments])


def assign_branches(op: dnn.IfOp, channels_last: bool) -> None:
    """The results have the order in which the first branch yields them; row-major where only the caller reads them."""
    for block in op.blocks:
        assign(block, channels_last)
    first, _ = op.blocks
    for result, value in zip(op.results, dnn.ControlOp.yielded(first), strict=True):
        inside = any(not isinstance(use.operation, ReturnOp) for use in result.uses)
        set_type(result, value.type if inside else plain_type(value))
    types = [result.type for result in op.results]
    for block in op.blocks:
        convert_operands(cast(Operation, block.last_op), types)


def assign_carried(op: dnn.LoopOp, channels_last: bool) -> None:
    """The carried values have the order in which the body yields them if they come in the order of `inits`."""
    body = op.body.block
    for value, argument in zip(op.inits, body.args, strict=True):
        set_type(argument, value.type)
    assign(body, channels_last)
    for argument, value in zip(body.args, dnn.ControlOp.yielded(body)[1:], strict=True):
        set_type(argument, value.type)
    assign(body, channels_last)
    types = [argument.type for argument in body.args]
    for result, type in zip(op.results, types, strict=True):
        set_type(result, type)
    convert_operands(cast(Operation, body.last_op), [op.condition.type, *types])
    convert_operands(op, [op.condition.type, *types])


def set_type(value: SSAValue, type: Attribute) -> None:
    if value.type != type:
        Rewriter.replace_value_with_new_type(value, type)


def plain_type(value: SSAValue) -> dnn.ValueType:
    """The row-major type of a value's elements."""
    return TensorType(dnn.element_type_of(value), dnn.shape_of(value))


def convert_operands(op: Operation, types: Sequence[Attribute]) -> None:
    """Puts a `dnn.copy` before `op` for each operand that has not the type wanted."""
    for index, type in enumerate(types):
        value = op.operands[index]
        if value.type != type:
            copy = dnn.CopyOp(value, type)
            copy.location = value.owner.location if isinstance(value.owner, Operation) else op.location
            cast(Block, op.parent).insert_op_before(copy, op)
            op.operands[index] = copy.results[0]


def canonical(shape: Sequence[int], order: Order) -> Order:
    """Row-major where `order` lays the elements out the same way."""
    wide = [dim for dim in order if shape[dim] != 1]
    return tuple(range(len(shape))) if wide == sorted(wide) else order


def order_of(value: SSAValue) -> Order:
    return dnn.order_of(cast(dnn.ValueType, value.type))


def preferred(op: dnn.KernelOp, result: OpResult, channels_last: bool) -> Order:
    """The order that suits `op` for its result, unless only the caller reads it."""
    rank = len(dnn.shape_of(result))
    match op:
        case dnn.ConvOp() | dnn.ConvTransposeOp() | dnn.PoolOp():
            return (0, *range(2, rank), 1) if channels_last and rank > 2 else tuple(range(rank))
        case dnn.TransposeOp():
            permutation = dnn.ints(op.permutation)
            return tuple(permutation.index(dim) for dim in order_of(op.input))
        case dnn.ReshapeOp():
            return _reshaped(dnn.shape_of(op.input), order_of(op.input), dnn.shape_of(result))
        case dnn.ReduceOp() | dnn.ArgReduceOp():
            gone = dnn.ints(op.axes) if isinstance(op, dnn.ReduceOp) else (op.axis.value.data,)
            kept = [dim for dim in range(rank + len(gone)) if dim not in gone]
            return tuple(kept.index(dim) for dim in order_of(op.input) if dim not in gone)
        case dnn.MatmulOp() | dnn.GatherOp():
            return tuple(range(rank))
        case _:
            same = [
                value
                for value in op.inputs
                if len(dnn.shape_of(value)) == rank and not isinstance(value.owner, dnn.ConstantOp)
            ]
            if not same:
                return tuple(range(rank))
            return order_of(max(same, key=lambda value: prod(dnn.shape_of(value))))


def _reshaped(shape: Sequence[int], order: Order, result: Sequence[int]) -> Order:
    """
    The order of a reshaped tensor's dimensions that follows its input's: runs of dimensions that correspond
    stay where the first of them was.
    """
    if 0 in shape or canonical(shape, order) == tuple(range(len(shape))):
        return tuple(range(len(result)))
    runs = list[tuple[list[int], list[int]]]()
    source = [dim for dim, size in enumerate(shape) if size != 1]
    target = [dim for dim, size in enumerate(result) if size != 1]
    while source:
        ours, theirs = [source.pop(0)], [target.pop(0)]
        while (have := prod(shape[d] for d in ours)) != (want := prod(result[d] for d in theirs)):
            if have < want:
                ours.append(source.pop(0))
            else:
                theirs.append(target.pop(0))
        runs.append((ours, theirs))
    runs.sort(key=lambda run: min(order.index(dim) for dim in run[0]))
    ones = [dim for dim, size in enumerate(result) if size == 1]
    return (*ones, *(dim for _, theirs in runs for dim in theirs))
