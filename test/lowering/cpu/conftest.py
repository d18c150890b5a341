"""Compiles kernels, many in one module, and runs them between guard elements."""

import ctypes
from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.test import TestTermOp
from xdsl.ir import Block, SSAValue

from occamy_xdsl.lowering.cpu.kernels.spec import NUMPY_TYPES, Buffer, Epilogue, Kernel, Prologue
from occamy_xdsl.lowering.toolchain import Isa, JitModule, compile_mlir

MARGIN = 64
"""Guard elements before and after each argument."""
GUARD = 0xFF
"""Byte of guard elements and of gaps between strides: a NaN in float types, -1 in signed integer types."""


class Placed:
    """An array laid out as a kernel argument, with guards around it and in the gaps of its strides."""

    def __init__(self, buffer: Buffer, values: np.ndarray | None):
        dtype = np.dtype(ml_dtypes.bfloat16 if buffer.dtype == "bf16" else NUMPY_TYPES[buffer.dtype])
        bytes_ = np.full((buffer.extent + 2 * MARGIN) * dtype.itemsize + 64, GUARD, np.uint8)
        start = -bytes_.ctypes.data % 64
        self.storage = bytes_[start : start + (buffer.extent + 2 * MARGIN) * dtype.itemsize].view(dtype)
        self.view = self._view(self.storage, buffer)
        if values is not None:
            self.view[...] = values
        self.before = self.storage.copy()
        self.pointer = self.storage.ctypes.data + MARGIN * dtype.itemsize
        self.buffer = buffer

    @staticmethod
    def _view(storage: np.ndarray, buffer: Buffer) -> np.ndarray:
        strides = tuple(stride * storage.itemsize for stride in buffer.strides)
        return np.lib.stride_tricks.as_strided(storage[MARGIN + buffer.origin :], buffer.shape, strides)

    def untouched(self, *, is_output: bool) -> bool:
        """Whether no byte has changed, those of an output's elements aside."""
        after = self.storage.copy()
        if is_output:
            self._view(after, self.buffer)[...] = self._view(self.before, self.buffer)
        return after.tobytes() == self.before.tobytes()


def run_all(
    calls: Sequence[tuple[Kernel, Sequence[np.ndarray]]],
    isa: Isa,
    in_place: int | None = None,
    outputs: int = 1,
    *,
    any_rows: bool = False,
) -> list:
    """
    The output of each kernel on its inputs, the arguments before the output; a tuple where `outputs` is not 1.

    `in_place` is the position of an argument whose memory the output shares. With `any_rows`, the kernels for any
    rows compute them. Checks that nothing is read or written outside of the arguments.
    """
    used = {kernel: (kernel.for_any_rows(isa) if any_rows else None) or (kernel, ()) for kernel, _ in calls}
    kernels = {kernel.symbol: kernel for kernel, _ in used.values()}
    module = ModuleOp([kernel.build(isa) for kernel in kernels.values()])
    module.verify()
    code = JitModule(compile_mlir(str(module), isa))
    results = []
    for kernel, arrays in calls:
        called, sizes = used[kernel]
        # Packed weights and scratch memory are those of the kernel that is called.
        pairs = zip(kernel.arguments, called.arguments, strict=True)
        arguments = [own if own.rank > 1 else other for own, other in pairs]
        placed = [Placed(b, a) for b, a in zip(arguments, arrays, strict=False)]
        placed += [Placed(b, None) for b in arguments[len(arrays) :]]
        output = len(arrays)
        if in_place is not None:
            placed[output] = placed[in_place]
        types = [ctypes.c_void_p] * len(placed) + [ctypes.c_size_t] * len(sizes)
        prototype = ctypes.CFUNCTYPE(None, *types)
        code.function(called.symbol, prototype)(*(p.pointer for p in placed), *sizes)
        for i, p in enumerate(placed):
            assert p.untouched(is_output=i >= output or i == in_place), f"{kernel.symbol}: argument {i}"
        written = tuple(p.view.copy() for p in placed[output : output + outputs])
        results.append(written[0] if outputs == 1 else written)
    return results


def make_epilogue(
    types: Sequence, body: Callable[..., tuple[list, SSAValue]], extras: Sequence[Buffer] = ()
) -> Epilogue:
    """An epilogue on block arguments of `types`; `body` returns its ops and the value to store."""
    block = Block(arg_types=types)
    ops, result = body(*block.args)
    block.add_ops([*ops, TestTermOp([result])])
    return Epilogue(block, tuple(extras))


def make_prologue(
    types: Sequence, body: Callable[..., tuple[list, SSAValue]], extras: Sequence[Buffer] = ()
) -> Prologue:
    """A prologue, as `make_epilogue` makes an epilogue."""
    return Prologue(make_epilogue(types, body).block, tuple(extras))


@pytest.fixture(scope="session", params=["native", "x86-64-v3"])
def isa(request: pytest.FixtureRequest) -> Isa:
    """The processor itself, and one with half its vector width and registers where it can run that."""
    host = Isa.host()
    if request.param == "native":
        return host
    if host.vector_bytes < 32:
        pytest.skip("needs AVX2")
    return Isa.parse(request.param)


@pytest.fixture(scope="session")
def run() -> Callable[..., list[np.ndarray]]:
    """`run_all`."""
    return run_all


@pytest.fixture(scope="session")
def epilogue() -> Callable[..., Epilogue]:
    """`make_epilogue`."""
    return make_epilogue


@pytest.fixture(scope="session")
def prologue() -> Callable[..., Prologue]:
    """`make_prologue`."""
    return make_prologue
