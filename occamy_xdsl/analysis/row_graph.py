"""A block of `dnn` value form as the planner of stripes sees it: ops on rows of values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import cast

from xdsl.ir import Block, BlockArgument, SSAValue

from occamy_xdsl.analysis.in_place import in_place_operands
from occamy_xdsl.analysis.regions import captures
from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.dnn.geometry import contiguous_strides, reshaped_strides
from occamy_xdsl.dialects.dnn.rows import RowMap, RowMaps, row_maps, row_unit
from occamy_xdsl.planning.stripes import Graph, RowOp, Value


@dataclass(frozen=True)
class RowGraph:
    """The ops that the planner's ops stand for, the values that its numbers stand for, and its graph."""

    ops: tuple[dnn.KernelOp, ...]
    values: tuple[SSAValue, ...]
    dims: Mapping[SSAValue, int]
    """The dimension along which the rows of each value lie that an op can compute by rows."""
    graph: Graph

    @staticmethod
    def of(block: Block, outputs: Sequence[SSAValue], dims: Mapping[SSAValue, int]) -> "RowGraph":
        """
        `outputs` are returned or yielded; arguments, outputs and constants are not the function's memory, nor are
        views of constants.

        `dims` has the dimension along which the rows of each value lie, if any.
        """
        kernels = [op for op in block.ops if isinstance(op, dnn.KernelOp)]
        number: dict[SSAValue, int] = {}
        values = list[Value]()

        def add(value: SSAValue) -> int:
            rows = dnn.shape_of(value)[dims[value]] if value in dims else 1
            op = value.owner
            of_constant = isinstance(op, dnn.KernelOp) and is_view(op) and op.operands[0] not in number
            pinned = isinstance(value, BlockArgument) or value in outputs or of_constant
            number[value] = len(values)
            values.append(Value(dnn.byte_size(value), max(rows, 1), pinned))
            return number[value]

        for argument in block.args:
            add(argument)
        ops = list[RowOp]()
        for op in kernels:
            maps = maps_of(op, dims)
            rows_of = maps or [None] * len(op.operands)
            # The rows that an op of the same segment has made lie along one dimension only.
            reads = [
                (number[v], m if m is not None and dims.get(v, m.dim) == m.dim else None)
                for v, m in zip(op.operands, rows_of, strict=True)
                if v in number
            ]
            reads += [(number[v], None) for v in captures(op) if v in number]
            ops.append(
                RowOp(
                    tuple(reads),
                    tuple(add(r) for r in op.results),
                    work_of(op),
                    whole_bytes(op, rows_of),
                    local=maps is not None,
                    view=is_view(op),
                    join=isinstance(op, dnn.ConcatOp),
                    inplace=tuple(number[v] for v in in_place_operands(op) if v in number),
                    unit=row_unit(op, dims[op.results[0]]) if maps is not None else 1,
                )
            )
        graph = Graph(ops, values, [number[v] for v in outputs if v in number])
        return RowGraph(tuple(kernels), tuple(number), dims, graph)


def is_view(op: dnn.KernelOp) -> bool:
    """Whether the result is memory of the operand, in the order of dimensions that each has."""
    if isinstance(op, dnn.ReshapeOp):
        shape, order = dnn.shape_of(op.input), dnn.order_of(cast(dnn.ValueType, op.input.type))
        strides = contiguous_strides(shape, order)
        return reshaped_strides(shape, strides, dnn.shape_of(op.results[0])) is not None
    return isinstance(op, dnn.ShapeOp) and not isinstance(op, dnn.ConcatOp)


def maps_of(op: dnn.KernelOp, dims: Mapping[SSAValue, int]) -> RowMaps | None:
    """The row maps of an op, None where it needs all that it reads whole."""
    return row_maps(op, dims[op.results[0]]) if op.results[0] in dims else None


def choose_dims(block: Block, *, batch: bool) -> dict[SSAValue, int]:
    """
    A dimension for the rows of each result of ops in value form that can compute them apart.

    With `batch`, one of those of which each element is a problem of its own: images of a batch, heads of attention.
    Else the lines of images, the tokens of sequences, or whatever else can be cut.

    The rows of the first operand that has any go on if the op can compute them apart.
    """
    dims: dict[SSAValue, int] = {}
    for op in block.ops:
        if not isinstance(op, dnn.KernelOp) or not op.results:
            continue
        rank = len(dnn.shape_of(op.results[0]))
        order = range(rank - 2) if batch else sorted(range(rank), key=lambda d: (d != rank - 2, d))
        options = {d: maps for d in order if (maps := row_maps(op, d)) is not None}
        goes_on = (
            d
            for i, v in enumerate(op.operands)
            for d, maps in options.items()
            if (rows_of := maps[i]) is not None and dims.get(v) == rows_of.dim
        )
        dim = next(goes_on, next(iter(options), None))
        if dim is not None:
            dims[op.results[0]] = dim
    return dims


def whole_bytes(op: dnn.KernelOp, maps: Sequence[RowMap | None]) -> int:
    """Bytes that an op reads for any rows of its result, filters and other weights too."""
    return sum(dnn.byte_size(v) for v, rows_of in zip(op.operands, maps, strict=True) if rows_of is None)


def work_of(op: dnn.KernelOp) -> int:
    """
    Multiply-accumulates of a convolution or product; for other ops, elements read for all results.

    Of ops in value form or buffer form.
    """
    match op:
        case dnn.ConvOp():
            return prod(dnn.shape_of(op.destinations[0])) * prod(dnn.shape_of(op.filter)[1:])
        case dnn.ConvTransposeOp():
            return prod(dnn.shape_of(op.input)) * prod(dnn.shape_of(op.filter)[1:])
        case dnn.MatmulOp():
            return prod(dnn.shape_of(op.destinations[0])) * dnn.shape_of(op.a)[-1]
        case dnn.PoolOp():
            return prod(dnn.shape_of(op.destinations[0])) * prod(dnn.ints(op.kernel))
        case dnn.ShapeOp():
            return 0
        case _:
            return sum(prod(dnn.shape_of(r)) for r in op.destinations)
