"""Memory of a compiled program while it is still alive, as the kernel counts it (Linux)."""

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from occamy_xdsl.lowering.signature import Signature, file_names
from occamy_xdsl.runtime.bind import random_tensor


@dataclass(frozen=True)
class Usage:
    """Bytes of one process: the most it ever had resident, and what it holds after its run."""

    peak_rss: int
    """All resident pages at their most (VmHWM), those of files included."""
    anonymous: int
    """Pages of no file: heap and stack, so pool, inputs and outputs."""
    proportional: int
    """Resident pages, each divided by the number of processes that share it (PSS)."""
    seconds: float
    """Time from the start to the end of the run, reading the inputs included."""


def write_inputs(signature: Signature, folder: Path) -> list[Path]:
    """Random values of all inputs as .npy files, in order."""
    paths = [folder / f"input{i}.npy" for i in range(len(signature.inputs))]
    for position, (path, spec) in enumerate(zip(paths, signature.inputs, strict=True)):
        np.save(path, random_tensor(spec, 0, position))
    return paths


def measure(program: Path, signature: Signature, copies: int = 1, timeout: float = 300.0) -> list[Usage]:
    """
    Runs `copies` of an executable at the same time and looks at each after its run, before it ends.

    Each copy's first output is a named pipe that nobody reads yet: the program sleeps there, with everything
    it ever allocated. Raises RuntimeError if one ends or is not done within `timeout` seconds.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inputs = write_inputs(signature, folder)
        pipes = list[Path]()
        processes = list[subprocess.Popen[bytes]]()
        start = time.monotonic()
        for copy in range(copies):
            outputs = folder / f"outputs{copy}"
            outputs.mkdir()
            pipes.append(outputs / file_names(signature.outputs)[0])
            os.mkfifo(pipes[-1])
            processes.append(subprocess.Popen([program, *inputs, "-o", outputs]))
        try:
            seconds = [_wait(process, start, timeout) for process in processes]
            usages = [_usage(p.pid, s) for p, s in zip(processes, seconds, strict=True)]
            for pipe, process in zip(pipes, processes, strict=True):
                pipe.read_bytes()
                if process.wait(timeout):
                    raise RuntimeError(f"{program} ended with exit code {process.returncode}")
            return usages
        finally:
            for process in processes:
                process.kill()


def _wait(process: "subprocess.Popen[bytes]", start: float, timeout: float) -> float:
    """Waits until a process that only computes and reads files sleeps; returns the seconds since `start`."""
    asleep = 0
    while asleep < 3:
        if process.poll() is not None:
            raise RuntimeError(f"the program ended with exit code {process.returncode} before its outputs")
        if time.monotonic() - start > timeout:
            raise RuntimeError(f"the program is not done after {timeout} s")
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        asleep = asleep + 1 if state == "S" else 0
        time.sleep(0.002)
    return time.monotonic() - start


def _usage(pid: int, seconds: float) -> Usage:
    status, rollup = (_fields(Path(f"/proc/{pid}/{name}")) for name in ("status", "smaps_rollup"))
    return Usage(status["VmHWM"], status["RssAnon"], rollup["Pss"], seconds)


def _fields(path: Path) -> dict[str, int]:
    """The lines `name: n kB` of a file, in bytes."""
    lines: Sequence[str] = path.read_text().splitlines()
    return {
        name: int(rest.split()[0]) * 1024
        for name, _, rest in (line.partition(":") for line in lines)
        if rest.endswith(" kB")
    }
