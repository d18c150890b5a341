"""Files that are complete or absent, whatever happens while they are written."""

import os
import shutil
import tempfile
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from pathlib import Path

from occamy_xdsl.errors import UsageError
from occamy_xdsl.signals import undisturbed


@contextmanager
def temporary_folder(parent: Path | None = None, prefix: str = "occamy-") -> Generator[Path]:
    """A new folder, in that of the system unless in `parent`; nothing is left of it, signals or not."""
    folder = new_folder(parent, prefix)
    try:
        yield Path(folder.name).resolve()
    finally:
        remove(folder)


def new_folder(parent: Path | None = None, prefix: str = "occamy-") -> "tempfile.TemporaryDirectory[str]":
    """A new folder, in that of the system unless in `parent`, for `remove`."""
    with undisturbed():
        return tempfile.TemporaryDirectory(prefix=prefix, dir=parent, ignore_cleanup_errors=True)


def remove(folder: "tempfile.TemporaryDirectory[str]", *, in_finalizer: bool = False) -> None:
    """Removes a folder and everything in it."""
    with undisturbed(forget=in_finalizer):
        folder.cleanup()


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """
    A path to write to, alone in a new folder; what is there at the end takes the place of `path`.

    After an exception nothing is left. A link stays, its target is replaced; a device or pipe stays, too, and
    receives the content. Raises UsageError where that is not possible.
    """
    with replacing_all(path) as (temporary,):
        yield temporary


@contextmanager
def replacing_all(*paths: Path) -> Generator[list[Path]]:
    """As `replacing` for files that belong together: all take their places, or none does."""
    targets = [Path(os.path.realpath(path)) for path in paths]
    is_special = [target.exists() and not target.is_file() and not target.is_dir() for target in targets]
    temporaries = list[Path]()
    folders = ExitStack()
    for path, target in zip(paths, targets, strict=True):
        if target.is_dir():
            raise UsageError(f"{path}: Is a directory")
    writing = paths[0]
    try:
        for path, target, special in zip(paths, targets, is_special, strict=True):
            writing = path
            # A finished file can be moved in one step only within a file system.
            folder = temporary_folder(None if special else target.parent, ".occamy-")
            temporaries.append(folders.enter_context(folder) / target.name)
        writing = paths[0]
        yield temporaries
        finished = list[tuple[Path, Path]]()
        for path, target, temporary, special in zip(paths, targets, temporaries, is_special, strict=True):
            writing = path
            if not temporary.exists():
                continue
            if not special:
                finished.append((temporary, target))
                continue
            with temporary.open("rb") as source, path.open("wb") as sink:
                shutil.copyfileobj(source, sink)
        with undisturbed():
            for temporary, target in finished:
                writing = target
                temporary.replace(target)
    except OSError as error:
        raise UsageError(f"{writing}: {error.strerror or error}") from None
    finally:
        folders.close()


def refuse_overwriting(writes: Iterable[Path], reads: Iterable[Path]) -> None:
    """Raises UsageError where a file that is to be written is one of those that are read."""
    reads = list(reads)
    for path in writes:
        for other in reads:
            if is_same_file(path, other):
                raise UsageError(f"{path}: {other} would be overwritten, choose another name")


MAX_TEXT_BYTES = 2**28
"""Bytes of the largest text that is read whole; devices such as /dev/zero never end."""


def read_text(path: Path) -> str:
    """
    The text in a file or pipe, in UTF-8; bytes that are none become U+FFFD. Raises OSError, and ValueError for one of
    more than `MAX_TEXT_BYTES`.
    """
    with path.open("rb") as file:
        data = file.read(MAX_TEXT_BYTES + 1)
    if len(data) > MAX_TEXT_BYTES:
        raise ValueError(f"more than {MAX_TEXT_BYTES} bytes")
    return data.decode("utf-8-sig", errors="replace")


def is_same_file(one: Path, other: Path) -> bool:
    """Whether two paths are one file, or would be if it existed."""
    try:
        return one.samefile(other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)
