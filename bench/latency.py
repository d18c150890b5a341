"""
Time per run next to ONNX Runtime's, whole and in stripes, one thread each, in turns within one process.

Arguments are networks of `onnx_nets` or ONNX files; all networks by default. Writes results/latency-CPU.json, with
the median times and the medians of the paired ratios. Outputs must agree: with ONNX Runtime within `TOLERANCE`, and
those in stripes (`--optimize memory`) with those of the whole tensors to the last bit.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import onnx_nets

import occamy_xdsl as oc
from occamy_xdsl.runtime.bind import random_tensor
from occamy_xdsl.tools.commands.bench import measure, statistics_of
from occamy_xdsl.tools.reference import onnxruntime

RESULTS = Path(__file__).parent / "results"
TOLERANCE = 1e-4
"""Largest difference of the outputs, as a share of the largest value."""


def compare(net: str, warmup: int, iterations: int) -> dict[str, Any]:
    """Median milliseconds, ours as a share of ONNX Runtime's, and in stripes as a share of ours."""
    path = Path(net)
    is_file = path.suffix == ".onnx"
    model = oc.load(path if is_file else onnx_nets.with_random_weights(onnx_nets.load(net)))
    whole, striped = oc.compile(model), oc.compile(model, optimize="memory")
    theirs = onnxruntime(model)
    inputs = {spec.name: random_tensor(spec, 0, i) for i, spec in enumerate(whole.signature.inputs)}
    got, in_stripes = whole.run(inputs), striped.run(inputs)
    for name, want in theirs(inputs).items():
        difference = float(np.abs(got[name] - want).max())
        if difference > TOLERANCE * float(np.abs(want).max()):
            raise SystemExit(f"{net}: output '{name}' differs by {difference}")
        if not np.array_equal(in_stripes[name], got[name]):
            raise SystemExit(f"{net}: output '{name}' is another in stripes")
    runs = (lambda: whole.run(inputs), lambda: theirs(inputs), lambda: striped.run(inputs))
    times = measure(runs, warmup, iterations)
    medians = [round(statistics_of(t)["p50"], 3) for t in times]
    return {
        "occamy_ms": medians[0],
        "onnxruntime_ms": medians[1],
        "ratio": median_ratio(times[0], times[1]),
        "striped_ms": medians[2],
        "striped_ratio": median_ratio(times[2], times[0]),
        "pool_bytes": whole.pool_bytes,
        "striped_pool_bytes": striped.pool_bytes,
    }


def median_ratio(times: Sequence[float], others: Sequence[float]) -> float:
    """The median of ratios of times that were measured one after the other."""
    return round(statistics.median(a / b for a, b in zip(times, others, strict=True)), 3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nets", nargs="*", default=onnx_nets.NETS)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=25)
    options = parser.parse_args()
    cpu = llvm.get_host_cpu_name()
    path = RESULTS / f"latency-{re.sub('[^a-z0-9]+', '-', cpu)}.json"
    known = json.loads(path.read_text()) if path.exists() else {"nets": {}}
    print(f"{'network':<20} {'occamy ms':>10} {'ORT ms':>10} {'ratio':>7} {'in stripes':>11}")
    for net in options.nets:
        row = compare(net, options.warmup, options.iterations)
        known["nets"][Path(net).stem] = row
        print(
            f"{Path(net).stem:<20} {row['occamy_ms']:>10} {row['onnxruntime_ms']:>10} {row['ratio']:>7}"
            f" {row['striped_ratio']:>11}",
            flush=True,
        )
    ratios = [row["ratio"] for row in known["nets"].values()]
    print(f"geometric mean of the ratios: {statistics.geometric_mean(ratios):.3f}")
    versions = {package: version(package) for package in ("onnxruntime", "llvmlite", "numpy")}
    result = {"cpu": cpu, "threads": 1, "versions": versions, "nets": dict(sorted(known["nets"].items()))}
    path.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
