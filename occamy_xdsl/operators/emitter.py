"""Writes dnn ops into a block and folds, while writing, what is known at compile time."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from math import prod
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from xdsl.dialects.builtin import (
    BFloat16Type,
    Float16Type,
    Float32Type,
    Float64Type,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    LocationAttr,
    Signedness,
    TensorType,
    UnknownLoc,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.dnn import byte_size, element_type_of, integer_width, shape_of, signless
from occamy_xdsl.dialects.dnn.geometry import broadcast_shapes
from occamy_xdsl.dialects.weights import Weights, WeightsRefAttr, dense_or_ref, numpy_dtype, to_array
from occamy_xdsl.interpreters.semantics import evaluate
from occamy_xdsl.operators import scalars
from occamy_xdsl.operators.scalars import Number, Scalar

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

MAX_GROWTH = 8192
"""Bytes up to which a folded value may be larger than the constants it replaces."""

MAX_TENSOR_BYTES = 2**40
"""Bytes of the largest tensor: more than any machine has for one, and far from where sums of sizes overflow."""

MAX_COMPUTED_BYTES = 2**31
"""Bytes of the largest constant that a rule computes, rather than reads or repeats."""

UNROLL = 256
"""Nodes that take no longer to compile than a loop."""

ELEMENT_TYPES = frozenset[Attribute](
    [
        *(IntegerType(width) for width in (1, 8, 16, 32, 64)),
        *(IntegerType(width, Signedness.UNSIGNED) for width in (8, 16, 32, 64)),
        Float16Type(),
        BFloat16Type(),
        Float32Type(),
        Float64Type(),
    ]
)
"""The element types of dnn tensors."""


class InvalidNodeError(Exception):
    """The node contradicts its operator's specification; the text is the fact."""


class UnsupportedNodeError(Exception):
    """The node is valid, and beyond what the compiler supports; the text is the reason."""


def known_array(value: SSAValue) -> Array | None:
    """The elements of a value that is a constant, or a constant repeated; None for any other."""
    owner = value.owner
    if isinstance(owner, dnn.ConstantOp):
        if isinstance(owner.value, WeightsRefAttr) and not owner.value.data.has_data:
            return None
        return to_array(owner.value, owner.output.type)
    if isinstance(owner, dnn.BroadcastOp) and (inner := known_array(owner.input)) is not None:
        return np.broadcast_to(inner, shape_of(value))
    return None


def known_splat(value: SSAValue) -> Number | None:
    """The one value that all elements of a constant have; None where they differ or are unknown."""
    owner = value.owner
    if isinstance(owner, dnn.BroadcastOp):
        return known_splat(owner.input)
    if not isinstance(owner, dnn.ConstantOp):
        return None
    if isinstance(owner.value, WeightsRefAttr):
        splat = owner.value.data.splat_value
        if splat is not None or prod(shape_of(value)) > 1:
            return None if splat is None else splat.item()
    array = known_array(value)
    if array is None or array.size == 0 or array.dtype.kind not in "biuf":
        return None
    first = array.flat[0]
    return first.item() if array.size == 1 or bool((array == first).all()) else None


def scalar_attribute(number: Any, like: SSAValue) -> Attribute:
    """`number` as the attribute of a scalar with the element type of `like`."""
    element = element_type_of(like)
    kind: Any = signless(element)
    if integer_width(element):
        return IntegerAttr(int(number), kind, truncate_bits=True)
    return FloatAttr(float(number), kind)


def _computed(op: dnn.KernelOp, *arrays: Array) -> Array:
    return np.asarray(evaluate(op, arrays)[0], order="C")


class Emitter:
    """
    Appends ops to `block`, each with the location `location`.

    An op whose operands are all constants is not written: its value is computed, by the numpy interpreter,
    and becomes a constant, unless that would enlarge the model. Large results are computed when someone asks
    for their bytes. Methods raise InvalidNodeError where shapes do not agree.
    """

    def __init__(self, block: Block):
        self.block = block
        self.location: LocationAttr = UnknownLoc()
        self.shared = set[SSAValue]()
        """Constants that stay in the model when one of their users is folded."""
        self.unroll = UNROLL
        """Nodes up to which a loop of a known number of iterations is unrolled, even if it could stay a loop."""

    # ---- Any op

    def add(self, op: dnn.KernelOp) -> SSAValue:
        """The only result of `op`, as an op or folded."""
        return self.add_all(op)[0]

    def add_all(self, op: dnn.KernelOp) -> Sequence[SSAValue]:
        """The results of `op`. Raises InvalidNodeError where it does not verify."""
        try:
            op.verify_()
        except VerifyException as e:
            raise InvalidNodeError(str(e)) from None
        types = [(shape_of(result), element_type_of(result)) for result in op.results]
        if all(0 in shape for shape, _ in types):
            op.erase()
            return [self.fill(0, shape, element) for shape, element in types]
        folded = self._fold(op)
        return (folded,) if folded is not None else self._append(op)

    def control(self, op: dnn.ControlOp) -> Sequence[SSAValue]:
        """The results of an op with regions, which is not folded. Raises InvalidNodeError where it does not verify."""
        try:
            op.verify_()
        except VerifyException as e:
            raise InvalidNodeError(str(e)) from None
        return self._append(op)

    @contextmanager
    def inside(self, block: Block) -> Generator[Block]:
        """Ops go into `block` instead."""
        around, self.block = self.block, block
        try:
            yield block
        finally:
            self.block = around

    def _append(self, op: Operation) -> Sequence[SSAValue]:
        for result in op.results:
            if isinstance(result.type, TensorType) and byte_size(result) > MAX_TENSOR_BYTES:
                raise UnsupportedNodeError(
                    f"{byte_size(result)} bytes of a tensor of shape {list(shape_of(result))} are too many, "
                    f"at most {MAX_TENSOR_BYTES} are possible"
                )
        op.location = self.location
        self.block.add_op(op)
        return op.results

    def _fold(self, op: dnn.KernelOp) -> SSAValue | None:
        if len(op.results) != 1:
            return None
        shape, element = shape_of(op.results[0]), element_type_of(op.results[0])
        if isinstance(op, dnn.ConvOp | dnn.ConvTransposeOp | dnn.MatmulOp) and 0 in shape_of(op.operands[0]):
            bias = op.bias
            op.erase()
            return self._sums_of_nothing(shape, element, bias, is_matrix=isinstance(op, dnn.MatmulOp))
        sources = list[Weights]()
        for value in op.inputs:
            weights = _weights_of(value)
            if weights is None:
                return None
            sources.append(weights)
        replaced = sum(byte_size(value) for value in {*op.inputs} - self.shared)
        result = op.results[0].type
        if byte_size(result) > max(replaced, MAX_GROWTH):
            return None
        op.operands = Block(arg_types=op.operand_types).args
        text = io.StringIO()
        Printer(text).print_op(op)
        digest = blake2b(text.getvalue().encode(), digest_size=8).hexdigest()
        folded = Weights.derived(
            f"{op.name}:{digest}",
            partial(_computed, op),
            *sources,
            dtype=numpy_dtype(element_type_of(result)),
            shape=shape_of(result),
        )
        return self._constant(dense_or_ref(folded), result)

    def _sums_of_nothing(
        self, shape: Sequence[int], element: Attribute, bias: SSAValue | None, *, is_matrix: bool
    ) -> SSAValue:
        """The result of a product whose operands have no elements: its bias, or zeros."""
        zeros = self.fill(0, shape, element)
        if bias is None:
            return zeros
        if not is_matrix:
            bias = self.reshape(bias, (*shape_of(bias), *[1] * (len(shape) - 2)))
        return self.elementwise(lambda x, b: x + b, zeros, bias)

    def _constant(self, value: Attribute, type: Attribute) -> SSAValue:
        return self._append(dnn.ConstantOp(value, type))[0]

    # ---- Constants

    def literal(self, value: Attribute, type: Attribute) -> SSAValue:
        """The constant that `value` (inline or a reference) writes."""
        return self._constant(value, type)

    def constant(self, array: Array, element: Attribute) -> SSAValue:
        """`array` as a constant with elements of type `element`."""
        array = np.asarray(array, numpy_dtype(element), order="C")
        digest = blake2b(array.tobytes(), digest_size=16)
        digest.update(repr((array.dtype.name, array.shape)).encode())
        return self._constant(
            dense_or_ref(array, f"constant:{digest.hexdigest()}"), TensorType(element, array.shape)
        )

    def fill(self, number: Number, shape: Sequence[int], element: Attribute) -> SSAValue:
        """A constant of one repeated value; a large one is kept as that value and its shape."""
        dtype, type = numpy_dtype(element), TensorType(element, shape)
        return self._constant(dense_or_ref(Weights.splat(number, dtype, tuple(shape))), type)

    def check_computed(self, count: int, element: Attribute) -> None:
        """Raises UnsupportedNodeError where a constant of `count` elements is too large to be computed."""
        if count * numpy_dtype(element).itemsize > MAX_COMPUTED_BYTES:
            raise UnsupportedNodeError(f"a constant of {count} elements is too large to be computed")

    def positions(self, size: int, axis: int, rank: int) -> SSAValue:
        """0 to `size` - 1 (i64) along dimension `axis` of `rank`; the others have size 1."""
        self.check_computed(size, i64)
        return self.constant(np.arange(size).reshape([size if d == axis else 1 for d in range(rank)]), i64)

    # ---- Scalar work

    @overload
    def elementwise(
        self,
        compute: Callable[[Scalar], Scalar],
        a: SSAValue,
        /,
        *,
        element: Attribute | None = None,
    ) -> SSAValue: ...

    @overload
    def elementwise(
        self,
        compute: Callable[[Scalar, Scalar], Scalar],
        a: SSAValue,
        b: SSAValue,
        /,
        *,
        element: Attribute | None = None,
    ) -> SSAValue: ...

    @overload
    def elementwise(
        self,
        compute: Callable[[Scalar, Scalar, Scalar], Scalar],
        a: SSAValue,
        b: SSAValue,
        c: SSAValue,
        /,
        *,
        element: Attribute | None = None,
    ) -> SSAValue: ...

    @overload
    def elementwise(
        self,
        compute: Callable[[Scalar, Scalar, Scalar, Scalar], Scalar],
        a: SSAValue,
        b: SSAValue,
        c: SSAValue,
        d: SSAValue,
        /,
        *,
        element: Attribute | None = None,
    ) -> SSAValue: ...

    @overload
    def elementwise(
        self,
        compute: Callable[..., Scalar],
        /,
        *operands: SSAValue,
        element: Attribute | None = None,
    ) -> SSAValue: ...

    def elementwise(
        self,
        compute: Callable[..., Scalar],
        /,
        *operands: SSAValue,
        element: Attribute | None = None,
    ) -> SSAValue:
        """
        `compute` applied to the elements of `operands`, which broadcast.

        Constants of one value are written into the region. `element` is the result's element type where it is
        not the one that `compute` returns.
        """
        result = broadcast_shapes(*map(shape_of, operands))
        if result is None:
            shown = ", ".join(str(list(shape_of(value))) for value in operands)
            raise InvalidNodeError(f"shapes do not broadcast: {shown}")
        block, taken, arguments = Block(), dict[SSAValue, Scalar](), list[SSAValue]()
        for value in operands:
            if value in taken:
                continue
            kind = element_type_of(value)
            number = known_splat(value)
            if number is None:
                arguments.append(value)
                argument = block.insert_arg(signless(kind), len(block.args))
                taken[value] = Scalar(argument, kind, block)
            else:
                taken[value] = scalars.constant(number, kind, block)
        computed = compute(*(taken[value] for value in operands))
        if element is not None:
            computed = computed.cast(element)
        block.add_op(dnn.YieldOp(computed.value))
        return self.add(dnn.ElementwiseOp(arguments, TensorType(computed.element, result), Region(block)))

    def cast(self, value: SSAValue, element: Attribute) -> SSAValue:
        """`value` with elements of another type."""
        if element_type_of(value) == element:
            return value
        return self.elementwise(lambda x: x.cast(element), value)

    # ---- Movement: each returns its operand where there is nothing to do

    def reshape(self, value: SSAValue, shape: Sequence[int]) -> SSAValue:
        if isinstance(value.owner, dnn.ReshapeOp):
            value = value.owner.input
        if shape_of(value) == tuple(shape):
            return value
        return self.add(dnn.ReshapeOp(value, shape))

    def broadcast(self, value: SSAValue, shape: Sequence[int]) -> SSAValue:
        if shape_of(value) == tuple(shape):
            return value
        return self.add(dnn.BroadcastOp(value, shape))

    def transpose(self, value: SSAValue, permutation: Sequence[int]) -> SSAValue:
        if list(permutation) == list(range(len(shape_of(value)))):
            return value
        return self.add(dnn.TransposeOp(value, permutation))

    def slice(
        self, value: SSAValue, offsets: Sequence[int], sizes: Sequence[int], strides: Sequence[int]
    ) -> SSAValue:
        if tuple(sizes) == shape_of(value) and all(
            stride == 1 or size == 1 for size, stride in zip(sizes, strides, strict=True)
        ):
            return value
        return self.add(dnn.SliceOp(value, offsets, sizes, strides))

    def concat(self, values: Sequence[SSAValue], axis: int) -> SSAValue:
        return values[0] if len(values) == 1 else self.add(dnn.ConcatOp(values, axis))

    # ---- Sums over dimensions

    def reduce(self, value: SSAValue, kind: str, axes: Sequence[int], keep: bool) -> SSAValue:
        """`value` reduced over `axes` (counted from 0, any order); with `keep` they stay with size 1."""
        reduced = self.add(dnn.ReduceOp(value, kind, sorted(axes)))
        if not keep:
            return reduced
        return self.reshape(reduced, [1 if d in axes else size for d, size in enumerate(shape_of(value))])

    def copy(self, value: SSAValue) -> SSAValue:
        """`value` in storage of its own."""
        op = dnn.CopyOp.build(operands=[value, [], []], result_types=[[value.type]])
        return self._append(op)[0]


def _weights_of(value: SSAValue) -> Weights | None:
    """A constant as weights, None for any other value and where the bytes are not at hand."""
    if not isinstance(value.owner, dnn.ConstantOp):
        return None
    weights = value.owner.weights
    return weights if weights.has_data else None
