"""Elementwise GPU kernels: a block of scalar ops on strided, broadcast operands."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, SSAValue

from occamy_xdsl.lowering.cpu.kernels.builder import IndexLike, View
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer, canonical_text
from occamy_xdsl.lowering.cpu.kernels.strided import Dim, collapse
from occamy_xdsl.lowering.cuda.kernels.builder import GpuBuilder
from occamy_xdsl.lowering.cuda.kernels.spec import VECTOR_BYTES, Extent, GpuKernel
from occamy_xdsl.lowering.toolchain import Isa

THREADS = 256
"""Threads of a block."""
WARP = 32
"""Threads whose accesses are one."""
SECTOR_BYTES = 32
"""Bytes of device memory that move together."""
SAMPLES = 64
"""Warps whose accesses are counted to choose an order."""


def moved_sectors(dims: Sequence[Dim], buffers: Sequence[Buffer]) -> int:
    """How many sectors of memory a sample of warps moves whose threads take one point each, in the order of `dims`."""
    points = prod(dim.size for dim in dims)
    warps = -(-points // WARP)
    sample = np.linspace(0, warps - 1, min(warps, SAMPLES)).astype(np.int64)
    threads = np.minimum(sample[:, None] * WARP + np.arange(WARP), points - 1)
    point = np.unravel_index(threads, [dim.size for dim in dims])
    total = 0
    for i, buffer in enumerate(buffers):
        at = sum((p * dim.strides[i] for p, dim in zip(point, dims, strict=True)), np.array(buffer.origin))
        sectors = np.sort(at * buffer.element_bytes // SECTOR_BYTES, axis=1)
        total += len(sample) + int(np.count_nonzero(np.diff(sectors, axis=1)))
    return total


class ScalarKernel(GpuKernel):
    """A kernel that computes `output[i]` from `inputs[i]` alone."""

    inputs: tuple[Buffer, ...]
    output: Buffer
    in_place: bool

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        return *self.inputs, self.output

    @property
    def inputs_to_cache(self) -> tuple[int, ...]:
        return () if self.in_place else tuple(range(len(self.inputs)))


@dataclass(frozen=True)
class Elementwise(ScalarKernel):
    """
    `output[i] = block(inputs[i])`: each element of the output from one element of each input.

    As the CPU's kernel of that name: the block takes one scalar for each input. A thread computes as many
    neighbours as 16 bytes hold where all operands lie side by side or are broadcast there, otherwise one; then
    neighbours are those of the output or of an input, whichever moves less.
    """

    body: Block = field(compare=False, repr=False)
    inputs: tuple[Buffer, ...]
    """Inputs with the shape of the output, with stride 0 where they are broadcast."""
    output: Buffer
    aligned: bool = True
    """Whether all pointers are multiples of 16 bytes."""
    in_place: bool = False
    """Whether an input may lie in the memory of the output."""
    text: str = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "text", canonical_text(self.body))

    @property
    def label(self) -> str:
        return "elementwise_" + "x".join(map(str, self.output.shape))

    @cached_property
    def dims(self) -> list[Dim]:
        """The loops, outermost first, the last one along the memory of the output, or of an input."""
        strides = [buffer.strides for buffer in self.arguments]
        orders = [collapse(self.output.shape, strides, key) for key in (-1, *range(len(self.inputs)))]
        if len(orders[0]) < 2 or not self.output.elements or self._lanes(orders[0]) > 1:
            return orders[0] or [Dim(1, (1,) * len(strides))]
        return min(orders, key=lambda dims: moved_sectors(dims, self.arguments))

    @property
    def lanes(self) -> int:
        """Elements of a thread."""
        return self._lanes(self.dims)

    def _lanes(self, dims: Sequence[Dim]) -> int:
        *outer, inner = dims
        lanes = VECTOR_BYTES // max(buffer.element_bytes for buffer in self.arguments)
        moving = [i for i, step in enumerate(inner.strides) if step]
        fits = (
            self.aligned
            and inner.strides[-1] == 1
            and all(step in (0, 1) for step in inner.strides)
            and all(self.arguments[i].origin == 0 for i in moving)
            and all(dim.strides[i] % lanes == 0 for dim in outer for i in moving)
            and (not outer or inner.size % lanes == 0)
            and inner.size >= lanes
        )
        return lanes if fits else 1

    @property
    def work(self) -> int:
        """Threads that have something to do."""
        *outer, inner = self.dims
        return prod(dim.size for dim in outer) * -(-inner.size // self.lanes)

    @property
    def block(self) -> Extent:
        return THREADS, 1, 1

    @property
    def grid(self) -> Extent:
        return max(1, -(-self.work // THREADS)), 1, 1

    def build(self, isa: Isa) -> FuncOp:
        k = GpuBuilder(self, isa)
        number = k.block() * THREADS + k.thread()

        def run() -> None:
            self._element(k, number)

        if self.work:
            k.if_(k.compare("slt", number, self.work), run)
        return k.finish()

    def _element(self, k: GpuBuilder, number: IndexLike) -> None:
        """The elements of one thread."""
        *outer, inner = self.dims
        lanes = self.lanes
        steps = -(-inner.size // lanes)
        points: list[IndexLike] = [(number % steps) * lanes if outer else number * lanes]
        rest = number // steps
        for i, dim in enumerate(reversed(outer)):
            points.append(rest % dim.size if i + 1 < len(outer) else rest)
            rest = rest // dim.size
        points.reverse()

        def position(i: int, view: View, shift: int) -> IndexLike:
            at: IndexLike = view.buffer.origin + shift * inner.strides[i]
            for point, dim in zip(points, (*outer, inner), strict=True):
                at = at + point * dim.strides[i]
            return at

        def compute(width: int, shift: int = 0) -> None:
            *inputs, output = k.views
            values: list[SSAValue] = []
            for i, view in enumerate(inputs):
                step = inner.strides[i] if inner.size > 1 else 1
                values.append(k.load_vector(view, position(i, view, shift), width if step else 1))
            (result,) = k.inline(self.body, values)
            k.store_vector(
                k.splat(result, width if width > 1 else None), output, position(-1, output, shift), width
            )

        remainder = inner.size % lanes
        if not remainder:
            compute(lanes)
            return

        def tail() -> None:
            for i in range(remainder):
                compute(1, i)

        whole = k.compare("slt", points[-1], inner.size - remainder)
        k.if_(whole, lambda: compute(lanes), tail)
