"""What the commands of `occamy` do, compared with ONNX's own reference implementation and ONNX Runtime."""

import ctypes
import json
import os
import subprocess
import sys
from html.parser import HTMLParser
from io import BytesIO, TextIOWrapper
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from nets import NETS
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from occamy_xdsl.dialects.weights import Weights
from occamy_xdsl.lowering import linker
from occamy_xdsl.report.sizes import format_size, parse_size
from occamy_xdsl.report.table import resample
from occamy_xdsl.tools import occamy as tool

REPORT_KEYS = [
    *("model", "target", "memory", "planner", "weights_bytes", "pool_bytes", "workspace_bytes", "io_bytes"),
    *("max_live_bytes", "sum_bytes", "peak_position", "peak_node", "tensors", "timeline", "passes"),
]


@pytest.fixture(scope="module")
def x() -> np.ndarray:
    return np.random.default_rng(5).standard_normal((1, 3, 8, 8), np.float32)


@pytest.fixture(scope="module")
def y(net: Path, x: np.ndarray) -> np.ndarray:
    """What ONNX's reference implementation makes of `x`."""
    return ReferenceEvaluator(onnx.load(net)).run(None, {"x": x})[0]


# --- compile ----------------------------------------------------------------------------------------------

MARKS = {
    "onnx": "onnx.Conv",
    "dnn": "dnn.conv",
    "mem": "dnn.mempool_init",
    "mlir": "func.func @occamy_main",
    "llvm": "define void @occamy_main",
    "header": "occamy_run(",
}


@pytest.mark.parametrize("emit", MARKS)
def test_texts(occamy, net, tmp_path, emit):
    printed = occamy("compile", net, "--emit", emit, "-o", "-")
    assert (printed.code, printed.err) == (0, "")
    assert MARKS[emit] in printed.out
    path = tmp_path / "out"
    done = occamy("compile", net, "--emit", emit, "-o", path)
    assert (done.code, done.out) == (0, "")
    assert path.read_text() == printed.out


@pytest.mark.parametrize(
    ("alias", "emit"), [("--EmitONNXIR", "onnx"), ("--EmitMLIR", "mlir"), ("-EmitLLVMIR", "llvm")]
)
def test_spelling_of_onnx_mlir(occamy, net, alias, emit):
    assert MARKS[emit] in occamy("compile", net, alias, "-o", "-").out


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ([], "m.so"),
        (["--emit", "obj"], "m.o"),
        (["--emit", "exe"], "m"),
        (["--emit", "header"], "m.h"),
        (["--emit", "llvm"], "m.ll"),
        (["--emit", "mem"], "m.mem.mlir"),
        (["--emit", "lib", "--weights", "file"], "m.so"),
        (["--emit", "exe", "--weights", "stream"], "m"),
    ],
)
def test_default_names(occamy, net, tmp_path, arguments, name):
    model = tmp_path / "m.onnx"
    model.write_bytes(net.read_bytes())
    done = occamy("compile", model, *arguments)
    assert (done.code, done.out) == (0, "")
    made = {path.name for path in tmp_path.iterdir()} - {"m.onnx"}
    assert made == ({name, f"{name}.weights"} if "--weights" in arguments else {name})


def test_model_from_standard_input(occamy, net, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(net.read_bytes())))
    assert "onnx.Conv" in occamy("compile", "-", "--emit", "onnx", "-o", "-").out
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(net.read_bytes())))
    assert occamy("compile", "-").code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["model.so"]


def test_program(occamy, net, tmp_path, x, y):
    program = tmp_path / "program"
    assert occamy("compile", net, "--emit", "exe", "-o", program).code == 0
    np.save(tmp_path / "x.npy", x)
    subprocess.run([program, tmp_path / "x.npy", "-o", tmp_path / "out"], check=True, timeout=60)
    np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), y, rtol=1e-4)


def test_object_has_the_c_interface(occamy, net, tmp_path):
    compiler = linker.find_compiler()
    for emit in ("obj", "header"):
        assert occamy("compile", net, "--emit", emit, "-o", tmp_path / f"m.{emit[0]}").code == 0
    (tmp_path / "m.h").rename(tmp_path / "model.h")
    source = tmp_path / "pool.c"
    source.write_text('#include "model.h"\nsize_t pool(void) { return occamy_pool_bytes(); }\n')
    library = tmp_path / "pool.so"
    command = [*compiler, "-shared", "-fPIC", source, tmp_path / "m.o", "-o", library, "-lm"]
    subprocess.run(command, check=True, timeout=60)
    report = json.loads(occamy("report", net, "--format", "json").out)
    assert ctypes.CDLL(str(library)).pool() == report["pool_bytes"]


def test_print_pipeline(occamy, net, tmp_path):
    done = occamy("compile", net, "--print-pipeline", "--no-fuse", "--planner", "first-fit")
    assert (done.code, done.err) == (0, "")
    assert "convert-onnx-to-dnn" in done.out
    assert "planner=first-fit" in done.out
    assert "dnn-fuse-layers" not in done.out
    command = [sys.executable, "-m", "occamy_xdsl.tools.occamy_opt", net, "-p", done.out.strip()]
    opt = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=120)
    assert opt.returncode == 0, opt.stderr
    assert "func.func @occamy_main" in opt.stdout


def test_save_temps(occamy, net, tmp_path):
    done = occamy("compile", net, "-o", tmp_path / "net.so", "--save-temps", tmp_path / "temps")
    assert done.code == 0
    stages = [path.name.split(".")[1].split("-")[1] for path in sorted((tmp_path / "temps").iterdir())]
    assert stages == ["import", "onnx", "dnn", "mem", "mlir"]


def test_options_reach_the_pipeline(occamy, net):
    def emitted(*options: str) -> str:
        return occamy("compile", net, "--emit", "mem", "-o", "-", *options).out

    assert "epilogue" in emitted()
    assert "epilogue" not in emitted("--no-fuse")
    assert "dnn.malloc" in emitted("--memory", "eager")
    assert "first-fit" in emitted("--planner", "first-fit")


def environment(**variables: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(tool.__file__).parents[2])} | variables


def test_determinism(net, tmp_path):
    """Artefacts do not depend on the hash seed or on any folder."""
    results = list[list[bytes]]()
    for seed in ("1", "2"):
        folder = tmp_path / f"folder{seed * 3}"
        folder.mkdir()
        (folder / "net.onnx").write_bytes(net.read_bytes())
        code = (
            "from occamy_xdsl.tools.occamy import main\n"
            "for emit in ('lib', 'obj', 'exe', 'mlir'):\n"
            "    assert main(['compile', 'net.onnx', '--emit', emit]) == 0\n"
        )
        variables = environment(PYTHONHASHSEED=seed)
        subprocess.run([sys.executable, "-c", code], cwd=folder, env=variables, check=True, timeout=120)
        results.append([(folder / name).read_bytes() for name in ("net.so", "net.o", "net", "net.mlir")])
    assert results[0] == results[1]


# --- run --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True], ids=["model", "library"])
def test_run(occamy, net, library, tmp_path, x, y, compiled):
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    (tmp_path / "y.pb").write_bytes(numpy_helper.from_array(y).SerializeToString())
    model = library if compiled else net
    given = ("--input", f"x=@{tmp_path}/x.npy")
    done = occamy("run", model, *given, "--output", tmp_path / "out", "--poison")
    assert done.code == 0
    assert done.out.startswith(f"y: float32[1,8,1,1] min {y.min():.4}"[:-1])
    assert done.err == "poison: outputs are unchanged\n"
    np.testing.assert_allclose(np.load(tmp_path / "out" / "y.npy"), y, rtol=1e-4)
    for suffix in ("npy", "pb"):
        assert occamy("run", model, *given, "--expect", f"y=@{tmp_path}/y.{suffix}").code == 0
    wrong = y.copy()
    wrong[0, 5] += 1
    np.save(tmp_path / "y.npy", wrong)
    expect = ("--expect", f"y=@{tmp_path}/y.npy")
    done = occamy("run", model, *given, *expect)
    assert done.code == 1
    (line,) = [line for line in done.out.splitlines() if line.startswith("output 'y'")]
    assert "1 of 8 elements differ, max difference 1 " in line
    assert "[0,5,0,0]" in line
    assert occamy("run", model, *given, *expect, "--rtol", "0", "--atol", "1.01").code == 0


def test_missing_inputs_are_random_and_said_so(occamy, net, library):
    implied, explicit = occamy("run", library), occamy("run", library, "--input", "random:0")
    assert "seed 0" in implied.err
    assert "x" in implied.err
    assert explicit.err == ""
    assert implied.out == explicit.out == occamy("run", net).out
    assert occamy("run", library, "--input", "random:1").out != implied.out


def test_top_of_a_vector(occamy, tmp_path):
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 7])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    done = occamy("run", tmp_path / "m.onnx", "--input", "x=1,-5,9,2,8,4,0.5")
    assert done.out == ("y: float32[1,7] min 0 mean 3.5 max 9\n  top 5: [2] 9, [4] 8, [5] 4, [3] 2, [0] 1\n")


def test_repeat(occamy, library):
    assert "20 runs: median " in occamy("run", library, "--input", "random:0", "--repeat", "20").err


def test_profile(occamy, net, tmp_path):
    done = occamy("run", net, "--profile", tmp_path / "p.json", "--repeat", "3", "--no-fuse")
    assert done.code == 0
    profile = json.loads((tmp_path / "p.json").read_text())
    nodes = [call["node"] for call in profile["calls"]]
    assert [node for node in nodes if node in ("conv", "relu", "mean")] == ["conv", "relu", "mean"]
    assert all(call["us"] >= 0 for call in profile["calls"])
    assert profile["runs"] == 3
    assert profile["total_us"] == pytest.approx(sum(call["us"] for call in profile["calls"]), abs=0.01)
    assert profile["total_us"] > 0


def test_poison_shows(occamy, library, monkeypatch):
    from occamy_xdsl.runtime.executable import Executable

    run = Executable.run

    def leak(self, *inputs, poison=False, **rest):
        return {name: value + poison for name, value in run(self, *inputs, **rest).items()}

    monkeypatch.setattr(Executable, "run", leak)
    done = occamy("run", library, "--input", "random:0", "--poison")
    assert done.code == 1
    assert done.err == "poison: outputs change: y\n"


# --- report -----------------------------------------------------------------------------------------------


def check_plan(report: dict) -> None:
    """Facts that hold in every report, from its tensors alone."""
    buffers = [t for t in report["tensors"] if t["kind"] in ("activation", "workspace")]
    for position, live in enumerate(report["timeline"]):
        assert live == sum(t["bytes"] for t in buffers if t["first"] <= position <= t["last"])
    assert report["max_live_bytes"] == max(report["timeline"]) == report["timeline"][report["peak_position"]]
    assert report["sum_bytes"] == sum(t["bytes"] for t in buffers)
    assert report["max_live_bytes"] <= report["pool_bytes"] <= report["sum_bytes"]
    for t in buffers:
        assert 0 <= t["offset"] <= report["pool_bytes"] - t["bytes"]
        for other in buffers:
            apart_in_time = t["last"] < other["first"] or other["last"] < t["first"]
            below, above = t["offset"] + t["bytes"], other["offset"] + other["bytes"]
            assert t is other or apart_in_time or below <= other["offset"] or above <= t["offset"]
    assert report["passes"][-1]["max_live_bytes"] == report["max_live_bytes"]


@pytest.mark.parametrize("options", [[], ["--no-fuse"], ["--no-fuse", "--no-inplace"]], ids=" ".join)
def test_report_json(occamy, net, options):
    done = occamy("report", net, "--format", "json", *options)
    assert (done.code, done.err) == (0, "")
    report = json.loads(done.out)
    assert list(report)[: len(REPORT_KEYS)] == REPORT_KEYS
    assert (report["model"], report["target"], report["memory"]) == ("net", "cpu", "pool")
    assert report["weights_bytes"] == 8 * 3 * 3 * 3 * 4
    assert report["io_bytes"] == (3 * 8 * 8 + 8) * 4
    assert report["max_live_bytes"] >= 8 * 8 * 8 * 4 * (2 if "--no-inplace" in options else 1)
    keys = {"name", "node", "bytes", "offset", "first", "last", "alias_of", "kind"}
    assert all(set(t) >= keys and t["name"] for t in report["tensors"])
    check_plan(report)


def test_report_of_heap_buffers(occamy, net):
    pool, eager, lazy = (
        json.loads(occamy("report", net, "--format", "json", "--no-fuse", "--memory", memory).out)
        for memory in ("pool", "eager", "lazy")
    )
    assert lazy["peak_node"] in {tensor["node"] for tensor in pool["tensors"]}, "copies belong to nodes"
    assert (pool["planner"], eager["planner"]) == ("search", "none")
    assert eager["memory"] == "eager"
    assert eager["pool_bytes"] == eager["sum_bytes"] > pool["pool_bytes"]


def test_report_reads_no_weights(occamy, net, monkeypatch):
    def read(_):
        raise AssertionError("weights are read")

    monkeypatch.setattr(Weights, "array", read)
    assert occamy("report", net, "--format", "json").code == 0
    assert occamy("compile", net, "--emit", "mem", "-o", "-").code == 0
    assert occamy("compile", net, "--emit", "obj", "-o", net.with_suffix(".o")).code == 70


def test_report_table(occamy, net):
    done = occamy("report", net, "--no-fuse", "--no-inplace", "--top", "1")
    assert (done.code, done.err) == (0, "")
    report = json.loads(occamy("report", net, "--no-fuse", "--no-inplace", "--format", "json").out)
    for fact in (f"{report['pool_bytes']:,} B", f"{report['weights_bytes']:,} B", report["peak_node"], "█"):
        assert fact in done.out
    for step in report["waterfall"]:
        assert step["name"] in done.out
    live = [t for t in report["tensors"] if t["first"] <= report["peak_position"] <= t["last"]]
    assert f"and {len([t for t in live if t['kind'] == 'activation']) - 1} more" in done.out
    assert max(len(line) for line in done.out.splitlines()) <= 110


class Resources(HTMLParser):
    """Collects what a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.found = list[str]()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "xlink:href")]


def test_report_html(occamy, net, tmp_path):
    page = tmp_path / "m.html"
    done = occamy("report", net, "--no-fuse", "--no-inplace", "--format", "html", "-o", page)
    assert (done.code, done.out, done.err) == (0, "", "")
    report = json.loads(occamy("report", net, "--no-fuse", "--no-inplace", "--format", "json").out)
    text = page.read_text()
    resources = Resources()
    resources.feed(text)
    assert resources.found == []
    assert "http" not in text
    svg = ElementTree.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    boxes = svg.findall("rect")
    assert len(boxes) == len([t for t in report["tensors"] if t["kind"] in ("activation", "workspace")])
    height = 420 / report["pool_bytes"]
    assert sorted(float(box.get("height", "")) for box in boxes) == pytest.approx(
        sorted(t["bytes"] * height for t in report["tensors"] if t["offset"] is not None), abs=0.01
    )
    assert all("bytes at" in (box.findtext("title") or "") for box in boxes)


def test_report_budgets(occamy, net, tmp_path):
    """Each row is what the options that it names give."""
    plain = json.loads(occamy("report", net, "--format", "json").out)
    done = occamy("report", net, "--budgets", "--format", "json")
    assert (done.code, done.err) == (0, "")
    report = json.loads(done.out)
    steps = report.pop("budgets")
    assert plain.pop("budgets") == []
    assert report == plain
    assert [step["stripe_budget"] for step in steps] == [0, 2, 5, 10, 25]
    for step in steps:
        row = json.loads(occamy("report", net, *step["options"].split(), "--format", "json").out)
        assert [row[key] for key in ("pool_bytes", "arithmetic", "calls", "weights_read_bytes")] == [
            step[key] for key in ("pool_bytes", "arithmetic", "calls", "weights_read_bytes")
        ]
    assert f"{steps[-1]['pool_bytes']:,}" in occamy("report", net, "--budgets").out
    page = tmp_path / "m.html"
    assert occamy("report", net, "--budgets", "--compare", "--format", "html", "-o", page).code == 0
    resources = Resources()
    resources.feed(page.read_text())
    assert resources.found == []
    assert page.read_text().count("<circle") == len(steps)


def test_report_compares_ways_to_allocate(occamy, net):
    report = json.loads(occamy("report", net, "--compare", "--format", "json").out)
    found = {mode["name"]: mode["bytes"] for mode in report["modes"]}
    for memory in ("eager", "lazy", "pool"):
        alone = json.loads(occamy("report", net, "--memory", memory, "--format", "json").out)
        assert found[memory] == alone["pool_bytes"]
    # relu(conv(x)) of 8 x 8 x 8 floats, and the mean of 8: as a vector, and in the shape of the output.
    assert (found["eager"], found["liveness"]) == (4 * (512 + 8 + 8), 4 * (512 + 8))
    assert (found["original's pool"], found["pool"]) == (4 * (512 + 8), 4 * (512 + 8))
    shown = occamy("report", net, "--compare").out
    assert all(name in shown for name in found)


def test_what_a_limit_costs_is_said(occamy, tmp_path):
    path = tmp_path / "kept.onnx"
    onnx.save(NETS["kept"](), path)
    for command in (["report"], ["compile", "--emit", "mem", "-o", "-"]):
        done = occamy(command[0], path, *command[1:], "--memory-limit", 12288)
        assert done.code == 0
        (line,) = done.err.splitlines()
        assert line.startswith(
            "memory limit of 12288 bytes met with --optimize memory --stripe-budget 0% --recompute-budget 25%: "
            "12288 bytes instead of 16384, "
        )


def test_report_beside_an_artefact(occamy, net, tmp_path):
    for suffix in ("json", "html"):
        out, report = tmp_path / "net.so", tmp_path / f"r.{suffix}"
        assert occamy("compile", net, "-o", out, "--report", report).code == 0
        assert report.read_text() == occamy("report", net, "--format", suffix).out


def test_report_diff(occamy, net, tmp_path):
    old = tmp_path / "old.json"
    assert occamy("report", net, "--format", "json", "-o", old).code == 0
    assert "buffers that changed" not in occamy("report", net, "--diff", old).out
    done = occamy("report", net, "--no-fuse", "--no-inplace", "--diff", old)
    new = json.loads(occamy("report", net, "--no-fuse", "--no-inplace", "--format", "json").out)
    grown = new["pool_bytes"] - json.loads(old.read_text())["pool_bytes"]
    assert grown > 0
    assert f"{grown:+,}" in done.out
    assert "buffers that changed" in done.out
    done = occamy("report", net, "--no-fuse", "--no-inplace", "--diff", old, "--format", "json")
    totals = {change["name"]: change for change in json.loads(done.out)["totals"]}
    assert totals["pool_bytes"]["new"] - totals["pool_bytes"]["old"] == grown


def test_report_diff_as_a_page(occamy, net, tmp_path):
    """Both columns, every change, and both maps; names of either report are text, not markup."""
    old, page = tmp_path / "old.json", tmp_path / "diff.html"
    assert occamy("report", net, "--format", "json", "-o", old).code == 0
    values = json.loads(old.read_text())
    values["model"] = "<script>alert(1)</script>"
    values["tensors"][0] |= {"name": "a<b>&\"'", "offset": 0, "kind": "activation", "bytes": 12345}
    old.write_text(json.dumps(values))
    changed = ("report", net, "--no-fuse", "--no-inplace", "--diff", old)
    done = occamy(*changed, "--format", "html", "-o", page)
    assert (done.code, done.out) == (0, "")
    text = page.read_text()
    found = json.loads(occamy(*changed, "--format", "json").out)
    for row in [*found["totals"], *found["tensors"]]:
        cells = [f"{row['old']:,}", f"{row['new']:,}", f"{row['new'] - row['old']:+,}".replace("+0", "0")]
        assert "".join(f'<td class="n">{cell}</td>' for cell in cells) in text
    assert text.count("<svg") == 2
    assert "a&lt;b&gt;&amp;&quot;&#x27;" in text
    root = ElementTree.fromstring(text.removeprefix("<!DOCTYPE html>").replace('<meta charset="utf-8">', ""))
    assert not [element.tag for element in root.iter() if element.tag in ("script", "b")]


def test_resample_keeps_peaks():
    assert resample([1, 9, 2, 3, 4, 8], 3) == [9, 3, 8]
    assert resample([1, 2], 80) == [1, 2]


@pytest.mark.parametrize(
    ("text", "size"),
    [("100", 100), ("100B", 100), ("1KB", 1000), ("1KiB", 1024), ("2MiB", 2 << 20), ("1.5 GiB", 3 << 29)],
)
def test_sizes(text, size):
    assert parse_size(text) == size
    assert parse_size(text.lower()) == size


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1536, "1.50 KiB"), (10 << 20, "10.0 MiB"), (5 << 40, "5120 GiB")],
)
def test_readable_sizes(size, text):
    assert format_size(size) == text


# --- check, bench, ops, version ---------------------------------------------------------------------------


@pytest.mark.parametrize("against", ["onnxruntime", "reference"])
def test_check(occamy, symbolic_net, against):
    done = occamy("check", symbolic_net, "--dim", "N=2", "--against", against, "--each-node", "--seed", "3")
    assert done.code == 0
    assert "3 values of 3 nodes are equal" in done.err
    assert done.out.startswith("output 'y': equal")


def differing(names: list[str]):
    """A stand-in for `tools.reference.onnxruntime` with 1 added to some of the values."""
    from occamy_xdsl.tools.reference import onnxruntime

    def reference(*arguments, **options):
        right = onnxruntime(*arguments, **options)
        return lambda inputs: {name: y + (name in names) for name, y in right(inputs).items()}

    return reference


def test_check_finds_the_first_node(occamy, net, monkeypatch):
    monkeypatch.setattr("occamy_xdsl.tools.reference.onnxruntime", differing(["r", "y"]))
    done = occamy("check", net)
    assert done.code == 1
    assert "8 of 8 elements differ" in done.out
    done = occamy("check", net, "--each-node")
    assert done.code == 1
    assert done.out.startswith("node 'relu' (Relu): output 'r': 512 of 512 elements differ")


def test_bench(occamy, net, library):
    runs = ("--warmup", "1", "--iterations", "5")
    done = occamy("bench", net, *runs, "--against", "onnxruntime", "--format", "json")
    assert (done.code, done.err) == (0, "")
    result = json.loads(done.out)
    assert list(result["times_ms"]) == ["occamy", "onnxruntime"]
    for times in result["times_ms"].values():
        assert 0 < times["min"] <= times["p50"] <= times["p90"]
    assert result["ratio"] > 0
    assert result["iterations"] == 5
    table = occamy("bench", library, *runs)
    assert table.code == 0
    assert len(table.out.splitlines()) == 2


def test_ops(occamy):
    from occamy_xdsl.operators import all_operators

    operators = json.loads(occamy("ops", "--format", "json").out)
    assert {(o["domain"], o["name"], o["since"]) for o in operators} == {
        (o.domain, o.name, o.since) for o in all_operators()
    }
    conv = next(o for o in operators if o["name"] == "Conv" and not o["domain"])
    assert set(conv) == {"domain", "name", "since", "until", "limits"}
    for format in ("table", "md"):
        lines = occamy("ops", "--format", format).out.splitlines()
        assert len(lines) == len(operators) + (2 if format == "md" else 0)
        assert any("Conv " in line for line in lines)


def test_version(occamy):
    from importlib.metadata import version

    import llvmlite.binding as llvm

    for spelling in ("--version", "version"):
        assert occamy(spelling).out == occamy("version").out != ""
    done = occamy("version", "--json")
    versions = json.loads(done.out)
    for package in ("xdsl", "onnx", "llvmlite"):
        assert versions[package] == version(package)
    assert (
        versions["llvm"].split(".")[0] == versions["mlir-opt"].split(".")[0] == str(llvm.llvm_version_info[0])
    )
    for name, text in versions.items():
        assert any(line.split() == [name, text] for line in occamy("version").out.splitlines())


@pytest.mark.parametrize("command", ["", *tool.COMMANDS])
def test_help(occamy, command):
    done = occamy(*command.split(), "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(" ".join(["Usage: occamy", command]).strip())
