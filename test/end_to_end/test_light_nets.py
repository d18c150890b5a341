"""The nine light networks of the onnx package reproduce the outputs shipped with it, from the command line too."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from light_nets import FOLDER, NETS, data_set

import occamy_xdsl.compiler as oc


@pytest.mark.parametrize("net", NETS)
def test_reproduces_the_shipped_output(net: str):
    inputs, want = data_set(net)
    (got,) = oc.compile(FOLDER / f"{net}.onnx").run(inputs, poison=True).values()
    np.testing.assert_allclose(got, want, rtol=1e-3)


def test_command_line_expects_the_shipped_output(tmp_path: Path):
    inputs, want = data_set("light_squeezenet")
    ((name, array),) = inputs.items()
    np.save(tmp_path / "x.npy", array)
    np.save(tmp_path / "wrong.npy", want * 1.5)
    model = FOLDER / "light_squeezenet.onnx"
    output = onnx.load(model).graph.output[0].name

    def run(expected: Path) -> int:
        command = [sys.executable, "-m", "occamy_xdsl.tools.occamy", "run", str(model)]
        options = [
            "--input",
            f"{name}=@{tmp_path / 'x.npy'}",
            "--expect",
            f"{output}=@{expected}",
            "--rtol",
            "1e-3",
        ]
        return subprocess.run([*command, *options], capture_output=True, check=False).returncode

    assert run(FOLDER / "light_squeezenet_output_0.pb") == 0
    assert run(tmp_path / "wrong.npy") == 1
