"""
cuBLAS's matrix product in numpy: column-major matrices, as in BLAS.

Source: cuBLAS 13 documentation, cublas<t>gemm, cublas<t>gemmStridedBatched and cublasSetWorkspace.
"""

from dataclasses import dataclass, replace

import numpy as np

from occamy_xdsl.lowering.cuda.api import CONSTANTS
from occamy_xdsl.simulator import host_memory
from occamy_xdsl.simulator.device import Stream
from occamy_xdsl.simulator.faults import FaultError, RefusalError
from occamy_xdsl.simulator.functions import SimulatedLibrary, implements
from occamy_xdsl.simulator.memory import Region
from occamy_xdsl.simulator.ptx.arithmetic import Array

INVALID_VALUE = CONSTANTS["CUBLAS_STATUS_INVALID_VALUE"]
WORKSPACE_ALIGNMENT = 256
"""Bytes that the address of a workspace must be a multiple of."""

Handle = int | None


@dataclass(eq=False)
class Context:
    """A cuBLAS handle."""

    stream: Stream
    workspace: tuple[int, int] = (0, 0)
    """Address and bytes; without one cuBLAS allocates for itself."""


@dataclass(frozen=True)
class Matrix:
    """A matrix argument: its stored rows and columns, the distance of columns, and how it is used."""

    name: str
    address: Handle
    rows: int
    columns: int
    leading: int
    transposed: bool = False

    def region(self) -> Region:
        """The matrix as it is stored: element (i, j) is i + j * leading elements after its address."""
        if not self.address:
            raise FaultError(f"{self.name} is a null pointer")
        return Region(self.address, (self.rows, self.columns), (1, self.leading), np.dtype(np.float32))

    def moved(self, elements: int) -> "Matrix":
        """The matrix `elements` further along in memory."""
        return replace(self, address=self.address and self.address + 4 * elements)


class Cublas(SimulatedLibrary):
    """libcublas."""

    def _context(self, handle: Handle) -> Context:
        return self.device.get(handle, Context, "cuBLAS")

    @implements("cublasCreate_v2")
    def create(self, result: Handle) -> None:
        self.device.has_context = True
        context = Context(self.device.default_stream)
        host_memory.write_result(result, self.device.create(context, "cuBLAS handle"))

    @implements("cublasDestroy_v2")
    def destroy(self, handle: Handle) -> None:
        self.device.destroy(handle, Context, "cuBLAS")

    @implements("cublasSetStream_v2")
    def set_stream(self, handle: Handle, stream: Handle) -> None:
        context = self._context(handle)
        # A new stream also takes the workspace away again, as the documentation says.
        context.stream, context.workspace = self.device.stream(stream), (0, 0)

    @implements("cublasSetWorkspace_v2")
    def set_workspace(self, handle: Handle, workspace: Handle, size: int) -> None:
        if (workspace or 0) % WORKSPACE_ALIGNMENT:
            raise RefusalError(INVALID_VALUE, f"the workspace is not aligned to {WORKSPACE_ALIGNMENT} bytes")
        self._context(handle).workspace = workspace or 0, size

    @implements("cublasSetMathMode")
    def set_math_mode(self, handle: Handle, mode: int) -> None:
        self._context(handle)

    @implements("cublasSgemm_v2")
    def sgemm(
        self,
        handle: Handle,
        transposed_a: int,
        transposed_b: int,
        m: int,
        n: int,
        k: int,
        alpha: Handle,
        a: Handle,
        lda: int,
        b: Handle,
        ldb: int,
        beta: Handle,
        c: Handle,
        ldc: int,
    ) -> None:
        self._gemm(
            "cublasSgemm", handle, (transposed_a, transposed_b), (m, n, k), (alpha, beta),
            (a, b, c), (lda, ldb, ldc), (0, 0, 0), 1,
        )  # fmt: skip

    @implements("cublasSgemmStridedBatched")
    def sgemm_batched(
        self,
        handle: Handle,
        transposed_a: int,
        transposed_b: int,
        m: int,
        n: int,
        k: int,
        alpha: Handle,
        a: Handle,
        lda: int,
        stride_a: int,
        b: Handle,
        ldb: int,
        stride_b: int,
        beta: Handle,
        c: Handle,
        ldc: int,
        stride_c: int,
        count: int,
    ) -> None:
        self._gemm(
            "cublasSgemmStridedBatched", handle, (transposed_a, transposed_b), (m, n, k), (alpha, beta),
            (a, b, c), (lda, ldb, ldc), (stride_a, stride_b, stride_c), count,
        )  # fmt: skip

    def _gemm(
        self,
        name: str,
        handle: Handle,
        transposed: tuple[int, int],
        sizes: tuple[int, int, int],
        scales: tuple[Handle, Handle],
        addresses: tuple[Handle, Handle, Handle],
        leading: tuple[int, int, int],
        strides: tuple[int, int, int],
        count: int,
    ) -> None:
        """Enqueue `c = alpha * op(a) @ op(b) + beta * c` for each matrix of the batch."""
        context = self._context(handle)
        m, n, k = sizes
        if min(m, n, k, count) < 0 or not set(transposed) <= {0, 1}:
            raise RefusalError(INVALID_VALUE, f"sizes {sizes}, batch of {count}, operations {transposed}")
        rows, columns = ((k, m) if transposed[0] else (m, k)), ((n, k) if transposed[1] else (k, n))
        a = Matrix("A", addresses[0], *rows, leading[0], bool(transposed[0]))
        b = Matrix("B", addresses[1], *columns, leading[1], bool(transposed[1]))
        c = Matrix("C", addresses[2], m, n, leading[2])
        for matrix in (a, b, c):
            if matrix.leading < max(1, matrix.rows):
                fact = f"leading dimension {matrix.leading} of {matrix.name} with {matrix.rows} rows"
                raise RefusalError(INVALID_VALUE, fact)
        alpha, beta = (
            host_memory.read_float(s, what) for s, what in zip(scales, ("alpha", "beta"), strict=True)
        )
        if not (m and n and count):
            return
        batch = [tuple(x.moved(i * s) for x, s in zip((a, b, c), strides, strict=True)) for i in range(count)]
        outputs = [triple[2].region() for triple in batch]
        if count > 1 and abs(strides[2]) < outputs[0].bytes // 4 and strides[2] < m:
            raise FaultError("the results of the batch overlap")
        for left, right, result in batch:
            if result.region().overlaps(left.region()) or result.region().overlaps(right.region()):
                raise FaultError("C overlaps A or B")
        scratch = Region.of_bytes(*context.workspace)
        for triple in batch:
            for matrix in triple:
                if matrix.region().overlaps(scratch):
                    raise FaultError(f"the workspace overlaps {matrix.name}")
        if not scratch.bytes:
            self.device.notes["matrix products for which cuBLAS allocates a workspace of its own"] += 1
        memory = self.device.memory

        def operand(matrix: Matrix) -> Array:
            values = memory.read(matrix.region())
            return values.T if matrix.transposed else values

        def action() -> None:
            memory.clobber(scratch.address, scratch.bytes)
            for left, right, result in batch:
                product = alpha * (operand(left) @ operand(right)) if k else np.zeros((m, n), np.float32)
                if beta:  # C is not read otherwise, and may hold anything
                    product = product + beta * memory.read(result.region())
                memory.write(result.region(), product)

        self.device.enqueue(context.stream, name, action, m=m, n=n, k=k, batch=count)
