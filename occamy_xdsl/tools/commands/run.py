"""`occamy run`: a model on given or random inputs."""

import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from occamy_xdsl.errors import UsageError
from occamy_xdsl.files import refuse_overwriting, replacing, temporary_folder
from occamy_xdsl.report.names import printable
from occamy_xdsl.tools.options import CompileOptions, takes_compile_options
from occamy_xdsl.tools.output import check_writable, folder_for_results, note, progress, write_text

if TYPE_CHECKING:
    from occamy_xdsl.compiler import Compilation
    from occamy_xdsl.lowering.signature import Signature
    from occamy_xdsl.report.memory import MemoryReport, Tensor
    from occamy_xdsl.runtime.executable import Array, Executable
    from occamy_xdsl.simulator import Simulator


@takes_compile_options
def run(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="M.onnx|OUT.so",
            help="A model, or a library made of one; - is a model from standard input.",
        ),
    ],
    options: CompileOptions,
    input: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=@x.npy|NAME:1x3xf32=1.0|random:SEED", help="Value of an input; may be repeated."
        ),
    ] = [],  # noqa: B006  # typer copies it
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write each output to DIR/<output>.npy.")
    ] = None,
    expect: Annotated[
        list[str], typer.Option(metavar="NAME=@y.npy", help="What an output must be; exit 1 where it is not.")
    ] = [],  # noqa: B006
    rtol: Annotated[
        float | None, typer.Option(metavar="R", min=0, help="Relative tolerance of --expect.")
    ] = None,
    atol: Annotated[
        float | None, typer.Option(metavar="A", min=0, help="Absolute tolerance of --expect.")
    ] = None,
    repeat: Annotated[int, typer.Option(metavar="N", min=1, help="Run N times and print timings.")] = 1,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write the time of each node.")
    ] = None,
    poison: Annotated[
        bool, typer.Option("--poison", help="Run again with the pool full of NaNs; exit 1 if it shows.")
    ] = False,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Run a cuda target without a GPU, and check what it does.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Write the events of a simulation, for chrome://tracing."),
    ] = None,
) -> None:
    """Run a model."""
    from occamy_xdsl.lowering.interface import weights_path
    from occamy_xdsl.runtime import bind

    if poison and options.memory != "pool":
        raise UsageError(
            f"--poison: --memory {options.memory} has no pool to fill, each run allocates its buffers"
        )
    if trace is not None and not simulate:
        raise UsageError("--trace: only a simulation has one, see --simulate")
    if simulate:
        for option, given in (("--repeat", repeat > 1), ("--poison", poison)):
            if given:
                raise UsageError(
                    f"{option}: not with --simulate, which says nothing about time and checks all reads"
                )
    reads = bind.files_of([*input, *expect])
    if (trace, profile, output) != (None, None, None):
        reads += [model, weights_path(model)] if is_artefact(model) else options.reads(model)
    if (rtol, atol) != (None, None) and not expect:
        raise UsageError("--rtol and --atol: nothing is compared without --expect")
    if profile is not None and is_artefact(model):
        raise UsageError(f"--profile: needs the model, {model} is compiled already")
    texts = [path for path in (trace, profile) if path is not None]
    with folder_for_results(output):
        for place, path in enumerate(texts):
            check_writable(path, *reads, *(p for p in texts[:place] if str(p) != "-"))
        executable = SimulatedModel(model, options, trace) if simulate else load(model, options)
        if poison and not isinstance(executable, SimulatedModel):
            executable.check_poison()
        signature = executable.signature
        if output is not None:
            refuse_overwriting(output_files(signature, output), [*reads, *texts])
        inputs = bind.parse_inputs(input, signature.inputs)
        expected = bind.parse_expectations(expect, signature.outputs)
        missing = [spec.name for spec in signature.inputs if spec.name not in inputs]
        if missing:
            note(f"random values, seed 0, for: {', '.join(missing)}")
            inputs |= {
                spec.name: bind.random_tensor(spec, 0, position)
                for position, spec in enumerate(signature.inputs)
                if spec.name in missing
            }
        outputs = executable.run(inputs)
        if profile is not None:
            write_text(profile, json.dumps(profile_of(executable, inputs, repeat), indent=2) + "\n")
        if repeat > 1 and not isinstance(executable, SimulatedModel):
            note(timings(executable, inputs, outputs, repeat))
        for name, value in outputs.items():
            print(summary(name, value))
        if output is not None:
            save(signature, outputs, output)
        failed = False
        for name, want in expected.items():
            comparison = bind.compare(
                name,
                outputs[name],
                want,
                bind.RTOL if rtol is None else rtol,
                bind.ATOL if atol is None else atol,
            )
            print(printable(str(comparison)))
            failed |= not comparison.equal
        if poison and not isinstance(executable, SimulatedModel):
            poisoned = executable.run(inputs, poison=True)
            changed = [name for name in outputs if outputs[name].tobytes() != poisoned[name].tobytes()]
            note(f"poison: outputs {'change: ' + ', '.join(changed) if changed else 'are unchanged'}")
            failed |= bool(changed)
    if failed:
        raise typer.Exit(1)


def is_artefact(path: Path) -> bool:
    """Whether a file is compiled code."""
    if not path.is_file():  # what is read from a pipe is gone
        return False
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError:
        return False  # the importer says what is wrong
    return magic == b"\x7fELF"


def load(path: Path, options: CompileOptions) -> "Executable":
    """The executable of a model or of a compiled library."""
    from occamy_xdsl.compiler import compile_to_memory
    from occamy_xdsl.runtime.executable import open_library

    if str(path) == "-" or not is_artefact(path):
        with progress(f"compiling {path}"):
            return compile_to_memory(options.compilation(path))
    if given := options.given():
        raise UsageError(f"{', '.join(given)}: no effect on {path}, which is compiled already")
    return open_library(path)


class SimulatedModel:
    """A model compiled for a GPU that runs under the simulator, in the place of an executable."""

    def __init__(self, path: Path, options: CompileOptions, trace: Path | None):
        if is_artefact(path):
            raise UsageError(f"--simulate: needs the model, {path} is compiled already")
        if not options.resolve().is_cuda:
            raise UsageError("--simulate: needs --target cuda")
        self._trace = trace
        with progress(f"compiling {path}"):
            self.compilation = options.compilation(path)
            self.signature = self.compilation.signature()

    def simulate(
        self, compilation: "Compilation", inputs: "dict[str, Array]"
    ) -> "tuple[dict[str, Array], Simulator]":
        """Runs a compilation of the model once; its outputs, and the simulator, which knows what it did."""
        from occamy_xdsl.lowering.cpu.emit import write_library
        from occamy_xdsl.runtime.cuda import simulate
        from occamy_xdsl.simulator import Simulator

        simulator = Simulator(architecture=compilation.options.processor)
        with temporary_folder() as folder:
            library = folder / "model.so"
            write_library(compilation.compiled(folder), library)
            return simulate(library, inputs, simulator), simulator

    def run(self, inputs: "dict[str, Array]") -> "dict[str, Array]":
        """Runs once; says what the program did to the device, and writes the trace."""
        outputs, simulator = self.simulate(self.compilation, inputs)
        note(
            "simulated: calls, memory and kernels are checked; speed and the numerics of NVIDIA's libraries are not"
        )
        print(simulator.report())
        print(pool_map(self.compilation.report()))
        if self._trace is not None:
            write_text(self._trace, simulator.trace.to_json() + "\n")
        return outputs


def pool_map(report: "MemoryReport") -> str:
    """Where each buffer is in the pool, and when."""
    placed = [t for t in report.tensors if t.offset is not None and t.alias_of is None]
    rows = (
        printable(f"  {t.offset:>10} +{t.bytes:<10} steps {t.first}-{t.last}  {_what(t)} of '{t.node}'")
        for t in sorted(placed, key=lambda t: (t.offset or 0, t.first))
    )
    return "\n".join([f"pool of {report.pool_bytes} bytes", *rows])


def _what(tensor: "Tensor") -> str:
    """The kind and name of a buffer; a workspace is named after what it is."""
    return tensor.kind if tensor.kind == "workspace" else f"{tensor.kind} {tensor.name}"


def timings(
    executable: "Executable", inputs: Mapping[str, Any], outputs: Mapping[str, "Array"], repeat: int
) -> str:
    """Runs `repeat` times into the same arrays; one line with median, least and 90th percentile."""
    times = list[float]()
    for _ in range(repeat):
        start = time.perf_counter()
        executable.run(inputs, out=outputs)
        times.append(1e3 * (time.perf_counter() - start))
    p90 = sorted(times)[min(len(times) - 1, int(0.9 * len(times)))]
    return f"{repeat} runs: median {statistics.median(times):.3f} ms, min {min(times):.3f}, p90 {p90:.3f}"


def profile_of(
    executable: "Executable | SimulatedModel", inputs: "dict[str, Array]", repeat: int
) -> dict[str, Any]:
    """
    The median time of each kernel call over `repeat` runs, in microseconds, in order of execution.

    Under the simulator there is one run, whose times are 0.
    """
    import numpy as np

    from occamy_xdsl.compiler import Compilation, CompiledExecutable, call_times, compile_to_memory

    assert isinstance(executable, CompiledExecutable | SimulatedModel)
    original = executable.compilation
    timed = Compilation(original.model, replace(original.options, profile=True))
    if isinstance(executable, SimulatedModel):
        note("profile: all times are 0, as the simulator measures none")
        runs = [executable.simulate(timed, inputs)[0]]
    else:
        clocked = compile_to_memory(timed)
        clocked.run(inputs)
        runs = [clocked.run(inputs) for _ in range(repeat)]
    medians = np.median([call_times(outputs) for outputs in runs], axis=0)
    return {
        "model": original.model.name,
        "target": original.options.target,
        "runs": repeat,
        "total_us": round(float(medians.sum()), 3),
        "calls": [
            {"node": node, "kernel": kernel, "us": round(float(us), 3)}
            for (node, kernel), us in zip(timed.kernels(), medians, strict=True)
        ],
    }


def summary(name: str, value: "Array") -> str:
    """Name, type and shape; least, mean and greatest element; the five greatest of a vector."""
    import numpy as np

    line = f"{printable(name)}: {value.dtype.name}[{','.join(map(str, value.shape))}]"
    if not value.size:
        return f"{line} empty"
    wide = value.astype(np.float64)
    line += f" min {wide.min():.6g} mean {wide.mean():.6g} max {wide.max():.6g}"
    if value.ndim and value.size == value.shape[-1] and value.size > 5:
        vector = wide.reshape(-1)
        top = np.argsort(-vector, kind="stable")[:5]
        line += "\n  top 5: " + ", ".join(f"[{i}] {vector[i]:.6g}" for i in top)
    return line


def save(signature: "Signature", outputs: Mapping[str, "Array"], folder: Path) -> None:
    """Writes each output to a .npy file in `folder`."""
    import numpy as np

    for path, value in zip(output_files(signature, folder), outputs.values(), strict=True):
        with replacing(path) as temporary:
            np.save(temporary, value, allow_pickle=False)


def output_files(signature: "Signature", folder: Path) -> list[Path]:
    """The .npy file of each output in `folder`."""
    from occamy_xdsl.lowering.signature import file_names

    return [folder / name for name in file_names(signature.outputs)]
