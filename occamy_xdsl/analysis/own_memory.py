"""Why a buffer needs memory of its own: what keeps it from taking the place of an operand of its producer."""

from collections.abc import Callable

from xdsl.ir import BlockArgument, Operation, SSAValue

from occamy_xdsl.analysis.aliasing import root_of
from occamy_xdsl.analysis.in_place import in_place_operands
from occamy_xdsl.analysis.liveness import LivenessTable, LiveRange
from occamy_xdsl.dialects import dnn


def why_own_memory(
    life: LiveRange, table: LivenessTable, node: Callable[[Operation], str], name: Callable[[SSAValue], str]
) -> str:
    """
    The reason in one clause, for a buffer of a function in buffer form, after coalescing.

    It speaks of the largest operand whose place the buffer could take; `node` and `name` name ops and buffers.
    """
    producer = life.users[0]
    if not isinstance(producer, dnn.KernelOp):
        return f"{producer.name} moves it"
    if producer.workspace is not None and root_of(producer.workspace) is life.buffer:
        return "scratch of the kernel"
    ranges = {r.buffer: r for r in table.ranges}
    operands = [v for v in producer.inputs if root_of(v) is not life.buffer]
    in_pool = [v for v in operands if root_of(v) in ranges]
    if not in_pool:
        callers = [v for v in operands if isinstance(root_of(v), BlockArgument)]
        return "its operands belong to the caller" if callers else "its operands are constants"
    operand = max(in_pool, key=lambda v: ranges[root_of(v)].bytes)
    other = ranges[root_of(operand)]
    text = name(other.buffer)
    if other.last > table.ops.index(producer):
        return f"{text} is still read by {node(other.users[-1])}"
    if other.bytes < life.bytes:
        return f"{text} is smaller"
    if operand not in in_place_operands(producer):
        kind = producer.name.removeprefix("dnn.")
        if isinstance(producer, dnn.ElementwiseOp) or operand in producer.group("extras"):
            return f"{kind} reads {text} with another type or layout"
        return f"{kind} reads elements of {text} after it has written others"
    return f"{text} is read in two ways"
