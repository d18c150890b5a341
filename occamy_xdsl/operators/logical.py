"""Comparisons, truth values and bits."""

from collections.abc import Callable

from xdsl.ir import SSAValue

from occamy_xdsl.operators.emitter import Emitter
from occamy_xdsl.operators.node import Node
from occamy_xdsl.operators.registry import operator
from occamy_xdsl.operators.scalars import Scalar


def _binary(name: str, compute: Callable[[Scalar, Scalar], Scalar], since: int = 1) -> None:
    @operator(name, since=since)
    def rule(node: Node, emit: Emitter) -> SSAValue:  # pyright: ignore[reportUnusedFunction] it is registered
        return emit.elementwise(compute, node[0], node[1])


_binary("Equal", lambda a, b: a == b, since=7)
_binary("Greater", lambda a, b: a > b, since=7)
_binary("GreaterOrEqual", lambda a, b: a >= b)
_binary("Less", lambda a, b: a < b, since=7)
_binary("LessOrEqual", lambda a, b: a <= b)
_binary("And", lambda a, b: a & b, since=7)
_binary("Or", lambda a, b: a | b, since=7)
_binary("Xor", lambda a, b: a ^ b, since=7)
_binary("BitwiseAnd", lambda a, b: a & b)
_binary("BitwiseOr", lambda a, b: a | b)
_binary("BitwiseXor", lambda a, b: a ^ b)


@operator("Not", "BitwiseNot")
def invert(node: Node, emit: Emitter) -> SSAValue:
    return emit.elementwise(lambda x: ~x, node[0])


@operator("BitShift", since=11)
def bit_shift(node: Node, emit: Emitter) -> SSAValue:
    direction = node.attr("direction")
    if direction not in ("LEFT", "RIGHT"):
        node.reject(f"direction is {direction!r}")
    return emit.elementwise(lambda a, b: a.shift(b, left=direction == "LEFT"), node[0], node[1])
