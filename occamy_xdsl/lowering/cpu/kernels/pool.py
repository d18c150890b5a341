"""Pooling over sliding windows, without padding or scratch: the bounds of loops leave the padding out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from xdsl.dialects import arith
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, VectorType, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from occamy_xdsl.lowering.cpu.kernels import vector_ops
from occamy_xdsl.lowering.cpu.kernels.builder import IndexLike, KernelBuilder
from occamy_xdsl.lowering.cpu.kernels.conv import Window
from occamy_xdsl.lowering.cpu.kernels.reduction import combine, compute_dtype, is_float, neutral
from occamy_xdsl.lowering.cpu.kernels.rows import row_of, shape_label
from occamy_xdsl.lowering.cpu.kernels.spec import STORAGE_TYPES, Buffer, Epilogue, Kernel
from occamy_xdsl.lowering.cpu.kernels.strided import load_lanes, shuffle
from occamy_xdsl.lowering.toolchain import Isa

MAX_VECTORS = 4
"""Vectors of channels that are pooled together, to share the loops over the window."""
MAX_EDGE_TAPS = 16
"""Widest kernel of which the code for windows that reach over an end is unrolled."""


@dataclass(frozen=True)
class Pool(Kernel):
    """
    Maximum or average over windows of an (N, C, spatial...) input, as `dnn.pool` defines them.

    Vectors run over channels where these are neighbours in memory, else over the last spatial dimension.
    Averages of 16-bit floats are summed in f32. Arguments: input, extras of the epilogue, output, and the
    i64 `indices` of maxima, if wanted.
    """

    kind: Literal["max", "average"]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    """Padding before each spatial dimension, then after each."""
    count_include_pad: bool
    input: Buffer
    output: Buffer
    indices: Buffer | None = None
    epilogue: Epilogue | None = None
    any_rows: Literal["inside", "clipped"] | None = None
    """
    Whether the output's and the input's rows and the padding before them are sizes that the function takes: for windows
    that lie inside of the input's rows, or for any.

    All buffers then show one row, and `pads` has 0 for rows.
    """

    @property
    def label(self) -> str:
        window = "x".join(map(str, self.kernel))
        return f"pool_{self.kind}_{window}_{shape_label(self.input.shape, 2 if self.any_rows else None)}"

    def for_any_rows(self, isa: Isa) -> "tuple[Pool, tuple[int, ...]] | None":
        """For one image and no positions of maxima, with an average over as many elements in each row of windows."""
        if len(self.kernel) < 2 or self.output.shape[0] != 1 or self.indices is not None:
            return None
        rows, padded = self.windows[0], self.padded_windows[0]
        is_inside = len(rows.interior) == rows.output
        if self.count_include_pad and len(padded.interior) < padded.output:
            return None
        if (self.kernel[0] == 1 and not is_inside) or any(buffer.origin for buffer in self.arguments):
            return None
        rank = len(self.kernel)
        after = self.epilogue and tuple(row_of(extra, 2) for extra in self.epilogue.extras)
        kernel = replace(
            self,
            pads=(0, *self.pads[1:rank], 0, *self.pads[rank + 1 :]),
            input=row_of(self.input, 2),
            output=row_of(self.output, 2),
            epilogue=self.epilogue and replace(self.epilogue, extras=after),
            any_rows="inside" if is_inside else "clipped",
        )
        return kernel, (rows.output, rows.input, rows.pad)

    @property
    def run_time_sizes(self) -> int:
        return 3 if self.any_rows else 0

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        extras = self.epilogue.extras if self.epilogue else ()
        indices = () if self.indices is None else (self.indices,)
        return self.input, *extras, self.output, *indices

    @property
    def may_alias(self) -> tuple[int, ...]:
        extras = self.epilogue.extras if self.epilogue else ()
        return tuple(i for i, b in enumerate(extras, 1) if b.strides == self.output.strides)

    @property
    def dtype(self) -> str:
        """The dtype of partial results."""
        return compute_dtype(self.input.dtype)

    @property
    def windows(self) -> list[Window]:
        """The spatial dimensions; the strides of results are those of the arguments after the input."""
        return [
            Window(
                output=self.output.shape[2 + d],
                input=self.input.shape[2 + d],
                kernel=self.kernel[d],
                stride=self.strides[d],
                dilation=self.dilations[d],
                pad=self.pads[d],
                input_strides=(self.input.strides[2 + d],),
                result_strides=tuple(b.strides[2 + d] for b in self.arguments[1:]),
                is_sized=bool(self.any_rows) and d == 0,
            )
            for d in range(len(self.kernel))
        ]

    @property
    def padded_windows(self) -> list[Window]:
        """The same with the padding as part of the input, from which only an overhang is left out."""
        return [
            Window(w.output, w.input + w.pad + end, w.kernel, w.stride, w.dilation, 0, (0,), ())
            for w, end in zip(self.windows, self.pads[len(self.kernel) :], strict=True)
        ]

    def build(self, isa: Isa) -> FuncOp:
        k = KernelBuilder(self, isa)
        if self.output.elements:
            _PoolNest(self, k).build()
        return k.finish()


@dataclass(frozen=True)
class _Place:
    """Where the loops have got to: one result, or the first of a vector of them."""

    input: IndexLike
    """Element of the input at the start of the window, which may lie before the input."""
    results: tuple[IndexLike, ...]
    """Element of each argument after the input."""
    bounds: tuple[tuple[IndexLike, IndexLike], ...] = ()
    """First and one past the last position of the window, in each spatial dimension so far."""
    padded: tuple[tuple[IndexLike, IndexLike], ...] = ()
    """The same for the window over the padded input."""
    position: IndexLike = 0
    """Row-major position of the start of the window in the spatial dimensions."""

    def moved(self, distance: IndexLike, results: Sequence[int], steps: IndexLike) -> "_Place":
        moved = tuple(at + steps * stride for at, stride in zip(self.results, results, strict=True))
        return _Place(self.input + distance, moved, self.bounds, self.padded, self.position)


class _PoolNest:
    def __init__(self, pool: Pool, k: KernelBuilder):
        self.pool, self.k = pool, k
        self.windows, self.padded = pool.windows, pool.padded_windows
        shape = pool.input.shape
        self.weights = [prod(shape[d + 1 :]) for d in range(2, len(shape))]
        self.over_channels = pool.input.strides[1] == 1 or not self.windows or pool.input.strides[-1] != 1
        widest = max(b.element_bytes for b in pool.arguments)
        self.lanes = k.isa.lanes(max(widest, STORAGE_TYPES[pool.dtype].size))
        self.vector_edges = pool.indices is None and all(w.kernel <= MAX_EDGE_TAPS for w in self.windows[-1:])
        self.images = tuple(b.strides[0] for b in pool.arguments)
        self.channels = tuple(b.strides[1] for b in pool.arguments)

    def build(self) -> None:
        n, c = self.pool.input.shape[:2]
        start = _Place(self.pool.input.origin, tuple(b.origin for b in self.pool.arguments[1:]))

        def image(i: IndexLike) -> None:
            at = start.moved(i * self.images[0], self.images[1:], i)
            if self.over_channels:
                self.spatial(0, at, i * c)
            else:
                self.k.for_(0, c, 1, lambda j: self.spatial(0, self._channel(at, j), i * c + j))

        self.k.for_(0, n, 1, image)

    def _channel(self, at: _Place, j: IndexLike) -> _Place:
        return at.moved(j * self.channels[0], self.channels[1:], j)

    def spatial(self, d: int, at: _Place, plane: IndexLike) -> None:
        """The results from spatial dimension `d` on; `plane` counts the (image, channel) planes before them."""
        if d == len(self.windows):
            self.over_channel_vectors(at, plane)
            return
        window, output, pad = self.windows[d], self.windows[d].output, self.windows[d].pad
        sizes = (self.k.sizes[0], self.k.sizes[1], self.k.sizes[2]) if window.is_sized else None
        if sizes is not None:
            output, _, pad = sizes

        def one(
            o: IndexLike, interior: bool, lanes: int | None = None, valid: int = 1, edge: int | None = None
        ) -> None:
            whole = 0, window.kernel
            bounds = whole if interior else window.kernel_range(self.k, o, sizes)
            moved = at.moved(o * window.steps[0] - pad * window.input_strides[0], window.result_strides, o)
            here = _Place(
                moved.input,
                moved.results,
                (*at.bounds, bounds),
                (*at.padded, whole if window.is_sized else self.padded[d].kernel_range(self.k, o)),
                at.position + (o * window.stride - pad) * self.weights[d],
            )
            if self.over_channels or d < len(self.windows) - 1:
                self.spatial(d + 1, here, plane)
            else:
                self.results(
                    [here], lanes, valid, window.steps[0], window.result_strides, plane, window.stride, edge
                )

        inner = window.interior
        if d < len(self.windows) - 1:
            interior = self.pool.any_rows == "inside" if window.is_sized else len(inner) == window.output
            self.k.for_(0, output, 1, lambda o: one(o, interior))
        elif self.over_channels or not self.vector_edges:
            # Where no window lies inside, the first that would may be past the end.
            self.k.for_(0, min(inner.start, window.output), 1, lambda o: one(o, False))
            self.k.for_(inner.start, inner.stop, 1, lambda o: one(o, True))
            self.k.for_(max(inner.stop, inner.start), window.output, 1, lambda o: one(o, False))
        else:
            blocks = {o: min(self.lanes, window.output - o) for o in range(0, window.output, self.lanes)}
            inside = [o for o, valid in blocks.items() if o in inner and o + valid - 1 in inner]
            whole = [o for o in inside if blocks[o] == self.lanes]
            if whole:
                stop = whole[-1] + self.lanes
                self.k.for_(whole[0], stop, self.lanes, lambda o: one(o, True, self.lanes, self.lanes))
            for o, valid in blocks.items():
                if o not in whole:
                    one(o, True, self.lanes, valid, None if o in inside else o)

    def over_channel_vectors(self, at: _Place, plane: IndexLike) -> None:
        channels, lanes = self.pool.input.shape[1], self.lanes

        def block(c: IndexLike, vectors: int, valid: int) -> None:
            places = [self._channel(at, c + v * lanes) for v in range(vectors)]
            self.results(places, lanes, valid, self.channels[0], self.channels[1:], plane + c, None)

        wide = lanes * MAX_VECTORS
        done = channels - channels % wide
        self.k.for_(0, done, wide, lambda c: block(c, MAX_VECTORS, lanes))
        if vectors := (channels - done) // lanes:
            block(done, vectors, lanes)
            done += vectors * lanes
        if done < channels:
            block(done, 1, channels - done)

    def results(
        self,
        places: Sequence[_Place],
        lanes: int | None,
        valid: int,
        step: int,
        result_steps: Sequence[int],
        plane: IndexLike,
        position_step: int | None,
        edge: int | None = None,
    ) -> None:
        """
        The results at `places`, scalars if `lanes` is None.

        Neighbouring lanes are `step` elements apart in the input and `result_steps` in the other arguments;
        in the order of `indices` they are `position_step` apart, or one plane if that is None. `edge` is
        the position of lane 0 in the last dimension, static, where some lanes' windows reach over its ends.
        """
        k, pool, first = self.k, self.pool, places[0]
        element = STORAGE_TYPES[pool.dtype]
        kind = "max" if pool.kind == "max" else "sum"
        start = k.constant(0 if pool.kind == "average" else neutral("max", pool.dtype), element, lanes)
        carried: list[SSAValue] = [start] * len(places)
        if pool.indices is not None:
            position = first.position
            for (low, _), window, weight in zip(first.bounds, self.windows, self.weights, strict=True):
                position = position + low * (window.dilation * weight)
            carried += [self._position(position, lanes)] * len(places)

        def load(place: _Place, distance: IndexLike) -> SSAValue:
            value = load_lanes(k, k.views[0], place.input + distance, lanes, valid, step)
            return k.convert(value, pool.input.dtype, pool.dtype)

        def tap(
            d: int, distance: IndexLike, position: IndexLike, carried: Sequence[SSAValue]
        ) -> Sequence[SSAValue]:
            if d == len(self.windows):
                values = [load(place, distance) for place in places]
                if pool.indices is None:
                    return [combine(k, kind, pool.dtype, a, b) for a, b in zip(carried, values, strict=True)]
                return self._arg_max(carried, values, self._position(first.position + position, lanes))
            window, (low, high) = self.windows[d], first.bounds[d]
            if edge is not None and d == len(self.windows) - 1:
                for tap_number in range(window.kernel):
                    inside = [n for n in range(valid) if window.is_valid(edge + n, tap_number)]
                    if inside:
                        at = first.input + distance + tap_number * window.dilation * window.input_strides[0]
                        value = self._partial(at, inside, start)
                        carried = [combine(k, kind, pool.dtype, carried[0], value)]
                return carried

            def body(i: IndexLike, *carried: SSAValue) -> Sequence[SSAValue]:
                return tap(
                    d + 1,
                    distance + i * (window.dilation * window.input_strides[0]),
                    position + i * (window.dilation * self.weights[d]),
                    carried,
                )

            return k.for_(low, high, 1, body, carried)

        totals = list(tap(0, 0, 0, carried))
        divisor = self._divisor(first, lanes, edge) if pool.kind == "average" else None
        *others, output = range(len(pool.arguments) - 1 - (pool.indices is not None))
        for v, (place, total) in enumerate(zip(places, totals, strict=False)):
            value = total if divisor is None else k.emit(arith.DivfOp(total, divisor))
            value = k.convert(value, pool.dtype, pool.input.dtype)
            if pool.epilogue is not None:
                extras = [
                    k.load(k.views[1 + i], place.results[i], lanes, valid=valid, stride=result_steps[i])
                    for i in others
                ]
                (value,) = k.inline(pool.epilogue.block, [value, *extras])
            k.store(
                value, k.views[1 + output], place.results[output], valid=valid, stride=result_steps[output]
            )
            if pool.indices is not None:
                planes = plane + v * self.lanes if position_step is None else plane
                index = self._lane_positions(
                    totals[len(places) + v], lanes, planes, prod(self.pool.input.shape[2:]), position_step
                )
                k.store(index, k.views[-1], place.results[-1], valid=valid, stride=result_steps[-1])

    def _partial(self, at: IndexLike, inside: Sequence[int], neutral: SSAValue) -> SSAValue:
        """Elements for the lanes `inside`, which are neighbours, and `neutral` for the others."""
        k, pool, step = self.k, self.pool, self.windows[-1].steps[0]
        low, valid = inside[0], len(inside)
        value = load_lanes(k, k.views[0], at + low * step, self.lanes, valid, step)
        value = k.convert(value, pool.input.dtype, pool.dtype)
        lanes = [self.lanes + lane - low if lane in inside else lane for lane in range(self.lanes)]
        return shuffle(k, neutral, value, lanes)

    def _divisor(self, place: _Place, lanes: int | None, edge: int | None) -> SSAValue:
        """The number of elements that count, in the form of partial results."""
        k, dtype = self.k, self.pool.dtype
        windows, bounds = self.windows, place.bounds
        if self.pool.count_include_pad:
            windows, bounds = self.padded, place.padded
        count: IndexLike = 1
        for low, high in bounds if edge is None else bounds[:-1]:
            count = (high - low) * count
        if isinstance(count, int):
            total = k.constant(count, STORAGE_TYPES[dtype], lanes)
        else:
            number = k.emit(vector_ops.IndexCastOp(count.value, i64))
            total = k.splat(k.convert(number, "i64", dtype), lanes)
        if edge is None:
            return total
        last = windows[-1]
        counts = [sum(last.is_valid(edge + n, t) for t in range(last.kernel)) for n in range(self.lanes)]
        type_ = VectorType(i64, [self.lanes])
        factors = arith.ConstantOp(DenseIntOrFPElementsAttr.from_list(type_, [max(n, 1) for n in counts]))
        return k.emit(arith.MulfOp(total, k.convert(k.emit(factors), "i64", dtype)))

    # --- positions of maxima ---

    def _position(self, position: IndexLike, lanes: int | None) -> SSAValue:
        if isinstance(position, int):
            return self.k.constant(position, i64, lanes)
        return self.k.splat(self.k.emit(vector_ops.IndexCastOp(position.value, i64)), lanes)

    def _lane_positions(
        self, positions: SSAValue, lanes: int | None, plane: IndexLike, size: int, step: int | None
    ) -> SSAValue:
        """Positions in the whole input from those in a plane of `size` elements, relative to lane 0."""
        positions = self.k.emit(arith.AddiOp(positions, self._position(plane * size, lanes)))
        if lanes is None:
            return positions
        offsets = [lane * (size if step is None else step) for lane in range(lanes)]
        type_ = VectorType(i64, [lanes])
        constant = arith.ConstantOp(DenseIntOrFPElementsAttr.from_list(type_, offsets))
        return self.k.emit(arith.AddiOp(positions, self.k.emit(constant)))

    def _arg_max(
        self, carried: Sequence[SSAValue], values: Sequence[SSAValue], position: SSAValue
    ) -> list[SSAValue]:
        """The first NaN, or else the first maximum, and its position."""
        k, count = self.k, len(values)
        bests, positions = list(carried[:count]), list(carried[count:])
        for v, value in enumerate(values):
            if is_float(self.pool.dtype):
                greater = k.compare_values("ugt", value, bests[v])
                ordered = k.compare_values("oeq", bests[v], bests[v])
                better = k.emit(arith.AndIOp(greater, ordered))
            else:
                better = k.compare_values("ugt" if self.pool.dtype[0] == "u" else "sgt", value, bests[v])
            bests[v] = k.select(better, value, bests[v])
            positions[v] = k.select(better, position, positions[v])
        return [*bests, *positions]
