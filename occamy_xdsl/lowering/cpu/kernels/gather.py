"""Gathering slices along one dimension by indices read at run time."""

from dataclasses import dataclass, replace

from xdsl.dialects import arith
from xdsl.dialects.builtin import i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from occamy_xdsl.lowering.cpu.kernels import vector_ops
from occamy_xdsl.lowering.cpu.kernels.builder import Index, IndexLike, KernelBuilder, index
from occamy_xdsl.lowering.cpu.kernels.copy import raw_dtype
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer, Kernel
from occamy_xdsl.lowering.cpu.kernels.strided import Access, collapse, map_elements
from occamy_xdsl.lowering.toolchain import Isa


@dataclass(frozen=True)
class Gather(Kernel):
    """
    The slices of `data` along `axis` that `indices` (i32 or i64) name.

    A negative index counts from the end; what is outside of the dimension then reads the nearest slice, so
    that no index reads foreign memory. Arguments: data, indices, output.
    """

    axis: int
    data: Buffer
    indices: Buffer
    output: Buffer
    """Shape of `data` with that of `indices` in place of `axis`."""

    @property
    def label(self) -> str:
        return f"gather_{self.axis}_" + "x".join(map(str, self.output.shape))

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        data, output = (replace(b, dtype=raw_dtype(b)) for b in (self.data, self.output))
        return data, self.indices, output

    def build(self, isa: Isa) -> FuncOp:
        k = KernelBuilder(self, isa)
        if self.output.elements == 0 or self.data.elements == 0:
            return k.finish()
        data, indices, output = k.views
        axis, rank = self.axis, self.indices.rank
        step = self.data.strides[axis]
        source = Access(data, (*self.data.strides[:axis], *self.data.strides[axis + 1 :]), self.data.origin)
        target = Access(
            output, (*self.output.strides[:axis], *self.output.strides[axis + rank :]), self.output.origin
        )
        shape = (*self.data.shape[:axis], *self.data.shape[axis + 1 :])
        dims = collapse(self.indices.shape, [self.indices.strides, self.output.strides[axis : axis + rank]])

        def nest(d: int, at: IndexLike, to: IndexLike) -> None:
            if d < len(dims):
                along, out = dims[d].strides
                k.for_(0, dims[d].size, 1, lambda i: nest(d + 1, at + i * along, to + i * out))
                return
            position = self._position(k, k.load(indices, at))
            map_elements(k, shape, [source.moved(position * step)], target.moved(to), lambda e: e[0])

        nest(0, self.indices.origin, 0)
        return k.finish()

    def _position(self, k: KernelBuilder, value: SSAValue) -> IndexLike:
        """The slice that an index means."""
        size = self.data.shape[self.axis]
        value = k.convert(value, self.indices.dtype, "i64")
        negative = k.compare_values("slt", value, k.constant(0, i64))
        value = k.select(negative, k.emit(arith.AddiOp(value, k.constant(size, i64))), value)
        value = k.emit(arith.MaxSIOp(value, k.constant(0, i64)))
        value = k.emit(arith.MinSIOp(value, k.constant(size - 1, i64)))
        return Index(k, k.emit(vector_ops.IndexCastOp(value, index)))
