"""`verify-dnn-pool`: proves from the IR alone that a pool plan loses no value."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from occamy_xdsl.dialects import dnn


@dataclass(frozen=True)
class VerifyDnnPoolPass(ModulePass):
    """
    Checks every function in pool form; changes nothing.

    - No `dnn.malloc` is left, and there is at most one pool.
    - Every buffer lies inside the pool, at the pool's alignment.
    - No op writes a byte of another buffer that it uses itself, or that is still to be read: one from which some
      path of control flow, branches and back edges of loops included, leads to an op that reads it or a view of
      it, without an op in between that writes all of it. Before its first use nothing is in a buffer.

    The check shares no code with the planners or with the liveness analysis that feeds them: it follows edges of
    a control-flow graph until nothing changes, with a set of buffers as the bits of a number at each op.

    Requires: buffer form after `dnn-convert-to-pool`.
    Ensures: what is listed above. Raises PassFailedException, naming both buffers, where it does not hold.

    Refuses, since `%a` is still read when `%b` is written over it:

    ```mlir
    %pool = dnn.mempool_init align 64 : memref<64xi8>
    %a = dnn.mem_offset %pool[0, 64] : memref<64xi8> -> memref<16xf32>
    %b = dnn.mem_offset %pool[0, 64] : memref<64xi8> -> memref<16xf32>
    dnn.copy input(%x : memref<16xf32>) outs(%a : memref<16xf32>)
    dnn.copy input(%a : memref<16xf32>) outs(%b : memref<16xf32>)
    ```
    """

    name = "verify-dnn-pool"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in dnn.functions_in("buffer", op, self.name):
            verify(function)


class _Placed:
    """One buffer, its bytes in the pool, and the ops that use it, by their number in the function."""

    def __init__(self, op: dnn.MemOffsetOp):
        self.op = op
        self.begin = op.offset.value.data
        self.end = self.begin + op.size.value.data
        self.used = list[int]()

    def describe(self) -> str:
        name = self.op.view.name_hint or "a buffer"
        first, last = self.used[0], self.used[-1]
        return f"%{name} at bytes [{self.begin}, {self.end}), live at ops {first} to {last}"


def verify(function: FuncOp) -> None:
    pools = [op for op in function.walk() if isinstance(op, dnn.MempoolInitOp)]
    if len(pools) > 1:
        raise PassFailedException(f"'dnn.mempool_init' op must be the only one, got {len(pools)}")
    placed = list[_Placed]()
    for op in function.walk():
        if isinstance(op, dnn.MallocOp):
            raise PassFailedException(f"'dnn.malloc' op is left outside the pool: {op.buffer.type}")
        if isinstance(op, dnn.MemOffsetOp):
            alignment, begin = pools[0].alignment.value.data, op.offset.value.data
            if begin % alignment:
                raise PassFailedException(
                    f"'dnn.mem_offset' op offset {begin} is not a multiple of the pool's {alignment} bytes"
                )
            op.verify()
            placed.append(_Placed(op))
    _Graph(function, placed).check()


@dataclass
class _Step:
    """One op: the buffers that it reads and writes, as bits, and the ops that may follow it."""

    index: int
    read: int = 0
    written: int = 0
    whole: int = 0
    """Those that it writes whole, without reading them."""
    defined: int = 0
    """The buffer that it defines, in which there is nothing yet."""
    next: list[int] = field(default_factory=list[int])
    after: int = 0
    """The buffers that are still to be read after the op."""
    filled: int = 0
    """The buffers that ops up to this one have used since they were defined, on some path."""


class _Graph:
    """The control-flow graph of a function."""

    def __init__(self, function: FuncOp, placed: list[_Placed]):
        self.placed = placed
        self.bit: dict[SSAValue, int] = {p.op.view: i for i, p in enumerate(placed)}
        self.steps = list[_Step]()
        self.number: dict[Operation, int] = {op: index for index, op in enumerate(function.walk())}
        self.add(function.body.block, [])

    def add(self, block: Block, before: list[_Step]) -> list[_Step]:
        """Adds the ops of a block after the steps `before`; returns the steps with which it ends."""
        for op in block.ops:
            step = self.step(op)
            for previous in before:
                previous.next.append(len(self.steps))
            self.steps.append(step)
            before = [step]
            match op:
                case dnn.IfOp():
                    before = [end for inner in op.blocks for end in self.add(inner, [step])]
                case dnn.LoopOp():
                    at = len(self.steps) - 1
                    for end in self.add(op.body.block, [step]):
                        end.next.append(at)
                case _:
                    pass
        return before

    def step(self, op: Operation) -> _Step:
        step = _Step(self.number[op])
        match op:
            case dnn.MemOffsetOp():
                step.defined = 1 << self.bit[op.view]
            case dnn.ViewOp() | dnn.DeallocOp():
                pass
            case dnn.ControlOp():
                step.read = self.bits(op.operands[:1], step.index)
            case dnn.KernelOp():
                outs = (*op.outs, *op.group("workspace"))
                step.read, step.written = self.bits(op.inputs, step.index), self.bits(outs, step.index)
                step.whole = self.bits([v for v in outs if v in self.bit], step.index) & ~step.read
            case dnn.MemcpyOp():
                step.read = self.bits([op.source], step.index)
                step.written = self.bits([op.destination], step.index)
            case _:
                step.read = self.bits(op.operands, step.index)
        return step

    def bits(self, values: Iterable[SSAValue], index: int) -> int:
        """The buffers in the pool that values show, each noted as used by op number `index`."""
        found = 0
        for value in values:
            while isinstance(value.owner, dnn.ViewOp):
                value = value.owner.source
            if (bit := self.bit.get(value)) is not None:
                found |= 1 << bit
                if self.placed[bit].used[-1:] != [index]:
                    self.placed[bit].used.append(index)
        return found

    def check(self) -> None:
        changed = True
        while changed:
            changed = False
            for step in reversed(self.steps):
                after = 0
                for other in (self.steps[index] for index in step.next):
                    after |= other.read | (other.after & ~other.whole & ~other.defined)
                changed |= after != step.after
                step.after = after
        changed = True
        while changed:
            changed = False
            for step in self.steps:
                step.filled |= step.read | step.written
                for index in step.next:
                    other = self.steps[index]
                    filled = other.filled | (step.filled & ~other.defined)
                    changed |= filled != other.filled
                    other.filled = filled
        overlapping = self.overlapping()
        for step in self.steps:
            if not step.written:
                continue
            kept = step.read | step.written | (step.after & step.filled)
            for bit in _set_bits(step.written):
                for other in _set_bits(kept & overlapping[bit]):
                    first, second = sorted((bit, other), key=lambda b: (self.placed[b].used[0], b))
                    raise PassFailedException(
                        f"'dnn.mem_offset' ops overlap: {self.placed[first].describe()}; "
                        f"{self.placed[second].describe()}"
                    )

    def overlapping(self) -> list[int]:
        """For each buffer those that share a byte with it."""
        found = [0] * len(self.placed)
        live = list[int]()
        for bit in sorted(range(len(self.placed)), key=lambda b: self.placed[b].begin):
            own = self.placed[bit]
            if own.begin == own.end:
                continue
            live = [other for other in live if self.placed[other].end > own.begin]
            for other in live:
                found[bit] |= 1 << other
                found[other] |= 1 << bit
            live.append(bit)
        return found


def _set_bits(bits: int) -> Iterator[int]:
    """The numbers of the bits that are set, lowest first."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
