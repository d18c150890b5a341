"""Elementwise kernels: a block of scalar ops on strided, broadcast operands."""

from dataclasses import dataclass, field, replace

from xdsl.dialects.builtin import FixedBitwidthType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block

from occamy_xdsl.lowering.cpu.kernels.builder import KernelBuilder
from occamy_xdsl.lowering.cpu.kernels.rows import has_long_rows, row_of, shape_label
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer, Kernel, canonical_text
from occamy_xdsl.lowering.cpu.kernels.strided import Access, map_elements
from occamy_xdsl.lowering.toolchain import Isa


@dataclass(frozen=True)
class Elementwise(Kernel):
    """
    `output[i] = block(inputs[i])`: each element of the output from one element of each input.

    The block takes one scalar for each input, in the signless type of its elements, and its terminator has
    one operand, the output's element. Without inputs the output is filled with a constant. Any input may lie
    in the memory of the output if it has the same strides.
    """

    block: Block = field(compare=False, repr=False)
    inputs: tuple[Buffer, ...]
    """Inputs with the shape of the output, with stride 0 where they are broadcast."""
    output: Buffer
    any_rows: bool = False
    """Whether the number of rows is a size that the function takes; the buffers then show one."""
    text: str = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "text", canonical_text(self.block))

    @property
    def label(self) -> str:
        return "elementwise_" + shape_label(self.output.shape, -2 if self.any_rows else None)

    def for_any_rows(self, isa: Isa) -> "tuple[Elementwise, tuple[int, ...]] | None":
        """For rows that are long enough to be worked on one by one."""
        if not has_long_rows(self.arguments):
            return None
        *inputs, output = (row_of(buffer, -2) for buffer in self.arguments)
        return replace(self, inputs=tuple(inputs), output=output, any_rows=True), self.output.shape[-2:-1]

    @property
    def run_time_sizes(self) -> int:
        return int(self.any_rows)

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        return *self.inputs, self.output

    @property
    def may_alias(self) -> tuple[int, ...]:
        wanted = self.output.strides, self.output.element_bytes
        return tuple(i for i, b in enumerate(self.inputs) if (b.strides, b.element_bytes) == wanted)

    def build(self, isa: Isa) -> FuncOp:
        k = KernelBuilder(self, isa)
        *inputs, output = (Access.of(view) for view in k.views)
        types = [result.type for op in self.block.ops for result in op.results]
        types += [argument.type for argument in self.block.args]
        widest = max((t.size for t in types if isinstance(t, FixedBitwidthType)), default=1)
        map_elements(
            k,
            self.output.shape,
            inputs,
            output,
            lambda elements: k.inline(self.block, elements)[0],
            ops=len(self.block.ops) - 1,
            element_bytes=widest,
            rows=k.sizes[0] if self.any_rows else None,
        )
        return k.finish()
