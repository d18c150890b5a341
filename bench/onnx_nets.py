"""Networks to measure: those that come with the onnx package, at full size but with weights left out."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"

NETS = sorted(path.stem.removeprefix("light_") for path in FOLDER.glob("light_*.onnx"))


def load(net: str) -> ModelProto:
    """The network called `net`, in which ConstantOfShape nodes stand for most weights."""
    return onnx.load(FOLDER / f"light_{net}.onnx")


def test_input(shape: Sequence[int]) -> np.ndarray:
    """The input for which onnx ships an expected output: rising from 0 to 1."""
    size = int(np.prod(shape))
    return (np.arange(size).reshape(shape) / size).astype(np.float32)


def shipped_output(net: str) -> np.ndarray:
    """The expected output of the network called `net` on `test_input`."""
    file = FOLDER / f"light_{net}_output_0.pb"
    return numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes()))


def with_random_weights(model: ModelProto, seed: int = 0) -> ModelProto:
    """
    `model` with random float32 weights in place of its ConstantOfShape nodes.

    With the constants every class gets the same score, and a wrong compiler could still seem right.
    """
    random = np.random.default_rng(seed)
    shapes = {t.name: tuple(numpy_helper.to_array(t)) for t in model.graph.initializer}
    result = ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            result.graph.node.append(node)
            continue
        shape = shapes[node.input[0]]
        if len(shape) > 1:  # a filter or matrix: small enough that the softmax at the end does not saturate
            values = random.standard_normal(shape) * np.sqrt(0.5 / np.prod(shape[1:]))
        else:  # a bias, or a mean, variance or scale of batch normalisation
            values = random.uniform(0.5, 1.5, shape)
        result.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), node.output[0]))
    return result
