"""Scalar expressions: Python operators that write arith and math ops into the region of a fused op."""

from __future__ import annotations

import math as pymath
from dataclasses import dataclass
from typing import cast

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import (
    AnyFloat,
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    Signedness,
    f64,
    i1,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue

from occamy_xdsl.dialects.dnn import integer_width, is_unsigned, signless

Number = float | int | bool

_MANTISSA_BITS = {Float16Type: 11, BFloat16Type: 8, Float32Type: 24, Float64Type: 53}
_LARGEST = {
    Float16Type: 65504.0,
    BFloat16Type: float.fromhex("0x1.fep127"),
    Float32Type: float.fromhex("0x1.fffffep127"),
    Float64Type: float.fromhex("0x1.fffffffffffffp1023"),
}


@dataclass(frozen=True, eq=False)
class Scalar:
    """
    A value inside a fused region. Operators append the op that computes them to `block`.

    `element` is the element type with its sign, which the signless `value` has lost. Both sides of a binary
    operator have one element type; Python numbers become constants of it. The meaning is ONNX's: a NaN
    operand of `maximum` and `minimum` wins, integer division truncates and no divisor or shift traps.
    """

    value: SSAValue
    element: Attribute
    block: Block

    # ---- Construction

    @property
    def is_float(self) -> bool:
        return not integer_width(self.element)

    @property
    def is_unsigned(self) -> bool:
        return is_unsigned(self.element)

    @property
    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value of an integer element."""
        width = integer_width(self.element)
        return (0, 2**width - 1) if self.is_unsigned else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)

    def like(self, number: Number | Scalar) -> Scalar:
        """`number` as a constant of this element type; a scalar is returned as it is."""
        return number if isinstance(number, Scalar) else constant(number, self.element, self.block)

    def _append(self, op: Operation, element: Attribute | None = None) -> Scalar:
        self.block.add_op(op)
        return Scalar(op.results[0], self.element if element is None else element, self.block)

    def _binary(
        self,
        other: Scalar | Number,
        on_float: type[Operation],
        on_signed: type[Operation],
        on_unsigned: type[Operation] | None = None,
    ) -> Scalar:
        right = self.like(other)
        kind = on_signed if on_unsigned is None or not self.is_unsigned else on_unsigned
        return self._plain(on_float if self.is_float else kind, right.value)

    def _plain(self, kind: type[Operation], *others: SSAValue) -> Scalar:
        """An op with default flags of values of one type, which its result has; the constructors take far longer."""
        return self._append(kind.create(operands=(self.value, *others), result_types=(self.value.type,)))

    # ---- Arithmetic

    def __add__(self, other: Scalar | Number) -> Scalar:
        return self._binary(other, arith.AddfOp, arith.AddiOp)

    def __sub__(self, other: Scalar | Number) -> Scalar:
        return self._binary(other, arith.SubfOp, arith.SubiOp)

    def __mul__(self, other: Scalar | Number) -> Scalar:
        return self._binary(other, arith.MulfOp, arith.MuliOp)

    def __rsub__(self, other: Number) -> Scalar:
        return self.like(other) - self

    def __rtruediv__(self, other: Number) -> Scalar:
        return self.like(other) / self

    __radd__ = __add__
    __rmul__ = __mul__

    def __truediv__(self, other: Scalar | Number) -> Scalar:
        """Integers truncate. A zero divisor counts as 1, and the one quotient that overflows wraps."""
        divisor = self.like(other)
        if self.is_float:
            return self._plain(arith.DivfOp, divisor.value)
        safe, negated = self._safe_divisor(divisor)
        if self.is_unsigned:
            return self._append(arith.DivUIOp(self.value, safe.value))
        quotient = self._append(arith.DivSIOp(self.value, safe.value))
        return quotient if negated is None else negated.select(0 - self, quotient)

    def _safe_divisor(self, divisor: Scalar) -> tuple[Scalar, Scalar | None]:
        """A divisor that cannot trap and, for signed ones, whether the true divisor is -1."""
        known = divisor.known
        if known is not None and known not in (0, -1):
            return divisor, None
        safe = (divisor == 0).select(divisor.like(1), divisor)
        if self.is_unsigned:
            return safe, None
        negated = divisor == -1
        return negated.select(divisor.like(1), safe), negated

    @property
    def known(self) -> Number | None:
        """The value of a constant, else None."""
        owner = self.value.owner
        if not isinstance(owner, arith.ConstantOp):
            return None
        value = owner.value
        return cast(IntegerAttr | FloatAttr, value).value.data

    def remainder(self, other: Scalar | Number) -> Scalar:
        """What truncating division leaves: it has the sign of `self`. A zero divisor counts as 1."""
        divisor = self.like(other)
        if self.is_float:
            # In f64 the quotient of two narrower floats loses nothing that matters below 2^53.
            wide, by = self.cast(f64), divisor.cast(f64)
            exact = (wide / by).unary(math.TruncOp)
            return by.is_infinite().select(wide, wide - exact * by).cast(self.element)
        safe, _ = self._safe_divisor(divisor)
        if self.is_unsigned:
            return self._append(arith.RemUIOp(self.value, safe.value))
        return self._append(arith.RemSIOp(self.value, safe.value))

    def modulo(self, other: Scalar | Number) -> Scalar:
        """Python's `%`: the result has the sign of the divisor."""
        divisor = self.like(other)
        rest = self.remainder(divisor)
        if self.is_unsigned and not self.is_float:
            return rest
        differs = ((rest < 0) ^ (divisor < 0)) & (rest != 0)
        return differs.select(rest + divisor, rest)

    def __neg__(self) -> Scalar:
        return self._plain(arith.NegfOp) if self.is_float else 0 - self

    def maximum(self, other: Scalar | Number) -> Scalar:
        return self._binary(other, arith.MaximumfOp, arith.MaxSIOp, arith.MaxUIOp)

    def minimum(self, other: Scalar | Number) -> Scalar:
        return self._binary(other, arith.MinimumfOp, arith.MinSIOp, arith.MinUIOp)

    def unary(self, op: type[Operation]) -> Scalar:
        """`op` of the math dialect applied to this float."""
        return self._plain(op)

    def absolute(self) -> Scalar:
        if self.is_float:
            return self.unary(math.AbsFOp)
        return self if self.is_unsigned else self.unary(math.AbsIOp)

    def exp(self) -> Scalar:
        return self.unary(math.ExpOp)

    def sqrt(self) -> Scalar:
        return self.unary(math.SqrtOp)

    def tanh(self) -> Scalar:
        return self.unary(math.TanhOp)

    def sigmoid(self) -> Scalar:
        return 1.0 / ((-self).exp() + 1.0)

    def softplus(self) -> Scalar:
        """log(1 + exp(x)), without overflow."""
        return self.maximum(0.0) + (-self.absolute()).exp().unary(math.Log1pOp)

    def power(self, exponent: Scalar) -> Scalar:
        """Small constant exponents become products; integers go through f64."""
        if self.is_float:
            known = exponent.known
            if known == 1:
                return self
            if known == 2:
                return self * self
            if known == 3:
                return self * self * self
            if known == 0.5:
                return self.sqrt()
            return self._append(math.PowFOp(self.value, exponent.value))
        return self.cast(f64).power(exponent.cast(f64)).cast(self.element)

    # ---- Comparison, logic, bits

    def _compare(self, other: Scalar | Number, on_float: str, on_integer: str) -> Scalar:
        right = self.like(other)
        if self.is_float:
            return self._append(arith.CmpfOp(self.value, right.value, on_float), i1)
        sign = "" if on_integer in ("eq", "ne") else "u" if self.is_unsigned else "s"
        return self._append(arith.CmpiOp(self.value, right.value, sign + on_integer), i1)

    def __eq__(self, other: Scalar | Number) -> Scalar:  # pyright: ignore[reportIncompatibleMethodOverride] builds an op
        return self._compare(other, "oeq", "eq")

    def __ne__(self, other: Scalar | Number) -> Scalar:  # pyright: ignore[reportIncompatibleMethodOverride] builds an op
        return self._compare(other, "une", "ne")

    __hash__ = None  # pyright: ignore[reportAssignmentType] equality builds an op

    def __lt__(self, other: Scalar | Number) -> Scalar:
        return self._compare(other, "olt", "lt")

    def __le__(self, other: Scalar | Number) -> Scalar:
        return self._compare(other, "ole", "le")

    def __gt__(self, other: Scalar | Number) -> Scalar:
        return self._compare(other, "ogt", "gt")

    def __ge__(self, other: Scalar | Number) -> Scalar:
        return self._compare(other, "oge", "ge")

    def is_nan(self) -> Scalar:
        return self._append(arith.CmpfOp(self.value, self.value, "uno"), i1)

    def is_infinite(self) -> Scalar:
        return self.absolute() == pymath.inf

    def select(self, yes: Scalar, no: Scalar) -> Scalar:
        """`yes` where this truth value holds, else `no`."""
        return yes._append(arith.SelectOp(self.value, yes.value, no.value))

    def __and__(self, other: Scalar | Number) -> Scalar:
        return self._append(arith.AndIOp(self.value, self.like(other).value))

    def __or__(self, other: Scalar | Number) -> Scalar:
        return self._append(arith.OrIOp(self.value, self.like(other).value))

    def __xor__(self, other: Scalar | Number) -> Scalar:
        return self._append(arith.XOrIOp(self.value, self.like(other).value))

    def __invert__(self) -> Scalar:
        return self ^ (True if self.element == i1 else -1)

    def shift(self, distance: Scalar, left: bool) -> Scalar:
        """
        To the right, copies of the sign follow. A distance of the width or more, which a negative one read as
        unsigned is too, shifts everything out.
        """
        last = integer_width(self.element) - 1
        unsigned = Scalar(distance.value, IntegerType(last + 1, Signedness.UNSIGNED), self.block)
        bounded = unsigned.minimum(last).value
        if not left and not self.is_unsigned:
            return self._append(arith.ShRSIOp(self.value, bounded))
        make = arith.ShLIOp if left else arith.ShRUIOp
        return (unsigned > last).select(self.like(0), self._append(make(self.value, bounded)))

    # ---- Conversion

    def cast(self, element: Attribute) -> Scalar:
        """
        This value as `element`. Floats become integers by truncation, within the integer's range (NaN
        becomes its smallest value); integers wrap; everything but zero is true.
        """
        if element == self.element:
            return self
        if element == i1:
            return self != 0
        target, to_width, width = signless(element), integer_width(element), integer_width(self.element)
        if not width and not to_width:
            return self._float_to_float(cast(AnyFloat, target))
        if not width:
            return self._float_to_integer(element)
        if not to_width:
            make = arith.UIToFPOp if self.is_unsigned else arith.SIToFPOp
            return self._append(make(self.value, cast(AnyFloat, target)), element)
        integer = cast(IntegerType, target)
        if to_width == width:
            return Scalar(self.value, element, self.block)
        if to_width < width:
            return self._append(arith.TruncIOp(self.value, integer), element)
        extend = arith.ExtUIOp if self.is_unsigned else arith.ExtSIOp
        return self._append(extend(self.value, integer), element)

    def _float_to_float(self, target: AnyFloat) -> Scalar:
        bits, to_bits = (t.bitwidth for t in (cast(Float32Type, self.element), cast(Float32Type, target)))
        if bits == to_bits:  # f16 and bf16 have no common subset
            wide = self._append(arith.ExtFOp(self.value, Float32Type()), Float32Type())
            return wide.cast(target)
        make = arith.ExtFOp if to_bits > bits else arith.TruncFOp
        return self._append(make(self.value, target), target)

    def _float_to_integer(self, element: Attribute) -> Scalar:
        low, high = Scalar(self.value, element, self.block).bounds
        # The largest float that does not round up past the largest integer.
        excess = max(high.bit_length() - _MANTISSA_BITS[type(cast(Float32Type, self.element))], 0)
        largest = min(float(high >> excess << excess), _LARGEST[type(cast(Float32Type, self.element))])
        smallest = max(float(low), -_LARGEST[type(cast(Float32Type, self.element))])
        inside = self._append(arith.MaxnumfOp(self.value, self.like(smallest).value))
        inside = inside._append(arith.MinnumfOp(inside.value, self.like(largest).value))
        make = arith.FPToUIOp if low == 0 else arith.FPToSIOp
        return self._append(make(inside.value, cast(IntegerType, signless(element))), element)


def constant(number: Number, element: Attribute, block: Block) -> Scalar:
    """`number` as a constant of type `element` at the end of `block`."""
    if width := integer_width(element):
        attribute: IntegerAttr | FloatAttr = IntegerAttr(int(number), IntegerType(width), truncate_bits=True)
    else:
        attribute = FloatAttr(float(number), cast(AnyFloat, element))
    op = arith.ConstantOp.create(result_types=(attribute.get_type(),), properties={"value": attribute})
    block.add_op(op)
    return Scalar(op.result, element, block)
