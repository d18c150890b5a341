"""The nine light networks of the onnx package reproduce the outputs shipped with it, from the command line too."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

import occamy_xdsl.compiler as oc

FOLDER = Path(onnx.__file__).parent / "backend/test/data/light"
NETS = sorted(path.stem for path in FOLDER.glob("light_*.onnx"))


def data_set(net: str) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The input that onnx's own runner makes for a light network, and the output shipped with it."""
    graph = onnx.load(FOLDER / f"{net}.onnx").graph
    initializers = {tensor.name for tensor in graph.initializer}
    (value,) = (value for value in graph.input if value.name not in initializers)
    array = Runner.generate_dummy_data(value, seed=0, name=net, random=False)
    want = onnx.TensorProto.FromString((FOLDER / f"{net}_output_0.pb").read_bytes())
    return {value.name: array}, numpy_helper.to_array(want)


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
        options = ["--input", f"{name}=@{tmp_path / 'x.npy'}", "--expect", f"{output}=@{expected}", "--rtol", "1e-3"]
        return subprocess.run([*command, *options], capture_output=True, check=False).returncode

    assert run(FOLDER / "light_squeezenet_output_0.pb") == 0
    assert run(tmp_path / "wrong.npy") == 1
