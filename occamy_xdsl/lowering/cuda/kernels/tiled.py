"""
Elementwise work and copies where neighbours in one buffer are far apart in another: tiles in shared memory.

Source: G. Ruetsch and P. Micikevicius, Optimizing Matrix Transpose in CUDA, 2009.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, SSAValue

from occamy_xdsl.dialects import dnn
from occamy_xdsl.lowering.cpu.kernels.builder import IndexLike
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer, canonical_text
from occamy_xdsl.lowering.cpu.kernels.strided import Dim, collapse
from occamy_xdsl.lowering.cuda.kernels.builder import GpuBuilder
from occamy_xdsl.lowering.cuda.kernels.elementwise import SECTOR_BYTES, Elementwise, ScalarKernel
from occamy_xdsl.lowering.cuda.kernels.spec import Extent, GpuKernel, as_signless
from occamy_xdsl.lowering.toolchain import Isa

TILE = 32
"""Rows and columns of a tile: a row is one access of a warp."""
ROWS = 8
"""Rows of a tile that the threads of a block move at once."""
MOST_TILES = 4
"""Inputs that may go through shared memory."""


def elementwise_kernel(
    body: Block, inputs: tuple[Buffer, ...], output: Buffer, *, aligned: bool, in_place: bool
) -> GpuKernel:
    """The kernel for scalar work on inputs that have the shape of the output, as `Elementwise` takes them."""
    if Tiled.fits(inputs, output):
        return Tiled(body, inputs, output, in_place)
    return Elementwise(body, inputs, output, aligned, in_place)


def copy_kernel(input_: Buffer, output: Buffer, *, aligned: bool = True) -> GpuKernel:
    """The kernel that copies `input_` to `output`, two buffers of the same shape and type."""
    source, target = as_signless(input_), as_signless(output)
    block = Block(arg_types=[source.element_type])
    block.add_op(dnn.YieldOp(block.args[0]))
    return elementwise_kernel(block, (source,), target, aligned=aligned, in_place=False)


@dataclass(frozen=True)
class Tiled(ScalarKernel):
    """
    `output[i] = block(inputs[i])` where neighbours in some input are far apart in the output.

    A block of threads computes one tile of 32 x 32 elements. Such inputs are read along their memory into shared
    memory; then the tile is computed along the output's, where the others are read. The padding column puts the
    elements of a column in different banks.
    """

    body: Block = field(compare=False, repr=False)
    inputs: tuple[Buffer, ...]
    output: Buffer
    in_place: bool = False
    """Whether an input may lie in the memory of the output; not one that neighbours are far apart in."""
    text: str = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "text", canonical_text(self.body))

    @staticmethod
    def _dims(inputs: tuple[Buffer, ...], output: Buffer) -> list[Dim]:
        return collapse(output.shape, [buffer.strides for buffer in (*inputs, output)])

    @staticmethod
    def fits(inputs: tuple[Buffer, ...], output: Buffer) -> bool:
        """
        Whether one dimension is contiguous in some inputs and another one in the output, both long enough.

        A row shorter than a sector of memory wastes more than single elements do: with 3 channels, NCHW to
        NHWC uses 46 % of the bytes that tiles move and 80 % of those that single elements move, with 8
        channels 100 % and 67 % (counted by the simulator).
        """
        dims = Tiled._dims(inputs, output)
        if not dims or dims[-1].strides[-1] != 1:
            return False
        *others, last = dims
        far = [i for i in range(len(inputs)) if last.strides[i] not in (0, 1)]
        along = [dim for dim in others if far and all(dim.strides[i] == 1 for i in far)]
        if not along or len(far) > MOST_TILES:
            return False
        size = min(buffer.element_bytes for buffer in (*(inputs[i] for i in far), output))
        return min(*(dim.size for dim in along), last.size) * size >= SECTOR_BYTES

    @property
    def label(self) -> str:
        kind = "copy" if len(self.body.ops) == 1 else "elementwise"
        return f"{kind}_tiled_" + "x".join(map(str, self.output.shape))

    @property
    def far(self) -> list[int]:
        """The inputs that go through shared memory."""
        last = self._dims(self.inputs, self.output)[-1]
        return [i for i in range(len(self.inputs)) if last.strides[i] not in (0, 1)]

    @property
    def shared(self) -> tuple[Buffer, ...]:
        return tuple(Buffer((TILE, TILE), (TILE + 1, 1), self.inputs[i].dtype) for i in self.far)

    def _split(self) -> tuple[Dim, Dim, list[Dim]]:
        """The dimension along those inputs' memory, the one along the output's, and the others."""
        *others, last = self._dims(self.inputs, self.output)
        first = next(dim for dim in others if dim.strides[self.far[0]] == 1)
        return first, last, [dim for dim in others if dim is not first]

    @property
    def block(self) -> Extent:
        return TILE, ROWS, 1

    @property
    def grid(self) -> Extent:
        first, last, others = self._split()
        return -(-first.size // TILE) * -(-last.size // TILE) * prod(dim.size for dim in others), 1, 1

    def build(self, isa: Isa) -> FuncOp:
        k = GpuBuilder(self, isa)
        first, last, others = self._split()
        far = self.far
        rest: IndexLike = k.block()
        columns = -(-first.size // TILE)
        rows = -(-last.size // TILE)
        column, rest = rest % columns, rest // columns
        row, rest = rest % rows, rest // rows
        base: list[IndexLike] = [view.buffer.origin for view in k.views]
        for dim in reversed(others):
            point, rest = rest % dim.size, rest // dim.size
            base = [at + point * step for at, step in zip(base, dim.strides, strict=True)]
        x, y = k.thread("x"), k.thread("y")

        def inside(i: IndexLike, j: IndexLike, body: Callable[[], None]) -> None:
            """Run `body` where `i` and `j` are inside; a dimension of whole tiles needs no check."""
            inner_i = True if first.size % TILE == 0 else k.compare("slt", i, first.size)
            inner_j = True if last.size % TILE == 0 else k.compare("slt", j, last.size)
            k.if_(inner_i, lambda: k.if_(inner_j, body))

        for step in range(0, TILE, ROWS):
            i, j = column * TILE + x, row * TILE + y + step

            def read(i: IndexLike = i, j: IndexLike = j, step: int = step) -> None:
                for number, source in enumerate(far):
                    at = base[source] + i * first.strides[source] + j * last.strides[source]
                    tile = k.shared(number)
                    k.store(k.load(k.views[source], at), tile, tile.at(y + step, x))

            inside(i, j, read)
        k.barrier()
        for step in range(0, TILE, ROWS):
            i, j = column * TILE + y + step, row * TILE + x

            def write(i: IndexLike = i, j: IndexLike = j, step: int = step) -> None:
                values: list[SSAValue] = []
                for source, view in enumerate(k.views[:-1]):
                    if source in far:
                        tile = k.shared(far.index(source))
                        values.append(k.load(tile, tile.at(x, y + step)))
                        continue
                    at = base[source] + i * first.strides[source] + j * last.strides[source]
                    values.append(k.load(view, at))
                (result,) = k.inline(self.body, values)
                k.store(result, k.views[-1], base[-1] + i * first.strides[-1] + j * last.strides[-1])

            inside(i, j, write)
        return k.finish()
