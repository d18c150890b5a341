"""A compiled host program, linked against the stubs, under the simulator: one call failing at a time."""

import ctypes
from pathlib import Path

import numpy as np
import pytest
from xdsl.dialects.builtin import i32

from occamy_xdsl.lowering import linker, toolchain
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer
from occamy_xdsl.lowering.cuda import api, stubs
from occamy_xdsl.lowering.cuda.kernels.rows import RowSoftmax
from occamy_xdsl.lowering.cuda.ptx import compile_kernels
from occamy_xdsl.lowering.host import NULL, PTR, FunctionBuilder, HostModule, Operand, Value
from occamy_xdsl.simulator import Simulator

SHAPE = (6, 50)
BYTES = 4 * 6 * 50
STREAM, POOL, MODULE = 0, 8, 16
CALLS = (
    "cudaSetDevice",
    "cudaStreamCreateWithFlags",
    "cudaMalloc",
    "cuModuleLoadData",
    "cuModuleGetFunction",
)
CALLS += ("cudaMemcpyAsync", "cuLaunchKernel", "cudaStreamSynchronize")
# cudaFree waits for the device, so that nothing is running when the module goes.
RELEASES = {POOL: "cudaFree", MODULE: "cuModuleUnload", STREAM: "cudaStreamDestroy"}


def define_softmax(host: HostModule, kernel: RowSoftmax, *, leaks: bool) -> None:
    """`int softmax(const float *x, float *y)`; every call is checked and everything released."""
    api.declare(host, *CALLS, *RELEASES.values())
    f = host.function("release", i32, [PTR, i32], internal=True)
    state, status = f.arguments
    for slot, name in RELEASES.items():
        if leaks and slot == MODULE:
            continue
        handle = f.load(state + slot, PTR)
        with f.if_(handle != NULL):
            f.call(name, handle)
    f.return_(status)

    f = host.function("softmax", i32, [PTR, PTR])
    x, y = f.arguments
    state, function = f.array(24), f.array(8)
    for slot in RELEASES:
        f.store(NULL, state + slot)

    def check(f: FunctionBuilder, name: str, *arguments: Operand) -> None:
        status = f.call(name, *arguments)
        with f.if_(status != 0):
            f.return_(f.call("release", state, status))

    check(f, "cudaSetDevice", 0)
    check(f, "cudaStreamCreateWithFlags", state + STREAM, 1)
    check(f, "cudaMalloc", state + POOL, BYTES)
    check(f, "cuModuleLoadData", state + MODULE, compile_kernels([kernel], "sm_75"))
    check(f, "cuModuleGetFunction", function, f.load(state + MODULE, PTR), kernel.symbol)
    pool: Value = f.load(state + POOL, PTR)
    stream = f.load(state + STREAM, PTR)
    check(f, "cudaMemcpyAsync", pool, x, BYTES, 1, stream)
    parameters, argument = f.array(24), f.array(8)
    f.store(pool, argument)
    f.store(argument, parameters)
    f.store(argument, parameters + 8)
    f.store(NULL, parameters + 16)
    grid, block = kernel.grid, kernel.block
    check(f, "cuLaunchKernel", f.load(function, PTR), *grid, *block, 0, stream, parameters, NULL)
    check(f, "cudaMemcpyAsync", y, pool, BYTES, 2, stream)
    check(f, "cudaStreamSynchronize", stream)
    f.return_(f.call("release", state, f.value(0, i32)))


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The program, and one that forgets to unload its module."""
    folder = tmp_path_factory.mktemp("artefact")
    linked_stubs = stubs.write_stubs(folder)
    isa = toolchain.Isa.host()
    buffer = Buffer.contiguous(SHAPE)
    paths: dict[str, Path] = {}
    for name, leaks in (("right", False), ("leaks", True)):
        host = HostModule()
        define_softmax(host, RowSoftmax(buffer, buffer), leaks=leaks)
        host.module.verify()
        module = toolchain.optimize(toolchain.translate_to_llvm(str(host.module)), isa)
        (folder / "host.o").write_bytes(toolchain.emit_object(module, isa))
        paths[name] = folder / f"{name}.so"
        linker.link_shared([folder / "host.o", *linked_stubs.values()], paths[name], ["softmax"])
    return paths


def run(simulator: Simulator, path: Path) -> tuple[int, np.ndarray, np.ndarray]:
    x = np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)
    y = np.full(SHAPE, np.nan, np.float32)
    softmax = simulator.load(path).softmax
    softmax.argtypes = [ctypes.c_void_p] * 2
    return softmax(x.ctypes.data, y.ctypes.data), x, y


def test_the_program_is_right(libraries: dict[str, Path]) -> None:
    with Simulator() as simulator:
        status, x, y = run(simulator, libraries["right"])
    assert status == 0
    expected = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    np.testing.assert_allclose(y, expected, rtol=1e-5)
    assert simulator.report().peak_device_bytes == BYTES


def test_a_program_in_the_current_folder(libraries: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(libraries["leaks"].parent)
    with Simulator(strict=False) as simulator:
        assert run(simulator, Path("leaks.so"))[0] == 0


def test_every_call_may_fail(libraries: dict[str, Path]) -> None:
    """Whichever call fails, its status comes back, and nothing is left over that could be released."""
    with Simulator() as simulator:
        run(simulator, libraries["right"])
    calls = list(simulator.calls)
    assert len(calls) == 12
    for number, name in enumerate(calls, 1):
        with Simulator(fail=(number, 46), strict=False) as simulator:
            status, _, _ = run(simulator, libraries["right"])
        failed = [str(v) for v in simulator.violations]
        if name in RELEASES.values():
            assert status == 0
            assert failed, "what was not released is left"
        else:
            assert status == 46, name
            assert failed == []


def test_a_leak_is_found(libraries: dict[str, Path]) -> None:
    with Simulator(strict=False) as simulator:
        run(simulator, libraries["leaks"])
    assert [str(v) for v in simulator.violations] == ["at the end: 1 module never destroyed"]


def test_architectures_are_checked(libraries: dict[str, Path]) -> None:
    with Simulator(architecture="sm_72") as simulator:
        status, _, _ = run(simulator, libraries["right"])
    assert status == 209
    assert "PTX for sm_75 cannot run on sm_72" in simulator.report().refusals[0]
