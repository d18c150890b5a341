"""What all `dnn` ops share: the two forms, their checks, effects and the custom assembly."""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache, lru_cache
from itertools import accumulate, chain
from math import prod
from typing import Any, TypeAlias, TypeVar, cast

from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    DenseArrayBase,
    FixedBitwidthType,
    IntegerAttr,
    IntegerType,
    MemRefType,
    NoneAttr,
    Signedness,
    StridedLayoutAttr,
    TensorType,
    i32,
    i64,
)
from xdsl.ir import Attribute, Operation, ParametrizedAttribute, Region, SSAValue
from xdsl.irdl import (
    AnyAttr,
    AttrSizedOperandSegments,
    AttrSizedSegments,
    IRDLOperation,
    irdl_attr_definition,
    irdl_op_definition,
    opt_operand_def,
    param_def,
    traits_def,
    var_operand_def,
    var_result_def,
)
from xdsl.parser import AttrParser, Parser
from xdsl.printer import Printer
from xdsl.traits import (
    EffectInstance,
    IsTerminator,
    MemoryEffect,
    MemoryEffectKind,
    Pure,
)
from xdsl.utils.exceptions import VerifyException

from occamy_xdsl.dialects.dnn.geometry import contiguous_strides

BufferType: TypeAlias = MemRefType[Attribute]
ValueType: TypeAlias = TensorType[Attribute]
I64Array: TypeAlias = DenseArrayBase[IntegerType]

_PLAIN = NoneAttr()

_SHAPED = (TensorType, MemRefType)
"""For isinstance: a union written there would be built at each call, as a type that `cast` is given unquoted."""


@irdl_attr_definition
class OrderAttr(ParametrizedAttribute):
    """
    Physical order of a tensor's dimensions, outermost first: `#dnn.order<0, 2, 3, 1>` stores NCHW data
    channels-last. It is the encoding of a tensor type; a tensor without one is row-major.
    """

    name = "dnn.order"
    dims: I64Array = param_def()

    @staticmethod
    def of(dims: Sequence[int]) -> "OrderAttr":
        return OrderAttr(i64_array(dims))

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> Sequence[Attribute]:
        return (i64_array(parser.parse_comma_separated_list(parser.Delimiter.ANGLE, parser.parse_integer)),)

    def print_parameters(self, printer: Printer) -> None:
        printer.print_string("<" + ", ".join(str(d) for d in ints(self.dims)) + ">")

    def verify(self) -> None:
        dims = ints(self.dims)
        if sorted(dims) != list(range(len(dims))):
            raise VerifyException(f"'dnn.order' must be a permutation, got {list(dims)}")


def i64_array(values: Iterable[int]) -> I64Array:
    return _array(i64, tuple(values))


@lru_cache(4096)  # few arrays are different, and attributes never change
def _array(element: IntegerType, values: tuple[int, ...]) -> DenseArrayBase[Any]:
    return DenseArrayBase.from_list(element, values)


@lru_cache(4096)
def i64_attr(value: int) -> IntegerAttr[IntegerType]:
    return IntegerAttr(value, i64)


def ints(array: I64Array) -> tuple[int, ...]:
    return _unpacked(array.data.data)


@lru_cache(4096)
def _unpacked(data: bytes) -> tuple[int, ...]:
    return tuple(memoryview(data).cast("q"))


def shape_of(value: SSAValue | Attribute) -> tuple[int, ...]:
    """Shape in elements of a tensor or memref (or of a value of such a type)."""
    type = value.type if isinstance(value, SSAValue) else value
    assert isinstance(type, _SHAPED)
    return cast("ValueType | BufferType", type).get_shape()


def element_type_of(value: SSAValue | Attribute) -> Attribute:
    """Element type of a tensor or memref (or of a value of such a type)."""
    type = value.type if isinstance(value, SSAValue) else value
    assert isinstance(type, _SHAPED)
    return cast("ValueType | BufferType", type).element_type


def strides_of(value: SSAValue | Attribute) -> tuple[int, ...]:
    """Strides of a memref in elements. Its layout must be static, without an offset."""
    type = value.type if isinstance(value, SSAValue) else value
    assert isinstance(type, MemRefType)  # isa would build a constraint at each call
    if isinstance(type.layout, NoneAttr):
        return contiguous_strides(shape_of(value))
    strides = cast(BufferType, type).get_strides()
    assert strides is not None
    return tuple(cast("Sequence[int]", strides))


def order_of(type: ValueType) -> tuple[int, ...]:
    """Physical order of a tensor type's dimensions, outermost first."""
    if isinstance(type.encoding, OrderAttr):
        return ints(type.encoding.dims)
    return tuple(range(len(type.get_shape())))


def element_bytes(element_type: Attribute) -> int:
    """Bytes that one element occupies in memory; sub-byte types take a whole byte."""
    assert isinstance(element_type, FixedBitwidthType)
    return element_type.size


def byte_size(value: SSAValue | Attribute) -> int:
    """Bytes of a tensor, or bytes that a memref spans from its first to its last element, inclusive."""
    shape = shape_of(value)
    type = value.type if isinstance(value, SSAValue) else value
    size = element_bytes(element_type_of(value))
    if isinstance(type, TensorType) or isinstance(cast(BufferType, type).layout, NoneAttr):
        return prod(shape) * size
    return span(shape, strides_of(value)) * size


def span(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last one addressed, inclusive; 0 for an empty shape."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def share_elements(shape: Sequence[int], strides: Sequence[int], distance: int) -> bool:
    """Whether two views of the same shape and strides, `distance` elements apart, have an element in common."""
    if 0 in shape:
        return False
    steps = sorted(((abs(step), size - 1) for size, step in zip(shape, strides, strict=True)), reverse=True)

    def leads(rest: int, depth: int) -> bool:
        """Whether steps along the dimensions from number `depth` on, forth or back, lead `rest` elements further."""
        if depth == len(steps):
            return rest == 0
        step, most = steps[depth]
        if step == 0 or most == 0:
            return leads(rest, depth + 1)
        # Counts of this step after which the smaller ones can still cover the rest.
        left = sum(step * most for step, most in steps[depth + 1 :])
        first, last = max(-((left - rest) // step), -most), min((rest + left) // step, most)
        return any(leads(rest - count * step, depth + 1) for count in range(first, last + 1))

    return leads(distance, 0)


def buffer_type(
    shape: Sequence[int], element_type: Attribute, strides: Sequence[int] | None = None
) -> BufferType:
    """A memref type with the given strides in elements; the layout is left out where it is row-major."""
    return _buffer_type(tuple(shape), element_type, None if strides is None else tuple(strides))


@lru_cache(4096)  # building a type takes longer than all else that a pass does for an op
def _buffer_type(
    shape: tuple[int, ...], element_type: Attribute, strides: tuple[int, ...] | None
) -> BufferType:
    if strides is None or strides == contiguous_strides(shape):
        return MemRefType(element_type, shape)
    return MemRefType(element_type, shape, StridedLayoutAttr(list(strides)))


def tensor_type(shape: Sequence[int], element_type: Attribute, encoding: Attribute = _PLAIN) -> ValueType:
    """A tensor type, row-major without an encoding."""
    return _tensor_type(tuple(shape), element_type, encoding)


@lru_cache(4096)
def _tensor_type(shape: tuple[int, ...], element_type: Attribute, encoding: Attribute) -> ValueType:
    return TensorType(element_type, shape, encoding)


def signless(element_type: Attribute) -> Attribute:
    """The type that a scalar of `element_type` has inside a region: integers lose their sign there."""
    width = integer_width(element_type)
    return IntegerType(width) if width else element_type


def is_unsigned(element_type: Attribute) -> bool:
    """Whether integers of this type are read as unsigned: `uiN` and the truth value `i1`."""
    width = integer_width(element_type)
    return width == 1 or (width > 0 and cast(Any, element_type).signedness.data == Signedness.UNSIGNED)


def integer_width(element_type: Attribute) -> int:
    """Bits of an integer type; 0 for any other type."""
    return cast(Any, element_type).width.data if isinstance(element_type, IntegerType) else 0


SEGMENT_SIZES = ("operandSegmentSizes", "resultSegmentSizes", "regionSegmentSizes")
"""Properties that follow from an op's operands, results and regions."""


@lru_cache(1024)  # analyses ask for groups of operands more often than for anything else
def _bounds(sizes: bytes) -> tuple[int, ...]:
    """Where each group of operands begins, and where the last one ends."""
    return tuple(accumulate(memoryview(sizes).cast("i"), initial=0))


@cache
def _group_names(kind: "type[KernelOp]") -> tuple[str, ...]:
    return tuple(name for name, _ in kind.get_irdl_definition().operands)


@cache
def _sized_groups(kind: "type[KernelOp]") -> frozenset[str]:
    """Which of `SEGMENT_SIZES` an op has."""
    options = kind.get_irdl_definition().options
    return frozenset(option.attribute_name for option in options if isinstance(option, AttrSizedSegments))


T = TypeVar("T")


def _as_group(given: T | Sequence[T] | None, kind: type[T]) -> Sequence[T]:
    if given is None:
        return ()
    return (given,) if isinstance(given, kind) else cast("Sequence[T]", given)


@cache
def _group_numbers(kind: "type[KernelOp]") -> dict[str, int]:
    return {name: number for number, name in enumerate(_group_names(kind))}


class KernelEffects(MemoryEffect):
    """Value form: none. Buffer form: reads its operands, writes `outs` and `workspace`."""

    @classmethod
    def get_effects(cls, op: Operation) -> AbstractSet[EffectInstance]:
        assert isinstance(op, KernelOp)
        writes = {EffectInstance(MemoryEffectKind.WRITE, value) for value in op.written}
        if not writes:
            return writes
        return writes | {EffectInstance(MemoryEffectKind.READ, value) for value in op.inputs}


class KernelOp(IRDLOperation):
    """
    Base of all ops that compute. Each exists in two forms:

    - *value form*: tensor operands, results, no `outs`, no `workspace`;
    - *buffer form*: memref operands, one memref in `outs` for each result the value form has, no result.

    Shared constraints:

    - (F1) All operands and results are of one form.
    - (F2) All shapes are static, and memrefs have static strides and no offset.
    - (F3) The shapes of results or `outs` are those that the op computes from its operands.
    - (F4) A fused region takes one scalar per operand it reads and yields one scalar per destination.

    Assembly: each operand group by its name, attributes, result types, then regions by their names:

    ```mlir
    %y = dnn.conv input(%x : tensor<1x3x8x8xf32>) filter(%w : tensor<4x3x3x3xf32>) {...} -> tensor<1x4x6x6xf32>
    dnn.conv input(%x : memref<..>) filter(%w : memref<..>) outs(%y : memref<..>) {...}
    ```
    """

    outs = var_operand_def(MemRefType)
    workspace = opt_operand_def(MemRefType)
    values = var_result_def(TensorType)
    irdl_options = (AttrSizedOperandSegments(as_property=True),)
    traits = traits_def(KernelEffects())

    def __init__(
        self,
        *,
        operands: Sequence[SSAValue | Sequence[SSAValue] | None],
        result_types: Sequence[Sequence[Attribute]],
        properties: Mapping[str, Attribute | None] | None = None,
        attributes: Mapping[str, Attribute] | None = None,
        regions: Sequence[Region | Sequence[Region] | None] = (),
    ):
        """
        Operands and regions by group, in order of definition; None where a group is absent.

        Takes a fraction of the time of xDSL's own constructor, which is most of what building an op takes.
        """
        groups = [_as_group(value, SSAValue) for value in operands]
        slots = [_as_group(region, Region) for region in regions]
        given = {name: value for name, value in (properties or {}).items() if value is not None}
        for name, sized in zip(SEGMENT_SIZES, (groups, result_types, slots), strict=True):
            if name in _sized_groups(type(self)):
                given[name] = _array(i32, tuple(map(len, sized)))
        Operation.__init__(
            self,
            operands=list(chain.from_iterable(groups)),
            result_types=list(chain.from_iterable(result_types)),
            properties=given,
            attributes=attributes or {},
            regions=list(chain.from_iterable(slots)),
        )

    def group(self, name: str) -> tuple[SSAValue, ...]:
        """The operands of the group called `name`; empty where it is absent."""
        number = _group_numbers(type(self)).get(name)
        if number is None:
            return ()
        bounds = self._bounds
        begin, end = bounds[number], bounds[number + 1]
        return tuple(self.operands[begin:end]) if begin < end else ()

    @property
    def group_names(self) -> tuple[str, ...]:
        return _group_names(type(self))

    @property
    def _bounds(self) -> tuple[int, ...]:
        sizes = cast("DenseArrayBase[Any]", self.properties["operandSegmentSizes"])
        return _bounds(sizes.data.data)

    @property
    def named_regions(self) -> dict[str, Region]:
        """The regions that are there, by name, in order of definition."""
        slots = ((name, getattr(self, name)) for name, _ in self.get_irdl_definition().regions)
        return {name: cast(Region, region) for name, region in slots if region is not None}

    @property
    def inputs(self) -> tuple[SSAValue, ...]:
        """All operands that are read: everything but `outs` and `workspace`."""
        return tuple(self.operands[: self._bounds[-3]])

    @property
    def written(self) -> tuple[SSAValue, ...]:
        """All operands that are written: `outs` and `workspace`, the last ones."""
        return tuple(self.operands[self._bounds[-3] :])

    @property
    def destinations(self) -> tuple[SSAValue, ...]:
        """What the op computes: its results in value form, its `outs` in buffer form."""
        return self.group("outs") or tuple(self.results)

    @property
    def is_buffer_form(self) -> bool:
        outs, workspace, _ = self._bounds[-3:]
        return outs < workspace

    def rebuilt(
        self,
        *,
        groups: Mapping[str, Sequence[SSAValue]],
        results: Sequence[Attribute] | None = None,
        regions: Mapping[str, Region | None] | None = None,
    ) -> "KernelOp":
        """
        A new op like this one, with some operand groups and, where given, other result types and regions.

        Regions that `regions` does not name are this op's own, which is left without them.
        """
        operands = [groups.get(name, self.group(name)) for name in self.group_names]
        own: dict[str, Region | None] = dict(regions or {})
        for name, region in self.named_regions.items():
            if name not in own:
                own[name] = self.detach_region(region)
        slots = (own.get(name) for name, _ in self.get_irdl_definition().regions)
        op = type(self).__new__(type(self))
        KernelOp.__init__(
            op,
            operands=operands,
            properties={k: v for k, v in self.properties.items() if k not in SEGMENT_SIZES},
            attributes=dict(self.attributes),
            result_types=[[r.type for r in self.results] if results is None else results],
            regions=list(slots),
        )
        op.location = self.location
        return op

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        """Shapes in elements that the destinations must have. Raises VerifyException if there is none."""
        raise NotImplementedError

    def fail(self, fact: str, constraint: str) -> VerifyException:
        """An error that states one fact and names the constraint it breaks."""
        return VerifyException(f"'{self.name}' op {fact} ({constraint})")

    def verify_(self) -> None:
        self.verify_form()
        wanted = [tuple(shape) for shape in self.result_shapes()]
        got = [shape_of(value) for value in self.destinations]
        if wanted != got:
            raise self.fail(f"computes shapes {wanted}, got {got}", "F3")

    def verify_form(self) -> None:
        form = MemRefType if self.is_buffer_form else TensorType
        for value in (*self.operands, *self.results):
            type: Attribute = value.type
            if not isinstance(type, form):
                raise self.fail(f"mixes value form and buffer form, got {value.type}", "F1")
            if DYNAMIC_INDEX in shape_of(value):
                raise self.fail(f"needs static shapes, got {value.type}", "F2")
            if isinstance(type, MemRefType):
                verify_static_layout(self, cast(BufferType, type))
        if self.is_buffer_form and self.results:
            raise self.fail("mixes value form and buffer form, has results and outs", "F1")

    def verify_region(
        self, region: Region, arguments: Sequence[Attribute], results: Sequence[Attribute]
    ) -> None:
        """Checks a fused region against the element types it must take and yield."""
        takes = [signless(t) for t in arguments]
        gives = [signless(t) for t in results]
        if len(region.blocks) != 1:
            raise self.fail(f"needs regions of one block, got {len(region.blocks)}", "F4")
        block = region.block
        if [a.type for a in block.args] != takes:
            got = ", ".join(str(a.type) for a in block.args)
            raise self.fail(f"region must take ({', '.join(map(str, takes))}), got ({got})", "F4")
        last = block.last_op
        if not isinstance(last, YieldOp) or [v.type for v in last.values] != gives:
            raise self.fail(f"region must yield ({', '.join(map(str, gives))})", "F4")

    def print(self, printer: Printer) -> None:
        for name in self.group_names:
            if values := self.group(name):
                printer.print_string(f" {name}(")
                printer.print_list(values, printer.print_ssa_value)
                printer.print_string(" : ")
                printer.print_list([v.type for v in values], printer.print_attribute)
                printer.print_string(")")
        printer.print_op_attributes({**self.properties, **self.attributes}, reserved_attr_names=SEGMENT_SIZES)
        if self.results:
            printer.print_string(" -> ")
            printer.print_list([r.type for r in self.results], printer.print_attribute)
        for name, region in self.named_regions.items():
            printer.print_string(f" {name} ")
            printer.print_region(region)

    @classmethod
    def parse(cls, parser: Parser) -> "KernelOp":
        definition = cls.get_irdl_definition()
        operands = list[list[SSAValue]]()
        for name, _ in definition.operands:
            group = list[SSAValue]()
            if parser.parse_optional_keyword(name):
                with parser.in_parens():
                    unresolved = parser.parse_comma_separated_list(
                        parser.Delimiter.NONE, parser.parse_unresolved_operand
                    )
                    parser.parse_punctuation(":")
                    types = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
                group = list(parser.resolve_operands(unresolved, types, parser.pos))
            operands.append(group)
        attributes = parser.parse_optional_attr_dict()
        properties = {name: attributes.pop(name) for name in definition.properties if name in attributes}
        results = list[Attribute]()
        if parser.parse_optional_punctuation("->"):
            results = parser.parse_comma_separated_list(parser.Delimiter.NONE, parser.parse_type)
        regions = list[list[Region]]()
        for name, _ in definition.regions:
            regions.append([parser.parse_region()] if parser.parse_optional_keyword(name) else [])
        return cls.build(
            operands=operands,
            properties=properties,
            attributes=attributes,
            result_types=[results],
            regions=regions,
        )


def verify_static_layout(op: Operation, type: BufferType) -> None:
    """(F2) for one memref type. Raises VerifyException."""
    layout = type.layout
    static = isinstance(layout, NoneAttr) or (
        isinstance(layout, StridedLayoutAttr)
        and layout.get_offset() == 0
        and None not in layout.get_strides()
    )
    if not static:
        raise VerifyException(f"'{op.name}' op needs static strides and no offset, got {type} (F2)")


@irdl_op_definition
class YieldOp(IRDLOperation):
    """
    Ends a fused region: the scalars that become the element of each destination. Ends a region of control flow or
    of stripes: the values that leave it.

    Example:

    ```mlir
    dnn.yield %sum : f32
    ```
    """

    name = "dnn.yield"
    values = var_operand_def(AnyAttr())
    traits = traits_def(IsTerminator(), Pure())
    assembly_format = "attr-dict ($values^ `:` type($values))?"

    def __init__(self, *values: SSAValue):
        Operation.__init__(self, operands=values)
