"""Runs `dnn` value form on numpy arrays, through xDSL's interpreter."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreter import (
    Interpreter,
    InterpreterFunctions,
    OpImpl,
    OpImplResult,
    PythonValues,
    ReturnedValues,
    register_impls,
)
from xdsl.interpreters.func import FuncFunctions
from xdsl.ir import Operation

from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.signature import function_named, input_names, output_names
from occamy_xdsl.dialects.weights import to_array
from occamy_xdsl.interpreters.semantics import evaluate


def _run_kernel(
    functions: InterpreterFunctions, interpreter: Interpreter, op: Operation, args: PythonValues
) -> OpImplResult:
    assert isinstance(op, dnn.KernelOp)
    if op.is_buffer_form:
        interpreter.raise_error(f"'{op.name}' is in buffer form")
    return OpImplResult(evaluate(op, args), None)


def _run_if(
    functions: InterpreterFunctions, interpreter: Interpreter, op: Operation, args: PythonValues
) -> OpImplResult:
    assert isinstance(op, dnn.IfOp)
    chosen = op.then if args[0] else op.otherwise
    return OpImplResult(interpreter.run_ssacfg_region(chosen, (), op.name), None)


def _run_loop(
    functions: InterpreterFunctions, interpreter: Interpreter, op: Operation, args: PythonValues
) -> OpImplResult:
    assert isinstance(op, dnn.LoopOp)
    goes_on, *carried = args
    while goes_on:
        goes_on, *carried = interpreter.run_ssacfg_region(op.body, tuple(carried), op.name)
    return OpImplResult(tuple(carried), None)


def _run_yield(
    functions: InterpreterFunctions, interpreter: Interpreter, op: Operation, args: PythonValues
) -> OpImplResult:
    return OpImplResult((), ReturnedValues(args))


def _run_constant(
    functions: InterpreterFunctions, interpreter: Interpreter, op: Operation, args: PythonValues
) -> OpImplResult:
    assert isinstance(op, dnn.ConstantOp)
    return OpImplResult((to_array(op.value, op.output.type),), None)


@register_impls
class DnnFunctions(InterpreterFunctions):
    """Implementations of all `dnn` value-form ops for an `xdsl.interpreter.Interpreter`."""

    @classmethod
    def _impls(cls) -> Iterable[tuple[type[Operation], OpImpl[InterpreterFunctions, Operation]]]:
        yield dnn.ConstantOp, _run_constant
        yield dnn.IfOp, _run_if
        yield dnn.LoopOp, _run_loop
        yield dnn.YieldOp, _run_yield
        for op in dnn.Dnn.operations:
            if issubclass(op, dnn.KernelOp) and not issubclass(op, dnn.ControlOp):
                yield op, _run_kernel


def run_values(
    module: ModuleOp, inputs: Sequence[NDArray[Any]], function: str = "main"
) -> tuple[NDArray[Any], ...]:
    """
    Calls `function` of a module in value form: one array an argument, one a result.

    Raises xdsl's InterpretationError for an op without numpy meaning.
    """
    interpreter = Interpreter(module)
    interpreter.register_implementations(FuncFunctions())
    interpreter.register_implementations(DnnFunctions())
    return tuple(np.asarray(a) for a in interpreter.call_op(function, tuple(inputs)))


def run_named(module: ModuleOp, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """As `run_values` on `main`, with arrays by the names that the `onnx.name` attributes give."""
    main = function_named(module)
    results = run_values(module, [inputs[name] for name in input_names(main)])
    return dict(zip(output_names(main), results, strict=True))
