"""
Runs ONNX's backend conformance suite and counts what passes, is refused, or fails.

Each test runs in a process of its own, so that a crash is one failure. A model that is refused (UnsupportedModelError)
is counted apart: onnx's own runner would count it as passed.
"""

import argparse
import os
import sys
import unittest
import warnings
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from signal import alarm

from onnx.backend.test.runner import Runner

from occamy_xdsl.backend import OccamyBackend

KINDS = ("NodeModel", "SimpleModel", "PyTorchConvertedModel", "PyTorchOperatorModel")
TIME_LIMIT = 120
"""Seconds for one test."""


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
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    items = Runner(OccamyBackend, __name__)._test_items
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
