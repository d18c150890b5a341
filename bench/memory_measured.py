"""
Memory of networks: what each way to place tensors needs, what a running program uses, and peers beside it.

    bench/memory_measured.py [NET.onnx ...]

Without arguments: the six networks of the paper at the original's own shapes, which the shared folder's
nets/paper_nets.py builds, then the networks of `onnx_nets`. Writes bench/results/memory-CPU.json and .md, after each
network; those that are not named keep their rows. Everything runs on one thread; whatever runs is a process of its
own, and one that takes longer than --limit seconds or more memory than the machine has left is left out (planning
never is). The peers are ONNX Runtime and PyTorch in eager mode (`torch_model`), where it is installed.
"""

import argparse
import ctypes
import gc
import json
import os
import resource
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
    """Milliseconds of a run, as everywhere below."""
    eager_ms: float | None = None
    lazy_ms: float | None = None
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


def kilobytes(field: str, file: str = "/proc/self/status") -> int:
    """A line of this process's status, or of another file of such lines, in bytes."""
    for line in Path(file).read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def milliseconds(run: Any) -> float:
    """Median of up to 5 runs after one more; fewer, but at least one, when they take more than 30 seconds."""
    run()
    times = list[float]()
    while len(times) < 5 and sum(times) < 30e3:
        start = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


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


def run_eager(path: Path) -> dict[str, Any]:
    """Time of the program that allocates all buffers at the start of a run."""
    return {"eager_ms": run_ours(path, Options(memory="eager"))["ms"]}


def run_lazy(path: Path) -> dict[str, Any]:
    """Time of the program that allocates buffers around each op."""
    return {"lazy_ms": run_ours(path, Options(memory="lazy"))["ms"]}


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
    "eager": run_eager,
    "lazy": run_lazy,
    "onnxruntime": run_onnxruntime,
    "torch": run_torch,
}


def in_process(runner: str, path: Path, limit: float) -> dict[str, Any]:
    """What a runner returns, from a process of its own; nothing where it takes more than `limit` seconds or memory."""
    command = [sys.executable, __file__, "--run", runner, str(path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    memory = kilobytes("MemAvailable", "/proc/meminfo")
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit,
            env=environment,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)),
        )
    except subprocess.TimeoutExpired:
        return {}
    if done.returncode:
        reason = done.stderr.splitlines()[-1:] or [f"ended with {done.returncode}"]
        print(f"{path.stem}, {runner}: {reason[0]}", file=sys.stderr)
        return {}
    return json.loads(done.stdout.splitlines()[-1])


PLANNED = {
    "eager": "eager",
    "lazy": "lazy",
    "liveness": "liveness",
    "original": "original's pool",
    "pool": "our pool",
    "lower_bound": "lower bound",
    "striped_pool": "striped pool",
    "io": "I/O",
    "weights": "weights",
}
MEASURED = {
    "measured": "pool + I/O",
    "striped_measured": "striped pool + I/O",
    "ort_run": "ORT run",
    "torch_run": "PyTorch run",
    "peak_rss": "our peak RSS",
    "ort_peak": "ORT peak",
}
TIMES = {
    "eager_ms": "eager",
    "lazy_ms": "lazy",
    "ms": "pool",
    "striped_ms": "striped pool",
    "ort_ms": "ORT",
    "torch_ms": "PyTorch",
}


def table(rows: list[Row], columns: dict[str, str], unit: float) -> list[str]:
    """Lines of a table of fields in units of `unit`; `-` where something was not measured."""

    def cell(value: float | None) -> str:
        return "-" if value is None else f"{value / unit:.{2 if unit > 1 else 1}f}"

    head = ["| net | " + " | ".join(columns.values()) + " |", "|---" * (1 + len(columns)) + "|"]
    return head + [
        f"| {row.net} | " + " | ".join(cell(getattr(row, name)) for name in columns) + " |" for row in rows
    ]


def markdown(rows: list[Row], cpu: str) -> str:
    """The tables."""
    calls = [f"{row.net} {row.heap_calls}" for row in rows]
    lines = [
        f"# Memory, measured on {cpu}",
        "",
        "Made by `make bench-memory`; [its source](../memory_measured.py) says what each column is.",
        "",
        "## Planned, MB of 10^6 bytes",
        "",
        *table(rows, PLANNED, 1e6),
        "",
        "Allocations in a run without a pool (with one there are none): " + ", ".join(calls) + ".",
        "",
        "## Measured, MB of 10^6 bytes",
        "",
        *table(rows, MEASURED, 1e6),
        "",
        "## Milliseconds of a run, one thread",
        "",
        *table(rows, TIMES, 1),
        "",
        "The times come from separate processes on a shared machine: to compare times, use `make bench`.",
    ]
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
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for each process (default 600)")
    parser.add_argument("--run", choices=RUNNERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(RUNNERS[arguments.run](arguments.nets[0])))
        return
    cpu = Isa.host().cpu
    results = ROOT / "bench/results"
    results.mkdir(exist_ok=True)
    data = results / f"memory-{cpu}.json"
    known = json.loads(data.read_text())["nets"] if data.exists() else []
    rows = {row["net"]: Row(**row) for row in known}
    with tempfile.TemporaryDirectory() as folder:
        for path in arguments.nets or default_nets(Path(folder)):
            row = plan(path)
            for runner in RUNNERS:
                for name, value in in_process(runner, path, arguments.limit).items():
                    setattr(row, name, value)
            if not row.as_planned:
                print(f"{row.net}: uses more than planned", file=sys.stderr)
            print(row, file=sys.stderr, flush=True)
            rows[row.net] = row
            text = json.dumps({"cpu": cpu, "nets": [asdict(row) for row in rows.values()]}, indent=2)
            data.write_text(text + "\n")
            data.with_suffix(".md").write_text(markdown(list(rows.values()), cpu))


if __name__ == "__main__":
    main()
