"""
What cuDNN's descriptors mean: shapes, limits, workspace and the numpy form of each function.

Source: cuDNN 9 API reference, cudnn_ops and cudnn_cnn libraries.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from occamy_xdsl.lowering.cuda.api import CONSTANTS
from occamy_xdsl.simulator.faults import FaultError, RefusalError
from occamy_xdsl.simulator.memory import Region
from occamy_xdsl.simulator.ptx.arithmetic import Array

BAD_PARAM = CONSTANTS["CUDNN_STATUS_BAD_PARAM"]
NOT_SUPPORTED = CONSTANTS["CUDNN_STATUS_NOT_SUPPORTED"]

_DTYPES: dict[int, Any] = {
    CONSTANTS["CUDNN_DATA_FLOAT"]: np.float32,
    CONSTANTS["CUDNN_DATA_DOUBLE"]: np.float64,
    CONSTANTS["CUDNN_DATA_HALF"]: np.float16,
}
(_IMPLICIT_GEMM, PRECOMPUTED, _GEMM, _DIRECT, _FFT, _FFT_TILING, _WINOGRAD, _WINOGRAD_NONFUSED) = (
    CONSTANTS[f"CUDNN_CONVOLUTION_FWD_ALGO_{name}"]
    for name in (
        "IMPLICIT_GEMM",
        "IMPLICIT_PRECOMP_GEMM",
        "GEMM",
        "DIRECT",
        "FFT",
        "FFT_TILING",
        "WINOGRAD",
        "WINOGRAD_NONFUSED",
    )
)


@dataclass(eq=False)
class Tensor:
    """A tensor or filter descriptor; empty until it is set."""

    shape: tuple[int, ...] = ()
    """Logical dimensions: N, C and the spatial ones, or K, C and those of the filter."""
    strides: tuple[int, ...] = ()
    """Elements between neighbours."""
    dtype: Any = None
    channels_last: bool = False

    def set(self, shape: Sequence[int], dtype: int, *, strides: Sequence[int] = (), format_: int = 0) -> None:
        """Describe a tensor by strides, or packed in a cudnnTensorFormat_t."""
        if dtype not in _DTYPES:
            raise RefusalError(NOT_SUPPORTED, f"the simulator has no cuDNN data type {dtype}")
        if format_ not in (CONSTANTS["CUDNN_TENSOR_NCHW"], CONSTANTS["CUDNN_TENSOR_NHWC"]):
            raise RefusalError(NOT_SUPPORTED, f"the simulator has no cuDNN tensor format {format_}")
        if min(shape) < 1 or min(strides, default=1) < 1:
            raise RefusalError(
                BAD_PARAM, f"dimensions {tuple(shape)} or strides {tuple(strides)} are not positive"
            )
        self.shape, self.dtype = tuple(shape), _DTYPES[dtype]
        self.channels_last = format_ == CONSTANTS["CUDNN_TENSOR_NHWC"]
        if not strides:
            order = [0, *range(2, len(shape)), 1] if self.channels_last else list(range(len(shape)))
            packed = dict(
                zip(order, (prod(shape[j] for j in order[i + 1 :]) for i in range(len(shape))), strict=True)
            )
            strides = [packed[i] for i in range(len(shape))]
        self.strides = tuple(strides)

    def at(self, address: int | None, what: str) -> Region:
        """The tensor at an address of the device."""
        if not address:
            raise FaultError(f"{what} is a null pointer")
        if not self.shape:
            raise FaultError(f"the descriptor of {what} was never set")
        return Region(address, self.shape, self.strides, self.dtype)


@dataclass(eq=False)
class Filter(Tensor):
    """A filter descriptor."""


@dataclass(eq=False)
class Convolution:
    """A convolution descriptor, one entry for each spatial dimension."""

    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    flipped: bool = False
    groups: int = 1
    math_type: int = 0

    def output_shape(self, x: Tensor, w: Filter) -> tuple[int, ...]:
        """Dimensions of the result (cudnnGetConvolutionNdForwardOutputDim); raises RefusalError."""
        if not (len(x.shape) == len(w.shape) == len(self.pads) + 2):
            raise RefusalError(BAD_PARAM, "input, filter and convolution differ in rank")
        if x.shape[1] != w.shape[1] * self.groups or w.shape[0] % self.groups:
            fact = f"{x.shape[1]} input channels, filter of shape {w.shape}, {self.groups} groups"
            raise RefusalError(BAD_PARAM, fact)
        sizes = zip(x.shape[2:], w.shape[2:], self.pads, self.strides, self.dilations, strict=True)
        spatial = [1 + (n + 2 * p - (d * (k - 1) + 1)) // s for n, k, p, s, d in sizes]
        return x.shape[0], w.shape[0], *spatial


@dataclass(eq=False)
class Pooling:
    """A pooling descriptor, one entry for each spatial dimension."""

    mode: int = 0
    propagates_nan: bool = True
    window: tuple[int, ...] = ()
    pads: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()


@dataclass(eq=False)
class Activation:
    """An activation descriptor."""

    mode: int | None = None
    propagates_nan: bool = True
    coefficient: float = 0.0


@dataclass(frozen=True)
class Problem:
    """A convolution as its workspace depends on it; shapes without the batch are per image."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    element_bytes: int
    groups: int


WorkspaceModel: TypeAlias = Callable[[int, Problem], int]
"""Bytes of workspace that an algorithm needs for a problem."""


def default_workspace_bytes(algorithm: int, problem: Problem) -> int:
    """
    A rough model of cuDNN's needs: none for IMPLICIT_GEMM, an index table for PRECOMP, im2col for GEMM.

    The true numbers depend on device and version; they are only known from a device.
    """
    taps = prod(problem.w[1:])
    outputs = prod(problem.y[2:])
    match algorithm:
        case _ if algorithm == _IMPLICIT_GEMM:
            return 0
        case _ if algorithm == PRECOMPUTED:
            return 8 * taps + 4 * outputs
        case _ if algorithm == _GEMM:
            return problem.element_bytes * taps * outputs
        case _ if algorithm in (_FFT, _FFT_TILING):
            return 8 * 32 * 32 * (problem.x[1] + problem.w[0]) * (1 + problem.x[0])
        case _:
            return 16 * problem.element_bytes * (problem.w[0] * problem.w[1] + problem.x[1] + problem.y[1])


def check_algorithm(algorithm: int, convolution: Convolution, w: Filter) -> None:
    """Raise RefusalError where an algorithm does not support a problem (cudnnConvolutionForward, Table)."""
    unit_strides = set(convolution.strides) == {1}
    unit_dilations = set(convolution.dilations) == {1}
    window = w.shape[2:]
    supported = {
        _IMPLICIT_GEMM: True,
        PRECOMPUTED: True,
        _GEMM: unit_dilations,
        _DIRECT: False,
        _FFT: unit_strides and unit_dilations,
        _FFT_TILING: unit_strides and unit_dilations,
        _WINOGRAD: window == (3, 3) and unit_strides and unit_dilations,
        _WINOGRAD_NONFUSED: window in ((3, 3), (5, 5)) and unit_strides and unit_dilations,
    }
    if not supported.get(algorithm, False):
        raise RefusalError(NOT_SUPPORTED, f"algorithm {algorithm} does not support this convolution")


# --- numpy ------------------------------------------------------------------------------------------------


def convolve(x: Array, w: Array, convolution: Convolution) -> Array:
    """Convolution of float arrays, any number of spatial dimensions, padded with zeros on both sides."""
    padded = np.pad(x, [(0, 0), (0, 0), *((p, p) for p in convolution.pads)])
    extents = [d * (k - 1) + 1 for k, d in zip(w.shape[2:], convolution.dilations, strict=True)]
    spatial = tuple(range(2, x.ndim))
    windows = sliding_window_view(padded, extents, axis=spatial)
    steps = [slice(None, None, s) for s in convolution.strides]
    taps = [slice(None, None, d) for d in convolution.dilations]
    windows = windows[(slice(None), slice(None), *steps, *taps)]
    if convolution.flipped:
        w = np.flip(w, spatial)
    axes = [1, *range(x.ndim, windows.ndim)], [1, *spatial]
    inputs = np.split(windows, convolution.groups, axis=1)
    filters = np.split(w, convolution.groups, axis=0)
    parts = [np.tensordot(a, b, axes=axes) for a, b in zip(inputs, filters, strict=True)]
    return np.moveaxis(np.concatenate(parts, axis=-1), -1, 1)


def convolve_back(dy: Array, w: Array, convolution: Convolution, shape: Sequence[int]) -> Array:
    """The adjoint of `convolve`: every element of `dy` adds its multiple of the filter to a `shape` array."""
    padded = [n + 2 * p for n, p in zip(shape[2:], convolution.pads, strict=True)]
    result = np.zeros((*shape[:2], *padded), dy.dtype)
    if convolution.flipped:
        w = np.flip(w, tuple(range(2, w.ndim)))
    targets = np.split(result, convolution.groups, axis=1)
    parts = np.split(dy, convolution.groups, axis=1), np.split(w, convolution.groups, axis=0)
    for target, values, filter_ in zip(targets, *parts, strict=True):
        for tap in np.ndindex(*w.shape[2:]):
            places = tuple(
                slice(t * d, t * d + s * (n - 1) + 1, s)
                for t, d, s, n in zip(
                    tap, convolution.dilations, convolution.strides, dy.shape[2:], strict=True
                )
            )
            product = np.tensordot(values, filter_[(slice(None), slice(None), *tap)], axes=([1], [0]))
            target[(slice(None), slice(None), *places)] += np.moveaxis(product, -1, 1)
    inner = tuple(slice(p, p + n) for p, n in zip(convolution.pads, shape[2:], strict=True))
    return result[(slice(None), slice(None), *inner)]


def pool(x: Array, pooling: Pooling) -> Array:
    """Maximum or average over windows."""
    spatial = tuple(range(2, x.ndim))
    is_max = pooling.mode in (
        CONSTANTS["CUDNN_POOLING_MAX"],
        CONSTANTS["CUDNN_POOLING_MAX_DETERMINISTIC"],
    )

    def windows(array: Array, fill: float) -> Array:
        padded = np.pad(array, [(0, 0), (0, 0), *((p, p) for p in pooling.pads)], constant_values=fill)
        steps = [slice(None, None, s) for s in pooling.strides]
        return sliding_window_view(padded, pooling.window, axis=spatial)[(slice(None), slice(None), *steps)]

    reduced = tuple(range(x.ndim, 2 * x.ndim - 2))
    if is_max:
        maximum = np.maximum if pooling.propagates_nan else np.fmax
        return maximum.reduce(windows(x, -np.inf), axis=reduced)
    total = windows(x, 0).sum(axis=reduced)
    if pooling.mode == CONSTANTS["CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING"]:
        return total / prod(pooling.window)
    return total / windows(np.ones_like(x), 0).sum(axis=reduced)


def softmax(x: Array, algorithm: int, axes: tuple[int, ...]) -> Array:
    """Softmax over the given axes; FAST does not subtract the maximum."""
    if algorithm == CONSTANTS["CUDNN_SOFTMAX_FAST"]:
        exponentials = np.exp(x)
        return exponentials / exponentials.sum(axis=axes, keepdims=True)
    shifted = x - x.max(axis=axes, keepdims=True)
    total = np.exp(shifted).sum(axis=axes, keepdims=True)
    if algorithm == CONSTANTS["CUDNN_SOFTMAX_LOG"]:
        return shifted - np.log(total)
    return np.exp(shifted) / total
