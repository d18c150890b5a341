"""Softmax and the normalisations."""

from collections.abc import Sequence
from math import prod

from xdsl.dialects.builtin import f32
from xdsl.ir import SSAValue

from occamy_xdsl.dialects.dnn import ArgReduceOp, LayerNormOp, LrnOp, SoftmaxOp, element_type_of, shape_of
from occamy_xdsl.operators.emitter import Emitter
from occamy_xdsl.operators.node import Node
from occamy_xdsl.operators.registry import Rule, operator
from occamy_xdsl.operators.scalars import Scalar

# ---- Softmax and its relatives


def _softmax(log: bool) -> Rule:
    def rule(node: Node, emit: Emitter) -> SSAValue:
        return emit.add(SoftmaxOp(node[0], node.axis(node.attr("axis"), node.rank()), log))

    return rule


def _flattened(node: Node) -> tuple[int, int]:
    """Operand 0 as a matrix: the dimensions before `axis`, and those from it on."""
    axis: int = node.attr("axis")
    axis = axis if axis == node.rank() else node.axis(axis, node.rank())
    return prod(node.shape()[:axis]), prod(node.shape()[axis:])


def _flat_softmax(log: bool) -> Rule:
    """Before opset 13 all dimensions from `axis` on are normalised together."""

    def rule(node: Node, emit: Emitter) -> SSAValue:
        flat = emit.reshape(node[0], _flattened(node))
        return emit.reshape(emit.add(SoftmaxOp(flat, 1, log)), node.shape())

    return rule


operator("Softmax")(_flat_softmax(log=False))
operator("Softmax", since=13)(_softmax(log=False))
operator("LogSoftmax")(_flat_softmax(log=True))
operator("LogSoftmax", since=13)(_softmax(log=True))


def _one_hot_of_maximum(emit: Emitter, value: SSAValue, axis: int) -> SSAValue:
    """1 at the first maximum along `axis`, else 0."""
    shape = shape_of(value)
    kept = [1 if d == axis else size for d, size in enumerate(shape)]
    first = emit.reshape(emit.add(ArgReduceOp(value, "max", axis, select_last=False)), kept)
    positions = emit.positions(shape[axis], axis, len(shape))
    element = element_type_of(value)
    return emit.elementwise(lambda a, b: (a == b).cast(element), emit.broadcast(first, shape), positions)


@operator("Hardmax")
def flat_hardmax(node: Node, emit: Emitter) -> SSAValue:
    flat = emit.reshape(node[0], _flattened(node))
    return emit.reshape(_one_hot_of_maximum(emit, flat, 1), node.shape())


@operator("Hardmax", since=13)
def hardmax(node: Node, emit: Emitter) -> SSAValue:
    return _one_hot_of_maximum(emit, node[0], node.axis(node.attr("axis"), node.rank()))


# ---- Batch normalisation


def _per_channel(emit: Emitter, value: SSAValue, rank: int) -> SSAValue:
    """A vector of one value a channel, shaped to broadcast against (N, C, ...)."""
    return emit.reshape(value, (*shape_of(value), *(1,) * (rank - 2)))


@operator("BatchNormalization", since=7, limits="training; outputs other than Y; spatial = 0")
def batch_normalization(node: Node, emit: Emitter) -> SSAValue:
    """x * scale + shift, with both computed once from the statistics."""
    if node.flag("training_mode"):
        node.refuse("training_mode")
    if not node.attr("spatial", 1):
        node.refuse("spatial = 0 (statistics for each element)")
    if any(node.wants(index) for index in range(1, 5)):
        node.refuse("outputs of the training mode")
    channels = node.shape()[1] if node.rank() > 1 else 1
    for index in range(1, 5):
        if node.shape(index) != (channels,):
            node.reject(f"operand {index} must have {channels} elements, got shape {list(node.shape(index))}")
    epsilon, element = node.attr("epsilon"), node.element()
    gamma, beta, mean, variance = (node[index] for index in range(1, 5))

    def scaling(gamma: Scalar, variance: Scalar) -> Scalar:
        return gamma.cast(variance.element) / (variance + epsilon).sqrt()

    def shifting(beta: Scalar, mean: Scalar, scale: Scalar) -> Scalar:
        return beta.cast(mean.element) - mean * scale

    scale = emit.elementwise(scaling, gamma, variance)
    shift = emit.elementwise(shifting, beta, mean, scale)
    scale, shift = (_per_channel(emit, emit.cast(v, element), max(node.rank(), 2)) for v in (scale, shift))
    result = emit.elementwise(lambda x, s, t: x * s + t, node[0], scale, shift)
    return emit.reshape(result, node.shape())


# ---- Normalisation over dimensions


def _moments(emit: Emitter, value: SSAValue, axes: Sequence[int]) -> tuple[SSAValue, SSAValue]:
    """`value` minus its mean over `axes`, and its variance there; reduced dimensions have size 1."""
    mean = emit.reduce(value, "mean", axes, keep=True)
    centred = emit.elementwise(lambda x, m: x - m, value, mean)
    squares = emit.elementwise(lambda x: x * x, centred)
    return centred, emit.reduce(squares, "mean", axes, keep=True)


def _group_normalized(node: Node, emit: Emitter, groups: int, scale: SSAValue, bias: SSAValue) -> SSAValue:
    """Normalises each of `groups` groups of channels, then scales and shifts by (C, 1, ...) or (C)."""
    shape, element = node.require_rank(0, 2, or_more=True), node.element()
    if groups < 1 or shape[1] % groups:
        node.reject(f"cannot split shape {list(shape)} into {groups} groups of channels")
    flat = emit.reshape(node[0], (shape[0], groups, prod(shape[1:]) // groups))
    stash = f32 if node.attr("stash_type", 0) == 1 else element
    normal = emit.add(LayerNormOp(emit.cast(flat, stash), None, None, 2, node.attr("epsilon")))
    normal = emit.cast(emit.reshape(normal, shape), element)
    scale, bias = (_per_channel(emit, v, len(shape)) for v in (scale, bias))
    return emit.elementwise(lambda x, s, b: x * s + b, normal, scale, bias)


@operator("InstanceNormalization", since=6)
def instance_normalization(node: Node, emit: Emitter) -> SSAValue:
    return _group_normalized(node, emit, node.require_rank(0, 2, or_more=True)[1], node[1], node[2])


@operator("GroupNormalization", since=18)
def group_normalization_by_groups(node: Node, emit: Emitter) -> SSAValue:
    """In opset 18 to 20 scale and bias have one element a group."""
    groups: int = node.attr("num_groups")
    channels = node.require_rank(0, 2, or_more=True)[1]
    scale, bias = (_repeat(node, emit, node[i], groups, channels) for i in (1, 2))
    return _group_normalized(node, emit, groups, scale, bias)


def _repeat(node: Node, emit: Emitter, value: SSAValue, groups: int, channels: int) -> SSAValue:
    if shape_of(value) != (groups,) or channels % groups:
        node.reject(f"scale and bias must have {groups} elements, got shape {list(shape_of(value))}")
    wide = emit.broadcast(emit.reshape(value, (groups, 1)), (groups, channels // groups))
    return emit.reshape(wide, (channels,))


@operator("GroupNormalization", since=21)
def group_normalization(node: Node, emit: Emitter) -> SSAValue:
    return _group_normalized(node, emit, node.attr("num_groups"), node[1], node[2])


@operator("LayerNormalization", since=17)
def layer_normalization(node: Node, emit: Emitter) -> Sequence[SSAValue | None]:
    shape, element = node.shape(), node.element()
    axis = node.axis(node.attr("axis"), len(shape))
    stash = f32 if node.attr("stash_type") == 1 else element
    value, scale, bias = node[0], node[1], node.optional(2)
    if node.wants(1) or node.wants(2):
        return _layer_normalization_with_moments(node, emit, axis)
    if stash == element:
        return (emit.add(LayerNormOp(value, scale, bias, axis, node.attr("epsilon"))),)
    normal = emit.add(LayerNormOp(emit.cast(value, stash), None, None, axis, node.attr("epsilon")))
    result = emit.elementwise(lambda x, s: x.cast(element) * s, normal, scale)
    return (result if bias is None else emit.elementwise(lambda x, b: x + b, result, bias),)


def _layer_normalization_with_moments(node: Node, emit: Emitter, axis: int) -> Sequence[SSAValue | None]:
    element, epsilon = node.element(), node.attr("epsilon")
    stash = f32 if node.attr("stash_type") == 1 else element
    axes = list(range(axis, node.rank()))
    value = emit.cast(node[0], stash)
    mean = emit.reduce(value, "mean", axes, keep=True)
    _, variance = _moments(emit, value, axes)
    inverse = emit.elementwise(lambda v: 1.0 / (v + epsilon).sqrt(), variance)
    result = emit.elementwise(
        lambda x, m, d, s: ((x - m) * d).cast(element) * s, value, mean, inverse, node[1]
    )
    if node.has(2):
        result = emit.elementwise(lambda x, b: x + b, result, node[2])
    return result, mean, inverse


@operator("RMSNormalization", since=23)
def rms_normalization(node: Node, emit: Emitter) -> SSAValue:
    element, epsilon = node.element(), node.attr("epsilon")
    stash = f32 if node.attr("stash_type") == 1 else element
    axes = list(range(node.axis(node.attr("axis"), node.rank()), node.rank()))
    value = emit.cast(node[0], stash)
    squares = emit.reduce(emit.elementwise(lambda x: x * x, value), "mean", axes, keep=True)
    return emit.elementwise(
        lambda x, q, s: (x / (q + epsilon).sqrt()).cast(s.element) * s, value, squares, node[1]
    )


@operator("MeanVarianceNormalization", since=9)
def mean_variance_normalization(node: Node, emit: Emitter) -> SSAValue:
    """The epsilon of ONNX's function body, 1e-9, is added to the deviation."""
    centred, variance = _moments(emit, node[0], node.axes(tuple(node.attr("axes")), node.rank()))
    return emit.elementwise(lambda x, v: x / (v.sqrt() + 1e-9), centred, variance)


@operator("LpNormalization", limits="p other than 1 and 2")
def lp_normalization(node: Node, emit: Emitter) -> SSAValue:
    """Where the norm is 0 the result is 0."""
    power: int = node.attr("p")
    if power not in (1, 2):
        node.refuse(f"p = {power}; supported are 1 and 2")
    norm = emit.reduce(node[0], f"l{power}", [node.axis(node.attr("axis"), node.rank())], keep=True)
    return emit.elementwise(lambda x, n: (n == 0).select(x.like(0), x / n), node[0], norm)


@operator("LRN")
def lrn(node: Node, emit: Emitter) -> SSAValue:
    return emit.add(
        LrnOp(
            node[0],
            size=node.attr("size"),
            alpha=node.attr("alpha"),
            beta=node.attr("beta"),
            bias=node.attr("bias"),
        )
    )
