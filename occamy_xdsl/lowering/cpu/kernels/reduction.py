"""
Kernels that work row by row: a row is the set of elements along some dimensions, of which something is summed.

Vectors run either along the rows, with one horizontal reduction a row, or across them, with one row in each
lane: whichever way memory is contiguous.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf, prod
from typing import Literal

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import SSAValue

from occamy_xdsl.lowering.cpu.kernels.builder import IndexLike, KernelBuilder
from occamy_xdsl.lowering.cpu.kernels.spec import STORAGE_TYPES
from occamy_xdsl.lowering.cpu.kernels.strided import Access, Dim, collapse, load_lanes, shuffle
from occamy_xdsl.lowering.cpu.kernels.vector_ops import lanes_of

Kind = Literal["sum", "prod", "max", "min"]
Element = Callable[[Sequence[SSAValue]], SSAValue]
"""From the elements of the inputs, scalars or vectors of equal length, to one value."""

ACCUMULATORS = 4
"""Independent partial results of a reduction, to hide the latency of its op."""
BLOCK = 64
"""Steps after which a partial sum is added to the total, so that rounding errors do not pile up."""

_REDUCTION_COST = 10.0
"""Estimated instructions that combine the lanes of a vector."""
_OPS: dict[Kind, tuple[type, type, type]] = {
    "sum": (arith.AddfOp, arith.AddiOp, arith.AddiOp),
    "prod": (arith.MulfOp, arith.MuliOp, arith.MuliOp),
    "max": (arith.MaximumfOp, arith.MaxSIOp, arith.MaxUIOp),
    "min": (arith.MinimumfOp, arith.MinSIOp, arith.MinUIOp),
}


def compute_dtype(dtype: str) -> str:
    """The dtype in which elements are accumulated: f32 for 16-bit floats."""
    return "f32" if dtype in ("f16", "bf16") else dtype


def is_float(dtype: str) -> bool:
    return isinstance(STORAGE_TYPES[dtype], AnyFloat)


def _variant(dtype: str) -> int:
    return 0 if is_float(dtype) else 2 if dtype.startswith("ui") else 1


def combine(k: KernelBuilder, kind: Kind, dtype: str, a: SSAValue, b: SSAValue) -> SSAValue:
    """Two partial results as one. NaN wins a maximum and a minimum; the sign of a zero is of no account."""
    op = _OPS[kind][_variant(dtype)]
    if kind in ("max", "min") and is_float(dtype):
        return k.emit(op(a, b, arith.FastMathFlagsAttr([FastMathFlag.NO_SIGNED_ZEROS])))
    return k.emit(op(a, b))


def combine_lanes(k: KernelBuilder, kind: Kind, dtype: str, value: SSAValue) -> SSAValue:
    """All lanes of a vector as one scalar, by combining halves."""
    lanes = lanes_of(value)
    while lanes is not None and lanes > 1:
        half = lanes // 2
        low, high = (shuffle(k, value, value, range(start, start + half)) for start in (0, half))
        value, lanes = combine(k, kind, dtype, low, high), half
    return value if lanes is None else k.lane(value, 0)


def neutral(kind: Kind, dtype: str) -> float:
    """The value that changes no result."""
    if kind in ("sum", "prod"):
        return 0 if kind == "sum" else 1
    if is_float(dtype):
        return -inf if kind == "max" else inf
    bits = STORAGE_TYPES[dtype].bitwidth
    if dtype.startswith("ui"):
        return 0 if kind == "max" else 2**bits - 1
    return -(2 ** (bits - 1)) if kind == "max" else 2 ** (bits - 1) - 1


@dataclass(frozen=True)
class _Vector:
    """The vectorised dimension: of the rows themselves (`along`), or of the dimensions that remain."""

    along: bool
    dim: int


def _choose_vector(kept: Sequence[Dim], reduced: Sequence[Dim], lanes: int) -> _Vector | None:
    """The cheapest dimension to vectorise; None for scalar code."""
    length = prod(dim.size for dim in reduced)
    if length == 0:
        return None

    def cost(vector: _Vector) -> float:
        dim = (reduced if vector.along else kept)[vector.dim]
        gathered = 1.5 * lanes
        loads = sum({0: 0.25, 1: 1.0}.get(stride, gathered) for stride in dim.strides)
        total = (loads + 1) * ceil(dim.size / lanes) / dim.size
        return total + (_REDUCTION_COST / length if vector.along else 0)

    candidates = [_Vector(True, d) for d in reversed(range(len(reduced)))]
    candidates += [_Vector(False, d) for d in reversed(range(len(kept)))]
    best = min(candidates, key=cost, default=None)
    return best if best is not None and lanes > 1 else None


def for_each_row(
    k: KernelBuilder,
    shape: Sequence[int],
    axes: Sequence[int],
    accesses: Sequence[Access],
    dtype: str,
    body: Callable[["Row"], None],
) -> None:
    """
    Runs `body` on each row of `shape`: the elements along `axes`, or a vector of neighbouring rows.

    Elements are converted to `dtype` when loaded, and back when stored. The first access tells the order of
    the dimensions in a row, the last one the order of the rows.
    """

    def part(dims: Sequence[int], key: int) -> list[Dim]:
        return collapse([shape[d] for d in dims], [[a.strides[d] for d in dims] for a in accesses], key)

    kept = part([d for d in range(len(shape)) if d not in axes], -1)
    reduced = part(axes, 0) or [Dim(1, (0,) * len(accesses))]
    if any(dim.size == 0 for dim in kept):
        return
    sizes = [a.view.buffer.element_bytes for a in accesses] + [STORAGE_TYPES[dtype].size]
    lanes = k.isa.lanes(max(sizes))
    vector = _choose_vector(kept, reduced, lanes)
    if vector is not None and vector.along:
        reduced.append(reduced.pop(vector.dim))
    if vector is not None and not vector.along:
        kept.append(kept.pop(vector.dim))

    def loop(d: int, at: Sequence[IndexLike]) -> None:
        def advance(i: IndexLike) -> list[IndexLike]:
            return _advance(at, kept[d].strides, i)

        if d == len(kept):
            if vector is None:
                body(Row(k, accesses, at, reduced, dtype, None, None, 1))
            else:
                body(Row(k, accesses, at, reduced, dtype, lanes, reduced[-1].strides, lanes, along=True))
        elif d == len(kept) - 1 and vector is not None and not vector.along:
            size, strides = kept[d].size, kept[d].strides
            whole = size - size % lanes

            def block(i: IndexLike, valid: int) -> None:
                body(Row(k, accesses, advance(i), reduced, dtype, lanes, strides, valid))

            k.for_(0, whole, lanes, lambda i: block(i, lanes))
            if whole < size:
                block(whole, size - whole)
        else:
            k.for_(0, kept[d].size, 1, lambda i: loop(d + 1, advance(i)))

    loop(0, [a.base for a in accesses])


def _advance(at: Sequence[IndexLike], strides: Sequence[int], steps: IndexLike) -> list[IndexLike]:
    return [position + steps * stride for position, stride in zip(at, strides, strict=True)]


Carried = Sequence[SSAValue]


@dataclass(frozen=True)
class Row:
    """A row, or one row in each lane, that starts at positions `at` of the accesses."""

    k: KernelBuilder
    accesses: Sequence[Access]
    at: Sequence[IndexLike]
    dims: Sequence[Dim]
    """The dimensions of the row; the last one is vectorised if lanes run along rows."""
    dtype: str
    lanes: int | None
    """None for scalar code."""
    lane_strides: Sequence[int] | None
    """Elements between neighbouring lanes, for each access."""
    valid: int
    """Lanes in use."""
    along: bool = False
    """Whether the lanes are elements of one row."""

    @property
    def length(self) -> int:
        """Elements of a row."""
        return prod(dim.size for dim in self.dims)

    # --- values: one for each row (what `reduce` returns), or one for each element ---

    def row_constant(self, value: float) -> SSAValue:
        """A constant for each row."""
        return self.k.constant(value, STORAGE_TYPES[self.dtype], None if self.along else self.lanes)

    def constant(self, value: float) -> SSAValue:
        """A constant for each element."""
        return self.k.constant(value, STORAGE_TYPES[self.dtype], self.lanes)

    def spread(self, value: SSAValue) -> SSAValue:
        """The row's value for each of its elements."""
        return self.k.splat(value, self.lanes)

    def _stride(self, access: int) -> int:
        return 1 if self.lane_strides is None else self.lane_strides[access]

    def load(self, access: int, at: Sequence[IndexLike], valid: int) -> SSAValue:
        """Elements at positions `at`, as `dtype`; lanes that are not valid hold anything."""
        view = self.accesses[access].view
        value = load_lanes(self.k, view, at[access], self.lanes, valid, self._stride(access))
        return self.k.convert(value, view.buffer.dtype, self.dtype)

    def store(self, value: SSAValue, access: int, *, dtype: str | None = None) -> None:
        """Store one value for each row, of `dtype` (that of the elements if None), at the start of the row."""
        self._store(value, access, self.at, self.valid, dtype)

    def _store(
        self, value: SSAValue, access: int, at: Sequence[IndexLike], valid: int, dtype: str | None = None
    ) -> None:
        view = self.accesses[access].view
        value = self.k.convert(value, dtype or self.dtype, view.buffer.dtype)
        self.k.store(value, view, at[access], valid=valid, stride=self._stride(access))

    # --- loops over the elements ---

    def fold(
        self,
        step: Callable[[Carried, Sequence[IndexLike], IndexLike, int], Carried],
        inits: Carried = (),
        merge: Callable[[Carried, Carried], Carried] = lambda a, b: a,
        *,
        accumulators: int = 1,
        blocked: bool = False,
    ) -> Carried:
        """
        The carried values after `step(carried, at, index, valid)` on all elements of the row.

        `index` counts along the last dimension and `valid` says how many lanes hold elements. The steps take
        turns with `accumulators` copies of the carried values, which `merge` joins at the end; if `blocked`,
        it also joins long partial results every `BLOCK` steps.
        """
        *outer, inner = self.dims
        unit = (self.lanes or 1) if self.along else 1
        steps, tail = divmod(inner.size, unit)
        copies = min(accumulators, max(steps, 1))
        block = BLOCK * copies
        blocked = blocked and self.length // unit > block
        width = len(inits)
        fresh = [list(inits)] * copies

        def flat(parts: Sequence[Carried]) -> list[SSAValue]:
            return [value for part in parts for value in part]

        def split(values: Carried) -> list[Carried]:
            return [values[i * width : (i + 1) * width] for i in range(copies)]

        def merge_all(a: Sequence[Carried], b: Sequence[Carried]) -> list[Carried]:
            return [merge(x, y) for x, y in zip(a, b, strict=True)]

        def run(
            at: Sequence[IndexLike], first: IndexLike, count: int, parts: Sequence[Carried]
        ) -> list[Carried]:
            def one(carried: Carried, i: IndexLike) -> Carried:
                index = (first + i) * unit
                return step(carried, _advance(at, inner.strides, index), index, self.valid)

            def body(i: IndexLike, *carried: SSAValue) -> Carried:
                return flat([one(part, i + p) for p, part in enumerate(split(carried))])

            whole = count - count % copies
            result = split(self.k.for_(0, whole, copies, body, flat(parts)))
            for i in range(whole, count):
                result[i % copies] = one(result[i % copies], i)
            return result

        def row(at: Sequence[IndexLike], parts: Sequence[Carried]) -> list[Carried]:
            done = steps - steps % block if blocked else 0

            def body(i: IndexLike, *carried: SSAValue) -> Carried:
                return flat(merge_all(split(carried), run(at, i, block, fresh)))

            result = split(self.k.for_(0, done, block, body, flat(parts)))
            result = run(at, done, steps - done, result)
            if tail:
                index = steps * unit
                result[0] = step(result[0], _advance(at, inner.strides, index), index, tail)
            return result

        def walk(d: int, at: Sequence[IndexLike], parts: Sequence[Carried]) -> list[Carried]:
            if d == len(outer):
                return row(at, parts)

            def body(i: IndexLike, *carried: SSAValue) -> Carried:
                here = _advance(at, outer[d].strides, i)
                if blocked and d == len(outer) - 1:
                    return flat(merge_all(split(carried), row(here, fresh)))
                return flat(walk(d + 1, here, split(carried)))

            return split(self.k.for_(0, outer[d].size, 1, body, flat(parts)))

        parts = walk(0, self.at, fresh)
        while len(parts) > 1:
            half = len(parts) // 2
            parts = merge_all(parts[:half], parts[half : 2 * half]) + parts[2 * half :]
        return parts[0]

    def reduce(
        self, kind: Kind, value: Element, inputs: Sequence[int], *, output: int | None = None
    ) -> SSAValue:
        """
        All `value(elements of inputs)` of the row combined; also stored as the elements of `output`, if given.
        """
        k = self.k

        def step(carried: Carried, at: Sequence[IndexLike], index: IndexLike, valid: int) -> Carried:
            new = value([self.load(i, at, valid) for i in inputs])
            if output is not None:
                self._store(new, output, at, valid)
            if self.along and self.lanes is not None and valid < self.lanes:
                new = k.select(k.mask(valid, self.lanes), new, self.constant(neutral(kind, self.dtype)))
            return [combine(k, kind, self.dtype, carried[0], new)]

        (result,) = self.fold(
            step,
            [self.constant(neutral(kind, self.dtype))],
            lambda a, b: [combine(k, kind, self.dtype, a[0], b[0])],
            accumulators=ACCUMULATORS,
            blocked=kind == "sum",
        )
        return combine_lanes(k, kind, self.dtype, result) if self.along else result

    def map(self, value: Element, inputs: Sequence[int], output: int) -> None:
        """Store `value(elements of inputs)` as the elements of `output`."""

        def step(carried: Carried, at: Sequence[IndexLike], index: IndexLike, valid: int) -> Carried:
            self._store(value([self.load(i, at, valid) for i in inputs]), output, at, valid)
            return ()

        self.fold(step)
