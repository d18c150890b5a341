"""
Memory of the networks in `onnx_nets`, in bytes, from their plans alone.

Writes results/memory.json; with `--check` it writes nothing and exits 1 where the file says something else.
"""

import argparse
import json
import sys
from pathlib import Path

import onnx_nets

import occamy_xdsl as oc

RESULTS = Path(__file__).parent / "results" / "memory.json"


def measure(net: str) -> dict[str, int]:
    """
    Bytes besides weights and the caller's buffers, when compiled for an AVX2 processor:

    - `all`: each tensor's memory is its own, nothing is fused;
    - `live`: memory is freed after the last use, by an allocator that wastes nothing;
    - `bound`: most bytes live at one time after all passes;
    - `pool`: the pool, with all workspaces in it;
    - `striped`: the pool with `--optimize memory`, which runs parts of the network in stripes of rows.
    """
    model = oc.load(onnx_nets.load(net))
    target = "cpu:x86-64-v3"
    plain = model.memory_report(target, fuse=False, reuse=False, in_place=False)
    report = model.memory_report(target)
    return {
        "all": plain.sum_bytes,
        "live": report.passes[0].max_live_bytes,
        "bound": report.max_live_bytes,
        "pool": report.pool_bytes,
        "striped": model.memory_report(target, optimize="memory").pool_bytes,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Computes the table of memory in README.md.")
    parser.add_argument("nets", nargs="*", help="networks, all by default")
    parser.add_argument(
        "--check", action="store_true", help="compare with results/memory.json instead of writing"
    )
    options = parser.parse_args()
    found = {net: measure(net) for net in options.nets or onnx_nets.NETS}
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if options.check:
        wrong = {net: row for net, row in found.items() if known.get(net) != row}
        for net, row in wrong.items():
            print(f"{net}: {row}, but {RESULTS.name} has {known.get(net)}; run `make bench-planned`")
        return 1 if wrong else 0
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(dict(sorted({**known, **found}.items())), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
