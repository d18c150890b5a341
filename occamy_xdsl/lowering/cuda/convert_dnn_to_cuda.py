"""`convert-dnn-to-cuda`: a function in pool form becomes host code that drives a GPU, and its kernels."""

from dataclasses import dataclass
from typing import cast

from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, DictionaryAttr, IntegerAttr, ModuleOp, i64
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import PassFailedException

from occamy_xdsl.analysis.aliasing import offset_in_root, root_of
from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.location import node_name
from occamy_xdsl.dialects.signature import KIND, NAME, argument_attributes, function_named
from occamy_xdsl.dialects.weights import Weights, WeightsRefAttr
from occamy_xdsl.errors import UnsupportedModelError
from occamy_xdsl.lowering.cpu.convert_dnn_to_cpu import POOL_BYTES, WEIGHTS, WEIGHTS_BYTES
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer
from occamy_xdsl.lowering.cuda import program
from occamy_xdsl.lowering.cuda.kernels.spec import MAX_ELEMENTS, GpuKernel, gpu_module
from occamy_xdsl.lowering.cuda.program import Caller, NodeStep, Placement, ProgramBuilder
from occamy_xdsl.lowering.cuda.ptx import CHIPS
from occamy_xdsl.lowering.cuda.select import ALIGNMENT, Plan, UnsupportedOpError, select
from occamy_xdsl.lowering.cuda.steps import Launch
from occamy_xdsl.lowering.host import HostModule

MODEL_BYTES = "occamy.model_bytes"
"""Module attribute: bytes of a model handle."""


@dataclass(frozen=True)
class ConvertDnnToCudaPass(ModulePass):
    """
    Selects library calls and kernels for every op, and writes the host code that makes a model of them.

    The host code is what `occamy_create`, `occamy_run` and `occamy_destroy` stand on. Kernels are gpu.funcs.
    Inputs and outputs have copies in device memory beside the pool; weights are listed in the module attribute
    `occamy.weights`, as on a CPU. All nodes that no step computes are refused at once.

    Requires: one function `main` in pool form; buffers of the pool at multiples of 256 bytes.
    Ensures: the functions `occamy_setup`, `occamy_main` and `occamy_teardown` in the llvm dialect, and
    a gpu.module if a kernel is launched.

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

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if self.chip not in CHIPS:
            known = " ".join(CHIPS)
            raise PassFailedException(f"{self.name}: unknown architecture '{self.chip}', known are: {known}")
        try:
            function = function_named(op)
        except KeyError as error:
            raise PassFailedException(f"{self.name}: {error.args[0]}") from None
        dnn.check_form(function, "buffer", self.name)
        _Conversion(op, function, self.chip).run()


class _Conversion:
    def __init__(self, module: ModuleOp, function: FuncOp, chip: str):
        self.module = module
        self.function = function
        self.chip = chip
        self.refused: list[tuple[str, str, str]] = []
        self.steps: list[NodeStep] = []
        self.pool_bytes = 0
        self.offsets: dict[SSAValue, int] = {}
        """Byte offset in the pool of each buffer."""
        self.blob: dict[str, tuple[Attribute, int]] = {}
        """Value and byte offset of each array of the weights, by key."""
        self.blob_bytes = 0
        self.staging: dict[SSAValue, int] = {}
        """Byte offset in the staging memory of each argument."""
        self.staging_bytes = 0

    def run(self) -> None:
        callers = self.stage_arguments()
        for op in self.function.body.block.ops:
            self.convert(op)
        kernels = self.kernels()
        if self.refused:
            raise UnsupportedModelError(nodes=self.refused)
        # Weights are known only when the code that reads them is written, and their number is in that code.
        for item in self.steps:
            self.find_weights(item)
        host = HostModule()
        pool_bytes = -(-self.pool_bytes // ALIGNMENT) * ALIGNMENT
        placement = Placement(pool_bytes, self.blob_bytes, self.staging_bytes, self.find)
        builder = ProgramBuilder(host, placement)
        builder.build(self.steps, callers["input"], callers["output"])
        attributes = self.module.attributes
        attributes[POOL_BYTES] = IntegerAttr(self.pool_bytes, i64)
        attributes[WEIGHTS_BYTES] = IntegerAttr(self.blob_bytes, i64)
        attributes[MODEL_BYTES] = IntegerAttr(builder.model_bytes, i64)
        attributes[WEIGHTS] = ArrayAttr(
            DictionaryAttr({"value": value, "offset": IntegerAttr(offset, i64)})
            for value, offset in self.blob.values()
        )
        Rewriter.erase_op(self.function)
        block = self.module.body.block
        for source in (host.module, gpu_module(kernels, self.chip)) if kernels else (host.module,):
            for op in list(source.ops):
                op.detach()
                block.add_op(op)

    def stage_arguments(self) -> dict[str, list[Caller]]:
        """Gives every argument its place in the staging memory."""
        callers: dict[str, list[Caller]] = {"input": [], "output": []}
        arguments = self.function.body.block.args
        for argument, own in zip(arguments, argument_attributes(self.function), strict=True):
            kind, name = (cast(dict[str, Attribute], own).get(key) for key in (KIND, NAME))
            group = callers[getattr(kind, "data", "input")]
            size = dnn.byte_size(argument)
            self.staging[argument] = self.staging_bytes
            group.append(Caller(len(group), self.staging_bytes, size, getattr(name, "data", "")))
            self.staging_bytes += -(-size // ALIGNMENT) * ALIGNMENT
        return callers

    def convert(self, op: Operation) -> None:
        match op:
            case dnn.MempoolInitOp():
                self.pool_bytes = dnn.byte_size(op.pool)
                if op.alignment.value.data % ALIGNMENT:
                    raise PassFailedException(
                        f"convert-dnn-to-cuda: the pool must be planned with alignment {ALIGNMENT}"
                    )
            case dnn.MemOffsetOp():
                self.offsets[op.view] = op.offset.value.data
            case dnn.ViewOp() | dnn.ConstantOp() | dnn.DeallocOp() | ReturnOp():
                pass
            case dnn.KernelOp() if op.is_buffer_form:
                self.select(op)
            case _:
                raise PassFailedException(f"convert-dnn-to-cuda: '{op.name}' op is not in dnn pool form")

    def select(self, op: dnn.KernelOp) -> None:
        node = node_name(op)
        try:
            plan = select(op)
        except UnsupportedOpError as error:
            self.refused.append((node, op.name, str(error)))
            return
        self.check_workspace(op, plan)
        workspace = 0 if op.workspace is None else self.offsets[op.workspace]
        self.steps += [NodeStep(node, step, workspace) for step in plan.steps]

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
        for item in self.steps:
            if isinstance(item.step, Launch):
                if any(buffer.extent > MAX_ELEMENTS for buffer in item.step.kernel.arguments):
                    self.refused.append((item.node, "kernel", "a buffer of 2^31 elements or more on a GPU"))
                found.append(item.step.kernel)
        return found

    def find_weights(self, item: NodeStep) -> None:
        """Gives the constants that a step reads their places."""
        for operand in item.step.read:
            if isinstance(operand.place, Weights):
                self.in_blob(operand.place, WeightsRefAttr(operand.place), operand.buffer)
            elif isinstance(operand.place, SSAValue):
                root = root_of(operand.place)
                if isinstance(root.owner, dnn.ConstantOp):
                    self.constant(root.owner)

    def constant(self, op: dnn.ConstantOp) -> int:
        element = str(dnn.element_type_of(op.output))
        return self.in_blob(op.weights, op.value, Buffer.contiguous(dnn.shape_of(op.output), element))

    def in_blob(self, weights: Weights, value: Attribute, buffer: Buffer) -> int:
        """Byte offset of an array in the weights."""
        if weights.key not in self.blob:
            self.blob[weights.key] = value, self.blob_bytes
            size = buffer.extent * buffer.element_bytes
            self.blob_bytes += -(-size // ALIGNMENT) * ALIGNMENT
        return self.blob[weights.key][1]

    def find(self, place: SSAValue | Weights, buffer: Buffer) -> tuple[int, int]:
        """The field of the handle with the base of a place, and the place's byte offset from there."""
        if isinstance(place, Weights):
            return program.WEIGHTS, self.blob[place.key][1]
        root = root_of(place)
        shift = offset_in_root(place) * dnn.element_bytes(dnn.element_type_of(place))
        if isinstance(root.owner, dnn.ConstantOp):
            return program.WEIGHTS, self.constant(root.owner) + shift
        if isinstance(root, BlockArgument):
            return program.STAGING, self.staging[root] + shift
        return program.POOL, self.offsets[root] + shift
