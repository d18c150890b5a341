"""Measuring which algorithm cuDNN computes a convolution fastest with."""

import ctypes
import statistics
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from occamy_xdsl.lowering.cuda.api import CONSTANTS
from occamy_xdsl.lowering.cuda.convolutions import IMPLICIT_GEMM, Choice, Problem
from occamy_xdsl.runtime.device import (
    Timer,
    allocated,
    download,
    elapsed,
    free_bytes,
    new_stream,
    synchronize,
    upload,
)
from occamy_xdsl.runtime.nvidia import call, check, create, status

ALGORITHMS = tuple(
    value for name, value in CONSTANTS.items() if name.startswith("CUDNN_CONVOLUTION_FWD_ALGO_")
)
"""All values of cudnnConvolutionFwdAlgo_t."""

TOLERANCE = 1e-3
"""How far a result may be from that of IMPLICIT_GEMM, as a share of its largest value."""

_FLOAT = CONSTANTS["CUDNN_DATA_FLOAT"]
_ONE, _ZERO = ctypes.c_float(1), ctypes.c_float(0)

Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Method:
    """How often an algorithm is run: first without being timed, then for the median."""

    warmup: int = 3
    iterations: int = 20
    timer: Timer = elapsed


def measure(problem: Problem, limit: int | None = None, method: Method = Method()) -> tuple[Choice, ...]:
    """
    The algorithms that compute `problem` on this machine's GPU, in f32 without tensor cores, fastest first.

    Left out are those whose workspace is larger than `limit` bytes or than the memory that is free, those
    that cuDNN refuses, and those whose result is too far from IMPLICIT_GEMM's. Values are random. Tensors
    are row-major, and there is no activation: a choice is for all layouts and endings of the same shapes.
    Raises OccamyError where even IMPLICIT_GEMM fails.
    """
    with ExitStack() as stack:
        convolution = _Convolution(problem, stack)
        expected = convolution.result(IMPLICIT_GEMM)
        found: list[Choice] = []
        for algorithm in ALGORITHMS:
            size = convolution.workspace_bytes(algorithm)
            if size is not None and (limit is None or size <= limit):
                time = convolution.time(algorithm, size, expected, method)
                found += [] if time is None else [Choice(algorithm, size, time)]
    return tuple(sorted(found, key=lambda choice: (choice.milliseconds, choice.algorithm)))


def _handle(stack: ExitStack, make: str, destroy: str, *arguments: int) -> int:
    """What a function makes; it is released with the stack."""
    handle = create(make, *arguments)
    stack.callback(status, destroy, handle)
    return handle


class _Convolution:
    """A convolution with everything that it needs on the device but workspace."""

    def __init__(self, problem: Problem, stack: ExitStack):
        self._y_shape = problem.y
        self._stack = stack
        self._stream = stack.enter_context(new_stream())
        self._cudnn = _handle(stack, "cudnnCreate", "cudnnDestroy")
        call("cudnnSetStream", self._cudnn, self._stream)
        generator = np.random.default_rng(0)
        shapes = problem.x, problem.w, problem.y
        self._x, self._w, self._y = (stack.enter_context(allocated(4 * prod(s))) for s in shapes)
        for address, shape in ((self._x, problem.x), (self._w, problem.w)):
            upload(generator.standard_normal(prod(shape), np.float32), address, self._stream)
        self._describe(problem)

    def _describe(self, problem: Problem) -> None:
        """Descriptors as those of compiled models, in which there are at least two spatial dimensions."""

        def descriptor(kind: str) -> int:
            return _handle(self._stack, f"cudnnCreate{kind}Descriptor", f"cudnnDestroy{kind}Descriptor")

        def flat(shape: Sequence[int], filling: int) -> list[int]:
            return [*shape[:-1], filling, shape[-1]] if len(problem.pads) == 1 else list(shape)

        def ints(values: Sequence[int]) -> Any:
            return (ctypes.c_int * len(values))(*values)

        self._x_descriptor, self._y_descriptor = descriptor("Tensor"), descriptor("Tensor")
        for handle, shape in ((self._x_descriptor, problem.x), (self._y_descriptor, problem.y)):
            sizes = flat(shape, 1)
            strides = [prod(sizes[i + 1 :]) for i in range(len(sizes))]
            call("cudnnSetTensorNdDescriptor", handle, _FLOAT, len(sizes), ints(sizes), ints(strides))
        self._w_descriptor = descriptor("Filter")
        sizes = flat(problem.w, 1)
        layout = CONSTANTS["CUDNN_TENSOR_NCHW"]
        call("cudnnSetFilterNdDescriptor", self._w_descriptor, _FLOAT, layout, len(sizes), ints(sizes))
        self._convolution = descriptor("Convolution")
        geometry = flat(problem.pads, 0), flat(problem.strides, 1), flat(problem.dilations, 1)
        mode = CONSTANTS["CUDNN_CROSS_CORRELATION"]
        call(
            "cudnnSetConvolutionNdDescriptor", self._convolution, len(geometry[0]), *map(ints, geometry), mode,
            _FLOAT,
        )  # fmt: skip
        call("cudnnSetConvolutionGroupCount", self._convolution, problem.groups)
        call("cudnnSetConvolutionMathType", self._convolution, CONSTANTS["CUDNN_FMA_MATH"])

    def workspace_bytes(self, algorithm: int) -> int | None:
        """What an algorithm needs; None if cuDNN refuses it."""
        size = ctypes.c_size_t()
        code = status(
            "cudnnGetConvolutionForwardWorkspaceSize", self._cudnn, self._x_descriptor, self._w_descriptor,
            self._convolution, self._y_descriptor, algorithm, ctypes.byref(size),
        )  # fmt: skip
        return None if code else size.value

    @contextmanager
    def _workspace(self, size: int) -> Generator[int | None]:
        """The address of `size` bytes; null where there are none."""
        with ExitStack() as stack:
            yield stack.enter_context(allocated(size)) if size else None
            synchronize(self._stream)

    def _run(self, algorithm: int, workspace: int | None, size: int) -> int:
        return status(
            "cudnnConvolutionForward", self._cudnn, ctypes.byref(_ONE), self._x_descriptor, self._x,
            self._w_descriptor, self._w, self._convolution, algorithm, workspace, size, ctypes.byref(_ZERO),
            self._y_descriptor, self._y,
        )  # fmt: skip

    def _result(self) -> Array:
        """The result of the last run, once it is there."""
        y = np.empty(self._y_shape, np.float32)
        download(self._y, y, self._stream)
        return y

    def result(self, algorithm: int) -> Array:
        """What an algorithm computes; raises OccamyError where it is refused."""
        size = self.workspace_bytes(algorithm) or 0
        with self._workspace(size) as workspace:
            check("cudnnConvolutionForward", self._run(algorithm, workspace, size))
            return self._result()

    def time(self, algorithm: int, size: int, expected: Array, method: Method) -> float | None:
        """Median milliseconds of a run; None if the algorithm is refused, or its result is not the expected one."""
        if size > free_bytes():
            return None
        with self._workspace(size) as workspace:
            if self._run(algorithm, workspace, size):
                return None
            bound = TOLERANCE * float(np.abs(expected).max(initial=0))
            if not np.abs(self._result() - expected).max(initial=0) <= bound:
                return None

            def run() -> None:
                check("cudnnConvolutionForward", self._run(algorithm, workspace, size))

            for _ in range(method.warmup):
                run()
            times = [method.timer(self._stream, run) for _ in range(method.iterations)]
        return round(statistics.median(times), 6)
