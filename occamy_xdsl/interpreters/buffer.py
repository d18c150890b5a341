"""
Runs `dnn` buffer form on poisoned bytes: reading a byte that its buffer did not write is an error.

Every byte carries the buffer that wrote it last. In pool form all buffers share one byte array, so a plan
that lets two live buffers overlap shows as a read of bytes that another buffer wrote.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, Region, SSAValue
from xdsl.utils.exceptions import InterpretationError

from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.signature import function_named, input_arguments, output_arguments
from occamy_xdsl.dialects.weights import numpy_dtype, to_array
from occamy_xdsl.interpreters.semantics import evaluate

POISON = 0xFF
"""Fills unborn and dead bytes: a NaN in every float type, -1 in every signed integer type."""

_NOBODY = -1


class PoisonError(InterpretationError):
    """An op read bytes that hold no value of its operand: unborn, dead or overwritten."""


class _Memory:
    """Bytes, and for each byte the number of the buffer that wrote it last."""

    def __init__(self, size: int):
        self.bytes = np.full(size, POISON, np.uint8)
        self.owner = np.full(size, _NOBODY, np.int32)
        self.alive = True

    def release(self) -> None:
        self.bytes.fill(POISON)
        self.owner.fill(_NOBODY)
        self.alive = False


@dataclass(frozen=True)
class _Buffer:
    """A typed window on a memory. `root` numbers the allocation it belongs to; views share their source's."""

    memory: _Memory
    offset: int
    """Bytes from the memory's start to element 0."""
    type: dnn.BufferType
    root: int

    def _window(self, of: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        """`of` (bytes or owners of the memory) strided like the buffer, plus a dimension of one element's bytes."""
        shape, strides, size = dnn.shape_of(self.type), dnn.strides_of(self.type), dtype.itemsize
        base = of[self.offset :]
        step = of.itemsize
        return as_strided(base, (*shape, size), (*(s * size * step for s in strides), step))

    @property
    def dtype(self) -> np.dtype[Any]:
        return numpy_dtype(dnn.element_type_of(self.type))

    def read(self, op: Operation, name: str) -> NDArray[Any]:
        if not self.memory.alive:
            raise PoisonError(f"'{op.name}' at {op.location} reads {name} after its dealloc")
        shape = dnn.shape_of(self.type)
        if 0 in shape:
            return np.empty(shape, self.dtype)
        foreign = self._window(self.memory.owner, self.dtype) != self.root
        if foreign.any():
            count = int(foreign.any(-1).sum())
            owners = sorted({int(o) for o in self._window(self.memory.owner, self.dtype)[foreign]})
            kind = "were never written" if owners == [_NOBODY] else f"were overwritten by buffers {owners}"
            raise PoisonError(
                f"'{op.name}' at {op.location} reads {name} (buffer {self.root}): {count} elements {kind}"
            )
        data = np.ascontiguousarray(self._window(self.memory.bytes, self.dtype))
        return data.view(self.dtype)[..., 0]

    def copy_bytes(self, op: Operation, source: "_Buffer") -> None:
        """Takes over the bytes of another buffer of the same layout; undefined ones stay undefined."""
        if not (self.memory.alive and source.memory.alive):
            raise PoisonError(f"'{op.name}' at {op.location} copies a buffer after its dealloc")
        if 0 in dnn.shape_of(self.type):
            return
        own, other = (b._window(b.memory.bytes, b.dtype) for b in (self, source))
        own[...] = other
        written = source._window(source.memory.owner, source.dtype) == source.root
        self._window(self.memory.owner, self.dtype)[...] = np.where(written, self.root, _NOBODY)

    def disown(self) -> None:
        """Leaves the buffer's elements undefined."""
        if 0 not in dnn.shape_of(self.type):
            self._window(self.memory.owner, self.dtype)[...] = _NOBODY

    def write(self, op: Operation, values: NDArray[Any]) -> None:
        if not self.memory.alive:
            raise PoisonError(f"'{op.name}' at {op.location} writes a buffer after its dealloc")
        if 0 in dnn.shape_of(self.type):
            return
        raw = np.ascontiguousarray(values.astype(self.dtype, copy=False))[..., None].view(np.uint8)
        self._window(self.memory.bytes, self.dtype)[...] = raw
        self._window(self.memory.owner, self.dtype)[...] = self.root


class _Machine:
    """One run of a function: values and the next buffer number."""

    def __init__(self) -> None:
        self.buffers: dict[SSAValue, _Buffer] = {}
        self.pools: dict[SSAValue, _Memory] = {}
        self.count = 0

    def allocate(self, value: SSAValue, memory: _Memory, offset: int = 0) -> _Buffer:
        self.count += 1
        type = value.type
        buffer = _Buffer(memory, offset, type, self.count)  # pyright: ignore[reportArgumentType]
        self.buffers[value] = buffer
        return buffer

    def run(self, op: Operation) -> None:
        match op:
            case dnn.MallocOp():
                self.allocate(op.buffer, _Memory(dnn.byte_size(op.buffer)))
            case dnn.MempoolInitOp():
                self.pools[op.pool] = _Memory(dnn.byte_size(op.pool))
            case dnn.DeallocOp():
                memory = self.pools.get(op.buffer) or self.buffers[op.buffer].memory
                memory.release()
            case dnn.MemOffsetOp():
                self.allocate(op.view, self.pools[op.pool], op.offset.value.data)
            case dnn.ViewOp():
                source = self.buffers[op.source]
                offset = source.offset + op.offset.value.data * source.dtype.itemsize
                self.buffers[op.view] = _Buffer(
                    source.memory,
                    offset,
                    op.view.type,  # pyright: ignore[reportArgumentType]
                    source.root,
                )
            case dnn.ConstantOp():
                buffer = self.allocate(op.output, _Memory(dnn.byte_size(op.output)))
                buffer.write(op, to_array(op.value, op.output.type))
            case dnn.MemcpyOp():
                self.buffers[op.destination].copy_bytes(op, self.buffers[op.source])
            case dnn.IfOp():
                self.run_block(op.then if self.holds(op) else op.otherwise)
            case dnn.LoopOp():
                while self.holds(op):
                    self.run_block(op.body)
            case dnn.YieldOp():
                pass
            case dnn.KernelOp():
                self.run_kernel(op)
            case _:
                raise InterpretationError(f"'{op.name}' has no meaning in dnn buffer form")

    def holds(self, op: dnn.ControlOp) -> bool:
        """Whether the condition of an op is true now."""
        return bool(self.buffers[op.truth].read(op, "the condition"))

    def run_block(self, region: Region) -> None:
        for op in region.block.ops:
            self.run(op)

    def run_kernel(self, op: dnn.KernelOp) -> None:
        sources = [self.buffers[v] for v in op.inputs]
        outs = [self.buffers[v] for v in op.outs]
        moves = isinstance(op, dnn.CopyOp) and op.overlap is not None
        for out in outs:
            # A kernel may write before it has read everything, unless it works exactly in place, or moves elements.
            if not moves and not any(
                s.memory is out.memory and (s.offset, s.type) == (out.offset, out.type) for s in sources
            ):
                out.disown()
        operands = [
            source.read(op, value.name_hint or f"operand {i}")
            for i, (value, source) in enumerate(zip(op.inputs, sources, strict=True))
        ]
        for out, array in zip(outs, evaluate(op, operands), strict=True):
            out.write(op, array)


def run_buffers(
    module: ModuleOp, inputs: Sequence[NDArray[Any]], function: str = "main"
) -> tuple[NDArray[Any], ...]:
    """
    Calls `function` of a module in buffer form with one array for each input argument.

    Arguments whose `dnn.kind` attribute is "output" start poisoned and are returned, in order.
    Raises PoisonError where an op reads bytes that hold no value of its operand.
    """
    main = function_named(module, function)
    machine = _Machine()
    for argument in main.body.block.args:
        machine.allocate(argument, _Memory(dnn.byte_size(argument)))
    for argument, array in zip(input_arguments(main), inputs, strict=True):
        machine.buffers[argument].write(main, array)
    outputs = [machine.buffers[argument] for argument in output_arguments(main)]
    for op in main.body.block.ops:
        if isinstance(op, ReturnOp):
            return tuple(o.read(op, "an output") for o in outputs)
        machine.run(op)
    raise InterpretationError(f"function {function} does not return")
