"""Conv and ConvTranspose."""

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from occamy_xdsl.dialects.dnn import ConvOp, ConvTransposeOp
from occamy_xdsl.dialects.dnn.geometry import (
    resolve_auto_pad,
    transposed_window_output,
    window_extent,
    window_output,
)
from occamy_xdsl.operators.emitter import Emitter
from occamy_xdsl.operators.node import Node
from occamy_xdsl.operators.registry import operator


@dataclass(frozen=True)
class Windows:
    """The window attributes of a node, one entry a spatial dimension; `pads` are begins, then ends."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]

    @property
    def begins(self) -> tuple[int, ...]:
        return self.pads[: len(self.kernel)]

    @property
    def ends(self) -> tuple[int, ...]:
        return self.pads[len(self.kernel) :]


def read_windows(node: Node, kernel: Sequence[int]) -> Windows:
    """The node's window attributes with their defaults; `auto_pad` is not applied."""
    rank = len(kernel)
    strides = tuple(node.attr("strides") or (1,) * rank)
    dilations = tuple(node.attr("dilations") or (1,) * rank)
    pads = tuple(node.attr("pads") or (0,) * (2 * rank))
    if len(strides) != rank or len(dilations) != rank or len(pads) != 2 * rank:
        node.reject(
            f"needs {rank} strides and dilations and {2 * rank} pads, "
            f"got {list(strides)}, {list(dilations)} and {list(pads)}"
        )
    if min((*kernel, *strides, *dilations), default=1) < 1:
        node.reject(
            f"kernel, strides and dilations must be positive, "
            f"got {list(kernel)}, {list(strides)} and {list(dilations)}"
        )
    return Windows(tuple(kernel), strides, dilations, pads)


def place_windows(node: Node, kernel: Sequence[int], *, ceil_mode: bool = False) -> tuple[Windows, list[int]]:
    """The node's windows with explicit pads, and the spatial sizes of its result."""
    sizes = node.shape(0)[2:]
    if len(sizes) != len(kernel):
        node.reject(f"kernel {list(kernel)} does not fit an input of shape {list(node.shape(0))}")
    read = read_windows(node, kernel)
    mode = node.attr("auto_pad", "NOTSET")
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        node.reject(f"auto_pad is {mode!r}")
    pairs = [
        resolve_auto_pad(mode, *window)
        for window in zip(
            sizes,
            read.kernel,
            read.strides,
            read.dilations,
            zip(read.begins, read.ends, strict=True),
            strict=True,
        )
    ]
    result = [
        window_output(size, k, stride, dilation, pair, ceil_mode)
        for size, k, stride, dilation, pair in zip(
            sizes, read.kernel, read.strides, read.dilations, pairs, strict=True
        )
    ]
    pads = (*(begin for begin, _ in pairs), *(end for _, end in pairs))
    if 0 in result and 0 not in sizes:
        extents = [
            window_extent(k, dilation) for k, dilation in zip(read.kernel, read.dilations, strict=True)
        ]
        node.reject(
            f"a window of {extents} elements is larger than the input, {list(sizes)} and pads {list(pads)}"
        )
    return Windows(read.kernel, read.strides, read.dilations, pads), result


def kernel_of(node: Node, index: int = 1) -> tuple[int, ...]:
    """The spatial sizes of the filter, operand `index`, which `kernel_shape` may only repeat."""
    filter = node.shape(index)
    if len(filter) < 3 or len(filter) != node.rank(0):
        node.reject(f"input {list(node.shape(0))} and filter {list(filter)} need one rank of 3 or more")
    declared = node.attr("kernel_shape")
    if declared is not None and tuple(declared) != filter[2:]:
        node.reject(f"kernel_shape {list(declared)} contradicts the filter's shape {list(filter)}")
    return filter[2:]


CONSTANT_FILTER = (
    "a filter that is computed at run time is refused on the CPU, whose kernels read packed ones"
)


@operator("Conv", limits=CONSTANT_FILTER)
def conv(node: Node, emit: Emitter) -> SSAValue:
    windows, sizes = place_windows(node, kernel_of(node))
    result = TensorType(node.element(), (node.shape(0)[0], node.shape(1)[0], *sizes))
    return emit.add(
        ConvOp(
            node[0],
            node[1],
            node.optional(2),
            result,
            strides=windows.strides,
            pads=windows.pads,
            dilations=windows.dilations,
            group=node.attr("group"),
        )
    )


@operator("ConvTranspose", limits=CONSTANT_FILTER)
def conv_transpose(node: Node, emit: Emitter) -> SSAValue:
    windows = read_windows(node, kernel_of(node))
    group: int = node.attr("group")
    rank = len(windows.kernel)
    extra = tuple(node.attr("output_padding") or (0,) * rank)
    if len(extra) != rank:
        node.reject(f"needs {rank} output paddings, got {list(extra)}")
    pads = _transposed_pads(node, windows, extra)
    sizes = [
        transposed_window_output(*window)
        for window in zip(
            node.shape(0)[2:],
            windows.kernel,
            windows.strides,
            windows.dilations,
            zip(pads[:rank], pads[rank:], strict=True),
            extra,
            strict=True,
        )
    ]
    if min(sizes) < 0:
        node.reject(f"pads {list(pads)} crop more than there is")
    result = TensorType(node.element(), (node.shape(0)[0], node.shape(1)[1] * group, *sizes))
    return emit.add(
        ConvTransposeOp(
            node[0],
            node[1],
            node.optional(2),
            result,
            strides=windows.strides,
            pads=pads,
            dilations=windows.dilations,
            output_padding=extra,
            group=group,
        )
    )


def _transposed_pads(node: Node, windows: Windows, extra: Sequence[int]) -> tuple[int, ...]:
    """
    The pads of a transposed convolution: those stated, or those that give `output_shape` or SAME_*'s size.

    Source: ONNX ConvTranspose-22: the odd element goes to the end for SAME_UPPER, else to the beginning.
    """
    mode = node.attr("auto_pad", "NOTSET")
    wanted = node.attr("output_shape")
    if wanted is None and mode == "NOTSET":
        return windows.pads
    if wanted is None and mode == "VALID":
        return (0,) * len(windows.pads)
    inputs = node.shape(0)[2:]
    if wanted is None:
        wanted = [size * stride for size, stride in zip(inputs, windows.strides, strict=True)]
    if len(wanted) != len(inputs):
        node.reject(f"needs {len(inputs)} sizes in output_shape, got {list(wanted)}")
    begins, ends = list[int](), list[int]()
    for size, kernel, stride, dilation, more, want in zip(
        inputs, windows.kernel, windows.strides, windows.dilations, extra, wanted, strict=True
    ):
        total = stride * (size - 1) + more + window_extent(kernel, dilation) - want
        small, large = total // 2, total - total // 2
        upper = mode == "SAME_UPPER"
        begins.append(small if upper else large)
        ends.append(large if upper else small)
    return (*begins, *ends)
