"""
Host code that runs the steps of a model on a GPU, as llvm-dialect functions that call NVIDIA's libraries.

These functions work on a model handle, a block of host memory that starts as zeros:

- `occamy_setup(model, pool, weights)` makes one device allocation, copies the weights to it, loads the kernels
  and creates streams, library handles and descriptors;
- `occamy_launch(model)` puts the model, from inputs in device memory to outputs there, on its stream;
- `occamy_make_graph(model)` makes a CUDA graph of that, which is launched from then on;
- `occamy_main(model, inputs, outputs)` copies, launches and waits;
- `occamy_teardown(model)` releases what the handle holds, however far the setup came.

All but the last return 0 or `Code.DEVICE`; then the handle holds a message with the node, the call and its status.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

from xdsl.dialects.builtin import i32
from xdsl.ir import SSAValue

from occamy_xdsl.dialects.weights import Weights
from occamy_xdsl.lowering.cpu.abi import Code
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer
from occamy_xdsl.lowering.cuda import api
from occamy_xdsl.lowering.cuda.api import CONSTANTS, FUNCTIONS
from occamy_xdsl.lowering.cuda.steps import (
    Convolution,
    Deconvolution,
    Launch,
    Matrix,
    Operand,
    Pooling,
    Product,
    Scratch,
    Softmax,
    Step,
    Window,
)
from occamy_xdsl.lowering.host import NULL, PTR, VOID, FunctionBuilder, HostModule, Value
from occamy_xdsl.lowering.host import Operand as Argument

SETUP, MAIN, TEARDOWN = "occamy_setup", "occamy_main", "occamy_teardown"
LAUNCH, MAKE_GRAPH = "occamy_launch", "occamy_make_graph"
KERNELS = "occamy_kernels"
"""Symbol of the PTX text, which ends in a zero byte."""
MACHINE_CODE = "occamy_machine_code"
"""Symbol of the kernels in machine code; four zero bytes where there is none."""

# Byte offsets of the fields of a model handle; those of the kernels and descriptors follow.
POOL, OWNED, WEIGHTS, STAGING, STREAM, CUDNN, CUBLAS, MODULE, DEVICE, GRAPH, ERROR = (
    8 * i for i in range(11)
)
MESSAGE_BYTES = 512
_FIELDS = ERROR + MESSAGE_BYTES

_FLOAT = CONSTANTS["CUDNN_DATA_FLOAT"]
_ALGORITHM_0 = CONSTANTS["CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM"]
_ONE, _ZERO = struct.pack("<f", 1.0), struct.pack("<f", 0.0)


@dataclass(frozen=True)
class Caller:
    """An input or output of the model: its bytes, and where its copy lies in the staging memory."""

    index: int
    offset: int
    bytes: int
    name: str


@dataclass(frozen=True)
class Placement:
    """Where all arrays are, in bytes from the start of the pool, the weights or the staging memory."""

    pool_bytes: int
    weights_bytes: int
    staging_bytes: int
    find: Callable[[SSAValue | Weights, Buffer], tuple[int, int]]
    """The field of the handle that holds the base (POOL, WEIGHTS or STAGING), and the offset of a place."""


@dataclass(frozen=True)
class NodeStep:
    """A step, the node of the model it belongs to, and the offset of its op's workspace in the pool."""

    node: str
    step: Step
    workspace: int


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
        case Launch() | Product():
            return []


def _bias_shape(step: Convolution) -> TensorShape:
    rank = step.y.buffer.rank
    return TensorShape.of(Buffer.contiguous((1, step.y.buffer.shape[1], *(1,) * (rank - 2))))


class ProgramBuilder:
    """Writes the functions into `host`; `model_bytes` is known afterwards."""

    def __init__(self, host: HostModule, placement: Placement):
        self.host = host
        self.placement = placement
        self.model_bytes = _FIELDS
        self._declared: set[str] = set()
        self.kernels: dict[str, int] = {}
        self._descriptors: dict[Descriptor, int] = {}
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

    def _collect(self, steps: Sequence[NodeStep]) -> None:
        """Gives every kernel and descriptor its field; descriptors of one kind lie side by side."""
        wanted: dict[Descriptor, None] = {}
        for item in steps:
            step = item.step
            if isinstance(step, Launch) and step.kernel.symbol not in self.kernels:
                self.kernels[step.kernel.symbol] = self._slot()
            if isinstance(step, Convolution):
                self.algorithms[step] = self._slot()
            wanted.update(dict.fromkeys(_descriptors(step)))
        for key in sorted(wanted, key=lambda key: key.kind):
            self._descriptors[key] = self._slot()

    def build(self, steps: Sequence[NodeStep], inputs: Sequence[Caller], outputs: Sequence[Caller]) -> None:
        """Write everything."""
        self._collect(steps)
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
        self._define_setup(libraries, steps)
        self._define_launch(steps)
        self._define_make_graph()
        self._define_main(inputs, outputs)
        self._define_teardown(libraries)

    # --- setup ---

    def _define_setup(self, libraries: Sequence[str], steps: Sequence[NodeStep]) -> None:
        f = self.host.function(SETUP, i32, [PTR, PTR, PTR])
        model, pool, weights = f.arguments

        def check(name: str, *arguments: Argument, where: str = "") -> None:
            self.check(f, where, name, *arguments)

        check("cudaGetDevice", model + DEVICE)
        # This makes the device's context current, which the functions of the driver need.
        check("cudaSetDevice", f.load(model + DEVICE, i32))
        check("cudaStreamCreateWithFlags", model + STREAM, CONSTANTS["cudaStreamNonBlocking"])
        stream = f.load(model + STREAM, PTR)
        self._allocate(f, pool)
        if self.placement.weights_bytes:
            target = f.load(model + WEIGHTS, PTR)
            way = CONSTANTS["cudaMemcpyHostToDevice"]
            size = self.placement.weights_bytes
            check("cudaMemcpyAsync", target, weights, size, way, stream, where="weights: ")
        if "cuda" in libraries:
            self._load_machine_code(f)
            with f.if_(f.load(model + MODULE, PTR) == NULL):
                check("cuModuleLoadData", model + MODULE, f.address(KERNELS))
            module = f.load(model + MODULE, PTR)
            for name, slot in self.kernels.items():
                check("cuModuleGetFunction", model + slot, module, name)
        if "cudnn" in libraries:
            check("cudnnCreate", model + CUDNN)
            check("cudnnSetStream", f.load(model + CUDNN, PTR), stream)
        if "cublas" in libraries:
            check("cublasCreate_v2", model + CUBLAS)
            check("cublasSetStream_v2", f.load(model + CUBLAS, PTR), stream)
        for key, slot in self._descriptors.items():
            check(f"cudnnCreate{key.kind}Descriptor", model + slot)
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

    def _allocate(self, f: FunctionBuilder, pool: Value) -> None:
        """The one allocation: pool (unless it is given), staging memory and weights, in this order."""
        model = f.arguments[0]
        place = self.placement
        rest = place.staging_bytes + place.weights_bytes
        start = f.variable(NULL, PTR)
        f.store(pool, model + POOL)
        if rest or place.pool_bytes:
            with f.if_(pool == NULL):
                self.check(f, "", "cudaMalloc", model + OWNED, place.pool_bytes + rest)
                f.store(f.load(model + OWNED, PTR), model + POOL)
                start.set(f.load(model + OWNED, PTR) + place.pool_bytes)
        if rest:
            with f.if_(pool != NULL):
                self.check(f, "", "cudaMalloc", model + OWNED, rest)
                start.set(f.load(model + OWNED, PTR))
            f.store(start.get(), model + STAGING)
            f.store(start.get() + place.staging_bytes, model + WEIGHTS)

    def _ints(self, f: FunctionBuilder, values: Sequence[int]) -> Value:
        return f.constant(struct.pack(f"<{len(values)}i", *values))

    def _describe(self, f: FunctionBuilder, key: Descriptor, descriptor: Value) -> None:
        """Give a new descriptor its meaning."""

        def check(name: str, *arguments: Argument) -> None:
            self.check(f, "", name, descriptor, *arguments)

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

    def _define_launch(self, steps: Sequence[NodeStep]) -> None:
        """Nothing here waits or allocates, so that the stream may be captured."""
        f = self.host.function(LAUNCH, i32, [PTR])
        (model,) = f.arguments
        self.check(f, "", "cudaSetDevice", f.load(model + DEVICE, i32))
        graph = f.load(model + GRAPH, PTR)
        with f.if_(graph != NULL):
            self.check(f, "", "cudaGraphLaunch", graph, f.load(model + STREAM, PTR))
            f.return_(0)
        run = _Run(self, f, [item.step for item in steps])
        for item in steps:
            run.step(item)
        f.return_(0)

    def _define_make_graph(self) -> None:
        f = self.host.function(MAKE_GRAPH, i32, [PTR])
        (model,) = f.arguments
        with f.if_(f.load(model + GRAPH, PTR) != NULL):
            f.return_(0)
        self.check(f, "", "cudaSetDevice", f.load(model + DEVICE, i32))
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

    def _define_main(self, inputs: Sequence[Caller], outputs: Sequence[Caller]) -> None:
        f = self.host.function(MAIN, i32, [PTR, PTR, PTR])
        model, sources, targets = f.arguments
        self.check(f, "", "cudaSetDevice", f.load(model + DEVICE, i32))
        stream, staging = f.load(model + STREAM, PTR), f.load(model + STAGING, PTR)
        h2d, d2h = CONSTANTS["cudaMemcpyHostToDevice"], CONSTANTS["cudaMemcpyDeviceToHost"]
        for tensor in inputs:
            if tensor.bytes:
                source = f.load(sources + 8 * tensor.index, PTR)
                self.check(
                    f, f"input '{tensor.name}': ", "cudaMemcpyAsync", staging + tensor.offset, source,
                    tensor.bytes, h2d, stream,
                )  # fmt: skip
        code = f.call(LAUNCH, model)
        with f.if_(code != 0):
            f.return_(code)
        for tensor in outputs:
            if tensor.bytes:
                target = f.load(targets + 8 * tensor.index, PTR)
                self.check(
                    f, f"output '{tensor.name}': ", "cudaMemcpyAsync", target, staging + tensor.offset,
                    tensor.bytes, d2h, stream,
                )  # fmt: skip
        self.check(f, "", "cudaStreamSynchronize", stream)
        f.return_(0)

    # --- teardown ---

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
        release(OWNED, "cudaFree")
        release(STREAM, "cudaStreamDestroy")
        f.return_()


class _Run:
    """Emits the calls of `occamy_launch` for one step after the other."""

    def __init__(self, program: ProgramBuilder, f: FunctionBuilder, steps: Sequence[Step]):
        self.program = program
        self.f = f
        model = f.arguments[0]
        self.bases: Mapping[int, Value] = {
            name: f.load(model + name, PTR) for name in (POOL, WEIGHTS, STAGING)
        }
        self.stream = f.load(model + STREAM, PTR)
        most = max((len(s.operands) for s in steps if isinstance(s, Launch)), default=0)
        # The driver copies the values at each launch, so all launches share these arrays.
        self.parameters = f.array(8 * (most + 1)) if most else None
        self.values = f.array(8 * most) if most else None
        self.workspace = 0
        self.where = ""

    def call(self, name: str, *arguments: Argument) -> None:
        self.program.check(self.f, self.where, name, *arguments)

    def address(self, operand: Operand | Scratch | None) -> Argument:
        """The device address of element (0, 0, ...) of an operand, or of scratch memory."""
        if operand is None:
            return NULL
        if isinstance(operand, Scratch):
            return self.bases[POOL] + (self.workspace + operand.offset)
        if isinstance(operand.place, Scratch):
            return self.bases[POOL] + (self.workspace + operand.place.offset + operand.shift)
        base, offset = self.program.placement.find(operand.place, operand.buffer)
        return self.bases[base] + (offset + operand.shift)

    def field(self, offset: int) -> Value:
        return self.f.load(self.f.arguments[0] + offset, PTR)

    def descriptor(self, key: Descriptor) -> Value:
        return self.program.descriptor(self.f, key)

    def tensor(self, operand: Operand) -> Value:
        return self.descriptor(TensorShape.of(operand.buffer))

    def step(self, item: NodeStep) -> None:
        """Emit one step."""
        self.where, self.workspace = f"node '{item.node}': ", item.workspace
        match item.step:
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
            self.call("cudnnConvolutionForward", handle, self.one, *operands, self.zero, *y)
            return
        z = y if step.z is None else (self.tensor(step.z), self.address(step.z))
        self.call(
            "cudnnConvolutionBiasActivationForward", handle, self.one, *operands,
            self.zero if step.z is None else self.one, *z, self.descriptor(_bias_shape(step)),
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
            *matrix(step.a), *matrix(step.b), self.zero, *matrix(step.c), step.count,
        )  # fmt: skip
