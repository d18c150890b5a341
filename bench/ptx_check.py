"""
Assembles the PTX of networks for every architecture with ptxas, and reports what the kernels use.

`--assemblers` is a folder with the unpacked wheels of nvidia/assemblers.txt; each architecture is given to the first
ptxas there that knows it. Arguments are names of `networks`, all by default. Writes results/ptxas.md if all were
given: for each kind of kernel the most registers of a thread, spilled bytes and bytes of shared memory.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import networks

import occamy_xdsl as oc
from occamy_xdsl.compiler import Compilation
from occamy_xdsl.lowering.cuda import ptx
from occamy_xdsl.pipeline_run import text_of
from occamy_xdsl.pipelines import Options

RESULT = Path(__file__).parent / "results" / "ptxas.md"


@dataclass(frozen=True)
class Usage:
    """What one kernel needs: registers of a thread, bytes spilled to memory, bytes of shared memory of a block."""

    kernel: str
    registers: int
    spilled: int
    shared: int


def usages(log: str) -> Iterator[Usage]:
    """The kernels in what `ptxas -v` says."""
    pattern = (
        r"Compiling entry function '(\w+)'.*?(\d+) bytes spill stores, (\d+) bytes spill loads"
        r".*?Used (\d+) registers([^\n]*)"
    )
    for name, stores, loads, registers, rest in re.findall(pattern, log, re.DOTALL):
        shared = re.search(r"(\d+) bytes smem", rest)
        yield Usage(name, int(registers), max(int(stores), int(loads)), int(shared[1]) if shared else 0)


def assemblers(folder: Path) -> dict[str, Path]:
    """A ptxas for each architecture; raises SystemExit where none knows it."""
    tools = sorted(folder.rglob("bin/ptxas"))
    known = {tool: set(re.findall(r"'?(sm_\d+)", _output(tool, "--help"))) for tool in tools}
    found = {chip: next((t for t in tools if chip in known[t]), None) for chip in ptx.CHIPS}
    if lacking := [chip for chip, tool in found.items() if tool is None]:
        raise SystemExit(f"{folder}: no ptxas knows {' '.join(lacking)}")
    return found


def _output(tool: Path, *arguments: str) -> str:
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=True).stdout


def assemble(tool: Path, text: str, chip: str) -> list[Usage]:
    """The kernels of a PTX module; raises RuntimeError with what ptxas says against it."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernels.ptx"
        source.write_text(text)
        command = [tool, "-v", f"-arch={chip}", source, "-o", source.with_suffix(".cubin")]
        done = subprocess.run(command, capture_output=True, text=True)
    log = done.stdout + done.stderr
    if done.returncode:
        raise RuntimeError(log.strip().splitlines()[0])
    return list(usages(log))


def kernels_of(net: str) -> str:
    """The kernels of a network in MLIR, which are the same for all architectures; empty if there are none."""
    compilation = Compilation(oc.load(networks.networks()[net]()), Options(target="cuda"))
    compilation.run_to("mlir")
    modules = [op for op in compilation.module.ops if op.name == "gpu.module"]
    for op in modules:
        op.detach()
    return "".join(f"module {{\n{text_of(op)}}}" for op in modules)


def kind(kernel: str) -> str:
    """The template that made a kernel: its symbol without the shape and the digest."""
    return re.sub(r"(_\d[\dx]*)?_[0-9a-f]{8}$", "", kernel)


def table(found: Mapping[tuple[str, str], list[Usage]]) -> str:
    """A row for each kind of kernel, a column for each architecture."""
    rows = [
        "Registers of a thread at most, of all kernels of all networks, as `ptxas -v` says (`make ptx-check`); "
        "where there are any, + bytes spilled and, in brackets, bytes of shared memory.",
        "",
        f"| kernel | variants | {' | '.join(ptx.CHIPS)} |",
        "|---|---:|" + "---:|" * len(ptx.CHIPS),
    ]
    for name in sorted({kind for kind, _ in found}):
        cells = [_cell(found.get((name, chip), [])) for chip in ptx.CHIPS]
        variants = len({usage.kernel for usage in found.get((name, ptx.CHIPS[-1]), [])})
        rows.append(f"| {name} | {variants} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _cell(kernels: Sequence[Usage]) -> str:
    if not kernels:
        return ""
    text = str(max(usage.registers for usage in kernels))
    if spilled := max(usage.spilled for usage in kernels):
        text += f" + {spilled}"
    if shared := max(usage.shared for usage in kernels):
        text += f" ({shared})"
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nets", nargs="*")
    parser.add_argument("--assemblers", type=Path, required=True)
    options = parser.parse_args()
    tools = assemblers(options.assemblers)
    found: dict[tuple[str, str], list[Usage]] = {}
    failed = 0
    for net in options.nets or list(networks.networks()):
        count = 0
        try:
            text = kernels_of(net)
            for chip in ptx.CHIPS if text else ():
                kernels = assemble(tools[chip], ptx.assemble(text, chip), chip)
                count = len(kernels)
                for usage in kernels:
                    found.setdefault((kind(usage.kernel), chip), []).append(usage)
            print(f"{net:<24} {count:>3} kernels for {len(ptx.CHIPS)} architectures", flush=True)
        except (oc.OccamyError, RuntimeError) as error:
            failed += 1
            print(f"{net:<24} {error}", flush=True)
    print(table(found))
    if not options.nets and not failed:
        RESULT.write_text(table(found))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
