"""
The `onnx` dialect: one operation class for each ONNX operator, derived from the schemas of `onnx.defs`.

An operator's newest signature is `onnx.Name`. A superseded signature, one whose formal inputs, outputs or
attributes (defaults included) differ from the next, is `onnx.NameV<since>`, where `<since>` is the last
opset version that introduced it: Softmax of opsets 1 to 12 is `onnx.SoftmaxV11`. Versions that only widen
the allowed types share a class, the one of the newest of them.

An absent optional operand is `onnx.NoValue`; an absent optional result has type `none`. ONNX attributes are
properties, of which only those that the model states are present; graph attributes are regions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Self, cast

import onnx.defs
from onnx import AttributeProto
from onnx.defs import OpSchema
from onnx.helper import get_attribute_value
from xdsl.dialects.builtin import (
    ArrayAttr,
    BFloat16Type,
    BytesAttr,
    ComplexType,
    DenseArrayBase,
    DenseIntOrFPElementsAttr,
    Float4E2M1FNType,
    Float6E2M3FNType,
    Float6E3M2FNType,
    Float8E4M3FNType,
    Float8E4M3FNUZType,
    Float8E5M2FNUZType,
    Float8E5M2Type,
    Float8E8M0FNUType,
    Float16Type,
    Float64Type,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    LocationAttr,
    NameLoc,
    NoneType,
    Signedness,
    StringAttr,
    TensorType,
    UnrankedTensorType,
    f32,
    i64,
)
from xdsl.ir import (
    Attribute,
    Dialect,
    Operation,
    OpResult,
    ParametrizedAttribute,
    Region,
    SSAValue,
    TypeAttribute,
)
from xdsl.irdl import irdl_attr_definition, traits_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import IsTerminator, Pure, RecursiveMemoryEffect
from xdsl.utils.exceptions import VerifyException

from occamy_xdsl.dialects.weights import WeightsRefAttr, string_attr, string_value

Kind = OpSchema.AttrType
Option = OpSchema.FormalParameterOption


# ---- Types


@irdl_attr_definition
class StringType(ParametrizedAttribute, TypeAttribute):
    """ONNX's `string`, an element type."""

    name = "onnx.String"


@irdl_attr_definition
class SeqType(ParametrizedAttribute, TypeAttribute):
    """ONNX's `seq(element)`."""

    name = "onnx.Seq"
    element: Attribute


@irdl_attr_definition
class OptType(ParametrizedAttribute, TypeAttribute):
    """ONNX's `optional(element)`."""

    name = "onnx.Opt"
    element: Attribute


@irdl_attr_definition
class MapType(ParametrizedAttribute, TypeAttribute):
    """ONNX's `map(key, value)`; `key` is an element type."""

    name = "onnx.Map"
    key: Attribute
    value: Attribute


@irdl_attr_definition
class SparseTensorType(ParametrizedAttribute, TypeAttribute):
    """ONNX's `sparse_tensor`; `dense` is the type of the tensor it stands for."""

    name = "onnx.SparseTensor"
    dense: Attribute


@irdl_attr_definition
class UnknownType(ParametrizedAttribute, TypeAttribute):
    """The type of a value that the model declares nowhere and that no schema tells."""

    name = "onnx.Unknown"


@irdl_attr_definition
class SparseAttr(ParametrizedAttribute):
    """
    A sparse tensor constant: `values` and `indices` are tensors as in ONNX's SparseTensorProto.

    `type` is the type of the dense tensor it stands for.
    """

    name = "onnx.sparse"
    values: Attribute
    indices: Attribute
    type: Attribute


def _unsigned(width: int) -> IntegerType:
    return IntegerType(width, Signedness.UNSIGNED)


_ELEMENTS: dict[str, tuple[int, Attribute]] = {
    "float": (1, f32),
    "uint8": (2, _unsigned(8)),
    "int8": (3, IntegerType(8)),
    "uint16": (4, _unsigned(16)),
    "int16": (5, IntegerType(16)),
    "int32": (6, IntegerType(32)),
    "int64": (7, i64),
    "string": (8, StringType()),
    "bool": (9, IntegerType(1)),
    "float16": (10, Float16Type()),
    "double": (11, Float64Type()),
    "uint32": (12, _unsigned(32)),
    "uint64": (13, _unsigned(64)),
    "complex64": (14, ComplexType(f32)),
    "complex128": (15, ComplexType(Float64Type())),
    "bfloat16": (16, BFloat16Type()),
    "float8e4m3fn": (17, Float8E4M3FNType()),
    "float8e4m3fnuz": (18, Float8E4M3FNUZType()),
    "float8e5m2": (19, Float8E5M2Type()),
    "float8e5m2fnuz": (20, Float8E5M2FNUZType()),
    "uint4": (21, _unsigned(4)),
    "int4": (22, IntegerType(4)),
    "float4e2m1": (23, Float4E2M1FNType()),
    "float8e8m0": (24, Float8E8M0FNUType()),
    "uint2": (25, _unsigned(2)),
    "int2": (26, IntegerType(2)),
    "float6e2m3": (27, Float6E2M3FNType()),
    "float6e3m2": (28, Float6E3M2FNType()),
}
"""ONNX's element types: name in schemas, TensorProto.DataType, and ours."""

_BY_NUMBER = dict(_ELEMENTS.values())
_NUMBERS = {element: number for number, element in _ELEMENTS.values()}
_NAMES = {element: name for name, (_, element) in _ELEMENTS.items()}


def element_type(data_type: int) -> Attribute:
    """The element type of a TensorProto.DataType. Raises KeyError for one that ONNX does not define."""
    return _BY_NUMBER[data_type]


def element_type_or_none(data_type: int) -> Attribute | None:
    """As `element_type`, None for a data type that ONNX does not define."""
    return _BY_NUMBER.get(data_type)


def data_type(element: Attribute) -> int:
    """The TensorProto.DataType of an element type. Raises KeyError for one that ONNX lacks."""
    return _NUMBERS[element]


def type_name(type: Attribute) -> str | None:
    """`type` as schemas spell it, such as `seq(tensor(float))`; None where it is unknown."""
    match type:
        case TensorType() | UnrankedTensorType():
            name = _NAMES.get(cast("TensorType[Attribute]", type).element_type)
            return None if name is None else f"tensor({name})"
        case SeqType(element=inner) | OptType(element=inner):
            name = type_name(inner)
            return None if name is None else f"{'seq' if isinstance(type, SeqType) else 'optional'}({name})"
        case MapType(key=key, value=value):
            value_name = type_name(value)
            return None if value_name is None else f"map({_NAMES[key]},{value_name})"
        case SparseTensorType(dense=dense):
            name = type_name(dense)
            return None if name is None else f"sparse_{name}"
        case _:
            return None


def type_named(name: str) -> Attribute:
    """The type that schemas spell `name`, of unknown shape; `onnx.Unknown` for maps and unknown names."""
    head, _, inner = name.removesuffix(")").partition("(")
    match head:
        case "tensor" if inner in _ELEMENTS:
            return UnrankedTensorType(_ELEMENTS[inner][1])
        case "seq":
            return SeqType(type_named(inner))
        case "optional":
            return OptType(type_named(inner))
        case _:
            return UnknownType()


_TYPE_ATTRIBUTES = ("to", "dtype", "output_dtype")
"""Attributes that hold the element type of the result, as in Cast."""

_MAY_BE_UNKNOWN = (UnknownType, NoneType, SeqType, OptType, MapType, SparseTensorType)
"""Types that satisfy every constraint where they have no name in schemas."""


def _normalized(schema_type: str) -> str:
    """One spelling for maps, which schemas write as `map(int64, float)` or `map(int64,tensor(float))`."""
    if "map(" not in schema_type:
        return schema_type
    head, _, rest = schema_type.partition("map(")
    key, _, value = rest.partition(",")
    value = value.strip()
    if value.startswith("tensor("):
        return f"{head}map({key},{value}"
    inner = value.rstrip(")")
    return f"{head}map({key},tensor({inner}){value[len(inner) :]}"


# ---- Attributes


_KIND_NAMES = {
    Kind.INT: "an i64",
    Kind.INTS: "an i64 array",
    Kind.FLOAT: "an f32",
    Kind.FLOATS: "an array of f32",
    Kind.STRING: "a string",
    Kind.STRINGS: "an array of strings",
    Kind.TENSOR: "a tensor",
    Kind.SPARSE_TENSOR: "a sparse tensor",
    Kind.TYPE_PROTO: "a type",
    Kind.GRAPH: "a region",
}


def to_attribute(kind: Kind, value: Any) -> Attribute:
    """
    The attribute that holds `value` as an ONNX attribute of `kind`; an Attribute is returned as it is.

    INT is an i64 IntegerAttr, INTS `array<i64: ..>`, FLOAT an f32 FloatAttr, FLOATS an array of them, STRING
    a StringAttr (BytesAttr where it is not ASCII), STRINGS an array of them. Tensors, types and sparse tensors
    must be given as attributes.
    """
    if isinstance(value, Attribute):
        return value
    if kind == Kind.INT:
        return IntegerAttr(int(value), i64)
    if kind == Kind.INTS:
        return DenseArrayBase.from_list(i64, [int(item) for item in value])
    if kind == Kind.FLOAT:
        return FloatAttr(float(value), f32)
    if kind == Kind.FLOATS:
        return ArrayAttr([FloatAttr(float(item), f32) for item in value])
    if kind == Kind.STRING:
        return string_attr(value)
    if kind == Kind.STRINGS:
        return ArrayAttr([string_attr(item) for item in value])
    raise TypeError(f"no attribute of kind {kind} from {value!r}")


def from_attribute(attr: Attribute) -> Any:
    """int, float, str, bytes or a tuple of them; any other attribute (tensor, type) as it is."""
    match attr:
        case IntegerAttr() | FloatAttr():
            return attr.value.data
        case StringAttr() | BytesAttr():
            return string_value(attr)
        case DenseArrayBase():
            return cast("DenseArrayBase[Any]", attr).get_values()
        case ArrayAttr():
            return tuple(from_attribute(item) for item in attr.data)
        case _:
            return attr


def _is_of_kind(attr: Attribute, kind: Kind) -> bool:
    match kind:
        case Kind.INT:
            return isinstance(attr, IntegerAttr) and cast("IntegerAttr", attr).type == i64
        case Kind.FLOAT:
            return isinstance(attr, FloatAttr) and cast("FloatAttr", attr).type == f32
        case Kind.INTS:
            return isinstance(attr, DenseArrayBase) and cast("DenseArrayBase[Any]", attr).elt_type == i64
        case Kind.STRING:
            return isinstance(attr, StringAttr | BytesAttr)
        case Kind.FLOATS | Kind.STRINGS:
            item_kind = Kind.FLOAT if kind == Kind.FLOATS else Kind.STRING
            items = cast("ArrayAttr[Attribute]", attr).data if isinstance(attr, ArrayAttr) else None
            return items is not None and all(_is_of_kind(item, item_kind) for item in items)
        case Kind.TENSOR:
            dense = isinstance(attr, DenseIntOrFPElementsAttr | WeightsRefAttr)
            return dense or _is_of_kind(attr, Kind.STRINGS)
        case Kind.SPARSE_TENSOR:
            return isinstance(attr, SparseAttr)
        case Kind.TYPE_PROTO:
            return isinstance(attr, TypeAttribute)
        case _:
            return False


# ---- Operations


class _Op(Operation):
    """Text shared by all operations: the generic format without quotes, properties among the attributes."""

    def print(self, printer: Printer) -> None:
        """`onnx.Conv(%x, %w) {strides = array<i64: 2, 2>} : (types) -> type`."""
        printer.print_operands(self.operands)
        printer.print_regions(self.regions)
        printer.print_op_attributes(self.attributes | self.properties)
        printer.print_string(" : ")
        printer.print_function_type(self.operand_types, self.result_types)

    @classmethod
    def parse(cls, parser: Parser) -> Self:
        """Inverse of `print`."""
        arguments = parser.parse_op_args_list()
        regions = parser.parse_region_list()
        attributes = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        position = parser.pos
        type = parser.parse_function_type()
        return cls.create(
            operands=parser.resolve_operands(arguments, type.inputs.data, position),
            result_types=type.outputs.data,
            attributes=attributes,
            regions=regions,
        )

    @property
    def node_name(self) -> str:
        """The ONNX node's name, from the location; empty where the location names none."""
        return self.location.desc.data if isinstance(self.location, NameLoc) else ""


class NoValueOp(_Op):
    """
    Stands for an absent optional operand.

    ```mlir
    %none = onnx.NoValue() : () -> none
    ```
    """

    name = "onnx.NoValue"
    traits = traits_def(Pure())

    @classmethod
    def make(cls) -> Self:
        """The one form there is."""
        return cls.create(result_types=[NoneType()])

    def verify_(self) -> None:
        """Checks (C1): no operand, one result of type none."""
        if self.operands or tuple(self.result_types) != (NoneType(),):
            raise VerifyException(f"'{self.name}' op has no operand and one result of type none (C1)")


class YieldOp(_Op):
    """
    Ends a region with the values of a subgraph's outputs.

    ```mlir
    onnx.Yield(%y) : (tensor<3xf32>) -> ()
    ```
    """

    name = "onnx.Yield"
    traits = traits_def(Pure(), IsTerminator())

    @classmethod
    def make(cls, values: Sequence[SSAValue]) -> Self:
        """Yields `values`."""
        return cls.create(operands=values)

    def verify_(self) -> None:
        """Checks (C1): no result; (C2): the parent is an operation of this dialect."""
        if self.results:
            raise VerifyException(f"'{self.name}' op has no result, got {len(self.results)} (C1)")
        if not isinstance(parent := self.parent_op(), OnnxOp | CustomOp):
            raise VerifyException(
                f"'{self.name}' op ends a region of an onnx operation, got {parent and parent.name} (C2)"
            )


class CustomOp(_Op):
    """
    An operator of a domain that the onnx package does not know; it is never pure and has no schema.

    ```mlir
    %y = onnx.Custom(%x) {domain_name = "com.microsoft", function_name = "FusedConv"} : (..) -> ..
    ```

    Constraints:

    - (C1) `function_name` and `domain_name` are strings.
    """

    name = "onnx.Custom"
    traits = traits_def()

    def verify_(self) -> None:
        """Checks C1."""
        for name in ("function_name", "domain_name"):
            if not isinstance(got := self.attributes.get(name), StringAttr):
                raise VerifyException(f"'{self.name}' op needs string '{name}', got {got} (C1)")

    @property
    def function_name(self) -> str:
        """The operator's name in its domain."""
        return cast("StringAttr", self.attributes["function_name"]).data

    @property
    def domain_name(self) -> str:
        """The operator's domain."""
        return cast("StringAttr", self.attributes["domain_name"]).data


class OnnxOp(_Op):
    """
    An ONNX operator. Subclasses are made from schemas; use `op_class` or this module's `<Name>Op` names.

    Constraints, each named in the message of the check that enforces it (types that are `onnx.Unknown` or
    `none` satisfy every type constraint):

    - (C1) The number of operands lies within the schema's bounds.
    - (C2) A required operand is not `onnx.NoValue`.
    - (C3) The number of results lies within the schema's bounds.
    - (C4) Every property is an attribute of the schema.
    - (C5) Every property has its attribute's kind.
    - (C6) Every required attribute is present.
    - (C7) Every operand's and result's type is one of those that the schema allows.
    - (C8) Values of one type variable have one element type.
    - (C9) There is one region for each graph attribute, a single block that ends in `onnx.Yield`, or empty
      where the attribute is optional.
    - (C10) A Constant has exactly one attribute, and a result of that tensor's type.
    """

    schema: ClassVar[OpSchema]
    """The schema of the newest opset version that this class stands for."""

    since_version: ClassVar[int]
    """The opset version of `schema`: the newest that shares this signature."""

    _operand_index: ClassVar[Mapping[str, int]]
    _result_index: ClassVar[Mapping[str, int]]
    region_names: ClassVar[tuple[str, ...]]
    """The graph attributes, in the order of the regions: then before else, score before prob."""

    _types: ClassVar[tuple[tuple[frozenset[str], ...], tuple[frozenset[str], ...]] | None] = None

    @classmethod
    def make(
        cls,
        operands: Sequence[SSAValue],
        result_types: Sequence[Attribute],
        *,
        regions: Sequence[Region] = (),
        location: LocationAttr | None = None,
        **attributes: Any,
    ) -> Self:
        """An operation with Python values for its ONNX attributes; None means not stated."""
        kinds = cls.schema.attributes
        properties = {
            name: to_attribute(kinds[name].type, value)
            for name, value in attributes.items()
            if value is not None
        }
        return cls.create(
            operands=operands,
            result_types=result_types,
            properties=properties,
            regions=regions,
            location=location,
        )

    @classmethod
    def create(  # the parser passes properties as attributes where the text has no `<{...}>`
        cls,
        *,
        operands: Sequence[SSAValue] = (),
        result_types: Sequence[Attribute] = (),
        properties: Mapping[str, Attribute] = {},
        attributes: Mapping[str, Attribute] = {},
        location: LocationAttr | None = None,
        successors: Sequence[Any] = (),
        regions: Sequence[Region] = (),
    ) -> Self:
        """As `Operation.create`; attributes that the schema names become properties."""
        if attributes:
            known = cls.schema.attributes
            properties = {**properties, **{k: v for k, v in attributes.items() if k in known}}
            attributes = {k: v for k, v in attributes.items() if k not in known}
        return super().create(
            operands=operands,
            result_types=result_types,
            properties=properties,
            attributes=attributes,
            location=location,
            successors=successors,
            regions=regions,
        )

    @classmethod
    def result_types_of(
        cls, operands: Sequence[SSAValue], properties: Mapping[str, Attribute], count: int
    ) -> list[Attribute]:
        """
        The types of `count` results as far as schema, operand types and type attributes tell them.

        Shapes are unknown; `onnx.Unknown` where the element type depends on something else.
        """
        inputs, outputs = cls.schema.inputs, cls.schema.outputs
        variables = dict[str, str]()
        for index, operand in enumerate(operands if inputs else ()):
            formal = inputs[min(index, len(inputs) - 1)]
            if formal.is_homogeneous and (name := type_name(operand.type)):
                variables.setdefault(formal.type_str, name)
        stated = next((p for key in _TYPE_ATTRIBUTES if (p := properties.get(key)) is not None), None)
        types = list[Attribute]()
        for index in range(count):
            formal = outputs[min(index, len(outputs) - 1)]
            allowed = formal.types
            if not formal.is_homogeneous:
                types.append(UnknownType())
            elif len(allowed) == 1:
                types.append(type_named(next(iter(allowed))))
            elif formal.type_str not in variables and isinstance(stated, IntegerAttr):
                tensor = f"tensor({_NAMES.get(_BY_NUMBER.get(stated.value.data, UnknownType()))})"
                types.append(type_named(tensor if tensor in allowed else f"seq({tensor})"))
            else:
                types.append(type_named(variables.get(formal.type_str, "")))
        return types

    # ---- Access by formal name

    def attr(self, name: str, default: Any = None) -> Any:
        """
        The value of ONNX attribute `name` as Python: int, float, str or a tuple; tensors as attributes.

        Falls back to the schema's default, then to `default`. Raises KeyError where the schema has no such
        attribute.
        """
        if (attr := self.properties.get(name)) is not None:
            return from_attribute(attr)
        stated = _schema_default(type(self), name)
        return default if stated is None else stated

    def operand(self, name: str) -> SSAValue | None:
        """The operand of formal name `name`, None where absent. Raises KeyError for an unknown name."""
        index = self._operand_index[name]
        if index >= len(self.operands) or isinstance(self.operands[index].owner, NoValueOp):
            return None
        return self.operands[index]

    def variadic_operand(self, name: str) -> tuple[SSAValue, ...]:
        """The operands of the variadic formal input `name`."""
        return tuple(self.operands[self._operand_index[name] :])

    def result(self, name: str) -> OpResult | None:
        """The result of formal name `name`, None where absent. Raises KeyError for an unknown name."""
        index = self._result_index[name]
        if index >= len(self.results) or isinstance(self.results[index].type, NoneType):
            return None
        return self.results[index]

    def region(self, name: str) -> Region | None:
        """The region of graph attribute `name`, None where absent."""
        region = self.regions[self.region_names.index(name)]
        return region if region.blocks else None

    # ---- Verification

    def verify_(self) -> None:
        """Checks C1 to C10."""
        schema = self.schema
        self._check_count("operands", len(self.operands), schema.min_input, schema.max_input, "C1")
        inputs, outputs = schema.inputs, schema.outputs
        for formal, operand in zip(inputs, self.operands, strict=False):
            if formal.option == Option.Single and isinstance(operand.type, NoneType):
                raise VerifyException(f"'{self.name}' op needs operand '{formal.name}', got none (C2)")
        self._check_count("results", len(self.results), schema.min_output, schema.max_output, "C3")
        self._check_attributes()
        if self._types is None:
            type(self)._types = cast(
                "Any",
                tuple(tuple(frozenset(map(_normalized, p.types)) for p in ps) for ps in (inputs, outputs)),
            )
        assert self._types is not None
        variables = dict[str, tuple[str, str]]()
        self._check_types("operand", self.operands, inputs, self._types[0], variables)
        self._check_types("result", self.results, outputs, self._types[1], variables)
        self._check_regions()
        if schema.name == "Constant":
            self._check_constant()

    def _check_count(self, what: str, got: int, least: int, most: int, constraint: str) -> None:
        if not least <= got <= most:
            wanted = (
                str(least)
                if least == most
                else f"{least} or more"
                if most >= 2**31 - 1
                else f"{least} to {most}"
            )
            raise VerifyException(
                f"'{self.name}' op number of {what} must be {wanted}, got {got} ({constraint})"
            )

    def _check_attributes(self) -> None:
        known = self.schema.attributes
        for name, value in self.properties.items():
            if name not in known:
                raise VerifyException(f"'{self.name}' op has no attribute '{name}' (C4)")
            if not _is_of_kind(value, kind := known[name].type):
                raise VerifyException(
                    f"'{self.name}' op attribute '{name}' is {_KIND_NAMES[kind]}, got {value} (C5)"
                )
        for name, attribute in known.items():
            if attribute.required and name not in self.properties and name not in self.region_names:
                raise VerifyException(f"'{self.name}' op needs attribute '{name}' (C6)")

    def _check_types(
        self,
        what: str,
        values: Iterable[SSAValue],
        formals: Sequence[OpSchema.FormalParameter],
        allowed: Sequence[frozenset[str]],
        variables: dict[str, tuple[str, str]],
    ) -> None:
        for index, value in enumerate(values):
            if (name := type_name(value.type)) is None:
                if not isinstance(value.type, UnknownType | NoneType) and "onnx.Unknown" not in str(
                    value.type
                ):
                    raise VerifyException(
                        f"'{self.name}' op {what} {index} has a type that ONNX lacks: {value.type} (C7)"
                    )
                continue
            formal = formals[position := min(index, len(formals) - 1)]
            if name not in allowed[position]:
                raise VerifyException(
                    f"'{self.name}' op {what} '{formal.name}' may not be {name}, got {value.type} (C7)"
                )
            if not formal.is_homogeneous:
                continue
            first, owner = variables.setdefault(formal.type_str, (name, formal.name))
            if first != name:
                raise VerifyException(
                    f"'{self.name}' op {what} '{formal.name}' has the element type of '{owner}', {first}, "
                    f"got {name} (C8)"
                )

    def _check_constant(self) -> None:
        if len(self.properties) != 1:
            raise VerifyException(f"'{self.name}' op has one value, got {len(self.properties)} (C10)")
        (value,), result = self.properties.values(), self.results[0].type
        if isinstance(value, DenseIntOrFPElementsAttr | SparseAttr):
            type = cast("SparseAttr", value).type  # both have one
            if type != result:
                raise VerifyException(
                    f"'{self.name}' op result has the value's type {type}, got {result} (C10)"
                )

    def _check_regions(self) -> None:
        if len(self.regions) != len(self.region_names):
            raise VerifyException(
                f"'{self.name}' op number of regions must be {len(self.region_names)}, got {len(self.regions)} (C9)"
            )
        for name, region in zip(self.region_names, self.regions, strict=True):
            if not region.blocks and not self.schema.attributes[name].required:
                continue
            if len(region.blocks) != 1 or not isinstance(region.block.last_op, YieldOp):
                raise VerifyException(
                    f"'{self.name}' op region '{name}' is not one block ending in onnx.Yield (C9)"
                )


@cache
def _schema_default(op: type[OnnxOp], name: str) -> Any:
    """The schema's default of an attribute as Python, None where it states none."""
    proto = op.schema.attributes[name].default_value
    if proto.type == AttributeProto.UNDEFINED:
        return None
    value = get_attribute_value(proto)
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Sequence):
        return tuple(item.decode() if isinstance(item, bytes) else item for item in cast("list[Any]", value))
    return value


# ---- The classes, from the schemas


def _signature(schema: OpSchema) -> tuple[Any, ...]:
    """What must be equal for two versions to share a class."""
    formals = (
        tuple((p.name, p.option, p.is_homogeneous, p.min_arity) for p in side)
        for side in (schema.inputs, schema.outputs)
    )
    attributes = tuple(
        (name, attribute.type, attribute.required, attribute.default_value.SerializeToString())
        for name, attribute in sorted(schema.attributes.items())
    )
    return *formals, attributes


def _widens(new: OpSchema, old: OpSchema) -> bool:
    """Whether `new` has `old`'s signature and allows all of its types."""
    return _signature(new) == _signature(old) and all(
        a.types <= b.types
        for a, b in zip([*old.inputs, *old.outputs], [*new.inputs, *new.outputs], strict=True)
    )


_RANDOM = (
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)
"""Operators whose equal calls give different results (OpSchema.node_determinism says so of others, too)."""

_PURE, _RECURSIVE, _IMPURE = traits_def(Pure()), traits_def(RecursiveMemoryEffect()), traits_def()


def _make_class(name: str, schema: OpSchema) -> type[OnnxOp]:
    attributes = schema.attributes
    graphs = [key for key, attribute in attributes.items() if attribute.type == Kind.GRAPH]
    body = {
        "name": f"onnx.{name}",
        "__doc__": f"Operator {schema.name} of {schema.domain or 'ai.onnx'}, version {schema.since_version}.",
        "__module__": __name__,
        "schema": schema,
        "since_version": schema.since_version,
        "region_names": tuple(sorted(graphs, reverse=True)),
        "_operand_index": {p.name: i for i, p in enumerate(schema.inputs)},
        "_result_index": {p.name: i for i, p in enumerate(schema.outputs)},
        "traits": _IMPURE if schema.name in _RANDOM else _RECURSIVE if graphs else _PURE,
    }
    return type(f"{name}Op", (OnnxOp,), body)


def _make_classes() -> tuple[dict[str, type[OnnxOp]], dict[tuple[str, str], list[tuple[int, type[OnnxOp]]]]]:
    """Every class by its name without dialect, and (opset version, class) of each operator, oldest first."""
    versions = dict[tuple[str, str], list[OpSchema]]()
    for schema in sorted(onnx.defs.get_all_schemas_with_history(), key=lambda schema: schema.since_version):
        # GroupNormalization was deprecated in its first version, which models use until opset 21.
        if not schema.deprecated or (schema.domain, schema.name) not in versions:
            versions.setdefault((schema.domain, schema.name), []).append(schema)
    by_name = dict[str, type[OnnxOp]]()
    by_version = dict[tuple[str, str], list[tuple[int, type[OnnxOp]]]]()
    for key, schemas in versions.items():
        schemas.sort(key=lambda schema: schema.since_version, reverse=True)
        entries = list[tuple[int, type[OnnxOp]]]()
        for newer, schema in zip([None, *schemas], schemas, strict=False):
            if newer is None:
                made = by_name[schema.name] = _make_class(schema.name, schema)
            elif not _widens(newer, schema):
                name = f"{schema.name}V{schema.since_version}"
                made = by_name[name] = _make_class(name, schema)
            else:
                made = entries[-1][1]
            entries.append((schema.since_version, made))
        by_version[key] = entries[::-1]
    return by_name, by_version


_BY_NAME, _BY_VERSION = _make_classes()


def op_class(name: str) -> type[OnnxOp]:
    """The class of `onnx.<name>`, such as `Conv` or `SoftmaxV11`. Raises KeyError."""
    return _BY_NAME[name]


def find_op(domain: str, name: str, opset: int) -> type[OnnxOp] | None:
    """
    The class that operator `name` of `domain` ("" is ai.onnx) means in version `opset` of the domain.

    None where it does not exist there. An operator that ONNX has deprecated stays available in its last
    version, as in other runtimes.
    """
    found = None
    for since, made in _BY_VERSION.get((domain, name), ()):
        if since <= opset:
            found = made
    return found


def first_version(domain: str, name: str) -> int | None:
    """The opset version that introduced an operator, None where the onnx package does not know it."""
    versions = _BY_VERSION.get((domain, name))
    return versions[0][0] if versions else None


def __getattr__(name: str) -> type[OnnxOp]:
    """`onnx.ConvOp` is `op_class("Conv")`."""
    if name.endswith("Op") and name[:-2] in _BY_NAME:
        return _BY_NAME[name[:-2]]
    raise AttributeError(name)


Onnx = Dialect(
    "onnx",
    [NoValueOp, YieldOp, CustomOp, *_BY_NAME.values()],
    [StringType, SeqType, OptType, MapType, SparseTensorType, UnknownType, SparseAttr],
)
