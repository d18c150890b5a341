"""Pad and gather kernels against numpy."""

import numpy as np
import pytest

from occamy_xdsl.lowering.cpu.kernels.gather import Gather
from occamy_xdsl.lowering.cpu.kernels.pad import Pad
from occamy_xdsl.lowering.cpu.kernels.spec import NUMPY_TYPES, Buffer

dense = Buffer.contiguous


def channels_last(*shape: int, dtype: str = "f32") -> Buffer:
    _, c, h, w = shape
    return Buffer(shape, (c * h * w, 1, w * c, c), dtype)


def numbered(buffer: Buffer) -> np.ndarray:
    return (np.arange(buffer.elements).reshape(buffer.shape) % 251).astype(NUMPY_TYPES[buffer.dtype])


PADS = [
    (dense((4, 6)), (1, 2), (0, 3), dense),
    (dense((4, 6)), (0, 0), (0, 0), dense),
    (dense((3, 50), "i64"), (2, 5), (1, 40), dense),
    (channels_last(1, 19, 5, 6), (0, 0, 1, 2), (0, 0, 2, 1), lambda s: channels_last(*s)),
    (dense((1, 3, 5, 6)), (0, 0, 3, 3), (0, 0, 3, 3), lambda s: channels_last(*s)),
    (dense((2, 3), "ui8"), (0, 2), (1, 2), dense),
    (dense((5,), "i1"), (2,), (3,), dense),
]


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_pad(isa, run, mode):
    calls, wanted = [], []
    for source, low, high, layout in PADS:
        shape = tuple(a + n + b for a, n, b in zip(low, source.shape, high, strict=True))
        target = Buffer(shape, layout(shape).strides, source.dtype)
        x = numbered(source)
        value = 1 if source.dtype == "i1" else 7
        calls.append((Pad(low, high, mode, value, source, target), [x]))
        extra = {"constant_values": value} if mode == "constant" else {}
        wanted.append(np.pad(x, list(zip(low, high, strict=True)), mode=mode, **extra))
    for (k, _), got, want in zip(calls, run(calls, isa), wanted, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=k.symbol)


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_padding_longer_than_the_input(isa, run, mode):
    x = np.arange(3, dtype=np.float32)
    k = Pad((7,), (8,), mode, 0, dense((3,)), dense((18,)))
    np.testing.assert_array_equal(run([(k, [x])], isa)[0], np.pad(x, (7, 8), mode=mode))


def test_pad_of_nothing(isa, run):
    k = Pad((0, 2), (1, 1), "constant", 3, dense((2, 0)), dense((3, 3)))
    np.testing.assert_array_equal(run([(k, [np.zeros((2, 0), np.float32)])], isa)[0], np.full((3, 3), 3))


def test_gather(isa, run):
    rng = np.random.default_rng(0)
    calls = []
    for data, index_shape, axis, index_type in [
        (dense((10, 37)), (5,), 0, "i64"),
        (dense((10, 37)), (2, 3), 1, "i32"),
        (dense((3, 10, 4)), (7,), 1, "i64"),
        (dense((3, 10, 4), "i8"), (), 2, "i64"),
        (dense((6,), "i64"), (4,), 0, "i64"),
        (channels_last(1, 19, 4, 5), (3,), 1, "i64"),
        (channels_last(1, 19, 4, 5), (3,), 3, "i32"),
        (dense((6, 2), "i1"), (0,), 0, "i64"),
    ]:
        size = data.shape[axis]
        indices = rng.integers(-size, size, index_shape).astype(NUMPY_TYPES[index_type])
        shape = (*data.shape[:axis], *index_shape, *data.shape[axis + 1 :])
        kernel = Gather(axis, data, dense(index_shape, index_type), dense(shape, data.dtype))
        calls.append((kernel, [numbered(data), indices]))
    raw = [(k, [x.view(NUMPY_TYPES[k.arguments[0].dtype]), i]) for k, (x, i) in calls]
    for (k, (x, indices)), got in zip(raw, run(raw, isa), strict=True):
        np.testing.assert_array_equal(got, np.take(x, indices, axis=k.axis), err_msg=k.symbol)


def test_gather_clamps_indices_outside(isa, run):
    x = np.arange(12, dtype=np.int32).reshape(4, 3)
    indices = np.array([-1, -4, -5, 4, 3, 2**62, -(2**62)], np.int64)
    k = Gather(0, dense((4, 3)), dense((7,), "i64"), dense((7, 3)))
    (got,) = run([(k, [x, indices])], isa)
    np.testing.assert_array_equal(got, x[[3, 0, 0, 3, 3, 3, 0]])
