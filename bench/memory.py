"""Memory of the networks in `nets`, in bytes, from their plans alone; writes results/memory.json."""

import json
from pathlib import Path

import nets

import occamy_xdsl as oc

RESULTS = Path(__file__).parent / "results" / "memory.json"


def measure(net: str) -> dict[str, int]:
    """
    Bytes besides weights and the caller's buffers, when compiled for an AVX2 processor:

    - `all`: a tensor's memory is its own, nothing is fused;
    - `live`: memory is freed after the last use, by an allocator that wastes nothing;
    - `bound`: most bytes live at one time after all passes;
    - `pool`: the pool, with all workspaces in it.
    """
    model = oc.load(nets.load(net))
    target = "cpu:x86-64-v3"
    plain = model.memory_report(target, fuse=False, reuse=False, in_place=False)
    report = model.memory_report(target)
    return {
        "all": plain.sum_bytes,
        "live": report.passes[0].max_live_bytes,
        "bound": report.max_live_bytes,
        "pool": report.pool_bytes,
    }


def main() -> None:
    results = {net: measure(net) for net in nets.NETS}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
