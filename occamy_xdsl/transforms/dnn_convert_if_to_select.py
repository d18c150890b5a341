"""`dnn-convert-if-to-select`: both branches of an if run, and its results are chosen element by element."""

from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from occamy_xdsl.dialects import dnn


@dataclass(frozen=True)
class DnnConvertIfToSelectPass(ModulePass):
    """
    Makes one block of every `dnn.if` and the block around it, for targets on which control flow cannot depend on
    data. Both branches may run, because no op of a network has side effects.

    Requires: value form.
    Ensures: no `dnn.if` is left but those with a `dnn.loop` inside, which might not end.

    Before:

    ```mlir
    %y = dnn.if condition(%c : tensor<i1>) -> tensor<4xf32> then {
      %a = dnn.softmax input(%x : tensor<4xf32>) {..} -> tensor<4xf32>
      dnn.yield %a : tensor<4xf32>
    } otherwise {
      dnn.yield %x : tensor<4xf32>
    }
    ```

    After:

    ```mlir
    %a = dnn.softmax input(%x : tensor<4xf32>) {..} -> tensor<4xf32>
    %y = dnn.elementwise ins(%c, %a, %x : tensor<i1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32> body {
    ^bb0(%0 : i1, %1 : f32, %2 : f32):
      %3 = arith.select %0, %1, %2 : f32
      dnn.yield %3 : f32
    }
    ```

    Source: if-conversion (Allen et al., Conversion of Control Dependence to Data Dependence, 1983).
    """

    name = "dnn-convert-if-to-select"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        ifs = [inner for inner in op.walk() if isinstance(inner, dnn.IfOp)]
        for inner in reversed(ifs):  # those inside of others first
            if not any(isinstance(o, dnn.LoopOp) for o in inner.walk()):
                convert(inner)


def convert(op: dnn.IfOp) -> None:
    """Puts the ops of both branches before `op`, and selects in its place."""
    yielded = [dnn.ControlOp.yielded(block) for block in op.blocks]
    for block in op.blocks:
        Rewriter.erase_op(cast(Operation, block.last_op))
        Rewriter.inline_block(block, InsertPoint.before(op))
    for result, yes, no in zip(op.results, *yielded, strict=True):
        value = yes if yes is no else selected(op, yes, no)
        value.name_hint = value.name_hint or result.name_hint
        result.replace_all_uses_with(value)
    Rewriter.erase_op(op)


def selected(op: dnn.IfOp, yes: SSAValue, no: SSAValue) -> SSAValue:
    """`yes` where the condition of `op` holds, else `no`."""
    operands = [op.condition, yes, no]
    block = Block(arg_types=[dnn.signless(dnn.element_type_of(value)) for value in operands])
    select = arith.SelectOp(*block.args)
    block.add_ops([select, dnn.YieldOp(select.result)])
    result = dnn.ElementwiseOp(operands, yes.type, Region(block))
    result.location = op.location
    cast(Block, op.parent).insert_op_before(result, op)
    return result.results[0]
