"""RNN, GRU and LSTM, unrolled over time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from xdsl.dialects import math
from xdsl.dialects.builtin import TensorType
from xdsl.ir import SSAValue

from occamy_xdsl.dialects.dnn import MatmulOp, element_type_of, shape_of
from occamy_xdsl.operators.emitter import Emitter
from occamy_xdsl.operators.node import Node
from occamy_xdsl.operators.registry import operator
from occamy_xdsl.operators.scalars import Scalar

MAX_STEPS = 512
"""Time steps up to which a recurrence is unrolled."""

LIMITS = (
    f"more than {MAX_STEPS} steps; sequence_lens other than the full length; activation_alpha and _beta; "
    "activations other than Sigmoid, Tanh, Relu, HardSigmoid, Softsign, Softplus and Elu"
)

Activation = Callable[[Scalar], Scalar]

_ACTIVATIONS: dict[str, Activation] = {
    "sigmoid": Scalar.sigmoid,
    "tanh": Scalar.tanh,
    "relu": lambda x: x.maximum(0.0),
    "hardsigmoid": lambda x: (x * 0.2 + 0.5).maximum(0.0).minimum(1.0),
    "softsign": lambda x: x / (x.absolute() + 1.0),
    "softplus": Scalar.softplus,
    "elu": lambda x: (x > 0).select(x, x.unary(math.ExpM1Op)),
}


@dataclass(frozen=True)
class Cell:
    """
    One direction of a recurrence. Gates lie side by side in the rows of the weights, `hidden` rows each.

    `steps` holds W x + b for each step in order of time, (batch, gates * hidden); `recurrent` is R
    transposed, (hidden, gates * hidden).
    """

    emit: Emitter
    hidden: int
    steps: Sequence[SSAValue]
    recurrent: SSAValue
    recurrent_bias: SSAValue
    """(gates * hidden)."""
    activations: Sequence[Activation]
    peepholes: SSAValue | None
    """(3 * hidden), LSTM's i, o, f."""

    def gate(self, value: SSAValue, index: int, count: int = 1) -> SSAValue:
        """`count` gates from gate `index` on: a slice of the last dimension."""
        shape = shape_of(value)
        offsets, sizes = [0] * len(shape), list(shape)
        offsets[-1], sizes[-1] = index * self.hidden, count * self.hidden
        return self.emit.slice(value, offsets, sizes, [1] * len(shape))

    def product(self, h: SSAValue, weights: SSAValue, bias: SSAValue) -> SSAValue:
        """h * weights + bias."""
        result = TensorType(element_type_of(h), (shape_of(h)[0], shape_of(weights)[1]))
        return self.emit.add(MatmulOp(h, weights, bias, result))


State = tuple[SSAValue, ...]
Step = Callable[[Cell, SSAValue, State], State]
"""From W x + b of one step and the state (h, and c for LSTM) to the next state."""


def _recur(
    node: Node, emit: Emitter, gates: int, defaults: Sequence[str], step: Step, states: int
) -> list[SSAValue | None]:
    """Y, Y_h and, with two states, Y_c."""
    for index in range(3):
        node.require_rank(index, 3)
    value = emit.transpose(node[0], (1, 0, 2)) if node.attr("layout", 0) else node[0]
    hidden: int = node.attr("hidden_size") or node.shape(2)[-1]
    length, batch, width = shape_of(value)
    directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}.get(
        node.attr("direction")
    )
    if directions is None:
        node.reject(f"direction is {node.attr('direction')!r}")
    if node.shape(1) != (len(directions), gates * hidden, width) or node.shape(2) != (
        len(directions),
        gates * hidden,
        hidden,
    ):
        node.reject(
            f"weights {list(node.shape(1))} and {list(node.shape(2))} do not fit {len(directions)} directions, "
            f"{hidden} hidden and {width} input elements"
        )
    if length > MAX_STEPS:
        node.refuse(f"{length} steps; at most {MAX_STEPS} are unrolled")
    if node.has(4) and (node.known(4, "sequence_lens") != length).any():
        node.refuse("sequence_lens other than the full length")
    chosen = _activations(node, defaults, len(directions))
    outputs, finals = list[SSAValue](), list[State]()
    for d, reverse in enumerate(directions):
        state = tuple(_initial(node, emit, 5 + i, d, (batch, hidden)) for i in range(states))
        cell = _cell(node, emit, value, d, gates, hidden, chosen[d])
        per_step = list[SSAValue]()
        for projected in reversed(cell.steps) if reverse else cell.steps:
            state = step(cell, projected, state)
            per_step.append(state[0])
        per_step = per_step[::-1] if reverse else per_step
        if node.wants(0):
            rows = [emit.reshape(h, (1, 1, batch, hidden)) for h in per_step]
            none = (0, 1, batch, hidden)
            outputs.append(emit.concat(rows, 0) if rows else emit.fill(0.0, none, node.element()))
        finals.append(state)
    results: list[SSAValue | None] = [emit.concat(outputs, 1) if outputs else None]
    for i in range(states):
        parts = [emit.reshape(state[i], (1, batch, hidden)) for state in finals]
        results.append(emit.concat(parts, 0))
    if node.attr("layout", 0):
        orders = [(2, 0, 1, 3), *((1, 0, 2),) * states]
        results = [
            None if value is None else emit.transpose(value, order)
            for value, order in zip(results, orders, strict=True)
        ]
    return results


def _activations(node: Node, defaults: Sequence[str], directions: int) -> list[list[Activation]]:
    for name in ("activation_alpha", "activation_beta"):
        if node.attr(name):
            node.refuse(name)
    names = [name.lower() for name in node.attr("activations") or list(defaults) * directions]
    if len(names) < len(defaults) * directions:  # RNN's default names two, whatever the direction
        node.reject(f"needs {len(defaults) * directions} activations, got {names}")
    if unknown := [name for name in names if name not in _ACTIVATIONS]:
        node.refuse(f"activation {unknown[0]}")
    count = len(defaults)
    return [[_ACTIVATIONS[n] for n in names[d * count : (d + 1) * count]] for d in range(directions)]


def _initial(node: Node, emit: Emitter, index: int, direction: int, shape: tuple[int, int]) -> SSAValue:
    """The initial state of a direction, (batch, hidden); zeros where it is absent."""
    if not node.has(index):
        return emit.fill(0.0, shape, node.element())
    value = emit.transpose(node[index], (1, 0, 2)) if node.attr("layout", 0) else node[index]
    return _direction(emit, value, direction)


def _direction(emit: Emitter, value: SSAValue, direction: int) -> SSAValue:
    """Element `direction` of the first dimension, which disappears."""
    shape = shape_of(value)
    part = emit.slice(value, [direction] + [0] * (len(shape) - 1), (1, *shape[1:]), [1] * len(shape))
    return emit.reshape(part, shape[1:])


def _cell(
    node: Node,
    emit: Emitter,
    value: SSAValue,
    direction: int,
    gates: int,
    hidden: int,
    activations: Sequence[Activation],
) -> Cell:
    length, batch, width = shape_of(value)
    element, rows = node.element(), gates * hidden
    weights = emit.transpose(_direction(emit, node[1], direction), (1, 0))
    recurrent = emit.transpose(_direction(emit, node[2], direction), (1, 0))
    if node.has(3):
        both = _direction(emit, node[3], direction)
        bias, recurrent_bias = (emit.slice(both, [i * rows], [rows], [1]) for i in range(2))
    else:
        bias = recurrent_bias = emit.constant(np.zeros(rows), element)
    flat = emit.reshape(value, (length * batch, width))
    projected = emit.add(MatmulOp(flat, weights, bias, TensorType(element, (length * batch, rows))))
    steps = [emit.slice(projected, [t * batch, 0], [batch, rows], [1, 1]) for t in range(length)]
    peepholes = _direction(emit, node[7], direction) if node.has(7) else None
    return Cell(emit, hidden, steps, recurrent, recurrent_bias, activations, peepholes)


def _clipped(node: Node) -> Activation:
    clip = node.attr("clip")
    return (lambda x: x) if clip is None else (lambda x: x.maximum(-clip).minimum(clip))


def _rnn_step(bound: Activation, cell: Cell, x: SSAValue, state: State) -> State:
    (f,) = cell.activations
    bias = cell.emit.elementwise(lambda x, b: x + b, x, cell.recurrent_bias)
    total = cell.product(state[0], cell.recurrent, bias)
    return (cell.emit.elementwise(lambda s: f(bound(s)), total),)


@operator("RNN", since=7, limits=LIMITS)
def rnn(node: Node, emit: Emitter) -> Sequence[SSAValue | None]:
    return _recur(node, emit, 1, ["Tanh"], partial(_rnn_step, _clipped(node)), 1)


def _gru_step(bound: Activation, before_reset: bool, cell: Cell, x: SSAValue, state: State) -> State:
    f, g = cell.activations
    emit, (h,) = cell.emit, state
    gates = (cell.gate(cell.recurrent, 0, 2), cell.gate(cell.recurrent_bias, 0, 2))
    bias = emit.elementwise(lambda x, b: x + b, cell.gate(x, 0, 2), gates[1])
    zr = emit.elementwise(lambda s: f(bound(s)), cell.product(h, gates[0], bias))
    z, r = cell.gate(zr, 0), cell.gate(zr, 1)
    weights, bias = cell.gate(cell.recurrent, 2), cell.gate(cell.recurrent_bias, 2)
    if before_reset:
        inner = cell.product(h, weights, bias)
        new = emit.elementwise(lambda x, r, s: g(bound(x + r * s)), cell.gate(x, 2), r, inner)
    else:
        both = emit.elementwise(lambda x, b: x + b, cell.gate(x, 2), bias)
        reset = emit.elementwise(lambda r, h: r * h, r, h)
        new = emit.elementwise(lambda s: g(bound(s)), cell.product(reset, weights, both))
    return (emit.elementwise(lambda z, n, h: (1.0 - z) * n + z * h, z, new, h),)


@operator("GRU", since=7, limits=LIMITS)
def gru(node: Node, emit: Emitter) -> Sequence[SSAValue | None]:
    step = partial(_gru_step, _clipped(node), node.flag("linear_before_reset"))
    return _recur(node, emit, 3, ["Sigmoid", "Tanh"], step, 1)


def _lstm_step(bound: Activation, coupled: bool, cell: Cell, x: SSAValue, state: State) -> State:
    f, g, h = cell.activations
    emit, (hidden, memory) = cell.emit, state
    bias = emit.elementwise(lambda x, b: x + b, x, cell.recurrent_bias)
    total = cell.product(hidden, cell.recurrent, bias)
    i, o, fg, c = (cell.gate(total, index) for index in range(4))
    if cell.peepholes is not None:
        i, fg = (
            emit.elementwise(lambda s, p, m: s + p * m, s, cell.gate(cell.peepholes, index), memory)
            for s, index in ((i, 0), (fg, 2))
        )

    def remember(i: Scalar, fg: Scalar, c: Scalar, m: Scalar) -> Scalar:
        take = f(bound(i))
        keep = 1.0 - take if coupled else f(bound(fg))
        return keep * m + take * g(bound(c))

    new = emit.elementwise(remember, i, fg, c, memory)
    if cell.peepholes is not None:
        o = emit.elementwise(lambda s, p, m: s + p * m, o, cell.gate(cell.peepholes, 1), new)
    return emit.elementwise(lambda o, m: f(bound(o)) * h(m), o, new), new


@operator("LSTM", since=7, limits=LIMITS)
def lstm(node: Node, emit: Emitter) -> Sequence[SSAValue | None]:
    step = partial(_lstm_step, _clipped(node), node.flag("input_forget"))
    return _recur(node, emit, 4, ["Sigmoid", "Tanh", "Tanh"], step, 2)
