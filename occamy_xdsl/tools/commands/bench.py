"""`occamy bench`: latency, alone or against ONNX Runtime in the same process and minute."""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from occamy_xdsl.errors import UsageError
from occamy_xdsl.tools.commands.run import is_artefact, load
from occamy_xdsl.tools.options import CompileOptions, takes_compile_options

if TYPE_CHECKING:
    from occamy_xdsl.runtime.executable import Executable


@takes_compile_options
def bench(
    model: Annotated[
        Path, typer.Argument(metavar="M.onnx|OUT.so", help="A model, or a library made of one.")
    ],
    options: CompileOptions,
    against: Annotated[
        Literal["onnxruntime"] | None,
        typer.Option(help="Also time ONNX Runtime on as many threads, in turns."),
    ] = None,
    warmup: Annotated[int, typer.Option(metavar="N", min=0, help="Runs that are not counted.")] = 10,
    iterations: Annotated[int, typer.Option(metavar="N", min=1, help="Runs that are.")] = 100,
    cuda_graph: Annotated[
        bool, typer.Option("--cuda-graph", help="Run a cuda target as one CUDA graph.")
    ] = False,
    format: Annotated[Literal["table", "json"], typer.Option(help="How to print it.")] = "table",
) -> None:
    """
    Time a model on random inputs.

    For a GPU times are from host memory to host memory, and the time on the device alone is a row of its own.
    """
    from occamy_xdsl.compiler import CompiledExecutable
    from occamy_xdsl.runtime.bind import random_tensor
    from occamy_xdsl.tools.reference import onnxruntime

    if against is not None and is_artefact(model):
        raise UsageError(f"--against {against}: needs the model, {model} is compiled already")
    executable = load(model, options)
    if cuda_graph:
        executable.capture()
    inputs = {
        spec.name: random_tensor(spec, 0, position)
        for position, spec in enumerate(executable.signature.inputs)
    }
    runs: dict[str, Callable[[], Any]] = {"occamy": lambda: executable.run(inputs)}
    if against is not None:
        assert isinstance(executable, CompiledExecutable)
        theirs = onnxruntime(executable.compilation.model, options.threads)
        runs[against] = lambda: theirs(inputs)
    times = measure(list(runs.values()), warmup, iterations)
    result: dict[str, Any] = {
        "model": str(model),
        "target": executable.signature.target,
        "threads": options.threads,
        "warmup": warmup,
        "iterations": iterations,
        "pool_bytes": executable.pool_bytes,
        "times_ms": {name: statistics_of(t) for name, t in zip(runs, times, strict=True)},
    }
    if executable.signature.is_cuda:
        result |= {"cuda_graph": cuda_graph} | on_device(executable, warmup, iterations)
        result["times_ms"]["on device"] = result.pop("device_ms")
    if against is not None:
        result["ratio"] = statistics.median(a / b for a, b in zip(*times, strict=True))
    print(json.dumps(result, indent=2) if format == "json" else table(result))


def measure(runs: Sequence[Callable[[], Any]], warmup: int, iterations: int) -> list[list[float]]:
    """
    Milliseconds of each iteration of each function.

    The functions take turns, so that whatever else the machine does meets all of them alike.
    """
    for run in runs:
        for _ in range(warmup):
            run()
    times = [list[float]() for _ in runs]
    for _ in range(iterations):
        for run, own in zip(runs, times, strict=True):
            start = time.perf_counter()
            run()
            own.append(1e3 * (time.perf_counter() - start))
    return times


def on_device(executable: "Executable", warmup: int, iterations: int) -> dict[str, Any]:
    """
    What a model that has run takes on its GPU: the GPU's name, the statistics of the milliseconds between events
    around the model without copies from and to the host, and the bytes that one more of it takes.
    """
    from occamy_xdsl.runtime.device import device, elapsed, free_bytes
    from occamy_xdsl.runtime.executable import BoundLibrary

    bound = executable.bound
    assert isinstance(bound, BoundLibrary)
    times = [elapsed(bound.stream, bound.enqueue) for _ in range(warmup + iterations)]
    before = free_bytes()
    another = executable.clone()
    used = before - free_bytes()
    del another
    return {"device": device().name, "device_ms": statistics_of(times[warmup:]), "device_bytes": used}


def statistics_of(times: Sequence[float]) -> dict[str, float]:
    """Minimum, median, 90th percentile and mean, in the unit of `times`."""
    ordered = sorted(times)
    return {
        "min": ordered[0],
        "p50": statistics.median(ordered),
        "p90": ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))],
        "mean": statistics.fmean(ordered),
    }


def table(result: dict[str, Any]) -> str:
    """The times of `result` for reading."""
    rows: dict[str, dict[str, float]] = result["times_ms"]
    lines = [f"{'ms':<12} {'min':>10} {'p50':>10} {'p90':>10} {'mean':>10}"]
    lines += [
        f"{name:<12} " + " ".join(f"{value:>10.3f}" for value in row.values()) for name, row in rows.items()
    ]
    if "ratio" in result:
        lines.append(f"occamy takes {result['ratio']:.3f} of the time of {list(rows)[1]}, median of pairs")
    if "device" in result:
        lines.append(f"one model takes {result['device_bytes']} bytes of {result['device']}")
    return "\n".join(lines)
