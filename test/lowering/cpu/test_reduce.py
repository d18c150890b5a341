"""Reduction kernels against numpy, in double precision where they sum."""

import numpy as np
import pytest

from occamy_xdsl.lowering.cpu.kernels.arg_reduce import ArgReduce
from occamy_xdsl.lowering.cpu.kernels.reduce import Reduce
from occamy_xdsl.lowering.cpu.kernels.spec import NUMPY_TYPES, Buffer

KINDS = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
    "l1": lambda x, axis: np.abs(x).sum(axis=axis),
    "l2": lambda x, axis: np.sqrt(np.square(x).sum(axis=axis)),
    "sum_square": lambda x, axis: np.square(x).sum(axis=axis),
    "log_sum": lambda x, axis: np.log(x.sum(axis=axis)),
    "log_sum_exp": lambda x, axis: np.log(np.exp(x).sum(axis=axis)),
}


def channels_last(*shape: int, dtype: str = "f32") -> Buffer:
    _, c, h, w = shape
    return Buffer(shape, (c * h * w, 1, w * c, c), dtype)


def kernel(kind: str, axes: tuple[int, ...], source: Buffer) -> Reduce:
    shape = tuple(n for d, n in enumerate(source.shape) if d not in axes)
    return Reduce(kind, axes, source, Buffer.contiguous(shape, source.dtype))


def check(calls, run, isa, rtol=2e-6):
    for (k, (x,)), got in zip(calls, run(calls, isa), strict=True):
        wide = x.astype(np.float64) if x.dtype.kind == "f" else x
        with np.errstate(all="ignore"):
            want = KINDS[k.kind](wide, axis=k.axes)
        if x.dtype.kind != "f" and k.kind == "mean":
            want = np.trunc(want)
        np.testing.assert_allclose(got, want.astype(got.dtype), rtol=rtol, atol=1e-6, err_msg=k.symbol)


def test_kinds_and_layouts(isa, run):
    dense = Buffer.contiguous
    sources = [
        (dense((5, 37)), (1,)),
        (dense((5, 37)), (0,)),
        (dense((5, 37)), (0, 1)),
        (dense((5, 37)), ()),
        (dense((7,)), (0,)),
        (dense((3, 5, 7, 9)), (1, 3)),
        (dense((2, 3, 7, 7)), (2, 3)),
        (channels_last(2, 19, 7, 7), (2, 3)),
        (channels_last(2, 19, 7, 7), (1,)),
        (channels_last(1, 3, 6, 5), (2, 3)),
        (Buffer((6, 5), (20, 3), "f32"), (1,)),
        (Buffer((6, 5), (-7, 1), "f32"), (0,)),
        (dense((4, 20), "f64"), (1,)),
        (dense((4, 20), "f64"), (0,)),
    ]
    rng = np.random.default_rng(0)
    calls = []
    for i, (source, axes) in enumerate(sources):
        for kind in KINDS if i < 4 else ("sum", "max", "l2", "log_sum_exp"):
            x = rng.uniform(0.5, 1.5, source.shape).astype(NUMPY_TYPES[source.dtype])
            calls.append((kernel(kind, axes, source), [x]))
    check(calls, run, isa)


def test_integers(isa, run):
    rng = np.random.default_rng(0)
    calls = []
    for dtype in ("i32", "i64", "i8", "ui8"):
        low = 0 if dtype[0] == "u" else -3
        for kind in ("sum", "mean", "max", "min", "prod", "l1", "sum_square"):
            if kind in ("sum", "mean", "prod", "l1", "sum_square") and dtype.endswith("i8"):
                continue
            for axes in ((0,), (1,)):
                x = rng.integers(low, 5, (9, 21)).astype(NUMPY_TYPES[dtype])
                calls.append((kernel(kind, axes, Buffer.contiguous((9, 21), dtype)), [x]))
    for axes in ((0,), (1,)):
        x = rng.integers(0, 2, (3, 70)).astype(bool)
        calls += [(kernel(kind, axes, Buffer.contiguous((3, 70), "i1")), [x]) for kind in ("max", "min")]
    check(calls, run, isa)


def test_long_sums_are_accurate(isa, run):
    rng = np.random.default_rng(0)
    calls = [
        (kernel("sum", (0,), Buffer.contiguous((100_003,))), [rng.random(100_003, np.float32)]),
        (kernel("mean", (2, 3), channels_last(1, 17, 150, 150)), [rng.random((1, 17, 150, 150), np.float32)]),
        (kernel("sum", (0, 1), Buffer((300, 300), (301, 1), "f32")), [rng.random((300, 300), np.float32)]),
    ]
    check(calls, run, isa, rtol=5e-7)


def test_half_precision_is_summed_in_single(isa, run):
    x = np.random.default_rng(0).random((3, 3000)).astype(np.float16)
    k = kernel("mean", (1,), Buffer.contiguous((3, 3000), "f16"))
    (got,) = run([(k, [x])], isa)
    np.testing.assert_allclose(got, x.astype(np.float64).mean(axis=1), rtol=5e-4)


@pytest.mark.parametrize("axes", [(0,), (1,)])
def test_nan_and_infinity(isa, run, axes):
    x = np.random.default_rng(0).standard_normal((19, 35)).astype(np.float32)
    x[3, 4], x[5, 6], x[5, 7], x[0, 8] = np.nan, np.inf, -np.inf, np.inf
    x[18, 34] = np.nan
    calls = [
        (kernel(kind, axes, Buffer.contiguous(x.shape)), [x])
        for kind in ("sum", "max", "min", "prod", "log_sum_exp")
    ]
    for (k, _), got in zip(calls, run(calls, isa), strict=True):
        with np.errstate(all="ignore"):
            want = KINDS[k.kind](x.astype(np.float64), axis=axes).astype(np.float32)
        np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=k.symbol)


def test_log_sum_exp_does_not_overflow(isa, run):
    x = np.full((2, 20), 1000, np.float32)
    x[1] = -np.inf
    (got,) = run([(kernel("log_sum_exp", (1,), Buffer.contiguous(x.shape)), [x])], isa)
    np.testing.assert_allclose(got, [1000 + np.log(20), -np.inf], rtol=1e-6)


def test_empty(isa, run):
    empty = np.zeros((3, 0), np.float32)
    identities = {"sum": 0, "max": -np.inf, "min": np.inf, "prod": 1, "mean": np.nan, "log_sum_exp": -np.inf}
    calls = [(kernel(kind, (1,), Buffer.contiguous((3, 0))), [empty]) for kind in identities]
    calls.append((kernel("sum", (0,), Buffer.contiguous((3, 0))), [empty]))
    *rows, nothing = run(calls, isa)
    for identity, got in zip(identities.values(), rows, strict=True):
        np.testing.assert_array_equal(got, np.full(3, identity, np.float32))
    assert nothing.shape == (0,)


def arg_reduce(x, kind, axis, select_last):
    """`np.argmax` and `np.argmin` (a NaN wins, the first of equals wins), or the same from the other end."""
    search = np.argmax if kind == "max" else np.argmin
    if not select_last:
        return search(x, axis=axis)
    return x.shape[axis] - 1 - search(np.flip(x, axis), axis=axis)


@pytest.mark.parametrize("select_last", [False, True])
def test_arg_reduce(isa, run, select_last):
    rng = np.random.default_rng(0)
    special = np.round(rng.standard_normal((6, 50)) * 2).astype(np.float32)
    special[0, 20], special[0, 40], special[1] = np.nan, np.nan, -np.inf
    special[2], special[3, 33], special[4, 49] = np.inf, -np.inf, np.nan
    inputs = [
        (Buffer.contiguous((6, 50)), special, (0, 1)),
        (
            channels_last(2, 21, 3, 5),
            np.round(rng.standard_normal((2, 21, 3, 5)) * 2).astype(np.float32),
            (1, 2, 3),
        ),
        (Buffer.contiguous((4, 5)), rng.standard_normal((4, 5)).astype(np.float32), (0, 1)),
        (Buffer.contiguous((3, 70), "i32"), rng.integers(-3, 3, (3, 70), dtype=np.int32), (0, 1)),
        (Buffer.contiguous((3, 70), "ui8"), rng.integers(0, 5, (3, 70), dtype=np.uint8), (0, 1)),
        (Buffer.contiguous((3, 20), "f64"), rng.standard_normal((3, 20)), (1,)),
        (Buffer.contiguous((3, 20), "f16"), rng.standard_normal((3, 20)).astype(np.float16), (1,)),
        (Buffer.contiguous((1,)), np.zeros(1, np.float32), (0,)),
    ]
    calls = []
    for buffer, x, axes in inputs:
        for axis in axes:
            shape = (*buffer.shape[:axis], *buffer.shape[axis + 1 :])
            target = Buffer.contiguous(shape, "i64")
            calls += [(ArgReduce(kind, axis, select_last, buffer, target), [x]) for kind in ("max", "min")]
    for (k, (x,)), got in zip(calls, run(calls, isa), strict=True):
        np.testing.assert_array_equal(got, arg_reduce(x, k.kind, k.axis, select_last), err_msg=k.symbol)
