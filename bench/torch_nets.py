"""ONNX models as PyTorch modules in eager mode: the peer that the benchmarks compare with (`pip install torch`)."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional

Attributes = Mapping[str, Any]


class TorchNet(nn.Module):
    """
    A model as `forward` of its nodes in the file's order, in inference mode.

    As in a module that is written by hand, an activation overwrites its operand where nobody else reads it, and a
    tensor is released after its last reader. Raises NotImplementedError for operators outside `OPERATORS`.
    """

    def __init__(self, path: Path):
        super().__init__()
        graph = onnx.load(path).graph
        known = OPERATORS.keys() | IN_PLACE.keys()
        if missing := {node.op_type for node in graph.node} - known:
            raise NotImplementedError(f"{path.name}: {', '.join(sorted(missing))}")
        self.inputs = [value.name for value in graph.input]
        self.outputs = [value.name for value in graph.output]
        self.shapes = {t.name: numpy_helper.to_array(t) for t in graph.initializer if t.data_type == 7}
        self.names = dict[str, str]()
        for i, tensor in enumerate(graph.initializer):
            if tensor.name not in self.shapes:
                self.names[tensor.name] = f"weight{i}"
                self.register_buffer(f"weight{i}", torch.from_numpy(numpy_helper.to_array(tensor).copy()))
        self.nodes = [
            (
                node.op_type,
                tuple(node.input),
                node.output[0],
                {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute},
            )
            for node in graph.node
        ]
        last = {name: k for k, (_, operands, _, _) in enumerate(self.nodes) for name in operands}
        kept = {*self.inputs, *self.outputs, *self.names, *self.shapes, ""}
        views = {result for kind, _, result, _ in self.nodes if kind in VIEWS}
        self.dying = [
            tuple({name for name in operands if last[name] == k and name not in kept})
            for k, (_, operands, _, _) in enumerate(self.nodes)
        ]
        shared = views | {operands[0] for kind, operands, _, _ in self.nodes if kind in VIEWS}
        self.overwrites = [
            kind in IN_PLACE and operands[0] in dying and operands[0] not in shared
            for (kind, operands, _, _), dying in zip(self.nodes, self.dying, strict=True)
        ]

    @torch.inference_mode()
    def forward(self, *arguments: Tensor) -> list[Tensor]:
        """Outputs in the model's order."""
        values: dict[str, Any] = dict(zip(self.inputs, arguments, strict=True))
        values |= (
            self.shapes | {name: getattr(self, buffer) for name, buffer in self.names.items()} | {"": None}
        )
        for (kind, operands, result, attributes), dying, overwrite in zip(
            self.nodes, self.dying, self.overwrites, strict=True
        ):
            given = [values[name] for name in operands]
            if kind in IN_PLACE:
                values[result] = IN_PLACE[kind](overwrite, attributes, *given)
            else:
                values[result] = OPERATORS[kind](attributes, *given)
            del given
            for name in dying:
                del values[name]
        return [cast(Tensor, values[name]) for name in self.outputs]


def _padded(x: Tensor, attributes: Attributes, value: float) -> tuple[Tensor, list[int]]:
    """`x` and pads that the window ops of PyTorch can do, which are the same on both sides."""
    pads = attributes.get("pads") or [0, 0, 0, 0]
    if attributes.get("auto_pad", b"NOTSET") not in (b"NOTSET", b"VALID"):
        raise NotImplementedError("auto_pad")
    half = len(pads) // 2
    if pads[:half] == pads[half:]:
        return x, list(pads[:half])
    sides = [side for i in reversed(range(half)) for side in (pads[i], pads[half + i])]
    return functional.pad(x, sides, value=value), [0] * half


def _conv(attributes: Attributes, x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    x, pads = _padded(x, attributes, 0.0)
    strides, dilations = attributes.get("strides", 1), attributes.get("dilations", 1)
    return functional.conv2d(x, w, b, strides, pads, dilations, attributes.get("group", 1))


def _max_pool(attributes: Attributes, x: Tensor) -> Tensor:
    x, pads = _padded(x, attributes, -np.inf)
    kernel, strides = attributes["kernel_shape"], attributes.get("strides", 1)
    return functional.max_pool2d(x, kernel, strides, pads, 1, bool(attributes.get("ceil_mode", 0)))


def _average_pool(attributes: Attributes, x: Tensor) -> Tensor:
    counted = bool(attributes.get("count_include_pad", 0))
    x, pads = _padded(x, attributes, 0.0)
    kernel, strides = attributes["kernel_shape"], attributes.get("strides", 1)
    return functional.avg_pool2d(x, kernel, strides, pads, bool(attributes.get("ceil_mode", 0)), counted)


def _batch_norm(
    attributes: Attributes, x: Tensor, scale: Tensor, b: Tensor, mean: Tensor, var: Tensor
) -> Tensor:
    return functional.batch_norm(x, mean, var, scale, b, eps=attributes.get("epsilon", 1e-5))


def _gemm(attributes: Attributes, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
    a = a.T if attributes.get("transA", 0) else a
    b = b.T if attributes.get("transB", 0) else b
    return alpha * (a @ b) if c is None else torch.addmm(c, a, b, alpha=alpha, beta=beta)


def _depth_to_space(attributes: Attributes, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    size = attributes["blocksize"]
    if attributes.get("mode", b"DCR") == b"CRD":
        return functional.pixel_shuffle(x, size)
    parts = x.reshape(n, size, size, c // size**2, h, w)
    return parts.permute(0, 3, 4, 1, 5, 2).reshape(n, c // size**2, h * size, w * size)


def _reshape(attributes: Attributes, x: Tensor, shape: np.ndarray[Any, Any]) -> Tensor:
    return x.reshape([x.shape[i] if n == 0 else int(n) for i, n in enumerate(shape)])


def _clip(overwrite: bool, attributes: Attributes, x: Tensor, *bounds: Tensor | None) -> Tensor:
    low, high = (None if b is None else float(b) for b in (*bounds, None, None)[:2])
    return torch.clamp_(x, low, high) if overwrite else torch.clamp(x, low, high)


OPERATORS: dict[str, Callable[..., Tensor]] = {
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Concat": lambda a, *xs: torch.cat(xs, a["axis"]),
    "Conv": _conv,
    "DepthToSpace": _depth_to_space,
    "Flatten": lambda a, x: x.flatten(a.get("axis", 1)),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda a, x: functional.adaptive_avg_pool2d(x, 1),
    "LRN": lambda a, x: functional.local_response_norm(
        x, a["size"], a.get("alpha", 1e-4), a.get("beta", 0.75), a.get("bias", 1.0)
    ),
    "MaxPool": _max_pool,
    "PRelu": lambda a, x, slope: functional.prelu(x, slope.flatten()),
    "Reshape": _reshape,
    "Softmax": lambda a, x: torch.softmax(x, a.get("axis", -1)),
    "Transpose": lambda a, x: x.permute(a["perm"]),
}

IN_PLACE: dict[str, Callable[..., Tensor]] = {
    "Add": lambda overwrite, a, x, y: x.add_(y) if overwrite and x.shape == y.shape else x + y,
    "Clip": _clip,
    "Dropout": lambda overwrite, a, x, *_: x,
    "LeakyRelu": lambda overwrite, a, x: functional.leaky_relu(x, a.get("alpha", 0.01), overwrite),
    "Relu": lambda overwrite, a, x: functional.relu(x, overwrite),
    "Sigmoid": lambda overwrite, a, x: x.sigmoid_() if overwrite else x.sigmoid(),
    "Tanh": lambda overwrite, a, x: x.tanh_() if overwrite else x.tanh(),
}
"""Operators that may write over their first operand."""

VIEWS = {"Dropout", "Flatten", "Reshape", "Transpose"}
"""Operators whose result may share memory with their operand."""
