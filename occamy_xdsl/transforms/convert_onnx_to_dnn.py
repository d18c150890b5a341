"""`convert-onnx-to-dnn`: every ONNX node becomes ops of the dnn dialect."""

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.passes import ModulePass

from occamy_xdsl.errors import UnsupportedModelError
from occamy_xdsl.operators import UNROLL, Translation, translate


def refuse_faults(translations: list[Translation]) -> None:
    """Raises UnsupportedModelError that lists every node that is invalid or not supported."""
    nodes = [fault for t in translations for fault in (*t.invalid, *t.refused)]
    if nodes:
        raise UnsupportedModelError(nodes=nodes)


@dataclass(frozen=True)
class ConvertOnnxToDnnPass(ModulePass):
    """
    Converts every function of the module from the onnx dialect to the dnn dialect, in value form.

    Requires: static shapes of all arguments; shapes of other values are computed.
    Ensures: no onnx op is left; every op has the location of the node it stems from; a result that is an
    argument, a constant or another result too is a `dnn.copy`. Argument and result attributes stay.

    Before:

    ```mlir
    %y = onnx.Softmax(%x) {axis = -1 : i64} : (tensor<2x4xf32>) -> tensor<*xf32> loc("scores")
    ```

    After:

    ```mlir
    %y = dnn.softmax input(%x : tensor<2x4xf32>) {axis = 1 : i64, log = false} -> tensor<2x4xf32> loc("scores")
    ```

    Raises InvalidInputError for unbound dimensions, and UnsupportedModelError that lists all nodes which
    cannot be converted; the module is untouched then.
    """

    name = "convert-onnx-to-dnn"

    unroll: int = UNROLL
    """Nodes up to which a loop of a known number of iterations is unrolled."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        """Converts `op` in place."""
        functions = [f for f in op.ops if isinstance(f, FuncOp) and f.body.blocks]
        translations = [translate(function, self.unroll) for function in functions]
        refuse_faults(translations)
        for function, translation in zip(functions, translations, strict=True):
            last = function.body.block.last_op
            assert isinstance(last, ReturnOp)
            translation.finish(last)
            function.body.detach_block(function.body.block)
            function.body.add_block(translation.block)
            function.update_function_type()
