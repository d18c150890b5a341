"""
Support for ONNX operators, as data: one registered rule for each operator and range of opset versions.

A rule converts a node to the dnn dialect. The types of what it makes are the operator's shape rule, and the
values of what it folds are its constant folder, so the three cannot disagree.
"""

from occamy_xdsl.operators import (
    constants,
    control,
    convolution,
    elementwise,
    gathering,
    logical,
    matmul,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    resize,
)
from occamy_xdsl.operators.emitter import MAX_GROWTH, UNROLL, known_array
from occamy_xdsl.operators.registry import Operator, all_operators, find_operator
from occamy_xdsl.operators.translation import Fault, Translation, translate

_FAMILIES = (
    constants,
    control,
    convolution,
    elementwise,
    gathering,
    logical,
    matmul,
    movement,
    normalization,
    pooling,
    quantization,
    recurrent,
    reduction,
    resize,
)
"""Modules that register their rules when imported."""

__all__ = [
    "MAX_GROWTH",
    "UNROLL",
    "Fault",
    "Operator",
    "Translation",
    "all_operators",
    "find_operator",
    "known_array",
    "translate",
]
