"""Operators that compute each element alone: arithmetic, activations and casts."""

from collections.abc import Callable
from functools import partial, reduce
from math import inf, pi, sqrt
from typing import Any

from xdsl.dialects import math
from xdsl.dialects.builtin import f64, i1
from xdsl.ir import Operation, SSAValue

from occamy_xdsl.dialects import onnx
from occamy_xdsl.dialects.dnn import element_type_of, shape_of
from occamy_xdsl.operators.emitter import ELEMENT_TYPES, Emitter
from occamy_xdsl.operators.node import Node
from occamy_xdsl.operators.registry import operator
from occamy_xdsl.operators.scalars import Scalar, constant


def _unary(name: str, formula: Callable[[Scalar], Scalar], since: int = 1) -> None:
    def rule(node: Node, emit: Emitter) -> SSAValue:
        return emit.elementwise(formula, node[0])

    operator(name, since=since)(rule)


def _binary(name: str, formula: Callable[[Scalar, Scalar], Scalar], since: int = 1) -> None:
    def rule(node: Node, emit: Emitter) -> SSAValue:
        return emit.elementwise(formula, node[0], node[1])

    operator(name, since=since)(rule)


def _activation(name: str, formula: Callable[..., Scalar], *attributes: str) -> None:
    """`formula` takes the element, and each of `attributes` as a keyword."""

    def rule(node: Node, emit: Emitter) -> SSAValue:
        return emit.elementwise(
            partial(formula, **{attribute: node.attr(attribute) for attribute in attributes}), node[0]
        )

    operator(name)(rule)


def _hard_sigmoid(x: Scalar, alpha: float, beta: float) -> Scalar:
    return (x * alpha + beta).maximum(0.0).minimum(1.0)


def _elu(x: Scalar, alpha: float = 1.0, gamma: float = 1.0) -> Scalar:
    below = x.unary(math.ExpM1Op) * (alpha * gamma)
    return (x > 0).select(x if gamma == 1 else x * gamma, below)


def _celu(x: Scalar, alpha: float) -> Scalar:
    return (x > 0).select(x, (x / alpha).unary(math.ExpM1Op) * alpha)


def _gelu(x: Scalar, approximate: str) -> Scalar:
    if approximate == "tanh":
        inner = ((x * x * x) * 0.044715 + x) * sqrt(2 / pi)
        return x * 0.5 * (inner.tanh() + 1.0)
    return x * 0.5 * ((x * sqrt(0.5)).unary(math.ErfOp) + 1.0)


def _shrink(x: Scalar, lambd: float, bias: float) -> Scalar:
    if not x.is_float:
        return _shrink(x.cast(f64), lambd, bias).cast(x.element)
    return (x > lambd).select(x - bias, (x < -lambd).select(x + bias, x.like(0)))


def _sign(x: Scalar) -> Scalar:
    """NaN stays NaN."""
    below = x if x.is_unsigned else (x < 0).select(x.like(-1), x)
    return (x > 0).select(x.like(1), below)


def _is_inf(x: Scalar, detect_negative: int, detect_positive: int) -> Scalar:
    if detect_negative and detect_positive:
        return x.is_infinite()
    if not detect_negative and not detect_positive:
        return constant(False, i1, x.block)
    return x == (inf if detect_positive else -inf)


def _leaky_relu(x: Scalar, alpha: float) -> Scalar:
    return (x >= 0).select(x, x * alpha)


def _thresholded_relu(x: Scalar, alpha: float) -> Scalar:
    return (x > alpha).select(x, x.like(0))


def _swish(x: Scalar, alpha: float) -> Scalar:
    return x * (x * alpha).sigmoid()


_FUNCTIONS: dict[str, type[Operation]] = {
    "Acos": math.AcosOp,
    "Acosh": math.AcoshOp,
    "Asin": math.AsinOp,
    "Asinh": math.AsinhOp,
    "Atan": math.AtanOp,
    "Atanh": math.AtanhOp,
    "Ceil": math.CeilOp,
    "Cos": math.CosOp,
    "Cosh": math.CoshOp,
    "Erf": math.ErfOp,
    "Exp": math.ExpOp,
    "Floor": math.FloorOp,
    "Log": math.LogOp,
    "Round": math.RoundEvenOp,
    "Sin": math.SinOp,
    "Sinh": math.SinhOp,
    "Sqrt": math.SqrtOp,
    "Tan": math.TanOp,
    "Tanh": math.TanhOp,
}
for _name, _function in _FUNCTIONS.items():
    _unary(_name, partial(Scalar.unary, op=_function))

_unary("Abs", Scalar.absolute)
_unary("Neg", lambda x: -x)
_unary("Reciprocal", lambda x: 1.0 / x)
_unary("Sign", _sign)
_binary("Add", lambda a, b: a + b, since=7)
_binary("Sub", lambda a, b: a - b, since=7)
_binary("Mul", lambda a, b: a * b, since=7)
_binary("Div", lambda a, b: a / b, since=7)

_unary("Relu", lambda x: x.maximum(0))
_binary("PRelu", lambda x, slope: (x >= 0).select(x, x * slope), since=7)
_activation("LeakyRelu", _leaky_relu, "alpha")
_activation("ThresholdedRelu", _thresholded_relu, "alpha")
_activation("Elu", _elu, "alpha")
_activation("Selu", _elu, "alpha", "gamma")
_activation("Celu", _celu, "alpha")
_activation("Gelu", _gelu, "approximate")
_activation("Swish", _swish, "alpha")
_activation("HardSigmoid", _hard_sigmoid, "alpha", "beta")
_activation("Shrink", _shrink, "lambd", "bias")
_activation("IsInf", _is_inf, "detect_negative", "detect_positive")
_unary("Mish", lambda x: x * x.softplus().tanh())
_unary("Sigmoid", Scalar.sigmoid)
_unary("HardSwish", lambda x: x * _hard_sigmoid(x, 1 / 6, 0.5))
_unary("Softplus", Scalar.softplus)
_unary("Softsign", lambda x: x / (x.absolute() + 1.0))
_unary("IsNaN", Scalar.is_nan)


@operator("Where", since=9)
def where(node: Node, emit: Emitter) -> SSAValue:
    return emit.elementwise(lambda c, x, y: c.select(x, y), node[0], node[1], node[2])


@operator("Mod", since=10)
def mod(node: Node, emit: Emitter) -> SSAValue:
    """With `fmod` the sign of the dividend, else that of the divisor."""
    if node.flag("fmod"):
        return emit.elementwise(lambda a, b: a.remainder(b), node[0], node[1])
    return emit.elementwise(lambda a, b: a.modulo(b), node[0], node[1])


@operator("Pow", since=7)
def power(node: Node, emit: Emitter) -> SSAValue:
    """The result has the type of the base."""

    def compute(base: Scalar, exponent: Scalar) -> Scalar:
        if base.is_float or not exponent.is_float:
            return base.power(exponent.cast(base.element))
        return base.cast(f64).power(exponent.cast(f64)).cast(base.element)

    return emit.elementwise(compute, node[0], node[1])


def _folded(name: str, combine: Callable[[Scalar, Scalar], Scalar], since: int) -> None:
    def rule(node: Node, emit: Emitter) -> SSAValue:
        return emit.elementwise(lambda *xs: reduce(combine, xs), *node.variadic)

    operator(name, since=since)(rule)


_folded("Sum", lambda a, b: a + b, since=6)
_folded("Max", Scalar.maximum, since=6)
_folded("Min", Scalar.minimum, since=6)


@operator("Mean", since=6)
def mean(node: Node, emit: Emitter) -> SSAValue:
    count = len(node.operands)
    return emit.elementwise(lambda *xs: reduce(lambda a, b: a + b, xs) / count, *node.variadic)


@operator("Clip", since=6)
def clip_by_attributes(node: Node, emit: Emitter) -> SSAValue:
    low, high = node.attr("min"), node.attr("max")
    return emit.elementwise(lambda x: x.maximum(low).minimum(high), node[0])


@operator("Clip", since=11)
def clip(node: Node, emit: Emitter) -> SSAValue:
    """min(max(x, low), high); either bound may be absent or computed."""
    low, high = node.optional(1), node.optional(2)
    for bound in (low, high):
        if bound is not None and shape_of(bound) not in ((), (1,)):
            node.reject(f"bounds must be scalars, got shape {list(shape_of(bound))}")
    bounds = [emit.reshape(bound, ()) for bound in (low, high) if bound is not None]

    def compute(x: Scalar, *bounds: Scalar) -> Scalar:
        if low is not None:
            x = x.maximum(bounds[0])
        return x if high is None else x.minimum(bounds[-1])

    return emit.elementwise(compute, node[0], *bounds) if bounds else node[0]


# ---- Casts


def _cast(node: Node, emit: Emitter, target: Any) -> SSAValue:
    if target not in ELEMENT_TYPES:
        node.refuse(f"cast to {target}")
    return emit.cast(node[0], target)


@operator("Cast", since=6, limits="strings, complex numbers and floats of 8 bits or less")
def cast(node: Node, emit: Emitter) -> SSAValue:
    return _cast(node, emit, onnx.element_type(node.attr("to")))


@operator("CastLike", since=15, limits="as Cast")
def cast_like(node: Node, emit: Emitter) -> SSAValue:
    return _cast(node, emit, element_type_of(node[1]))
