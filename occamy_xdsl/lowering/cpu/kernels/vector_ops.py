"""
Upstream MLIR ops as MLIR 22 defines them, where xDSL 0.75 has none or one that rejects vectors.

They are built, verified and printed by kernels, never parsed, so they are in no dialect. Names, syntax and
meaning are those of the MLIR documentation of arith, vector and memref.
"""

from collections.abc import Sequence
from typing import ClassVar, cast

from xdsl.dialects.arith import CMPF_COMPARISON_OPERATIONS, CMPI_COMPARISON_OPERATIONS
from xdsl.dialects.builtin import I1, IndexType, IntegerAttr, MemRefType, VectorType, i1
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import (
    AnyAttr,
    IRDLOperation,
    VarConstraint,
    irdl_op_definition,
    operand_def,
    prop_def,
    result_def,
    traits_def,
    var_operand_def,
)
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException


def retype(scalar: Attribute, like: Attribute) -> Attribute:
    """`scalar` itself, or the vector of it with the shape of `like` if that is a vector."""
    return VectorType(scalar, like.shape) if isinstance(like, VectorType) else scalar


def lanes_of(value: SSAValue) -> int | None:
    """Lanes of a rank-1 vector, or None for a scalar."""
    type_ = value.type
    return cast(VectorType, type_).get_shape()[0] if isinstance(type_, VectorType) else None


class _CompareOp(IRDLOperation):
    """Comparison of two scalars to an i1, or of two vectors to a vector of i1."""

    T: ClassVar = VarConstraint("T", AnyAttr())
    predicate = prop_def(IntegerAttr)
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def()
    traits = traits_def(Pure())
    PREDICATES: ClassVar[Sequence[str]]

    def __init__(self, predicate: str, lhs: SSAValue, rhs: SSAValue):
        super().__init__(
            operands=[lhs, rhs],
            result_types=[retype(i1, lhs.type)],
            properties={"predicate": IntegerAttr(self.PREDICATES.index(predicate), 64)},
        )

    def print(self, printer: Printer):
        printer.print_string(f" {self.PREDICATES[self.predicate.value.data]}, ")
        printer.print_operand(self.lhs)
        printer.print_string(", ")
        printer.print_operand(self.rhs)
        printer.print_string(" : ")
        printer.print_attribute(self.lhs.type)


@irdl_op_definition
class CmpiOp(_CompareOp):
    """Integer comparison."""

    name = "arith.cmpi"
    PREDICATES: ClassVar[Sequence[str]] = CMPI_COMPARISON_OPERATIONS


@irdl_op_definition
class CmpfOp(_CompareOp):
    """Floating-point comparison."""

    name = "arith.cmpf"
    PREDICATES: ClassVar[Sequence[str]] = CMPF_COMPARISON_OPERATIONS


@irdl_op_definition
class SelectOp(IRDLOperation):
    """One of two values, by one condition or by one condition for each lane."""

    name = "arith.select"
    T: ClassVar = VarConstraint("T", AnyAttr())
    cond = operand_def(I1 | VectorType[I1])
    lhs = operand_def(T)
    rhs = operand_def(T)
    result = result_def(T)
    traits = traits_def(Pure())

    def __init__(self, cond: SSAValue, lhs: SSAValue, rhs: SSAValue):
        super().__init__(operands=[cond, lhs, rhs], result_types=[lhs.type])

    def print(self, printer: Printer):
        printer.print_string(" ")
        printer.print_list(self.operands, printer.print_operand)
        printer.print_string(" : ")
        if self.cond.type != i1:
            printer.print_attribute(self.cond.type)
            printer.print_string(", ")
        printer.print_attribute(self.result.type)


class _CastOp(IRDLOperation):
    """Conversion of a scalar, or of each lane of a vector."""

    input = operand_def()
    result = result_def()
    traits = traits_def(Pure())
    assembly_format = "$input attr-dict `:` type($input) `to` type($result)"

    def __init__(self, value: SSAValue, to: Attribute):
        super().__init__(operands=[value], result_types=[to])

    def verify_(self):
        if retype(i1, self.input.type) != retype(i1, self.result.type):
            raise VerifyException(f"'{self.name}' op input and result differ in shape")


@irdl_op_definition
class SIToFPOp(_CastOp):
    """Signed integer to float."""

    name = "arith.sitofp"


@irdl_op_definition
class UIToFPOp(_CastOp):
    """Unsigned integer to float."""

    name = "arith.uitofp"


@irdl_op_definition
class FPToSIOp(_CastOp):
    """Float to signed integer, towards zero."""

    name = "arith.fptosi"


@irdl_op_definition
class FPToUIOp(_CastOp):
    """Float to unsigned integer, towards zero."""

    name = "arith.fptoui"


@irdl_op_definition
class TruncIOp(_CastOp):
    """Integer to a narrower one."""

    name = "arith.trunci"


@irdl_op_definition
class ExtSIOp(_CastOp):
    """Signed integer to a wider one."""

    name = "arith.extsi"


@irdl_op_definition
class ExtUIOp(_CastOp):
    """Unsigned integer to a wider one."""

    name = "arith.extui"


@irdl_op_definition
class IndexCastOp(_CastOp):
    """Signed integer to or from index."""

    name = "arith.index_cast"


@irdl_op_definition
class FromElementsOp(IRDLOperation):
    """A vector made of scalars."""

    name = "vector.from_elements"
    elements = var_operand_def()
    result = result_def(VectorType)
    traits = traits_def(Pure())

    def __init__(self, elements: Sequence[SSAValue]):
        super().__init__(operands=[elements], result_types=[VectorType(elements[0].type, [len(elements)])])

    def print(self, printer: Printer):
        printer.print_string(" ")
        printer.print_list(self.elements, printer.print_operand)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)


@irdl_op_definition
class GatherOp(IRDLOperation):
    """Lanes loaded from `base[start + indices[lane]]` where the mask is set, else taken from `pass_thru`."""

    name = "vector.gather"
    base = operand_def(MemRefType)
    start = operand_def(IndexType)
    indices = operand_def(VectorType)
    mask = operand_def(VectorType[I1])
    pass_thru = operand_def(VectorType)
    result = result_def(VectorType)
    assembly_format = (
        "$base `[` $start `]` ` ` `[` $indices `]` `,` $mask `,` $pass_thru attr-dict `:` type($base) `,` "
        "type($indices) `,` type($mask) `,` type($pass_thru) `into` type($result)"
    )

    def __init__(
        self, base: SSAValue, start: SSAValue, indices: SSAValue, mask: SSAValue, pass_thru: SSAValue
    ):
        super().__init__(operands=[base, start, indices, mask, pass_thru], result_types=[pass_thru.type])


@irdl_op_definition
class ScatterOp(IRDLOperation):
    """Lanes stored to `base[start + indices[lane]]` where the mask is set, in lane order."""

    name = "vector.scatter"
    base = operand_def(MemRefType)
    start = operand_def(IndexType)
    indices = operand_def(VectorType)
    mask = operand_def(VectorType[I1])
    value = operand_def(VectorType)
    assembly_format = (
        "$base `[` $start `]` ` ` `[` $indices `]` `,` $mask `,` $value attr-dict `:` type($base) `,` "
        "type($indices) `,` type($mask) `,` type($value)"
    )

    def __init__(self, base: SSAValue, start: SSAValue, indices: SSAValue, mask: SSAValue, value: SSAValue):
        super().__init__(operands=[base, start, indices, mask, value])


@irdl_op_definition
class PrefetchOp(IRDLOperation):
    """Hint that the cache line of `base[index]` will be read soon."""

    name = "memref.prefetch"
    base = operand_def(MemRefType)
    index = operand_def(IndexType)

    def __init__(self, base: SSAValue, index: SSAValue):
        super().__init__(operands=[base, index])

    def print(self, printer: Printer):
        printer.print_string(" ")
        printer.print_operand(self.base)
        printer.print_string("[")
        printer.print_operand(self.index)
        printer.print_string("], read, locality<3>, data : ")
        printer.print_attribute(self.base.type)


VECTOR_FORMS: dict[str, type[IRDLOperation]] = {
    op.name: op
    for op in (
        CmpiOp,
        CmpfOp,
        SelectOp,
        SIToFPOp,
        UIToFPOp,
        FPToSIOp,
        FPToUIOp,
        TruncIOp,
        ExtSIOp,
        ExtUIOp,
    )
}
"""The op classes here that stand for an op of xDSL's arith dialect, by name."""
