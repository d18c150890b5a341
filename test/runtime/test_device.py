"""The GPU through NVIDIA's own `cuda.bindings`, whose driver is the simulator's."""

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from occamy_xdsl.errors import NoDeviceError, OccamyError
from occamy_xdsl.lowering.cuda.api import LIBRARIES, Library
from occamy_xdsl.runtime import device as gpu
from occamy_xdsl.runtime.nvidia import create, load_libraries, status
from occamy_xdsl.simulator import Simulator

pytestmark = pytest.mark.usefixtures("compiler")


def use_everything() -> None:
    """A round trip of an array, between events."""
    data, back = np.arange(6, dtype=np.float32), np.zeros(6, np.float32)
    assert gpu.device().architecture == "sm_87"
    before = gpu.free_bytes()
    with gpu.new_stream() as stream, gpu.allocated(data.nbytes) as address:
        assert before - gpu.free_bytes() >= data.nbytes
        assert gpu.elapsed(stream, lambda: gpu.upload(data, address, stream)) == 0
        gpu.download(address, back, stream)
    np.testing.assert_array_equal(back, data)
    assert gpu.free_bytes() == before


def test_calls_go_through_the_bindings() -> None:
    """The driver is asked for what the bindings call, and its first GPU becomes current."""
    with Simulator(architecture="sm_87", capacity=1 << 20) as sim:
        use_everything()
        assert gpu.memory() == (1 << 20, 1 << 20)
    assert sim.calls.count("cuDevicePrimaryCtxRetain") == 1
    assert {"cuDeviceGetAttribute", "cuMemGetInfo_v2", "cuEventElapsedTime_v2"} <= set(sim.calls)
    assert gpu._driver().__name__ == "cuda.bindings.driver"
    assert gpu._driver().__file__.endswith(".so")


def test_handles_are_those_of_the_runtime() -> None:
    """Streams of compiled models come from the runtime, and so may the context."""
    with Simulator() as sim:
        load_libraries()
        stream = create("cudaStreamCreateWithFlags", 1)
        assert gpu.elapsed(stream, lambda: None) == 0
        assert status("cudaStreamDestroy", stream) == 0
    assert "cuDevicePrimaryCtxRetain" not in sim.calls, "the runtime's context is current"


def test_every_call_may_fail() -> None:
    """Whichever call fails, the error is one line that names it, and nothing is left behind."""
    with Simulator(architecture="sm_87") as sim:
        use_everything()
    released = {"cuMemFree_v2", "cuStreamDestroy_v2", "cuEventDestroy_v2"}
    for number, name in enumerate(sim.calls, 1):
        if name in released:
            continue
        failing = Simulator(architecture="sm_87", fail=(number, 46), strict=False)
        with pytest.raises(OccamyError) as caught, failing:
            use_everything()
        text = "cudaError46" if name.startswith("cuda") else "CUDA_ERROR_46"
        fact = f"{name.removesuffix('_v2')}: {text} (status 46)"
        hint = "; `occamy run M.onnx --target cuda --simulate` needs none"
        missing = name in ("cudaGetDeviceCount", "cuInit")
        assert str(caught.value) == (f"no GPU can be used here: {fact}{hint}" if missing else fact)
        assert isinstance(caught.value, NoDeviceError) == missing
        assert failing.violations == [], name


def test_without_the_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    gpu._driver.cache_clear()
    try:
        with Simulator(), pytest.raises(NoDeviceError) as caught:
            gpu.device()
    finally:
        gpu._driver.cache_clear()
    assert str(caught.value) == (
        "no GPU can be used here: import of cuda.bindings.driver halted; None in sys.modules; "
        "`pip install occamy-xdsl[cuda]` brings it"
    )
    assert caught.value.exit_code == 3


def test_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what comes with the extra, not with the driver, the message says where it is."""
    monkeypatch.setitem(cast(Any, LIBRARIES), "cudnn", Library("libnone.so.9", 0))
    with Simulator(), pytest.raises(NoDeviceError) as caught:
        gpu.device()
    assert str(caught.value) == (
        "no GPU can be used here: libnone.so.9: cannot open shared object file: No such file or directory; "
        "`pip install occamy-xdsl[cuda]` brings it"
    )


def fresh(code: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a process in which nothing is loaded yet."""
    lines = ["from occamy_xdsl.errors import NoDeviceError", "from occamy_xdsl.runtime import device", code]
    return subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU")
@pytest.mark.parametrize("call", ["memory()", "elapsed(0, print)", "device()"])
def test_without_a_driver(call: str) -> None:
    """What the bindings say where there is no driver is one line, and the same again."""
    code = f"for _ in 'ab':\n try: device.{call}\n except NoDeviceError as e: print(e)"
    first, second = fresh(code).stdout.splitlines()
    assert first == second
    assert first.startswith("no GPU can be used here: ")
    assert first.endswith("; `occamy run M.onnx --target cuda --simulate` needs none")


def test_outside_of_a_simulation() -> None:
    """The bindings ask for addresses once in a process, which may be while nothing is simulated."""
    done = fresh(
        """
from occamy_xdsl.simulator import Simulator
with Simulator():
    pass
try:
    device.memory()
except NoDeviceError as error:
    print(error)
for size in (1 << 20, 1 << 21):
    with Simulator(capacity=size):
        print(device.memory())
"""
    )
    text = "no GPU can be used here: cuInit: unknown error (status 100); "
    outside, *inside = done.stdout.splitlines()
    assert outside.startswith(text), done.stderr
    assert inside == ["(1048576, 1048576)", "(2097152, 2097152)"]
