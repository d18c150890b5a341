"""`dnn-borrow-outputs`: intermediate tensors live in the caller's output buffers until those are written."""

from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, BlockArgument, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from occamy_xdsl.analysis.aliasing import root_of
from occamy_xdsl.analysis.liveness import LivenessTable, LiveRange, liveness
from occamy_xdsl.analysis.regions import ancestor_in
from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.signature import output_arguments


@dataclass(frozen=True)
class DnnBorrowOutputsPass(ModulePass):
    """
    Lowers the peak by the memory that the caller provides anyway.

    Before an op first uses an output buffer, its bytes are free. As long as some buffer that is live at the
    peak fits into such a place, one moves there: the one without which fewest positions stay at the peak.

    Requires: buffer form with `dnn.malloc`.
    Ensures: the same, with some `dnn.malloc` replaced by views of outputs; never a higher peak.

    Before:

    ```mlir
    %b = dnn.malloc : memref<4xf32>
    dnn.softmax input(%a : memref<4xf32>) outs(%b : memref<4xf32>) {..}
    dnn.dealloc %a : memref<4xf32>
    %c = dnn.malloc : memref<4xf32>
    dnn.lrn input(%b : ..) outs(%c : ..) {..}
    dnn.dealloc %b : memref<4xf32>
    dnn.softmax input(%c : memref<4xf32>) outs(%out : memref<8xf32>) {..}
    ```

    After:

    ```mlir
    %b = dnn.view %out[0] : memref<8xf32> -> memref<4xf32>
    dnn.softmax input(%a : memref<4xf32>) outs(%b : memref<4xf32>) {..}
    ```
    """

    name = "dnn-borrow-outputs"

    alignment: int = 64
    """Bytes to which places within an output are aligned, relative to its start."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in dnn.functions_in("buffer", op, self.name):
            borrow(function, self.alignment)


def borrow(function: FuncOp, alignment: int) -> None:
    block = function.body.block
    table = liveness(block)
    lenders = _lenders(output_arguments(function), table)
    ranges = {r.buffer: r for r in table.ranges}
    live = np.array(table.timeline(), np.int64)
    while ranges and lenders:
        busiest = (live == live.max()).nonzero()[0]

        def freed(life: LiveRange, busiest: NDArray[np.int64] = busiest) -> tuple[int, int]:
            """Positions at the peak that `life` covers, and its bytes."""
            begin, end = busiest.searchsorted((life.first, life.last + 1))
            return int(end - begin), life.bytes

        at = int(busiest[0])
        for life in sorted((r for r in ranges.values() if r.first <= at <= r.last), key=freed, reverse=True):
            place = next((p for lender in lenders if (p := lender.place(life, alignment))), None)
            if place is not None:
                del ranges[life.buffer]
                for first, last in life.segments:
                    live[first : last + 1] -= life.bytes
                _move(*place)
                break
        else:
            return


@dataclass
class _Lender:
    """An output, the first position that uses it, and who lives in it before: lives and byte offsets."""

    output: BlockArgument
    until: int
    tenants: list[tuple[LiveRange, int]] = field(default_factory=list[tuple[LiveRange, int]])

    def place(self, life: LiveRange, alignment: int) -> tuple[SSAValue, SSAValue, int] | None:
        """Buffer, output and element offset if there is room for `life`, which then becomes a tenant."""
        buffer = life.buffer
        if (
            life.last >= self.until
            or not isinstance(buffer.owner, dnn.MallocOp)
            or dnn.element_type_of(buffer) != dnn.element_type_of(self.output)
        ):
            return None
        offset = 0
        for tenant, begin in sorted(self.tenants, key=lambda t: t[1]):
            apart = tenant.last < life.first or life.last < tenant.first
            if not apart and begin < offset + life.bytes:
                end = begin + tenant.bytes
                offset = max(offset, -(-end // alignment) * alignment)
        if offset + life.bytes > dnn.byte_size(self.output):
            return None
        self.tenants.append((life, offset))
        return buffer, self.output, offset // dnn.element_bytes(dnn.element_type_of(buffer))


def _lenders(outputs: list[BlockArgument], table: LivenessTable) -> list[_Lender]:
    """The outputs that some op uses, but not the first one, smallest first."""
    first: dict[SSAValue, int] = {}
    for position, op in enumerate(table.ops):
        for operand in op.operands:
            first.setdefault(root_of(operand), position)
    position = {op: i for i, op in enumerate(table.ops)}
    for output in outputs:
        if output in first:  # a loop that uses it does so in each iteration
            outermost = ancestor_in(output.block, table.ops[first[output]])
            if isinstance(outermost, dnn.ControlOp):
                first[output] = position[outermost]
    lenders = [_Lender(output, first.get(output, 0)) for output in outputs]
    return sorted((x for x in lenders if x.until > 0), key=lambda x: dnn.byte_size(x.output))


def _move(buffer: SSAValue, output: SSAValue, offset: int) -> None:
    """Replaces an allocation by a view of `output`, `offset` elements after its start."""
    malloc = buffer.owner
    assert isinstance(malloc, dnn.MallocOp)
    for user in [use.operation for use in buffer.uses]:
        if isinstance(user, dnn.DeallocOp):
            Rewriter.erase_op(user)
    view = dnn.ViewOp(output, offset, malloc.buffer.type)
    view.location = malloc.location
    view.view.name_hint = buffer.name_hint
    cast(Block, malloc.parent).insert_op_before(view, malloc)
    buffer.replace_all_uses_with(view.view)
    Rewriter.erase_op(malloc)
