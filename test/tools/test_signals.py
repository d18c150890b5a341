"""Signals that end a command: it leaves all of its files or none, and the exit code says which signal it was."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import occamy_xdsl

CODES = {"SIGHUP": 129, "SIGINT": 130, "SIGTERM": 143}


def small_model() -> ModelProto:
    """One operator, with weights."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64])],
        [numpy_helper.from_array(np.arange(64, dtype=np.float32), "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize(
    ("stride", "signal", "command", "written"),
    [
        pytest.param(3, "SIGTERM", "compile MODEL -o OUT/m.so", {"m.so"}, marks=pytest.mark.slow),
        (9, "SIGTERM", "compile MODEL -o OUT/m.so --weights file", {"m.so", "m.so.weights"}),
        pytest.param(
            *(3, "SIGHUP", "compile MODEL -o OUT/m --emit exe --weights file", {"m", "m.weights"}),
            marks=pytest.mark.slow,
        ),
        pytest.param(3, "SIGINT", "compile MODEL -o OUT/m.o --emit obj", {"m.o"}, marks=pytest.mark.slow),
        (5, "SIGINT", "run MODEL --output OUT", {"y.npy"}),
        (4, "SIGHUP", "report MODEL --format html -o OUT/r.html", {"r.html"}),
    ],
)
def test_whenever_a_signal_comes(tmp_path, stride, signal, command, written):
    model, out, temporary = tmp_path / "m.onnx", tmp_path / "out", tmp_path / "tmp"
    onnx.save(small_model(), model)
    out.mkdir()
    temporary.mkdir()
    arguments = command.replace("MODEL", str(model)).replace("OUT", str(out)).split()
    script = Path(__file__).with_name("interrupted.py")
    done = subprocess.run(
        [sys.executable, script, str(stride), signal, out, temporary, *arguments],
        env=os.environ | {"PYTHONPATH": str(Path(occamy_xdsl.__file__).parents[1]), "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    moments = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(moments) > 2
    for moment in moments:
        assert moment["code"] in (0, CODES[signal]), moment
        assert set(moment["left"]) in (set(), written), moment
    assert CODES[signal] in {moment["code"] for moment in moments}
