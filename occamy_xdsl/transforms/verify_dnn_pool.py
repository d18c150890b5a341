"""`verify-dnn-pool`: proves from the IR alone that a pool plan loses no value."""

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from occamy_xdsl.dialects import dnn


@dataclass(frozen=True)
class VerifyDnnPoolPass(ModulePass):
    """
    Checks every function in pool form; changes nothing.

    - No `dnn.malloc` is left, and there is at most one pool.
    - Every buffer lies inside the pool, at the pool's alignment.
    - A byte is never used by two buffers whose lives overlap. A buffer lives from the first op that uses it,
      or a view of it, to the last one, both included.

    The check shares no code with the planners or with the liveness analysis that feeds them.

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


@dataclass
class _Placed:
    op: dnn.MemOffsetOp
    begin: int
    end: int
    first: int | None = None
    last: int | None = None

    def describe(self) -> str:
        name = self.op.view.name_hint or "a buffer"
        return f"%{name} at bytes [{self.begin}, {self.end}), live at ops {self.first} to {self.last}"


def verify(function: FuncOp) -> None:
    pools = [op for op in function.walk() if isinstance(op, dnn.MempoolInitOp)]
    if len(pools) > 1:
        raise PassFailedException(f"'dnn.mempool_init' op must be the only one, got {len(pools)}")
    placed: dict[SSAValue, _Placed] = {}
    for index, op in enumerate(function.walk()):
        if isinstance(op, dnn.MallocOp):
            raise PassFailedException(f"'dnn.malloc' op is left outside the pool: {op.buffer.type}")
        if isinstance(op, dnn.MemOffsetOp):
            alignment = pools[0].alignment.value.data
            begin, size = op.offset.value.data, op.size.value.data
            if begin % alignment:
                raise PassFailedException(
                    f"'dnn.mem_offset' op offset {begin} is not a multiple of the pool's {alignment} bytes"
                )
            op.verify()
            placed[op.view] = _Placed(op, begin, begin + size)
            continue
        if isinstance(op, dnn.ViewOp | dnn.DeallocOp):
            continue
        for operand in op.operands:
            source = operand
            while isinstance(source.owner, dnn.ViewOp):
                source = source.owner.source
            if (buffer := placed.get(source)) is not None:
                buffer.first = index if buffer.first is None else buffer.first
                buffer.last = index
    _sweep([p for p in placed.values() if p.first is not None and p.end > p.begin])


def _sweep(buffers: list[_Placed]) -> None:
    """Walks over time; compares each buffer with those live when it is born."""
    live = list[_Placed]()
    for buffer in sorted(buffers, key=lambda b: (b.first or 0, b.begin)):
        live = [other for other in live if (other.last or 0) >= (buffer.first or 0)]
        for other in live:
            if buffer.begin < other.end and other.begin < buffer.end:
                raise PassFailedException(
                    f"'dnn.mem_offset' ops overlap: {other.describe()}; {buffer.describe()}"
                )
        live.append(buffer)
