"""
Checks that artefacts for a GPU bind to NVIDIA's libraries, on a machine without a GPU.

Every network is compiled to a library. Each of its undefined symbols must be exported by a library that it names as
needed, and the dynamic loader must resolve all of them at once. `libcuda.so.1` comes with a driver, not with a wheel:
its functions are looked up in `cuda.h`, and a stub takes its place when the artefact is loaded.

Arguments are names of `networks`, all by default. With `--stubs` the project's own stubs stand for NVIDIA's libraries.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import networks
from elftools.elf.elffile import ELFFile

import occamy_xdsl as oc
from occamy_xdsl.compiler import Compilation, Model
from occamy_xdsl.lowering.cpu.emit import write_library
from occamy_xdsl.lowering.cuda import stubs
from occamy_xdsl.lowering.cuda.api import LIBRARIES
from occamy_xdsl.pipelines import Options

DRIVER = LIBRARIES["cuda"].soname

LOAD = "import ctypes, os, sys; ctypes.CDLL(sys.argv[1], os.RTLD_NOW)"
"""Resolves every symbol before it returns."""


@dataclass(frozen=True)
class Symbols:
    """The dynamic symbols of a file, and the libraries that it names as needed."""

    needed: tuple[str, ...]
    undefined: frozenset[str]
    """Without those that may stay undefined."""
    exported: frozenset[str]
    """Those to which a reference without a version binds."""


def symbols(path: Path) -> Symbols:
    """Read an ELF file."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        table, versions = elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".gnu.version")
        undefined, exported = set[str](), set[str]()
        for index, symbol in enumerate(table.iter_symbols()):
            if symbol["st_shndx"] == "SHN_UNDEF":
                if symbol.name and symbol["st_info"]["bind"] == "STB_GLOBAL":
                    undefined.add(symbol.name)
            elif versions is None or not _is_hidden(versions.get_symbol(index)["ndx"]):
                exported.add(symbol.name)
        tags = elf.get_section_by_name(".dynamic").iter_tags("DT_NEEDED")
        return Symbols(tuple(tag.needed for tag in tags), frozenset(undefined), frozenset(exported))


def _is_hidden(version: object) -> bool:
    """Whether a symbol is of an old version, to which nothing new binds."""
    return isinstance(version, int) and bool(version & 0x8000)


def driver_functions(header: Path) -> frozenset[str]:
    """Names that `cuda.h` declares and does not rename."""
    text = header.read_text(errors="replace")
    renamed = set(re.findall(r"^#\s*define\s+(cu\w+)\s+\w+", text, re.MULTILINE))
    return frozenset(set(re.findall(r"\bCUDAAPI\s+(cu\w+)\s*\(", text)) - renamed)


def exports_of(wheels: Path) -> dict[str, frozenset[str]]:
    """What each of NVIDIA's libraries exports, by the name that artefacts need."""
    found: dict[str, frozenset[str]] = {}
    for library in LIBRARIES.values():
        if library.soname == DRIVER:
            found[DRIVER] = driver_functions(next(wheels.rglob("cuda.h")))
        else:
            found[library.soname] = symbols(next(wheels.rglob(library.soname))).exported
    return found


def missing(artefact: Symbols, exports: Mapping[str, Iterable[str]]) -> list[str]:
    """The undefined symbols of an artefact that neither a needed library nor the C library has."""
    own = [exports[name] for name in artefact.needed if name in exports]
    c_library = [symbols(Path(path)).exported for path in _c_libraries()]
    known = frozenset[str]().union(*own, *c_library)
    return sorted(artefact.undefined - known)


def _c_libraries() -> list[str]:
    """The C and mathematics library of this process, and its dynamic loader."""
    text = Path("/proc/self/maps").read_text()
    return sorted(set(re.findall(r"/\S*/(?:lib(?:c|m)[.-]|ld-)\S*", text)))


def check(
    model: Model, exports: Mapping[str, Iterable[str]], folders: Iterable[Path]
) -> tuple[int, list[str]]:
    """The number of NVIDIA's functions that a model's library calls, and what is wrong."""
    with tempfile.TemporaryDirectory() as name:
        folder, path = Path(name), Path(name) / "model.so"
        write_library(Compilation(model, Options(target="cuda")).compiled(folder), path, "file")
        found = symbols(path)
        problems = [f"undefined: {symbol}" for symbol in missing(found, exports)]
        environment = {"LD_LIBRARY_PATH": ":".join(map(str, folders))}
        loaded = subprocess.run(
            [sys.executable, "-c", LOAD, path], env=environment, capture_output=True, text=True
        )
        if loaded.returncode:
            problems.append(loaded.stderr.strip().splitlines()[-1])
        theirs = frozenset[str]().union(*exports.values())
        return len(found.undefined & theirs), problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nets", nargs="*", default=list(networks.networks()))
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--libraries", type=Path, help="folder of the unpacked wheels of nvidia/libraries.txt")
    place.add_argument("--stubs", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        stub_folder = Path(name)
        paths = stubs.write_stubs(stub_folder)
        if options.stubs:
            exports = {path.name: symbols(path).exported for path in paths.values()}
            folders = [stub_folder]
        else:
            exports = exports_of(options.libraries)
            for library, path in paths.items():
                if library != "cuda":
                    path.unlink()
            folders = sorted({path.parent for path in options.libraries.rglob("lib*.so.*")})
            folders = [*folders, stub_folder]
        failed = 0
        for net in options.nets:
            try:
                functions, problems = check(oc.load(networks.networks()[net]()), exports, folders)
            except oc.OccamyError as error:
                functions, problems = 0, [str(error)]
            failed += bool(problems)
            print(f"{net:<24} {functions:>3} functions  {'; '.join(problems) or 'resolved'}", flush=True)
    print(f"{len(options.nets) - failed} networks link, {failed} do not")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
