"""
Packs what has to be carried to a machine with a GPU and without a network, into one archive.

There it needs Python 3.11 with numpy and ml_dtypes, and CUDA 13 with cuDNN 9, cuBLAS and cuda-bindings, which PyTorch
brings:

    tar xf gpu-pack.tar.xz && python3 gpu-pack/gpu_check.py

Results are in gpu-pack/results. Lists the sizes of the parts; exit code 1 where the archive is larger than 60 MiB.
"""

import argparse
import importlib.metadata
import lzma
import subprocess
import sys
import tarfile
from pathlib import Path

import gpu_prepare

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 60 << 20

FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 1, "dict_size": 64 << 20}]
"""A dictionary in which the weights of one network are found again in the next."""

SCRIPTS = ("gpu_check.py", "torch_model.py")
PACKAGES = ("xdsl", "immutabledict", "ordered-set", "typing-extensions")
"""What running a library needs besides numpy and ml_dtypes; all are Python alone."""


def parts(networks: Path, nets: list[str]) -> dict[str, list[tuple[Path, str]]]:
    """What is packed: each file, and its name in the archive."""
    listed = subprocess.run(
        ["git", "ls-files", "occamy_xdsl"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    python = [(ROOT / name, f"python/{name}") for name in listed.stdout.split()]
    for package in PACKAGES:
        for file in importlib.metadata.files(package) or ():
            top = file.parts[0]
            is_code = file.suffix == ".py" and top.removesuffix(".py") == package.replace("-", "_")
            if is_code or (top.endswith(".dist-info") and file.name.startswith(("LICENSE", "METADATA"))):
                python.append((Path(str(file.locate())), f"python/{file}"))

    def of_networks(name: str) -> list[tuple[Path, str]]:
        folders = (networks / net.replace("/", "-") for net in nets)
        return [(folder / name, f"networks/{folder.name}/{name}") for folder in folders]

    return {
        "code": [*((ROOT / "bench" / name, name) for name in SCRIPTS), *python],
        "expected outputs": of_networks("expected.npz"),
        "libraries": [*of_networks("net.json"), *of_networks("model.so")],
        "models for PyTorch": of_networks("model.onnx"),
    }


def pack(networks: Path, nets: list[str], archive: Path) -> dict[str, tuple[int, int]]:
    """Write the archive; by part the bytes of its files, and by how much the archive grew, to about 100 kB."""
    sizes: dict[str, tuple[int, int]] = {}
    with (
        archive.open("wb") as file,
        lzma.open(file, "wb", filters=FILTERS) as stream,
        tarfile.open(fileobj=stream, mode="w|") as tar,
    ):
        for part, members in parts(networks, nets).items():
            start, total = file.tell(), 0
            for path, name in members:
                entry = tarfile.TarInfo(f"gpu-pack/{name}")
                entry.size, entry.mode = path.stat().st_size, 0o644
                total += entry.size
                with path.open("rb") as source:
                    tar.addfile(entry, source)
            sizes[part] = total, file.tell() - start
    return sizes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("nets", nargs="*")
    parser.add_argument("--networks", type=Path, required=True, help="folder that gpu_prepare.py filled")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the archive")
    options = parser.parse_args()
    nets = gpu_prepare.chosen(options.nets)
    sizes = pack(options.networks, nets, options.output)
    print(f"{'bytes':>12} {'packed':>12}")
    for part, (size, packed) in sizes.items():
        print(f"{size:>12} {packed:>12} {part}")
    carried = options.output.stat().st_size
    verdict = "fits" if carried <= LIMIT else f"is {carried - LIMIT} bytes too large"
    print(f"{options.output}: {len(nets)} networks, {carried} bytes: {verdict}; {LIMIT} can be carried")
    return 0 if carried <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
