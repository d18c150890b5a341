"""No command and no function writes to a file that the model is read from."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import occamy_xdsl as oc
from occamy_xdsl.importer import ModelSource
from occamy_xdsl.tools import occamy_opt

COMMANDS = [
    ("net.so", "compile net.onnx"),
    ("out.so", "compile net.onnx -o out.so"),
    ("net.so.weights", "compile net.onnx --weights file"),
    ("net.so.weights", "compile net.onnx --weights stream"),
    ("net.o.weights", "compile net.onnx --weights file --emit obj"),
    ("net.mem.mlir", "compile net.onnx --emit mem"),
    ("net.h", "compile net.onnx --emit header"),
    ("data.json", "compile net.onnx -o x.so --report data.json"),
    ("data.html", "compile net.onnx -o x.so --report data.html"),
    ("net.3-mem.mlir", "compile net.onnx --emit mem -o - --save-temps ."),
    ("net.0-import.mlir", "run net.onnx --save-temps ."),
    ("net.0-import.mlir", "check net.onnx --save-temps ."),
    ("net.2-dnn.mlir", "report net.onnx --save-temps ."),
    ("data", "report net.onnx -o data"),
    ("data", "report net.onnx --format json -o sub/../data"),
    ("data", "run net.onnx --profile data"),
    ("data", "run net.onnx --target cuda --simulate --trace data"),
    ("y.npy", "run net.onnx --output ."),
    ("data", "tune net.onnx --target cuda -o data"),
]


StoredOutside = Callable[[str], None]


@pytest.fixture
def stored_outside(net: Path, tmp_path: Path) -> StoredOutside:
    """Puts `net` into the test's folder, its weights into the file there that is given."""

    def store(data: str) -> None:
        onnx.save(
            onnx.load(net),
            tmp_path / "net.onnx",
            save_as_external_data=True,
            location=data,
            size_threshold=0,
        )

    return store


@pytest.mark.parametrize(("data", "command"), COMMANDS, ids=[command for _, command in COMMANDS])
def test_data_of_a_model(occamy, stored_outside, tmp_path, monkeypatch, data, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    stored_outside(data)
    before = (tmp_path / data).read_bytes()
    done = occamy(*command.split())
    assert done.code == 2
    assert f"{data}" in done.error
    assert "overwritten" in done.error
    assert (done.out, (tmp_path / data).read_bytes()) == ("", before)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["net.onnx", "sub", data])


def test_other_names_are_free(occamy, stored_outside, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stored_outside("net.onnx.data")
    assert occamy("compile", "net.onnx", "--weights", "file").code == 0
    assert occamy("run", "net.so", "--output", ".").code == 0


@pytest.mark.parametrize(
    "command",
    [
        "run MODEL --input x=@x.npy --output outputs",
        "run MODEL --expect y=@outputs/y.npy --output outputs",
        "run LIB --expect y=@outputs/y.npy --output outputs",
        "run MODEL --input x=@x.npy --profile x.npy",
        "report MODEL --diff old.json -o old.json",
        "report MODEL --target cuda --tuning t.json -o t.json",
    ],
)
def test_other_files_that_are_read(occamy, net, library, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    assert occamy("report", net, "--format", "json", "-o", "old.json").code == 0
    (tmp_path / "t.json").write_text("{}")
    assert occamy("run", net, "--output", "outputs").code == 0
    np.save("x.npy", np.zeros((1, 3, 8, 8), np.float32))
    if "--input" in command and "outputs" in command:
        (tmp_path / "outputs/y.npy").unlink()
        (tmp_path / "outputs/y.npy").symlink_to("../x.npy")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = occamy(*command.replace("MODEL", str(net)).replace("LIB", str(library)).split())
    assert done.code == 2
    assert "overwritten" in done.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("option", ["--profile", "--trace"])
def test_outputs_do_not_replace_what_is_written_beside_them(occamy, net, tmp_path, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    more = ("--target", "cuda", "--simulate") if option == "--trace" else ()
    done = occamy("run", net, *more, option, "y.npy", "--output", ".")
    assert (done.code, done.out) == (2, "")
    assert done.error == "error: y.npy: y.npy would be overwritten, choose another name"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("data", "save"),
    [
        ("m.so.weights", lambda executable: executable.save("m.so", weights="file")),
        ("m.o", lambda executable: executable.save("m.o")),
        ("m.h", lambda executable: executable.save("m.h")),
        ("m", lambda executable: executable.save("m")),
    ],
)
def test_from_python(stored_outside, tmp_path, monkeypatch, data: str, save: Callable[[oc.Executable], None]):
    monkeypatch.chdir(tmp_path)
    stored_outside(data)
    before = (tmp_path / data).read_bytes()
    executable = oc.compile("net.onnx")
    with pytest.raises(oc.UsageError, match="overwritten"):
        save(executable)
    assert (tmp_path / data).read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["net.onnx", data])


@pytest.mark.parametrize(
    "arguments",
    ["-o net.onnx", "-o data", "--save-weights net.onnx", "--save-weights data", "-o x --save-weights x"],
)
def test_occamy_opt(stored_outside, tmp_path, monkeypatch, capsys, arguments: str):
    monkeypatch.chdir(tmp_path)
    stored_outside("data")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(SystemExit, match=r"error: .* would be overwritten, choose another name"):
        occamy_opt.main(["net.onnx", *arguments.split()])
    assert capsys.readouterr().out == ""
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_weights_of_a_program_in_text_do_not_replace_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.mlir").write_text("builtin.module {}")
    with pytest.raises(SystemExit, match="overwritten"):
        occamy_opt.main(["m.mlir", "--save-weights", "m.mlir"])


def external(name: str) -> TensorProto:
    """A tensor of one element whose data is in the file `name`."""
    tensor = numpy_helper.from_array(np.zeros(1, np.float32), name)
    onnx.external_data_helper.set_external_data(tensor, name)
    tensor.ClearField("raw_data")
    return tensor


def test_every_place_of_a_tensor(tmp_path):
    """Initialisers, attributes, lists, sparse tensors, subgraphs and functions."""

    def constant(name: str) -> onnx.NodeProto:
        return helper.make_node("Constant", [], [name], value=external(name))

    def sparse(name: str) -> onnx.SparseTensorProto:
        return helper.make_sparse_tensor(external(name), external(f"{name}_indices"), [4])

    branch = helper.make_graph([constant("inner")], "b", [], [], [external("inner_initializer")])
    nodes = [
        constant("attribute"),
        helper.make_node("If", ["c"], ["i"], then_branch=branch, else_branch=branch),
        helper.make_node("Custom", [], ["l"], tensors=[external("one"), external("two")], sparse=sparse("s")),
    ]
    graph = helper.make_graph(nodes, "g", [], [], [external("initializer")])
    graph.sparse_initializer.append(sparse("si"))
    function = helper.make_function("local", "f", [], ["f"], [constant("function")], [])
    onnx.save(helper.make_model(graph, functions=[function]), tmp_path / "m.onnx")
    names = "m.onnx initializer si si_indices attribute inner_initializer inner one two s s_indices function"
    assert {path.name for path in ModelSource(tmp_path / "m.onnx").files()} == set(names.split())


def test_what_is_no_model_has_one_file(tmp_path):
    (tmp_path / "m.onnx").write_text("text")
    for path in (tmp_path / "m.onnx", tmp_path / "missing.onnx", tmp_path):
        assert ModelSource(path).files() == [path]
    assert ModelSource(b"text").files() == []
