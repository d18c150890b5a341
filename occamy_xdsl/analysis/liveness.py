"""
The liveness table: when each buffer of a function in `dnn` buffer form is live.

Positions count the ops that move or compute data (kernels and `dnn.memcpy`), from 0 in program order.
"""

from dataclasses import dataclass, field
from itertools import accumulate

from xdsl.ir import Block, Operation, SSAValue

from occamy_xdsl.analysis.aliasing import root_of
from occamy_xdsl.dialects import dnn


def is_position(op: Operation) -> bool:
    """Whether `op` counts as a position of the schedule."""
    return isinstance(op, dnn.KernelOp | dnn.MemcpyOp)


def last_uses(block: Block) -> dict[SSAValue, Operation]:
    """
    The last op that uses each root buffer or a view of it, deallocations apart.

    A buffer that nothing uses is its own last use. In order of definition.
    """
    last: dict[SSAValue, Operation] = {}
    for op in block.ops:
        if isinstance(op, dnn.MallocOp):
            last[op.buffer] = op
        if isinstance(op, dnn.DeallocOp):
            continue
        for operand in op.operands:
            if (root := root_of(operand)) in last:
                last[root] = op
    return last


@dataclass
class LiveRange:
    """One buffer: the positions, both inclusive, at which an op uses it or a view of it."""

    buffer: SSAValue
    first: int
    last: int
    bytes: int
    users: list[Operation] = field(default_factory=list[Operation])
    """The ops at its positions, in program order; `users[0]` writes it first."""


@dataclass(frozen=True)
class LivenessTable:
    """All buffers that a function allocates, in order of their first position, and the ops by position."""

    ops: tuple[Operation, ...]
    ranges: tuple[LiveRange, ...]

    def timeline(self) -> list[int]:
        """Bytes live at each position."""
        change = [0] * (len(self.ops) + 1)
        for r in self.ranges:
            change[r.first] += r.bytes
            change[r.last + 1] -= r.bytes
        total, live = 0, list[int]()
        for delta in change[:-1]:
            total += delta
            live.append(total)
        return live

    @property
    def max_live_bytes(self) -> int:
        return max(self.timeline(), default=0)

    def format(self) -> str:
        """One line a buffer, for reading and for FileCheck."""
        lines = [f"// {'buffer':<24} {'bytes':>12} {'first':>6} {'last':>6}  written by"]
        for i, r in enumerate(self.ranges):
            name = r.buffer.name_hint or f"buffer{i}"
            writer = r.users[0].name if r.users else "nothing"
            lines.append(f"// {name:<24} {r.bytes:>12} {r.first:>6} {r.last:>6}  {writer}")
        lines.append(f"// max-live {self.max_live_bytes} bytes over {len(self.ops)} positions")
        return "\n".join(lines)


def liveness(block: Block) -> LivenessTable:
    """
    The table of a block in buffer form: before or after pool conversion.

    Buffers are the results of `dnn.malloc` and `dnn.mem_offset`; the caller's buffers and constants cost the
    function nothing and are left out, as are buffers that no op uses.
    """
    ops = list[Operation]()
    ranges: dict[SSAValue, LiveRange] = {}
    for op in block.ops:
        if not is_position(op):
            continue
        position = len(ops)
        ops.append(op)
        for operand in op.operands:
            root = root_of(operand)
            if not isinstance(root.owner, dnn.MallocOp | dnn.MemOffsetOp):
                continue
            entry = ranges.get(root)
            if entry is None:
                owner = root.owner
                size = owner.size.value.data if isinstance(owner, dnn.MemOffsetOp) else dnn.byte_size(root)
                entry = ranges[root] = LiveRange(root, position, position, size)
            entry.last = position
            if not entry.users or entry.users[-1] is not op:
                entry.users.append(op)
    return LivenessTable(tuple(ops), tuple(ranges.values()))


def max_live_of_values(block: Block) -> int:
    """
    Most bytes live at one position of a block in value form, if each result gets a buffer of its own.

    As if `dnn-insert-memory-ops` had run; constants and the function's arguments cost nothing.
    """
    last: dict[SSAValue, int] = {}
    ops = [op for op in block.ops if isinstance(op, dnn.KernelOp)]
    for position, op in enumerate(ops):
        last |= dict.fromkeys((*op.operands, *op.results), position)
    if block.last_op is not None:  # what is returned is copied to the caller's buffers at the end
        last |= dict.fromkeys(block.last_op.operands, len(ops))
    change = [0] * (len(ops) + 2)
    for position, op in enumerate(ops):
        for result in op.results:
            size = dnn.byte_size(result)
            change[position] += size
            change[last[result] + 1] -= size
    return max(accumulate(change))


def sum_of_values(block: Block) -> int:
    """Bytes of all results of a block in value form: what is live if none shares memory with another."""
    return sum(dnn.byte_size(r) for op in block.ops if isinstance(op, dnn.KernelOp) for r in op.results)
