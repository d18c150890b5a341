"""`dnn-schedule`: the order of execution with the lowest peak of live bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass

from occamy_xdsl.analysis.in_place import in_place_operands
from occamy_xdsl.analysis.liveness import LivenessTable, liveness
from occamy_xdsl.analysis.regions import blocks_of, needs
from occamy_xdsl.dialects import dnn
from occamy_xdsl.planning.order import Op, Order, find_order
from occamy_xdsl.transforms.dnn_borrow_outputs import DnnBorrowOutputsPass
from occamy_xdsl.transforms.dnn_coalesce_tensors import DnnCoalesceTensorsPass
from occamy_xdsl.transforms.dnn_insert_memory_ops import DnnInsertMemoryOpsPass

ORDER = "dnn.order_search"
"""Function attribute: peak of the order found, in bytes, and whether no order has a lower one."""


@dataclass(frozen=True)
class DnnSchedulePass(ModulePass):
    """
    Reorders the ops of every function so that the most bytes live at one position are fewest.

    The search knows views, concatenations built in place and results that take the place of an operand. It is
    exact within its limits, which make it deterministic, and falls back to a beam beyond them. An order that
    memory insertion and coalescing do not turn into a lower peak than the given one is not taken.

    The regions of control flow are ordered first, each by itself; then an op with regions is one step that needs
    what its regions capture, and at their peak the bytes that live inside of them. No proof is claimed then.

    Requires: value form; one block a function.
    Ensures: the same ops in an order that is never worse; the attribute `dnn.order_search` on the function
    records the peak the search found and whether it proved that no order has a lower one.

    Before:

    ```mlir
    %a = dnn.conv input(%x : ..) ..   // large
    %b = dnn.conv input(%x : ..) ..   // large
    %c = dnn.reduce input(%a : ..) ..
    %d = dnn.reduce input(%b : ..) ..
    ```

    After:

    ```mlir
    %a = dnn.conv input(%x : ..) ..
    %c = dnn.reduce input(%a : ..) ..
    %b = dnn.conv input(%x : ..) ..
    %d = dnn.reduce input(%b : ..) ..
    ```
    """

    name = "dnn-schedule"

    states: int = 30_000
    """Sets of executed ops that the search may visit before it falls back to a beam."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in dnn.functions_in("value", op, self.name):
            schedule(ctx, function, self.states)


def schedule(ctx: Context, function: FuncOp, states: int) -> None:
    inside: dict[Block, int] = {}
    blocks = list(blocks_of(function.body.block))
    for block in reversed(blocks):
        order = schedule_block(ctx, function, block, inside, states)
        inside[block] = order.peak
        if block is function.body.block:
            peak = IntegerAttr(order.peak, i64)
            is_proven = order.optimal and len(blocks) == 1
            proof = StringAttr("proven optimal" if is_proven else "best found")
            function.attributes[ORDER] = DictionaryAttr({"peak_bytes": peak, "status": proof})


def schedule_block(
    ctx: Context, function: FuncOp, block: Block, inside: dict[Block, int], states: int
) -> Order:
    """Orders the ops of one block; `inside` has the peaks of those in it, in bytes."""
    before = list(block.ops)
    graph = StorageGraph(block, inside)
    order = graph.search(states)
    if order.sequence == tuple(range(len(graph.nodes))):
        return order
    was = planned_peak(ctx, function)
    arrange(block, [graph.nodes[i] for i in order.sequence])
    if planned_peak(ctx, function) > was:
        for op in before:
            op.detach()
        block.add_ops(before)
    return order


def planned_peak(ctx: Context, function: FuncOp) -> int:
    """Most bytes live at one position after memory insertion and coalescing, tried on a copy."""
    return planned_liveness(ctx, ModuleOp([function.clone()])).max_live_bytes


def planned_liveness(ctx: Context, module: ModuleOp, *, borrow: bool = False) -> LivenessTable:
    """
    When each buffer is live after memory insertion and coalescing, which turn a module of one function into that.

    With `borrow`, also after buffers have moved to the memory of outputs.
    """
    DnnInsertMemoryOpsPass().apply(ctx, module)
    DnnCoalesceTensorsPass().apply(ctx, module)
    if borrow:
        DnnBorrowOutputsPass().apply(ctx, module)
    return liveness(cast(FuncOp, module.body.block.first_op).body.block)


def arrange(block: Block, nodes: Sequence[Operation]) -> None:
    """Puts `nodes` in the given order; each other op goes right before the first op that needs it."""
    end = cast(Operation, block.last_op)
    placed = set[Operation]()

    def place(op: Operation) -> None:
        if op in placed or op.parent is not block:
            return
        placed.add(op)
        for operand in needs(op):
            if isinstance(operand.owner, Operation):
                place(operand.owner)
        op.detach()
        block.insert_op_before(op, end)

    rest = [op for op in block.ops if op is not end]
    for op in (*nodes, *rest):
        place(op)


class StorageGraph:
    """The ops that take time and the pieces of storage that they read and write, for the order search."""

    def __init__(self, block: Block, inside: Mapping[Block, int] = {}):
        self.inside = inside
        self.nodes = list[dnn.KernelOp]()
        self.sizes = list[int]()
        self.atoms: dict[SSAValue, tuple[int, ...]] = {}
        self.pinned = set[int]()
        self.steps = list[Op]()
        returned = set(block.last_op.operands) if block.last_op is not None else set[SSAValue]()
        for argument in block.args:
            self.pinned.update(self.new(argument))
        for op in block.ops:
            if isinstance(op, dnn.ConstantOp):
                self.atoms[op.output] = ()
            elif isinstance(op, dnn.KernelOp):
                self.visit(op)
                for result in op.results:
                    if result in returned:
                        # The caller's buffer holds it, unless it only shows something else.
                        self.pinned.update(
                            a for a in self.atoms[result] if self.steps and a in self.steps[-1].writes
                        )

    def new(self, value: SSAValue) -> tuple[int, ...]:
        self.atoms[value] = (len(self.sizes),)
        self.sizes.append(dnn.byte_size(value))
        return self.atoms[value]

    def visit(self, op: dnn.KernelOp) -> None:
        if (
            isinstance(op, dnn.ConcatOp)
            and all(_builds_in_place(v) and v in self.atoms for v in op.ins)
            and len(set(op.ins)) == len(op.ins)
        ):
            self.atoms[op.results[0]] = tuple(a for v in op.ins for a in self.atoms[v])
            return
        if isinstance(op, dnn.ShapeOp) and not isinstance(op, dnn.ConcatOp):
            self.atoms[op.results[0]] = self.atoms.get(op.operands[0], ())
            return
        # What comes from around the block is live in any case.
        reads = tuple(dict.fromkeys(a for v in needs(op) for a in self.atoms.get(v, ())))
        writes = tuple(a for r in op.results for a in self.new(r))
        own = [self.atoms.get(v, ()) for v in in_place_operands(op)]
        pairs = tuple((writes[0], atoms[0]) for atoms in own if len(atoms) == 1)
        if isinstance(op, dnn.LoopOp):
            given = [self.atoms.get(v, ()) for v in op.inits]
            pairs = tuple(
                (mine, atoms[0]) for mine, atoms in zip(writes, given, strict=True) if len(atoms) == 1
            )
        if isinstance(op, dnn.ControlOp):
            self.sizes.append(max(self.inside[block] for block in op.blocks))
            writes = (*writes, len(self.sizes) - 1)
        self.nodes.append(op)
        self.steps.append(Op(reads, writes, pairs))

    def search(self, states: int) -> Order:
        return find_order(self.steps, self.sizes, pinned=self.pinned, state_limit=states)


def _builds_in_place(value: SSAValue) -> bool:
    """Whether a concatenation can let the producer of `value` write to its place."""
    return not isinstance(value, BlockArgument) and not isinstance(value.owner, dnn.ConstantOp | dnn.ShapeOp)
