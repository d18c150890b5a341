"""
A first look: compiles an image classifier, shows its memory, and compares result and time with ONNX Runtime.

The network comes with the onnx package, at full size but with one constant in place of most weights, from
which every class gets the same score. So each such tensor is filled with random numbers here.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, numpy_helper

import occamy_xdsl as oc
from occamy_xdsl.report.table import render
from occamy_xdsl.tools.commands.bench import measure, statistics_of
from occamy_xdsl.tools.reference import onnxruntime

MODELS = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
TOLERANCE = 1e-3
"""Largest difference from ONNX Runtime, as a share of the largest score."""


def with_random_weights(model: ModelProto, seed: int = 0) -> ModelProto:
    """`model` with random float32 weights in place of the ConstantOfShape nodes that make its weights."""
    random = np.random.default_rng(seed)
    shapes = {t.name: tuple(numpy_helper.to_array(t)) for t in model.graph.initializer}
    result = ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            result.graph.node.append(node)
            continue
        shape = shapes[node.input[0]]
        if len(shape) > 1:  # a filter or matrix: small enough that the softmax at the end does not saturate
            values = random.standard_normal(shape) * np.sqrt(0.5 / np.prod(shape[1:]))
        else:  # a bias, or a mean, variance or scale of batch normalisation
            values = random.uniform(0.5, 1.5, shape)
        result.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), node.output[0]))
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 where the result differs from ONNX Runtime's by more than rounding explains."""
    nets = sorted(path.stem.removeprefix("light_") for path in MODELS.glob("light_*.onnx"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("net", nargs="?", default="resnet50", choices=nets)
    parser.add_argument("--iterations", type=int, default=20, help="timed runs of each implementation")
    options = parser.parse_args(arguments)
    proto = with_random_weights(onnx.load(MODELS / f"light_{options.net}.onnx"))

    model = oc.load(proto)
    start = time.perf_counter()
    executable = oc.compile(model)
    seconds = time.perf_counter() - start
    print(render(executable.memory_report(), top=5, terminal=sys.stdout.isatty()))

    (input,) = executable.signature.inputs
    values = {input.name: np.random.default_rng(1).standard_normal(input.shape, np.float32)}
    theirs = onnxruntime(model)
    ((name, scores),) = executable.run(values).items()
    scores, expected = scores.ravel(), theirs(values)[name].ravel()
    difference = float(np.abs(scores - expected).max() / np.abs(expected).max())
    right = difference <= TOLERANCE
    print(f"{'class':>5} {'occamy':>12} {'ONNX Runtime':>12}")
    for i in np.argsort(-scores, kind="stable")[:5]:
        print(f"{i:>5} {scores[i]:>12.6f} {expected[i]:>12.6f}")
    print(f"largest difference: {difference:.1e} of the largest score, {'right' if right else 'WRONG'}\n")

    times = measure([lambda: executable.run(values), lambda: theirs(values)], 3, options.iterations)
    ours, others = (statistics_of(t)["p50"] for t in times)
    print(f"compiled in {seconds:.1f} s")
    print(f"median of {options.iterations} runs each, in turns, one thread:")
    print(f"occamy {ours:.2f} ms, ONNX Runtime {others:.2f} ms, ratio {others / ours:.2f}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
