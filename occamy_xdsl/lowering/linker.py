"""Linking objects into libraries and programs with a C compiler, for this machine or another."""

import importlib.util
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from occamy_xdsl.errors import UsageError

HOST = platform.machine()
"""The kind of processor that this runs on, as in LLVM's target triples."""

TIME_LIMIT = 600.0
"""Seconds one link may take; gigabytes of weights are written in less."""

_WEIGHTS_ASSEMBLY = """\
    .section .rodata.{symbol},"a",%progbits
    .balign 64
    .globl {symbol}
    .hidden {symbol}
    .type {symbol}, %object
{symbol}:
    .incbin "{file}"
    .size {symbol}, . - {symbol}
    .section .note.GNU-stack,"",%progbits
"""


def find_compiler(machine: str = HOST) -> list[str]:
    """
    The command of the C compiler for a kind of processor, `x86_64` or `aarch64`.

    OCCAMY_CC if it is set; else `cc` on PATH, for another machine than this one its cross compiler; else the
    ziglang wheel. Raises UsageError if there is none.
    """
    if command := os.environ.get("OCCAMY_CC"):
        return shlex.split(command)
    compiler = "cc" if machine == HOST else f"{machine}-linux-gnu-gcc"
    if shutil.which(compiler):
        return [compiler]
    if importlib.util.find_spec("ziglang"):
        target = [] if machine == HOST else ["-target", f"{machine}-linux-gnu"]
        return [sys.executable, "-m", "ziglang", "cc", *target]
    if machine != HOST:
        raise UsageError(
            f"no C compiler to link with for {machine}: install {compiler}, or `pip install ziglang`, or set "
            "OCCAMY_CC"
        )
    raise UsageError(
        "no C compiler to link with: install gcc or clang, or `pip install ziglang`, or set OCCAMY_CC; "
        "running a model from Python needs none"
    )


_SUMMARY = re.compile(r"collect2: error: ld returned|clang.*: error: linker command failed")


def _link(options: Sequence[str], objects: Sequence[Path], output: Path, machine: str) -> None:
    compiler = find_compiler(machine)
    # Parts of the C library, some of which older releases have in files of their own.
    command = [*compiler, *options, "-o", str(output), *map(str, objects), "-lm", "-lpthread", "-ldl"]
    # Paths in the assembly of `embed_file` are relative to the folder of the objects.
    status, said = _run(command, objects[0].parent)
    if status:
        # The compiler ends with a line that the linker failed; what is wrong stands before it.
        lines = [line for line in said.strip().splitlines() if not _SUMMARY.match(line)]
        lines = lines or [f"exit status {status}"]
        fact = next((line for line in lines if "error" in line or "undefined" in line), lines[-1])
        raise UsageError(f"linking failed: {command[0]}: {fact}")


def _run(command: Sequence[str], folder: Path) -> tuple[int, str]:
    """
    Exit status of a C compiler that runs in `folder`, and what it said. It leaves no process and, outside of
    `folder`, no file, even where it is stopped.
    """
    pipe, environment = subprocess.PIPE, {**os.environ, "TMPDIR": str(folder)}
    try:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True, process_group=0
        )
    except OSError as error:
        raise UsageError(f"the C compiler does not start: {error}") from None
    with process:
        try:
            out, err = process.communicate(timeout=TIME_LIMIT)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise UsageError(f"the C compiler gave no result after {TIME_LIMIT:g} s") from None
            raise
    return process.returncode, err or out


# No build identifier and only needed libraries: the same objects give the same bytes.
_REPRODUCIBLE = ("-Wl,--build-id=none", "-Wl,--as-needed", "-Wl,-z,noexecstack")


def link_shared(
    objects: Sequence[Path],
    output: Path,
    exports: Sequence[str],
    *,
    soname: str | None = None,
    machine: str = HOST,
) -> None:
    """
    Link a shared library that exports only the symbols `exports`; `soname` is the name others know it by.

    The first object lies in the folder of temporary files. Raises UsageError.
    """
    script = objects[0].parent / "exports.map"
    script.write_text("{ global: " + " ".join(f"{name};" for name in exports) + " local: *; };\n")
    options = ["-shared", f"-Wl,--version-script={script.name}", *_REPRODUCIBLE]
    if soname is not None:
        options.append(f"-Wl,-soname,{soname}")
    _link(options, objects, output, machine)


def link_executable(objects: Sequence[Path], output: Path, machine: str = HOST) -> None:
    """Link a program. All objects lie in one folder. Raises UsageError."""
    _link(["-pie", *_REPRODUCIBLE], objects, output, machine)


def link_relocatable(objects: Sequence[Path], output: Path, machine: str = HOST) -> None:
    """Merge objects into one. All objects lie in one folder. Raises UsageError."""
    _link(["-r", "-nostdlib"], objects, output, machine)


def embed_file(file: Path, symbol: str, folder: Path) -> Path:
    """
    An assembly source in `folder`, to be linked from there, that defines `symbol` as the content of `file`.

    The data are read-only, 64-byte aligned and need no relocation, so processes share their pages.
    """
    # The link has a plain name, whatever characters the path of the file has.
    link = folder / f"{symbol}.bin"
    link.symlink_to(file.resolve())
    source = folder / f"{symbol}.s"
    source.write_text(_WEIGHTS_ASSEMBLY.format(symbol=symbol, file=link.name))
    return source
