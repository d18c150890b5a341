"""
An interpreter of the PTX that LLVM writes for generated kernels, which checks what a GPU would not.

It finds accesses out of bounds, misaligned or to memory that was never written, races in shared memory,
barriers and shuffles that not all threads reach, and launches that do not fit the kernel; and it counts how
much of the memory that moves is used. It says nothing about speed. Races in global memory are not found.
"""

from collections.abc import Sequence

from occamy_xdsl.simulator.ptx.errors import AccessError, PtxError
from occamy_xdsl.simulator.ptx.machine import Extent, Machine
from occamy_xdsl.simulator.ptx.parser import Program, PtxSyntaxError, parse
from occamy_xdsl.simulator.ptx.spaces import GlobalMemory
from occamy_xdsl.simulator.ptx.statistics import KernelStatistics

__all__ = [
    "AccessError",
    "Extent",
    "GlobalMemory",
    "KernelStatistics",
    "Program",
    "PtxError",
    "PtxSyntaxError",
    "launch",
    "parse",
]


def launch(
    program: Program,
    kernel: str,
    grid: Extent,
    block: Extent,
    parameters: Sequence[bytes],
    memory: GlobalMemory,
    *,
    dynamic_shared_bytes: int = 0,
    statistics: KernelStatistics | None = None,
) -> KernelStatistics:
    """
    Run a kernel of `program` to its end.

    `parameters` holds the bytes of each kernel parameter, pointers as 8 bytes; counts are added to
    `statistics`. Raises PtxError at the first fault and KeyError if there is no such kernel.
    """
    machine = Machine(
        program,
        kernel,
        grid,
        block,
        parameters,
        memory,
        dynamic_shared_bytes=dynamic_shared_bytes,
        statistics=statistics,
    )
    return machine.run()
