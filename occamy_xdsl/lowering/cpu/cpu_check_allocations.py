"""The pass `cpu-check-allocations`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects import arith, memref, scf
from xdsl.dialects.builtin import BoolAttr, IndexType, IntegerAttr, ModuleOp, i1, i8
from xdsl.dialects.func import CallOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from occamy_xdsl.dialects.signature import function_for
from occamy_xdsl.lowering.cpu.convert_dnn_to_cpu import ENTRY


@dataclass(frozen=True)
class CpuCheckAllocationsPass(ModulePass):
    """
    Makes the entry return whether all its allocations succeeded: once one has failed, no kernel runs any more.

    Buffers are still freed, which does nothing to those that could not be had. A condition counts as false, so that
    loops end.

    Requires: the result of convert-dnn-to-cpu.
    Ensures: the same, but `occamy_main` returns an i1. With a pool nothing is allocated and the pass not needed.

    Before:

    ```mlir
    %a = memref.alloc() {alignment = 64 : i64} : memref<64xi8>
    %1 = memref.view %a[%c0][] : memref<64xi8> to memref<16xf32>
    func.call @softmax_16_0f3a9c1e(%0, %1) : (memref<16xf32>, memref<16xf32>) -> ()
    memref.dealloc %a : memref<64xi8>
    func.return
    ```

    After:

    ```mlir
    %good = memref.alloca() : memref<i8>
    memref.store %c1, %good[] : memref<i8>
    %a = memref.alloc() {alignment = 64 : i64} : memref<64xi8>
    %address = memref.extract_aligned_pointer_as_index %a : memref<64xi8> -> index
    %had = arith.cmpi ne, %address, %null : index
    %had8 = arith.extui %had : i1 to i8
    %before = memref.load %good[] : memref<i8>
    %still = arith.andi %before, %had8 : i8
    memref.store %still, %good[] : memref<i8>
    %1 = memref.view %a[%c0][] : memref<64xi8> to memref<16xf32>
    %2 = memref.load %good[] : memref<i8>
    %3 = arith.trunci %2 : i8 to i1
    scf.if %3 {
      func.call @softmax_16_0f3a9c1e(%0, %1) : (memref<16xf32>, memref<16xf32>) -> ()
    }
    memref.dealloc %a : memref<64xi8>
    %4 = memref.load %good[] : memref<i8>
    %5 = arith.trunci %4 : i8 to i1
    func.return %5 : i1
    ```
    """

    name = "cpu-check-allocations"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        entry = function_for(op, self.name, ENTRY)
        flag = memref.AllocaOp.get(i8, shape=[])
        good = flag.memref
        for part in list(entry.body.walk()):
            match part:
                case memref.AllocOp():
                    _note(part, good)
                case CallOp():
                    _guard([part], good)
                case arith.TruncIOp() if isinstance(part.input.owner, memref.LoadOp):
                    _guard([part.input.owner, part], good)
                case _:
                    pass
        block = entry.body.block
        first, last = block.first_op, block.last_op
        assert first is not None
        assert isinstance(last, ReturnOp)
        one = arith.ConstantOp(IntegerAttr(1, i8))
        block.insert_ops_before([flag, one, memref.StoreOp.get(one, good, [])], first)
        block.erase_op(last)
        result = _read(good)
        block.add_ops([*result, ReturnOp(result[-1])])
        entry.update_function_type()


def _note(op: memref.AllocOp, good: SSAValue) -> None:
    """Clears `good` after an allocation that failed."""
    address = memref.ExtractAlignedPointerAsIndexOp(operands=[op.memref], result_types=[IndexType()])
    null = arith.ConstantOp(IntegerAttr(0, IndexType()))
    had = arith.CmpiOp(address.aligned_pointer, null, "ne")
    byte = arith.ExtUIOp(had, i8)
    before = memref.LoadOp.get(good, [])
    still = arith.AndIOp(before, byte)
    store = memref.StoreOp.get(still, good, [])
    cast(Block, op.parent).insert_ops_after([address, null, had, byte, before, still, store], op)


def _read(good: SSAValue) -> Sequence[Operation]:
    """Ops of which the last one is `good` as an i1; memory has no i1."""
    load = memref.LoadOp.get(good, [])
    return load, arith.TruncIOp(load.res, i1)


def _guard(ops: Sequence[Operation], good: SSAValue) -> None:
    """Runs ops, whose last one's results are false otherwise, only if `good`."""
    first, last = ops[0], ops[-1]
    block = cast(Block, first.parent)
    condition = _read(good)
    then, otherwise = Block(), Block()
    types = list[Attribute](last.result_types)
    guarded = scf.IfOp(condition[-1], types, Region(then), Region(otherwise) if types else Region())
    guarded.location = last.location
    block.insert_ops_before([*condition, guarded], first)
    for result, value in zip(last.results, guarded.output, strict=True):
        result.replace_all_uses_with(value)
    for op in ops:
        op.detach()
        then.add_op(op)
    then.add_op(scf.YieldOp(*last.results))
    if types:
        false = arith.ConstantOp(BoolAttr.from_bool(False))
        otherwise.add_ops([false, scf.YieldOp(false)])
