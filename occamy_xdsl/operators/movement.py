"""Operators that only move elements."""

from collections.abc import Sequence
from math import prod
from typing import Any

from xdsl.ir import SSAValue

from occamy_xdsl.dialects.dnn import PadOp, shape_of
from occamy_xdsl.dialects.dnn.geometry import broadcast_shapes
from occamy_xdsl.operators.emitter import Emitter, scalar_attribute
from occamy_xdsl.operators.node import Node
from occamy_xdsl.operators.registry import operator

# ---- Shapes


@operator("Identity")
def identity(node: Node, emit: Emitter) -> SSAValue:
    return node[0]


@operator("Reshape", since=5)
def reshape(node: Node, emit: Emitter) -> SSAValue:
    """0 keeps the dimension of the same index (unless `allowzero`), -1 takes what is left."""
    have, wanted = node.shape(), node.known_ints(1, "the shape")
    if not node.flag("allowzero"):
        if any(size == 0 and index >= len(have) for index, size in enumerate(wanted)):
            node.reject(f"shape {wanted} copies a dimension that {list(have)} lacks")
        wanted = [have[index] if size == 0 else size for index, size in enumerate(wanted)]
    if wanted.count(-1) > 1 or min(wanted, default=0) < -1:
        node.reject(f"shape {wanted} is not one")
    if -1 in wanted:
        known = prod(size for size in wanted if size != -1)
        if known == 0 or prod(have) % known:
            node.reject(f"cannot reshape {list(have)} to {wanted}")
        wanted[wanted.index(-1)] = prod(have) // known
    if prod(wanted) != prod(have):
        node.reject(f"cannot reshape {list(have)} to {wanted}")
    return emit.reshape(node[0], wanted)


@operator("Flatten")
def flatten(node: Node, emit: Emitter) -> SSAValue:
    shape, axis = node.shape(), node.attr("axis")
    if not -len(shape) <= axis <= len(shape):
        node.reject(f"axis {axis} is not one of {len(shape)} dimensions")
    axis = axis + len(shape) if axis < 0 else axis
    return emit.reshape(node[0], (prod(shape[:axis]), prod(shape[axis:])))


def _squeeze(node: Node, emit: Emitter, axes: Sequence[int] | None) -> SSAValue:
    shape = node.shape()
    if axes is None:
        return emit.reshape(node[0], [size for size in shape if size != 1])
    dropped = node.axes(tuple(axes), len(shape))
    if any(shape[axis] != 1 for axis in dropped):
        node.reject(f"axes {list(axes)} of shape {list(shape)} are not all 1")
    return emit.reshape(node[0], [size for d, size in enumerate(shape) if d not in dropped])


@operator("Squeeze")
def squeeze_by_attribute(node: Node, emit: Emitter) -> SSAValue:
    return _squeeze(node, emit, node.attr("axes"))


@operator("Squeeze", since=13)
def squeeze(node: Node, emit: Emitter) -> SSAValue:
    return _squeeze(node, emit, node.known_ints(1, "axes") if node.has(1) else None)


def _unsqueeze(node: Node, emit: Emitter, axes: Sequence[int]) -> SSAValue:
    sizes = list(node.shape())
    for axis in sorted(node.axes(tuple(axes), len(sizes) + len(axes))):
        sizes.insert(axis, 1)
    return emit.reshape(node[0], sizes)


@operator("Unsqueeze")
def unsqueeze_by_attribute(node: Node, emit: Emitter) -> SSAValue:
    return _unsqueeze(node, emit, node.attr("axes"))


@operator("Unsqueeze", since=13)
def unsqueeze(node: Node, emit: Emitter) -> SSAValue:
    return _unsqueeze(node, emit, node.known_ints(1, "axes"))


# ---- Order


@operator("Transpose")
def transpose(node: Node, emit: Emitter) -> SSAValue:
    rank = node.rank()
    permutation = node.attr("perm")
    if permutation is None:
        permutation = tuple(range(rank))[::-1]
    if sorted(permutation) != list(range(rank)):
        node.reject(f"perm {list(permutation)} does not order {rank} dimensions")
    return emit.transpose(node[0], permutation)


def _blocks(node: Node) -> tuple[tuple[int, ...], int]:
    shape, block = node.shape(), node.attr("blocksize")
    if len(shape) != 4 or block < 1:
        node.reject(f"needs rank 4 and a positive blocksize, got shape {list(shape)} and {block}")
    return shape, block


@operator("DepthToSpace")
def depth_to_space(node: Node, emit: Emitter) -> SSAValue:
    """DCR: depth is split as (block, block, channels); CRD: as (channels, block, block)."""
    (n, c, h, w), block = _blocks(node)
    depth = c // block**2
    if c % block**2:
        node.reject(f"{c} channels are no multiple of blocksize {block} squared")
    if node.attr("mode", "DCR") == "DCR":
        split = emit.reshape(node[0], (n, block, block, depth, h, w))
        moved = emit.transpose(split, (0, 3, 4, 1, 5, 2))
    else:
        split = emit.reshape(node[0], (n, depth, block, block, h, w))
        moved = emit.transpose(split, (0, 1, 4, 2, 5, 3))
    return emit.reshape(moved, (n, depth, h * block, w * block))


@operator("SpaceToDepth")
def space_to_depth(node: Node, emit: Emitter) -> SSAValue:
    (n, c, h, w), block = _blocks(node)
    if h % block or w % block:
        node.reject(f"{h}x{w} is no multiple of blocksize {block}")
    split = emit.reshape(node[0], (n, c, h // block, block, w // block, block))
    order = (0, 3, 5, 1, 2, 4) if node.attr("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    moved = emit.transpose(split, order)
    return emit.reshape(moved, (n, c * block**2, h // block, w // block))


# ---- Parts


@operator("Concat", since=4)
def concat(node: Node, emit: Emitter) -> SSAValue:
    values = node.variadic
    axis = node.axis(node.attr("axis"), node.rank())
    shapes = [shape_of(value) for value in values]
    if len({(len(s), *s[:axis], *s[axis + 1 :]) for s in shapes}) > 1:
        node.reject(f"inputs must agree outside axis {axis}, got shapes {[list(s) for s in shapes]}")
    filled = [value for value, shape in zip(values, shapes, strict=True) if shape[axis]]
    return emit.concat(filled or values[:1], axis)


def _split(node: Node, emit: Emitter, sizes: Sequence[int] | None, parts: int) -> list[SSAValue]:
    """Without sizes, `parts` equal parts, of which the last may be smaller."""
    shape = node.shape()
    axis = node.axis(node.attr("axis", 0), len(shape))
    if sizes is None:
        most = -(-shape[axis] // parts)
        sizes = [min(most, max(shape[axis] - most * i, 0)) for i in range(parts)]
    if sum(sizes) != shape[axis] or len(sizes) != parts or min(sizes, default=0) < 0:
        node.reject(f"parts {list(sizes)} do not make dimension {axis} of shape {list(shape)}")
    results, start = list[SSAValue](), 0
    for size in sizes:
        offsets, extent = [0] * len(shape), list(shape)
        offsets[axis], extent[axis] = start, size
        start += size
        results.append(emit.slice(node[0], offsets, extent, [1] * len(shape)))
    return results


@operator("Split", since=2)
def split_by_attribute(node: Node, emit: Emitter) -> list[SSAValue]:
    return _split(node, emit, node.attr("split"), len(node.op.results))


@operator("Split", since=13)
def split(node: Node, emit: Emitter) -> list[SSAValue]:
    parts = len(node.op.results)
    if node.attr("num_outputs", parts) != parts:
        node.reject(f"num_outputs is {node.attr('num_outputs')}, there are {parts} outputs")
    return _split(node, emit, node.known_ints(1, "split") if node.has(1) else None, parts)


def _slice(
    node: Node,
    emit: Emitter,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> SSAValue:
    shape = node.shape()
    chosen = node.axes(tuple(range(len(starts)) if axes is None else axes), len(shape))
    steps = [1] * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(chosen) == len(steps) or 0 in steps:
        node.reject(
            f"starts {list(starts)}, ends {list(ends)}, axes {chosen} and steps {list(steps)} disagree"
        )
    offsets, sizes, strides = [0] * len(shape), list(shape), [1] * len(shape)
    for axis, start, end, step in zip(chosen, starts, ends, steps, strict=True):
        first, last, strides[axis] = slice(start, end, step).indices(shape[axis])
        # Far below zero, a negative end means "to the first element"; Python's slices agree.
        sizes[axis] = len(range(first, last, step))
        offsets[axis] = first if sizes[axis] else 0
    return emit.slice(node[0], offsets, sizes, strides)


@operator("Slice")
def slice_by_attributes(node: Node, emit: Emitter) -> SSAValue:
    return _slice(node, emit, node.attr("starts"), node.attr("ends"), node.attr("axes"), None)


@operator("Slice", since=10)
def slice_(node: Node, emit: Emitter) -> SSAValue:
    starts, ends = node.known_ints(1, "starts"), node.known_ints(2, "ends")
    axes = node.known_ints(3, "axes") if node.has(3) else None
    steps = node.known_ints(4, "steps") if node.has(4) else None
    return _slice(node, emit, starts, ends, axes, steps)


# ---- Padding


def _pad(node: Node, emit: Emitter, pads: Sequence[int], number: Any, axes: Sequence[int] | None) -> SSAValue:
    """Negative pads cut off elements, before the others are added."""
    value, rank = node[0], node.rank()
    chosen = node.axes(tuple(range(rank) if axes is None else axes), rank)
    if len(pads) != 2 * len(chosen):
        node.reject(f"needs {2 * len(chosen)} pads, got {list(pads)}")
    begins, ends = [0] * rank, [0] * rank
    for i, axis in enumerate(chosen):
        begins[axis], ends[axis] = pads[i], pads[i + len(chosen)]
    sizes = [size + min(b, 0) + min(e, 0) for size, b, e in zip(node.shape(), begins, ends, strict=True)]
    mode = node.attr("mode")
    if mode not in ("constant", "reflect", "edge", "wrap"):
        node.reject(f"mode is {mode!r}")
    if min(sizes, default=0) < 0:
        node.reject(f"pads {list(pads)} remove more than shape {list(node.shape())} has")
    value = emit.slice(value, [max(-b, 0) for b in begins], sizes, [1] * rank)
    low, high = [max(b, 0) for b in begins], [max(e, 0) for e in ends]
    if not any(low) and not any(high):
        return value
    if mode != "constant":
        for size, pair in zip(sizes, zip(low, high, strict=True), strict=True):
            if (max(pair) and size == 0) or (mode == "reflect" and max(pair) >= max(size, 1)):
                node.refuse(f"mode {mode} with pads {list(pads)} on a dimension of {size} elements")
        return emit.add(PadOp(value, low, high, mode, None))
    return emit.add(PadOp(value, low, high, mode, scalar_attribute(number, node[0])))


@operator("Pad", since=2, limits="reflection by the whole dimension or more")
def pad_by_attributes(node: Node, emit: Emitter) -> SSAValue:
    return _pad(node, emit, node.attr("pads"), node.attr("value"), None)


@operator("Pad", since=11, limits="reflection by the whole dimension or more; a computed constant_value")
def pad(node: Node, emit: Emitter) -> SSAValue:
    number: Any = 0
    if node.has(2) and node.attr("mode") == "constant":
        number = node.known_scalar(2, "constant_value")
    axes = node.known_ints(3, "axes") if node.has(3) else None
    return _pad(node, emit, node.known_ints(1, "pads"), number, axes)


# ---- Repetition


@operator("Expand", since=8)
def expand(node: Node, emit: Emitter) -> SSAValue:
    wanted = node.known_ints(1, "the shape")
    result = broadcast_shapes(node.shape(), wanted)
    if result is None:
        node.reject(f"cannot expand {list(node.shape())} to {wanted}")
    return emit.broadcast(node[0], result)


@operator("Tile", since=6)
def tile(node: Node, emit: Emitter) -> SSAValue:
    """Each dimension gets one of size `repeats` before it, which is broadcast and merged."""
    shape, repeats = node.shape(), node.known_ints(1, "repeats")
    if len(repeats) != len(shape) or min(repeats, default=0) < 0:
        node.reject(f"repeats {repeats} do not fit shape {list(shape)}")
    narrow = [size for pair in zip([1] * len(shape), shape, strict=True) for size in pair]
    wide = [size for pair in zip(repeats, shape, strict=True) for size in pair]
    spread = emit.broadcast(emit.reshape(node[0], narrow), wide)
    return emit.reshape(spread, [count * size for count, size in zip(repeats, shape, strict=True)])
