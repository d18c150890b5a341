"""Programs with nested If and Loop, as ONNX models: random ones, and those that try one thing."""

import numpy as np
from nets import Net
from onnx import GraphProto, ModelProto, TensorProto, helper

SHAPE = (4, 6)


class Program(Net):
    """Builds nested graphs; `values` are the names of tensors of `SHAPE` that are visible where nodes are added."""

    def __init__(self, seed: int = 0):
        super().__init__(seed)
        self.values = ["x", "y"]
        self.names = 0

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attributes: object):
        self.names += 1
        names = [f"{kind.lower()}_{self.names}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=f"node_{self.names}", **attributes))
        return names[0] if outputs == 1 else names

    def subgraph(self, build, carried: int = 0, is_loop: bool = False) -> GraphProto:
        """The graph of what `build` adds; it gets the names of its inputs and returns those of its outputs."""
        around, visible = self.nodes, list(self.values)
        self.nodes = []
        self.names += 1
        inputs, names = [], [f"in_{self.names}_{i}" for i in range(carried)]
        if is_loop:
            inputs = [
                helper.make_tensor_value_info(f"i_{self.names}", TensorProto.INT64, []),
                helper.make_tensor_value_info(f"c_{self.names}", TensorProto.BOOL, []),
            ]
        declared = [helper.make_tensor_value_info(n, TensorProto.FLOAT, SHAPE) for n in names]
        self.values += names
        made = build(*([inputs[0].name, inputs[1].name] if is_loop else []), *names)
        # What a subgraph returns must be the result of one of its own nodes, each another one.
        made = [self.op("Identity", name) for name in made]
        outputs = [helper.make_empty_tensor_value_info(n) for n in made]
        for value, is_condition in zip(outputs, [is_loop, *[False] * len(made)], strict=False):
            kind = TensorProto.BOOL if is_condition else TensorProto.FLOAT
            value.type.tensor_type.elem_type = kind
        graph = helper.make_graph(self.nodes, f"graph_{self.names}", [*inputs, *declared], outputs)
        self.nodes, self.values = around, visible
        return graph

    def branch(self, condition: str, then, otherwise, results: int = 1):
        graphs = {"then_branch": self.subgraph(then), "else_branch": self.subgraph(otherwise)}
        return self.op("If", condition, outputs=results, **graphs)

    def loop(self, trips: str, condition: str, carried: list[str], body, scans: int = 0):
        graph = self.subgraph(body, len(carried), is_loop=True)
        return self.op("Loop", trips, condition, *carried, outputs=len(carried) + scans, body=graph)

    # ---- Scalars

    def mean(self, value: str) -> str:
        return self.op("ReduceMean", value, axes=[0, 1], keepdims=0)

    def is_positive(self, value: str, bound: float = 0.0) -> str:
        return self.op("Greater", self.mean(value), self.const(bound))

    def some_trips(self, value: str, most: int = 3) -> str:
        """From 0 to `most`, as the data says."""
        share = self.op("Sigmoid", self.op("Mul", self.mean(value), self.const(8.0)))
        scaled = self.op("Mul", share, self.const(most + 0.99))
        return self.op("Cast", self.op("Floor", scaled), to=TensorProto.INT64)

    # ---- Random programs

    def pick(self) -> str:
        return self.values[int(self.rng.integers(len(self.values)))]

    def step(self) -> str:
        """One to four random nodes; the result joins `values`."""
        a, b = self.pick(), self.pick()
        match int(self.rng.integers(9)):
            case 0:
                made = self.op("Tanh", self.op("Add", a, b))
            case 1:
                made = self.op("Tanh", self.op("MatMul", a, self.random(6, 6)))
            case 2:
                made = self.op("Softmax", a, axis=int(self.rng.integers(2)))
            case 3:
                joined = self.op("Concat", a, b, axis=0)
                starts, ends = self.const([2], np.int64), self.const([6], np.int64)
                made = self.op("Slice", joined, starts, ends, self.const([0], np.int64))
            case 4:
                square = self.op("MatMul", a, self.op("Transpose", b, perm=[1, 0]))
                made = self.op("Tanh", self.op("MatMul", square, self.random(4, 6)))
            case 5:
                made = self.op("Relu", a)
            case 6:
                flat = self.op("Reshape", a, self.const([6, 4], np.int64))
                made = self.op("Transpose", flat, perm=[1, 0])
            case 7:
                left, right = self.op("Split", a, outputs=2, axis=1)
                made = self.op("Concat", right, left, axis=1)
            case _:
                made = self.op("Sub", self.op("Mul", a, self.const(0.5)), b)
        self.values.append(made)
        return made

    def steps(self, depth: int, count: int) -> str:
        """Random nodes and control flow, nested up to `depth`; the last result."""
        made = self.pick()
        for _ in range(count):
            kind = self.rng.random() if depth else 1.0
            if kind < 0.2:
                made = self.random_branch(depth - 1)
            elif kind < 0.4:
                made = self.random_loop(depth - 1)
            else:
                made = self.step()
        return made

    def random_branch(self, depth: int) -> str:
        results = int(self.rng.integers(1, 3))

        def build():
            made = [self.steps(depth, int(self.rng.integers(3)))]
            while len(made) < results:
                made.append(self.pick())
            return made

        made = self.branch(self.is_positive(self.pick()), build, build, results)
        made = [made] if results == 1 else made
        self.values += made
        return made[0]

    def random_loop(self, depth: int) -> str:
        carried = [self.pick() for _ in range(int(self.rng.integers(1, 4)))]

        def build(number, condition, *inputs):
            last = self.steps(depth, int(self.rng.integers(1, 4)))
            # New values, old ones, values that change places, and what the loop does not change.
            choices = [last, *inputs, *self.values]
            chosen = [choices[int(self.rng.integers(len(choices)))] for _ in inputs]
            goes_on = condition if self.rng.random() < 0.4 else self.is_positive(last, -0.3)
            return [goes_on, *chosen]

        trips = self.const(3, np.int64) if self.rng.random() < 0.2 else self.some_trips(self.pick())
        condition = "" if self.rng.random() < 0.3 else self.is_positive(self.pick(), -0.2)
        made = self.loop(trips, condition, carried, build)
        made = [made] if len(carried) == 1 else made
        self.values += made
        return made[0]

    def finish(self, outputs: list[str]) -> ModelProto:
        shape = self.const(SHAPE, np.int64)  # inference does not tell it of what loops carry
        outputs = [self.op("Reshape", name, shape) for name in outputs]
        return self.model({"x": SHAPE, "y": SHAPE}, outputs)


def random_program(seed: int) -> ModelProto:
    p = Program(seed)
    last = p.steps(2, 7)
    total = p.values[2]
    for value in p.values[3:]:
        total = p.op("Sub", p.op("Mul", total, p.const(0.5)), value)
    return p.finish([last, total])


def dies_in_one_branch() -> ModelProto:
    p = Program()
    big = p.op("Softmax", "x", axis=1)
    z = p.branch(
        p.is_positive("y"),
        lambda: [p.op("Relu", p.op("Softmax", big, axis=0))],
        lambda: [p.op("Tanh", p.op("Softmax", "y", axis=0))],
    )
    return p.finish([p.op("Add", z, "y")])


def yields_what_it_captures() -> ModelProto:
    p = Program()
    a, b = p.op("Softmax", "x", axis=1), p.op("Tanh", "y")
    one, two = p.branch(p.is_positive("x"), lambda: [a, a], lambda: [b, "y"], 2)
    return p.finish([p.op("Add", one, two), p.op("Mul", a, b)])


def changes_places() -> ModelProto:
    """Carried values that change places, stay, and become what the loop captures."""
    p = Program()
    outer = p.op("Tanh", "x")

    def body(number, condition, a, b, c, d):
        return [condition, b, p.op("Add", a, outer), c, outer]

    made = p.loop(p.some_trips("x"), "", ["x", "y", outer, "y"], body)
    return p.finish([*made])


def in_place() -> ModelProto:
    """A body that works in place, and captures a value that is read again in each iteration."""
    p = Program()
    outer = p.op("Softmax", "y", axis=0)

    def body(number, condition, a):
        b = p.op("Add", p.op("Relu", a), outer)
        return [p.op("Less", number, p.const(5, np.int64)), p.op("Mul", b, p.const(0.5))]

    return p.finish([p.loop(p.some_trips("x", 8), "", ["x"], body)])


def loops_in_loops() -> ModelProto:
    p = Program()

    def inner(number, condition, a):
        return [condition, p.op("Tanh", p.op("MatMul", a, p.random(6, 6)))]

    def body(number, condition, a, b):
        c = p.loop(p.some_trips(b), "", [a], inner)
        d = p.branch(p.is_positive(c), lambda: [p.op("Add", c, b)], lambda: [p.op("Relu", a)])
        return [condition, d, c]

    made = p.loop(p.some_trips("x", 5), p.is_positive("y", -9.0), ["x", "y"], body)
    return p.finish([*made])


def scans() -> ModelProto:
    """A number of iterations that is known, whose results are stacked."""
    p = Program()

    def body(number, condition, a):
        b = p.op("Mul", p.op("Add", a, "y"), p.op("Cast", number, to=TensorProto.FLOAT))
        return [p.op("Less", number, p.const(2, np.int64)), p.op("Tanh", b), p.op("Relu", b)]

    last, stacked = p.loop(p.const(7, np.int64), "", ["x"], body, scans=1)
    return p.finish([last, p.op("ReduceMax", stacked, axes=[0], keepdims=0)])


def images() -> ModelProto:
    """Convolutions inside and around control flow, whose weights and layouts are chosen there too."""
    p = Program()
    x = p.op("Reshape", "x", p.const([1, 1, 4, 6], np.int64))
    a = p.op("Relu", p.bn(p.conv(x, 1, 8), 8))

    def then():
        return [p.op("Relu", p.bn(p.conv(a, 8, 8), 8))]

    def body(number, condition, b):
        return [condition, p.op("Add", p.op("Tanh", p.conv(b, 8, 8)), a)]

    b = p.branch(p.is_positive("y"), then, lambda: [p.op("Sigmoid", a)])
    # The declared shape of a carried value is left to inference.
    loop = p.subgraph(body, 1, is_loop=True)
    loop.input[2].type.tensor_type.ClearField("shape")
    c = p.op("Loop", p.some_trips("x", 4), "", b, body=loop)
    return p.finish([p.op("Reshape", p.conv(c, 8, 1), p.const(SHAPE, np.int64))])


PROGRAMS = {
    f.__name__: f
    for f in (
        dies_in_one_branch,
        yields_what_it_captures,
        changes_places,
        in_place,
        loops_in_loops,
        scans,
        images,
    )
} | {f"random_{seed}": (lambda seed=seed: random_program(seed)) for seed in range(5)}


def inputs_of(seed: int) -> dict[str, np.ndarray]:
    """Inputs with which, over a few seeds, every condition goes both ways."""
    rng = np.random.default_rng(seed)
    return {name: (rng.standard_normal(SHAPE) + rng.uniform(-1, 1)).astype(np.float32) for name in ("x", "y")}
