"""
Compares models on this machine's GPU with ONNX Runtime, and times them.

Arguments are networks of `test/nets.py` or of `onnx_nets`, or ONNX files; by default all of the former, then of the
latter. After each network results/gpu-DEVICE.json is written, with the largest difference as a share of the largest
value and the median milliseconds of a run from host memory to host memory. A network that fails is noted, and the
others go on. With `--simulate` nothing is timed or written: it tries this script, and the models, without a GPU.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx_nets

import occamy_xdsl as oc
from occamy_xdsl.compiler import Compilation
from occamy_xdsl.lowering.cpu.emit import write_library
from occamy_xdsl.pipelines import Options
from occamy_xdsl.runtime.bind import random_tensor
from occamy_xdsl.runtime.cuda import simulate
from occamy_xdsl.simulator import Simulator
from occamy_xdsl.tools.commands.bench import measure, statistics_of
from occamy_xdsl.tools.reference import onnxruntime

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
sys.path.insert(0, str(ROOT / "test"))
from nets import NETS  # noqa: E402  # a folder of tests is no package

TOLERANCE = 1e-4
"""Largest difference of the outputs, as a share of the largest value."""


def load(net: str) -> oc.Model:
    """A network by name or file."""
    if net.endswith(".onnx"):
        return oc.load(net)
    return oc.load(NETS[net]() if net in NETS else onnx_nets.with_random_weights(onnx_nets.load(net)))


def difference(got: dict[str, Any], want: dict[str, Any]) -> float:
    """The largest difference of any output, as a share of its largest value."""
    shares = [
        float(np.abs(got[name] - y).max(initial=0)) / (float(np.abs(y).max(initial=0)) or 1.0)
        for name, y in want.items()
    ]
    return max(shares)


def check(net: str, target: str, simulated: bool, warmup: int, iterations: int) -> dict[str, Any]:
    """What is noted of a network; raises OccamyError where it does not run."""
    model = load(net)
    if simulated:
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "model.so"
            compilation = Compilation(model, Options(target=target))
            compiled = compilation.compiled(Path(folder))
            write_library(compiled, library)
            inputs = {s.name: random_tensor(s, 0, i) for i, s in enumerate(compiled.signature.inputs)}
            outputs = simulate(library, inputs, Simulator(architecture=compilation.options.processor))
        return {"difference": difference(outputs, onnxruntime(model)(inputs))}
    executable = oc.compile(model, target=target)
    inputs = {s.name: random_tensor(s, 0, i) for i, s in enumerate(executable.signature.inputs)}
    row: dict[str, Any] = {"difference": difference(executable.run(inputs), onnxruntime(model)(inputs))}
    (times,) = measure([lambda: executable.run(inputs)], warmup, iterations)
    return row | {"ms": round(statistics_of(times)["p50"], 4), "pool_bytes": executable.pool_bytes}


def device() -> str:
    """Name and driver version of the GPU, as nvidia-smi says them."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"no GPU: nvidia-smi: {error}; --simulate needs none") from None
    return done.stdout.splitlines()[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nets", nargs="*", default=[*NETS, *onnx_nets.NETS])
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--iterations", type=int, default=200)
    options = parser.parse_args()
    name = "simulator" if options.simulate else device()
    rows: dict[str, Any] = {}
    for net in options.nets:
        try:
            row = check(net, options.target, options.simulate, options.warmup, options.iterations)
        except oc.OccamyError as error:
            row = {"error": str(error)}
        row["right"] = row.get("difference", np.inf) <= TOLERANCE
        rows[Path(net).stem] = row
        print(Path(net).stem, row, flush=True)
        if not options.simulate:
            path = RESULTS / f"gpu-{re.sub('[^a-z0-9]+', '-', name.lower())}.json"
            path.write_text(json.dumps({"device": name, "nets": rows}, indent=2) + "\n")
    return 0 if all(row["right"] for row in rows.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
