"""The choice of a plan: what to spend to meet a memory limit, what other plans need, and what a refusal advises."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from xdsl.dialects.builtin import DictionaryAttr, IntegerAttr
from xdsl.passes import PassPipeline

from occamy_xdsl.dialects.dnn import MallocOp
from occamy_xdsl.dialects.signature import function_named
from occamy_xdsl.errors import MemoryLimitError, OccamyError
from occamy_xdsl.importer import ModelSource
from occamy_xdsl.pipeline_run import PipelineRun, Starts, available_passes, text_of
from occamy_xdsl.pipelines import (
    ORIGINAL,
    STRIPE_BUDGETS,
    Options,
    flags,
    in_mode,
    levers,
    striped,
    switched_off,
    without_extra_work,
)
from occamy_xdsl.report.memory import BudgetStep, MemoryReport, ModeStep, PassStep
from occamy_xdsl.transforms.dnn_convert_to_pool import PLAN
from occamy_xdsl.transforms.dnn_stripe import WHOLE_PEAK


class MemoryBudget:
    """The plans of one model, each made once, and the choice among them."""

    def __init__(self, model: ModelSource, starts: Starts, note: Callable[[str], None]):
        """`note` is told in one line what meeting a memory limit costs; `starts` are those of runs for the model."""
        self._model = model
        self._starts = starts
        self._note = note
        self._plans: dict[tuple[str, tuple[str, ...]], PipelineRun] = {}
        """By the program before memory planning and the passes after it."""
        self._base_is_pending = False
        """Whether the report has yet to be told what the plan without extra work looks like."""

    def choose(self, plan: PipelineRun) -> PipelineRun:
        """
        `plan`, or the plan without extra work where that needs no more, or the first that `levers` gives which is
        within the limit. Raises MemoryLimitError.
        """
        limit, plain = plan.options.memory_limit, without_extra_work(plan.options)
        peak = function_named(plan.module).attributes.get(WHOLE_PEAK)
        if limit is None and peak is not None and plan.pool_bytes < cast(IntegerAttr[Any], peak).value.data:
            self._base_is_pending = True
            return plan
        cheap = plan if plain == plan.options else self._planned(plain)
        best = cheap if cheap.pool_bytes <= plan.pool_bytes else plan
        levered = limit is not None and best.pool_bytes > limit
        if limit is not None and levered:
            best = self._within(limit, plan.options, best)
            if best.pool_bytes > limit:
                raise self._refusal(limit, plan.options, best)
        base = cheap.report
        if best is not cheap:
            best.amend_report(waterfall=_with_extra_work(best.options, best.report, base))
        if levered:
            best.amend_report(limit_options=flags(best.options))
            report = best.report
            self._note(
                f"memory limit of {limit} bytes met with {report.limit_options}: {report.pool_bytes} bytes instead "
                f"of {base.pool_bytes}, {_extra_percent(report, base):g} % more arithmetic, {report.calls} kernel "
                f"calls instead of {base.calls}"
            )
        self._plans.clear()
        return best

    def report(self, plan: PipelineRun, *, budgets: bool = False, compare: bool = False) -> MemoryReport:
        """
        The report of the plan that was chosen.

        With `budgets`, also what the model would need in stripes; with `compare`, with other ways of allocating.
        """
        if self._base_is_pending:
            base = self._planned(without_extra_work(plan.options)).report
            plan.amend_report(waterfall=_with_extra_work(plan.options, plan.report, base))
            self._base_is_pending = False
        return replace(
            plan.report,
            budgets=self._budget_curve(plan.options) if budgets else [],
            modes=self._memory_modes(plan.options) if compare else [],
        )

    def _planned(self, options: Options, model: ModelSource | None = None) -> PipelineRun:
        """The model after planning with other options, whether or not within the limits."""
        other = PipelineRun(model or self._model, options, self._starts if model is None else {})
        while "dnn" not in other.done:
            other.run_stage("mem")
        key = text_of(other.module), tuple(stage.pipeline for stage in other.pending)
        if key not in self._plans:
            other.run_stage("mem")
            self._plans[key] = other
        return self._plans[key]

    def _within(self, limit: int, options: Options, best: PipelineRun) -> PipelineRun:
        """The first plan of those of `levers` whose pool is at most `limit` bytes, or the one with the smallest."""
        for lever in levers(options):
            other = self._planned(lever)
            if other.pool_bytes < best.pool_bytes:
                best = other
            if best.pool_bytes <= limit:
                break
        return best

    def _refusal(self, limit: int, options: Options, best: PipelineRun) -> MemoryLimitError:
        """What is wrong with `best`, the smallest plan found for `options`, and what would help most."""
        report = best.report
        return MemoryLimitError(
            report.pool_bytes,
            limit,
            report.peak_node,
            report.largest_at_peak(5),
            self._advice(options, best, limit),
        )

    def _advice(self, given: Options, best: PipelineRun, limit: int) -> str:
        """
        The change that makes the model fit, or else helps most, in one sentence: without one of the `given` options
        that keeps the pool large, and only then with levers or with smaller inputs. `best` is the smallest plan found.
        """
        plans = [(name, options, self._planned(options)) for name, options in switched_off(given)]
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
        for size, resize in _resizings(self._model):
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

    def _budget_curve(self, options: Options) -> list[BudgetStep]:
        """The plan without extra work, and those with stripes within growing budgets."""
        base = replace(options, memory_limit=None)
        if base.memory != "pool" or not base.reuse:
            return []
        cheap = self._planned(without_extra_work(base))
        steps = list[BudgetStep]()
        for budget in (0.0, *STRIPE_BUDGETS):
            best = cheap
            if budget:
                other = self._planned(striped(without_extra_work(base), budget))
                best = other if other.pool_bytes < cheap.pool_bytes else cheap
            report = best.report
            steps.append(
                BudgetStep(
                    options=flags(striped(base, budget)) if budget else "--stripe-budget 0%",
                    stripe_budget=budget,
                    pool_bytes=report.pool_bytes,
                    arithmetic=report.arithmetic,
                    extra_percent=_extra_percent(report, cheap.report),
                    calls=report.calls,
                    weights_read_bytes=report.weights_read_bytes,
                )
            )
        return steps

    def _memory_modes(self, options: Options) -> list[ModeStep]:
        """The ways to find memory that the paper compares, with nothing that costs arithmetic."""
        plans = {mode: self._planned(in_mode(options, mode)) for mode in ("eager", "lazy", "pool")}
        reports = {mode: plan.report for mode, plan in plans.items()}
        heap_calls = {
            mode: sum(isinstance(op, MallocOp) for op in plan.module.walk()) for mode, plan in plans.items()
        }
        inserted = {step.name: step.max_live_bytes for step in reports["pool"].passes}
        module = self._model.import_module()
        PassPipeline.parse_spec(available_passes(), ORIGINAL).apply(plans["pool"].context, module)
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


def check_workspaces(report: MemoryReport, limit: int | None) -> None:
    """Raises MemoryLimitError where the scratch buffer of a kernel has more than `limit` bytes."""
    if limit is None or report.workspace_bytes <= limit:
        return
    largest = report.largest("workspace")
    raise MemoryLimitError(
        report.workspace_bytes,
        limit,
        largest[0].node,
        [(f"{t.name} of {t.node}", t.bytes) for t in largest[:5]],
        "hint: no kernel with a smaller workspace is known",
        what="workspace",
    )


def _extra_percent(report: MemoryReport, base: MemoryReport) -> float:
    """Arithmetic beyond that of another report, in percent."""
    return round(100 * (report.arithmetic - base.arithmetic) / base.arithmetic, 2) if base.arithmetic else 0.0


def _with_extra_work(options: Options, report: MemoryReport, base: MemoryReport) -> list[PassStep]:
    """The waterfall of a plan with stripes or recomputation: that of the plan without, and what they change."""
    names = {"stripes": options.stripes, "recomputation": options.recompute_budget}
    name = ", ".join(name for name, budget in names.items() if budget) or "longer search"
    extra = PassStep(name, report.max_live_bytes, _extra_percent(report, base))
    return [*base.waterfall[:-1], extra, PassStep("packing", report.pool_bytes)]


def _resizings(model: ModelSource) -> list[tuple[int, Callable[[int], tuple[str, ModelSource]]]]:
    """
    Sizes of the inputs that the caller chose: symbolic dimensions, and the batch in whole shapes. For each a function
    from a smaller size to the options that say it, and the model with it.
    """

    def dimension(name: str) -> Callable[[int], tuple[str, ModelSource]]:
        return lambda size: (f"--dim {name}={size}", replace(model, dims={**model.dims, name: size}))

    def batch(size: int) -> tuple[str, ModelSource]:
        shapes = {name: (size, *shape[1:]) for name, shape in model.shapes.items()}
        text = " ".join(f"--shape {name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())
        return text, replace(model, shapes=shapes)

    found = [(size, dimension(name)) for name, size in model.dims.items()]
    leading = {shape[0] if shape else 0 for shape in model.shapes.values()}
    return found + ([(leading.pop(), batch)] if len(leading) == 1 else [])
