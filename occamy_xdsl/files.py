"""Files that are complete or absent, whatever happens while they are written."""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from occamy_xdsl.errors import UsageError


@contextmanager
def replacing(path: Path) -> Generator[Path]:
    """
    A path to write to, alone in a new folder; what is there at the end takes the place of `path`.

    After an exception nothing is left. A link stays, its target is replaced; a device or pipe stays, too, and
    receives the content. Raises UsageError where that is not possible.
    """
    target = Path(os.path.realpath(path))
    is_special = target.exists() and not target.is_file() and not target.is_dir()
    try:
        # A finished file can be moved in one step only within a file system.
        folder = tempfile.TemporaryDirectory(prefix=".occamy-", dir=None if is_special else target.parent)
        with folder:
            temporary = Path(folder.name).resolve() / target.name
            yield temporary
            if is_special and temporary.exists():
                with temporary.open("rb") as source, path.open("wb") as sink:
                    shutil.copyfileobj(source, sink)
            elif temporary.exists():
                temporary.replace(target)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


def is_same_file(one: Path, other: Path) -> bool:
    """Whether two paths are one file, or would be if it existed."""
    try:
        return one.samefile(other)
    except OSError:
        return os.path.realpath(one) == os.path.realpath(other)
