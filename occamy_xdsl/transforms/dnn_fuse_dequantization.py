"""`dnn-fuse-dequantization`: quantised weights stay quantised; their scale multiplies the layer's result."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp, TensorType, f32
from xdsl.ir import Block, BlockArgument, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from occamy_xdsl.analysis.regions import ops_of
from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.weights import Weights, element_type
from occamy_xdsl.transforms.dnn_fuse_layers import (
    constant_before,
    constant_of,
    replace,
    single_user,
)

Layer: TypeAlias = dnn.MatmulOp | dnn.ConvOp

MAX_ZERO_POINTS = 1 << 16
"""Elements up to which zero points are read, to see whether they are all the same."""


@dataclass(frozen=True)
class DnnFuseDequantizationPass(ModulePass):
    """
    Keeps constant operands of matrix products and convolutions in the integers that the model stores.

    `sum(x * (q - zero) * scale)` is `sum(x * (q - zero)) * scale` where the scale depends on the output channel
    alone. `q - zero` is computed when the weights are written; it needs 8 bits where the zero points are 0, or
    128 on unsigned integers, else 16.

    With `convolutions` false only those of matrix products.

    Requires: value form, before `dnn-fuse-layers`, which makes the multiplication an epilogue.
    Ensures: the same results up to rounding.

    Before:

    ```mlir
    %w = dnn.elementwise ins(%q, %scale : tensor<8x4xi8>, tensor<1x4xf32>) -> tensor<8x4xf32> body {..}
    %y = dnn.matmul a(%x : tensor<2x8xf32>) b(%w : tensor<8x4xf32>) -> tensor<2x4xf32>
    ```

    After:

    ```mlir
    %0 = dnn.matmul a(%x : tensor<2x8xf32>) b(%q : tensor<8x4xi8>) -> tensor<2x4xf32>
    %y = dnn.elementwise ins(%0, %scale : tensor<2x4xf32>, tensor<1x4xf32>) -> tensor<2x4xf32> body {..}
    ```

    Source: ONNX DequantizeLinear-21, without blocks.
    """

    name = "dnn-fuse-dequantization"

    convolutions: bool = True
    """Whether filters of convolutions are kept, too."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        layers = (dnn.MatmulOp, dnn.ConvOp) if self.convolutions else dnn.MatmulOp
        for function in dnn.functions_in("value", op, self.name):
            for layer in list(ops_of(function.body.block)):
                if isinstance(layer, layers):
                    fuse(layer)


@dataclass(frozen=True)
class Quantized:
    """A dequantised constant: `(integers - zero) * scale`, the three of which broadcast against each other."""

    integers: Weights
    zero: Weights | None
    scale: Weights


def fuse(layer: Layer) -> None:
    """Takes the dequantisation of a layer's constant operand behind the layer, where that is possible."""
    filter = layer.b if isinstance(layer, dnn.MatmulOp) else layer.filter
    chain = list[Operation]()
    permutation = tuple(range(len(dnn.shape_of(filter))))
    value = filter
    while isinstance(value.owner, dnn.TransposeOp) and single_user(value) is not None:
        inner = dnn.ints(value.owner.permutation)
        permutation = tuple(inner[p] for p in permutation)
        chain.append(value.owner)
        value = value.owner.input
    if not isinstance(value.owner, dnn.ElementwiseOp) or single_user(value) is None:
        return
    found = quantized(value.owner)
    if found is None or layer.epilogue is not None or dnn.element_type_of(layer.results[0]) != f32:
        return
    rank = len(permutation)
    scale = _reshaped(found.scale, (1,) * (rank - len(found.scale.shape)) + found.scale.shape)
    scale = _transposed(scale, permutation)
    channel = rank - 1 if isinstance(layer, dnn.MatmulOp) else 0
    if any(size != 1 for d, size in enumerate(scale.shape) if d != channel):
        return
    bias = layer.bias
    if bias is not None and isinstance(layer, dnn.ConvOp):
        constant = constant_of(bias)
        if constant is None:
            return
        bias = constant_before(layer, _per_channel(constant.weights, rank), bias)
    integers = _transposed(_centred(found), permutation)
    held = constant_before(layer, integers, TensorType(element_type(integers.dtype), integers.shape))
    by_channel = scale if isinstance(layer, dnn.MatmulOp) else _per_channel(scale, rank)
    factor = constant_before(layer, by_channel, layer.results[0])
    slot = "b" if isinstance(layer, dnn.MatmulOp) else "filter"
    product = layer.rebuilt(groups={slot: [held], "bias": []})
    assert layer.parent is not None
    layer.parent.insert_op_before(product, layer)
    product.results[0].name_hint = layer.results[0].name_hint
    replace(layer, _scaled(product.results[0], factor, bias))
    for op in (*chain, value.owner):
        Rewriter.erase_op(op)


def _scaled(product: SSAValue, factor: SSAValue, bias: SSAValue | None) -> dnn.ElementwiseOp:
    """`product * factor + bias`."""
    operands = [product, factor, *([] if bias is None else [bias])]
    block = Block(arg_types=[f32] * len(operands))
    result: Operation = arith.MulfOp(block.args[0], block.args[1])
    block.add_op(result)
    if bias is not None:
        result = arith.AddfOp(result.results[0], block.args[2])
        block.add_op(result)
    block.add_op(dnn.YieldOp(result.results[0]))
    op = dnn.ElementwiseOp(operands, product.type, Region(block))
    assert isinstance(product.owner, Operation)
    op.location = product.owner.location
    return op


def quantized(op: dnn.ElementwiseOp) -> Quantized | None:
    """What `op` dequantises, if it computes `(float(q) - float(zero)) * scale` from constants."""
    last = op.body.block.last_op
    if not isinstance(last, dnn.YieldOp) or not isinstance(product := last.values[0].owner, arith.MulfOp):
        return None
    difference, factor = product.lhs, product.rhs
    zero: Weights | None = None
    if isinstance(difference.owner, arith.SubfOp):
        zero = _constant(op, _integer(difference.owner.rhs))
        difference = difference.owner.lhs
        if zero is None:
            return None
    integers, scale = _constant(op, _integer(difference)), _constant(op, factor)
    if integers is None or scale is None or scale.dtype != np.float32 or integers.dtype.itemsize > 2:
        return None
    if integers.shape != dnn.shape_of(op.results[0]):
        return None
    return Quantized(integers, zero, scale)


def _integer(value: SSAValue) -> SSAValue | None:
    """What `value` is the float of."""
    return value.owner.operands[0] if isinstance(value.owner, arith.SIToFPOp | arith.UIToFPOp) else None


def _constant(op: dnn.ElementwiseOp, value: SSAValue | None) -> Weights | None:
    """The constant that a value of the region is an element of."""
    if isinstance(value, BlockArgument):
        constant = constant_of(op.ins[value.index])
        return None if constant is None else constant.weights
    if value is None or not isinstance(value.owner, arith.ConstantOp):
        return None
    number = cast(Any, value.owner.value).value.data
    if value.type == f32:
        return Weights.splat(number, np.dtype(np.float32), ())
    width = dnn.integer_width(value.type)
    return Weights.splat(number, np.dtype(f"int{width}"), ()) if width in (8, 16) else None


def _centred(found: Quantized) -> Weights:
    """`integers - zero`, in as few bytes as are known to hold it without reading the integers."""
    integers, zero = found.integers, found.zero
    if zero is None:
        return integers
    values: NDArray[Any] | None = zero.array() if np.prod(zero.shape) <= MAX_ZERO_POINTS else None
    # The region's integers are signless, so 128 may read as -128.
    same = (
        None
        if values is None or values.size == 0 or (values != values.flat[0]).any()
        else int(values.flat[0])
    )
    if same == 0:
        return integers
    dtype = np.dtype(np.int16 if integers.dtype.itemsize == 1 else np.int32)
    if integers.dtype == np.uint8 and same is not None and same % 256 == 128:
        dtype = np.dtype(np.int8)

    def shift(q: NDArray[Any], z: NDArray[Any]) -> NDArray[Any]:
        return (q.astype(np.int32) - z.astype(q.dtype).astype(np.int32)).astype(dtype)

    return Weights.derived(f"centred-{dtype.name}", shift, integers, zero, dtype=dtype, shape=integers.shape)


def _transposed(weights: Weights, permutation: Sequence[int]) -> Weights:
    if tuple(permutation) == tuple(range(len(permutation))):
        return weights
    shape = tuple(weights.shape[p] for p in permutation)

    def transpose(array: NDArray[Any]) -> NDArray[Any]:
        return array.transpose(permutation)

    label = f"transpose{list(permutation)}"
    return Weights.derived(label, transpose, weights, dtype=weights.dtype, shape=shape)


def _reshaped(weights: Weights, shape: tuple[int, ...]) -> Weights:
    if weights.shape == shape:
        return weights

    def reshape(array: NDArray[Any]) -> NDArray[Any]:
        return array.reshape(shape)

    return Weights.derived(f"reshape{list(shape)}", reshape, weights, dtype=weights.dtype, shape=shape)


def _per_channel(weights: Weights, rank: int) -> Weights:
    """One value a channel, shaped to broadcast against a result of `rank` dimensions, channels in the second."""
    return _reshaped(weights, (int(np.prod(weights.shape)), *(1,) * (rank - 2)))
