"""Register tiles of matrix-multiply-like kernels: their size, and how a row of pixels is cut into them."""

from dataclasses import dataclass
from functools import cache

import numpy as np

from occamy_xdsl.lowering.toolchain import Isa

_LOAD_COST = 0.25
"""Cost of a load that a tile needs for each step, relative to one multiply-add of a whole vector."""
_NEAR_PANEL_BYTES = 512 * 1024
"""A weight panel of up to this many bytes is taken to stay in the second-level cache."""
_NEAR_BANDWIDTH, _FAR_BANDWIDTH = 32, 10
"""Bytes per cycle from the second-level cache and from beyond it."""
_MOST_ROWS, _MOST_VECTORS = 14, 8


@dataclass(frozen=True)
class Tile:
    """A block of results in registers: `rows` pixels times `vectors` vectors of `lanes` output channels."""

    rows: int
    vectors: int
    lanes: int

    @property
    def width(self) -> int:
        """Output channels of a tile."""
        return self.vectors * self.lanes

    @property
    def packing(self) -> str:
        """What `pack_panels` depends on."""
        return f"{self.vectors}x{self.lanes}"


def split(extent: int, largest: int) -> list[tuple[int, int]]:
    """`extent` cut into the fewest and most even pieces up to `largest`, as (size, count), greatest first."""
    pieces = -(-extent // largest)
    size, longer = divmod(extent, pieces)
    return [(n, count) for n, count in ((size + 1, longer), (size, pieces - longer)) if count]


def tile_runs(extent: int, largest: int) -> list[tuple[int, int, int]]:
    """`split` with the position of each run of equal pieces: (start, size, count)."""
    runs: list[tuple[int, int, int]] = []
    start = 0
    for size, count in split(extent, largest):
        runs.append((start, size, count))
        start += size * count
    return runs


def power_of_two_at_least(n: int) -> int:
    """The smallest power of two that is not below `n`."""
    return 1 << (n - 1).bit_length()


def _estimate(tile: Tile, rows: int, channels: int, depth: int, element_bytes: int) -> float:
    """Cycles for each of `depth` steps, with a multiply-add of one vector in each cycle."""
    panel_bytes = depth * tile.width * element_bytes
    bandwidth = _NEAR_BANDWIDTH if panel_bytes <= _NEAR_PANEL_BYTES else _FAR_BANDWIDTH
    whole, rest = divmod(channels, tile.width)
    cycles = 0.0
    for vectors, panels in ((tile.vectors, whole), (-(-rest // tile.lanes), 1)):
        streaming = vectors * tile.lanes * element_bytes / bandwidth
        for size, count in split(rows, tile.rows) if vectors else ():
            cycles += panels * count * (max(size * vectors, streaming) + _LOAD_COST * (size + vectors))
    return cycles


@cache
def choose_tile(rows: int, channels: int, depth: int, isa: Isa, element_bytes: int = 4) -> Tile:
    """
    The tile with the lowest estimated time for `rows` pixels times `channels` channels of `depth` products.

    The estimate counts multiply-adds (with the lanes and rows wasted at the ends), loads, and the streaming
    of the weight panel. `rows` are those that can share a tile: one row of an image, or all pixels of a 1x1
    convolution.
    """
    lanes = min(isa.lanes(element_bytes), power_of_two_at_least(max(channels, 4)))
    tiles = [
        Tile(height, vectors, lanes)
        for vectors in range(1, min(_MOST_VECTORS, -(-channels // lanes)) + 1)
        for height in range(1, min(_MOST_ROWS, rows) + 1)
        if height * vectors + vectors + 1 <= isa.vector_registers  # sums, weights, one broadcast element
    ]
    return min(tiles, key=lambda tile: _estimate(tile, rows, channels, depth, element_bytes))


@dataclass(frozen=True)
class Panel:
    """Columns of a weight matrix that are packed together: `start` to `start + channels`."""

    start: int
    channels: int
    padded: int
    """Columns in memory: whole vectors, filled up with zeros."""


def panels(channels: int, tile: Tile) -> list[Panel]:
    """`channels` columns cut into panels of the tile's width; the last one has as few vectors as it needs."""
    starts = range(0, channels, tile.width)
    sizes = [(start, min(tile.width, channels - start)) for start in starts]
    return [Panel(start, size, -(-size // tile.lanes) * tile.lanes) for start, size in sizes]


def packed_size(depth: int, channels: int, tile: Tile) -> int:
    """Elements of a packed (depth, channels) matrix."""
    return depth * sum(panel.padded for panel in panels(channels, tile))


def pack_panels(matrix: np.ndarray, tile: Tile) -> np.ndarray:
    """A (depth, channels) matrix as panels of [depth][padded channels], one after the other."""
    depth, channels = matrix.shape
    parts: list[np.ndarray] = []
    for panel in panels(channels, tile):
        packed = np.zeros((depth, panel.padded), matrix.dtype)
        packed[:, : panel.channels] = matrix[:, panel.start : panel.start + panel.channels]
        parts.append(packed.ravel())
    return np.concatenate(parts) if parts else np.zeros(0, matrix.dtype)
