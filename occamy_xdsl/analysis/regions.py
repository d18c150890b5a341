"""The blocks of control flow inside a block, and what their ops use from around them."""

from collections.abc import Iterator
from functools import cache
from typing import cast

from xdsl.ir import Block, Operation, SSAValue

from occamy_xdsl.dialects import dnn


@cache
def is_control(kind: type[Operation]) -> bool:
    """Whether ops of a class have control flow in them: isinstance takes far longer where the answer is no."""
    return issubclass(kind, dnn.ControlOp)


def blocks_of(block: Block) -> Iterator[Block]:
    """`block` and all blocks of `dnn.if` and `dnn.loop` inside it, outer ones first."""
    yield block
    for op in block.ops:
        if is_control(type(op)):
            for inner in cast(dnn.ControlOp, op).blocks:
                yield from blocks_of(inner)


def ops_of(block: Block) -> Iterator[Operation]:
    """All ops of `block` and of the control flow inside it, in program order; an op before those inside it."""
    for op in block.ops:
        yield op
        if is_control(type(op)):
            for inner in cast(dnn.ControlOp, op).blocks:
                yield from ops_of(inner)


def encloses(outer: Block, inner: Block) -> bool:
    """Whether `inner` is `outer` or lies in a region of one of its ops."""
    at: Block | None = inner
    while at is not None and at is not outer:
        at = at.parent_block()
    return at is not None


def ancestor_in(block: Block, op: Operation) -> Operation:
    """The op of `block` that is `op` or has it in a region."""
    while op.parent is not block:
        parent = op.parent_op()
        assert parent is not None
        op = parent
    return op


def captures(op: Operation) -> tuple[SSAValue, ...]:
    """The values from around `op` that the ops in its regions use, each once, in order of use."""
    if not isinstance(op, dnn.ControlOp):
        return ()
    found: dict[SSAValue, None] = {}
    for block in op.blocks:
        for inner in ops_of(block):
            for value in inner.operands:
                if not op.is_ancestor(value.owner):
                    found[value] = None
    return tuple(found)


def needs(op: Operation) -> tuple[SSAValue, ...]:
    """All values that must exist for `op` to run: its operands, and what its regions capture."""
    return (*op.operands, *captures(op))
