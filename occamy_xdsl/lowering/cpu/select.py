"""Which kernel template computes a `dnn` op in buffer form, and with which operands."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.ir import SSAValue

from occamy_xdsl.analysis.aliasing import root_of
from occamy_xdsl.dialects import dnn
from occamy_xdsl.lowering.cpu.kernels.conv import Conv
from occamy_xdsl.lowering.cpu.kernels.copy import Copy
from occamy_xdsl.lowering.cpu.kernels.elementwise import Elementwise
from occamy_xdsl.lowering.cpu.kernels.matmul import Matmul
from occamy_xdsl.lowering.cpu.kernels.pool import Pool
from occamy_xdsl.lowering.cpu.kernels.reduce import Reduce
from occamy_xdsl.lowering.cpu.kernels.softmax import Softmax
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer, Epilogue, Kernel
from occamy_xdsl.lowering.toolchain import Isa

Pack = Callable[[NDArray[Any]], NDArray[np.generic]]


@dataclass(frozen=True)
class KernelCall:
    """A kernel and the operands of the op for its arguments, in order."""

    kernel: Kernel
    operands: tuple[SSAValue, ...]
    packs: Mapping[int, Pack] = field(default_factory=dict[int, Pack])
    """For the arguments that are packed weights: what turns the constant into what the kernel reads."""


def buffer_of(value: SSAValue) -> Buffer:
    return Buffer(dnn.shape_of(value), dnn.strides_of(value), str(dnn.element_type_of(value)))


def epilogue_of(op: dnn.FusableOp) -> Epilogue | None:
    if op.epilogue is None:
        return None
    shape = dnn.shape_of(op.outs[0])
    return Epilogue(op.epilogue.block, tuple(buffer_of(e).broadcast_to(shape) for e in op.extras))


def select(op: dnn.KernelOp, isa: Isa) -> KernelCall:
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
                strides=dnn.ints(op.strides),
                dilations=dnn.ints(op.dilations),
                pads=dnn.ints(op.pads)[:rank],
                group=op.group_.value.data,
                has_bias=op.bias is not None,
                epilogue=epilogue_of(op),
            )
            return KernelCall(
                kernel, (op.input, op.filter, *op.group("bias"), *op.extras, *op.outs), {1: kernel.pack}
            )
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
                {1: kernel.pack} if const else {},
            )
        case dnn.ElementwiseOp():
            return KernelCall(
                Elementwise(op.body.block, tuple(buffer_of(v).broadcast_to(out.shape) for v in op.ins), out),
                (*op.ins, *op.outs),
            )
        case dnn.CopyOp():
            return KernelCall(Copy(buffer_of(op.input), out), (op.input, *op.outs))
        case dnn.PoolOp():
            rank = len(out.shape) - 2
            return KernelCall(
                Pool(
                    op.kind.data,
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
        case _:
            raise NotImplementedError(op.name)
