"""`cuda-assign-workspaces`: ops get the scratch memory that their library calls and kernels use on a GPU."""

from dataclasses import dataclass
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.dialects.func import FuncOp
from xdsl.passes import ModulePass
from xdsl.utils.exceptions import PassFailedException

from occamy_xdsl.dialects import dnn
from occamy_xdsl.lowering.cpu.cpu_assign_workspaces import assign
from occamy_xdsl.lowering.cuda.convolutions import EMPTY, Database
from occamy_xdsl.lowering.cuda.select import (
    ALGORITHM,
    LIBRARY_BYTES,
    UnsupportedOpError,
    problem_of,
    select,
)

CUBLAS_BYTES = 4 << 20
"""Workspace of a matrix product: what cuBLAS asks for on all architectures before Hopper (cublasSetWorkspace)."""


@dataclass(frozen=True)
class CudaAssignWorkspacesPass(ModulePass):
    """
    Chooses an algorithm for every convolution and adds a `workspace` operand where an op needs scratch memory.

    A workspace holds what the library may use (as the database of convolutions says, or a default), and copies
    that the library needs in another layout. It is allocated before the op and freed after it, so that the
    planner places it like any other buffer. Choices are noted in the attributes `cuda.algorithm` and
    `cuda.library_bytes`; without them a convolution runs the algorithm that needs no workspace.

    Requires: buffer form with `dnn.malloc`.
    Ensures: every op that can be selected has the workspace that its steps ask for.

    Before:

    ```mlir
    dnn.conv input(%x : ..) filter(%w : ..) outs(%y : ..) {..}
    ```

    After:

    ```mlir
    %workspace = dnn.malloc : memref<1024xi8>
    dnn.conv input(%x : ..) filter(%w : ..) outs(%y : ..) workspace(%workspace : memref<1024xi8>)
      {cuda.algorithm = 1 : i64, cuda.library_bytes = 1000 : i64, ..}
    dnn.dealloc %workspace : memref<1024xi8>
    ```
    """

    name = "cuda-assign-workspaces"

    chip: str = "sm_75"
    """Architecture for which the database is asked."""
    cudnn: int = 9
    """Major version of cuDNN for which the database is asked."""
    limit: int | None = None
    """Most bytes that a library may use for one op."""
    database: str | None = None
    """Path of a database of convolutions."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        database = EMPTY if self.database is None else Database.load(Path(self.database))
        for function in op.ops:
            if not isinstance(function, FuncOp) or not function.body.blocks:
                continue
            for kernel in [o for o in function.walk() if isinstance(o, dnn.KernelOp)]:
                if not kernel.is_buffer_form:
                    raise PassFailedException(f"{self.name}: '{kernel.name}' op is not in buffer form")
                if kernel.workspace is None:
                    self.assign(kernel, database)

    def assign(self, op: dnn.KernelOp, database: Database) -> None:
        if isinstance(op, dnn.ConvOp):
            choice = database.choose(problem_of(op), self.chip, self.cudnn, self.limit)
            op.attributes[ALGORITHM] = IntegerAttr(choice.algorithm, i64)
            op.attributes[LIBRARY_BYTES] = IntegerAttr(choice.workspace_bytes, i64)
        elif isinstance(op, dnn.MatmulOp):
            size = CUBLAS_BYTES if self.limit is None else min(CUBLAS_BYTES, self.limit)
            op.attributes[LIBRARY_BYTES] = IntegerAttr(size, i64)
        try:
            plan = select(op)
        except UnsupportedOpError:
            return  # convert-dnn-to-cuda lists all such ops at once
        if plan.scratch_bytes:
            assign(op, plan.scratch_bytes)
