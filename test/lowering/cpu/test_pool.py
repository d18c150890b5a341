"""Pooling kernels against a direct evaluation of the definition in numpy, and against ONNX Runtime."""

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
from xdsl.dialects import arith
from xdsl.dialects.builtin import f32

from occamy_xdsl.lowering.cpu.kernels.pool import Pool
from occamy_xdsl.lowering.cpu.kernels.spec import NUMPY_TYPES, Buffer


def last(shape, dtype="f32"):
    """Channels-last buffer of any rank."""
    strides, step = [0] * len(shape), 1
    for d in (1, *reversed(range(2, len(shape))), 0):
        strides[d] = step
        step *= shape[d]
    return Buffer(tuple(shape), tuple(strides), dtype)


def flipped(buffer):
    """The same with the rows in reverse."""
    return Buffer(buffer.shape, (*buffer.strides[:2], -buffer.strides[2], *buffer.strides[3:]), buffer.dtype)


def outputs(size, kernel, stride, dilation, pads, ceil):
    room = size + sum(pads) - (kernel - 1) * dilation - 1
    count = (-(-room // stride) if ceil else room // stride) + 1
    return count - (ceil and (count - 1) * stride >= size + pads[0])


def make(
    kind,
    shape,
    kernel,
    *,
    strides=None,
    pads=None,
    dilations=None,
    ceil=False,
    include=False,
    layout=last,
    out_layout=None,
    dtype="f32",
    indices=False,
    epilogue=None,
):
    rank = len(kernel)
    strides, dilations, pads = strides or (1,) * rank, dilations or (1,) * rank, pads or (0,) * 2 * rank
    spatial = [
        outputs(shape[2 + d], kernel[d], strides[d], dilations[d], (pads[d], pads[rank + d]), ceil)
        for d in range(rank)
    ]
    out = (*shape[:2], *spatial)
    return Pool(
        kind, tuple(kernel), tuple(strides), tuple(dilations), tuple(pads), include, layout(shape, dtype),
        (out_layout or layout)(out, dtype), (out_layout or layout)(out, "i64") if indices else None, epilogue,
    )  # fmt: skip


def expected(pool, x):
    """(values, row-major indices of maxima) by the definition."""
    out, positions = np.zeros(pool.output.shape), np.zeros(pool.output.shape, np.int64)
    rank = len(pool.kernel)
    for place in np.ndindex(*pool.output.shape):
        elements, counted = [], 0
        for tap in np.ndindex(*pool.kernel):
            at = [
                place[2 + d] * pool.strides[d] - pool.pads[d] + tap[d] * pool.dilations[d]
                for d in range(rank)
            ]
            inside = all(0 <= a < n for a, n in zip(at, x.shape[2:], strict=True))
            padded = all(
                a < n + pool.pads[rank + d] for d, (a, n) in enumerate(zip(at, x.shape[2:], strict=True))
            )
            if inside:
                elements.append((x[(*place[:2], *at)], np.ravel_multi_index((*place[:2], *at), x.shape)))
            counted += padded if pool.count_include_pad else inside
        values = np.array([e[0] for e in elements])
        if pool.kind == "average":
            out[place] = values.astype(np.float64).sum() / counted
        else:
            out[place] = values.max()
            positions[place] = elements[int(np.argmax(values))][1]  # argmax: the first NaN or maximum
    return out, positions


CASES = [
    make("max", (1, 19, 9, 9), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    make("max", (2, 70, 7, 8), (3, 2), strides=(2, 1), pads=(1, 0, 0, 1)),
    make("max", (1, 5, 9, 40), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1), layout=Buffer.contiguous),
    make("max", (1, 2, 9, 41), (2, 2), strides=(1, 1), layout=Buffer.contiguous, out_layout=last),
    make("max", (1, 16, 10, 10), (5, 5), pads=(2, 2, 2, 2)),
    make("max", (1, 16, 10, 11), (3, 3), dilations=(2, 3), pads=(2, 3, 2, 3)),
    make("max", (1, 8, 6, 6), (3, 3), strides=(2, 2), ceil=True),
    make("max", (1, 3, 50), (4,), strides=(3,), pads=(1, 2)),
    make("max", (1, 20, 5, 5, 5), (2, 3, 2), strides=(2, 2, 1), pads=(0, 1, 0, 1, 1, 1)),
    make("max", (2, 33, 5, 5), (2, 2), dtype="i8"),
    make("max", (1, 7, 5, 35), (2, 2), dtype="ui8", layout=Buffer.contiguous),
    make("max", (1, 9, 5, 5), (2, 2), dtype="f64"),
    make("average", (1, 19, 9, 9), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1)),
    make("average", (1, 19, 9, 9), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1), include=True),
    make("average", (1, 8, 6, 7), (3, 3), strides=(2, 2), pads=(1, 0, 0, 0), ceil=True),
    make("average", (1, 8, 6, 7), (3, 3), strides=(2, 2), pads=(1, 0, 0, 0), ceil=True, include=True),
    make("average", (1, 4, 9, 40), (3, 3), pads=(1, 1, 1, 1), layout=Buffer.contiguous),
    make("average", (1, 40, 7, 7), (7, 7)),
    make("average", (1, 12, 7, 7), (3, 3), dtype="f16", pads=(1, 1, 1, 1)),
    make("average", (1, 6, 9), (3,), dilations=(2,), pads=(2, 2), include=True),
    make("average", (2, 3, 9, 37), (3, 4), strides=(2, 3), pads=(1, 2, 1, 1), include=True, layout=Buffer.contiguous),
    make("average", (1, 3, 9, 9), (5, 5), pads=(2, 2, 2, 2), ceil=True, layout=Buffer.contiguous),
    make("max", (1, 3, 5, 7), (1, 7), strides=(1, 2), pads=(0, 3, 0, 3), layout=Buffer.contiguous),
    make("max", (1, 3, 40), (20,), pads=(10, 10), layout=Buffer.contiguous),
    make("max", (0, 6, 9), (3,)),
]  # fmt: skip


def sample(pool, seed=0):
    rng = np.random.default_rng(seed)
    dtype = np.dtype(NUMPY_TYPES[pool.input.dtype])
    if dtype.kind == "f":
        return rng.standard_normal(pool.input.shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, pool.input.shape, dtype=dtype, endpoint=True)


def test_against_the_definition(isa, run):
    calls = [(pool, [sample(pool)]) for pool in CASES]
    for (pool, (x,)), got in zip(calls, run(calls, isa), strict=True):
        tolerance = 1e-3 if x.dtype == np.float16 else 1e-6
        np.testing.assert_allclose(
            got.astype(np.float64), expected(pool, x)[0], rtol=tolerance, atol=tolerance, err_msg=pool.symbol
        )


def rows_of(height, end=0, **options):
    """A pool of an image of some height whose padding ends in `end` rows."""
    return make(
        "average",
        (1, 19, height, 9),
        (3, 3),
        strides=(2, 2),
        pads=(options.pop("begin", 0), 1, end, 1),
        **options,
    )


ANY_ROWS = [
    [make("max", (1, 19, height, 9), (2, 2), strides=(2, 2)) for height in (2, 4, 9)],
    [rows_of(height, end, begin=begin) for height, begin, end in ((2, 1, 0), (4, 1, 1), (6, 0, 1))],
    [rows_of(height) for height in (3, 5)],
    [rows_of(height, 1, begin=begin, include=True) for height, begin in ((4, 0), (5, 1))],
    [make("max", (1, 5, height, 40), (3, 3), dilations=(2, 1), pads=(2, 1, 2, 1)) for height in (1, 3, 8)],
    [make("max", (1, 3, height, 5, 6), (2, 2, 1), pads=(1, 0, 0, 0, 0, 0)) for height in (1, 4)],
]  # fmt: skip
"""Pools that differ in rows and their padding alone."""


def test_one_kernel_for_any_rows(isa, run):
    pools = [pool for group in ANY_ROWS for pool in group]
    general = [{pool.for_any_rows(isa)[0] for pool in group} for group in ANY_ROWS]
    assert [len(kernels) for kernels in general] == [1] * len(ANY_ROWS)
    calls = [(pool, [sample(pool)]) for pool in pools]
    for (pool, (x,)), got, want in zip(calls, run(calls, isa, any_rows=True), run(calls, isa), strict=True):
        np.testing.assert_array_equal(got, want, err_msg=pool.symbol)
        np.testing.assert_allclose(got, expected(pool, x)[0], rtol=1e-6, atol=1e-6, err_msg=pool.symbol)


@pytest.mark.parametrize(
    "pool",
    [
        make("max", (2, 8, 9, 9), (3, 3)),
        make("max", (1, 8, 9), (3,)),
        make("max", (1, 8, 9, 9), (3, 3), indices=True),
        make("max", (1, 8, 9, 9), (1, 3), pads=(1, 0, 1, 0)),
        make("average", (1, 8, 6, 7), (3, 3), strides=(2, 2), ceil=True, include=True),
        make("max", (1, 8, 9, 9), (3, 3), layout=lambda *a: flipped(last(*a))),
    ],
    ids=["batch", "line", "positions", "padded", "overhang", "reversed"],
)
def test_no_kernel_for_any_rows(isa, pool):
    assert pool.for_any_rows(isa) is None


def test_nan_and_infinity(isa, run):
    calls = []
    for pool in (CASES[0], CASES[2]):
        x = sample(pool)
        x[0, 2, 3, 4], x[0, 3, 5, 5], x[0, 1] = np.nan, np.inf, -np.inf
        calls.append((pool, [x]))
    for (pool, (x,)), got in zip(calls, run(calls, isa), strict=True):
        np.testing.assert_array_equal(got, expected(pool, x)[0].astype(np.float32), err_msg=pool.symbol)


def test_indices(isa, run):
    pools = [
        make("max", (2, 19, 9, 9), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1), indices=True),
        make(
            "max",
            (2, 3, 5, 40),
            (2, 3),
            strides=(1, 2),
            pads=(0, 1, 0, 1),
            layout=Buffer.contiguous,
            indices=True,
        ),
        make(
            "max",
            (1, 3, 4, 6),
            (3, 3),
            strides=(2, 2),
            layout=Buffer.contiguous,
            out_layout=last,
            indices=True,
        ),
        make("max", (1, 70, 9), (2,), dilations=(2,), dtype="i8", indices=True),
    ]
    for pool in pools:
        x = np.round(sample(pool) * 2) if pool.dtype == "f32" else sample(pool)  # with ties
        if pool.dtype == "f32":
            x[0, 1, 2, 2:4] = np.nan
            x[0, 0] = -np.inf
        values, indices = run([(pool, [x])], isa, outputs=2)[0]
        want, positions = expected(pool, x)
        np.testing.assert_array_equal(values, want.astype(values.dtype))
        np.testing.assert_array_equal(indices, positions)


def test_epilogue(isa, run, epilogue):
    def scale_and_add(value, scale, other):
        scaled = arith.MulfOp(value, scale)
        added = arith.AddfOp(scaled.result, other)
        return [scaled, added], added.result

    calls, wanted = [], []
    for layout in (last, Buffer.contiguous):
        plain = make("average", (1, 21, 6, 37), (2, 2), layout=layout)
        scale = Buffer.contiguous((21, 1, 1)).broadcast_to(plain.output.shape)
        fused = make(
            "average", (1, 21, 6, 37), (2, 2), layout=layout,
            epilogue=epilogue([f32] * 3, scale_and_add, [scale, plain.output]),
        )  # fmt: skip
        rng = np.random.default_rng(0)
        x = sample(plain)
        factors = np.broadcast_to(rng.standard_normal((21, 1, 1)).astype(np.float32), plain.output.shape)
        other = rng.standard_normal(plain.output.shape).astype(np.float32)
        calls.append((fused, [x, factors, other]))
        wanted.append(expected(plain, x)[0] * factors + other)
    for got, want in zip(run(calls, isa), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("ceil", "include"), list(itertools.product((False, True), repeat=2)))
def test_averages_agree_with_onnx_runtime(run, isa, ceil, include):
    pool = make(
        "average", (1, 20, 8, 9), (3, 2), strides=(2, 2), pads=(1, 0, 1, 1), ceil=ceil, include=include
    )
    helper = onnx.helper
    node = helper.make_node(
        "AveragePool", ["x"], ["y"], kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1],
        ceil_mode=int(ceil), count_include_pad=int(include),
    )  # fmt: skip
    info = [helper.make_tensor_value_info(n, 1, None) for n in "xy"]
    model = helper.make_model(
        helper.make_graph([node], "g", [helper.make_tensor_value_info("x", 1, pool.input.shape)], info[1:]),
        opset_imports=[helper.make_opsetid("", 19)],
    )
    x = sample(pool)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"x": x})
    (got,) = run([(pool, [x])], isa)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
