"""The inside of matrix-multiply-like kernels: a tile of sums in registers, from the products to the store."""

from collections.abc import Callable, Iterable, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import SSAValue

from occamy_xdsl.lowering.cpu.kernels.builder import IndexLike, KernelBuilder, View, element_type
from occamy_xdsl.lowering.cpu.kernels.spec import Epilogue
from occamy_xdsl.lowering.cpu.kernels.vector_math import EXPANSIONS


def sum_dtype(output: str) -> str:
    """The dtype in which sums for an output of dtype `output` are kept."""
    return "f32" if output in ("f16", "bf16") else output


def load_as(
    k: KernelBuilder,
    dtype: str,
    view: View,
    at: IndexLike,
    lanes: int | None = None,
    *,
    valid: IndexLike | None = None,
    stride: int = 1,
) -> SSAValue:
    """`KernelBuilder.load`, converted to `dtype`."""
    return k.convert(k.load(view, at, lanes, valid=valid, stride=stride), view.buffer.dtype, dtype)


def multiply_add(k: KernelBuilder, a: SSAValue, b: SSAValue, c: SSAValue) -> SSAValue:
    """`a * b + c` on floats or integers."""
    if isinstance(element_type(a), IntegerType):
        return k.emit(arith.AddiOp(k.emit(arith.MuliOp(a, b)), c))
    return k.fma(a, b, c)


def outer_product(
    k: KernelBuilder,
    sums: Sequence[SSAValue],
    elements: Iterable[tuple[int, SSAValue]],
    weights: Sequence[SSAValue],
    lanes: int,
) -> list[SSAValue]:
    """Add to the tile's sums, row by row, the products of each (row, scalar) with a row of vectors."""
    result = list(sums)
    vectors = len(weights)
    for row, scalar in elements:
        element = k.splat(scalar, lanes)
        for j, weight in enumerate(weights):
            n = row * vectors + j
            result[n] = multiply_add(k, element, weight, result[n])
    return result


def store_tile(
    k: KernelBuilder,
    views: Sequence[View],
    row_strides: Sequence[int],
    lane_strides: Sequence[int],
    at: Sequence[IndexLike],
    sums: Sequence[SSAValue],
    rows: int,
    lanes: int,
    valid: int,
    epilogue: Epilogue | None,
) -> None:
    """
    Apply `epilogue` to a register tile and store it.

    `views` are the output and the extras; for each of them `at` is the index of the tile's first element and
    `row_strides` and `lane_strides` the elements between its rows and its columns. `valid` columns exist. An
    extra that is the same for all rows is loaded once.
    """
    vectors = len(sums) // rows
    output, *extras = views
    dtype = output.buffer.dtype
    values = [k.convert(value, sum_dtype(dtype), dtype) for value in sums]

    def store(i: IndexLike, j: int, value: SSAValue, extra: Callable[[int], SSAValue]) -> None:
        if epilogue is not None:
            (value,) = k.inline(epilogue.block, [value, *(extra(e) for e in range(len(extras)))])
        position = at[0] + i * row_strides[0] + j * lanes * lane_strides[0]
        k.store(value, output, position, valid=valid - j * lanes, stride=lane_strides[0])

    def load(e: int, i: IndexLike, j: int) -> SSAValue:
        position = at[e + 1] + i * row_strides[e + 1] + j * lanes * lane_strides[e + 1]
        return k.load(extras[e], position, lanes, valid=valid - j * lanes, stride=lane_strides[e + 1])

    if epilogue is not None and rows > 1 and code_size(epilogue) * rows > MAX_UNROLLED:
        # One copy of the code a column of vectors instead of one a vector.
        scratch = k.stack(len(values) * lanes, dtype)
        for n, value in enumerate(values):
            k.store(value, scratch, n * lanes)

        def row(i: IndexLike) -> None:
            for j in range(vectors):
                value = k.load(scratch, i * (vectors * lanes) + j * lanes, lanes)
                store(i, j, value, lambda e, i=i, j=j: load(e, i, j))

        k.for_(0, rows, 1, row)
        return
    loaded: dict[tuple[int, int, int], SSAValue] = {}

    def extra(e: int, i: int, j: int) -> SSAValue:
        key = e, i * row_strides[e + 1], j * lane_strides[e + 1]
        if key not in loaded:
            loaded[key] = load(e, i, j)
        return loaded[key]

    for i in range(rows):
        for j in range(vectors):
            store(i, j, values[i * vectors + j], lambda e, i=i, j=j: extra(e, i, j))


MAX_UNROLLED = 48
"""Vector instructions up to which an epilogue is repeated for every row of a tile."""


def code_size(epilogue: Epilogue) -> int:
    """About how many vector instructions an epilogue takes."""
    return sum(20 if op.name in EXPANSIONS else 1 for op in epilogue.block.ops)
