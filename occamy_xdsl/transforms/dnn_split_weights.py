"""`dnn-split-weights`: a matrix product with a huge constant operand becomes several over parts of its columns."""

from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.weights import Weights, WeightsRefAttr, numpy_dtype

COLUMNS = 64
"""Columns of a part are a multiple of this, so that parts fill the register tiles of any processor."""


@dataclass(frozen=True)
class DnnSplitWeightsPass(ModulePass):
    """
    Limits the weights that one op reads, so that streamed weights need little memory at a time.

    A matrix product with a constant second operand of more than `max_bytes` is replaced by products with parts
    of its columns, each of which writes its part of the result. No value changes.

    Requires: buffer form.
    Ensures: constant second operands of matrix products have at most `max_bytes`, or 64 columns.

    Before:

    ```mlir
    %w = dnn.constant #weights.ref<"w"> -> memref<64x256xf32>
    dnn.matmul a(%x : memref<1x64xf32>) b(%w : memref<64x256xf32>) outs(%y : memref<1x256xf32>)
    ```

    After:

    ```mlir
    %w0 = dnn.constant #weights.ref<"columns[0:128](w)"> -> memref<64x128xf32>
    %y0 = dnn.view %y[0] : memref<1x256xf32> -> memref<1x128xf32, strided<[256, 1]>>
    dnn.matmul a(%x : memref<1x64xf32>) b(%w0 : memref<64x128xf32>) outs(%y0 : ..)
    %w1 = dnn.constant #weights.ref<"columns[128:256](w)"> -> memref<64x128xf32>
    %y1 = dnn.view %y[128] : memref<1x256xf32> -> memref<1x128xf32, strided<[256, 1]>>
    dnn.matmul a(%x : memref<1x64xf32>) b(%w1 : memref<64x128xf32>) outs(%y1 : ..)
    ```
    """

    name = "dnn-split-weights"

    max_bytes: int = 8 << 20
    """Bytes that a part may have."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for matmul in [o for o in op.walk() if isinstance(o, dnn.MatmulOp)]:
            if matmul.is_buffer_form and _large(matmul, self.max_bytes):
                split(matmul, self.max_bytes)


def _large(op: dnn.MatmulOp, max_bytes: int) -> bool:
    constant = op.b.owner
    return (
        isinstance(constant, dnn.ConstantOp)
        and isinstance(constant.value, WeightsRefAttr)
        and len(dnn.shape_of(op.b)) == 2
        and dnn.byte_size(op.b) > max_bytes
    )


@dataclass
class _Source:
    """A tensor of which parts are taken, kept from the first to the last: to load it may cost a transposition."""

    weights: Weights
    parts: int
    array: NDArray[Any] | None = None
    taken: set[int] = field(default_factory=set[int])

    def columns(self, begin: int, end: int) -> NDArray[Any]:
        if self.array is None:
            self.array = self.weights.array()
        part = self.array[:, begin:end].copy()
        self.taken.add(begin)
        if len(self.taken) == self.parts:
            self.array = None
            self.taken.clear()
        return part


def split(op: dnn.MatmulOp, max_bytes: int) -> None:
    constant = op.b.owner
    assert isinstance(constant, dnn.ConstantOp)
    assert isinstance(constant.value, WeightsRefAttr)
    assert op.parent is not None
    rows, columns = dnn.shape_of(op.b)
    column_bytes = rows * dnn.element_bytes(dnn.element_type_of(op.b))
    step = max(max_bytes // column_bytes // COLUMNS, 1) * COLUMNS
    parts = [(begin, min(begin + step, columns)) for begin in range(0, columns, step)]
    source = _Source(constant.value.data, len(parts))
    for begin, end in parts:
        held = Weights(
            f"columns[{begin}:{end}]({source.weights.key})",
            numpy_dtype(dnn.element_type_of(op.b)),
            (rows, end - begin),
            lambda begin=begin, end=end: source.columns(begin, end),
        )
        part = dnn.ConstantOp(
            WeightsRefAttr(held), dnn.buffer_type((rows, end - begin), dnn.element_type_of(op.b))
        )
        part.location = op.location
        op.parent.insert_op_before(part, op)

        def slices(values: tuple[SSAValue, ...], begin: int = begin, end: int = end) -> list[SSAValue]:
            return [_columns(op, value, columns, begin, end) for value in values]

        groups = {name: slices(op.group(name)) for name in ("bias", "extras", "outs")}
        product = op.rebuilt(
            groups={**groups, "b": [part.output]},
            regions={name: region.clone() for name, region in op.named_regions.items()},
        )
        op.parent.insert_op_before(product, op)
    Rewriter.erase_op(op)
    if constant.output.first_use is None:
        Rewriter.erase_op(constant)


def _columns(op: Operation, value: SSAValue, columns: int, begin: int, end: int) -> SSAValue:
    """The part of `value` that belongs to a range of the result's columns; all of it where it is broadcast."""
    shape, strides = dnn.shape_of(value), dnn.strides_of(value)
    if not shape or shape[-1] != columns:
        return value
    type = dnn.buffer_type((*shape[:-1], end - begin), dnn.element_type_of(value), strides)
    view = dnn.ViewOp(value, begin * strides[-1], type)
    view.location = op.location
    assert op.parent is not None
    op.parent.insert_op_before(view, op)
    return view.view
