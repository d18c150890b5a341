"""
GPU kernels on rows: reductions and softmax along the last dimension, with shuffles between threads.

A warp takes a short row, a block of threads a long one, and the lanes of a warp several very short ones. Where
not the elements of a row but those of neighbouring rows lie side by side in memory, lanes take neighbouring rows, and
the warps of a block parts of them. Elements stay in registers where there are few for each thread, so that memory is
read once; 16-bit floats are computed in f32.

Source: J. Luitjens, Faster Parallel Reductions on Kepler, 2014.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod

import numpy as np
from xdsl.dialects import arith, math
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue

from occamy_xdsl.lowering.cpu.kernels.builder import IndexLike, View
from occamy_xdsl.lowering.cpu.kernels.spec import NUMPY_TYPES, STORAGE_TYPES, Buffer
from occamy_xdsl.lowering.cuda.kernels.builder import GpuBuilder
from occamy_xdsl.lowering.cuda.kernels.spec import WARP, Extent, GpuKernel
from occamy_xdsl.lowering.toolchain import Isa

THREADS = 256
"""Threads of a block."""
WARPS = THREADS // WARP
SHORT_ROW = 16 * WARP
"""Most elements of a row that one warp takes."""
MAX_REGISTERS = 16
"""Most elements of a row that a thread keeps."""
SIDE_BY_SIDE = 8
"""Least neighbouring rows for which a row's elements are worth to be left to one thread in a warp: a sector."""

Combine = Callable[[SSAValue, SSAValue], SSAValue]
BinaryOp = Callable[[SSAValue, SSAValue], Operation]

_FLOAT_OPS: Mapping[str, BinaryOp] = {
    "sum": arith.AddfOp,
    "prod": arith.MulfOp,
    "max": arith.MaximumfOp,
    "min": arith.MinimumfOp,
}
_SIGNED_OPS: Mapping[str, BinaryOp] = {
    "sum": arith.AddiOp,
    "prod": arith.MuliOp,
    "max": arith.MaxSIOp,
    "min": arith.MinSIOp,
}
_UNSIGNED_OPS: Mapping[str, BinaryOp] = {
    **_SIGNED_OPS,
    "max": arith.MaxUIOp,
    "min": arith.MinUIOp,
}


def is_float(dtype: str) -> bool:
    """Whether a dtype is a floating-point one."""
    return dtype in ("f64", "f32", "f16", "bf16")


def compute_dtype(dtype: str) -> str:
    """The dtype of intermediate results, of at least 32 bits as shuffles need: f32 for 16-bit floats."""
    narrow = {"f16": "f32", "bf16": "f32", "i8": "i32", "i16": "i32", "ui8": "ui32", "ui16": "ui32"}
    return narrow.get(dtype, dtype)


def neutral(kind: str, dtype: str) -> float:
    """The value that changes nothing when combined by `sum`, `prod`, `max` or `min`."""
    if kind in ("sum", "prod"):
        return 0 if kind == "sum" else 1
    if is_float(dtype):
        return -inf if kind == "max" else inf
    info = np.iinfo(np.dtype(NUMPY_TYPES[dtype]).name)
    return int(info.min if kind == "max" else info.max)


@dataclass(frozen=True)
class RowKernel(GpuKernel):
    """A kernel that gives each row of `input`, its last dimension, to one warp or to one block."""

    input: Buffer
    output: Buffer

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        # Truth values are bytes of 0 and 1, which compare like numbers.
        return tuple(replace(b, dtype="ui8") if b.dtype == "i1" else b for b in (self.input, self.output))

    @property
    def dtype(self) -> str:
        """The dtype of intermediate results."""
        return compute_dtype(self.arguments[0].dtype)

    @property
    def columns(self) -> int:
        """Elements of a row, at least 1."""
        return self.input.shape[-1]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return prod(self.input.shape[:-1])

    @property
    def is_across(self) -> bool:
        """Whether neighbouring rows lie side by side in memory, and the lanes of a warp take one each."""
        *leading, element = zip(self.input.shape, self.input.strides, strict=True)
        neighbours = 1
        for size, stride in reversed(leading):
            if stride != neighbours:
                break
            neighbours *= size
        return element[1] != 1 and neighbours >= SIDE_BY_SIDE

    @property
    def threads_per_row(self) -> int:
        """Threads that share a row."""
        if self.is_across:
            return WARPS
        if self.columns > SHORT_ROW:
            return THREADS
        return min(WARP, 1 << (self.columns - 1).bit_length())

    @property
    def shared(self) -> tuple[Buffer, ...]:
        if self.threads_per_row <= WARP and not self.is_across:
            return ()
        # One array for each reduction of a row: the second one need not wait for readers of the first.
        buffer = Buffer.contiguous((THREADS if self.is_across else WARPS,), self.dtype)
        return (buffer,) * self.reductions

    @property
    @abstractmethod
    def reductions(self) -> int:
        """Times that a row is reduced."""

    @property
    def block(self) -> Extent:
        return THREADS, 1, 1

    @property
    def grid(self) -> Extent:
        return max(1, -(-self.rows * self.threads_per_row // THREADS)), 1, 1

    @abstractmethod
    def compute(self, row: "Row") -> None:
        """Emit the work on one row."""

    def build(self, isa: Isa) -> FuncOp:
        k = GpuBuilder(self, isa)
        if not self.rows:
            return k.finish()
        thread = k.thread()
        per_block = THREADS // self.threads_per_row
        lane, warp = thread % per_block, thread // per_block
        if not self.is_across:
            lane, warp = thread // self.threads_per_row, thread % self.threads_per_row
        number: IndexLike = k.block() * per_block + lane
        inside: SSAValue | bool = True
        if self.rows % per_block:
            # Threads beyond the last row compute it again, as shuffles and barriers need all, and store nothing.
            inside = k.compare("slt", number, self.rows)
            number = k.minimum(number, self.rows - 1)
        self.compute(Row(k, self, number, warp, inside))
        return k.finish()


@dataclass
class Row:
    """One row while code for it is emitted: its elements, and reductions of them over all its threads."""

    k: GpuBuilder
    kernel: RowKernel
    number: IndexLike
    thread: IndexLike
    """Number of the thread among those of the row."""
    inside: SSAValue | bool
    """Whether there is this row."""
    _kept: dict[float, list[SSAValue]] = field(default_factory=dict[float, list[SSAValue]])
    _reduced: int = 0

    @property
    def dtype(self) -> str:
        """Dtype of intermediate results."""
        return self.kernel.dtype

    @property
    def steps(self) -> int:
        """Elements that each thread has, the last one perhaps beyond the end."""
        return -(-self.kernel.columns // self.kernel.threads_per_row)

    def constant(self, value: float) -> SSAValue:
        """A number in the dtype of intermediate results."""
        return self.k.constant(value, STORAGE_TYPES[self.dtype])

    def _at(self, view: View, column: IndexLike) -> IndexLike:
        rest = self.number
        position = view.buffer.origin + column * view.buffer.strides[-1]
        leading = list(zip(self.kernel.input.shape[:-1], view.buffer.strides, strict=False))
        for i, (size, stride) in enumerate(reversed(leading)):
            position = position + (rest % size if i + 1 < len(leading) else rest) * stride
            rest = rest // size
        return position

    def load(self, view: View, column: IndexLike) -> SSAValue:
        """One element of a buffer with as many rows as the input."""
        return self.k.convert(self.k.load(view, self._at(view, column)), view.buffer.dtype, self.dtype)

    def store(self, value: SSAValue, column: IndexLike) -> None:
        """Set one element of the output's row."""
        view = self.k.views[-1]
        converted = self.k.convert(value, self.dtype, view.buffer.dtype)
        self.k.if_(self.inside, lambda: self.k.store(converted, view, self._at(view, column)))

    def _elements(self, beyond: float) -> list[SSAValue]:
        """The elements of this thread, all in registers; `beyond` stands for those past the end."""
        if beyond not in self._kept:
            values: list[SSAValue] = []
            for step in range(self.steps):
                column = self.thread + step * self.kernel.threads_per_row
                if (step + 1) * self.kernel.threads_per_row <= self.kernel.columns:
                    values.append(self.load(self.k.views[0], column))
                    continue
                inside = self.k.compare("slt", column, self.kernel.columns)
                load = lambda column=column: [self.load(self.k.views[0], column)]  # noqa: E731
                values += self.k.if_(inside, load, lambda: [self.constant(beyond)])
            self._kept[beyond] = values
        return self._kept[beyond]

    def _fold(self, start: float, beyond: float, combine: Combine) -> SSAValue:
        """`combine(total, element)` over the elements of this thread."""
        total = self.constant(start)
        if self.steps <= MAX_REGISTERS:
            for value in self._elements(beyond):
                total = combine(total, value)
            return total

        def body(column: IndexLike, total: SSAValue) -> Sequence[SSAValue]:
            return [combine(total, self.load(self.k.views[0], column))]

        return self.k.for_(self.thread, self.kernel.columns, self.kernel.threads_per_row, body, [total])[0]

    def reduce(
        self,
        kind: str,
        function: Callable[[SSAValue], SSAValue] | None = None,
        *,
        beyond: float | None = None,
    ) -> SSAValue:
        """
        All elements of the row, each through `function`, combined by sum, prod, max or min; in every thread.

        `beyond` stands for elements past the end before `function`.
        """
        k = self.k
        ops = _FLOAT_OPS if is_float(self.dtype) else _UNSIGNED_OPS if self.dtype[0] == "u" else _SIGNED_OPS
        op = ops[kind]
        start = neutral(kind, self.dtype)

        def combine(a: SSAValue, b: SSAValue) -> SSAValue:
            return k.emit(op(a, b))

        def step(total: SSAValue, value: SSAValue) -> SSAValue:
            return combine(total, value if function is None else function(value))

        mine = self._fold(start, start if beyond is None else beyond, step)
        threads = self.kernel.threads_per_row
        if self.kernel.is_across:
            return self._join(mine, combine, THREADS)
        total = k.warp_reduce(mine, combine, min(threads, WARP))
        return total if threads <= WARP else self._join(total, combine, WARPS)

    def _join(self, mine: SSAValue, combine: Combine, count: int) -> SSAValue:
        """The values of all warps combined, through an array of `count` elements in shared memory."""
        k = self.k
        shared = k.shared(self._reduced)
        self._reduced += 1
        if count == THREADS:
            thread = k.thread()
            lane: IndexLike = thread % WARP
            k.store(mine, shared, thread)
            parts = range(0, THREADS, WARP)
        else:
            lane, parts = 0, range(WARPS)
            first_lane = k.compare("eq", self.thread % WARP, 0)
            k.if_(first_lane, lambda: k.store(mine, shared, self.thread // WARP))
        k.barrier()
        values = [k.load(shared, lane + i) for i in parts]
        while len(values) > 1:
            values = [combine(a, b) for a, b in zip(values[::2], values[1::2], strict=True)]
        return values[0]

    def first_thread(self, body: Callable[[], None]) -> None:
        """Run `body` in one thread of the row."""
        self.k.if_(self.k.compare("eq", self.thread, 0), body)

    def map(self, function: Callable[[SSAValue, IndexLike], SSAValue], beyond: float) -> None:
        """
        Store `function` of each element and its column.

        `beyond` as in the reductions before, to use their registers.
        """
        if self.steps > MAX_REGISTERS:

            def body(column: IndexLike) -> None:
                self.store(function(self.load(self.k.views[0], column), column), column)

            self.k.for_(self.thread, self.kernel.columns, self.kernel.threads_per_row, body)
            return
        for step, value in enumerate(self._elements(beyond)):
            column = self.thread + step * self.kernel.threads_per_row
            whole = (step + 1) * self.kernel.threads_per_row <= self.kernel.columns
            inside = True if whole else self.k.compare("slt", column, self.kernel.columns)
            store = lambda v=value, c=column: self.store(function(v, c), c)  # noqa: E731
            self.k.if_(inside, store)


@dataclass(frozen=True)
class RowReduce(RowKernel):
    """
    `output[..., 0]` is the last dimension of `input` combined by `kind`: sum, mean, prod, max or min.

    Leading dimensions of both have the same sizes. NaNs spread; integer means are not provided.
    """

    kind: str

    @property
    def label(self) -> str:
        return f"reduce_{self.kind}_" + "x".join(map(str, self.input.shape))

    @property
    def inputs_to_cache(self) -> tuple[int, ...]:
        return (0,)

    @property
    def reductions(self) -> int:
        return 1

    def compute(self, row: Row) -> None:
        total = row.reduce("sum" if self.kind == "mean" else self.kind)
        if self.kind == "mean":
            total = row.k.emit(arith.DivfOp(total, row.constant(self.columns)))
        row.first_thread(lambda: row.store(total, 0))


@dataclass(frozen=True)
class RowSoftmax(RowKernel):
    """
    Softmax of the last dimension, or its logarithm; the output has the input's shape and may be the input.

    The maximum of a row is subtracted first (ONNX Softmax-13, LogSoftmax-13).
    """

    log: bool = False

    @property
    def label(self) -> str:
        return ("log_softmax_" if self.log else "softmax_") + "x".join(map(str, self.input.shape))

    @property
    def reductions(self) -> int:
        return 2

    def compute(self, row: Row) -> None:
        k = row.k
        # An element of -inf past the end is no maximum, and its exponential is 0.
        maximum = row.reduce("max")

        def shifted(value: SSAValue) -> SSAValue:
            return k.emit(arith.SubfOp(value, maximum))

        def exponential(value: SSAValue) -> SSAValue:
            return k.apply(math.ExpOp, shifted(value))

        total = row.reduce("sum", exponential, beyond=-inf)
        if self.log:
            logarithm = k.apply(math.LogOp, total)
            row.map(lambda value, _: k.emit(arith.SubfOp(shifted(value), logarithm)), -inf)
        else:
            row.map(lambda value, _: k.emit(arith.DivfOp(exponential(value), total)), -inf)


@dataclass(frozen=True)
class RowLayerNorm(RowKernel):
    """
    Each row shifted and scaled to mean 0 and variance 1, then multiplied by `scale` and increased by `bias`.

    Both are optional and have the input's shape, stride 0 where they are broadcast; the output may be the
    input (ONNX LayerNormalization-17).
    """

    scale: Buffer | None
    bias: Buffer | None
    epsilon: float

    @property
    def label(self) -> str:
        return "layer_norm_" + "x".join(map(str, self.input.shape))

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        extras = [buffer for buffer in (self.scale, self.bias) if buffer is not None]
        return self.input, *extras, self.output

    @property
    def reductions(self) -> int:
        return 2

    def compute(self, row: Row) -> None:
        k = row.k
        count = row.constant(self.columns)
        mean = k.emit(arith.DivfOp(row.reduce("sum"), count))
        infinity, zero = row.constant(inf), row.constant(0)

        def square(value: SSAValue) -> SSAValue:
            # Infinity stands for no element. A row that has it as an element has no finite result anyway.
            distance = k.emit(arith.SubfOp(value, mean))
            absent = k.compare_values("oeq", value, infinity)
            return k.select(absent, zero, k.emit(arith.MulfOp(distance, distance)))

        variance = k.emit(arith.DivfOp(row.reduce("sum", square, beyond=inf), count))
        scale = k.apply(math.RsqrtOp, k.emit(arith.AddfOp(variance, row.constant(self.epsilon))))

        def normal(value: SSAValue, column: IndexLike) -> SSAValue:
            result = k.emit(arith.MulfOp(k.emit(arith.SubfOp(value, mean)), scale))
            extras = iter(k.views[1:-1])
            if self.scale is not None:
                result = k.emit(arith.MulfOp(result, row.load(next(extras), column)))
            if self.bias is not None:
                result = k.emit(arith.AddfOp(result, row.load(next(extras), column)))
            return result

        row.map(normal, inf)
