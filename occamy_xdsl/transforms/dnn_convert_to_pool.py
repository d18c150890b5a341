"""`dnn-convert-to-pool`: every allocation of a function becomes an offset into one memory pool."""

from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr, ModuleOp, StringAttr, i64
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import PassFailedException

from occamy_xdsl.analysis.liveness import LiveRange, liveness
from occamy_xdsl.analysis.regions import ops_of
from occamy_xdsl.dialects import dnn
from occamy_xdsl.planning.intervals import Body, Part
from occamy_xdsl.planning.planners import PLANNERS, plan

PLAN = "dnn.plan"
"""Function attribute: planner, pool and lower bound in bytes, as `verify-dnn-pool` checks them."""


@dataclass(frozen=True)
class DnnConvertToPoolPass(ModulePass):
    """
    Packs every `dnn.malloc` of a function, also of its control flow, into one `dnn.mempool_init`.

    Requires: buffer form with `dnn.malloc`; one block a function.
    Ensures: no `dnn.malloc` is left; buffers that are live at one position share no byte; the attribute
    `dnn.plan` on the function records planner, pool bytes and the lower bound (max-live bytes).

    Before:

    ```mlir
    %a = dnn.malloc : memref<4xf32>
    dnn.softmax input(%x : memref<4xf32>) outs(%a : memref<4xf32>) {..}
    ..
    dnn.dealloc %a : memref<4xf32>
    ```

    After:

    ```mlir
    %pool = dnn.mempool_init align 64 : memref<16xi8>
    %a = dnn.mem_offset %pool[0, 16] : memref<16xi8> -> memref<4xf32>
    dnn.softmax input(%x : memref<4xf32>) outs(%a : memref<4xf32>) {..}
    ..
    dnn.dealloc %pool : memref<16xi8>
    ```

    Source: the paper's conversion of memory operations to offsets in a memory pool.
    """

    name = "dnn-convert-to-pool"

    planner: str = "search"
    """Name of a planner in occamy_xdsl.planning."""
    alignment: int = 64
    """Bytes to which every buffer's offset is aligned."""
    reuse: bool = True
    """Whether buffers that are never live together may share bytes."""
    nodes: int = 2_000
    """Nodes of the search tree that the planner may visit."""
    capacity: int | None = None
    """Bytes at which a pool is small enough, and the search may stop."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.planner not in PLANNERS:
            known = ", ".join(PLANNERS)
            raise PassFailedException(f"{self.name}: no planner '{self.planner}', choose one of {known}")
        if self.alignment < 1 or self.alignment & (self.alignment - 1):
            raise PassFailedException(f"{self.name}: alignment must be a power of two, got {self.alignment}")
        for function in dnn.functions_in("buffer", op, self.name):
            self.convert(function)

    def convert(self, function: FuncOp) -> None:
        block = function.body.block
        mallocs = [op for op in ops_of(block) if isinstance(op, dnn.MallocOp)]
        ranges = {r.buffer: r for r in liveness(block).ranges}
        # A buffer that no op uses still gets a place: position 0 is as good as any.
        lives = [
            ranges.get(op.buffer, LiveRange(op.buffer, 0, 0, dnn.byte_size(op.buffer))) for op in mallocs
        ]
        end = max((life.last for life in lives), default=0)
        bodies = [
            Body(
                tuple(
                    Part(first, last + 1, 0, life.bytes)
                    for first, last in (life.segments if self.reuse else ((0, end),))
                ),
                self.alignment,
                str(i),
            )
            for i, life in enumerate(lives)
            if life.bytes
        ]
        packed = plan(bodies, self.planner, self.alignment, node_limit=self.nodes, capacity=self.capacity)
        offsets = iter(packed.offsets)
        function.attributes[PLAN] = DictionaryAttr(
            {
                "planner": StringAttr(self.planner),
                "pool_bytes": IntegerAttr(packed.height, i64),
                "lower_bound": IntegerAttr(packed.lower_bound, i64),
            }
        )
        if not mallocs:
            return
        for op in list(ops_of(block)):
            if isinstance(op, dnn.DeallocOp):
                Rewriter.erase_op(op)
        pool = dnn.MempoolInitOp(packed.height, self.alignment)
        pool.pool.name_hint = "pool"
        block.insert_op_before(pool, cast(Operation, block.first_op))
        block.insert_op_before(dnn.DeallocOp(pool.pool), cast(Operation, block.last_op))
        for malloc, life in zip(mallocs, lives, strict=True):
            offset = next(offsets) if life.bytes else 0
            _replace(malloc, dnn.MemOffsetOp(pool.pool, offset, life.bytes, malloc.buffer.type))


def _replace(malloc: dnn.MallocOp, view: dnn.MemOffsetOp) -> None:
    view.location = malloc.location
    view.view.name_hint = malloc.buffer.name_hint
    cast(Block, malloc.parent).insert_op_before(view, malloc)
    malloc.buffer.replace_all_uses_with(view.view)
    Rewriter.erase_op(malloc)
