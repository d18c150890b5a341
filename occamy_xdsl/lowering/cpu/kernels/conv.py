"""Direct convolution."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from xdsl.dialects.func import FuncOp

from occamy_xdsl.lowering.cpu.kernels.builder import KernelBuilder
from occamy_xdsl.lowering.cpu.kernels.correlation import (
    PROLOGUE_CHANNELS,
    Correlation,
    CorrelationBuilder,
    CorrelationPrologue,
    Window,
    choose_correlation_tile,
    plan_windows,
)
from occamy_xdsl.lowering.cpu.kernels.microkernel import sum_dtype
from occamy_xdsl.lowering.cpu.kernels.rows import row_stride
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer, Epilogue, Kernel, Packing, Prologue
from occamy_xdsl.lowering.cpu.kernels.tiling import Tile
from occamy_xdsl.lowering.toolchain import Isa

LEAST_PIXELS = 7
"""Width of images from which on tiles lose little if they do not run across the ends of rows."""


def one_row(*buffers: Buffer) -> tuple[Buffer, ...]:
    """The first row of each (batch, channels, rows, ...) buffer, all in one image."""
    return tuple(
        replace(
            b,
            shape=(1, b.shape[1], 1, *b.shape[3:]),
            strides=(0, b.strides[1], row_stride(b, 2), *b.strides[3:]),
        )
        for b in buffers
    )


@dataclass(frozen=True)
class Conv(Kernel):
    """
    ONNX Conv (opset 11): `output[n, m, p]` is `bias[m]` plus the sum of
    `input[n, c, p * stride - pad + q * dilation] * filter[m, c, q]` over the channels `c` of the group of `m`
    and the kernel positions `q`.

    Any number of spatial dimensions, any strides of input and output; fastest where the channel stride is 1.
    The channels may be spread over several input buffers, and pass through a prologue, which does not see the
    padding.
    """

    input: Buffer
    """(batch, channels, spatial...)."""
    joined: tuple[Buffer, ...]
    """Further parts of the input, whose channels follow; none if there are groups."""
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
    prologue: Prologue | None
    epilogue: Epilogue | None
    tile: Tile
    """The register tile, whose width is the layout of the packed filter."""
    any_rows: bool = False
    """
    Whether the output's and the input's rows and the padding before them are sizes that the function takes.

    All buffers then show one row, and `pads` has 0.
    """

    @staticmethod
    def create(
        input: Buffer,
        output: Buffer,
        kernel: Sequence[int],
        isa: Isa,
        *,
        joined: Sequence[Buffer] = (),
        strides: Sequence[int] | None = None,
        dilations: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        group: int = 1,
        filter_dtype: str | None = None,
        has_bias: bool = False,
        prologue: Prologue | None = None,
        epilogue: Epilogue | None = None,
    ) -> "Conv":
        """The convolution with the best tile for `isa`; default strides and dilations are 1, pads 0."""
        rank = len(kernel)
        conv = Conv(
            input,
            tuple(joined),
            output,
            tuple(kernel),
            tuple(strides or (1,) * rank),
            tuple(dilations or (1,) * rank),
            tuple(pads or (0,) * rank),
            group,
            filter_dtype or input.dtype,
            has_bias,
            prologue,
            epilogue,
            Tile(1, 1, 1),
        )
        return conv.tiled(isa)

    def tiled(self, isa: Isa) -> "Conv":
        """The same with the best tile for `isa`."""
        correlation = self.correlation
        tile = choose_correlation_tile(
            correlation.windows,
            correlation.channels,
            correlation.filters,
            isa,
            sum_dtype(self.output.dtype),
            is_depthwise=correlation.is_depthwise,
        )
        return replace(self, tile=tile)

    def for_any_rows(self, isa: Isa) -> "tuple[Conv, tuple[int, ...]] | None":
        """For one image whose rows are wide enough to be cut into tiles one by one."""
        if len(self.kernel) < 2 or self.output.shape[0] != 1 or self.output.shape[-1] < LEAST_PIXELS:
            return None
        rows = self.rows
        if self.kernel[0] == 1 and len(rows.interior) < rows.output:
            return None
        after = self.epilogue and replace(self.epilogue, extras=one_row(*self.epilogue.extras))
        before = self.prologue and replace(self.prologue, extras=one_row(*self.prologue.extras))
        source, output, *joined = one_row(self.input, self.output, *self.joined)
        kernel = replace(
            self,
            input=source,
            joined=tuple(joined),
            output=output,
            pads=(0, *self.pads[1:]),
            prologue=before,
            epilogue=after,
            any_rows=True,
        ).tiled(isa)
        if kernel.workspace_bytes > self.workspace_bytes or any(b.origin for b in kernel.arguments):
            return None
        return kernel, (rows.output, rows.input, rows.pad)

    @property
    def run_time_sizes(self) -> int:
        return 3 if self.any_rows else 0

    @property
    def parts(self) -> tuple[Buffer, ...]:
        """All buffers of the input."""
        return (self.input, *self.joined)

    @property
    def channels(self) -> int:
        """Channels of all parts of the input."""
        return sum(part.shape[1] for part in self.parts)

    @property
    def correlation(self) -> Correlation:
        """The sums to compute; a convolution with one filter for each channel has lanes of channels."""
        windows = [self._window(0, 1, 1, 1, 0)]
        for i, geometry in enumerate(zip(self.kernel, self.strides, self.dilations, self.pads, strict=True)):
            windows.append(self._window(2 + i, *geometry))
        channels, filters = self.channels, self.output.shape[1]
        if self.group == channels == filters and self.group > 1:
            planned = plan_windows(windows, is_depthwise=True)
            return Correlation(planned, 1, 1, filters, self.tile, is_depthwise=True)
        planned = plan_windows(windows, is_depthwise=False)
        return Correlation(planned, self.group, channels // self.group, filters // self.group, self.tile)

    def _window(self, d: int, kernel: int, stride: int, dilation: int, pad: int) -> Window:
        results = (self.output, *(self.epilogue.extras if self.epilogue else ()))
        return Window(
            self.output.shape[d],
            self.input.shape[d],
            kernel,
            stride,
            dilation,
            pad,
            tuple(part.strides[d] for part in self.parts),
            tuple(buffer.strides[d] for buffer in results),
            is_sized=self.any_rows and d == 2,
        )

    @property
    def rows(self) -> Window:
        """The window over rows."""
        return self._window(2, self.kernel[0], self.strides[0], self.dilations[0], self.pads[0])

    @property
    def packing(self) -> Packing:
        """What `pack` depends on."""
        c = self.correlation
        layout = f"packed-{c.groups}x{c.filters}x{c.channels}x{prod(self.kernel)}-{self.tile.packing}"
        return Packing(layout, self.pack)

    def pack(self, filter: np.ndarray) -> np.ndarray:
        """The filter argument from ONNX's (filters, channels / group, kernel...)."""
        correlation = self.correlation
        shape = (correlation.groups, correlation.filters, correlation.channels, prod(self.kernel))
        return correlation.pack(filter.reshape(shape).transpose(0, 3, 2, 1))

    # --- the kernel ---

    @property
    def label(self) -> str:
        """For example `conv2d_56x56x64_3x3s1_64`, or `conv2d_nx56x64_3x3s1_64` for any rows."""
        spatial = ["n", *self.input.shape[3:]] if self.any_rows else self.input.shape[2:]
        sizes = "x".join(map(str, (*spatial, self.channels)))
        window = "x".join(map(str, self.kernel)) + "s" + "x".join(map(str, dict.fromkeys(self.strides)))
        group = f"g{self.group}" if self.group > 1 else ""
        return f"conv{len(self.kernel)}d_{sizes}_{window}{group}_{self.output.shape[1]}"

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        """Input, its further parts, packed filter, bias, extras of prologue and epilogue, output, workspace."""
        bias = (Buffer.contiguous((self.output.shape[1],), self.output.dtype),) if self.has_bias else ()
        before = self.prologue.extras if self.prologue else ()
        after = self.epilogue.extras if self.epilogue else ()
        packed = Buffer.contiguous((self.correlation.packed_size,), self.filter_dtype)
        size = self.workspace_bytes // self.input.element_bytes
        workspace = (Buffer.contiguous((size,), self.input.dtype),) if size else ()
        return (*self.parts, packed, *bias, *before, *after, self.output, *workspace)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of what a prologue makes for one register tile; none for a depthwise convolution."""
        if self.prologue is None or self.correlation.is_depthwise:
            return 0
        return self.tile.rows * PROLOGUE_CHANNELS * self.input.element_bytes

    def build(self, isa: Isa) -> FuncOp:
        """The function, which reads neither padding nor anything else outside of its arguments."""
        k = KernelBuilder(self, isa)
        views = list(k.views)
        inputs = [views.pop(0) for _ in self.parts]
        packed = views.pop(0)
        bias = views.pop(0) if self.has_bias else None
        scratch = views.pop() if self.workspace_bytes else None
        prologue = None
        if self.prologue is not None:
            extras = [views.pop(0) for _ in self.prologue.extras]
            prologue = CorrelationPrologue(self.prologue, extras, scratch)
        *extras, output = views
        if self.output.elements:
            results = [output, *extras]
            sizes = (k.sizes[0], k.sizes[1], k.sizes[2]) if self.any_rows else None
            builder = CorrelationBuilder(
                k, self.correlation, inputs, packed, bias, results, self.epilogue, prologue, sizes
            )
            builder.build()
        return k.finish()
