"""The driver: ONNX in, weights beside, one line of error a fact and no traceback."""

import io
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from occamy_xdsl.dialects import get_all_dialects
from occamy_xdsl.pipelines import get_all_passes
from occamy_xdsl.tools.occamy_opt import main
from occamy_xdsl.tools.universe import OCCAMY_UNIVERSE

VALUES = np.linspace(0, 1, 30, dtype=np.float32).reshape(10, 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    nodes = [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"], name="last")]
    made = helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("N", 3))],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("N", 3))],
            [numpy_helper.from_array(VALUES, "w")],
        ),
        opset_imports=[helper.make_opsetid("", 18)],
    )
    made.ir_version = 10
    onnx.save(made, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def run(capsys: pytest.CaptureFixture[str], *args: str | Path) -> str:
    main([str(arg) for arg in args])
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_a_model_becomes_text_that_is_stable(path: Path, capsys: pytest.CaptureFixture[str]):
    for flags in (
        [],
        ["--print-op-generic"],
        ["--print-op-generic", "--print-no-properties"],
        ["--print-debuginfo"],
    ):
        out = run(capsys, path, *flags)
        file = path.with_suffix(".mlir")
        file.write_text(out)
        assert run(capsys, file, *flags) == out
    assert 'loc("last")' in out


def test_dimensions_are_bound_by_flags_and_by_the_frontends_options(
    path: Path, capsys: pytest.CaptureFixture[str]
):
    outs = [
        run(capsys, path, *flags)
        for flags in (
            ["--dim", "N=10"],
            ["--shape", "x:10x3"],
            ["-f", 'onnx{dim="N=10"}'],
            ["-f", 'onnx{shape="x:10x3"}'],
        )
    ]
    assert len(set(outs)) == 1
    assert "(%x: tensor<10x3xf32> {onnx.name" in outs[0]


def test_weights_are_saved_and_attached(path: Path, capsys: pytest.CaptureFixture[str]):
    saved, again, file = path.parent / "w.safetensors", path.parent / "w2.safetensors", path.parent / "m.mlir"
    file.write_text(run(capsys, path, "--save-weights", saved))
    assert VALUES.tobytes() in saved.read_bytes()
    run(capsys, file, "--weights", saved, "--save-weights", again)
    assert again.read_bytes() == saved.read_bytes()
    run(capsys, file, "--weights", saved, "--save-weights", saved)
    assert again.read_bytes() == saved.read_bytes()


def test_output_takes_the_place_of_the_input_only_as_a_whole(path: Path, capsys: pytest.CaptureFixture[str]):
    file = path.with_suffix(".mlir")
    text = run(capsys, path)
    assert run(capsys, path, "-o", "-") == text
    assert run(capsys, path, "-o", file) == ""
    assert file.read_text() == text
    fails(file, "-o", file, "-p", "verify-dnn-pool")
    assert file.read_text() == text
    run(capsys, file, "-o", file)
    assert file.read_text() == text
    assert fails(path.parent / "absent.mlir", "-o", file)[0].endswith(
        "absent.mlir: No such file or directory"
    )
    assert fails(path, "-o", path.parent) == [f"error: {path.parent}: Is a directory"]
    assert file.read_text() == text


def test_standard_input(path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    class Stdin:
        buffer = io.BytesIO(path.read_bytes())

    expected = run(capsys, path)
    monkeypatch.setattr(sys, "stdin", Stdin)
    assert run(capsys, "-f", "onnx", "-") == expected


def fails(*args: str | Path) -> list[str]:
    with pytest.raises(SystemExit) as error:
        main([str(arg) for arg in args])
    assert isinstance(error.value.code, str)  # printed on stderr, exit code 1
    return error.value.code.splitlines()


@pytest.mark.parametrize(
    ("flags", "fact"),
    [
        (["--dim", "K=1"], "error: no dimension 'K'; the model's are: N"),
        (["--dim", "N"], "error: --dim wants NAME=4, got 'N'"),
        (["--dim", "N=x"], "error: --dim wants NAME=4, got 'N=x'"),
        (["--shape", "10x3"], "error: --shape wants NAME:1x3x224x224, got '10x3'"),
        (["--shape", "x:10,3"], "error: --shape wants NAME:1x3x224x224, got 'x:10,3'"),
        (["-p", "no-such-pass"], "error: -p: Unrecognized passes: ['no-such-pass']"),
    ],
)
def test_wrong_flags(path: Path, flags: list[str], fact: str):
    assert fails(path, *flags) == [fact]


@pytest.mark.parametrize("flags", [["--shape", "x:10x3"], ["--dim", "N=10"], ["--allow-custom"]])
def test_flags_of_models_are_refused_for_programs(
    path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
):
    file = path.with_suffix(".mlir")
    file.write_text(run(capsys, path))
    assert fails(file, *flags) == [f"error: {flags[0]}: no effect on {file}, which is no ONNX model"]
    assert fails(file, "--split-input-file", "-o", path.with_suffix(".out"), *flags)
    assert not path.with_suffix(".out").exists()


def test_flags_of_programs_are_refused_for_models(path: Path):
    fact = f"error: --weights: no effect on {path}, which is an ONNX model"
    assert fails(path, "--weights", path.with_suffix(".w")) == [fact]


def test_a_frontend_makes_up_for_the_extension(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    model = tmp_path / "model.bin"
    model.write_bytes(path.read_bytes())
    assert run(capsys, model, "-f", "onnx") == run(capsys, path)
    with pytest.raises(SystemExit, match="Unrecognized file extension 'bin'"):
        main([str(model)])


@pytest.mark.parametrize("flag", ["-v", "--version", "--vers"])
def test_versions(path: Path, capsys: pytest.CaptureFixture[str], flag: str):
    """Those of the project, of xDSL and of LLVM, whatever else is asked for."""
    with pytest.raises(SystemExit) as stop:
        main([str(path), flag])
    assert stop.value.code == 0
    out, err = capsys.readouterr()
    versions = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert versions["xdsl"] == metadata.version("xdsl")
    assert versions["occamy-xdsl"] == metadata.version("occamy-xdsl")
    assert (
        versions["llvm"].split(".")[0] == versions["mlir-opt"].split(".")[0] == str(llvm.llvm_version_info[0])
    )
    assert err == ""


def test_malformed_pass_options(path: Path):
    assert fails(path, "-p", "canonicalize{")[0].startswith(
        "error: Error parsing pass pipeline specification"
    )


def test_wrong_files(path: Path, capsys: pytest.CaptureFixture[str]):
    absent, garbage, unknown = path.parent / "a.onnx", path.parent / "g.onnx", path.parent / "t.xyz"
    assert fails(absent) == [f"error: {absent}: No such file or directory"]
    garbage.write_bytes(b"no model")
    assert fails(garbage) == [f"error: {garbage}: not an ONNX model, or a truncated one"]
    unknown.write_text("")
    assert fails(unknown) == [f"error: {unknown}: Unrecognized file extension 'xyz'"]
    file = path.with_suffix(".mlir")
    file.write_text(run(capsys, path))
    assert fails(file, "--weights", garbage) == [f"error: {garbage}: not a weights file, see --save-weights"]
    assert fails(path, "-f", "mlir") == [f"error: {path}: not text in UTF-8"]
    saving = fails(file, "--save-weights", path.parent / "w")
    assert saving == ["error: weights 'w': data not loaded; give the file that holds it with --weights FILE"]


def test_ill_formed_text_is_one_line(tmp_path: Path):
    file = tmp_path / "m.mlir"
    file.write_text(
        "func.func @f(%x: tensor<4xf32>) {\n onnx.Add(%x) : (tensor<4xf32>) -> tensor<4xf32>\n func.return\n}"
    )
    assert fails(file) == ["error: 'onnx.Add' op number of operands must be 2, got 1 (C1)"]
    file.write_text("onnx.NoSuchOp() : () -> ()")
    assert fails(file)[-1].strip() == "Operation onnx.NoSuchOp is not registered"


def test_every_faulty_node_has_its_line(path: Path):
    made = onnx.load(path)
    for node in made.graph.node:
        node.op_type += "X"
    onnx.save(made, path)
    assert fails(path) == [
        f"error: {path}: node 'AddX_0' (AddX): no such operator in domain 'ai.onnx' (opset 18)",
        f"error: {path}: node 'last' (ReluX): no such operator in domain 'ai.onnx' (opset 18)",
    ]
    assert subprocess_of(path, "--allow-custom").returncode == 0


def subprocess_of(*args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "occamy_xdsl.tools.occamy_opt", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_warnings_and_errors_go_to_stderr_with_exit_code_one(path: Path):
    made = onnx.load(path)
    made.graph.node.insert(0, made.graph.node.pop())
    onnx.save(made, path)
    warned = subprocess_of(path)
    assert (warned.returncode, warned.stderr) == (
        0,
        f"warning: {path}: nodes are not in topological order; sorted\n",
    )
    assert "onnx.Relu" in warned.stdout
    refused = subprocess_of(path, "--dim", "K=1")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == f"{warned.stderr}error: no dimension 'K'; the model's are: N\n"


def test_tables_name_what_they_load():
    for name, dialect in get_all_dialects().items():
        assert dialect().name == name
    for name, loader in get_all_passes().items():
        assert loader().name == name
    assert OCCAMY_UNIVERSE.all_frontends["onnx"]().name == "onnx"
