"""`cpu-assign-workspaces`: kernels that need scratch memory get it as an ordinary buffer."""

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import MemRefType, ModuleOp, i8
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from occamy_xdsl.dialects import dnn
from occamy_xdsl.lowering.cpu.select import select
from occamy_xdsl.lowering.toolchain import Isa


@dataclass(frozen=True)
class CpuAssignWorkspacesPass(ModulePass):
    """
    Adds a `workspace` operand to every op whose kernel on this processor needs scratch memory.

    The workspace is allocated before the op and freed after it, so that the planner places it like any other
    buffer and its bytes are part of the pool.

    Requires: buffer form with `dnn.malloc`.
    Ensures: every op has the workspace that its kernel asks for.

    Before:

    ```mlir
    dnn.matmul a(%a : ..) b(%bt : memref<8x16xf32, strided<[1, 8]>>) outs(%c : ..)
    ```

    After:

    ```mlir
    %workspace = dnn.malloc : memref<2048xi8>
    dnn.matmul a(%a : ..) b(%bt : ..) outs(%c : ..) workspace(%workspace : memref<2048xi8>)
    dnn.dealloc %workspace : memref<2048xi8>
    ```
    """

    name = "cpu-assign-workspaces"

    target: str = "host"
    """Processor to generate code for: `host`, or a name that LLVM knows."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        isa = Isa.host() if self.target == "host" else Isa.parse(self.target)
        for function in dnn.functions_in("buffer", op, self.name):
            for kernel in [o for o in function.walk() if isinstance(o, dnn.KernelOp)]:
                if isinstance(kernel, dnn.ControlOp):
                    continue
                size = select(kernel, isa).kernel.workspace_bytes
                if size and kernel.workspace is None:
                    assign(kernel, size)


def assign(op: dnn.KernelOp, size: int) -> None:
    """Gives `op` a workspace of `size` bytes that lives for this op alone."""
    assert op.parent is not None
    malloc = dnn.MallocOp(MemRefType(i8, [size]))
    malloc.buffer.name_hint = "workspace"
    malloc.location = op.location
    dealloc = dnn.DeallocOp(malloc.buffer)
    dealloc.location = op.location
    op.parent.insert_ops_before([malloc, op.rebuilt(groups={"workspace": [malloc.buffer]}), dealloc], op)
    Rewriter.erase_op(op)
