"""Result types by the onnx package's own inference, for nodes that our operators do not cover."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import onnx
import onnx.helper
import onnx.shape_inference
from onnx import TypeProto
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, FloatAttr, IntegerAttr, StringAttr, TensorType
from xdsl.ir import Attribute, SSAValue

from occamy_xdsl.dialects.dnn import element_type_of, shape_of
from occamy_xdsl.dialects.onnx import OnnxOp, data_type, element_type, from_attribute
from occamy_xdsl.operators.emitter import known_array


def infer_by_schema(op: OnnxOp, operands: Sequence[SSAValue | None]) -> list[Attribute | None]:
    """
    The type of each result of `op` for operands of static type; None where it cannot be told.

    Attributes that are tensors or graphs are left out, and so results that need them stay unknown.
    """
    unknown: list[Attribute | None] = [None] * len(op.results)
    if any(operand is None for operand in operands) or op.regions:
        return unknown
    inputs = {f"i{index}": value for index, value in enumerate(operands) if value is not None}
    node = onnx.helper.make_node(
        op.schema.name,
        list(inputs),
        [f"o{index}" for index in range(len(op.results))],
        domain=op.schema.domain,
        **{
            name: from_attribute(cast(Any, attribute))
            for name, attribute in op.properties.items()
            if isinstance(attribute, IntegerAttr | FloatAttr | StringAttr | DenseArrayBase | ArrayAttr)
        },
    )
    try:
        types = {
            name: onnx.helper.make_tensor_type_proto(data_type(element_type_of(value)), shape_of(value))
            for name, value in inputs.items()
        }
        small = {
            name: onnx.numpy_helper.from_array(array)
            for name, value in inputs.items()
            if (array := known_array(value)) is not None
        }
        inferred = onnx.shape_inference.infer_node_outputs(op.schema, node, types, small)
    except Exception:  # the C++ inference's exceptions have no common base
        return unknown
    return [_static(inferred.get(f"o{index}")) for index in range(len(op.results))]


def _static(proto: TypeProto | None) -> Attribute | None:
    """The tensor type of static shape that `proto` describes, None where it describes none."""
    if proto is None or not proto.HasField("tensor_type") or not proto.tensor_type.HasField("shape"):
        return None
    sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in proto.tensor_type.shape.dim]
    if min(sizes, default=0) < 0:
        return None
    try:
        element = element_type(proto.tensor_type.elem_type)
    except KeyError:
        return None
    return TensorType(element, sizes)
