"""The compile options, shared by all commands that compile."""

import inspect
import sys
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

import typer

from occamy_xdsl.errors import UsageError
from occamy_xdsl.files import refuse_overwriting
from occamy_xdsl.tools.output import make_folder, note

if TYPE_CHECKING:
    from occamy_xdsl.compiler import Compilation
    from occamy_xdsl.pipelines import Options

ModelArgument = Annotated[Path, typer.Argument(metavar="M.onnx", help="The model; - is standard input.")]

Emit = Literal["onnx", "dnn", "mem", "mlir", "llvm", "ptx", "obj", "lib", "exe", "header"]


@dataclass(frozen=True)
class CompileOptions:
    """What the command line says about a compilation, as text; the fields are the options."""

    target: Annotated[
        str,
        typer.Option(metavar="cpu[:CPU]|cuda[:sm_XX]", help="Processor, by LLVM's name; cpu is this one."),
    ] = "cpu"
    shape: Annotated[
        list[str], typer.Option(metavar="NAME:1x3x224x224", help="Shape of an input; may be repeated.")
    ] = field(default_factory=list[str])
    dim: Annotated[
        list[str], typer.Option(metavar="NAME=4", help="Size of a symbolic dimension; may be repeated.")
    ] = field(default_factory=list[str])
    memory: Annotated[
        Literal["pool", "lazy", "eager"],
        typer.Option(help="One planned pool, or heap buffers: around each use, or all up front."),
    ] = "pool"
    planner: Annotated[
        Literal["search", "greedy-by-size", "best-fit", "first-fit"],
        typer.Option(help="How buffers are placed in the pool."),
    ] = "search"
    optimize: Annotated[Literal["memory", "balanced", "speed"], typer.Option(help="What to favour.")] = (
        "balanced"
    )
    stripe_budget: Annotated[
        str | None,
        typer.Option(
            metavar="PERCENT",
            help="Extra arithmetic that execution in stripes of rows may cost; "
            "5% with --optimize memory, else 0%, which is off.",
        ),
    ] = None
    recompute_budget: Annotated[
        str,
        typer.Option(
            metavar="PERCENT",
            help="Extra arithmetic that computing values again, rather than keeping them, may cost.",
        ),
    ] = "0%"
    memory_limit: Annotated[
        str | None, typer.Option(metavar="64MiB", help="Largest pool allowed; exit 4 where it cannot be met.")
    ] = None
    workspace_limit: Annotated[
        str | None, typer.Option(metavar="8MiB", help="Largest scratch buffer of a kernel allowed.")
    ] = None
    tuning: Annotated[
        str | None,
        typer.Option(metavar="FILE.json", help="Convolutions measured by `occamy tune`, for a cuda target."),
    ] = None
    tuning_device: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose measurements, where several devices are in the file."),
    ] = None
    cubin: Annotated[
        bool,
        typer.Option("--cubin", help="Embed machine code for the cuda architecture beside PTX; needs ptxas."),
    ] = False
    no_fuse: Annotated[bool, typer.Option("--no-fuse", help="Keep every layer apart.")] = False
    no_reuse: Annotated[bool, typer.Option("--no-reuse", help="Give every buffer memory of its own.")] = False
    no_inplace: Annotated[
        bool, typer.Option("--no-inplace", help="Never write a result over its operand.")
    ] = False
    no_reorder: Annotated[bool, typer.Option("--no-reorder", help="Keep the model's order of nodes.")] = False
    threads: Annotated[int, typer.Option(metavar="N", help="Threads of a run.")] = 1
    cache: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of earlier compilations to reuse.")
    ] = None
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Compile afresh.")] = False
    save_temps: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the program after each stage there.")
    ] = None
    print_pipeline: Annotated[
        bool,
        typer.Option("--print-pipeline", help="Print the passes, as occamy-opt -p takes them, and stop."),
    ] = False

    def given(self) -> list[str]:
        """The options whose values are not the defaults, as they are spelled."""
        return ["--" + f.name.replace("_", "-") for f in fields(self) if getattr(self, f.name) != _default(f)]

    def resolve(self) -> "Options":
        """
        The options of the pipeline.

        Raises UsageError for what cannot be honoured. Prints the pipeline and exits if that was asked for.
        """
        from occamy_xdsl.compiler import check_threads
        from occamy_xdsl.pipelines import Options, pipeline_text

        if self.cache is not None:
            raise UsageError("--cache: a cache of compilations is not available yet")
        check_threads(self.threads)
        options = Options(
            target=self.target,
            memory=self.memory,
            planner=self.planner,
            optimize=self.optimize,
            fuse=not self.no_fuse,
            reuse=not self.no_reuse,
            in_place=not self.no_inplace,
            reorder=not self.no_reorder,
            memory_limit=_size("memory-limit", self.memory_limit),
            stripe_budget=None
            if self.stripe_budget is None
            else _percent("stripe-budget", self.stripe_budget),
            recompute_budget=_percent("recompute-budget", self.recompute_budget),
            workspace_limit=_size("workspace-limit", self.workspace_limit),
            cubin=self.cubin,
            tuning=self.tuning,
            tuning_device=self.tuning_device,
        )
        if self.print_pipeline:
            print(pipeline_text(options))
            raise typer.Exit(0)
        return options

    def reads(self, path: Path) -> list[Path]:
        """The files that compiling the model at `path` reads."""
        from occamy_xdsl.importer import ModelSource

        model = [] if str(path) == "-" else ModelSource(path).files()
        return model if self.tuning is None else [*model, Path(self.tuning)]

    def compilation(self, path: Path, **changes: Any) -> "Compilation":
        """The compilation of a model file, nothing run yet; `changes` are further fields of Options."""
        from dataclasses import replace

        from occamy_xdsl.compiler import Compilation, Model, temporary_files
        from occamy_xdsl.tools.onnx_frontend import parse_dim, parse_shape

        options = replace(self.resolve(), **changes)
        shapes, dims = dict(map(parse_shape, self.shape)), dict(map(parse_dim, self.dim))
        model = Model(sys.stdin.buffer.read() if str(path) == "-" else path, shapes, dims)
        if self.save_temps is not None:
            refuse_overwriting(temporary_files(self.save_temps, model.name), self.reads(path))
            make_folder(self.save_temps)
        return Compilation(model, options, self.save_temps, note)


def _size(option: str, text: str | None) -> int | None:
    """Bytes. Raises UsageError."""
    from occamy_xdsl.report.sizes import parse_size

    try:
        return None if text is None else parse_size(text)
    except UsageError as error:
        raise UsageError(f"--{option}: {error}") from None


def _percent(option: str, text: str) -> float:
    """`5%` or `5` as 5.0. Raises UsageError."""
    try:
        return float(text.removesuffix("%"))
    except ValueError:
        raise UsageError(f"--{option} {text}: expected a percentage such as 5%") from None


def _default(option: Any) -> Any:
    return option.default_factory() if option.default is MISSING else option.default


def takes_compile_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command one option for each field of its parameter `options: CompileOptions`."""
    hints = get_type_hints(CompileOptions, include_extras=True)

    @wraps(command)
    def with_options(**arguments: Any) -> None:
        options = CompileOptions(**{f.name: arguments.pop(f.name) for f in fields(CompileOptions)})
        command(**arguments, options=options)

    own = [p for p in inspect.signature(command).parameters.values() if p.name != "options"]
    ours = [
        inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=_default(f), annotation=hints[f.name]
        )
        for f in fields(CompileOptions)
    ]
    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    with_options.__dict__["__signature__"] = inspect.Signature([*own, *ours])
    with_options.__annotations__ = {p.name: p.annotation for p in (*own, *ours)}
    return with_options
