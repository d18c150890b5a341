"""A block of `dnn` value form as the planner of stripes sees it: ops on rows of values."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.ir import Block, BlockArgument, SSAValue

from occamy_xdsl.analysis.in_place import in_place_operands
from occamy_xdsl.analysis.regions import needs
from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.dnn.rows import ROWS, row_maps
from occamy_xdsl.planning.stripes import Graph, RowOp, Value


@dataclass(frozen=True)
class RowGraph:
    """The ops that the planner's ops stand for, the values that its numbers stand for, and its graph."""

    ops: tuple[dnn.KernelOp, ...]
    values: tuple[SSAValue, ...]
    graph: Graph

    @staticmethod
    def of(block: Block, outputs: Sequence[SSAValue]) -> "RowGraph":
        """`outputs` are returned or yielded; arguments, outputs and constants are not the function's memory."""
        number: dict[SSAValue, int] = {}
        values = list[Value]()

        def add(value: SSAValue) -> int:
            shape = dnn.shape_of(value)
            rows = shape[ROWS] if len(shape) > ROWS else 1
            pinned = isinstance(value, BlockArgument) or value in outputs
            number[value] = len(values)
            values.append(Value(dnn.byte_size(value), max(rows, 1), pinned))
            return number[value]

        for argument in block.args:
            add(argument)
        kernels = [op for op in block.ops if isinstance(op, dnn.KernelOp)]
        ops = list[RowOp]()
        for op in kernels:
            maps = row_maps(op)
            reads = [
                (number[v], None if maps is None else maps[i]) for i, v in enumerate(needs(op)) if v in number
            ]
            concat = isinstance(op, dnn.ConcatOp)
            ops.append(
                RowOp(
                    tuple(reads),
                    tuple(add(r) for r in op.results),
                    work_of(op),
                    local=maps is not None,
                    view=isinstance(op, dnn.ShapeOp) and not concat,
                    join=concat,
                    inplace=tuple(number[v] for v in in_place_operands(op) if v in number),
                )
            )
        graph = Graph(ops, values, [number[v] for v in outputs if v in number])
        return RowGraph(tuple(kernels), tuple(number), graph)


def work_of(op: dnn.KernelOp) -> int:
    """Multiply-accumulates of a convolution or product; for other ops, elements read for all results."""
    match op:
        case dnn.ConvOp():
            return prod(dnn.shape_of(op.results[0])) * prod(dnn.shape_of(op.filter)[1:])
        case dnn.ConvTransposeOp():
            return prod(dnn.shape_of(op.input)) * prod(dnn.shape_of(op.filter)[1:])
        case dnn.MatmulOp():
            return prod(dnn.shape_of(op.results[0])) * dnn.shape_of(op.a)[-1]
        case dnn.PoolOp():
            return prod(dnn.shape_of(op.results[0])) * prod(dnn.ints(op.kernel))
        case dnn.ShapeOp():
            return 0
        case _:
            return sum(prod(dnn.shape_of(r)) for r in op.results)
