"""Results to files and standard output: a file is either complete or absent."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any, cast

from occamy_xdsl.errors import UsageError
from occamy_xdsl.files import refuse_overwriting, replacing
from occamy_xdsl.report.names import printable


def note(text: str) -> None:
    """One line that is not a result."""
    print(printable(text), file=sys.stderr)


def open_closed_streams() -> None:
    """
    Gives a program started with standard streams closed others in their places: input ends at once, output fails to
    be written, and messages are lost. Otherwise files opened later would get their numbers.
    """
    for name, number, access, mode in (
        ("stdin", 0, os.O_RDONLY, "r"),
        ("stdout", 1, os.O_RDONLY, "w"),
        ("stderr", 2, os.O_WRONLY, "w"),
    ):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, access)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115  # as long as the process
            setattr(sys, name, stream)


def print_anything() -> None:
    """From now on standard output shows characters that the locale cannot encode as escapes."""
    stream: object = sys.stdout
    if isinstance(stream, TextIOWrapper):
        cast("TextIOWrapper[Any]", stream).reconfigure(errors="backslashreplace")


def check_writable(path: Path, *others: Path) -> None:
    """
    Raises UsageError where no file can be made at `path`, before any work is done for it.

    `others` are files that it must not overwrite: what the command reads, and what it writes besides. Standard output
    can be written, as `-`.
    """
    if str(path) == "-":
        return
    if path.is_dir():
        raise UsageError(f"{path}: Is a directory")
    refuse_overwriting([path], others)
    with replacing(path) as temporary:
        temporary.touch()
        temporary.unlink()


def make_folder(path: Path) -> None:
    """Makes a folder and its parents where they are missing; raises UsageError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


@contextmanager
def folder_for_results(path: Path | None) -> Generator[None]:
    """Makes a folder as `make_folder`; after an exception those that are new and have nothing in them are gone."""
    if path is None:
        yield
        return
    new = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        make_folder(path)
        yield
    except BaseException:
        with suppress(OSError):  # the first that holds something, and its parents, stay
            for folder in new:
                folder.rmdir()
        raise


@contextmanager
def progress(what: str) -> Generator[None]:
    """Shows on a terminal that something is going on, until it is done."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def write_text(path: Path, text: str) -> None:
    """Writes a text file; `-` is standard output. Raises UsageError."""
    if str(path) == "-":
        sys.stdout.write(text)
        return
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
