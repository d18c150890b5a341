"""Reduce*, ArgMax and ArgMin."""

from collections.abc import Sequence

from xdsl.ir import SSAValue

from occamy_xdsl.dialects.dnn import ArgReduceOp, ReduceOp
from occamy_xdsl.operators.emitter import Emitter
from occamy_xdsl.operators.node import Node
from occamy_xdsl.operators.registry import Rule, operator

_KINDS = {
    "ReduceL1": "l1",
    "ReduceL2": "l2",
    "ReduceLogSum": "log_sum",
    "ReduceLogSumExp": "log_sum_exp",
    "ReduceMax": "max",
    "ReduceMean": "mean",
    "ReduceMin": "min",
    "ReduceProd": "prod",
    "ReduceSum": "sum",
    "ReduceSumSquare": "sum_square",
}


def _reduce(node: Node, emit: Emitter, kind: str, axes: Sequence[int] | None) -> SSAValue:
    """Without axes all dimensions are reduced."""
    rank = node.rank()
    reduced = node.axes(tuple(axes), rank) if axes else list(range(rank))
    return emit.reduce(node[0], kind, reduced, keep=node.flag("keepdims"))


def _by_attribute(kind: str) -> Rule:
    def rule(node: Node, emit: Emitter) -> SSAValue:
        return _reduce(node, emit, kind, node.attr("axes"))

    return rule


def _by_operand(kind: str) -> Rule:
    def rule(node: Node, emit: Emitter) -> SSAValue:
        axes = node.known_ints(1, "axes") if node.has(1) else []
        if not axes and node.flag("noop_with_empty_axes"):
            return _without_axes(node, emit, kind)
        return _reduce(node, emit, kind, axes)

    return rule


def _without_axes(node: Node, emit: Emitter, kind: str) -> SSAValue:
    """What a reduction over no dimension computes of each element."""
    if kind in ("sum", "mean", "max", "min", "prod"):
        return node[0]
    return emit.add(ReduceOp(node[0], kind, []))


for _name, _kind in _KINDS.items():
    operator(_name)(_by_attribute(_kind))
    operator(_name, since=13 if _name == "ReduceSum" else 18)(_by_operand(_kind))


def _arg_reduce(kind: str) -> Rule:
    def rule(node: Node, emit: Emitter) -> SSAValue:
        axis = node.axis(node.attr("axis"), node.rank())
        position = emit.add(ArgReduceOp(node[0], kind, axis, node.flag("select_last_index")))
        if not node.flag("keepdims"):
            return position
        return emit.reshape(position, [1 if d == axis else size for d, size in enumerate(node.shape())])

    return rule


operator("ArgMax")(_arg_reduce("max"))
operator("ArgMin")(_arg_reduce("min"))
