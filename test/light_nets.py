"""The light networks of the onnx package, with the outputs shipped with them, or made smaller."""

from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper, shape_inference
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


HIDDEN = 64
"""Width of the hidden layers of a reduced network's classifier, which are 4096 wide."""


def reduced(net: str, size: int = 64) -> ModelProto:
    """
    A light network for `size` x `size` pixels in place of 224 x 224, a multiple of 32, with random weights.

    Convolutions keep their channels. Pooling over 7 x 7 pixels at the end is over as much of the smaller image.
    """
    model = onnx.load(FOLDER / f"{net}.onnx")
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    (image,) = (value for value in graph.input if value.name not in constants)
    for dim in image.type.tensor_type.shape.dim[2:]:
        dim.dim_value = size
    for node in graph.node:
        if node.op_type == "Reshape":
            *kept, last = numpy_helper.to_array(constants[node.input[1]]).tolist()
            small = [*kept[:-1], kept[-1] * size // 224, last * size // 224] if len(kept) > 2 else [*kept, -1]
            constants[node.input[1]].CopyFrom(numpy_helper.from_array(np.array(small), node.input[1]))
        elif node.op_type == "AveragePool":
            (kernel,) = (attribute for attribute in node.attribute if attribute.name == "kernel_shape")
            kernel.ints[:] = [size // 32 if pixels == 7 else pixels for pixels in kernel.ints]
    shapes = {
        node.output[0]: numpy_helper.to_array(constants[node.input[0]]).tolist()
        for node in graph.node
        if node.op_type == "ConstantOfShape"
    }
    inferred = {
        value.name: value.type.tensor_type for value in shape_inference.infer_shapes(model).graph.value_info
    }
    width = 0
    for node in graph.node:
        if node.op_type == "Gemm" and node.input[1] in shapes:
            width = width or inferred[node.input[0]].shape.dim[1].dim_value
            rows = HIDDEN if shapes[node.input[1]][0] == 4096 else shapes[node.input[1]][0]
            shapes[node.input[1]], shapes[node.input[2]], width = [rows, width], [rows], rows
    random = np.random.default_rng(0)
    layers = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    del graph.node[:]
    graph.node.extend(layers)
    for name, shape in shapes.items():
        # Matrices and filters small enough that the softmax does not saturate; scales and variances around 1.
        fan_in = np.prod(shape[1:])
        values = (
            random.standard_normal(shape) * np.sqrt(0.5 / fan_in)
            if shape[1:]
            else random.uniform(0.5, 1.5, shape)
        )
        graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    return model
