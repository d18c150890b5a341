"""Position of the largest or smallest element along one dimension."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, VectorType, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from occamy_xdsl.lowering.cpu.kernels import vector_ops
from occamy_xdsl.lowering.cpu.kernels.builder import IndexLike, KernelBuilder
from occamy_xdsl.lowering.cpu.kernels.reduction import (
    Carried,
    Row,
    combine_lanes,
    compute_dtype,
    for_each_row,
    is_float,
    neutral,
)
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer, Kernel
from occamy_xdsl.lowering.cpu.kernels.strided import Access
from occamy_xdsl.lowering.toolchain import Isa


@dataclass(frozen=True)
class ArgReduce(Kernel):
    """
    Position (i64) of the largest or smallest element along `axis`, as `dnn.arg_reduce` defines it.

    A NaN wins over any number; of equal elements the first one wins, or the last one with `select_last`.
    """

    kind: Literal["max", "min"]
    axis: int
    select_last: bool
    input: Buffer
    output: Buffer
    """Of i64, with the shape of the input without `axis`."""

    @property
    def label(self) -> str:
        return f"arg_{self.kind}_" + "x".join(map(str, self.input.shape))

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        # Truth values are bytes of 0 and 1, which compare like numbers.
        source = replace(self.input, dtype="ui8") if self.input.dtype == "i1" else self.input
        return source, self.output

    def build(self, isa: Isa) -> FuncOp:
        k = KernelBuilder(self, isa)
        source, target = k.views
        strides = (*self.output.strides[: self.axis], 0, *self.output.strides[self.axis :])
        accesses = [Access.of(source), Access(target, strides, self.output.origin)]
        dtype = compute_dtype(source.buffer.dtype)
        for_each_row(k, self.input.shape, [self.axis], accesses, dtype, lambda row: self._row(k, row))
        return k.finish()

    def _row(self, k: KernelBuilder, row: Row) -> None:
        def step(carried: Carried, at: Sequence[IndexLike], index: IndexLike, valid: int) -> Carried:
            best, place = carried
            value = row.load(0, at, valid)
            wins = self._wins(k, row, value, best)
            if row.along and row.lanes is not None and valid < row.lanes:
                wins = k.emit(arith.AndIOp(wins, k.mask(valid, row.lanes)))
            return [k.select(wins, value, best), k.select(wins, self._places(k, row, index), place)]

        # Where no element beats this start, all are equal to it, and 0 is the first of them.
        start = [row.constant(neutral(self.kind, row.dtype)), k.constant(0, i64, row.lanes)]
        best, place = row.fold(step, start)
        if row.along:
            # The best of the lanes, then the first (or last) place among the lanes that have it.
            top = row.spread(combine_lanes(k, self.kind, row.dtype, best))
            has_it = k.compare_values("oeq" if is_float(row.dtype) else "eq", best, top)
            if is_float(row.dtype):
                has_it = k.emit(arith.OrIOp(has_it, k.compare_values("uno", best, best)))
            other = -1 if self.select_last else np.iinfo(np.int64).max
            place = k.select(has_it, place, k.constant(other, i64, row.lanes))
            place = combine_lanes(k, "max" if self.select_last else "min", "i64", place)
        row.store(place, 1, dtype="i64")

    def _wins(self, k: KernelBuilder, row: Row, value: SSAValue, best: SSAValue) -> SSAValue:
        """Whether a later element takes the place of the best one so far."""
        relation = {"max": "gt", "min": "lt"}[self.kind]
        if self.select_last:
            relation = relation[0] + "e"
        if not is_float(row.dtype):
            return k.compare_values(("u" if row.dtype.startswith("ui") else "s") + relation, value, best)
        # An unordered comparison holds if either is a NaN; only the earlier one may have to stay.
        wins = k.compare_values("u" + relation, value, best)
        if self.select_last:
            best_is_number = k.compare_values("oeq", best, best)
            value_is_nan = k.compare_values("uno", value, value)
            return k.emit(arith.AndIOp(wins, k.emit(arith.OrIOp(best_is_number, value_is_nan))))
        return k.emit(arith.AndIOp(wins, k.compare_values("oeq", best, best)))

    @staticmethod
    def _places(k: KernelBuilder, row: Row, index: IndexLike) -> SSAValue:
        """The position along the axis of the element in each lane."""
        position = k.splat(k.emit(vector_ops.IndexCastOp(k.value_of(index), i64)), row.lanes)
        if not row.along or row.lanes is None:
            return position
        type_ = VectorType(i64, [row.lanes])
        lanes = arith.ConstantOp(DenseIntOrFPElementsAttr.from_list(type_, range(row.lanes)))
        return k.emit(arith.AddiOp(position, k.emit(lanes)))
