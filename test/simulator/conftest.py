"""A small host program in Python, for tests that drive the simulated libraries themselves."""

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from occamy_xdsl.simulator import Simulator

H2D, D2H, D2D = 1, 2, 3


class Program:
    """Calls CUDA functions; every status but 0 is an assertion failure unless `status` says otherwise."""

    def __init__(self, simulator: Simulator):
        self.simulator = simulator
        self.keep: list = []

    def call(self, name: str, *arguments, status: int = 0) -> None:
        got = self.simulator.call(name, *arguments)
        assert got == status, (
            f"{name}: {got}, {self.simulator.violations}, {self.simulator.report().refusals}"
        )

    def make(self, name: str, *arguments) -> int:
        """The handle or address that a function creates, its first argument."""
        result = ctypes.c_void_p()
        self.call(name, ctypes.byref(result), *arguments)
        return result.value or 0

    def pointer(self, value, type_=ctypes.c_float):
        """The address of a number on the host."""
        box = type_(value)
        self.keep.append(box)
        return ctypes.addressof(box)

    def ints(self, *values: int):
        """The address of an array of ints."""
        box = (ctypes.c_int * len(values))(*values)
        self.keep.append(box)
        return ctypes.addressof(box)

    def upload(self, array: np.ndarray, stream: int | None = None) -> int:
        """A new allocation with the bytes of an array."""
        address = self.make("cudaMalloc", array.nbytes)
        self.copy_in(address, array, stream)
        return address

    def copy_in(self, address: int, array: np.ndarray, stream: int | None = None) -> None:
        contiguous = np.ascontiguousarray(array)
        self.keep.append(contiguous)
        self.call("cudaMemcpyAsync", address, contiguous.ctypes.data, contiguous.nbytes, H2D, stream)

    def download(self, address: int, shape: tuple[int, ...], dtype=np.float32, stream: int | None = None):
        result = np.zeros(shape, dtype)
        self.call("cudaMemcpyAsync", result.ctypes.data, address, result.nbytes, D2H, stream)
        self.call("cudaStreamSynchronize", stream)
        return result

    def tensor(self, *shape: int, type_: int = 0, strides: tuple[int, ...] | None = None) -> int:
        """A tensor descriptor."""
        descriptor = self.make("cudnnCreateTensorDescriptor")
        if strides is None:
            strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
        rank = len(shape)
        self.call(
            "cudnnSetTensorNdDescriptor", descriptor, type_, rank, self.ints(*shape), self.ints(*strides)
        )
        return descriptor

    def launch(self, function: int, grid, block, *pointers: int, end: bool = True, status: int = 0) -> None:
        """Launch a kernel whose parameters are device addresses."""
        values = [ctypes.c_uint64(p) for p in pointers]
        addresses = [ctypes.addressof(v) for v in values] + ([0] if end else [])
        array = (ctypes.c_uint64 * len(addresses))(*addresses)
        self.call("cuLaunchKernel", function, *grid, *block, 0, None, array, None, status=status)


@pytest.fixture(scope="session", autouse=True)
def needs_linker(compiler: list[str]) -> None:
    """The stubs have to be linked; without a C compiler the tests are skipped."""


@pytest.fixture
def lenient() -> Simulator:
    """A simulator that does not raise, for tests of what it finds."""
    return Simulator(strict=False)


@pytest.fixture
def program() -> Callable[[Simulator], Program]:
    """Makes the host program of a simulator."""
    return Program
