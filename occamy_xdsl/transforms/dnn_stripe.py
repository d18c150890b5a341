"""`dnn-stripe`: decides which parts of a network run in stripes of rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from occamy_xdsl.analysis.row_graph import RowGraph, choose_dims
from occamy_xdsl.dialects import dnn
from occamy_xdsl.planning.stripes import Plan, Segment, find_stripes
from occamy_xdsl.transforms.dnn_expand_stripes import DnnExpandStripesPass
from occamy_xdsl.transforms.dnn_schedule import planned_liveness

SURE = 9 / 8
"""
By what factor stripes must lower the expected peak so that they are taken without trying them: the search expects up
to a third too much, and nothing less than what comes.
"""

WHOLE_PEAK = "dnn.whole_peak_bytes"
"""Function attribute: most bytes live at one position without stripes, on a function that has some."""


@dataclass(frozen=True)
class DnnStripePass(ModulePass):
    """
    Wraps parts of every function in `dnn.stripe`, where running them in stripes of rows lowers the peak.

    Rows are the lines of images and the tokens of sequences; with `batch`, the images of a batch and the heads of
    attention. To cut each of the latter by the former, run the pass and `dnn-expand-stripes` once for each: what an
    op needs whole, such as all keys of a head, is then small enough for a cache.

    Requires: value form; one block a function.
    Ensures: the most bytes live at one position after memory insertion, coalescing and borrowing are at most what they
    were, which is tried unless the search expects fewer by a ninth. Where stripes are taken, the attribute
    `dnn.whole_peak_bytes` of the function keeps what they were.

    Before:

    ```mlir
    %a = dnn.conv input(%x : tensor<1x3x8x8xf32>) filter(%v : ..) {..} -> tensor<1x16x8x8xf32>
    %y = dnn.conv input(%a : tensor<1x16x8x8xf32>) filter(%w : ..) {..} -> tensor<1x4x8x8xf32>
    ```

    After:

    ```mlir
    %y = dnn.stripe ins(%x, %v, %w : ..) {..} -> tensor<1x4x8x8xf32> body {
    ^bb0(..):
      %a = dnn.conv ..
      %b = dnn.conv ..
      dnn.yield %b : tensor<1x4x8x8xf32>
    }
    ```
    """

    name = "dnn-stripe"

    budget: int | float = 5
    """Extra multiply-accumulates allowed, in percent of the network's; 0 means that none may be computed twice."""

    batch: bool = False
    """Whether rows are the images of a batch and the heads of attention, rather than lines and tokens."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in dnn.functions_in("value", op, self.name):
            stripe(ctx, function, self.budget / 100, batch=self.batch)


def stripe(ctx: Context, function: FuncOp, budget: float, *, batch: bool) -> None:
    """
    Chooses and wraps segments. What does not lower the peak of the real pipeline is not taken.

    That pipeline on all the stripes takes longer than the search, and is not run where the search expects far less.
    """
    plan = find_stripes(rows_of(function, batch=batch).graph, budget)
    if not plan.segments:
        return
    whole = planned_liveness(ctx, ModuleOp([function.clone()]), borrow=True).max_live_bytes
    is_lower = plan.peak * SURE <= whole
    if not is_lower:
        trial = function.clone()
        wrap(trial, plan, batch=batch)
        is_lower = expanded_peak(ctx, ModuleOp([trial])) < whole
    if is_lower:
        wrap(function, plan, batch=batch)
        function.attributes.setdefault(WHOLE_PEAK, IntegerAttr(whole, i64))


def rows_of(function: FuncOp, *, batch: bool) -> RowGraph:
    """The function as the planner sees it."""
    block = function.body.block
    return RowGraph.of(block, returned(block), choose_dims(block, batch=batch))


def returned(block: Block) -> Sequence[SSAValue]:
    last = block.last_op
    return tuple(last.operands) if isinstance(last, ReturnOp) else ()


def expanded_peak(ctx: Context, module: ModuleOp) -> int:
    """Most bytes live at one position once the stripes of a module of one function are expanded, which they are."""
    DnnExpandStripesPass().apply(ctx, module)
    return planned_liveness(ctx, module, borrow=True).max_live_bytes


def wrap(function: FuncOp, plan: Plan, *, batch: bool) -> None:
    """Puts the ops of each segment into a `dnn.stripe`."""
    block, body = function.body.block, rows_of(function, batch=batch)
    for segment in plan.segments:
        leaving = [body.values[v] for v in body.graph.leaving(segment.first, segment.last)]
        inside = [body.ops[k] for k in body.graph.inside(segment.first, segment.last)]
        wrap_ops(block, inside, leaving, [body.dims[v] for v in leaving], segment)


def wrap_ops(
    block: Block,
    ops: Sequence[dnn.KernelOp],
    leaving: Sequence[SSAValue],
    dims: Sequence[int],
    segment: Segment,
) -> None:
    """Replaces `ops` by one `dnn.stripe` with the results `leaving`, in the place of the last of them."""
    inside = {r for op in ops for r in op.results}
    ins = list(dict.fromkeys(v for op in ops for v in op.operands if v not in inside))
    body = Block(arg_types=[v.type for v in ins])
    mapped: dict[SSAValue, SSAValue] = dict(zip(ins, body.args, strict=True))
    for value, argument in zip(ins, body.args, strict=True):
        argument.name_hint = value.name_hint
    for op in ops:
        clone = op.clone(mapped)
        for old, new in zip(op.results, clone.results, strict=True):
            new.name_hint = old.name_hint
        body.add_op(clone)
    body.add_op(dnn.YieldOp(*(mapped[v] for v in leaving)))
    region = Region(body)
    new = dnn.StripeOp(ins, [v.type for v in leaving], region, dims, segment.ends, segment.halo)
    last: Operation = ops[-1]
    new.location = last.location
    block.insert_op_before(new, last)
    for old, result in zip(leaving, new.results, strict=True):
        result.name_hint = old.name_hint
        old.replace_all_uses_with(result)
    for op in reversed(ops):
        Rewriter.erase_op(op)
