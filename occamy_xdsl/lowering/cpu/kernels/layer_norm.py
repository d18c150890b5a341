"""Layer normalisation over trailing dimensions, and, with the right view of its operands, instance and group norm."""

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
class LayerNorm(Kernel):
    """
    `(x - mean) / sqrt(variance + epsilon) * scale + bias` over the dimensions from `axis` on.

    The variance is summed in a second pass, from differences to the mean. The output may lie in the memory
    of the input if it has the same strides. 16-bit floats are computed in f32. Arguments: input, scale,
    bias, output.
    """

    axis: int
    epsilon: float
    input: Buffer
    scale: Buffer | None
    """With the shape of the input, with stride 0 where it is broadcast; also `bias`."""
    bias: Buffer | None
    output: Buffer

    @property
    def label(self) -> str:
        return "layer_norm_" + "x".join(map(str, self.input.shape))

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        optional = tuple(b for b in (self.scale, self.bias) if b is not None)
        return self.input, *optional, self.output

    @property
    def may_alias(self) -> tuple[int, ...]:
        return (0,) if self.input.strides == self.output.strides else ()

    def build(self, isa: Isa) -> FuncOp:
        k = KernelBuilder(self, isa)
        axes = range(self.axis, self.input.rank)
        accesses = [Access.of(view) for view in k.views]
        dtype = compute_dtype(self.input.dtype)
        for_each_row(k, self.input.shape, axes, accesses, dtype, lambda row: self._row(k, row))
        return k.finish()

    def _row(self, k: KernelBuilder, row: Row) -> None:
        length = row.row_constant(row.length)
        total = row.reduce("sum", lambda elements: elements[0], [0])
        mean = row.spread(k.emit(arith.DivfOp(total, length)))

        def square(elements: Sequence[SSAValue]) -> SSAValue:
            difference = k.emit(arith.SubfOp(elements[0], mean))
            return k.emit(arith.MulfOp(difference, difference))

        variance = k.emit(arith.DivfOp(row.reduce("sum", square, [0]), length))
        deviation = k.emit(math.SqrtOp(k.emit(arith.AddfOp(variance, row.row_constant(self.epsilon)))))
        factor = row.spread(k.emit(arith.DivfOp(row.row_constant(1), deviation)))

        def normalised(elements: Sequence[SSAValue]) -> SSAValue:
            x, *rest = elements
            value = k.emit(arith.MulfOp(k.emit(arith.SubfOp(x, mean)), factor))
            match rest:
                case [scale, bias]:
                    return k.fma(value, scale, bias)
                case [scale] if self.scale is not None:
                    return k.emit(arith.MulfOp(value, scale))
                case [bias]:
                    return k.emit(arith.AddfOp(value, bias))
                case _:
                    return value

        output = len(self.arguments) - 1
        row.map(normalised, range(output), output)
