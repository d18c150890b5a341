"""`cpu-stream-weights`: weights enter memory right before the kernel that reads them and leave it after."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects import arith, memref
from xdsl.dialects.builtin import (
    FixedBitwidthType,
    IndexType,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    i8,
    i32,
    i64,
)
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from occamy_xdsl.dialects.signature import function_for
from occamy_xdsl.lowering.cpu.convert_dnn_to_cpu import ENTRY

ADVISE = "madvise"
"""The function of the C library (Linux)."""

_WILL_NEED, _DONT_NEED = 3, 4
"""Linux's numbers of MADV_WILLNEED and MADV_DONTNEED."""

GRANULE = 1 << 16
"""Bytes: a multiple of every page size in use on Linux, to which the starts of advised ranges are rounded."""

_START = MemRefType(i8, [1])

Range = tuple[int, int]
"""First byte and one past the last, in the weights blob."""


@dataclass(frozen=True)
class CpuStreamWeightsPass(ModulePass):
    """
    Tells the system which weights the next kernel needs and which no later kernel does.

    Before each kernel the weights of the next one are asked for, so that they are read from the file meanwhile;
    after the last kernel that reads some weights their pages are dropped. The weights must be mapped from a
    file: what is dropped is read again in the next run, and nothing is copied. Control flow counts as one kernel
    that reads what its calls read.

    Requires: the result of convert-dnn-to-cpu.
    Ensures: the same, with calls of `madvise`, whose results do not matter.

    Before:

    ```mlir
    %w = memref.view %weights[%c0][] : memref<131072xi8> to memref<32768xf32>
    func.call @matmul_1x64x512_0f3a9c1e(%x, %w, %y) : (..) -> ()
    ```

    After:

    ```mlir
    %w = memref.view %weights[%c0][] : memref<131072xi8> to memref<32768xf32>
    func.call @matmul_1x64x512_0f3a9c1e(%x, %w, %y) : (..) -> ()
    %start = memref.view %weights[%c0][] : memref<131072xi8> to memref<1xi8>
    %ignored = func.call @madvise(%start, %c131072, %dont_need) : (memref<1xi8>, i64, i32) -> i32
    ```
    """

    name = "cpu-stream-weights"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        entry = function_for(op, self.name, ENTRY)
        block = entry.body.block
        weights = block.args[1]
        reads = [(step, ranges) for step in block.ops if (ranges := _ranges(step, weights))]
        last = {part: step for step, ranges in reads for part in ranges}
        for index, (step, ranges) in enumerate(reads):
            ahead = reads[index + 1][1] if index + 1 < len(reads) else []
            for part in [*(ranges if index == 0 else []), *ahead]:
                _advise(block, step, weights, part, _WILL_NEED)
            after = cast(Operation, step.next_op)
            for part in ranges:
                if last[part] is step:
                    _advise(block, after, weights, part, _DONT_NEED)
        if reads:
            op.body.block.add_op(FuncOp.external(ADVISE, [_START, i64, i32], [i32]))


def _ranges(step: Operation, weights: SSAValue) -> list[Range]:
    """What a kernel, or the kernels in control flow, read of the weights, neighbours joined, in ascending order."""
    found = list[Range]()
    calls = [op for op in step.walk() if isinstance(op, CallOp)]
    for argument in (argument for call in calls for argument in call.arguments):
        view = argument.owner
        if isinstance(view, memref.ReinterpretCastOp):
            view = view.source.owner
        if not isinstance(view, memref.ViewOp) or view.source is not weights:
            continue
        type = cast(MemRefType[FixedBitwidthType], view.result.type)
        constant = view.byte_shift.owner
        assert isinstance(constant, arith.ConstantOp)
        begin = cast(IntegerAttr[IndexType], constant.value).value.data
        size = type.element_count() * type.element_type.bitwidth // 8
        found.append((begin, begin + size))
    return _joined(found)


def _joined(ranges: Sequence[Range]) -> list[Range]:
    joined = list[Range]()
    for begin, end in sorted(ranges):
        if joined and begin <= joined[-1][1] + GRANULE:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


def _advise(block: Block, place: Operation, weights: SSAValue, part: Range, advice: int) -> None:
    """Calls `madvise` before `place`. The start is rounded down, the system rounds the end up to a page."""
    begin = part[0] // GRANULE * GRANULE
    shift = arith.ConstantOp(IntegerAttr(begin, IndexType()))
    start = memref.ViewOp(weights, shift.result, [], _START)
    size = arith.ConstantOp(IntegerAttr(part[1] - begin, i64))
    number = arith.ConstantOp(IntegerAttr(advice, i32))
    call = CallOp(ADVISE, [start.result, size.result, number.result], [i32])
    block.insert_ops_before([shift, start, size, number, call], place)
