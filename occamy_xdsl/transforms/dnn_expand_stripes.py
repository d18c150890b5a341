"""`dnn-expand-stripes`: a stripe region becomes ops on ranges of rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from occamy_xdsl.analysis.row_graph import RowGraph
from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.dnn.rows import on_rows, row_maps, slice_rows, with_rows
from occamy_xdsl.planning.stripes import Halo, Piece, unroll


@dataclass(frozen=True)
class DnnExpandStripesPass(ModulePass):
    """
    Replaces each `dnn.stripe` by its body's ops, once a stripe, on the rows that the stripe needs.

    Rows that the next stripe needs again are copied when the stripe is done with them (`dnn.copy` with `keep`),
    and put before the new rows there; with halo `recompute` they are computed again instead. The results are
    the concatenation of the stripes' rows, which `dnn-coalesce-tensors` builds in place.

    Requires: value form.
    Ensures: no `dnn.stripe` is left.

    Before:

    ```mlir
    %y = dnn.stripe ins(%x, %w : ..) {dims = array<i64: 2>, ends = array<i64: 4, 8>, ..} -> tensor<1x4x8x8xf32> body {
    ^bb0(%a : tensor<1x3x8x8xf32>, %f : tensor<4x3x3x3xf32>):
      %c = dnn.conv input(%a : ..) filter(%f : ..) {pads = array<i64: 1, 1, 1, 1>, ..} -> tensor<1x4x8x8xf32>
      dnn.yield %c : tensor<1x4x8x8xf32>
    }
    ```

    After:

    ```mlir
    %0 = dnn.slice input(%x : ..) {offsets = array<i64: 0, 0, 0, 0>, ..} -> tensor<1x3x5x8xf32>
    %1 = dnn.conv input(%0 : ..) filter(%w : ..) {pads = array<i64: 1, 1, 0, 1>, ..} -> tensor<1x4x4x8xf32>
    %2 = dnn.slice input(%x : ..) {offsets = array<i64: 0, 0, 3, 0>, ..} -> tensor<1x3x5x8xf32>
    %3 = dnn.conv input(%2 : ..) filter(%w : ..) {pads = array<i64: 0, 1, 1, 1>, ..} -> tensor<1x4x4x8xf32>
    %y = dnn.concat ins(%1, %3 : ..) {axis = 2 : i64} -> tensor<1x4x8x8xf32>
    ```
    """

    name = "dnn-expand-stripes"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for stripe in [inner for inner in op.walk() if isinstance(inner, dnn.StripeOp)]:
            expand(stripe)


def expand(stripe: dnn.StripeOp) -> None:
    block = stripe.body.block
    last = cast(dnn.YieldOp, block.last_op)
    _Expansion(stripe, RowGraph.of(block, last.values, stripe.row_dims())).run(last.values)


@dataclass
class _Rows:
    """Rows [begin, end) of a value along dimension `dim`, as a tensor of their own."""

    tensor: SSAValue
    begin: int
    end: int
    dim: int


class _Expansion:
    """Builds the stripes of one region before it."""

    def __init__(self, stripe: dnn.StripeOp, body: RowGraph):
        self.stripe, self.body = stripe, body
        self.outer: dict[SSAValue, SSAValue] = dict(zip(stripe.body.block.args, stripe.ins, strict=True))
        self.at_hand: dict[SSAValue, _Rows] = {}
        """Rows of each inner value in this stripe; before its op ran, those that the stripe before it left."""

    def insert(self, op: dnn.KernelOp, like: Operation) -> SSAValue:
        op.location = like.location
        cast(Block, self.stripe.parent).insert_op_before(op, self.stripe)
        return op.results[0]

    def run(self, yielded: Sequence[SSAValue]) -> None:
        graph, values = self.body.graph, self.body.values
        number = {value: i for i, value in enumerate(values)}
        stripes = unroll(
            graph.ops,
            [value.rows for value in graph.values],
            [number[v] for v in yielded],
            dnn.ints(self.stripe.ends),
            cast(Halo, self.stripe.halo.data),
        )
        parts: dict[SSAValue, list[_Rows]] = {v: [] for v in yielded}
        for s, pieces in enumerate(stripes):
            follow = {p.op: p for p in stripes[s + 1]} if s + 1 < len(stripes) else {}
            active = {p.op for p in pieces if p.begin < p.end}
            dying: dict[int, list[Piece]] = {}
            for piece in pieces:
                reads = [k for k in graph.readers.get(graph.ops[piece.op].writes[0], ()) if k in active]
                dying.setdefault(max(reads, default=piece.op), []).append(piece)
            for piece in pieces:
                if piece.begin < piece.end:
                    self.compute(piece, parts)
                for done in dying.get(piece.op, ()):
                    self.leave(done, follow.get(done.op))
        for value, result in zip(yielded, self.stripe.results, strict=True):
            whole = self.joined([rows.tensor for rows in parts[value]], cast(Operation, value.owner))
            whole.name_hint = result.name_hint
            result.replace_all_uses_with(whole)
        Rewriter.erase_op(self.stripe)

    def compute(self, piece: Piece, parts: dict[SSAValue, list[_Rows]]) -> None:
        """The op of a piece on its rows, with the rows left by the stripe before it put in front."""
        op = self.body.ops[piece.op]
        value = op.results[0]
        dim = self.body.dims[value]
        maps = row_maps(op, dim)
        assert maps is not None
        operands = list[SSAValue]()
        for operand, rows_of in zip(op.operands, maps, strict=True):
            if rows_of is None:
                operands.append(self.outer[operand])
            elif operand in self.outer:
                outer = self.outer[operand]
                whole = _Rows(outer, 0, dnn.shape_of(outer)[rows_of.dim], rows_of.dim)
                operands.append(self.cut(whole, *rows_of(piece.begin, piece.end), op))
            else:
                operands.append(self.cut(self.at_hand[operand], *rows_of(piece.begin, piece.end), op))
        new = self.insert(on_rows(op, dim, operands, piece.begin, piece.end), op)
        if value in parts:
            # Rows that were computed again are there already.
            done = parts[value][-1].end if parts[value] else 0
            fresh = self.cut(_Rows(new, piece.begin, piece.end, dim), done, piece.end, op)
            parts[value].append(_Rows(fresh, done, piece.end, dim))
        if piece.stored < piece.begin:
            new = self.joined([self.cut(self.at_hand[value], piece.stored, piece.begin, op), new], op)
        self.at_hand[value] = _Rows(new, piece.stored, piece.end, dim)

    def leave(self, piece: Piece, follower: Piece | None) -> None:
        """Keeps the rows of a value that the next stripe needs again, so that the others may die."""
        op = self.body.ops[piece.op]
        value = op.results[0]
        have = self.at_hand[value]
        if self.body.graph.ops[piece.op].view or follower is None or follower.stored >= have.end:
            return
        if follower.stored == have.begin and piece.begin == piece.end:
            return  # only waits
        if self.stripe.halo.data != "keep":
            return
        rows = self.cut(have, follower.stored, have.end, op)
        type = with_rows(value.type, have.end - follower.stored, have.dim)
        copy = dnn.CopyOp(rows, type, keep=True)
        copy.results[0].name_hint = value.name_hint
        self.at_hand[value] = _Rows(self.insert(copy, op), follower.stored, have.end, have.dim)

    def cut(self, rows: _Rows, begin: int, end: int, like: Operation) -> SSAValue:
        """Rows [begin, end) of those given."""
        if (begin, end) == (rows.begin, rows.end):
            return rows.tensor
        return self.insert(slice_rows(rows.tensor, begin - rows.begin, end - rows.begin, rows.dim), like)

    def joined(self, tensors: Sequence[SSAValue], like: Operation) -> SSAValue:
        """Rows after each other, in the order of dimensions of the op's result."""
        if len(tensors) == 1:
            return tensors[0]
        value = like.results[0]
        dim = self.body.dims[value]
        op = dnn.ConcatOp(tensors, dim)
        type = with_rows(value.type, dnn.shape_of(op.results[0])[dim], dim)
        Rewriter.replace_value_with_new_type(op.results[0], type)
        return self.insert(op, like)
