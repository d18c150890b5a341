"""What the simulator finds in host programs: memory, streams, handles, launches, injected failures."""

import ctypes
import json
from pathlib import Path

import numpy as np
import pytest

from occamy_xdsl.errors import UsageError
from occamy_xdsl.simulator import SimulationError, Simulator

X = np.arange(64, dtype=np.float32)

DOUBLE = """
.version 7.5
.target sm_75
.address_size 64
.visible .entry twice(.param .u64 .ptr .align 1 twice_param_0, .param .u64 twice_param_1)
.maxntid 64, 1, 1
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<6>;
    ld.param.b64 %rd1, [twice_param_0];
    ld.param.b64 %rd2, [twice_param_1];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd3, %r1, 4;
    add.s64 %rd4, %rd1, %rd3;
    add.s64 %rd5, %rd2, %rd3;
    ld.global.b32 %r2, [%rd4];
    add.rn.f32 %r3, %r2, %r2;
    st.global.b32 [%rd5], %r3;
    ret;
}
"""


def messages(simulator: Simulator) -> str:
    return "\n".join(map(str, simulator.violations))


def load_twice(p, text: str = DOUBLE) -> tuple[int, int]:
    """The module and the function."""
    module = p.make("cuModuleLoadData", ctypes.create_string_buffer(text.encode()))
    return module, p.make("cuModuleGetFunction", module, ctypes.create_string_buffer(b"twice"))


def test_a_correct_program(program, tmp_path: Path) -> None:
    """Copies, a kernel, the report and the trace; leaving the block finds nothing wrong."""
    with Simulator() as simulator:
        p = program(simulator)
        x = p.upload(X)
        y = p.make("cudaMalloc", X.nbytes)
        module, function = load_twice(p)
        p.launch(function, (1, 1, 1), (64, 1, 1), x, y)
        np.testing.assert_array_equal(p.download(y, (64,)), 2 * X)
        p.call("cuModuleUnload", module)
        p.call("cudaFree", x)
        p.call("cudaFree", y)
    report = simulator.report()
    assert report.peak_device_bytes == 2 * X.nbytes
    assert report.allocations == 2
    assert report.copied_bytes == {"host to device": X.nbytes, "device to host": X.nbytes}
    assert report.kernels["twice"].launches == 1
    assert report.kernels["twice"].used_bytes == report.kernels["twice"].moved_bytes == 2 * X.nbytes
    assert report.calls["cudaMalloc"] == 2
    assert "100.0% of the moved bytes used" in str(report)
    simulator.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [e["name"] for e in events if e["ph"] == "X" and e["tid"] == 1] == [
        "cudaMemcpyAsync",
        "twice",
        "cudaMemcpyAsync",
    ]
    assert [e["args"]["bytes"] for e in events if e["ph"] == "C"] == [256, 512, 256, 0]
    # The Trace Event Format: complete events on named tracks, in order, and counters.
    named = {e["tid"] for e in events if e["ph"] == "M" and e["name"] == "thread_name" and e["args"]["name"]}
    complete = [e for e in events if e["ph"] == "X"]
    assert {e["ph"] for e in events} == {"M", "X", "C"}
    assert all(e["tid"] in named and e["name"] and e["pid"] == 0 and e["dur"] > 0 for e in complete)
    assert [e["ts"] for e in complete] == sorted({e["ts"] for e in complete})


def test_missing_synchronisation(program, lenient: Simulator) -> None:
    """Without a wait the data are not there, and the operations are left over."""
    with lenient as simulator:
        p = program(simulator)
        x = p.upload(X)
        result = np.zeros_like(X)
        p.call("cudaMemcpyAsync", result.ctypes.data, x, X.nbytes, 2, None)
        assert not result.any()
    assert "2 operations of streams that nobody waited for" in messages(simulator)


def test_strict_simulation_raises(program) -> None:
    with (
        pytest.raises(SimulationError, match="256 bytes of device memory were never freed"),
        Simulator() as s,
    ):
        program(s).make("cudaMalloc", 256)


def test_leaked_handles(program, lenient: Simulator) -> None:
    with lenient as simulator:
        p = program(simulator)
        p.make("cudnnCreateTensorDescriptor")
        p.make("cudaStreamCreateWithFlags", 1)
        p.make("cublasCreate_v2")
        p.make("cudaHostAlloc", 100, 0)
    assert "1 cuDNN tensor descriptor never destroyed" in messages(simulator)
    assert "1 stream never destroyed" in messages(simulator)
    assert "1 cuBLAS handle never destroyed" in messages(simulator)
    assert "100 bytes of pinned host memory" in messages(simulator)


def test_use_after_free_and_double_free(program, lenient: Simulator) -> None:
    with lenient as simulator:
        p = program(simulator)
        x = p.upload(X)
        p.call("cudaFree", x)
        p.call("cudaFree", x, status=1)
        p.call("cudaMemcpyAsync", x, X.ctypes.data, X.nbytes, 1, None)
        p.call("cudaStreamSynchronize", None, status=700)
    assert [v.call for v in simulator.violations] == ["cudaFree", "cudaMemcpyAsync"]
    assert "double free of the 256 bytes" in messages(simulator)
    assert "use after free: offset 0 of 256 freed bytes" in messages(simulator)


def test_uninitialised_and_past_the_pool(program, lenient: Simulator) -> None:
    with lenient as simulator:
        p = program(simulator)
        pool = p.make("cudaMalloc", 1024)
        p.copy_in(pool, X)
        result = np.zeros(65, np.float32)
        p.call("cudaMemcpyAsync", result.ctypes.data, pool, result.nbytes, 2, None)
        p.call("cudaStreamSynchronize", None, status=700)
        p.copy_in(pool + 900, X)
        p.call("cudaStreamSynchronize", None, status=700)
        p.call("cudaMemcpyAsync", 1024, pool, 64, 2, None)
        p.call("cudaStreamSynchronize", None, status=700)
        p.call("cudaFree", pool)
    first, second, third = map(str, simulator.violations)
    assert "reads 4 bytes that were never written, first in element (256,)" in first
    assert "256 bytes at offset 900 run past the end of an allocation of 1024 bytes" in second
    assert "not memory of the host" in third


def test_device_addresses_are_not_mapped(program, lenient: Simulator) -> None:
    """A device address given as one of the host is found and does not crash."""
    with lenient as simulator:
        p = program(simulator)
        x = p.upload(X)
        p.call("cudaMemcpyAsync", x, x + 128, 16, 1, None)
        p.call("cudaStreamSynchronize", None, status=700)
        p.call("cudaFree", x)
    assert "are not memory of the host" in messages(simulator)


@pytest.mark.parametrize("passed", [1, 3])
def test_wrong_number_of_parameters(program, lenient: Simulator, passed: int) -> None:
    with lenient as simulator:
        p = program(simulator)
        x = p.upload(X)
        module, function = load_twice(p)
        p.launch(function, (1, 1, 1), (64, 1, 1), *[x] * passed, status=1)
        p.call("cuModuleUnload", module)
        p.call("cudaFree", x)
    assert "kernel 'twice' takes 2 parameters, the launch passes" in messages(simulator)


def test_kernel_faults_name_kernel_thread_and_line(program, lenient: Simulator) -> None:
    """A store out of bounds, in a launch with too few allocated bytes."""
    with lenient as simulator:
        p = program(simulator)
        x, y = p.upload(X), p.make("cudaMalloc", 100)
        module, function = load_twice(p)
        p.launch(function, (1, 1, 1), (64, 1, 1), x, y)
        p.call("cudaStreamSynchronize", None, status=700)
        p.launch(function, (1, 1, 1), (128, 1, 1), x, y)
        p.call("cudaStreamSynchronize", None, status=700)
        for address in (x, y):
            p.call("cudaFree", address)
        p.call("cuModuleUnload", module)
    store, block = map(str, simulator.violations)
    assert "kernel 'twice', thread (25, 0, 0) of block (0, 0, 0), PTX line 18" in store
    assert "out-of-bounds access of 4 bytes" in store
    assert "lies 0 bytes past the end of an allocation of 100 bytes" in store
    assert "block of 128 threads, the kernel is built for 64" in block


def test_modules_and_contexts(program, lenient: Simulator) -> None:
    image = ctypes.create_string_buffer(DOUBLE.encode())
    result = ctypes.byref(ctypes.c_void_p())
    with lenient as simulator:
        p = program(simulator)
        p.call("cuModuleLoadData", result, image, status=1)  # no context yet
        p.call("cudaSetDevice", 1, status=101)
        p.call("cudaSetDevice", 0)
        p.call("cuModuleLoadData", result, ctypes.create_string_buffer(b"ELF"), status=218)
        module, function = load_twice(p)
        name = ctypes.create_string_buffer(b"thrice")
        p.call("cuModuleGetFunction", result, module, name, status=500)
        x = p.upload(X)
        p.launch(function, (1, 1, 1), (64, 1, 1), x, x)
        p.call("cuModuleUnload", module)
        p.call("cudaStreamSynchronize", None, status=700)
        p.call("cudaFree", x)
    assert len(simulator.violations) == 2
    assert "no context" in messages(simulator)
    assert "was unloaded before the kernel ran" in messages(simulator)
    with Simulator(architecture="sm_72") as simulator:
        p = program(simulator)
        p.call("cudaSetDevice", 0)
        p.call("cuModuleLoadData", result, image, status=209)


def test_the_driver_alone(program, lenient: Simulator) -> None:
    """A program that never calls the runtime needs cuInit and a context."""
    result = ctypes.byref(ctypes.c_void_p())
    with lenient as simulator:
        p = program(simulator)
        p.call("cuDeviceGet", result, 0, status=1)  # not initialised
        p.call("cuInit", 0)
        p.call("cuDeviceGet", result, 1, status=101)
        assert p.make("cuCtxGetCurrent") == 0
        p.call("cuCtxGetDevice", result, status=1)  # no context
        p.call("cuMemAlloc_v2", result, 4, status=1)
        context = p.make("cuDevicePrimaryCtxRetain", 0)
        p.call("cuCtxSetCurrent", context + 1, status=1)
        p.call("cuCtxSetCurrent", context)
        assert p.make("cuCtxGetCurrent") == context
        p.call("cuMemAlloc_v2", result, 0, status=1)
        stream, x, back = p.make("cuStreamCreate", 1), p.make("cuMemAlloc_v2", X.nbytes), np.zeros_like(X)
        p.call("cuMemcpyHtoDAsync_v2", x, X.ctypes.data, X.nbytes, stream)
        p.call("cuMemcpyDtoHAsync_v2", back.ctypes.data, x, X.nbytes, stream)
        assert not back.any()
        p.call("cuStreamSynchronize", stream)
        np.testing.assert_array_equal(back, X)
        p.call("cuStreamDestroy_v2", stream)
    for fact in ("call cuInit first", "no context", "is not the primary context", f"{X.nbytes} bytes"):
        assert fact in messages(simulator), fact
    assert simulator.report().allocations == 1
    assert simulator.report().refusals[-1].endswith("an allocation of no bytes")


@pytest.mark.parametrize(
    ("symbol", "known"), [(b"cuMemGetInfo", True), (b"cuMemGetInfo_v2", False), (None, False)]
)
def test_addresses_of_the_driver(program, symbol: bytes | None, known: bool) -> None:
    """cuGetProcAddress takes names without versions, and gives addresses that work in later simulations."""
    function = ctypes.c_void_p(1)
    status = 0 if known else 1 if symbol is None else 500
    with Simulator() as simulator:
        program(simulator).call(
            "cuGetProcAddress_v2", symbol, ctypes.byref(function), 13000, 0, None, status=status
        )
    assert bool(function.value) == known or symbol is None
    if known:
        info = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(function.value)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        with Simulator(capacity=1234) as simulator:
            simulator.call("cudaSetDevice", 0)
            assert info(ctypes.addressof(free), ctypes.addressof(total)) == 0
        assert total.value == 1234


def test_streams_and_events(program, lenient: Simulator) -> None:
    """Work of another stream is there only if an event orders it."""
    with lenient as simulator:
        p = program(simulator)
        one, two = p.make("cudaStreamCreateWithFlags", 1), p.make("cudaStreamCreateWithFlags", 1)
        event = p.make("cudaEventCreateWithFlags", 0)
        x = p.make("cudaMalloc", X.nbytes)
        p.copy_in(x, X, one)
        p.call("cudaEventRecord", event, one)
        milliseconds = ctypes.c_float(1)
        p.call("cudaEventElapsedTime", ctypes.byref(milliseconds), event, event, status=600)
        p.call("cudaStreamWaitEvent", two, event, 0)
        np.testing.assert_array_equal(p.download(x, (64,), stream=two), X)
        p.call("cudaEventElapsedTime", ctypes.byref(milliseconds), event, event)
        assert milliseconds.value == 0
        p.copy_in(x, X + 1, one)
        np.testing.assert_array_equal(p.download(x, (64,), stream=two), X)
        p.call("cudaStreamDestroy", one)
        p.call("cudaEventDestroy", event)
        p.call("cudaStreamDestroy", two)
        p.call("cudaFree", x)
    assert messages(simulator) == "call 15, cudaStreamDestroy: 1 operations of the stream were not waited for"


def test_graphs(program) -> None:
    """Captured work runs at each launch, and not at the capture."""
    with Simulator() as simulator:
        p = program(simulator)
        stream = p.make("cudaStreamCreateWithFlags", 1)
        x, y = p.upload(X, stream), p.make("cudaMalloc", X.nbytes)
        p.call("cudaStreamSynchronize", stream)
        p.call("cudaStreamBeginCapture", stream, 1)
        p.call("cudaMemcpyAsync", y, x, X.nbytes, 3, stream)
        graph = ctypes.c_void_p()
        p.call("cudaStreamEndCapture", stream, ctypes.byref(graph))
        executable = p.make("cudaGraphInstantiateWithFlags", graph, 0)
        for value in (X, X + 1):
            p.copy_in(x, value, stream)
            p.call("cudaGraphLaunch", executable, stream)
            np.testing.assert_array_equal(p.download(y, (64,), stream=stream), value)
        p.call("cudaGraphExecDestroy", executable)
        p.call("cudaGraphDestroy", graph)
        p.call("cudaStreamDestroy", stream)
        p.call("cudaFree", x)
        p.call("cudaFree", y)


def test_capture_forbids_synchronising_and_allocating(program, lenient: Simulator) -> None:
    with lenient as simulator:
        p = program(simulator)
        stream = p.make("cudaStreamCreateWithFlags", 1)
        p.call("cudaStreamBeginCapture", stream, 1)
        p.call("cudaStreamSynchronize", stream, status=1)
        p.call("cudaMalloc", ctypes.byref(ctypes.c_void_p()), 8, status=1)
        graph = ctypes.c_void_p()
        p.call("cudaStreamEndCapture", stream, ctypes.byref(graph))
        p.call("cudaGraphDestroy", graph)
        p.call("cudaStreamDestroy", stream)
    assert [v.call for v in simulator.violations] == ["cudaStreamSynchronize", "cudaMalloc"]


def test_injected_failure_and_error_texts(program) -> None:
    with Simulator(fail=(2, 2)) as simulator:
        p = program(simulator)
        x = p.make("cudaMalloc", 8)
        p.call("cudaMalloc", ctypes.byref(ctypes.c_void_p()), 8, status=2)
        p.call("cudaFree", x)
        text = ctypes.string_at(simulator.call("cudaGetErrorName", 2))
        assert text == b"cudaErrorMemoryAllocation"
        assert ctypes.string_at(simulator.call("cudnnGetErrorString", 2000)) == b"CUDNN_STATUS_BAD_PARAM"
        pointer = ctypes.c_char_p()
        simulator.call("cuGetErrorString", 500, ctypes.byref(pointer))
        assert pointer.value == b"CUDA_ERROR_NOT_FOUND"
    assert simulator.calls == ["cudaMalloc", "cudaMalloc", "cudaFree"]


def test_capacity(program) -> None:
    with Simulator(capacity=1000) as simulator:
        p = program(simulator)
        x = p.make("cudaMalloc", 600)
        p.call("cudaMalloc", ctypes.byref(ctypes.c_void_p()), 600, status=2)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        p.call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        assert (free.value, total.value) == (400, 1000)
        p.call("cudaFree", x)
    assert simulator.report().refusals == ("call 2, cudaMalloc: 600 bytes do not fit, 400 are free",)


def test_device_attributes(program) -> None:
    with Simulator(architecture="sm_87") as simulator:
        p = program(simulator)
        value = ctypes.c_int()
        for attribute, expected in ((75, 8), (76, 7), (18, 1)):
            p.call("cudaDeviceGetAttribute", ctypes.byref(value), attribute, 0)
            assert value.value == expected
        p.call("cudaGetDeviceCount", ctypes.byref(value))
        assert value.value == 1


def test_default_stream_waits_for_blocking_streams(program) -> None:
    with Simulator() as simulator:
        p = program(simulator)
        stream, x = p.make("cudaStreamCreateWithFlags", 0), p.make("cudaMalloc", X.nbytes)
        p.copy_in(x, X, stream)
        np.testing.assert_array_equal(p.download(x, (64,)), X)
        p.call("cudaStreamDestroy", stream)
        p.call("cudaFree", x)


def test_pinned_memory_fills_and_waits(program) -> None:
    """Pinned host memory, memset, and the waits for an event and for the device."""
    with Simulator() as simulator:
        p = program(simulator)
        host, x = p.make("cudaHostAlloc", 64, 2), p.make("cudaMalloc", 64)
        event = p.make("cudaEventCreateWithFlags", 2)
        p.call("cudaEventSynchronize", event)
        p.call("cudaMemsetAsync", x, 0x107, 64, None)
        p.call("cudaMemcpyAsync", host, x, 64, 2, None)
        p.call("cudaEventRecord", event, None)
        p.call("cudaMemsetAsync", x, 9, 64, None)
        p.call("cudaEventSynchronize", event)
        assert ctypes.string_at(host, 64) == b"\x07" * 64
        p.call("cudaDeviceSynchronize")
        np.testing.assert_array_equal(p.download(x, (64,), np.uint8), 9)
        for name, handle in (("cudaEventDestroy", event), ("cudaFree", x), ("cudaFreeHost", host)):
            p.call(name, handle)
        p.call("cudaFree", None)
        p.call("cudaFreeHost", None)


def test_wrong_arguments(program, lenient: Simulator) -> None:
    with lenient as simulator:
        p = program(simulator)
        x = p.upload(X)
        p.call("cudaMemcpyAsync", None, x, 8, 2, None, status=1)
        p.call("cudaMemcpyAsync", x, x, 8, 9, None, status=21)
        p.call("cudaMemcpyAsync", x + 4, x, 8, 3, None, status=1)
        p.call("cudaMalloc", None, 8, status=1)
        p.call("cudaStreamSynchronize", x, status=1)
        p.call("cudnnSetStream", x, None, status=2000)
        p.call("cublasDestroy_v2", None, status=7)
        p.call("cudaFree", x + 8, status=1)
        p.call("cudaFreeHost", x, status=1)
        p.call("cuLaunchKernel", 5, *[1] * 6, 0, None, None, None, status=1)
        p.call("cudaFree", x)
    found = [v.message for v in simulator.violations]
    assert len(found) == 9
    assert found[0] == "a null pointer"
    assert found[1] == "source and target overlap"
    assert found[2] == "the address for the result is a null pointer"
    assert "is not a live stream handle" in found[3]


def test_errors_of_the_simulator_itself_come_out(program) -> None:
    """An exception cannot pass through machine code: it is raised when the block is left."""

    def broken(algorithm: int, problem: object) -> int:
        raise ZeroDivisionError

    simulator = Simulator(workspace_bytes=broken)
    p = program(simulator)
    simulator.__enter__()
    handle, x, w = p.make("cudnnCreate"), p.tensor(1, 1, 4, 4), p.make("cudnnCreateFilterDescriptor")
    p.call("cudnnSetFilter4dDescriptor", w, 0, 0, 1, 1, 1, 1)
    c = p.make("cudnnCreateConvolutionDescriptor")
    p.call("cudnnSetConvolution2dDescriptor", c, 0, 0, 1, 1, 1, 1, 1, 0)
    size = ctypes.byref(ctypes.c_size_t())
    p.call("cudnnGetConvolutionForwardWorkspaceSize", handle, x, w, c, x, 0, size, status=999)
    with pytest.raises(ZeroDivisionError):
        simulator.__exit__(None, None, None)


def test_one_simulation_at_a_time() -> None:
    with Simulator() as simulator, pytest.raises(UsageError, match="already running"), Simulator():
        pass
    assert simulator.call("cudaDeviceSynchronize") == 100, "a stub without a simulator has no device"
    with pytest.raises(UsageError, match="only while the simulation runs"):
        simulator.load(Path("x.so"))
