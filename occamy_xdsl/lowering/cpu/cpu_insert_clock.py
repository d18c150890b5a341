"""`cpu-insert-clock`: reads the clock around every kernel call, for profiles."""

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith, memref, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, MemRefType, ModuleOp, i8, i32
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from occamy_xdsl.dialects.signature import function_for, function_named
from occamy_xdsl.lowering.cpu.convert_dnn_to_cpu import ENTRY
from occamy_xdsl.lowering.cpu.cpu_stream_weights import ADVISE
from occamy_xdsl.lowering.interface import CLOCK

CLOCK_MONOTONIC = 1
"""Linux's number of the clock that is never set."""

TIMESPEC_BYTES = 16
"""A time: seconds and nanoseconds, each an `i64`."""

TIMESPEC = MemRefType(i8, [TIMESPEC_BYTES])


@dataclass(frozen=True)
class CpuInsertClockPass(ModulePass):
    """
    Gives the entry one more argument, which each run fills with the time before each kernel call and at the
    end: one time more than there are calls, each as seconds and nanoseconds of the monotonic clock. Control flow
    is timed as a whole, like one call.

    Requires: the result of convert-dnn-to-cpu.
    Ensures: the same, with calls of the C library's clock_gettime.

    Before:

    ```mlir
    func.call @softmax_4_0f3a9c1e(%0, %1) : (memref<4xf32>, memref<4xf32>) -> ()
    ```

    After:

    ```mlir
    %t0 = memref.view %times[%c0][] : memref<32xi8> to memref<16xi8>
    %r0 = func.call @clock_gettime(%monotonic, %t0) : (i32, memref<16xi8>) -> i32
    func.call @softmax_4_0f3a9c1e(%0, %1) : (memref<4xf32>, memref<4xf32>) -> ()
    %t1 = memref.view %times[%c16][] : memref<32xi8> to memref<16xi8>
    %r1 = func.call @clock_gettime(%monotonic, %t1) : (i32, memref<16xi8>) -> i32
    ```
    """

    name = "cpu-insert-clock"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        entry = function_for(op, self.name, ENTRY)
        block = entry.body.block
        calls = timed_ops(op)
        assert block.last_op is not None
        times = block.insert_arg(MemRefType(i8, [TIMESPEC_BYTES * (len(calls) + 1)]), len(block.args))
        times.name_hint = "times"
        for index, place in enumerate([*calls, block.last_op]):
            _read_clock(block, place, times, TIMESPEC_BYTES * index)
        entry.update_function_type()
        op.body.block.add_op(FuncOp.external(CLOCK, [i32, TIMESPEC], [i32]))


def timed_ops(module: ModuleOp) -> list[Operation]:
    """The kernel calls, guarded or not, and the control flow of the entry, in order."""
    block = function_named(module, ENTRY).body.block
    return [
        op
        for op in block.ops
        if isinstance(op, scf.IfOp | scf.WhileOp)
        or (isinstance(op, CallOp) and op.callee.string_value() not in (CLOCK, ADVISE))
    ]


def _read_clock(block: Block, place: Operation, times: SSAValue, offset: int) -> None:
    position = arith.ConstantOp(IntegerAttr(offset, IndexType()))
    slot = memref.ViewOp(times, position.result, [], TIMESPEC)
    clock = arith.ConstantOp(IntegerAttr(CLOCK_MONOTONIC, i32))
    call = CallOp(CLOCK, [clock.result, slot.result], [i32])
    block.insert_ops_before([position, slot, clock, call], place)
