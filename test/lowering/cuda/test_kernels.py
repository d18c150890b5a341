"""GPU kernels, compiled by mlir-opt to PTX and run by the interpreter, against numpy."""

import re
from collections.abc import Callable, Sequence
from math import erf
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import FloatAttr, IntegerType, bf16, f16, f32, i1, i32
from xdsl.ir import Block

from occamy_xdsl.dialects import dnn
from occamy_xdsl.errors import UsageError
from occamy_xdsl.lowering import toolchain
from occamy_xdsl.lowering.cpu.kernels.spec import NUMPY_TYPES, Buffer
from occamy_xdsl.lowering.cpu.kernels.vector_ops import CmpfOp, SelectOp
from occamy_xdsl.lowering.cuda import ptx as assembler
from occamy_xdsl.lowering.cuda.kernels import points
from occamy_xdsl.lowering.cuda.kernels.elementwise import Elementwise
from occamy_xdsl.lowering.cuda.kernels.product import product_kernel
from occamy_xdsl.lowering.cuda.kernels.rows import RowLayerNorm, RowReduce, RowSoftmax
from occamy_xdsl.lowering.cuda.kernels.spec import GpuKernel, gpu_module
from occamy_xdsl.lowering.cuda.kernels.tiled import Tiled, copy_kernel, elementwise_kernel
from occamy_xdsl.simulator import ptx
from occamy_xdsl.simulator.memory import DeviceMemory, Region

RNG = np.random.default_rng(11)
C = Buffer.contiguous


def block(types: Sequence, body: Callable) -> Block:
    """A region of scalar ops; `body` yields its ops, the last one is the result."""
    result = Block(arg_types=types)
    ops = body(*result.args)
    result.add_ops([*ops, dnn.YieldOp(ops[-1].results[0] if ops else result.args[0])])
    return result


def number(value: float) -> arith.ConstantOp:
    """A scalar constant."""
    return arith.ConstantOp(FloatAttr(value, f32))


def run(
    text: str, kernel: GpuKernel, arrays: Sequence[np.ndarray], in_place: int | None = None
) -> tuple[np.ndarray, ptx.KernelStatistics]:
    """
    The output of a kernel, its last argument, and its counts; `arrays` have the logical shapes.

    Bytes around and between the elements were never written, so touching them is a fault.
    """
    memory = DeviceMemory(1 << 30)
    memory.operation = 1
    pointers: list[int] = []
    for buffer, array in zip(kernel.arguments, [*arrays, None], strict=True):
        dtype = np.dtype(f"u{buffer.element_bytes}")
        if array is None and in_place is not None:
            pointers.append(pointers[in_place])
            continue
        pointers.append(memory.allocate(max(buffer.extent, 1) * dtype.itemsize))
        if array is not None:
            image = np.zeros(buffer.extent, dtype)
            strides = [s * dtype.itemsize for s in buffer.strides]
            view = np.lib.stride_tricks.as_strided(image[buffer.origin :], buffer.shape, strides)
            touched = np.zeros(buffer.extent, bool)
            np.lib.stride_tricks.as_strided(touched[buffer.origin :], buffer.shape, buffer.strides)[...] = (
                True
            )
            view[...] = np.ascontiguousarray(np.broadcast_to(array, buffer.shape)).view(dtype)
            for at in np.flatnonzero(touched) if not touched.all() else ():
                memory.write(Region(pointers[-1] + int(at) * dtype.itemsize, (1,), (1,), dtype), image[at])
            if touched.all():
                memory.write(Region(pointers[-1], (buffer.extent,), (1,), dtype), image)
    parameters = [pointer.to_bytes(8, "little") for pointer in pointers]
    memory.operation = 2
    statistics = ptx.launch(ptx.parse(text), kernel.symbol, kernel.grid, kernel.block, parameters, memory)
    output = kernel.arguments[-1]
    type_ = np.dtype(NUMPY_TYPES.get(output.dtype, np.uint16))  # numpy has no bf16
    address = pointers[-1] + output.origin * type_.itemsize
    return memory.read(Region(address, output.shape, output.strides, type_)), statistics


def check(
    cases: Sequence[tuple[GpuKernel, Sequence[np.ndarray], np.ndarray]],
    chip: str = "sm_80",
    rtol: float = 1e-5,
) -> list[ptx.KernelStatistics]:
    """Compile all kernels together, compare each with the expected output; their counts."""
    text = assembler.compile_kernels([kernel for kernel, _, _ in cases], chip)
    counts: list[ptx.KernelStatistics] = []
    for kernel, arrays, expected in cases:
        got, statistics = run(text, kernel, arrays)
        np.testing.assert_allclose(got, expected, rtol=rtol, atol=1e-6, err_msg=kernel.symbol)
        assert got.dtype.itemsize == expected.dtype.itemsize
        counts.append(statistics)
    return counts


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def add_relu() -> Block:
    def body(a, b):
        total = arith.AddfOp(a, b)
        zero = number(0.0)
        return [total, zero, arith.MaximumfOp(total.result, zero.result)]

    return block([f32, f32], body)


# --- elementwise ------------------------------------------------------------------------------------------


def test_contiguous_elementwise_is_vectorised_and_coalesced() -> None:
    """At least 95 % of the bytes that move are used; loads and stores are of 16 bytes."""
    x, y = random(37, 301), random(37, 301)
    kernel = Elementwise(add_relu(), (C(x.shape), C(x.shape)), C(x.shape))
    (statistics,) = check([(kernel, [x, y], np.maximum(x + y, 0))])
    assert statistics.efficiency >= 0.95
    text = assembler.compile_kernels([kernel], "sm_80")
    assert text.count("ld.global.nc.v4.b32") == 2
    assert text.count("st.global.v4.b32") == 1


def test_elementwise_shapes_strides_and_broadcasts() -> None:
    """Scalars, tails, rows and columns that are broadcast, transposed and reversed operands."""
    cases = []
    for shape in ((), (0, 3), (1,), (3,), (5, 7), (2, 3, 4), (257,), (4, 64)):
        x, y = random(*shape), random(*shape)
        kernel = Elementwise(add_relu(), (C(shape), C(shape)), C(shape))
        cases.append((kernel, [x, y], np.maximum(x + y, 0)))
    shape = (3, 8, 16)
    x = random(*shape)
    for small in ((16,), (8, 1), (3, 1, 1), (1,), (3, 1, 16)):
        y = random(*small)
        kernel = Elementwise(add_relu(), (C(shape), C(small).broadcast_to(shape)), C(shape))
        cases.append((kernel, [x, y], np.maximum(x + y, 0)))
    transposed = Buffer(shape, (1, 48, 3), "f32")
    reversed_ = Buffer(shape, (128, 16, -1), "f32")
    padded = Buffer(shape, (8 * 20, 20, 1), "f32")
    for a, b, out in (
        (transposed, reversed_, C(shape)),
        (C(shape), padded, transposed),
        (C(shape), C(shape), padded),
    ):
        y = random(*shape)
        cases.append((Elementwise(add_relu(), (a, b), out), [x, y], np.maximum(x + y, 0)))
    check(cases)


def test_unaligned_pointers_use_single_elements() -> None:
    x, y = random(64), random(64)
    kernel = Elementwise(add_relu(), (C((64,)), C((64,))), C((64,)), aligned=False)
    assert kernel.lanes == 1
    (statistics,) = check([(kernel, [x, y], np.maximum(x + y, 0))])
    assert statistics.efficiency == 1.0


def test_elementwise_in_place() -> None:
    x, y = random(1000), random(1000)
    kernel = Elementwise(add_relu(), (C((1000,)), C((1000,))), C((1000,)), in_place=True)
    text = assembler.compile_kernels([kernel], "sm_80")
    assert "ld.global.nc" not in text, "memory that is written must not be read through the read-only cache"
    got, _ = run(text, kernel, [x, y], in_place=0)
    np.testing.assert_array_equal(got, np.maximum(x + y, 0))


FUNCTIONS = [
    (math.ExpOp, np.exp),
    (math.TanhOp, np.tanh),
    (math.LogOp, lambda x: np.log(np.abs(x))),
    (math.SqrtOp, lambda x: np.sqrt(np.abs(x))),
    (math.RsqrtOp, lambda x: 1 / np.sqrt(np.abs(x))),
    (math.SinOp, np.sin),
    (math.CosOp, np.cos),
    (math.FloorOp, np.floor),
    (math.CeilOp, np.ceil),
    (math.RoundEvenOp, np.rint),
    (math.AtanOp, np.arctan),
    (math.Log1pOp, lambda x: np.log1p(np.abs(x))),
    (math.ExpM1Op, np.expm1),
]


def test_functions_of_libdevice() -> None:
    """Vectorised and single; arguments up to 1e5, whose reduction in sin and cos goes through local memory."""
    x = np.concatenate([random(500) * 3, np.float32([0, 1, -1, 1e-30, 80, 1e5, -2e5])])
    cases = []
    for op, function in FUNCTIONS:
        absolute = function.__name__ == "<lambda>"
        values = np.abs(x) if absolute else x.clip(-80, None) if op is math.ExpOp else x
        if op in (math.ExpOp, math.ExpM1Op):
            values = values.clip(-80, 80)
        if op in (math.LogOp, math.RsqrtOp):
            values = np.where(values == 0, 1, values)
        values = values.astype(np.float32)
        kernel = Elementwise(block([f32], lambda a, op=op: [op(a)]), (C(x.shape),), C(x.shape))
        cases.append((kernel, [values], function(values.astype(np.float64)).astype(np.float32)))
    check(cases, rtol=3e-6)


def test_element_types() -> None:
    """16-bit floats eight at a time, integers, and truth values kept in bytes."""
    h = random(1000).astype(np.float16)
    n = RNG.integers(-1000, 1000, 500).astype(np.int32)
    b = RNG.integers(0, 2, 1000).astype(np.bool_)
    x = random(1000)

    def gelu(a):
        wide = arith.ExtFOp(a, f32)
        scale, one = (number(v) for v in (0.70710678, 1.0))
        scaled = arith.MulfOp(wide.result, scale.result)
        curve = math.ErfOp(scaled.result)
        total = arith.AddfOp(curve.result, one.result)
        product = arith.MulfOp(wide.result, total.result)
        return [wide, scale, one, scaled, curve, total, product, arith.TruncFOp(product.result, f16)]

    wide = h.astype(np.float64)
    expected = (wide * (1 + np.vectorize(erf)(wide * 0.70710678))).astype(np.float16)
    halves = Elementwise(block([f16], gelu), (C(h.shape, "f16"),), C(h.shape, "f16"))
    assert halves.lanes == 8
    integers = Elementwise(
        block([i32, i32], lambda a, c: [arith.MuliOp(a, c)]), (C((500,), "i32"),) * 2, C((500,), "i32")
    )

    def choose(c, a):
        zero = number(0.0)
        return [zero, SelectOp(c, a, zero.result)]

    select = Elementwise(block([i1, f32], choose), (C((1000,), "i1"), C((1000,))), C((1000,)))
    compare = Elementwise(
        block([f32, f32], lambda a, c: [CmpfOp("olt", a, c)]), (C((1000,)),) * 2, C((1000,), "i1")
    )
    check([(halves, [h], expected)], rtol=1e-3)
    check(
        [
            (integers, [n, n[::-1]], n * n[::-1]),
            (select, [b, x], np.where(b, x, np.float32(0))),
            (compare, [x, x[::-1]], x < x[::-1]),
        ]
    )


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_absolute_values_of_integers(dtype: type) -> None:
    """That of the least number is itself, as in numpy."""
    info, shape = np.iinfo(dtype), (103,)
    values = np.array([info.min, info.min + 1, -1, 0, 1, info.max] * 18, dtype)[:103]
    layout = C(shape, f"i{info.bits}")
    kernel = Elementwise(block([IntegerType(info.bits)], lambda a: [math.AbsIOp(a)]), (layout,), layout)
    check([(kernel, [values], np.abs(values))])


@pytest.mark.parametrize("chip", ["sm_75", "sm_90"])
def test_bfloat16(chip: str) -> None:
    """Computed in f32 and rounded once, with and without instructions for it."""
    bits = (random(2, 500).view(np.uint32) >> 16).astype(np.uint16)
    x, y = (bits.astype(np.uint32) << 16).view(np.float32)
    total = np.tanh((x + y).astype(np.float64)).astype(np.float32).view(np.uint32)
    expected = ((total + 0x7FFF + (total >> 16 & 1)) >> 16).astype(np.uint16)

    def body(a, b):
        total = arith.AddfOp(a, b)
        return [total, math.TanhOp(total.result)]

    layout = C((500,), "bf16")
    check([(Elementwise(block([bf16, bf16], body), (layout, layout), layout), list(bits), expected)], chip)


def test_nans_spread() -> None:
    x, y = np.float32([np.nan, 1, -1, np.nan]), np.float32([1, np.nan, 1, np.nan])
    for chip in ("sm_75", "sm_80"):
        kernel = Elementwise(add_relu(), (C((4,)), C((4,))), C((4,)))
        check([(kernel, [x, y], np.maximum(x + y, 0))], chip)


# --- copies -----------------------------------------------------------------------------------------------


def transposed(shape: tuple[int, ...], order: tuple[int, ...]) -> Buffer:
    """The buffer of a contiguous array of `shape`, with its dimensions permuted."""
    base = C(shape)
    return Buffer(tuple(shape[d] for d in order), tuple(base.strides[d] for d in order), "f32")


def test_transpose_is_coalesced() -> None:
    """2-D transposes and NCHW to NHWC and back: at least 95 % of the bytes that move are used."""
    cases = []
    for shape, order in (
        ((256, 96), (1, 0)),
        ((2, 64, 14, 16), (0, 2, 3, 1)),
        ((2, 14, 16, 64), (0, 3, 1, 2)),
    ):
        x = random(*shape)
        expected = x.transpose(order)
        kernel = copy_kernel(transposed(shape, order), C(expected.shape))
        assert isinstance(kernel, Tiled)
        cases.append((kernel, [expected.view(np.float32)], expected))
    text = assembler.compile_kernels([kernel for kernel, _, _ in cases], "sm_80")
    for kernel, (array,), expected in cases:
        got, statistics = run(text, kernel, [array])
        np.testing.assert_array_equal(got.view(np.float32), expected)
        assert statistics.load_efficiency >= 0.95
        assert statistics.store_efficiency >= 0.95


def test_elementwise_work_on_transposed_operands_is_coalesced() -> None:
    """Two operands in one layout, one and a vector in the other; tiles that are not full; in place."""
    cases = []
    for shape in ((2, 64, 16, 16), (1, 40, 7, 9)):
        n, c, h, w = shape
        a, b, d, v = random(n, c, h, w), random(n, c, h, w), random(n, c, h, w), random(1, c, 1, 1)
        far = Buffer(shape, (c * h * w, 1, w * c, c), "f32")
        body = block([f32] * 4, lambda a, b, d, v: [
            one := arith.MulfOp(a, b), two := arith.AddfOp(one.result, d), arith.AddfOp(two.result, v),
        ])  # fmt: skip
        inputs = (far, far, C(shape), C(v.shape).broadcast_to(shape))
        kernel = elementwise_kernel(body, inputs, C(shape), aligned=True, in_place=True)
        assert isinstance(kernel, Tiled)
        cases.append((kernel, [a, b, d, v], a * b + d + v))
    counts = check(cases)
    assert counts[0].efficiency >= 0.94, "only the vector's elements move alone"
    kernel, arrays, expected = cases[0]
    got, _ = run(assembler.compile_kernels([kernel], "sm_80"), kernel, arrays, in_place=2)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_copies_of_any_strides() -> None:
    """Tiles that are not full, element sizes, slices, broadcasts and reversals."""
    text_cases = []
    for shape, order in (
        ((5, 7), (1, 0)),
        ((33, 3, 31), (2, 1, 0)),
        ((2, 3, 4, 5), (3, 1, 0, 2)),
        ((70,), (0,)),
    ):
        x = random(*shape)
        kernel = copy_kernel(transposed(shape, order), C(x.transpose(order).shape))
        text_cases.append((kernel, x.transpose(order)))
    text_cases.append(
        (copy_kernel(C((40,)).broadcast_to((9, 40)), C((9, 40))), np.broadcast_to(random(40), (9, 40)))
    )
    text_cases.append((copy_kernel(Buffer((6, 8), (16, -2), "f32"), C((6, 8))), random(6, 8)))
    text_cases.append((copy_kernel(C((6, 8)), Buffer((6, 8), (20, 2), "f32")), random(6, 8)))
    text = assembler.compile_kernels([kernel for kernel, _ in text_cases], "sm_75")
    for kernel, array in text_cases:
        got, _ = run(text, kernel, [array])
        np.testing.assert_array_equal(got.view(np.float32), array, err_msg=kernel.symbol)


def test_few_channels_are_not_tiled() -> None:
    """Rows shorter than a sector: single elements use more of what moves."""
    x = random(3, 64 * 64)
    source, target = transposed(x.shape, (1, 0)), C((64 * 64, 3))
    direct = copy_kernel(source, target)
    assert isinstance(direct, Elementwise)
    tiled = Tiled(direct.body, direct.inputs, direct.output)
    text = assembler.compile_kernels([direct, tiled], "sm_80")
    results = [run(text, kernel, [x.T]) for kernel in (direct, tiled)]
    for got, _ in results:
        np.testing.assert_array_equal(got.view(np.float32), x.T)
    assert results[0][1].efficiency > 1.5 * results[1][1].efficiency


@pytest.mark.parametrize("block", [2, 4])
def test_between_space_and_depth(block: int) -> None:
    """Neighbours are those of the side whose accesses move less: pixels of the image, in both directions."""
    channels, size, r = 3, 32, block
    # The image as (channel, row, row in block, column, column in block), and with the blocks' pixels in front.
    image = random(channels, size, r, size, r)
    order = (2, 4, 0, 1, 3)
    depth = np.ascontiguousarray(image.transpose(order))
    back = tuple(order.index(d) for d in range(5))
    cases = []
    for x, axes, y in ((image, order, depth), (depth, back, image)):
        source = C(x.shape)
        moved = Buffer(y.shape, tuple(source.strides[d] for d in axes), "f32")
        cases.append((copy_kernel(moved, C(y.shape)), x.transpose(axes)))
    text = assembler.compile_kernels([kernel for kernel, _ in cases], "sm_80")
    for kernel, expected in cases:
        assert isinstance(kernel, Elementwise)
        got, statistics = run(text, kernel, [expected])
        np.testing.assert_array_equal(got.view(np.float32), expected)
        assert statistics.efficiency == 1.0


@pytest.mark.parametrize("dtype", ["i8", "f16", "f64"])
def test_transposes_of_other_sizes(dtype: str) -> None:
    x = (random(64, 96) * 50).astype(NUMPY_TYPES[dtype])
    kernel = copy_kernel(Buffer((96, 64), (1, 96), dtype), Buffer.contiguous((96, 64), dtype))
    text = assembler.compile_kernels([kernel], "sm_90")
    got, statistics = run(text, kernel, [np.ascontiguousarray(x.T)])
    np.testing.assert_array_equal(got.view(x.dtype), x.T)
    assert statistics.efficiency == 1.0


# --- rows -------------------------------------------------------------------------------------------------

ROWS = [(9, 1), (70, 2), (5, 3), (40, 4), (3, 10), (300, 16), (5, 64), (2, 3, 33), (4, 1000), (2, 9000)]


def test_softmax() -> None:
    cases = []
    for shape in ROWS:
        x = random(*shape) * 3
        shifted = x.astype(np.float64) - x.max(-1, keepdims=True)
        total = np.exp(shifted).sum(-1, keepdims=True)
        cases.append((RowSoftmax(C(shape), C(shape)), [x], (np.exp(shifted) / total).astype(np.float32)))
        log = (shifted - np.log(total)).astype(np.float32)
        cases.append((RowSoftmax(C(shape), C(shape), log=True), [x], log))
    counts = check(cases)
    assert (
        min(c.efficiency for c, (_, (x,), _) in zip(counts, cases, strict=True) if x.shape[-1] >= 64) >= 0.95
    )


def test_softmax_in_place_and_of_strided_rows() -> None:
    x = random(4, 5, 70)
    expected = np.exp(x - x.max(1, keepdims=True))
    expected /= expected.sum(1, keepdims=True)
    columns = Buffer((4, 70, 5), (350, 1, 70), "f32")
    kernel = RowSoftmax(columns, columns)
    text = assembler.compile_kernels([kernel], "sm_80")
    got, _ = run(text, kernel, [x.transpose(0, 2, 1)], in_place=0)
    np.testing.assert_allclose(got, expected.transpose(0, 2, 1), rtol=1e-5)


def test_rows_of_which_neighbours_lie_side_by_side_are_coalesced() -> None:
    """Channels of NCHW images: the rows of softmax, reductions and layer normalisation, in any number."""
    cases = []
    for n, c, h, w in ((2, 96, 8, 8), (1, 3, 5, 9), (1, 300, 1, 33)):
        x = random(n, h, w, c)
        rows = Buffer((n, h, w, c), (c * h * w, w, 1, h * w), "f32")
        one = Buffer((n, h, w, 1), (h * w, w, 1, 1), "f32")
        wide = x.astype(np.float64)
        shifted = np.exp(wide - wide.max(-1, keepdims=True))
        normal = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-5)
        for kernel, expected in (
            (RowSoftmax(rows, rows), shifted / shifted.sum(-1, keepdims=True)),
            (RowReduce(rows, one, "mean"), wide.mean(-1, keepdims=True)),
            (RowLayerNorm(rows, rows, None, None, 1e-5), normal),
        ):
            assert kernel.is_across
            cases.append((kernel, [x], expected.astype(np.float32)))
    counts = check(cases, rtol=1e-4)
    assert min(c.efficiency for c in counts[:3]) >= 0.95


def test_short_rows_share_a_warp() -> None:
    """Rows of 4 elements: 8 of them in a warp use all of what they move, one would use a third."""
    x = random(256, 4)
    (counts,) = check([(RowReduce(C(x.shape), C((256, 1)), "sum"), [x], x.sum(1, keepdims=True))])
    assert counts.efficiency >= 0.95


@pytest.mark.parametrize(
    ("kind", "function"),
    [("sum", np.sum), ("mean", np.mean), ("max", np.max), ("min", np.min), ("prod", np.prod)],
)
def test_reductions(kind: str, function: Callable) -> None:
    cases = []
    for shape in ROWS:
        x = random(*shape) if kind != "prod" else (1 + 0.01 * random(*shape)).astype(np.float32)
        expected = function(x.astype(np.float64), -1, keepdims=True).astype(np.float32)
        cases.append((RowReduce(C(shape), C((*shape[:-1], 1)), kind), [x], expected))
    check(cases, rtol=1e-4)


def test_reductions_of_other_types() -> None:
    """Halves are summed in f32; the largest of unsigned bytes; NaNs spread."""
    h = random(3, 2000).astype(np.float16)
    u = RNG.integers(0, 200, (5, 40)).astype(np.uint8)
    n = RNG.integers(-100, 100, (2, 700)).astype(np.int32)
    x = random(2, 50)
    x[0, 7] = np.nan
    d = RNG.standard_normal((3, 600))
    b = RNG.integers(0, 2, (4, 9)).astype(np.bool_)

    def case(kind: str, array: np.ndarray, dtype: str, expected: np.ndarray):
        kernel = RowReduce(C(array.shape, dtype), C((len(array), 1), dtype), kind)
        return kernel, [array], expected.astype(array.dtype)[:, None]

    cases = [
        case("sum", h, "f16", h.astype(np.float64).sum(-1)),
        case("max", u, "ui8", u.max(-1)),
        case("sum", n, "i32", n.sum(-1)),
        case("max", x, "f32", x.max(-1)),
        case("max", d, "f64", d.max(-1)),
        case("max", b, "i1", b.max(-1)),
    ]
    check(cases, rtol=2e-3)


# --- all architectures ------------------------------------------------------------------------------------


def some_kernels() -> list[GpuKernel]:
    """One of each template."""
    scales = 1.0, 1.0, 2.0, 1.5
    resize = points.Resize(
        "linear", "half_pixel", "floor", -0.75, False, scales, C((1, 2, 4, 4)), C((1, 2, 8, 6))
    )
    return [
        Elementwise(add_relu(), (C((100,)), C((100,))), C((100,))),
        copy_kernel(transposed((40, 50), (1, 0)), C((50, 40))),
        RowSoftmax(C((4, 1000)), C((4, 1000))),
        RowReduce(C((4, 100)), C((4, 1)), "max"),
        RowLayerNorm(C((4, 100)), C((4, 100)), None, None, 1e-5),
        points.Pool("max", (3, 3), (1, 1), (2, 2), (1, 1, 1, 1), False, C((1, 2, 9, 9)), C((1, 2, 7, 7))),
        points.Reduce("log_sum_exp", (0, 2), C((2, 3, 4)), C((3,))),
        points.ArgReduce("max", 1, False, C((2, 30)), C((2,), "i64")),
        points.Lrn(3, 0.1, 0.7, 1.0, C((1, 5, 3, 3)), C((1, 5, 3, 3))),
        points.Gather(0, C((5, 3)), C((2,), "i64"), C((2, 3))),
        points.Pad((1, 0), (0, 2), "edge", 0.0, C((3, 4)), C((4, 6))),
        resize,
    ]


@pytest.mark.parametrize("chip", assembler.CHIPS)
def test_every_architecture(chip: str) -> None:
    """PTX of each architecture is right, and accepted by ptxas where there is one that knows it."""
    kernels = some_kernels()
    text = assembler.compile_kernels(kernels, chip)
    assert ptx.parse(text).target == chip
    x, y = random(100), random(100)
    np.testing.assert_array_equal(run(text, kernels[0], [x, y])[0], np.maximum(x + y, 0))
    rows = random(4, 100)
    np.testing.assert_array_equal(run(text, kernels[3], [rows])[0], rows.max(-1, keepdims=True))
    try:
        code = toolchain.assemble_ptx(text, chip)
    except UsageError as error:
        pytest.skip(f"the PTX ran in the interpreter; {error}")
    assert code.startswith(b"\x7fELF")


def test_every_architecture_is_documented() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs/cuda.md").read_text()
    (listed,) = re.findall(r"`--target cuda:` takes ([^.]*)\.", page)
    assert tuple(re.findall(r"sm_\d+", listed)) == assembler.CHIPS


def test_kernels_are_the_same_for_every_architecture() -> None:
    """Only mlir-opt makes a difference, so that `make ptx-check` need not generate them anew."""
    texts = {str(gpu_module(some_kernels(), chip)) for chip in assembler.CHIPS}
    assert len(texts) == 1


def test_equal_kernels_are_one_and_unknown_chips_are_refused() -> None:
    text = assembler.compile_kernels([*some_kernels(), *some_kernels()], "sm_90")
    assert len(ptx.parse(text).kernels) == len(some_kernels())
    with pytest.raises(ValueError, match="unknown architecture 'sm_10'"):
        assembler.compile_kernels(some_kernels(), "sm_10")
    huge = Elementwise(add_relu(), (C((2**31,)), C((2**31,))), C((2**31,)))
    with pytest.raises(ValueError, match="more than 2147483647 elements"):
        assembler.compile_kernels([huge], "sm_90")


def integers(dtype: str, *shape: int) -> np.ndarray:
    info = np.iinfo(np.dtype(dtype))
    return RNG.integers(info.min, int(info.max) + 1, shape).astype(dtype)


def product_case(
    rows: int, depth: int, columns: int, dtype: str, layout: str = "row-major", batch: tuple[int, ...] = ()
) -> tuple[GpuKernel, list[np.ndarray], np.ndarray]:
    names = {"int8": "i8", "uint8": "ui8", "int16": "i16", "uint16": "ui16", "int32": "i32"}
    strides = (columns, 1) if layout == "row-major" else (1, depth)
    weights = Buffer((depth, columns), strides, names[dtype]).broadcast_to((*batch, depth, columns))
    a, c = C((*batch, rows, depth)), C((*batch, rows, columns))
    x, q = random(*a.shape), integers(dtype, depth, columns)
    expected = (x.astype(np.float64) @ q.astype(np.float64)).astype(np.float32)
    return product_kernel(a, weights, c), [x, q], expected


PRODUCTS = [
    product_case(*sizes, dtype, layout, batch)
    for sizes, dtype, layout, batch in (
        ((1, 96, 64), "int8", "row-major", ()),
        ((3, 37, 45), "uint8", "row-major", ()),
        ((8, 40, 33), "int16", "row-major", ()),
        ((1, 96, 64), "int8", "column-major", ()),
        ((5, 45, 19), "uint8", "column-major", ()),
        ((64, 64, 64), "int8", "row-major", ()),
        ((70, 45, 67), "uint8", "row-major", ()),
        ((9, 33, 65), "uint16", "column-major", ()),
        ((65, 32, 64), "int8", "column-major", ()),
        ((12, 20, 30), "int32", "row-major", ()),
        ((2, 20, 30), "int8", "row-major", (2, 3)),
        ((20, 40, 70), "int8", "column-major", (3,)),
    )
]


def test_products_by_integers() -> None:
    """Sums of thousands of terms of up to 2^31: errors are relative to the largest result."""
    kernels = [kernel for kernel, _, _ in PRODUCTS]
    text = assembler.compile_kernels(kernels, "sm_75")
    for kernel, arrays, expected in PRODUCTS:
        got, _ = run(text, kernel, arrays)
        bound = 1e-5 * np.abs(expected).max()
        np.testing.assert_allclose(got, expected, rtol=0, atol=bound, err_msg=kernel.symbol)


@pytest.mark.parametrize("layout", ["row-major", "column-major"])
@pytest.mark.parametrize("rows", [1, 64])
def test_products_by_integers_are_coalesced(rows: int, layout: str) -> None:
    kernel, arrays, _ = product_case(rows, 128, 128, "int8", layout)
    _, counts = run(assembler.compile_kernels([kernel], "sm_75"), kernel, arrays)
    weights = [access for access in counts.accesses.values() if ".s8" in access.text]
    assert sum(access.used_bytes for access in weights) == 128 * 128, "each is read once"
    assert sum(access.moved_bytes for access in weights) == 128 * 128, "in whole sectors"
