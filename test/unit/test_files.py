"""What takes the place of a file: complete or nothing, and never in the place of a device, a pipe or a link."""

import os
import threading
from pathlib import Path

import pytest

from occamy_xdsl.errors import UsageError
from occamy_xdsl.files import is_same_file, read_text, replacing


def write(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text)


def test_failure_leaves_what_was_there(tmp_path: Path):
    path = tmp_path / "out"
    write(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write(path, "half, \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_stays(tmp_path: Path, exists: bool):
    (tmp_path / "store").mkdir()
    target, link = tmp_path / "store/target", tmp_path / "link"
    link.symlink_to("store/target")
    if exists:
        target.write_text("old")
    write(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_pipe_stays(tmp_path: Path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=write, args=(pipe, "text"))
    writer.start()
    assert pipe.read_text() == "text"
    writer.join()
    assert pipe.is_fifo()


def test_a_full_device(tmp_path: Path):
    if not Path("/dev/full").is_char_device():
        pytest.skip("no /dev/full")
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    with pytest.raises(UsageError, match="full: No space left on device"):
        write(link, "text")
    assert Path("/dev/full").is_char_device()


def test_names_of_one_file(tmp_path: Path):
    file, hard, soft = tmp_path / "file", tmp_path / "hard", tmp_path / "soft"
    assert is_same_file(file, tmp_path / "x/../file")
    file.touch()
    hard.hardlink_to(file)
    soft.symlink_to(file)
    assert is_same_file(file, hard)
    assert is_same_file(soft, file)
    assert not is_same_file(file, tmp_path / "other")


def test_text_of_a_device_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("occamy_xdsl.files.MAX_TEXT_BYTES", 1000)
    if Path("/dev/zero").is_char_device():
        with pytest.raises(ValueError, match="more than 1000 bytes"):
            read_text(Path("/dev/zero"))
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfa\xff" + 995 * b"b")
    assert read_text(path) == "a\ufffd" + 995 * "b"
