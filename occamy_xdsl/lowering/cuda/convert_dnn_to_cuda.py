"""`convert-dnn-to-cuda`: a function in pool form becomes host code that drives a GPU, and its kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    StringAttr,
    i64,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import PassFailedException
from xdsl.utils.hints import isa

from occamy_xdsl.analysis.aliasing import offset_in_root, root_of
from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.location import node_name
from occamy_xdsl.dialects.signature import KIND, NAME, argument_attributes, function_for
from occamy_xdsl.dialects.weights import Weights, WeightsRefAttr
from occamy_xdsl.errors import UnsupportedModelError
from occamy_xdsl.lowering.attributes import CALLS, MODEL_BYTES, POOL_BYTES, WEIGHTS, WEIGHTS_BYTES
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer
from occamy_xdsl.lowering.cuda import program
from occamy_xdsl.lowering.cuda.kernels.spec import MAX_ELEMENTS, GpuKernel, gpu_module
from occamy_xdsl.lowering.cuda.program import Caller, NodeStep, OpSteps, Piece, Placement, ProgramBuilder
from occamy_xdsl.lowering.cuda.ptx import CHIPS
from occamy_xdsl.lowering.cuda.select import Plan, UnsupportedOpError, operand_of, select
from occamy_xdsl.lowering.cuda.steps import Allocate, Free, Launch, Transfer, kernel_name
from occamy_xdsl.lowering.host import HostModule
from occamy_xdsl.lowering.interface import DEVICE_ALIGNMENT


@dataclass(frozen=True)
class ConvertDnnToCudaPass(ModulePass):
    """
    Selects library calls and kernels for every op, and writes the host code that makes a model of them.

    The host code is what `occamy_create`, `occamy_run` and `occamy_destroy` stand on. Kernels are gpu.funcs.
    Inputs and outputs have copies in device memory beside the pool; weights are listed in the module attribute
    `occamy.weights`, as on a CPU. All nodes that no step computes are refused at once.

    With `stream_weights` the weights of an op are copied to the device while the op before it runs. Buffers
    outside a pool (modes eager and lazy) are allocated when the model runs. With `profile` each step is timed, see
    `program`; the module attribute `occamy.calls` lists node and kernel of each.

    Requires: one function `main` in buffer form; buffers of a pool at multiples of 256 bytes.
    Ensures: the functions `occamy_setup`, `occamy_main`, `occamy_abandon` and `occamy_teardown` in the llvm
    dialect, and a gpu.module if a kernel is launched.

    Before:

    ```mlir
    dnn.pool input(%x : memref<1x4x8x8xf32>) outs(%a : memref<1x4x4x4xf32>) {kind = "max", ..}
    ```

    After:

    ```mlir
    %s = llvm.call @cudnnPoolingForward(%cudnn, %pooling, %one, %xd, %x, %zero, %yd, %y) : (..) -> i32
    %failed = llvm.icmp "ne" %s, %success : i32
    llvm.cond_br %failed, ^fail, ^next
    ```
    """

    name = "convert-dnn-to-cuda"

    chip: str = "sm_75"
    """Architecture for which kernels are generated."""
    stream_weights: bool = False
    """Whether the weights stay on the host until shortly before they are needed."""
    profile: bool = False
    """Whether each step is timed."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.chip not in CHIPS:
            known = " ".join(CHIPS)
            raise PassFailedException(f"{self.name}: unknown architecture '{self.chip}', known are: {known}")
        function = function_for(op, self.name)
        dnn.check_form(function, "buffer", self.name)
        conversion = _Conversion(op, function, self.chip, self.stream_weights)
        conversion.run(profile=self.profile)


class _Conversion:
    def __init__(self, module: ModuleOp, function: FuncOp, chip: str, stream_weights: bool):
        self.module = module
        self.function = function
        self.chip = chip
        self.stream_weights = stream_weights
        self.refused: list[tuple[str, str, str]] = []
        self.ops: list[list[NodeStep]] = []
        """The steps of each op."""
        self.pool_bytes = 0
        self.offsets: dict[SSAValue, int] = {}
        """Byte offset in the pool of each buffer."""
        self.buffers: dict[SSAValue, int] = {}
        """Field of the handle for each buffer outside of a pool."""
        self.fields = 0
        self.free_fields: dict[bool, list[int]] = {True: [], False: []}
        """Fields whose last buffer is freed, of host and of device memory."""
        self.blob: dict[str, tuple[Attribute, int]] = {}
        """Value and byte offset of each array of the weights, by key."""
        self.blob_bytes = 0
        self.arguments: dict[SSAValue, int] = {}
        """Number of each argument, whose fields follow those of the buffers."""

    def run(self, *, profile: bool) -> None:
        for op in self.function.body.block.ops:
            self.convert(op)
        kernels = self.kernels()
        if self.refused:
            raise UnsupportedModelError(nodes=self.refused)
        # Weights are known only when the code that reads them is written, and their number is in that code.
        pieces = [self.find_weights(steps) for steps in self.ops]
        slot_bytes = max((p.target + aligned(p.bytes) for own in pieces for p in own), default=0)
        # Two slots that need more than all weights would be no use.
        streams = self.stream_weights and 2 * slot_bytes < self.blob_bytes
        ops = [
            OpSteps(tuple(steps), own if streams else ()) for steps, own in zip(self.ops, pieces, strict=True)
        ]
        host = HostModule()
        callers, staging_bytes = self.stage_arguments()
        placement = Placement(
            aligned(self.pool_bytes),
            self.blob_bytes,
            slot_bytes if streams else None,
            staging_bytes,
            self.fields + len(self.arguments),
            self.find,
        )
        builder = ProgramBuilder(host, placement, profile=profile)
        inputs, outputs = ([c for c in callers if c.kind == kind] for kind in ("input", "output"))
        builder.build(ops, inputs, outputs)
        attributes = self.module.attributes
        attributes[POOL_BYTES] = IntegerAttr(self.pool_bytes, i64)
        attributes[WEIGHTS_BYTES] = IntegerAttr(self.blob_bytes, i64)
        attributes[MODEL_BYTES] = IntegerAttr(builder.model_bytes, i64)
        attributes[WEIGHTS] = ArrayAttr(
            DictionaryAttr({"value": value, "offset": IntegerAttr(offset, i64)})
            for value, offset in self.blob.values()
        )
        if profile:
            attributes[CALLS] = ArrayAttr(
                ArrayAttr([StringAttr(item.node), StringAttr(kernel_name(item.step))])
                for steps in self.ops
                for item in steps
            )
        Rewriter.erase_op(self.function)
        block = self.module.body.block
        for source in (host.module, gpu_module(kernels, self.chip)) if kernels else (host.module,):
            for op in list(source.ops):
                op.detach()
                block.add_op(op)

    def stage_arguments(self) -> tuple[list[Caller], int]:
        """Gives every argument a field of the handle and a place in the staging memory; the bytes of that."""
        callers: list[Caller] = []
        staging_bytes = 0
        counts = {"input": 0, "output": 0}
        arguments = self.function.body.block.args
        for argument, own in zip(arguments, argument_attributes(self.function), strict=True):
            kind, name = (cast(dict[str, Attribute], own).get(key) for key in (KIND, NAME))
            group, size = getattr(kind, "data", "input"), dnn.byte_size(argument)
            self.arguments[argument] = len(callers)
            field = self.argument_field(argument)
            callers.append(
                Caller(counts[group], field, staging_bytes, size, group, getattr(name, "data", ""))
            )
            counts[group] += 1
            staging_bytes += aligned(size)
        return callers, staging_bytes

    def argument_field(self, argument: SSAValue) -> int:
        """The field of the handle with an argument's address, once all buffers have theirs."""
        return program.BUFFERS + 8 * (self.fields + self.arguments[argument])

    def convert(self, op: Operation) -> None:
        match op:
            case dnn.MempoolInitOp():
                self.pool_bytes = dnn.byte_size(op.pool)
                if op.alignment.value.data % DEVICE_ALIGNMENT:
                    raise PassFailedException(
                        f"convert-dnn-to-cuda: the pool must be planned with alignment {DEVICE_ALIGNMENT}"
                    )
            case dnn.MemOffsetOp():
                self.offsets[op.view] = op.offset.value.data
            case dnn.ViewOp() | dnn.ConstantOp() | ReturnOp():
                pass
            case dnn.MallocOp():
                self.allocate(op)
            case dnn.DeallocOp():
                if isinstance(op.buffer.owner, dnn.MallocOp):
                    on_host = is_on_host(op.buffer)
                    self.free_fields[on_host].append(self.buffers[op.buffer])
                    self.ops.append([NodeStep(node_name(op), Free(op.buffer, on_host), None)])
            case dnn.MemcpyOp():
                way = "DeviceToHost" if is_on_host(op.destination) else "HostToDevice"
                size = dnn.byte_size(op.source)
                step = Transfer(operand_of(op.source), operand_of(op.destination), size, way)
                if size:
                    self.ops.append([NodeStep(node_name(op), step, None)])
            case dnn.KernelOp() if op.is_buffer_form:
                self.select(op)
            case _:
                raise PassFailedException(f"convert-dnn-to-cuda: '{op.name}' op is not in dnn buffer form")

    def allocate(self, op: dnn.MallocOp) -> None:
        """Gives a buffer outside of a pool a field of the handle, perhaps that of one that is freed."""
        on_host = is_on_host(op.buffer)
        if self.free_fields[on_host]:
            field = self.free_fields[on_host].pop()
        else:
            field = program.BUFFERS + 8 * self.fields
            self.fields += 1
        self.buffers[op.buffer] = field
        # Whoever asks for no bytes gets no address.
        size = max(1, dnn.byte_size(op.buffer))
        self.ops.append([NodeStep(node_name(op), Allocate(op.buffer, size, on_host), None)])

    def select(self, op: dnn.KernelOp) -> None:
        node = node_name(op)
        try:
            plan = select(op)
        except UnsupportedOpError as error:
            self.refused.append((node, op.name, str(error)))
            return
        self.check_workspace(op, plan)
        self.ops.append([NodeStep(node, step, op.workspace) for step in plan.steps])

    def check_workspace(self, op: dnn.KernelOp, plan: Plan) -> None:
        have = 0 if op.workspace is None else dnn.byte_size(op.workspace)
        if plan.scratch_bytes > have:
            raise PassFailedException(
                f"convert-dnn-to-cuda: '{op.name}' op has a workspace of {have} bytes and needs "
                f"{plan.scratch_bytes}: run cuda-assign-workspaces first"
            )

    def kernels(self) -> list[GpuKernel]:
        """All kernels; a node with a buffer that is too large for 32-bit indices is refused."""
        found: list[GpuKernel] = []
        for item in (item for steps in self.ops for item in steps):
            if isinstance(item.step, Launch):
                if any(buffer.extent > MAX_ELEMENTS for buffer in item.step.kernel.arguments):
                    self.refused.append((item.node, "kernel", "a buffer of 2^31 elements or more on a GPU"))
                found.append(item.step.kernel)
        return found

    def find_weights(self, steps: Sequence[NodeStep]) -> tuple[Piece, ...]:
        """Gives the constants that an op reads their places; its pieces of the weights."""
        ranges: dict[int, int] = {}
        for operand in (operand for item in steps for operand in item.step.read):
            if isinstance(operand.place, Weights):
                start, size = self.in_blob(operand.place, WeightsRefAttr(operand.place), operand.buffer)
                ranges[start] = size
            elif isinstance(operand.place, SSAValue):
                root = root_of(operand.place)
                if isinstance(root.owner, dnn.ConstantOp):
                    start, size = self.constant(root.owner)
                    ranges[start] = size
        pieces: list[Piece] = []
        for start, size in sorted(ranges.items()):
            last = pieces[-1] if pieces else Piece(0, 0, 0)
            end = aligned(last.bytes)
            if pieces and last.source + end == start:
                pieces[-1] = Piece(last.source, end + size, last.target)
            else:
                pieces.append(Piece(start, size, last.target + end))
        return tuple(pieces)

    def constant(self, op: dnn.ConstantOp) -> tuple[int, int]:
        element = str(dnn.element_type_of(op.output))
        return self.in_blob(op.weights, op.value, Buffer.contiguous(dnn.shape_of(op.output), element))

    def in_blob(self, weights: Weights, value: Attribute, buffer: Buffer) -> tuple[int, int]:
        """Byte offset of an array in the weights, and its bytes."""
        size = buffer.extent * buffer.element_bytes
        if weights.key not in self.blob:
            self.blob[weights.key] = value, self.blob_bytes
            self.blob_bytes += aligned(size)
        return self.blob[weights.key][1], size

    def find(self, place: SSAValue | Weights, buffer: Buffer) -> tuple[int, int]:
        """The field of the handle with the base of a place, and the place's byte offset from there."""
        if isinstance(place, Weights):
            return program.WEIGHTS, self.blob[place.key][1]
        root = root_of(place)
        shift = offset_in_root(place) * dnn.element_bytes(dnn.element_type_of(place))
        if isinstance(root.owner, dnn.ConstantOp):
            return program.WEIGHTS, self.constant(root.owner)[0] + shift
        if isinstance(root, BlockArgument):
            return self.argument_field(root), shift
        if root in self.buffers:
            return self.buffers[root], shift
        return program.POOL, self.offsets[root] + shift


def aligned(size: int) -> int:
    """The next multiple of DEVICE_ALIGNMENT."""
    return -(-size // DEVICE_ALIGNMENT) * DEVICE_ALIGNMENT


def is_on_host(buffer: SSAValue) -> bool:
    """Whether a buffer is in the host's memory."""
    type_ = buffer.type
    assert isa(type_, MemRefType[Attribute])
    return type_.memory_space == StringAttr("host")
