"""
Transposed convolution as one correlation for each phase of the output.

Output positions that are equal modulo the stride meet the same kernel positions, and neighbouring ones meet
neighbouring inputs: with `o = stride * q + phase`, kernel position `k` meets input `q + (phase + pad - k * dilation)
/ stride` if that is an integer. So each phase is a correlation of stride 1 that writes every stride-th output, and
nothing is scattered, zeroed or computed twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
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
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer, Epilogue, Kernel, Packing
from occamy_xdsl.lowering.cpu.kernels.tiling import Tile
from occamy_xdsl.lowering.toolchain import Isa


@dataclass(frozen=True)
class _Phase:
    """The output positions with one remainder modulo the stride in each spatial dimension."""

    remainders: tuple[int, ...]
    taps: tuple[tuple[int, ...], ...]
    """Kernel positions of each spatial dimension that contribute, in the order of the inputs they meet."""
    correlation: Correlation


@dataclass(frozen=True)
class ConvTranspose(Kernel):
    """
    ONNX ConvTranspose (opset 11): `output[n, m, p]` is `bias[m]` plus the sum of `input[n, c, i] * filter[c, m, q]`
    over the channels `c` of the group of `m` and all `i` and `q` with `i * stride - pad + q * dilation = p`.

    Output padding and the padding at the end are in the extents of the output.
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
    """Output elements cut off before the first one of each spatial dimension."""
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
    ) -> "ConvTranspose":
        """The convolution with the best tile for `isa`; default strides and dilations are 1, pads 0."""
        rank = len(kernel)
        conv = ConvTranspose(
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
        largest = max((phase.correlation for phase in conv.phases), key=lambda c: c.depth, default=None)
        if largest is None:
            return conv
        tile = choose_correlation_tile(
            largest.windows,
            largest.channels,
            largest.filters,
            isa,
            sum_dtype(output.dtype),
            is_depthwise=largest.is_depthwise,
        )
        return replace(conv, tile=tile)

    @property
    def phases(self) -> list[_Phase]:
        """All phases that have outputs, in row-major order of their remainders."""
        phases: list[_Phase] = []
        buffers = (self.output, *(self.epilogue.extras if self.epilogue else ()))
        channels, filters = self.input.shape[1], self.output.shape[1]
        is_depthwise = self.group == channels == filters and self.group > 1
        for remainders in product(*map(range, self.strides)):
            batch = self.output.shape[0]
            batch_strides = tuple(buffer.strides[0] for buffer in buffers)
            windows = [Window(batch, batch, 1, 1, 1, 0, (self.input.strides[0],), batch_strides)]
            taps: list[tuple[int, ...]] = []
            geometry = zip(self.kernel, self.strides, self.dilations, self.pads, remainders, strict=True)
            for d, (kernel, stride, dilation, pad, remainder) in enumerate(geometry, start=2):
                meeting = [q for q in range(kernel) if (remainder + pad - q * dilation) % stride == 0][::-1]
                inputs = [(remainder + pad - q * dilation) // stride for q in meeting]
                taps.append(tuple(meeting))
                windows.append(
                    Window(
                        max(-(-(self.output.shape[d] - remainder) // stride), 0),
                        self.input.shape[d],
                        len(meeting),
                        1,
                        inputs[1] - inputs[0] if len(inputs) > 1 else 1,
                        -inputs[0] if inputs else 0,
                        (self.input.strides[d],),
                        tuple(buffer.strides[d] * stride for buffer in buffers),
                    )
                )
            if prod(window.output for window in windows) == 0:
                continue
            planned = plan_windows(windows, is_depthwise=is_depthwise)
            if is_depthwise:
                correlation = Correlation(planned, 1, 1, filters, self.tile, is_depthwise=True)
            else:
                sizes = (self.group, channels // self.group, filters // self.group)
                correlation = Correlation(planned, *sizes, self.tile)
            phases.append(_Phase(remainders, tuple(taps), correlation))
        return phases

    @property
    def packing(self) -> Packing:
        """What `pack` depends on."""
        return Packing(
            f"packed-{[(p.taps, p.correlation.groups) for p in self.phases]}-{self.tile.packing}", self.pack
        )

    def pack(self, filter: np.ndarray) -> np.ndarray:
        """The filter argument from ONNX's (channels, filters / group, kernel...): one packed filter a phase."""
        parts = [np.zeros(0, filter.dtype)]
        for phase in self.phases:
            correlation = phase.correlation
            taps = filter[(slice(None), slice(None), *np.ix_(*phase.taps))]
            if correlation.is_depthwise:
                weights = taps.reshape(1, correlation.filters, 1, -1).transpose(0, 3, 2, 1)
            else:
                sizes = (correlation.groups, correlation.channels, correlation.filters)
                weights = taps.reshape(*sizes, prod(map(len, phase.taps))).transpose(0, 3, 1, 2)
            parts.append(correlation.pack(weights))
        return np.concatenate(parts)

    # --- the kernel ---

    @property
    def label(self) -> str:
        """For example `conv_transpose2d_56x56x64_3x3s2_64`."""
        sizes = "x".join(map(str, (*self.input.shape[2:], self.input.shape[1])))
        window = "x".join(map(str, self.kernel)) + "s" + "x".join(map(str, dict.fromkeys(self.strides)))
        group = f"g{self.group}" if self.group > 1 else ""
        return f"conv_transpose{len(self.kernel)}d_{sizes}_{window}{group}_{self.output.shape[1]}"

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        """Input, packed filter, bias, extras, output."""
        bias = (Buffer.contiguous((self.output.shape[1],), self.output.dtype),) if self.has_bias else ()
        extras = self.epilogue.extras if self.epilogue else ()
        size = sum(phase.correlation.packed_size for phase in self.phases)
        packed = Buffer.contiguous((size,), self.filter_dtype)
        return (self.input, packed, *bias, *extras, self.output)

    def build(self, isa: Isa) -> FuncOp:
        """The function, which reads nothing outside of its arguments and writes each output once."""
        k = KernelBuilder(self, isa)
        source, packed, *rest = k.views
        bias = rest.pop(0) if self.has_bias else None
        *extras, output = rest
        results = [output, *extras]
        weights_at = 0
        for phase in self.phases:
            builder = CorrelationBuilder(k, phase.correlation, [source], packed, bias, results, self.epilogue)
            offsets = [
                sum(r * s for r, s in zip(phase.remainders, view.buffer.strides[2:], strict=True))
                for view in results
            ]
            builder.build(weights_at, offsets)
            weights_at += phase.correlation.packed_size
        return k.finish()
