"""Which kernel template computes a `dnn` op in buffer form, and with which operands."""

from dataclasses import dataclass

from xdsl.dialects.builtin import FloatAttr, IntegerAttr
from xdsl.ir import SSAValue
from xdsl.utils.hints import isa as has_type

from occamy_xdsl.analysis.aliasing import root_of
from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.weights import Weights
from occamy_xdsl.lowering.cpu.kernels.arg_reduce import ArgReduce
from occamy_xdsl.lowering.cpu.kernels.conv import Conv
from occamy_xdsl.lowering.cpu.kernels.conv_transpose import ConvTranspose
from occamy_xdsl.lowering.cpu.kernels.copy import Copy
from occamy_xdsl.lowering.cpu.kernels.elementwise import Elementwise
from occamy_xdsl.lowering.cpu.kernels.gather import Gather
from occamy_xdsl.lowering.cpu.kernels.layer_norm import LayerNorm
from occamy_xdsl.lowering.cpu.kernels.lrn import Lrn
from occamy_xdsl.lowering.cpu.kernels.matmul import Matmul
from occamy_xdsl.lowering.cpu.kernels.pad import Pad
from occamy_xdsl.lowering.cpu.kernels.pool import Pool
from occamy_xdsl.lowering.cpu.kernels.reduce import Reduce
from occamy_xdsl.lowering.cpu.kernels.resize import Resize
from occamy_xdsl.lowering.cpu.kernels.softmax import Softmax
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer, Epilogue, Kernel, Prologue
from occamy_xdsl.lowering.toolchain import Isa


@dataclass(frozen=True)
class KernelCall:
    """A kernel and what its arguments are, in order."""

    kernel: Kernel
    operands: tuple[SSAValue | Weights, ...]
    """Values, or tables that the kernel reads besides the operands of the op."""
    packed: int | None = None
    """Position of the argument that is packed weights, if there is one."""
    sizes: tuple[int, ...] = ()
    """The sizes that follow the operands."""


def buffer_of(value: SSAValue) -> Buffer:
    """
    The layout of a memref as a kernel argument.

    Where a dimension has one element its stride means nothing: it is the one without a gap, so that kernels on rows
    of images of different heights can be equal.
    """
    shape, strides = dnn.shape_of(value), dnn.strides_of(value)
    pairs = list(zip(shape, strides, strict=True))

    def dense(stride: int) -> int:
        return 1 + sum((n - 1) * s for n, s in pairs if n > 1 and 0 < s < stride)

    meant = tuple(dense(stride) if size == 1 and stride > 0 else stride for size, stride in pairs)
    return Buffer(shape, meant, str(dnn.element_type_of(value)))


def epilogue_of(op: dnn.FusableOp) -> Epilogue | None:
    """The scalar work that ends the op, with `extras` broadcast to the result."""
    if op.epilogue is None:
        return None
    shape = dnn.shape_of(op.outs[0])
    return Epilogue(op.epilogue.block, tuple(buffer_of(e).broadcast_to(shape) for e in op.extras))


def prologue_of(op: dnn.ConvOp) -> Prologue | None:
    if op.prologue is None:
        return None
    shape = op.input_shape
    return Prologue(op.prologue.block, tuple(buffer_of(e).broadcast_to(shape) for e in op.prologue_extras))


def is_reduction(op: dnn.PoolOp) -> bool:
    """Whether a pooling has one window, which is the whole input, and nothing else to do."""
    return (
        dnn.ints(op.kernel) == dnn.shape_of(op.input)[2:]
        and not any(dnn.ints(op.pads))
        and all(size == 1 for size in dnn.shape_of(op.outs[0])[2:])
        and len(op.outs) == 1
        and op.epilogue is None
    )


def select(op: dnn.KernelOp, isa: Isa) -> KernelCall:
    """The kernel for an op in buffer form, on processor `isa`. Raises NotImplementedError where there is none."""
    out = buffer_of(op.outs[0])
    work = op.group("workspace")
    match op:
        case dnn.ConvOp():
            rank = len(dnn.shape_of(op.input)) - 2
            kernel = Conv.create(
                buffer_of(op.input),
                out,
                dnn.shape_of(op.filter)[2:],
                isa,
                joined=[buffer_of(part) for part in op.joined],
                strides=dnn.ints(op.strides),
                dilations=dnn.ints(op.dilations),
                pads=dnn.ints(op.pads)[:rank],
                group=op.group_.value.data,
                filter_dtype=str(dnn.element_type_of(op.filter)),
                has_bias=op.bias is not None,
                prologue=prologue_of(op),
                epilogue=epilogue_of(op),
            )
            parts = (op.input, *op.joined)
            extras = (*op.prologue_extras, *op.extras)
            return KernelCall(
                kernel,
                (*parts, op.filter, *op.group("bias"), *extras, *op.outs, *work),
                len(parts),
            )
        case dnn.ConvTransposeOp():
            rank = len(dnn.shape_of(op.input)) - 2
            kernel = ConvTranspose.create(
                buffer_of(op.input),
                out,
                dnn.shape_of(op.filter)[2:],
                isa,
                strides=dnn.ints(op.strides),
                dilations=dnn.ints(op.dilations),
                pads=dnn.ints(op.pads)[:rank],
                group=op.group_.value.data,
                filter_dtype=str(dnn.element_type_of(op.filter)),
                has_bias=op.bias is not None,
                epilogue=epilogue_of(op),
            )
            return KernelCall(kernel, (op.input, op.filter, *op.group("bias"), *op.extras, *op.outs), 1)
        case dnn.MatmulOp():
            const = isinstance(root_of(op.b).owner, dnn.ConstantOp)
            shape = out.shape
            a = buffer_of(op.a).broadcast_to((*shape[:-2], *dnn.shape_of(op.a)[-2:]))
            b = buffer_of(op.b).broadcast_to((*shape[:-2], *dnn.shape_of(op.b)[-2:]))
            bias = buffer_of(op.bias).broadcast_to(shape) if op.bias is not None else None
            kernel = Matmul.create(a, b, out, isa, is_packed=const, bias=bias, epilogue=epilogue_of(op))
            return KernelCall(
                kernel,
                (op.a, op.b, *op.group("bias"), *op.extras, *op.outs, *work),
                1 if const else None,
            )
        case dnn.ElementwiseOp():
            return KernelCall(
                Elementwise(op.body.block, tuple(buffer_of(v).broadcast_to(out.shape) for v in op.ins), out),
                (*op.ins, *op.outs),
            )
        case dnn.CopyOp():
            return KernelCall(Copy(buffer_of(op.input), out), (op.input, *op.outs))
        case dnn.PoolOp() if is_reduction(op):
            kind = "mean" if op.kind.data == "average" else "max"
            spatial = tuple(range(2, len(out.shape)))
            kept = Buffer(out.shape[:2], out.strides[:2], out.dtype)
            return KernelCall(Reduce(kind, spatial, buffer_of(op.input), kept), (op.input, *op.outs))
        case dnn.PoolOp():
            rank = len(out.shape) - 2
            return KernelCall(
                Pool(
                    "average" if op.kind.data == "average" else "max",
                    dnn.ints(op.kernel),
                    dnn.ints(op.strides),
                    dnn.ints(op.dilations),
                    dnn.ints(op.pads),
                    bool(op.count_include_pad.value.data),
                    buffer_of(op.input),
                    out,
                    buffer_of(op.outs[1]) if len(op.outs) > 1 else None,
                    epilogue_of(op),
                ),
                (op.input, *op.extras, *op.outs),
            )
        case dnn.ReduceOp():
            return KernelCall(
                Reduce(op.kind.data, dnn.ints(op.axes), buffer_of(op.input), out), (op.input, *op.outs)
            )
        case dnn.SoftmaxOp():
            return KernelCall(
                Softmax(op.axis.value.data, bool(op.log.value.data), buffer_of(op.input), out),
                (op.input, *op.outs),
            )
        case dnn.ArgReduceOp():
            kernel = ArgReduce(
                "max" if op.kind.data == "max" else "min",
                op.axis.value.data,
                bool(op.select_last.value.data),
                buffer_of(op.input),
                out,
            )
            return KernelCall(kernel, (op.input, *op.outs))
        case dnn.LayerNormOp():
            kernel = LayerNorm(
                op.axis.value.data,
                op.epsilon.value.data,
                buffer_of(op.input),
                buffer_of(op.scale).broadcast_to(out.shape) if op.scale is not None else None,
                buffer_of(op.bias).broadcast_to(out.shape) if op.bias is not None else None,
                out,
            )
            return KernelCall(kernel, (op.input, *op.group("scale"), *op.group("bias"), *op.outs))
        case dnn.LrnOp():
            kernel = Lrn(
                op.size.value.data,
                op.alpha.value.data,
                op.beta.value.data,
                op.bias.value.data,
                buffer_of(op.input),
                out,
            )
            return KernelCall(kernel, (op.input, *op.outs))
        case dnn.PadOp():
            value = 0
            if has_type(op.value, IntegerAttr | FloatAttr):
                value = op.value.value.data
            kernel = Pad(dnn.ints(op.low), dnn.ints(op.high), op.mode.data, value, buffer_of(op.input), out)
            return KernelCall(kernel, (op.input, *op.outs))
        case dnn.GatherOp():
            kernel = Gather(op.axis.value.data, buffer_of(op.data), buffer_of(op.indices), out)
            return KernelCall(kernel, (op.data, op.indices, *op.outs))
        case dnn.ResizeOp():
            kernel = Resize(
                op.mode.data,
                op.coordinate_transformation_mode.data,
                op.nearest_mode.data,
                op.cubic_coeff_a.value.data,
                bool(op.exclude_outside.value.data),
                tuple(op.scales.get_values()),
                buffer_of(op.input),
                out,
            )
            tables = (Weights.of(t, f"{kernel.symbol}.table{i}") for i, t in enumerate(kernel.tables))
            return KernelCall(kernel, (op.input, *tables, *op.outs))
        case _:
            raise NotImplementedError(f"no kernel template computes '{op.name}'")
