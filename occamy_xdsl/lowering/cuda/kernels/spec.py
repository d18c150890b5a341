"""What a GPU kernel is: the buffers of a kernel, and how it is launched."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from xdsl.dialects import func, gpu, memref
from xdsl.dialects.builtin import (
    DictionaryAttr,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    NoneAttr,
    StringAttr,
    UnitAttr,
    f64,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region
from xdsl.utils.hints import isa

from occamy_xdsl.lowering.cpu.kernels.spec import Buffer, Kernel
from occamy_xdsl.lowering.cuda.kernels.gpu_ops import KernelOp, ReturnOp
from occamy_xdsl.lowering.toolchain import Isa

VECTOR_BYTES = 16
"""Bytes of the widest load of a thread."""
WARP = 32
"""Threads of a warp."""
MAX_ELEMENTS = 2**31 - 1
"""Most elements of a buffer: kernels compute indices in 32 bits."""
SHARED_SPACE = 3
"""Number of the shared address space in NVPTX."""

Extent = tuple[int, int, int]


def gpu_isa(chip: str) -> Isa:
    """A GPU in the terms of code generation: 16-byte vectors, many registers, fused multiply-add."""
    return Isa("nvptx64-nvidia-cuda", chip, "", VECTOR_BYTES, 255, fma=True)


@dataclass(frozen=True)
class GpuKernel(Kernel):
    """
    One kernel for a GPU.

    `build` returns a function whose body may use gpu ops; `gpu_module` makes kernels of functions. Pointers
    that are passed are multiples of the element size.
    """

    @property
    @abstractmethod
    def grid(self) -> Extent:
        """Blocks of a launch."""

    @property
    @abstractmethod
    def block(self) -> Extent:
        """Threads of a block."""

    @property
    def inputs_to_cache(self) -> tuple[int, ...]:
        """Arguments that are only read and share no memory with an output, so that loads may be reordered."""
        return ()

    @property
    def shared(self) -> tuple[Buffer, ...]:
        """Arrays in shared memory."""
        return ()

    def shared_name(self, index: int) -> str:
        """Symbol of one of the arrays `shared`."""
        return f"{self.symbol}_shared{index}"


def shared_type(buffer: Buffer) -> MemRefType:
    """Type of an array in shared memory, flat."""
    return MemRefType(buffer.element_type, [buffer.extent], NoneAttr(), IntegerAttr(SHARED_SPACE, i32))


def gpu_module(kernels: Sequence[GpuKernel], chip: str) -> ModuleOp:
    """
    A builtin module with one gpu.module `kernels`, which holds each distinct kernel once.

    Raises ValueError if a buffer is too large for 32-bit indices.
    """
    ops: list[Operation] = []
    isa = gpu_isa(chip)
    for kernel in {kernel.symbol: kernel for kernel in kernels}.values():
        if any(buffer.extent > MAX_ELEMENTS for buffer in kernel.arguments):
            raise ValueError(f"{kernel.symbol}: a buffer of more than {MAX_ELEMENTS} elements")
        for i, buffer in enumerate(kernel.shared):
            name = StringAttr(kernel.shared_name(i))
            ops.append(memref.GlobalOp.get(name, shared_type(buffer), UnitAttr()))
        ops.append(_kernel_op(kernel, kernel.build(isa)))
    module = gpu.ModuleOp.create(properties={"sym_name": StringAttr("kernels")}, regions=[Region(Block(ops))])
    return ModuleOp([module])


def _kernel_op(kernel: GpuKernel, function: func.FuncOp) -> KernelOp:
    last = function.body.blocks[-1].last_op
    assert isinstance(last, func.ReturnOp)
    block = last.parent_block()
    assert block is not None
    last.detach()
    block.add_op(ReturnOp())
    cached = kernel.inputs_to_cache
    attributes: list[DictionaryAttr] = []
    for i in range(len(kernel.arguments)):
        names = ("llvm.noalias", "llvm.readonly") if i in cached else ()
        attributes.append(DictionaryAttr({name: UnitAttr() for name in names}))
    for op in function.walk():
        if isinstance(op, memref.LoadOp | memref.StoreOp):
            element = op.memref.type
            assert isa(element, MemRefType[Attribute])
            if element.element_type in (i64, f64):
                # MLIR takes i64 for aligned to 4 bytes, and would split the access.
                op.attributes["alignment"] = IntegerAttr(8, i64)
    region = function.detach_region(function.body)
    return KernelOp(kernel.symbol, function.function_type, attributes, kernel.block, region)


def as_signless(buffer: Buffer) -> Buffer:
    """The buffer with an integer dtype of the same size, for kernels that only move bytes."""
    return replace(buffer, dtype=f"i{8 * buffer.element_bytes}")
