"""Ops of the `dnn` dialect that only rearrange elements. They have a value form alone: in memory they are views."""

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import I64, IntegerAttr, TensorType, i64
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, var_operand_def

from occamy_xdsl.dialects.dnn.base import (
    I64Array,
    KernelOp,
    ValueType,
    element_type_of,
    i64_array,
    ints,
    shape_of,
    tensor_type,
)
from occamy_xdsl.dialects.dnn.geometry import broadcast_shapes


class ShapeOp(KernelOp):
    """
    Base of the ops that only rearrange elements. There is no buffer form: `dnn-insert-memory-ops` makes views
    and copies of them.

    Further shared constraint:

    - (F5) Operands and result have the same element type.
    """

    def verify_form(self) -> None:
        super().verify_form()
        types = {element_type_of(value) for value in (*self.inputs, *self.results)}
        if len(types) > 1:
            raise self.fail(f"must keep the element type, got {sorted(map(str, types))}", "F5")


def _result(source: SSAValue, shape: Sequence[int]) -> ValueType:
    return tensor_type(shape, element_type_of(source))


@irdl_op_definition
class ReshapeOp(ShapeOp):
    """
    The same elements in row-major order with another shape.

    Constraints:

    - (C1) The number of elements stays.

    Example:

    ```mlir
    %y = dnn.reshape input(%x : tensor<2x3xf32>) -> tensor<6xf32>
    ```
    """

    name = "dnn.reshape"
    input = operand_def(TensorType)

    def __init__(self, input: SSAValue, shape: Sequence[int]):
        super().__init__(operands=[input, [], []], result_types=[[_result(input, shape)]])

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        shape = shape_of(self.results[0])
        if prod(shape) != prod(shape_of(self.input)):
            raise self.fail(
                f"must keep {prod(shape_of(self.input))} elements, got {prod(shape)} in {self.results[0].type}",
                "C1",
            )
        return (shape,)


@irdl_op_definition
class TransposeOp(ShapeOp):
    """
    Permutes dimensions: result dimension i is input dimension `permutation[i]`.

    Constraints:

    - (C1) `permutation` is one of the input's dimensions.

    Example:

    ```mlir
    %y = dnn.transpose input(%x : tensor<2x3xf32>) {permutation = array<i64: 1, 0>} -> tensor<3x2xf32>
    ```
    """

    name = "dnn.transpose"
    input = operand_def(TensorType)
    permutation = prop_def(I64Array)

    def __init__(self, input: SSAValue, permutation: Sequence[int]):
        shape = shape_of(input)
        super().__init__(
            operands=[input, [], []],
            properties={"permutation": i64_array(permutation)},
            result_types=[[_result(input, [shape[d] for d in permutation])]],
        )

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        shape, permutation = shape_of(self.input), ints(self.permutation)
        if sorted(permutation) != list(range(len(shape))):
            raise self.fail(f"permutation must order {len(shape)} dimensions, got {list(permutation)}", "C1")
        return (tuple(shape[d] for d in permutation),)


@irdl_op_definition
class SliceOp(ShapeOp):
    """
    Along each dimension, `sizes` elements from `offsets` on, `strides` apart. Strides may be negative.

    Constraints:

    - (C1) One offset, size and stride a dimension; no stride is 0.
    - (C2) Every element lies inside the input.

    Example:

    ```mlir
    %y = dnn.slice input(%x : tensor<8xf32>)
           {offsets = array<i64: 1>, sizes = array<i64: 3>, strides = array<i64: 2>} -> tensor<3xf32>
    ```
    """

    name = "dnn.slice"
    input = operand_def(TensorType)
    offsets = prop_def(I64Array)
    sizes = prop_def(I64Array)
    strides = prop_def(I64Array)

    def __init__(self, input: SSAValue, offsets: Sequence[int], sizes: Sequence[int], strides: Sequence[int]):
        super().__init__(
            operands=[input, [], []],
            properties={
                "offsets": i64_array(offsets),
                "sizes": i64_array(sizes),
                "strides": i64_array(strides),
            },
            result_types=[[_result(input, sizes)]],
        )

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        shape = shape_of(self.input)
        offsets, sizes, strides = ints(self.offsets), ints(self.sizes), ints(self.strides)
        if not len(offsets) == len(sizes) == len(strides) == len(shape) or 0 in strides:
            raise self.fail(f"needs {len(shape)} offsets, sizes and non-zero strides", "C1")
        for have, offset, size, stride in zip(shape, offsets, sizes, strides, strict=True):
            ends = (offset, offset + (size - 1) * stride)
            if size < 0 or (size and (min(ends) < 0 or max(ends) >= have)):
                raise self.fail(f"takes elements {min(ends)} to {max(ends)} of a dimension of {have}", "C2")
        return (sizes,)


@irdl_op_definition
class BroadcastOp(ShapeOp):
    """
    Repeats the input along dimensions of size 1 and new leading dimensions, as numpy broadcasting does.

    Constraints:

    - (C1) The input's shape broadcasts to the result's.

    Example:

    ```mlir
    %y = dnn.broadcast input(%x : tensor<3x1xf32>) -> tensor<2x3x4xf32>
    ```
    """

    name = "dnn.broadcast"
    input = operand_def(TensorType)

    def __init__(self, input: SSAValue, shape: Sequence[int]):
        super().__init__(operands=[input, [], []], result_types=[[_result(input, shape)]])

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        shape = shape_of(self.results[0])
        if broadcast_shapes(shape_of(self.input), shape) != shape:
            raise self.fail(f"cannot broadcast {shape_of(self.input)} to {shape}", "C1")
        return (shape,)


@irdl_op_definition
class ConcatOp(ShapeOp):
    """
    Joins its inputs along dimension `axis`.

    Constraints:

    - (C1) At least one input, and `axis` is one of its dimensions.
    - (C2) The inputs differ in size along `axis` alone.

    Example:

    ```mlir
    %y = dnn.concat ins(%a, %b : tensor<1x2xf32>, tensor<1x3xf32>) {axis = 1 : i64} -> tensor<1x5xf32>
    ```
    """

    name = "dnn.concat"
    ins = var_operand_def(TensorType)
    axis = prop_def(IntegerAttr[I64])

    def __init__(self, ins: Sequence[SSAValue], axis: int):
        shape = list(shape_of(ins[0]))
        shape[axis] = sum(shape_of(value)[axis] for value in ins)
        super().__init__(
            operands=[ins, [], []],
            properties={"axis": IntegerAttr(axis, i64)},
            result_types=[[_result(ins[0], shape)]],
        )

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        axis = self.axis.value.data
        if not self.ins or not 0 <= axis < len(shape_of(self.ins[0])):
            raise self.fail(f"needs inputs with a dimension {axis}", "C1")
        shapes = [shape_of(value) for value in self.ins]
        if (
            len({(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}) > 1
            or len({len(shape) for shape in shapes}) > 1
        ):
            raise self.fail(f"inputs must agree outside dimension {axis}, got {shapes}", "C2")
        first = shapes[0]
        return ((*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :]),)
