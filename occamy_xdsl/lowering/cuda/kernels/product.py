"""
GPU kernels for products of f32 matrices by integer ones, which cuBLAS does not have: weights stay quantised.

Sources: S. Chetlur et al., cuDNN: Efficient Primitives for Deep Learning, 2014 (tiles in shared memory); N. Bell and
M. Garland, Efficient Sparse Matrix-Vector Multiplication on CUDA, 2008 (a warp for each row of a vector's product).
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from xdsl.dialects import arith
from xdsl.dialects.builtin import f32
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from occamy_xdsl.lowering.cpu.kernels.builder import IndexLike, View
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer
from occamy_xdsl.lowering.cuda.kernels.builder import GpuBuilder
from occamy_xdsl.lowering.cuda.kernels.spec import WARP, Extent, GpuKernel
from occamy_xdsl.lowering.toolchain import Isa

THREADS = 256
"""Threads of a block."""
WARPS = THREADS // WARP
MOST_ROWS = 8
"""Rows of the result up to which each weight is read once, by a thread that has all of them."""


def product_kernel(a: Buffer, b: Buffer, c: Buffer) -> "ProductKernel":
    """The kernel for `c[..., i, j] = sum(a[..., i, k] * b[..., k, j])`; all have the batch dimensions of `c`."""
    return (FewRows if c.shape[-2] <= MOST_ROWS else Tiles)(a, b, c)


@dataclass(frozen=True)
class ProductKernel(GpuKernel):
    """Arguments and block numbers of the kernels below: blocks tile the matrices of a batch one after the other."""

    template: ClassVar[str]
    a: Buffer
    """f32."""
    b: Buffer
    """Integers of 8, 16 or 32 bits."""
    c: Buffer
    """f32."""

    @property
    def label(self) -> str:
        return f"{self.template}_{self.b.dtype}_{self.rows}x{self.depth}x{self.columns}"

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        return self.a, self.b, self.c

    @property
    def inputs_to_cache(self) -> tuple[int, ...]:
        return 0, 1

    @property
    def rows(self) -> int:
        """Rows of a result."""
        return self.c.shape[-2]

    @property
    def columns(self) -> int:
        """Columns of a result."""
        return self.c.shape[-1]

    @property
    def depth(self) -> int:
        """Terms of an element of a result, at least 1."""
        return self.a.shape[-1]

    @property
    def is_across(self) -> bool:
        """Whether neighbours of a column of `b`, and not of a row, lie side by side in memory."""
        return self.b.strides[-1] != 1 and self.b.strides[-2] == 1

    @property
    @abstractmethod
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a result that a block computes."""

    @property
    def block(self) -> Extent:
        return THREADS, 1, 1

    @property
    def tiles(self) -> tuple[int, int]:
        """Blocks along the rows and along the columns of a result."""
        rows, columns = self.tile
        return -(-self.rows // rows), -(-self.columns // columns)

    @property
    def grid(self) -> Extent:
        return prod(self.c.shape[:-2]) * prod(self.tiles), 1, 1

    def place(self, k: GpuBuilder) -> tuple[list[IndexLike], IndexLike, IndexLike]:
        """The block's matrix of the batch, and the first row and column of its tile."""
        down, across = self.tiles
        rest: IndexLike = k.block()
        column, rest = rest % across, rest // across
        row, rest = rest % down, rest // down
        batch: list[IndexLike] = []
        for size in reversed(self.c.shape[:-2]):
            batch.append(rest % size)
            rest = rest // size
        return batch[::-1], row * self.tile[0], column * self.tile[1]

    def weight(self, k: GpuBuilder, at: IndexLike) -> SSAValue:
        """An element of `b` as f32."""
        return k.convert(k.load(k.views[1], at), self.b.dtype, "f32")


@dataclass(frozen=True)
class FewRows(ProductKernel):
    """
    At most MOST_ROWS rows: every weight is read once, and multiplied by an element of each row of `a`.

    Lanes of a warp take neighbouring weights in memory: of a row of `b`, then the warps of a block share the depth,
    or of a column, then they share the columns.
    """

    template = "product_of_few_rows"

    @property
    def tile(self) -> tuple[int, int]:
        return self.rows, WARPS if self.is_across else WARP

    @property
    def shared(self) -> tuple[Buffer, ...]:
        return () if self.is_across else (Buffer.contiguous((WARPS, self.rows, WARP), "f32"),)

    def build(self, isa: Isa) -> FuncOp:
        k = GpuBuilder(self, isa)
        batch, _, first = self.place(k)
        thread = k.thread()
        lane, warp = thread % WARP, thread // WARP
        column, start, step = (warp, lane, WARP) if self.is_across else (lane, warp, WARPS)
        column = first + column
        a, b, c = k.views
        # Threads beyond the last column compute it again, as shuffles and barriers need all, and store nothing.
        inside = True if self.columns % self.tile[1] == 0 else k.compare("slt", column, self.columns)
        read = column if inside is True else k.minimum(column, self.columns - 1)

        def body(at: IndexLike, *sums: SSAValue) -> Sequence[SSAValue]:
            weight = self.weight(k, b.at(*batch, at, read))
            return [k.fma(k.load(a, a.at(*batch, row, at)), weight, total) for row, total in enumerate(sums)]

        sums = k.for_(start, self.depth, step, body, [k.constant(0.0, f32)] * self.rows)

        def add(x: SSAValue, y: SSAValue) -> SSAValue:
            return k.emit(arith.AddfOp(x, y))

        if self.is_across:
            totals = [k.warp_reduce(value, add) for value in sums]

            def store_all() -> None:
                for row, total in enumerate(totals):
                    k.store(total, c, c.at(*batch, row, column))

            k.if_(inside, lambda: k.if_(k.compare("eq", lane, 0), store_all))
            return k.finish()
        parts = k.shared(0)
        for row, value in enumerate(sums):
            k.store(value, parts, parts.at(warp, row, lane))
        k.barrier()

        def join() -> None:
            """Each warp adds up the parts of a row."""
            total = k.load(parts, parts.at(0, warp, lane))
            for other in range(1, WARPS):
                total = add(total, k.load(parts, parts.at(other, warp, lane)))
            k.store(total, c, c.at(*batch, warp, column))

        k.if_(inside, lambda: k.if_(k.compare("slt", warp, self.rows), join))
        return k.finish()


SIDE, DEPTH, EACH = 64, 32, 4
"""Rows and columns of a tile of the result, terms that are added at once, and rows and columns of a thread."""


@dataclass(frozen=True)
class Tiles(ProductKernel):
    """
    A block computes 64 x 64 elements of the result, 32 terms at a time from tiles in shared memory; a thread has
    4 x 4 elements in registers. Weights become f32 on their way to shared memory.

    A thread's columns are 16 apart, so that those of a warp are neighbours; a tile has one column of padding, so that
    columns are spread over the banks.
    """

    template = "product_tiled"

    @property
    def tile(self) -> tuple[int, int]:
        return SIDE, SIDE

    @property
    def shared(self) -> tuple[Buffer, ...]:
        return (Buffer((DEPTH, SIDE), (SIDE + 1, 1), "f32"),) * 2

    def build(self, isa: Isa) -> FuncOp:
        k = GpuBuilder(self, isa)
        batch, top, left = self.place(k)
        thread = k.thread()
        x, y = thread % (SIDE // EACH), thread // (SIDE // EACH)
        tile_a, tile_b = k.shared(0), k.shared(1)
        a, b, c = k.views

        def fill(tile: View, view: View, start: IndexLike, along_depth: bool) -> None:
            """Move a tile; neighbouring threads read neighbours in memory, along the depth or across it."""
            for step in range(DEPTH * SIDE // THREADS):
                if along_depth:
                    term, other = thread % DEPTH, thread // DEPTH + step * (THREADS // DEPTH)
                else:
                    term, other = thread // SIDE + step * (THREADS // SIDE), thread % SIDE
                at = start + term
                size = self.rows if view is a else self.columns
                corner = top if view is a else left
                # What is beyond the last row or column is computed from that, and not stored.
                line = corner + other if size % SIDE == 0 else k.minimum(corner + other, size - 1)

                def load(at: IndexLike = at, line: IndexLike = line) -> list[SSAValue]:
                    if view is a:
                        return [k.load(a, a.at(*batch, line, at))]
                    return [self.weight(k, b.at(*batch, at, line))]

                whole = True if self.depth % DEPTH == 0 else k.compare("slt", at, self.depth)
                (value,) = k.if_(whole, load, lambda: [k.constant(0.0, f32)])
                k.store(value, tile, tile.at(term, other))

        def add_terms(start: IndexLike, *sums: SSAValue) -> Sequence[SSAValue]:
            fill(tile_a, a, start, self.a.strides[-2] != 1 or self.a.strides[-1] == 1)
            fill(tile_b, b, start, self.is_across)
            k.barrier()

            def add_term(term: IndexLike, *sums: SSAValue) -> Sequence[SSAValue]:
                of_a = [k.load(tile_a, tile_a.at(term, y * EACH + i)) for i in range(EACH)]
                of_b = [k.load(tile_b, tile_b.at(term, x + j * (SIDE // EACH))) for j in range(EACH)]
                return [k.fma(of_a[i], of_b[j], sums[i * EACH + j]) for i in range(EACH) for j in range(EACH)]

            sums = tuple(k.for_(0, DEPTH, 1, add_term, sums))
            k.barrier()
            return sums

        sums = k.for_(0, self.depth, DEPTH, add_terms, [k.constant(0.0, f32)] * (EACH * EACH))

        def store(i: int, j: int) -> None:
            """Store an element where it is inside; matrices of whole tiles need no check."""
            row, column = top + (y * EACH + i), left + (x + j * (SIDE // EACH))
            has_row = True if self.rows % SIDE == 0 else k.compare("slt", row, self.rows)
            has_column = True if self.columns % SIDE == 0 else k.compare("slt", column, self.columns)

            def write() -> None:
                k.store(sums[i * EACH + j], c, c.at(*batch, row, column))

            k.if_(has_row, lambda: k.if_(has_column, write))

        for i in range(EACH):
            for j in range(EACH):
                store(i, j)
        return k.finish()
