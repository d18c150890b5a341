"""The `dnn.stripe` op: a part of a network that runs in stripes of rows."""

from collections.abc import Sequence
from typing import ClassVar, cast

from xdsl.dialects.builtin import StringAttr, TensorType
from xdsl.ir import Attribute, Region, SSAValue
from xdsl.irdl import irdl_op_definition, prop_def, region_def, traits_def, var_operand_def
from xdsl.traits import IsolatedFromAbove

from occamy_xdsl.dialects.dnn.base import (
    I64Array,
    KernelEffects,
    KernelOp,
    YieldOp,
    i64_array,
    ints,
    shape_of,
)
from occamy_xdsl.dialects.dnn.rows import row_dims, row_maps


@irdl_op_definition
class StripeOp(KernelOp):
    """
    Runs its body in stripes of rows: what the body computes, with less memory for what lies inside it.

    Its meaning is that of the body run once on whole tensors. `dims` has the dimension of each result along which
    its rows lie: the lines of an image, the tokens of a sequence. Inside the body, the rows of a value lie where
    its readers need them. `ends` lists the row of the last result after which each stripe ends; the other results
    follow in proportion. Where a window reaches over the end of a stripe, `halo` tells where the rows come from
    that both stripes need: with `keep` the earlier stripe hands them on, and nothing is computed twice; with
    `recompute` both stripes compute them.

    There is no buffer form: `dnn-expand-stripes` makes ops on ranges of rows of it.

    Constraints:

    - (C1) `ends` ascend from above 0 to the number of rows of the last result; `dims` has a dimension of each
      result.
    - (C2) `halo` is `keep` or `recompute`.
    - (C3) The body takes values of the operands' types and yields values of the results' types, all of them
      results of its ops.
    - (C4) Every op of the body computes rows of its result apart from each other: convolutions and pools along
      images or along lines, elementwise ops, nearest resampling by a whole factor, matrix products, and what
      normalises, reduces, joins or gathers along other dimensions. What an op needs whole, or along another
      dimension than other ops do, is an argument of the body.

    Example:

    ```mlir
    %y = dnn.stripe ins(%x, %w : tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>)
      {dims = array<i64: 2>, ends = array<i64: 4, 8>, halo = "keep"} -> tensor<1x4x8x8xf32> body {
    ^bb0(%a : tensor<1x3x8x8xf32>, %f : tensor<4x3x3x3xf32>):
      %c = dnn.conv input(%a : tensor<1x3x8x8xf32>) filter(%f : tensor<4x3x3x3xf32>) {..} -> tensor<1x4x8x8xf32>
      dnn.yield %c : tensor<1x4x8x8xf32>
    }
    ```

    Source: patch-based inference of MCUNetV2 (arXiv 2110.15352); the rolling form is the line buffer of image
    pipelines, as in Halide.
    """

    name = "dnn.stripe"
    ins = var_operand_def(TensorType)
    dims = prop_def(I64Array)
    ends = prop_def(I64Array)
    halo = prop_def(StringAttr)
    body = region_def("single_block")
    traits = traits_def(KernelEffects(), IsolatedFromAbove())

    HALOS: ClassVar[tuple[str, ...]] = ("keep", "recompute")

    def __init__(
        self,
        ins: Sequence[SSAValue],
        results: Sequence[Attribute],
        body: Region,
        dims: Sequence[int],
        ends: Sequence[int],
        halo: str,
    ):
        super().__init__(
            operands=[ins, [], []],
            properties={"dims": i64_array(dims), "ends": i64_array(ends), "halo": StringAttr(halo)},
            result_types=[results],
            regions=[body],
        )

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        return [shape_of(value) for value in self.results]

    def verify_(self) -> None:
        super().verify_()
        dims, ends = ints(self.dims), ints(self.ends)
        shapes = [shape_of(value) for value in self.results]
        if [dim for dim, shape in zip(dims, shapes, strict=False) if 0 <= dim < len(shape)] != [*dims] or len(
            dims
        ) != len(shapes):
            raise self.fail(f"dims must name a dimension of each result, got {list(dims)}", "C1")
        rows = shapes[-1][dims[-1]] if shapes else 0
        if not ends or list(ends) != sorted({*ends}) or ends[0] <= 0 or ends[-1] != rows:
            raise self.fail(f"ends must ascend from above 0 to {rows}, got {list(ends)}", "C1")
        if self.halo.data not in self.HALOS:
            raise self.fail(f"halo must be keep or recompute, got {self.halo.data}", "C2")
        block = self.body.block
        last = block.last_op
        if [a.type for a in block.args] != [v.type for v in self.ins]:
            raise self.fail("body must take values of the operands' types", "C3")
        if (
            not isinstance(last, YieldOp)
            or [v.type for v in last.values] != [r.type for r in self.results]
            or any(v in block.args for v in last.values)
        ):
            raise self.fail("body must yield what its ops compute, of the results' types", "C3")
        along = self.row_dims()
        for op in block.ops:
            if op is last:
                continue
            dim = along.get(op.results[0]) if isinstance(op, KernelOp) and op.results else None
            maps = row_maps(op, dim) if isinstance(op, KernelOp) and dim is not None else None
            if maps is None or any(
                value not in block.args and (rows_of is None or rows_of.dim != along[value])
                for value, rows_of in zip(op.operands, maps, strict=True)
            ):
                raise self.fail(f"body must compute row by row, got '{op.name}' op", "C4")

    def row_dims(self) -> dict[SSAValue, int]:
        """The dimension along which the rows of each value of the body lie, but for those that are read whole."""
        block = self.body.block
        yielded = zip(cast(YieldOp, block.last_op).values, ints(self.dims), strict=True)
        return row_dims((op for op in block.ops if isinstance(op, KernelOp)), dict(yielded))
