"""The command line for a GPU: what is written, and runs under the simulator."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from cuda_link_check import symbols
from onnx import TensorProto, helper

import occamy_xdsl as oc
from occamy_xdsl.lowering.cuda import stubs
from occamy_xdsl.lowering.cuda.api import FUNCTIONS, LIBRARIES
from occamy_xdsl.tools.commands.run import pool_map

pytestmark = pytest.mark.usefixtures("compiler")


@pytest.fixture
def expected(net: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Files of an input of the net and of what ONNX Runtime makes of it."""
    x = np.random.default_rng(5).standard_normal((1, 3, 8, 8)).astype(np.float32)
    session = onnxruntime.InferenceSession(net, providers=["CPUExecutionProvider"])
    paths = tmp_path / "x.npy", tmp_path / "y.npy"
    for path, array in zip(paths, (x, session.run(None, {"x": x})[0]), strict=True):
        np.save(path, array)
    return paths


def test_profile_of_a_simulation(occamy, net: Path, tmp_path: Path) -> None:
    """The format is that of the CPU; times are 0, and said to be."""
    profiles = {}
    for target, more in (("cpu", []), ("cuda", ["--simulate"])):
        file = tmp_path / f"{target}.json"
        done = occamy("run", net, "--target", target, "--profile", file, *more)
        assert done.code == 0
        profiles[target] = json.loads(file.read_text())
    assert "profile: all times are 0, as the simulator measures none" in done.err
    assert list(profiles["cuda"]) == list(profiles["cpu"])
    assert [list(call) for call in profiles["cuda"]["calls"]] == [["node", "kernel", "us"]] * len(
        profiles["cuda"]["calls"]
    )
    assert {call["us"] for call in profiles["cuda"]["calls"]} == {0.0} == {profiles["cuda"]["total_us"]}
    assert {"conv", "mean"} <= {call["node"] for call in profiles["cuda"]["calls"]}
    assert profiles["cuda"]["calls"][0]["kernel"].startswith("cudnnConvolution")


def test_simulated_run(occamy, net: Path, expected: tuple[Path, Path], tmp_path: Path) -> None:
    """Report and pool map on stdout, what is not simulated on stderr, the trace and outputs in files."""
    x, y = expected
    done = occamy(
        "run", net, "--target", "cuda", "--simulate", "--trace", tmp_path / "trace.json",
        "--input", f"x=@{x}", "--expect", f"y=@{y}", "--rtol", "1e-4", "--output", tmp_path / "out",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "device allocations  1\n" in done.out
    assert "output 'y': equal" in done.out
    pool = done.out[done.out.index("pool of ") :]
    assert "activation" in pool
    assert "  activation r of 'conv'" in pool
    assert done.err.startswith("simulated: calls, memory and kernels are checked; speed and the numerics of")
    assert "traceEvents" in json.loads((tmp_path / "trace.json").read_text())
    np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), np.load(y), rtol=1e-4)


def test_pool_map_says_once_that_a_buffer_is_a_workspace() -> None:
    """The name of a workspace is what it is."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["c"], "product"), helper.make_node("Relu", ["c"], ["y"])],
        "g",
        [value("a", TensorProto.FLOAT, [8, 8]), value("b", TensorProto.FLOAT, [8, 8])],
        [value("y", TensorProto.FLOAT, [8, 8])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    lines = pool_map(oc.load(model).memory_report("cuda")).splitlines()
    (workspace,) = [line for line in lines if "workspace" in line]
    assert workspace.endswith("  workspace of 'product'")


def test_wrong_result_is_exit_code_1(occamy, net: Path, expected: tuple[Path, Path]) -> None:
    x, y = expected
    np.save(y, np.load(y) + 1)
    done = occamy("run", net, "--target", "cuda", "--simulate", "--input", f"x=@{x}", "--expect", f"y=@{y}")
    assert done.code == 1
    assert "8 of 8 elements differ" in done.out


def test_every_kind_of_output(occamy, net: Path, tmp_path: Path) -> None:
    """Texts for people, and files that name NVIDIA's libraries but were made without them."""
    texts = {
        kind: occamy("compile", net, "--target", "cuda:sm_87", "--emit", kind, "-o", "-").out
        for kind in ("dnn", "mem", "mlir", "llvm", "ptx", "header")
    }
    assert "align 256" in texts["mem"]
    assert "llvm.call @cudnnConvolutionBiasActivationForward" in texts["mlir"]
    assert "define i32 @occamy_main(" in texts["llvm"]
    assert ".target sm_87" in texts["ptx"]
    assert "The pool is memory of the GPU" in texts["header"]
    for kind in ("lib", "exe", "obj"):
        path = tmp_path / f"net.{kind}"
        assert occamy("compile", net, "--target", "cuda", "--emit", kind, "-o", path).code == 0
        assert path.read_bytes()[:4] == b"\x7fELF"
    dynamic = subprocess.run(["readelf", "-d", tmp_path / "net.lib"], capture_output=True, text=True)
    for name in ("libcudart.so.13", "libcuda.so.1", "libcudnn.so.9"):
        assert f"[{name}]" in dynamic.stdout
    assert "cublas" not in dynamic.stdout, "the net has no matrix product"


@pytest.mark.parametrize(
    ("command", "fact"),
    [
        ("--trace missing/t.json", "missing/t.json: No such file or directory"),
        ("--trace file/t.json", "file/t.json: Not a directory"),
        ("--trace folder", "folder: Is a directory"),
        ("--trace new/y.npy --output new", "new/y.npy: new/y.npy would be overwritten, choose another name"),
        ("--trace t.json --profile t.json", "t.json: t.json would be overwritten, choose another name"),
    ],
)
def test_a_trace_that_cannot_be_written(
    occamy, net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, fact: str
) -> None:
    """It is said before anything runs, and nothing is left behind, neither file nor folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    done = occamy("run", net, "--target", "cuda", "--simulate", *command.split())
    assert (done.code, done.out, done.error) == (2, "", f"error: {fact}")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]


def test_a_trace_may_be_in_the_folder_of_the_outputs(occamy, net: Path, tmp_path: Path) -> None:
    """Which is made for both."""
    folder = tmp_path / "a" / "b"
    options = ("--trace", folder / "trace.json", "--output", folder)
    assert occamy("run", net, "--target", "cuda", "--simulate", *options).code == 0
    assert sorted(path.name for path in folder.iterdir()) == ["trace.json", "y.npy"]


def test_a_trace_on_standard_output(
    occamy, net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = occamy("run", net, "--target", "cuda", "--simulate", "--trace", "-")
    assert done.code == 0
    text = done.out[done.out.index('{\n "traceEvents"') :]
    events, _ = json.JSONDecoder().raw_decode(text)
    assert "cudaMalloc" in {event["name"] for event in events["traceEvents"]}
    assert not list(tmp_path.iterdir())


@pytest.fixture
def program(occamy, net: Path, tmp_path: Path) -> list[str]:
    """A program for a GPU, and its input; skipped where a driver is installed."""
    # Not in this process, which may have the simulator's.
    load = f"import ctypes; ctypes.CDLL('{LIBRARIES['cuda'].soname}')"
    if subprocess.run([sys.executable, "-c", load], capture_output=True).returncode == 0:
        pytest.skip("a driver is installed")
    assert occamy("compile", net, "--target", "cuda", "--emit", "exe", "-o", tmp_path / "net").code == 0
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    return [str(tmp_path / "net"), str(tmp_path / "x.npy"), "-o", str(tmp_path / "out")]


def said(command: list[str], libraries: Path) -> tuple[int, str]:
    """Exit code and standard error of a program that finds its libraries in a folder."""
    variables = {"LD_LIBRARY_PATH": str(libraries)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def test_a_program_says_that_there_is_no_gpu(program: list[str], tmp_path: Path) -> None:
    """One line and exit code 3 for a driver or library that is missing, or no device; what needs none works."""
    start, missing = "no GPU can be used here: ", "cannot open shared object file: No such file or directory"
    stubs_folder = tmp_path / "stubs"
    assert said(program, stubs_folder) == (3, f"{start}libcuda.so.1: {missing}\n")
    stubs_folder.mkdir()
    paths = stubs.write_stubs(stubs_folder)
    assert said(program, stubs_folder) == (3, "cudaGetDevice: (null) (status 100)\n")
    paths["cudnn"].rename(tmp_path / "elsewhere")
    assert said(program, stubs_folder) == (3, f"{start}libcudnn.so.9: {missing}\n")
    # One that is too old has not all of the functions.
    stubs.write_stub("cudnn", paths["cudnn"], paths["cudnn"].name, [FUNCTIONS["cudnnCreate"]])
    code, text = said(program, stubs_folder)
    assert (code, text.count("\n")) == (3, 1)
    assert f"{paths['cudnn'].name}: undefined symbol: cudnn" in text
    assert not (tmp_path / "out").exists()
    for option in ("--help", "--signature"):
        assert said([program[0], option], tmp_path) == (0, "")


def test_a_program_loads_what_it_calls(occamy, net: Path, tmp_path: Path) -> None:
    """It names none of NVIDIA's libraries as needed, and opens those of the functions that it calls, no others."""
    path = tmp_path / "net"
    assert occamy("compile", net, "--target", "cuda", "--emit", "exe", "-o", path).code == 0
    assert "libc.so.6" in symbols(path).needed
    assert not {library.soname for library in LIBRARIES.values()} & set(symbols(path).needed)
    content = path.read_bytes()
    opened = {name for name, library in LIBRARIES.items() if library.soname.encode() + b"\0" in content}
    assert opened == {"cuda", "cudart", "cudnn"}, "the net has no matrix product"


def test_unsupported_nodes_are_exit_code_3(occamy, tmp_path: Path) -> None:
    nodes = [
        onnx.helper.make_node("MaxPool", ["x"], ["y", f"i{n}"], name, kernel_shape=[2])
        for n, name in enumerate(("first", "second"))
    ]
    nodes[1].output[0] = "z"
    outs = [onnx.helper.make_tensor_value_info(n, t, [1, 2, 3]) for n, t in (("y", 1), ("i0", 7), ("i1", 7))]
    x = onnx.helper.make_tensor_value_info("x", 1, [1, 2, 4])
    path = tmp_path / "positions.onnx"
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(
        onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], outs), opset_imports=opset), path
    )
    done = occamy("compile", path, "--target", "cuda", "--emit", "ptx", "-o", "-")
    assert done.code == 3
    assert [line.split(" (")[0] for line in done.err.splitlines()] == [
        "error: node 'first'",
        "error: node 'second'",
    ]
