"""`dnn-insert-memory-ops`: value form becomes buffer form, with memory for every tensor."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    FunctionType,
    MemRefType,
    ModuleOp,
    StringAttr,
    TensorType,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import PassFailedException

from occamy_xdsl.analysis.aliasing import offset_in_root, root_of
from occamy_xdsl.analysis.liveness import is_position, last_uses
from occamy_xdsl.analysis.regions import ops_of
from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.dnn.geometry import (
    broadcast_strides,
    contiguous_strides,
    reshaped_strides,
)
from occamy_xdsl.dialects.signature import KIND, NAME, argument_attributes, result_names

Mode = Literal["eager", "lazy", "liveness"]


@dataclass(frozen=True)
class DnnInsertMemoryOpsPass(ModulePass):
    """
    Gives every tensor a buffer: `dnn.malloc` before the op that writes it, `dnn.dealloc` when it is dead.

    Results become output arguments, to which the values returned are copied. Ops that only rearrange elements
    become views that are copied into buffers of their own; `dnn-coalesce-tensors` removes the copies it can. Views
    of constants need no copy.

    Each branch of a `dnn.if` copies what it yields to the buffers of the results. A `dnn.loop` has a buffer for
    each carried value and for its condition: the first values are copied there before the loop, the next ones at
    the end of its body. One that is yielded as it came needs no copy; carried values that change places are
    copied aside first.

    Modes:

    - `liveness`: a buffer lives from the op that first writes it to the last op that uses it or a view of it;
      one that only some branches use last is freed in each branch, one that a loop uses is freed after it;
    - `eager`: all buffers are allocated at the start of the function and freed at its end;
    - `lazy`: each op's buffers are allocated around that op alone: what later ops need is copied to a buffer
      in host memory (memory space "host") and back before each use. Conditions are read there.

    Requires: value form; one block a function.
    Ensures: buffer form; every `dnn.malloc` has one `dnn.dealloc` after its last use, on each path.

    Before:

    ```mlir
    func.func @main(%x : tensor<4xf32>) -> tensor<4xf32> {
      %y = dnn.softmax input(%x : tensor<4xf32>) {..} -> tensor<4xf32>
      func.return %y : tensor<4xf32>
    }
    ```

    After:

    ```mlir
    func.func @main(%x : memref<4xf32> {dnn.kind = "input"}, %out : memref<4xf32> {dnn.kind = "output"}) {
      %y = dnn.malloc : memref<4xf32>
      dnn.softmax input(%x : memref<4xf32>) outs(%y : memref<4xf32>) {..}
      dnn.copy input(%y : memref<4xf32>) outs(%out : memref<4xf32>)
      dnn.dealloc %y : memref<4xf32>
      func.return
    }
    ```

    Source: the paper's liveness-aware memory operation insertion.
    """

    name = "dnn-insert-memory-ops"

    mode: Mode = "liveness"
    """Where allocations and deallocations go."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in dnn.functions_in("value", op, self.name):
            _Insertion(function).run()
            match self.mode:
                case "liveness":
                    insert_deallocs(function.body.block)
                case "eager":
                    _allocate_eagerly(function.body.block)
                case "lazy":
                    _allocate_lazily(function.body.block)


def value_type(type: Attribute) -> dnn.BufferType:
    """The type of a buffer that holds a tensor of `type`, in the order that its encoding asks for."""
    assert isinstance(type, TensorType)
    tensor = cast(dnn.ValueType, type)
    shape = tensor.get_shape()
    return dnn.buffer_type(shape, tensor.element_type, contiguous_strides(shape, dnn.order_of(tensor)))


class _Insertion:
    """Rewrites one function op by op; `buffers` maps each tensor to the memref that holds it."""

    def __init__(self, function: FuncOp):
        self.function = function
        self.block = function.body.block
        self.buffers: dict[SSAValue, SSAValue] = {}
        self.here: Operation = cast(Operation, self.block.last_op)

    def insert(self, op: Operation) -> None:
        op.location = self.here.location
        cast(Block, self.here.parent).insert_op_before(op, self.here)

    def malloc(self, type: dnn.BufferType, hint: str | None) -> SSAValue:
        op = dnn.MallocOp(type)
        op.buffer.name_hint = hint
        self.insert(op)
        return op.buffer

    def view(self, source: SSAValue, offset: int, shape: Sequence[int], strides: Sequence[int]) -> SSAValue:
        op = dnn.ViewOp(source, offset, dnn.buffer_type(shape, dnn.element_type_of(source), strides))
        self.insert(op)
        return op.view

    def copy(self, source: SSAValue, target: SSAValue) -> None:
        self.insert(dnn.CopyOp.between(source, target))

    def run(self) -> None:
        returned = self.signature()
        self.convert(self.block)
        last = cast(ReturnOp, self.block.last_op)
        self.here = last
        for value, target in zip(last.arguments, returned, strict=True):
            self.copy(self.buffers[value], target)
        self.insert(ReturnOp())
        Rewriter.erase_op(last)
        erase_tensors(self.block)

    def convert(self, block: Block) -> None:
        """Puts the buffer form of each op of a block, but not of its end, before the op."""
        for op in list(block.ops):
            self.here = op
            match op:
                case ReturnOp() | dnn.YieldOp():
                    pass
                case dnn.ConstantOp():
                    constant = dnn.ConstantOp(op.value, value_type(op.output.type))
                    constant.output.name_hint = op.output.name_hint
                    self.insert(constant)
                    self.buffers[op.output] = constant.output
                case dnn.ShapeOp():
                    self.buffers[op.results[0]] = self.rearrange(op)
                case dnn.StripeOp():
                    raise PassFailedException(f"'{op.name}' op must be expanded first, by dnn-expand-stripes")
                case dnn.IfOp():
                    self.conditional(op)
                case dnn.LoopOp():
                    self.loop(op)
                case dnn.KernelOp():
                    self.kernel(op)
                case _:
                    raise PassFailedException(f"'{op.name}' op is not in dnn value form")

    def conditional(self, op: dnn.IfOp) -> None:
        """Each branch ends with copies to buffers in front of the op."""
        outs = self.results(op)
        new = op.rebuilt(groups={"condition": [self.buffers[op.condition]], "outs": outs}, results=[])
        self.insert(new)
        for block in cast(dnn.IfOp, new).blocks:
            self.convert(block)
            self.end(block, dict(zip(outs, dnn.ControlOp.yielded(block), strict=True)))

    def loop(self, op: dnn.LoopOp) -> None:
        """The condition and the carried values have buffers in front of the op, which the body writes anew."""
        condition = self.malloc(value_type(op.condition.type), "condition")
        outs = self.results(op)
        for value, target in zip((op.condition, *op.inits), (condition, *outs), strict=True):
            self.copy(self.buffers[value], target)
        new = cast(
            dnn.LoopOp,
            op.rebuilt(groups={"condition": [condition], "inits": [], "outs": outs}, results=[]),
        )
        self.insert(new)
        block = new.body.block
        self.buffers |= dict(zip(block.args, outs, strict=True))
        self.convert(block)
        self.end(block, dict(zip((condition, *outs), dnn.ControlOp.yielded(block), strict=True)))

    def results(self, op: dnn.ControlOp) -> list[SSAValue]:
        """A new buffer for each result."""
        outs = [self.malloc(value_type(r.type), r.name_hint) for r in op.results]
        self.buffers |= dict(zip(op.results, outs, strict=True))
        return outs

    def end(self, block: Block, targets: dict[SSAValue, SSAValue]) -> None:
        """Ends a block of control flow with copies of the values that it yields to the buffers `targets`."""
        self.here = cast(Operation, block.last_op)
        moves = {target: self.buffers[v] for target, v in targets.items() if self.buffers[v] is not target}
        for target, source in moves.items():
            if source in moves:  # overwritten by another of the copies
                aside = self.malloc(cast(dnn.BufferType, source.type), source.name_hint)
                self.copy(source, aside)
                moves[target] = aside
        for target, source in moves.items():
            self.copy(source, target)
        last = self.here
        self.insert(dnn.YieldOp())
        Rewriter.erase_op(last)

    def signature(self) -> list[SSAValue]:
        """Replaces the function's type; returns the output arguments."""
        names = result_names(self.function)
        attributes = argument_attributes(self.function)
        results = list(self.function.function_type.outputs.data)
        tensors = list(self.block.args)
        dictionaries = list[DictionaryAttr]()
        for tensor, own in zip(tensors, attributes, strict=True):
            argument = self.block.insert_arg(value_type(tensor.type), len(self.block.args))
            argument.name_hint = tensor.name_hint
            self.buffers[tensor] = argument
            dictionaries.append(
                DictionaryAttr({**cast(dict[str, Attribute], own), KIND: StringAttr("input")})
            )
        outputs = list[SSAValue]()
        for name, type in zip(names, results, strict=True):
            argument = self.block.insert_arg(value_type(type), len(self.block.args))
            argument.name_hint = "out"
            outputs.append(argument)
            dictionaries.append(DictionaryAttr({NAME: StringAttr(name), KIND: StringAttr("output")}))
        inputs = [a.type for a in self.block.args[len(tensors) :]]
        self.function.properties["function_type"] = FunctionType.from_lists(inputs, [])
        self.function.properties["arg_attrs"] = ArrayAttr(dictionaries)
        self.function.properties.pop("res_attrs", None)
        return outputs

    def kernel(self, op: dnn.KernelOp) -> None:
        """The buffer form of `op`, with a new buffer for each result."""
        outs = [self.malloc(value_type(r.type), r.name_hint) for r in op.results]
        groups = {name: [self.buffers[v] for v in op.group(name)] for name in op.group_names}
        self.insert(op.rebuilt(groups={**groups, "outs": outs}, results=[]))
        for result, out in zip(op.results, outs, strict=True):
            self.buffers[result] = out

    def rearrange(self, op: dnn.ShapeOp) -> SSAValue:
        """A new buffer with the elements of a shape op's result, copied from views of its operands."""
        result = op.results[0]
        shape, hint = dnn.shape_of(result), result.name_hint
        if isinstance(op, dnn.ConcatOp):
            target = self.malloc(value_type(result.type), hint)
            strides, axis, at = dnn.strides_of(target), op.axis.value.data, 0
            for value in op.ins:
                part = dnn.shape_of(value)
                if 0 not in part:
                    self.copy(self.buffers[value], self.view(target, at * strides[axis], part, strides))
                at += part[axis]
            return target
        source = self.buffers[op.operands[0]]
        have, strides = dnn.shape_of(source), dnn.strides_of(source)
        offset = 0
        match op:
            case dnn.TransposeOp():
                strides = [strides[d] for d in dnn.ints(op.permutation)]
            case dnn.SliceOp():
                offset = sum(o * s for o, s in zip(dnn.ints(op.offsets), strides, strict=True))
                strides = [a * b for a, b in zip(dnn.ints(op.strides), strides, strict=True)]
            case dnn.BroadcastOp():
                strides = broadcast_strides(have, strides, shape)
            case _:
                strides = reshaped_strides(have, strides, shape)
        if strides is not None and min((0, *strides)) >= 0 and 0 not in shape and _is_constant(source):
            return self.view(source, offset, shape, strides)
        target = self.malloc(value_type(result.type), hint)
        if 0 in shape:
            return target
        if strides is not None:
            self.copy(self.view(source, offset, shape, strides), target)
            return target
        # The reshape regroups elements that are not neighbours: write them where the result wants them.
        backward = reshaped_strides(shape, dnn.strides_of(target), have)
        if backward is not None:
            self.copy(source, self.view(target, 0, have, backward))
            return target
        dense = self.malloc(dnn.buffer_type(have, dnn.element_type_of(source)), hint)
        self.copy(source, dense)
        self.copy(self.view(dense, 0, shape, contiguous_strides(shape)), target)
        return target


def _is_constant(buffer: SSAValue) -> bool:
    """Whether a buffer shows a constant, which is never written and takes no memory."""
    return isinstance(root_of(buffer).owner, dnn.ConstantOp)


def erase_tensors(block: Block) -> None:
    """Erases what is left of the value form: ops on tensors, and arguments that are tensors."""
    for op in reversed(list(block.ops)):
        if any(isinstance(v.type, TensorType) for v in (*op.operands, *op.results)):
            Rewriter.erase_op(op)
        elif isinstance(op, dnn.ControlOp):
            for inner in op.blocks:
                erase_tensors(inner)
    for argument in [a for a in block.args if isinstance(a.type, TensorType)]:
        block.erase_arg(argument)


def insert_deallocs(block: Block) -> None:
    """
    Puts `dnn.dealloc` after the last use of each `dnn.malloc` or of a view of it.

    Where that is inside of a `dnn.if`, one is put into each branch; a loop may use the buffer in each iteration.
    """
    table = last_uses(block)
    for uses in table.values():
        for buffer in list(uses):
            if isinstance(buffer.owner, dnn.MallocOp) and table[cast(Block, buffer.owner.parent)] is uses:
                _free(buffer, cast(Block, buffer.owner.parent), table)


def _free(buffer: SSAValue, block: Block, table: dict[Block, dict[SSAValue, Operation]]) -> None:
    """Frees a buffer after its last use in a block, or at the block's start if there is none."""
    last = table[block].get(buffer)
    if isinstance(last, dnn.IfOp):
        for branch in last.blocks:
            _free(buffer, branch, table)
        return
    op = dnn.DeallocOp(buffer)
    if last is None:
        first = cast(Operation, block.first_op)
        op.location = first.location
        block.insert_op_before(op, first)
    else:
        op.location = last.location
        block.insert_op_after(op, last)


def _allocate_eagerly(block: Block) -> None:
    """Moves all allocations to the start of the function's block, and all deallocations to its end."""
    mallocs = [op for op in ops_of(block) if isinstance(op, dnn.MallocOp)]
    for op in mallocs:
        op.detach()
    first, last = cast(Operation, block.first_op), cast(Operation, block.last_op)
    block.insert_ops_before(mallocs, first)
    block.insert_ops_before([dnn.DeallocOp(op.buffer) for op in mallocs], last)


def _allocate_lazily(block: Block) -> None:
    """Keeps every tensor in host memory, with a copy on the device around each op that uses it."""
    mallocs = [op for op in ops_of(block) if isinstance(op, dnn.MallocOp)]
    end = cast(Operation, block.last_op)
    homes: dict[SSAValue, SSAValue] = {}
    start = cast(Operation, block.first_op)
    for op in mallocs:
        own = op.buffer.type
        home = dnn.MallocOp(MemRefType(own.element_type, own.get_shape(), own.layout, StringAttr("host")))
        home.buffer.name_hint = op.buffer.name_hint
        block.insert_op_before(home, start)
        block.insert_op_before(dnn.DeallocOp(home.buffer), end)
        homes[op.buffer] = home.buffer
    for op in [op for op in ops_of(block) if is_position(op)]:
        assert isinstance(op, dnn.KernelOp)
        if isinstance(op, dnn.ControlOp):
            stage(op, homes)
        else:
            around(op, homes)
    for op in reversed(list(ops_of(block))):
        if isinstance(op, dnn.ViewOp) and op.view.first_use is None:
            Rewriter.erase_op(op)
    for op in mallocs:
        Rewriter.erase_op(op)


def stage(op: dnn.KernelOp, places: dict[SSAValue, SSAValue]) -> None:
    """Lets an op use other buffers: those that `places` gives for its own, or views of them."""
    for index, operand in enumerate(op.operands):
        root = root_of(operand)
        if root not in places:
            continue
        value = places[root]
        if operand is not root:
            view = dnn.ViewOp(value, offset_in_root(operand), cast(dnn.BufferType, operand.type))
            cast(Block, op.parent).insert_op_before(view, op)
            value = view.view
        op.operands[index] = value


def around(op: dnn.KernelOp, homes: dict[SSAValue, SSAValue]) -> None:
    """Brings what an op reads to the device before it, and what it writes back after it."""
    block = cast(Block, op.parent)
    staged: dict[SSAValue, SSAValue] = {}
    reads = {root_of(v) for v in op.inputs}
    writes = {root_of(v) for v in op.outs}
    for root in dict.fromkeys(root_of(v) for v in op.operands):
        if root not in homes:
            continue
        device = dnn.MallocOp(cast(dnn.BufferType, root.type))
        device.buffer.name_hint = root.name_hint
        device.location = op.location
        staged[root] = device.buffer
        block.insert_op_before(device, op)
        # A partial write (one input of a concatenation) must keep the rest.
        if root in reads or any(isinstance(v.owner, dnn.ViewOp) for v in op.outs if root_of(v) is root):
            fetch = dnn.MemcpyOp(device.buffer, homes[root], "h2d")
            fetch.location = op.location
            block.insert_op_before(fetch, op)
    stage(op, staged)
    last: Operation = op
    for root, device in staged.items():
        tail = [dnn.MemcpyOp(homes[root], device, "d2h")] if root in writes else []
        for new in (*tail, dnn.DeallocOp(device)):
            new.location = op.location
            block.insert_op_after(new, last)
            last = new
