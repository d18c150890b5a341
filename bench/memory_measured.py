"""
Memory of networks: what each way to place tensors needs, what a running program uses, and peers beside it.

    bench/memory_measured.py [NET.onnx ...]

Without arguments: the six networks of the paper at the original's own shapes, which the shared folder's
nets/paper_nets.py builds, then the networks of `onnx_nets`. Writes bench/results/memory-CPU.json and .md. Everything
runs on one thread; whatever runs is a process of its own, and one that takes longer than --limit seconds is left out
(planning never is). The peers are ONNX Runtime and PyTorch in eager mode (`torch_model`), where it is installed.
"""

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_nets
from measure import measure

from occamy_xdsl.compiler import Compilation, Model, compile_to_memory
from occamy_xdsl.lowering.toolchain import Isa
from occamy_xdsl.pipelines import Options
from occamy_xdsl.runtime.bind import random_tensor

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("OCCAMY_SHARED", ROOT.parent / "shared"))
PAPER = ("alexnet", "mobilenetv2", "resnet50", "srgan_occamy", "ssd_resnet50_occamy", "yolov1_occamy")


@dataclass
class Row:
    """One network; sizes in bytes, None where something was not run or did not end in time."""

    net: str
    weights: int
    io: int
    """The caller's inputs and outputs."""
    eager: int
    """All buffers allocated up front."""
    lazy: int
    """Buffers allocated around each use."""
    liveness: int
    """Most bytes live with liveness-aware insertion, before tensors are coalesced."""
    original: int
    """Pool of the original's algorithm."""
    pool: int
    lower_bound: int
    heap_calls: int
    """Allocations in a run without a pool; with one there are none."""
    plan_seconds: float
    measured: int | None = None
    """Anonymous memory of the running program: pool, inputs, outputs and libc."""
    peak_rss: int | None = None
    ms: float | None = None
    ort_peak: int | None = None
    """Growth of ONNX Runtime's process from before its session to the peak of loading and running."""
    ort_run: int | None = None
    """Growth from the loaded session to the peak of running: activations."""
    ort_ms: float | None = None
    torch_run: int | None = None
    """Growth of PyTorch's process from the loaded module to the peak of running, in eager mode."""
    torch_ms: float | None = None
    striped_pool: int | None = None
    """Pool with `--optimize memory`."""
    striped_measured: int | None = None
    striped_ms: float | None = None

    @property
    def as_planned(self) -> bool:
        """Whether each program that ran uses pool, inputs and outputs, within 5 % and 1 MiB for libc."""
        pairs = ((self.pool, self.measured), (self.striped_pool, self.striped_measured))
        return all(
            pool is None or used is None or used <= 1.05 * (pool + self.io) + (1 << 20)
            for pool, used in pairs
        )


def plan(path: Path) -> Row:
    """The planned columns."""
    compilation = Compilation(Model(path), Options())
    start = time.monotonic()
    compilation.report()
    seconds = time.monotonic() - start
    report = compilation.report(compare=True)
    modes = {mode.name: mode for mode in report.modes}
    return Row(
        path.stem,
        report.weights_bytes,
        report.io_bytes,
        modes["eager"].bytes,
        modes["lazy"].bytes,
        modes["liveness"].bytes,
        modes["original's pool"].bytes,
        report.pool_bytes,
        report.max_live_bytes,
        modes["lazy"].allocations,
        seconds,
    )


def kilobytes(field: str) -> int:
    """A line of this process's status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def milliseconds(run: Any) -> float:
    """Median of up to 5 runs after one more."""
    times = list[float]()
    for _ in range(6):
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[1:])


def run_ours(path: Path, options: Options) -> dict[str, Any]:
    """What is measured of a compiled program."""
    executable = compile_to_memory(Compilation(Model(path), options))
    signature = executable.signature
    inputs = {s.name: random_tensor(s, 0, i) for i, s in enumerate(signature.inputs)}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program"
        executable.save(program)
        (usage,) = measure(program, signature)
    return {
        "measured": usage.anonymous,
        "peak_rss": usage.peak_rss,
        "ms": milliseconds(lambda: executable.run(inputs)),
    }


def run_whole(path: Path) -> dict[str, Any]:
    """The columns of the program as it is compiled by default."""
    return run_ours(path, Options())


def run_striped(path: Path) -> dict[str, Any]:
    """The columns of the program with `--optimize memory`."""
    options = Options(optimize="memory")
    pool = Compilation(Model(path), options).report().pool_bytes
    row = run_ours(path, options)
    return {"striped_pool": pool, "striped_measured": row["measured"], "striped_ms": row["ms"]}


def run_onnxruntime(path: Path) -> dict[str, Any]:
    """The columns of ONNX Runtime, on default settings but for one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    before = kilobytes("VmRSS")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    inputs = {i.name: rng.standard_normal(i.shape, np.float32) for i in session.get_inputs()}
    load_peak, loaded = kilobytes("VmHWM"), kilobytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
    outputs = session.run(None, inputs)
    run_peak = kilobytes("VmHWM")
    del outputs
    return {
        "ort_peak": max(load_peak, run_peak) - before,
        "ort_run": run_peak - loaded,
        "ort_ms": milliseconds(lambda: session.run(None, inputs)),
    }


def run_torch(path: Path) -> dict[str, Any]:
    """The columns of PyTorch in eager mode; none where it is not installed."""
    try:
        import torch
        from torch_model import OnnxModule
    except ModuleNotFoundError:
        return {}
    torch.set_num_threads(1)
    model = onnx.load(path)
    module = OnnxModule(model).eval()
    rng = np.random.default_rng(0)
    inputs = [
        torch.from_numpy(rng.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim], np.float32))
        for i in model.graph.input
        if i.name in module.inputs
    ]
    del model
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    loaded = kilobytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    with torch.inference_mode():
        outputs = module(*inputs)
        run_peak = kilobytes("VmHWM")
        del outputs
        return {"torch_run": run_peak - loaded, "torch_ms": milliseconds(lambda: module(*inputs))}


RUNNERS = {
    "ours": run_whole,
    "striped": run_striped,
    "onnxruntime": run_onnxruntime,
    "torch": run_torch,
}


def in_process(runner: str, path: Path, limit: float) -> dict[str, Any]:
    """What a runner returns, from a process of its own; nothing where it takes longer than `limit` seconds."""
    command = [sys.executable, __file__, "--run", runner, str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=environment)
    except subprocess.TimeoutExpired:
        return {}
    if done.returncode:
        print(f"{path.stem}, {runner}: {done.stderr.splitlines()[-1]}", file=sys.stderr)
        return {}
    return json.loads(done.stdout.splitlines()[-1])


COLUMNS = {
    "eager": "eager",
    "lazy": "lazy",
    "liveness": "liveness",
    "original": "original's pool",
    "pool": "our pool",
    "lower_bound": "lower bound",
    "io": "I/O",
    "measured": "measured, pool + I/O",
    "weights": "weights",
    "peak_rss": "our peak RSS",
    "striped_pool": "striped pool",
    "striped_measured": "measured, striped pool + I/O",
    "ort_run": "ORT run",
    "ort_peak": "ORT peak",
    "torch_run": "PyTorch run",
}


def markdown(rows: list[Row], cpu: str) -> str:
    """The table, sizes in MB of 10^6 bytes."""

    def size(value: int | None) -> str:
        return "-" if value is None else f"{value / 1e6:.2f}"

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f}"

    heads = [
        "net",
        *COLUMNS.values(),
        "heap calls without pool",
        "our ms",
        "striped ms",
        "ORT ms",
        "PyTorch ms",
    ]
    lines = [
        f"# Memory, measured on {cpu}",
        "",
        "MB are 10^6 bytes; made by `make bench-measured`, whose source says what each column is. Times come from\n"
        "separate processes on a shared machine: to compare times, use `make bench`.",
        "",
        "| " + " | ".join(heads) + " |",
        "|---" * len(heads) + "|",
    ]
    for row in rows:
        cells = [row.net, *(size(getattr(row, name)) for name in COLUMNS)]
        times = (row.ms, row.striped_ms, row.ort_ms, row.torch_ms)
        cells += [str(row.heap_calls), *map(number, times)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def default_nets(folder: Path) -> list[Path]:
    """Files of the paper's networks and of those in the onnx package, written to `folder`."""
    subprocess.run([sys.executable, SHARED / "nets/paper_nets.py", folder, *PAPER], check=True)
    for name in onnx_nets.NETS:
        onnx.save(onnx_nets.with_random_weights(onnx_nets.load(name)), folder / f"light_{name}.onnx")
    return [folder / f"{name}.onnx" for name in (*PAPER, *(f"light_{name}" for name in onnx_nets.NETS))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("nets", nargs="*", type=Path)
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each process (default 60)")
    parser.add_argument("--run", choices=RUNNERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(RUNNERS[arguments.run](arguments.nets[0])))
        return
    with tempfile.TemporaryDirectory() as folder:
        nets = arguments.nets or default_nets(Path(folder))
        rows = list[Row]()
        for path in nets:
            row = plan(path)
            for runner in RUNNERS:
                for name, value in in_process(runner, path, arguments.limit).items():
                    setattr(row, name, value)
            rows.append(row)
            if not row.as_planned:
                print(f"{row.net}: uses more than planned", file=sys.stderr)
            print(row, file=sys.stderr, flush=True)
    cpu = Isa.host().cpu
    results = ROOT / "bench/results"
    results.mkdir(exist_ok=True)
    text = json.dumps({"cpu": cpu, "nets": [asdict(row) for row in rows]}, indent=2)
    (results / f"memory-{cpu}.json").write_text(text + "\n")
    (results / f"memory-{cpu}.md").write_text(markdown(rows, cpu))


if __name__ == "__main__":
    main()
