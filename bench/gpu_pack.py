"""
Packs what has to be carried to a machine with a GPU and without a network, into one archive.

There it needs Python 3.11 with numpy and ml_dtypes, and CUDA 13 with cuDNN 9 and cuBLAS, which PyTorch brings:

    tar xf gpu-pack.tar.xz && python3 gpu-pack/gpu_check.py

Results are in gpu-pack/results. Lists what is packed; exit code 1 where the archive is larger than 60 MiB.
"""

import argparse
import importlib.metadata
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import gpu_prepare

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 60 << 20

SCRIPTS = ("gpu_check.py", "torch_model.py")
PACKAGES = ("xdsl", "immutabledict", "ordered-set", "typing-extensions")
"""What running a library needs besides numpy and ml_dtypes; all are Python alone."""


def files(networks: Path, nets: list[str]) -> Iterator[tuple[Path, str]]:
    """Each file to pack, and its name in the archive."""
    yield from ((ROOT / "bench" / name, name) for name in SCRIPTS)
    listed = subprocess.run(
        ["git", "ls-files", "occamy_xdsl"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    yield from ((ROOT / name, f"python/{name}") for name in listed.stdout.split())
    for package in PACKAGES:
        for file in importlib.metadata.files(package) or ():
            top = file.parts[0]
            is_code = file.suffix == ".py" and top.removesuffix(".py") == package.replace("-", "_")
            if is_code or (top.endswith(".dist-info") and file.name.startswith(("LICENSE", "METADATA"))):
                yield Path(str(file.locate())), f"python/{file}"
    for net in nets:
        folder = networks / net.replace("/", "-")
        yield from ((path, f"networks/{folder.name}/{path.name}") for path in sorted(folder.iterdir()))


def pack(networks: Path, nets: list[str], archive: Path) -> dict[str, int]:
    """Write the archive; bytes of what is packed by its first two folders."""
    sizes: dict[str, int] = {}
    with tarfile.open(archive, "w:xz", preset=1) as tar:
        for path, name in files(networks, nets):
            entry = tarfile.TarInfo(f"gpu-pack/{name}")
            entry.size, entry.mode = path.stat().st_size, 0o644
            with path.open("rb") as file:
                tar.addfile(entry, file)
            part = "/".join(name.split("/")[:2])
            sizes[part] = sizes.get(part, 0) + entry.size
    return sizes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("nets", nargs="*")
    parser.add_argument("--networks", type=Path, required=True, help="folder that gpu_prepare.py filled")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the archive")
    options = parser.parse_args()
    sizes = pack(options.networks, gpu_prepare.chosen(options.nets), options.output)
    for part, size in sizes.items():
        print(f"{size:>12} {part}")
    carried = options.output.stat().st_size
    print(f"{carried:>12} {options.output}, of {LIMIT} that can be carried")
    return 0 if carried <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
