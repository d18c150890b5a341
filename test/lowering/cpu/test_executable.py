"""Stand-alone executables: their command line, the .npy files they read, and the files they write."""

import io
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from occamy_xdsl.lowering.cpu import emit
from occamy_xdsl.lowering.cpu.executable import npy_header
from occamy_xdsl.lowering.signature import TensorSpec, file_names

SHAPE = (16, 64)
WEIGHTS = np.arange(1024, dtype=np.float32).reshape(SHAPE)
EMPTY: dict[str, str] = {}
"""An environment without variables."""


def run(program: Path, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program in an empty environment."""
    words = [str(program), *map(str, arguments)]
    return subprocess.run(words, env=EMPTY, cwd=cwd, capture_output=True, text=True, timeout=60)


def npy_bytes(array: np.ndarray, version: tuple[int, int] | None = None) -> bytes:
    """`array` as a .npy file, written by numpy."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, version)
    return buffer.getvalue()


@pytest.fixture
def inputs(tmp_path: Path, affine_input: np.ndarray) -> list[Path]:
    np.save(tmp_path / "x.npy", affine_input)
    np.save(tmp_path / "b.npy", np.array(41))
    return [tmp_path / "x.npy", tmp_path / "b.npy"]


@pytest.mark.parametrize("place", ["embed", "file"])
def test_runs(
    place: str, affine_programs: dict[str, Path], inputs: list[Path], affine_input: np.ndarray, tmp_path: Path
) -> None:
    """The folder for the outputs and its parents are created; `/` in a name becomes `_`."""
    done = run(affine_programs[place], *inputs, "-o", tmp_path / "new" / "folder")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    y, n = np.load(tmp_path / "new/folder/a_y.npy"), np.load(tmp_path / "new/folder/n.npy")
    np.testing.assert_array_equal(y, 2 * affine_input + WEIGHTS)
    assert y.dtype == np.float32
    assert (n, n.shape, n.dtype) == (42, (), np.int64)
    assert sorted(path.name for path in (tmp_path / "new/folder").iterdir()) == ["a_y.npy", "n.npy"]


def test_writes_to_current_folder(
    affine_programs: dict[str, Path], inputs: list[Path], affine_input: np.ndarray, tmp_path: Path
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    assert run(affine_programs["embed"], *inputs, cwd=folder).returncode == 0
    np.testing.assert_array_equal(np.load(folder / "a_y.npy"), 2 * affine_input + WEIGHTS)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_reads_every_format_version(
    version: tuple[int, int],
    affine_programs: dict[str, Path],
    inputs: list[Path],
    affine_input: np.ndarray,
    tmp_path: Path,
) -> None:
    inputs[0].write_bytes(npy_bytes(affine_input, version))
    assert run(affine_programs["embed"], *inputs, "-o", tmp_path).returncode == 0
    np.testing.assert_array_equal(np.load(tmp_path / "a_y.npy"), 2 * affine_input + WEIGHTS)


def test_needs_only_the_c_library(affine_programs: dict[str, Path]) -> None:
    done = subprocess.run(["ldd", affine_programs["embed"]], capture_output=True, text=True, check=True)
    names = {Path(line.split()[0]).name.split(".so")[0] for line in done.stdout.splitlines()}
    assert {re.sub(r"[-.].*", "", name) for name in names} <= {"linux", "libc", "libm", "libpthread", "ld"}


def test_help_and_signature(affine_programs: dict[str, Path], affine_model: Callable) -> None:
    program = affine_programs["embed"]
    for option in ("--help", "-h"):
        done = run(program, option)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(
            f"usage: {program} INPUT.npy INPUT.npy [-o DIR] | --signature | --help\n"
        )
        for line in ("x  float32[16,64]", "b:0  int64[]", "a_y.npy  float32[16,64]", "n.npy  int64[]"):
            assert f"  {line}\n" in done.stdout
    done = run(program, "--signature")
    assert (done.returncode, done.stdout) == (0, affine_model().signature.to_json() + "\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "input 'x' float32[16,64] is missing"),
        (["x.npy"], "input 'b:0' int64[] is missing"),
        (["x.npy", "b.npy", "c.npy"], "too many inputs: 'c.npy'"),
        (["--what"], "unknown option '--what'"),
        (["x.npy", "b.npy", "-o"], "-o needs a folder"),
        (["x.npy", "b.npy", "-o", ""], "-o needs a folder"),
    ],
)
def test_bad_usage(arguments: list[str], message: str, affine_programs: dict[str, Path]) -> None:
    program = affine_programs["embed"]
    done = run(program, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[0] == message
    assert done.stderr.splitlines()[1].startswith(f"usage: {program} ")


def test_without_program_name(affine_programs: dict[str, Path]) -> None:
    done = subprocess.run([""], executable=affine_programs["embed"], env=EMPTY, timeout=60)
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a .npy file: shorter than its fixed part"),
        (b"\x93NUMPY\x01\x00\x10", "not a .npy file: shorter than its fixed part"),
        (b"PK\x03\x04" + bytes(100), "not a .npy file: no magic number at its start"),
        (b"\x93NUMPY\x04\x00\x10\x00" + bytes(100), "version 4 of the .npy format is unknown"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(9), "the header of 4294967295 bytes is too long"),
        (b"\x93NUMPY\x01\x00\x10\x00{'descr'", "the header is cut off"),
        (b"\x93NUMPY\x02\x00\x10\x00", "the header is cut off"),
        (
            npy_bytes(np.zeros(SHAPE)),
            "expected 'descr':'<f4', got {'descr':'<f8','fortran_order':False,'shape':(16,64),}",
        ),
        (
            npy_bytes(np.zeros(SHAPE, ">f4")),
            "expected 'descr':'<f4', got {'descr':'>f4','fortran_order':False,'shape':(16,64),}",
        ),
        (
            npy_bytes(np.zeros(SHAPE[::-1], np.float32)),
            "expected 'shape':(16,64), got {'descr':'<f4','fortran_order':False,'shape':(64,16),}",
        ),
        (
            npy_bytes(np.zeros(SHAPE, np.float32, order="F")),
            "expected 'fortran_order':False, got {'descr':'<f4','fortran_order':True,'shape':(16,64),}",
        ),
        (npy_bytes(np.zeros(SHAPE, np.float32))[:-1], "4095 bytes of data, expected 4096"),
        (npy_bytes(np.zeros(SHAPE, np.float32)) + b"x", "more than the expected 4096 bytes of data"),
    ],
)
def test_wrong_input(
    content: bytes, message: str, affine_programs: dict[str, Path], inputs: list[Path]
) -> None:
    inputs[0].write_bytes(content)
    done = run(affine_programs["embed"], *inputs)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"{inputs[0]}: input 'x': {message}\n"


def test_missing_file(affine_programs: dict[str, Path], inputs: list[Path]) -> None:
    inputs[1].unlink()
    done = run(affine_programs["embed"], *inputs)
    assert done.returncode == 3
    assert done.stderr == f"{inputs[1]}: input 'b:0': No such file or directory\n"


def test_folder_cannot_be_created(affine_programs: dict[str, Path], inputs: list[Path]) -> None:
    done = run(affine_programs["embed"], *inputs, "-o", inputs[0] / "folder")
    assert (done.returncode, done.stderr) == (2, f"{inputs[0]}/folder/a_y.npy: Not a directory\n")
    done = run(affine_programs["embed"], *inputs, "-o", "d" * 5000)
    assert (done.returncode, done.stderr) == (2, f"{'d' * 5000}: the path is too long\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_disk_full(affine_programs: dict[str, Path], inputs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "a_y.npy").symlink_to("/dev/full")
    done = run(affine_programs["embed"], *inputs, "-o", tmp_path)
    assert (done.returncode, done.stderr) == (70, f"{tmp_path}/a_y.npy: No space left on device\n")


def test_missing_weights(affine_programs: dict[str, Path], inputs: list[Path], tmp_path: Path) -> None:
    program = tmp_path / "alone"
    shutil.copy(affine_programs["file"], program)
    done = run(program, *inputs)
    assert (done.returncode, done.stderr) == (
        3,
        f"weights file '{program}.weights': No such file or directory\n",
    )


def test_finds_weights_through_a_link(
    affine_programs: dict[str, Path], inputs: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(affine_programs["file"])
    assert run(tmp_path / "link", *inputs, "-o", tmp_path).returncode == 0


def test_out_of_memory(
    affine_model: Callable, tmp_path: Path, inputs: list[Path], compiler: list[str]
) -> None:
    emit.write_executable(affine_model(pool_bytes=2**56), tmp_path / "m")
    done = run(tmp_path / "m", *inputs)
    assert done.returncode == 4
    assert done.stderr == f"occamy_create: out of memory for the pool of {2**56} bytes\n"


def peak_resident_bytes(process: subprocess.Popen) -> int:
    """Largest resident set of a running process so far."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert match is not None
    return int(match[1]) << 10


def test_memory_of_a_process(affine_programs: dict[str, Path], inputs: list[Path], tmp_path: Path) -> None:
    """A program with a tiny model needs at most 1 MiB more than one that does nothing."""
    os.mkfifo(tmp_path / "a_y.npy")
    os.mkfifo(tmp_path / "n.npy")
    program = [affine_programs["embed"], *inputs, "-o", tmp_path]
    with (
        subprocess.Popen(program, env=EMPTY) as process,
        # The program has run the model when it opens its first output, and waits to open its second.
        (tmp_path / "a_y.npy").open("rb") as output,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as idle,
    ):
        peak = peak_resident_bytes(process)
        assert idle.stdin is not None
        assert idle.stdout is not None
        idle.stdin.write(b"x")
        idle.stdin.flush()
        idle.stdout.read(1)
        assert peak < peak_resident_bytes(idle) + (1 << 20)
        idle.stdin.close()
        output.read()
        (tmp_path / "n.npy").read_bytes()
    assert process.returncode == 0


def test_malformed_files_never_crash(
    affine_programs: dict[str, Path], inputs: list[Path], affine_input: np.ndarray, tmp_path: Path
) -> None:
    """What the program accepts is what numpy reads; everything else is refused with exit code 3."""
    random = np.random.default_rng(7)
    good = npy_bytes(affine_input)
    header_bytes = len(good) - affine_input.nbytes
    accepted = 0
    for _ in range(60):
        bad = bytearray(good)
        for position in random.integers(0, header_bytes, random.integers(1, 4)):
            bad[position] = random.integers(0, 256)
        match random.integers(0, 3):
            case 0:
                del bad[random.integers(0, header_bytes) :]
            case 1:
                start = random.integers(6, header_bytes)
                bad[start:start] = random.bytes(random.integers(1, 40))
            case _:
                pass
        inputs[0].write_bytes(bad)
        done = run(affine_programs["embed"], *inputs, "-o", tmp_path)
        assert done.returncode in (0, 3), (bytes(bad[:header_bytes]), done)
        if done.returncode == 0:
            accepted += 1
            np.testing.assert_array_equal(np.load(tmp_path / "a_y.npy"), 2 * affine_input + WEIGHTS)
        else:
            assert done.stderr.startswith(f"{inputs[0]}: input 'x': ")
            assert done.stderr.count("\n") == 1
    assert accepted < 60


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((2, 3), np.float16),
        np.zeros((), np.bool_),
        np.zeros((0, 4), np.uint8),
        np.zeros((5,), ml_dtypes.bfloat16),
        np.zeros((1, 2, 3, 4, 5, 6), np.int64),
    ],
)
def test_header_is_what_numpy_writes(array: np.ndarray) -> None:
    spec = TensorSpec("t", array.dtype.name, array.shape)
    assert npy_header(spec) == npy_bytes(array)[: len(npy_bytes(array)) - array.nbytes]


def test_file_names() -> None:
    names = ["a/b", "a:b", "a b", "x" * 300, "é", "..", "a_b_1"]
    specs = [TensorSpec(name, "float32", ()) for name in names]
    files = file_names(specs)
    assert files[:3] == ["a_b.npy", "a_b_1.npy", "a_b_2.npy"]
    assert files[3:6] == ["x" * 200 + ".npy", "é.npy", "...npy"]
    assert len(set(files)) == len(files)
    assert all(os.sep not in file and len(file.encode()) < 255 for file in files)
