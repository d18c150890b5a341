"""Models that are valid and absurd: refused by name, or compiled, in little time and memory."""

import resource
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from occamy_xdsl.tools import occamy as tool

TERA = 1 << 40


def value(name: str, shape: list[int] | None, type: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, type, shape)


def save(
    path: Path, nodes: list[onnx.NodeProto], inputs: list[Any], outputs: list[Any], **constants: Any
) -> Path:
    initializers = [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


INT64 = TensorProto.INT64
TOO_LARGE = {
    "input": ([("Softmax", ["x"], {})], value("x", [1 << 62, 1 << 62]), {}),
    "expand": ([("Expand", ["x", "s"], {})], value("x", [1]), {"s": [TERA]}),
    "fill": (
        [("ConstantOfShape", ["s"], {}), ("Add", ["t0", "x"], {})],
        value("x", [1]),
        {"s": [1 << 62, 4]},
    ),
    "resize": (
        [("Resize", ["x", "", "", "s"], {"mode": "linear"})],
        value("x", [1, 1, 2, 2]),
        {"s": [1, 1, 2, TERA]},
    ),
    "tile": ([("Tile", ["x", "s"], {})], value("x", [1, 4]), {"s": [TERA, 1]}),
    "pad": ([("Pad", ["x", "s"], {})], value("x", [4]), {"s": [TERA, TERA]}),
    "one hot": ([("OneHot", ["x", "d", "v"], {})], value("x", [4], INT64), {"d": TERA, "v": [0, 1]}),
    "range": (
        [("Range", ["a", "b", "d"], {}), ("Add", ["t0", "x"], {})],
        value("x", [1], INT64),
        {"a": 0, "b": TERA, "d": 1},
    ),
}


@pytest.mark.parametrize("case", TOO_LARGE)
def test_tensors_larger_than_any_memory(occamy, tmp_path, case):
    steps, x, constants = TOO_LARGE[case]
    nodes = [
        helper.make_node(
            operator, operands, [f"t{i}" if i < len(steps) - 1 else "y"], f"node {i}", **attributes
        )
        for i, (operator, operands, attributes) in enumerate(steps)
    ]
    type = INT64 if case in ("one hot", "range") else TensorProto.FLOAT
    path = save(tmp_path / "m.onnx", nodes, [x], [value("y", None, type)], **constants)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = occamy("report", path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # in KiB
    assert (done.code, done.out) == (3, "")
    assert ("input 'x' has" if case == "input" else "node 'node 0'") in done.err.splitlines()[0]


@pytest.mark.parametrize("command", ["report", "run"])
def test_a_machine_without_enough_memory(occamy, net, monkeypatch, command):
    def fail(*_, **options):
        raise MemoryError("Unable to allocate 4.00 TiB\nand more")

    monkeypatch.setattr("occamy_xdsl.compiler.Compilation.run_to", fail)
    done = occamy(command, net)
    assert (done.code, done.out) == (4, "")
    assert done.error == "error: out of memory: Unable to allocate 4.00 TiB"


DAMAGE = range(60)


@pytest.mark.parametrize("command", ["report", "run"])
def test_damaged_models(net, tmp_path, capfd, command):
    """Whatever bytes a file has: a result or a refusal in lines that say so."""
    content = net.read_bytes()
    path = tmp_path / "m.onnx"
    seen = set[int]()
    for seed in DAMAGE:
        random = np.random.default_rng(seed)
        damaged = bytearray(content)
        place = int(random.integers(len(content)))
        match seed % 4:
            case 0:
                del damaged[place:]
            case 1:
                damaged[place] ^= 1 << int(random.integers(8))
            case 2:
                damaged[place : place + int(random.integers(1, 9))] = random.bytes(int(random.integers(9)))
            case _:
                damaged[place : place + 2] = b"\xff\x7f"
        path.write_bytes(damaged)
        code = tool.main([command, str(path)])
        _, err = capfd.readouterr()
        assert code in (0, 2, 3), (seed, err)
        assert code == 0 or all(line.startswith(("error: ", "warning: ")) for line in err.splitlines()), (
            seed,
            err,
        )
        seen.add(code)
    assert {0, 3} <= seen


NAMES = [
    "x\n\"<&>'\\",
    "$(id) %s %n",
    "../../x",
    "/etc/x",
    "x" * 5000,
    "\U0001f600\u202e\x00",
    " ",
    "-",
    "--help",
    "[/b][red]:smile:",
]


@pytest.mark.parametrize("name", NAMES, ids=[str(i) for i in range(len(NAMES))])
def test_names_of_any_characters(occamy, tmp_path, name):
    """Through every kind of report and artefact; files stay inside of the folder that was given."""
    nodes = [
        helper.make_node("Softmax", [name], [f"{name}1"], f"{name}2"),
        helper.make_node("Neg", [f"{name}1"], [f"{name}3"], f"{name}2"),
    ]
    path = save(tmp_path / "m.onnx", nodes, [value(name, [6])], [value(f"{name}3", [6])])
    before = {p for p in tmp_path.parent.rglob("*") if tmp_path not in p.parents}
    library, outputs = tmp_path / "m.so", tmp_path / "outputs"
    for format in ("table", "json", "html"):
        done = occamy("report", path, "--no-inplace", "--format", format)
        assert (done.code, done.err) == (0, "")
        assert "<&>" not in done.out or format != "html"
    assert occamy("compile", path, "-o", library).code == 0
    for model in (path, library):
        done = occamy("run", model, "--input", "random:0", "--output", outputs)
        assert (done.code, done.err) == (0, "")
        assert len(done.out.splitlines()) == 2
        assert "\x00" not in done.out
        assert len(list(outputs.iterdir())) == 1
    assert {p for p in tmp_path.parent.rglob("*") if tmp_path not in p.parents} == before
