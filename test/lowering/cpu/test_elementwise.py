"""Elementwise and copy kernels against numpy: layouts, broadcasts, types, tails and sharing memory."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects import arith, test
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, ModuleOp, bf16, f32, i1, i8, i64
from xdsl.ir import Block

from occamy_xdsl.lowering.cpu.kernels.copy import Copy
from occamy_xdsl.lowering.cpu.kernels.elementwise import Elementwise
from occamy_xdsl.lowering.cpu.kernels.spec import NUMPY_TYPES, Buffer
from occamy_xdsl.lowering.cpu.kernels.vector_ops import SelectOp
from occamy_xdsl.lowering.toolchain import JitModule, compile_mlir

dense = Buffer.contiguous


def laid_out(shape: Sequence[int], order: Sequence[int], dtype: str = "f32") -> Buffer:
    """A dense buffer whose dimensions lie in memory in `order`, outermost first."""
    strides, step = [0] * len(shape), 1
    for dim in reversed(order):
        strides[dim] = step
        step *= shape[dim]
    return Buffer(tuple(shape), tuple(strides), dtype)


def channels_last(*shape: int) -> Buffer:
    return laid_out(shape, (0, 2, 3, 1))


def values_for(buffer: Buffer, seed: int) -> np.ndarray:
    """Random values with a few special ones; broadcast dimensions hold equal values."""
    rng = np.random.default_rng(seed)
    own = tuple(1 if stride == 0 else n for n, stride in zip(buffer.shape, buffer.strides, strict=True))
    dtype = np.dtype(ml_dtypes.bfloat16 if buffer.dtype == "bf16" else NUMPY_TYPES[buffer.dtype])
    if buffer.dtype in ("f64", "f32", "f16", "bf16"):
        values = rng.standard_normal(own).astype(dtype)
        if values.size > 4:
            values.flat[:4] = [np.nan, np.inf, -np.inf, -0.0]
    elif dtype.kind == "b":
        values = rng.integers(0, 2, own).astype(bool)
    else:
        info = np.iinfo(dtype)
        values = rng.integers(info.min, info.max, own, dtype=dtype, endpoint=True)
    return np.broadcast_to(values, buffer.shape)


@dataclass
class Case:
    inputs: Sequence[Buffer]
    output: Buffer
    ops: Callable  # from block arguments to (ops, yielded value)
    expected: Callable

    def kernel(self) -> Elementwise:
        types = [i1 if b.dtype == "i1" else b.element_type for b in self.inputs]
        block = Block(arg_types=types)
        ops, result = self.ops(*block.args)
        block.add_ops([*ops, test.TestTermOp([result])])
        return Elementwise(block, tuple(self.inputs), self.output)


def relu(x):
    zero = arith.ConstantOp(FloatAttr(0.0, f32))
    top = arith.MaximumfOp(x, zero.result)
    return [zero, top], top.result


def np_relu(x):
    return np.maximum(x, np.float32(0))


def binary(op: type) -> Callable:
    def ops(a, b):
        result = op(a, b)
        return [result], result.result

    return ops


def less(a, b):
    result = arith.CmpfOp(a, b, "olt")
    return [result], result.result


def choose(c, a, b):
    result = SelectOp(c, a, b)
    return [result], result.result


def cast(op: type, to) -> Callable:
    def ops(a):
        result = op(a, to)
        return [result], result.result

    return ops


def seven():
    constant = arith.ConstantOp(IntegerAttr(7, i64))
    return [constant], constant.result


def add3(a, b, c):
    first = arith.AddfOp(a, b)
    second = arith.AddfOp(first.result, c)
    return [first, second], second.result


add = binary(arith.AddfOp)


def case(ops, expected, output: Buffer, *inputs: Buffer) -> Case:
    return Case([b.broadcast_to(output.shape) for b in inputs], output, ops, expected)


CASES = {
    "dense": case(relu, np_relu, dense((7, 13)), dense((7, 13))),
    "long": case(relu, np_relu, dense((3, 1001)), dense((3, 1001))),
    "scalar": case(relu, np_relu, dense(()), dense(())),
    "one element": case(add, np.add, dense((1, 1)), dense((1, 1)), dense((1,))),
    "empty": case(relu, np_relu, dense((3, 0, 2)), dense((3, 0, 2))),
    "row": case(add, np.add, dense((5, 37)), dense((5, 37)), dense((37,))),
    "column": case(add, np.add, dense((5, 37)), dense((5, 37)), dense((5, 1))),
    "outer": case(add, np.add, dense((6, 19)), dense((6, 1)), dense((19,))),
    "scalar operand": case(add, np.add, dense((4, 9)), dense((4, 9)), dense(())),
    "both layouts": case(
        add, np.add, channels_last(1, 19, 5, 7), channels_last(1, 19, 5, 7), dense((1, 19, 5, 7))
    ),
    "to row-major": case(add, np.add, dense((2, 35, 6, 6)), channels_last(2, 35, 6, 6), dense((2, 35, 6, 6))),
    "three channels": case(
        add3,
        lambda a, b, c: a + b + c,
        channels_last(1, 3, 8, 9),
        channels_last(1, 3, 8, 9),
        dense((3, 1, 1)),
        dense((1, 3, 8, 9)),
    ),
    "few channels": case(add, np.add, channels_last(2, 5, 7, 7), channels_last(2, 5, 7, 7), dense((5, 1, 1))),
    "reversed": case(relu, np_relu, dense((6, 21)), Buffer((6, 21), (-21, -1), "f32")),
    "reversed output": case(add, np.add, Buffer((6, 21), (21, -1), "f32"), dense((6, 21)), dense((6, 1))),
    "every other": case(relu, np_relu, Buffer((4, 18), (40, 2), "f32"), Buffer((4, 18), (54, 3), "f32")),
    "part of rows": case(relu, np_relu, Buffer((4, 18), (40, 1), "f32"), Buffer((4, 18), (19, 1), "f32")),
    "permuted": case(relu, np_relu, dense((3, 17, 4, 18)), laid_out((3, 17, 4, 18), (3, 1, 0, 2))),
    "f64": case(add, np.add, dense((3, 11), "f64"), dense((3, 11), "f64"), dense((11,), "f64")),
    "f16": case(add, np.add, dense((3, 11), "f16"), dense((3, 11), "f16"), dense((11,), "f16")),
    "bf16": case(add, np.add, dense((3, 11), "bf16"), dense((3, 11), "bf16"), dense((11,), "bf16")),
    "f16 to f32": case(
        cast(arith.ExtFOp, f32), lambda a: a.astype(np.float32), dense((50,)), dense((50,), "f16")
    ),
    "f32 to bf16": case(
        cast(arith.TruncFOp, bf16), lambda a: a.astype(ml_dtypes.bfloat16), dense((50,), "bf16"), dense((50,))
    ),
    "i8": case(binary(arith.AddiOp), np.add, dense((3, 71), "i8"), dense((3, 71), "i8"), dense((3, 1), "i8")),
    "ui8": case(
        binary(arith.MaxUIOp), np.maximum, dense((3, 71), "ui8"), dense((3, 71), "ui8"), dense((71,), "ui8")
    ),
    "i64": case(
        binary(arith.MuliOp), np.multiply, dense((3, 7), "i64"), dense((3, 7), "i64"), dense((3, 7), "i64")
    ),
    "ui32": case(
        binary(arith.MinUIOp), np.minimum, dense((50,), "ui32"), dense((50,), "ui32"), dense((1,), "ui32")
    ),
    "i16 layouts": case(
        binary(arith.SubiOp),
        np.subtract,
        dense((20, 33), "i16"),
        laid_out((20, 33), (1, 0), "i16"),
        dense((20, 33), "i16"),
    ),
    "compare": case(less, np.less, dense((5, 23), "i1"), dense((5, 23)), dense((5, 1))),
    "select": case(choose, np.where, dense((5, 23)), dense((5, 23), "i1"), dense((23,)), dense((5, 23))),
    "and": case(
        binary(arith.AndIOp), np.logical_and, dense((90,), "i1"), dense((90,), "i1"), dense((90,), "i1")
    ),
    "bool layouts": case(
        binary(arith.XOrIOp),
        np.logical_xor,
        dense((18, 20), "i1"),
        laid_out((18, 20), (1, 0), "i1"),
        dense((18, 20), "i1"),
    ),
    "cast": case(
        cast(arith.SIToFPOp, f32), lambda a: a.astype(np.float32), dense((3, 21)), dense((3, 21), "i64")
    ),
    "widen": case(
        cast(arith.ExtSIOp, i64), lambda a: a.astype(np.int64), dense((65,), "i64"), dense((65,), "i8")
    ),
    "narrow": case(
        cast(arith.TruncIOp, i8), lambda a: a.astype(np.int8), dense((65,), "i8"), dense((65,), "i64")
    ),
    "fill": Case([], dense((3, 21), "i64"), seven, lambda: np.full((3, 21), 7)),
    "fill strided": Case(
        [], laid_out((1, 5, 3, 3), (0, 2, 3, 1), "i64"), seven, lambda: np.full((1, 5, 3, 3), 7)
    ),
}


def test_against_numpy(isa, run):
    calls = [(c.kernel(), [values_for(b, i) for i, b in enumerate(c.inputs)]) for c in CASES.values()]
    with np.errstate(all="ignore"):
        for (name, c), (_, arrays), got in zip(CASES.items(), calls, run(calls, isa), strict=True):
            want = c.expected(*arrays)
            if got.dtype == ml_dtypes.bfloat16:
                got, want = got.astype(np.float32), want.astype(np.float32)
            np.testing.assert_array_equal(got, want, err_msg=name)


@pytest.mark.parametrize("position", [0, 1])
def test_in_place(isa, run, position):
    names = ["both layouts", "few channels", "three channels", "row", "reversed output", "i8", "to row-major"]
    calls, wanted = [], []
    for name in names:
        c = CASES[name]
        kernel = c.kernel()
        if position not in kernel.may_alias:
            continue
        arrays = [values_for(b, i) for i, b in enumerate(c.inputs)]
        calls.append((kernel, arrays))
        with np.errstate(all="ignore"):
            wanted.append(c.expected(*arrays))
    assert calls
    for (kernel, _), got, want in zip(calls, run(calls, isa, in_place=position), wanted, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=kernel.symbol)


COPIES = [
    (dense((1, 64, 9, 11)), channels_last(1, 64, 9, 11)),
    (channels_last(1, 64, 9, 11), dense((1, 64, 9, 11))),
    (dense((2, 3, 20, 20)), channels_last(2, 3, 20, 20)),
    (channels_last(2, 3, 20, 20), dense((2, 3, 20, 20))),
    (channels_last(1, 2, 5, 5), dense((1, 2, 5, 5))),
    (channels_last(1, 12, 5, 5), dense((1, 12, 5, 5))),
    (dense((1, 13, 6, 6)), channels_last(1, 13, 6, 6)),
    (dense((7, 5)), Buffer((7, 5), (-5, -1), "f32")),
    (Buffer((7, 50), (0, -1), "f32"), dense((7, 50))),
    (dense((3, 4, 50)), Buffer((3, 4, 50), (1000, 200, 1), "f32")),
    (dense((40, 50), "i8"), laid_out((40, 50), (1, 0), "i8")),
    (dense((33, 18), "f64"), laid_out((33, 18), (1, 0), "f64")),
    (dense((33, 18), "i1"), laid_out((33, 18), (1, 0), "i1")),
    (laid_out((4, 6, 5, 16), (0, 2, 1, 3)), dense((4, 6, 5, 16))),
    (dense((4, 0)), dense((4, 0))),
    (dense(()), dense(())),
]


def test_copies(isa, run):
    calls, wanted = [], []
    for source, target in COPIES:
        raw = np.dtype(f"i{source.element_bytes}")
        values = values_for(source, 0)
        calls.append(
            (Copy(source, target), [values.view(raw) if values.ndim else np.array(values).view(raw)])
        )
        wanted.append(calls[-1][1][0])
    for (kernel, _), got, want in zip(calls, run(calls, isa), wanted, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=kernel.symbol)


WINDOWS = [
    # Buffer, and the rows that move to its front: more than the others, as many, fewer; an odd tail.
    *((channels_last(1, 64, 9, 11), 2, rows) for rows in (8, 5, 2)),
    (channels_last(1, 3, 40, 7), 2, 39),
    (channels_last(2, 5, 7, 3), 2, 6),
    *((dense((1, 24, 30, 20)), 2, rows) for rows in (29, 15, 10)),
    (dense((1, 7, 5, 3)), 2, 4),
    (dense((1, 6, 9, 1)), 2, 8),
    (dense((130, 33)), 0, 129),
    (dense((3, 40, 17), "i8"), 1, 38),
    (laid_out((4, 20, 12), (0, 2, 1), "f64"), 1, 19),
]
"""Windows of tensors, by the buffer, the dimension of the rows and the number of those that stay."""


@pytest.mark.parametrize("any_rows", [False, True])
def test_rows_move_to_the_front_of_their_buffer(isa, any_rows):
    kernels = []
    for window, dim, rows in WINDOWS:
        shape = tuple(rows if d == dim else size for d, size in enumerate(window.shape))
        part = Buffer(shape, window.strides, window.dtype)
        kernel = Copy(part, part)
        kernels.append((kernel.for_any_rows(isa) if any_rows else None) or (kernel, ()))
    module = ModuleOp([k.build(isa) for k in {k.symbol: k for k, _ in kernels}.values()])
    code = JitModule(compile_mlir(str(module), isa))
    for (window, dim, rows), (kernel, sizes) in zip(WINDOWS, kernels, strict=True):
        dtype = np.dtype(NUMPY_TYPES[window.dtype])
        storage = (
            np.random.default_rng(0).integers(0, 255, window.extent * dtype.itemsize, np.uint8).view(dtype)
        )
        strides = tuple(stride * dtype.itemsize for stride in window.strides)
        view = np.lib.stride_tricks.as_strided(storage, window.shape, strides)
        moved = (window.shape[dim] - rows) * strides[dim]
        kept = view.take(range(window.shape[dim] - rows, window.shape[dim]), dim)
        want = view.copy()
        want.swapaxes(0, dim)[:rows] = kept.swapaxes(0, dim)
        prototype = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_size_t] * len(sizes))
        front = storage.ctypes.data
        code.function(kernel.symbol, prototype)(front + moved, front, *sizes)
        assert view.tobytes() == want.tobytes(), kernel.symbol


def rows_of(height: int) -> list[Case]:
    """Work on images and on tokens of some number, which are alike otherwise."""
    image, wide = channels_last(1, 19, height, 20), (1, 19, 100, 20)
    parts = (
        Buffer(image.shape, channels_last(*wide).strides, "f32"),
        Buffer(image.shape, dense(wide).strides, "f32"),
    )
    return [
        case(add, np.add, image, image, image),
        case(add, np.add, image, image, dense((19, 1, 1))),
        case(add3, lambda a, b, c: a + b + c, image, *parts, dense((1, 1, 1, 20))),
        case(add, np.add, dense((height, 150)), dense((height, 150)), dense((150,))),
        case(add, np.add, dense((1, height, 131)), dense((1, height, 131)), dense((1, height, 1))),
    ]


def test_one_kernel_for_any_rows(isa, run):
    groups = list(zip(*map(rows_of, (2, 5, 8)), strict=True))
    assert [len({c.kernel().for_any_rows(isa)[0] for c in group}) for group in groups] == [1] * len(groups)
    cases = [c for group in groups for c in (*group, rows_of(1)[groups.index(group)])]
    calls = [(c.kernel(), [values_for(b, i) for i, b in enumerate(c.inputs)]) for c in cases]
    for c, (kernel, arrays), got in zip(cases, calls, run(calls, isa, any_rows=True), strict=True):
        np.testing.assert_array_equal(got, c.expected(*arrays), err_msg=kernel.symbol)
    in_place = [call for c, call in zip(cases, calls, strict=True) if c.inputs[0].strides == c.output.strides]
    for (kernel, _), got, want in zip(
        in_place, run(in_place, isa, in_place=0, any_rows=True), run(in_place, isa), strict=True
    ):
        np.testing.assert_array_equal(got, want, err_msg=kernel.symbol)


def test_one_copy_for_any_rows(isa, run):
    pairs = [(dense((1, 24, rows, 30)), channels_last(1, 24, rows, 30)) for rows in (1, 2, 7)]
    pairs += [
        (Buffer((1, 24, rows, 30), dense((1, 24, 50, 30)).strides, "f32"), channels_last(1, 24, rows, 30))
        for rows in (2, 7)
    ]
    kernels = [Copy(source, target) for source, target in pairs]
    assert len({kernel.for_any_rows(isa)[0] for kernel in kernels[3:]}) == 1
    calls = [(kernel, [values_for(kernel.arguments[0], 0)]) for kernel in kernels]
    for (kernel, (values,)), got in zip(calls, run(calls, isa, any_rows=True), strict=True):
        np.testing.assert_array_equal(got, values, err_msg=kernel.symbol)


def test_no_kernel_for_any_rows(isa):
    """For short rows, in which little is left of a vector's width, and for what has none or lies in reverse."""
    for shape in ((9, 40), (300,), (2, 0, 300)):
        assert Copy(dense(shape), dense(shape)).for_any_rows(isa) is None
    backward = Buffer((7, 300), (-300, 1), "f32")
    assert Copy(dense((7, 300)), backward).for_any_rows(isa) is None


def test_equal_computations_are_equal_kernels():
    first, second = (CASES["three channels"].kernel() for _ in range(2))
    assert first == second
    assert first.symbol == second.symbol
    assert first != CASES["few channels"].kernel()
