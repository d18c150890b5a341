"""`dnn-coalesce-tensors`: tensors share memory: views instead of copies, results in place of dying operands."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from occamy_xdsl.analysis.aliasing import offset_in_root, root_of
from occamy_xdsl.analysis.in_place import in_place_operands
from occamy_xdsl.analysis.liveness import Segment, segments, timeline_of, united, writes
from occamy_xdsl.analysis.regions import ancestor_in, blocks_of, encloses, ops_of
from occamy_xdsl.dialects import dnn
from occamy_xdsl.transforms.dnn_insert_memory_ops import insert_deallocs


@dataclass(frozen=True)
class DnnCoalesceTensorsPass(ModulePass):
    """
    Lets tensors share memory where no value is lost.

    - *Views*: a buffer that is a copy of (a view of) another one becomes that view.
    - *Writing in place of a copy*: a buffer that is copied into a part of another one (a concatenation, an
      output) becomes that part, so that its producer writes there. Where this would raise the peak, because
      the whole is then needed earlier, the copy stays.
    - A `dnn.copy` that says `keep` stays one.
    - *In place*: an op's result takes the buffer of an operand that dies there, if the op reads each element
      before it writes it (elementwise ops, the residual of a fused convolution, softmax).

    Buffers of control flow, which more than one op writes, share memory with another buffer only where at no
    position both are live, but for the ops that copy one to the other or work from one to the other in place. So
    a loop's body writes the next carried value in place if nothing reads the present one any more.

    Requires: buffer form with `dnn.malloc`.
    Ensures: buffer form; every `dnn.malloc` still has one `dnn.dealloc` after its last use; the bytes live at
    any position are at most what they were.

    Before:

    ```mlir
    %y = dnn.malloc : memref<4xf32>
    dnn.softmax input(%x : memref<4xf32>) outs(%y : memref<4xf32>) {..}
    dnn.dealloc %x : memref<4xf32>
    dnn.copy input(%y : memref<4xf32>) outs(%out : memref<4xf32>)
    dnn.dealloc %y : memref<4xf32>
    ```

    After:

    ```mlir
    dnn.softmax input(%x : memref<4xf32>) outs(%out : memref<4xf32>) {..}
    dnn.dealloc %x : memref<4xf32>
    ```

    Source: the paper's tensor coalescing.
    """

    name = "dnn-coalesce-tensors"

    views: bool = True
    """Whether copies become views."""
    in_place: bool = True
    """Whether results take the place of operands that die."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in dnn.functions_in("buffer", op, self.name):
            coalesce(function, views=self.views, in_place=self.in_place)


def coalesce(function: FuncOp, *, views: bool, in_place: bool) -> None:
    block = function.body.block
    for op in list(ops_of(block)):
        if isinstance(op, dnn.DeallocOp):
            Rewriter.erase_op(op)
    if views:
        lives = Lives(block)
        for op in list(ops_of(block)):
            if isinstance(op, dnn.CopyOp) and op.keep is None:
                forward_source(op, lives)
    lives = Lives(block)
    # Backwards, so that a chain of ops works in its final destination from the start.
    for op in reversed(list(ops_of(block))):
        if isinstance(op, dnn.CopyOp) and views and not is_kept(op.input):
            forward_destination(op, op.input, lives)
        elif isinstance(op, dnn.KernelOp) and in_place:
            for operand in in_place_operands(op):
                if dies_at(op, operand, lives) and forward_destination(op, operand, lives):
                    break
    if in_place:
        for op in list(ops_of(block)):
            if isinstance(op, dnn.KernelOp):
                reuse_operand(op, lives)
    inner_first = list(blocks_of(block))[::-1]
    for inner in inner_first:
        erase_unused(inner)
    for inner in inner_first:
        place_mallocs(inner)
    insert_deallocs(block)


def is_kept(buffer: SSAValue) -> bool:
    """Whether a copy that must stay one fills the buffer."""
    return any(
        isinstance(op := use.operation, dnn.CopyOp) and op.keep is not None and op.outs[0] is buffer
        for use in buffer.uses
    )


class Lives:
    """When every root buffer is live, and its bytes, kept true while buffers merge."""

    def __init__(self, block: Block):
        self.ops, self.segments = segments(block)
        self.position = {op: i for i, op in enumerate(self.ops)}
        self.bytes: dict[SSAValue, int] = {
            op.buffer: dnn.byte_size(op.buffer)
            for op in ops_of(block)
            if isinstance(op, dnn.MallocOp) and op.buffer in self.segments
        }
        sized = ((parts, self.bytes[root]) for root, parts in self.segments.items() if root in self.bytes)
        self.live = np.array(timeline_of(sized, len(self.ops)), np.int64)
        """Bytes live at each position; the caller's buffers cost nothing."""
        self.overwritten: dict[Operation, int] = {}
        """Where an op that works in place writes over what a `dnn.copy` has written."""
        self.shared: dict[SSAValue, set[int]] = {}
        """The buffers of control flow, which more than one op may write, and the positions of these ops."""
        self.block: dict[SSAValue, Block | None] = {root: _block_of(root) for root in self.segments}
        """The block that defines a buffer and has all ops that write it; None where they are in several."""
        for op in self.ops:
            if isinstance(op, dnn.ControlOp):
                for value in (*op.outs, *((op.condition,) if isinstance(op, dnn.LoopOp) else ())):
                    self.shared[root_of(value)] = set()
        for position, op in enumerate(self.ops):
            for value in writes(op):
                if (root := root_of(value)) in self.shared:
                    self.shared[root].add(position)

    def last(self, root: SSAValue) -> int:
        """The last position at which a buffer is live."""
        return self.segments[root][-1][1]

    def dies(self, root: SSAValue, op: Operation) -> bool:
        """Whether a buffer is live at `op` and not after it."""
        return any(last == self.position[op] for _, last in self.segments[root])

    def merged(self, gone: SSAValue, into: SSAValue) -> tuple[Segment, ...]:
        """When `into` is live once `gone` has become part of it."""
        return united(self.segments[gone], self.segments.get(into, ()))

    def changes(self, gone: SSAValue, into: SSAValue) -> Iterator[tuple[Segment, int]]:
        """By how many bytes more is live at which positions once `gone` has become part of `into`."""
        yield from ((part, -self.bytes[gone]) for part in self.segments[gone])
        if into in self.bytes:
            size = self.bytes[into]
            yield from ((part, -size) for part in self.segments[into])
            yield from ((part, size) for part in self.merged(gone, into))

    def raises_peak(self, gone: SSAValue, into: SSAValue) -> bool:
        """Whether more bytes than now are live somewhere once `gone` has become part of `into`."""
        if into not in self.bytes:
            return False
        parts = self.merged(gone, into)
        begin, end = parts[0][0], parts[-1][1] + 1
        live = self.live[begin:end].copy()
        for (first, last), size in self.changes(gone, into):
            live[first - begin : last + 1 - begin] += size
        return bool((live > self.live.max()).any())

    def merge(self, gone: SSAValue, into: SSAValue) -> None:
        for (first, last), size in self.changes(gone, into):
            self.live[first : last + 1] += size
        self.segments[into] = self.merged(gone, into)
        del self.segments[gone]
        if gone in self.shared or into in self.shared:
            self.shared[into] = self.shared.get(into, set()) | self.shared.pop(gone, set())
        if self.block[gone] is not self.block.get(into):
            self.block[into] = None

    def is_straight(self, gone: SSAValue, into: SSAValue) -> bool:
        """Whether both buffers are of one block, which alone writes them, each part once."""
        block = self.block[gone]
        return block is not None and self.block.get(into) is block and not {gone, into} & self.shared.keys()

    def exclude(self, gone: SSAValue, target: SSAValue) -> bool:
        """
        Whether `gone` may become the memory `target`: at no position both are live, but where an op moves the one
        to the other, or computes the one from the other in place.
        """
        whole = root_of(target)
        for first, last in self.segments[gone]:
            for begin, end in self.segments.get(whole, ()):
                meet = max(first, begin), min(last, end)
                if meet[0] < meet[1] or (meet[0] == meet[1] and not _moves(self.ops[meet[0]], gone, target)):
                    return False
        return True


def _block_of(root: SSAValue) -> Block | None:
    """The block that defines a buffer, if no op in another block writes it or a view of it."""
    block = root.owner if isinstance(root.owner, Block) else root.owner.parent
    pending = [root]
    while pending:
        value = pending.pop()
        for op in (use.operation for use in value.uses):
            if isinstance(op, dnn.ViewOp):
                pending.append(op.view)
            elif op.parent is not block and value in writes(op):
                return None
    return block


def _moves(op: Operation, buffer: SSAValue, place: SSAValue) -> bool:
    """Whether `op` brings the elements of a buffer to a place of the same type, or computes them from there."""
    if isinstance(op, dnn.CopyOp):
        return op.input is buffer and _is_same(op.outs[0], place)
    if not isinstance(op, dnn.KernelOp) or len(op.outs) != 1:
        return False
    inside = in_place_operands(op)
    for source, target in ((buffer, place), (place, buffer)):
        read = [v for v in op.inputs if root_of(v) is root_of(source)]
        if (
            _is_same(op.outs[0], target)
            and read
            and all(_is_same(v, source) and v in inside for v in read)
            and not any(root_of(v) is root_of(target) for v in op.inputs)
        ):
            return True
    return False


def _is_same(a: SSAValue, b: SSAValue) -> bool:
    """Whether two memrefs show the same elements of the same buffer."""
    return root_of(a) is root_of(b) and a.type == b.type and offset_in_root(a) == offset_in_root(b)


def only_returned(buffer: SSAValue) -> bool:
    """Whether a buffer is read by one copy alone, into an output or into a buffer that is only returned, or a part."""
    seen = set[SSAValue]()
    while isinstance(buffer.owner, dnn.MallocOp):
        users = [use.operation for use in buffer.uses]
        if any(isinstance(user, dnn.ViewOp) and not _only_filled(user.view) for user in users):
            return False
        reads = [user for user in users if not isinstance(user, dnn.ViewOp) and buffer not in writes(user)]
        if len(reads) != 1 or not isinstance(read := reads[0], dnn.CopyOp) or read.keep is not None:
            return False
        seen.add(buffer)
        buffer = root_of(read.outs[0])
        if buffer in seen:  # a loop may carry it around
            return False
    return True


def _only_filled(part: SSAValue) -> bool:
    """Whether a view is written and not read."""
    return all(part in writes(use.operation) for use in part.uses)


def forward_source(copy: dnn.CopyOp, lives: Lives) -> None:
    """
    Replaces the buffer that a copy fills by the source of the copy.

    Not where the source is written again while the copy is needed, by a loop that carries it; nor where the copy
    becomes a part of an output later, which is the caller's: the source may die at once then.
    """
    target, source = copy.outs[0], copy.input
    if not isinstance(target.owner, dnn.MallocOp) or min(dnn.strides_of(source), default=0) < 0:
        return
    if target.type != source.type and only_returned(target):
        return
    again = lives.shared.get(root_of(source), set())
    if target in lives.shared or any(
        first <= at <= last for at in again for first, last in lives.segments[target]
    ):
        return
    if substitute(target, source):
        Rewriter.erase_op(copy)


def forward_destination(op: dnn.KernelOp, operand: SSAValue, lives: Lives) -> bool:
    """
    Replaces a buffer by the memory to which `op` moves its elements: a part of another buffer, an output.

    Its producer then writes there, and a copy disappears. Not done where the peak would grow, since the
    other buffer may be needed earlier.

    What the copy wrote may later be written over, by an op in place. Whoever else reads the buffer has to be
    done by then.
    """
    target = op.outs[0]
    whole = root_of(target)
    if not isinstance(operand.owner, dnn.MallocOp) or operand not in lives.segments or whole is operand:
        return False
    straight = lives.is_straight(operand, whole)
    if straight and target is whole and isinstance(whole.owner, dnn.MallocOp):
        return False
    if not straight and not (_is_visible(whole, operand) and lives.exclude(operand, target)):
        return False
    if lives.raises_peak(operand, whole):
        return False
    if plan_views(operand, dnn.strides_of(target)) is None:
        return False
    end = len(lives.position)
    lasts = lives.overwritten.get(op, end) if isinstance(op, dnn.CopyOp) else lives.position[op]
    if isinstance(op, dnn.CopyOp) and lives.last(operand) >= lasts:
        return False
    for copy in filling_copies(operand):
        lives.overwritten[copy] = min(lasts, lives.overwritten.get(copy, end))
    hoist(target)
    substitute(operand, target)
    lives.merge(operand, whole)
    if isinstance(op, dnn.CopyOp):
        Rewriter.erase_op(op)
    return True


def _is_visible(whole: SSAValue, buffer: SSAValue) -> bool:
    """Whether `whole` can be used wherever `buffer` is: it is defined in the same block or around it."""
    outer, inner = (v.owner if isinstance(v.owner, Block) else v.owner.parent for v in (whole, buffer))
    return outer is not None and inner is not None and encloses(outer, inner)


def filling_copies(buffer: SSAValue) -> Iterator[dnn.CopyOp]:
    """The copies that write the buffer or a view of it."""
    for op in dict.fromkeys(use.operation for use in buffer.uses):
        if isinstance(op, dnn.ViewOp):
            yield from filling_copies(op.view)
        elif isinstance(op, dnn.CopyOp) and op.outs[0] is buffer:
            yield op


def hoist(value: SSAValue) -> None:
    """Moves a buffer's definition and the views that lead to it to the start of the block that defines it."""
    root = root_of(value)
    block = root.owner if isinstance(root.owner, Block) else cast(Block, root.owner.parent)
    chain = [value]
    while isinstance(chain[-1].owner, dnn.ViewOp):
        chain.append(chain[-1].owner.source)
    for link in chain:
        if isinstance(link.owner, dnn.ViewOp | dnn.MallocOp):
            link.owner.detach()
            block.insert_op_before(link.owner, cast(Operation, block.first_op))


def dies_at(op: dnn.KernelOp, operand: SSAValue, lives: Lives) -> bool:
    """
    Whether nothing uses the operand's buffer after `op`, and `op` itself reads it element by element alone.
    """
    root = root_of(operand)
    if root not in lives.bytes or root not in lives.segments or not lives.dies(root, op):
        return False
    same_way = [
        v
        for v in in_place_operands(op)
        if v.type == operand.type and offset_in_root(v) == offset_in_root(operand)
    ]
    reads = sum(root_of(v) is root for v in op.operands)
    return reads == sum(root_of(v) is root for v in same_way)


def reuse_operand(op: dnn.KernelOp, lives: Lives) -> None:
    """Lets a result take the buffer of an operand that dies at `op`."""
    if not op.outs or not isinstance(op.outs[0].owner, dnn.MallocOp):
        return
    target = op.outs[0]
    for operand in in_place_operands(op):
        if (
            dies_at(op, operand, lives)
            and (lives.is_straight(target, root_of(operand)) or _may_reuse(target, operand, lives))
            and substitute(target, operand)
        ):
            lives.merge(target, root_of(operand))
            return


def _may_reuse(target: SSAValue, operand: SSAValue, lives: Lives) -> bool:
    """Whether a buffer of control flow leaves the place of `operand` to a result that one op writes."""
    return (
        target not in lives.shared
        and _is_visible(root_of(operand), target)
        and lives.exclude(target, operand)
        and not lives.raises_peak(target, root_of(operand))
    )


def erase_unused(block: Block) -> None:
    """Erases views, constants and buffers that nothing uses."""
    for op in reversed(list(block.ops)):
        unused = all(result.first_use is None for result in op.results)
        if isinstance(op, dnn.ViewOp | dnn.MallocOp | dnn.ConstantOp) and unused:
            Rewriter.erase_op(op)


def place_mallocs(block: Block) -> None:
    """Moves each `dnn.malloc`, and each view, right before the first op that uses it, itself or in its regions."""
    ops = list(block.ops)
    # Right before an op is after all that moved there before: its place and the number of the move.
    places: dict[Operation, tuple[float, ...]] = {op: (i,) for i, op in enumerate(ops)}
    for move, op in enumerate(reversed(ops)):
        if not isinstance(op, dnn.ViewOp | dnn.MallocOp):
            continue
        users = (ancestor_in(block, use.operation) for use in op.results[0].uses)
        first = min(users, key=lambda user: (*places[user], math.inf))
        places[op] = (*places[first], move)
        if op.next_op is not first:
            op.detach()
            block.insert_op_before(op, first)


@dataclass(frozen=True)
class MovedView:
    """A view, its offset and strides (elements) on the memory it moves to, and the views of it."""

    op: dnn.ViewOp
    offset: int
    strides: tuple[int, ...]
    nested: list["MovedView"]


def plan_views(buffer: SSAValue, strides: Sequence[int]) -> list[MovedView] | None:
    """
    How the views of a buffer look when its elements are stored with other `strides`.

    None where a view steps through several dimensions at once, which the other strides may not allow.
    """
    old = list(zip(dnn.shape_of(buffer), dnn.strides_of(buffer), strict=True))
    moves = list[MovedView]()
    for op in dict.fromkeys(use.operation for use in buffer.uses):
        if not isinstance(op, dnn.ViewOp):
            continue
        shape = dnn.shape_of(op.view)
        plan = rebased(op.offset.value.data, shape, dnn.strides_of(op.view), old, strides)
        nested = plan_views(op.view, plan[1]) if plan is not None else None
        if plan is None or nested is None:
            return None
        moves.append(MovedView(op, *plan, nested))
    return moves


def move_views(moves: Sequence[MovedView], replacement: SSAValue) -> None:
    """Carries out a plan: the views look at the root of `replacement`, so that no chains grow."""
    root, start = root_of(replacement), offset_in_root(replacement)
    for move in moves:
        view = move.op.view
        type = dnn.buffer_type(dnn.shape_of(view), dnn.element_type_of(view), move.strides)
        other = dnn.ViewOp(root, start + move.offset, type)
        other.location = move.op.location
        cast(Block, move.op.parent).insert_op_before(other, move.op)
        move_views(move.nested, other.view)
        view.replace_all_uses_with(other.view)
        Rewriter.erase_op(move.op)


def substitute(buffer: SSAValue, replacement: SSAValue) -> bool:
    """
    Replaces a whole buffer by another memref with the same elements, for views of it too.

    Returns False, and changes nothing, where a view cannot be expressed on the replacement.
    """
    moves = plan_views(buffer, dnn.strides_of(replacement))
    if moves is None:
        return False
    move_views(moves, replacement)
    buffer.replace_all_uses_with(replacement)
    return True


def rebased(
    offset: int,
    shape: Sequence[int],
    strides: Sequence[int],
    old: Sequence[tuple[int, int]],
    new: Sequence[int],
) -> tuple[int, tuple[int, ...]] | None:
    """
    Offset and strides of a view of a buffer, for the same elements stored with other strides.

    `old` lists (size, stride) of the buffer's dimensions, `new` their strides in the other storage. None
    where a dimension of the view steps through several of the buffer's. All figures are in elements.
    """
    # Equal strides over all but unit dimensions: the view stays as it is.
    if all(size == 1 or was == now for (size, was), now in zip(old, new, strict=True)):
        return offset, tuple(strides)
    dims = [(size, was, now) for (size, was), now in zip(old, new, strict=True) if size > 1]
    if any(was == 0 for _, was, _ in dims):
        return None
    # Neighbouring dimensions that stay neighbours in the other storage count as one.
    runs = list[tuple[int, int, int]]()
    for size, was, now in sorted(dims, key=lambda dim: -dim[1]):
        if runs and runs[-1][1] == size * was and runs[-1][2] == size * now:
            runs[-1] = (runs[-1][0] * size, was, now)
        else:
            runs.append((size, was, now))
    reach, start, rest = list[int](), 0, offset
    for _, was, now in runs:
        reach.append(rest // was)
        start += reach[-1] * now
        rest %= was
    if rest:
        return None
    moved = [0] * len(shape)
    for dim, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if size == 1 or stride == 0:
            continue
        for k, (extent, was, now) in enumerate(runs):
            steps = (size - 1) * stride // was
            if stride > 0 and stride % was == 0 and reach[k] + steps < extent:
                reach[k] += steps
                moved[dim] = stride // was * now
                break
        else:
            return None
    for dim in range(len(shape) - 1, -1, -1):
        if shape[dim] == 1:
            moved[dim] = moved[dim + 1] * shape[dim + 1] if dim + 1 < len(shape) else 1
    return start, tuple(moved)
