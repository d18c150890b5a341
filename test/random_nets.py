"""
Random networks: ONNX models that are valid by construction, made of what real networks consist of.

The generator executes as it builds: ONNX Runtime evaluates each node when it is added. A node that it refuses, whose
result is large, not finite, or changes much with a small change of its operands, is dropped, so that models are valid
and well-conditioned, and the generator may try what it likes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

Array = NDArray[Any]

MAX_ELEMENTS = 6000
MAX_ABS = 1e4
NOISE = 1e-5
"""Relative change of all operands, under which no result may change by more than `MAX_GAIN` times as much."""
MAX_GAIN = 30

_SESSION = onnxruntime.SessionOptions()
_SESSION.intra_op_num_threads = _SESSION.inter_op_num_threads = 1
_SESSION.log_severity_level = 4
_SESSION.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL


class RefusedError(Exception):
    """The generator, or ONNX Runtime, does not take a node or a model."""


def evaluate(model: ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs that ONNX Runtime computes without optimisations; raises RefusedError."""
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), _SESSION, providers=["CPUExecutionProvider"]
        )
        names = [o.name for o in session.get_outputs()]
        return dict(
            zip(names, session.run(None, {i.name: inputs[i.name] for i in session.get_inputs()}), strict=True)
        )
    except Exception as error:  # ONNX Runtime's have no common base
        raise RefusedError(str(error)) from None


def disturbed(array: Array, rng: np.random.Generator, sign: int = 0) -> Array:
    """
    A float array with each element changed by at most `NOISE` of itself; any other array as it is.

    With a sign all elements grow, or all shrink.
    """
    if array.dtype.kind != "f":
        return array
    noise = sign if sign else rng.uniform(-1, 1, array.shape)
    return np.asarray(array * (1 + NOISE * noise), array.dtype)


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the model: what it is named, and what it holds for the inputs that the generator chose."""

    name: str
    array: Array
    is_known: bool = False
    """Whether it is an initialiser or the result of a Constant node."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def rank(self) -> int:
        return self.array.ndim

    def info(self):
        kind = helper.np_dtype_to_tensor_dtype(self.array.dtype)
        return helper.make_tensor_value_info(self.name, kind, self.shape)


@dataclass(frozen=True)
class Case:
    """A model, and inputs to run it on."""

    model: ModelProto
    inputs: dict[str, Array]


class Generator:
    """Adds random nodes to a graph; the rest of the state is what is visible to the next node."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.opset = int(self.rng.choice([11, 13, 17, 18, 21]))
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.values: list[Value] = []
        self.by_name: dict[str, Value] = {}
        self.shared: dict[tuple[object, ...], Value] = {}
        self.count = 0
        self.depth = 0
        sizes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 33]
        self.sizes = [int(s) for s in self.rng.choice(sizes, 3)]
        """Few sizes, so that shapes often match."""

    # ---- Chance

    def one(self, of: Sequence[Any]) -> Any:
        return of[int(self.rng.integers(len(of)))]

    def below(self, end: int) -> int:
        return int(self.rng.integers(max(1, end)))

    def maybe(self, share: float = 0.5) -> bool:
        return bool(self.rng.random() < share)

    def size(self) -> int:
        return self.one(self.sizes)

    def floats(self, shape: Sequence[int], scale: float = 1.0, dtype: Any = np.float32) -> Array:
        return np.asarray(self.rng.standard_normal(tuple(shape)) * scale, dtype)

    # ---- Values

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}_{self.count}"

    def known(self, array: Any, dtype: Any = np.float32) -> Value:
        """An initialiser, or a Constant node; often the same one where equal arrays are asked for."""
        array = np.asarray(array, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key in self.shared and self.maybe(0.7):
            return self.shared[key]
        value = Value(self.name("w"), array, True)
        tensor = numpy_helper.from_array(array, value.name)
        if self.maybe(0.1) and not self.depth:
            self.nodes.append(
                helper.make_node("Constant", [], [value.name], name=f"n_{value.name}", value=tensor)
            )
        else:
            self.weights.append(tensor)
        self.by_name[value.name] = value
        if not self.depth:
            self.shared[key] = value
        return value

    def ints(self, *values: int) -> Value:
        return self.known(list(values), np.int64)

    def weights_of(self, *shape: int) -> Value:
        """Random weights of variance 1 / fan-in; sometimes those of another layer, sometimes dequantised ones."""
        of_shape = [
            v
            for v in self.by_name.values()
            if v.is_known and v.shape == shape and v.array.dtype == np.float32
        ]
        if of_shape and self.maybe(0.3):
            return self.one(of_shape)
        fan_in = max(1, int(np.prod(shape[1:])))
        if self.maybe(0.06) and self.opset >= 13 and len(shape) > 1:
            low = self.known(self.rng.integers(-127, 128, shape), np.int8)
            if self.maybe():
                scale, zero = (
                    self.known(self.rng.uniform(0.5, 1, shape[0]) / 127),
                    self.known([0] * shape[0], np.int8),
                )
                return self.add("DequantizeLinear", low, scale, zero, axis=0)
            return self.add(
                "DequantizeLinear", low, self.known(1 / 127 / fan_in**0.5), self.known(3, np.int8)
            )
        return self.known(self.floats(shape, fan_in**-0.5))

    def input(self, array: Array) -> Value:
        value = Value(self.name("x"), array)
        self.values.append(value)
        self.by_name[value.name] = value
        return value

    def pick(self, test: Callable[[Value], bool] = lambda _: True) -> Value:
        """A visible value of which `test` holds, more often a new one; raises RefusedError where there is none."""
        found = [v for v in self.values if test(v)]
        if not found:
            raise RefusedError("no such value")
        if self.maybe(0.65):
            return found[-1 - min(int(self.rng.geometric(0.7)) - 1, len(found) - 1)]
        return self.one(found)

    def real(self, *ranks: int) -> Value:
        """A value of f32, seldom of f64 or f16, of one of the ranks if they are given."""
        some = self.maybe(0.05)
        return self.pick(
            lambda v: (
                (v.array.dtype == np.float32 or (some and v.array.dtype.kind == "f"))
                and (not ranks or v.rank in ranks)
            )
        )

    def like(self, a: Value) -> Value:
        """Another value, or the same one, of the type of `a`."""
        return self.pick(lambda v: v.shape == a.shape and v.array.dtype == a.array.dtype)

    def partner(self, a: Value) -> Value:
        """What can be broadcast with `a`: a value, or constants of some of its dimensions."""
        how = self.below(6)
        if how < 3:
            return self.like(a)
        if how == 3:

            def fits(v: Value) -> bool:
                pairs = zip(reversed(a.shape), reversed(v.shape), strict=False)
                return v.array.dtype == a.array.dtype and all(m == n or 1 in (m, n) for m, n in pairs)

            return self.pick(fits)
        shape = [n if self.maybe() else 1 for n in a.shape][self.below(a.rank + 1) :]
        if a.array.dtype.kind == "f":
            return self.known(self.floats(shape), a.array.dtype)
        if a.array.dtype.kind == "b":
            return self.known(self.rng.integers(0, 2, shape), np.bool_)
        return self.known(self.rng.integers(1, 4, shape), a.array.dtype)

    # ---- Nodes

    def add(self, kind: str, *operands: Value | None, outputs: int = 1, **attributes: Any) -> Any:
        """A node's result, or list of results, which become visible; raises RefusedError, and then adds nothing."""
        stem = kind.lower()
        names = [self.name(stem) for _ in range(outputs)]
        node = helper.make_node(
            kind, [v.name if v else "" for v in operands], names, name=f"n_{names[0]}", **attributes
        )
        arrays = self.run(node)
        made = [Value(name, array) for name, array in zip(names, arrays, strict=True)]
        self.nodes.append(node)
        self.values += made
        self.by_name.update((v.name, v) for v in made)
        return made[0] if outputs == 1 else made

    def run(self, node: NodeProto) -> list[Array]:
        """The results of a node; raises RefusedError for one that is not to be used."""
        operands = [self.by_name[name] for name in dict.fromkeys(free_names([node])) if name in self.by_name]
        weights = [numpy_helper.from_array(v.array, v.name) for v in operands if v.is_known]
        graph = helper.make_graph(
            [node],
            "node",
            [v.info() for v in operands if not v.is_known],
            [helper.make_empty_tensor_value_info(name) for name in node.output],
            weights,
        )
        model = self.as_model(graph)
        inputs = {v.name: v.array for v in operands if not v.is_known}
        if node.op_type == "Div" and np.abs(operands[-1].array).min(initial=1) < 0.02:
            raise RefusedError("ill-conditioned")
        arrays = list(evaluate(model, inputs).values())
        for array in arrays:
            if array.size > MAX_ELEMENTS or array.ndim > 6:
                raise RefusedError("too large")
            if array.dtype.kind == "f" and array.size and not np.abs(array).max() < MAX_ABS:
                raise RefusedError("too large values, or not finite ones")
            if (
                array.dtype.kind == "i"
                and array.size
                and array.dtype.itemsize > 2
                and np.abs(array).max() > 1e6
            ):
                raise RefusedError("too large integers")
        for sign in (-1, 0, 1):
            others = evaluate(
                model, {name: disturbed(array, self.rng, sign) for name, array in inputs.items()}
            )
            for array, other in zip(arrays, others.values(), strict=True):
                if change(array, other) > MAX_GAIN * NOISE and array.dtype != np.float16:
                    raise RefusedError("ill-conditioned")
        return arrays

    def as_model(self, graph: GraphProto) -> ModelProto:
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    def axes(self, kind: str, x: Value, axes: Sequence[int], since: int = 13, **attributes: Any) -> Any:
        """A node whose axes are an operand from opset `since` on, and an attribute before."""
        if self.opset >= since:
            return self.add(kind, x, self.ints(*axes), **attributes)
        return self.add(kind, x, axes=list(axes), **attributes)

    def reshape(self, x: Value, *shape: int) -> Value:
        return self.add("Reshape", x, self.ints(*shape))

    def grow(self, count: int) -> None:
        """Tries `count` random steps, each of which adds no, one or several nodes."""
        for _ in range(count):
            with suppress(RefusedError):
                STEPS[int(self.rng.choice(len(STEPS), p=WEIGHTS))](self)

    def case(self, inputs: Sequence[Value]) -> Case:
        """The model, whose outputs are most of what is not used, and some of what is."""
        used = set(free_names(self.nodes))
        shares = [(v, 0.1 if v.name in used else 0.05 if v in inputs else 0.8) for v in self.values]
        outputs = [v for v, share in shares if self.maybe(share)] or [self.values[-1]]
        if self.maybe(0.05):
            outputs += [v for v in self.by_name.values() if v.is_known][:1]
        self.rng.shuffle(outputs)  # pyright: ignore[reportArgumentType]
        infos = [v.info() for v in outputs]
        graph = helper.make_graph(self.nodes, "net", [v.info() for v in inputs], infos, self.weights)
        return simplified(Case(self.as_model(graph), {v.name: v.array for v in inputs}))


def change(a: Array, b: Array) -> float:
    """The largest difference of two arrays, as a share of the largest element of `a`; infinite between integers."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if a.dtype.kind != "f":
        return 0.0 if np.array_equal(a, b) else float("inf")
    if not a.size or np.array_equal(a, b, equal_nan=True):
        return 0.0
    return float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-30))


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs that a node has as attributes."""
    return (a.g for a in node.attribute if a.HasField("g"))


def free_names(nodes: Iterable[NodeProto]) -> Iterator[str]:
    """The names that nodes use, in them and in their subgraphs, and that no subgraph defines."""
    for node in nodes:
        yield from (name for name in node.input if name)
        for graph in subgraphs(node):
            own = {i.name for i in graph.input} | {name for n in graph.node for name in n.output}
            yield from (name for name in free_names(graph.node) if name not in own)
            yield from (o.name for o in graph.output if o.name not in own)


def simplified(case: Case) -> Case:
    """The case without inputs and initialisers that nothing uses."""
    graph = case.model.graph
    used = {*free_names(graph.node), *(o.name for o in graph.output)}
    model = ModelProto()
    model.CopyFrom(case.model)
    del model.graph.input[:], model.graph.initializer[:]
    model.graph.input.extend(i for i in graph.input if i.name in used)
    model.graph.initializer.extend(w for w in graph.initializer if w.name in used)
    return Case(model, {i.name: case.inputs[i.name] for i in model.graph.input})


def random_case(seed: int) -> Case:
    """The case of a seed, always the same."""
    g = Generator(seed)
    inputs = list[Value]()
    for _ in range(int(g.rng.integers(1, 4))):
        kind = g.below(8)
        n = 1 if g.maybe(0.7) else 2
        if kind < 4:
            shape = (n, g.size(), g.one([*g.sizes, 8, 13]), g.one([*g.sizes, 8, 10]))
        elif kind < 6:
            shape = (n, g.size(), g.size())
        else:
            shape = tuple(g.size() for _ in range(g.below(3)))
        if g.maybe(0.02) and shape:
            shape = (0, *shape[1:]) if g.maybe() else (*shape[:-1], 0)
        dtype = g.one([np.float32] * 12 + [np.int64, np.int32, np.bool_, np.uint8, np.int8, np.float64])
        if np.dtype(dtype).kind == "f":
            inputs.append(g.input(g.floats(shape, dtype=dtype)))
        else:
            low, high = {"b": (0, 2), "u": (0, 256), "i": (-4, 5)}[np.dtype(dtype).kind]
            inputs.append(g.input(np.asarray(g.rng.integers(low, high, shape), dtype)))
    if not any(v.array.dtype == np.float32 for v in inputs):
        inputs.append(g.input(g.floats((g.size(), g.size()))))
    g.grow(int(g.rng.integers(3, g.one([12, 25, 25, 50]))))
    return g.case(inputs)


# ---- Steps: elementwise work

UNARY = (
    "Relu Sigmoid Tanh Exp Abs Neg LeakyRelu Elu Selu HardSigmoid HardSwish Softplus Softsign Erf Sin Cos Atan Asinh "
    "Identity Floor Ceil Round Sign Reciprocal Sqrt Log Celu ThresholdedRelu Clip Relu Relu Sigmoid Dropout Gelu Mish"
).split()
BINARY = "Add Add Add Add Mul Mul Mul Sub Sub Max Min Div Pow PRelu".split()
WHOLE_BINARY = "Add Sub Mul Max Min Div Mod BitwiseAnd BitwiseOr BitwiseXor".split()


def unary(g: Generator) -> Value:
    x = g.real()
    kind = g.one(UNARY)
    if kind == "Clip":
        low, high = sorted(float(v) for v in g.rng.standard_normal(2))
        bounds = g.known(low, x.array.dtype), g.known(high, x.array.dtype)
        return g.add("Clip", x, *g.one([bounds, (bounds[0], None), (None, bounds[1])]))
    return g.add(kind, x)


def chain(g: Generator) -> Value:
    x = g.real()
    for _ in range(g.below(5) + 1):
        x = g.add(g.one(UNARY[:16]), x) if g.maybe() else g.add(g.one(BINARY[:9]), *both(g, x))
    return x


def both(g: Generator, x: Value) -> list[Value]:
    """`x` and what it can be combined with, in any order."""
    pair = [x, g.partner(x)]
    return pair if g.maybe(0.7) else pair[::-1]


def binary(g: Generator) -> Value:
    return g.add(g.one(BINARY), *both(g, g.real()))


def itself(g: Generator) -> Value:
    x = g.real()
    return g.add(g.one(["Add", "Mul", "Sub", "Max"]), x, x)


def variadic(g: Generator) -> Value:
    x = g.real()
    return g.add(g.one(["Sum", "Mean", "Max", "Min"]), *(g.partner(x) for _ in range(g.below(4))), x)


def whole(g: Generator) -> Value:
    x = g.pick(lambda v: v.array.dtype.kind in "iu")
    if g.maybe(0.3):
        return g.add(g.one(["Abs", "Neg", "Sign", "BitwiseNot"]), x)
    return g.add(g.one(WHOLE_BINARY), *both(g, x))


def compare(g: Generator) -> Value:
    x = g.pick(lambda v: v.array.dtype.kind != "b")
    return g.add(g.one(["Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal"]), *both(g, x))


def logic(g: Generator) -> Value:
    x = g.pick(lambda v: v.array.dtype.kind == "b")
    return g.add("Not", x) if g.maybe(0.3) else g.add(g.one(["And", "Or", "Xor"]), *both(g, x))


def where(g: Generator) -> Value:
    c = g.pick(lambda v: v.array.dtype.kind == "b") if g.maybe(0.8) else compare(g)
    a = g.pick(lambda v: v.array.dtype.kind != "b" and v.shape == c.shape) if g.maybe(0.7) else g.real()
    return g.add("Where", c, *both(g, a))


def cast(g: Generator) -> Value:
    x, to = g.pick(), g.one("FLOAT FLOAT FLOAT INT64 INT32 INT8 UINT8 BOOL DOUBLE FLOAT16".split())
    if x.array.dtype.kind == "f" and "INT" in to and x.array.size:
        low, high = (0, 255) if to == "UINT8" else (-128, 127)
        if x.array.min() < low or x.array.max() > high:
            raise RefusedError("undefined")
    return g.add("Cast", x, to=TensorProto.DataType.Value(to))


# ---- Steps: images


def window(g: Generator, x: Value, *, is_conv: bool) -> dict[str, Any]:
    """Attributes of a window over the spatial dimensions of `x`."""
    n = x.rank - 2
    kernel = [min(g.one([1, 1, 2, 3, 3, 3, 5]), max(1, size + 1)) for size in x.shape[2:]]
    if g.maybe():
        kernel = kernel[:1] * n
    made: dict[str, Any] = {"kernel_shape": kernel}
    if g.maybe(0.4):
        made["strides"] = [g.one([1, 2, 2, 3]) for _ in kernel]
    if g.maybe(0.2) and (is_conv or g.opset >= 19):
        made["dilations"] = [g.one([1, 2, 3]) for _ in kernel]
    match g.below(5):
        case 0:
            made["auto_pad"] = g.one(["SAME_UPPER", "SAME_LOWER", "VALID"])
        case 1:
            made["pads"] = [g.below(k) for k in kernel + kernel]
        case 2 | 3:
            made["pads"] = [k // 2 for k in kernel + kernel]
        case _:
            pass
    return made


def conv(g: Generator, x: Value | None = None, width: int = 0, **attributes: Any) -> Value:
    x = x or g.real(4, 4, 4, 3, 5)
    channels = x.shape[1]
    if not channels:
        raise RefusedError("no channels")
    if not attributes:
        attributes = window(g, x, is_conv=True)
    group = g.one([1, 1, 1, channels, *(d for d in (2, 3, 4) if channels % d == 0)]) if not width else 1
    width = width or group * g.one([1, 2, 3, 4]) if group > 1 else width or g.one([*g.sizes, 8, 16])
    w = g.weights_of(width, channels // group, *attributes["kernel_shape"])
    bias = [g.known(g.floats([width]))] if g.maybe(0.6) else []
    return g.add("Conv", x, w, *bias, group=group, **attributes)


def same(k: int, rank: int = 4) -> dict[str, Any]:
    """Attributes of a window of `k` in each dimension that keeps the size."""
    return {"kernel_shape": [k] * (rank - 2), "pads": [k // 2] * (2 * (rank - 2))}


def conv_transpose(g: Generator) -> Value:
    x = g.real(4, 4, 3)
    attributes = window(g, x, is_conv=True)
    if "strides" in attributes and g.maybe(0.4):
        attributes["output_padding"] = [g.below(s) for s in attributes["strides"]]
    channels = x.shape[1]
    group = g.one([1, 1, channels, *(d for d in (2, 3) if channels % d == 0)])
    width = g.one([1, 2, 4])
    w = g.weights_of(channels, width, *attributes["kernel_shape"])
    bias = [g.known(g.floats([width * group]))] if g.maybe() else []
    return g.add("ConvTranspose", x, w, *bias, group=group, **attributes)


def pool(g: Generator) -> Value:
    x = g.real(4, 4, 4, 3, 5)
    attributes = window(g, x, is_conv=False)
    if g.maybe(0.3):
        attributes["ceil_mode"] = 1
    if g.maybe(0.6):
        if g.maybe(0.2):
            return g.add("MaxPool", x, outputs=2, **attributes)[g.below(2)]
        return g.add("MaxPool", x, **attributes)
    if g.maybe(0.2):
        attributes.pop("ceil_mode", None)
        return g.add("LpPool", x, p=g.one([1, 2]), **attributes)
    return g.add("AveragePool", x, count_include_pad=g.below(2), **attributes)


def global_pool(g: Generator) -> Value:
    return g.add(g.one(["GlobalAveragePool", "GlobalMaxPool"]), g.real(4, 3))


def batch_norm(g: Generator, x: Value | None = None) -> Value:
    x = x or g.real(4, 4, 3, 2)
    c = x.shape[1]
    parts = [g.known(g.floats([c])) for _ in range(3)]
    if g.maybe(0.2):
        parts[1] = parts[2]
    return g.add("BatchNormalization", x, *parts, g.known(g.rng.uniform(0.5, 1.5, c)))


def norm(g: Generator) -> Value:
    x = g.real(4, 3)
    c = x.shape[1]
    match g.below(5):
        case 0:
            return g.add(
                "InstanceNormalization", x, g.known(g.floats([c])), g.known(g.floats([c])), epsilon=0.01
            )
        case 1:
            return g.add("LRN", x, size=g.one([1, 3, 5]), alpha=0.1, bias=2.0)
        case 2 if g.opset >= 18:
            groups = g.one([d for d in (1, 2, 3, c) if c % max(1, d) == 0] or [1])
            n = groups if g.opset < 21 else c
            return g.add(
                "GroupNormalization",
                x,
                g.known(g.floats([n])),
                g.known(g.floats([n])),
                num_groups=groups,
                epsilon=0.01,
            )
        case 3:
            return g.add("LpNormalization", x, p=g.one([1, 2]), axis=g.below(x.rank))
        case _:
            return g.add("MeanVarianceNormalization", x, axes=g.one([[0, 2, 3], [2, 3], [1]]))


def resize(g: Generator) -> Value:
    x = g.real(4, 4, 3)
    mode = g.one(["nearest", "nearest", "linear", "cubic"])
    how = g.one(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
    attributes = {"mode": mode, "coordinate_transformation_mode": how}
    if mode == "nearest" and g.maybe():
        attributes["nearest_mode"] = g.one(["floor", "ceil", "round_prefer_ceil"])
    if g.maybe():
        # With corners aligned, ONNX's own tests and ONNX Runtime disagree on scales that give no whole sizes.
        choices = [1.0, 2.0, 3.0] if how == "align_corners" else [1.0, 2.0, 2.0, 0.5, 1.5, 3.0]
        scales = [1.0, 1.0] + [g.one(choices) for _ in x.shape[2:]]
        return g.add("Resize", x, None if g.opset >= 13 else g.known([]), g.known(scales), **attributes)
    sizes = g.ints(*x.shape[:2], *(g.one([n, 2 * n, n + 1, max(1, n // 2)]) for n in x.shape[2:]))
    empty = (None, None) if g.opset >= 13 else (g.known([]), g.known([]))
    return g.add("Resize", x, *empty, sizes, **attributes)


def residual(g: Generator) -> Value:
    x = g.real(4)
    c = x.shape[1]
    y = conv(g, x, g.one([c, 4, 8]), **same(g.one([1, 3])))
    if g.maybe(0.7):
        y = batch_norm(g, y)
    y = conv(g, g.add(g.one(UNARY[:14]), y), c, **same(g.one([1, 3])))
    if g.maybe():
        y = batch_norm(g, y)
    y = g.add("Add", *g.one([(x, y), (y, x)]))
    return g.add("Relu", y) if g.maybe(0.7) else y


def dense_block(g: Generator) -> Value:
    x = g.real(4)
    for _ in range(g.below(3) + 1):
        y = g.add("Relu", batch_norm(g, x)) if g.maybe() else x
        y = conv(g, y, g.one([2, 4, 5]), **same(3))
        parts = [x, y] if g.maybe(0.8) else [y, x, y]
        x = g.add("Concat", *parts, axis=1)
    return x


def inception(g: Generator) -> Value:
    x = g.real(4)
    parts = [conv(g, x, g.one([1, 2, 4]), **same(g.one([1, 3, 5]))) for _ in range(2)]
    if g.maybe():
        parts.append(g.add("MaxPool", x, **same(3)))
    if g.maybe(0.3):
        parts.append(x)
    if g.maybe(0.3):
        parts[0] = g.add("Relu", parts[0])
    return g.add("Concat", *parts, axis=g.one([1, 1, 1, -3]))


def straight(g: Generator) -> Value:
    """Layers that keep the shape, one after the other, so that each may take the place of the one before."""
    x = g.real(4, 4, 3, 2)
    for _ in range(g.below(5) + 2):
        match g.below(6) if x.rank == 4 else g.below(3) + 6:
            case 0:
                x = conv(g, x, x.shape[1], **same(3))
            case 1:
                x = g.add(g.one(["MaxPool", "AveragePool"]), x, **same(3))
            case 2:
                x = batch_norm(g, x)
            case 3 | 6:
                x = g.add("Softmax", x, axis=g.below(x.rank))
            case 7:
                x = g.add("MatMul", x, g.weights_of(x.shape[-1], x.shape[-1]))
            case 8:
                x = g.add("CumSum", x, g.known(g.below(x.rank), np.int64))
            case _:
                x = g.add(g.one(UNARY[:14]), x) if g.maybe() else g.add(g.one(BINARY[:9]), *both(g, x))
    return x


def squeeze_excite(g: Generator) -> Value:
    x = g.real(4)
    c = x.shape[1]
    y = g.add("GlobalAveragePool", x)
    y = g.add("Relu", conv(g, y, 3, **same(1)))
    return g.add("Mul", x, g.add("Sigmoid", conv(g, y, c, **same(1))))


# ---- Steps: movement


def permute(g: Generator) -> Value:
    x = g.pick(lambda v: v.rank > 1)
    return g.add("Transpose", x, perm=[int(i) for i in g.rng.permutation(x.rank)])


def split_shape(g: Generator, size: int) -> list[int]:
    """One to four factors of a number of elements."""
    found = list[int]()
    while size > 1 and len(found) < 3 and g.maybe(0.8):
        found.append(g.one([d for d in range(1, min(size, 40) + 1) if size % d == 0]))
        size //= found[-1]
    found.append(size)
    return [int(n) for n in g.rng.permutation(found)]


def reshape(g: Generator) -> Value:
    x = g.pick()
    match g.below(5):
        case 0:
            return g.add("Flatten", x, axis=g.below(x.rank + 1))
        case 1:
            kept = g.below(x.rank + 1)
            return g.reshape(x, *[0] * kept, -1)
        case 2:
            return computed_reshape(g, x)
        case _:
            return g.reshape(x, *split_shape(g, x.array.size))


def computed_reshape(g: Generator, x: Value) -> Value:
    """A shape that is put together from parts of another one."""
    shape = g.add("Shape", x)
    first = g.add("Gather", shape, g.known(g.below(x.rank), np.int64), axis=0)
    parts = [g.axes("Unsqueeze", first, [0]), g.ints(-1)]
    return g.add("Reshape", x, g.add("Concat", *(parts if g.maybe() else parts[::-1]), axis=0))


def squeeze(g: Generator) -> Value:
    x = g.pick()
    ones = [i for i, n in enumerate(x.shape) if n == 1]
    if ones and g.maybe():
        return g.axes("Squeeze", x, ones if g.maybe() else [g.one(ones)])
    return g.axes("Unsqueeze", x, sorted({g.below(x.rank + 1) for _ in range(g.below(2) + 1)}))


def expand(g: Generator) -> Value:
    x = g.pick()
    shape = [g.size() if n == 1 else n if g.maybe(0.8) else 1 for n in x.shape]
    if g.maybe(0.3):
        shape.insert(0, g.one([1, 2, 3]))
    if g.maybe(0.3):
        return g.add("Tile", x, g.ints(*(g.one([1, 1, 2]) for _ in x.shape)))
    return g.add("Expand", x, g.ints(*shape))


def concat(g: Generator) -> Value:
    x = g.pick(lambda v: v.rank > 0)
    axis = g.below(x.rank)

    def fits(v: Value) -> bool:
        equal = [m == n for m, n in zip(v.shape, x.shape, strict=False)]
        return v.array.dtype == x.array.dtype and v.rank == x.rank and all(equal[:axis] + equal[axis + 1 :])

    parts = [x, *(g.pick(fits) for _ in range(g.below(3)))]
    if g.maybe(0.15):
        shape = [*x.shape[:axis], g.one([1, 2]), *x.shape[axis + 1 :]]
        parts.append(g.known(g.rng.integers(0, 2, shape), x.array.dtype))
    return g.add(
        "Concat", *(parts[int(i)] for i in g.rng.permutation(len(parts))), axis=axis - g.one([0, x.rank])
    )


def split(g: Generator) -> Value:
    x = g.pick(lambda v: v.rank > 0 and max(v.shape) > 1)
    axis = g.one([i for i, n in enumerate(x.shape) if n > 1])
    cuts = sorted({int(g.rng.integers(1, x.shape[axis])) for _ in range(g.below(3) + 1)})
    sizes = [b - a for a, b in pairwise([0, *cuts, x.shape[axis]])]
    if g.opset >= 13:
        parts = g.add("Split", x, g.ints(*sizes), outputs=len(sizes), axis=axis)
    else:
        parts = g.add("Split", x, outputs=len(sizes), axis=axis, split=sizes)
    if g.maybe(0.3):
        order = [parts[int(i)] for i in g.rng.permutation(len(parts))]
        return g.add("Concat", *order, axis=axis)
    return g.one(parts)


def cut(g: Generator) -> Value:
    x = g.pick(lambda v: v.rank > 0)
    axes = sorted({g.below(x.rank) for _ in range(g.below(2) + 1)})
    starts, ends, steps = [], [], []
    for axis in axes:
        n = x.shape[axis]
        low, high = sorted(g.below(n + 1) for _ in range(2))
        step = g.one([1, 1, 1, 2, 3])
        if g.maybe(0.25):
            low, high, step = (high - 1, low - 1 - n if low else -n - 1, -step)
        elif g.maybe(0.2):
            high = 2**31
        starts.append(low)
        ends.append(high)
        steps.append(step)
    return g.add("Slice", x, g.ints(*starts), g.ints(*ends), g.ints(*axes), g.ints(*steps))


def pad(g: Generator) -> Value:
    x = g.pick(lambda v: v.rank > 0 and v.array.dtype.kind != "b")
    mode = g.one(["constant", "constant", "reflect", "edge", *(["wrap"] if g.opset >= 19 else [])])
    pads = [g.one([0, 0, 1, 2]) for _ in range(2 * x.rank)]
    if mode == "reflect":
        pads = [min(p, max(0, n - 1)) for p, n in zip(pads, x.shape * 2, strict=True)]
    value = [g.known(g.one([0, 1, 3]), x.array.dtype)] if mode == "constant" and g.maybe() else []
    return g.add("Pad", x, g.ints(*pads), *value, mode=mode)


def gather(g: Generator) -> Value:
    x = g.pick(lambda v: v.rank > 0 and v.array.size > 0)
    axis = g.below(x.rank)
    n = x.shape[axis]
    match g.below(4):
        case 0:
            indices = g.pick(lambda v: v.array.dtype.kind == "i" and v.array.dtype.itemsize > 2)
            return g.add("Gather", x, indices, axis=axis)
        case 1:
            shape = [g.one([m, max(1, m - 1)]) for m in x.shape]
            return g.add("GatherElements", x, g.known(g.rng.integers(-n, n, shape), np.int64), axis=axis)
        case 2:
            last = g.below(x.rank) + 1
            tuples = g.rng.integers(0, x.shape[:last], (2, 3, last))
            return g.add("GatherND", x, g.known(tuples, np.int64))
        case _:
            shape = g.one([(), (3,), (2, 2), (1,)])
            return g.add(
                "Gather", x, g.known(g.rng.integers(-n, n, shape), g.one([np.int64, np.int32])), axis=axis
            )


def blocks(g: Generator) -> Value:
    x = g.real(4)
    if x.shape[1] % 4 == 0 and g.maybe():
        return g.add("DepthToSpace", x, blocksize=2, mode=g.one(["DCR", "CRD"]))
    return g.add("SpaceToDepth", x, blocksize=2)


def shuffle(g: Generator) -> Value:
    x = g.real(4)
    n, c, h, w = x.shape
    groups = g.one([d for d in (2, 3, 4) if c % d == 0] or [1])
    y = g.add("Transpose", g.reshape(x, n, groups, c // groups, h, w), perm=[0, 2, 1, 3, 4])
    return g.reshape(y, n, c, h, w)


def generated(g: Generator) -> Value:
    """Values that depend on shapes at most, and on indices."""
    x = g.pick(lambda v: v.rank == 2)
    match g.below(4):
        case 0:
            return g.add("EyeLike", x, k=g.one([-1, 0, 1]))
        case 1 if g.opset >= 14:
            return g.add("Trilu", x, upper=g.below(2))
        case 2:
            n = x.shape[0]
            row = g.add("Range", *(g.known(i, x.array.dtype) for i in (0, n, 1)))
            return g.add("Mul", x, g.axes("Unsqueeze", row, [1]))
        case _:
            zero = numpy_helper.from_array(np.array([2], x.array.dtype))
            return g.add("Add", x, g.add("ConstantOfShape", g.add("Shape", x), value=zero))


# ---- Steps: reductions, products, sequences

REDUCTIONS = "Sum Sum Mean Mean Max Max Min Prod L1 L2 SumSquare LogSumExp LogSum".split()


def reduce(g: Generator) -> Value:
    x = g.real() if g.maybe(0.9) else g.pick(lambda v: v.array.dtype.kind == "i")
    kind = "Reduce" + g.one(REDUCTIONS)
    if not x.array.size and (kind == "ReduceMean" or ("Log" in kind and x.array.dtype.kind == "i")):
        raise RefusedError("undefined")
    keep = g.below(2)
    if g.maybe(0.15) or not x.rank:
        return g.add(kind, x, keepdims=keep)
    axes = sorted({g.below(x.rank) for _ in range(g.below(3) + 1)})
    if g.maybe(0.3):
        axes = [axis - x.rank for axis in axes]
    y = g.axes(kind, x, axes, since=13 if kind == "ReduceSum" else 18, keepdims=keep)
    return g.add(g.one(["Sub", "Mul"]), x, y) if keep and g.maybe() else y


def arg_reduce(g: Generator) -> Value:
    x = g.pick(lambda v: v.rank > 0 and v.array.dtype.kind in "fi")
    attributes = {"select_last_index": 1} if g.opset >= 12 and g.maybe() else {}
    return g.add(
        g.one(["ArgMax", "ArgMin"]),
        x,
        axis=g.below(x.rank) - g.one([0, x.rank]),
        keepdims=g.below(2),
        **attributes,
    )


def softmax(g: Generator) -> Value:
    x = g.pick(lambda v: v.rank > 0 and v.array.dtype == np.float32)
    kind = g.one(["Softmax", "Softmax", "Softmax", "LogSoftmax", "Hardmax"])
    return g.add(kind, x, axis=g.below(x.rank) - g.one([0, x.rank]))


def layer_norm(g: Generator) -> Value:
    x = g.pick(lambda v: v.rank > 0 and v.array.dtype == np.float32)
    axis = g.one([-1, -1, -1, *range(x.rank)])
    shape = x.shape[axis:]
    scale = g.known(g.floats(shape))
    bias = [g.known(g.floats(shape))] if g.maybe(0.7) else []
    if g.opset < 17:
        centred = g.add("Sub", x, g.add("ReduceMean", x, axes=[-1], keepdims=1))
        variance = g.add("ReduceMean", g.add("Mul", centred, centred), axes=[-1], keepdims=1)
        return g.add("Div", centred, g.add("Sqrt", g.add("Add", variance, g.known(1e-2))))
    return g.add("LayerNormalization", x, scale, *bias, axis=axis, epsilon=1e-2)


def cumulate(g: Generator) -> Value:
    x = g.real(1, 2, 3)
    return g.add("CumSum", x, g.known(g.below(x.rank), np.int64), exclusive=g.below(2), reverse=g.below(2))


def matmul(g: Generator) -> Value:
    x = g.real(2, 3, 4, 1)
    k = x.shape[-1]
    match g.below(5):
        case 0:
            return g.add(
                "MatMul", x, g.pick(lambda v: v.shape[-2:-1] == (k,) and v.array.dtype == x.array.dtype)
            )
        case 1:
            return g.add("MatMul", x, g.pick(lambda v: v.shape == (k,) and v.array.dtype == x.array.dtype))
        case 2 if x.rank > 1:
            y = g.like(x)
            perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
            return g.add("MatMul", x, g.add("Transpose", y, perm=perm))
        case 3:
            batch = g.one([(), (1,), (2,), (3, 1)])
            w = g.known(g.floats([*batch, k, g.size()], max(1, k) ** -0.5), x.array.dtype)
            return g.add("MatMul", x, w)
        case _:
            y = g.add("MatMul", x, g.known(g.floats([k, g.size()], max(1, k) ** -0.5), x.array.dtype))
            if g.maybe():
                y = g.add("Add", y, g.known(g.floats(y.shape[-1:]), x.array.dtype))
            return g.add(g.one(UNARY[:14]), y) if g.maybe() else y


def gemm(g: Generator) -> Value:
    x = g.real(2)
    flips = {"transA": g.below(2), "transB": g.below(2)}
    m, k = x.shape[::-1] if flips["transA"] else x.shape
    n = g.size()
    if g.maybe(0.8):
        w = g.weights_of(*((n, k) if flips["transB"] else (k, n)))
    else:
        w = g.pick(lambda v: v.rank == 2 and v.array.dtype == np.float32 and v.shape[flips["transB"]] == k)
        n = w.shape[1 - flips["transB"]]
    bias = []
    if g.maybe(0.7):
        shape = g.one([(n,), (1, n), (m, 1), (m, n), (1,), ()])
        bias = [g.known(g.floats(shape))] if g.maybe(0.8) else [g.pick(lambda v: v.shape == shape)]
    return g.add("Gemm", x, w, *bias, alpha=g.one([1.0, 1.0, 0.5]), beta=g.one([1.0, 1.0, 2.0]), **flips)


def attention(g: Generator) -> Value:
    x = g.real(3)
    n, t, d = x.shape
    heads = g.one([h for h in (1, 2, 4) if d % h == 0])
    q, k, v = (g.reshape(g.add("MatMul", x, g.weights_of(d, d)), n, t, heads, d // heads) for _ in range(3))
    q, v = (g.add("Transpose", y, perm=[0, 2, 1, 3]) for y in (q, v))
    scores = g.add("MatMul", q, g.add("Transpose", k, perm=[0, 2, 3, 1]))
    if g.maybe():
        scores = g.add("Mul", scores, g.known((d // heads) ** -0.5))
    if g.maybe():
        scores = g.add("Add", scores, g.known(np.triu(np.full((t, t), -1e4), 1)))
    y = g.add("Transpose", g.add("MatMul", g.add("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    y = g.reshape(y, n, t, d)
    return g.add("Add", y, x) if g.maybe() else y


def recurrent(g: Generator) -> Value:
    x = g.pick(lambda v: v.rank == 3 and v.array.dtype == np.float32 and 0 < v.array.size < 300)
    kind, gates = g.one([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    direction = g.one(["forward", "forward", "reverse", "bidirectional"])
    n = 2 if direction == "bidirectional" else 1
    steps, batch, width = x.shape
    if steps > 8:
        raise RefusedError("many steps")
    hidden = g.one([1, 3, 4])
    operands: list[Value | None] = [
        x,
        g.known(g.floats([n, gates * hidden, width], 0.4)),
        g.known(g.floats([n, gates * hidden, hidden], 0.4)),
    ]
    if g.maybe():
        operands.append(g.known(g.floats([n, 2 * gates * hidden])))
        if g.maybe():
            operands += [None, g.known(g.floats([n, batch, hidden]))]
    attributes = {"linear_before_reset": g.below(2)} if kind == "GRU" else {}
    outputs = 3 if kind == "LSTM" and g.maybe() else 2
    return g.add(kind, *operands, outputs=outputs, hidden_size=hidden, direction=direction, **attributes)[0]


# ---- Steps: quantisation


def quantised(g: Generator) -> Value:
    """Quantised and dequantised again, with something between or not."""
    x = g.pick(lambda v: v.array.dtype == np.float32)
    dtype = g.one([np.uint8, np.int8])
    zero = g.known(g.one([0, 3]) if dtype == np.int8 else g.one([128, 0]), dtype)
    scale = g.known(max(1e-3, float(np.abs(x.array).max(initial=0))) / 100)
    y = g.add("QuantizeLinear", x, scale, zero)
    if g.maybe(0.3) and y.rank:
        y = g.add("Transpose", y) if g.maybe() else g.add("Concat", y, y, axis=0)
    return g.add("DequantizeLinear", y, scale, zero) if g.maybe(0.8) else y


def integer_product(g: Generator) -> Value:
    x = g.pick(lambda v: v.array.dtype in (np.uint8, np.int8) and v.rank > 0)
    zero = g.known(g.one([0, 5]), x.array.dtype)
    if x.rank == 4 and x.array.dtype == np.uint8 and g.maybe(0.7):
        w = g.known(g.rng.integers(0, 60, (g.size(), x.shape[1], 3, 3)), np.uint8)
        return g.add("ConvInteger", x, w, zero, **same(3))
    w = g.known(g.rng.integers(-60, 60, (x.shape[-1], g.size())), np.int8)
    if x.array.dtype == np.uint8 and g.maybe():
        out = g.known(128, np.uint8)
        return g.add(
            "QLinearMatMul", x, g.known(0.02), zero, w, g.known(0.01), g.known(0, np.int8), g.known(0.37), out
        )
    return g.add("MatMulInteger", x, w, zero)


# ---- Steps: control flow


def subgraph(g: Generator, build: Callable[[], Sequence[Value]], inputs: Sequence[Value] = ()) -> GraphProto:
    """The graph of what `build` adds, which sees all values around it, and `inputs`."""
    around, visible = g.nodes, list(g.values)
    g.nodes, g.depth = [], g.depth + 1
    g.values += [v for v in inputs if v.array.dtype != np.bool_]
    try:
        # What a subgraph returns must be the result of one of its own nodes, each another one.
        made = [g.add("Identity", v) for v in build()]
        return helper.make_graph(
            g.nodes, g.name("graph"), [v.info() for v in inputs], [v.info() for v in made]
        )
    finally:
        g.nodes, g.values, g.depth = around, visible, g.depth - 1


def condition(g: Generator) -> Value:
    x = g.real()
    if not x.array.size:
        raise RefusedError("undefined")
    mean = g.add("ReduceMean", x, keepdims=0)
    bound = float(mean.array) + g.one([-0.3, 0.3])
    return g.add("Greater", mean, g.known(bound, x.array.dtype))


def branch(g: Generator) -> Value:
    if g.depth > 1:
        raise RefusedError("deep enough")
    x = g.real()
    test = condition(g)

    def build() -> list[Value]:
        g.grow(g.below(4))
        return [g.like(x) for _ in range(results)]

    results = g.below(2) + 1
    made = g.add("If", test, outputs=results, then_branch=subgraph(g, build), else_branch=subgraph(g, build))
    return made if results == 1 else made[0]


def loop(g: Generator) -> Value:
    if g.depth > 1:
        raise RefusedError("deep enough")
    carried = [g.real() for _ in range(g.below(3) + 1)]
    kept = g.maybe(0.5)
    inputs = [Value(g.name("i"), np.array(0, np.int64)), Value(g.name("c"), np.array(True))]
    inputs += [Value(g.name("in"), v.array) for v in carried]
    g.by_name.update((v.name, v) for v in inputs)

    def build() -> list[Value]:
        g.grow(g.below(4))
        results = [g.like(v) for v in carried]
        if g.maybe(0.3) and len(carried) > 1 and carried[0].shape == carried[1].shape:
            results[:2] = inputs[3], inputs[2]
        # Values that stay about as large.
        results = [g.add("Tanh", v) if g.maybe(0.7) else v for v in results]
        goes_on = inputs[1] if kept else g.add("Less", inputs[0], g.known(g.one([0, 1, 5]), np.int64))
        return [goes_on, *results]

    body = subgraph(g, build, inputs)
    if g.maybe(0.3):
        trips = g.known(g.one([0, 1, 3]), np.int64)
    else:
        total = g.add("ReduceSum", g.add("Cast", condition(g), to=TensorProto.INT64), keepdims=0)
        trips = g.add("Add", total, g.known(g.one([0, 1, 2]), np.int64))
    made = g.add("Loop", trips, None, *carried, outputs=len(carried), body=body)
    return made if len(carried) == 1 else made[0]


CHOICES: dict[Callable[[Generator], Value], float] = {
    unary: 4,
    chain: 4,
    binary: 4,
    itself: 2,
    variadic: 2,
    whole: 2,
    compare: 1,
    logic: 1,
    where: 1.5,
    cast: 2,
    conv: 6,
    conv_transpose: 1.5,
    pool: 4,
    global_pool: 1,
    batch_norm: 2,
    norm: 2,
    resize: 2,
    residual: 3,
    straight: 6,
    dense_block: 2,
    inception: 2,
    squeeze_excite: 1.5,
    permute: 4,
    reshape: 5,
    squeeze: 2,
    expand: 2,
    concat: 6,
    split: 4,
    cut: 5,
    pad: 3,
    gather: 4,
    blocks: 1,
    shuffle: 1,
    generated: 1,
    reduce: 4,
    arg_reduce: 1.5,
    softmax: 3,
    layer_norm: 2,
    cumulate: 1,
    matmul: 5,
    gemm: 2,
    attention: 2,
    recurrent: 1,
    quantised: 2,
    integer_product: 1,
    branch: 1.5,
    loop: 1.5,
}
"""Every step, and how often it is tried."""

STEPS = list(CHOICES)
WEIGHTS = np.array(list(CHOICES.values())) / sum(CHOICES.values())
