"""A model for a GPU as a CUDA graph: what is captured, what runs, what fails."""

import ctypes
from typing import Any

import numpy as np
import pytest
from nets import NETS

from occamy_xdsl.errors import OccamyError, UsageError
from occamy_xdsl.runtime.executable import Executable, LibraryModel
from occamy_xdsl.simulator import Simulator


@pytest.mark.parametrize("name", ["resnet", "attention", "yolo"])
def test_captured_model_is_right(name: str, build) -> None:
    """Every run is one launch, of everything that the model does on the device."""
    model = build(NETS[name]())
    with Simulator(architecture="sm_75") as simulator:
        plain = model.run(simulator)
    without = simulator.report()
    with Simulator(architecture="sm_75") as simulator:
        executable = Executable(LibraryModel(model.library))
        executable.capture()
        executable.capture()
        doubled = {key: 2 * value for key, value in model.inputs.items()}
        executable.run(doubled)
        outputs = executable.run(model.inputs)
        del executable
    model.check(outputs)
    for key, value in plain.items():
        np.testing.assert_array_equal(outputs[key], value)
    report = simulator.report()
    assert report.calls["cudaStreamBeginCapture"] == 1
    assert report.calls["cudaGraphLaunch"] == 2
    assert report.allocations == 1
    # Asked for once, run twice.
    for call in ("cuLaunchKernel", "cudnnConvolutionForward", "cublasSgemmStridedBatched"):
        assert report.calls.get(call) == without.calls.get(call)
    assert {n: k.launches for n, k in report.kernels.items()} == {
        n: 2 * k.launches for n, k in without.kernels.items()
    }


def test_enqueue_runs_on_the_last_inputs(build) -> None:
    """It only enqueues: the result is there when the caller has waited."""
    model = build(NETS["resnet"]())
    with Simulator(architecture="sm_75") as simulator:
        bound = LibraryModel(model.library).bind(0)
        outputs = {n: np.zeros_like(y) for n, y in model.expected.items()}
        run = [x.ctypes.data for x in model.inputs.values()], [y.ctypes.data for y in outputs.values()]
        bound(*run)
        launches = sum(kernel.launches for kernel in simulator.report().kernels.values())
        before = len(simulator.calls)
        bound.enqueue()
        enqueued = simulator.calls[before:]
        simulator.call("cudaStreamSynchronize", bound.stream)
        assert sum(kernel.launches for kernel in simulator.report().kernels.values()) == 2 * launches
        del bound
    assert not {"cudaStreamSynchronize", "cudaMalloc", "cudaMemcpyAsync"} & set(enqueued)
    model.check(outputs)


def test_every_call_of_a_capture_may_fail(build) -> None:
    model = build(NETS["resnet"]())
    with Simulator(architecture="sm_75") as simulator:
        executable = Executable(LibraryModel(model.library))
        first = len(simulator.calls)
        executable.capture()
        last = len(simulator.calls)
        del executable
    captured = simulator.calls[first:last]
    assert captured[:2] == ["cudaSetDevice", "cudaStreamBeginCapture"]
    assert captured[-3:] == ["cudaStreamEndCapture", "cudaGraphInstantiateWithFlags", "cudaGraphDestroy"]
    # Nobody is there to hear that the graph is not destroyed, and then it is still there.
    for number, name in enumerate(captured[:-1], first + 1):
        with Simulator(architecture="sm_75", fail=(number, 46), strict=False) as failing:
            executable = Executable(LibraryModel(model.library))
            with pytest.raises(OccamyError, match=f"{name}: "):
                executable.capture()
            if name != "cudaStreamEndCapture":  # the simulated stream is still being captured then
                model.check(executable.run(model.inputs))
            del executable
        if name != "cudaStreamEndCapture":
            assert failing.violations == [], name


@pytest.mark.parametrize(
    ("weights", "options"), [("file", {"stream_weights": True}), ("embed", {"memory": "lazy"})]
)
def test_what_waits_or_allocates_is_not_captured(weights: str, options: dict[str, Any], build) -> None:
    model = build(NETS["resnet"](), weights, **options)
    with Simulator(architecture="sm_75") as simulator:
        executable = Executable(LibraryModel(model.library))
        with pytest.raises(
            OccamyError,
            match="occamy_capture: streamed weights, memory without a pool and profiles cannot be",
        ):
            executable.capture()
        model.check(executable.run(model.inputs))
        del executable
    assert simulator.violations == []


def test_null_and_other_targets(build, affine_libraries) -> None:
    library = ctypes.CDLL(str(build(NETS["resnet"]()).library))
    library.occamy_error.restype = ctypes.c_char_p
    for name in ("occamy_enqueue", "occamy_capture"):
        assert getattr(library, name)(None) == 1
        assert library.occamy_error(None) == f"{name}: the model is a null pointer".encode()
    with pytest.raises(UsageError, match="CUDA graph: target 'cpu' has none"):
        Executable(LibraryModel(affine_libraries["embed"])).capture()
