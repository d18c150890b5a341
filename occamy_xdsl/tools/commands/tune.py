"""`occamy tune`: which algorithm each convolution of a model is fastest with, measured on this machine's GPU."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from occamy_xdsl.errors import UsageError
from occamy_xdsl.tools.options import CompileOptions, ModelArgument, takes_compile_options
from occamy_xdsl.tools.output import check_writable, note, progress, write_text


@takes_compile_options
def tune(
    model: ModelArgument,
    options: CompileOptions,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="FILE.json", help="Database to add to, which --tuning reads."),
    ] = Path("convolutions.json"),
    iterations: Annotated[int, typer.Option(metavar="N", min=1, help="Timed runs of each algorithm.")] = 20,
    again: Annotated[
        bool, typer.Option("--again", help="Also measure what this device has measured before.")
    ] = False,
) -> None:
    """Measure the convolutions of a model on this machine's GPU."""
    from occamy_xdsl.lowering.cuda.convolutions import Database, Machine, Measured
    from occamy_xdsl.runtime.device import device
    from occamy_xdsl.runtime.tuning import Method, measure

    resolved = options.resolve()
    if not resolved.is_cuda:
        raise UsageError(
            f"tune: kernels for '{resolved.target}' are chosen by shape alone, see --target cuda"
        )
    check_writable(output, *replace(options, tuning=None).reads(model))
    found = device()
    machine = Machine(found.name, found.architecture, found.cudnn)
    database = Database.load(output) if output.exists() else Database({})
    known: Measured = {} if again else database.entries.get(machine, {})
    problems = options.compilation(model).convolutions()
    wanted = [problem for problem in problems if problem.key not in known]
    for number, problem in enumerate(wanted, 1):
        with progress(f"convolution {number} of {len(wanted)}: {problem.key}"):
            choices = measure(problem, resolved.workspace_limit, Method(iterations=iterations))
        print(f"{problem.key}: {choices[0] if choices else 'no algorithm within the limit'}")
        # After each one, so that nothing is lost where a later one fails.
        database = database.with_measured(machine, {problem.key: choices})
        write_text(output, database.to_json())
    note(
        f"{len(wanted)} convolutions measured on {machine.device}, {len(problems) - len(wanted)} known; "
        f"compile with --target cuda:{machine.architecture} --tuning {output}"
    )
