"""`cuda-assign-workspaces`: ops get the scratch memory that their library calls and kernels use on a GPU."""

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, UnitAttr, i64
from xdsl.ir import Block
from xdsl.passes import ModulePass

from occamy_xdsl.analysis.aliasing import root_of
from occamy_xdsl.analysis.liveness import last_uses, liveness
from occamy_xdsl.dialects import dnn
from occamy_xdsl.errors import UsageError
from occamy_xdsl.lowering.cpu.cpu_assign_workspaces import assign
from occamy_xdsl.lowering.cuda.convolutions import Database, Measured, choose
from occamy_xdsl.lowering.cuda.select import (
    ALGORITHM,
    LEAST_CHANNELS,
    LIBRARY_BYTES,
    PADS_AT_ONCE,
    PROLOGUE_CHANNELS,
    PROLOGUE_IN_PLACE,
    UnsupportedOpError,
    has_integer_weights,
    padded_rows,
    problem_of,
    prologue_channels,
    select,
)
from occamy_xdsl.lowering.interface import DEVICE_ALIGNMENT

MIN_CUBLAS_BYTES, MAX_CUBLAS_BYTES = 16 << 10, 4 << 20
"""
Workspace of a matrix product: what keeps cuBLAS from failing, and what it has by default before Hopper.

Source: cuBLAS documentation, cublasSetWorkspace.
"""


@dataclass(frozen=True)
class CudaAssignWorkspacesPass(ModulePass):
    """
    Chooses an algorithm for every convolution and adds a `workspace` operand where an op needs scratch memory.

    A workspace holds copies that the library needs in another layout, and what the library may use: as the
    database of convolutions says, or a default, as far as it raises the peak of live bytes no further. It is
    allocated before the op and freed after it, so that the planner places it like any other buffer. Choices are
    noted in the attributes `cuda.algorithm` and `cuda.library_bytes`; without them a convolution runs the
    algorithm that needs no workspace.

    A prologue of a convolution is computed in the place of the input where that is not needed afterwards. Otherwise it
    is computed into the workspace, for as many channels at once as fit under the peak, at least 32: the convolution is
    then the sum of convolutions of these channels.

    Where one spatial dimension is padded unequally, as those of stripes are, the input is copied with zeros around it
    if that fits under the peak. Otherwise only those rows are copied that are computed from zeros, too, and convolved
    apart from the others.

    Requires: buffer form with `dnn.malloc`.
    Ensures: every op that a GPU can compute has the workspace that its steps ask for.

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
    """Bytes that a workspace may have where the op needs no more, instead of what fits under the peak."""
    database: str | None = None
    """Path of a database of convolutions."""
    device: str | None = None
    """Name of the device in the database; needed where several have the architecture."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        measured = self._measured()
        for function in dnn.functions_in("buffer", op, self.name):
            mark_prologues_in_place(function.body.block)
            for kernel, room in rooms(function.body.block):
                if kernel.workspace is None:
                    if self.limit is not None:
                        room = max(0, self.limit - scratch_bytes(kernel))
                    self.assign(kernel, measured, room)

    def _measured(self) -> Measured:
        if self.database is None:
            return {}
        database = Database.load(Path(self.database))
        try:
            return database.measured(self.chip, self.cudnn, self.device)
        except UsageError as error:
            raise UsageError(f"{self.database}: {error}") from None

    def assign(self, op: dnn.KernelOp, measured: Measured, limit: int) -> None:
        """Gives an op a workspace that has at most `limit` bytes more than it needs."""
        if isinstance(op, dnn.ConvOp):
            if op.prologue is not None and PROLOGUE_IN_PLACE not in op.attributes:
                limit -= self.widen_prologue(op, limit)
            limit -= self.pad_at_once(op, limit)
            choice = choose(measured, problem_of(op), limit)
            op.attributes[ALGORITHM] = IntegerAttr(choice.algorithm, i64)
            op.attributes[LIBRARY_BYTES] = IntegerAttr(choice.workspace_bytes, i64)
        elif isinstance(op, dnn.MatmulOp) and not has_integer_weights(op):
            size = max(MIN_CUBLAS_BYTES, min(MAX_CUBLAS_BYTES, limit))
            op.attributes[LIBRARY_BYTES] = IntegerAttr(size, i64)
        if size := scratch_bytes(op):
            assign(op, size)

    @staticmethod
    def widen_prologue(op: dnn.ConvOp, room: int) -> int:
        """Computes the prologue for as many channels at once as fit into `room` more bytes; the bytes it takes."""
        before = scratch_bytes(op)

        def more(channels: int) -> int:
            op.attributes[PROLOGUE_CHANNELS] = IntegerAttr(channels, i64)
            return scratch_bytes(op) - before

        all_channels = op.input_shape[1]
        widths = [*range(prologue_channels(op), all_channels, LEAST_CHANNELS), all_channels]
        return more(widths[max(0, bisect_right(widths, room, key=more) - 1)])

    @staticmethod
    def pad_at_once(op: dnn.ConvOp, room: int) -> int:
        """Copies the whole input of a convolution with unequal pads where `room` more bytes are enough; how many."""
        if padded_rows(op) is None:
            return 0
        before = scratch_bytes(op)
        op.attributes[PADS_AT_ONCE] = UnitAttr()
        if (more := scratch_bytes(op) - before) > room:
            del op.attributes[PADS_AT_ONCE]
            return 0
        return more


def mark_prologues_in_place(block: Block) -> None:
    """Notes for which convolutions the input is a buffer of the program that no other operand or later op reads."""
    last = last_uses(block)[block]
    for op in block.ops:
        if isinstance(op, dnn.ConvOp) and op.prologue is not None:
            inputs = (op.input, *op.joined)
            roots = [root_of(value) for value in inputs]
            others = {root_of(value) for value in op.operands if value not in inputs}
            if len(set(roots)) == len(roots) and all(
                isinstance(root.owner, dnn.MallocOp)
                and last[root] is op
                and root not in others
                and 0 not in dnn.strides_of(value)
                for root, value in zip(roots, inputs, strict=True)
            ):
                op.attributes[PROLOGUE_IN_PLACE] = UnitAttr()


def scratch_bytes(op: dnn.KernelOp) -> int:
    """Bytes of workspace that the steps of an op need; 0 for one that convert-dnn-to-cuda will refuse."""
    try:
        return select(op).scratch_bytes
    except UnsupportedOpError:
        return 0


def rooms(block: Block) -> list[tuple[dnn.KernelOp, int]]:
    """For each op the bytes that may be live beside its operands and copies without a new peak."""
    table = liveness(block)
    live = [
        size + (scratch_bytes(op) if isinstance(op, dnn.KernelOp) else 0)
        for op, size in zip(table.ops, table.timeline(), strict=True)
    ]
    peak = max(live, default=0)
    return [
        (op, (peak - size) // DEVICE_ALIGNMENT * DEVICE_ALIGNMENT)
        for op, size in zip(table.ops, live, strict=True)
        if isinstance(op, dnn.KernelOp)
    ]
