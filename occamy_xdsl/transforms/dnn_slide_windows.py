"""`dnn-slide-windows`: rows that the next stripe needs again move to the front of the buffer that they are in."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from occamy_xdsl.analysis.aliasing import offset_in_root, root_of
from occamy_xdsl.analysis.liveness import Segment, united
from occamy_xdsl.analysis.regions import blocks_of, ops_of
from occamy_xdsl.dialects import dnn
from occamy_xdsl.transforms.dnn_coalesce_tensors import (
    Lives,
    erase_unused,
    hoist,
    place_mallocs,
    plan_views,
    substitute,
)
from occamy_xdsl.transforms.dnn_insert_memory_ops import insert_deallocs


@dataclass(frozen=True)
class DnnSlideWindowsPass(ModulePass):
    """
    Gives the windows that successive stripes have of a tensor one buffer, through which the rows move.

    `dnn-expand-stripes` copies the rows that the next stripe needs again to a buffer of their own
    (`dnn.copy` with `keep`), and from there to the front of the next window. Where the next window fits into the
    buffer of the present one, the rows move to its front at once: one copy instead of two, and never two buffers
    with the same rows. The buffer is then live from one stripe to the next, so this is done only where the most
    bytes that are live in that time do not grow.

    Requires: buffer form with `dnn.malloc`.
    Ensures: buffer form; every `dnn.malloc` has one `dnn.dealloc` after its last use; the most bytes live at any
    position are at most what they were. Elements that move within a buffer move towards its front, as `dnn.copy`
    allows.

    Before:

    ```mlir
    %a = dnn.malloc : memref<4x2xf32>
    dnn.softmax input(%x : memref<4x2xf32>) outs(%a : memref<4x2xf32>) {..}
    %tail = dnn.view %a[4] : memref<4x2xf32> -> memref<2x2xf32>
    %k = dnn.malloc : memref<2x2xf32>
    dnn.copy input(%tail : memref<2x2xf32>) outs(%k : memref<2x2xf32>) {keep}
    dnn.dealloc %a : memref<4x2xf32>
    %b = dnn.malloc : memref<4x2xf32>
    %head = dnn.view %b[0] : memref<4x2xf32> -> memref<2x2xf32>
    dnn.copy input(%k : memref<2x2xf32>) outs(%head : memref<2x2xf32>)
    ```

    After:

    ```mlir
    %a = dnn.malloc : memref<4x2xf32>
    dnn.softmax input(%x : memref<4x2xf32>) outs(%a : memref<4x2xf32>) {..}
    %tail = dnn.view %a[4] : memref<4x2xf32> -> memref<2x2xf32>
    %head = dnn.view %a[0] : memref<4x2xf32> -> memref<2x2xf32>
    dnn.copy input(%tail : memref<2x2xf32>) outs(%head : memref<2x2xf32>) {keep}
    ```

    Source: sliding windows and storage folding, J. Ragan-Kelley et al., Halide, PLDI 2013; moved instead of
    addressed modulo the height, so that kernels need not know.
    """

    name = "dnn-slide-windows"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in dnn.functions_in("buffer", op, self.name):
            slide(function)


def slide(function: FuncOp) -> None:
    block = function.body.block
    kept = [op for op in ops_of(block) if isinstance(op, dnn.CopyOp) and op.keep is not None]
    if not kept:
        return
    for op in list(ops_of(block)):
        if isinstance(op, dnn.DeallocOp):
            Rewriter.erase_op(op)
    lives = Lives(block)
    # What is moved most gains most, and comes before others fill up the room under the peak.
    kept.sort(key=lambda copy: -dnn.byte_size(copy.outs[0]))
    for copy in kept:
        move_to_front(copy, lives)
    for inner in reversed(list(blocks_of(block))):
        erase_unused(inner)
        place_mallocs(inner)
    insert_deallocs(block)


def move_to_front(copy: dnn.CopyOp, lives: Lives) -> None:
    """Lets the next window take the buffer of the present one, from which `copy` keeps rows, if it can."""
    kept, window = copy.outs[0], root_of(copy.input)
    fill = next_copy(copy)
    if fill is None:
        return
    front = fill.outs[0]
    following = root_of(front)
    if (
        not all(isinstance(buffer.owner, dnn.MallocOp) for buffer in (kept, window, following))
        or following is window
        or not lives.is_straight(following, window)
        or not lives.is_straight(kept, window)
        or lives.last(window) != lives.position[copy]
        or lives.segments[following][0][0] <= lives.position[copy]
    ):
        return
    strides = dnn.strides_of(window)
    if (
        2 * dnn.byte_size(kept) < dnn.byte_size(window)
        or not fits(following, window)
        or offset_in_root(front) != 0
        or not same_steps(front, dnn.strides_of(following))
        or not same_steps(copy.input, strides)
        or plan_views(following, strides) is None
        or raises_peak((window, kept, following), lives)
    ):
        return
    hoist(window)
    place = window
    if following.type != window.type:
        type = dnn.buffer_type(dnn.shape_of(following), dnn.element_type_of(following), strides)
        view = dnn.ViewOp(window, 0, type)
        view.location = cast(Operation, following.owner).location
        owner = cast(Operation, window.owner)
        cast(Block, owner.parent).insert_op_after(view, owner)
        place = view.view
    substitute(following, place)
    hoist(fill.outs[0])
    copy.operands[1] = fill.outs[0]
    Rewriter.erase_op(fill)
    merge((window, kept, following), lives)


def next_copy(copy: dnn.CopyOp) -> dnn.CopyOp | None:
    """The copy that brings what `copy` keeps to the next window, if nothing else uses that."""
    users = {use.operation for use in copy.outs[0].uses} - {copy}
    match tuple(users):
        case (dnn.CopyOp() as fill,) if fill.input is copy.outs[0]:
            return fill
        case _:
            return None


def fits(following: SSAValue, window: SSAValue) -> bool:
    """Whether one buffer is like another, but lower in at most one dimension."""
    pairs = list(zip(dnn.shape_of(following), dnn.shape_of(window), strict=True))
    return (
        dnn.element_type_of(following) == dnn.element_type_of(window)
        and all(size <= most for size, most in pairs)
        and sum(size != most for size, most in pairs) <= 1
    )


def same_steps(part: SSAValue, strides: Sequence[int]) -> bool:
    """Whether a view has the given strides where it has neighbours."""
    found = zip(dnn.shape_of(part), dnn.strides_of(part), strides, strict=True)
    return all(size == 1 or own == stride for size, own, stride in found)


def raises_peak(merged: Sequence[SSAValue], lives: Lives) -> bool:
    """Whether more bytes than now are live at one time while any of the buffers is, if all have that of the first."""
    segments, changes = _as_one(merged, lives)
    begin, end = segments[0][0], segments[-1][1] + 1
    live = lives.live[begin:end].copy()
    for (first, last), size in changes:
        live[first - begin : last + 1 - begin] += size
    return bool(live.max() > lives.live[begin:end].max())


def merge(merged: Sequence[SSAValue], lives: Lives) -> None:
    """Notes that all buffers have the memory of the first."""
    into, *gone = merged
    segments, changes = _as_one(merged, lives)
    for (first, last), size in changes:
        lives.live[first : last + 1] += size
    for buffer in gone:
        del lives.segments[buffer]
    lives.segments[into] = segments


def _as_one(
    merged: Sequence[SSAValue], lives: Lives
) -> tuple[tuple[Segment, ...], list[tuple[Segment, int]]]:
    """When one buffer instead of all is live, and by how many bytes more is live at which positions."""
    segments = united(*(lives.segments[buffer] for buffer in merged))
    less = [(part, -lives.bytes[buffer]) for buffer in merged for part in lives.segments[buffer]]
    return segments, [*less, *((part, lives.bytes[merged[0]]) for part in segments)]
