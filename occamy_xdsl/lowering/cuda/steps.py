"""What a GPU is asked to do for one op: launches of generated kernels and calls of cuDNN and cuBLAS."""

from dataclasses import dataclass
from typing import TypeAlias

from xdsl.ir import SSAValue

from occamy_xdsl.dialects.weights import Weights
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer
from occamy_xdsl.lowering.cuda.kernels.spec import GpuKernel


@dataclass(frozen=True)
class Scratch:
    """Memory in the op's workspace, from byte `offset` on."""

    offset: int


Place: TypeAlias = SSAValue | Weights | Scratch
"""Where an operand is: in a buffer of the program, in a constant array, or in the op's workspace."""


@dataclass(frozen=True)
class Operand:
    """An array in device memory."""

    place: Place
    buffer: Buffer
    offset: int = 0
    """Elements from the place to element (0, 0, ...)."""

    @property
    def shift(self) -> int:
        """Bytes from the place to element (0, 0, ...)."""
        return self.offset * self.buffer.element_bytes


@dataclass(frozen=True)
class Launch:
    """One launch of a generated kernel; `operands` are its arguments in order."""

    kernel: GpuKernel
    operands: tuple[Operand, ...]

    @property
    def read(self) -> tuple[Operand, ...]:
        """The arrays that are read."""
        return self.operands[:-1]


@dataclass(frozen=True)
class Window:
    """The geometry of a convolution, one entry for each spatial dimension, in elements."""

    pads: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int = 1


@dataclass(frozen=True)
class Convolution:
    """
    `y = x * w` by cudnnConvolutionForward, or with `bias` cudnnConvolutionBiasActivationForward:
    `y = relu(x * w + z + bias)`, where `z` may be absent.

    `scratch_bytes` of workspace are planned for `algorithm`; a model falls back to algorithm 0 where the
    library asks for more.
    """

    x: Operand
    w: Operand
    y: Operand
    window: Window
    algorithm: int
    scratch: Scratch | None
    scratch_bytes: int
    bias: Operand | None = None
    z: Operand | None = None
    accumulates: bool = False
    """Whether the result is added to what `y` holds."""

    @property
    def read(self) -> tuple[Operand, ...]:
        """The arrays that are read."""
        return self.x, self.w, *(operand for operand in (self.bias, self.z) if operand is not None)


@dataclass(frozen=True)
class Deconvolution:
    """`dx`, what a convolution of it by `w` would have made `dy` of, by cudnnConvolutionBackwardData."""

    dy: Operand
    w: Operand
    dx: Operand
    window: Window

    @property
    def read(self) -> tuple[Operand, ...]:
        """The arrays that are read."""
        return self.dy, self.w


@dataclass(frozen=True)
class Pooling:
    """Pooling by cudnnPoolingForward; `mode` is the name of a cudnnPoolingMode_t."""

    x: Operand
    y: Operand
    mode: str
    sizes: tuple[int, ...]
    window: Window

    @property
    def read(self) -> tuple[Operand, ...]:
        """The arrays that are read."""
        return (self.x,)


@dataclass(frozen=True)
class Softmax:
    """Softmax over dimension 1 of (outer, size, inner) arrays, or its logarithm, by cudnnSoftmaxForward."""

    x: Operand
    y: Operand
    log: bool

    @property
    def read(self) -> tuple[Operand, ...]:
        """The arrays that are read."""
        return (self.x,)


@dataclass(frozen=True)
class Matrix:
    """One operand of a matrix product, as cuBLAS sees it: column-major, `leading` elements between columns."""

    operand: Operand
    leading: int
    batch_stride: int
    transposed: bool = False


@dataclass(frozen=True)
class Product:
    """`c = op(a) op(b)` for `count` column-major matrices, or `c +=`, by cublasSgemmStridedBatched."""

    a: Matrix
    b: Matrix
    c: Matrix
    m: int
    n: int
    k: int
    count: int
    scratch: Scratch | None
    scratch_bytes: int
    accumulates: bool = False
    """Whether the products are added to what `c` holds."""

    @property
    def read(self) -> tuple[Operand, ...]:
        """The arrays that are read."""
        return self.a.operand, self.b.operand


@dataclass(frozen=True)
class Allocate:
    """Allocates a buffer outside of a pool, of device memory or of pinned host memory."""

    buffer: SSAValue
    bytes: int
    on_host: bool

    @property
    def read(self) -> tuple[Operand, ...]:
        """The arrays that are read."""
        return ()


@dataclass(frozen=True)
class Free:
    """Frees what `Allocate` allocated."""

    buffer: SSAValue
    on_host: bool

    @property
    def read(self) -> tuple[Operand, ...]:
        """The arrays that are read."""
        return ()


@dataclass(frozen=True)
class Transfer:
    """Copies all bytes of a buffer to or from the host; `way` is the end of the name of a cudaMemcpyKind."""

    source: Operand
    target: Operand
    bytes: int
    way: str

    @property
    def read(self) -> tuple[Operand, ...]:
        """The arrays that are read."""
        return (self.source,)


Step: TypeAlias = (
    Launch | Convolution | Deconvolution | Pooling | Softmax | Product | Allocate | Free | Transfer
)


def kernel_name(step: Step) -> str:
    """What a step runs: a generated kernel, or a function of a library."""
    match step:
        case Launch():
            return step.kernel.symbol
        case Convolution():
            return f"cudnnConvolution{'' if step.bias is None else 'BiasActivation'}Forward"
        case Deconvolution():
            return "cudnnConvolutionBackwardData"
        case Pooling():
            return "cudnnPoolingForward"
        case Softmax():
            return "cudnnSoftmaxForward"
        case Product():
            return "cublasSgemmStridedBatched"
        case Allocate():
            return "cudaHostAlloc" if step.on_host else "cudaMalloc"
        case Free():
            return "cudaFreeHost" if step.on_host else "cudaFree"
        case Transfer():
            return "cudaMemcpyAsync"
