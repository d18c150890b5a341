"""Elementwise kernels: a block of scalar ops on strided, broadcast operands."""

from dataclasses import dataclass, field

from xdsl.dialects.builtin import FixedBitwidthType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block

from occamy_xdsl.lowering.cpu.kernels.builder import KernelBuilder
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
    text: str = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "text", canonical_text(self.block))

    @property
    def label(self) -> str:
        return "elementwise_" + "x".join(map(str, self.output.shape))

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
        )
        return k.finish()
