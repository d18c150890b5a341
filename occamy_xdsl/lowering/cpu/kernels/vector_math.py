"""
The math dialect's functions on f32 vectors and scalars, lane by lane without branches.

Special values are those of C's functions; the accuracy is stated with each function. Polynomials are those of
Cephes (S. Moshier, netlib.org/cephes) unless said otherwise.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf, nan
from typing import TYPE_CHECKING, TypeAlias

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import f32, i32
from xdsl.ir import SSAValue

from occamy_xdsl.lowering.cpu.kernels import vector_ops

if TYPE_CHECKING:
    from occamy_xdsl.lowering.cpu.kernels.builder import KernelBuilder

Operand: TypeAlias = SSAValue | float


class _Lanes:
    """Arithmetic on values of the type of `like`, f32, where Python numbers stand for constants."""

    def __init__(self, k: "KernelBuilder", like: SSAValue):
        self.k = k
        self.float_type = like.type
        self.int_type = vector_ops.retype(i32, like.type)
        self.lanes = vector_ops.lanes_of(like)

    def number(self, x: Operand) -> SSAValue:
        """A float as a constant, a value as it is."""
        return x if isinstance(x, SSAValue) else self.k.constant(x, f32, self.lanes)

    def integer(self, x: SSAValue | int) -> SSAValue:
        """An i32 as a constant, a value as it is."""
        return x if isinstance(x, SSAValue) else self.k.constant(x, i32, self.lanes)

    def add(self, a: Operand, b: Operand) -> SSAValue:
        """`a + b`."""
        return self.k.emit(arith.AddfOp(self.number(a), self.number(b)))

    def sub(self, a: Operand, b: Operand) -> SSAValue:
        """`a - b`."""
        return self.k.emit(arith.SubfOp(self.number(a), self.number(b)))

    def mul(self, a: Operand, b: Operand) -> SSAValue:
        """`a * b`."""
        return self.k.emit(arith.MulfOp(self.number(a), self.number(b)))

    def div(self, a: Operand, b: Operand) -> SSAValue:
        """`a / b`."""
        return self.k.emit(arith.DivfOp(self.number(a), self.number(b)))

    def fma(self, a: Operand, b: Operand, c: Operand) -> SSAValue:
        """`a * b + c`."""
        return self.k.fma(self.number(a), self.number(b), self.number(c))

    def polynomial(self, x: SSAValue, coefficients: Sequence[float]) -> SSAValue:
        """Horner's scheme, highest power first."""
        result = self.number(coefficients[0])
        for coefficient in coefficients[1:]:
            result = self.fma(result, x, coefficient)
        return result

    def where(self, predicate: str, a: Operand, b: Operand, then: Operand, otherwise: Operand) -> SSAValue:
        """`then` in the lanes in which `a` compares to `b`, else `otherwise`."""
        condition = self.k.compare_values(predicate, self.number(a), self.number(b))
        return self.k.select(condition, self.number(then), self.number(otherwise))

    def clamp(self, x: SSAValue, low: float, high: float) -> SSAValue:
        """`x` brought into the bounds; a NaN stays one. Each side is a single max or min instruction."""
        x = self.where("olt", x, low, low, x)
        return self.where("ogt", x, high, high, x)

    def bits(self, x: SSAValue) -> SSAValue:
        """The representation of f32 as i32."""
        return self.k.emit(arith.BitcastOp(x, self.int_type))

    def from_bits(self, x: SSAValue) -> SSAValue:
        """The f32 that an i32 represents."""
        return self.k.emit(arith.BitcastOp(x, self.float_type))

    def power_of_two(self, n: SSAValue) -> SSAValue:
        """2 to the integer `n`, which is in [-126, 127]."""
        biased = self.k.emit(arith.AddiOp(n, self.integer(127)))
        return self.from_bits(self.k.emit(arith.ShLIOp(biased, self.integer(23))))


_ROUND_TO_INTEGER = 1.5 * 2**23
"""Added and subtracted, it rounds a float below 2**22 to the nearest integer on any processor."""


def exp(k: "KernelBuilder", x: SSAValue) -> SSAValue:
    """e to the power of x; at most 2 ulp, also where the result is subnormal."""
    v = _Lanes(k, x)
    x = v.clamp(x, -104.0, 89.0)
    n = v.sub(v.fma(x, 1.44269504088896341, _ROUND_TO_INTEGER), _ROUND_TO_INTEGER)
    r = v.fma(n, -0.693359375, x)
    r = v.fma(n, 2.12194440e-4, r)
    p = v.polynomial(
        r,
        (
            1.9875691500e-4,
            1.3981999507e-3,
            8.3334519073e-3,
            4.1665795894e-2,
            1.6666665459e-1,
            5.0000001201e-1,
        ),
    )
    p = v.add(v.fma(p, v.mul(r, r), r), 1.0)
    # In two steps, as 2**n itself may be out of range where the result is subnormal or just below overflow.
    integer = k.emit(vector_ops.FPToSIOp(n, v.int_type))
    half = k.emit(arith.ShRSIOp(integer, v.integer(1)))
    rest = k.emit(arith.SubiOp(integer, half))
    return v.mul(v.mul(p, v.power_of_two(half)), v.power_of_two(rest))


def log(k: "KernelBuilder", x: SSAValue) -> SSAValue:
    """Natural logarithm; at most 1 ulp, also of subnormal numbers."""
    v = _Lanes(k, x)
    smallest = 2.0**-126
    normal = v.where("olt", x, smallest, v.mul(x, 2.0**23), x)
    shift = v.where("olt", x, smallest, -23.0 - 126.0, -126.0)
    bits = v.bits(normal)
    exponent = k.emit(arith.ShRUIOp(bits, v.integer(23)))
    e = v.add(k.emit(vector_ops.SIToFPOp(exponent, v.float_type)), shift)
    mantissa = k.emit(arith.AndIOp(bits, v.integer(0x007FFFFF)))
    m = v.from_bits(k.emit(arith.OrIOp(mantissa, v.integer(0x3F000000))))  # in [0.5, 1)
    e = v.where("olt", m, 0.707106781186547524, v.sub(e, 1.0), e)
    m = v.sub(v.where("olt", m, 0.707106781186547524, v.add(m, m), m), 1.0)
    z = v.mul(m, m)
    p = v.polynomial(
        m,
        (
            7.0376836292e-2,
            -1.1514610310e-1,
            1.1676998740e-1,
            -1.2420140846e-1,
            1.4249322787e-1,
            -1.6668057665e-1,
            2.0000714765e-1,
            -2.4999993993e-1,
            3.3333331174e-1,
        ),
    )
    y = v.fma(e, -2.12194440e-4, v.mul(v.mul(m, z), p))
    y = v.fma(z, -0.5, y)
    y = v.fma(e, 0.693359375, v.add(m, y))
    y = v.where("oeq", x, inf, inf, y)
    y = v.where("oeq", x, 0.0, -inf, y)
    return v.where("oge", x, 0.0, y, nan)


def log1p(k: "KernelBuilder", x: SSAValue) -> SSAValue:
    """log(1 + x) by Kahan's correction of the rounding of 1 + x; at most 4 ulp."""
    v = _Lanes(k, x)
    u = v.add(x, 1.0)
    corrected = v.mul(log(k, u), v.div(x, v.sub(u, 1.0)))
    corrected = v.where("oeq", u, inf, inf, corrected)
    return v.where("oeq", u, 1.0, x, corrected)


def expm1(k: "KernelBuilder", x: SSAValue) -> SSAValue:
    """e to the power of x, minus 1, by Kahan's correction of the rounding of e to the x; at most 6 ulp."""
    v = _Lanes(k, x)
    u = exp(k, x)
    difference = v.sub(u, 1.0)
    corrected = v.mul(difference, v.div(x, log(k, u)))
    corrected = v.where("oeq", difference, -1.0, -1.0, corrected)
    corrected = v.where("oeq", u, inf, inf, corrected)
    return v.where("oeq", u, 1.0, x, corrected)


def tanh(k: "KernelBuilder", x: SSAValue) -> SSAValue:
    """Hyperbolic tangent by Eigen's rational approximation of degrees 13 and 6; at most 8 ulp."""
    v = _Lanes(k, x)
    c = v.clamp(x, -7.90531110763549805, 7.90531110763549805)
    z = v.mul(c, c)
    p = v.polynomial(
        z,
        (
            -2.76076847742355e-16,
            2.00018790482477e-13,
            -8.60467152213735e-11,
            5.12229709037114e-08,
            1.48572235717979e-05,
            6.37261928875436e-04,
            4.89352455891786e-03,
        ),
    )
    q = v.polynomial(
        z, (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
    )
    magnitude = k.emit(math.AbsFOp(x))
    return v.where("olt", magnitude, 4e-4, x, v.div(v.mul(c, p), q))


def erf(k: "KernelBuilder", x: SSAValue) -> SSAValue:
    """Error function by Eigen's rational approximation of degrees 13 and 8 on [-4, 4]; at most 1e-6 off."""
    v = _Lanes(k, x)
    c = v.clamp(x, -4.0, 4.0)
    z = v.mul(c, c)
    p = v.polynomial(
        z,
        (
            -2.72614225801306e-10,
            2.77068142495902e-08,
            -2.10102402082508e-06,
            -5.69250639462346e-05,
            -7.34990630326855e-04,
            -2.95459980854025e-03,
            -1.60960333262415e-02,
        ),
    )
    q = v.polynomial(
        z,
        (
            -1.45660718464996e-05,
            -2.13374055278905e-04,
            -1.68282697438203e-03,
            -7.37332916720468e-03,
            -1.42647390514189e-02,
        ),
    )
    return v.div(v.mul(c, p), q)


def power(k: "KernelBuilder", x: SSAValue, exponent: float) -> SSAValue | None:
    """
    x to a constant power if that is 1/2 or an integer from -8 to 8, by products; None for other powers.

    At most 1 ulp for each unit of the exponent.
    """
    v = _Lanes(k, x)
    if exponent == 0.5:
        root = k.emit(math.SqrtOp(v.add(x, 0.0)))  # the sum makes -0 to 0
        return v.where("oeq", x, -inf, inf, root)
    if not float(exponent).is_integer() or abs(exponent) > 8:
        return None
    base = x if exponent >= 0 else v.div(1.0, x)
    result: SSAValue | None = None
    n = abs(int(exponent))
    while n:
        if n & 1:
            result = base if result is None else v.mul(result, base)
        n >>= 1
        base = v.mul(base, base) if n else base
    return v.number(1.0) if result is None else result


EXPANSIONS: Mapping[str, Callable[..., SSAValue]] = {
    "math.exp": exp,
    "math.expm1": expm1,
    "math.log": log,
    "math.log1p": log1p,
    "math.tanh": tanh,
    "math.erf": erf,
}
"""Builder of each op that is expanded, by the op's name; the others become a call to libm for each lane."""
