"""Whole models compiled for a GPU, under the simulator: results, allocations, failures, what is released."""

import ctypes
import json
import re
from pathlib import Path

import numpy as np
import pytest
from nets import NETS, Net

from occamy_xdsl.errors import MemoryLimitError, OccamyError, UnsupportedModelError
from occamy_xdsl.lowering import linker
from occamy_xdsl.lowering.cpu.emit import write_executable
from occamy_xdsl.lowering.cuda.api import FUNCTIONS
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


@pytest.mark.parametrize("name", ["attention", "sequences", "unet", "densenet", "superresolution"])
def test_net_in_stripes_is_right(name: str, build) -> None:
    """Rows of images, sequences and batches; what the libraries cannot read in place is copied."""
    whole, striped = build(NETS[name]()), build(NETS[name](), stripe_budget=1000)
    assert striped.compilation.report().pool_bytes <= whole.compilation.report().pool_bytes
    with Simulator(architecture=CHIP) as simulator:
        striped.check(striped.run(simulator))


def test_images_beside_each_other_in_one_buffer(build) -> None:
    """The channels that a convolution reads and those that it writes alternate in the result: they share nothing."""
    n = Net()
    x = n.op("Concat", "a", "b", axis=1)
    y = n.conv(x, 3, 4)
    model = build(
        n.model({"a": (4, 1, 4, 4), "b": (4, 2, 4, 4)}, [n.op("Concat", y, x, y, axis=1)]), fuse=False
    )
    with Simulator(architecture=CHIP) as simulator:
        model.check(model.run(simulator))


def test_a_convolution_of_no_channels_is_its_bias(build) -> None:
    """No library is asked for it: cuDNN has no empty tensors."""
    n = Net()
    model = build(n.model({"x": (1, 0, 5, 5)}, [n.op("Relu", n.conv("x", 0, 4))]))
    assert "cudnnConvolution" not in model.compilation.ir("mlir")
    with Simulator(architecture=CHIP) as simulator:
        model.check(model.run(simulator))


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


def test_runs_in_a_pool_of_the_caller(small_model) -> None:
    model = small_model
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


def test_program_on_npy_files(small_model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line of a program, whose `main` is called in this process, where the simulator is."""

    def link(objects: list[Path], output: Path, machine: str) -> None:
        linker.link_shared(objects, output, ["main"], machine=machine)

    monkeypatch.setattr(linker, "link_executable", link)
    write_executable(small_model.compilation.compiled(tmp_path), tmp_path / "program")
    np.save(tmp_path / "x.npy", small_model.inputs["x"])
    words = [b"program", b"-o", bytes(tmp_path / "out"), bytes(tmp_path / "x.npy")]
    arguments = (ctypes.c_char_p * (len(words) + 1))(*words, None)
    (tmp_path / "out").mkdir()
    with Simulator(architecture=CHIP) as simulator:
        assert simulator.load(tmp_path / "program").main(len(words), arguments) == 0
    small_model.check({name: np.load(tmp_path / "out" / f"{name}.npy") for name in small_model.expected})
    assert simulator.report().allocations == 1


def test_weights_in_a_file(build) -> None:
    model = build(small(), weights="file")
    with Simulator(architecture=CHIP) as simulator:
        model.check(model.run(simulator))


STATUS = {
    "cudart": (719, "cudaErrorLaunchFailure"),
    "cuda": (701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"),
    "cudnn": (5000, "CUDNN_STATUS_EXECUTION_FAILED"),
    "cublas": (13, "CUBLAS_STATUS_EXECUTION_FAILED"),
}
"""A status of each library, and its text."""
OF_NO_NODE = ("cuModuleLoadData", "cudnnCreate", "cudnnSetStream", "cublasCreate_v2", "cublasSetStream_v2")

FAILING = {
    "small": (small, {}),
    "eager": (small, {"memory": "eager"}),
    "lazy": (small, {"memory": "lazy"}),
    "streamed": (small, {"stream_weights": True, "weights": "file"}),
    "integrated": (small, {"weights": "file"}),
    **{name: (net, {}) for name, net in NETS.items()},
}
QUICK = ("small", "eager", "streamed", "integrated", "resnet", "attention")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FAILING]
)
def test_every_call_may_fail(name: str, build) -> None:
    """
    Whichever call fails, create or run says which, of which node, with the status; everything is released, once.

    Only a failing release is ignored, a failing question for a faster algorithm, and weights that cannot be mapped.
    """
    net, options = FAILING[name]
    model = build(net(), **options)
    integrated = name == "integrated"
    with Simulator(architecture=CHIP, integrated=integrated) as simulator:
        model.check(model.run(simulator))
    calls = list(simulator.calls)
    # Releasing starts with these two; nobody is there to hear that they fail.
    release = len(calls) - 1 - calls[::-1].index("cudaSetDevice")
    assert calls[release + 1] == "cudaStreamSynchronize"
    with Simulator(architecture=CHIP, integrated=integrated, strict=False) as simulator:
        for number, call in enumerate(calls, 1):
            library = FUNCTIONS[call].library
            status, text = STATUS[library]
            simulator.fail_call(number, status)
            try:
                outputs = model.run(simulator)
            except OccamyError as error:
                message = str(error)
            else:
                message = ""
                model.check(outputs)
            if number > release:
                assert message == "", call
                break
            assert simulator.leaks() == [], call
            assert simulator.violations == [], call
            if call in ("cudnnGetConvolutionForwardWorkspaceSize", "cudaHostRegister"):
                continue
            assert message.endswith(f"{call}: {text} (status {status})"), call
            if library != "cudart" and call not in OF_NO_NODE:
                assert ": node '" in message, call


@pytest.fixture(scope="module")
def small_model(build):
    return build(small())


def test_a_failing_release_is_ignored(small_model) -> None:
    """What is left is what could not be released; the rest is, and nothing twice."""
    model = small_model
    with Simulator(architecture=CHIP) as simulator:
        model.run(simulator)
    calls = list(simulator.calls)
    release = len(calls) - 1 - calls[::-1].index("cudaSetDevice")
    for number, call in list(enumerate(calls, 1))[release:]:
        with Simulator(architecture=CHIP, fail=(number, 46), strict=False) as simulator:
            model.check(model.run(simulator))
        left = [str(violation) for violation in simulator.violations]
        assert len(left) == (0 if call in ("cudaSetDevice", "cudaStreamSynchronize") else 1), call
        assert all("never" in violation for violation in left), left


def test_the_calls_that_fail_are_of_all_libraries(small_model) -> None:
    with Simulator(architecture=CHIP) as simulator:
        small_model.run(simulator)
    called = {"cudnnConvolutionForward", "cudnnConvolutionBiasActivationForward", "cudnnPoolingForward"}
    called |= {
        "cudnnConvolutionBackwardData",
        "cublasSgemmStridedBatched",
        "cuLaunchKernel",
        "cudnnSoftmaxForward",
    }
    assert called <= set(simulator.calls)


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
    """
    Their workspaces lie under the peak of the other buffers, which products may raise to 16 KiB, and prologues of
    inputs that stay by the result of 32 channels.
    """
    for name in ("unet", "inception", "mobilenet"):
        report = build(NETS[name]()).compilation.report()
        peaks = {step.name: step.max_live_bytes for step in report.passes}
        assert peaks["cuda-assign-workspaces"] == peaks["dnn-borrow-outputs"]


def test_device_too_old_or_too_small(small_model) -> None:
    model = small_model
    for simulator, fact in (
        (Simulator(architecture="sm_72"), "cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU"),
        (Simulator(architecture=CHIP, capacity=1000), "cudaMalloc: cudaErrorMemoryAllocation"),
    ):
        with pytest.raises(OccamyError, match=fact), simulator:
            model.run(simulator)


@pytest.mark.parametrize("memory", ["eager", "lazy"])
@pytest.mark.parametrize("name", ["resnet", "aliases"])
def test_modes_of_the_paper_without_a_pool(name: str, memory: str, build) -> None:
    """Buffers are allocated while the model runs, all at its start or around each op, and freed again."""
    model = build(NETS[name](), memory=memory)
    with Simulator(architecture=CHIP) as simulator:
        model.check(model.run(simulator, times=2))
    report = simulator.report()
    assert report.calls["cudaMalloc"] == report.calls["cudaFree"] > 10
    on_device = re.findall(r"dnn\.malloc : memref<[^\"\n]*>\n", model.compilation.ir("mem"))
    assert report.calls["cudaMalloc"] == 1 + 2 * len(on_device), "one of the model, and those of each run"


def perceptron():
    n, x = Net(), "x"
    for _ in range(8):
        x = n.op("Relu", n.op("Gemm", x, n.random(128, 128, scale=0.1), n.random(128)))
    return n.model({"x": (2, 128)}, [x])


def test_streamed_weights_of_a_network_larger_than_the_device(build) -> None:
    """Eight layers of 64 KiB on a device of 256 KiB: two layers are there at a time."""
    whole = build(perceptron())
    with (
        pytest.raises(OccamyError, match="cudaMalloc: cudaErrorMemoryAllocation"),
        Simulator(architecture=CHIP, capacity=256 << 10) as simulator,
    ):
        whole.run(simulator)
    model = build(perceptron(), stream_weights=True, weights="file")
    with Simulator(architecture=CHIP, capacity=256 << 10) as simulator:
        model.check(model.run(simulator, times=2))
    assert simulator.report().allocations == 1
    assert model.compilation.signature().weights_bytes > 512 << 10
    # Each copy is there before its product, and not before the one that reads the same slot has run.
    names = [e["name"] for e in _events(simulator) if e["ph"] == "X" and e["tid"]]
    assert names.count("cublasSgemmStridedBatched") == 16
    assert (
        len({e["tid"] for e in _events(simulator) if e["ph"] == "X" and e["name"] == "cudaMemcpyAsync"}) == 3
    )


def test_streamed_weights_of_networks(build) -> None:
    """Constants of all kinds, some read by several ops."""
    for name in ("preactivation", "ssd"):
        model = build(NETS[name](), stream_weights=True, weights="file")
        with Simulator(architecture=CHIP) as simulator:
            model.check(model.run(simulator, times=2))


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


def test_two_models_at_once(small_model) -> None:
    """Models share nothing: one that is destroyed leaves the other intact."""
    model = small_model
    with Simulator(architecture=CHIP) as simulator:
        first, second = (Executable(LibraryModel(model.library)) for _ in range(2))
        first.run(model.inputs)
        del first
        model.check(second.run(model.inputs))
        del second
    assert simulator.report().allocations == 2
