"""Softmax and its logarithm along one dimension."""

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects import arith, math
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from occamy_xdsl.lowering.cpu.kernels.builder import KernelBuilder
from occamy_xdsl.lowering.cpu.kernels.reduction import Row, compute_dtype, for_each_row
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer, Kernel
from occamy_xdsl.lowering.cpu.kernels.strided import Access
from occamy_xdsl.lowering.toolchain import Isa


@dataclass(frozen=True)
class Softmax(Kernel):
    """
    `exp(x - max) / sum(exp(x - max))` along `axis`, or its logarithm.

    The output may lie in the memory of the input if it has the same strides. 16-bit floats are computed in
    f32.
    """

    axis: int
    log: bool
    input: Buffer
    output: Buffer

    @property
    def label(self) -> str:
        return f"{'log_' if self.log else ''}softmax_" + "x".join(map(str, self.input.shape))

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        return self.input, self.output

    @property
    def may_alias(self) -> tuple[int, ...]:
        return (0,) if self.input.strides == self.output.strides else ()

    def build(self, isa: Isa) -> FuncOp:
        k = KernelBuilder(self, isa)
        accesses = [Access.of(view) for view in k.views]
        dtype = compute_dtype(self.input.dtype)
        for_each_row(k, self.input.shape, [self.axis], accesses, dtype, lambda row: self._row(k, row))
        return k.finish()

    def _row(self, k: KernelBuilder, row: Row) -> None:
        top = row.spread(row.reduce("max", lambda elements: elements[0], [0]))

        def shifted(elements: Sequence[SSAValue]) -> SSAValue:
            return k.emit(arith.SubfOp(elements[0], top))

        def exponential(elements: Sequence[SSAValue]) -> SSAValue:
            return k.apply(math.ExpOp, shifted(elements))

        if self.log:
            total = row.reduce("sum", exponential, [0])
            shift = row.spread(k.apply(math.LogOp, total))
            row.map(lambda elements: k.emit(arith.SubfOp(shifted(elements), shift)), [0], 1)
            return
        # The output holds the exponentials meanwhile, unless that would round them.
        keeps = row.dtype == self.output.dtype
        total = row.reduce("sum", exponential, [0], output=1 if keeps else None)
        scale = row.spread(k.emit(arith.DivfOp(row.row_constant(1), total)))

        def scaled(elements: Sequence[SSAValue]) -> SSAValue:
            return k.emit(arith.MulfOp(elements[0] if keeps else exponential(elements), scale))

        row.map(scaled, [1 if keeps else 0], 1)
