"""From a model to something that runs: the stages of the pipeline, one after the other."""

import gc
import tempfile
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from io import StringIO
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
from occamy_xdsl.dialects.dnn import ConvOp, element_type_of, shape_of
from occamy_xdsl.dialects.location import node_name
from occamy_xdsl.dialects.signature import function_named, input_names, result_names
from occamy_xdsl.dialects.weights import WeightsRefAttr, numpy_dtype, to_array
from occamy_xdsl.errors import MemoryLimitError, UsageError
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
from occamy_xdsl.pipelines import Options, get_all_passes, levers, stages, switched_off
from occamy_xdsl.report.memory import MemoryReport, PassStep, live_bytes
from occamy_xdsl.runtime.cuda import CudaModel
from occamy_xdsl.runtime.executable import Array, Executable, LoadedModel
from occamy_xdsl.runtime.jit import JitModel
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

    def memory_report(self, target: str = "cpu", **options: Any) -> MemoryReport:
        """
        What the model will need, without generating code or reading weights.

        `options` are those of `occamy_xdsl.compile`. Raises UnsupportedModelError.
        """
        compilation = Compilation(self, Options(target=target, **options))
        return compilation.report()


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
    loaded = Model(model, dict(shapes or {}), dict(dims or {}))
    loaded.import_module()
    return loaded


class Compilation:
    """One run of the pipeline. Stages run when their result is first asked for, each once."""

    def __init__(self, model: Model, options: Options, save_temps: Path | None = None):
        self.model = model
        self.options = options
        self.save_temps = save_temps
        self.context = make_context()
        self.module = model.import_module()
        self.steps = list[PassStep]()
        self._pending = stages(options)
        self._signature: tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]] | None = None
        self._report: MemoryReport | None = None
        self._done = list[str]()
        self._unshared_bytes = 0
        self._save("import")

    def _save(self, stage: str) -> None:
        """Writes the program after a stage to the folder for intermediate files, if there is one."""
        if self.save_temps is not None:
            self.save_temps.mkdir(parents=True, exist_ok=True)
            path = self.save_temps / f"{self.model.name}.{len(self._done)}-{stage}.mlir"
            path.write_text(text_of(self.module, locations=stage != "mlir"))

    def run_to(self, stage: str) -> None:
        """
        Runs the stages up to and including `stage`: onnx, dnn, mem or mlir.

        Raises MemoryLimitError where the plan exceeds a limit whatever is tried.
        """
        while stage not in self._done:
            name = self._run_stage(stage)
            if name == "mem":
                self._drop_useless_stripes()
                self._meet_memory_limit()
                self._check_workspace_limit()
            self._save(name)

    def _run_stage(self, wanted: str) -> str:
        """Runs the next stage on the way to the stage `wanted`, and returns its name."""
        passes = available_passes()
        current = self._pending.pop(0)
        # The conversion infers shapes itself: an inferred onnx program is made for those who ask for it.
        passes_to_run = current.passes if current.name != "onnx" or wanted == "onnx" else ()
        with _no_garbage_collection():
            for text in passes_to_run:
                PassPipeline.parse_spec(passes, text).apply(self.context, self.module)
                if current.name != "mlir":
                    self._observe(text.partition("{")[0])
        if current.name != "mlir":  # mlir-opt verifies that one, and sooner
            self.module.verify()
        self._done.append(current.name)
        if current.name == "mem":
            self._report = self._make_report()
        return current.name

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

    def report(self) -> MemoryReport:
        """The memory report, from the plan alone."""
        self.run_to("mem")
        assert self._report is not None
        return self._report

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
        )

    def _planned(self, options: Options) -> "Compilation":
        """The same model after planning with other options, whether or not within the limits."""
        other = Compilation(self.model, options)
        while "mem" not in other._done:
            other._run_stage("mem")
        return other

    def _drop_useless_stripes(self) -> None:
        """Continues without stripes that nobody asked for and that do not lower the pool, as workspaces may grow."""
        if self.options.stripes and self.options.stripe_budget is None:
            whole = self._planned(replace(self.options, stripe_budget=0.0))
            if whole.pool_bytes <= self.pool_bytes:
                self._adopt(whole)

    def _adopt(self, other: "Compilation") -> None:
        """Continues with the plan of another compilation of the model."""
        self.module, self.steps, self._report = other.module, other.steps, other._report
        self._pending, self._signature = other._pending, other._signature

    def _meet_memory_limit(self) -> None:
        """Continues with the first of the plans that `levers` gives which is within the limit."""
        limit, best = self.options.memory_limit, self
        if limit is None:
            return
        for options in levers(self.options):
            if best.report().pool_bytes <= limit:
                break
            if options != self.options and (other := self._planned(options)).pool_bytes < best.pool_bytes:
                best = other
        if best.pool_bytes > limit:
            report = best.report()
            raise MemoryLimitError(
                report.pool_bytes,
                limit,
                report.peak_node,
                [(t.name, t.bytes) for t in report.live_at_peak()[:5]],
                self._advice(report, limit),
            )
        if best is not self:
            self.options = best.options
            self._adopt(best)

    @property
    def pool_bytes(self) -> int:
        """Bytes of the planned pool."""
        return self.report().pool_bytes

    def _advice(self, report: MemoryReport, limit: int) -> str:
        """What the pool would be without each option that keeps it large; the best of them in one sentence."""
        others = [(flags, self._planned(options).pool_bytes) for flags, options in switched_off(self.options)]
        flags, size = min(others, key=lambda other: other[1], default=("", report.pool_bytes))
        if size >= report.pool_bytes:
            return report.advice()
        return f"hint: without {flags}, {size} bytes are {'enough' if size <= limit else 'needed'}"

    def _check_workspace_limit(self) -> None:
        report, limit = self.report(), self.options.workspace_limit
        if limit is not None and report.workspace_bytes > limit:
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

        Asks for an earlier stage than one already run recompile up to it.
        """
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
            (node_name(op), op.callee.string_value() if isinstance(op, CallOp) else op.name)
            for op in timed_ops(self.module)
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
        return CompiledModel(self._upstream_text(), signature, weights, isa, self.options.stream_weights)


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
