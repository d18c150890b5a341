"""Operators with subgraphs: If, Loop and Scan."""

from collections.abc import Sequence
from typing import cast

import numpy as np
from xdsl.dialects.builtin import TensorType, i1, i64
from xdsl.ir import Block, Region, SSAValue

from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.dnn import shape_of
from occamy_xdsl.operators.emitter import Emitter, known_array, known_splat
from occamy_xdsl.operators.node import Node
from occamy_xdsl.operators.registry import operator

MAX_UNROLLED = 8192
"""Nodes that a loop may become where it has to be unrolled."""


@operator("If", limits="branches of different types, unless the condition is known")
def conditional(node: Node, emit: Emitter) -> Sequence[SSAValue | None]:
    """The branch that a known condition chooses, else a `dnn.if`."""
    condition = node.constant(0)
    if condition is not None:
        return node.subgraph("then_branch" if condition.item() else "else_branch")
    results: list[SSAValue | None] = [None] * len(node.op.results)
    wanted = [index for index in range(len(results)) if node.wants(index)]
    branches = list[tuple[Block, list[SSAValue]]]()
    for name in ("then_branch", "else_branch"):
        with emit.inside(Block()) as block:
            values = node.subgraph(name)
            branches.append((block, [values[index] for index in wanted]))
    (_, yes), (_, no) = branches
    for a, b in zip(yes, no, strict=True):
        if a.type != b.type:
            node.refuse(f"branches give {a.type} and {b.type}; they must agree in type")
    if not wanted:
        for block, _ in branches:
            block.drop_all_references()
        return results
    for block, values in branches:
        block.add_op(dnn.YieldOp(*values))
    regions = [Region(block) for block, _ in branches]
    op = dnn.IfOp(emit.reshape(node[0], ()), [value.type for value in yes], *regions)
    for index, value in zip(wanted, emit.control(op), strict=True):
        results[index] = value
    return results


@operator(
    "Loop",
    limits=(
        "carried values whose type changes and scan outputs, unless the number of iterations is known, "
        f"and at most {MAX_UNROLLED} nodes come of it"
    ),
)
def loop(node: Node, emit: Emitter) -> Sequence[SSAValue | None]:
    """
    Unrolled where the number of iterations is known and not too many nodes come of it, else a `dnn.loop`.

    The number is known, too, where the model declares how many rows a scan output has. As in ONNX Runtime, a
    condition that the body computes counts even if the first one is left out.
    """
    carried = [node[index] for index in range(2, len(node.operands))]
    condition = known_array(node[1]) if node.has(1) else np.ones((), bool)
    trips = node.constant(0)
    rows = _declared_rows(node, len(carried))
    if condition is not None and not condition.item():
        trips = np.zeros((), np.int64)
    if trips is not None and (condition is not None or not trips.item()):
        unrolled = _unrolled(node, emit, carried, max(trips.item(), 0), surely=False)
    else:
        unrolled = None if rows is None else _unrolled(node, emit, carried, rows, surely=True)
    if unrolled is not None:
        return unrolled
    if any(node.wants(index) for index in range(len(carried), len(node.op.results))):
        node.refuse("a scan output has a row for each iteration, and their number is known only at run time")
    return _repeated(node, emit, carried)


def _nodes(node: Node) -> int:
    region = node.op.region("body")
    assert region is not None
    return sum(1 for _ in region.walk())


def _declared_rows(node: Node, carried: int) -> int | None:
    """The first dimension that the model declares of a scan output which is used."""
    for index in range(carried, len(node.op.results)):
        type = node.op.results[index].type
        if node.wants(index) and isinstance(type, TensorType):
            shape = cast(dnn.ValueType, type).get_shape()
            if shape and shape[0] >= 0:
                return shape[0]
    return None


def _argument_shape(node: Node, index: int) -> tuple[int, ...]:
    """The shape of the iteration number or the condition in the body: ONNX also allows one of one element."""
    region = node.op.region("body")
    assert region is not None
    type = region.block.args[index].type
    return (1,) if isinstance(type, TensorType) and cast(dnn.ValueType, type).get_shape() == (1,) else ()


def _unrolled(
    node: Node, emit: Emitter, carried: Sequence[SSAValue], trips: int, *, surely: bool
) -> list[SSAValue | None] | None:
    """
    The results of `trips` iterations, with `surely` whatever the body's condition is. None where it depends on data
    whether an iteration runs, and where there would be too many nodes.
    """
    has_rows = any(node.wants(index) for index in range(len(carried), len(node.op.results)))
    if trips * _nodes(node) > (MAX_UNROLLED if has_rows else emit.unroll):
        return None
    values, rows = list(carried), list[Sequence[SSAValue]]()
    number, condition = _argument_shape(node, 0), _argument_shape(node, 1)
    true = emit.constant(np.ones(condition), i1)
    for step in range(trips):
        at = emit.constant(np.full(number, step), i64)
        goes_on, *made = node.subgraph("body", (at, true, *values), repeats=True)
        values, scanned = made[: len(carried)], made[len(carried) :]
        rows.append(scanned)
        known = known_array(goes_on)
        if step + 1 < trips and not surely:
            if known is None:
                return None
            if not known.item():
                break
    results: list[SSAValue | None] = list(values)
    for index in range(len(carried), len(node.op.results)):
        parts = [scanned[index - len(carried)] for scanned in rows]
        results.append(_stacked(node, emit, parts, 0) if parts else _no_rows(node, emit, carried, index))
    return results


def _stacked(node: Node, emit: Emitter, parts: Sequence[SSAValue], axis: int) -> SSAValue:
    """Tensors of one type along a new dimension."""
    if len({part.type for part in parts}) > 1:
        node.refuse("a scan output changes its shape from iteration to iteration")
    shape = shape_of(parts[0])
    row = (*shape[:axis], 1, *shape[axis:])
    return emit.concat([emit.reshape(part, row) for part in parts], axis)


def _no_rows(node: Node, emit: Emitter, carried: Sequence[SSAValue], index: int) -> SSAValue:
    """A scan output after no iteration; the body is converted aside for its type."""
    with emit.inside(Block()) as aside:
        at = emit.constant(np.zeros(_argument_shape(node, 0)), i64)
        true = emit.constant(np.ones(_argument_shape(node, 1)), i1)
        row = node.subgraph("body", (at, true, *carried), repeats=True)[index + 1]
    shape, element = shape_of(row), dnn.element_type_of(row)
    aside.drop_all_references()
    return emit.fill(0, (0, *shape), element)


def _repeated(node: Node, emit: Emitter, carried: Sequence[SSAValue]) -> Sequence[SSAValue]:
    """A `dnn.loop`, which also carries the iteration number if the body or the trip count needs it."""
    limit = emit.reshape(node[0], ()) if node.has(0) else None
    start = emit.reshape(node[1], ()) if node.has(1) else emit.constant(np.ones(()), i1)
    first = emit.constant(np.zeros(()), i64)
    if limit is not None:
        start = _bounded(emit, start, first, limit)
    block = Block(arg_types=[value.type for value in carried])
    counter = block.insert_arg(TensorType(i64, []), len(carried))
    with emit.inside(block):
        at = emit.reshape(counter, _argument_shape(node, 0))
        true = emit.constant(np.ones(_argument_shape(node, 1)), i1)
        goes_on, *made = node.subgraph("body", (at, true, *block.args[:-1]))
        goes_on, values = emit.reshape(goes_on, ()), made[: len(carried)]
        following = emit.elementwise(lambda i: i + 1, counter)
        if limit is not None:
            goes_on = _bounded(emit, goes_on, following, limit)
        block.add_op(dnn.YieldOp(goes_on, *values, following))
    for old, new in zip(carried, values, strict=True):
        if old.type != new.type:
            node.refuse(f"a carried value changes from {old.type} to {new.type}; its type must stay")
    return emit.control(dnn.LoopOp(start, [*carried, first], Region(block)))[: len(carried)]


def _bounded(emit: Emitter, goes_on: SSAValue, at: SSAValue, limit: SSAValue) -> SSAValue:
    """Whether an iteration runs: by the condition, and because its number is below the trip count."""
    if known_splat(goes_on):
        return emit.elementwise(lambda i, n: i < n, at, limit)
    return emit.elementwise(lambda go, i, n: go & (i < n), goes_on, at, limit)


@operator("Scan", since=9, limits=f"more than {MAX_UNROLLED} nodes after unrolling")
def scan(node: Node, emit: Emitter) -> Sequence[SSAValue | None]:
    """Unrolled: the scanned dimension is the number of iterations."""
    count: int = node.attr("num_scan_inputs")
    values, sources = node.variadic[:-count], node.variadic[-count:]
    results = len(node.op.results) - len(values)
    axes = _listed(node, "scan_input_axes", count)
    axes = [node.axis(axis, len(shape_of(s))) for axis, s in zip(axes, sources, strict=True)]
    backward = _listed(node, "scan_input_directions", count)
    lengths = {shape_of(source)[axis] for source, axis in zip(sources, axes, strict=True)}
    if len(lengths) != 1:
        node.reject(f"scanned dimensions have different sizes: {sorted(lengths)}")
    (trips,) = lengths
    if trips * _nodes(node) > MAX_UNROLLED:
        node.refuse(f"{trips} iterations of {_nodes(node)} nodes; at most {MAX_UNROLLED} nodes are unrolled")
    if not trips:
        node.refuse("a scanned dimension of size 0")
    rows = list[Sequence[SSAValue]]()
    states = len(values)
    for step in range(trips):
        elements = [
            _element(emit, source, axis, trips - 1 - step if back else step)
            for source, axis, back in zip(sources, axes, backward, strict=True)
        ]
        made = node.subgraph("body", (*values, *elements), repeats=True)
        values = list(made[:states])
        rows.append(made[states:])
    outputs: list[SSAValue | None] = list(values)
    out_axes, reverse = (_listed(node, f"scan_output_{name}", results) for name in ("axes", "directions"))
    for index in range(results):
        parts = [row[index] for row in rows]
        axis = node.axis(out_axes[index], len(shape_of(parts[0])) + 1)
        outputs.append(_stacked(node, emit, parts[::-1] if reverse[index] else parts, axis))
    return outputs


def _listed(node: Node, name: str, count: int) -> list[int]:
    """An attribute with a number for each scan input or output; zeros where it is left out."""
    values = list(node.attr(name) or [0] * count)
    if len(values) != count:
        node.reject(f"{name} has {len(values)} numbers for {count} tensors")
    return values


def _element(emit: Emitter, value: SSAValue, axis: int, index: int) -> SSAValue:
    """Element `index` of dimension `axis`, which disappears."""
    shape = shape_of(value)
    offsets, sizes = [0] * len(shape), list(shape)
    offsets[axis], sizes[axis] = index, 1
    part = emit.slice(value, offsets, sizes, [1] * len(shape))
    return emit.reshape(part, (*shape[:axis], *shape[axis + 1 :]))
