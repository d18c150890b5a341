"""Copies between buffers of any strides: layout changes, slices, parts of a concatenation, broadcasts."""

from dataclasses import dataclass, replace

from xdsl.dialects.func import FuncOp

from occamy_xdsl.lowering.cpu.kernels.builder import KernelBuilder
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer, Kernel
from occamy_xdsl.lowering.cpu.kernels.strided import Access, map_elements
from occamy_xdsl.lowering.toolchain import Isa


@dataclass(frozen=True)
class Copy(Kernel):
    """`output[i] = input[i]` for two buffers of the same shape and type."""

    input: Buffer
    output: Buffer

    @property
    def label(self) -> str:
        return "copy_" + "x".join(map(str, self.output.shape))

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        # Bytes are moved, whatever they mean.
        return tuple(replace(b, dtype=raw_dtype(b)) for b in (self.input, self.output))

    def build(self, isa: Isa) -> FuncOp:
        k = KernelBuilder(self, isa)
        source, target = (Access.of(view) for view in k.views)
        map_elements(k, self.output.shape, [source], target, lambda elements: elements[0])
        return k.finish()


def raw_dtype(buffer: Buffer) -> str:
    """An integer type of the same size as the buffer's elements."""
    return f"i{8 * buffer.element_bytes}"
