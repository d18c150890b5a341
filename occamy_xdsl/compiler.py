"""From a model to something that runs: loading, compiling, and what artefacts are written from."""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from onnx import ModelProto
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    DictionaryAttr,
    IntegerAttr,
    ModuleOp,
    StringAttr,
)

from occamy_xdsl.dialects.dnn import ConvOp
from occamy_xdsl.dialects.location import node_name
from occamy_xdsl.dialects.weights import WeightsRefAttr, to_array
from occamy_xdsl.errors import ArgumentTypeError, InvalidInputError, UsageError
from occamy_xdsl.files import new_folder, refuse_overwriting, remove, replacing
from occamy_xdsl.importer import ModelSource
from occamy_xdsl.lowering.attributes import CALLS, MODEL_BYTES, POOL_BYTES, WEIGHTS, WEIGHTS_BYTES
from occamy_xdsl.lowering.interface import CLOCK, DEVICE_ALIGNMENT, WeightsPlace, weights_path
from occamy_xdsl.lowering.signature import Signature, TensorSpec
from occamy_xdsl.memory_budget import MemoryBudget, check_workspaces
from occamy_xdsl.pipeline_run import PipelineRun, Starts, no_garbage_collection, text_of
from occamy_xdsl.pipelines import (
    Options,
    make_options,
    stages,
)
from occamy_xdsl.report.memory import MemoryReport
from occamy_xdsl.runtime.executable import Array, Executable, LoadedModel
from occamy_xdsl.version import VERSION

# What generates code is imported where that is asked for: it takes as long as a report of a small model.
if TYPE_CHECKING:
    from occamy_xdsl.lowering.cpu.emit import CompiledModel
    from occamy_xdsl.lowering.cuda.convolutions import Problem
    from occamy_xdsl.lowering.cuda.emit import CompiledCudaModel

ELAPSED = "cudaEventElapsedTime"
"""The additional output of a profile on a GPU: milliseconds of each step."""


@dataclass(frozen=True)
class Model(ModelSource):
    """
    A model to compile: where it comes from, and what its symbolic dimensions are.

    `source` is a path, the bytes of a model file, or a ModelProto; `shapes` gives whole input shapes by input
    name, `dims` sizes of symbolic dimensions by name, in elements.
    """

    def memory_report(
        self, target: str = "cpu", *, budgets: bool = False, compare: bool = False, **options: Any
    ) -> MemoryReport:
        """
        What the model will need, without generating code or reading weights.

        With `budgets`, also what it would need in stripes; with `compare`, what other ways of allocating would need:
        that takes several plans. `options` are those of `occamy_xdsl.compile`. Raises UnsupportedModelError, UsageError
        for an option that cannot be honoured, and ArgumentTypeError for one of a wrong type or an unknown one.
        """
        compilation = Compilation(self, make_options("memory_report", {"target": target, **options}))
        return compilation.report(budgets=budgets, compare=compare)


def load(
    model: str | Path | bytes | ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
) -> Model:
    """
    A model from a path, bytes or ModelProto, checked by importing it once.

    Raises InvalidInputError for a wrong path, shape or dimension, UnsupportedModelError for a model that is
    not valid ONNX, and ArgumentTypeError for an argument of another type.
    """
    loaded = Model(
        bytes(model) if isinstance(model, bytearray | memoryview) else model,
        {name: _shape(name, shape) for name, shape in _by_name("shapes", shapes).items()},
        {name: _size(name, size) for name, size in _by_name("dims", dims).items()},
    )
    loaded.import_module()
    return loaded


def _by_name(argument: str, values: Any) -> Mapping[str, Any]:
    """A mapping from names; raises ArgumentTypeError for anything else."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise ArgumentTypeError(f"{argument}: expected a mapping from names, got {type(values).__name__}")
    named = cast(Mapping[Any, Any], values)
    for name in named:
        if not isinstance(name, str):
            raise ArgumentTypeError(f"{argument}: names are strings, got {name!r}")
    return named


def _shape(name: str, value: Any) -> list[int]:
    """A sequence of integers; raises ArgumentTypeError for what is none, InvalidInputError for other sizes."""
    if not isinstance(value, Iterable):
        raise ArgumentTypeError(f"'{name}': a shape is a sequence of integers, got {value!r}")
    return [_size(name, size) for size in cast(Iterable[Any], value)]


def _size(name: str, value: Any) -> int:
    """`value` if it is an integer of any type; raises InvalidInputError."""
    try:
        return index(value)
    except TypeError:
        raise InvalidInputError(f"'{name}': sizes are integers, got {value!r}") from None


def temporary_files(folder: Path, name: str) -> list[Path]:
    """The files for the program of the model `name` as imported, and after each stage."""
    return [
        folder / f"{name}.{i}-{stage}.mlir"
        for i, stage in enumerate(("import", "onnx", "dnn", "mem", "mlir"))
    ]


class Compilation:
    """One run of the pipeline. Stages run when their result is first asked for, each once."""

    def __init__(
        self,
        model: Model,
        options: Options,
        save_temps: Path | None = None,
        note: Callable[[str], None] = lambda text: None,
    ):
        """`note` is told in one line what meeting a memory limit costs."""
        self.model = model
        self.save_temps = save_temps
        starts: Starts = {}
        self._run = PipelineRun(model, options, starts)
        self._budget = MemoryBudget(model, starts, note)
        self._save("import")

    @property
    def options(self) -> Options:
        """What was asked for, and from the mem stage on what meeting a memory limit took besides."""
        return self._run.options

    @property
    def module(self) -> ModuleOp:
        """The program after the last stage that has run."""
        return self._run.module

    def _save(self, stage: str) -> None:
        """Writes the program after a stage to the folder for intermediate files, if there is one."""
        if self.save_temps is not None:
            self.save_temps.mkdir(parents=True, exist_ok=True)
            path = temporary_files(self.save_temps, self.model.name)[len(self._run.done)]
            with replacing(path) as temporary:
                temporary.write_text(text_of(self.module, locations=stage != "mlir"), encoding="utf-8")

    def run_to(self, stage: str) -> None:
        """
        Runs the stages up to and including `stage`: onnx, dnn, mem or mlir.

        Raises MemoryLimitError where the plan exceeds a limit whatever is tried.
        """
        while stage not in self._run.done:
            name = self._run.run_stage(stage)
            if name == "mem":
                self._run = self._budget.choose(self._run)
                check_workspaces(self._run.report, self.options.workspace_limit)
            # Of those on the way, the last one before lowering is enough; mlir-opt verifies what is lowered, and
            # sooner.
            if name in ("mem", stage) and name != "mlir":
                with no_garbage_collection():
                    self.module.verify()
            self._save(name)

    def report(self, *, budgets: bool = False, compare: bool = False) -> MemoryReport:
        """
        The memory report, from the plan alone.

        With `budgets`, also what the model would need in stripes; with `compare`, with other ways of allocating.
        """
        self.run_to("mem")
        return self._budget.report(self._run, budgets=budgets, compare=compare)

    @property
    def pool_bytes(self) -> int:
        """Bytes of the planned pool."""
        self.run_to("mem")
        return self._run.pool_bytes

    def ir(self, stage: str) -> str:
        """
        The program after a stage, as text: onnx, dnn, mem, mlir or llvm; for a GPU also ptx.

        Asks for an earlier stage than one already run recompile up to it. Raises UsageError for other names.
        """
        from occamy_xdsl.lowering import toolchain

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
        if stage in self._run.done[:-1]:
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
        from occamy_xdsl.lowering.cuda import ptx

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

        from xdsl.dialects.func import CallOp

        from occamy_xdsl.lowering.cpu.cpu_insert_clock import timed_ops

        return [
            (node_name(op), calls[0].callee.string_value() if len(calls) == 1 else op.name)
            for op in timed_ops(self.module)
            for calls in [[part for part in op.walk() if isinstance(part, CallOp)]]
        ]

    def convolutions(self) -> "list[Problem]":
        """The different convolutions that cuDNN is asked for, in order of execution."""
        from occamy_xdsl.lowering.cuda.select import problem_of

        self.run_to("mem")
        problems = (problem_of(op) for op in self.module.walk() if isinstance(op, ConvOp))
        return list({problem.key: problem for problem in problems}.values())

    def signature(self) -> Signature:
        """What a caller of the compiled model has to know."""
        self.run_to("mlir")
        assert self._run.signature is not None
        inputs, outputs = self._run.signature
        is_cuda = self.options.is_cuda
        if self.options.profile:
            calls = len(self.kernels())
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
            memory=self.options.memory,
            **({"pool_alignment": DEVICE_ALIGNMENT} if is_cuda else {}),
        )

    def compiled(self, folder: Path) -> "CompiledModel | CompiledCudaModel":
        """What artefacts are written from; the weights are written to a file in `folder`."""
        from occamy_xdsl.lowering import toolchain

        signature = self.signature()
        weights = write_weights(self.module, folder / "weights") if signature.weights_bytes else None
        if self.options.is_cuda:
            from occamy_xdsl.lowering.cuda.emit import CompiledCudaModel

            host = text_of(_part(self.module, kernels=False))
            model_bytes = _count(self.module, MODEL_BYTES)
            text = self.compiled_kernels()
            code = b""
            if self.options.cubin and text:
                code = toolchain.assemble_ptx(text, self.options.processor)
            streams = self.options.stream_weights
            return CompiledCudaModel(host, text, model_bytes, signature, weights, code, streams)

        from occamy_xdsl.lowering.cpu.emit import CompiledModel

        processor = self.options.processor
        isa = toolchain.Isa.host() if processor == "host" else toolchain.Isa.parse(processor)
        return CompiledModel(
            self._upstream_text(),
            signature,
            weights,
            isa,
            streams_weights=self.options.stream_weights,
            allocates=self.options.allocates,
        )


def _part(module: ModuleOp, *, kernels: bool) -> ModuleOp:
    """A copy of the gpu.modules of a lowered module, or of all that is not in them."""
    from xdsl.dialects import gpu

    return ModuleOp([op.clone() for op in module.ops if isinstance(op, gpu.ModuleOp) == kernels])


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

    def save(self, path: str | Path, weights: WeightsPlace = "embed") -> None:
        """As `Executable.save`; raises UsageError, too, where a file of the model would be overwritten."""
        path = Path(path)
        written = [path, *([weights_path(path)] if weights == "file" else [])]
        refuse_overwriting(written, self.compilation.model.files())
        super().save(path, weights)

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

    Raises UnsupportedModelError, MemoryLimitError, UsageError, ArgumentTypeError for an option of a wrong type or an
    unknown one, and NoDeviceError for a GPU where there is none.
    """
    if not isinstance(model, Model):
        model = load(model)
    check_threads(threads)
    given = {"target": target, "memory": memory, "memory_limit": memory_limit, **options}
    return compile_to_memory(Compilation(model, make_options("compile", given)))


def compile_to_memory(compilation: Compilation) -> CompiledExecutable:
    """
    Finishes a compilation for this machine and loads its code; the weights are in a temporary file.

    Raises NoDeviceError for a GPU where there is none.
    """
    folder = new_folder()
    try:
        executable = CompiledExecutable(compilation, _loaded(compilation, Path(folder.name)))
        weakref.finalize(executable, remove, folder, in_finalizer=True)
    except BaseException:
        remove(folder)
        raise
    return executable


def _loaded(compilation: Compilation, folder: Path) -> LoadedModel:
    """The code of a compilation in this process, its weights in `folder`."""
    artefact = compilation.compiled(folder)
    if compilation.options.is_cuda:
        from occamy_xdsl.lowering.cuda.emit import CompiledCudaModel
        from occamy_xdsl.runtime.cuda import CudaModel

        assert isinstance(artefact, CompiledCudaModel)
        return CudaModel(artefact, folder)

    from occamy_xdsl.lowering.cpu.emit import CompiledModel
    from occamy_xdsl.runtime.jit import JitModel

    assert isinstance(artefact, CompiledModel)
    return JitModel(artefact)


def check_threads(threads: int) -> None:
    """Raises UsageError for a number of threads that is not supported, ArgumentTypeError for what is no number."""
    if not isinstance(threads, int) or isinstance(threads, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentTypeError(f"threads {threads!r}: expected a whole number")
    if threads != 1:
        raise UsageError(f"--threads {threads}: generated code runs on 1 thread so far")
