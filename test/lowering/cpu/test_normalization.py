"""Softmax, layer normalisation and LRN kernels against their definitions in double precision."""

import numpy as np

from occamy_xdsl.lowering.cpu.kernels.layer_norm import LayerNorm
from occamy_xdsl.lowering.cpu.kernels.lrn import Lrn
from occamy_xdsl.lowering.cpu.kernels.softmax import Softmax
from occamy_xdsl.lowering.cpu.kernels.spec import NUMPY_TYPES, Buffer

dense = Buffer.contiguous


def channels_last(*shape: int, dtype: str = "f32") -> Buffer:
    _, c, h, w = shape
    return Buffer(shape, (c * h * w, 1, w * c, c), dtype)


def softmax(x, axis, log):
    x = x.astype(np.float64)
    with np.errstate(all="ignore"):
        shifted = x - x.max(axis=axis, keepdims=True)
        total = np.exp(shifted).sum(axis=axis, keepdims=True)
        return shifted - np.log(total) if log else np.exp(shifted) / total


SOFTMAXES = [
    (dense((5, 37)), dense((5, 37)), 1),
    (dense((5, 37)), dense((5, 37)), 0),
    (dense((3, 128)), dense((3, 128)), 1),
    (dense((7,)), dense((7,)), 0),
    (dense((4, 1)), dense((4, 1)), 1),
    (dense((2, 3, 5)), dense((2, 3, 5)), 1),
    (channels_last(2, 21, 3, 5), channels_last(2, 21, 3, 5), 1),
    (channels_last(2, 21, 3, 5), dense((2, 21, 3, 5)), 3),
    (dense((3, 9), "f64"), dense((3, 9), "f64"), 1),
    (dense((3, 50), "f16"), dense((3, 50), "f16"), 1),
    (Buffer((3, 6), (40, 3), "f32"), Buffer((3, 6), (7, 1), "f32"), 1),
    (dense((3, 0)), dense((3, 0)), 1),
]


def sample(buffer, scale=3.0):
    x = np.random.default_rng(0).standard_normal(buffer.shape) * scale
    return x.astype(NUMPY_TYPES[buffer.dtype])


def test_softmax(isa, run):
    calls = [
        (Softmax(axis, log, source, target), [sample(source)])
        for log in (False, True)
        for source, target, axis in SOFTMAXES
    ]
    for (k, (x,)), got in zip(calls, run(calls, isa), strict=True):
        tolerance = {"f16": 2e-3}.get(k.input.dtype, 2e-6)
        np.testing.assert_allclose(
            got.astype(np.float64), softmax(x, k.axis, k.log), rtol=tolerance, atol=1e-6, err_msg=k.symbol
        ) if x.size else None


def test_softmax_of_special_values(isa, run):
    x = np.zeros((5, 20), np.float32)
    x[0], x[1, 3], x[2, 4], x[3] = -np.inf, np.nan, -np.inf, 1e30
    x[4, :] = -200
    x[4, 7] = 200
    calls = [(Softmax(1, log, dense(x.shape), dense(x.shape)), [x]) for log in (False, True)]
    for (k, _), got in zip(calls, run(calls, isa), strict=True):
        np.testing.assert_allclose(got, softmax(x, 1, k.log), rtol=1e-6, atol=1e-30, err_msg=k.symbol)


def test_softmax_in_place(isa, run):
    calls = [
        (Softmax(axis, log, source, source), [sample(source)])
        for log in (False, True)
        for source, _, axis in SOFTMAXES[:7]
    ]
    assert all(k.may_alias == (0,) for k, _ in calls)
    for (k, (x,)), got in zip(calls, run(calls, isa, in_place=0), strict=True):
        np.testing.assert_allclose(got, softmax(x, k.axis, k.log), rtol=2e-6, atol=1e-6, err_msg=k.symbol)


def layer_norm(x, axis, epsilon, scale=1.0, bias=0.0):
    x = x.astype(np.float64)
    axes = tuple(range(axis, x.ndim))
    difference = x - x.mean(axis=axes, keepdims=True)
    return difference / np.sqrt(np.square(difference).mean(axis=axes, keepdims=True) + epsilon) * scale + bias


def norm_calls():
    rng = np.random.default_rng(0)
    shapes = [
        (dense((6, 128)), 1, (128,)),
        (dense((6, 37)), 1, (37,)),
        (dense((2, 5, 7)), 1, (5, 7)),
        (dense((2, 5, 7)), 2, (1,)),
        (channels_last(2, 19, 5, 6), 2, (19, 1, 1)),
        (dense((2, 3, 5, 6)), 2, (3, 1, 1)),
        (dense((3, 9), "f64"), 1, (9,)),
        (dense((3, 90), "f16"), 1, (90,)),
    ]
    for buffer, axis, parameters in shapes:
        x = (sample(buffer).astype(np.float64) + 10).astype(NUMPY_TYPES[buffer.dtype])
        values = [rng.uniform(0.5, 2, parameters).astype(x.dtype) for _ in range(2)]
        own = dense(parameters, buffer.dtype).broadcast_to(buffer.shape)
        for scale, bias in ((own, own), (own, None), (None, own), (None, None)):
            arrays = [v for v, b in zip(values, (scale, bias), strict=True) if b is not None]
            wide = [v.astype(np.float64) for v in values]
            want = layer_norm(x, axis, 1e-5, wide[0] if scale else 1.0, wide[1] if bias else 0.0)
            broadcast = [np.broadcast_to(a, buffer.shape) for a in arrays]
            yield LayerNorm(axis, 1e-5, buffer, scale, bias, buffer), [x, *broadcast], want


def test_layer_norm(isa, run):
    kernels, arrays, wanted = zip(*norm_calls(), strict=True)
    for in_place in (None, 0):
        got = run(list(zip(kernels, arrays, strict=True)), isa, in_place=in_place)
        for k, y, want in zip(kernels, got, wanted, strict=True):
            tolerance = 5e-3 if k.input.dtype == "f16" else 2e-5
            np.testing.assert_allclose(y, want, rtol=tolerance, atol=tolerance, err_msg=k.symbol)


def lrn(x, size, alpha, beta, bias):
    x = x.astype(np.float64)
    total = np.zeros_like(x)
    for c in range(x.shape[1]):
        low, high = max(0, c - (size - 1) // 2), min(x.shape[1] - 1, c + size // 2)
        total[:, c] = np.square(x[:, low : high + 1]).sum(axis=1)
    return x / (bias + alpha / size * total) ** beta


def test_lrn(isa, run):
    layouts = [channels_last(2, n, 3, 4) for n in (3, 16, 19, 64, 101)]
    layouts += [dense((2, 9, 5, 7)), dense((3, 40)), channels_last(1, 20, 3, 3, dtype="f64")]
    layouts += [channels_last(1, 40, 3, 3, dtype="f16")]
    calls = [
        (Lrn(size, alpha, beta, bias, buffer, buffer), [sample(buffer)])
        for buffer in layouts
        for size, alpha, beta, bias in ((5, 1e-1, 0.75, 1.0), (4, 1e-1, 0.6, 2.0), (1, 0.5, 0.5, 1.0))
    ]
    for (k, (x,)), got in zip(calls, run(calls, isa), strict=True):
        want = lrn(x, k.size, k.alpha, k.beta, k.bias)
        tolerance = 2e-3 if k.input.dtype == "f16" else 2e-6
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance, err_msg=k.symbol)
