"""Reductions along any dimensions."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects import arith, math
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from occamy_xdsl.lowering.cpu.kernels.builder import KernelBuilder
from occamy_xdsl.lowering.cpu.kernels.reduction import Row, compute_dtype, for_each_row, is_float
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer, Kernel
from occamy_xdsl.lowering.cpu.kernels.strided import Access
from occamy_xdsl.lowering.toolchain import Isa


@dataclass(frozen=True)
class Reduce(Kernel):
    """
    The elements of `input` along `axes` reduced to one, as `dnn.reduce` defines each kind.

    16-bit floats are summed in f32; the l2 norm and logarithms of integers are computed in f64.
    """

    kind: str
    axes: tuple[int, ...]
    input: Buffer
    output: Buffer
    """Shape of the input without the dimensions in `axes`."""

    @property
    def label(self) -> str:
        return f"reduce_{self.kind}_" + "x".join(map(str, self.input.shape))

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        # Truth values are bytes of 0 and 1, which compare like numbers.
        return tuple(replace(b, dtype="ui8") if b.dtype == "i1" else b for b in (self.input, self.output))

    @property
    def dtype(self) -> str:
        """The dtype of partial results."""
        if not is_float(self.input.dtype) and self.kind in ("l2", "log_sum", "log_sum_exp"):
            return "f64"
        return compute_dtype(self.arguments[0].dtype)

    def build(self, isa: Isa) -> FuncOp:
        k = KernelBuilder(self, isa)
        source, target = k.views
        remaining = iter(self.output.strides)
        strides = tuple(0 if d in self.axes else next(remaining) for d in range(self.input.rank))
        accesses = [Access.of(source), Access(target, strides, self.output.origin)]
        for_each_row(
            k,
            self.input.shape,
            self.axes,
            accesses,
            self.dtype,
            lambda row: row.store(self._value(k, row), 1),
        )
        return k.finish()

    def _value(self, k: KernelBuilder, row: Row) -> SSAValue:
        floating = is_float(self.dtype)

        def same(elements: Sequence[SSAValue]) -> SSAValue:
            return elements[0]

        def square(elements: Sequence[SSAValue]) -> SSAValue:
            (x,) = elements
            return k.emit(arith.MulfOp(x, x) if floating else arith.MuliOp(x, x))

        def magnitude(elements: Sequence[SSAValue]) -> SSAValue:
            (x,) = elements
            if floating:
                return k.emit(math.AbsFOp(x))
            if self.dtype.startswith("ui"):
                return x
            return k.emit(arith.MaxSIOp(x, k.emit(arith.SubiOp(row.constant(0), x))))

        match self.kind:
            case "sum":
                return row.reduce("sum", same, [0])
            case "max":
                return row.reduce("max", same, [0])
            case "min":
                return row.reduce("min", same, [0])
            case "prod":
                return row.reduce("prod", same, [0])
            case "mean":
                total = row.reduce("sum", same, [0])
                count = row.row_constant(row.length if floating else max(row.length, 1))
                divide = (
                    arith.DivfOp if floating else arith.DivUIOp if self.dtype[0] == "u" else arith.DivSIOp
                )
                return k.emit(divide(total, count))
            case "l1":
                return row.reduce("sum", magnitude, [0])
            case "l2":
                return k.emit(math.SqrtOp(row.reduce("sum", square, [0])))
            case "sum_square":
                return row.reduce("sum", square, [0])
            case "log_sum":
                return k.apply(math.LogOp, row.reduce("sum", same, [0]))
            case "log_sum_exp":
                return self._log_sum_exp(k, row)
            case _:
                raise ValueError(f"unknown kind of reduction '{self.kind}'")

    @staticmethod
    def _log_sum_exp(k: KernelBuilder, row: Row) -> SSAValue:
        """log(sum(exp(x - top))) + top, where top is the maximum, or 0 where that is infinite."""
        top = row.reduce("max", lambda elements: elements[0], [0])
        infinite = k.compare_values("oeq", k.emit(math.AbsFOp(top)), row.row_constant(float("inf")))
        top = k.select(infinite, row.row_constant(0), top)
        shift = row.spread(top)
        total = row.reduce(
            "sum", lambda elements: k.apply(math.ExpOp, k.emit(arith.SubfOp(elements[0], shift))), [0]
        )
        return k.emit(arith.AddfOp(k.apply(math.LogOp, total), top))
