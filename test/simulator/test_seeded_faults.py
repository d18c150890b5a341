"""Faults seeded into the host code or the kernels of a compiled model, a class each: the simulator names them."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from nets import Net
from onnx import ModelProto

from occamy_xdsl.compiler import Compilation, Model
from occamy_xdsl.errors import OccamyError
from occamy_xdsl.lowering.cpu.emit import write_library
from occamy_xdsl.lowering.cuda.emit import CompiledCudaModel
from occamy_xdsl.pipelines import Options
from occamy_xdsl.runtime.bind import random_tensor
from occamy_xdsl.runtime.executable import Executable, LibraryModel
from occamy_xdsl.simulator import Simulator

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "simulator.md"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> CompiledCudaModel:
    """A convolution with a workspace, a kernel of one thread an element, and a reduction through shared memory."""
    n = Net()
    y = n.op("Exp", n.op("Relu", n.conv("x", 3, 8)))
    outputs = [y, n.op("ReduceMean", y, axes=[1, 2, 3], keepdims=0)]
    graph = n.model({"x": (1, 3, 15, 15)}, outputs)
    return compiled(graph, tmp_path_factory, workspace_limit=1 << 20)


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> CompiledCudaModel:
    """Layers of which two at a time have their weights on the device."""
    n, x = Net(), "x"
    for _ in range(6):
        x = n.op("Gemm", x, n.random(48, 48, scale=0.1), n.random(48))
    return compiled(n.model({"x": (2, 48)}, [x]), tmp_path_factory, stream_weights=True)


def compiled(
    graph: ModelProto, tmp_path_factory: pytest.TempPathFactory, **options: object
) -> CompiledCudaModel:
    compilation = Compilation(Model(graph), Options(**{"target": "cuda", **options}))
    model = compilation.compiled(tmp_path_factory.mktemp("model"))
    assert isinstance(model, CompiledCudaModel)
    return model


def run(model: CompiledCudaModel, folder: Path, *, integrated: bool = False) -> str:
    """What the simulator finds in two runs, one line for each fault or refusal, and for outputs that are not there."""
    library = folder / "model.so"
    write_library(model, library, "file" if model.streams_weights else "embed")
    found = list[str]()
    inputs = {s.name: random_tensor(s, 3, 0) for s in model.signature.inputs}
    # They outlive the model: where nobody waits, copies to them come late.
    outputs = [
        {s.name: np.full(s.shape, np.nan, np.float32) for s in model.signature.outputs} for _ in range(2)
    ]
    with Simulator(architecture="sm_75", integrated=integrated, strict=False) as simulator:
        try:
            executable = Executable(LibraryModel(library))
            for arrays in outputs:
                executable.run(inputs, out=arrays)
                if any(np.isnan(array).any() for array in arrays.values()):
                    found.append("outputs are not there when the run returns")
            del executable
        except OccamyError:
            pass
    return "\n".join([*found, *map(str, simulator.violations), *simulator.report().refusals])


# --- changes of the host code -----------------------------------------------------------------------------


def calls(host: str, name: str) -> list[re.Match[str]]:
    """All calls of a function: its result, its operands and the rest of the line."""
    return list(re.finditer(rf"(%\d+) = llvm\.call @{name}\(([^)]*)\)( : .*)", host))


def dropped(name: str, number: int) -> Callable[[str], str]:
    """One of the calls of a function is not made, as if it had succeeded."""

    def change(host: str) -> str:
        call = calls(host, name)[number]
        return host.replace(call[0], f"{call[1]} = llvm.mlir.constant(0) : i32")

    return change


def repeated(name: str, number: int) -> Callable[[str], str]:
    """One of the calls of a function is made twice."""

    def change(host: str) -> str:
        call = calls(host, name)[number]
        return host.replace(call[0], f"{call[0]}\n%again = llvm.call @{name}({call[2]}){call[3]}")

    return change


def with_operand(name: str, number: int, position: int, source: int) -> Callable[[str], str]:
    """An operand of a call takes the place of another one."""

    def change(host: str) -> str:
        call = calls(host, name)[number]
        operands = call[2].split(", ")
        operands[position] = operands[source]
        new = f"{call[1]} = llvm.call @{name}({', '.join(operands)}){call[3]}"
        return host.replace(call[0], new)

    return change


def result_from_workspace(host: str) -> str:
    """After the convolution its workspace is copied over its result."""
    call = calls(host, "cudnnConvolutionForward")[0]
    operands = call[2].split(", ")
    workspace, result = operands[8], operands[12]
    stream = calls(host, "cuLaunchKernel")[0][2].split(", ")[8]
    types = "(!llvm.ptr, !llvm.ptr, i64, i32, !llvm.ptr) -> i32"
    added = [
        "%size = llvm.mlir.constant(64) : i64",
        "%way = llvm.mlir.constant(3) : i32",
        f"%again = llvm.call @cudaMemcpyAsync({result}, {workspace}, %size, %way, {stream}) : {types}",
    ]
    return host.replace(call[0], "\n".join([call[0], *added]))


def with_number(name: str, number: int, position: int, value: Callable[[int], int]) -> Callable[[str], str]:
    """A number that a call is given is another one."""

    def change(host: str) -> str:
        call = calls(host, name)[number]
        operand = call[2].split(", ")[position]
        constant = re.search(rf"({operand} = llvm\.mlir\.constant\()(-?\d+)", host)
        assert constant is not None
        return host.replace(constant[0], f"{constant[1]}{value(int(constant[2]))}")

    return change


def smaller_allocation(host: str) -> str:
    """The one allocation lacks 1536 bytes."""
    size = calls(host, "cudaMalloc")[0][2].split(", ")[1]
    total = re.search(rf"{size} = llvm\.add %\d+, (%\d+)", host)
    assert total is not None
    constant = re.search(rf"({total[1]} = llvm\.mlir\.constant\()(-?\d+)", host)
    assert constant is not None
    return host.replace(constant[0], f"{constant[1]}{int(constant[2]) - 1536}")


def in_ptx(old: str, new: str) -> Callable[[str], str]:
    """A part of the kernels is another one."""

    def change(ptx: str) -> str:
        assert old in ptx
        return ptx.replace(old, new, 1)

    return change


HOST_FAULTS: dict[str, tuple[Callable[[str], str], str]] = {
    "access past the pool": (
        smaller_allocation,
        "past the end of an allocation",
    ),
    "missing synchronisation": (dropped("cudaStreamSynchronize", 1), "outputs are not there"),
    "leaked descriptor": (dropped("cudnnDestroyTensorDescriptor", 0), "tensor descriptor never destroyed"),
    "leaked memory": (dropped("cudaFree", 0), "bytes of device memory were never freed"),
    "double free": (repeated("cudaFree", 0), "double free of the"),
    "handle used after it is destroyed": (repeated("cudnnDestroy", 0), "is not a live cuDNN handle"),
    "descriptor without a meaning": (dropped("cudnnSetConvolutionNdDescriptor", 0), "was never set"),
    "uninitialised read": (dropped("cudaMemcpyAsync", 1), r"reads \d+ bytes that were never written"),
    "wrong stream": (with_operand("cuLaunchKernel", 0, 8, 10), "unloaded before the kernel ran"),
    "workspace overlaps an operand": (
        with_operand("cudnnConvolutionForward", 0, 8, 3),
        "x and the workspace overlap",
    ),
    "workspace too small": (
        with_number("cudnnConvolutionForward", 0, 9, lambda size: size // 2),
        r"a workspace of \d+ bytes, algorithm 1 needs",
    ),
    "use of dead bytes": (
        result_from_workspace,
        "'cudnnConvolutionForward' overwrote as workspace",
    ),
    "launch with too many threads": (
        with_number("cuLaunchKernel", 0, 4, lambda threads: 2 * threads),
        "block of 512 threads, the kernel is built for 256",
    ),
    "wrong handle": (with_operand("cudnnSetStream", 0, 0, 1), "is not a live cuDNN handle"),
}
STREAM_FAULTS: dict[str, tuple[Callable[[str], str], str]] = {
    # Each op waits twice: its weights for the slot, from the third op on for what read it before; the op for them.
    "weights read before they are there": (
        dropped("cudaStreamWaitEvent", 2),
        r"reads \d+ bytes that were never written",
    ),
    "weights overwritten while they are read": (
        dropped("cudaStreamWaitEvent", 3),
        "cudaMemcpyAsync: race between streams: 'cublasSgemmStridedBatched' reads the same bytes",
    ),
    "weights read while they are overwritten": (
        dropped("cudaStreamWaitEvent", 6),
        "race between streams: 'cublasSgemmStridedBatched' reads the same bytes",
    ),
}
INTEGRATED_FAULTS: dict[str, tuple[Callable[[str], str], str]] = {
    # The program takes a device that has the host's memory for one that reaches all of it.
    "memory of the host that is not registered": (
        with_number("cudaDeviceGetAttribute", 1, 1, lambda pageable: 18),
        "memory of the host that is not registered",
    ),
    "memory of the host that stays registered": (
        dropped("cudaHostUnregister", 0),
        r"\d+ bytes of host memory were never unregistered",
    ),
}
KERNEL_FAULTS: dict[str, tuple[Callable[[str], str], str]] = {
    "missing bounds check": (in_ptx("@%p1 bra \t$L__BB0_2;", ""), "reads bytes that were never written"),
    "misaligned vector load": (
        in_ptx("ld.global.b32 \t%r7, [%rd8];", "ld.global.v2.b32 \t{%r7, %r8}, [%rd8];"),
        "misaligned access of 8 bytes",
    ),
    "shared-memory race": (in_ptx("bar.sync \t0;", ""), "shared"),
    "divergent barrier": (in_ptx("bar.sync \t0;", "@%p1 ret;\n\tbar.sync \t0;"), "divergent barrier"),
    "partial-warp shuffle": (
        in_ptx("shfl.sync.bfly.b32 \t%r27", "@%p1 shfl.sync.bfly.b32 \t%r27"),
        "partial-warp shuffle",
    ),
}


def test_the_model_without_faults(model: CompiledCudaModel, tmp_path: Path) -> None:
    assert run(model, tmp_path) == ""


@pytest.mark.parametrize("name", HOST_FAULTS)
def test_fault_in_host_code(name: str, model: CompiledCudaModel, tmp_path: Path) -> None:
    change, message = HOST_FAULTS[name]
    found = run(replace(model, host=change(model.host)), tmp_path)
    assert re.search(message, found), found


@pytest.mark.parametrize("name", STREAM_FAULTS)
def test_fault_between_streams(name: str, streamed: CompiledCudaModel, tmp_path: Path) -> None:
    """The order in which the simulator happens to run the streams hides none of them."""
    assert run(streamed, tmp_path) == ""
    change, message = STREAM_FAULTS[name]
    found = run(replace(streamed, host=change(streamed.host)), tmp_path)
    assert re.search(message, found), found


@pytest.mark.parametrize("name", INTEGRATED_FAULTS)
def test_fault_on_an_integrated_device(name: str, model: CompiledCudaModel, tmp_path: Path) -> None:
    assert run(model, tmp_path, integrated=True) == ""
    change, message = INTEGRATED_FAULTS[name]
    found = run(replace(model, host=change(model.host)), tmp_path, integrated=True)
    assert re.search(message, found), found


@pytest.mark.parametrize("name", KERNEL_FAULTS)
def test_fault_in_a_kernel(name: str, model: CompiledCudaModel, tmp_path: Path) -> None:
    change, message = KERNEL_FAULTS[name]
    found = run(replace(model, ptx=change(model.ptx)), tmp_path)
    assert re.search(message, found), found
    assert "kernel '" in found


def test_the_documentation_lists_the_classes() -> None:
    text = DOCUMENTATION.read_text()
    for name in (*HOST_FAULTS, *STREAM_FAULTS, *INTEGRATED_FAULTS, *KERNEL_FAULTS):
        assert f"- {name}\n" in text, name
