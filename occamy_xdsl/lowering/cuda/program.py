"""
Host code that runs the steps of a model on a GPU, as llvm-dialect functions that call NVIDIA's libraries.

These functions work on a model handle, a block of host memory that starts as zeros:

- `occamy_setup(model, pool, weights)` makes one device allocation, copies the weights to it, loads the kernels
  and creates streams, library handles and descriptors;
- `occamy_launch(model)` puts the model, from inputs in device memory to outputs there, on its stream;
- `occamy_make_graph(model)` makes a CUDA graph of that, which is launched from then on;
- `occamy_main(model, inputs, outputs)` copies, launches and waits;
- `occamy_abandon(model)` waits for what a failed `occamy_main` has enqueued and frees what it has allocated;
- `occamy_teardown(model)` releases what the handle holds, however far the setup came.

With a profile, an event is recorded before each step and at the end, and `occamy_main` has one output more, which it
fills with the milliseconds from each event to the next, as f32.

All but the last two return 0 or a `Code`; then the handle holds a message with the node, the call and its status.

Weights may be streamed: the device has two slots for the weights of one op each. A second stream fills one while
the op that reads the other runs; events order the two streams. The host's weights stay in use until the teardown.

An integrated GPU has the host's memory. There the weights stay where they are, and so do inputs and outputs that the
device can reach: all of them where it reads memory that is not registered, otherwise those that the caller has
registered or allocated as pinned. The others are copied.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TypeAlias

from xdsl.dialects.builtin import i32, i64
from xdsl.ir import SSAValue

from occamy_xdsl.dialects.weights import Weights
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer
from occamy_xdsl.lowering.cuda import api
from occamy_xdsl.lowering.cuda.api import CONSTANTS, FUNCTIONS
from occamy_xdsl.lowering.cuda.kernels.spec import VECTOR_BYTES
from occamy_xdsl.lowering.cuda.steps import (
    Allocate,
    Convolution,
    Deconvolution,
    Free,
    Launch,
    Matrix,
    Operand,
    Pooling,
    Product,
    Scratch,
    Softmax,
    Step,
    Transfer,
    Window,
)
from occamy_xdsl.lowering.host import NULL, PTR, VOID, FunctionBuilder, HostModule, Value, Variable
from occamy_xdsl.lowering.host import Operand as Argument
from occamy_xdsl.lowering.interface import DEVICE_ALIGNMENT, Code

SETUP, MAIN, ABANDON, TEARDOWN = "occamy_setup", "occamy_main", "occamy_abandon", "occamy_teardown"
LAUNCH, MAKE_GRAPH = "occamy_launch", "occamy_make_graph"
KERNELS = "occamy_kernels"
"""Symbol of the PTX text, which ends in a zero byte."""
MACHINE_CODE = "occamy_machine_code"
"""Symbol of the kernels in machine code; four zero bytes where there is none."""

# Byte offsets of the fields of a model handle; those of the kernels and descriptors follow.
POOL, OWNED, WEIGHTS, STAGING, STREAM, CUDNN, CUBLAS, MODULE, DEVICE, GRAPH, FILLING = (
    8 * i for i in range(11)
)
SOURCE = 8 * 11
"""The host's weights where they stay in use."""
REGISTERED = 8 * 12
"""The host's weights where they are registered."""
REACH = 8 * 13
"""An i32: what of the host's memory the device can reach, one of the following."""
NOTHING, REGISTERED_MEMORY, ALL_MEMORY = range(3)
READY, DONE = ((8 * (14 + 2 * i), 8 * (15 + 2 * i)) for i in range(2))
"""The events of each slot for streamed weights: it is filled, and nothing reads it any more."""
ERROR = 8 * 18
MESSAGE_BYTES = 512
BUFFERS = ERROR + MESSAGE_BYTES
"""The first field of buffers outside of a pool; those of inputs and outputs follow."""

_POINTER_ATTRIBUTES_BYTES = 128
"""At least what a cudaPointerAttributes has: the type at 0, the device's address at 8."""

_REACH = "occamy_reach"

_FLOAT = CONSTANTS["CUDNN_DATA_FLOAT"]
_ALGORITHM_0 = CONSTANTS["CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM"]
_ONE, _ZERO = struct.pack("<f", 1.0), struct.pack("<f", 0.0)


@dataclass(frozen=True)
class Caller:
    """An input or output of the model, the `index`-th of them."""

    index: int
    field: int
    """The field of the handle with its address on the device."""
    offset: int
    """Where its copy lies in the staging memory."""
    bytes: int
    kind: str
    """`input` or `output`."""
    name: str

    @property
    def alignment(self) -> int:
        """What its address must be a multiple of: other buffers of the model may borrow the memory of an output."""
        return VECTOR_BYTES if self.kind == "input" else DEVICE_ALIGNMENT

    @property
    def where(self) -> str:
        """The start of a message about it."""
        return f"{self.kind} '{self.name}': "


@dataclass(frozen=True)
class Placement:
    """Where all arrays are, in bytes from the start of the pool, the weights or the staging memory."""

    pool_bytes: int
    weights_bytes: int
    """Bytes of the weights that the caller has."""
    slot_bytes: int | None
    """Bytes of each of the two slots for streamed weights; None where all weights are on the device."""
    staging_bytes: int
    fields: int
    """Fields for buffers outside of a pool, and for inputs and outputs, from BUFFERS on."""
    find: Callable[[SSAValue | Weights, Buffer], tuple[int, int]]
    """
    The field of the handle that holds the base (POOL, WEIGHTS, or that of an argument or a buffer), and the offset
    of a place.
    """

    @property
    def device_weights_bytes(self) -> int:
        """Bytes of device memory for weights."""
        return self.weights_bytes if self.slot_bytes is None else 2 * self.slot_bytes


@dataclass(frozen=True)
class NodeStep:
    """A step, the node of the model it belongs to, and its op's workspace."""

    node: str
    step: Step
    workspace: SSAValue | None


@dataclass(frozen=True)
class Piece:
    """A range of the caller's weights, and where it is in a slot, in bytes."""

    source: int
    bytes: int
    target: int


@dataclass(frozen=True)
class OpSteps:
    """All steps of one op, and what of streamed weights they read."""

    steps: tuple[NodeStep, ...]
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class TensorShape:
    """What a cuDNN tensor descriptor says of an array of f32, in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    kind = "Tensor"

    @staticmethod
    def of(buffer: Buffer) -> "TensorShape":
        """The shape; the strides of dimensions of one element are what they are in a packed tensor."""
        packed = Buffer.contiguous(buffer.shape).strides
        strides = (p if n == 1 else s for n, s, p in zip(buffer.shape, buffer.strides, packed, strict=True))
        return TensorShape(buffer.shape, tuple(strides))


@dataclass(frozen=True)
class FilterShape:
    """What a cuDNN filter descriptor says."""

    shape: tuple[int, ...]
    kind = "Filter"


@dataclass(frozen=True)
class ConvolutionShape:
    """What a cuDNN convolution descriptor says."""

    window: Window
    kind = "Convolution"


@dataclass(frozen=True)
class PoolingShape:
    """What a cuDNN pooling descriptor says."""

    mode: str
    sizes: tuple[int, ...]
    window: Window
    kind = "Pooling"


@dataclass(frozen=True)
class Relu:
    """What a cuDNN activation descriptor says."""

    kind = "Activation"


Descriptor: TypeAlias = TensorShape | FilterShape | ConvolutionShape | PoolingShape | Relu


def _descriptors(step: Step) -> list[Descriptor]:
    """The descriptors that a step needs."""

    def tensors(*operands: Operand) -> list[Descriptor]:
        return [TensorShape.of(operand.buffer) for operand in operands]

    match step:
        case Convolution():
            fused: list[Descriptor] = [] if step.bias is None else [_bias_shape(step), Relu()]
            both = FilterShape(step.w.buffer.shape), ConvolutionShape(step.window)
            return [*tensors(step.x, step.y), *both, *fused]
        case Deconvolution():
            both = FilterShape(step.w.buffer.shape), ConvolutionShape(step.window)
            return [*tensors(step.dy, step.dx), *both]
        case Pooling():
            return [*tensors(step.x, step.y), PoolingShape(step.mode, step.sizes, step.window)]
        case Softmax():
            return tensors(step.x, step.y)
        case Launch() | Product() | Allocate() | Free() | Transfer():
            return []


def _bias_shape(step: Convolution) -> TensorShape:
    rank = step.y.buffer.rank
    return TensorShape.of(Buffer.contiguous((1, step.y.buffer.shape[1], *(1,) * (rank - 2))))


def _place_in_staging(f: FunctionBuilder, callers: Sequence[Caller]) -> None:
    """Lets the model of `f` read inputs from and write outputs to the staging memory."""
    model = f.arguments[0]
    staging = f.load(model + STAGING, PTR)
    for tensor in callers:
        f.store(staging + tensor.offset, model + tensor.field)


class ProgramBuilder:
    """Writes the functions into `host`; `model_bytes` is known afterwards."""

    def __init__(self, host: HostModule, placement: Placement, *, profile: bool = False):
        self.host = host
        self.placement = placement
        self.profile = profile
        """Whether each step is timed."""
        self.events = range(0)
        """The fields of the events of a profile."""
        self.model_bytes = BUFFERS + 8 * placement.fields
        self._declared: set[str] = set()
        self.kernels: dict[str, int] = {}
        self._descriptors: dict[Descriptor, int] = {}
        self._nodes: dict[str | Descriptor, str] = {}
        """The first node that needs a kernel or descriptor, for messages."""
        self.algorithms: dict[Convolution, int] = {}

    # --- calls ---

    def _declare(self, *names: str) -> None:
        for name in names:
            if name not in self._declared:
                self._declared.add(name)
                api.declare(self.host, name)

    def check(self, f: FunctionBuilder, where: str, name: str, *arguments: Argument) -> None:
        """Call a function of a library; where it fails, the function returns with a message."""
        self._declare(name)
        status = f.call(name, *arguments)
        with f.if_(status != 0):
            text = f"{where}{name}"
            f.return_(f.call(f"occamy_fail_{FUNCTIONS[name].library}", f.arguments[0], status, text))

    def _define_failures(self, libraries: Sequence[str]) -> None:
        """`static int occamy_fail_<library>(void *model, int status, const char *where)`."""
        for library in libraries:
            f = self.host.function(f"occamy_fail_{library}", i32, [PTR, i32, PTR], internal=True)
            model, status, where = f.arguments
            if library == "cuda":
                self._declare("cuGetErrorString")
                slot = f.variable("unknown error", PTR)
                f.call("cuGetErrorString", status, slot.pointer)
                text = slot.get()
            else:
                name = {"cudart": "cudaGetErrorString", "cudnn": "cudnnGetErrorString"}.get(
                    library, "cublasGetStatusString"
                )
                self._declare(name)
                text = f.call(name, status)
            f.call("snprintf", model + ERROR, MESSAGE_BYTES, "%s: %s (status %d)", where, text, status)
            f.return_(Code.DEVICE)

    # --- resources ---

    def _slot(self) -> int:
        offset = self.model_bytes
        self.model_bytes += 8
        return offset

    def _where(self, key: str | Descriptor) -> str:
        """The start of a message about a kernel or descriptor."""
        return f"node '{self._nodes[key]}': "

    def _collect(self, steps: Sequence[NodeStep]) -> None:
        """Gives every kernel and descriptor its field; descriptors of one kind lie side by side."""
        wanted: dict[Descriptor, None] = {}
        for item in steps:
            step = item.step
            if isinstance(step, Launch) and step.kernel.symbol not in self.kernels:
                self.kernels[step.kernel.symbol] = self._slot()
                self._nodes[step.kernel.symbol] = item.node
            if isinstance(step, Convolution):
                self.algorithms[step] = self._slot()
            for key in _descriptors(step):
                wanted.setdefault(key)
                self._nodes.setdefault(key, item.node)
        for key in sorted(wanted, key=lambda key: key.kind):
            self._descriptors[key] = self._slot()

    def build(self, ops: Sequence[OpSteps], inputs: Sequence[Caller], outputs: Sequence[Caller]) -> None:
        """Write everything."""
        steps = [item for op in ops for item in op.steps]
        self._collect(steps)
        if self.profile:
            start = self.model_bytes
            self.events = range(start, start + 8 * (len(steps) + 1), 8)
            self.model_bytes = self.events.stop
        libraries = ["cudart"]
        if self.kernels:
            libraries.append("cuda")
            self.host.external(KERNELS)
            self.host.external(MACHINE_CODE)
        if self._descriptors:
            libraries.append("cudnn")
        if any(isinstance(item.step, Product) for item in steps):
            libraries.append("cublas")
        self._define_failures(libraries)
        self._define_setup(libraries, steps, [*inputs, *outputs])
        self._define_launch(ops)
        self._define_make_graph(steps, [*inputs, *outputs])
        self._define_reach()
        self._define_main(inputs, outputs)
        self._define_abandon(steps)
        self._define_teardown(libraries)

    # --- setup ---

    def _define_setup(
        self, libraries: Sequence[str], steps: Sequence[NodeStep], callers: Sequence[Caller]
    ) -> None:
        f = self.host.function(SETUP, i32, [PTR, PTR, PTR])
        model, pool, weights = f.arguments

        def check(name: str, *arguments: Argument, where: str = "") -> None:
            self.check(f, where, name, *arguments)

        check("cudaGetDevice", model + DEVICE)
        # This makes the device's context current, which the functions of the driver need.
        check("cudaSetDevice", f.load(model + DEVICE, i32))
        check("cudaStreamCreateWithFlags", model + STREAM, CONSTANTS["cudaStreamNonBlocking"])
        stream = f.load(model + STREAM, PTR)
        self._ask_what_is_shared(f)
        mapped = self._map_weights(f)
        self._allocate(f, pool, mapped)
        _place_in_staging(f, callers)
        if self.placement.slot_bytes is not None:
            f.store(weights, model + SOURCE)
            check("cudaStreamCreateWithFlags", model + FILLING, CONSTANTS["cudaStreamNonBlocking"])
            for event in (*READY, *DONE):
                check("cudaEventCreateWithFlags", model + event, CONSTANTS["cudaEventDisableTiming"])
        elif self.placement.weights_bytes:
            target = f.load(model + WEIGHTS, PTR)
            way = CONSTANTS["cudaMemcpyHostToDevice"]
            size = self.placement.weights_bytes
            with f.if_(mapped.get() == NULL):
                check("cudaMemcpyAsync", target, weights, size, way, stream, where="weights: ")
        if self.profile:
            with f.for_(len(self.events)) as i:
                check(
                    "cudaEventCreateWithFlags",
                    model + (i << 3) + self.events.start,
                    CONSTANTS["cudaEventDefault"],
                )
        if "cuda" in libraries:
            self._load_machine_code(f)
            with f.if_(f.load(model + MODULE, PTR) == NULL):
                check("cuModuleLoadData", model + MODULE, f.address(KERNELS))
            module = f.load(model + MODULE, PTR)
            for name, slot in self.kernels.items():
                check("cuModuleGetFunction", model + slot, module, name, where=self._where(name))
        if "cudnn" in libraries:
            check("cudnnCreate", model + CUDNN)
            check("cudnnSetStream", f.load(model + CUDNN, PTR), stream)
        if "cublas" in libraries:
            check("cublasCreate_v2", model + CUBLAS)
            check("cublasSetStream_v2", f.load(model + CUBLAS, PTR), stream)
        for key, slot in self._descriptors.items():
            check(f"cudnnCreate{key.kind}Descriptor", model + slot, where=self._where(key))
            self._describe(f, key, f.load(model + slot, PTR))
        for item in steps:
            if isinstance(item.step, Convolution):
                self._choose_algorithm(f, item.node, item.step)
            elif isinstance(item.step, Deconvolution):
                self._check_deconvolution(f, item.node, item.step)
        # The caller may release the weights when this returns.
        check("cudaStreamSynchronize", stream, where="weights: ")
        f.return_(0)

    def _load_machine_code(self, f: FunctionBuilder) -> None:
        """Load it where there is some and the device takes it; another one than it is for does not."""
        name = "cuModuleLoadData"
        self._declare(name)
        model, code = f.arguments[0], f.address(MACHINE_CODE)
        with f.if_(f.load(code, i32) != 0):
            status = f.call(name, model + MODULE, code)
            with f.if_(status != 0):
                f.store(NULL, model + MODULE)

    def _ask_what_is_shared(self, f: FunctionBuilder) -> None:
        """Sets REACH of an integrated device."""
        model = f.arguments[0]
        device, answer = f.load(model + DEVICE, i32), f.variable(0, i32)

        def ask(attribute: str) -> Value:
            self.check(f, "", "cudaDeviceGetAttribute", answer.pointer, CONSTANTS[attribute], device)
            return answer.get() != 0

        with f.if_(ask("cudaDevAttrIntegrated")):
            f.store(REGISTERED_MEMORY, model + REACH, i32)
            with f.if_(ask("cudaDevAttrPageableMemoryAccess")):
                f.store(ALL_MEMORY, model + REACH, i32)

    def _map_weights(self, f: FunctionBuilder) -> Variable:
        """The address at which the device reads the host's weights; null where it needs a copy."""
        mapped = f.variable(NULL, PTR)
        place = self.placement
        if place.slot_bytes is not None or not place.weights_bytes:
            return mapped
        model, _, weights = f.arguments
        reach = f.load(model + REACH, i32)
        with f.if_(reach == ALL_MEMORY):
            mapped.set(weights)
        with f.if_(reach == REGISTERED_MEMORY):
            answer = f.variable(0, i32)
            read_only = CONSTANTS["cudaDevAttrHostRegisterReadOnlySupported"]
            device = f.load(model + DEVICE, i32)
            self.check(f, "", "cudaDeviceGetAttribute", answer.pointer, read_only, device)
            with f.if_(answer.get() != 0):
                # What the driver refuses to map is copied; nobody else is to meet the error that it leaves.
                self._declare("cudaHostRegister", "cudaGetLastError")
                flags = CONSTANTS["cudaHostRegisterMapped"] | CONSTANTS["cudaHostRegisterReadOnly"]
                status = f.call("cudaHostRegister", weights, place.weights_bytes, flags)
                with f.if_(status != 0):
                    f.call("cudaGetLastError")
                with f.if_(status == 0):
                    f.store(weights, model + REGISTERED)
                    self.check(f, "weights: ", "cudaHostGetDevicePointer", mapped.pointer, weights, 0)
        with f.if_(mapped.get() != NULL):
            f.store(weights, model + SOURCE)
        return mapped

    def _allocate(self, f: FunctionBuilder, pool: Value, mapped: Variable) -> None:
        """The one allocation: pool (unless it is given), staging memory and weights (unless mapped), in this order."""
        model = f.arguments[0]
        place = self.placement
        rest = f.variable(place.staging_bytes + place.device_weights_bytes)
        with f.if_(mapped.get() != NULL):
            rest.set(place.staging_bytes)
        start = f.variable(NULL, PTR)
        f.store(pool, model + POOL)
        with f.if_(pool == NULL):
            size = rest.get() + place.pool_bytes
            with f.if_(size != 0):
                self.check(f, "", "cudaMalloc", model + OWNED, size)
                f.store(f.load(model + OWNED, PTR), model + POOL)
                start.set(f.load(model + OWNED, PTR) + place.pool_bytes)
        with f.if_(pool != NULL):
            size = rest.get()
            with f.if_(size != 0):
                self.check(f, "", "cudaMalloc", model + OWNED, size)
                start.set(f.load(model + OWNED, PTR))
        f.store(start.get(), model + STAGING)
        f.store(start.get() + place.staging_bytes, model + WEIGHTS)
        with f.if_(mapped.get() != NULL):
            f.store(mapped.get(), model + WEIGHTS)

    def _ints(self, f: FunctionBuilder, values: Sequence[int]) -> Value:
        return f.constant(struct.pack(f"<{len(values)}i", *values))

    def _describe(self, f: FunctionBuilder, key: Descriptor, descriptor: Value) -> None:
        """Give a new descriptor its meaning."""

        def check(name: str, *arguments: Argument) -> None:
            self.check(f, self._where(key), name, descriptor, *arguments)

        match key:
            case TensorShape(shape, strides):
                sizes = self._ints(f, shape), self._ints(f, strides)
                check("cudnnSetTensorNdDescriptor", _FLOAT, len(shape), *sizes)
            case FilterShape(shape):
                layout = CONSTANTS["CUDNN_TENSOR_NCHW"]
                check("cudnnSetFilterNdDescriptor", _FLOAT, layout, len(shape), self._ints(f, shape))
            case ConvolutionShape(window):
                geometry = (self._ints(f, v) for v in (window.pads, window.strides, window.dilations))
                mode = CONSTANTS["CUDNN_CROSS_CORRELATION"]
                check("cudnnSetConvolutionNdDescriptor", len(window.pads), *geometry, mode, _FLOAT)
                check("cudnnSetConvolutionGroupCount", window.groups)
                check("cudnnSetConvolutionMathType", CONSTANTS["CUDNN_FMA_MATH"])
            case PoolingShape(mode, sizes, window):
                geometry = (self._ints(f, v) for v in (sizes, window.pads, window.strides))
                nan = CONSTANTS["CUDNN_PROPAGATE_NAN"]
                check("cudnnSetPoolingNdDescriptor", CONSTANTS[mode], nan, len(sizes), *geometry)
            case Relu():
                nan = CONSTANTS["CUDNN_PROPAGATE_NAN"]
                zero = f.float_constant(0.0)
                check("cudnnSetActivationDescriptor", CONSTANTS["CUDNN_ACTIVATION_RELU"], nan, zero)

    def descriptor(self, f: FunctionBuilder, key: Descriptor) -> Value:
        """A descriptor of the model that `f` has as its first argument."""
        return f.load(f.arguments[0] + self._descriptors[key], PTR)

    def _choose_algorithm(self, f: FunctionBuilder, node: str, step: Convolution) -> None:
        """The planned algorithm if the planned workspace is enough for it, otherwise the one that needs none."""
        model = f.arguments[0]
        slot = model + self.algorithms[step]
        arguments = (
            f.load(model + CUDNN, PTR),
            self.descriptor(f, TensorShape.of(step.x.buffer)),
            self.descriptor(f, FilterShape(step.w.buffer.shape)),
            self.descriptor(f, ConvolutionShape(step.window)),
            self.descriptor(f, TensorShape.of(step.y.buffer)),
        )
        size = f.variable(0)
        name = "cudnnGetConvolutionForwardWorkspaceSize"
        self._declare(name)
        f.store(_ALGORITHM_0, slot, i32)
        if step.algorithm != _ALGORITHM_0:
            status = f.call(name, *arguments, step.algorithm, size.pointer)
            with f.if_(status == 0), f.if_(size.get() < step.scratch_bytes + 1):
                f.store(step.algorithm, slot, i32)
        with f.if_(f.load(slot, i32) == _ALGORITHM_0):
            self.check(f, f"node '{node}': ", name, *arguments, _ALGORITHM_0, size.pointer)
            self._refuse_more(f, node, size.get(), step.scratch_bytes)

    def _check_deconvolution(self, f: FunctionBuilder, node: str, step: Deconvolution) -> None:
        size = f.variable(0)
        self.check(
            f, f"node '{node}': ", "cudnnGetConvolutionBackwardDataWorkspaceSize",
            f.load(f.arguments[0] + CUDNN, PTR), self.descriptor(f, FilterShape(step.w.buffer.shape)),
            self.descriptor(f, TensorShape.of(step.dy.buffer)),
            self.descriptor(f, ConvolutionShape(step.window)),
            self.descriptor(f, TensorShape.of(step.dx.buffer)),
            CONSTANTS["CUDNN_CONVOLUTION_BWD_DATA_ALGO_0"], size.pointer,
        )  # fmt: skip
        self._refuse_more(f, node, size.get(), 0)

    def _refuse_more(self, f: FunctionBuilder, node: str, needed: Value, planned: int) -> None:
        """Fail where the library needs more workspace than is planned."""
        with f.if_(needed > planned):
            text = f"node '%s': cuDNN needs %ld bytes of workspace where {planned} are planned"
            f.call("snprintf", f.arguments[0] + ERROR, MESSAGE_BYTES, text, node, needed)
            f.return_(Code.DEVICE)

    # --- run ---

    def _define_launch(self, ops: Sequence[OpSteps]) -> None:
        """With a pool and all weights on the device nothing here waits or allocates: the stream may be captured."""
        f = self.host.function(LAUNCH, i32, [PTR])
        (model,) = f.arguments
        self.check(f, "", "cudaSetDevice", f.load(model + DEVICE, i32))
        graph = f.load(model + GRAPH, PTR)
        with f.if_(graph != NULL):
            self.check(f, "", "cudaGraphLaunch", graph, f.load(model + STREAM, PTR))
            f.return_(0)
        run = _Run(self, f, [item.step for op in ops for item in op.steps])
        run.ops(ops)
        run.record_event()
        f.return_(0)

    def _define_make_graph(self, steps: Sequence[NodeStep], callers: Sequence[Caller]) -> None:
        f = self.host.function(MAKE_GRAPH, i32, [PTR])
        (model,) = f.arguments
        allocates = any(isinstance(item.step, Allocate) for item in steps)
        if self.placement.slot_bytes is not None or allocates or self.profile:
            text = "occamy_capture: streamed weights, memory without a pool and profiles cannot be in a CUDA graph"
            f.call("snprintf", model + ERROR, MESSAGE_BYTES, "%s", text)
            f.return_(Code.BAD_ARGUMENT)
            return
        with f.if_(f.load(model + GRAPH, PTR) != NULL):
            f.return_(0)
        self.check(f, "", "cudaSetDevice", f.load(model + DEVICE, i32))
        # Every launch of the graph has the same addresses, whatever memory the caller has.
        _place_in_staging(f, callers)
        stream = f.load(model + STREAM, PTR)
        mode = CONSTANTS["cudaStreamCaptureModeThreadLocal"]
        self.check(f, "", "cudaStreamBeginCapture", stream, mode)
        code = f.call(LAUNCH, model)
        graph = f.variable(NULL, PTR)
        self._declare("cudaStreamEndCapture", "cudaGraphDestroy")
        with f.if_(code != 0):
            # The capture ends whatever was wrong in it; what went wrong is in the handle.
            f.call("cudaStreamEndCapture", stream, graph.pointer)
            with f.if_(graph.get() != NULL):
                f.call("cudaGraphDestroy", graph.get())
            f.return_(code)
        self.check(f, "", "cudaStreamEndCapture", stream, graph.pointer)
        # The executable graph outlives the graph that it is made of.
        name = "cudaGraphInstantiateWithFlags"
        self._declare(name)
        status = f.call(name, model + GRAPH, graph.get(), 0)
        f.call("cudaGraphDestroy", graph.get())
        with f.if_(status != 0):
            f.store(NULL, model + GRAPH)
            f.return_(f.call("occamy_fail_cudart", model, status, name))
        f.return_(0)

    def _define_reach(self) -> None:
        """
        `static int occamy_reach(void *model, void *host, long bytes, void **device, const char *where)`: stores the
        address at which the device reaches the caller's memory, if it does.
        """
        f = self.host.function(_REACH, i32, [PTR, PTR, i64, PTR, PTR], internal=True)
        model, host, size, result, where = f.arguments
        with f.if_(f.load(model + REACH, i32) == ALL_MEMORY):
            f.store(host, result)
            f.return_(0)
        attributes = f.array(_POINTER_ATTRIBUTES_BYTES)

        def address_of(pointer: Value) -> Value:
            """The device's address of registered memory; the function returns where the memory is not registered."""
            name = "cudaPointerGetAttributes"
            self._declare(name)
            status = f.call(name, attributes, pointer)
            with f.if_(status != 0):
                text = f.array(MESSAGE_BYTES)
                f.call("snprintf", text, MESSAGE_BYTES, f"%s{name}", where)
                f.return_(f.call("occamy_fail_cudart", model, status, text))
            with f.if_(f.load(attributes, i32) == CONSTANTS["cudaMemoryTypeUnregistered"]):
                f.return_(0)
            return f.load(attributes + 8, PTR)

        first, last = address_of(host), address_of(host + (size - 1))
        with f.if_(last == first + (size - 1)):
            f.store(first, result)
        f.return_(0)

    def _define_main(self, inputs: Sequence[Caller], outputs: Sequence[Caller]) -> None:
        f = self.host.function(MAIN, i32, [PTR, PTR, PTR])
        model, sources, targets = f.arguments
        self.check(f, "", "cudaSetDevice", f.load(model + DEVICE, i32))
        stream, staging = f.load(model + STREAM, PTR), f.load(model + STAGING, PTR)
        h2d, d2h = CONSTANTS["cudaMemcpyHostToDevice"], CONSTANTS["cudaMemcpyDeviceToHost"]
        arrays = {"input": sources, "output": targets}
        tensors = [tensor for tensor in (*inputs, *outputs) if tensor.bytes]
        _place_in_staging(f, tensors)
        with f.if_(f.load(model + REACH, i32) != NOTHING), f.if_(f.load(model + GRAPH, PTR) == NULL):
            for tensor in tensors:
                pointer = f.load(arrays[tensor.kind] + 8 * tensor.index, PTR)
                with f.if_((pointer.address() & (tensor.alignment - 1)) == 0):
                    code = f.call(_REACH, model, pointer, tensor.bytes, model + tensor.field, tensor.where)
                    with f.if_(code != 0):
                        f.return_(code)

        def copy(tensor: Caller) -> None:
            """Copy a tensor between the caller's memory and its place in the staging memory, if it is there."""
            own = staging + tensor.offset
            with f.if_(f.load(model + tensor.field, PTR) == own):
                pointer = f.load(arrays[tensor.kind] + 8 * tensor.index, PTR)
                ends, way = ((own, pointer), h2d) if tensor.kind == "input" else ((pointer, own), d2h)
                self.check(f, tensor.where, "cudaMemcpyAsync", *ends, tensor.bytes, way, stream)

        for tensor in inputs:
            if tensor.bytes:
                copy(tensor)
        code = f.call(LAUNCH, model)
        with f.if_(code != 0):
            f.return_(code)
        for tensor in outputs:
            if tensor.bytes:
                copy(tensor)
        self.check(f, "", "cudaStreamSynchronize", stream)
        if len(self.events) > 1:
            times = f.load(targets + 8 * len(outputs), PTR)
            with f.for_(len(self.events) - 1) as i:
                start, end = (f.load(model + (i << 3) + self.events[j], PTR) for j in range(2))
                self.check(f, "", "cudaEventElapsedTime", times + (i << 2), start, end)
        f.return_(0)

    # --- release ---

    def _define_abandon(self, steps: Sequence[NodeStep]) -> None:
        """Statuses are ignored: the failure before is the one to report."""
        f = self.host.function(ABANDON, VOID, [PTR])
        (model,) = f.arguments
        self._declare("cudaStreamSynchronize")
        f.call("cudaStreamSynchronize", f.load(model + STREAM, PTR))
        if self.placement.slot_bytes is not None:
            f.call("cudaStreamSynchronize", f.load(model + FILLING, PTR))
        fields = {
            self.placement.find(item.step.buffer, Buffer.contiguous(()))[0]: item.step.on_host
            for item in steps
            if isinstance(item.step, Allocate)
        }
        for field, on_host in fields.items():
            name = "cudaFreeHost" if on_host else "cudaFree"
            self._declare(name)
            address = f.load(model + field, PTR)
            with f.if_(address != NULL):
                f.call(name, address)
                f.store(NULL, model + field)
        f.return_()

    def _define_teardown(self, libraries: Sequence[str]) -> None:
        """Statuses are ignored: there is nobody to report them to, and the rest has to be released."""
        f = self.host.function(TEARDOWN, VOID, [PTR])
        (model,) = f.arguments

        def release(offset: Value | int, name: str) -> None:
            self._declare(name)
            handle = f.load(model + offset, PTR)
            with f.if_(handle != NULL):
                f.call(name, handle)

        stream = f.load(model + STREAM, PTR)
        with f.if_(stream != NULL):
            # A thread that has not run the model has another context, or none.
            self._declare("cudaSetDevice", "cudaStreamSynchronize")
            f.call("cudaSetDevice", f.load(model + DEVICE, i32))
            f.call("cudaStreamSynchronize", stream)
            if self.placement.slot_bytes is not None:
                filling = f.load(model + FILLING, PTR)
                with f.if_(filling != NULL):
                    f.call("cudaStreamSynchronize", filling)
        release(GRAPH, "cudaGraphExecDestroy")
        for kind, group in groupby(self._descriptors.items(), lambda entry: entry[0].kind):
            slots = [slot for _, slot in group]
            with f.for_(len(slots)) as i:
                release((i << 3) + slots[0], f"cudnnDestroy{kind}Descriptor")
        if "cudnn" in libraries:
            release(CUDNN, "cudnnDestroy")
        if "cublas" in libraries:
            release(CUBLAS, "cublasDestroy_v2")
        if "cuda" in libraries:
            release(MODULE, "cuModuleUnload")
        if self.profile:
            with f.for_(len(self.events)) as i:
                release((i << 3) + self.events.start, "cudaEventDestroy")
        release(OWNED, "cudaFree")
        release(REGISTERED, "cudaHostUnregister")
        if self.placement.slot_bytes is not None:
            for event in (*READY, *DONE):
                release(event, "cudaEventDestroy")
            release(FILLING, "cudaStreamDestroy")
        release(STREAM, "cudaStreamDestroy")
        f.return_()


class _Run:
    """Emits the calls of `occamy_launch` for one step after the other."""

    def __init__(self, program: ProgramBuilder, f: FunctionBuilder, steps: Sequence[Step]):
        self.program = program
        self.f = f
        model = f.arguments[0]
        self.bases: Mapping[int, Value] = {name: f.load(model + name, PTR) for name in (POOL, WEIGHTS)}
        self.stream = f.load(model + STREAM, PTR)
        most = max((len(s.operands) for s in steps if isinstance(s, Launch)), default=0)
        # The driver copies the values at each launch, so all launches share these arrays.
        self.parameters = f.array(8 * (most + 1)) if most else None
        self.values = f.array(8 * most) if most else None
        self.workspace: tuple[int, int] = POOL, 0
        self.where = ""
        self.events = iter(program.events)
        self.slot: tuple[int, Sequence[Piece]] = 0, ()
        """Of streamed weights, where the slot of the current op starts, and what is in it."""

    def call(self, name: str, *arguments: Argument) -> None:
        self.program.check(self.f, self.where, name, *arguments)

    def address(self, operand: Operand | Scratch | None) -> Argument:
        """The device address of element (0, 0, ...) of an operand, or of scratch memory."""
        if operand is None:
            return NULL
        place = operand if isinstance(operand, Scratch) else operand.place
        shift = 0 if isinstance(operand, Scratch) else operand.shift
        if isinstance(place, Scratch):
            base, start = self.workspace
            return self.base(base) + (start + place.offset + shift)
        assert isinstance(operand, Operand)
        base, offset = self.program.placement.find(place, operand.buffer)
        if base == WEIGHTS and self.program.placement.slot_bytes is not None:
            start, pieces = self.slot
            piece = next(p for p in pieces if p.source <= offset < p.source + p.bytes)
            offset = start + piece.target + offset - piece.source
        return self.base(base) + (offset + operand.shift)

    def base(self, field: int) -> Value:
        """The address in a field of the handle."""
        return self.bases[field] if field in self.bases else self.field(field)

    def field(self, offset: int) -> Value:
        return self.f.load(self.f.arguments[0] + offset, PTR)

    def descriptor(self, key: Descriptor) -> Value:
        return self.program.descriptor(self.f, key)

    def tensor(self, operand: Operand) -> Value:
        return self.descriptor(TensorShape.of(operand.buffer))

    def ops(self, ops: Sequence[OpSteps]) -> None:
        """Emit all steps; streamed weights are on their way to the device one op ahead."""
        streamed = [op for op in ops if op.pieces]
        if streamed:
            self.fill(0, streamed[0])
        number = 0
        for op in ops:
            if op.pieces:
                if number + 1 < len(streamed):
                    self.fill(number + 1, streamed[number + 1])
                self.where = f"node '{op.steps[0].node}': "
                self.slot = self.start_of(number), op.pieces
                self.call("cudaStreamWaitEvent", self.stream, self.field(READY[number % 2]), 0)
            for item in op.steps:
                self.step(item)
            if op.pieces:
                self.call("cudaEventRecord", self.field(DONE[number % 2]), self.stream)
                number += 1

    def record_event(self) -> None:
        """Record the next event of a profile, if there is one."""
        for field in islice(self.events, 1):
            self.call("cudaEventRecord", self.field(field), self.stream)

    def start_of(self, number: int) -> int:
        """Where the slot of the `number`-th op with streamed weights starts, in bytes."""
        slot_bytes = self.program.placement.slot_bytes
        assert slot_bytes is not None
        return number % 2 * slot_bytes

    def fill(self, number: int, op: OpSteps) -> None:
        """Copy the weights of an op to its slot as soon as the op before the last one is done."""
        self.where = f"weights of node '{op.steps[0].node}': "
        filling = self.field(FILLING)
        self.call("cudaStreamWaitEvent", filling, self.field(DONE[number % 2]), 0)
        way = CONSTANTS["cudaMemcpyHostToDevice"]
        for piece in op.pieces:
            target = self.bases[WEIGHTS] + (self.start_of(number) + piece.target)
            source = self.field(SOURCE) + piece.source
            self.call("cudaMemcpyAsync", target, source, piece.bytes, way, filling)
        self.call("cudaEventRecord", self.field(READY[number % 2]), filling)

    def step(self, item: NodeStep) -> None:
        """Emit one step."""
        self.where = f"node '{item.node}': "
        self.record_event()
        if item.workspace is not None:
            self.workspace = self.program.placement.find(item.workspace, Buffer.contiguous(()))
        match item.step:
            case Allocate() as step:
                slot, _ = self.program.placement.find(step.buffer, Buffer.contiguous(()))
                flags = (CONSTANTS["cudaHostAllocDefault"],) if step.on_host else ()
                name = "cudaHostAlloc" if step.on_host else "cudaMalloc"
                self.call(name, self.f.arguments[0] + slot, step.bytes, *flags)
            case Free() as step:
                slot, _ = self.program.placement.find(step.buffer, Buffer.contiguous(()))
                self.call("cudaFreeHost" if step.on_host else "cudaFree", self.field(slot))
                self.f.store(NULL, self.f.arguments[0] + slot)
            case Transfer() as step:
                way = CONSTANTS[f"cudaMemcpy{step.way}"]
                self.call(
                    "cudaMemcpyAsync", self.address(step.target), self.address(step.source), step.bytes, way,
                    self.stream,
                )  # fmt: skip
            case Launch() as step:
                self.launch(step)
            case Convolution() as step:
                self.convolution(step)
            case Deconvolution() as step:
                self.call(
                    "cudnnConvolutionBackwardData", self.field(CUDNN), self.one,
                    self.descriptor(FilterShape(step.w.buffer.shape)), self.address(step.w),
                    self.tensor(step.dy), self.address(step.dy), self.descriptor(ConvolutionShape(step.window)),
                    CONSTANTS["CUDNN_CONVOLUTION_BWD_DATA_ALGO_0"], NULL, 0, self.zero,
                    self.tensor(step.dx), self.address(step.dx),
                )  # fmt: skip
            case Pooling() as step:
                self.call(
                    "cudnnPoolingForward", self.field(CUDNN),
                    self.descriptor(PoolingShape(step.mode, step.sizes, step.window)), self.one,
                    self.tensor(step.x), self.address(step.x), self.zero, self.tensor(step.y),
                    self.address(step.y),
                )  # fmt: skip
            case Softmax() as step:
                algorithm = CONSTANTS["CUDNN_SOFTMAX_LOG" if step.log else "CUDNN_SOFTMAX_ACCURATE"]
                mode = CONSTANTS["CUDNN_SOFTMAX_MODE_CHANNEL"]
                self.call(
                    "cudnnSoftmaxForward", self.field(CUDNN), algorithm, mode, self.one, self.tensor(step.x),
                    self.address(step.x), self.zero, self.tensor(step.y), self.address(step.y),
                )  # fmt: skip
            case Product() as step:
                self.product(step)

    @property
    def one(self) -> Value:
        return self.f.constant(_ONE)

    @property
    def zero(self) -> Value:
        return self.f.constant(_ZERO)

    def launch(self, step: Launch) -> None:
        f = self.f
        assert self.parameters is not None
        assert self.values is not None
        for i, (operand, buffer) in enumerate(zip(step.operands, step.kernel.arguments, strict=True)):
            address = self.address(operand)
            assert isinstance(address, Value)
            # A kernel takes the lowest address of its elements.
            f.store(address + -buffer.origin * buffer.element_bytes, self.values + 8 * i)
            f.store(self.values + 8 * i, self.parameters + 8 * i)
        f.store(NULL, self.parameters + 8 * len(step.operands))
        kernel = step.kernel
        function = self.field(self.program.kernels[kernel.symbol])
        self.call(
            "cuLaunchKernel", function, *kernel.grid, *kernel.block, 0, self.stream, self.parameters, NULL
        )

    def convolution(self, step: Convolution) -> None:
        algorithm = self.f.load(
            self.f.arguments[0] + self.program.algorithms[step],
            i32,
        )
        operands = (
            self.tensor(step.x), self.address(step.x), self.descriptor(FilterShape(step.w.buffer.shape)),
            self.address(step.w), self.descriptor(ConvolutionShape(step.window)), algorithm,
            self.address(step.scratch), step.scratch_bytes,
        )  # fmt: skip
        y = self.tensor(step.y), self.address(step.y)
        handle = self.field(CUDNN)
        if step.bias is None:
            scale = self.one if step.accumulates else self.zero
            self.call("cudnnConvolutionForward", handle, self.one, *operands, scale, *y)
            return
        z = y if step.z is None else (self.tensor(step.z), self.address(step.z))
        self.call(
            "cudnnConvolutionBiasActivationForward", handle, self.one, *operands,
            self.zero if step.z is None and not step.accumulates else self.one, *z, self.descriptor(_bias_shape(step)),
            self.address(step.bias), self.descriptor(Relu()), *y,
        )  # fmt: skip

    def product(self, step: Product) -> None:
        handle = self.field(CUBLAS)
        self.call("cublasSetWorkspace_v2", handle, self.address(step.scratch), step.scratch_bytes)

        def matrix(m: Matrix) -> tuple[Argument, Argument, Argument]:
            return self.address(m.operand), m.leading, m.batch_stride

        transposed = (CONSTANTS["CUBLAS_OP_T" if m.transposed else "CUBLAS_OP_N"] for m in (step.a, step.b))
        self.call(
            "cublasSgemmStridedBatched", handle, *transposed, step.m, step.n, step.k, self.one,
            *matrix(step.a), *matrix(step.b), self.one if step.accumulates else self.zero, *matrix(step.c),
            step.count,
        )  # fmt: skip
