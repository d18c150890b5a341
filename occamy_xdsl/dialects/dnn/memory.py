"""Memory ops of the `dnn` dialect: buffers, the pool, views and copies. Sizes and offsets are in bytes."""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import cast

from xdsl.dialects.builtin import (
    I8,
    I64,
    IntegerAttr,
    MemRefType,
    StringAttr,
    TensorType,
    UnitAttr,
    i8,
    i64,
)
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import (
    AnyAttr,
    BaseAttr,
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    opt_prop_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.traits import EffectInstance, MemoryEffect, MemoryEffectKind, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from occamy_xdsl.dialects.dnn.base import (
    BufferType,
    KernelOp,
    byte_size,
    element_bytes,
    element_type_of,
    i64_attr,
    shape_of,
    share_elements,
    span,
    strides_of,
    verify_static_layout,
)
from occamy_xdsl.dialects.weights import Weights, WeightsRefAttr, numpy_dtype, to_array


class AllocatesResult(MemoryEffect):
    """ALLOC on the op's own result, so that an unused allocation is dead and CSE merges no two."""

    @classmethod
    def get_effects(cls, op: Operation) -> AbstractSet[EffectInstance]:
        return {EffectInstance(MemoryEffectKind.ALLOC, op.results[0])}


class FreesOperand(MemoryEffect):
    """FREE on operand 0."""

    @classmethod
    def get_effects(cls, op: Operation) -> AbstractSet[EffectInstance]:
        return {EffectInstance(MemoryEffectKind.FREE, op.operands[0])}


class CopiesOperand(MemoryEffect):
    """WRITE on operand 0, READ on operand 1."""

    @classmethod
    def get_effects(cls, op: Operation) -> AbstractSet[EffectInstance]:
        return {
            EffectInstance(MemoryEffectKind.WRITE, op.operands[0]),
            EffectInstance(MemoryEffectKind.READ, op.operands[1]),
        }


@irdl_op_definition
class MallocOp(IRDLOperation):
    """
    Allocates one buffer. Its contents are undefined.

    Example:

    ```mlir
    %b = dnn.malloc : memref<4xf32>
    ```

    Source: the paper's `DNN.Malloc`.
    """

    name = "dnn.malloc"
    buffer = result_def(MemRefType)
    traits = traits_def(AllocatesResult())
    assembly_format = "attr-dict `:` type($buffer)"

    def __init__(self, type: BufferType):
        Operation.__init__(self, result_types=(type,))

    def verify_(self) -> None:
        verify_static_layout(self, self.buffer.type)


@irdl_op_definition
class DeallocOp(IRDLOperation):
    """
    Releases a buffer that `dnn.malloc` or `dnn.mempool_init` made.

    Constraints:

    - (C1) The operand is the result of one of these two ops.

    Example:

    ```mlir
    dnn.dealloc %b : memref<4xf32>
    ```

    Source: the paper's `DNN.Dealloc`.
    """

    name = "dnn.dealloc"
    buffer = operand_def(MemRefType)
    traits = traits_def(FreesOperand())
    assembly_format = "$buffer attr-dict `:` type($buffer)"

    def __init__(self, buffer: SSAValue):
        Operation.__init__(self, operands=(buffer,))

    def verify_(self) -> None:
        if not isinstance(self.buffer.owner, MallocOp | MempoolInitOp):
            raise VerifyException(
                f"'{self.name}' op must free what dnn.malloc or dnn.mempool_init made, got {self.buffer.type} (C1)"
            )


@irdl_op_definition
class MempoolInitOp(IRDLOperation):
    """
    Allocates the one pool in which a function's `dnn.mem_offset` views lie.

    Constraints:

    - (C1) `alignment`, in bytes, is a power of two.

    Example:

    ```mlir
    %pool = dnn.mempool_init align 64 : memref<4096xi8>
    ```

    Source: the original's `dnn.mempool-init`.
    """

    name = "dnn.mempool_init"
    alignment = prop_def(IntegerAttr[I64])
    pool = result_def(MemRefType[I8])
    traits = traits_def(AllocatesResult())
    assembly_format = "`align` $alignment attr-dict `:` type($pool)"

    def __init__(self, size: int, alignment: int):
        super().__init__(
            properties={"alignment": IntegerAttr(alignment, i64)}, result_types=[MemRefType(i8, [size])]
        )

    def verify_(self) -> None:
        alignment = self.alignment.value.data
        if alignment <= 0 or alignment & (alignment - 1):
            raise VerifyException(f"'{self.name}' op alignment must be a power of two, got {alignment} (C1)")


@irdl_op_definition
class MemOffsetOp(IRDLOperation):
    """
    The `size` bytes of the pool that start at byte `offset`, as a typed buffer. Allocates nothing.

    Constraints:

    - (C1) `offset` >= 0.
    - (C2) `offset` is a multiple of the element's bytes.
    - (C3) `size` >= the bytes that `view` spans.
    - (C4) `offset` + `size` <= the pool's bytes.

    Example:

    ```mlir
    %v = dnn.mem_offset %pool[256, 64] : memref<1024xi8> -> memref<16xf32>
    ```

    Source: the paper's `DNN.Mem-offset(base, offset, size)`.
    """

    name = "dnn.mem_offset"
    pool = operand_def(MemRefType[I8])
    offset = prop_def(IntegerAttr[I64])
    size = prop_def(IntegerAttr[I64])
    view = result_def(MemRefType)
    traits = traits_def(Pure())
    assembly_format = "$pool `[` $offset `,` $size `]` attr-dict `:` type($pool) `->` type($view)"

    def __init__(self, pool: SSAValue, offset: int, size: int, view: BufferType):
        Operation.__init__(
            self,
            operands=(pool,),
            properties={"offset": i64_attr(offset), "size": i64_attr(size)},
            result_types=(view,),
        )

    def verify_(self) -> None:
        offset, size = self.offset.value.data, self.size.value.data
        verify_static_layout(self, self.view.type)
        if offset < 0:
            raise VerifyException(f"'{self.name}' op offset must not be negative, got {offset} (C1)")
        element = element_type_of(self.view)
        if offset % element_bytes(element):
            raise VerifyException(
                f"'{self.name}' op offset {offset} is not a multiple of {element}'s "
                f"{element_bytes(element)} bytes (C2)"
            )
        if size < byte_size(self.view):
            raise VerifyException(
                f"'{self.name}' op size {size} is less than the view's {byte_size(self.view)} bytes (C3)"
            )
        if offset + size > byte_size(self.pool):
            raise VerifyException(
                f"'{self.name}' op ends at byte {offset + size}, past the pool's {byte_size(self.pool)} bytes (C4)"
            )


@irdl_op_definition
class ViewOp(IRDLOperation):
    """
    The same memory read with another shape and other strides. Allocates and moves nothing.

    Element (i, j, ...) of the result is the one that lies `offset` + i * stride_0 + j * stride_1 + ...
    elements after the source's first. Reshapes, transposes, slices, broadcasts (stride 0) and the parts of a
    concatenation are views.

    Constraints:

    - (C1) Source and result have the same element type.
    - (C2) The result stays between the first and the last element that the source spans.

    Example, rows 2 and 3 of a matrix, transposed:

    ```mlir
    %t = dnn.view %m[16] : memref<4x8xf32> -> memref<8x2xf32, strided<[1, 8]>>
    ```
    """

    name = "dnn.view"
    source = operand_def(MemRefType)
    offset = prop_def(IntegerAttr[I64])
    view = result_def(MemRefType)
    traits = traits_def(Pure())
    assembly_format = "$source `[` $offset `]` attr-dict `:` type($source) `->` type($view)"

    def __init__(self, source: SSAValue, offset: int, view: BufferType):
        Operation.__init__(
            self, operands=(source,), properties={"offset": i64_attr(offset)}, result_types=(view,)
        )

    def verify_(self) -> None:
        verify_static_layout(self, cast(BufferType, self.source.type))
        verify_static_layout(self, self.view.type)
        if element_type_of(self.source) != element_type_of(self.view):
            raise VerifyException(
                f"'{self.name}' op must keep the element type, got {self.source.type} and {self.view.type} (C1)"
            )
        # Strides may be negative (a reversed slice), so both ends count.
        reach = [
            (size - 1) * stride
            for size, stride in zip(shape_of(self.view), strides_of(self.view), strict=True)
        ]
        first = self.offset.value.data + sum(r for r in reach if r < 0)
        last = self.offset.value.data + sum(r for r in reach if r > 0)
        available = span(shape_of(self.source), strides_of(self.source))
        if 0 not in shape_of(self.view) and (first < 0 or last >= available):
            raise VerifyException(
                f"'{self.name}' op reaches elements {first} to {last}, the source spans {available} (C2)"
            )


@irdl_op_definition
class MemcpyOp(IRDLOperation):
    """
    Copies a whole buffer between host and device, or within the device.

    Constraints:

    - (C1) Both buffers have the same type, but for the memory space.
    - (C2) `kind` is one of h2d, d2h, d2d.

    Example:

    ```mlir
    dnn.memcpy %device, %host h2d : memref<4xf32>
    ```

    Source: the paper's `DNN.Memcpy`.
    """

    name = "dnn.memcpy"
    destination = operand_def(MemRefType)
    source = operand_def(MemRefType)
    kind = prop_def(StringAttr)
    traits = traits_def(CopiesOperand())
    assembly_format = "$destination `,` $source $kind attr-dict `:` type($destination) `,` type($source)"

    def __init__(self, destination: SSAValue, source: SSAValue, kind: str):
        super().__init__(operands=[destination, source], properties={"kind": StringAttr(kind)})

    def verify_(self) -> None:
        types = [self.destination.type, self.source.type]
        if len({(t.shape, t.element_type, t.layout) for t in types if isa(t, BufferType)}) != 1:
            raise VerifyException(
                f"'{self.name}' op needs equal types, got {self.destination.type} and {self.source.type} (C1)"
            )
        if self.kind.data not in ("h2d", "d2h", "d2d"):
            raise VerifyException(f"'{self.name}' op kind must be h2d, d2h or d2d, got {self.kind.data} (C2)")


@irdl_op_definition
class ConstantOp(IRDLOperation):
    """
    A tensor of the model: weights, or a value folded at compile time. Takes no memory from the pool.

    The value is either a small literal or a reference to weights, whose bytes never appear in the IR.

    Example:

    ```mlir
    %w = dnn.constant #weights.ref<"conv1.weight"> -> tensor<64x3x7x7xf32>
    ```
    """

    name = "dnn.constant"
    value = prop_def(AnyAttr())
    output = result_def(BaseAttr(TensorType) | BaseAttr(MemRefType))
    traits = traits_def(Pure())
    assembly_format = "$value attr-dict `->` type($output)"

    def __init__(self, value: Attribute, type: Attribute):
        Operation.__init__(self, properties={"value": value}, result_types=(type,))

    @property
    def weights(self) -> Weights:
        """The value as weights that need not be loaded yet; the key of a literal is its text."""
        if isinstance(self.value, WeightsRefAttr):
            return self.value.data
        type: Attribute = self.output.type
        load = partial(to_array, self.value, type)
        return Weights(str(self.value), numpy_dtype(element_type_of(type)), shape_of(type), load)


@irdl_op_definition
class CopyOp(KernelOp):
    """
    Copies every element of the input to the result, whatever their strides are.

    In value form it stands where a value must have storage of its own, such as an input that is an output. With
    `keep` it stays a copy: what it reads may die, and what reads it may start, before the other does.

    In buffer form both may be parts of one buffer: rows then move towards its front, as `memmove` does.

    Constraints:

    - (C1) Input and result have the same element type.
    - (C2) Where input and result are views of one buffer with the same strides and have elements in common, the
      result does not start behind the input.

    Example:

    ```mlir
    dnn.copy input(%a : memref<2x3xf32>) outs(%b : memref<2x3xf32, strided<[1, 2]>>)
    ```
    """

    name = "dnn.copy"
    input = operand_def(BaseAttr(TensorType) | BaseAttr(MemRefType))
    keep = opt_prop_def(UnitAttr)

    def __init__(self, input: SSAValue, result: Attribute, *, keep: bool = False):
        """Value form."""
        properties = {"keep": UnitAttr()} if keep else {}
        super().__init__(operands=[input, [], []], properties=properties, result_types=[[result]])

    @staticmethod
    def between(source: SSAValue, target: SSAValue) -> "CopyOp":
        """Buffer form: from the memref `source` to the memref `target`."""
        op = CopyOp.__new__(CopyOp)
        KernelOp.__init__(op, operands=[source, target, None], result_types=[[]])
        return op

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        if element_type_of(self.input) != element_type_of(self.destinations[0]):
            raise self.fail(
                f"must keep the element type, got {self.input.type} and {self.destinations[0].type}", "C1"
            )
        return (shape_of(self.input),)

    def verify_(self) -> None:
        super().verify_()
        if self.is_buffer_form and (distance := self.overlap) is not None and distance < 0:
            raise self.fail(f"moves elements {-distance} behind themselves", "C2")

    @property
    def overlap(self) -> int | None:
        """
        Elements by which the result starts before the input where both have elements of one buffer in common; None
        where they have not, or have other strides. Buffer form.
        """
        (source, offset), (target, start) = _place(self.input), _place(self.outs[0])
        shape, strides = shape_of(self.input), strides_of(self.input)
        steps = zip(shape, strides, strides_of(self.outs[0]), strict=True)
        if source is not target or any(size > 1 and own != other for size, own, other in steps):
            return None
        return offset - start if share_elements(shape, strides, offset - start) else None


def _place(memref: SSAValue) -> tuple[SSAValue, int]:
    """The buffer of which a memref shows elements, and how many elements after its first one they start."""
    offset = 0
    while isinstance(memref.owner, ViewOp):
        offset += memref.owner.offset.value.data
        memref = memref.owner.source
    return memref, offset
