"""
The geometry of sliding windows and broadcasting, shared by shape inference, verifiers and kernels.

Sizes are in elements along one dimension. Source: ONNX operator specifications of Conv-22, ConvTranspose-22,
MaxPool-22 and AveragePool-22 (formulas unchanged since opset 1, `ceil_mode` since 10).
"""

from collections.abc import Sequence
from itertools import pairwise, zip_longest
from math import prod
from typing import Literal

AutoPad = Literal["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]


def window_extent(kernel: int, dilation: int) -> int:
    """Elements that a dilated window spans."""
    return (kernel - 1) * dilation + 1


def window_output(
    size: int,
    kernel: int,
    stride: int,
    dilation: int,
    pads: tuple[int, int],
    ceil_mode: bool = False,
) -> int:
    """
    Number of window positions over `size` elements padded by `pads` (begin, end); 0 where none fits.

    With `ceil_mode` a last window may overhang the end, but must start inside the data or the begin padding.
    """
    room = size + pads[0] + pads[1] - window_extent(kernel, dilation)
    if not ceil_mode:
        return max(room // stride + 1, 0)
    count = -(-room // stride) + 1
    if (count - 1) * stride >= size + pads[0]:
        count -= 1
    return max(count, 0)


def transposed_window_output(
    size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int], output_padding: int
) -> int:
    """Output elements of a transposed convolution: the inverse of `window_output`."""
    return stride * (size - 1) + output_padding + window_extent(kernel, dilation) - pads[0] - pads[1]


def resolve_auto_pad(
    mode: AutoPad, size: int, kernel: int, stride: int, dilation: int, pads: tuple[int, int]
) -> tuple[int, int]:
    """
    Explicit (begin, end) padding for ONNX's `auto_pad`; `pads` itself where the mode is NOTSET.

    SAME_* keeps ceil(size / stride) outputs; the odd element goes to the end (UPPER) or the beginning (LOWER).
    """
    if mode == "NOTSET":
        return pads
    if mode == "VALID":
        return 0, 0
    output = -(-size // stride)
    total = max((output - 1) * stride + window_extent(kernel, dilation) - size, 0)
    small, large = total // 2, total - total // 2
    return (small, large) if mode == "SAME_UPPER" else (large, small)


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...] | None:
    """The shape that numpy broadcasting gives, None where the shapes do not agree."""
    result = list[int]()
    for sizes in zip_longest(*(reversed(shape) for shape in shapes), fillvalue=1):
        wide = {size for size in sizes if size != 1}
        if len(wide) > 1:
            return None
        result.append(wide.pop() if wide else 1)
    return tuple(reversed(result))


def is_channel_vector(shape: Sequence[int], rank: int, channel: int, channels: int) -> bool:
    """
    Whether a tensor of `shape`, broadcast to `rank` dimensions, has one element in all or one for each of the
    `channels` positions of dimension `channel`.
    """
    lead = rank - len(shape)
    sizes = {dim + lead: size for dim, size in enumerate(shape)}
    return lead >= 0 and all(
        size == 1 or (dim == channel and size == channels) for dim, size in sizes.items()
    )


def broadcast_strides(shape: Sequence[int], strides: Sequence[int], result: Sequence[int]) -> tuple[int, ...]:
    """
    Strides, in elements, that read a buffer of `shape` as if it had the broadcast shape `result`.

    Broadcast dimensions get stride 0. `shape` must broadcast to `result`.
    """
    lead = len(result) - len(shape)
    aligned = zip(result[lead:], shape, strides, strict=True)
    return (0,) * lead + tuple(0 if have == 1 and want != 1 else stride for want, have, stride in aligned)


def contiguous_strides(shape: Sequence[int], order: Sequence[int] | None = None) -> tuple[int, ...]:
    """
    Dense strides in elements. `order` lists the dimensions from outermost to innermost in memory
    (row-major where it is None): (0, 2, 3, 1) stores NCHW data channels-last.
    """
    strides, step = [0] * len(shape), 1
    for dim in reversed(order if order is not None else range(len(shape))):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def reshaped_strides(
    shape: Sequence[int], strides: Sequence[int], result: Sequence[int]
) -> tuple[int, ...] | None:
    """
    Strides, in elements, that read a strided buffer of `shape` as if it were reshaped (row-major) to `result`.

    None where no such strides exist, so that the elements have to be copied. Both shapes have equally many
    elements.
    """
    if 0 in result:
        return contiguous_strides(result)
    dims = [(size, stride) for size, stride in zip(shape, strides, strict=True) if size != 1]
    out = [0] * len(result)
    wanted = [dim for dim, size in enumerate(result) if size != 1]
    while wanted:
        # The smallest run of dimensions on each side that covers the same elements.
        have, want = 1, 1
        group, split = list[tuple[int, int]](), list[int]()
        while have == 1 or have != want:
            if have <= want:
                size, stride = dims.pop(0)
                have *= size
                group.append((size, stride))
            else:
                split.append(wanted.pop(0))
                want *= result[split[-1]]
        for (_, outer), (size, inner) in pairwise(group):
            if outer != size * inner:
                return None
        step = group[-1][1]
        for dim in reversed(split):
            out[dim] = step
            step *= result[dim]
    # A dimension of one element may have any stride; the contiguous one keeps types equal.
    for dim in range(len(result) - 1, -1, -1):
        if result[dim] == 1:
            out[dim] = out[dim + 1] * result[dim + 1] if dim + 1 < len(result) else 1
    return tuple(out)


def unreshaped_vector(
    part: Sequence[int], shape: Sequence[int], source: Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """
    What broadcasts to `source` as a tensor of shape `part`, of the same rank, does to `shape`, a reshape of `source`.

    It is the tensor, broadcast to the first of the two shapes returned, in the second one. No size may be 0.
    """
    middle, result = list[int](), list[int]()
    ours, theirs = list(zip(part, shape, strict=True)), list(source)
    while ours or theirs:
        # The smallest run of dimensions on each side that covers the same elements.
        run, other = ours[:1], theirs[:1]
        del ours[:1], theirs[:1]
        while (have := prod(size for _, size in run)) != (want := prod(other)):
            if have < want:
                run.append(ours.pop(0))
            else:
                other.append(theirs.pop(0))
        varies = any(own != 1 for own, _ in run)
        middle += [size if varies else 1 for _, size in run]
        result += [size if varies else 1 for size in other]
    return tuple(middle), tuple(result)
