"""A first look: compiles a network, shows its memory, and compares result and time with ONNX Runtime."""

import argparse
import sys
import time
from collections.abc import Sequence

import numpy as np
import onnx_nets

import occamy_xdsl as oc
from occamy_xdsl.report.table import render
from occamy_xdsl.tools.commands.bench import measure, statistics_of
from occamy_xdsl.tools.reference import onnxruntime

TOLERANCE = 1e-3
"""Largest difference from ONNX Runtime, as a share of the largest score."""


def difference_from_shipped(net: str) -> float:
    """Largest difference from the output that onnx ships for its own test input, relative to the largest value."""
    executable = oc.compile(oc.load(onnx_nets.load(net)))
    (image,) = executable.signature.inputs
    want = onnx_nets.shipped_output(net)
    (got,) = executable.run({image.name: onnx_nets.test_input(image.shape)}).values()
    return float(np.abs(got - want).max() / np.abs(want).max())


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 where the result differs from ONNX Runtime's by more than rounding explains."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("net", nargs="?", default="resnet50", choices=onnx_nets.NETS)
    parser.add_argument("--iterations", type=int, default=20, help="timed runs of each implementation")
    options = parser.parse_args(arguments)

    deviation = difference_from_shipped(options.net)
    print(
        f"{options.net} as onnx ships it: difference from the expected output {deviation:.1e} of the largest score"
    )
    print(f"{options.net} with random weights, so that the scores differ:\n")
    model = oc.load(onnx_nets.with_random_weights(onnx_nets.load(options.net)))
    start = time.perf_counter()
    executable = oc.compile(model)
    seconds = time.perf_counter() - start
    print(render(executable.memory_report(), top=5, terminal=sys.stdout.isatty()))

    (image,) = executable.signature.inputs
    values = {image.name: np.random.default_rng(1).standard_normal(image.shape, np.float32)}
    theirs = onnxruntime(model)
    ((name, scores),) = executable.run(values).items()
    scores, expected = scores.ravel(), theirs(values)[name].ravel()
    difference = float(np.abs(scores - expected).max() / np.abs(expected).max())
    right = max(difference, deviation) <= TOLERANCE
    print(f"{'class':>5} {'occamy':>12} {'ONNX Runtime':>12}")
    for i in np.argsort(-scores, kind="stable")[:5]:
        print(f"{i:>5} {scores[i]:>12.6f} {expected[i]:>12.6f}")
    print(f"largest difference from ONNX Runtime: {difference:.1e} of the largest score")
    print(f"{'right' if right else 'WRONG'}\n")

    times = measure([lambda: executable.run(values), lambda: theirs(values)], 3, options.iterations)
    ours, others = (statistics_of(t)["p50"] for t in times)
    print(f"compiled in {seconds:.1f} s")
    print(f"median of {options.iterations} runs each, in turns, one thread:")
    print(f"occamy {ours:.2f} ms, ONNX Runtime {others:.2f} ms, ONNX Runtime / occamy {others / ours:.2f}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
