"""The light networks of the onnx package, with inputs and the outputs shipped with them."""

from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

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
