"""
Time per run next to ONNX Runtime's, one thread each, in turns within one process.

Arguments are networks of `onnx_nets` or ONNX files; all networks by default. Writes results/latency-CPU.json, with
the median times and the median of the paired ratios.
"""

import argparse
import json
import re
import statistics
import sys
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
    """Median milliseconds of both, and what share of ONNX Runtime's time ours is."""
    path = Path(net)
    is_file = path.suffix == ".onnx"
    model = oc.load(path if is_file else onnx_nets.with_random_weights(onnx_nets.load(net)))
    executable, theirs = oc.compile(model), onnxruntime(model)
    inputs = {spec.name: random_tensor(spec, 0, i) for i, spec in enumerate(executable.signature.inputs)}
    for name, want in theirs(inputs).items():
        difference = float(np.abs(executable.run(inputs)[name] - want).max())
        if difference > TOLERANCE * float(np.abs(want).max()):
            raise SystemExit(f"{net}: output '{name}' differs by {difference}")
    times = measure([lambda: executable.run(inputs), lambda: theirs(inputs)], warmup, iterations)
    ours, others = (round(statistics_of(t)["p50"], 3) for t in times)
    ratio = statistics.median(a / b for a, b in zip(*times, strict=True))
    return {"occamy_ms": ours, "onnxruntime_ms": others, "ratio": round(ratio, 3)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nets", nargs="*", default=onnx_nets.NETS)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=25)
    options = parser.parse_args()
    cpu = llvm.get_host_cpu_name()
    path = RESULTS / f"latency-{re.sub('[^a-z0-9]+', '-', cpu)}.json"
    known = json.loads(path.read_text()) if path.exists() else {"nets": {}}
    print(f"{'network':<20} {'occamy ms':>10} {'ORT ms':>10} {'ratio':>7}")
    for net in options.nets:
        row = compare(net, options.warmup, options.iterations)
        known["nets"][Path(net).stem] = row
        print(
            f"{Path(net).stem:<20} {row['occamy_ms']:>10} {row['onnxruntime_ms']:>10} {row['ratio']:>7}",
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
