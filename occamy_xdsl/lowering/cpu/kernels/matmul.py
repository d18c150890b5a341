"""Matrix multiplication: register tiles over weights that are packed before, in place, or panel by panel."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from occamy_xdsl.lowering.cpu.kernels.builder import IndexLike, KernelBuilder, View
from occamy_xdsl.lowering.cpu.kernels.microkernel import load_as, outer_product, store_tile, sum_dtype
from occamy_xdsl.lowering.cpu.kernels.spec import STORAGE_TYPES, Buffer, Epilogue, Kernel, Packing
from occamy_xdsl.lowering.cpu.kernels.tiling import (
    Tile,
    choose_tile,
    pack_panels,
    packed_size,
    panels,
    tile_runs,
)
from occamy_xdsl.lowering.toolchain import Isa


@dataclass(frozen=True)
class Matmul(Kernel):
    """
    ONNX MatMul (opset 13) and Gemm: `c[..., m, n]` is `bias[..., m, n]` plus the sum over `k` of
    `a[..., m, k] * b[..., k, n]`.

    All operands have the rank of `c`, 2 or more, with stride 0 where they are broadcast; transposed operands
    have swapped strides. Nothing to sum (k = 0) gives the bias, or zeros.
    """

    a: Buffer
    """(batch..., m, k)."""
    b: Buffer
    """(batch..., k, n), before packing."""
    c: Buffer
    """(batch..., m, n); sums are kept in its dtype, or in f32 if that is f16 or bf16."""
    is_packed: bool
    """Whether the argument is what `pack` makes of a constant `b`."""
    bias: Buffer | None
    """Start of the sums, with the shape of `c`."""
    epilogue: Epilogue | None
    tile: Tile
    """The register tile, whose width is the layout of the packed `b`."""

    @staticmethod
    def create(
        a: Buffer,
        b: Buffer,
        c: Buffer,
        isa: Isa,
        *,
        is_packed: bool = False,
        bias: Buffer | None = None,
        epilogue: Epilogue | None = None,
    ) -> "Matmul":
        """The product with the best tile for `isa`."""
        matmul = Matmul(a, b, c, is_packed, bias, epilogue, Tile(1, 1, 1))
        rows, _ = matmul.loops[-1]
        size = STORAGE_TYPES[sum_dtype(c.dtype)].bitwidth // 8
        return replace(matmul, tile=choose_tile(max(rows, 1), max(c.shape[-1], 1), a.shape[-1], isa, size))

    @property
    def _extras(self) -> tuple[Buffer, ...]:
        return self.epilogue.extras if self.epilogue else ()

    @property
    def _depth(self) -> int:
        return self.a.shape[-1]

    @property
    def loops(self) -> list[tuple[int, tuple[int, ...]]]:
        """
        Batch dimensions and then rows, as (extent, strides of a, b, c, bias, extras).

        They are joined where memory allows, also the rows of matrices that share `b`: tiles run across them.
        """
        b_strides = [0 if stride == 0 else block for stride, block in self._b_blocks()]
        buffers = [self.a, self.c, *((self.bias,) if self.bias else ()), *self._extras]
        loops: list[tuple[int, tuple[int, ...]]] = []
        for d in range(self.c.rank - 1):
            a, *others = (buffer.strides[d] for buffer in buffers)
            extent, strides = self.c.shape[d], (a, b_strides[d] if d < self.c.rank - 2 else 0, *others)
            if loops and (extent == 1 or loops[-1][0] == 1):
                loops[-1] = loops[-1] if extent == 1 else (extent, strides)
            elif loops and all(x == y * extent for x, y in zip(loops[-1][1], strides, strict=True)):
                loops[-1] = (loops[-1][0] * extent, strides)
            else:
                loops.append((extent, strides))
        if loops[-1][1][1] != 0:
            loops.append((1, (0,) * len(loops[-1][1])))
        return loops

    # --- the second operand ---

    def _b_blocks(self) -> list[tuple[int, int]]:
        """For each batch dimension its stride in `b` and the elements between neighbours in the argument."""
        if not self.is_packed:
            return [(stride, stride) for stride in self.b.strides[:-2]]
        block = packed_size(self._depth, self.c.shape[-1], self.tile)
        blocks: list[tuple[int, int]] = []
        for extent, stride in reversed(list(zip(self.b.shape[:-2], self.b.strides[:-2], strict=True))):
            blocks.append((stride, block))
            block *= extent if stride else 1
        return blocks[::-1]

    @property
    def b_argument(self) -> Buffer:
        """`b` as it is passed: as it is, or what `pack` returns."""
        if not self.is_packed:
            return self.b
        matrices = prod(n for n, s in zip(self.b.shape[:-2], self.b.strides[:-2], strict=True) if s)
        size = matrices * packed_size(self._depth, self.c.shape[-1], self.tile)
        return Buffer.contiguous((size,), self.b.dtype)

    @property
    def packing(self) -> Packing:
        """What `pack` depends on."""
        return Packing(f"packed-matmul-{self.tile.packing}", self.pack)

    def pack(self, b: np.ndarray) -> np.ndarray:
        """Panels of [k][n] from (batch..., k, n), where a broadcast batch dimension has one element."""
        matrices = b.reshape(prod(b.shape[:-2]), *b.shape[-2:])
        return np.concatenate(
            [np.zeros(0, b.dtype), *(pack_panels(matrix, self.tile) for matrix in matrices)]
        )

    @property
    def _needs_workspace(self) -> bool:
        return not self.is_packed and self.b.strides[-1] != 1 and self.b.shape[-1] > 1

    @property
    def workspace_bytes(self) -> int:
        """Bytes of one packed panel, if `b` is neither constant nor contiguous along `n`."""
        if not self._needs_workspace:
            return 0
        width = panels(self.c.shape[-1], self.tile)[0].padded
        return self._depth * width * self.b.element_bytes

    # --- the kernel ---

    @property
    def label(self) -> str:
        """For example `matmul_128x768x3072`: m, k and n."""
        batch = "".join(f"{n}_" for n in self.c.shape[:-2])
        return f"matmul_{batch}{self.c.shape[-2]}x{self._depth}x{self.c.shape[-1]}"

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        """a, b, bias, extras, c, workspace."""
        bias = (self.bias,) if self.bias else ()
        size = self.workspace_bytes // self.b.element_bytes
        workspace = (Buffer.contiguous((size,), self.b.dtype),) if self._needs_workspace else ()
        return (self.a, self.b_argument, *bias, *self._extras, self.c, *workspace)

    def build(self, isa: Isa) -> FuncOp:
        """The function; only `c` and the workspace are written."""
        k = KernelBuilder(self, isa)
        if self.c.elements:
            _MatmulBuilder(self, k).build()
        return k.finish()


class _MatmulBuilder:
    """State shared by the loops of one matrix multiplication kernel."""

    def __init__(self, matmul: Matmul, k: KernelBuilder):
        self.matmul = matmul
        self.k = k
        self.lanes = matmul.tile.lanes
        self.dtype = sum_dtype(matmul.c.dtype)
        self.depth = matmul.a.shape[-1]
        self.loops = matmul.loops
        self.a, self.b, *rest = k.views
        self.workspace = rest.pop() if matmul.workspace_bytes else None
        self.c = rest.pop()
        self.bias = rest.pop(0) if matmul.bias else None
        self.extras = rest

    def build(self) -> None:
        """Loops over all dimensions but the last, the rows."""

        def nest(d: int, at: list[IndexLike]) -> None:
            extent, strides = self.loops[d]
            if d == len(self.loops) - 1:
                self._panels(at)
                return

            def position(i: IndexLike) -> None:
                nest(d + 1, [x + i * stride for x, stride in zip(at, strides, strict=True)])

            self.k.for_(0, extent, 1, position)

        nest(0, [view.at() for view in (self.a, self.b, *self._results())])

    def _results(self) -> list[View]:
        return [view for view in (self.c, self.bias, *self.extras) if view is not None]

    def _panels(self, at: list[IndexLike]) -> None:
        """One matrix product, panel by panel."""
        columns = panels(self.matmul.c.shape[-1], self.matmul.tile)
        whole = sum(panel.channels == self.matmul.tile.width for panel in columns)
        a_at, b_at, *results = at
        width = self.matmul.tile.width
        views = self._results()

        def run(start: IndexLike, valid: int, padded: int) -> None:
            moved = [x + start * view.buffer.strides[-1] for x, view in zip(results, views, strict=True)]
            if self.matmul.is_packed:
                b_panel = _BPanel(self.b, b_at + start * self.depth, padded, padded)
            elif self.workspace is not None:
                self._pack(b_at + start * self.matmul.b.strides[-1], valid, padded)
                b_panel = _BPanel(self.workspace, 0, padded, padded)
            else:
                b_panel = _BPanel(self.b, b_at + start, self.matmul.b.strides[-2], valid)
            self._rows(a_at, b_panel, moved, valid, padded)

        def run_whole(start: IndexLike) -> None:
            run(start, width, width)

        self.k.for_(0, whole * width, width, run_whole)
        if whole < len(columns):
            last = columns[-1]
            run(last.start, last.channels, last.padded)

    def _pack(self, b_at: IndexLike, valid: int, padded: int) -> None:
        """Copy one panel to the workspace."""
        k, workspace = self.k, self.workspace
        assert workspace is not None
        row_stride, column_stride = self.matmul.b.strides[-2:]

        def row(i: IndexLike) -> None:
            for offset in range(0, padded, self.lanes):
                at = b_at + (i * row_stride + offset * column_stride)
                values = k.load(self.b, at, self.lanes, valid=valid - offset, stride=column_stride)
                k.store(values, workspace, i * padded + offset)

        k.for_(0, self.depth, 1, row)

    def _rows(self, a_at: IndexLike, b: "_BPanel", results: list[IndexLike], valid: int, padded: int) -> None:
        """The register tiles of one panel."""
        k, (rows, strides) = self.k, self.loops[-1]
        a_stride, _, *result_strides = strides
        for start, size, count in tile_runs(rows, self.matmul.tile.rows):

            def tile(i: IndexLike, size: int = size) -> None:
                at = [x + i * stride for x, stride in zip(results, result_strides, strict=True)]
                self._tile(a_at + i * a_stride, a_stride, b, at, result_strides, size, valid, padded)

            k.for_(start, start + size * count, size, tile)

    def _tile(
        self,
        a_at: IndexLike,
        a_stride: int,
        b: "_BPanel",
        results: list[IndexLike],
        result_strides: list[int],
        rows: int,
        valid: int,
        padded: int,
    ) -> None:
        """One register tile from the bias to the store."""
        k, lanes = self.k, self.lanes
        offsets = range(0, padded, lanes)
        c_at, *others = results
        c_stride, *other_strides = result_strides
        if self.bias is None:
            start = [k.constant(0, STORAGE_TYPES[self.dtype], lanes)] * (rows * len(offsets))
        else:
            bias_at, bias_stride, lane_stride = (
                others.pop(0),
                other_strides.pop(0),
                self.bias.buffer.strides[-1],
            )
            start: list[SSAValue] = []
            for i in range(rows):
                if i > 0 and bias_stride == 0:
                    start += start[: len(offsets)]
                    continue
                for offset in offsets:
                    at = bias_at + (i * bias_stride + offset * lane_stride)
                    start.append(
                        load_as(k, self.dtype, self.bias, at, lanes, valid=valid - offset, stride=lane_stride)
                    )

        def product(i: IndexLike, *sums: SSAValue) -> Sequence[SSAValue]:
            b_at = b.at + i * b.row_stride
            weights = [
                load_as(k, self.dtype, b.view, b_at + offset, lanes, valid=b.valid - offset)
                for offset in offsets
            ]
            at = a_at + i * self.matmul.a.strides[-1]
            elements = ((row, load_as(k, self.dtype, self.a, at + row * a_stride)) for row in range(rows))
            return outer_product(k, sums, elements, weights, lanes)

        sums = k.for_(0, self.depth, 1, product, start)
        store_tile(
            k,
            [self.c, *self.extras],
            [c_stride, *other_strides],
            [view.buffer.strides[-1] for view in (self.c, *self.extras)],
            [c_at, *others],
            sums,
            rows,
            lanes,
            valid,
            self.matmul.epilogue,
        )


@dataclass(frozen=True)
class _BPanel:
    """Where the tiles of a panel find `b`."""

    view: View
    at: IndexLike
    row_stride: int
    """Elements between rows."""
    valid: int
    """Columns that may be read."""
