"""Resize and Upsample."""

from collections.abc import Sequence
from math import floor

import numpy as np
from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from occamy_xdsl.dialects.dnn import ResizeOp
from occamy_xdsl.operators.emitter import Emitter
from occamy_xdsl.operators.node import Node
from occamy_xdsl.operators.registry import operator


def _resize(
    node: Node,
    emit: Emitter,
    sizes: Sequence[int],
    scales: Sequence[float],
    *,
    transformation: str,
    rounding: str,
) -> SSAValue:
    mode = node.attr("mode")
    mode = "linear" if mode == "bilinear" else mode
    if mode not in ResizeOp.MODES:
        node.reject(f"mode is {mode!r}")
    if 0 in sizes:
        return emit.fill(0, sizes, node.element())
    if 0 in node.shape() or min(sizes, default=1) < 0:
        node.reject(f"cannot resize shape {list(node.shape())} to {list(sizes)}")
    if tuple(sizes) == node.shape() and all(scale == 1 for scale in scales):
        return node[0]
    return emit.add(
        ResizeOp(
            node[0],
            TensorType(node.element(), sizes),
            mode=mode,
            coordinate_transformation_mode=transformation,
            scales=scales,
            nearest_mode=rounding,
            cubic_coeff_a=node.attr("cubic_coeff_a", -0.75),
            exclude_outside=node.flag("exclude_outside"),
        )
    )


def _scaled(node: Node, scales: Sequence[float]) -> list[int]:
    if len(scales) != node.rank() or min(scales, default=1) <= 0:
        node.reject(f"needs {node.rank()} positive scales, got {list(scales)}")
    # In f32, as ONNX's own shape inference: 10 * 0.7 is 7 there and less in f64.
    return [
        floor(np.float32(size) * np.float32(scale)) for size, scale in zip(node.shape(), scales, strict=True)
    ]


def _decimal(scale: float) -> float:
    """The short decimal that an f32 scale was written as, so that coordinates tie where they were meant to."""
    return float(str(np.float32(scale)))


def _floats(node: Node, index: int) -> list[float]:
    return [_decimal(v) for v in node.known(index, "scales").ravel()]


@operator("Upsample", since=7)
def upsample_by_attribute(node: Node, emit: Emitter) -> SSAValue:
    scales = [_decimal(s) for s in node.attr("scales")]
    return _resize(node, emit, _scaled(node, scales), scales, transformation="asymmetric", rounding="floor")


@operator("Upsample", since=9)
@operator("Resize", since=10)
def resize_by_scales(node: Node, emit: Emitter) -> SSAValue:
    """Resize-10 and Upsample read pixel floor(x / scale)."""
    scales = _floats(node, 1)
    return _resize(node, emit, _scaled(node, scales), scales, transformation="asymmetric", rounding="floor")


@operator("Resize", since=11, limits="antialias; tf_crop_and_resize (roi)")
def resize(node: Node, emit: Emitter) -> SSAValue:
    transformation = node.attr("coordinate_transformation_mode")
    if transformation == "tf_crop_and_resize":
        node.refuse("coordinate_transformation_mode tf_crop_and_resize")
    if node.flag("antialias"):
        node.refuse("antialias")
    shape = node.shape()
    axes = node.axes(tuple(node.attr("axes") or range(len(shape))), len(shape))
    # Before opset 13 an absent operand may be an empty tensor.
    given = node.known_ints(3, "sizes") if node.has(3) else []
    if not given:
        scales = [1.0] * len(shape)
        stated = _floats(node, 2)
        if len(stated) != len(axes):
            node.reject(f"needs {len(axes)} scales, got {stated}")
        for axis, scale in zip(axes, stated, strict=True):
            scales[axis] = scale
        sizes = _scaled(node, scales)
    else:
        if len(given) != len(axes):
            node.reject(f"needs {len(axes)} sizes, got {given}")
        sizes, scales = _sizes_and_scales(node, axes, given)
    return _resize(
        node,
        emit,
        sizes,
        scales,
        transformation=transformation,
        rounding=node.attr("nearest_mode"),
    )


def _sizes_and_scales(node: Node, axes: Sequence[int], given: Sequence[int]) -> tuple[list[int], list[float]]:
    """Result sizes and scales for `given` sizes of `axes`, by keep_aspect_ratio_policy."""
    sizes, scales = list(node.shape()), [1.0] * node.rank()
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    ratios = [want / max(sizes[axis], 1) for axis, want in zip(axes, given, strict=True)]
    if policy in ("not_larger", "not_smaller"):
        common = min(ratios) if policy == "not_larger" else max(ratios)
        for axis in axes:
            scales[axis] = common
            sizes[axis] = floor(common * sizes[axis] + 0.5)
        return sizes, scales
    if policy != "stretch":
        node.reject(f"keep_aspect_ratio_policy is {policy!r}")
    for axis, want, ratio in zip(axes, given, ratios, strict=True):
        sizes[axis], scales[axis] = want, ratio
    return sizes, scales
