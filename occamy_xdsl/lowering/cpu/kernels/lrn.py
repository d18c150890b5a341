"""Local response normalisation across channels."""

from dataclasses import dataclass

from xdsl.dialects import arith, math
from xdsl.dialects.func import FuncOp
from xdsl.ir import SSAValue

from occamy_xdsl.lowering.cpu.kernels.builder import IndexLike, KernelBuilder
from occamy_xdsl.lowering.cpu.kernels.reduction import compute_dtype
from occamy_xdsl.lowering.cpu.kernels.spec import STORAGE_TYPES, Buffer, Kernel
from occamy_xdsl.lowering.cpu.kernels.strided import Dim, collapse, shuffle
from occamy_xdsl.lowering.toolchain import Isa


@dataclass(frozen=True)
class Lrn(Kernel):
    """
    `x / (bias + alpha / size * sum(x^2 over size channels around)) ^ beta`, channels in dimension 1.

    Vectors run over channels where these are neighbours in memory, else over another dimension. The output
    must not lie in the memory of the input. 16-bit floats are computed in f32. Source: ONNX LRN-13.
    """

    size: int
    alpha: float
    beta: float
    bias: float
    input: Buffer
    output: Buffer

    @property
    def label(self) -> str:
        return f"lrn_{self.size}_" + "x".join(map(str, self.input.shape))

    @property
    def arguments(self) -> tuple[Buffer, ...]:
        return self.input, self.output

    @property
    def before(self) -> int:
        """Channels in the sum before the one that is normalised."""
        return (self.size - 1) // 2

    @property
    def after(self) -> int:
        """Channels in the sum after the one that is normalised."""
        return self.size // 2

    def build(self, isa: Isa) -> FuncOp:
        k = KernelBuilder(self, isa)
        if self.output.elements:
            _LrnNest(self, k).build()
        return k.finish()


class _LrnNest:
    def __init__(self, lrn: Lrn, k: KernelBuilder):
        self.lrn, self.k = lrn, k
        self.dtype = compute_dtype(lrn.input.dtype)
        self.lanes = k.isa.lanes(STORAGE_TYPES[self.dtype].size)
        self.channels = Dim(lrn.input.shape[1], (lrn.input.strides[1], lrn.output.strides[1]))
        others = [d for d in range(lrn.input.rank) if d != 1]
        self.dims = collapse(
            [lrn.input.shape[d] for d in others],
            [[b.strides[d] for d in others] for b in (lrn.input, lrn.output)],
        )

    def build(self) -> None:
        across = next((dim for dim in self.dims if dim.strides[0] == 1), None)
        over_channels = across is None or self.channels.strides[0] == 1
        if not over_channels and across is not None:
            self.dims.remove(across)

        def loop(d: int, at: IndexLike, to: IndexLike) -> None:
            if d < len(self.dims):
                along, out = self.dims[d].strides
                self.k.for_(0, self.dims[d].size, 1, lambda i: loop(d + 1, at + i * along, to + i * out))
            elif over_channels or across is None:
                self.along_channels(at, to)
            else:
                self.across_channels(across, at, to)

        loop(0, self.lrn.input.origin, self.lrn.output.origin)

    def load(self, at: IndexLike, valid: int, stride: int) -> SSAValue:
        value = self.k.load(self.k.views[0], at, self.lanes, valid=valid, stride=stride)
        return self.k.convert(value, self.lrn.input.dtype, self.dtype)

    def store(self, x: SSAValue, total: SSAValue, to: IndexLike, valid: int, stride: int) -> None:
        """Store `x` normalised by the sum of squares `total`."""
        k, lrn = self.k, self.lrn

        def constant(value: float) -> SSAValue:
            return k.constant(value, STORAGE_TYPES[self.dtype], self.lanes)

        base = k.fma(total, constant(lrn.alpha / lrn.size), constant(lrn.bias))
        if lrn.beta == 0.75:
            root = k.emit(math.SqrtOp(base))
            power = k.emit(arith.MulfOp(root, k.emit(math.SqrtOp(root))))
        elif lrn.beta == 0.5:
            power = k.emit(math.SqrtOp(base))
        else:
            exponent = k.emit(arith.MulfOp(constant(lrn.beta), k.apply(math.LogOp, base)))
            power = k.apply(math.ExpOp, exponent)
        value = k.convert(k.emit(arith.DivfOp(x, power)), self.dtype, lrn.output.dtype)
        k.store(value, k.views[1], to, valid=valid, stride=stride)

    def add_square(self, total: SSAValue | None, x: SSAValue) -> SSAValue:
        return self.k.emit(arith.MulfOp(x, x)) if total is None else self.k.fma(x, x, total)

    # --- one channel in each lane ---

    def along_channels(self, at: IndexLike, to: IndexLike) -> None:
        size, lanes = self.channels.size, self.lanes
        blocks = range(0, size, lanes)
        inner = [c for c in blocks if c >= self.lrn.before and c + lanes + self.lrn.after <= size]
        first, last = (inner[0], inner[-1] + lanes) if inner else (size, size)
        for c in blocks:
            if not first <= c < last:
                self.channel_block(at, to, c, c)
        self.k.for_(first, last, lanes, lambda c: self.channel_block(at, to, c, None))

    def channel_block(self, at: IndexLike, to: IndexLike, c: IndexLike, edge: int | None) -> None:
        """Channels from `c` on; `edge` is the same, static, where neighbours may be missing."""
        total, x = None, None
        out = self.channels.strides[1]
        for shift in range(-self.lrn.before, self.lrn.after + 1):
            value = self.shifted(at, c, edge, shift)
            total = self.add_square(total, value)
            x = value if shift == 0 else x
        assert x is not None
        assert total is not None
        valid = self.lanes if edge is None else min(self.lanes, self.channels.size - edge)
        self.store(x, total, to + c * out, valid, out)

    def shifted(self, at: IndexLike, c: IndexLike, edge: int | None, shift: int) -> SSAValue:
        """The channels from `c + shift` on, 0 where there are none."""
        size, lanes, stride = self.channels.size, self.lanes, self.channels.strides[0]
        zero = self.k.constant(0, STORAGE_TYPES[self.dtype], lanes)
        if edge is None:
            return self.load(at + (c + shift) * stride, lanes, stride)
        first = edge + shift
        if first >= size or first + lanes <= 0:
            return zero
        if first >= 0:
            return self.load(at + first * stride, min(lanes, size - first), stride)
        value = self.load(at, min(lanes + first, size), stride)
        return shuffle(
            self.k, zero, value, [lane if lane < -first else lanes + lane + first for lane in range(lanes)]
        )

    # --- one position in each lane ---

    def across_channels(self, dim: Dim, at: IndexLike, to: IndexLike) -> None:
        k, lrn, lanes = self.k, self.lrn, self.lanes
        along, out = self.channels.strides

        def block(i: IndexLike, valid: int) -> None:
            start, end = at + i * dim.strides[0], to + i * dim.strides[1]

            def channel(c: IndexLike) -> None:
                low = k.maximum(c - lrn.before, 0)
                high = k.minimum(c + (lrn.after + 1), self.channels.size)

                def body(other: IndexLike, total: SSAValue) -> list[SSAValue]:
                    return [self.add_square(total, self.load(start + other * along, valid, dim.strides[0]))]

                zero = k.constant(0, STORAGE_TYPES[self.dtype], lanes)
                (total,) = k.for_(low, high, 1, body, [zero])
                x = self.load(start + c * along, valid, dim.strides[0])
                self.store(x, total, end + c * out, valid, dim.strides[1])

            k.for_(0, self.channels.size, 1, channel)

        whole = dim.size - dim.size % lanes
        k.for_(0, whole, lanes, lambda i: block(i, lanes))
        if whole < dim.size:
            block(whole, dim.size - whole)
