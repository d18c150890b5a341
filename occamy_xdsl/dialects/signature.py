"""
What a function's argument and result attributes say of a model's inputs and outputs.

Value form: every argument is an input and every result an output; `onnx.name` names them. Buffer form:
outputs are arguments too, and `dnn.kind` tells "input" from "output".
"""

from xdsl.dialects.builtin import BytesAttr, DictionaryAttr, ModuleOp, StringAttr
from xdsl.dialects.func import FuncOp
from xdsl.ir import BlockArgument
from xdsl.utils.exceptions import PassFailedException

from occamy_xdsl.dialects.weights import string_value

NAME = "onnx.name"
KIND = "dnn.kind"


def function_named(module: ModuleOp, name: str = "main") -> FuncOp:
    """The module's function of that name. Raises KeyError where there is none."""
    for op in module.ops:
        if isinstance(op, FuncOp) and op.sym_name.data == name:
            return op
    raise KeyError(f"the module has no function {name}")


def function_for(module: ModuleOp, pass_name: str, name: str = "main") -> FuncOp:
    """As `function_named`, for the pass of that name. Raises PassFailedException where there is none."""
    try:
        return function_named(module, name)
    except KeyError as error:
        raise PassFailedException(f"{pass_name}: {error.args[0]}") from None


def argument_attributes(function: FuncOp) -> list[dict[str, object]]:
    """The attributes of each argument; empty dictionaries where there are none."""
    count = len(function.body.block.args)
    return [dict(a.data) for a in function.arg_attrs] if function.arg_attrs else [{} for _ in range(count)]


def _text(value: object, default: str) -> str:
    text = string_value(value) if isinstance(value, StringAttr | BytesAttr) else default
    return text if isinstance(text, str) else default


def input_arguments(function: FuncOp) -> list[BlockArgument]:
    return [
        argument
        for argument, attributes in zip(function.body.block.args, argument_attributes(function), strict=True)
        if _text(attributes.get(KIND), "input") == "input"
    ]


def output_arguments(function: FuncOp) -> list[BlockArgument]:
    """The output arguments of a function in buffer form; none in value form."""
    return [
        argument
        for argument, attributes in zip(function.body.block.args, argument_attributes(function), strict=True)
        if _text(attributes.get(KIND), "input") == "output"
    ]


def argument_names(function: FuncOp) -> list[str]:
    """Name of each argument: its `onnx.name`, else `argN`."""
    return [_text(a.get(NAME), f"arg{i}") for i, a in enumerate(argument_attributes(function))]


def input_names(function: FuncOp) -> list[str]:
    names = argument_names(function)
    return [names[argument.index] for argument in input_arguments(function)]


def result_names(function: FuncOp) -> list[str]:
    """Name of each result of a function in value form: its `onnx.name`, else `resultN`."""
    count = len(function.function_type.outputs)
    attributes = function.res_attrs.data if function.res_attrs else (DictionaryAttr({}),) * count
    return [_text(a.data.get(NAME), f"result{i}") for i, a in enumerate(attributes)]


def output_names(function: FuncOp) -> list[str]:
    """Names of the outputs, in either form."""
    arguments = output_arguments(function)
    names = argument_names(function)
    return [names[a.index] for a in arguments] if arguments else result_names(function)
