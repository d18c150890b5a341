"""The memory report: what a compiled model needs, when, and why. Everything is known before any code exists."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, cast

from xdsl.dialects.builtin import (
    DictionaryAttr,
    IntegerAttr,
    ModuleOp,
    StringAttr,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from occamy_xdsl.analysis.aliasing import root_of
from occamy_xdsl.analysis.liveness import LiveRange, is_position, liveness, max_live_of_values
from occamy_xdsl.analysis.own_memory import why_own_memory
from occamy_xdsl.analysis.regions import ops_of
from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.location import node_name
from occamy_xdsl.dialects.signature import (
    argument_names,
    function_named,
    input_arguments,
    output_arguments,
)
from occamy_xdsl.dialects.weights import WeightsRefAttr
from occamy_xdsl.transforms.dnn_convert_to_pool import PLAN
from occamy_xdsl.transforms.dnn_schedule import ORDER

Kind = Literal["activation", "workspace", "view", "input", "output"]


@dataclass(frozen=True)
class Tensor:
    """One buffer or view. Sizes and offsets are in bytes, `first` and `last` are op positions, inclusive."""

    name: str
    node: str
    bytes: int
    offset: int | None
    """Place in the pool; None for what lies outside it."""
    first: int
    last: int
    alias_of: str | None
    kind: Kind
    last_node: str = ""
    """The last node that uses it."""
    reason: str = ""
    """Why it is neither in the place of another buffer nor a view of one; given for buffers live at the peak."""


@dataclass(frozen=True)
class PassStep:
    """Most bytes live at one position after a pass."""

    name: str
    max_live_bytes: int


WATERFALL = {
    "convert-onnx-to-dnn": "liveness",
    "dnn-fuse-layers": "fusion",
    "dnn-schedule": "order",
    "dnn-expand-stripes": "stripes",
    "dnn-coalesce-tensors": "views, in place",
    "dnn-borrow-outputs": "caller's outputs",
}
"""What the passes that lower the peak stand for."""


@dataclass(frozen=True)
class MemoryReport:
    """What one compiled model needs, in bytes. The fields are the keys of the JSON form."""

    model: str
    target: str
    memory: str
    planner: str
    """What placed the buffers; `none` without a pool."""
    weights_bytes: int
    """Weights as the model holds them, each tensor once."""
    pool_bytes: int
    """Everything a run needs besides weights and the caller's inputs and outputs."""
    workspace_bytes: int
    """The largest scratch buffer of a kernel; part of the pool."""
    io_bytes: int
    """The caller's input and output buffers together."""
    max_live_bytes: int
    """The lower bound: most bytes that are live at one position."""
    sum_bytes: int
    """All buffers together: what the pool would be if none shared memory."""
    peak_position: int
    peak_node: str
    tensors: list[Tensor] = field(default_factory=list[Tensor])
    timeline: list[int] = field(default_factory=list[int])
    """Bytes live at each op position."""
    passes: list[PassStep] = field(default_factory=list[PassStep])
    resident_weights_bytes: int = 0
    """Weights that are in memory at one time: all, or where they are streamed those of two kernels in a row."""
    waterfall: list[PassStep] = field(default_factory=list[PassStep])
    """From no reuse to the pool: bytes after each means of lowering the peak."""
    order_status: str = ""
    """Whether no order of execution has a lower peak: `proven optimal` or `best found`; empty without search."""
    lower_bound: int = 0
    """Bytes that are proven to be needed by any pool for these buffers in this order."""

    @staticmethod
    def of(
        module: ModuleOp,
        *,
        model: str,
        target: str,
        memory: str,
        planner: str,
        passes: Sequence[PassStep],
        streams_weights: bool = False,
        unshared_bytes: int = 0,
    ) -> "MemoryReport":
        """
        The report of a module in buffer form, with or without a pool.

        `unshared_bytes` are those of all tensors before any pass lowered the peak.
        """
        main = function_named(module)
        block = main.body.block
        table = liveness(block)
        timeline = table.timeline()
        peak = timeline.index(max(timeline)) if timeline else 0
        tensors = [
            Tensor(
                _name(r),
                node_name(r.users[0]),
                r.bytes,
                r.buffer.owner.offset.value.data if isinstance(r.buffer.owner, dnn.MemOffsetOp) else None,
                r.first,
                r.last,
                None,
                "workspace" if r.buffer in _workspaces(r.users) else "activation",
                node_name(r.users[-1]),
                why_own_memory(r, table, node_name, _buffer_name) if r.first <= peak <= r.last else "",
            )
            for r in table.ranges
        ]
        names = {r.buffer: _name(r) for r in table.ranges}
        position = {op: i for i, op in enumerate(table.ops)}
        arguments = argument_names(main)
        for argument in main.body.block.args:
            names[argument] = arguments[argument.index]
        tensors += _caller_tensors(main, position)
        tensors += [
            Tensor(
                op.view.name_hint or node_name(op),
                node_name(op),
                dnn.byte_size(op.view),
                None,
                min(uses),
                max(uses),
                names[root_of(op.view)],
                "view",
            )
            for op in ops_of(block)
            if isinstance(op, dnn.ViewOp)
            and root_of(op.view) in names
            and (uses := [position[u.operation] for u in op.view.uses if u.operation in position])
        ]
        plan = cast(DictionaryAttr | None, main.attributes.get(PLAN))
        total = sum(r.bytes for r in table.ranges)
        pool = _integer(plan, "pool_bytes") if plan else _allocated(block)
        return MemoryReport(
            model=model,
            target=target,
            memory=memory,
            planner=planner,
            weights_bytes=_weights_bytes(main),
            resident_weights_bytes=_streamed_bytes(block) if streams_weights else _weights_bytes(main),
            pool_bytes=pool,
            workspace_bytes=max((t.bytes for t in tensors if t.kind == "workspace"), default=0),
            io_bytes=sum(dnn.byte_size(a) for a in main.body.block.args),
            max_live_bytes=table.max_live_bytes,
            sum_bytes=total,
            peak_position=peak,
            peak_node=node_name(table.ops[peak]) if table.ops else "",
            tensors=tensors,
            timeline=timeline,
            passes=list(passes),
            waterfall=[
                PassStep("no reuse", unshared_bytes),
                *(PassStep(WATERFALL[p.name], p.max_live_bytes) for p in passes if p.name in WATERFALL),
                PassStep("packing", pool),
            ],
            order_status=_text(main.attributes.get(ORDER), "status"),
            lower_bound=_integer(plan, "lower_bound") if plan else table.max_live_bytes,
        )

    def live_at_peak(self) -> list[Tensor]:
        """The buffers that are live at the peak, largest first."""
        live = [
            t
            for t in self.tensors
            if t.kind in ("activation", "workspace") and t.first <= self.peak_position <= t.last
        ]
        return sorted(live, key=lambda t: (-t.bytes, t.name))

    def largest(self, kind: Kind) -> list[Tensor]:
        """The tensors of one kind, largest first."""
        return sorted((t for t in self.tensors if t.kind == kind), key=lambda t: (-t.bytes, t.name))

    def advice(self) -> str:
        """What is left to do where every option that lowers the peak is on, in one sentence."""
        if self.pool_bytes > self.max_live_bytes:
            return f"hint: no pool is smaller than {self.max_live_bytes} bytes, --optimize memory searches longer"
        return (
            f"hint: no pool holds what is live at node '{self.peak_node}', only a smaller --shape needs less"
        )

    def to_json(self) -> str:
        """The report as JSON text, with the keys of this class."""
        return json.dumps(asdict(self), indent=2)

    @staticmethod
    def from_json(text: str) -> "MemoryReport":
        """The report that `to_json` wrote; raises ValueError if the text is anything else."""
        try:
            values = cast(dict[str, Any], json.loads(text))
            values["tensors"] = [Tensor(**t) for t in values["tensors"]]
            for steps in ("passes", "waterfall"):
                values[steps] = [PassStep(**p) for p in values.get(steps, [])]
            return MemoryReport(**values)
        except (KeyError, TypeError, ValueError):
            raise ValueError("not a memory report in JSON") from None

    def to_html(self, path: str | Path | None = None) -> str:
        """The report as one self-contained page, which is also written to `path` if there is one."""
        from occamy_xdsl.report.html import page

        text = page(self)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from occamy_xdsl.report.html import fragment

        return fragment(self)


def _name(life: LiveRange) -> str:
    """The buffer's name; that of the node which writes it where it has none."""
    hint: str | None = life.buffer.name_hint
    return hint or node_name(life.users[0])


def _buffer_name(buffer: SSAValue) -> str:
    hint: str | None = buffer.name_hint
    return hint or "an unnamed buffer"


def _integer(values: DictionaryAttr, key: str) -> int:
    return cast(IntegerAttr[Any], values.data[key]).value.data


def _text(values: Attribute | None, key: str) -> str:
    if not isinstance(values, DictionaryAttr):
        return ""
    text = values.data[key]
    return text.data if isinstance(text, StringAttr) else ""


def live_bytes(module: ModuleOp) -> int:
    """Most bytes live at one position of a module in value form or buffer form."""
    main = function_named(module)
    block = main.body.block
    in_value_form = bool(main.function_type.outputs.data)
    return max_live_of_values(block) if in_value_form else liveness(block).max_live_bytes


def _workspaces(ops: Sequence[Operation]) -> set[Any]:
    return {v for op in ops if isinstance(op, dnn.KernelOp) for v in op.group("workspace")}


def _allocated(block: Block, held: int = 0) -> int:
    """Most bytes that `dnn.malloc` holds at one time, with deallocations where they stand; `held` at the start."""
    most = held
    for op in block.ops:
        if isinstance(op, dnn.MallocOp):
            held += dnn.byte_size(op.buffer)
        elif isinstance(op, dnn.DeallocOp):
            held -= dnn.byte_size(op.buffer)
        elif isinstance(op, dnn.ControlOp):
            most = max(most, *(_allocated(inner, held) for inner in op.blocks))
            # Each branch frees the same of what is allocated around it; a loop's body frees nothing of that.
            freed = {f.buffer for f in ops_of(op.blocks[0]) if isinstance(f, dnn.DeallocOp)}
            held -= sum(dnn.byte_size(buffer) for buffer in freed if not op.is_ancestor(buffer.owner))
        most = max(most, held)
    return most


def _weights_bytes(main: FuncOp) -> int:
    sizes: dict[Any, int] = {}
    for op in main.walk():
        if isinstance(op, dnn.ConstantOp):
            key = op.value.data.key if isinstance(op.value, WeightsRefAttr) else op.value
            sizes[key] = dnn.byte_size(op.output)
    return sum(sizes.values())


def _streamed_bytes(block: Block) -> int:
    """Most bytes of constants that two ops in a row read; control flow counts as one op."""
    sizes = list[int]()
    for op in block.ops:
        inside = [op, *(i for b in op.blocks for i in ops_of(b))] if isinstance(op, dnn.ControlOp) else [op]
        roots = {root_of(v) for inner in inside if is_position(inner) for v in inner.operands}
        if is_position(op):
            sizes.append(sum(dnn.byte_size(v) for v in roots if isinstance(v.owner, dnn.ConstantOp)))
    return max((a + b for a, b in pairwise([0, *sizes])), default=0)


def _caller_tensors(main: FuncOp, position: dict[Operation, int]) -> list[Tensor]:
    names, end = argument_names(main), max(len(position) - 1, 0)
    kinds: list[tuple[Kind, list[BlockArgument]]] = [
        ("input", input_arguments(main)),
        ("output", output_arguments(main)),
    ]
    return [
        Tensor(names[a.index], "", dnn.byte_size(a), None, 0, end, None, kind)
        for kind, arguments in kinds
        for a in arguments
    ]
