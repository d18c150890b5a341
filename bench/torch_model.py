"""An ONNX graph as a PyTorch module, for comparing time and memory; what the networks of `networks` need, in f32."""

import numpy as np
import onnx
import torch
import torch.nn.functional as F  # noqa: N812  # as everybody calls it
from onnx import helper, numpy_helper


class OnnxModule(torch.nn.Module):
    """
    Runs a graph node by node; outputs are a tuple in graph order. Raises NotImplementedError for an op.

    As in a module that is written by hand, an activation overwrites its operand where nobody else reads it, and a
    tensor is released after its last reader.
    """

    def __init__(self, model: onnx.ModelProto):
        super().__init__()
        graph = model.graph
        self.constants: dict[str, np.ndarray] = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
        for index, array in enumerate(self.constants.values()):
            self.register_buffer(f"weight{index}", torch.from_numpy(array.copy()))
        self.inputs = [value.name for value in graph.input if value.name not in self.constants]
        self.outputs = [value.name for value in graph.output]
        self.nodes = []
        for node in graph.node:
            if node.op_type not in OPS:
                raise NotImplementedError(node.op_type)
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            if node.op_type == "Split":
                attributes.setdefault("num_outputs", len(node.output))
            self.nodes.append((node.op_type, list(node.input), list(node.output), attributes))
        self.dying = self._last_uses()
        self.overwrites = self._overwrites()

    def _last_uses(self) -> list[set[str]]:
        """The values that each node is the last to read."""
        last = {name: k for k, (_, sources, _, _) in enumerate(self.nodes) for name in sources}
        kept = {*self.inputs, *self.outputs, *self.constants, ""}
        return [
            {name for name in sources if last[name] == k and name not in kept}
            for k, (_, sources, _, _) in enumerate(self.nodes)
        ]

    def _overwrites(self) -> list[bool]:
        """Whether each node may write over its first operand: it dies there, and shares no memory."""
        shared = {
            name
            for kind, (source, *_), targets, _ in self.nodes
            if kind in VIEWS
            for name in (source, *targets)
        }
        return [
            kind in IN_PLACE and sources[0] in dying and sources[0] not in shared
            for (kind, sources, _, _), dying in zip(self.nodes, self.dying, strict=True)
        ]

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs."""
        values = dict(zip(self.inputs, inputs, strict=True))
        values |= {name: getattr(self, f"weight{i}") for i, name in enumerate(self.constants)}
        for (kind, sources, targets, attributes), dying, overwrites in zip(
            self.nodes, self.dying, self.overwrites, strict=True
        ):
            operands = [values[name] if name else None for name in sources]
            # Shapes, axes and the like are constants, which must not come from the device.
            fixed = [self.constants.get(name) for name in sources]
            function = IN_PLACE[kind] if overwrites else OPS[kind]
            result = function(operands, fixed, attributes)
            results = result if isinstance(result, tuple | list) else [result]
            values |= dict(zip(targets, results, strict=False))
            del operands, result, results
            for name in dying:
                del values[name]
        return tuple(values[name] for name in self.outputs)


def _padded(x: torch.Tensor, attributes: dict, kernel: list[int], value: float = 0.0) -> torch.Tensor:
    """`x` with the pads of a window around it."""
    rank = len(kernel)
    pads = attributes.get("pads", [0] * 2 * rank)
    mode = attributes.get("auto_pad", b"NOTSET").decode()
    if mode.startswith("SAME"):
        strides = attributes.get("strides", [1] * rank)
        dilations = attributes.get("dilations", [1] * rank)
        sizes = zip(x.shape[2:], kernel, strides, dilations, strict=True)
        total = [max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n) for n, k, s, d in sizes]
        low = [t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in total]
        pads = [*low, *(t - p for t, p in zip(total, low, strict=True))]
    if not any(pads):
        return x
    around = [p for i in reversed(range(rank)) for p in (pads[i], pads[rank + i])]
    return F.pad(x, around, value=value)


def _conv(v: list, _: list, a: dict) -> torch.Tensor:
    x, w, bias = v[0], v[1], v[2] if len(v) > 2 else None
    rank = w.dim() - 2
    function = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
    pads = a.get("pads", [0] * 2 * rank)
    if "auto_pad" not in a and pads[:rank] == pads[rank:]:
        padding = pads[:rank]
    else:
        x, padding = _padded(x, a, list(w.shape[2:])), [0] * rank
    strides, dilations = a.get("strides", [1] * rank), a.get("dilations", [1] * rank)
    return function(x, w, bias, strides, padding, dilations, a.get("group", 1))


def _conv_transpose(v: list, _: list, a: dict) -> torch.Tensor:
    x, w, bias = v[0], v[1], v[2] if len(v) > 2 else None
    rank = w.dim() - 2
    pads = a.get("pads", [0] * 2 * rank)
    if pads[:rank] != pads[rank:]:
        raise NotImplementedError("ConvTranspose with unequal pads")
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[rank - 1]
    extra = a.get("output_padding", [0] * rank)
    return function(
        x, w, bias, a.get("strides", [1] * rank), pads[:rank], extra, a.get("group", 1),
        a.get("dilations", [1] * rank),
    )  # fmt: skip


def _max_pool(v: list, _: list, a: dict) -> torch.Tensor:
    kernel = a["kernel_shape"]
    rank = len(kernel)
    x = _padded(v[0], a, kernel, -float("inf"))
    strides, dilations = a.get("strides", [1] * rank), a.get("dilations", [1] * rank)
    function = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
    return function(x, kernel, strides, 0, dilations, ceil_mode=bool(a.get("ceil_mode", 0)))


def _average_pool(v: list, _: list, a: dict) -> torch.Tensor:
    kernel = a["kernel_shape"]
    rank = len(kernel)
    strides, ceil = a.get("strides", [1] * rank), bool(a.get("ceil_mode", 0))
    function = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    x = _padded(v[0], a, kernel)
    total = function(x, kernel, strides, ceil_mode=ceil)
    if x.shape == v[0].shape or a.get("count_include_pad", 0):
        return total
    inside = _padded(torch.ones_like(v[0]), a, kernel)
    return total / function(inside, kernel, strides, ceil_mode=ceil)


def _axes(f: list, a: dict, rank: int) -> list[int]:
    axes = f[1] if len(f) > 1 and f[1] is not None else a.get("axes", range(rank))
    return [int(axis) for axis in axes]


def _resize(v: list, f: list, a: dict) -> torch.Tensor:
    x = v[0]
    mode = a.get("mode", b"nearest").decode()
    coordinates = a.get("coordinate_transformation_mode", b"half_pixel").decode()
    scales = f[2] if len(f) > 2 and f[2] is not None and f[2].size else None
    sizes = f[3][2:] if scales is None else np.floor(np.array(x.shape[2:]) * scales[2:])
    size = [int(n) for n in sizes]
    if mode == "nearest":
        whole = all(n % m == 0 for n, m in zip(size, x.shape[2:], strict=True))
        if not whole:
            raise NotImplementedError("Resize by a fraction to the nearest")
        return F.interpolate(x, size, mode="nearest")
    known = {"half_pixel": False, "pytorch_half_pixel": False, "align_corners": True}
    if mode != "linear" or coordinates not in known:
        raise NotImplementedError(f"Resize, {mode}, {coordinates}")
    return F.interpolate(x, size, mode="bilinear", align_corners=known[coordinates])


def _slice(v: list, f: list, a: dict) -> torch.Tensor:
    x = v[0]
    starts, ends = (f[1], f[2]) if len(f) > 2 else (a["starts"], a["ends"])
    axes = f[3] if len(f) > 3 and f[3] is not None else a.get("axes", range(len(starts)))
    steps = f[4] if len(f) > 4 and f[4] is not None else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        chosen = range(x.shape[axis])[slice(int(start), int(end), int(step))]
        if step < 0:
            x = x.index_select(int(axis), torch.tensor(list(chosen), device=x.device))
        else:
            x = x.narrow(int(axis), 0, x.shape[axis])[
                (slice(None),) * (int(axis) % x.dim()) + (slice(chosen.start, chosen.stop, chosen.step),)
            ]
    return x


def _split(v: list, f: list, a: dict) -> tuple[torch.Tensor, ...]:
    axis = a.get("axis", 0)
    sizes = f[1] if len(f) > 1 and f[1] is not None else a.get("split")
    if sizes is None:
        return torch.split(v[0], -(-v[0].shape[axis] // a["num_outputs"]), axis)
    return torch.split(v[0], [int(n) for n in sizes], axis)


def _reshape(v: list, f: list, _: dict) -> torch.Tensor:
    if f[1] is None:
        raise NotImplementedError("Reshape to a computed shape")
    shape = [v[0].shape[i] if n == 0 else int(n) for i, n in enumerate(f[1])]
    return v[0].reshape(shape)


def _pad(v: list, f: list, a: dict) -> torch.Tensor:
    pads = [int(p) for p in (f[1] if len(f) > 1 else a["pads"])]
    rank, mode = len(pads) // 2, a.get("mode", b"constant").decode()
    around = [p for i in reversed(range(rank)) for p in (pads[i], pads[rank + i])]
    while mode != "constant" and around[-2:] == [0, 0]:
        around = around[:-2]  # PyTorch reflects the last dimensions only
    return F.pad(v[0], around, mode={"edge": "replicate"}.get(mode, mode))


def _gemm(v: list, _: list, a: dict) -> torch.Tensor:
    x = v[0].T if a.get("transA", 0) else v[0]
    w = v[1].T if a.get("transB", 0) else v[1]
    product = a.get("alpha", 1.0) * (x @ w) if a.get("alpha", 1.0) != 1.0 else x @ w
    return product if len(v) < 3 else product + a.get("beta", 1.0) * v[2]


def _depth_to_space(v: list, _: list, a: dict) -> torch.Tensor:
    x, block = v[0], a["blocksize"]
    if a.get("mode", b"DCR") == b"CRD":
        return F.pixel_shuffle(x, block)
    n, c, h, w = x.shape
    parts = x.reshape(n, block, block, c // block**2, h, w).permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(n, c // block**2, h * block, w * block)


OPS = {
    "Add": lambda v, f, a: v[0] + v[1],
    "ArgMax": lambda v, f, a: v[0].argmax(a.get("axis", 0), bool(a.get("keepdims", 1))),
    "AveragePool": _average_pool,
    "BatchNormalization": lambda v, f, a: F.batch_norm(
        v[0], v[3], v[4], v[1], v[2], False, 0.0, a.get("epsilon", 1e-5)
    ),
    "Clip": lambda v, f, a: v[0].clamp(*(None if x is None else float(x) for x in f[1:3])),
    "Concat": lambda v, f, a: torch.cat(v, a["axis"]),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "DepthToSpace": _depth_to_space,
    "Div": lambda v, f, a: v[0] / v[1],
    "Dropout": lambda v, f, a: v[0],
    "Erf": lambda v, f, a: torch.erf(v[0]),
    "Flatten": lambda v, f, a: v[0].flatten(a.get("axis", 1)),
    "Gather": lambda v, f, a: (
        v[0].index_select(a.get("axis", 0), v[1].reshape(-1)).unflatten(a.get("axis", 0), v[1].shape)
    ),
    "Gelu": lambda v, f, a: F.gelu(v[0], approximate=a.get("approximate", b"none").decode()),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda v, f, a: v[0].mean(tuple(range(2, v[0].dim())), keepdim=True),
    "HardSigmoid": lambda v, f, a: (a.get("alpha", 0.2) * v[0] + a.get("beta", 0.5)).clamp(0, 1),
    "Identity": lambda v, f, a: v[0],
    "LRN": lambda v, f, a: F.local_response_norm(
        v[0], a["size"], a.get("alpha", 1e-4), a.get("beta", 0.75), a.get("bias", 1.0)
    ),
    "LayerNormalization": lambda v, f, a: F.layer_norm(
        v[0], v[1].shape, v[1], v[2] if len(v) > 2 else None, a.get("epsilon", 1e-5)
    ),
    "LeakyRelu": lambda v, f, a: F.leaky_relu(v[0], a.get("alpha", 0.01)),
    "LogSoftmax": lambda v, f, a: F.log_softmax(v[0], a.get("axis", -1)),
    "MatMul": lambda v, f, a: v[0] @ v[1],
    "MaxPool": _max_pool,
    "Mul": lambda v, f, a: v[0] * v[1],
    "PRelu": lambda v, f, a: F.prelu(v[0], v[1].flatten()),
    "Pad": _pad,
    "Pow": lambda v, f, a: v[0] ** v[1],
    "ReduceL2": lambda v, f, a: torch.linalg.vector_norm(
        v[0], dim=_axes(f, a, v[0].dim()), keepdim=bool(a.get("keepdims", 1))
    ),
    "ReduceMean": lambda v, f, a: v[0].mean(_axes(f, a, v[0].dim()), bool(a.get("keepdims", 1))),
    "Relu": lambda v, f, a: F.relu(v[0]),
    "Reshape": _reshape,
    "Resize": _resize,
    "Sigmoid": lambda v, f, a: torch.sigmoid(v[0]),
    "Slice": _slice,
    "Softmax": lambda v, f, a: F.softmax(v[0], a.get("axis", -1)),
    "Split": _split,
    "Sqrt": lambda v, f, a: torch.sqrt(v[0]),
    "Sub": lambda v, f, a: v[0] - v[1],
    "Sum": lambda v, f, a: sum(v[1:], v[0]),
    "Tanh": lambda v, f, a: torch.tanh(v[0]),
    "Transpose": lambda v, f, a: v[0].permute(a.get("perm", list(reversed(range(v[0].dim()))))),
    "Unsqueeze": lambda v, f, a: v[0].reshape(
        np.expand_dims(np.empty(v[0].shape, np.bool_), tuple(_axes(f, a, 0))).shape
    ),
}
"""Each takes the operands, which of them are constants as arrays, and the attributes."""

IN_PLACE = {
    "Add": lambda v, f, a: v[0].add_(v[1]) if v[0].shape == v[1].shape else v[0] + v[1],
    "Clip": lambda v, f, a: v[0].clamp_(*(None if x is None else float(x) for x in f[1:3])),
    "LeakyRelu": lambda v, f, a: F.leaky_relu_(v[0], a.get("alpha", 0.01)),
    "Relu": lambda v, f, a: F.relu_(v[0]),
    "Sigmoid": lambda v, f, a: v[0].sigmoid_(),
    "Tanh": lambda v, f, a: v[0].tanh_(),
}
"""The same, over the first operand."""

VIEWS = {"Dropout", "Flatten", "Identity", "Reshape", "Slice", "Split", "Transpose", "Unsqueeze"}
"""Operators whose results may share memory with their operand."""
