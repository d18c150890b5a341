"""Operators with subgraphs."""

from collections.abc import Sequence

from xdsl.ir import SSAValue

from occamy_xdsl.operators.emitter import Emitter
from occamy_xdsl.operators.node import Node
from occamy_xdsl.operators.registry import operator


@operator(
    "If", limits="branches of different types, unless the condition is known; both branches are computed"
)
def conditional(node: Node, emit: Emitter) -> Sequence[SSAValue]:
    """
    The branch that a known condition chooses, else both, from which the results are selected.

    Both may run because no operator has side effects.
    """
    condition = node.constant(0)
    if condition is not None:
        return node.subgraph("then_branch" if condition.item() else "else_branch")
    yes, no = node.subgraph("then_branch"), node.subgraph("else_branch")
    choose = emit.reshape(node[0], ())
    for a, b in zip(yes, no, strict=True):
        if a.type != b.type:
            node.refuse(f"branches give {a.type} and {b.type}; they must agree in type")
    return [
        emit.elementwise(lambda c, x, y: c.select(x, y), choose, a, b) for a, b in zip(yes, no, strict=True)
    ]
