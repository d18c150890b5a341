"""`onnx-infer-shapes`: static shapes for every value, and constants for all that only depends on shapes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import InsertPoint, Rewriter

from occamy_xdsl.dialects import dnn, onnx
from occamy_xdsl.errors import InvalidModelError
from occamy_xdsl.operators import Translation, known_array, translate


def _fold(op: onnx.OnnxOp, translation: Translation) -> bool:
    """Replaces `op` by constants where all of its used results are known; whether it did."""
    results = [result for result in op.results if result.uses]
    owners = [translation.values[r].owner if r in translation.values else None for r in results]
    if not results or op.name == "onnx.Constant" or not all(isinstance(o, dnn.ConstantOp) for o in owners):
        return False
    for result, owner in zip(results, cast(Sequence[dnn.ConstantOp], owners), strict=True):
        made = onnx.op_class("Constant").make(
            [], [owner.output.type], value=owner.value, location=op.location
        )
        made.results[0].name_hint = result.name_hint
        Rewriter.insert_op(made, InsertPoint.before(op))
        result.replace_all_uses_with(made.results[0])
    Rewriter.erase_op(op)
    return True


def _take_branch(op: onnx.OnnxOp, translation: Translation) -> bool:
    """Replaces an If of known condition by the ops of the branch it takes; whether it did."""
    if op.schema.name != "If" or (condition := translation.values.get(op.operands[0])) is None:
        return False
    known = known_array(condition)
    if known is None:
        return False
    region = op.region("then_branch" if known.item() else "else_branch")
    assert region is not None
    last = region.block.last_op
    assert last is not None
    for result, value in zip(op.results, last.operands, strict=True):
        result.replace_all_uses_with(value)
    Rewriter.erase_op(last)
    Rewriter.inline_block(region.block, InsertPoint.before(op))
    Rewriter.erase_op(op)
    return True


def _rewrite(block: Block, translation: Translation) -> None:
    for argument in tuple(block.args):
        if (value := translation.values.get(argument)) is not None and value.type != argument.type:
            Rewriter.replace_value_with_new_type(argument, value.type)
    for op in tuple(block.ops):
        if not isinstance(op, onnx.OnnxOp):
            continue
        for region in op.regions:
            if region.blocks:
                _rewrite(region.block, translation)
        if not _fold(op, translation) and not _take_branch(op, translation):
            for result in tuple(op.results):
                if (value := translation.values.get(result)) is not None and value.type != result.type:
                    Rewriter.replace_value_with_new_type(result, value.type)


@dataclass(frozen=True)
class OnnxInferShapesPass(ModulePass):
    """
    Gives every value of the module its static type, from the types of the functions' arguments.

    An op whose results are known at compile time, such as shape arithmetic, becomes `onnx.Constant`, unless
    that would enlarge the model; so do weights that are only rearranged, whose bytes are computed lazily.
    Results of operators that are not supported get the type that the onnx package infers, if it does.

    Requires: static shapes of all arguments.
    Ensures: static types of all values that supported operators compute, but for those in the bodies of loops that
    will be unrolled, which may differ between iterations; the same results.

    Before:

    ```mlir
    %s = onnx.Shape(%x) : (tensor<2x4x8xf32>) -> tensor<*xi64>
    %y = onnx.Reshape(%x, %s) : (tensor<2x4x8xf32>, tensor<*xi64>) -> tensor<*xf32>
    ```

    After:

    ```mlir
    %s = onnx.Constant() {value = dense<[2, 4, 8]> : tensor<3xi64>} : () -> tensor<3xi64>
    %y = onnx.Reshape(%x, %s) : (tensor<2x4x8xf32>, tensor<3xi64>) -> tensor<2x4x8xf32>
    ```

    Raises InvalidInputError that lists unbound dimensions, and InvalidModelError that lists the nodes which
    contradict ONNX or the declared type of a model output; the module is untouched then.
    """

    name = "onnx-infer-shapes"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Refines the types of `op` in place."""
        functions = [f for f in op.ops if isinstance(f, FuncOp) and f.body.blocks]
        translations = [translate(function) for function in functions]
        if invalid := [fault for t in translations for fault in t.invalid]:
            raise InvalidModelError(nodes=invalid)
        for function, translation in zip(functions, translations, strict=True):
            block = function.body.block
            _rewrite(block, translation)
            _drop_unused_constants(block)
            function.update_function_type()


def _drop_unused_constants(block: Block) -> None:
    unused: list[Operation] = [
        op for op in block.ops if op.name == "onnx.Constant" and not op.results[0].uses
    ]
    for op in unused:
        Rewriter.erase_op(op)
