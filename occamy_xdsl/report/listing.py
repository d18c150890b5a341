"""Liveness and pool plan of a module as comments, for reading next to the program and for FileCheck."""

from collections.abc import Callable, Iterator

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block

from occamy_xdsl.analysis.liveness import liveness
from occamy_xdsl.dialects import dnn
from occamy_xdsl.errors import InvalidInputError


def liveness_listing(module: ModuleOp) -> str:
    """The liveness table of each function; raises InvalidInputError for one in value form."""
    return _listing("liveness", module, lambda block: liveness(block).format())


def plan_listing(module: ModuleOp) -> str:
    """The pool of each function, buffers in order of address; raises InvalidInputError for value form."""
    return _listing("plan", module, plan_table)


def plan_table(block: Block) -> str:
    """One line a buffer: offset and bytes in the pool, first and last position at which it is used."""
    lines = [f"// {'offset':>12} {'bytes':>12} {'first':>6} {'last':>6}  buffer"]
    placed = [
        (life.buffer.owner.offset.value.data, life)
        for life in liveness(block).ranges
        if isinstance(life.buffer.owner, dnn.MemOffsetOp)
    ]
    for offset, life in sorted(placed, key=lambda p: (p[0], p[1].first)):
        name = life.buffer.name_hint or "-"
        lines.append(f"// {offset:>12} {life.bytes:>12} {life.first:>6} {life.last:>6}  {name}")
    pool = sum(dnn.byte_size(op.pool) for op in block.ops if isinstance(op, dnn.MempoolInitOp))
    lines.append(f"// pool {pool} bytes")
    return "\n".join(lines)


def _listing(what: str, module: ModuleOp, table: Callable[[Block], str]) -> str:
    return "".join(f"// {what} of @{f.sym_name.data}\n{table(f.body.block)}\n" for f in _functions(module))


def _functions(module: ModuleOp) -> Iterator[FuncOp]:
    for function in module.walk():
        if isinstance(function, FuncOp) and function.body.blocks:
            if any(isinstance(op, dnn.KernelOp) and not op.is_buffer_form for op in function.walk()):
                raise InvalidInputError(
                    f"function @{function.sym_name.data} is in value form and has no buffers yet: "
                    "run dnn-insert-memory-ops first"
                )
            yield function
