"""The kernel builder with what a GPU adds: thread numbers, aligned vectors, shared memory, shuffles."""

from collections.abc import Callable, Sequence

from xdsl.dialects import arith, gpu, memref, vector
from xdsl.dialects.builtin import IntegerAttr, VectorType, f64, i32, i64
from xdsl.ir import Operation, SSAValue
from xdsl.irdl import IRDLOperation

from occamy_xdsl.lowering.cpu.kernels.builder import Index, IndexLike, KernelBuilder, View
from occamy_xdsl.lowering.cuda.kernels.gpu_ops import ShuffleOp
from occamy_xdsl.lowering.cuda.kernels.spec import WARP, GpuKernel, shared_type
from occamy_xdsl.lowering.toolchain import Isa


class GpuBuilder(KernelBuilder):
    """
    Builds the body of one GPU kernel.

    The functions of the math dialect stay as they are: for a GPU they become code of libdevice.
    """

    def __init__(self, kernel: GpuKernel, isa: Isa):
        super().__init__(kernel, isa)
        self.kernel = kernel

    def _number(self, op: type[gpu.ThreadIdOp | gpu.BlockIdOp], dimension: str) -> Index:
        return Index(self, self.emit(op(gpu.DimensionAttr(gpu.DimensionEnum(dimension)))))

    def thread(self, dimension: str = "x") -> Index:
        """Number of the thread in its block."""
        return self._number(gpu.ThreadIdOp, dimension)

    def block(self) -> Index:
        """Number of the block."""
        return self._number(gpu.BlockIdOp, "x")

    def barrier(self) -> None:
        """Wait until all threads of the block are here."""
        self._block.add_op(gpu.BarrierOp())

    def shared(self, index: int) -> View:
        """One of the kernel's arrays in shared memory."""
        buffer = self.kernel.shared[index]
        name = self.kernel.shared_name(index)
        return View(self.emit(memref.GetGlobalOp(name, shared_type(buffer))), buffer)

    def load_vector(self, view: View, at: IndexLike, lanes: int) -> SSAValue:
        """`lanes` elements that lie side by side, at an address aligned to their size together."""
        if lanes == 1:
            return self.load(view, at)
        type_ = VectorType(view.buffer.element_type, [lanes])
        op = vector.LoadOp(view.flat, [self.value_of(at)], type_)
        op.attributes["alignment"] = IntegerAttr(lanes * view.buffer.element_bytes, i64)
        return self._from_storage(self.emit(op), view)

    def store_vector(self, value: SSAValue, view: View, at: IndexLike, lanes: int) -> None:
        """The counterpart of `load_vector`."""
        self.store(value, view, at)
        stored = self._block.last_op
        if lanes > 1:
            assert stored is not None
            stored.attributes["alignment"] = IntegerAttr(lanes * view.buffer.element_bytes, i64)

    def warp_reduce(
        self, value: SSAValue, combine: Callable[[SSAValue, SSAValue], SSAValue], lanes: int = WARP
    ) -> SSAValue:
        """The values of each `lanes` neighbouring lanes combined, in all of them; the order is a butterfly."""
        offset = lanes // 2
        while offset:
            value = combine(value, self.shuffle(value, offset))
            offset //= 2
        return value

    def shuffle(self, value: SSAValue, offset: int) -> SSAValue:
        """The 32-bit or 64-bit value of the lane whose number differs by `xor offset`."""
        if value.type not in (i64, f64):
            return self.emit(ShuffleOp(value, self.constant(offset, i32), self.constant(WARP, i32)))
        bits = value if value.type == i64 else self.emit(arith.BitcastOp(value, i64))
        half = self.constant(32, i64)
        high = self.emit(arith.TruncIOp(self.emit(arith.ShRUIOp(bits, half)), i32))
        low, high = (self.shuffle(part, offset) for part in (self.emit(arith.TruncIOp(bits, i32)), high))
        upper = self.emit(arith.ShLIOp(self.emit(arith.ExtUIOp(high, i64)), half))
        joined = self.emit(arith.OrIOp(upper, self.emit(arith.ExtUIOp(low, i64))))
        return joined if value.type == i64 else self.emit(arith.BitcastOp(joined, f64))

    def apply(self, op: type[IRDLOperation], *operands: SSAValue) -> SSAValue:
        return self.emit(op(*operands))

    def _expand(self, op: Operation, operands: Sequence[SSAValue]) -> SSAValue | None:
        return None
