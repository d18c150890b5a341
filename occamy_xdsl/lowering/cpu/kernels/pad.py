"""Padding: one strided copy for each run of the input that comes out in order, in reverse or repeated."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from xdsl.dialects.func import FuncOp

from occamy_xdsl.lowering.cpu.kernels.builder import KernelBuilder
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer, Kernel
from occamy_xdsl.lowering.cpu.kernels.strided import Access, map_elements
from occamy_xdsl.lowering.toolchain import Isa


@dataclass(frozen=True)
class Run:
    """`size` outputs from `start` on along one dimension, from inputs `source`, `source + step`, ..."""

    start: int
    size: int
    source: int = 0
    step: int = 0
    inside: bool = True
    """Whether they come from the input; if not, they are the constant."""


def source_index(position: int, size: int, mode: str) -> int:
    """The input element for an output `position` relative to the input's first one, which may be outside."""
    match mode:
        case "edge":
            return min(max(position, 0), size - 1)
        case "reflect":
            if size == 1:
                return 0
            position %= 2 * size - 2
            return min(position, 2 * size - 2 - position)
        case "wrap":
            return position % size
        case _:
            raise ValueError(f"unknown mode of padding '{mode}'")


def padding_runs(size: int, low: int, high: int, mode: str) -> Iterator[Run]:
    """The outputs of one dimension, in as few runs as possible."""
    if mode == "constant":
        yield from (Run(0, low, inside=False), Run(low, size, 0, 1), Run(low + size, high, inside=False))
        return
    sources = [source_index(o - low, size, mode) for o in range(low + size + high)]
    start = 0
    while start < len(sources):
        stop = start + 1
        step = sources[stop] - sources[start] if stop < len(sources) else 0
        while stop < len(sources) and sources[stop] - sources[stop - 1] == step:
            stop += 1
        yield Run(start, stop - start, sources[start], step)
        start = stop


@dataclass(frozen=True)
class Pad(Kernel):
    """
    The input with `low` elements before and `high` after it along each dimension, as `dnn.pad` defines it.

    `mode` is constant, edge, reflect or wrap; `value` is the constant.
    """

    low: tuple[int, ...]
    high: tuple[int, ...]
    mode: str
    value: float
    input: Buffer
    output: Buffer

    @property
    def label(self) -> str:
        return f"pad_{self.mode}_" + "x".join(map(str, self.output.shape))

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        # Truth values are bytes of 0 and 1.
        return tuple(replace(b, dtype="ui8") if b.dtype == "i1" else b for b in (self.input, self.output))

    def build(self, isa: Isa) -> FuncOp:
        k = KernelBuilder(self, isa)
        source, target = (Access.of(view) for view in k.views)
        constant = k.constant(self.value, target.view.buffer.element_type)
        sizes = zip(self.input.shape, self.low, self.high, strict=True)
        runs = [list(padding_runs(size, low, high, self.mode)) for size, low, high in sizes]
        for part in self._parts(runs):
            shape = [run.size for run in part]
            start = sum(run.start * stride for run, stride in zip(part, target.strides, strict=True))
            destination = target.moved(start)
            steps = tuple(run.step * stride for run, stride in zip(part, source.strides, strict=True))
            first = sum(run.source * stride for run, stride in zip(part, source.strides, strict=True))
            if all(run.inside for run in part):
                origin = replace(source.moved(first), strides=steps)
                map_elements(k, shape, [origin], destination, lambda elements: elements[0])
            else:
                map_elements(k, shape, [], destination, lambda _: constant)
        return k.finish()

    def _parts(self, runs: Sequence[Sequence[Run]]) -> Iterator[Sequence[Run]]:
        """Boxes that cover the output; constants take the full extent of the dimensions after theirs."""
        if self.mode != "constant":
            yield from product(*runs)
            return
        inside = [row[1] for row in runs]
        full = [Run(0, sum(run.size for run in row)) for row in runs]
        for d, (before, _, after) in enumerate(runs):
            yield from ((*inside[:d], run, *full[d + 1 :]) for run in (before, after))
        yield inside
