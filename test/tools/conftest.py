"""Small models, and the command line in this process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from occamy_xdsl.tools.occamy import main


def make_net(batch: int | str = 1) -> onnx.ModelProto:
    """y = the mean over each channel of relu(conv(x, w)); x is batch x 3 x 8 x 8, y batch x 8 x 1 x 1."""
    weights = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["c"], ["r"], "relu"),
            helper.make_node("GlobalAveragePool", ["r"], ["y"], "mean"),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 8, 1, 1])],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.fixture(scope="session")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`make_net` in a file."""
    path = tmp_path_factory.mktemp("net") / "net.onnx"
    onnx.save(make_net(), path)
    return path


@pytest.fixture(scope="session")
def symbolic_net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`make_net` with a batch of N in a file."""
    path = tmp_path_factory.mktemp("net") / "symbolic.onnx"
    onnx.save(make_net("N"), path)
    return path


@dataclass(frozen=True)
class Done:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The only line on stderr, which must be an error."""
        (line,) = self.err.splitlines()
        assert line.startswith("error: ")
        return line


Occamy = Callable[..., Done]


@pytest.fixture
def occamy(capsys: pytest.CaptureFixture[str]) -> Occamy:
    """Runs a command in this process."""

    def run(*arguments: object) -> Done:
        capsys.readouterr()
        code = main([str(a) for a in arguments])
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def library(net: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The net as a shared library."""
    path = tmp_path_factory.mktemp("library") / "net.so"
    assert main(["compile", str(net), "-o", str(path)]) == 0
    return path
