"""Translates a function of the onnx dialect to the dnn dialect, in one sweep, into a block of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    ArrayAttr,
    NoneType,
    TensorType,
    UnrankedTensorType,
    UnrealizedConversionCastOp,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, SSAValue

from occamy_xdsl.dialects import dnn, onnx
from occamy_xdsl.dialects.dnn import ValueType, byte_size, element_type_of, shape_of
from occamy_xdsl.dialects.signature import argument_attributes, argument_names
from occamy_xdsl.dialects.weights import string_value
from occamy_xdsl.errors import InvalidInputError, UnsupportedModelError
from occamy_xdsl.operators.emitter import (
    ELEMENT_TYPES,
    MAX_TENSOR_BYTES,
    UNROLL,
    Emitter,
    InvalidNodeError,
    UnsupportedNodeError,
)
from occamy_xdsl.operators.node import Node, ReportedNodeError
from occamy_xdsl.operators.registry import find_operator
from occamy_xdsl.operators.schema_inference import infer_by_schema

Fault = tuple[str, str, str]
"""Node name, operator, reason."""


@dataclass
class Translation:
    """
    What became of a function: `block` takes its arguments and computes in the dnn dialect.

    `values` maps values of the function to values of the block. `refused` lists nodes that are not supported,
    `invalid` nodes that contradict ONNX; an unrealized cast stands for each result of such a node, if its type
    is known. The block has no terminator before `finish`.
    """

    block: Block
    values: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    refused: list[Fault] = field(default_factory=list[Fault])
    invalid: list[Fault] = field(default_factory=list[Fault])

    def finish(self, last: ReturnOp) -> None:
        """Returns what `last` returns, each in storage of its own, and drops the ops whose results none reads."""
        emit = Emitter(self.block)
        emit.location = last.location
        returned = list[SSAValue]()
        for value in last.operands:
            new = self.values[value]
            if new in returned or isinstance(new.owner, Block | dnn.ConstantOp):
                new = emit.copy(new)
            returned.append(new)
        self.block.add_op(ReturnOp(*returned))
        _erase_unused(self.block)


def _erase_unused(block: Block) -> None:
    """Drops the ops of a block, and of those inside it, whose results none reads."""
    for op in reversed(tuple(block.ops)):
        if op.results and not any(result.uses for result in op.results):
            block.erase_op(op)
        elif isinstance(op, dnn.ControlOp):
            for inner in op.blocks:
                _erase_unused(inner)


def translate(function: FuncOp, unroll: int = UNROLL) -> Translation:
    """
    Translates `function` of the onnx dialect; it stays as it is. A loop of a known number of iterations is unrolled
    where at most `unroll` nodes come of it, or where it could not stay a loop.

    Raises InvalidInputError where an argument has no static shape, UnsupportedModelError where one is too large.
    """
    require_static_arguments(function)
    source = function.body.block
    translation = Translation(Block(arg_types=source.arg_types))
    for old, new in zip(source.args, translation.block.args, strict=True):
        translation.values[old] = new
        new.name_hint = old.name_hint
    emit = Emitter(translation.block)
    emit.unroll = unroll
    _Translator(translation, emit).ops(source)
    return translation


def require_static_arguments(function: FuncOp) -> None:
    """
    Raises InvalidInputError that lists the dimensions of the arguments that are not bound, UnsupportedModelError for an
    argument that is too large.
    """
    unbound = list[str]()
    names = argument_names(function)
    for argument, attributes in zip(function.body.block.args, argument_attributes(function), strict=True):
        type, name = argument.type, names[argument.index]
        if isinstance(type, UnrankedTensorType):
            unbound.append(f"input '{name}' has no shape: give one as in --shape {name}:1x3x8x8")
        if not isinstance(type, TensorType):
            continue
        sizes = cast(ValueType, type).get_shape()
        if DYNAMIC_INDEX not in sizes:
            continue
        declared = attributes.get("onnx.dim_params")
        params = (
            [str(string_value(p)) for p in cast("ArrayAttr[Attribute]", declared)]
            if isinstance(declared, ArrayAttr)
            else [""] * len(sizes)
        )
        shown = "x".join(
            str(size) if size != DYNAMIC_INDEX else param or "?"
            for size, param in zip(sizes, params, strict=True)
        )
        free = sorted({p for p, s in zip(params, sizes, strict=True) if s == DYNAMIC_INDEX and p})
        hint = " ".join(f"--dim {p}=N" for p in free) if free else f"--shape {name}:{shown.replace('?', 'N')}"
        unbound.append(f"input '{name}' is {shown}: give {hint}")
    if unbound:
        raise InvalidInputError("\n".join(["unbound dimensions", *unbound]))
    for argument in function.body.block.args:
        if _element(argument) in ELEMENT_TYPES and byte_size(argument) > MAX_TENSOR_BYTES:
            fact = f"{byte_size(argument)} bytes, at most {MAX_TENSOR_BYTES} are possible"
            raise UnsupportedModelError(f"input '{names[argument.index]}' has {fact}")


@dataclass
class _Translator:
    result: Translation
    emit: Emitter

    def ops(self, block: Block) -> None:
        """Translates the ops of `block` but its terminator."""
        for op in block.ops:
            if isinstance(op, ReturnOp | onnx.YieldOp | onnx.NoValueOp):
                continue
            self.emit.location = op.location
            try:
                values = self.op(op)
            except UnsupportedNodeError as e:
                self.fault(self.result.refused, op, str(e))
            except InvalidNodeError as e:
                self.fault(self.result.invalid, op, str(e))
            except ReportedNodeError:
                pass
            else:
                for old, new in zip(op.results, values, strict=False):
                    if new is not None:
                        self.define(op, old, new)

    def define(self, op: Operation, old: SSAValue, new: SSAValue) -> None:
        self.result.values[old] = new
        new.name_hint = new.name_hint or old.name_hint
        if len(tuple(old.uses)) > 1:
            self.emit.shared.add(new)
        is_output = any(isinstance(use.operation, ReturnOp) for use in old.uses)
        if is_output and not _agree(old.type, new.type):
            self.fault(
                self.result.invalid, op, f"computes {new.type}, the model declares {old.type}", stand_in=False
            )

    def fault(self, where: list[Fault], op: Operation, reason: str, stand_in: bool = True) -> None:
        """Records a fault. Its results become stand-ins of the types that ONNX's own inference gives."""
        name = op.node_name if isinstance(op, onnx.OnnxOp | onnx.CustomOp) else ""
        where.append((name, _operator_name(op), reason))
        if not stand_in or not isinstance(op, onnx.OnnxOp):
            return
        operands = [self.result.values.get(value) for value in op.operands]
        for old, type in zip(op.results, infer_by_schema(op, operands), strict=False):
            if type is not None:
                cast_op = UnrealizedConversionCastOp.get([], [type])
                self.emit.block.add_op(cast_op)
                self.result.values[old] = cast_op.results[0]

    def op(self, op: Operation) -> Sequence[SSAValue | None]:
        if isinstance(op, onnx.CustomOp):
            raise UnsupportedNodeError(f"no operator '{op.function_name}' in domain '{op.domain_name}'")
        if not isinstance(op, onnx.OnnxOp):
            raise UnsupportedNodeError("not an ONNX operation")
        entry = find_operator(op.schema.domain, op.schema.name, op.schema.since_version)
        operands = list[SSAValue | None]()
        for value in op.operands:
            if isinstance(value.type, NoneType):
                operands.append(None)
                continue
            if value not in self.result.values:
                if entry is None:
                    raise UnsupportedNodeError("operator not supported")
                raise ReportedNodeError
            operands.append(self.result.values[value])
        for value in operands:
            if value is not None and (kind := _element(value)) not in ELEMENT_TYPES:
                raise UnsupportedNodeError(f"element type {kind} is not supported")
        node = Node(op, tuple(operands), partial(self.subgraph, op))
        if entry is None:
            raise UnsupportedNodeError("operator not supported")
        made = entry.rule(node, self.emit)
        values = (made,) if isinstance(made, SSAValue) else tuple(made)
        for index in range(len(op.results)):
            if node.wants(index) and (index >= len(values) or values[index] is None):
                raise UnsupportedNodeError(f"result '{_result_name(op, index)}' is not supported")
        return values

    def subgraph(
        self, op: onnx.OnnxOp, name: str, arguments: Sequence[SSAValue], repeats: bool
    ) -> Sequence[SSAValue]:
        """The outputs of a graph attribute, converted. Raises ReportedNodeError where a node of it is not."""
        region = op.region(name)
        assert region is not None
        block = region.block
        if len(block.args) != len(arguments):
            raise InvalidNodeError(f"'{name}' takes {len(block.args)} inputs, gets {len(arguments)}")
        self.result.values |= dict(zip(block.args, arguments, strict=True))
        last = block.last_op
        assert isinstance(last, onnx.YieldOp)
        faults = len(self.result.refused) + len(self.result.invalid)
        self.ops(block)
        self.emit.location = op.location
        made = [self.result.values.get(value) for value in last.operands]
        values = [value for value in made if value is not None]
        if repeats:
            for value in (*block.args, *(result for inner in region.walk() for result in inner.results)):
                self.result.values.pop(value, None)
        if faults != len(self.result.refused) + len(self.result.invalid) or len(values) != len(made):
            raise ReportedNodeError
        return values


def _element(value: SSAValue) -> Attribute:
    return element_type_of(value) if isinstance(value.type, TensorType) else value.type


def _agree(declared: Attribute, computed: Attribute) -> bool:
    """Whether a declared type, which may leave out dimensions, allows the computed one."""
    if isinstance(declared, UnrankedTensorType):
        return cast("UnrankedTensorType[Attribute]", declared).element_type == element_type_of(computed)
    if not isinstance(declared, TensorType):
        return True
    declared = cast(ValueType, declared)
    sizes, shape = declared.get_shape(), shape_of(computed)
    return (
        declared.element_type == element_type_of(computed)
        and len(sizes) == len(shape)
        and all(have in (DYNAMIC_INDEX, got) for have, got in zip(sizes, shape, strict=True))
    )


def _operator_name(op: Operation) -> str:
    if isinstance(op, onnx.CustomOp):
        return f"{op.domain_name}.{op.function_name}"
    if isinstance(op, onnx.OnnxOp):
        return f"{op.schema.domain}.{op.schema.name}".lstrip(".")
    return op.name


def _result_name(op: onnx.OnnxOp, index: int) -> str:
    outputs = op.schema.outputs
    return outputs[min(index, len(outputs) - 1)].name
