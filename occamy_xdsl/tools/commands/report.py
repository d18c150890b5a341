"""`occamy report`: what a model will need, and why."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from occamy_xdsl.errors import InvalidInputError, UsageError
from occamy_xdsl.files import read_text
from occamy_xdsl.tools.options import CompileOptions, ModelArgument, takes_compile_options
from occamy_xdsl.tools.output import check_writable, progress, write_text

if TYPE_CHECKING:
    from occamy_xdsl.report.memory import MemoryReport


@takes_compile_options
def report(
    model: ModelArgument,
    options: CompileOptions,
    format: Annotated[Literal["table", "json", "html"], typer.Option(help="How to show it.")] = "table",
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Where to write it; - is standard output.")
    ] = Path("-"),
    top: Annotated[
        int, typer.Option(metavar="N", min=0, help="Rows of the tables; a table is never cut in JSON.")
    ] = 10,
    budgets: Annotated[
        bool,
        typer.Option("--budgets", help="Show, too, what running in stripes of rows buys and costs."),
    ] = False,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Show, too, what eager, lazy and liveness-aware allocation need."),
    ] = False,
    diff: Annotated[
        Path | None, typer.Option(metavar="OLD.json", help="Show what changed since an earlier report.")
    ] = None,
) -> None:
    """Show the memory a model will need. No code is generated and no weights are read."""
    if diff is not None and (budgets or compare):
        raise UsageError(f"--diff: not available with {'--budgets' if budgets else '--compare'}")
    if budgets and (options.memory != "pool" or options.no_reuse):
        raise UsageError("--budgets: stripes need memory 'pool', with buffers that are reused")
    if str(output) != "-":
        check_writable(output, *options.reads(model), *([] if diff is None else [diff]))
    old = None if diff is None else read_report(diff)
    with progress(f"planning {model}"):
        new = options.compilation(model).report(budgets=budgets, compare=compare)
    match format:
        case "html":
            from occamy_xdsl.report import html

            text = html.page(new) if old is None else html.changes_page(old, new)
        case "json":
            from occamy_xdsl.report.changes import changes

            text = (new.to_json() if old is None else json.dumps(asdict(changes(old, new)), indent=2)) + "\n"
        case "table":
            from occamy_xdsl.report import table

            terminal = str(output) == "-" and sys.stdout.isatty()
            if old is None:
                text = table.render(new, top, terminal=terminal)
            else:
                text = table.render_changes(old, new, top, terminal=terminal)
    write_text(output, text)


def read_report(path: Path) -> "MemoryReport":
    """A report that `--format json` wrote; raises InvalidInputError."""
    from occamy_xdsl.report.memory import MemoryReport

    try:
        return MemoryReport.from_json(read_text(path))
    except OSError as error:
        raise InvalidInputError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise InvalidInputError(f"{path}: {error}") from None
