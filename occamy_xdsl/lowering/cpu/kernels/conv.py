"""Direct convolution."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from xdsl.dialects.func import FuncOp

from occamy_xdsl.lowering.cpu.kernels.builder import KernelBuilder
from occamy_xdsl.lowering.cpu.kernels.correlation import (
    Correlation,
    CorrelationBuilder,
    Window,
    choose_correlation_tile,
    plan_windows,
)
from occamy_xdsl.lowering.cpu.kernels.microkernel import sum_dtype
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer, Epilogue, Kernel
from occamy_xdsl.lowering.cpu.kernels.tiling import Tile
from occamy_xdsl.lowering.toolchain import Isa


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
        correlation = conv.correlation
        tile = choose_correlation_tile(
            correlation.windows,
            correlation.channels,
            correlation.filters,
            isa,
            sum_dtype(output.dtype),
            is_depthwise=correlation.is_depthwise,
        )
        return replace(conv, tile=tile)

    @property
    def correlation(self) -> Correlation:
        """The sums to compute; a convolution with one filter for each channel has lanes of channels."""
        buffers = (self.output, *(self.epilogue.extras if self.epilogue else ()))
        geometry = zip(
            (0, *range(2, self.input.rank)),
            (1, *self.kernel),
            (1, *self.strides),
            (1, *self.dilations),
            (0, *self.pads),
            strict=True,
        )
        windows = [
            Window(
                self.output.shape[d],
                self.input.shape[d],
                kernel,
                stride,
                dilation,
                pad,
                self.input.strides[d],
                tuple(buffer.strides[d] for buffer in buffers),
            )
            for d, kernel, stride, dilation, pad in geometry
        ]
        channels, filters = self.input.shape[1], self.output.shape[1]
        if self.group == channels == filters and self.group > 1:
            planned = plan_windows(windows, is_depthwise=True)
            return Correlation(planned, 1, 1, filters, self.tile, is_depthwise=True)
        planned = plan_windows(windows, is_depthwise=False)
        return Correlation(planned, self.group, channels // self.group, filters // self.group, self.tile)

    def pack(self, filter: np.ndarray) -> np.ndarray:
        """The filter argument from ONNX's (filters, channels / group, kernel...)."""
        correlation = self.correlation
        shape = (correlation.groups, correlation.filters, correlation.channels, prod(self.kernel))
        return correlation.pack(filter.reshape(shape).transpose(0, 3, 2, 1))

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
        packed = Buffer.contiguous((self.correlation.packed_size,), self.filter_dtype)
        return (self.input, packed, *bias, *extras, self.output)

    def build(self, isa: Isa) -> FuncOp:
        """The function, which reads neither padding nor anything else outside of its arguments."""
        k = KernelBuilder(self, isa)
        source, packed, *rest = k.views
        bias = rest.pop(0) if self.has_bias else None
        *extras, output = rest
        if self.output.elements:
            results = [output, *extras]
            CorrelationBuilder(k, self.correlation, source, packed, bias, results, self.epilogue).build()
        return k.finish()
