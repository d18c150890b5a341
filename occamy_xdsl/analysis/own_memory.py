"""Why a buffer needs memory of its own: what keeps it from taking the place of an operand of its producer."""

import math
from collections.abc import Callable
from functools import cached_property

from xdsl.ir import BlockArgument, Operation, SSAValue

from occamy_xdsl.analysis.aliasing import root_of
from occamy_xdsl.analysis.in_place import in_place_operands
from occamy_xdsl.analysis.liveness import LivenessTable, LiveRange, writes
from occamy_xdsl.dialects import dnn


class OwnMemory:
    """
    The reasons for the buffers of a function in buffer form, after coalescing, each in one clause.

    `node` and `name` name ops and buffers. `forbidden` is the option that keeps buffers from sharing memory where
    nothing else does.
    """

    def __init__(
        self,
        table: LivenessTable,
        node: Callable[[Operation], str],
        name: Callable[[SSAValue], str],
        forbidden: str = "",
    ):
        self.table, self.node, self.name, self.forbidden = table, node, name, forbidden

    @cached_property
    def ranges(self) -> dict[SSAValue, LiveRange]:
        return {life.buffer: life for life in self.table.ranges}

    @cached_property
    def position(self) -> dict[Operation, int]:
        return {op: i for i, op in enumerate(self.table.ops)}

    def why(self, life: LiveRange) -> str:
        """What the buffer is for, if that explains it; else why no operand leaves its place to it."""
        producer = life.users[0]
        if isinstance(producer, dnn.MemcpyOp):
            return f"copied for {self.node(life.users[min(1, len(life.users) - 1)])}"
        if not isinstance(producer, dnn.KernelOp):
            return f"read by {self.node(producer)}"
        if producer.workspace is not None and root_of(producer.workspace) is life.buffer:
            return "scratch of the kernel"
        writers = [op for op in life.users if any(root_of(v) is life.buffer for v in writes(op))]
        carrier = next(filter(None, map(_control_flow_around, writers)), None)
        if carrier is not None and not carrier.is_ancestor(life.buffer.owner):
            return f"carries values of {self.node(carrier)}"
        if isinstance(producer, dnn.CopyOp) and producer.keep is not None:
            return "rows that the next stripe needs again"
        destination = next((v for v in writes(producer) if root_of(v) is life.buffer), life.buffer)
        if dnn.byte_size(destination) < dnn.byte_size(life.buffer):
            return self.parts(writers)
        return self.no_operand(producer, destination, life)

    def parts(self, writers: list[Operation]) -> str:
        """For a buffer of which each op writes a part."""
        first, *others = dict.fromkeys(map(self.node, writers))
        if not others:
            return f"built in place, part after part, by {first}"
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        return f"built in place by {first}, {others[0]}{more}"

    def no_operand(self, producer: dnn.KernelOp, destination: SSAValue, life: LiveRange) -> str:
        """
        Why no operand leaves its place: of the one that comes closest, which the op could write over, else of the
        largest.
        """
        operands = [v for v in producer.inputs if root_of(v) is not life.buffer]
        in_pool = [v for v in operands if root_of(v) in self.ranges]
        given = f"{self.forbidden} was given" if self.forbidden else ""
        moves = isinstance(producer, dnn.ShapeOp | dnn.CopyOp)
        if moves and given:
            return given
        if not in_pool:
            callers = [root for v in operands if isinstance(root := root_of(v), BlockArgument)]
            if not callers:
                return "its operands are constants" if operands else "it has no operands"
            borrowed = {root for root in callers if any(root in writes(use.operation) for use in root.uses)}
            return f"its operands {'are in outputs of' if borrowed else 'belong to'} the caller"
        inside = in_place_operands(producer)
        operand = max(in_pool, key=lambda v: (v in inside, dnn.byte_size(v)))
        other = self.ranges[root_of(operand)]
        text, kind = self.name(other.buffer), producer.name.removeprefix("dnn.")
        if operand in inside:
            at = self.position[producer]
            if later := [op for op in other.users if self.position[op] > at]:
                return f"{text} is still read by {self.node(later[-1])}"
            if other.last > at:
                return f"{text} is needed in the next iteration"
            if given:
                return given
            ways = sum(root_of(v) is other.buffer for v in operands)
            return f"{kind} reads {text} in two ways" if ways > 1 else f"views of it do not fit in {text}"
        if dnn.byte_size(operand) < life.bytes:
            return f"{text} is smaller ({dnn.byte_size(operand):,} bytes)"
        if moves:
            return f"no view shows {text} in this layout"
        by_element = isinstance(producer, dnn.ElementwiseOp | dnn.SoftmaxOp | dnn.LayerNormOp)
        single = math.prod(dnn.shape_of(destination)) == 1  # written when all has been read
        if by_element or single or operand in producer.group("extras"):
            return f"{text} has another {_difference(operand, destination)}"
        return f"{kind} reads elements of {text} after it has written others"


def _control_flow_around(op: Operation) -> Operation | None:
    parent = op.parent_op()
    return parent if isinstance(parent, dnn.ControlOp) else None


def _difference(a: SSAValue, b: SSAValue) -> str:
    """What the types of two buffers do not share."""
    if dnn.element_type_of(a) != dnn.element_type_of(b):
        return "element type"
    return "shape" if dnn.shape_of(a) != dnn.shape_of(b) else "layout"
