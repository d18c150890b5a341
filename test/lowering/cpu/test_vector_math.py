"""Vector functions against numpy in double precision: accuracy over their whole range, and special values."""

import math as libm
from dataclasses import dataclass

import numpy as np
import pytest
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import FloatAttr, f32
from xdsl.dialects.func import FuncOp

from occamy_xdsl.lowering.cpu.kernels.builder import KernelBuilder
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer, Epilogue, Kernel


@dataclass(frozen=True)
class Map(Kernel):
    """A scalar function of every element, in vectors and then, for what is left over, in scalars."""

    size: int
    function: Epilogue

    @property
    def label(self):
        return "map"

    @property
    def arguments(self):
        return (Buffer.contiguous((self.size,)),) * 2

    def build(self, isa) -> FuncOp:
        k = KernelBuilder(self, isa)
        source, target = k.views
        lanes = isa.lanes(4)
        whole = self.size // lanes * lanes

        def apply(i, lanes=lanes):
            (result,) = k.inline(self.function.block, [k.load(source, i, lanes)])
            k.store(result, target, i)

        k.for_(0, whole, lanes, apply)
        k.for_(whole, self.size, 1, lambda i: apply(i, None))
        return k.finish()


SPECIAL = np.array(
    [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-45,
        1.1754942e-38,
        1.1754944e-38,
        -1.1754944e-38,
        1e-30,
        -1e-30,
        1.0,
        -1.0,
        0.99999994,
        1.0000001,
        3.4028235e38,
        -3.4028235e38,
    ],
    np.float32,
)


def sweep(low, high):
    """Floats from low to high, evenly and by magnitude, after the special values; a number no vector divides."""
    even = np.linspace(low, high, 20001, dtype=np.float32)
    size = 10 ** np.linspace(-44, np.log10(max(abs(low), abs(high))), 10000)
    sizes = np.concatenate([size[size <= high], -size[size <= -low]]).astype(np.float32)
    values = np.concatenate([SPECIAL, even, sizes])
    return values[: len(values) // 16 * 16 - 3]


def ulps(actual, exact):
    """Distance from the exact values, in units of the last place of f32 there."""
    with np.errstate(invalid="ignore", over="ignore"):
        rounded = exact.astype(np.float32)
        spacing = np.spacing(np.maximum(np.abs(rounded), np.float32(1e-45))).astype(np.float64)
        distance = np.abs(actual.astype(np.float64) - exact) / spacing
    equal = (actual == rounded) | (np.isnan(actual) & np.isnan(rounded))
    distance[equal] = np.minimum(np.nan_to_num(distance[equal], nan=0, posinf=0), 0.5)
    distance[~equal & ~np.isfinite(rounded)] = np.inf
    distance[np.isnan(actual) != np.isnan(rounded)] = np.inf
    return distance


def unary(op):
    """An epilogue of one op."""
    return lambda epilogue: epilogue([f32], lambda x: ([y := op(x)], y.result))


def power(exponent):
    """An epilogue that raises to a constant power."""

    def body(x):
        e = arith.ConstantOp(FloatAttr(exponent, f32))
        return [e, y := math.PowFOp(x, e.result)], y.result

    return lambda epilogue: epilogue([f32], body)


FUNCTIONS = {
    "exp": (unary(math.ExpOp), np.exp, (-110.0, 95.0), 2),
    "expm1": (unary(math.ExpM1Op), np.expm1, (-110.0, 95.0), 6),
    "log": (unary(math.LogOp), np.log, (-1.0, 1e6), 2),
    "log1p": (unary(math.Log1pOp), np.log1p, (-1.5, 1e6), 4),
    "tanh": (unary(math.TanhOp), np.tanh, (-12.0, 12.0), 8),
    "sin": (unary(math.SinOp), np.sin, (-1000.0, 1000.0), 1),
    "cube": (power(3.0), lambda x: np.power(x, 3.0), (-1e3, 1e3), 2),
    "eighth": (power(8.0), lambda x: np.power(x, 8.0), (-1e2, 1e2), 7),
    "inverse square": (power(-2.0), lambda x: np.power(x, -2.0), (-1e3, 1e3), 3),
    "root": (power(0.5), lambda x: np.power(x, np.full_like(x, 0.5)), (-1.0, 1e6), 1),
    "zeroth": (power(0.0), lambda x: np.power(x, 0.0), (-1.0, 1.0), 0),
    "power": (power(2.7), lambda x: np.power(x, float(np.float32(2.7))), (-1.0, 1e3), 1),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_accuracy(isa, run, epilogue):
    calls, exact = [], []
    for build, reference, bounds, _ in FUNCTIONS.values():
        x = sweep(*bounds)
        calls.append((Map(len(x), build(epilogue)), [x]))
        exact.append(reference(x.astype(np.float64)))
    actual = run(calls, isa)
    worst = {name: ulps(a, e).max() for name, a, e in zip(FUNCTIONS, actual, exact, strict=True)}
    limits = {name: limit for name, (*_, limit) in FUNCTIONS.items()}
    assert {name: ulp for name, ulp in worst.items() if ulp > limits[name] + 0.5} == {}


def test_erf_is_within_a_millionth(isa, run, epilogue):
    x = sweep(-6.0, 6.0)
    (actual,) = run([(Map(len(x), unary(math.ErfOp)(epilogue)), [x])], isa)
    exact = np.vectorize(libm.erf)(x.astype(np.float64))
    assert np.array_equal(np.isnan(actual), np.isnan(x))
    assert np.nanmax(np.abs(actual - exact)) <= 1e-6
    assert np.array_equal(np.signbit(actual[:2]), [False, True])


@pytest.mark.parametrize("name", ["tanh", "expm1", "log1p", "sin", "cube"])
def test_odd_functions_keep_the_sign_of_zero(isa, run, epilogue, name):
    x = np.array([0.0, -0.0] * 20, np.float32)
    (actual,) = run([(Map(len(x), FUNCTIONS[name][0](epilogue)), [x])], isa)
    assert np.array_equal(actual, x)
    assert np.array_equal(np.signbit(actual), np.signbit(x))
