"""A model's program on its way through the stages of the pipeline, and what is noted on that way."""

import gc
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

from xdsl.context import Context
from xdsl.dialects import get_all_dialects as get_upstream_dialects
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.passes import ModulePass, PassPipeline
from xdsl.printer import Printer
from xdsl.transforms import get_all_passes as get_upstream_passes
from xdsl.utils.hints import isa

from occamy_xdsl.analysis.liveness import sum_of_values
from occamy_xdsl.dialects import get_all_dialects
from occamy_xdsl.dialects.dnn import element_type_of, shape_of
from occamy_xdsl.dialects.signature import function_named, input_names, result_names
from occamy_xdsl.dialects.weights import numpy_dtype
from occamy_xdsl.importer import ModelSource
from occamy_xdsl.lowering.signature import TensorSpec
from occamy_xdsl.pipelines import EXTRA_WORK, Options, get_all_passes, passes_without_extra_work, stages
from occamy_xdsl.report.memory import MemoryReport, PassStep, live_bytes

SILENT = (
    "dce",
    "onnx-infer-shapes",
    "dnn-convert-if-to-select",
    "dnn-stripe",
    "dnn-expand-stripes",
    "verify-dnn-pool",
)
"""Passes that change no memory, or whose effect shows only once tensors share memory again."""


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
def no_garbage_collection() -> Generator[None]:
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


Inputs = tuple[TensorSpec, ...]
Outputs = tuple[TensorSpec, ...]


@dataclass(frozen=True)
class Start:
    """A program right before the passes that spend arithmetic on memory, and what was noted on the way there."""

    module: ModuleOp
    steps: tuple[PassStep, ...]
    signature: tuple[Inputs, Outputs] | None
    unshared_bytes: int


Starts = dict[tuple[str, ...], Start]
"""By the passes that lead there."""


class PipelineRun:
    """
    One run of the pipeline for `options`, stage after stage; its plan may exceed any limit.

    It begins at one of `starts`, those of other runs for the model, if it can, and adds its own.
    """

    def __init__(self, model: ModelSource, options: Options, starts: Starts):
        self.options = options
        self.context = make_context()
        self.steps = list[PassStep]()
        """Bytes live after each pass so far."""
        self.pending = stages(options)
        """Stages that have yet to run."""
        self.done = list[str]()
        """Names of the stages that have run."""
        self.signature: tuple[Inputs, Outputs] | None = None
        """What the caller of the model sees of it; known from the dnn stage on."""
        self._model_name = model.name
        self._report: MemoryReport | None = None
        self._unshared_bytes = 0
        self._starts = starts
        start = starts.get(passes_without_extra_work(options))
        if start is None:
            with no_garbage_collection():
                self.module = model.import_module()
        else:
            self._begin(start)

    def _begin(self, start: Start) -> None:
        """Takes the passes up to `start` as done."""
        self.module, self.steps = start.module.clone(), list(start.steps)
        self.signature, self._unshared_bytes = start.signature, start.unshared_bytes
        done, dnn_stage, *later = self.pending
        rest = dnn_stage.passes[len(passes_without_extra_work(self.options)) :]
        self.pending, self.done = [replace(dnn_stage, passes=rest), *later], [done.name]

    def run_stage(self, wanted: str) -> str:
        """Runs the next stage on the way to the stage `wanted`, and returns its name."""
        passes = available_passes()
        current = self.pending.pop(0)
        # The conversion infers shapes itself: an inferred onnx program is made for those who ask for it.
        passes_to_run = current.passes if current.name != "onnx" or wanted == "onnx" else ()
        with no_garbage_collection():
            for text in passes_to_run:
                name = text.partition("{")[0]
                if name in EXTRA_WORK:
                    self._keep_start()
                PassPipeline.parse_spec(passes, text).apply(self.context, self.module)
                if current.name != "mlir":
                    self._observe(name)
        self.done.append(current.name)
        if current.name == "mem":
            self._report = self._make_report()
        return current.name

    def _keep_start(self) -> None:
        """Keeps the program for the plan without extra work, and for those that spend more."""
        key = passes_without_extra_work(self.options)
        if key not in self._starts:
            program = self.module.clone()
            self._starts[key] = Start(program, tuple(self.steps), self.signature, self._unshared_bytes)

    def _observe(self, name: str) -> None:
        """Notes what later stages no longer show."""
        if name == "convert-onnx-to-dnn":
            main = function_named(self.module)
            self.signature = (
                _specs(input_names(main), [a.type for a in main.body.block.args]),
                _specs(result_names(main), main.function_type.outputs.data),
            )
            self._unshared_bytes = sum_of_values(main.body.block)
        if name not in SILENT:
            self.steps.append(PassStep(name, live_bytes(self.module)))

    @property
    def report(self) -> MemoryReport:
        """The memory report; there is one from the mem stage on."""
        assert self._report is not None
        return self._report

    def amend_report(self, **changes: Any) -> None:
        """Sets fields of the report that other plans decide."""
        self._report = replace(self.report, **changes)

    @property
    def pool_bytes(self) -> int:
        """Bytes of the planned pool."""
        return self.report.pool_bytes

    def _make_report(self) -> MemoryReport:
        return MemoryReport.of(
            self.module,
            model=self._model_name,
            target=self.options.target,
            memory=self.options.memory,
            planner=self.options.planner if self.options.memory == "pool" else "none",
            passes=self.steps,
            streams_weights=self.options.stream_weights,
            unshared_bytes=self._unshared_bytes,
            forbidden=_forbidden(self.options),
        )


def _forbidden(options: Options) -> str:
    """The option that keeps buffers from sharing memory, as the command line spells it."""
    if options.memory != "pool":
        return f"--memory {options.memory}"
    if not options.reuse:
        return "--no-reuse"
    return "" if options.in_place else "--no-inplace"


def _specs(names: Sequence[str], types: Sequence[Any]) -> tuple[TensorSpec, ...]:
    specs = list[TensorSpec]()
    for name, type in zip(names, types, strict=True):
        assert isa(type, TensorType)
        specs.append(TensorSpec(name, numpy_dtype(element_type_of(type)).name, shape_of(type)))
    return tuple(specs)
