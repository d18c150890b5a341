"""`dnn-fuse-layers`: scalar work and joins move into neighbouring layers; affine constants into weights."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, FloatAttr, ModuleOp, TensorType
from xdsl.ir import Attribute, Block, BlockArgument, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from occamy_xdsl.analysis.regions import blocks_of
from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.dnn.geometry import is_channel_vector, unreshaped_vector
from occamy_xdsl.dialects.weights import Weights, dense_or_ref, numpy_dtype

Array = NDArray[Any]


@dataclass(frozen=True)
class DnnFuseLayersPass(ModulePass):
    """
    Fuses layers so that fewer tensors have to be kept.

    Five rewrites, until none applies:

    - an elementwise op whose only user is another elementwise op of the same shape joins it;
    - an elementwise op that uses the only result of a convolution, transposed convolution, pooling or matrix
      product becomes (part of) that op's epilogue; its other operands, such as a residual, become `extras`;
    - an elementwise op on one tensor that reshapes and transpositions make of such an op's result moves in front
      of them, to become its epilogue, where its constants vary along one dimension there at most;
    - multiplications and additions by constants of one value a channel at the start of a convolution's
      epilogue (batch normalisation, bias) are computed into its filter and bias;
    - constant padding by 0 of spatial dimensions alone becomes part of a convolution's own padding.

    Then four more, for what is left:

    - a concatenation of many tensors that starts with those of another one takes that one's result instead;
    - cheap elementwise work on one tensor, with constants of one value a channel, moves into the prologues of
      the convolutions that alone use its result. Only where the tensor is needed beside the result, because it
      has other users or belongs to the caller: otherwise the work is done in place;
    - a concatenation of few tensors along the channels that only convolutions use is left to them: they read
      the tensors as `joined` inputs;
    - a channel shuffle in front of a depthwise convolution moves behind it, where there are not more elements:
      the filter and the bias are shuffled back instead.

    None of these can make the peak of live bytes higher: what they keep alive for longer takes the place of
    something that is as large and as long alive.

    Work stays in its block: nothing moves into a branch, or into the body of a loop, which would repeat it.

    Requires: value form.
    Ensures: the same results up to rounding. A result that is returned, or that has other users than those
    that it is fused into, is never fused away.

    Before:

    ```mlir
    %0 = dnn.conv input(%x : ..) filter(%w : ..) {..} -> tensor<1x4x8x8xf32>
    %1 = dnn.elementwise ins(%0, %r : ..) -> tensor<1x4x8x8xf32> body {
    ^bb0(%a : f32, %b : f32):
      %s = arith.addf %a, %b : f32
      dnn.yield %s : f32
    }
    ```

    After:

    ```mlir
    %1 = dnn.conv input(%x : ..) filter(%w : ..) extras(%r : ..) {..} -> tensor<1x4x8x8xf32> epilogue {
    ^bb0(%a : f32, %b : f32):
      %s = arith.addf %a, %b : f32
      dnn.yield %s : f32
    }
    ```

    Source: the paper's layer fusion.
    """

    name = "dnn-fuse-layers"

    inputs: bool = True
    """Whether convolutions may get prologues and joined inputs, which not every target has kernels for."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in dnn.functions_in("value", op, self.name):
            for block in blocks_of(function.body.block):
                fuse_block(block, inputs=self.inputs)


def fuse_block(block: Block, *, inputs: bool) -> None:
    """
    Applies the rewrites to one block of value form: the first five in program order until nothing changes,
    then each of the others once. `inputs` is the option of the pass.
    """
    share_prefixes(block)  # at once, since each use of a value in a long list takes long to replace
    changed = True
    while changed:
        changed = False
        for op in list(block.ops):
            if op.parent is None:
                continue
            if isinstance(op, dnn.ElementwiseOp):
                # The producer first: a batch normalisation belongs to its own convolution, not to a sum after it.
                changed |= fuse_into_producer(op) or fuse_into_consumer(op) or hoist(op)
            elif isinstance(op, dnn.PadOp):
                changed |= fold_padding(op)
    for op in list(block.ops):
        if isinstance(op, dnn.ConvOp | dnn.ConvTransposeOp | dnn.MatmulOp):
            current: FoldsAffine | None = op
            while current is not None:
                current = fold_affine(current)
    share_prefixes(block)
    for kind, rewrite, enabled in (
        (dnn.ElementwiseOp, fuse_into_convolutions, inputs),
        (dnn.ConcatOp, leave_to_convolutions, inputs),
        (dnn.ConvOp, sink_shuffle, True),
    ):
        for op in list(block.ops):
            if isinstance(op, kind) and enabled:
                rewrite(cast(Any, op))


def block_of(value: SSAValue) -> Block | None:
    """The block that defines a value."""
    return value.owner if isinstance(value.owner, Block) else value.owner.parent


def single_user(value: SSAValue) -> Operation | None:
    """The one op that uses `value`, however often; None where there are more or none, or it is in another block."""
    users = {use.operation for use in value.uses}
    user = users.pop() if len(users) == 1 else None
    return user if user is not None and user.parent is block_of(value) else None


def clone_body(block: Block, into: Block, arguments: Sequence[SSAValue]) -> list[SSAValue]:
    """Appends clones of a region's ops to `into` with its arguments replaced; returns what it yields."""
    mapping: dict[SSAValue, SSAValue] = dict(zip(block.args, arguments, strict=True))
    for op in block.ops:
        if isinstance(op, dnn.YieldOp):
            return [mapping[v] for v in op.values]
        into.add_op(op.clone(value_mapper=mapping))
    raise AssertionError("a fused region ends in dnn.yield")


def fuse_into_consumer(op: dnn.ElementwiseOp) -> bool:
    """Merges `op` into the elementwise op that is its only user."""
    user = single_user(op.results[0])
    if not isinstance(user, dnn.ElementwiseOp) or op.results[0].type != user.results[0].type:
        return False
    operands = list[SSAValue]()
    for value in (*op.ins, *(v for v in user.ins if v is not op.results[0])):
        if value not in operands:
            operands.append(value)
    block = Block(arg_types=[dnn.signless(dnn.element_type_of(v)) for v in operands])
    argument = dict(zip(operands, block.args, strict=True))
    (inner,) = clone_body(op.body.block, block, [argument[v] for v in op.ins])
    outer = [inner if v is op.results[0] else argument[v] for v in user.ins]
    block.add_op(dnn.YieldOp(*clone_body(user.body.block, block, outer)))
    merged = dnn.ElementwiseOp(operands, user.results[0].type, Region(block))
    merged.location = user.location
    replace(user, merged)
    Rewriter.erase_op(op)
    return True


def replace(op: Operation, new: Operation) -> None:
    """Puts `new` in the place of `op`, whose results it takes over."""
    assert op.parent is not None
    op.parent.insert_op_before(new, op)
    for old, value in zip(op.results, new.results, strict=True):
        value.name_hint = old.name_hint
        old.replace_all_uses_with(value)
    Rewriter.erase_op(op)


def fuse_into_producer(op: dnn.ElementwiseOp) -> bool:
    """Makes `op` the epilogue of the op that computes one of its operands, the latest where several could."""
    candidates = [
        value.owner
        for value in dict.fromkeys(op.ins)
        if isinstance(value.owner, dnn.FusableOp)
        and len(value.owner.results) == 1
        and single_user(value) is op
        and dnn.shape_of(value) == dnn.shape_of(op.results[0])
        # Kernels keep their sums in the type of what they store.
        and dnn.element_type_of(value) == dnn.element_type_of(op.results[0])
    ]
    if not candidates:
        return False
    producer = candidates[0]
    for other in candidates[1:]:
        if producer.is_before_in_block(other):
            producer = other
    result = producer.results[0]
    extras = list(producer.extras)
    extras += [v for v in dict.fromkeys(op.ins) if v is not result and v not in extras]
    block = Block(
        arg_types=[
            dnn.signless(producer.accumulated_type),
            *(dnn.signless(dnn.element_type_of(v)) for v in extras),
        ]
    )
    argument = dict(zip(extras, block.args[1:], strict=True))
    element: SSAValue = block.args[0]
    if producer.epilogue is not None:
        own = [argument[v] for v in producer.extras]
        (element,) = clone_body(producer.epilogue.block, block, [element, *own])
    elif element.type != dnn.signless(dnn.element_type_of(result)):
        return False
    outer = [element if v is result else argument[v] for v in op.ins]
    block.add_op(dnn.YieldOp(*clone_body(op.body.block, block, outer)))
    fused = producer.rebuilt(
        groups={"extras": extras}, results=[op.results[0].type], regions={"epilogue": Region(block)}
    )
    # The fused op stands where the elementwise op stood: there all its operands are defined.
    replace(op, fused)
    Rewriter.erase_op(producer)
    return True


def constant_of(value: SSAValue) -> dnn.ConstantOp | None:
    """The constant op that defines `value`, if one does."""
    return value.owner if isinstance(value.owner, dnn.ConstantOp) else None


def constant_before(op: Operation, weights: Weights, like: SSAValue | Attribute) -> SSAValue:
    """A new constant in front of `op` with the element type of `like`."""
    assert op.parent is not None
    type = TensorType(dnn.element_type_of(like), weights.shape)
    constant = dnn.ConstantOp(dense_or_ref(weights, weights.key), type)
    constant.location = op.location
    op.parent.insert_op_before(constant, op)
    return constant.output


def hoist(op: dnn.ElementwiseOp) -> bool:
    """Moves `op` in front of the reshapes and transpositions that make its one tensor of a layer's result."""
    tensors = {value for value in op.ins if constant_of(value) is None}
    shape = dnn.shape_of(op.results[0])
    if len(tensors) != 1 or 0 in shape:
        return False
    (tensor,) = tensors
    steps, value, user = list[Rearrangement](), tensor, cast(Operation, op)
    while single_user(value) is user and isinstance(value.owner, dnn.ReshapeOp | dnn.TransposeOp):
        user = value.owner
        steps.append(user)
        value = user.input
    if (
        not steps
        or single_user(value) is not user
        or not isinstance(value.owner, dnn.FusableOp)
        or tensor.type != op.results[0].type
    ):
        return False
    constants = {
        v: rearranged_back(constant.weights, shape, steps)
        for v in dict.fromkeys(op.ins)
        if (constant := constant_of(v)) is not None
    }
    if any(weights is None for weights in constants.values()):
        return False
    ins = [value if v is tensor else constant_before(user, cast(Weights, constants[v]), v) for v in op.ins]
    block = Block(arg_types=[argument.type for argument in op.body.block.args])
    block.add_op(dnn.YieldOp(*clone_body(op.body.block, block, block.args)))
    moved = dnn.ElementwiseOp(ins, cast(Any, value.type), Region(block))
    moved.location = op.location
    moved.results[0].name_hint = op.results[0].name_hint
    assert user.parent is not None
    user.parent.insert_op_before(moved, user)
    user.operands[0] = moved.results[0]
    op.results[0].replace_all_uses_with(tensor)
    Rewriter.erase_op(op)
    return True


Rearrangement: TypeAlias = dnn.ReshapeOp | dnn.TransposeOp


def rearranged_back(weights: Weights, shape: Sequence[int], steps: Sequence[Rearrangement]) -> Weights | None:
    """
    What broadcasts to the operand of the last of `steps` as `weights` do to the result of the first, of `shape`.

    None where that varies along more than one dimension.
    """
    part = (1,) * (len(shape) - len(weights.shape)) + weights.shape
    moves: list[Callable[[Array], Array]] = [lambda array, to=part: array.reshape(to)]
    label = "back"
    for step in steps:
        if isinstance(step, dnn.TransposeOp):
            back = [dnn.ints(step.permutation).index(d) for d in range(len(part))]
            part = tuple(part[d] for d in back)
            moves.append(lambda array, to=back: array.transpose(to))
            label += f"-t{'x'.join(map(str, back))}"
        else:
            have, source = dnn.shape_of(step.results[0]), dnn.shape_of(step.input)
            middle, part = unreshaped_vector(part, have, source)
            moves.append(lambda array, via=middle, to=part: np.broadcast_to(array, via).reshape(to))
            label += f"-r{'x'.join(map(str, middle))}"
    if sum(size != 1 for size in part) > 1:
        return None

    def move(array: Array) -> Array:
        for one in moves:
            array = one(array)
        return array

    return Weights.derived(label, move, weights, dtype=weights.dtype, shape=part)


FoldsAffine: TypeAlias = dnn.ConvOp | dnn.ConvTransposeOp | dnn.MatmulOp


def fold_affine(op: FoldsAffine) -> FoldsAffine | None:
    """
    Computes the first op of the epilogue into filter and bias where it adds, subtracts, multiplies or divides
    by a constant of one value an output channel (a convolution's dimension 1, a matrix product's last).

    Returns the op that takes the place of `op`; None where nothing folds.
    """
    shape = dnn.shape_of(op.results[0])
    channel = len(shape) - 1 if isinstance(op, dnn.MatmulOp) else 1
    channels = shape[channel]
    filter = op.b if isinstance(op, dnn.MatmulOp) else op.filter
    filter_constant = constant_of(filter)
    if op.epilogue is None or filter_constant is None or not isinstance(op.accumulated_type, AnyFloat):
        return None
    if not isinstance(dnn.element_type_of(filter), AnyFloat):
        return None
    if op.bias is not None and (constant_of(op.bias) is None or dnn.shape_of(op.bias)[-1:] != (channels,)):
        return None
    if isinstance(op, dnn.MatmulOp) and len(dnn.shape_of(filter)) != 2:
        return None
    block = op.epilogue.block
    first = single_user(block.args[0])
    if not isinstance(first, arith.AddfOp | arith.SubfOp | arith.MulfOp | arith.DivfOp):
        return None
    lhs, rhs = first.operands
    if lhs is rhs or (rhs is block.args[0] and isinstance(first, arith.SubfOp | arith.DivfOp)):
        return None
    value = _channel_constant(op, rhs if lhs is block.args[0] else lhs, channel, channels)
    if value is None:
        return None
    kind = first.name.removeprefix("arith.").removesuffix("f")
    bias = _fold_bias(op, kind, value, channels)
    folded_filter = filter
    if kind in ("mul", "div"):
        folded_filter = constant_before(op, _fold_filter(op, filter_constant, kind, value, channels), filter)
    rest = Block(arg_types=[a.type for a in block.args])
    mapping: dict[SSAValue, SSAValue] = dict(zip(block.args, rest.args, strict=True))
    mapping[first.results[0]] = rest.args[0]
    for inner in block.ops:
        if inner is not first:
            rest.add_op(inner.clone(value_mapper=mapping))
    extras = list(op.extras)
    for argument in reversed(rest.args[1:]):
        if argument.first_use is None:
            del extras[argument.index - 1]
            rest.erase_arg(argument)
    is_identity = isinstance(last := rest.first_op, dnn.YieldOp) and last.values[0] is rest.args[0]
    groups = {
        "b" if isinstance(op, dnn.MatmulOp) else "filter": [folded_filter],
        "bias": [] if bias is None else [bias],
        "extras": extras,
    }
    folded = op.rebuilt(groups=groups, regions={"epilogue": None if is_identity else Region(rest)})
    replace(op, folded)
    return cast(FoldsAffine, folded)


def _channel_constant(op: FoldsAffine, value: SSAValue, channel: int, channels: int) -> Weights | None:
    """The constant behind an epilogue's value, if it has one element a channel or one in all."""
    if isinstance(value.owner, arith.ConstantOp):
        number = cast(FloatAttr[AnyFloat], value.owner.value).value.data
        return Weights.splat(number, numpy_dtype(value.type), (1,))
    if not isinstance(value, BlockArgument):
        return None
    extra = op.extras[value.index - 1]
    constant = constant_of(extra)
    rank = len(dnn.shape_of(op.results[0]))
    if constant is None or not is_channel_vector(dnn.shape_of(extra), rank, channel, channels):
        return None
    return constant.weights


_NUMPY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
}


def _fold_bias(op: FoldsAffine, kind: str, value: Weights, channels: int) -> SSAValue | None:
    """The bias after the folded op; None where there is still none."""
    if op.bias is None and kind in ("mul", "div"):
        return None

    def fold(*arrays: Array) -> Array:
        *bias, other = arrays
        start = bias[0].reshape(-1) if bias else np.zeros(channels, other.dtype)
        return _NUMPY[kind](start, np.broadcast_to(other.reshape(-1), (channels,)))

    constant = constant_of(op.bias) if op.bias is not None else None
    inputs = (constant.weights, value) if constant is not None else (value,)
    filter = op.b if isinstance(op, dnn.MatmulOp) else op.filter
    weights = Weights.derived(f"bias-{kind}", fold, *inputs, dtype=value.dtype, shape=(channels,))
    return constant_before(op, weights, filter)


def _fold_filter(
    op: FoldsAffine, constant: dnn.ConstantOp, kind: str, value: Weights, channels: int
) -> Weights:
    """The filter after the folded multiplication or division."""
    shape = dnn.shape_of(constant.output)
    groups = op.group_.value.data if isinstance(op, dnn.ConvTransposeOp) else 1
    layer = op.name.removeprefix("dnn.")

    def fold(filter: Array, other: Array) -> Array:
        scale = np.broadcast_to(other.reshape(-1), (channels,))
        if layer == "matmul":
            return _NUMPY[kind](filter, scale)
        ones = (1,) * (len(shape) - 2)
        if layer == "conv":
            return _NUMPY[kind](filter, scale.reshape(-1, 1, *ones))
        # Input channels of one group meet only that group's output channels.
        spread = np.repeat(scale.reshape(groups, -1), shape[0] // groups, axis=0)
        return _NUMPY[kind](filter, spread.reshape(shape[0], shape[1], *ones))

    label = f"filter-{kind}-{layer}{groups}"
    weights = constant.weights
    return Weights.derived(label, fold, weights, value, dtype=weights.dtype, shape=shape)


def fold_padding(op: dnn.PadOp) -> bool:
    """Moves padding by 0 of spatial dimensions alone into the convolution that is the only user."""
    user = single_user(op.results[0])
    if not isinstance(user, dnn.ConvOp) or user.input is not op.results[0] or op.mode.data != "constant":
        return False
    if user.joined or user.prologue is not None:
        return False
    value = cast(FloatAttr[AnyFloat], op.value).value.data
    low, high = dnn.ints(op.low), dnn.ints(op.high)
    if value != 0 or any((*low[:2], *high[:2])):
        return False
    pads = dnn.ints(user.pads)
    op.results[0].replace_all_uses_with(op.input)
    user.properties["pads"] = dnn.i64_array(a + b for a, b in zip(pads, (*low[2:], *high[2:]), strict=True))
    Rewriter.erase_op(op)
    return True


MOST_PARTS = 4
"""Inputs that a convolution may join; each makes its code longer."""
MOST_PROLOGUE_OPS = 8
"""Scalar ops that a prologue may have: it is computed more than once for each element."""


def convolutions_reading(value: SSAValue) -> list[dnn.ConvOp] | None:
    """
    The convolutions that use `value` as the first part of their input, and for nothing else.

    None where `value` has other users, or none, or where they are in another block.
    """
    users = list[dnn.ConvOp]()
    for use in value.uses:
        user = use.operation
        if not isinstance(user, dnn.ConvOp) or user.input is not value or user in users:
            return None
        if user.parent is not block_of(value):
            return None
        users.append(user)
    return users or None


def kept_bytes(values: Iterable[SSAValue]) -> int:
    """Bytes of the tensors that have to be kept for `values`: those that slices and the like show parts of."""
    tensors = set[SSAValue]()
    for value in values:
        while isinstance(value.owner, dnn.ShapeOp) and not isinstance(value.owner, dnn.ConcatOp):
            value = value.owner.operands[0]
        tensors.add(value)
    return sum(dnn.byte_size(tensor) for tensor in tensors)


def can_join(op: Operation) -> bool:
    """Whether convolutions could read the inputs of `op` as parts of theirs."""
    return (
        isinstance(op, dnn.ConcatOp)
        and op.axis.value.data == 1
        and 1 < len(op.ins) <= MOST_PARTS
        and all(0 not in dnn.shape_of(value) for value in op.ins)
        and kept_bytes(op.ins) <= dnn.byte_size(op.results[0])
    )


class Prefixes:
    """The inputs of concatenations along one axis, one after the other, as a tree; and their results."""

    def __init__(self) -> None:
        self.whole: SSAValue | None = None
        """The first concatenation of just these inputs."""
        self.longer = dict[SSAValue, Prefixes]()

    def add(self, parts: Iterable[SSAValue], whole: SSAValue) -> None:
        at = self
        for part in parts:
            at = at.longer.setdefault(part, Prefixes())
        if at.whole is None:
            at.whole = whole

    def longest(self, parts: Sequence[SSAValue]) -> tuple[int, SSAValue] | None:
        """How many of the first parts, at least two but not all, a concatenation joins at most; the last part first."""
        at, found = self, None
        for length in range(1, len(parts)):
            if (following := at.longer.get(parts[-length])) is None:
                break
            at = following
            if at.whole is not None and length > 1:
                found = length, at.whole
        return found


def share_prefixes(block: Block) -> None:
    """Lets long concatenations start with results of earlier ones of their first inputs, until they are short."""
    earlier: dict[int, Prefixes] = {}
    for op in list(block.ops):
        if not isinstance(op, dnn.ConcatOp):
            continue
        known = earlier.setdefault(op.axis.value.data, Prefixes())
        parts, result = list(op.ins)[::-1], op.results[0]
        while len(parts) > MOST_PARTS and (prefix := known.longest(parts)) is not None:
            length, whole = prefix
            parts[-length:] = [whole]
        if len(parts) < len(op.ins):
            shorter = op.rebuilt(groups={"ins": parts[::-1]})
            replace(op, shorter)
            result = shorter.results[0]
        known.add(reversed(parts), result)


def fuse_into_convolutions(op: dnn.ElementwiseOp) -> None:
    """Moves `op` into the prologues of the convolutions that use its result, if its operand stays anyway."""
    result = op.results[0]
    shape = dnn.shape_of(result)
    users = convolutions_reading(result)
    full = [
        v for v in op.ins if len(shape) < 2 or not is_channel_vector(dnn.shape_of(v), len(shape), 1, shape[1])
    ]
    if users is None or any(user.joined or user.prologue is not None for user in users):
        return
    if len(set(full)) != 1 or full[0].type != result.type or not is_cheap(op.body.block):
        return
    source = full[0]
    joins = isinstance(source.owner, Operation) and can_join(source.owner)
    joins = joins and all(user.group_.value.data == 1 for user in users)
    if single_user(source) is op and not isinstance(source, BlockArgument) and not joins:
        return
    if kept_bytes([source]) > dnn.byte_size(result):
        return
    extras = [v for v in dict.fromkeys(op.ins) if v is not source]
    for user in users:
        block = Block(arg_types=[dnn.signless(dnn.element_type_of(v)) for v in (source, *extras)])
        argument = dict(zip((source, *extras), block.args, strict=True))
        block.add_op(dnn.YieldOp(*clone_body(op.body.block, block, [argument[v] for v in op.ins])))
        groups = {"input": [source], "prologue_extras": extras}
        replace(user, user.rebuilt(groups=groups, regions={"prologue": Region(block)}))
    Rewriter.erase_op(op)


def is_cheap(block: Block) -> bool:
    """Whether a region is a few additions, multiplications, comparisons or the like."""
    work = [op for op in block.ops if not isinstance(op, arith.ConstantOp | dnn.YieldOp)]
    cheap = all(op.name.startswith("arith.") and "div" not in op.name and "rem" not in op.name for op in work)
    return cheap and len(work) <= MOST_PROLOGUE_OPS


def leave_to_convolutions(op: dnn.ConcatOp) -> None:
    """Lets the convolutions that use a concatenation read its inputs themselves."""
    users = convolutions_reading(op.results[0])
    if users is None or not can_join(op) or any(user.joined or user.group_.value.data != 1 for user in users):
        return
    for user in users:
        replace(user, user.rebuilt(groups={"input": op.ins[:1], "joined": op.ins[1:]}))
    Rewriter.erase_op(op)


Shuffle: TypeAlias = tuple[dnn.ReshapeOp, dnn.TransposeOp, dnn.ReshapeOp]


def shuffle_of(value: SSAValue) -> Shuffle | None:
    """
    The steps of the channel shuffle that makes `value`; None where it is none, or a step has other users.

    A shuffle splits the channels into a matrix, transposes it, and joins them again (ShuffleNet,
    arXiv 1707.01083).
    """
    join = value.owner
    turn = join.input.owner if isinstance(join, dnn.ReshapeOp) else None
    split = turn.input.owner if isinstance(turn, dnn.TransposeOp) else None
    if (
        not isinstance(join, dnn.ReshapeOp)
        or not isinstance(turn, dnn.TransposeOp)
        or not isinstance(split, dnn.ReshapeOp)
    ):
        return None
    if single_user(split.results[0]) is not turn or single_user(turn.results[0]) is not join:
        return None
    shape, middle = dnn.shape_of(value), dnn.shape_of(split.results[0])
    is_split = len(middle) == len(shape) + 1 and (*middle[:1], middle[1] * middle[2], *middle[3:]) == shape
    turned = (0, 2, 1, *range(3, len(middle)))
    if dnn.shape_of(split.input) != shape or not is_split or dnn.ints(turn.permutation) != turned:
        return None
    return split, turn, join


def sink_shuffle(op: dnn.ConvOp) -> None:
    """Moves a channel shuffle behind the depthwise convolution that alone uses it."""
    shuffle, shape, result = shuffle_of(op.input), dnn.shape_of(op.input), op.results[0]
    is_depthwise = op.group_.value.data == shape[1] == dnn.shape_of(op.filter)[0]
    parameters = {"filter": op.filter} | ({} if op.bias is None else {"bias": op.bias})
    if (
        shuffle is None
        or not is_depthwise
        or single_user(op.input) is not op
        or op.extras
        or op.prologue is not None
        or prod(dnn.shape_of(result)) > prod(shape)
        or any(constant_of(value) is None for value in parameters.values())
    ):
        return
    split, turn, join = shuffle
    rows, columns = dnn.shape_of(split.results[0])[1:3]

    def unshuffle(array: Array) -> Array:
        return array.reshape(columns, rows, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)

    groups: dict[str, Sequence[SSAValue]] = {"input": [split.input]}
    for name, value in parameters.items():
        weights = cast(dnn.ConstantOp, value.owner).weights
        label = f"unshuffle{rows}x{columns}"
        derived = Weights.derived(label, unshuffle, weights, dtype=weights.dtype, shape=weights.shape)
        groups[name] = [constant_before(op, derived, value)]
    convolution = op.rebuilt(groups=groups)
    batch, _, *spatial = dnn.shape_of(result)
    new_split = dnn.ReshapeOp(convolution.results[0], (batch, rows, columns, *spatial))
    new_turn = dnn.TransposeOp(new_split.results[0], dnn.ints(turn.permutation))
    new_join = dnn.ReshapeOp(new_turn.results[0], dnn.shape_of(result))
    for new, old in ((new_split, split), (new_turn, turn), (new_join, join)):
        new.location = old.location
    assert op.parent is not None
    op.parent.insert_ops_before([convolution, new_split, new_turn], op)
    replace(op, new_join)
    for old in (join, turn, split):
        Rewriter.erase_op(old)
