"""
Direct convolution: register tiles of pixels by filters over packed weights, without padding or scratch.

Rows that would read the padding are left out by the bounds of the kernel-row loops, columns by tiles at both
ends of a row in which the valid (pixel, kernel column) pairs are known when the code is built.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

import numpy as np
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from occamy_xdsl.lowering.cpu.kernels.builder import IndexLike, KernelBuilder
from occamy_xdsl.lowering.cpu.kernels.microkernel import (
    load_as,
    multiply_add,
    outer_product,
    store_tile,
    sum_dtype,
)
from occamy_xdsl.lowering.cpu.kernels.spec import STORAGE_TYPES, Buffer, Epilogue, Kernel
from occamy_xdsl.lowering.cpu.kernels.tiling import (
    Panel,
    Tile,
    choose_tile,
    pack_panels,
    panels,
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
    """Padding before the first input position; the output's extent says what is after the last one."""
    input_stride: int
    """Elements between neighbours in the input."""
    result_strides: tuple[int, ...]
    """Elements between neighbours in the output and in each extra of the epilogue."""

    @property
    def is_pointwise(self) -> bool:
        """Whether output position `o` depends on input position `o` alone."""
        return (self.kernel, self.stride, self.pad) == (1, 1, 0) and self.input == self.output

    @property
    def step(self) -> int:
        """Elements between the inputs of neighbouring outputs."""
        return self.stride * self.input_stride

    @property
    def interior(self) -> range:
        """Output positions whose whole window lies inside of the input."""
        first = -(-self.pad // self.stride)
        last = (self.input - 1 + self.pad - (self.kernel - 1) * self.dilation) // self.stride
        return range(first, min(last, self.output - 1) + 1)

    def is_valid(self, position: int, k: int) -> bool:
        """Whether output `position` meets the input at kernel position `k`."""
        return 0 <= position * self.stride - self.pad + k * self.dilation < self.input

    def kernel_range(self, k: KernelBuilder, position: IndexLike) -> tuple[IndexLike, IndexLike]:
        """First and one past the last kernel position inside of the input; static if always the same."""
        if len(self.interior) == self.output:
            return 0, self.kernel
        first_input = position * self.stride - self.pad
        below = k.maximum(0 - first_input, 0) + (self.dilation - 1)
        above = k.maximum(self.input - first_input, 0) + (self.dilation - 1)
        return below // self.dilation, k.minimum(above // self.dilation, self.kernel)


def merge_windows(windows: Sequence[Window]) -> list[Window]:
    """Neighbouring pointwise dimensions joined where memory allows, so that tiles run across row ends."""
    merged: list[Window] = []
    for window in windows:
        if window.is_pointwise and window.output == 1 and len(windows) > 1 and window is not windows[-1]:
            continue
        outer = merged[-1] if merged else None
        if outer and outer.is_pointwise and window.is_pointwise:
            strides = (outer.input_stride, *outer.result_strides)
            inner = (window.input_stride, *window.result_strides)
            if window.output == 1:
                continue
            if all(a == b * window.output for a, b in zip(strides, inner, strict=True)):
                size = outer.output * window.output
                merged[-1] = replace(window, output=size, input=size)
                continue
        merged.append(window)
    return merged


@dataclass(frozen=True)
class Conv(Kernel):
    """
    ONNX Conv (opset 11): `output[n, m, p]` is `bias[m]` plus the sum of
    `input[n, c, p * stride - pad + q * dilation] * filter[m, c, q]` over the channels `c` of the group of `m`
    and the kernel positions `q`.

    Any number of spatial dimensions, any strides of input and output; fastest where the channel stride is 1.
    """

    input: Buffer
    """(batch, channels, spatial...)."""
    output: Buffer
    """(batch, filters, spatial...); sums are kept in its dtype, or in f32 if that is f16 or bf16."""
    kernel: tuple[int, ...]
    """Extent of the filter in each spatial dimension."""
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    """Padding before the first element of each spatial dimension."""
    group: int
    filter_dtype: str
    has_bias: bool
    """Whether there is a bias argument, of the output's dtype."""
    epilogue: Epilogue | None
    tile: Tile
    """The register tile, whose width is the layout of the packed filter."""

    @staticmethod
    def create(
        input: Buffer,
        output: Buffer,
        kernel: Sequence[int],
        isa: Isa,
        *,
        strides: Sequence[int] | None = None,
        dilations: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        group: int = 1,
        filter_dtype: str | None = None,
        has_bias: bool = False,
        epilogue: Epilogue | None = None,
    ) -> "Conv":
        """The convolution with the best tile for `isa`; default strides and dilations are 1, pads 0."""
        rank = len(kernel)
        conv = Conv(
            input,
            output,
            tuple(kernel),
            tuple(strides or (1,) * rank),
            tuple(dilations or (1,) * rank),
            tuple(pads or (0,) * rank),
            group,
            filter_dtype or input.dtype,
            has_bias,
            epilogue,
            Tile(1, 1, 1),
        )
        row = conv.windows[-1].output
        size = STORAGE_TYPES[sum_dtype(output.dtype)].bitwidth // 8
        if conv.is_depthwise:
            tile = replace(choose_tile(row, group, 1, isa, size), vectors=1, rows=min(row, 8))
        else:
            tile = choose_tile(row, conv.group_filters, conv.depth, isa, size)
        return replace(conv, tile=tile)

    # --- what the sizes imply ---

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel has one filter of its own: then lanes are channels."""
        return self.group == self.input.shape[1] == self.output.shape[1] and self.group > 1

    @property
    def group_channels(self) -> int:
        """Input channels of a group."""
        return self.input.shape[1] // self.group

    @property
    def group_filters(self) -> int:
        """Output channels of a group."""
        return self.output.shape[1] // self.group

    @property
    def depth(self) -> int:
        """Products in each output."""
        return prod(self.kernel) * (1 if self.is_depthwise else self.group_channels)

    @property
    def windows(self) -> list[Window]:
        """Batch and spatial dimensions, joined where possible."""
        results = [self.output, *(self.epilogue.extras if self.epilogue else ())]
        ones = (1,)
        windows = [
            Window(
                self.output.shape[d],
                self.input.shape[d],
                *geometry,
                self.input.strides[d],
                tuple(buffer.strides[d] for buffer in results),
            )
            for d, geometry in zip(
                (0, *range(2, self.input.rank)),
                zip(
                    ones + self.kernel,
                    ones + self.strides,
                    ones + self.dilations,
                    (0, *self.pads),
                    strict=True,
                ),
                strict=True,
            )
        ]
        return merge_windows(windows)

    # --- the packed filter ---

    @property
    def panels(self) -> list[Panel]:
        """Panels of a group, or of all channels if it is depthwise."""
        return panels(self.group if self.is_depthwise else self.group_filters, self.tile)

    @property
    def group_weights(self) -> int:
        """Packed weights of what `panels` covers."""
        return self.depth * sum(panel.padded for panel in self.panels)

    @property
    def packed_filter(self) -> Buffer:
        """What `pack` returns, as a kernel argument."""
        groups = 1 if self.is_depthwise else self.group
        return Buffer.contiguous((groups * self.group_weights,), self.filter_dtype)

    def pack(self, filter: np.ndarray) -> np.ndarray:
        """Panels of [kernel position][channel][filter] from ONNX's (filters, channels / group, kernel...)."""
        groups = 1 if self.is_depthwise else self.group
        weights = filter.reshape(groups, -1, filter.shape[1], prod(self.kernel)).transpose(0, 3, 2, 1)
        return np.concatenate([pack_panels(group.reshape(self.depth, -1), self.tile) for group in weights])

    # --- the kernel ---

    @property
    def label(self) -> str:
        """For example `conv2d_56x56x64_3x3s1_64`."""
        sizes = "x".join(map(str, (*self.input.shape[2:], self.input.shape[1])))
        window = "x".join(map(str, self.kernel)) + "s" + "x".join(map(str, dict.fromkeys(self.strides)))
        group = f"g{self.group}" if self.group > 1 else ""
        return f"conv{len(self.kernel)}d_{sizes}_{window}{group}_{self.output.shape[1]}"

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        """Input, packed filter, bias, extras, output."""
        bias = (Buffer.contiguous((self.output.shape[1],), self.output.dtype),) if self.has_bias else ()
        extras = self.epilogue.extras if self.epilogue else ()
        return (self.input, self.packed_filter, *bias, *extras, self.output)

    def build(self, isa: Isa) -> FuncOp:
        """The function, which reads neither padding nor anything else outside of its arguments."""
        k = KernelBuilder(self, isa)
        if self.output.elements:
            _ConvBuilder(self, k).build()
        return k.finish()


KernelRanges: TypeAlias = list[tuple[IndexLike, IndexLike]]
"""For each dimension but the last, the first kernel position inside of the input and one past the last."""
ValidPairs: TypeAlias = list[tuple[range, range]]
"""Kernel columns, and the pixels of a tile for which all of them are inside of the input."""


@dataclass(frozen=True)
class _Panel:
    """The output channels that are computed together."""

    channel: IndexLike
    """First output channel."""
    input_at: IndexLike
    """Index of the first input channel at spatial position 0."""
    weights_at: IndexLike
    """Index of the packed panel."""
    width: int
    """Channels in the packed panel, a multiple of the lanes."""
    valid: int
    """Channels that exist."""


class _ConvBuilder:
    """State shared by the loops of one convolution kernel."""

    def __init__(self, conv: Conv, k: KernelBuilder):
        self.conv = conv
        self.k = k
        self.windows = conv.windows
        self.lanes = conv.tile.lanes
        self.dtype = sum_dtype(conv.output.dtype)
        self.input, self.filter, *rest = k.views
        self.bias = rest.pop(0) if conv.has_bias else None
        self.output = rest.pop()
        self.extras = rest
        self.results = [self.output, *self.extras]
        self.products = self._channel_products if conv.is_depthwise else self._dense_products

    def build(self) -> None:
        """Loops over groups and over panels."""
        conv, k = self.conv, self.k
        channel_stride = conv.input.strides[1]
        *_, last = conv.panels
        whole = conv.panels if last.channels == conv.tile.width else conv.panels[:-1]

        def group(g: IndexLike) -> None:
            def panel(start: IndexLike, valid: int, width: int) -> None:
                input_channel = start if conv.is_depthwise else g * conv.group_channels
                self._positions(
                    _Panel(
                        g * conv.group_filters + start,
                        input_channel * channel_stride,
                        g * conv.group_weights + start * conv.depth,
                        width,
                        valid,
                    )
                )

            width = conv.tile.width

            def whole_panel(start: IndexLike) -> None:
                panel(start, width, width)

            k.for_(0, len(whole) * width, width, whole_panel)
            if last.channels < width:
                panel(last.start, last.channels, last.padded)

        k.for_(0, 1 if conv.is_depthwise else conv.group, 1, group)

    def _positions(self, panel: _Panel) -> None:
        """Loops over all output positions but those of the last dimension."""
        results = [panel.channel * view.buffer.strides[1] for view in self.results]

        def nest(d: int, input_at: IndexLike, results: list[IndexLike], kernel_ranges: KernelRanges) -> None:
            window = self.windows[d]
            if d == len(self.windows) - 1:
                self._row(panel, input_at, results, kernel_ranges)
                return

            def position(o: IndexLike) -> None:
                at = [r + o * stride for r, stride in zip(results, window.result_strides, strict=True)]
                bounds = window.kernel_range(self.k, o)
                start = input_at + (o * window.step - window.pad * window.input_stride)
                nest(d + 1, start, at, [*kernel_ranges, bounds])

            self.k.for_(0, window.output, 1, position)

        nest(0, panel.input_at, results, [])

    def _row(
        self, panel: _Panel, input_at: IndexLike, results: list[IndexLike], kernel_ranges: KernelRanges
    ) -> None:
        """The tiles of one row; those of one size share the code from the bias to the store."""
        window = self.windows[-1]
        for start, size, count in tile_runs(window.output, self.conv.tile.rows):
            first_pixels = range(start, start + size * count, size)

            def tile(x: IndexLike, first_pixels: range = first_pixels) -> None:
                start = input_at + (x * window.step - window.pad * window.input_stride)
                at = [r + x * stride for r, stride in zip(results, window.result_strides, strict=True)]
                self._tile(panel, first_pixels, x, start, at, kernel_ranges)

            self.k.for_(start, start + size * count, size, tile)

    def _tile(
        self,
        panel: _Panel,
        first_pixels: range,
        x: IndexLike,
        input_at: IndexLike,
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
            return self._kernel_rows(panel, pairs, 0, input_at, panel.weights_at, kernel_ranges, start * size)

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
            self.conv.epilogue,
        )

    def _kernel_rows(
        self,
        panel: _Panel,
        pairs: ValidPairs,
        d: int,
        input_at: IndexLike,
        weights_at: IndexLike,
        kernel_ranges: KernelRanges,
        sums: Sequence[SSAValue],
    ) -> Sequence[SSAValue]:
        """Loops over the kernel positions of dimension `d` and those after it."""
        window = self.windows[d]
        if d == len(self.windows) - 1:
            return self.products(panel, pairs, input_at, weights_at, sums)
        if kernel_ranges[d] == (0, 1):
            return self._kernel_rows(panel, pairs, d + 1, input_at, weights_at, kernel_ranges, sums)
        block = prod(w.kernel for w in self.windows[d + 1 :]) * self._position_weights(panel)
        step = window.dilation * window.input_stride

        def position(p: IndexLike, *sums: SSAValue) -> Sequence[SSAValue]:
            at, weights = input_at + p * step, weights_at + p * block
            return self._kernel_rows(panel, pairs, d + 1, at, weights, kernel_ranges, sums)

        return self.k.for_(*kernel_ranges[d], 1, position, sums)

    def _position_weights(self, panel: _Panel) -> int:
        """Packed weights of one kernel position."""
        return panel.width * (1 if self.conv.is_depthwise else self.conv.group_channels)

    def _dense_products(
        self,
        panel: _Panel,
        pairs: ValidPairs,
        input_at: IndexLike,
        weights_at: IndexLike,
        accumulators: Sequence[SSAValue],
    ) -> Sequence[SSAValue]:
        """Add the products of one kernel row: each input element times a panel row of weights."""
        k, conv, window = self.k, self.conv, self.windows[-1]
        channels, channel_stride = conv.group_channels, conv.input.strides[1]
        column_step = window.dilation * window.input_stride
        block = self._position_weights(panel)

        def run(
            pixels: range,
            depth: int,
            step: int,
            input_at: IndexLike,
            weights_at: IndexLike,
            sums: Sequence[SSAValue],
        ) -> Sequence[SSAValue]:
            """`depth` products that are `step` elements apart in the input."""

            def product(c: IndexLike, *carried: SSAValue) -> Sequence[SSAValue]:
                return self._step(panel, pixels, input_at + c * step, weights_at + c * panel.width, carried)

            if depth > 4:
                return k.for_(0, depth, 1, product, sums)
            for c in range(depth):
                sums = product(c, *sums)
            return sums

        sums = accumulators
        for columns, pixels in pairs:
            at = input_at + columns.start * column_step
            weights = weights_at + columns.start * block
            if channel_stride == 1 and (column_step == channels or len(columns) == 1):
                sums = run(pixels, len(columns) * channels, 1, at, weights, sums)
                continue

            def column(x: IndexLike, *carried: SSAValue, pixels: range = pixels) -> Sequence[SSAValue]:
                at, weights = input_at + x * column_step, weights_at + x * block
                return run(pixels, channels, channel_stride, at, weights, carried)

            sums = k.for_(columns.start, columns.stop, 1, column, sums)
        return sums

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

    def _step(
        self,
        panel: _Panel,
        pixels: range,
        input_at: IndexLike,
        weights_at: IndexLike,
        accumulators: Sequence[SSAValue],
    ) -> Sequence[SSAValue]:
        """One element of each pixel times one row of the panel."""
        k, step = self.k, self.windows[-1].step
        weights = [
            load_as(k, self.dtype, self.filter, weights_at + offset, self.lanes)
            for offset in range(0, panel.width, self.lanes)
        ]
        elements = ((i, load_as(k, self.dtype, self.input, input_at + i * step)) for i in pixels)
        return outer_product(k, accumulators, elements, weights, self.lanes)

    def _channel_products(
        self,
        panel: _Panel,
        pairs: ValidPairs,
        input_at: IndexLike,
        weights_at: IndexLike,
        accumulators: Sequence[SSAValue],
    ) -> Sequence[SSAValue]:
        """Add the products of one kernel row of a depthwise convolution, loading each input vector once."""
        k, window, vectors = self.k, self.windows[-1], panel.width // self.lanes
        stride = self.conv.input.strides[1]
        loaded: dict[tuple[int, int], SSAValue] = {}

        def element(position: int, j: int) -> SSAValue:
            if (position, j) not in loaded:
                at = input_at + (position * window.input_stride + j * self.lanes * stride)
                valid = panel.valid - j * self.lanes
                loaded[position, j] = load_as(
                    k, self.dtype, self.input, at, self.lanes, valid=valid, stride=stride
                )
            return loaded[position, j]

        sums = list(accumulators)
        for columns, pixels in pairs:
            for x in columns:
                for j in range(vectors):
                    at = weights_at + (x * panel.width + j * self.lanes)
                    weights = load_as(k, self.dtype, self.filter, at, self.lanes)
                    for i in pixels:
                        position = i * window.stride + x * window.dilation
                        n = i * vectors + j
                        sums[n] = multiply_add(k, element(position, j), weights, sums[n])
        return sums
