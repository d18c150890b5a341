"""
Runs networks on this machine's GPU: compares them with ONNX Runtime, and times them beside PyTorch.

The networks are folders that `gpu_prepare.py` made. Each is run by each system in a process of its own: `occamy`,
`occamy-graph` (captured in a CUDA graph) and, where PyTorch sees the GPU, `torch`, `torch-compile` and `torch-graph`,
in f32 without TF32. After each run results/gpu-DEVICE.json is written; what is in it already, of the same library, is
not run again. Noted are

- `difference`: the largest difference from ONNX Runtime's outputs, as a share of the largest value of an output;
- `ms`: median and 90th percentile of a run from host memory to host memory;
- `device_ms`: the same between events around the work on the device alone;
- `context_bytes`, `model_bytes`, `run_bytes`: what the process takes of the device's memory before there is a model,
  for the model, and more after its runs.

With `--simulate` nothing is timed or written: it tries this script, and the models, without a GPU. Apart from that it
needs Python, numpy, cuda-bindings and xDSL, and neither a compiler nor the network.
"""

import argparse
import hashlib
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
# Where this was packed to be carried, the packages it needs lie beside it.
if (HERE / "python").is_dir():
    sys.path.insert(0, str(HERE / "python"))

from occamy_xdsl.errors import NoDeviceError, OccamyError  # noqa: E402
from occamy_xdsl.lowering.signature import TensorSpec  # noqa: E402
from occamy_xdsl.runtime.bind import random_tensor  # noqa: E402
from occamy_xdsl.runtime.device import device, elapsed, free_bytes, memory  # noqa: E402
from occamy_xdsl.runtime.executable import BoundLibrary, open_library  # noqa: E402

TOLERANCE = 1e-4
"""Largest difference of the outputs, as a share of the largest value."""

OWN = ("occamy", "occamy-graph")
OTHERS = ("torch", "torch-compile", "torch-graph")

TIME_LIMIT = 600.0
"""Seconds for one network and system; torch.compile takes minutes."""

Arrays = Mapping[str, np.ndarray]


def random_inputs(folder: Path) -> dict[str, np.ndarray]:
    """The inputs for which `expected.npz` has the outputs."""
    specs = json.loads((folder / "net.json").read_text())["inputs"]
    return random_values([TensorSpec(s["name"], s["dtype"], tuple(s["shape"])) for s in specs])


def random_values(specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
    """Inputs of a network; integers are 0 or 1, which index every table."""
    values = {spec.name: random_tensor(spec, 0, i) for i, spec in enumerate(specs)}
    return {name: value % 2 if value.dtype.kind in "iu" else value for name, value in values.items()}


def difference(got: Arrays, want: Arrays) -> float:
    """The largest difference of any output, as a share of its largest value; infinite for other shapes or NaN."""
    shares = [0.0]
    for name, y in want.items():
        if got[name].shape != y.shape:
            return float("inf")
        largest = float(np.abs(y.astype(np.float64)).max(initial=0)) or 1.0
        share = float(np.abs(got[name].astype(np.float64) - y).max(initial=0)) / largest
        shares.append(share if np.isfinite(share) else float("inf"))
    return max(shares)


def timed(run: Callable[[], object], warmup: int, iterations: int) -> list[float]:
    """Milliseconds of each run, by the host's clock."""
    times: list[float] = []
    for _ in range(warmup + iterations):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return times[warmup:]


def summary(times: Sequence[float]) -> dict[str, float]:
    """Median and 90th percentile."""
    return {
        "p50": round(statistics.median(times), 5),
        "p90": round(sorted(times)[int(0.9 * (len(times) - 1))], 5),
    }


def run_own(folder: Path, graph: bool, simulated: bool, warmup: int, iterations: int) -> dict[str, Any]:
    """What is noted of a library."""
    inputs, expected = random_inputs(folder), np.load(folder / "expected.npz")
    device()
    empty, total = memory()
    executable = open_library(folder / "model.so")
    with_model = free_bytes()
    if graph:
        executable.capture()
    outputs = executable.run(inputs)
    row: dict[str, Any] = {
        "difference": difference(outputs, expected),
        "pool_bytes": executable.pool_bytes,
        "model_bytes": empty - with_model,
    }
    bound = executable.bound
    assert isinstance(bound, BoundLibrary)
    if simulated:
        elapsed(bound.stream, bound.enqueue)
        return row
    row["ms"] = summary(timed(lambda: executable.run(inputs, out=outputs), warmup, iterations))
    times = [elapsed(bound.stream, bound.enqueue) for _ in range(warmup + iterations)]
    row["device_ms"] = summary(times[warmup:])
    return row | {"context_bytes": total - empty, "run_bytes": with_model - free_bytes()}


def run_torch(folder: Path, system: str, warmup: int, iterations: int) -> dict[str, Any]:
    """What is noted of PyTorch; raises ImportError or NotImplementedError where it cannot run the network."""
    import onnx
    import torch
    from torch_model import OnnxModule

    if not torch.cuda.is_available():
        raise NotImplementedError("PyTorch sees no GPU")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.zeros(1, device="cuda")
    empty = torch.cuda.mem_get_info()[0]
    inputs, expected = random_inputs(folder), np.load(folder / "expected.npz")
    module: Any = OnnxModule(onnx.load(folder / "model.onnx")).cuda().eval()
    with_model = torch.cuda.mem_get_info()[0]
    names, outputs = module.inputs, module.outputs
    operands = [torch.from_numpy(inputs[name]).cuda() for name in names]
    if system == "torch-compile":
        module = torch.compile(module)
    with torch.inference_mode():
        enqueue: Callable[[], Any] = lambda: module(*operands)  # noqa: E731
        if system == "torch-graph":
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    module(*operands)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                results = module(*operands)

            def enqueue() -> Any:
                graph.replay()
                return results

        got = {n: y.cpu().numpy() for n, y in zip(outputs, enqueue(), strict=True)}
        row: dict[str, Any] = {"difference": difference(got, expected)}

        def run() -> None:
            for operand, name in zip(operands, names, strict=True):
                operand.copy_(torch.from_numpy(inputs[name]))
            for y in enqueue():
                y.cpu()

        row["ms"] = summary(timed(run, warmup, iterations))
        times: list[float] = []
        for _ in range(warmup + iterations):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            enqueue()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
    row["device_ms"] = summary(times[warmup:])
    free, total = torch.cuda.mem_get_info()
    return row | {
        "max_allocated_bytes": torch.cuda.max_memory_allocated(),
        "max_reserved_bytes": torch.cuda.max_memory_reserved(),
        "model_bytes": empty - with_model,
        "run_bytes": with_model - free,
        "context_bytes": total - empty,
        "torch": torch.__version__,
    }


def run_one(folder: Path, system: str, simulated: bool, warmup: int, iterations: int) -> dict[str, Any]:
    """What is noted of one network and one system, or `error`, or `skipped`."""
    try:
        if system in OTHERS:
            return run_torch(folder, system, warmup, iterations)
        graph = system == "occamy-graph"
        if not simulated:
            return run_own(folder, graph, simulated, warmup, iterations)
        from occamy_xdsl.simulator import Simulator

        with Simulator():
            return run_own(folder, graph, simulated, warmup, iterations)
    except (ImportError, NotImplementedError) as error:
        return {"skipped": str(error)}
    except OccamyError as error:
        return {"error": str(error)}
    except RuntimeError as error:
        return {"error": (str(error).splitlines() or [type(error).__name__])[0]}


def describe() -> dict[str, Any]:
    """The GPU, or `error`."""
    try:
        return vars(device())
    except OccamyError as error:
        return {"error": str(error)}


def in_own_process(arguments: Sequence[str]) -> dict[str, Any]:
    """`run_one` in a process that is gone afterwards, with all its memory."""
    command = [sys.executable, __file__, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {TIME_LIMIT:g} s"}
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        fact = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return {"error": f"exit code {done.returncode}: {fact}"}
    return json.loads(lines[-1])


def digest(path: Path) -> str:
    """A file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "nets", nargs="*", help="networks, such as op/convolution, or op; by default all in the folder"
    )
    parser.add_argument("--folder", type=Path, default=HERE / "networks", help="folder with the networks")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder for the results")
    parser.add_argument("--systems", nargs="+", choices=[*OWN, *OTHERS])
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--find", action="store_true", help="say which GPU there is, and stop")
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--device", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--one", nargs=2, metavar=("FOLDER", "SYSTEM"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device:
        print(json.dumps(describe()))
        return 0
    if options.one:
        row = run_one(
            Path(options.one[0]), options.one[1], options.simulate, options.warmup, options.iterations
        )
        print(json.dumps(row))
        return 0
    # Not in this process, whose context would count in what the others measure.
    found = {} if options.simulate else in_own_process(["--device"])
    if "error" in found:
        print(f"error: {found['error']}", file=sys.stderr)
        return NoDeviceError.exit_code
    if options.find:
        print(found["name"])
        return 0
    folders = {json.loads(p.read_text())["net"]: p.parent for p in sorted(options.folder.glob("*/net.json"))}
    nets = [net for net in folders if not options.nets or {net, net.partition("/")[0]} & set(options.nets)]
    if not nets:
        raise SystemExit(f"{options.folder}: no such networks; prepare them first")
    known: dict[str, Any] = {"nets": {}}
    if options.simulate:
        systems = options.systems or OWN
    else:
        systems = options.systems or (*OWN, *OTHERS)
        path = options.results / f"gpu-{re.sub('[^a-z0-9]+', '-', found['name'].lower())}.json"
        if path.exists():
            known = json.loads(path.read_text())
        known |= {"device": found, "iterations": options.iterations}
    wrong = 0
    for net in nets:
        library = digest(folders[net] / "model.so")
        rows = known["nets"].get(net, {})
        if rows.get("library") != library:
            rows = known["nets"][net] = {"library": library}
        for system in systems:
            if system not in rows or "error" in rows[system]:
                more = ["--simulate"] if options.simulate else []
                counts = [f"--warmup={options.warmup}", f"--iterations={options.iterations}"]
                row = in_own_process(["--one", str(folders[net]), system, *counts, *more])
                if "difference" in row:
                    row["right"] = row["difference"] <= TOLERANCE
                rows[system] = row
                if not options.simulate:
                    options.results.mkdir(parents=True, exist_ok=True)
                    temporary = path.with_suffix(".new")
                    temporary.write_text(json.dumps(known, indent=1) + "\n")
                    temporary.replace(path)
            wrong += system in OWN and not rows[system].get("right", False)
            print(f"{net:<32} {system:<14} {json.dumps(rows[system])}", flush=True)
    print(f"{len(nets)} networks, {wrong} runs of ours are wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
