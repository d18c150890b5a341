"""
Runs ONNX's backend conformance suite and counts what passes, is refused, or fails.

Each test runs in a process of its own, so that a crash is one failure. A model that is refused (UnsupportedModelError)
is counted apart: onnx's own runner would count it as passed. With --gpu, GPU code runs under the simulator.
"""

import argparse
import os
import sys
import tempfile
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from signal import alarm
from typing import Any

from onnx import ModelProto
from onnx.backend.test.runner import Runner

from occamy_xdsl.backend import OccamyBackend, OccamyRep
from occamy_xdsl.compiler import Compilation, Model
from occamy_xdsl.errors import UnsupportedModelError
from occamy_xdsl.lowering.cpu.emit import write_library
from occamy_xdsl.pipelines import Options
from occamy_xdsl.runtime.executable import Array, Executable, LibraryModel
from occamy_xdsl.simulator import Simulator

KINDS = ("NodeModel", "SimpleModel", "PyTorchConvertedModel", "PyTorchOperatorModel")
TIME_LIMIT = 120
"""Seconds for one test."""

ARCHITECTURE = "sm_75"
"""The GPU that is simulated."""


class SimulatedExecutable:
    """GPU code that runs under the simulator."""

    def __init__(self, compilation: Compilation):
        self.folder = tempfile.TemporaryDirectory()
        self.library = Path(self.folder.name, "model.so")
        write_library(compilation.compiled(Path(self.folder.name)), self.library)

    def run(self, *inputs: Array) -> dict[str, Array]:
        with Simulator(architecture=ARCHITECTURE):
            executable = Executable(LibraryModel(self.library))
            outputs = executable.run(*inputs)
            del executable
        return outputs


class SimulatedRep(OccamyRep):
    def _compile(self, shapes: Mapping[str, Sequence[int]]) -> SimulatedExecutable:
        try:
            return SimulatedExecutable(Compilation(Model(self._model, shapes), self._options))
        except UnsupportedModelError as error:
            raise unittest.SkipTest(str(error)) from error


class SimulatedBackend(OccamyBackend):
    """Compiles for a GPU and runs under the simulator."""

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> OccamyRep:
        return SimulatedRep(model, Options(target=f"cuda:{ARCHITECTURE}"))


def outcome(test: Callable[[object], None]) -> str:
    """`pass`, `refused`, or `fail` and the reason in one line."""
    try:
        test(None)
    except unittest.SkipTest as reason:
        return f"refused {reason}".replace("\n", " ")
    except BaseException as error:
        return f"fail {type(error).__name__}: {error}".replace("\n", " ")
    return "pass"


def isolated(test: Callable[[object], None]) -> str:
    """The outcome of a test in a child process."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:
        alarm(TIME_LIMIT)
        os.write(send, outcome(test).encode()[:4000])
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    return text or f"fail crashed with status {status}"


def main() -> int:
    """1 if a test fails, 0 if each passes or is refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default="", help="run the tests whose name contains this")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--gpu", action="store_true", help="run GPU code under the simulator")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    items = Runner(SimulatedBackend if options.gpu else OccamyBackend, __name__)._test_items
    failed = False
    for kind in KINDS:
        tests = [
            (name, item.func)
            for name, item in sorted(items[kind].items())
            if name.endswith("_cpu") and options.pattern in name
        ]
        with ThreadPoolExecutor(options.jobs) as pool:
            outcomes = list(pool.map(isolated, (test for _, test in tests)))
        for (name, _), text in zip(tests, outcomes, strict=True):
            if text.startswith("fail"):
                failed = True
                print(f"{name}: {text[5:300]}")
        counts = Counter(text.split()[0] for text in outcomes)
        print(
            f"{kind}: {counts['pass']} passed, {counts['fail']} failed, {counts['refused']} refused",
            flush=True,
        )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
