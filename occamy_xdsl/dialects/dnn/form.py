"""Which of the two forms a function has: the precondition of every pass on the `dnn` dialect."""

from collections.abc import Iterator
from typing import Literal

from xdsl.dialects.builtin import MemRefType, ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.utils.exceptions import PassFailedException

from occamy_xdsl.dialects.dnn.base import KernelOp

Form = Literal["value", "buffer"]

_OTHER = {"value": MemRefType, "buffer": TensorType}
"""The types that tell that a function has not the form."""

_HINTS = {
    "value": "run this pass before dnn-insert-memory-ops",
    "buffer": "run dnn-insert-memory-ops first",
}


def functions_in(form: Form, module: ModuleOp, user: str) -> Iterator[FuncOp]:
    """
    The functions of `module` that have a body, each checked to be one block of `dnn` in that form.

    `user` is the name of the pass that asks. Raises PassFailedException.
    """
    for function in module.ops:
        if isinstance(function, FuncOp) and function.body.blocks:
            check_form(function, form, user)
            yield function


def check_form(function: FuncOp, form: Form, user: str) -> None:
    where = f"{user}: function {function.sym_name.data}"
    if len(function.body.blocks) != 1:
        raise PassFailedException(f"{where} must have one block, got {len(function.body.blocks)}")
    types = [*function.function_type.inputs, *function.function_type.outputs]
    for op in function.body.block.ops:
        if op.name.startswith("onnx."):
            raise PassFailedException(f"{where} has '{op.name}' op; run convert-onnx-to-dnn first")
        if isinstance(op, KernelOp):
            types += [value.type for value in (*op.operands, *op.results)]
    for type_ in types:
        if isinstance(type_, _OTHER[form]):
            raise PassFailedException(f"{where} is not in {form} form, it has {type_}; {_HINTS[form]}")
