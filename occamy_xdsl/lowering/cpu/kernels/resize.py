"""Resampling by tables of taps, one for each dimension that changes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np
import numpy.typing as npt
from xdsl.dialects import arith
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from occamy_xdsl.dialects.dnn.interpolation import resize_taps
from occamy_xdsl.lowering.cpu.kernels import vector_ops
from occamy_xdsl.lowering.cpu.kernels.builder import Index, IndexLike, KernelBuilder, index
from occamy_xdsl.lowering.cpu.kernels.copy import raw_dtype
from occamy_xdsl.lowering.cpu.kernels.spec import NUMPY_TYPES, STORAGE_TYPES, Buffer, Kernel
from occamy_xdsl.lowering.cpu.kernels.strided import Access, Dim, collapse, map_elements
from occamy_xdsl.lowering.toolchain import Isa

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Taps:
    """The taps of one dimension, as `resize_taps` gives them, [output, taps] each."""

    dim: int
    indices: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float64]

    @property
    def count(self) -> int:
        """Taps of each output."""
        return self.indices.shape[1]

    @property
    def is_copy(self) -> bool:
        """Whether each output is one input element, unchanged."""
        return self.count == 1 and bool((self.weights == 1).all())

    @property
    def repeats(self) -> int | None:
        """How often each of the first input elements comes out in turn, if that is all there is to it."""
        outputs = len(self.indices)
        times, rest = divmod(outputs, int(self.indices.max(initial=0)) + 1)
        if rest or not self.is_copy or (self.indices[:, 0] != np.arange(outputs) // times).any():
            return None
        return times


@dataclass(frozen=True)
class Resize(Kernel):
    """
    The input resampled to the size of the output, as `dnn.resize` defines it.

    Weighted sums of integers and 16-bit floats are computed in f32. Where elements are only repeated, the
    kernel is a copy; otherwise it reads the arrays of `tables`, its arguments between input and output.
    """

    mode: str
    coordinate_transformation_mode: str
    nearest_mode: str
    cubic_coeff_a: float
    exclude_outside: bool
    scales: tuple[float, ...]
    input: Buffer
    output: Buffer

    @property
    def label(self) -> str:
        return f"resize_{self.mode}_" + "x".join(map(str, self.output.shape))

    @cached_property
    def taps(self) -> tuple[Taps, ...]:
        """The taps of each dimension."""
        return tuple(
            Taps(
                dim,
                *resize_taps(
                    self.mode,
                    self.coordinate_transformation_mode,
                    self.nearest_mode,
                    self.cubic_coeff_a,
                    self.exclude_outside,
                    scale,
                    in_size,
                    out_size,
                ),
            )
            for dim, (scale, in_size, out_size) in enumerate(
                zip(self.scales, self.input.shape, self.output.shape, strict=True)
            )
        )

    @property
    def resized(self) -> tuple[Taps, ...]:
        """The taps of the dimensions that need a table."""
        if self.is_repetition:
            return ()
        return tuple(taps for taps in self.taps if taps.repeats != 1)

    @property
    def is_repetition(self) -> bool:
        """Whether the output only repeats elements of the input."""
        return all(taps.repeats is not None for taps in self.taps)

    @property
    def is_copy(self) -> bool:
        """Whether each output is one input element, unchanged."""
        return all(taps.is_copy for taps in self.taps)

    @property
    def dtype(self) -> str:
        """The dtype of sums."""
        return "f64" if self.input.dtype == "f64" else "f32"

    @property
    def tables(self) -> tuple[Array, ...]:
        """
        Element offsets (i64) of the taps in the input, and their weights unless these are all 1.

        Both are one array: for each dimension in `resized`, [taps, outputs].
        """
        if not self.resized:
            return ()
        offsets = [taps.indices.T.ravel() * self.input.strides[taps.dim] for taps in self.resized]
        positions = np.concatenate(offsets).astype(np.int64)
        if self.is_copy:
            return (positions,)
        weights = np.concatenate([taps.weights.T.ravel() for taps in self.resized])
        return positions, weights.astype(NUMPY_TYPES[self.dtype])

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        source, target = self.input, self.output
        if self.is_copy:
            source, target = (replace(b, dtype=raw_dtype(b)) for b in (source, target))
        sizes = zip(self.tables, ("i64", self.dtype), strict=False)
        return source, *(Buffer.contiguous(table.shape, dtype) for table, dtype in sizes), target

    def build(self, isa: Isa) -> FuncOp:
        k = KernelBuilder(self, isa)
        if self.output.elements:
            if self.is_repetition:
                self._repeat(k)
            else:
                _ResizeNest(self, k).build()
        return k.finish()

    def _repeat(self, k: KernelBuilder) -> None:
        """Each dimension as two loops, over its input elements and over the copies of one."""
        shape: list[int] = []
        source: list[int] = []
        target: list[int] = []
        for taps, step, out in zip(self.taps, self.input.strides, self.output.strides, strict=True):
            times = taps.repeats
            assert times is not None
            shape += [len(taps.indices) // times, times]
            source += [step, 0]
            target += [out * times, out]
        a, b = k.views
        map_elements(
            k,
            shape,
            [Access(a, tuple(source), self.input.origin)],
            Access(b, tuple(target), self.output.origin),
            lambda elements: elements[0],
        )


@dataclass(frozen=True)
class _Term:
    """One tap: where its element is, relative to the loops outside, and what it weighs (1 if None)."""

    position: IndexLike = 0
    weight: SSAValue | None = None
    offsets: SSAValue | None = None
    """A further distance of each lane in the input, in elements."""


class _ResizeNest:
    def __init__(self, resize: Resize, k: KernelBuilder):
        self.resize, self.k = resize, k
        self.source, *self.tables, self.target = k.views
        self.dtype = self.source.buffer.dtype if resize.is_copy else resize.dtype
        self.element = STORAGE_TYPES[self.dtype]
        self.resized = list(resize.resized)
        starts = np.cumsum([0, *(taps.indices.size for taps in self.resized)])
        self.starts = {taps.dim: int(start) for taps, start in zip(self.resized, starts, strict=False)}
        changed = {taps.dim for taps in self.resized}
        kept = [d for d in range(resize.input.rank) if d not in changed]
        self.dims = collapse(
            [resize.output.shape[d] for d in kept],
            [[b.strides[d] for d in kept] for b in (resize.input, resize.output)],
        )
        widest = max(resize.input.element_bytes, self.element.size)
        self.lanes = k.isa.lanes(widest)

    def build(self) -> None:
        contiguous = next((dim for dim in self.dims if dim.strides == (1, 1)), None)
        if contiguous is not None:
            self.dims.remove(contiguous)

        def loop(d: int, at: IndexLike, to: IndexLike) -> None:
            if d < len(self.dims):
                along, out = self.dims[d].strides
                self.k.for_(0, self.dims[d].size, 1, lambda i: loop(d + 1, at + i * along, to + i * out))
            else:
                self.axes(0, at, to, [_Term()], contiguous)

        loop(0, self.resize.input.origin, self.resize.output.origin)

    def axes(
        self, d: int, at: IndexLike, to: IndexLike, terms: Sequence[_Term], contiguous: Dim | None
    ) -> None:
        """The loops over the resized dimensions from number `d` on; `terms` are the taps of those before."""
        if d == len(self.resized):
            assert contiguous is not None
            self.along(contiguous.size, at, to, terms)
            return
        taps = self.resized[d]
        out = self.resize.output.strides[taps.dim]
        size = len(taps.indices)
        if contiguous is None and d == len(self.resized) - 1:
            self.gathered(taps, at, to, terms, out)
            return

        def one(o: IndexLike) -> None:
            here = [self._tap(taps, t, o, None, 1) for t in range(taps.count)]
            self.axes(d + 1, at, to + o * out, self._product(terms, here), contiguous)

        self.k.for_(0, size, 1, one)

    def _tap(self, taps: Taps, t: int, o: IndexLike, lanes: int | None, valid: int) -> _Term:
        """Tap number `t` of output `o`, or of as many outputs as there are lanes."""
        k = self.k
        entry = self.starts[taps.dim] + t * len(taps.indices) + o
        offset = k.load(self.tables[0], entry, lanes, valid=valid)
        weight = k.load(self.tables[1], entry, lanes, valid=valid) if len(self.tables) > 1 else None
        if lanes is None:
            return _Term(Index(k, k.emit(vector_ops.IndexCastOp(offset, index))), weight)
        return _Term(0, weight, offset)

    def _product(self, terms: Sequence[_Term], others: Sequence[_Term]) -> list[_Term]:
        """The taps of two dimensions together."""

        def weight(a: _Term, b: _Term) -> SSAValue | None:
            if a.weight is None or b.weight is None:
                return a.weight or b.weight
            lanes = vector_ops.lanes_of(b.weight)
            return self.k.emit(arith.MulfOp(self.k.splat(a.weight, lanes), b.weight))

        return [_Term(a.position + b.position, weight(a, b), b.offsets) for a, b in product(terms, others)]

    def along(self, size: int, at: IndexLike, to: IndexLike, terms: Sequence[_Term]) -> None:
        """The outputs along a dimension that is not resized and contiguous in both buffers."""
        k, lanes = self.k, self.lanes
        terms = [replace(t, weight=None if t.weight is None else k.splat(t.weight, lanes)) for t in terms]

        def block(i: IndexLike, valid: int) -> None:
            self.store(self.sum(at + i, terms, valid), to + i, valid, 1)

        self.blocks(size, block)

    def blocks(self, size: int, block: Callable[[IndexLike, int], None]) -> None:
        """Vectors of outputs; the last one may have fewer valid lanes."""
        whole = size - size % self.lanes
        self.k.for_(0, whole, self.lanes, lambda i: block(i, self.lanes))
        if whole < size:
            block(whole, size - whole)

    def gathered(self, taps: Taps, at: IndexLike, to: IndexLike, terms: Sequence[_Term], out: int) -> None:
        """The outputs along a resized dimension, whose taps differ from lane to lane."""
        lanes = self.lanes

        def block(o: IndexLike, valid: int) -> None:
            here = [self._tap(taps, t, o, lanes, valid) for t in range(taps.count)]
            self.store(self.sum(at, self._product(terms, here), valid), to + o * out, valid, out)

        self.blocks(len(taps.indices), block)

    def sum(self, at: IndexLike, terms: Sequence[_Term], valid: int) -> SSAValue:
        """The weighted sum of the taps for a vector of outputs."""
        k, total = self.k, None
        for term in terms:
            value = self.load(at + term.position, term.offsets, valid)
            if term.weight is None:
                total = value
            elif total is None:
                total = k.emit(arith.MulfOp(value, term.weight))
            else:
                total = k.fma(value, term.weight, total)
        assert total is not None
        return total

    def load(self, at: IndexLike, offsets: SSAValue | None, valid: int) -> SSAValue:
        k, lanes, buffer = self.k, self.lanes, self.source.buffer
        if offsets is None:
            value = k.load(self.source, at, lanes, valid=valid)
        else:
            mask, zero = k.mask(valid, lanes), k.constant(0, buffer.element_type, lanes)
            value = k.emit(vector_ops.GatherOp(self.source.flat, k.value_of(at), offsets, mask, zero))
        return k.convert(value, buffer.dtype, self.dtype)

    def store(self, value: SSAValue, to: IndexLike, valid: int, step: int) -> None:
        value = self.k.convert(value, self.dtype, self.target.buffer.dtype)
        self.k.store(value, self.target, to, valid=valid, stride=step)
