"""Interpolation along one dimension as tables of source positions and weights: the meaning of `dnn.resize`."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]


def source_coordinates(transformation: str, scale: float, in_size: int, out_size: int) -> Floats:
    """
    Position in the input, in elements, that each of `out_size` outputs comes from.

    `transformation` is one of `ResizeOp.TRANSFORMATIONS`, `scale` is output size / input size as the model
    gave it. Source: ONNX Resize-19 (tf_half_pixel_for_nn: Resize-11).
    """
    x = np.arange(out_size, dtype=np.float64)
    match transformation:
        case "half_pixel":
            return (x + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            centre = in_size / 2 * (1 - out_size / (scale * in_size))
            return centre + (x + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (x + 0.5) / scale - 0.5 if out_size > 1 else np.zeros_like(x)
        case "align_corners":
            # The unrounded output size, as ONNX's reference implementation has it.
            return x * (in_size - 1) / (scale * in_size - 1) if out_size > 1 else np.zeros_like(x)
        case "asymmetric":
            return x / scale
        case "tf_half_pixel_for_nn":
            return (x + 0.5) / scale
        case _:
            raise ValueError(f"unknown coordinate transformation '{transformation}'")


def nearest_indices(coordinates: Floats, nearest_mode: str) -> Integers:
    """The element that stands for each coordinate, by one of `ResizeOp.NEAREST_MODES`; not yet clamped."""
    match nearest_mode:
        case "round_prefer_floor":
            rounded = np.ceil(coordinates - 0.5)
        case "round_prefer_ceil":
            rounded = np.floor(coordinates + 0.5)
        case "floor":
            rounded = np.floor(coordinates)
        case "ceil":
            rounded = np.ceil(coordinates)
        case _:
            raise ValueError(f"unknown nearest mode '{nearest_mode}'")
    return rounded.astype(np.int64)


def cubic_weights(ratio: Floats, a: float) -> Floats:
    """
    Weights [len(ratio), 4] of the elements 1 before to 2 after coordinates that lie `ratio` past an element.

    Source: R. Keys, Cubic convolution interpolation for digital image processing, 1981.
    """

    def near(t: Floats) -> Floats:
        return ((a + 2) * t - (a + 3)) * t * t + 1

    def far(t: Floats) -> Floats:
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

    return np.stack([far(ratio + 1), near(ratio), near(1 - ratio), far(2 - ratio)], axis=1)


def resize_taps(
    mode: str,
    coordinate_transformation_mode: str,
    nearest_mode: str,
    cubic_coeff_a: float,
    exclude_outside: bool,
    scale: float,
    in_size: int,
    out_size: int,
) -> tuple[Integers, Floats]:
    """
    For each output along one dimension, the input elements it is the weighted sum of.

    Returns (indices, weights), both [out_size, taps], all indices inside the input. Taps that weigh nothing
    for every output are left out, so a dimension that keeps its size has one tap of weight 1. The first
    arguments are the attributes of `dnn.resize`. Source: ONNX Resize-19.
    """
    coordinates = source_coordinates(coordinate_transformation_mode, scale, in_size, out_size)
    if mode == "nearest":
        indices = nearest_indices(coordinates, nearest_mode)[:, None]
        weights = np.ones(indices.shape)
    else:
        floor = np.floor(coordinates)
        ratio = coordinates - floor
        if mode == "linear":
            offsets, weights = np.arange(0, 2), np.stack([1 - ratio, ratio], axis=1)
        elif mode == "cubic":
            offsets, weights = np.arange(-1, 3), cubic_weights(ratio, cubic_coeff_a)
        else:
            raise ValueError(f"unknown resize mode '{mode}'")
        indices = floor.astype(np.int64)[:, None] + offsets
        if exclude_outside:
            weights = np.where((indices >= 0) & (indices < in_size), weights, 0.0)
            total = weights.sum(axis=1, keepdims=True)
            weights = weights / np.where(total == 0, 1.0, total)
    used: npt.NDArray[np.bool_] = np.any(weights != 0, axis=0)
    if not out_size:
        used[0] = True
    return np.clip(indices[:, used], 0, max(in_size - 1, 0)), weights[:, used]
