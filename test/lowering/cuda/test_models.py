"""Whole models compiled for a GPU, under the simulator: results, allocations, failures, what is released."""

import ctypes
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from nets import NETS, Net

from occamy_xdsl.errors import MemoryLimitError, OccamyError, UnsupportedModelError
from occamy_xdsl.runtime.executable import Executable, LibraryModel
from occamy_xdsl.simulator import Simulator

CHIP = "sm_75"


def small():
    """Convolutions with and without fused relu, pooling, a transposed convolution, products and a softmax."""
    n = Net()
    x = n.op("Relu", n.conv("x", 3, 8))
    x = n.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = n.op("ConvTranspose", x, n.random(8, 4, 2, 2), kernel_shape=[2, 2], strides=[2, 2])
    x = n.op("Sigmoid", n.conv(x, 4, 4, 1))
    x = n.op("Gemm", n.op("Flatten", x), n.random(256, 10), n.random(10))
    return n.model({"x": (2, 3, 8, 8)}, [n.op("Softmax", x, axis=1)])


@pytest.mark.parametrize("name", NETS)
def test_net_is_right_with_one_allocation(name: str, build) -> None:
    """A run allocates nothing, nothing is left over, and a second run gives the same."""
    model = build(NETS[name]())
    with Simulator(architecture=CHIP) as simulator:
        outputs = model.run(simulator, times=2)
    model.check(outputs)
    report = simulator.report()
    assert report.allocations == 1
    assert report.refusals == ()
    assert "matrix products for which cuBLAS allocates a workspace of its own" not in report.notes


@pytest.mark.parametrize("name", ["attention", "sequences", "unet", "densenet"])
def test_net_in_stripes_is_right(name: str, build) -> None:
    """Rows of images, sequences and batches; what the libraries cannot read in place is copied."""
    whole, striped = build(NETS[name]()), build(NETS[name](), stripe_budget=1000)
    assert striped.compilation.report().pool_bytes <= whole.compilation.report().pool_bytes
    with Simulator(architecture=CHIP) as simulator:
        striped.check(striped.run(simulator))


def test_plan_obeys_the_checker(build) -> None:
    """`verify-dnn-pool` runs in the pipeline; everything is at multiples of 256 bytes."""
    model = build(NETS["resnet"]())
    report = model.compilation.report()
    assert report.pool_bytes > 0
    assert all(t.offset % 256 == 0 for t in report.tensors if t.offset is not None and t.alias_of is None)
    with Simulator(architecture=CHIP) as simulator:
        model.run(simulator)
    # Pool, copies of inputs and outputs, and weights, each rounded up.
    sizes = report.pool_bytes + report.io_bytes + model.compilation.signature().weights_bytes
    assert sizes <= simulator.report().peak_device_bytes <= sizes + 3 * 256


def test_runs_in_a_pool_of_the_caller(build) -> None:
    model = build(small())
    with Simulator(architecture=CHIP) as simulator:
        pool = ctypes.c_void_p()
        simulator.call("cudaMalloc", ctypes.byref(pool), model.compilation.report().pool_bytes)
        library = LibraryModel(model.library)
        call = library.bind(pool.value or 0)
        x, y = model.inputs["x"], np.zeros((2, 10), np.float32)
        call([x.ctypes.data], [y.ctypes.data])
        del call
        simulator.call("cudaFree", pool)
    model.check({name: y for name in model.expected})
    assert simulator.report().allocations == 2


def test_weights_in_a_file(build) -> None:
    model = build(small(), weights="file")
    with Simulator(architecture=CHIP) as simulator:
        model.check(model.run(simulator))


def test_every_call_may_fail(build) -> None:
    """
    Whichever call fails, create or run says which, of which node, and everything is released; only a failing
    release is ignored, and a failing question for a faster algorithm.
    """
    model = build(small())
    with Simulator(architecture=CHIP) as simulator:
        model.check(model.run(simulator))
    calls = list(simulator.calls)
    seen: Counter[str] = Counter(calls)
    assert {"cudnnConvolutionForward", "cudnnConvolutionBiasActivationForward", "cudnnPoolingForward"} <= set(
        seen
    )
    assert {"cudnnConvolutionBackwardData", "cublasSgemmStridedBatched", "cuLaunchKernel"} <= set(seen)
    # Releasing starts with these two; nobody is there to hear that they fail.
    release = len(calls) - 1 - calls[::-1].index("cudaSetDevice")
    assert calls[release + 1] == "cudaStreamSynchronize"
    for number, name in enumerate(calls, 1):
        with Simulator(architecture=CHIP, fail=(number, 46), strict=False) as simulator:
            try:
                outputs = model.run(simulator)
            except OccamyError as error:
                message = str(error)
            else:
                message = ""
                model.check(outputs)
        left = [str(violation) for violation in simulator.violations]
        if number > release:
            assert message == ""
            continue
        assert left == [], name
        if name == "cudnnGetConvolutionForwardWorkspaceSize":
            continue
        assert f"{name}: " in message, name
        if name.endswith(("Forward", "BackwardData", "Batched")) or name == "cuLaunchKernel":
            assert "node 'node_" in message


def test_more_workspace_than_planned_falls_back(build) -> None:
    """A convolution runs without workspace where the library asks for more than was planned."""
    model = build(NETS["unet"]())
    with Simulator(
        architecture=CHIP, workspace_bytes=lambda algorithm, problem: algorithm << 20
    ) as simulator:
        model.check(model.run(simulator))
    algorithms = {e["args"]["algorithm"] for e in _events(simulator) if "algorithm" in e.get("args", {})}
    assert algorithms == {0}
    greedy = Simulator(architecture=CHIP, workspace_bytes=lambda algorithm, problem: 1 << 20)
    fact = r"node 'node_\d+': cuDNN needs 1048576 bytes of workspace where \d+ are planned"
    with pytest.raises(OccamyError, match=fact), greedy:
        model.run(greedy)


def _events(simulator: Simulator) -> list[dict]:
    return json.loads(simulator.trace.to_json())["traceEvents"]


def test_default_algorithm_is_used_where_it_fits(build) -> None:
    model = build(NETS["unet"]())
    with Simulator(architecture=CHIP) as simulator:
        model.run(simulator)
    algorithms = [e["args"]["algorithm"] for e in _events(simulator) if "algorithm" in e.get("args", {})]
    assert set(algorithms) == {0, 1}, "at the peak there is no room for the default"


def test_workspace_limit(build) -> None:
    """Without room convolutions need none, products the least that cuBLAS takes; other scratch memory is refused."""
    model = build(small(), workspace_limit=16 << 10)
    assert model.compilation.report().workspace_bytes == 16 << 10
    with Simulator(architecture=CHIP) as simulator:
        model.check(model.run(simulator))
    n = Net()
    y = n.conv("x", 3, 4, 3, pads=[0, 0, 1, 1])
    with pytest.raises(MemoryLimitError, match="workspace"):
        build(n.model({"x": (1, 3, 8, 8)}, [y]), workspace_limit=0)
    with pytest.raises(MemoryLimitError, match="16384 bytes needed, limit 0"):
        build(small(), workspace_limit=0)


def test_libraries_do_not_raise_the_peak(build) -> None:
    """Their workspaces lie under the peak of the other buffers, which products alone may raise to 16 KiB."""
    for name in ("unet", "inception", "mobilenet"):
        report = build(NETS[name]()).compilation.report()
        peaks = {step.name: step.max_live_bytes for step in report.passes}
        assert peaks["cuda-assign-workspaces"] == peaks["dnn-coalesce-tensors"]


def test_device_too_old_or_too_small(build) -> None:
    model = build(small())
    for simulator, fact in (
        (Simulator(architecture="sm_72"), "cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU"),
        (Simulator(architecture=CHIP, capacity=1000), "cudaMalloc: cudaErrorMemoryAllocation"),
    ):
        with pytest.raises(OccamyError, match=fact), simulator:
            model.run(simulator)


def test_unsupported_nodes_are_all_listed(build) -> None:
    n = Net()
    x64 = n.op("Cast", "x", to=11)
    y = n.op("Conv", x64, n.const(np.ones((2, 3, 1, 1)), np.float64))
    z = n.op("MatMul", x64, n.const(np.ones((8, 2)), np.float64))
    with pytest.raises(UnsupportedModelError) as info:
        build(n.model({"x": (1, 3, 8, 8)}, [n.op("Cast", y, to=1), n.op("Cast", z, to=1)]))
    found = {(node, op) for node, op, _ in info.value.nodes}
    assert found == {("node_1", "dnn.conv"), ("node_2", "dnn.matmul")}
    assert all("f64" in reason for _, _, reason in info.value.nodes)


def test_two_models_at_once(build) -> None:
    """Models share nothing: one that is destroyed leaves the other intact."""
    model = build(small())
    with Simulator(architecture=CHIP) as simulator:
        first, second = (Executable(LibraryModel(model.library)) for _ in range(2))
        first.run(model.inputs)
        del first
        model.check(second.run(model.inputs))
        del second
    assert simulator.report().allocations == 2


def test_resnet50_at_full_size() -> None:
    """The paper's network on 224 x 224 pixels, with random weights, through the script that checks a real GPU."""
    script = Path(__file__).parents[3] / "bench" / "gpu_check.py"
    environment = {**os.environ, "PYTHONPATH": str(script.parents[1])}
    command = [sys.executable, script, "--simulate", "resnet50"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "'right': True" in done.stdout
