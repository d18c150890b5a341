"""Numpy meaning of the scalar arith and math ops in fused regions, applied to whole arrays at once."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloat, FloatAttr, IntegerAttr
from xdsl.ir import Attribute, Block, Operation, SSAValue

from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.weights import numpy_dtype

Array = NDArray[Any]


def _unsigned(function: Callable[..., Array]) -> Callable[..., Array]:
    """`function` on the operands' bits read as unsigned integers."""

    def apply(*arrays: Array) -> Array:
        return function(
            *(a.view(np.dtype(f"u{a.dtype.itemsize}")) if a.dtype.kind == "i" else a for a in arrays)
        )

    return apply


def _truncated_divide(a: Array, b: Array) -> Array:
    # numpy floors; exact for all widths because it stays in integers. Division by zero gives 0, like numpy.
    quotient = a // np.where(b == 0, 1, b)
    adjust = (a % np.where(b == 0, 1, b) != 0) & ((a < 0) != (b < 0))
    return np.where(b == 0, 0, quotient + adjust).astype(a.dtype)


def _truncated_remainder(a: Array, b: Array) -> Array:
    return (a - _truncated_divide(a, b) * b).astype(a.dtype)


def _reciprocal_root(a: Array) -> Array:
    return 1 / np.sqrt(a)


def _multiply_add(a: Array, b: Array, c: Array) -> Array:
    return a * b + c


def _erf(a: Array) -> Array:
    from math import erf

    return np.vectorize(erf, otypes=[a.dtype])(a) if a.size else a


def _round_half_away(a: Array) -> Array:
    return np.trunc(a + np.copysign(0.5, a))


_UFUNCS: dict[type[Operation], Callable[..., Array]] = {
    arith.AddfOp: np.add,
    arith.SubfOp: np.subtract,
    arith.MulfOp: np.multiply,
    arith.DivfOp: np.divide,
    arith.NegfOp: np.negative,
    arith.MaximumfOp: np.maximum,
    arith.MinimumfOp: np.minimum,
    arith.MaxnumfOp: np.fmax,
    arith.MinnumfOp: np.fmin,
    arith.AddiOp: np.add,
    arith.SubiOp: np.subtract,
    arith.MuliOp: np.multiply,
    arith.DivSIOp: _truncated_divide,
    arith.RemSIOp: _truncated_remainder,
    arith.DivUIOp: _unsigned(_truncated_divide),
    arith.RemUIOp: _unsigned(_truncated_remainder),
    arith.AndIOp: np.bitwise_and,
    arith.OrIOp: np.bitwise_or,
    arith.XOrIOp: np.bitwise_xor,
    arith.ShLIOp: np.left_shift,
    arith.ShRUIOp: _unsigned(np.right_shift),
    arith.ShRSIOp: np.right_shift,
    arith.MaxSIOp: np.maximum,
    arith.MinSIOp: np.minimum,
    arith.MaxUIOp: _unsigned(np.maximum),
    arith.MinUIOp: _unsigned(np.minimum),
    arith.SelectOp: np.where,
    math.AbsFOp: np.abs,
    math.AbsIOp: np.abs,
    math.CeilOp: np.ceil,
    math.FloorOp: np.floor,
    math.RoundOp: _round_half_away,
    math.RoundEvenOp: np.rint,
    math.TruncOp: np.trunc,
    math.ExpOp: np.exp,
    math.ExpM1Op: np.expm1,
    math.Exp2Op: np.exp2,
    math.LogOp: np.log,
    math.Log2Op: np.log2,
    math.Log10Op: np.log10,
    math.Log1pOp: np.log1p,
    math.SqrtOp: np.sqrt,
    math.RsqrtOp: _reciprocal_root,
    math.CbrtOp: np.cbrt,
    math.PowFOp: np.power,
    math.ErfOp: _erf,
    math.SinOp: np.sin,
    math.CosOp: np.cos,
    math.TanOp: np.tan,
    math.SinhOp: np.sinh,
    math.CoshOp: np.cosh,
    math.TanhOp: np.tanh,
    math.AsinOp: np.arcsin,
    math.AcosOp: np.arccos,
    math.AtanOp: np.arctan,
    math.Atan2Op: np.arctan2,
    math.AsinhOp: np.arcsinh,
    math.AcoshOp: np.arccosh,
    math.AtanhOp: np.arctanh,
    math.CopySignOp: np.copysign,
    math.FmaOp: _multiply_add,
}

_CONVERSIONS: dict[type[Operation], bool] = {
    arith.SIToFPOp: False,
    arith.UIToFPOp: True,
    arith.FPToSIOp: False,
    arith.FPToUIOp: False,
    arith.ExtFOp: False,
    arith.TruncFOp: False,
    arith.ExtSIOp: False,
    arith.ExtUIOp: True,
    arith.TruncIOp: False,
}
"""Ops that convert their operand to the result's type; True where the operand is read as unsigned."""

_INTEGER_PREDICATES: tuple[Callable[..., Array], ...] = (
    np.equal,
    np.not_equal,
    np.less,
    np.less_equal,
    np.greater,
    np.greater_equal,
    _unsigned(np.less),
    _unsigned(np.less_equal),
    _unsigned(np.greater),
    _unsigned(np.greater_equal),
)
"""In the order of arith.cmpi's predicates."""


def _compare_floats(predicate: int, a: Array, b: Array) -> Array:
    """arith.cmpf: predicates 1-6 are false and 8-13 true where an operand is NaN; 7 is ord, 14 uno."""
    unordered = np.isnan(a) | np.isnan(b)
    if predicate in (0, 15):
        return np.full(unordered.shape, predicate == 15)
    if predicate in (7, 14):
        return ~unordered if predicate == 7 else unordered
    compare = (np.equal, np.greater, np.greater_equal, np.less, np.less_equal, np.not_equal)[
        (predicate - 1) % 7
    ]
    ordered = compare(a, b) & ~unordered
    return ordered if predicate <= 6 else ordered | unordered


def evaluate_block(block: Block, arguments: Sequence[Array]) -> tuple[Array, ...]:
    """
    The arrays that a fused region yields for arrays of arguments of one broadcast shape.

    Integers are signless inside a region: unsigned arrays enter with their bits reinterpreted as signed.
    Raises NotImplementedError for an op that has no place in a fused region.
    """
    values: dict[SSAValue, Array] = {}
    for argument, array in zip(block.args, arguments, strict=True):
        values[argument] = array.view(numpy_dtype(argument.type)) if array.dtype.kind == "u" else array
    with np.errstate(all="ignore"):
        for op in block.ops:
            if isinstance(op, dnn.YieldOp):
                return tuple(values[v] for v in op.values)
            values[op.results[0]] = _evaluate(op, [values[v] for v in op.operands])
    raise NotImplementedError("a fused region must end in dnn.yield")


def _evaluate(op: Operation, operands: list[Array]) -> Array:
    result: Attribute = op.results[0].type
    dtype = numpy_dtype(result)
    match op:
        case arith.ConstantOp():
            return np.asarray(cast(IntegerAttr[Any] | FloatAttr[AnyFloat], op.value).value.data).astype(dtype)
        case arith.CmpiOp():
            return _INTEGER_PREDICATES[op.predicate.value.data](*operands)
        case arith.CmpfOp():
            return _compare_floats(op.predicate.value.data, *operands)
        case arith.BitcastOp():
            return operands[0].view(dtype)
        case math.FPowIOp() | math.IPowIOp():
            return np.power(operands[0], operands[1]).astype(dtype)
        case _ if type(op) in _CONVERSIONS:
            source = operands[0]
            if _CONVERSIONS[type(op)] and source.dtype.kind == "i":
                source = source.view(np.dtype(f"u{source.dtype.itemsize}"))
            if dtype == np.bool_:
                return (source.astype(np.int64) & 1).astype(np.bool_)
            if source.dtype == np.bool_ and isinstance(op, arith.ExtSIOp):
                source = -source.astype(np.int8)
            if isinstance(op, arith.FPToUIOp):
                return source.astype(np.dtype(f"u{dtype.itemsize}")).view(dtype)
            return source.astype(dtype)
        case _ if type(op) in _UFUNCS:
            computed = _UFUNCS[type(op)](*operands)
            return computed.view(dtype) if computed.dtype.kind == "u" else computed.astype(dtype, copy=False)
        case _:
            raise NotImplementedError(f"'{op.name}' has no meaning in a fused region")
