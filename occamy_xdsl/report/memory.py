"""The memory report: what a compiled model needs, when, and why. Everything is known before any code exists."""

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_type_hints

from xdsl.dialects.builtin import (
    DictionaryAttr,
    IntegerAttr,
    ModuleOp,
    StringAttr,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation
from xdsl.utils.hints import isa

from occamy_xdsl.analysis.aliasing import root_of
from occamy_xdsl.analysis.liveness import LiveRange, is_position, liveness, max_live_of_values, writes
from occamy_xdsl.analysis.own_memory import OwnMemory
from occamy_xdsl.analysis.regions import ops_of
from occamy_xdsl.analysis.row_graph import work_of
from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.location import node_name
from occamy_xdsl.dialects.signature import (
    argument_names,
    function_named,
    input_arguments,
    output_arguments,
)
from occamy_xdsl.dialects.weights import WeightsRefAttr
from occamy_xdsl.files import replacing
from occamy_xdsl.transforms.dnn_convert_to_pool import PLAN
from occamy_xdsl.transforms.dnn_schedule import ORDER

T = TypeVar("T")

Kind = Literal["activation", "workspace", "view", "input", "output"]


@dataclass(frozen=True)
class Tensor:
    """One buffer or view."""

    name: str
    """Name of the value in the model; characters that MLIR has none of in names are `_`."""
    node: str
    """The node that writes it first."""
    bytes: int
    """Its size."""
    offset: int | None
    """Place in the pool, in bytes; null for what lies outside it."""
    first: int
    """The first position that uses it."""
    last: int
    """The last position that uses it."""
    alias_of: str | None
    """For a view, the buffer that it shows."""
    kind: Kind
    """`activation`, `workspace` (scratch of a kernel), `view`, or the caller's `input` or `output`."""
    last_node: str = ""
    """The last node that uses it."""
    reason: str = ""
    """Why it is neither in the place of another buffer nor a view of one; given for buffers live at the peak."""
    segments: list[list[int]] = field(default_factory=list[list[int]])
    """First and last positions of the parts of its life, where control flow leaves gaps; else empty."""

    def is_live(self, position: int) -> bool:
        """Whether it holds memory at a position."""
        return any(first <= position <= last for first, last in self.segments or [[self.first, self.last]])


@dataclass(frozen=True)
class PassStep:
    """Most bytes live at one position after a step."""

    name: str
    """The pass, or the means of lowering the peak."""
    max_live_bytes: int
    """Most bytes live at one position after it; after the last step of the waterfall, the pool."""
    extra_percent: float = 0.0
    """Arithmetic that the step costs, in percent of what the model needs."""


@dataclass(frozen=True)
class BudgetStep:
    """What a budget for extra arithmetic buys, and what it costs."""

    options: str
    """What to give on the command line."""
    stripe_budget: float
    """The budget in percent, which bounds arithmetic, copies and calls together."""
    pool_bytes: int
    """`pool_bytes` with these options."""
    arithmetic: int
    """`arithmetic` with these options."""
    extra_percent: float
    """Arithmetic beyond that of the first item, in percent."""
    calls: int
    """`calls` with these options."""
    weights_read_bytes: int
    """`weights_read_bytes` with these options."""


@dataclass(frozen=True)
class ModeStep:
    """One way to find memory for the tensors of the same model."""

    name: str
    """`eager`, `lazy`, `liveness`, `original's pool` or `pool`."""
    what: str
    """How it works, in a few words."""
    bytes: int
    """What is allocated at one time, most."""
    allocations: int
    """Calls of the allocator in one run."""


WATERFALL = {
    "convert-onnx-to-dnn": "liveness",
    "dnn-fuse-layers": "fusion",
    "dnn-schedule": "order",
    "dnn-coalesce-tensors": "views, in place",
    "dnn-slide-windows": "sliding windows",
    "cpu-assign-workspaces": "workspaces",
    "cuda-assign-workspaces": "workspaces",
    "dnn-borrow-outputs": "caller's outputs",
}
"""What the passes that change the peak stand for."""


@dataclass(frozen=True)
class MemoryReport:
    """
    What one compiled model needs. The fields are the keys of the JSON form.

    Sizes and offsets are in bytes. Positions number what a run does, calls of kernels and copies, from 0 in order of
    execution; ranges of them include both ends.
    """

    model: str
    """The file's name without its suffix."""
    target: str
    """What it is compiled for, as `--target` says it."""
    memory: str
    """`pool`, or `lazy` or `eager` for buffers on the heap."""
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
    """The first position at which `max_live_bytes` are live."""
    peak_node: str
    """The node that runs there."""
    tensors: list[Tensor] = field(default_factory=list[Tensor])
    """All buffers, views of them, and the caller's inputs and outputs; see below."""
    timeline: list[int] = field(default_factory=list[int])
    """Bytes live at each position."""
    passes: list[PassStep] = field(default_factory=list[PassStep])
    """`max_live_bytes` after each pass that may change it, by the pass's `name`."""
    resident_weights_bytes: int = 0
    """Weights that are in memory at one time: all, or where they are streamed those of two kernels in a row."""
    waterfall: list[PassStep] = field(default_factory=list[PassStep])
    """From no reuse to the pool: bytes after each means of lowering the peak, and what it costs."""
    order_status: str = ""
    """Whether no order of execution has a lower peak: `proven optimal` or `best found`; empty without search."""
    lower_bound: int = 0
    """Bytes that are proven to be needed by any pool for these buffers in this order, alignment included."""
    arithmetic: int = 0
    """Multiply-accumulates of convolutions and matrix products in a run, and results of other ops."""
    calls: int = 0
    """Calls of kernels, and copies, in a run."""
    weights_read_bytes: int = 0
    """Weights that the kernels of a run read, as often as they read them."""
    limit_options: str = ""
    """What had to be asked for to meet `--memory-limit`, as command-line options; empty where nothing had."""
    budgets: list[BudgetStep] = field(default_factory=list[BudgetStep])
    """What stripes would need at growing budgets, with `--budgets`; see below."""
    modes: list[ModeStep] = field(default_factory=list[ModeStep])
    """What other ways of allocating would need, with `--compare`; see below."""

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
        forbidden: str = "",
    ) -> "MemoryReport":
        """
        The report of a module in buffer form, with or without a pool.

        `unshared_bytes` are those of all tensors before any pass lowered the peak, `forbidden` the option that keeps
        buffers from sharing memory.
        """
        main = function_named(module)
        block = main.body.block
        table = liveness(block)
        timeline = table.timeline()
        peak = timeline.index(max(timeline)) if timeline else 0
        names = {r.buffer: _name(r) for r in table.ranges}
        reasons = OwnMemory(table, _node, names.__getitem__, forbidden)
        tensors = [
            Tensor(
                _name(r),
                _node(r.users[0]),
                r.bytes,
                r.buffer.owner.offset.value.data if isinstance(r.buffer.owner, dnn.MemOffsetOp) else None,
                r.first,
                r.last,
                None,
                "workspace" if r.buffer in _workspaces(r.users) else "activation",
                _node(r.users[-1]),
                reasons.why(r) if any(first <= peak <= last for first, last in r.segments) else "",
                [list(part) for part in r.segments] if len(r.segments) > 1 else [],
            )
            for r in table.ranges
        ]
        position = {op: i for i, op in enumerate(table.ops)}
        arguments = argument_names(main)
        for argument in main.body.block.args:
            names[argument] = arguments[argument.index]
        tensors += _caller_tensors(main, position)
        tensors += [
            Tensor(
                _source_name(op.view.name_hint) or _node(op),
                _node(op),
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
        means = WATERFALL if plan else {**WATERFALL, "dnn-insert-memory-ops": f"{memory} allocation"}
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
            peak_node=_node(table.ops[peak]) if table.ops else "",
            tensors=tensors,
            timeline=timeline,
            passes=list(passes),
            waterfall=[
                PassStep("no reuse", unshared_bytes),
                *(PassStep(means[p.name], p.max_live_bytes) for p in passes if p.name in means),
                PassStep("packing" if plan else "heap", pool),
            ],
            order_status=_text(main.attributes.get(ORDER), "status"),
            lower_bound=_integer(plan, "lower_bound") if plan else table.max_live_bytes,
            arithmetic=sum(work_of(op) for op in table.ops if isinstance(op, dnn.KernelOp)),
            calls=len(table.ops),
            weights_read_bytes=sum(map(_constant_bytes, table.ops)),
        )

    def live_at_peak(self) -> list[Tensor]:
        """The buffers that are live at the peak, largest first."""
        live = [
            t for t in self.tensors if t.kind in ("activation", "workspace") and t.is_live(self.peak_position)
        ]
        return sorted(live, key=lambda t: (-t.bytes, t.name))

    def largest_at_peak(self, count: int) -> list[tuple[str, int]]:
        """
        Names and bytes of the largest tensors live at the peak. Buffers for parts of one tensor, as stripes need them,
        count together; a workspace is told by its node.
        """
        sizes = Counter[str]()
        for t in self.live_at_peak():
            sizes[f"{t.name} of {t.node}" if t.kind == "workspace" else t.name] += t.bytes
        return sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:count]

    def largest(self, kind: Kind) -> list[Tensor]:
        """The tensors of one kind, largest first."""
        return sorted((t for t in self.tensors if t.kind == kind), key=lambda t: (-t.bytes, t.name))

    def advice(self) -> list[str]:
        """What the budgets say about a smaller pool, a sentence each; empty where they were not planned."""
        if not self.budgets:
            return []
        base, *others = self.budgets
        lower = [step for step in others if step.pool_bytes < base.pool_bytes]
        if not lower:
            return [f"stripes within {others[-1].stripe_budget:g} % do not lower the pool"]

        def said(step: BudgetStep) -> str:
            return (
                f"{step.options} brings it to {step.pool_bytes:,} bytes at {step.extra_percent:+.2f} % arithmetic "
                f"and {step.calls:,} calls instead of {base.calls:,}"
            )

        found = list[str]()
        megabyte = next((step for step in lower if step.pool_bytes <= base.pool_bytes - 10**6), None)
        if megabyte is not None:
            found.append(f"the next MB: {said(megabyte)}")
        lowest = min(lower, key=lambda step: (step.pool_bytes, step.stripe_budget))
        if lowest is not megabyte:
            found.append(f"the lowest pool: {said(lowest)}")
        return found

    def to_json(self) -> str:
        """The report as JSON text, with the keys of this class."""
        return json.dumps(asdict(self), indent=2)

    @staticmethod
    def from_json(text: str) -> "MemoryReport":
        """The report that `to_json` wrote; raises ValueError if the text is anything else."""
        try:
            values = cast(dict[str, Any], json.loads(text))
            values["tensors"] = [_checked(Tensor(**t)) for t in values["tensors"]]
            for key, step in STEPS.items():
                values[key] = [_checked(step(**s)) for s in values.get(key, [])]
            return _checked(MemoryReport(**values))
        except (KeyError, TypeError, ValueError, RecursionError):
            raise ValueError("not a memory report in JSON") from None

    def to_html(self, path: str | Path | None = None) -> str:
        """The report as one self-contained page, which is also written to `path` if there is one."""
        from occamy_xdsl.report.html import page

        text = page(self)
        if path is not None:
            with replacing(Path(path)) as temporary:
                temporary.write_text(text, encoding="utf-8")
        return text

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from occamy_xdsl.report.html import fragment

        return fragment(self)


STEPS: dict[str, type[Any]] = {
    "passes": PassStep,
    "waterfall": PassStep,
    "budgets": BudgetStep,
    "modes": ModeStep,
}
"""The class of the items of each key that holds a list of steps."""


def _checked(values: T) -> T:
    """The instance of a dataclass; raises TypeError where a field is not of its type."""
    for name, type in get_type_hints(values.__class__).items():
        if not isa(getattr(values, name), int | float if type is float else type):
            raise TypeError(f"{name} is not of type {type}")
    return values


def _node(op: Operation) -> str:
    """The ONNX node that an op came from, or that of the control flow around it; else what it does."""
    name, parent = node_name(op), op.parent_op()
    if name != op.name:
        return name
    if isinstance(parent, dnn.ControlOp):
        return _node(parent)
    if isinstance(op, dnn.CopyOp | dnn.MemcpyOp):
        target = root_of(writes(op)[0])
        if isinstance(target, BlockArgument) and isinstance(main := target.owner.parent_op(), FuncOp):
            return f"copy to {argument_names(main)[target.index]}"
        return f"copy to {_source_name(target.name_hint)}".strip()
    return name


def _source_name(hint: str | None) -> str:
    """The name in the model: a number after `_` is written otherwise in hints, see the importer."""
    return re.sub(r"-(\d+)$", r"_\1", hint or "")


def _name(life: LiveRange) -> str:
    """The buffer's name; that of the node which writes it where it has none."""
    return _source_name(life.buffer.name_hint) or _node(life.users[0])


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


def _constant_bytes(op: Operation) -> int:
    """Bytes of constants that an op reads."""
    return sum(dnn.byte_size(v) for v in op.operands if isinstance(root_of(v).owner, dnn.ConstantOp))


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
