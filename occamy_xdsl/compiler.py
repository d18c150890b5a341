"""From a model to something that runs: the stages of the pipeline, one after the other."""

import gc
import tempfile
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import StringIO
from operator import index
from pathlib import Path
from shutil import rmtree
from typing import Any, cast

import numpy as np
from onnx import ModelProto
from xdsl.context import Context
from xdsl.dialects import get_all_dialects as get_upstream_dialects
from xdsl.dialects import gpu
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    DictionaryAttr,
    IntegerAttr,
    ModuleOp,
    StringAttr,
    TensorType,
)
from xdsl.dialects.func import CallOp
from xdsl.passes import ModulePass, PassPipeline
from xdsl.printer import Printer
from xdsl.transforms import get_all_passes as get_upstream_passes
from xdsl.utils.hints import isa

from occamy_xdsl.analysis.liveness import sum_of_values
from occamy_xdsl.dialects import get_all_dialects
from occamy_xdsl.dialects.dnn import ConvOp, MallocOp, element_type_of, shape_of
from occamy_xdsl.dialects.location import node_name
from occamy_xdsl.dialects.signature import function_named, input_names, result_names
from occamy_xdsl.dialects.weights import WeightsRefAttr, numpy_dtype, to_array
from occamy_xdsl.errors import InvalidInputError, MemoryLimitError, OccamyError, UsageError
from occamy_xdsl.files import replacing
from occamy_xdsl.importer import import_model
from occamy_xdsl.lowering import toolchain
from occamy_xdsl.lowering.cpu.convert_dnn_to_cpu import POOL_BYTES, WEIGHTS, WEIGHTS_BYTES
from occamy_xdsl.lowering.cpu.cpu_insert_clock import CLOCK, timed_ops
from occamy_xdsl.lowering.cpu.emit import CompiledModel
from occamy_xdsl.lowering.cuda import ptx
from occamy_xdsl.lowering.cuda.convert_dnn_to_cuda import CALLS, MODEL_BYTES
from occamy_xdsl.lowering.cuda.convolutions import Problem
from occamy_xdsl.lowering.cuda.emit import CompiledCudaModel
from occamy_xdsl.lowering.cuda.select import problem_of
from occamy_xdsl.lowering.cuda.steps import ALIGNMENT
from occamy_xdsl.lowering.signature import Signature, TensorSpec
from occamy_xdsl.lowering.toolchain import Isa
from occamy_xdsl.pipelines import (
    EXTRA_WORK,
    ORIGINAL,
    STRIPE_BUDGETS,
    Options,
    flags,
    get_all_passes,
    in_mode,
    levers,
    passes_without_extra_work,
    stages,
    striped,
    switched_off,
    without_extra_work,
)
from occamy_xdsl.report.memory import BudgetStep, MemoryReport, ModeStep, PassStep, live_bytes
from occamy_xdsl.runtime.cuda import CudaModel
from occamy_xdsl.runtime.executable import Array, Executable, LoadedModel
from occamy_xdsl.runtime.jit import JitModel
from occamy_xdsl.transforms.dnn_convert_to_pool import PLAN
from occamy_xdsl.transforms.dnn_stripe import WHOLE_PEAK
from occamy_xdsl.version import VERSION

SILENT = (
    "dce",
    "onnx-infer-shapes",
    "dnn-convert-if-to-select",
    "dnn-stripe",
    "dnn-expand-stripes",
    "verify-dnn-pool",
)
"""Passes that change no memory, or whose effect shows only once tensors share memory again."""


ELAPSED = "cudaEventElapsedTime"
"""The additional output of a profile on a GPU: milliseconds of each step."""


def make_context() -> Context:
    """A context that knows xDSL's dialects and ours."""
    context = Context()
    for name, factory in {**get_upstream_dialects(), **get_all_dialects()}.items():
        context.register_dialect(name, factory)
    return context


def available_passes() -> dict[str, Callable[[], type[ModulePass]]]:
    """xDSL's passes and ours."""
    return {**get_upstream_passes(), **get_all_passes()}


@contextmanager
def _no_garbage_collection() -> Generator[None]:
    """
    Programs are so many objects that looking for garbage among them takes a third of a compilation, in vain:
    most of them live to its end.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def text_of(module: ModuleOp, *, locations: bool = False) -> str:
    """The module in custom assembly, with `loc(...)` after each op if asked for."""
    stream = StringIO()
    printer = Printer(stream, print_debuginfo=locations)
    printer.print_op(module)
    stream.write("\n")
    return stream.getvalue()


@dataclass(frozen=True)
class Model:
    """
    A model to compile: where it comes from, and what its symbolic dimensions are.

    `source` is a path, the bytes of a model file, or a ModelProto; `shapes` gives whole input shapes by input
    name, `dims` sizes of symbolic dimensions by name, in elements.
    """

    source: str | Path | bytes | ModelProto
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    dims: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def name(self) -> str:
        """The file's name without its suffix; "model" where there is no file."""
        return Path(self.source).stem if isinstance(self.source, str | Path) else "model"

    def import_module(self) -> ModuleOp:
        """A new module in the onnx dialect. Raises what `import_model` raises."""
        return import_model(self.source, self.shapes, self.dims)

    def memory_report(
        self, target: str = "cpu", *, budgets: bool = False, compare: bool = False, **options: Any
    ) -> MemoryReport:
        """
        What the model will need, without generating code or reading weights.

        With `budgets`, also what it would need in stripes; with `compare`, what other ways of allocating would need:
        that takes several plans. `options` are those of `occamy_xdsl.compile`. Raises UnsupportedModelError.
        """
        compilation = Compilation(self, Options(target=target, **options))
        return compilation.report(budgets=budgets, compare=compare)


def load(
    model: str | Path | bytes | ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
) -> Model:
    """
    A model from a path, bytes or ModelProto, checked by importing it once.

    Raises InvalidInputError for a wrong path, shape or dimension, UnsupportedModelError for a model that is
    not valid ONNX.
    """
    loaded = Model(
        model,
        {name: [_size(name, size) for size in shape] for name, shape in (shapes or {}).items()},
        {name: _size(name, size) for name, size in (dims or {}).items()},
    )
    loaded.import_module()
    return loaded


def _size(name: str, value: Any) -> int:
    """`value` if it is an integer of any type; raises InvalidInputError."""
    try:
        return index(value)
    except TypeError:
        raise InvalidInputError(f"'{name}': sizes are integers, got {value!r}") from None


_Signature = tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]


@dataclass(frozen=True)
class _Start:
    """A program right before the passes that spend arithmetic on memory, and what was noted on the way there."""

    module: ModuleOp
    steps: tuple[PassStep, ...]
    signature: _Signature | None
    unshared_bytes: int


class Compilation:
    """One run of the pipeline. Stages run when their result is first asked for, each once."""

    def __init__(
        self,
        model: Model,
        options: Options,
        save_temps: Path | None = None,
        note: Callable[[str], None] = lambda text: None,
        *,
        starts: "dict[tuple[str, ...], _Start] | None" = None,
    ):
        """
        `note` is told in one line what meeting a memory limit costs. `starts` are those of other compilations of the
        model, where this one begins if it can; it adds its own.
        """
        self.model = model
        self.options = options
        self.save_temps = save_temps
        self.note = note
        self.context = make_context()
        self.steps = list[PassStep]()
        self._pending = stages(options)
        self._signature: _Signature | None = None
        self._report: MemoryReport | None = None
        self._done = list[str]()
        self._plans: dict[tuple[str, tuple[str, ...]], Compilation] = {}
        """Other plans for the model, by the program before memory planning and the passes after it."""
        self._base_is_pending = False
        """Whether the report has yet to be told what the plan without extra work looks like."""
        self._unshared_bytes = 0
        self._starts = {} if starts is None else starts
        start = self._starts.get(passes_without_extra_work(options))
        if start is None:
            self.module = model.import_module()
        else:
            self._begin(start)
        self._save("import")

    def _begin(self, start: "_Start") -> None:
        """Takes the passes up to `start` as done."""
        self.module, self.steps = start.module.clone(), list(start.steps)
        self._signature, self._unshared_bytes = start.signature, start.unshared_bytes
        done, dnn_stage, *later = self._pending
        rest = dnn_stage.passes[len(passes_without_extra_work(self.options)) :]
        self._pending, self._done = [replace(dnn_stage, passes=rest), *later], [done.name]

    def _save(self, stage: str) -> None:
        """Writes the program after a stage to the folder for intermediate files, if there is one."""
        if self.save_temps is not None:
            self.save_temps.mkdir(parents=True, exist_ok=True)
            path = self.save_temps / f"{self.model.name}.{len(self._done)}-{stage}.mlir"
            with replacing(path) as temporary:
                temporary.write_text(text_of(self.module, locations=stage != "mlir"))

    def run_to(self, stage: str) -> None:
        """
        Runs the stages up to and including `stage`: onnx, dnn, mem or mlir.

        Raises MemoryLimitError where the plan exceeds a limit whatever is tried.
        """
        while stage not in self._done:
            name = self._run_stage(stage)
            if name == "mem":
                self._choose_plan()
                self._check_workspace_limit()
            # Of those on the way, the last one before lowering is enough; mlir-opt verifies what is lowered, and
            # sooner.
            if name in ("mem", stage) and name != "mlir":
                self.module.verify()
            self._save(name)

    def _run_stage(self, wanted: str) -> str:
        """Runs the next stage on the way to the stage `wanted`, and returns its name."""
        passes = available_passes()
        current = self._pending.pop(0)
        # The conversion infers shapes itself: an inferred onnx program is made for those who ask for it.
        passes_to_run = current.passes if current.name != "onnx" or wanted == "onnx" else ()
        with _no_garbage_collection():
            for text in passes_to_run:
                name = text.partition("{")[0]
                if name in EXTRA_WORK:
                    self._keep_start()
                PassPipeline.parse_spec(passes, text).apply(self.context, self.module)
                if current.name != "mlir":
                    self._observe(name)
        self._done.append(current.name)
        if current.name == "mem":
            self._report = self._make_report()
        return current.name

    def _keep_start(self) -> None:
        """Keeps the program for the plan without extra work, and for those that spend more."""
        key = passes_without_extra_work(self.options)
        if key not in self._starts:
            program = self.module.clone()
            self._starts[key] = _Start(program, tuple(self.steps), self._signature, self._unshared_bytes)

    def _observe(self, name: str) -> None:
        """Notes what later stages no longer show."""
        if name == "convert-onnx-to-dnn":
            main = function_named(self.module)
            self._signature = (
                _specs(input_names(main), [a.type for a in main.body.block.args]),
                _specs(result_names(main), main.function_type.outputs.data),
            )
            self._unshared_bytes = sum_of_values(main.body.block)
        if name not in SILENT:
            self.steps.append(PassStep(name, live_bytes(self.module)))

    def report(self, *, budgets: bool = False, compare: bool = False) -> MemoryReport:
        """
        The memory report, from the plan alone.

        With `budgets`, also what the model would need in stripes; with `compare`, with other ways of allocating.
        """
        self.run_to("mem")
        assert self._report is not None
        if self._base_is_pending:
            base = self._planned(without_extra_work(self.options)).report()
            waterfall = _with_extra_work(self.options, self._report, base)
            self._report, self._base_is_pending = replace(self._report, waterfall=waterfall), False
        return replace(
            self._report,
            budgets=self._budget_curve() if budgets else [],
            modes=self._memory_modes() if compare else [],
        )

    def _make_report(self) -> MemoryReport:
        return MemoryReport.of(
            self.module,
            model=self.model.name,
            target=self.options.target,
            memory=self.options.memory,
            planner=self.options.planner if self.options.memory == "pool" else "none",
            passes=self.steps,
            streams_weights=self.options.stream_weights,
            unshared_bytes=self._unshared_bytes,
            forbidden=_forbidden(self.options),
        )

    def _planned(self, options: Options, model: Model | None = None) -> "Compilation":
        """The model after planning with other options, whether or not within the limits; each plan is made once."""
        other = Compilation(model or self.model, options, starts=self._starts if model is None else None)
        while "dnn" not in other._done:
            other._run_stage("mem")
        key = text_of(other.module), tuple(stage.pipeline for stage in other._pending)
        if key not in self._plans:
            other._run_stage("mem")
            self._plans[key] = other
        return self._plans[key]

    def _adopt(self, other: "Compilation") -> None:
        """Continues with the plan of another compilation of the model."""
        self.options, self.module, self.steps = other.options, other.module, other.steps
        self._pending, self._signature, self._report = other._pending, other._signature, other._report

    def _choose_plan(self) -> None:
        """
        Continues with the plan without extra work where it needs no more, or with the first that `levers` gives
        which is within the limit. Raises MemoryLimitError.
        """
        limit, plain = self.options.memory_limit, without_extra_work(self.options)
        peak = function_named(self.module).attributes.get(WHOLE_PEAK)
        if limit is None and peak is not None and self.pool_bytes < cast(IntegerAttr[Any], peak).value.data:
            self._base_is_pending = True
            return
        cheap = self if plain == self.options else self._planned(plain)
        best = cheap if cheap.pool_bytes <= self.pool_bytes else self
        levered = limit is not None and best.pool_bytes > limit
        if limit is not None and levered:
            best = self._within(limit, self.options, best)
            if best.pool_bytes > limit:
                raise self._refusal(limit, best)
        report, base = best.report(), cheap.report()
        if best is not cheap:
            report = replace(report, waterfall=_with_extra_work(best.options, report, base))
        if best is not self:
            self._adopt(best)
        if levered:
            report = replace(report, limit_options=flags(best.options))
            self.note(
                f"memory limit of {limit} bytes met with {report.limit_options}: {report.pool_bytes} bytes instead "
                f"of {base.pool_bytes}, {_extra_percent(report, base):g} % more arithmetic, {report.calls} kernel "
                f"calls instead of {base.calls}"
            )
        self._report = report
        self._plans.clear()

    def _within(self, limit: int, options: Options, best: "Compilation") -> "Compilation":
        """The first plan of those of `levers` whose pool is at most `limit` bytes, or the one with the smallest."""
        for lever in levers(options):
            other = self._planned(lever)
            if other.pool_bytes < best.pool_bytes:
                best = other
            if best.pool_bytes <= limit:
                break
        return best

    def _refusal(self, limit: int, best: "Compilation") -> MemoryLimitError:
        """What is wrong with `best`, the smallest plan found, and what would help most."""
        report = best.report()
        return MemoryLimitError(
            report.pool_bytes,
            limit,
            report.peak_node,
            [(t.name, t.bytes) for t in report.live_at_peak()[:5]],
            self._advice(best, limit),
        )

    def _budget_curve(self) -> list[BudgetStep]:
        """The plan without extra work, and those with stripes within growing budgets."""
        base = replace(self.options, memory_limit=None)
        if base.memory != "pool" or not base.reuse:
            return []
        cheap = self._planned(without_extra_work(base))
        steps = list[BudgetStep]()
        for budget in (0.0, *STRIPE_BUDGETS):
            best = cheap
            if budget:
                other = self._planned(striped(without_extra_work(base), budget))
                best = other if other.pool_bytes < cheap.pool_bytes else cheap
            report = best.report()
            steps.append(
                BudgetStep(
                    options=flags(striped(base, budget)) if budget else "--stripe-budget 0%",
                    stripe_budget=budget,
                    pool_bytes=report.pool_bytes,
                    arithmetic=report.arithmetic,
                    extra_percent=_extra_percent(report, cheap.report()),
                    calls=report.calls,
                    weights_read_bytes=report.weights_read_bytes,
                )
            )
        return steps

    def _memory_modes(self) -> list[ModeStep]:
        """The ways to find memory that the paper compares, with nothing that costs arithmetic."""
        plans = {mode: self._planned(in_mode(self.options, mode)) for mode in ("eager", "lazy", "pool")}
        reports = {mode: plan.report() for mode, plan in plans.items()}
        heap_calls = {
            mode: sum(isinstance(op, MallocOp) for op in plan.module.walk()) for mode, plan in plans.items()
        }
        inserted = {step.name: step.max_live_bytes for step in reports["pool"].passes}
        module = self.model.import_module()
        PassPipeline.parse_spec(available_passes(), ORIGINAL).apply(self.context, module)
        original = cast(DictionaryAttr, function_named(module).attributes[PLAN]).data["pool_bytes"]
        return [
            ModeStep("eager", "all buffers up front", reports["eager"].pool_bytes, heap_calls["eager"]),
            ModeStep("lazy", "buffers around each use", reports["lazy"].pool_bytes, heap_calls["lazy"]),
            ModeStep(
                "liveness",
                "buffers from first to last use",
                inserted["dnn-insert-memory-ops"],
                heap_calls["eager"],
            ),
            ModeStep(
                "original's pool",
                "first fit, nothing in place",
                cast(IntegerAttr[Any], original).value.data,
                0,
            ),
            ModeStep("pool", "this compiler's plan", reports["pool"].pool_bytes, 0),
        ]

    @property
    def pool_bytes(self) -> int:
        """Bytes of the planned pool."""
        self.run_to("mem")
        assert self._report is not None
        return self._report.pool_bytes

    def _advice(self, best: "Compilation", limit: int) -> str:
        """
        The change that makes the model fit, or else helps most, in one sentence: without an option that keeps the
        pool large, and only then with levers or with smaller inputs. `best` is the smallest plan found.
        """
        plans = [(name, options, self._planned(options)) for name, options in switched_off(self.options)]
        found = [(f"without {name}", plan.pool_bytes) for name, _, plan in plans]
        if not any(pool_bytes <= limit for _, pool_bytes in found):
            levered = [(name, plan, self._within(limit, options, plan)) for name, options, plan in plans]
            found += [
                (f"without {name} and with {flags(other.options)}", other.pool_bytes)
                for name, plan, other in levered
                if other is not plan
            ]
        if not any(pool_bytes <= limit for _, pool_bytes in found):
            found += self._smaller_inputs(best.options, limit, best.pool_bytes)
        text, pool_bytes = min(found, key=lambda change: change[1], default=("", best.pool_bytes))
        if pool_bytes >= best.pool_bytes:
            how = f"{flags(best.options)} needs" if flags(best.options) else "these options need"
            return f"hint: {how} the least of all that was tried, only smaller inputs need less"
        return f"hint: {text}, {pool_bytes} bytes are {'enough' if pool_bytes <= limit else 'needed'}"

    def _smaller_inputs(self, options: Options, limit: int, needed: int) -> list[tuple[str, int]]:
        """For each size of the inputs that the caller chose: the largest one tried that fits, or else 1."""
        found = list[tuple[str, int]]()
        for size, resize in _resizings(self.model):
            count = size
            while count > 1:
                count = max(1, min(count // 2, size * limit // needed))
                text, model = resize(count)
                try:
                    pool_bytes = self._planned(options, model).pool_bytes
                except OccamyError:
                    break  # the model does not work with that size
                if pool_bytes <= limit or count == 1:
                    found.append((f"with {text}", pool_bytes))
                    break
        return found

    def _check_workspace_limit(self) -> None:
        limit = self.options.workspace_limit
        if limit is not None and (report := self.report()).workspace_bytes > limit:
            largest = report.largest("workspace")
            raise MemoryLimitError(
                report.workspace_bytes,
                limit,
                largest[0].node,
                [(f"{t.name} of {t.node}", t.bytes) for t in largest[:5]],
                "hint: no kernel with a smaller workspace is known",
                what="workspace",
            )

    def ir(self, stage: str) -> str:
        """
        The program after a stage, as text: onnx, dnn, mem, mlir or llvm; for a GPU also ptx.

        Asks for an earlier stage than one already run recompile up to it. Raises UsageError for other names.
        """
        known = [*(step.name for step in stages(self.options)), "llvm", "ptx"]
        if stage not in known:
            raise UsageError(f"'{stage}' is no stage, the stages are: {', '.join(known)}")
        if stage == "ptx":
            return self.compiled_kernels()
        if stage == "llvm" and self.options.is_cuda:
            self.run_to("mlir")
            return toolchain.translate_to_llvm(text_of(_part(self.module, kernels=False)))
        if stage == "llvm":
            return toolchain.translate_to_llvm(toolchain.run_mlir_opt(self.ir("mlir")))
        if stage in self._done and self._done[-1] != stage:
            return Compilation(self.model, self.options).ir(stage)
        self.run_to(stage)
        return self._upstream_text() if stage == "mlir" else text_of(self.module)

    def _upstream_text(self) -> str:
        """The lowered module without the list of weights, which only we can read."""
        listing = dict(self.module.attributes)
        self.module.attributes.clear()
        text = text_of(self.module)
        self.module.attributes.update(listing)
        return text

    def compiled_kernels(self) -> str:
        """The PTX of all kernels, empty if there are none. Raises UsageError for a CPU."""
        if not self.options.is_cuda:
            raise UsageError(f"ptx: target '{self.options.target}' has none, only cuda")
        self.run_to("mlir")
        kernels = _part(self.module, kernels=True)
        return ptx.assemble(text_of(kernels), self.options.processor) if kernels.body.block.ops else ""

    def kernels(self) -> list[tuple[str, str]]:
        """
        The ONNX node and the kernel of each call that a profile times, in order of execution; control flow counts as
        one call. For a GPU the model must be compiled for a profile.
        """
        self.run_to("mlir")
        if self.options.is_cuda:
            calls = cast(ArrayAttr[ArrayAttr[StringAttr]], self.module.attributes[CALLS])
            return [(node.data, kernel.data) for node, kernel in calls]
        return [
            (node_name(op), calls[0].callee.string_value() if len(calls) == 1 else op.name)
            for op in timed_ops(self.module)
            for calls in [[part for part in op.walk() if isinstance(part, CallOp)]]
        ]

    def convolutions(self) -> list[Problem]:
        """The different convolutions that cuDNN is asked for, in order of execution."""
        self.run_to("mem")
        problems = (problem_of(op) for op in self.module.walk() if isinstance(op, ConvOp))
        return list({problem.key: problem for problem in problems}.values())

    def signature(self) -> Signature:
        """What a caller of the compiled model has to know."""
        self.run_to("mlir")
        assert self._signature is not None
        inputs, outputs = self._signature
        if self.options.profile:
            calls = len(self.kernels())
            is_cuda = self.options.is_cuda
            outputs += (
                TensorSpec(ELAPSED, "float32", (calls,))
                if is_cuda
                else TensorSpec(CLOCK, "int64", (calls + 1, 2)),
            )
        return Signature(
            inputs,
            outputs,
            target=self.options.target,
            version=VERSION,
            pool_bytes=_count(self.module, POOL_BYTES),
            weights_bytes=_count(self.module, WEIGHTS_BYTES),
            **({"pool_alignment": ALIGNMENT} if self.options.is_cuda else {}),
        )

    def compiled(self, folder: Path) -> CompiledModel | CompiledCudaModel:
        """What artefacts are written from; the weights are written to a file in `folder`."""
        signature = self.signature()
        weights = write_weights(self.module, folder / "weights") if signature.weights_bytes else None
        if self.options.is_cuda:
            host = text_of(_part(self.module, kernels=False))
            model_bytes = _count(self.module, MODEL_BYTES)
            text = self.compiled_kernels()
            code = b""
            if self.options.cubin and text:
                code = toolchain.assemble_ptx(text, self.options.processor)
            streams = self.options.stream_weights
            return CompiledCudaModel(host, text, model_bytes, signature, weights, code, streams)
        isa = Isa.host() if self.options.processor == "host" else Isa.parse(self.options.processor)
        return CompiledModel(
            self._upstream_text(),
            signature,
            weights,
            isa,
            streams_weights=self.options.stream_weights,
            allocates=self.options.allocates,
        )


def _forbidden(options: Options) -> str:
    """The option that keeps buffers from sharing memory, as the command line spells it."""
    if options.memory != "pool":
        return f"--memory {options.memory}"
    if not options.reuse:
        return "--no-reuse"
    return "" if options.in_place else "--no-inplace"


def _extra_percent(report: MemoryReport, base: MemoryReport) -> float:
    """Arithmetic beyond that of another report, in percent."""
    return round(100 * (report.arithmetic - base.arithmetic) / base.arithmetic, 2) if base.arithmetic else 0.0


def _with_extra_work(options: Options, report: MemoryReport, base: MemoryReport) -> list[PassStep]:
    """The waterfall of a plan with stripes or recomputation: that of the plan without, and what they change."""
    names = {"stripes": options.stripes, "recomputation": options.recompute_budget}
    name = ", ".join(name for name, budget in names.items() if budget) or "longer search"
    extra = PassStep(name, report.max_live_bytes, _extra_percent(report, base))
    return [*base.waterfall[:-1], extra, PassStep("packing", report.pool_bytes)]


def _resizings(model: Model) -> list[tuple[int, Callable[[int], tuple[str, Model]]]]:
    """
    Sizes of the inputs that the caller chose: symbolic dimensions, and the batch in whole shapes. For each a function
    from a smaller size to the options that say it, and the model with it.
    """

    def dimension(name: str) -> Callable[[int], tuple[str, Model]]:
        return lambda size: (f"--dim {name}={size}", replace(model, dims={**model.dims, name: size}))

    def batch(size: int) -> tuple[str, Model]:
        shapes = {name: (size, *shape[1:]) for name, shape in model.shapes.items()}
        text = " ".join(f"--shape {name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())
        return text, replace(model, shapes=shapes)

    found = [(size, dimension(name)) for name, size in model.dims.items()]
    leading = {shape[0] if shape else 0 for shape in model.shapes.values()}
    return found + ([(leading.pop(), batch)] if len(leading) == 1 else [])


def _part(module: ModuleOp, *, kernels: bool) -> ModuleOp:
    """A copy of the gpu.modules of a lowered module, or of all that is not in them."""
    return ModuleOp([op.clone() for op in module.ops if isinstance(op, gpu.ModuleOp) == kernels])


def _specs(names: Sequence[str], types: Sequence[Any]) -> tuple[TensorSpec, ...]:
    specs = list[TensorSpec]()
    for name, type in zip(names, types, strict=True):
        assert isa(type, TensorType)
        specs.append(TensorSpec(name, numpy_dtype(element_type_of(type)).name, shape_of(type)))
    return tuple(specs)


def _count(module: ModuleOp, name: str) -> int:
    return cast(IntegerAttr[Any], module.attributes[name]).value.data


def weights_entries(module: ModuleOp) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """Byte offset and values of each tensor of the weights blob, one in memory at a time."""
    for entry in cast(ArrayAttr[DictionaryAttr], module.attributes[WEIGHTS]):
        value, offset = entry.data["value"], cast(IntegerAttr[Any], entry.data["offset"]).value.data
        if isinstance(value, WeightsRefAttr):
            yield offset, value.data.array()
        else:
            yield offset, to_array(value, cast(DenseIntOrFPElementsAttr[Any], value).type)


def write_weights(module: ModuleOp, path: Path) -> Path:
    """Writes the weights blob that the lowered module lists."""
    with path.open("wb") as file:
        for offset, array in weights_entries(module):
            file.seek(offset)
            file.write(np.ascontiguousarray(array).tobytes())
        file.truncate(_count(module, WEIGHTS_BYTES))
    return path


def call_times(outputs: Mapping[str, Array]) -> Array:
    """Microseconds of each call of a run, from the output that a profile adds to the model's; see `kernels`."""
    if ELAPSED in outputs:
        return 1e3 * outputs[ELAPSED].astype(np.float64)
    seconds, nanoseconds = outputs[CLOCK].T
    return np.diff(1e6 * seconds + 1e-3 * nanoseconds)


class CompiledExecutable(Executable):
    """An executable that was compiled in this process, and still knows its intermediate programs."""

    def __init__(self, compilation: Compilation, model: LoadedModel):
        super().__init__(model)
        self.compilation = compilation

    def ir(self, stage: str) -> str:
        """The program after a stage, as text: onnx, dnn, mem, mlir or llvm."""
        return self.compilation.ir(stage)

    def memory_report(self) -> MemoryReport:
        """What the model needs."""
        return self.compilation.report()


def compile(
    model: Model | str | Path | bytes | ModelProto,
    target: str = "cpu",
    memory: str = "pool",
    memory_limit: int | None = None,
    threads: int = 1,
    **options: Any,
) -> CompiledExecutable:
    """
    Compiles a model for this machine and loads it.

    `memory_limit` is in bytes; further `options` are the fields of `pipelines.Options`.

    Raises UnsupportedModelError, MemoryLimitError, UsageError, and NoDeviceError for a GPU where there is none.
    """
    if not isinstance(model, Model):
        model = load(model)
    check_threads(threads)
    chosen = Options(target=target, memory=cast(Any, memory), memory_limit=memory_limit, **options)
    return compile_to_memory(Compilation(model, chosen))


def compile_to_memory(compilation: Compilation) -> CompiledExecutable:
    """
    Finishes a compilation for this machine and loads its code; the weights are in a temporary file.

    Raises NoDeviceError for a GPU where there is none.
    """
    folder = Path(tempfile.mkdtemp(prefix="occamy-"))
    try:
        artefact = compilation.compiled(folder)
        if isinstance(artefact, CompiledCudaModel):
            executable = CompiledExecutable(compilation, CudaModel(artefact, folder))
        else:
            executable = CompiledExecutable(compilation, JitModel(artefact))
    except BaseException:
        rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(executable, rmtree, folder, True)
    return executable


def check_threads(threads: int) -> None:
    """Raises UsageError for a number of threads that is not supported."""
    if threads != 1:
        raise UsageError(f"--threads {threads}: generated code runs on 1 thread so far")
