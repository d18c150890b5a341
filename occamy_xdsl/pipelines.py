"""The passes of the project, and the standard pipelines as text: one for each target and memory mode."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from importlib import import_module
from itertools import takewhile
from numbers import Real
from operator import index
from typing import Any, Literal, cast, get_args

from xdsl.passes import ModulePass

from occamy_xdsl.errors import ArgumentTypeError, UsageError

Memory = Literal["pool", "lazy", "eager"]
Optimize = Literal["memory", "balanced", "speed"]

MEMORY_MODES: tuple[str, ...] = get_args(Memory)
OPTIMIZE_MODES: tuple[str, ...] = get_args(Optimize)

PASSES: dict[str, tuple[str, ...]] = {
    "occamy_xdsl.transforms": (
        "convert-onnx-to-dnn",
        "dnn-assign-layouts",
        "dnn-borrow-outputs",
        "dnn-coalesce-tensors",
        "dnn-convert-if-to-select",
        "dnn-convert-to-pool",
        "dnn-expand-stripes",
        "dnn-fuse-dequantization",
        "dnn-fuse-layers",
        "dnn-insert-memory-ops",
        "dnn-recompute",
        "dnn-schedule",
        "dnn-slide-windows",
        "dnn-split-weights",
        "dnn-stripe",
        "onnx-infer-shapes",
        "verify-dnn-pool",
    ),
    "occamy_xdsl.lowering.cpu": (
        "convert-dnn-to-cpu",
        "cpu-assign-workspaces",
        "cpu-check-allocations",
        "cpu-insert-clock",
        "cpu-stream-weights",
    ),
    "occamy_xdsl.lowering.cuda": (
        "convert-dnn-to-cuda",
        "cuda-assign-workspaces",
    ),
}
"""Every pass, by the package that holds it. Pass `a-b` is the class `ABPass` in the file `a_b.py` there."""


def get_all_passes() -> dict[str, Callable[[], type[ModulePass]]]:
    """Every pass by name, imported when it is first needed."""

    def loader(package: str, name: str) -> Callable[[], type[ModulePass]]:
        def load() -> type[ModulePass]:
            module = import_module(f"{package}.{name.replace('-', '_')}")
            cls = "".join(word.capitalize() for word in name.split("-")) + "Pass"
            return cast(type[ModulePass], getattr(module, cls))

        return load

    return {name: loader(package, name) for package, names in PASSES.items() for name in names}


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _path(value: Any) -> str:
    return _string(os.fspath(value))


def _integer(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return index(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError
    return float(value)


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


@dataclass(frozen=True)
class Options:
    """What a compilation may be asked for. The defaults are those of the command line."""

    target: str = "cpu"
    """`cpu`, or `cpu:NAME` with a processor that LLVM knows; `cuda`, or `cuda:sm_XX` with an architecture."""
    memory: Memory = "pool"
    planner: str = "search"
    optimize: Optimize = "balanced"
    """What to spend for a lower peak: see docs/memory-budget.md."""
    fuse: bool = True
    reuse: bool = True
    """Whether buffers whose lives do not overlap may share memory."""
    in_place: bool = True
    """Whether a result may take the place of an operand that dies."""
    reorder: bool = True
    """Whether ops may run in another order than the file's."""
    stripe_budget: float | None = None
    """Extra multiply-accumulates, in percent, that running in stripes of rows may cost; 0 turns stripes off.
    None: 5 for `optimize="memory"`, else 0."""
    recompute_budget: float = 0.0
    """Arithmetic, in percent, that may be done twice so that values need not be kept over the peak."""
    memory_limit: int | None = None
    """Bytes that the pool may have at most."""
    workspace_limit: int | None = None
    """Bytes that the scratch buffer of one kernel may have at most."""
    tuning: str | None = None
    """Path of a database of measured convolutions, as `occamy tune` writes it; for a GPU."""
    tuning_device: str | None = None
    """Name of the device in that database; needed where several have the architecture."""
    cubin: bool = False
    """Whether the machine code of kernels for the architecture is embedded beside the PTX; needs ptxas."""
    stream_weights: bool = False
    """Whether weights are read from their file right before they are needed, and dropped after."""
    profile: bool = False
    """Whether runs note the time of each kernel call, in an additional output."""

    def __post_init__(self) -> None:
        """Raises UsageError for what cannot be honoured, rather than ignore it, ArgumentTypeError for wrong types."""
        self._check_types()
        # Importing LLVM and the planners takes longer than most commands of occamy-opt.
        from occamy_xdsl.lowering.toolchain import Isa
        from occamy_xdsl.planning.planners import PLANNERS

        if self.cubin and not self.is_cuda:
            raise UsageError(f"cubin: target '{self.target}' has none, only cuda")
        if self.tuning_device is not None and self.tuning is None:
            raise UsageError(f"tuning device '{self.tuning_device}': no effect without tuning")
        kind, colon, processor = self.target.partition(":")
        if kind not in ("cpu", "cuda") or (colon and not processor):
            raise UsageError(f"target '{self.target}': expected cpu, cpu:PROCESSOR, cuda or cuda:sm_XX")
        if kind == "cuda":
            self._check_cuda()
        elif self.tuning is not None:
            raise UsageError(f"tuning '{self.tuning}': target '{self.target}' has none, only cuda")
        elif self.processor != "host":
            try:
                Isa.parse(self.processor)
            except ValueError as error:
                raise UsageError(f"target '{self.target}': {error}") from None
        for name, value, known in (
            ("memory", self.memory, MEMORY_MODES),
            ("planner", self.planner, tuple(PLANNERS)),
            ("optimize", self.optimize, OPTIMIZE_MODES),
        ):
            if value not in known:
                raise UsageError(f"{name} '{value}': expected one of {', '.join(known)}")
        limits: dict[str, Any] = {"memory_limit": self.memory_limit, "workspace_limit": self.workspace_limit}
        for name, value in limits.items():
            if value is not None and value < 0:
                raise UsageError(f"{name} {value}: expected a whole number of bytes")
        budgets: dict[str, Any] = {"stripe": self.stripe_budget, "recompute": self.recompute_budget}
        for name, value in budgets.items():
            if value is not None and not 0 <= value < float("inf"):
                raise UsageError(f"{name} budget {value}: expected a percentage from 0 on")
        if self.stripe_budget and (self.memory != "pool" or not self.reuse):
            raise UsageError(
                f"stripe budget {self.stripe_budget}: stripes need memory 'pool', with buffers that are reused"
            )
        if self.memory != "pool" and (self.planner, self.reuse, self.in_place) != ("search", True, True):
            raise UsageError(
                f"memory '{self.memory}': planner, reuse and in-place results are of memory 'pool' only"
            )

    def _check_types(self) -> None:
        """Other spellings of a value, such as numpy's numbers and paths, become the type that the field has."""
        kinds: tuple[tuple[tuple[str, ...], str, Callable[[Any], Any]], ...] = (
            (("target", "memory", "planner", "optimize", "tuning_device"), "a string", _string),
            (("tuning",), "a path", _path),
            (("memory_limit", "workspace_limit"), "a whole number of bytes", _integer),
            (("stripe_budget", "recompute_budget"), "a percentage as a number", _number),
            (
                ("fuse", "reuse", "in_place", "reorder", "cubin", "stream_weights", "profile"),
                "True or False",
                _truth,
            ),
        )
        defaults = {f.name: f.default for f in fields(self)}
        for names, kind, convert in kinds:
            for name in names:
                value = getattr(self, name)
                if value is None and defaults[name] is None:
                    continue
                try:
                    object.__setattr__(self, name, convert(value))
                except TypeError:
                    raise ArgumentTypeError(f"{name} {value!r}: expected {kind}") from None

    def _check_cuda(self) -> None:
        from occamy_xdsl.lowering.cuda.ptx import CHIPS

        if self.processor not in CHIPS:
            known = " ".join(CHIPS)
            raise UsageError(
                f"target '{self.target}': unknown architecture '{self.processor}', known are: {known}"
            )

    @property
    def is_cuda(self) -> bool:
        """Whether the target is a GPU."""
        return self.target.partition(":")[0] == "cuda"

    @property
    def allocates(self) -> bool:
        """Whether each buffer is allocated when the model runs, instead of all in one pool."""
        return self.memory != "pool"

    @property
    def stripes(self) -> float:
        """The budget for stripes in percent; 0 where there are none."""
        if self.memory != "pool" or not self.reuse:
            return 0.0
        if self.stripe_budget is not None:
            return self.stripe_budget
        return 5.0 if self.optimize == "memory" else 0.0

    @property
    def processor(self) -> str:
        """
        The processor's name, as LLVM knows it; `host` for the machine that compiles.

        PTX for one architecture runs on all later ones, so a GPU of no name is the oldest that CUDA 13 has.
        """
        return self.target.partition(":")[2] or ("sm_75" if self.is_cuda else "host")


def make_options(function: str, given: Mapping[str, Any]) -> Options:
    """The options that a caller of `function` gave by name; raises ArgumentTypeError for unknown names, too."""
    known = [field.name for field in fields(Options)]
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f", did you mean '{close[0]}'?" if close else f", the options are: {', '.join(known)}"
            raise ArgumentTypeError(f"{function}() got an unexpected keyword argument '{name}'{hint}")
    return Options(**given)


@dataclass(frozen=True)
class Stage:
    """A named part of the pipeline; the name is what `--emit` and `Executable.ir` call its result."""

    name: str
    passes: Sequence[str]

    @property
    def pipeline(self) -> str:
        """The stage as `occamy-opt -p` takes it."""
        return ",".join(self.passes)


def _spec(name: str, **options: Any) -> str:
    if not options:
        return name
    texts = {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in options.items()}
    return f"{name}{{{' '.join(f'{k}={v}' for k, v in texts.items())}}}"


def _quoted(text: str | None) -> str | None:
    """A string literal of the pipeline language."""
    return None if text is None else json.dumps(text, ensure_ascii=False)


SEARCH_FACTOR = 4
"""How much more `optimize="memory"` searches for an order and a packing."""


def _pool_conversion(options: Options, alignment: Mapping[str, int]) -> str:
    choices: dict[str, Any] = {"planner": options.planner, "reuse": options.reuse, **alignment}
    if options.optimize == "memory":
        choices["nodes"] = SEARCH_FACTOR * 2_000
        if options.memory_limit is not None:
            choices["capacity"] = options.memory_limit
    return _spec("dnn-convert-to-pool", **choices)


def _more_states(options: Options) -> dict[str, int]:
    return {"states": SEARCH_FACTOR * 30_000} if options.optimize == "memory" else {}


def levers(options: Options) -> list[Options]:
    """
    What to try where the plan exceeds the memory limit, the cheapest first: longer searches, stripes within growing
    budgets, recomputation, at last both.

    What the user switched off stays off: `switched_off` lists that for advice.
    """
    tries = [replace(options, optimize="memory")]
    if options.memory != "pool" or not options.reuse:
        return tries
    if options.stripe_budget is None:
        *larger, largest = [budget for budget in STRIPE_BUDGETS if budget > options.stripes]
        tries = [striped(options, budget) for budget in (options.stripes, *larger)]
        final = striped(options, largest)
        if options.recompute_budget < RECOMPUTE_BUDGET:
            tries.append(replace(tries[0], recompute_budget=RECOMPUTE_BUDGET))
        tries.append(final)
    if options.recompute_budget < RECOMPUTE_BUDGET:
        tries.append(replace(tries[-1], recompute_budget=RECOMPUTE_BUDGET))
    return tries


def striped(options: Options, budget: float) -> Options:
    """`options` with stripes within a budget in percent."""
    return replace(options, optimize="memory", stripe_budget=budget)


def without_extra_work(options: Options) -> Options:
    """`options` without stripes and recomputation."""
    return replace(
        options, stripe_budget=0.0 if options.stripes else options.stripe_budget, recompute_budget=0.0
    )


EXTRA_WORK = ("dnn-stripe", "dnn-recompute")
"""Passes that spend arithmetic on memory."""


def passes_without_extra_work(options: Options) -> tuple[str, ...]:
    """The passes of the dnn stage before the first of `EXTRA_WORK`: plans that have them in common begin alike."""
    (passes,) = (stage.passes for stage in stages(options) if stage.name == "dnn")
    return tuple(takewhile(lambda text: text.partition("{")[0] not in EXTRA_WORK, passes))


def in_mode(options: Options, memory: Memory) -> Options:
    """`options` with another way to find memory, and nothing that costs arithmetic."""
    plain = replace(options, stripe_budget=None, recompute_budget=0, memory_limit=None, optimize="balanced")
    if memory == "pool":
        return replace(plain, memory=memory)
    return replace(plain, memory=memory, planner="search", reuse=True, in_place=True)


def flags(options: Options) -> str:
    """What `options` spend on a lower peak, as the command line spells it."""
    given = list[str]()
    if options.optimize != "balanced":
        given.append(f"--optimize {options.optimize}")
    if options.stripe_budget is not None:
        given.append(f"--stripe-budget {options.stripe_budget:g}%")
    if options.recompute_budget:
        given.append(f"--recompute-budget {options.recompute_budget:g}%")
    return " ".join(given)


def _stripes(budget: float) -> list[str]:
    """Images of a batch and heads of attention one after the other, then lines and tokens of each."""
    return [
        _spec("dnn-stripe", budget=budget, batch=True),
        "dnn-expand-stripes",
        _spec("dnn-stripe", budget=budget),
        "dnn-expand-stripes",
    ]


def _recompute(options: Options) -> str:
    limit = {} if options.memory_limit is None else {"limit": options.memory_limit}
    return _spec("dnn-recompute", budget=options.recompute_budget, **limit)


STRIPE_BUDGETS = (2.0, 5.0, 10.0, 25.0)
"""Percent of extra arithmetic that is spent on stripes, one after the other, before a memory limit is refused."""


RECOMPUTE_BUDGET = 25.0
"""Percent of extra arithmetic that is spent on values computed again before a memory limit is refused."""


def switched_off(options: Options) -> list[tuple[str, Options]]:
    """The options that keep the peak high, as the command line spells them, and `options` without each."""
    off: dict[str, dict[str, Any]] = {}
    if options.memory != "pool":
        off[f"--memory {options.memory}"] = {"memory": "pool"}
    if options.planner != "search":
        off[f"--planner {options.planner}"] = {"planner": "search"}
    for flag, name in (
        ("--no-fuse", "fuse"),
        ("--no-reuse", "reuse"),
        ("--no-inplace", "in_place"),
        ("--no-reorder", "reorder"),
    ):
        if not getattr(options, name):
            off[flag] = {name: True}
    budget = options.stripe_budget
    if budget is not None and budget < STRIPE_BUDGETS[-1] and options.memory == "pool" and options.reuse:
        off[f"--stripe-budget {budget:g}%"] = {"stripe_budget": None}
    if len(off) > 1:
        off[" ".join(off)] = {name: value for change in off.values() for name, value in change.items()}
    return [(flags, replace(options, **change)) for flags, change in off.items()]


ORIGINAL = (
    "onnx-infer-shapes,convert-onnx-to-dnn,dnn-fuse-layers,dce,dnn-insert-memory-ops{mode=liveness},"
    "dnn-convert-to-pool{planner=occamy}"
)
"""The original's algorithm: layer fusion, liveness, first-fit pool; nothing in place, the model's order."""


def stages(options: Options) -> list[Stage]:
    """The standard pipeline for `options`, in stages: onnx, dnn, mem, mlir."""
    if options.is_cuda:
        # What NVIDIA's libraries take: stored, row-major inputs of f32 at multiples of 256 bytes.
        # A GPU runs what the host enqueues before any result is known.
        conversion = [_spec("convert-onnx-to-dnn", unroll=8192), "dnn-convert-if-to-select"]
        fusion = [_spec("dnn-fuse-dequantization", convolutions=False), "dnn-fuse-layers"]
        layouts = _spec("dnn-assign-layouts", channels_last=False)
        choices: dict[str, Any] = {
            "limit": options.workspace_limit,
            "database": _quoted(options.tuning),
            "device": _quoted(options.tuning_device),
        }
        given = {name: value for name, value in choices.items() if value is not None}
        workspaces = _spec("cuda-assign-workspaces", chip=options.processor, **given)
        alignment = {"alignment": 256}
        switches = {"stream-weights": options.stream_weights, "profile": options.profile}
        wanted = {name: True for name, is_on in switches.items() if is_on}
        lowering = _spec("convert-dnn-to-cuda", chip=options.processor, **wanted)
    else:
        conversion = ["convert-onnx-to-dnn"]
        fusion, layouts = ["dnn-fuse-dequantization", "dnn-fuse-layers"], "dnn-assign-layouts"
        workspaces = _spec("cpu-assign-workspaces", target=options.processor)
        alignment = {}
        lowering = _spec("convert-dnn-to-cpu", target=options.processor)
    memory = list[str]()
    split = ["dnn-split-weights"] if options.stream_weights else []
    match options.memory:
        case "pool":
            memory += [_spec("dnn-insert-memory-ops", mode="liveness" if options.reuse else "eager")]
            memory += [_spec("dnn-coalesce-tensors", in_place=options.in_place and options.reuse)]
            memory += ["dnn-slide-windows"] if options.stripes else []
            memory += split
            borrow = [_spec("dnn-borrow-outputs", **alignment)] if options.reuse else []
            # Libraries get what fits under the peak: on a GPU it must be the final one before they are asked.
            memory += borrow if options.is_cuda else []
            memory += [workspaces, *borrow]
            memory += [_pool_conversion(options, alignment)]
            memory += ["verify-dnn-pool"]
        case "eager" | "lazy":
            memory += [_spec("dnn-insert-memory-ops", mode=options.memory)]
            memory += split
            memory += [workspaces]
    return [
        Stage("onnx", ["onnx-infer-shapes"]),
        Stage(
            "dnn",
            [
                *conversion,
                *(fusion if options.fuse else []),
                "dce",
                layouts,
                *([_spec("dnn-schedule", **_more_states(options))] if options.reorder else []),
                *(_stripes(options.stripes) if options.stripes else []),
                *([_recompute(options)] if options.recompute_budget else []),
            ],
        ),
        Stage("mem", memory),
        Stage(
            "mlir",
            [
                lowering,
                *(["cpu-check-allocations"] if options.allocates and not options.is_cuda else []),
                *(["cpu-stream-weights"] if options.stream_weights and not options.is_cuda else []),
                *(["cpu-insert-clock"] if options.profile and not options.is_cuda else []),
            ],
        ),
    ]


def pipeline_text(options: Options) -> str:
    """The whole pipeline, to be pasted into `occamy-opt -p`."""
    return ",".join(stage.pipeline for stage in stages(options))
