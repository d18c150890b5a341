"""Rows of buffers: what kernels for any number of rows have in common, which serve all stripes of a layer."""

from collections.abc import Sequence
from dataclasses import replace

from occamy_xdsl.lowering.cpu.kernels.spec import Buffer

LONG_ROW = 128
"""Elements of a row from which on loops over single rows take no longer than those over all elements."""


def row_of(buffer: Buffer, dim: int) -> Buffer:
    """The first row along a dimension, with the stride that rows have; other dimensions of one element have 0."""
    shape = list(buffer.shape)
    strides = [0 if size == 1 else stride for size, stride in zip(shape, buffer.strides, strict=True)]
    strides[dim] = row_stride(buffer, dim)
    shape[dim] = 1
    return replace(buffer, shape=tuple(shape), strides=tuple(strides))


def row_stride(buffer: Buffer, dim: int) -> int:
    """Elements between rows; where there is only one, those of rows that follow each other."""
    if buffer.shape[dim] != 1 or not buffer.strides[-1]:
        return buffer.strides[dim]
    within = replace(buffer, strides=(*buffer.strides[:dim], 0, *buffer.strides[dim:][1:]))
    return within.extent


def has_long_rows(buffers: Sequence[Buffer]) -> bool:
    """
    Whether elementwise work on buffers of one shape can go row by row, along the second to last dimension.

    The buffers are those of a kernel, the output last.
    """
    shape = buffers[-1].shape
    if len(shape) < 2 or 0 in shape or any(buffer.origin for buffer in buffers):
        return False
    return buffers[-1].elements >= LONG_ROW * shape[-2]


def shape_label(shape: Sequence[int], rows: int | None = None) -> str:
    """A shape as a part of a symbol, for example `1x64x56x56`; `1x64xnx56` for any number of rows along dimension 2."""
    sizes = list(map(str, shape))
    if rows is not None:
        sizes[rows] = "n"
    return "x".join(sizes)
