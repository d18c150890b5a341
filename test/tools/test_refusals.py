"""What `occamy` refuses: the exit code, and one line that says why; nothing is ignored and nothing is left."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from occamy_xdsl.tools import occamy as tool

USAGE = [
    ("compile NET --target cuda:sm_50", "unknown architecture 'sm_50'"),
    ("run NET --target cuda --simulate --repeat 2", "--repeat"),
    ("run NET --target cuda --simulate --poison", "--poison"),
    ("run NET --memory lazy --poison", "--poison: --memory lazy has no pool"),
    ("run NET --memory eager --poison --output out", "--poison: --memory eager has no pool"),
    ("run NET --trace t.json", "--trace"),
    ("compile NET --target gpu", "target 'gpu'"),
    ("compile NET --target cpu:z80", "unknown processor 'z80'"),
    ("compile NET --target cpu:", "target 'cpu:'"),
    ("compile NET --weights stream --emit mlir", "--weights stream"),
    ("compile NET --weights file --emit dnn -o -", "--emit dnn holds no weights"),
    ("compile NET --emit ptx", "--emit ptx"),
    ("compile NET --emit wasm", "'wasm'"),
    ("compile NET --emit lib -o -", "-o -"),
    ("compile NET -o NET", "overwritten"),
    ("compile NET -o ALIAS", "overwritten"),
    ("compile NET --emit dnn -o r.json --report ./r.json", "overwritten"),
    ("report NET -o NET --format json", "overwritten"),
    ("run NET --profile NET", "overwritten"),
    ("run NET --target cuda --simulate --trace NET", "overwritten"),
    ("run NET --target cuda --simulate --trace t.json --profile t.json", "overwritten"),
    ("compile NET -o missing/net.so", "missing/net.so"),
    ("compile NET -o .", "Is a directory"),
    ("compile NET --report report.txt", "report.txt"),
    ("compile NET --report missing/report.json", "missing/report.json"),
    ("compile NET --save-temps NET", "NET"),
    ("compile NET --threads 2", "--threads 2"),
    ("compile .", "a folder"),
    ("check NET --rtol -1", "--rtol"),
    ("compile NET --stripe-budget much", "--stripe-budget much"),
    ("compile NET --stripe-budget 5% --no-reuse", "stripe budget 5.0"),
    ("compile NET --planner magic", "'magic'"),
    ("compile NET --memory lazy --no-reuse", "memory 'lazy'"),
    ("compile NET --memory-limit lots", "--memory-limit: 'lots'"),
    ("compile NET --workspace-limit -3", "--workspace-limit: '-3'"),
    ("compile NET --cache dir", "--cache"),
    ("compile NET --shape x:axb", "--shape"),
    ("compile NET --shape z:1x3x8x8", "'z'"),
    ("compile NET --shape x:1x3x8", "x"),
    ("compile NET --dim N", "--dim"),
    ("compile NET --frobnicate", "--frobnicate"),
    ("compile", "M.onnx"),
    ("compile missing.onnx", "missing.onnx"),
    ("frobnicate", "'frobnicate'"),
    ("", "command"),
    ("run NET --input z=1", "'z=1'"),
    ("run NET --input x:1x3xf32=1", "x:1x3xf32=1"),
    ("run NET --input x=@missing.npy", "missing.npy"),
    ("run NET --expect z=1", "'z=1'"),
    ("run NET --rtol 1e-3", "--expect"),
    ("run NET --repeat 0", "repeat"),
    ("run NET --simulate", "--simulate"),
    ("run NET --profile missing/p.json", "missing/p.json"),
    ("run NET --output NET/outputs", "NET/outputs"),
    ("run LIB --planner first-fit", "--planner"),
    ("run LIB --profile p.json", "--profile"),
    ("bench LIB --against onnxruntime", "--against onnxruntime"),
    ("report NET --diff missing.json", "missing.json"),
    ("report NET --diff NET", "NET: not a memory report"),
    ("report NET --diff old.json --budgets", "--diff: not available with --budgets"),
    ("report NET --diff old.json --compare", "--diff: not available with --compare"),
    ("report NET --budgets --no-reuse", "--budgets"),
    ("report NET --budgets --memory lazy", "--budgets"),
    ("report NET --top -1", "top"),
    ("bench NET --cuda-graph", "CUDA graph: target 'cpu'"),
    ("compile NET --tuning missing.json", "tuning 'missing.json': target 'cpu'"),
    ("compile NET --target cuda --tuning missing.json", "missing.json: No such file"),
    ("compile NET --target cuda --tuning-device T4", "tuning device 'T4'"),
    ("compile NET --cubin", "cubin: target 'cpu'"),
    ("tune NET", "--target cuda"),
    ("tune NET --target cuda -o NET/c.json", "NET/c.json"),
]


@pytest.mark.parametrize(("command", "fact"), USAGE, ids=[command or "nothing" for command, _ in USAGE])
def test_bad_usage(occamy, net, library, tmp_path, monkeypatch, command, fact):
    monkeypatch.chdir(tmp_path)
    alias = net.parent / ".." / net.parent.name / net.name
    names = {"NET": str(net), "LIB": str(library), "ALIAS": str(alias)}

    def fill(text: str) -> str:
        for name, path in names.items():
            text = text.replace(name, path)
        return text

    before = net.read_bytes()
    done = occamy(*[fill(word) for word in command.split()])
    assert done.code == 2
    assert fill(fact) in done.error
    assert done.out == ""
    assert list(tmp_path.iterdir()) == []
    assert net.read_bytes() == before


@pytest.mark.parametrize("command", ["compile", "run", "report", "check", "bench"])
def test_unbound_dimensions_are_listed(occamy, symbolic_net, command):
    done = occamy(command, symbolic_net)
    assert done.code == 2
    assert "input 'x' is Nx3x8x8" in done.err


@pytest.mark.parametrize("command", ["compile", "run", "report", "check", "bench"])
@pytest.mark.parametrize("damage", ["empty", "truncated", "text"])
def test_no_model(occamy, net, tmp_path, command, damage):
    content = {"empty": b"", "truncated": net.read_bytes()[:-100], "text": b"hello, world\n"}[damage]
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    done = occamy(command, path)
    assert done.code == 3
    assert str(path) in done.error
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("command", ["run", "bench", "check --against reference", "compile", "report"])
def test_a_pipe_is_no_model(occamy, tmp_path, command):
    """Nobody writes to this one, so that opening it would never end."""
    os.mkfifo(tmp_path / "m.onnx")
    command, *options = command.split()
    done = occamy(command, tmp_path / "m.onnx", *options)
    assert done.code == 2
    assert "m.onnx: a pipe or device" in done.error
    assert "- reads one from standard input" in done.error


def test_all_unsupported_nodes_are_listed(occamy, tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "good"),
        helper.make_node("NonZero", ["a"], ["b"], "first"),
        helper.make_node("Unique", ["a"], ["c"], "second"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [
            helper.make_tensor_value_info("b", TensorProto.INT64, [1, None]),
            helper.make_tensor_value_info("c", TensorProto.FLOAT, [None]),
        ],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    done = occamy("compile", path)
    assert done.code == 3
    assert "'first'" in done.err
    assert "'second'" in done.err
    assert "'good'" not in done.err
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("memory", ["lazy", "eager"])
def test_a_library_without_a_pool_cannot_be_poisoned(occamy, net, tmp_path, memory):
    path = tmp_path / "net.so"
    assert occamy("compile", net, "-o", path, "--memory", memory).code == 0
    assert occamy("run", path, "--input", "random:0").code == 0
    done = occamy("run", path, "--input", "random:0", "--poison")
    assert (done.code, done.out) == (2, "")
    assert f"poison: memory '{memory}' has no pool" in done.error


def test_memory_limit(occamy, net, tmp_path):
    pool = 8 * 8 * 8 * 4  # one activation of the convolution
    path = tmp_path / "net.so"
    done = occamy("compile", net, "-o", path, "--memory-limit", "2000B")
    assert done.code == 4
    needed = int(done.error.split("memory limit: ")[1].split()[0])
    assert needed >= pool
    for fact in ("limit 2000 bytes", "peak at node '", f"({pool} bytes)", "hint: "):
        assert fact in done.error
    assert list(tmp_path.iterdir()) == []
    assert occamy("report", net, "--memory-limit", needed - 1).code == 4
    assert occamy("report", net, "--memory-limit", needed).code == 0


def test_not_a_library(occamy, net, tmp_path):
    program, object_ = tmp_path / "net", tmp_path / "net.o"
    assert occamy("compile", net, "--emit", "exe", "-o", program).code == 0
    assert occamy("compile", net, "--emit", "obj", "-o", object_).code == 0
    for path, kind in ((program, "a program"), (object_, "an object")):
        done = occamy("run", path)
        assert done.code == 2
        assert f"{path}: {kind}" in done.error


@pytest.mark.parametrize("share", [0.005, 0.1, 0.5, 0.75])
def test_truncated_library(occamy, library, tmp_path, share):
    content = library.read_bytes()
    path = tmp_path / "net.so"
    path.write_bytes(content[: int(share * len(content))])
    done = occamy("run", path)
    assert done.code == 2
    assert f"{path}: cannot be loaded" in done.error


def test_internal_error(occamy, net, monkeypatch):
    def fail(*_, **options):
        raise RuntimeError("boom\nmore")

    monkeypatch.setattr("occamy_xdsl.compiler.Compilation.report", fail)
    done = occamy("report", net)
    assert done.code == 70
    assert "internal error: RuntimeError: boom;" in done.error
    reproducer = Path(done.error.rpartition("reproducer: ")[2])
    text = reproducer.read_text()
    reproducer.unlink()
    assert str(net) in text
    assert "Traceback" in text
    done = occamy("--debug", "report", net)
    assert "Traceback" in done.err


def test_interruption(occamy, net, monkeypatch):
    def interrupt(*_, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("occamy_xdsl.compiler.Compilation.report", interrupt)
    done = occamy("report", net)
    assert (done.code, done.out, done.err) == (130, "", "")


def start(*arguments: object, stdout: int, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", tool.__name__, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": str(Path(tool.__file__).parents[2])} | environment,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_closed_pipe():
    read, write = os.pipe()
    os.close(read)
    process = start("ops", stdout=write)
    os.close(write)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + 13, "")


def test_full_disk():
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with Path("/dev/full").open("w") as full:
        process = start("ops", stdout=full.fileno())
        _, err = process.communicate(timeout=60)
    assert process.returncode == 70
    assert err == "error: standard output: No space left on device\n"


@pytest.mark.parametrize("tool", ["occamy", "occamy_opt"])
@pytest.mark.parametrize("stream", ["full", "closed"])
def test_versions_cannot_be_printed(tool, stream):
    """One line, not Python's own complaint when it closes the stream."""
    target, fact = {"full": (">/dev/full", "No space left"), "closed": (">&-", "Bad file descriptor")}[stream]
    command = f"{sys.executable} -m occamy_xdsl.tools.{tool} --version {target}"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=environment)
    assert done.returncode == {"occamy": 70, "occamy_opt": 1}[tool]
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert fact in line


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize("format", ["table", "html"])
def test_a_terminal_of_another_encoding(tmp_path, encoding, format):
    """Characters that it has none of are escaped; files are in UTF-8 whatever the terminal has."""
    graph = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["a"], "\u03c0"), helper.make_node("Neg", ["a"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    options = ("report", tmp_path / "m.onnx", "--no-inplace", "--format", format)
    process = start(*options, stdout=subprocess.PIPE, PYTHONIOENCODING=encoding)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "\\u03c0" in out
    process = start(*options, "-o", tmp_path / "out", stdout=subprocess.PIPE, PYTHONIOENCODING=encoding)
    assert process.communicate(timeout=60) == ("", "")
    assert "\u03c0" in (tmp_path / "out").read_text(encoding="utf-8")


def test_missing_onnxruntime(occamy, net, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    done = occamy("check", net)
    assert done.code == 2
    assert "onnxruntime is not installed" in done.error


def test_wrong_dtype_of_a_file(occamy, library, tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((1, 3, 8, 8)))
    done = occamy("run", library, "--input", f"x=@{path}")
    assert done.code == 2
    assert "float64" in done.error


def test_tools_that_are_not_there(occamy, net, tmp_path, monkeypatch):
    from occamy_xdsl.lowering.toolchain import find_tool

    monkeypatch.setenv("OCCAMY_MLIR_BIN", str(tmp_path / "none"))
    find_tool.cache_clear()
    done = occamy("compile", net, "-o", tmp_path / "m.so")
    find_tool.cache_clear()
    assert done.code == 2
    assert done.error == f"error: mlir-opt: not found in '{tmp_path}/none', which OCCAMY_MLIR_BIN names"
    assert list(tmp_path.glob("m.so*")) == []


@pytest.mark.parametrize(
    "options",
    ["--input nothing=1", "--simulate", "--profile missing/p.json", "--target cuda:sm_12"],
)
def test_a_folder_for_outputs_goes_with_the_failure(occamy, net, tmp_path, options: str) -> None:
    """It is made early, so that one hears of it early; one that was there stays."""
    (tmp_path / "old").mkdir()
    for folder in ("new/deep", "old/new", "old"):
        assert occamy("run", net, *options.split(), "--output", tmp_path / folder).code == 2
        assert [path.name for path in tmp_path.rglob("*")] == ["old"]
