"""
PTX's arithmetic, comparison, logic and conversion instructions on numpy arrays with one element a thread.

Registers hold raw bits; an instruction's type says how they are read. Results are rounded to nearest unless
the instruction says otherwise; approximate functions are exact to rounding, and `.ftz` does not flush.

Source: Parallel Thread Execution ISA 8.6, section 9.7.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from occamy_xdsl.simulator.ptx.parser import TYPE_BITS

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Compute: TypeAlias = Callable[..., Array]
Unary: TypeAlias = Callable[[Array], Array]
Binary: TypeAlias = Callable[[Array, Array], Array]
Ternary: TypeAlias = Callable[[Array, Array, Array], Array]

RAW: Mapping[int, Any] = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
"""numpy's type of a register by its bits."""
_NUMBERS: Mapping[str, Any] = {
    **{f"{kind}{bits}": RAW[bits] for kind in "bu" for bits in (8, 16, 32, 64)},
    **{"s8": np.int8, "s16": np.int16, "s32": np.int32, "s64": np.int64},
    **{"f16": np.float16, "f32": np.float32, "f64": np.float64},
}
FLOATS = ("f16", "bf16", "f16x2", "bf16x2", "f32", "f32x2", "f64")
"""The floating-point types."""


class UnknownInstructionError(Exception):
    """The instruction has no meaning here."""


def decode(raw: Array, type_: str) -> Array:
    """Raw bits as numbers of a PTX type; packed pairs get a last dimension of two, bf16 becomes float32."""
    if type_ == "pred":
        return raw
    raw = raw.astype(RAW[TYPE_BITS[type_]], copy=False)
    if type_.endswith("x2"):
        return decode(raw[..., None].view(RAW[TYPE_BITS[type_] // 2]), type_[:-2])
    if type_ == "bf16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw.view(_NUMBERS[type_])


def encode(value: Array, type_: str) -> Array:
    """Numbers as raw bits of a PTX type; the inverse of `decode`, rounding to nearest even."""
    if type_ == "pred":
        return value
    if type_.endswith("x2"):
        return np.ascontiguousarray(encode(value, type_[:-2])).view(RAW[TYPE_BITS[type_]])[..., 0]
    if type_ == "bf16":
        bits = np.asarray(value, np.float32).view(np.uint32)
        rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return np.where(np.isnan(value), np.uint16(0x7FFF), rounded)
    return np.asarray(value).astype(_NUMBERS[type_], copy=False).view(RAW[TYPE_BITS[type_]])


@dataclass(frozen=True)
class Operation:
    """What an instruction computes: the types of its sources and of its result, and the function."""

    sources: tuple[str, ...]
    result: str
    compute: Compute


def _unary(source: str, result: str, function: Unary) -> Operation:
    return Operation((source,), result, function)


def _binary(sources: tuple[str, str], result: str, function: Binary) -> Operation:
    return Operation(sources, result, function)


def _ternary(sources: tuple[str, str, str], result: str, function: Ternary) -> Operation:
    return Operation(sources, result, function)


# --- rounding ---------------------------------------------------------------------------------------------

_ROUNDING = {"rn", "rz", "rm", "rp"}


def _round_f32(exact: Array, mode: str) -> Array:
    """float64 values as float32, rounded in the given direction."""
    nearest = exact.astype(np.float32)
    back = nearest.astype(np.float64)
    if mode == "rm":
        return np.where(back > exact, np.nextafter(nearest, np.float32(-np.inf)), nearest)
    if mode == "rp":
        return np.where(back < exact, np.nextafter(nearest, np.float32(np.inf)), nearest)
    return np.where(np.abs(back) > np.abs(exact), np.nextafter(nearest, np.float32(0)), nearest)


def _saturate(value: Array) -> Array:
    return np.where(np.isnan(value), 0, np.clip(value, 0, 1)).astype(value.dtype)


# --- arithmetic -------------------------------------------------------------------------------------------


def _maximum(x: Array, y: Array) -> Array:
    """The greater number, of a NaN and a number the number, and +0 rather than -0."""
    return np.where((x == 0) & (y == 0), x + y, np.fmax(x, y))


def _minimum(x: Array, y: Array) -> Array:
    return -_maximum(-x, -y)


def _propagate_nan(function: Binary) -> Binary:
    def compute(x: Array, y: Array) -> Array:
        return np.where(np.isnan(x) | np.isnan(y), np.array(np.nan, x.dtype), function(x, y))

    return compute


_FLOAT_UNARY: Mapping[str, Unary] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcp": lambda x: 1 / x,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
}
_FLOAT_BINARY: Mapping[str, Binary] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.true_divide,
}


def _float_operation(name: str, modifiers: set[str], type_: str) -> Operation | None:
    mode = next(iter(modifiers & _ROUNDING), "rn")
    scalar = type_.removesuffix("x2")

    def rounded(function: Compute, wide: bool) -> Compute:
        """`function` in more precision than `type_` if `wide`, the result rounded as the modifiers say."""

        def compute(*values: Array) -> Array:
            if mode != "rn" or (wide and scalar == "f32"):
                values = tuple(v.astype(np.float64) for v in values)
            elif scalar == "f64" and wide:
                values = tuple(v.astype(np.longdouble) for v in values)
            elif scalar in ("f16", "bf16"):
                values = tuple(v.astype(np.float64 if wide else np.float32) for v in values)
            result = function(*values)
            if mode != "rn":
                result = _round_f32(result, mode)
            return _saturate(result) if "sat" in modifiers else result

        return compute

    if mode != "rn" and scalar != "f32":
        return None
    if name == "fma" or (name == "mad" and type_ in FLOATS):
        return Operation((type_,) * 3, type_, rounded(_multiply_add, wide=True))
    if name in _FLOAT_BINARY:
        return Operation((type_,) * 2, type_, rounded(_FLOAT_BINARY[name], wide=False))
    if name in _FLOAT_UNARY:
        return Operation((type_,), type_, rounded(_FLOAT_UNARY[name], wide=True))
    if name in ("max", "min"):
        function = _maximum if name == "max" else _minimum
        return Operation((type_,) * 2, type_, _propagate_nan(function) if "NaN" in modifiers else function)
    if name == "neg":
        return Operation((type_,), type_, np.negative)
    if name == "abs":
        return Operation((type_,), type_, np.abs)
    if name == "copysign":
        return _binary((type_, type_), type_, lambda sign, magnitude: np.copysign(magnitude, sign))
    return None


def _multiply_add(x: Array, y: Array, z: Array) -> Array:
    return x * y + z


def _divide(x: Array, y: Array) -> Array:
    """Integer division towards zero; x / 0 is undefined."""
    quotient = np.floor_divide(x, y)
    if np.issubdtype(x.dtype, np.signedinteger):
        quotient = quotient + ((quotient < 0) & (quotient * y != x)).astype(x.dtype)
    return quotient


def _high_half(x: Array, y: Array) -> Array:
    """Upper half of the product of two integers."""
    bits = 8 * x.dtype.itemsize
    if bits <= 32:
        wide = np.int64 if np.issubdtype(x.dtype, np.signedinteger) else np.uint64
        return ((x.astype(wide) * y.astype(wide)) >> wide(bits)).astype(x.dtype)
    unsigned = _high_half_u64(x.view(np.uint64), y.view(np.uint64))
    if x.dtype == np.uint64:
        return unsigned
    correction = np.where(x < 0, y, 0) + np.where(y < 0, x, 0)
    return (unsigned.view(np.int64) - correction).astype(np.int64)


def _high_half_u64(x: Array, y: Array) -> Array:
    low = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    x0, x1, y0, y1 = x & low, x >> half, y & low, y >> half
    middle = x1 * y0 + ((x0 * y0) >> half)
    other = x0 * y1 + (middle & low)
    return x1 * y1 + (middle >> half) + (other >> half)


def _shift(left: bool) -> Compute:
    def compute(x: Array, amount: Array) -> Array:
        bits = 8 * x.dtype.itemsize
        clamped = np.minimum(amount, bits - 1).astype(x.dtype)
        if left:
            return np.where(amount >= bits, 0, x << clamped).astype(x.dtype)
        fill = x >> clamped
        is_signed = np.issubdtype(x.dtype, np.signedinteger)
        return fill if is_signed else np.where(amount >= bits, 0, fill).astype(x.dtype)

    return compute


def _funnel_shift(left: bool, wrap: bool) -> Compute:
    def compute(low: Array, high: Array, amount: Array) -> Array:
        count = (amount & 31 if wrap else np.minimum(amount, 32)).astype(np.uint64)
        both = (high.astype(np.uint64) << 32) | low
        return ((both << count) >> 32 if left else both >> count).astype(np.uint32)

    return compute


def _field(start: Array, length: Array, bits: int) -> tuple[Array, Array]:
    """Position and mask, not yet shifted, of a bit field; at most `bits` bits from `start` on."""
    position = np.minimum(start & 255, bits).astype(np.uint64)
    count = np.minimum(length & 255, bits - position).astype(np.uint64)
    # A shift by 64 is undefined.
    mask = np.where(count == 0, np.uint64(0), ~np.uint64(0) >> ((64 - count) & 63))
    return np.minimum(position, 63), np.where(position >= bits, np.uint64(0), mask)


def _extract_bits(x: Array, start: Array, length: Array) -> Array:
    """`bfe`: bits from `start` on, filled with the last bit of the field in signed types (PTX ISA, bfe)."""
    bits = 8 * x.dtype.itemsize
    raw = x.view(RAW[bits]).astype(np.uint64)
    position, mask = _field(start, length, bits)
    field = (raw >> position) & mask
    if np.issubdtype(x.dtype, np.signedinteger):
        last = np.minimum((start & 255).astype(np.int64) + (length & 255) - 1, bits - 1)
        sign = (raw >> np.maximum(last, 0).astype(np.uint64)) & 1
        field = np.where((sign == 1) & (length & 255 != 0), field | ~mask, field)
    return field.astype(RAW[bits]).view(x.dtype)


def _insert_bits(field: Array, base: Array, start: Array, length: Array) -> Array:
    """`bfi`: the low bits of `field` in the place of those of `base` from `start` on."""
    position, mask = _field(start, length, 8 * field.dtype.itemsize)
    wide = mask << position
    result = (base.astype(np.uint64) & ~wide) | ((field.astype(np.uint64) << position) & wide)
    return result.astype(field.dtype)


def _permute_bytes(a: Array, b: Array, selector: Array) -> Array:
    both = (b.astype(np.uint64) << 32) | a
    result = np.zeros(np.broadcast_shapes(a.shape, b.shape, selector.shape), np.uint64)
    for i in range(4):
        nibble = (selector >> (4 * i)).astype(np.uint64)
        byte = (both >> (8 * (nibble & 7))) & 0xFF
        sign = np.where(byte >= 128, 0xFF, 0).astype(np.uint64)
        result |= np.where(nibble & 8 != 0, sign, byte) << (8 * i)
    return result.astype(np.uint32)


def _leading_zeros(x: Array) -> Array:
    bits = 8 * x.dtype.itemsize
    count = np.full(x.shape, bits, np.uint32)
    for i in range(bits):
        count = np.where((x >> x.dtype.type(i)) & x.dtype.type(1) != 0, bits - 1 - i, count)
    return count.astype(np.uint32)


_INTEGER_BINARY: Mapping[str, Binary] = {
    "add": np.add,
    "sub": np.subtract,
    "div": _divide,
    "rem": lambda x, y: x - _divide(x, y) * y,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_INTEGER_UNARY: Mapping[str, Unary] = {
    "not": np.invert,
    "neg": lambda x: (0 - x.astype(np.int64)).astype(x.dtype),
    "abs": np.abs,
}


def _product(name: str, modifiers: set[str], type_: str) -> Operation | None:
    """`mul` and `mad` of integers: the low half, the high half or the whole product."""
    if "wide" in modifiers:
        wide = f"{type_[0]}{2 * TYPE_BITS[type_]}"
        number = _NUMBERS[wide]

        def product(x: Array, y: Array) -> Array:
            return x.astype(number) * y.astype(number)

        multiply: Binary = product

    else:
        wide = type_
        multiply = _high_half if "hi" in modifiers else np.multiply
    if name == "mul":
        return _binary((type_, type_), wide, multiply)
    return _ternary((type_, type_, wide), wide, lambda x, y, z: multiply(x, y) + z)


def _integer_operation(name: str, modifiers: set[str], type_: str) -> Operation | None:
    if name in ("mul", "mad"):
        return _product(name, modifiers, type_)
    if name in ("add", "sub") and "sat" in modifiers:
        return None
    if name in _INTEGER_BINARY:
        return Operation((type_, type_), type_, _INTEGER_BINARY[name])
    if name in _INTEGER_UNARY:
        return Operation((type_,), type_, _INTEGER_UNARY[name])
    match name:
        case "shl" | "shr":
            return Operation((type_, "u32"), type_, _shift(name == "shl"))
        case "shf":
            return Operation(("u32",) * 3, "u32", _funnel_shift("l" in modifiers, "wrap" in modifiers))
        case "bfe":
            return Operation((type_, "u32", "u32"), type_, _extract_bits)
        case "bfi":
            return Operation((type_, type_, "u32", "u32"), type_, _insert_bits)
        case "prmt":
            return Operation(("u32",) * 3, "u32", _permute_bytes)
        case "popc":
            return _unary(type_, "u32", lambda x: np.bitwise_count(x).astype(np.uint32))
        case "clz":
            return Operation((type_,), "u32", _leading_zeros)
        case _:
            return None


# --- comparisons and conversions --------------------------------------------------------------------------

_COMPARE: Mapping[str, Binary] = {
    **{"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le},
    **{"gt": operator.gt, "ge": operator.ge, "lo": operator.lt, "ls": operator.le},
    **{"hi": operator.gt, "hs": operator.ge},
}


def _comparison(condition: str, type_: str) -> Binary:
    """The function of a condition: those that end in `u` also hold if an operand is a NaN, the others not."""
    if type_ not in FLOATS:
        return _COMPARE[condition]

    def unordered(x: Array, y: Array) -> Array:
        return np.isnan(x) | np.isnan(y)

    if condition == "nan":
        return unordered
    if condition == "num":
        return lambda x, y: ~unordered(x, y)
    if condition.endswith("u"):
        function = _COMPARE[condition[:-1]]
        return lambda x, y: function(x, y) | unordered(x, y)
    function = _COMPARE[condition]
    return lambda x, y: function(x, y) & ~unordered(x, y)


_COMBINE: Mapping[str, Binary] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
_INTEGRAL: Mapping[str, Unary] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}


def _same(x: Array) -> Array:
    return x


def _conversion(modifiers: set[str], target: str, source: str) -> Operation:
    to_integral = _INTEGRAL.get(next(iter(modifiers & _INTEGRAL.keys()), ""), _same)
    mode = next(iter(modifiers & _ROUNDING), "rn")

    def compute(x: Array) -> Array:
        if target in FLOATS:
            value = to_integral(x) if source in FLOATS else x
            if target == "f32" and mode != "rn":
                value = _round_f32(value.astype(np.float64), mode)
            elif target == "bf16":
                value = value.astype(np.float32)
            else:
                value = value.astype(_NUMBERS[target])
            if "relu" in modifiers:
                value = np.where(value < 0, value.dtype.type(0), value)
            return _saturate(value) if "sat" in modifiers else value
        info = np.iinfo(_NUMBERS[target])
        if source in FLOATS:
            value = to_integral(np.where(np.isnan(x), 0, x).astype(np.float64))
            # The largest 64-bit integers are no doubles: what reaches the bound is the bound.
            result = np.clip(value, info.min, info.max).astype(_NUMBERS[target])
            result = np.where(value >= float(info.max), info.max, result)
            return np.where(value <= float(info.min), info.min, result).astype(_NUMBERS[target])
        if "sat" in modifiers:
            x = np.clip(x, max(info.min, np.iinfo(x.dtype).min), min(info.max, np.iinfo(x.dtype).max))
        return x.astype(_NUMBERS[target])

    return Operation((source,), target, compute)


def _packed_conversion(target: str) -> Operation:
    """`cvt.f16x2.f32 d, a, b`: a becomes the upper half."""
    return _binary(("f32", "f32"), target, lambda high, low: np.stack([low, high], -1))


def find(opcode: tuple[str, ...], sources: int) -> Operation:
    """
    What an instruction computes; `sources` is its number of source operands.

    Raises UnknownInstructionError.
    """
    name, *rest = opcode
    modifiers = set(rest)
    type_ = rest[-1] if rest else ""
    operation: Operation | None = None
    if name == "setp":
        combine = next((m for m in rest[1:-1] if m in _COMBINE), None)
        compare = _comparison(rest[0], type_)
        if combine is None:
            operation = Operation((type_, type_), "pred", compare)
        else:
            function = _COMBINE[combine]
            operation = _ternary((type_, type_, "pred"), "pred", lambda x, y, p: function(compare(x, y), p))
    elif name == "selp":
        operation = _ternary((type_, type_, "pred"), type_, lambda x, y, p: np.where(p, x, y))
    elif name == "cvt":
        packed = rest[-2].endswith("x2") and sources == 2
        operation = _packed_conversion(rest[-2]) if packed else _conversion(modifiers, rest[-2], type_)
    elif name == "mov" or name == "cvta":
        operation = _unary(type_, type_, _same)
    elif name == "lop3":
        operation = Operation(("b32", "b32", "b32", "u32"), "b32", _lookup)
    elif type_ == "pred":
        if name == "not":
            operation = Operation(("pred",), "pred", np.logical_not)
        elif name in _COMBINE:
            operation = Operation(("pred", "pred"), "pred", _COMBINE[name])
    elif type_ in FLOATS:
        operation = _float_operation(name, modifiers, type_)
    elif type_ in TYPE_BITS:
        operation = _integer_operation(name, modifiers, type_)
    if operation is None or len(operation.sources) != sources:
        raise UnknownInstructionError(".".join(opcode))
    return operation


def _lookup(a: Array, b: Array, c: Array, table: Array) -> Array:
    """`lop3`: any function of three bits, bit `4a + 2b + c` of the table."""
    result = np.zeros(np.broadcast_shapes(a.shape, b.shape, c.shape), np.uint32)
    for i in range(8):
        term = (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
        result |= np.where((table >> i) & 1 != 0, term, np.uint32(0))
    return result
