"""Ops of the `dnn` dialect that compute."""

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import (
    I1,
    I64,
    BoolAttr,
    DenseArrayBase,
    Float32Type,
    Float64Type,
    FloatAttr,
    IntegerAttr,
    MemRefType,
    StringAttr,
    TensorType,
    i32,
    i64,
)
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.irdl import (
    AttrSizedRegionSegments,
    BaseAttr,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    opt_prop_def,
    opt_region_def,
    prop_def,
    region_def,
    var_operand_def,
)

from occamy_xdsl.dialects.dnn.base import (
    I64Array,
    KernelOp,
    element_type_of,
    i64_array,
    integer_width,
    ints,
    shape_of,
)
from occamy_xdsl.dialects.dnn.geometry import (
    broadcast_shapes,
    is_channel_vector,
    transposed_window_output,
    window_output,
)

Shaped = BaseAttr(TensorType) | BaseAttr(MemRefType)


def accumulator_type(element_type: Attribute) -> Attribute:
    """The type in which products of such elements are summed: 32-bit for 8-bit integers."""
    return i32 if integer_width(element_type) == 8 else element_type


class FusableOp(KernelOp):
    """
    Base of the ops that may end in an `epilogue`: scalar work on each element before it is stored.

    The region's first argument is the element that the op itself computed, in its accumulator type; the
    others are the elements of `extras`, which broadcast to the result. Without a region the element is stored
    as it is.

    Further shared constraints:

    - (F5) `extras` broadcast to the result's shape, and there are none without an epilogue.
    """

    extras = var_operand_def(Shaped)
    epilogue = opt_region_def()

    @property
    def accumulated_type(self) -> Attribute:
        """Element type of the epilogue's first argument."""
        return accumulator_type(element_type_of(self.operands[0]))

    def verify_(self) -> None:
        super().verify_()
        shape = shape_of(self.destinations[0])
        for extra in self.extras:
            if broadcast_shapes(shape_of(extra), shape) != shape:
                raise self.fail(f"extras must broadcast to {shape}, got {extra.type}", "F5")
        if self.epilogue is not None:
            takes = [self.accumulated_type, *(element_type_of(e) for e in self.extras)]
            self.verify_region(self.epilogue, takes, [element_type_of(self.destinations[0])])
        elif self.extras:
            raise self.fail("has extras but no epilogue", "F5")


class WindowOp(FusableOp):
    """
    Base of the ops that slide a window over the dimensions from 2 on of an input (batch, channels, ...).

    Further shared constraints:

    - (F6) One stride and dilation a spatial dimension, each > 0, and two `pads`: all begins, then all ends.
    """

    strides = prop_def(I64Array)
    pads = prop_def(I64Array)
    dilations = prop_def(I64Array)

    def window_geometry(self, rank: int) -> list[tuple[int, int, tuple[int, int]]]:
        """(stride, dilation, (pad begin, pad end)) for each of `rank` spatial dimensions, in elements."""
        strides, dilations, pads = ints(self.strides), ints(self.dilations), ints(self.pads)
        if (
            not len(strides) == len(dilations) == rank
            or len(pads) != 2 * rank
            or min((*strides, *dilations), default=1) <= 0
        ):
            raise self.fail(
                f"needs {rank} positive strides and dilations and {2 * rank} pads, "
                f"got {list(strides)}, {list(dilations)} and {list(pads)}",
                "F6",
            )
        return list(zip(strides, dilations, zip(pads[:rank], pads[rank:], strict=True), strict=True))


def window_properties(
    strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> dict[str, Attribute]:
    return {"strides": i64_array(strides), "pads": i64_array(pads), "dilations": i64_array(dilations)}


@irdl_op_definition
class ConvOp(WindowOp):
    """
    Convolution (cross-correlation), with prologue, bias and epilogue.

    Input (N, C, spatial...), filter (M, C / group, kernel...), bias (M), result (N, M, spatial...).
    The channels of `joined`, if there are any, follow those of `input`, as if by a concatenation that is never
    stored; C counts them all. Padding reads as 0. 8-bit integers are summed in 32 bits.

    A `prologue` is scalar work on each element of the input before it enters any product: its first argument
    is the element, the others are the elements of `prologue_extras` for that channel; it yields the element
    that takes its place. The padding stays 0, also where the prologue would make something else of 0.

    Constraints:

    - (C1) Input and filter have the same rank >= 3.
    - (C2) C = group * filter's dimension 1, and M is a multiple of `group`.
    - (C3) `bias` has M elements.
    - (C4) `joined` differ from `input` in the number of channels alone, and there are none with group > 1.
    - (C5) `prologue_extras` have one element a channel, in the dimension that broadcasts to the input's
      channels, or one in all; there are none without a prologue.

    Example:

    ```mlir
    %y = dnn.conv input(%x : tensor<1x3x8x8xf32>) filter(%w : tensor<4x3x3x3xf32>) bias(%b : tensor<4xf32>)
      {dilations = array<i64: 1, 1>, group = 1 : i64, pads = array<i64: 1, 1, 1, 1>, strides = array<i64: 1, 1>}
      -> tensor<1x4x8x8xf32> epilogue {
    ^bb0(%sum : f32):
      %zero = arith.constant 0.0 : f32
      %relu = arith.maximumf %sum, %zero : f32
      dnn.yield %relu : f32
    }
    ```

    Source: ONNX Conv-22.
    """

    name = "dnn.conv"
    input = operand_def(Shaped)
    joined = var_operand_def(Shaped)
    filter = operand_def(Shaped)
    bias = opt_operand_def(Shaped)
    prologue_extras = var_operand_def(Shaped)
    group_ = prop_def(IntegerAttr[I64], prop_name="group")
    prologue = opt_region_def()
    irdl_options = (AttrSizedRegionSegments(as_property=True),)

    def __init__(
        self,
        input: SSAValue,
        filter: SSAValue,
        bias: SSAValue | None,
        result: Attribute,
        *,
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        group: int = 1,
    ):
        super().__init__(
            operands=[input, [], filter, bias, [], [], [], []],
            properties={
                **window_properties(strides, pads, dilations),
                "group": IntegerAttr(group, i64),
            },
            result_types=[[result]],
            regions=[[], []],
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape in elements of the whole input: `input` and what is joined to it."""
        first, *others = (shape_of(part) for part in (self.input, *self.joined))
        return (*first[:1], first[1] + sum(part[1] for part in others), *first[2:])

    def verify_(self) -> None:
        super().verify_()
        element = element_type_of(self.input)
        if self.prologue is not None:
            takes = [element, *(element_type_of(e) for e in self.prologue_extras)]
            self.verify_region(self.prologue, takes, [element])
        elif self.prologue_extras:
            raise self.fail("has prologue_extras but no prologue", "C5")
        shape = self.input_shape
        for extra in self.prologue_extras:
            if not is_channel_vector(shape_of(extra), len(shape), 1, shape[1]):
                raise self.fail(
                    f"prologue_extras need one element for each of {shape[1]} channels, got {extra.type}",
                    "C5",
                )

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        first, filter = shape_of(self.input), shape_of(self.filter)
        if len(first) != len(filter) or len(first) < 3:
            raise self.fail(f"needs equal ranks >= 3, got {first} and {filter}", "C1")
        for part in self.joined:
            other = shape_of(part)
            alike = (len(other), *other[:1], *other[2:]) == (len(first), first[0], *first[2:])
            if not alike or element_type_of(part) != element_type_of(self.input):
                raise self.fail(f"cannot join {part.type} to {self.input.type}", "C4")
        if self.joined and self.group_.value.data != 1:
            raise self.fail(f"cannot join inputs in {self.group_.value.data} groups", "C4")
        shape = self.input_shape
        group = self.group_.value.data
        if group < 1 or shape[1] != group * filter[1] or filter[0] % group:
            raise self.fail(f"cannot split {shape[1]} channels for filter {filter} in {group} groups", "C2")
        if self.bias is not None and shape_of(self.bias) != (filter[0],):
            raise self.fail(f"bias must have {filter[0]} elements, got {self.bias.type}", "C3")
        geometry = self.window_geometry(len(shape) - 2)
        spatial = (
            window_output(size, kernel, stride, dilation, pads)
            for size, kernel, (stride, dilation, pads) in zip(shape[2:], filter[2:], geometry, strict=True)
        )
        return ((shape[0], filter[0], *spatial),)


@irdl_op_definition
class ConvTransposeOp(WindowOp):
    """
    Transposed convolution, with bias and epilogue: each input element adds a scaled filter to the result.

    Input (N, C, spatial...), filter (C, M / group, kernel...), bias (M), result (N, M, spatial...).
    `pads` crop the result.

    Constraints:

    - (C1) Input and filter have the same rank >= 3.
    - (C2) C equals the filter's dimension 0 and is a multiple of `group`.
    - (C3) `bias` has M elements.
    - (C4) One `output_padding` a spatial dimension, each >= 0.

    Example:

    ```mlir
    %y = dnn.conv_transpose input(%x : tensor<1x4x4x4xf32>) filter(%w : tensor<4x2x2x2xf32>)
      {dilations = array<i64: 1, 1>, group = 1 : i64, output_padding = array<i64: 0, 0>,
       pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 2, 2>} -> tensor<1x2x8x8xf32>
    ```

    Source: ONNX ConvTranspose-22.
    """

    name = "dnn.conv_transpose"
    input = operand_def(Shaped)
    filter = operand_def(Shaped)
    bias = opt_operand_def(Shaped)
    group_ = prop_def(IntegerAttr[I64], prop_name="group")
    output_padding = prop_def(I64Array)

    def __init__(
        self,
        input: SSAValue,
        filter: SSAValue,
        bias: SSAValue | None,
        result: Attribute,
        *,
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        output_padding: Sequence[int],
        group: int = 1,
    ):
        super().__init__(
            operands=[input, filter, bias, [], [], []],
            properties={
                **window_properties(strides, pads, dilations),
                "group": IntegerAttr(group, i64),
                "output_padding": i64_array(output_padding),
            },
            result_types=[[result]],
            regions=[[]],
        )

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        shape, filter = shape_of(self.input), shape_of(self.filter)
        if len(shape) != len(filter) or len(shape) < 3:
            raise self.fail(f"needs equal ranks >= 3, got {shape} and {filter}", "C1")
        group = self.group_.value.data
        if group < 1 or shape[1] != filter[0] or shape[1] % group:
            raise self.fail(f"cannot split {shape[1]} channels for filter {filter} in {group} groups", "C2")
        channels = filter[1] * group
        if self.bias is not None and shape_of(self.bias) != (channels,):
            raise self.fail(f"bias must have {channels} elements, got {self.bias.type}", "C3")
        extra = ints(self.output_padding)
        if len(extra) != len(shape) - 2 or min(extra) < 0:
            raise self.fail(f"needs {len(shape) - 2} output paddings >= 0, got {list(extra)}", "C4")
        geometry = self.window_geometry(len(shape) - 2)
        spatial = (
            transposed_window_output(size, kernel, stride, dilation, pads, more)
            for size, kernel, (stride, dilation, pads), more in zip(
                shape[2:], filter[2:], geometry, extra, strict=True
            )
        )
        return ((shape[0], channels, *spatial),)


@irdl_op_definition
class PoolOp(WindowOp):
    """
    Pooling over windows of a (N, C, spatial...) input: `kind` is `max` or `average`.

    Padding never wins a maximum. An average divides by the number of elements of the window that lie in the
    input, or, with `count_include_pad`, in the input or its padding; an overhang past the end padding (from
    ONNX's ceil_mode) counts in neither case. `max` may have a second result (i64): the row-major position of
    each maximum in its (N, C, spatial...) input.

    Constraints:

    - (C1) `kind` is `max` or `average`.
    - (C2) One `kernel` size a spatial dimension, each > 0.
    - (C3) Every window of the result starts before the end of the input or its begin padding.
    - (C4) Only `max` has a second result.

    Example:

    ```mlir
    %y = dnn.pool input(%x : tensor<1x4x8x8xf32>)
      {count_include_pad = false, dilations = array<i64: 1, 1>, kernel = array<i64: 2, 2>, kind = "max",
       pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 2, 2>} -> tensor<1x4x4x4xf32>
    ```

    Source: ONNX MaxPool-22, AveragePool-22, GlobalMaxPool-22, GlobalAveragePool-22.
    """

    name = "dnn.pool"
    input = operand_def(Shaped)
    kind = prop_def(StringAttr)
    kernel = prop_def(I64Array)
    count_include_pad = prop_def(IntegerAttr[I1])

    def __init__(
        self,
        input: SSAValue,
        results: Sequence[Attribute],
        *,
        kind: str,
        kernel: Sequence[int],
        strides: Sequence[int],
        pads: Sequence[int],
        dilations: Sequence[int],
        count_include_pad: bool = False,
    ):
        super().__init__(
            operands=[input, [], [], []],
            properties={
                **window_properties(strides, pads, dilations),
                "kind": StringAttr(kind),
                "kernel": i64_array(kernel),
                "count_include_pad": BoolAttr.from_bool(count_include_pad),
            },
            result_types=[results],
            regions=[[]],
        )

    @property
    def accumulated_type(self) -> Attribute:
        return element_type_of(self.input)

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        shape, kernel = shape_of(self.input), ints(self.kernel)
        if self.kind.data not in ("max", "average"):
            raise self.fail(f"kind must be max or average, got {self.kind.data}", "C1")
        if len(kernel) != len(shape) - 2 or min(kernel, default=1) <= 0:
            raise self.fail(f"needs {len(shape) - 2} kernel sizes > 0, got {list(kernel)}", "C2")
        geometry = self.window_geometry(len(shape) - 2)
        result = shape_of(self.destinations[0])
        if result[:2] != shape[:2] or len(result) != len(shape):
            return (shape,)
        for have, want, size, (stride, dilation, pads) in zip(
            shape[2:], result[2:], kernel, geometry, strict=True
        ):
            floor, ceil = (window_output(have, size, stride, dilation, pads, c) for c in (False, True))
            if not floor <= want <= max(ceil, floor):
                raise self.fail(f"has {floor} to {ceil} windows over {have} elements, got {want}", "C3")
        if len(self.destinations) > 1 and self.kind.data != "max":
            raise self.fail(f"kind {self.kind.data} has one result, got {len(self.destinations)}", "C4")
        return (result,) * len(self.destinations)


@irdl_op_definition
class MatmulOp(FusableOp):
    """
    Matrix product (..., M, K) x (..., K, N) -> (..., M, N), with bias and epilogue.

    Leading dimensions broadcast. 8-bit integers are summed in 32 bits.

    Constraints:

    - (C1) Both operands have rank >= 2 and agree on K.
    - (C2) The leading dimensions broadcast.
    - (C3) `bias` broadcasts to the result.

    Example:

    ```mlir
    %y = dnn.matmul a(%a : tensor<4x8xf32>) b(%b : tensor<8x16xf32>) bias(%c : tensor<16xf32>) -> tensor<4x16xf32>
    ```

    Source: ONNX MatMul-13, Gemm-13.
    """

    name = "dnn.matmul"
    a = operand_def(Shaped)
    b = operand_def(Shaped)
    bias = opt_operand_def(Shaped)

    def __init__(self, a: SSAValue, b: SSAValue, bias: SSAValue | None, result: Attribute):
        super().__init__(operands=[a, b, bias, [], [], []], result_types=[[result]], regions=[[]])

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        a, b = shape_of(self.a), shape_of(self.b)
        if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
            raise self.fail(f"cannot multiply {a} by {b}", "C1")
        batch = broadcast_shapes(a[:-2], b[:-2])
        if batch is None:
            raise self.fail(f"cannot broadcast {a[:-2]} and {b[:-2]}", "C2")
        result = (*batch, a[-2], b[-1])
        if self.bias is not None and broadcast_shapes(shape_of(self.bias), result) != result:
            raise self.fail(f"bias must broadcast to {result}, got {self.bias.type}", "C3")
        return (result,)


@irdl_op_definition
class ElementwiseOp(KernelOp):
    """
    Computes each element of the result from one element of each operand, by a region of scalar ops.

    Operands broadcast to the result's shape. The region holds ops of the arith and math dialects; integers
    are signless in it, so the ops choose the sign. Without operands it fills the result with a constant.

    Constraints:

    - (C1) Every operand broadcasts to the result's shape.

    Example:

    ```mlir
    %y = dnn.elementwise ins(%a, %b : tensor<2x3xf32>, tensor<3xf32>) -> tensor<2x3xf32> body {
    ^bb0(%x : f32, %y : f32):
      %s = arith.addf %x, %y : f32
      dnn.yield %s : f32
    }
    ```
    """

    name = "dnn.elementwise"
    ins = var_operand_def(Shaped)
    body = region_def("single_block")

    def __init__(self, ins: Sequence[SSAValue], result: Attribute, body: Region):
        super().__init__(operands=[ins, [], []], result_types=[[result]], regions=[body])

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        shape = shape_of(self.destinations[0])
        for value in self.ins:
            if broadcast_shapes(shape_of(value), shape) != shape:
                raise self.fail(f"operands must broadcast to {shape}, got {value.type}", "C1")
        return (shape,)

    def verify_(self) -> None:
        super().verify_()
        takes = [element_type_of(value) for value in self.ins]
        self.verify_region(self.body, takes, [element_type_of(self.destinations[0])])


REDUCTIONS = (
    "sum",
    "mean",
    "max",
    "min",
    "prod",
    "l1",
    "l2",
    "sum_square",
    "log_sum",
    "log_sum_exp",
)
"""Kinds of `dnn.reduce`; the names follow ONNX's Reduce ops."""


@irdl_op_definition
class ReduceOp(KernelOp):
    """
    Reduces the input along `axes`; the kind names the operation. The result keeps no reduced dimension.

    Of no elements a sum is 0, a product 1, a maximum and a logarithm minus infinity or the least integer, a minimum
    the opposite. The mean, which ONNX leaves undefined, is NaN as in numpy (ONNX Runtime says 0), and 0 in integers.
    In integers, roots and logarithms are computed in f64; what is out of range becomes the nearest f64 in it, and NaN
    the least integer.

    Constraints:

    - (C1) `kind` is one of sum, mean, max, min, prod, l1, l2, sum_square, log_sum, log_sum_exp.
    - (C2) `axes` are distinct dimensions of the input, ascending.
    - (C3) The element type stays.

    Example:

    ```mlir
    %y = dnn.reduce input(%x : tensor<2x3xf32>) {axes = array<i64: 1>, kind = "mean"} -> tensor<2xf32>
    ```

    Source: ONNX ReduceSum-13 and its relatives (ReduceMean-18, ReduceMax-20, ...).
    """

    name = "dnn.reduce"
    input = operand_def(Shaped)
    kind = prop_def(StringAttr)
    axes = prop_def(I64Array)

    def __init__(self, input: SSAValue, kind: str, axes: Sequence[int]):
        shape = [size for dim, size in enumerate(shape_of(input)) if dim not in axes]
        super().__init__(
            operands=[input, [], []],
            properties={"kind": StringAttr(kind), "axes": i64_array(axes)},
            result_types=[[TensorType(element_type_of(input), shape)]],
        )

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        shape, axes = shape_of(self.input), ints(self.axes)
        if self.kind.data not in REDUCTIONS:
            raise self.fail(f"kind must be one of {', '.join(REDUCTIONS)}, got {self.kind.data}", "C1")
        if list(axes) != sorted(set(axes)) or not set(axes) <= set(range(len(shape))):
            raise self.fail(f"axes must be ascending dimensions of {shape}, got {list(axes)}", "C2")
        if element_type_of(self.input) != element_type_of(self.destinations[0]):
            raise self.fail(f"must keep the element type, got {self.destinations[0].type}", "C3")
        return (tuple(size for dim, size in enumerate(shape) if dim not in axes),)


@irdl_op_definition
class ArgReduceOp(KernelOp):
    """
    Position (i64) of the largest (`max`) or smallest (`min`) element along `axis`, which disappears.

    The first position wins a tie, or the last one with `select_last`. A NaN wins over any number.

    Constraints:

    - (C1) `kind` is `max` or `min`.
    - (C2) `axis` is a dimension of the input.

    Example:

    ```mlir
    %y = dnn.arg_reduce input(%x : tensor<2x3xf32>) {axis = 1 : i64, kind = "max", select_last = false}
      -> tensor<2xi64>
    ```

    Source: ONNX ArgMax-13, ArgMin-13.
    """

    name = "dnn.arg_reduce"
    input = operand_def(Shaped)
    kind = prop_def(StringAttr)
    axis = prop_def(IntegerAttr[I64])
    select_last = prop_def(IntegerAttr[I1])

    def __init__(self, input: SSAValue, kind: str, axis: int, select_last: bool):
        shape = shape_of(input)
        super().__init__(
            operands=[input, [], []],
            properties={
                "kind": StringAttr(kind),
                "axis": IntegerAttr(axis, i64),
                "select_last": BoolAttr.from_bool(select_last),
            },
            result_types=[[TensorType(i64, (*shape[:axis], *shape[axis + 1 :]))]],
        )

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        shape, axis = shape_of(self.input), self.axis.value.data
        if self.kind.data not in ("max", "min"):
            raise self.fail(f"kind must be max or min, got {self.kind.data}", "C1")
        if not 0 <= axis < len(shape):
            raise self.fail(f"axis must be a dimension of {shape}, got {axis}", "C2")
        return ((*shape[:axis], *shape[axis + 1 :]),)


class AxisOp(KernelOp):
    """Base of the ops that keep the input's shape and work along one `axis`."""

    axis = prop_def(IntegerAttr[I64])

    def verify_axis(self, constraint: str) -> None:
        rank = len(shape_of(self.operands[0]))
        if not 0 <= self.axis.value.data < rank:
            raise self.fail(f"axis must be one of {rank} dimensions, got {self.axis.value.data}", constraint)


@irdl_op_definition
class SoftmaxOp(AxisOp):
    """
    exp(x - max) / sum(exp(x - max)) along `axis`; its logarithm with `log`.

    Constraints:

    - (C1) `axis` is a dimension of the input.

    Example:

    ```mlir
    %y = dnn.softmax input(%x : tensor<2x3xf32>) {axis = 1 : i64, log = false} -> tensor<2x3xf32>
    ```

    Source: ONNX Softmax-13, LogSoftmax-13.
    """

    name = "dnn.softmax"
    input = operand_def(Shaped)
    log = prop_def(IntegerAttr[I1])

    def __init__(self, input: SSAValue, axis: int, log: bool = False):
        super().__init__(
            operands=[input, [], []],
            properties={"axis": IntegerAttr(axis, i64), "log": BoolAttr.from_bool(log)},
            result_types=[[TensorType(element_type_of(input), shape_of(input))]],
        )

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        self.verify_axis("C1")
        return (shape_of(self.input),)


@irdl_op_definition
class LayerNormOp(AxisOp):
    """
    Normalises over the dimensions from `axis` on to mean 0 and variance 1, then scales and shifts.

    Constraints:

    - (C1) `axis` is a dimension of the input.
    - (C2) `scale` and `bias` broadcast to the input's shape.

    Example:

    ```mlir
    %y = dnn.layer_norm input(%x : tensor<2x8xf32>) scale(%s : tensor<8xf32>) bias(%b : tensor<8xf32>)
      {axis = 1 : i64, epsilon = 1.0e-05 : f32} -> tensor<2x8xf32>
    ```

    Source: ONNX LayerNormalization-17.
    """

    name = "dnn.layer_norm"
    input = operand_def(Shaped)
    scale = opt_operand_def(Shaped)
    bias = opt_operand_def(Shaped)
    epsilon = prop_def(FloatAttr[Float32Type])

    def __init__(
        self, input: SSAValue, scale: SSAValue | None, bias: SSAValue | None, axis: int, epsilon: float
    ):
        super().__init__(
            operands=[input, scale, bias, [], []],
            properties={"axis": IntegerAttr(axis, i64), "epsilon": FloatAttr(epsilon, 32)},
            result_types=[[TensorType(element_type_of(input), shape_of(input))]],
        )

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        self.verify_axis("C1")
        shape = shape_of(self.input)
        for value in (self.scale, self.bias):
            if value is not None and broadcast_shapes(shape_of(value), shape) != shape:
                raise self.fail(f"scale and bias must broadcast to {shape}, got {value.type}", "C2")
        return (shape,)


@irdl_op_definition
class LrnOp(KernelOp):
    """
    Local response normalisation across channels (dimension 1):
    x / (bias + alpha / size * sum of x^2 over `size` channels around) ^ beta.

    Constraints:

    - (C1) The input has rank >= 2 and `size` > 0.

    Example:

    ```mlir
    %y = dnn.lrn input(%x : tensor<1x8x4x4xf32>)
      {alpha = 1.0e-04 : f32, beta = 7.5e-01 : f32, bias = 1.0 : f32, size = 5 : i64} -> tensor<1x8x4x4xf32>
    ```

    Source: ONNX LRN-13.
    """

    name = "dnn.lrn"
    input = operand_def(Shaped)
    size = prop_def(IntegerAttr[I64])
    alpha = prop_def(FloatAttr[Float32Type])
    beta = prop_def(FloatAttr[Float32Type])
    bias = prop_def(FloatAttr[Float32Type])

    def __init__(self, input: SSAValue, *, size: int, alpha: float, beta: float, bias: float):
        super().__init__(
            operands=[input, [], []],
            properties={
                "size": IntegerAttr(size, i64),
                "alpha": FloatAttr(alpha, 32),
                "beta": FloatAttr(beta, 32),
                "bias": FloatAttr(bias, 32),
            },
            result_types=[[TensorType(element_type_of(input), shape_of(input))]],
        )

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        if len(shape_of(self.input)) < 2 or self.size.value.data < 1:
            raise self.fail(
                f"needs rank >= 2 and size > 0, got {self.input.type} and {self.size.value.data}", "C1"
            )
        return (shape_of(self.input),)


@irdl_op_definition
class PadOp(KernelOp):
    """
    Adds `low` elements before and `high` elements after the input along each dimension.

    `mode` tells what they are: `constant` (the attribute `value`), `edge` (the nearest element), `reflect`
    (mirrored about the edge element) or `wrap` (from the other end).

    Constraints:

    - (C1) One `low` and `high` >= 0 a dimension.
    - (C2) `mode` is constant, edge, reflect or wrap, and `value` goes with constant alone.

    Example:

    ```mlir
    %y = dnn.pad input(%x : tensor<4xf32>)
      {high = array<i64: 2>, low = array<i64: 1>, mode = "constant", value = 0.0 : f32} -> tensor<7xf32>
    ```

    Source: ONNX Pad-24.
    """

    name = "dnn.pad"
    input = operand_def(Shaped)
    low = prop_def(I64Array)
    high = prop_def(I64Array)
    mode = prop_def(StringAttr)
    value = opt_prop_def(Attribute)

    def __init__(
        self, input: SSAValue, low: Sequence[int], high: Sequence[int], mode: str, value: Attribute | None
    ):
        properties: dict[str, Attribute | None] = {
            "low": i64_array(low),
            "high": i64_array(high),
            "mode": StringAttr(mode),
            "value": value,
        }
        shape = [a + size + b for a, size, b in zip(low, shape_of(input), high, strict=True)]
        super().__init__(
            operands=[input, [], []],
            properties=properties,
            result_types=[[TensorType(element_type_of(input), shape)]],
        )

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        shape, low, high = shape_of(self.input), ints(self.low), ints(self.high)
        if not len(low) == len(high) == len(shape) or min((*low, *high), default=0) < 0:
            raise self.fail(f"needs {len(shape)} lows and highs >= 0, got {list(low)} and {list(high)}", "C1")
        mode = self.mode.data
        if mode not in ("constant", "edge", "reflect", "wrap") or (mode == "constant") != (
            self.value is not None
        ):
            raise self.fail(f"mode {mode} does not go with value {self.value}", "C2")
        return (tuple(a + size + b for a, size, b in zip(low, shape, high, strict=True)),)


@irdl_op_definition
class GatherOp(KernelOp):
    """
    Takes the slices of `data` along `axis` that `indices` names: numpy's `take`.

    A negative index counts from the end. An index outside the dimension reads the nearest valid slice, so
    that no input makes the program read foreign memory.

    Constraints:

    - (C1) `axis` is a dimension of `data`.
    - (C2) `indices` are i32 or i64.
    - (C3) The element type stays.

    Example:

    ```mlir
    %y = dnn.gather data(%d : tensor<10x4xf32>) indices(%i : tensor<3xi64>) {axis = 0 : i64} -> tensor<3x4xf32>
    ```

    Source: ONNX Gather-13.
    """

    name = "dnn.gather"
    data = operand_def(Shaped)
    indices = operand_def(Shaped)
    axis = prop_def(IntegerAttr[I64])

    def __init__(self, data: SSAValue, indices: SSAValue, axis: int):
        shape = shape_of(data)
        super().__init__(
            operands=[data, indices, [], []],
            properties={"axis": IntegerAttr(axis, i64)},
            result_types=[
                [TensorType(element_type_of(data), (*shape[:axis], *shape_of(indices), *shape[axis + 1 :]))]
            ],
        )

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        shape, axis = shape_of(self.data), self.axis.value.data
        if not 0 <= axis < len(shape):
            raise self.fail(f"axis must be a dimension of {shape}, got {axis}", "C1")
        if element_type_of(self.indices) not in (i32, i64):
            raise self.fail(f"indices must be i32 or i64, got {self.indices.type}", "C2")
        if element_type_of(self.data) != element_type_of(self.destinations[0]):
            raise self.fail(f"must keep the element type, got {self.destinations[0].type}", "C3")
        return ((*shape[:axis], *shape_of(self.indices), *shape[axis + 1 :]),)


@irdl_op_definition
class ResizeOp(KernelOp):
    """
    Resamples the input to the result's shape, dimension by dimension.

    `scales` (result size / input size, as the model gave it) enters the coordinate transformation, since the
    result's size may be rounded. The attributes mean what they mean in ONNX.

    Constraints:

    - (C1) One scale > 0 a dimension.
    - (C2) `mode` is nearest, linear or cubic.
    - (C3) The coordinate transformation is half_pixel, half_pixel_symmetric, pytorch_half_pixel,
      align_corners, asymmetric or tf_half_pixel_for_nn.
    - (C4) `nearest_mode` is round_prefer_floor, round_prefer_ceil, floor or ceil.

    Example:

    ```mlir
    %y = dnn.resize input(%x : tensor<1x4x8x8xf32>)
      {coordinate_transformation_mode = "asymmetric", cubic_coeff_a = -0.75 : f32, exclude_outside = false,
       mode = "nearest", nearest_mode = "floor", scales = array<f64: 1.0, 1.0, 2.0, 2.0>} -> tensor<1x4x16x16xf32>
    ```

    Source: ONNX Resize-19.
    """

    name = "dnn.resize"
    input = operand_def(Shaped)
    mode = prop_def(StringAttr)
    coordinate_transformation_mode = prop_def(StringAttr)
    nearest_mode = prop_def(StringAttr)
    scales = prop_def(DenseArrayBase[Float64Type])
    cubic_coeff_a = prop_def(FloatAttr[Float32Type])
    exclude_outside = prop_def(IntegerAttr[I1])

    MODES: ClassVar[tuple[str, ...]] = ("nearest", "linear", "cubic")
    TRANSFORMATIONS: ClassVar[tuple[str, ...]] = (
        "half_pixel",
        "half_pixel_symmetric",
        "pytorch_half_pixel",
        "align_corners",
        "asymmetric",
        "tf_half_pixel_for_nn",
    )
    NEAREST_MODES: ClassVar[tuple[str, ...]] = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")

    def __init__(
        self,
        input: SSAValue,
        result: Attribute,
        *,
        mode: str,
        coordinate_transformation_mode: str,
        scales: Sequence[float],
        nearest_mode: str = "round_prefer_floor",
        cubic_coeff_a: float = -0.75,
        exclude_outside: bool = False,
    ):
        super().__init__(
            operands=[input, [], []],
            properties={
                "mode": StringAttr(mode),
                "coordinate_transformation_mode": StringAttr(coordinate_transformation_mode),
                "nearest_mode": StringAttr(nearest_mode),
                "scales": DenseArrayBase.from_list(Float64Type(), list(scales)),
                "cubic_coeff_a": FloatAttr(cubic_coeff_a, 32),
                "exclude_outside": BoolAttr.from_bool(exclude_outside),
            },
            result_types=[[result]],
        )

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        scales, rank = self.scales.get_values(), len(shape_of(self.input))
        if len(scales) != rank or min(scales, default=1) <= 0:
            raise self.fail(f"needs {rank} scales > 0, got {list(scales)}", "C1")
        for value, allowed, constraint in (
            (self.mode, self.MODES, "C2"),
            (self.coordinate_transformation_mode, self.TRANSFORMATIONS, "C3"),
            (self.nearest_mode, self.NEAREST_MODES, "C4"),
        ):
            if value.data not in allowed:
                raise self.fail(f"allows {', '.join(allowed)}, got {value.data}", constraint)
        result = shape_of(self.destinations[0])
        return (result,) if len(result) == rank else (shape_of(self.input),)
