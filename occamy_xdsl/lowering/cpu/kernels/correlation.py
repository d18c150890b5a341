"""
Sums over sliding windows, the code that convolution and transposed convolution share.

Register tiles of pixels by filters over packed weights, without padding: rows that would read the padding are
left out by the bounds of the kernel-row loops, columns by tiles at both ends of a row for which the valid
(pixel, kernel column) pairs are known when the code is built.

The input may have several parts, each with some of the channels. A prologue works on vectors of channels, a few
at a time for the pixels of one register tile, and leaves them in scratch memory of that size, from where the
products read them. It is paid again for each panel and kernel position, which costs one vector of work for as
many vectors of multiply-adds as the panel has channels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import numpy as np
from xdsl.ir import SSAValue

from occamy_xdsl.lowering.cpu.kernels.builder import IndexLike, KernelBuilder, View
from occamy_xdsl.lowering.cpu.kernels.microkernel import (
    load_as,
    multiply_add,
    outer_product,
    store_tile,
    sum_dtype,
)
from occamy_xdsl.lowering.cpu.kernels.spec import STORAGE_TYPES, Epilogue, Prologue
from occamy_xdsl.lowering.cpu.kernels.tiling import (
    Panel,
    Tile,
    choose_tile,
    pack_panels,
    panels,
    power_of_two_at_least,
    tile_runs,
)
from occamy_xdsl.lowering.toolchain import Isa


@dataclass(frozen=True)
class Window:
    """
    One dimension over which the kernel slides; the batch is one with a kernel of one element.

    Output position `o` and kernel position `k` meet at input position `o * stride - pad + k * dilation`.
    """

    output: int
    input: int
    kernel: int
    stride: int
    dilation: int
    pad: int
    """Padding before the first input position, or less than 0; the extents say what is after the last one."""
    input_strides: tuple[int, ...]
    """Elements between neighbours in each part of the input."""
    result_strides: tuple[int, ...]
    """Elements between neighbours in the output and in each extra of the epilogue."""
    is_sized: bool = False
    """Whether `output`, `input` and `pad` are known when the kernel runs, and stand for others here."""

    @property
    def is_pointwise(self) -> bool:
        """Whether output position `o` depends on input position `o` alone, and both are known."""
        return (
            not self.is_sized
            and (self.kernel, self.stride, self.pad) == (1, 1, 0)
            and self.input == self.output
        )

    @property
    def steps(self) -> tuple[int, ...]:
        """Elements between the inputs of neighbouring outputs, in each part of the input."""
        return tuple(self.stride * stride for stride in self.input_strides)

    def moved(
        self, inputs: Sequence[IndexLike], position: IndexLike, pad: IndexLike | None = None
    ) -> list[IndexLike]:
        """Indices of the input at kernel position 0 of output `position`, from those at input position 0."""
        pad = self.pad if pad is None else pad
        return [
            at + (position * step - pad * stride)
            for at, step, stride in zip(inputs, self.steps, self.input_strides, strict=True)
        ]

    @property
    def interior(self) -> range:
        """Output positions whose whole window lies inside of the input."""
        first = max(-(-self.pad // self.stride), 0)
        last = (self.input - 1 + self.pad - (self.kernel - 1) * self.dilation) // self.stride
        return range(first, min(last, self.output - 1) + 1)

    def is_valid(self, position: int, k: int) -> bool:
        """Whether output `position` meets the input at kernel position `k`."""
        return 0 <= position * self.stride - self.pad + k * self.dilation < self.input

    def kernel_range(
        self, k: KernelBuilder, position: IndexLike, sizes: "Sizes | None" = None
    ) -> tuple[IndexLike, IndexLike]:
        """First and one past the last kernel position inside of the input; static if always the same."""
        if self.kernel == 1 if self.is_sized else len(self.interior) == self.output:
            return 0, self.kernel
        _, size, pad = sizes or (self.output, self.input, self.pad)
        first_input = position * self.stride - pad
        below = k.maximum(0 - first_input, 0) + (self.dilation - 1)
        above = k.maximum(size - first_input, 0) + (self.dilation - 1)
        return below // self.dilation, k.minimum(above // self.dilation, self.kernel)


Sizes: TypeAlias = tuple[IndexLike, IndexLike, IndexLike]
"""Output positions, input positions and padding before the input, of a window that is sized."""

_MOST_EDGE_PIXELS = 64
"""Pixels at the ends of a row for which the valid kernel columns are unrolled."""
_MOST_UNROLLED_COLUMNS = 32
"""Kernel columns that are unrolled in a depthwise correlation."""


def plan_windows(windows: Sequence[Window], *, is_depthwise: bool) -> tuple[Window, ...]:
    """
    The windows to loop over, the last of them the row that is cut into tiles.

    Neighbouring pointwise dimensions are joined where memory allows, so that tiles run across row ends. Where
    unrolling a row would make too much code, its windows are clipped by loop bounds as those of the other
    dimensions are, and the row of a tile is a single pixel.
    """
    merged: list[Window] = []
    for window in windows:
        outer = merged[-1] if merged else None
        if outer and outer.is_pointwise and window.is_pointwise:
            strides = (*outer.input_strides, *outer.result_strides)
            inner = (*window.input_strides, *window.result_strides)
            if window.output == 1:
                continue
            if outer.output == 1 or all(a == b * window.output for a, b in zip(strides, inner, strict=True)):
                size = outer.output * window.output
                merged[-1] = replace(window, output=size, input=size)
                continue
        merged.append(window)
    row = merged[-1]
    edge_pixels = row.output - len(row.interior)
    if edge_pixels > _MOST_EDGE_PIXELS or (is_depthwise and row.kernel > _MOST_UNROLLED_COLUMNS):
        still = (0,) * len(row.input_strides)
        merged.append(Window(1, 1, 1, 1, 1, 0, still, (0,) * len(row.result_strides)))
    if len(merged) > 1 and merged[0].is_pointwise and merged[0].output == 1:
        merged.pop(0)
    return tuple(merged)


KernelRanges: TypeAlias = list[tuple[IndexLike, IndexLike]]
"""For each dimension but the last, the first kernel position inside of the input and one past the last."""
ValidPairs: TypeAlias = list[tuple[range, range]]
"""Kernel columns, and the pixels of a tile for which all of them are inside of the input."""


@dataclass(frozen=True)
class Correlation:
    """
    `output[n, g * filters + m, p]` is a start value plus the sum over channels `c` and kernel positions `q` of
    `input[n, g * channels + c, position of (p, q)] * weights[g, q, c, m]`, for each group `g`.
    """

    windows: tuple[Window, ...]
    """Batch and spatial dimensions, as `plan_windows` returns them."""
    groups: int
    channels: int
    """Input channels of a group."""
    filters: int
    """Output channels of a group."""
    tile: Tile
    is_depthwise: bool = False
    """Whether channel `m` of the input alone contributes to channel `m` of the output; one group, one channel."""

    @property
    def depth(self) -> int:
        """Products in each output."""
        return prod(window.kernel for window in self.windows) * self.channels

    @property
    def panels(self) -> list[Panel]:
        """Panels of a group."""
        return panels(self.filters, self.tile)

    @property
    def group_weights(self) -> int:
        """Elements of the packed weights of a group."""
        return self.depth * sum(panel.padded for panel in self.panels)

    @property
    def packed_size(self) -> int:
        """Elements of all packed weights."""
        return self.groups * self.group_weights

    def pack(self, weights: np.ndarray) -> np.ndarray:
        """Panels of [kernel position][channel][filter] from (groups, kernel positions, channels, filters)."""
        matrices = weights.reshape(self.groups, self.depth, self.filters)
        return np.concatenate([pack_panels(matrix, self.tile) for matrix in matrices])


PROLOGUE_CHANNELS = 32
"""Channels of each pixel that a prologue works on at a time."""


@dataclass(frozen=True)
class CorrelationPrologue:
    """A prologue and where it works."""

    prologue: Prologue
    extras: Sequence[View]
    scratch: View | None
    """`PROLOGUE_CHANNELS` elements of the input for each row of the tile; None for a depthwise correlation."""


def choose_correlation_tile(
    windows: Sequence[Window], channels: int, filters: int, isa: Isa, dtype: str, *, is_depthwise: bool
) -> Tile:
    """The tile for sums that are kept in `dtype`."""
    size = STORAGE_TYPES[dtype].bitwidth // 8
    row = max(windows[-1].output, 1)
    if is_depthwise:
        return replace(choose_tile(row, filters, 1, isa, size), vectors=1, rows=min(row, 8))
    return choose_tile(row, filters, channels * prod(window.kernel for window in windows), isa, size)


@dataclass(frozen=True)
class _Panel:
    """The output channels that are computed together."""

    channel: IndexLike
    """First output channel."""
    input_channel: IndexLike
    """First input channel."""
    weights_at: IndexLike
    """Index of the packed panel."""
    width: int
    """Channels in the packed panel, a multiple of the lanes."""
    valid: int
    """Channels that exist."""


@dataclass(frozen=True)
class _Source:
    """Where the elements of some channels lie, for the pixels of a register tile."""

    view: View
    first: IndexLike
    """Index of the first channel at the first pixel."""
    stride: int
    """Elements between channels."""
    step: int
    """Elements between pixels."""
    channel: int
    """Which of all the channels the first one is."""
    channels: int


class CorrelationBuilder:
    """Emits the loops of one correlation; the functions that make them share its state."""

    def __init__(
        self,
        k: KernelBuilder,
        correlation: Correlation,
        inputs: Sequence[View],
        weights: View,
        bias: View | None,
        results: Sequence[View],
        epilogue: Epilogue | None,
        prologue: CorrelationPrologue | None = None,
        sizes: Sizes | None = None,
    ):
        """`sizes` are those of the window that is sized, if there is one."""
        self.k = k
        self.sizes = sizes
        self.correlation = correlation
        self.windows = correlation.windows
        self.lanes = correlation.tile.lanes
        self.inputs = inputs
        """The parts of the input, in the order of their channels."""
        self.weights = weights
        self.bias = bias
        self.results = results
        """The output, then the extras of the epilogue."""
        self.epilogue = epilogue
        self.prologue = prologue
        self.dtype = sum_dtype(results[0].buffer.dtype)
        self.products = self._channel_products if correlation.is_depthwise else self._dense_products

    def build(self, weights_at: int = 0, results_at: Sequence[int] | None = None) -> None:
        """
        Emit all loops, those over groups and panels first.

        `weights_at` is the index of the packed weights, `results_at` that of each result's first element from
        the element with all indices 0.
        """
        correlation, k, width = self.correlation, self.k, self.correlation.tile.width
        offsets = results_at or [0] * len(self.results)
        origin = [view.at() + at for view, at in zip(self.results, offsets, strict=True)]
        *_, last = correlation.panels
        whole = correlation.filters // width * width

        def group(g: IndexLike) -> None:
            def panel(start: IndexLike, valid: int = width, padded: int = width) -> None:
                channel = g * correlation.filters + start
                input_channel = start if correlation.is_depthwise else g * correlation.channels
                at = weights_at + (g * correlation.group_weights + start * correlation.depth)
                results = [
                    first + channel * view.buffer.strides[1]
                    for first, view in zip(origin, self.results, strict=True)
                ]
                inputs = [view.at(0, input_channel) for view in self.inputs]
                self._positions(_Panel(channel, input_channel, at, padded, valid), inputs, results)

            k.for_(0, whole, width, panel)
            if whole < correlation.filters:
                panel(last.start, last.channels, last.padded)

        k.for_(0, correlation.groups, 1, group)

    def _positions(self, panel: _Panel, inputs: list[IndexLike], results: list[IndexLike]) -> None:
        """Loops over all output positions but those of the last dimension."""

        def nest(
            d: int, inputs: list[IndexLike], results: list[IndexLike], kernel_ranges: KernelRanges
        ) -> None:
            window = self.windows[d]
            if d == len(self.windows) - 1:
                self._row(panel, inputs, results, kernel_ranges)
                return

            sizes = window.output, window.input, window.pad
            if window.is_sized:
                assert self.sizes is not None
                sizes = self.sizes
            output, _, pad = sizes

            def position(o: IndexLike) -> None:
                at = [r + o * stride for r, stride in zip(results, window.result_strides, strict=True)]
                bounds = window.kernel_range(self.k, o, sizes)
                nest(d + 1, window.moved(inputs, o, pad), at, [*kernel_ranges, bounds])

            self.k.for_(0, output, 1, position)

        nest(0, inputs, results, [])

    def _row(
        self,
        panel: _Panel,
        inputs: list[IndexLike],
        results: list[IndexLike],
        kernel_ranges: KernelRanges,
    ) -> None:
        """The tiles of one row; those of one size share the code from the bias to the store."""
        window = self.windows[-1]
        for start, size, count in tile_runs(window.output, self.correlation.tile.rows):
            first_pixels = range(start, start + size * count, size)

            def tile(x: IndexLike, first_pixels: range = first_pixels) -> None:
                at = [r + x * stride for r, stride in zip(results, window.result_strides, strict=True)]
                self._tile(panel, first_pixels, x, window.moved(inputs, x), at, kernel_ranges)

            self.k.for_(start, start + size * count, size, tile)

    def _tile(
        self,
        panel: _Panel,
        first_pixels: range,
        x: IndexLike,
        inputs: list[IndexLike],
        results: list[IndexLike],
        kernel_ranges: KernelRanges,
    ) -> None:
        """One register tile, whose first pixel `x` is one of `first_pixels`, from the bias to the store."""
        k, size = self.k, first_pixels.step
        offsets = range(0, panel.width, self.lanes)
        if self.bias is not None:
            start = [
                load_as(
                    k, self.dtype, self.bias, panel.channel + offset, self.lanes, valid=panel.valid - offset
                )
                for offset in offsets
            ]
        else:
            start = [k.constant(0, STORAGE_TYPES[self.dtype], self.lanes)] * len(offsets)

        def add_products(pairs: ValidPairs) -> Sequence[SSAValue]:
            return self._kernel_rows(panel, pairs, 0, inputs, panel.weights_at, kernel_ranges, start * size)

        def choose(edges: list[int], *, has_interior: bool) -> Sequence[SSAValue]:
            if not edges:
                return add_products([(range(self.windows[-1].kernel), range(size))])
            first, *others = edges
            pairs = self._valid_pairs(first, size)
            if not others and not has_interior:
                return add_products(pairs)
            return k.if_(
                k.compare("eq", x, first),
                lambda: add_products(pairs),
                lambda: choose(others, has_interior=has_interior),
            )

        interior = self.windows[-1].interior
        edges = [p for p in first_pixels if p not in interior or p + size - 1 not in interior]
        store_tile(
            k,
            self.results,
            self.windows[-1].result_strides,
            [view.buffer.strides[1] for view in self.results],
            results,
            choose(edges, has_interior=len(edges) < len(first_pixels)),
            size,
            self.lanes,
            panel.valid,
            self.epilogue,
        )

    def _kernel_rows(
        self,
        panel: _Panel,
        pairs: ValidPairs,
        d: int,
        inputs: list[IndexLike],
        weights_at: IndexLike,
        kernel_ranges: KernelRanges,
        sums: Sequence[SSAValue],
    ) -> Sequence[SSAValue]:
        """Loops over the kernel positions of dimension `d` and those after it."""
        window = self.windows[d]
        if d == len(self.windows) - 1:
            return self.products(panel, pairs, inputs, weights_at, sums)
        if kernel_ranges[d] == (0, 1):
            return self._kernel_rows(panel, pairs, d + 1, inputs, weights_at, kernel_ranges, sums)
        block = prod(w.kernel for w in self.windows[d + 1 :]) * self._position_weights(panel)

        def position(p: IndexLike, *sums: SSAValue) -> Sequence[SSAValue]:
            at = [
                i + p * (window.dilation * stride)
                for i, stride in zip(inputs, window.input_strides, strict=True)
            ]
            return self._kernel_rows(panel, pairs, d + 1, at, weights_at + p * block, kernel_ranges, sums)

        return self.k.for_(*kernel_ranges[d], 1, position, sums)

    def _position_weights(self, panel: _Panel) -> int:
        """Packed weights of one kernel position."""
        return panel.width * self.correlation.channels

    def _dense_products(
        self,
        panel: _Panel,
        pairs: ValidPairs,
        inputs: list[IndexLike],
        weights_at: IndexLike,
        accumulators: Sequence[SSAValue],
    ) -> Sequence[SSAValue]:
        """Add the products of one kernel row: each input element times a panel row of weights."""
        k, window, channels = self.k, self.windows[-1], self.correlation.channels
        block = self._position_weights(panel)
        run = self._run if self.prologue is None else self._run_with_prologue
        sources = self._sources(inputs)
        column_steps = [window.dilation * stride for stride in window.input_strides]
        # Whether the channels of neighbouring columns follow each other in memory as in the weights.
        is_dense = column_steps == [channels] and sources[0].stride == 1 and self.prologue is None
        sums = accumulators
        for columns, pixels in pairs:
            if is_dense:
                first = sources[0].first + columns.start * channels
                row = replace(sources[0], first=first, channels=len(columns) * channels)
                sums = run(panel, pixels, row, weights_at + columns.start * block, sums)
                continue

            def column(x: IndexLike, *carried: SSAValue, pixels: range = pixels) -> Sequence[SSAValue]:
                sums: Sequence[SSAValue] = carried
                for source, step in zip(sources, column_steps, strict=True):
                    moved = replace(source, first=source.first + x * step)
                    weights = weights_at + (x * block + source.channel * panel.width)
                    sums = run(panel, pixels, moved, weights, sums)
                return sums

            sums = k.for_(columns.start, columns.stop, 1, column, sums)
        return sums

    def _sources(self, inputs: list[IndexLike]) -> list[_Source]:
        """The parts of the input that a group reads, from the indices `inputs` on."""
        sources: list[_Source] = []
        channel = 0
        for view, first, step in zip(self.inputs, inputs, self.windows[-1].steps, strict=True):
            count = view.buffer.shape[1] // self.correlation.groups
            sources.append(_Source(view, first, view.buffer.strides[1], step, channel, count))
            channel += count
        return sources

    def _run(
        self,
        panel: _Panel,
        pixels: range,
        source: _Source,
        weights_at: IndexLike,
        sums: Sequence[SSAValue],
    ) -> Sequence[SSAValue]:
        """Add the products of the channels of `source`, whose weights follow each other."""
        k = self.k

        def product(c: IndexLike, *sums: SSAValue) -> Sequence[SSAValue]:
            weights = [
                load_as(k, self.dtype, self.weights, weights_at + (c * panel.width + offset), self.lanes)
                for offset in range(0, panel.width, self.lanes)
            ]
            at = source.first + c * source.stride
            elements = ((i, load_as(k, self.dtype, source.view, at + i * source.step)) for i in pixels)
            return outer_product(k, sums, elements, weights, self.lanes)

        if source.channels > 4:
            return k.for_(0, source.channels, 1, product, sums)
        for c in range(source.channels):
            sums = product(c, *sums)
        return sums

    def _run_with_prologue(
        self,
        panel: _Panel,
        pixels: range,
        source: _Source,
        weights_at: IndexLike,
        sums: Sequence[SSAValue],
    ) -> Sequence[SSAValue]:
        """As `_run`, on elements that the prologue makes and leaves in the scratch memory, some at a time."""
        k, prologue = self.k, self.prologue
        assert prologue is not None
        assert prologue.scratch is not None
        scratch = prologue.scratch
        widest = min(k.isa.lanes(source.view.buffer.element_bytes), PROLOGUE_CHANNELS)
        lanes = min(widest, power_of_two_at_least(source.channels))

        def part(start: IndexLike, *sums: SSAValue, size: int = PROLOGUE_CHANNELS) -> Sequence[SSAValue]:
            for offset in range(0, size, lanes):
                channel, valid = start + offset, size - offset
                extras = self._prologue_extras(panel.input_channel + source.channel + channel, lanes, valid)
                for i in pixels:
                    at = source.first + (channel * source.stride + i * source.step)
                    element = k.load(source.view, at, lanes, valid=valid, stride=source.stride)
                    (element,) = k.inline(prologue.prologue.block, [element, *extras])
                    k.store(element, scratch, i * PROLOGUE_CHANNELS + offset, valid=valid)
            made = _Source(scratch, 0, 1, PROLOGUE_CHANNELS, 0, size)
            return self._run(panel, pixels, made, weights_at + start * panel.width, sums)

        whole = source.channels // PROLOGUE_CHANNELS * PROLOGUE_CHANNELS
        sums = k.for_(0, whole, PROLOGUE_CHANNELS, part, sums)
        rest = source.channels - whole
        return part(whole, *sums, size=rest) if rest else sums

    def _prologue_extras(self, channel: IndexLike, lanes: int, valid: int) -> list[SSAValue]:
        """The values of the prologue's extras for `lanes` channels from `channel` on, `valid` of which exist."""
        assert self.prologue is not None
        return [
            self.k.load(view, view.at(0, channel), lanes, valid=valid, stride=view.buffer.strides[1])
            for view in self.prologue.extras
        ]

    def _valid_pairs(self, first: int, size: int) -> ValidPairs:
        """Runs of kernel columns, with the pixels of the tile at pixel `first` that meet the input there."""
        window = self.windows[-1]
        pairs: ValidPairs = []
        for x in range(window.kernel):
            valid = [i for i in range(size) if window.is_valid(first + i, x)]
            if not valid:
                continue
            pixels = range(valid[0], valid[-1] + 1)
            if pairs and pairs[-1][1] == pixels and pairs[-1][0].stop == x:
                pairs[-1] = (range(pairs[-1][0].start, x + 1), pixels)
            else:
                pairs.append((range(x, x + 1), pixels))
        return pairs

    def _channel_products(
        self,
        panel: _Panel,
        pairs: ValidPairs,
        inputs: list[IndexLike],
        weights_at: IndexLike,
        accumulators: Sequence[SSAValue],
    ) -> Sequence[SSAValue]:
        """Add the products of one kernel row of a depthwise convolution, loading each input vector once."""
        k, window, vectors = self.k, self.windows[-1], panel.width // self.lanes
        (source,), (input_at,), (input_stride,) = self.inputs, inputs, window.input_strides
        stride = source.buffer.strides[1]
        extras: dict[int, list[SSAValue]] = {}
        loaded: dict[tuple[int, int], SSAValue] = {}

        def element(position: int, j: int) -> SSAValue:
            if (position, j) not in loaded:
                at = input_at + (position * input_stride + j * self.lanes * stride)
                valid = panel.valid - j * self.lanes
                value = k.load(source, at, self.lanes, valid=valid, stride=stride)
                if self.prologue is not None:
                    if j not in extras:
                        channel = panel.input_channel + j * self.lanes
                        extras[j] = self._prologue_extras(channel, self.lanes, valid)
                    (value,) = k.inline(self.prologue.prologue.block, [value, *extras[j]])
                loaded[position, j] = k.convert(value, source.buffer.dtype, self.dtype)
            return loaded[position, j]

        sums = list(accumulators)
        for columns, pixels in pairs:
            for x in columns:
                for j in range(vectors):
                    at = weights_at + (x * panel.width + j * self.lanes)
                    weights = load_as(k, self.dtype, self.weights, at, self.lanes)
                    for i in pixels:
                        position = i * window.stride + x * window.dilation
                        n = i * vectors + j
                        sums[n] = multiply_add(k, element(position, j), weights, sums[n])
        return sums
