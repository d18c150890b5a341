"""`occamy`: compile, run, measure and explain models."""

import hashlib
import os
import re
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.exceptions import TyperException

from occamy_xdsl.errors import OccamyError
from occamy_xdsl.report.names import printable
from occamy_xdsl.signals import exit_on_signals
from occamy_xdsl.tools.commands import bench, check, compile, ops, report, run, tune, version
from occamy_xdsl.tools.output import open_closed_streams, print_anything

STDOUT = 1
OUT_OF_MEMORY = 4
INTERNAL_ERROR = 70
INTERRUPTED = 128 + signal.SIGINT
CLOSED_PIPE = 128 + signal.SIGPIPE

EMIT_ALIASES = {"ONNXIR": "onnx", "MLIR": "mlir", "LLVMIR": "llvm", "Obj": "obj", "Lib": "lib"}
"""What follows `--Emit` in onnx-mlir, and what `--emit` calls it."""

app = typer.Typer(
    name="occamy",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = {
    command.__name__: command
    for command in (
        compile.compile,
        run.run,
        report.report,
        check.check,
        bench.bench,
        ops.ops,
        tune.tune,
        version.version,
    )
}
for _command in COMMANDS.values():
    app.command()(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(version.version_table())
        raise typer.Exit()


@app.callback(
    epilog="Exit codes: 0 success, 1 wrong result, 2 bad usage, 3 model refused, 4 memory limit not met, "
    "70 internal error."
)
def occamy(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    show_version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print versions and stop."),
    ] = False,
) -> None:
    """A memory-efficient compiler for neural-network inference."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code of the command line `arguments`; without them, of that of the process."""
    if arguments is None:
        open_closed_streams()
        print_anything()
        with exit_on_signals():
            return main(sys.argv[1:])
    # Accepted after the command, too: that is where one adds it when a command has failed.
    debug = "--debug" in arguments
    arguments = [_without_alias(a) for a in arguments if a != "--debug"]
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            _invoke(arguments)
    except typer.Exit as stop:
        return stop.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _fail(error, arguments)
    return 0


def _invoke(arguments: list[str]) -> None:
    # Not through the command's own main, which exits with 1 where standard output is closed.
    command = typer.main.get_command(app)
    try:
        try:
            with command.make_context("occamy", arguments) as context:
                command.invoke(context)
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.filename is None:
            # What is buffered must go somewhere when Python closes the stream.
            os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
        raise


def _without_alias(argument: str) -> str:
    match = re.fullmatch(rf"--?[Ee]mit({'|'.join(EMIT_ALIASES)})", argument)
    return argument if match is None else f"--emit={EMIT_ALIASES[match[1]]}"


def _fail(error: Exception, arguments: Sequence[str]) -> int:
    """Says on stderr what is wrong, one fact a line; the exit code."""
    if isinstance(error, TyperException):
        command = arguments[0] if arguments and arguments[0] in COMMANDS else ""
        fact = " ".join(error.format_message().split()).replace("Value error, ", "").rstrip(".")
        _say(f"{fact}; see `{' '.join(f'occamy {command} --help'.split())}`")
        return 2
    if isinstance(error, OccamyError):
        for line in str(error).splitlines():
            _say(line)
        return error.exit_code
    if isinstance(error, BrokenPipeError):
        return CLOSED_PIPE
    if isinstance(error, OSError):
        _say(f"{error.filename or 'standard output'}: {error.strerror or error}")
        return INTERNAL_ERROR
    fact = str(error).strip().splitlines() or [""]
    if isinstance(error, MemoryError):
        _say(f"out of memory: {fact[0] or 'this machine has too little for the model'}")
        return OUT_OF_MEMORY
    _say(f"internal error: {type(error).__name__}: {fact[0]}; reproducer: {_reproducer(arguments)}")
    return INTERNAL_ERROR


def _say(fact: str) -> None:
    print(f"error: {printable(fact)}", file=sys.stderr)


def _reproducer(arguments: Sequence[str]) -> Path:
    """A file with everything a report of the current exception needs, except the model itself."""
    from occamy_xdsl.tools.commands.version import tool_versions
    from occamy_xdsl.version import VERSION

    text = "\n".join(
        [
            f"command: {['occamy', *arguments]}",
            f"folder: {Path.cwd()}",
            f"versions: {dict({'occamy-xdsl': VERSION}, **tool_versions())}",
            traceback.format_exc(),
        ]
    )
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    path = Path(tempfile.gettempdir()) / f"occamy-error-{digest}.txt"
    path.write_text(text, encoding="utf-8", errors="backslashreplace")
    return path


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
