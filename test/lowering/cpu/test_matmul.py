"""Matrix multiplication kernels against numpy in double precision, over shapes and strides of all paths."""

from dataclasses import dataclass

import numpy as np
import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import FloatAttr, f32

from occamy_xdsl.lowering.cpu.kernels.matmul import Matmul
from occamy_xdsl.lowering.cpu.kernels.spec import NUMPY_TYPES, Buffer


@dataclass(frozen=True)
class Case:
    """Shapes are numpy's, before broadcasting; `layout` has a letter for each of a, b and c (`laid_out`)."""

    a: tuple[int, ...]
    b: tuple[int, ...]
    layout: str = "nnn"
    packed: bool = False
    bias: tuple[int, ...] | None = None
    dtypes: tuple[str, str, str] = ("f32", "f32", "f32")


def laid_out(shape, dtype, layout):
    """Contiguous ("n"), that once transposed ("t"), with gaps between rows ("g"), or reversed ("r")."""
    if layout == "r":
        return Buffer(shape, tuple(-stride for stride in Buffer.contiguous(shape).strides), dtype)
    if layout == "t":
        swapped = Buffer.contiguous((*shape[:-2], shape[-1], shape[-2]), dtype)
        return Buffer(shape, (*swapped.strides[:-2], swapped.strides[-1], swapped.strides[-2]), dtype)
    if layout == "g":
        wider = Buffer.contiguous((*shape[:-2], shape[-2] + 1, shape[-1] + 3), dtype)
        return Buffer(shape, wider.strides, dtype)
    return Buffer.contiguous(shape, dtype)


def sample(rng, shape, dtype):
    kind = NUMPY_TYPES[dtype]
    if np.issubdtype(kind, np.floating):
        return rng.standard_normal(shape).astype(kind)
    return rng.integers(0 if dtype.startswith("u") else -100, 100, shape).astype(kind)


def prepare(case, isa, epilogue=None, extras=()):
    rng = np.random.default_rng(0)
    a, b = sample(rng, case.a, case.dtypes[0]), sample(rng, case.b, case.dtypes[1])
    kind = NUMPY_TYPES[case.dtypes[2]]
    exact = np.float64 if np.issubdtype(kind, np.floating) else np.int64
    expected = a.astype(exact) @ b.astype(exact)
    batch = expected.shape[:-2]
    rank = len(expected.shape)
    a, b = (x.reshape((1,) * (rank - x.ndim) + x.shape) for x in (a, b))
    a_buffer, b_buffer = (
        laid_out(x.shape, dtype, layout).broadcast_to((*batch, *x.shape[-2:]))
        for x, dtype, layout in zip((a, b), case.dtypes, case.layout, strict=False)
    )
    # A dimension of one element is not a broadcast one, but its stride does not matter either.
    c_buffer = laid_out(expected.shape, case.dtypes[2], case.layout[2])
    arrays, bias = [], None
    if case.bias is not None:
        values = sample(rng, case.bias, case.dtypes[2])
        bias = Buffer.contiguous(case.bias, case.dtypes[2]).broadcast_to(expected.shape)
        arrays = [np.broadcast_to(values, expected.shape)]
        expected = expected + values
    kernel = Matmul.create(
        a_buffer, b_buffer, c_buffer, isa, is_packed=case.packed, bias=bias, epilogue=epilogue
    )
    a = np.broadcast_to(a, a_buffer.shape)
    second = kernel.pack(b) if case.packed else np.broadcast_to(b, b_buffer.shape)
    return kernel, [a, second, *arrays, *extras], expected


CASES = [
    Case((1, 1), (1, 1)),
    Case((5, 7), (7, 9)),
    Case((13, 40), (40, 100)),
    Case((13, 40), (40, 100), packed=True),
    Case((13, 40), (40, 100), packed=True, bias=(100,)),
    Case((13, 40), (40, 100), bias=(13, 1)),
    Case((13, 40), (40, 100), bias=(13, 100), layout="tng"),
    Case((1, 300), (300, 1000), packed=True, bias=(1000,)),
    Case((1, 300), (300, 130)),
    Case((300, 30), (30, 1)),
    Case((300, 30), (30, 1), packed=True, layout="tnn"),
    Case((16, 33), (33, 70), layout="ntn"),
    Case((16, 33), (33, 70), layout="ttn"),
    Case((16, 33), (33, 70), layout="ggg"),
    Case((16, 33), (33, 70), layout="nnt"),
    Case((16, 33), (33, 70), layout="rrr"),
    Case((1, 33), (33, 70), layout="ntn"),
    Case((2, 3, 9, 20), (2, 3, 20, 40)),
    Case((2, 3, 9, 20), (2, 3, 20, 40), layout="ntn"),
    Case((2, 3, 9, 20), (3, 20, 40), packed=True),
    Case((2, 3, 9, 20), (2, 1, 20, 40), packed=True, bias=(2, 1, 1, 40)),
    Case((2, 3, 9, 20), (2, 1, 20, 40), layout="gtg"),
    Case((9, 20), (4, 20, 40)),
    Case((4, 9, 20), (20, 40), packed=True),
    Case((4, 9, 20), (20, 40), packed=True, layout="gng"),
    Case((4, 1, 20), (20, 40)),
    Case((5, 0), (0, 9)),
    Case((5, 0), (0, 9), packed=True, bias=(9,)),
    Case((0, 5), (5, 9)),
    Case((2, 0, 5), (5, 0)),
    Case((9, 20), (20, 40), dtypes=("f64", "f64", "f64")),
    Case((9, 20), (20, 40), packed=True, dtypes=("f64", "f64", "f64"), layout="tnt"),
    Case((9, 20), (20, 40), dtypes=("i32", "i32", "i32")),
    Case((9, 20), (20, 40), dtypes=("i64", "i64", "i64"), layout="ntn"),
    Case((9, 20), (20, 40), dtypes=("ui8", "i8", "i32"), packed=True),
    Case((9, 20), (20, 40), dtypes=("i8", "ui8", "i32")),
    Case((9, 20), (20, 40), dtypes=("f16", "f16", "f16")),
]


def close(actual, expected):
    """Whether sums are equal up to the rounding of their dtype; integers exactly."""
    if not np.issubdtype(actual.dtype, np.floating):
        return np.array_equal(actual, expected)
    scale = 64 * np.finfo(actual.dtype).eps
    return np.allclose(actual, expected, rtol=scale, atol=4 * scale)


def test_against_numpy(isa, run):
    prepared = [prepare(case, isa) for case in CASES]
    actual = run([(kernel, arrays) for kernel, arrays, _ in prepared], isa)
    wrong = [case for case, (_, _, e), a in zip(CASES, prepared, actual, strict=True) if not close(a, e)]
    assert not wrong


@pytest.mark.parametrize("shape", [(40,), (9, 1), (3, 9, 40), (3, 1, 1)], ids=str)
def test_epilogue(isa, run, epilogue, shape):
    def body(x, y):
        total = arith.AddfOp(x, y)
        zero = arith.ConstantOp(FloatAttr(0.0, f32))
        return [total, zero, relu := arith.MaximumfOp(total, zero)], relu.result

    values = np.random.default_rng(1).standard_normal(shape, np.float32)
    work = epilogue([f32, f32], body, [Buffer.contiguous(shape).broadcast_to((3, 9, 40))])
    case = Case((3, 9, 20), (20, 40), packed=True)
    kernel, arrays, expected = prepare(case, isa, work, [np.broadcast_to(values, (3, 9, 40))])
    (actual,) = run([(kernel, arrays)], isa)
    assert close(actual, np.maximum(expected + values, 0))


def test_workspace_is_one_panel(isa):
    shape = Buffer.contiguous((50, 60)), laid_out((60, 500), "f32", "t"), Buffer.contiguous((50, 500))
    kernel = Matmul.create(*shape, isa)
    assert kernel.workspace_bytes == 60 * kernel.tile.width * 4
    assert kernel.arguments[-1].extent * 4 == kernel.workspace_bytes
