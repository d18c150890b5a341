"""Results to files and standard output: a file is either complete or absent."""

import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from occamy_xdsl.errors import UsageError


def note(text: str) -> None:
    """One line that is not a result."""
    print(text, file=sys.stderr)


def check_writable(path: Path) -> None:
    """Raises UsageError where no file can be made at `path`, before any work is done for it."""
    if path.is_dir():
        raise UsageError(f"{path}: Is a directory")
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
def replacing(path: Path) -> Generator[Path]:
    """
    A path beside `path` to write to; what is there at the end takes the place of `path`.

    After an exception nothing is left. Raises UsageError where the folder cannot be written to.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=".occamy-", dir=path.parent) as folder:
            temporary = Path(folder) / path.name
            yield temporary
            if temporary.exists():
                temporary.replace(path)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


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
        temporary.write_text(text)
