"""`occamy compile`: a model to an artefact, or to the program of any stage."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from occamy_xdsl.errors import UsageError
from occamy_xdsl.files import temporary_folder
from occamy_xdsl.tools.options import CompileOptions, Emit, ModelArgument, takes_compile_options
from occamy_xdsl.tools.output import check_writable, note, progress, write_text

if TYPE_CHECKING:
    from occamy_xdsl.compiler import Compilation
    from occamy_xdsl.lowering.interface import WeightsPlace

SUFFIXES: dict[str, str] = {
    "onnx": ".onnx.mlir",
    "dnn": ".dnn.mlir",
    "mem": ".mem.mlir",
    "mlir": ".mlir",
    "llvm": ".ll",
    "ptx": ".ptx",
    "obj": ".o",
    "lib": ".so",
    "exe": "",
    "header": ".h",
}
"""What stands in the default name of an output in place of the model's suffix."""

TEXTS = ("onnx", "dnn", "mem", "mlir", "llvm", "ptx", "header")


@takes_compile_options
def compile(
    model: ModelArgument,
    options: CompileOptions,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="The file to write, by default beside the model; - is standard output, for text.",
        ),
    ] = None,
    emit: Annotated[Emit, typer.Option(help="What to make.")] = "lib",
    weights: Annotated[
        Literal["embed", "file", "stream"],
        typer.Option(
            help="Where the weights are: in the artefact, in OUT.weights, or read from there while running."
        ),
    ] = "embed",
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.json|FILE.html", help="Write the memory report, too.")
    ] = None,
) -> None:
    """Compile a model."""
    from occamy_xdsl.lowering.cpu.emit import check_weights_place
    from occamy_xdsl.lowering.interface import weights_path

    place = check_weights_place("file" if weights == "stream" else weights)
    if place != "embed" and emit not in ("obj", "lib", "exe"):
        raise UsageError(f"--weights {weights}: --emit {emit} holds no weights")
    if report is not None and report.suffix not in (".json", ".html"):
        raise UsageError(f"--report {report}: the name must end in .json or .html")
    if not options.resolve().is_cuda and emit == "ptx":
        raise UsageError("--emit ptx: needs a cuda target")
    if not model.name:
        raise UsageError(f"{model}: a folder, not a model")
    stem = Path("model.onnx") if str(model) == "-" else model
    output = output or stem.with_name(stem.stem + SUFFIXES[emit])
    if str(output) == "-" and emit not in TEXTS:
        raise UsageError(f"-o -: --emit {emit} is not text, it needs a file")
    reads = options.reads(model)
    if str(output) != "-":
        check_writable(output, *reads)
    if place == "file":
        check_writable(weights_path(output), *reads)
    if report is not None:
        check_writable(report, *reads, output)
    with progress(f"compiling {model}"):
        compilation = options.compilation(model, stream_weights=weights == "stream")
        text = text_form(compilation, emit) if emit in TEXTS else None
        if text is None:
            write_artefact(compilation, emit, output, place)
        memory = None if report is None else compilation.report()
    if text is not None:
        write_text(output, text)
    if report is not None and memory is not None:
        write_text(report, memory.to_json() + "\n" if report.suffix == ".json" else memory.to_html())
    if str(output) != "-":
        note(f"{output}: written")


def text_form(compilation: "Compilation", emit: str) -> str:
    """The program after a stage, or the C header."""
    from occamy_xdsl.lowering.cpu import abi

    return abi.header(compilation.signature()) if emit == "header" else compilation.ir(emit)


def write_artefact(compilation: "Compilation", emit: str, output: Path, place: "WeightsPlace") -> None:
    """Writes an object, library or program."""
    from occamy_xdsl.lowering.cpu import emit as artefacts

    write = {
        "obj": artefacts.write_object,
        "lib": artefacts.write_library,
        "exe": artefacts.write_executable,
    }[emit]
    with temporary_folder() as folder:
        write(compilation.compiled(folder), output, place)
