"""
Loop nests over strided buffers: which dimensions to merge, which one to vectorise, and how to load a tile.

A tile is `rows` steps along one dimension times `lanes` steps along another, the vectorised one. Where a
buffer is contiguous along the rows instead of the lanes, the tile is loaded along memory and transposed in
registers; this is what makes changes of layout fast.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, log2

from xdsl.dialects import vector
from xdsl.dialects.builtin import DenseArrayBase, VectorType, i64
from xdsl.ir import SSAValue

from occamy_xdsl.lowering.cpu.kernels.builder import IndexLike, KernelBuilder, View, element_type
from occamy_xdsl.lowering.cpu.kernels.vector_ops import lanes_of

Compute = Callable[[Sequence[SSAValue]], SSAValue]
"""From the elements of the inputs, scalars or vectors of equal length, to the element of the output."""

CHEAP_STRIDES = (-1, 2, 3, 4)
"""Elements between lanes for which shuffles of contiguous loads beat a gather."""
MAX_GROUP = 8
"""Longest dimension that tiles hold whole, next to a vector of another one."""
TILE_LANES = (16, 8, 4)
"""Lanes of a vector in a tile that is transposed in registers, which takes as many registers."""
MAX_UNROLLED_OPS = 256
"""Most scalar ops that the copies of the loop body in one tile may have together."""


@dataclass(frozen=True)
class Access:
    """The element of a view that each point of a loop nest meets: `base + sum(point * strides)`."""

    view: View
    strides: tuple[int, ...]
    """Elements between neighbours of each loop, of any sign."""
    base: IndexLike = 0

    @staticmethod
    def of(view: View) -> "Access":
        """All elements of a view, in its own dimensions."""
        return Access(view, view.buffer.strides, view.buffer.origin)

    def moved(self, distance: IndexLike) -> "Access":
        """The same, further along in memory by `distance` elements."""
        return replace(self, base=self.base + distance)


@dataclass(frozen=True)
class Dim:
    """One loop: its trips, and the stride in elements of each access along it."""

    size: int
    strides: tuple[int, ...]


def collapse(shape: Sequence[int], strides: Sequence[Sequence[int]], key: int = -1) -> list[Dim]:
    """
    The fewest loops that visit the same points, outermost first.

    `strides` has one sequence for each access. Dimensions are ordered by the strides of access number `key`,
    largest first; those of one element disappear; neighbours merge where all accesses allow it.
    """
    dims = [Dim(size, tuple(steps)) for size, *steps in zip(shape, *strides, strict=True) if size != 1]
    dims.sort(key=lambda dim: -abs(dim.strides[key]))
    merged: list[Dim] = []
    for dim in dims:
        if merged and all(
            outer == inner * dim.size for outer, inner in zip(merged[-1].strides, dim.strides, strict=True)
        ):
            merged[-1] = Dim(merged[-1].size * dim.size, dim.strides)
        else:
            merged.append(dim)
    return merged


# --- registers --------------------------------------------------------------------------------------------


def shuffle(k: KernelBuilder, a: SSAValue, b: SSAValue, lanes: Sequence[int]) -> SSAValue:
    """The vector of the given lanes of `a` followed by `b`; -1 where it does not matter."""
    mask = DenseArrayBase.from_list(i64, list(lanes))
    return k.emit(vector.ShuffleOp(a, b, mask, result_type=VectorType(element_type(a), [len(lanes)])))


def select_lanes(k: KernelBuilder, sources: Sequence[SSAValue], lanes: Sequence[tuple[int, int]]) -> SSAValue:
    """The vector of the given (source, lane) pairs; all sources have as many lanes as the result."""
    n = len(lanes)
    first, *others = sorted({source for source, _ in lanes})
    result = shuffle(k, sources[first], sources[first], [lane if s == first else -1 for s, lane in lanes])
    for other in others:
        mask = [n + lane if s == other else i if s < other else -1 for i, (s, lane) in enumerate(lanes)]
        result = shuffle(k, result, sources[other], mask)
    return result


def transpose_square(k: KernelBuilder, rows: Sequence[SSAValue]) -> list[SSAValue]:
    """
    Transposes n vectors of n lanes, n a power of two, by log2(n) rounds of exchanging ever smaller blocks.

    Source: J. O. Eklundh, A fast computer method for matrix transposing, 1972.
    """
    n, values = len(rows), list(rows)
    half = n // 2
    while half:
        for i in range(n):
            if i & half:
                continue
            a, b = values[i], values[i + half]
            low = [n + lane - half if lane & half else lane for lane in range(n)]
            high = [n + lane if lane & half else lane + half for lane in range(n)]
            values[i], values[i + half] = shuffle(k, a, b, low), shuffle(k, a, b, high)
        half //= 2
    return values


def deinterleave(k: KernelBuilder, values: Sequence[SSAValue]) -> list[SSAValue]:
    """From vectors that hold elements (lane, row) in memory order to one vector for each row."""
    rows, n = len(values), lanes_of(values[0])
    assert n is not None
    places = [[divmod(lane * rows + row, n) for lane in range(n)] for row in range(rows)]
    return [select_lanes(k, values, place) for place in places]


def interleave(k: KernelBuilder, values: Sequence[SSAValue]) -> list[SSAValue]:
    """The inverse of `deinterleave`."""
    rows, n = len(values), lanes_of(values[0])
    assert n is not None
    places = [[divmod(v * n + i, rows) for i in range(n)] for v in range(rows)]
    return [select_lanes(k, values, [(row, lane) for lane, row in place]) for place in places]


def load_lanes(
    k: KernelBuilder, view: View, at: IndexLike, lanes: int | None, valid: int, stride: int
) -> SSAValue:
    """
    `k.load`, but elements a few apart, or in reverse, by contiguous loads and shuffles.

    Only memory between the first and the last valid element is read; lanes that are not valid hold anything.
    """
    if lanes is None or stride not in CHEAP_STRIDES or view.buffer.dtype == "i1":
        return k.load(view, at, lanes, valid=valid, stride=stride)
    step, last = abs(stride), abs(stride) * (valid - 1)
    start = at if stride > 0 else at - last
    vectors = [
        k.load(view, start + first, lanes, valid=min(lanes, last + 1 - first))
        for first in range(0, last + 1, lanes)
    ]
    elements = [min(lane, valid - 1) * step for lane in range(lanes)]
    places = (divmod(e if stride > 0 else last - e, lanes) for e in elements)
    return select_lanes(k, vectors, list(places))


# --- tiles ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tile:
    """How much of which dimensions one evaluation of the loop body takes."""

    lane_dim: int | None = None
    """The vectorised dimension; None for scalar code."""
    lanes: int = 1
    row_dim: int | None = None
    """The dimension of the rows, if there is more than one."""
    rows: int = 1

    def layout(self, dims: Sequence[Dim], access: int) -> str:
        """How the elements of an access lie in memory: what kind of loads or stores a tile needs."""
        if self.lane_dim is None:
            return "scalar"
        along_lanes = dims[self.lane_dim].strides[access]
        if along_lanes in (0, 1):
            return "splat" if along_lanes == 0 else "contiguous"
        if self.row_dim is not None and dims[self.row_dim].strides[access] == 1:
            if along_lanes == self.rows == dims[self.row_dim].size:
                return "grouped"
            if self.rows == self.lanes:
                return "transposed"
        return "gathered"

    def cost(self, dims: Sequence[Dim], ops: int) -> float:
        """Estimated instructions for each element; the last access is the output."""
        accesses = len(dims[0].strides)
        if self.lane_dim is None:
            return accesses + ops
        size = dims[self.lane_dim].size
        partial = size % self.lanes / size  # of the lanes, in a vector that is not full
        single = replace(self, row_dim=None, rows=1)
        rest = 0.0 if self.row_dim is None else dims[self.row_dim].size % self.rows / dims[self.row_dim].size
        total = float(ops)
        for access in range(accesses):
            spaced = access < accesses - 1 and dims[self.lane_dim].strides[access] in CHEAP_STRIDES
            costs = {
                "splat": 0.25,
                "contiguous": 1.0,
                "grouped": 1.0 + 0.5 * self.rows,
                "transposed": 1.0 + log2(self.lanes),
                "gathered": 4.0 if spaced else 1.5 * self.lanes,
            }
            whole = costs[self.layout(dims, access)]
            alone = costs[single.layout(dims, access)]
            total += (1 - rest) * ((1 - partial) * whole + partial * alone) + rest * alone
        return total * ceil(size / self.lanes) / size


def choose_tile(dims: Sequence[Dim], lanes: int, ops: int) -> Tile:
    """The cheapest tile for a loop body of `ops` scalar ops, with vectors of up to `lanes` lanes."""
    candidates = [Tile()]
    for lane_dim in reversed(range(len(dims))):
        candidates.append(Tile(lane_dim, lanes))
        for row_dim, dim in enumerate(dims):
            if row_dim == lane_dim:
                continue
            if dim.size <= MAX_GROUP:
                candidates.append(Tile(lane_dim, lanes, row_dim, dim.size))
            candidates += [
                Tile(lane_dim, square, row_dim, square)
                for square in TILE_LANES
                if square <= min(lanes, dim.size) and square * ops <= MAX_UNROLLED_OPS
            ]
    return min(candidates, key=lambda tile: tile.cost(dims, ops))


def _load(
    k: KernelBuilder,
    access: Access,
    at: IndexLike,
    layout: str,
    tile: Tile,
    steps: tuple[int, int],
    valid: int,
) -> list[SSAValue]:
    """One value for each row of a tile that starts at element `at`; steps are those along (rows, lanes)."""
    row_step, lane_step = steps
    match layout:
        case "scalar":
            return [k.load(access.view, at)]
        case "grouped":
            return deinterleave(
                k, [k.load(access.view, at + i * tile.lanes, tile.lanes) for i in range(tile.rows)]
            )
        case "transposed":
            columns = [k.load(access.view, at + i * lane_step, tile.rows) for i in range(tile.lanes)]
            return transpose_square(k, columns)
        case _:
            rows = 1 if row_step == 0 else tile.rows
            values = [
                load_lanes(k, access.view, at + i * row_step, tile.lanes, valid, lane_step)
                for i in range(rows)
            ]
            return values * (tile.rows // rows)


def _store(
    k: KernelBuilder,
    values: Sequence[SSAValue],
    access: Access,
    at: IndexLike,
    layout: str,
    tile: Tile,
    steps: tuple[int, int],
    valid: int,
) -> None:
    row_step, lane_step = steps
    match layout:
        case "scalar":
            k.store(values[0], access.view, at)
        case "grouped":
            for i, value in enumerate(interleave(k, values)):
                k.store(value, access.view, at + i * tile.lanes)
        case "transposed":
            for i, value in enumerate(transpose_square(k, values)):
                k.store(value, access.view, at + i * lane_step)
        case _:
            for i, value in enumerate(values):
                k.store(value, access.view, at + i * row_step, valid=valid, stride=lane_step)


def map_elements(
    k: KernelBuilder,
    shape: Sequence[int],
    inputs: Sequence[Access],
    output: Access,
    compute: Compute,
    *,
    ops: int = 0,
    element_bytes: int | None = None,
    rows: IndexLike | None = None,
) -> None:
    """
    `output[point] = compute(inputs[point])` for each point of `shape`, or for each of as many `rows` of that shape,
    which follow each other along the second to last dimension.

    All loads of a tile come before its stores, and no element is visited twice, so the output may share the
    memory of an input with equal strides. `ops` is the number of scalar ops of `compute`, `element_bytes`
    the size of the widest type in it (by default that of the output).
    """
    if 0 in shape:
        return
    if rows is not None:

        def row(i: IndexLike) -> None:
            *sources, target = (a.moved(i * a.strides[-2]) for a in (*inputs, output))
            map_elements(k, shape, sources, target, compute, ops=ops, element_bytes=element_bytes)

        k.for_(0, rows, 1, row)
        return
    # Backward loops over the output turn round.
    for axis, stride in enumerate(output.strides):
        if stride < 0:
            *inputs, output = [
                replace(
                    a,
                    base=a.base + (shape[axis] - 1) * a.strides[axis],
                    strides=(*a.strides[:axis], -a.strides[axis], *a.strides[axis + 1 :]),
                )
                for a in (*inputs, output)
            ]
    accesses = [*inputs, output]
    dims = collapse(shape, [a.strides for a in accesses])
    if not dims:
        k.store(compute([k.load(a.view, a.base) for a in inputs]), output.view, output.base)
        return
    widest = element_bytes or output.view.buffer.element_bytes
    tile = choose_tile(dims, k.isa.lanes(widest), ops)
    order = [d for d in range(len(dims)) if d not in (tile.row_dim, tile.lane_dim)]
    order += [d for d in (tile.row_dim, tile.lane_dim) if d is not None]
    _MapNest(k, accesses, dims, compute).loop(order, tile, [a.base for a in accesses], {})


@dataclass
class _MapNest:
    """The loops of `map_elements`; the last access is the output."""

    k: KernelBuilder
    accesses: Sequence[Access]
    dims: Sequence[Dim]
    compute: Compute

    def loop(
        self, order: Sequence[int], tile: Tile, at: Sequence[IndexLike], loaded: dict[int, list[SSAValue]]
    ) -> None:
        """Loops over the dimensions in `order`; `loaded` holds the rows of inputs that need no load inside."""
        if not order:
            self.evaluate(tile, at, loaded, tile.lanes)
            return
        d, *inner = order
        size, strides = self.dims[d].size, self.dims[d].strides

        def advance(i: IndexLike) -> list[IndexLike]:
            return [position + i * stride for position, stride in zip(at, strides, strict=True)]

        if d == tile.row_dim:
            whole = size - size % tile.rows
            self.k.for_(0, whole, tile.rows, lambda i: self.loop(inner, tile, advance(i), loaded))
            single = replace(tile, row_dim=None, rows=1)
            self.k.for_(whole, size, 1, lambda i: self.loop(inner, single, advance(i), loaded))
        elif d == tile.lane_dim:
            loaded = loaded | {
                i: self.load(i, tile, at, tile.lanes)
                for i in range(len(at) - 1)
                if tile.layout(self.dims, i) == "splat"
            }
            whole = size - size % tile.lanes
            self.k.for_(0, whole, tile.lanes, lambda i: self.loop(inner, tile, advance(i), loaded))
            if whole < size:
                self.evaluate(tile, advance(whole), loaded, size - whole)
        else:
            self.k.for_(0, size, 1, lambda i: self.loop(inner, tile, advance(i), loaded))

    def layout(self, access: int, tile: Tile, valid: int) -> str:
        layout = tile.layout(self.dims, access)
        return "gathered" if layout in ("grouped", "transposed") and valid < tile.lanes else layout

    def steps(self, access: int, tile: Tile) -> tuple[int, int]:
        rows, lanes = (
            0 if d is None else self.dims[d].strides[access] for d in (tile.row_dim, tile.lane_dim)
        )
        return rows, lanes

    def load(self, access: int, tile: Tile, at: Sequence[IndexLike], valid: int) -> list[SSAValue]:
        layout, steps = self.layout(access, tile, valid), self.steps(access, tile)
        return _load(self.k, self.accesses[access], at[access], layout, tile, steps, valid)

    def evaluate(
        self, tile: Tile, at: Sequence[IndexLike], loaded: dict[int, list[SSAValue]], valid: int
    ) -> None:
        output = len(at) - 1
        rows = [loaded[i] if i in loaded else self.load(i, tile, at, valid) for i in range(output)]
        lanes = None if tile.lane_dim is None else tile.lanes
        values = [self.k.splat(self.compute([row[r] for row in rows]), lanes) for r in range(tile.rows)]
        layout, steps = self.layout(output, tile, valid), self.steps(output, tile)
        _store(self.k, values, self.accesses[output], at[output], layout, tile, steps, valid)
