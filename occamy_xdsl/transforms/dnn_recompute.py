"""`dnn-recompute`: computes values again right before late users, rather than keep them over the peak."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, Region, SSAValue, Use
from xdsl.passes import ModulePass

from occamy_xdsl.analysis.liveness import LivenessTable
from occamy_xdsl.analysis.row_graph import work_of
from occamy_xdsl.dialects import dnn
from occamy_xdsl.transforms.dnn_schedule import planned_liveness

TRIALS = 8
"""Values, the largest first, that are tried at each step."""


@dataclass(frozen=True)
class DnnRecomputePass(ModulePass):
    """
    Repeats ops where that lowers the most bytes live at one position.

    A value that is live while the peak is reached, but not used there, need not be kept for the users that come
    later if its op runs once more before the first of these. At each step the repetition is taken that lowers the
    peak most, or else the number of positions with that peak. What did not lower the peak in the end is undone.
    Functions with control flow are left as they are.

    Requires: value form; one block a function.
    Ensures: the bytes live at any position after memory insertion, coalescing and borrowing are at most what they were;
    the work done twice is within the budget. Each step tries 8 values on copies of the function, and there are at most
    as many steps as the function has ops.

    Before:

    ```mlir
    %h = dnn.elementwise ins(%x : ..) ..           // large, lives until the end
    %a = dnn.conv input(%h : ..) ..
    %b = dnn.conv input(%a : ..) extras(%h : ..) ..
    ```

    After:

    ```mlir
    %h = dnn.elementwise ins(%x : ..) ..
    %a = dnn.conv input(%h : ..) ..
    %0 = dnn.elementwise ins(%x : ..) ..
    %b = dnn.conv input(%a : ..) extras(%0 : ..) ..
    ```

    Source: rematerialisation (Briggs, Cooper and Torczon, PLDI 1992), as gradient checkpointing does it for
    training.
    """

    name = "dnn-recompute"

    budget: int | float = 5
    """Multiply-accumulates, and elements of other ops, that may be computed twice, in percent of the function's."""
    limit: int = 0
    """Bytes that are low enough: nothing is repeated to get below."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in dnn.functions_in("value", op, self.name):
            if not any(isinstance(inner, dnn.ControlOp) for inner in function.body.block.ops):
                recompute(ctx, function, self.budget / 100, self.limit)


@dataclass(frozen=True)
class _Peak:
    """Most bytes live at one position, at how many positions, and the ops that run up to the first of them."""

    bytes: int
    positions: int
    kernels: int

    @staticmethod
    def of(table: LivenessTable) -> "_Peak":
        live = table.timeline()
        most = max(live, default=0)
        first = live.index(most) if live else -1
        return _Peak(most, live.count(most), sum(is_kernel(op) for op in table.ops[: first + 1]))

    @property
    def rank(self) -> tuple[int, int]:
        return self.bytes, self.positions


def is_kernel(op: Operation) -> bool:
    """Whether an op of either form runs a kernel that memory insertion does not add."""
    return isinstance(op, dnn.KernelOp) and not isinstance(op, dnn.CopyOp | dnn.ShapeOp)


def recompute(ctx: Context, function: FuncOp, budget: float, limit: int) -> None:
    """Repeats ops in `function` until the peak is at most `limit` bytes, or nothing lowers it."""
    work = budget * sum(work_of(op) for op in function.body.block.ops if isinstance(op, dnn.KernelOp))
    current, peak = function, _Peak.of(planned_liveness(ctx, ModuleOp([function.clone()]), borrow=True))
    best, lowest = function, peak.bytes
    while peak.bytes > limit:
        options = list[tuple[tuple[int, int], int, int, FuncOp, _Peak]]()
        kept = sorted(values_over(current, peak), key=lambda v: -dnn.byte_size(v[1]))
        for index, value in kept[:TRIALS]:
            spent = work_of(cast(dnn.KernelOp, value.owner))
            if spent > work:
                continue
            trial = current.clone()
            repeat(kernels_of(trial)[index], peak.kernels)
            reached = _Peak.of(planned_liveness(ctx, ModuleOp([trial.clone()]), borrow=True))
            options.append((reached.rank, spent, index, trial, reached))
        if not options:
            break
        rank, spent, _, trial, reached = min(options, key=lambda option: option[:3])
        if rank >= peak.rank:
            break
        current, peak, work = trial, reached, work - spent
        if peak.bytes < lowest:
            best, lowest = current, peak.bytes
    if best is not function:
        function.detach_region(function.body)
        body = Region()
        best.body.move_blocks(body)
        function.add_region(body)


def kernels_of(function: FuncOp) -> list[dnn.KernelOp]:
    return [op for op in function.body.block.ops if isinstance(op, dnn.KernelOp) and is_kernel(op)]


def kernels_before(block: Block) -> dict[Operation, int]:
    """How many kernels run before each op."""
    ops = list(block.ops)
    counts = accumulate((is_kernel(op) for op in ops), initial=0)
    return dict(zip(ops, counts, strict=False))


def values_over(function: FuncOp, peak: _Peak) -> Iterator[tuple[int, SSAValue]]:
    """The results, with the numbers of their kernels, that are live but not used where the peak is reached."""
    before = kernels_before(function.body.block)
    for index, op in enumerate(kernels_of(function)[: max(peak.kernels - 1, 0)]):
        uses = [before[use.operation] for use in uses_of(op.results[0])]
        if len(op.results) == 1 and max(uses, default=0) >= peak.kernels and peak.kernels - 1 not in uses:
            yield index, op.results[0]


def uses_of(value: SSAValue) -> Iterator[Use]:
    """The uses of a value, and of what shows its elements, by others than ops that only rearrange them."""
    for use in value.uses:
        if isinstance(use.operation, dnn.ShapeOp) and not isinstance(use.operation, dnn.ConcatOp):
            yield from uses_of(use.operation.results[0])
        else:
            yield use


def repeat(op: dnn.KernelOp, kernels: int) -> None:
    """Runs an op again for those of its users that come after the first `kernels` kernels of the block."""
    block = cast(Block, op.parent)
    before = kernels_before(block)
    users = [use for use in uses_of(op.results[0]) if before[use.operation] >= kernels]
    first = next(other for other in before if any(use.operation is other for use in users))

    def again(other: Operation, operands: dict[SSAValue, SSAValue]) -> SSAValue:
        clone = other.clone(operands)
        clone.location = other.location
        clone.results[0].name_hint = other.results[0].name_hint
        block.insert_op_before(clone, first)
        return clone.results[0]

    copies: dict[SSAValue, SSAValue] = {op.results[0]: again(op, {})}

    def copy_of(value: SSAValue) -> SSAValue:
        if value not in copies:
            shown = cast(dnn.ShapeOp, value.owner)
            copies[value] = again(shown, {shown.operands[0]: copy_of(shown.operands[0])})
        return copies[value]

    for use in users:
        use.operation.operands[use.index] = copy_of(use.operation.operands[use.index])
