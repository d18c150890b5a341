"""Copies between buffers of any strides: layout changes, slices, parts of a concatenation, broadcasts."""

from dataclasses import dataclass, replace

from xdsl.dialects.func import FuncOp

from occamy_xdsl.lowering.cpu.kernels.builder import KernelBuilder
from occamy_xdsl.lowering.cpu.kernels.rows import has_long_rows, row_of, shape_label
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer, Kernel
from occamy_xdsl.lowering.cpu.kernels.strided import Access, map_elements
from occamy_xdsl.lowering.toolchain import Isa


@dataclass(frozen=True)
class Copy(Kernel):
    """`output[i] = input[i]` for two buffers of the same shape and type."""

    input: Buffer
    output: Buffer
    any_rows: bool = False
    """Whether the number of rows is a size that the function takes; the buffers then show one."""

    @property
    def label(self) -> str:
        return "copy_" + shape_label(self.output.shape, -2 if self.any_rows else None)

    def for_any_rows(self, isa: Isa) -> "tuple[Copy, tuple[int, ...]] | None":
        """For rows that are long enough to be copied one by one."""
        if not has_long_rows(self.arguments):
            return None
        source, target = row_of(self.input, -2), row_of(self.output, -2)
        return Copy(source, target, any_rows=True), self.output.shape[-2:-1]

    @property
    def run_time_sizes(self) -> int:
        return int(self.any_rows)

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        # Bytes are moved, whatever they mean.
        return tuple(replace(b, dtype=raw_dtype(b)) for b in (self.input, self.output))

    def build(self, isa: Isa) -> FuncOp:
        k = KernelBuilder(self, isa)
        source, target = (Access.of(view) for view in k.views)
        rows = k.sizes[0] if self.any_rows else None
        map_elements(k, self.output.shape, [source], target, lambda elements: elements[0], rows=rows)
        return k.finish()


def raw_dtype(buffer: Buffer) -> str:
    """An integer type of the same size as the buffer's elements."""
    return f"i{8 * buffer.element_bytes}"
