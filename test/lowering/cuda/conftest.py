"""Models compiled for a GPU, run under the simulator."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto

from occamy_xdsl.compiler import Compilation, Model
from occamy_xdsl.lowering.cpu.emit import write_library
from occamy_xdsl.lowering.signature import Signature
from occamy_xdsl.pipelines import Options
from occamy_xdsl.runtime.bind import random_tensor
from occamy_xdsl.runtime.executable import Executable, LibraryModel
from occamy_xdsl.simulator import Simulator

CHIP = "sm_75"


@dataclass(frozen=True)
class GpuModel:
    """A compiled library, its inputs, and what ONNX Runtime says the outputs are."""

    library: Path
    inputs: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]
    compilation: Compilation

    def run(self, simulator: Simulator, times: int = 1) -> dict[str, np.ndarray]:
        """The outputs of the last of `times` runs; the model is gone afterwards."""
        executable = Executable(LibraryModel(self.library))
        for _ in range(times):
            outputs = executable.run(self.inputs)
        del executable
        return outputs

    def check(self, outputs: dict[str, np.ndarray], tolerance: float = 1e-4) -> None:
        """Every output is within `tolerance` of its largest element."""
        assert list(outputs) == list(self.expected)
        for name, want in self.expected.items():
            got = outputs[name]
            assert got.dtype == want.dtype
            assert got.shape == want.shape
            if want.dtype.kind in "iub":
                np.testing.assert_array_equal(got, want, err_msg=name)
                continue
            scale = float(np.abs(want).max(initial=0.0)) or 1.0
            np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * scale, err_msg=name)


Build = Callable[..., GpuModel]


def random_inputs(signature: Signature) -> dict[str, np.ndarray]:
    """A value of each input."""
    return {s.name: random_tensor(s, 0, i) for i, s in enumerate(signature.inputs)}


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory, compiler: list[str]) -> Build:
    """
    Compiles a model; keyword arguments are fields of Options. Without a C compiler the test is skipped.

    `feed` makes the inputs from the signature, by default random ones.
    """

    def build(
        model: ModelProto,
        weights: str = "embed",
        feed: Callable[[Signature], dict[str, np.ndarray]] = random_inputs,
        **options: object,
    ) -> GpuModel:
        folder = tmp_path_factory.mktemp("gpu")
        compilation = Compilation(Model(model), Options(**{"target": f"cuda:{CHIP}", **options}))
        compiled = compilation.compiled(folder)
        library = folder / "model.so"
        write_library(compiled, library, weights)
        inputs = feed(compiled.signature)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        names: Sequence[str] = [o.name for o in session.get_outputs()]
        expected = dict(zip(names, session.run(None, inputs), strict=True))
        return GpuModel(library, inputs, expected, compilation)

    return build
