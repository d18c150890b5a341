"""GPU kernels where one thread computes one element of the result, from elements that an index map names."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from xdsl.dialects import arith, math
from xdsl.dialects.builtin import i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from occamy_xdsl.dialects.dnn.interpolation import resize_taps
from occamy_xdsl.lowering.cpu.kernels import vector_ops
from occamy_xdsl.lowering.cpu.kernels.builder import Index, IndexLike, View, index
from occamy_xdsl.lowering.cpu.kernels.pad import source_index
from occamy_xdsl.lowering.cpu.kernels.reduction import Kind, combine, compute_dtype, is_float, neutral
from occamy_xdsl.lowering.cpu.kernels.spec import NUMPY_TYPES, STORAGE_TYPES, Buffer
from occamy_xdsl.lowering.cuda.kernels.builder import GpuBuilder
from occamy_xdsl.lowering.cuda.kernels.spec import Extent, GpuKernel, as_signless
from occamy_xdsl.lowering.toolchain import Isa

THREADS = 256
"""Threads of a block."""

Array = npt.NDArray[np.generic]
Point = Sequence[IndexLike]


def _as_bytes(*buffers: Buffer) -> tuple[Buffer, ...]:
    """Truth values as the bytes of 0 and 1 that they are, which compare like numbers."""
    return tuple(replace(b, dtype="ui8") if b.dtype == "i1" else b for b in buffers)


@dataclass(frozen=True)
class PointKernel(GpuKernel):
    """A kernel with one thread for each element of its last argument; neighbours in memory are neighbours."""

    @abstractmethod
    def element(self, k: GpuBuilder, point: Point) -> SSAValue:
        """Emit the element at `point` of the result, in the type in which it is stored."""

    @property
    def inputs_to_cache(self) -> tuple[int, ...]:
        return tuple(range(len(self.arguments) - 1))

    @property
    def block(self) -> Extent:
        return THREADS, 1, 1

    @property
    def grid(self) -> Extent:
        return max(1, -(-self.arguments[-1].elements // THREADS)), 1, 1

    def build(self, isa: Isa) -> FuncOp:
        k = GpuBuilder(self, isa)
        result = self.arguments[-1]
        number = k.block() * THREADS + k.thread()

        def run() -> None:
            point: list[IndexLike] = [0] * result.rank
            rest: IndexLike = number
            order = sorted(range(result.rank), key=lambda d: abs(result.strides[d]))
            for i, dim in enumerate(order):
                last = i + 1 == len(order)
                point[dim] = rest if last else rest % result.shape[dim]
                rest = rest // result.shape[dim]
            view = k.views[-1]
            k.store(self.element(k, point), view, view.at(*point))

        if result.elements:
            k.if_(k.compare("slt", number, result.elements), run)
        return k.finish()


def inside(k: GpuBuilder, conditions: Sequence[SSAValue | bool]) -> SSAValue | bool:
    """Whether all conditions hold."""
    if False in conditions:
        return False
    values = [c for c in conditions if isinstance(c, SSAValue)]
    if not values:
        return True
    total = values[0]
    for value in values[1:]:
        total = k.emit(arith.AndIOp(total, value))
    return total


def bounds(k: GpuBuilder, at: IndexLike, low: int, high: int) -> list[SSAValue | bool]:
    """The conditions that `low <= at < high`."""
    return [k.compare("sge", at, low), k.compare("slt", at, high)]


def fold(
    k: GpuBuilder,
    sizes: Sequence[int],
    start: Sequence[SSAValue],
    step: Callable[[Point, Sequence[SSAValue]], Sequence[SSAValue]],
) -> Sequence[SSAValue]:
    """The values that `step` carries over all points of a box, in row-major order."""

    def nest(point: list[IndexLike], carried: Sequence[SSAValue]) -> Sequence[SSAValue]:
        if len(point) == len(sizes):
            return step(point, carried)

        def body(i: IndexLike, *values: SSAValue) -> Sequence[SSAValue]:
            return nest([*point, i], values)

        return k.for_(0, sizes[len(point)], 1, body, carried)

    return nest([], start)


@dataclass(frozen=True)
class Pool(PointKernel):
    """
    Pooling as `dnn.pool` defines it, for what cuDNN does not do: dilations, rounding up, unequal pads.

    `kind` is max or average; 16-bit floats are computed in f32.
    """

    kind: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    count_include_pad: bool
    input: Buffer
    output: Buffer

    @property
    def label(self) -> str:
        return f"pool_{self.kind}_" + "x".join(map(str, self.output.shape))

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        return _as_bytes(self.input, self.output)

    def element(self, k: GpuBuilder, point: Point) -> SSAValue:
        source = k.views[0]
        dtype = compute_dtype(source.buffer.dtype)
        type_ = STORAGE_TYPES[dtype]
        rank = len(self.sizes)
        is_max = self.kind == "max"
        kind: Kind = "max" if is_max else "sum"
        zero, one = (k.constant(n, type_) for n in (0, 1))

        def step(tap: Point, carried: Sequence[SSAValue]) -> Sequence[SSAValue]:
            total, count = carried
            at: list[IndexLike] = list(point[:2])
            valid: list[SSAValue | bool] = []
            counted: list[SSAValue | bool] = []
            for d in range(rank):
                position = point[2 + d] * self.strides[d] + tap[d] * self.dilations[d] + -self.pads[d]
                size = self.input.shape[2 + d]
                valid += bounds(k, position, 0, size)
                counted.append(k.compare("slt", position, size + self.pads[rank + d]))
                at.append(position)

            def add() -> Sequence[SSAValue]:
                value = k.convert(k.load(source, source.at(*at)), source.buffer.dtype, dtype)
                number = count if self.count_include_pad or is_max else k.emit(arith.AddfOp(count, one))
                return [combine(k, kind, dtype, total, value), number]

            total, count = k.if_(inside(k, valid), add, lambda: [total, count])
            if self.count_include_pad and not is_max:
                more = inside(k, counted)
                added = one if more is True else zero if more is False else k.select(more, one, zero)
                count = k.emit(arith.AddfOp(count, added))
            return [total, count]

        start = [k.constant(neutral(kind, dtype), type_), zero]
        total, count = fold(k, self.sizes, start, step)
        if not is_max:
            total = k.emit(arith.DivfOp(total, count))
        return k.convert(total, dtype, k.views[-1].buffer.dtype)


@dataclass(frozen=True)
class Reduce(PointKernel):
    """The elements along `axes` reduced to one, as `dnn.reduce` defines each kind, for any axes."""

    kind: str
    axes: tuple[int, ...]
    input: Buffer
    output: Buffer

    @property
    def label(self) -> str:
        return f"reduce_{self.kind}_" + "x".join(map(str, self.input.shape))

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        return _as_bytes(self.input, self.output)

    @property
    def dtype(self) -> str:
        """The dtype of partial results."""
        if not is_float(self.input.dtype) and self.kind in ("l2", "log_sum", "log_sum_exp"):
            return "f64"
        return compute_dtype(self.arguments[0].dtype)

    def element(self, k: GpuBuilder, point: Point) -> SSAValue:
        source, dtype = k.views[0], self.dtype
        type_ = STORAGE_TYPES[dtype]
        floating = is_float(dtype)
        kept = iter(point)
        fixed: list[IndexLike | None] = [
            None if d in self.axes else next(kept) for d in range(self.input.rank)
        ]
        sizes = [self.input.shape[d] for d in self.axes]

        def total(kind: Kind, value: Callable[[SSAValue], SSAValue] = lambda x: x) -> SSAValue:
            def step(at: Point, carried: Sequence[SSAValue]) -> Sequence[SSAValue]:
                moving = iter(at)
                position = source.at(*(next(moving) if i is None else i for i in fixed))
                element = k.convert(k.load(source, position), source.buffer.dtype, dtype)
                return [combine(k, kind, dtype, carried[0], value(element))]

            return fold(k, sizes, [k.constant(neutral(kind, dtype), type_)], step)[0]

        def square(x: SSAValue) -> SSAValue:
            return k.emit(arith.MulfOp(x, x) if floating else arith.MuliOp(x, x))

        def magnitude(x: SSAValue) -> SSAValue:
            if floating:
                return k.emit(math.AbsFOp(x))
            if dtype.startswith("ui"):
                return x
            return k.emit(arith.MaxSIOp(x, k.emit(arith.SubiOp(k.constant(0, type_), x))))

        match self.kind:
            case "sum" | "max" | "min" | "prod":
                result = total(self.kind)
            case "mean":
                count = int(np.prod(sizes, dtype=np.int64))
                divide = arith.DivfOp if floating else arith.DivUIOp if dtype[0] == "u" else arith.DivSIOp
                result = k.emit(divide(total("sum"), k.constant(count if floating else max(count, 1), type_)))
            case "l1":
                result = total("sum", magnitude)
            case "l2":
                result = k.emit(math.SqrtOp(total("sum", square)))
            case "sum_square":
                result = total("sum", square)
            case "log_sum":
                result = k.apply(math.LogOp, total("sum"))
            case "log_sum_exp":
                # Shifted by the maximum, or by 0 where that is infinite.
                top = total("max")
                infinite = k.compare_values("oeq", k.emit(math.AbsFOp(top)), k.constant(float("inf"), type_))
                top = k.select(infinite, k.constant(0, type_), top)
                sum_ = total("sum", lambda x: k.apply(math.ExpOp, k.emit(arith.SubfOp(x, top))))
                result = k.emit(arith.AddfOp(k.apply(math.LogOp, sum_), top))
            case _:
                raise ValueError(f"unknown kind of reduction '{self.kind}'")
        return k.convert(result, dtype, k.views[-1].buffer.dtype)


@dataclass(frozen=True)
class ArgReduce(PointKernel):
    """Position (i64) of the largest or smallest element along `axis`, as `dnn.arg_reduce` defines it."""

    kind: str
    axis: int
    select_last: bool
    input: Buffer
    output: Buffer

    @property
    def label(self) -> str:
        return f"arg_{self.kind}_" + "x".join(map(str, self.input.shape))

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        return _as_bytes(self.input, self.output)

    def element(self, k: GpuBuilder, point: Point) -> SSAValue:
        source = k.views[0]
        dtype = compute_dtype(source.buffer.dtype)
        floating = is_float(dtype)

        def load(i: IndexLike) -> SSAValue:
            at = source.at(*point[: self.axis], i, *point[self.axis :])
            return k.convert(k.load(source, at), source.buffer.dtype, dtype)

        def step(i: IndexLike, best: SSAValue, where: SSAValue) -> Sequence[SSAValue]:
            value = load(i)
            # A comparison that is true for NaNs, too: they win over numbers, the first of them in the end.
            relation = ("g" if self.kind == "max" else "l") + ("e" if self.select_last else "t")
            if floating:
                wins = k.compare_values("u" + relation, value, best)
                kept = k.compare_values("uno", best, best)
                if self.select_last:
                    kept = k.emit(arith.AndIOp(kept, k.compare_values("ord", value, value)))
                wins = k.emit(arith.AndIOp(wins, k.emit(arith.XOrIOp(kept, k.constant(1, kept.type)))))
            else:
                wins = k.compare_values(("u" if dtype[0] == "u" else "s") + relation, value, best)
            number = k.emit(vector_ops.IndexCastOp(k.value_of(i), i64))
            return [k.select(wins, value, best), k.select(wins, number, where)]

        start = [load(0), k.constant(0, i64)]
        return k.for_(1, self.input.shape[self.axis], 1, step, start)[1]


@dataclass(frozen=True)
class Lrn(PointKernel):
    """`x / (bias + alpha / size * sum(x^2 over size channels around)) ^ beta`. Source: ONNX LRN-13."""

    size: int
    alpha: float
    beta: float
    bias: float
    input: Buffer
    output: Buffer

    @property
    def label(self) -> str:
        return f"lrn_{self.size}_" + "x".join(map(str, self.input.shape))

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        return self.input, self.output

    def element(self, k: GpuBuilder, point: Point) -> SSAValue:
        source = k.views[0]
        dtype = compute_dtype(self.input.dtype)
        batch, channel, *rest = point

        def load(c: IndexLike) -> SSAValue:
            return k.convert(k.load(source, source.at(batch, c, *rest)), self.input.dtype, dtype)

        def constant(value: float) -> SSAValue:
            return k.constant(value, STORAGE_TYPES[dtype])

        def step(c: IndexLike, total: SSAValue) -> Sequence[SSAValue]:
            x = load(c)
            return [k.fma(x, x, total)]

        low = k.maximum(channel - (self.size - 1) // 2, 0)
        high = k.minimum(channel + (self.size // 2 + 1), self.input.shape[1])
        (total,) = k.for_(low, high, 1, step, [constant(0)])
        base = k.fma(total, constant(self.alpha / self.size), constant(self.bias))
        power = k.apply(math.ExpOp, k.emit(arith.MulfOp(constant(self.beta), k.apply(math.LogOp, base))))
        return k.convert(k.emit(arith.DivfOp(load(channel), power)), dtype, self.output.dtype)


@dataclass(frozen=True)
class Gather(PointKernel):
    """Slices of `data` along `axis`, as `dnn.gather` defines it: indices are clamped into the dimension."""

    axis: int
    data: Buffer
    indices: Buffer
    output: Buffer

    @property
    def label(self) -> str:
        return f"gather_{self.axis}_" + "x".join(map(str, self.output.shape))

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        return as_signless(self.data), self.indices, as_signless(self.output)

    def element(self, k: GpuBuilder, point: Point) -> SSAValue:
        data, indices, _ = k.views
        rank = self.indices.rank
        size = self.data.shape[self.axis]
        number = k.load(indices, indices.at(*point[self.axis : self.axis + rank]))
        number = k.convert(number, self.indices.dtype, "i64")
        negative = k.compare_values("slt", number, k.constant(0, i64))
        number = k.select(negative, k.emit(arith.AddiOp(number, k.constant(size, i64))), number)
        number = k.emit(arith.MaxSIOp(number, k.constant(0, i64)))
        number = k.emit(arith.MinSIOp(number, k.constant(size - 1, i64)))
        slice_ = Index(k, k.emit(vector_ops.IndexCastOp(number, index)))
        return k.load(data, data.at(*point[: self.axis], slice_, *point[self.axis + rank :]))


@dataclass(frozen=True)
class TableKernel(PointKernel):
    """A kernel that reads arrays made at compile time, its arguments between input and output."""

    @property
    @abstractmethod
    def tables(self) -> tuple[Array, ...]:
        """The arrays, flat."""


@dataclass(frozen=True)
class Pad(TableKernel):
    """The input with `low` elements before and `high` after it along each dimension, as `dnn.pad` defines it."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    mode: str
    value: float
    input: Buffer
    output: Buffer

    @property
    def label(self) -> str:
        return f"pad_{self.mode}_" + "x".join(map(str, self.output.shape))

    @property
    def tables(self) -> tuple[Array, ...]:
        """Where it is not constant, the input's position along each dimension for each of the output's."""
        if self.mode == "constant":
            return ()
        positions = [
            source_index(o - low, size, self.mode)
            for size, low, out in zip(self.input.shape, self.low, self.output.shape, strict=True)
            for o in range(out)
        ]
        return (np.array(positions, np.int32),)

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        tables = tuple(Buffer.contiguous(table.shape, "i32") for table in self.tables)
        source, target = _as_bytes(self.input, self.output)
        return source, *tables, target

    def element(self, k: GpuBuilder, point: Point) -> SSAValue:
        source = k.views[0]
        if self.mode == "constant":
            at = [i + -low for i, low in zip(point, self.low, strict=True)]
            conditions = [
                condition
                for i, size, low, high in zip(at, self.input.shape, self.low, self.high, strict=True)
                if low or high
                for condition in bounds(k, i, 0, size)
            ]
            constant = k.constant(self.value, source.buffer.element_type)
            load = lambda: [k.load(source, source.at(*at))]  # noqa: E731
            return k.if_(inside(k, conditions), load, lambda: [constant])[0]
        table, start, at = k.views[1], 0, list[IndexLike]()
        for i, size in zip(point, self.output.shape, strict=True):
            at.append(_table_index(k, table, i + start))
            start += size
        return k.load(source, source.at(*at))


def _table_index(k: GpuBuilder, table: View, at: IndexLike) -> Index:
    return Index(k, k.emit(vector_ops.IndexCastOp(k.load(table, at), index)))


@dataclass(frozen=True)
class Resize(TableKernel):
    """The input resampled to the size of the output, as `dnn.resize` defines it, by tables of taps."""

    mode: str
    coordinate_transformation_mode: str
    nearest_mode: str
    cubic_coeff_a: float
    exclude_outside: bool
    scales: tuple[float, ...]
    input: Buffer
    output: Buffer

    @property
    def label(self) -> str:
        return f"resize_{self.mode}_" + "x".join(map(str, self.output.shape))

    @cached_property
    def taps(self) -> tuple[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]], ...]:
        """Positions and weights along each dimension, both [outputs, taps]."""
        sizes = zip(self.scales, self.input.shape, self.output.shape, strict=True)
        return tuple(
            resize_taps(
                self.mode,
                self.coordinate_transformation_mode,
                self.nearest_mode,
                self.cubic_coeff_a,
                self.exclude_outside,
                *size,
            )
            for size in sizes
        )

    @property
    def dtype(self) -> str:
        """The dtype of sums."""
        return "f64" if self.input.dtype == "f64" else "f32"

    @property
    def is_copy(self) -> bool:
        """Whether each output is one input element, unchanged."""
        return all(w.shape[1] == 1 and bool((w == 1).all()) for _, w in self.taps)

    @property
    def tables(self) -> tuple[Array, ...]:
        """Positions, and weights unless they are all 1: the taps of each dimension, one after the other."""
        positions = np.concatenate([p.ravel() for p, _ in self.taps]).astype(np.int32)
        if self.is_copy:
            return (positions,)
        weights = np.concatenate([w.ravel() for _, w in self.taps])
        return positions, weights.astype(NUMPY_TYPES[self.dtype])

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        sizes = zip(self.tables, ("i32", self.dtype), strict=False)
        source, target = self.input, self.output
        if self.is_copy:
            source, target = as_signless(source), as_signless(target)
        return source, *(Buffer.contiguous(table.shape, dtype) for table, dtype in sizes), target

    def element(self, k: GpuBuilder, point: Point) -> SSAValue:
        source, positions = k.views[:2]
        counts = [w.shape[1] for _, w in self.taps]
        starts: list[IndexLike] = []
        start = 0
        for i, (p, _) in zip(point, self.taps, strict=True):
            starts.append(i * p.shape[1] + start)
            start += p.size
        if self.is_copy:
            return k.load(source, source.at(*(_table_index(k, positions, at) for at in starts)))
        weights, dtype = k.views[2], self.dtype

        def step(tap: Point, carried: Sequence[SSAValue]) -> Sequence[SSAValue]:
            at = [s + t for s, t in zip(starts, tap, strict=True)]
            value = k.load(source, source.at(*(_table_index(k, positions, i) for i in at)))
            value = k.convert(value, source.buffer.dtype, dtype)
            for i, count in zip(at, counts, strict=True):
                if count > 1:
                    value = k.emit(arith.MulfOp(value, k.load(weights, i)))
            return [k.emit(arith.AddfOp(carried[0], value))]

        (total,) = fold(k, counts, [k.constant(0, STORAGE_TYPES[dtype])], step)
        return k.convert(total, dtype, k.views[-1].buffer.dtype)
