"""
The liveness table: when each buffer of a function in `dnn` buffer form is live.

Positions count the ops that move or compute data (kernels and `dnn.memcpy`), from 0 in program order. An op with
regions has a position of its own, where it reads its condition, before those of the ops in its regions.

Where control flow branches or repeats, a buffer may be live at positions that are not neighbours: what only the
second branch reads is not live in the first one, and what a loop's body writes anew at its end is not live
between its last use and there, but is live around the back edge.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate
from typing import cast

from xdsl.ir import Block, Operation, SSAValue

from occamy_xdsl.analysis.aliasing import root_of
from occamy_xdsl.analysis.regions import blocks_of, is_control, needs, ops_of
from occamy_xdsl.dialects import dnn

Segment = tuple[int, int]
"""First and last position, both inclusive."""


def is_position(op: Operation) -> bool:
    """Whether `op` counts as a position of the schedule."""
    return _is_position(type(op))


@cache
def _is_position(kind: type[Operation]) -> bool:
    # Asked for each op by each analysis: isinstance takes far longer where the answer is no.
    return issubclass(kind, _MOVING)


_MOVING = (dnn.KernelOp, dnn.MemcpyOp)


def reads(op: Operation) -> tuple[SSAValue, ...]:
    """The buffers, or views of them, that an op reads itself, apart from the ops in its regions."""
    if not _is_position(type(op)):
        return ()
    if isinstance(op, dnn.KernelOp):
        return op.inputs if not is_control(type(op)) else (cast(dnn.ControlOp, op).truth,)
    return (cast(dnn.MemcpyOp, op).source,)


def writes(op: Operation) -> tuple[SSAValue, ...]:
    """The buffers, or views of them, that an op writes itself, apart from the ops in its regions."""
    if not _is_position(type(op)):
        return ()
    if isinstance(op, dnn.KernelOp):
        return () if is_control(type(op)) else op.written
    return (cast(dnn.MemcpyOp, op).destination,)


def last_uses(block: Block) -> dict[Block, dict[SSAValue, Operation]]:
    """
    For `block` and each block of control flow inside it: the last of its ops that uses each root buffer or a view
    of it, itself or in its regions, deallocations apart.

    A buffer that nothing uses is its own last use. In order of first use.
    """
    found: dict[Block, dict[SSAValue, Operation]] = {block: {}}
    last = found[block]
    for op in block.ops:
        kind = type(op)
        if kind is dnn.MallocOp:
            last[op.results[0]] = op
        if kind is dnn.DeallocOp:
            continue
        last |= dict.fromkeys(map(root_of, op.operands), op)
        if isinstance(op, dnn.ControlOp):
            for inner in op.blocks:
                found |= last_uses(inner)
                last |= dict.fromkeys(found[inner], op)
    return found


class _Sweep:
    """
    Walks backward over the positions of a block; notes when the life of a buffer ends and when it begins.

    `live` maps each root buffer that is live to the last position of its present segment.
    """

    def __init__(self, position: dict[Operation, int]):
        self.position = position
        self.segments: dict[SSAValue, list[Segment]] = {}
        self.first: dict[SSAValue, int] = {}
        """The earliest position so far that uses each buffer."""

    def begin(self, root: SSAValue, at: int, live: dict[SSAValue, int]) -> None:
        """The life of `root` begins at position `at`, if it is live at all."""
        last = live.pop(root, None)
        if last is not None and at <= last:
            self.segments.setdefault(root, []).append((at, last))

    def switch(self, live: dict[SSAValue, int], to: Iterable[SSAValue], at: int) -> None:
        """Goes on before position `at` with another set of live buffers: those at the end of another block."""
        to = set(to)
        for root in [root for root in live if root not in to]:
            self.begin(root, at, live)
        for root in to:
            live.setdefault(root, at - 1)

    def block(self, block: Block, live: dict[SSAValue, int]) -> None:
        """Before: what is live after the block. After: what is live before it."""
        for op in reversed(list(block.ops)):
            kind = type(op)
            if _is_position(kind):
                if kind is dnn.IfOp:
                    self.branches(cast(dnn.IfOp, op), live)
                if kind is dnn.LoopOp:
                    self.loop(cast(dnn.LoopOp, op), live)
                else:
                    self.touch(op, live)
            elif kind is dnn.MallocOp or kind is dnn.MemOffsetOp:
                root = op.results[0]
                if root in live:
                    self.begin(root, self.first[root], live)

    def touch(self, op: Operation, live: dict[SSAValue, int]) -> None:
        """An op that uses buffers. Whole ones that it writes without reading them begin to live here."""
        at, written = self.position[op], writes(op)
        read = {root_of(value) for value in reads(op)}
        for root in (*read, *map(root_of, written)):
            live.setdefault(root, at)
            self.first[root] = at
        for value in written:
            if value not in read and not isinstance(value.owner, dnn.ViewOp):
                self.begin(value, at, live)

    def branches(self, op: dnn.IfOp, live: dict[SSAValue, int]) -> None:
        then, otherwise = op.blocks
        after = set(live)
        start = self.position[op] + 1
        middle = start + sum(inner in self.position for inner in ops_of(then))
        self.block(otherwise, live)
        before = set(live)
        self.switch(live, after, middle)
        self.block(then, live)
        self.switch(live, before | set(live), start)

    def loop(self, op: dnn.LoopOp, live: dict[SSAValue, int]) -> None:
        (body,) = op.blocks
        after = set(live) | {root_of(op.truth)}
        start = self.position[op] + 1
        end = start + sum(inner in self.position for inner in ops_of(body))
        # What is live when the body begins is live where it ends, too.
        around = set[SSAValue]()
        while True:
            trial = dict.fromkeys(after | around, end - 1)
            _Sweep(self.position).block(body, trial)
            if set(trial) <= around:
                break
            around |= set(trial)
        self.switch(live, after | around, end)
        self.block(body, live)
        self.switch(live, after | around, start)
        for root in live:  # what the body does not write whole may come from the iteration before
            if start <= self.first.get(root, -1) < end:
                self.first[root] = start - 1
        self.touch(op, live)


def segments(block: Block) -> tuple[tuple[Operation, ...], dict[SSAValue, tuple[Segment, ...]]]:
    """
    The ops of a function's block by position, and the positions at which each root buffer is live, in order.

    A buffer is not live before its first use. The caller's buffers, which are included, live to the end.
    """
    ops = tuple(op for op in ops_of(block) if is_position(op))
    sweep = _Sweep({op: i for i, op in enumerate(ops)})
    live: dict[SSAValue, int] = {argument: len(ops) - 1 for argument in block.args}
    sweep.block(block, live)
    for root in list(live):
        if root in sweep.first:
            sweep.begin(root, sweep.first[root], live)
    return ops, {root: tuple(sorted(parts)) for root, parts in sweep.segments.items()}


@dataclass
class LiveRange:
    """One buffer: the positions, both inclusive, at which an op uses it or a view of it."""

    buffer: SSAValue
    first: int
    last: int
    bytes: int
    users: list[Operation] = field(default_factory=list[Operation])
    """The ops at its positions, in program order; `users[0]` writes it first."""
    segments: Sequence[Segment] = ()
    """The positions from `first` to `last` at which it is live; all where there is no control flow."""

    def __post_init__(self) -> None:
        self.segments = self.segments or ((self.first, self.last),)


def united(*lives: Sequence[Segment], touching: bool = False) -> tuple[Segment, ...]:
    """The positions of all `lives` together, in order; with `touching`, segments that are neighbours are one."""
    found = list[Segment]()
    for first, last in sorted(part for parts in lives for part in parts):
        if found and first <= found[-1][1] + touching:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return tuple(found)


def timeline_of(lives: Iterable[tuple[Sequence[Segment], int]], positions: int) -> list[int]:
    """Bytes live at each position, of segments and bytes of each buffer."""
    change = [0] * (positions + 1)
    for parts, size in lives:
        for first, last in parts:
            change[first] += size
            change[last + 1] -= size
    return list(accumulate(change[:-1]))


@dataclass(frozen=True)
class LivenessTable:
    """All buffers that a function allocates, in order of their first position, and the ops by position."""

    ops: tuple[Operation, ...]
    ranges: tuple[LiveRange, ...]

    def timeline(self) -> list[int]:
        """Bytes live at each position."""
        return timeline_of(((r.segments, r.bytes) for r in self.ranges), len(self.ops))

    @property
    def max_live_bytes(self) -> int:
        return max(self.timeline(), default=0)

    def format(self) -> str:
        """
        One line a buffer, for reading and for FileCheck: where it is not live all the time, with the positions at
        which it is. Then one line for each op with regions: the positions of these.
        """
        lines = [f"// {'buffer':<24} {'bytes':>12} {'first':>6} {'last':>6}  written by"]
        for i, r in enumerate(self.ranges):
            name = r.buffer.name_hint or f"buffer{i}"
            writer = r.users[0].name if r.users else "nothing"
            parts = ", ".join(f"{first} to {last}" for first, last in r.segments)
            holes = f", live {parts}" if len(r.segments) > 1 else ""
            lines.append(f"// {name:<24} {r.bytes:>12} {r.first:>6} {r.last:>6}  {writer}{holes}")
        lines.append(f"// max-live {self.max_live_bytes} bytes over {len(self.ops)} positions")
        for position, op in enumerate(self.ops):
            if isinstance(op, dnn.ControlOp):
                lines.append(f"// {op.name} at {position}: {self._extents(op, position + 1)}")
        return "\n".join(lines)

    def _extents(self, op: dnn.ControlOp, begin: int) -> str:
        texts = list[str]()
        for name, block in zip(op.named_regions, op.blocks, strict=True):
            end = begin + sum(is_position(inner) for inner in ops_of(block))
            texts.append(f"{name} {begin} to {end - 1}" if end > begin else f"{name} empty")
            begin = end
        return ", ".join(texts)


def liveness(block: Block) -> LivenessTable:
    """
    The table of a function's block in buffer form: before or after pool conversion.

    Buffers are the results of `dnn.malloc` and `dnn.mem_offset`; the caller's buffers and constants cost the
    function nothing and are left out, as are buffers that no op uses.
    """
    ops, lives = segments(block)
    ranges: dict[SSAValue, LiveRange] = {}
    for op in ops:
        for root in dict.fromkeys(map(root_of, (*reads(op), *writes(op)))):
            owner = root.owner
            if type(owner) is not dnn.MallocOp and type(owner) is not dnn.MemOffsetOp:
                continue
            if root not in ranges:
                size = owner.size.value.data if isinstance(owner, dnn.MemOffsetOp) else dnn.byte_size(root)
                parts = united(lives[root], touching=True)
                ranges[root] = LiveRange(root, parts[0][0], parts[-1][1], size, [], parts)
            ranges[root].users.append(op)
    return LivenessTable(ops, tuple(ranges.values()))


def max_live_of_values(block: Block) -> int:
    """
    Most bytes live at one position of a block in value form, if each result gets a buffer of its own.

    As if `dnn-insert-memory-ops` had run; constants and the function's arguments cost nothing.
    """
    last: dict[SSAValue, int] = {}
    ops = [op for op in block.ops if isinstance(op, dnn.KernelOp)]
    for position, op in enumerate(ops):
        last |= dict.fromkeys((*needs(op), *op.results), position)
    if block.last_op is not None:  # what is returned is copied to the caller's buffers at the end
        last |= dict.fromkeys(block.last_op.operands, len(ops))
    change = [0] * (len(ops) + 2)
    for position, op in enumerate(ops):
        inside = max(map(max_live_of_values, op.blocks)) if isinstance(op, dnn.ControlOp) else 0
        change[position] += inside
        change[position + 1] -= inside
        for result in op.results:
            size = dnn.byte_size(result)
            change[position] += size
            change[last[result] + 1] -= size
    return max(accumulate(change))


def sum_of_values(block: Block) -> int:
    """Bytes of all results of a block in value form: what is live if none shares memory with another."""
    kernels = (op for inner in blocks_of(block) for op in inner.ops if isinstance(op, dnn.KernelOp))
    return sum(dnn.byte_size(result) for op in kernels for result in op.results)
