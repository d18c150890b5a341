"""The signature table against NVIDIA's headers, and the stub libraries made from it."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from xdsl.dialects.builtin import i32

from occamy_xdsl.lowering import linker, toolchain
from occamy_xdsl.lowering.cuda import api, stubs
from occamy_xdsl.lowering.host import PTR, HostModule

HEADERS = {
    "cudart": ("cuda_runtime_api.h", "driver_types.h"),
    "cuda": ("cuda.h",),
    "cudnn": ("cudnn_graph.h", "cudnn_ops.h", "cudnn_cnn.h"),
    "cublas": ("cublas_api.h",),
}


def header_folders() -> list[Path]:
    """OCCAMY_CUDA_HEADERS if it is set, else the include folders of NVIDIA's wheels."""
    if folders := os.environ.get("OCCAMY_CUDA_HEADERS"):
        return [Path(folder) for folder in folders.split(os.pathsep)]
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(root) for root in spec.submodule_search_locations or ()] if spec else []
    return [include for root in roots for include in root.glob("*/include")]


@pytest.fixture(params=HEADERS)
def header(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Short name of a library, and the text of its headers without comments."""
    texts: list[str] = []
    for name in HEADERS[request.param]:
        path = next((f / name for f in header_folders() if (f / name).is_file()), None)
        if path is None:
            assert "OCCAMY_CUDA_HEADERS" not in os.environ, f"{name} is not in OCCAMY_CUDA_HEADERS"
            pytest.skip(f"{name} is not installed: `make cuda-link-check` checks all headers")
        texts.append(path.read_text(errors="replace"))
    return request.param, re.sub(r"//[^\n]*|/\*.*?\*/", "", "\n".join(texts), flags=re.DOTALL)


def header_type(parameter: str) -> str:
    """The type in a parameter of a header, as the table writes types."""
    text = re.sub(r"__dv\(.*|=.*", "", parameter).strip()
    is_array = "[" in text
    text = re.sub(r"\[\d*\]", "", text)
    type_ = api.normalized_type(re.sub(r"\b\w+$", "", text) if re.search(r"[\s*]\w+$", text) else text)
    return type_ + (" *" if is_array else "")


def test_signatures_agree_with_the_headers(header: tuple[str, str]) -> None:
    library, text = header
    # A header declares `f` for the symbol `f_v2` where a macro renames it.
    renamed = {new: old for old, new in re.findall(r"#define\s+(cu[A-Z]\w*)\s+(?:\w+\()?(\w+_v\d+)\b", text)}
    text = re.sub(r"^\s*#.*", "", text, flags=re.MULTILINE)
    for function in api.FUNCTIONS.values():
        if function.library != library:
            continue
        declared = renamed.get(function.name, function.name)
        match = re.search(rf"([\w\s*]+?)\b{declared}\s*\(([^;]*)\)\s*;", text)
        assert match is not None, f"{function.name} is not in the headers"
        words = re.sub(r"\b(extern|CUDARTAPI|CUDNNWINAPI|CUBLASWINAPI|CUDAAPI|CUBLASAPI)\b", "", match[1])
        words = re.sub(r"\b(__host__|__cudart_builtin__|CUDNN_DEPRECATED)\b", "", words)
        assert api.normalized_type(words) == function.result, function.name
        parameters = re.sub(r"\b__dv\([^)]*\)", "", match[2])
        types = [header_type(p) for p in parameters.split(",") if p.strip() not in ("", "void")]
        assert types == [p.type for p in function.parameters], function.name


def test_constants_agree_with_the_headers(header: tuple[str, str]) -> None:
    library, text = header
    prefixes = {"cudart": "cuda", "cuda": "CUDA_", "cudnn": "CUDNN_", "cublas": "CUBLAS_"}
    checked = [name for name in api.CONSTANTS if name.startswith(prefixes[library])]
    assert checked
    for name in checked:
        match = re.search(
            rf"(?:#define\s+{name}\s+|\b{name}\b(?: CUDNN_DEPRECATED_ENUM)?\s*=\s*)(0x[\da-fA-F]+|\d+)", text
        )
        assert match is not None, f"{name} is not in the headers"
        assert int(match[1], 0) == api.CONSTANTS[name], name


def test_prototypes_have_the_types_of_the_c_abi() -> None:
    assert api.FUNCTIONS["cudaMemcpyAsync"].prototype.type == (
        api.Prototype(i32, (PTR, PTR, api.i64, i32, PTR)).type
    )
    assert api.FUNCTIONS["cudnnGetVersion"].prototype == api.Prototype(api.i64, ())
    assert api.FUNCTIONS["cudaEventElapsedTime"].parameters[0].type == "float *"
    assert not api.FUNCTIONS["cudaGetErrorString"].returns_status


def test_host_code_links_against_stubs(tmp_path: Path, compiler: list[str]) -> None:
    """A library made of host code binds to the stub's SONAME without versions, and is told of no device."""
    libraries = stubs.write_stubs(tmp_path, {"cudart": "libcudart.so.12"})
    assert libraries["cudart"].name == "libcudart.so.12"
    host = HostModule()
    api.declare(host, "cudaSetDevice", "cudnnCreate")
    f = host.function("start", i32, [PTR])
    status = f.call("cudaSetDevice", 0)
    with f.if_(status != 100):
        f.return_(-1)
    f.return_(f.call("cudnnCreate", f.arguments[0]))
    host.module.verify()
    isa = toolchain.Isa.host()
    code = toolchain.emit_object(toolchain.optimize(toolchain.translate_to_llvm(str(host.module)), isa), isa)
    (tmp_path / "host.o").write_bytes(code)
    library = tmp_path / "host.so"
    linker.link_shared([tmp_path / "host.o", *libraries.values()], library, ["start"])
    dynamic = library.read_bytes()
    assert b"libcudart.so.12\0" in dynamic
    assert b"libcudnn.so.9\0" in dynamic
    assert b"libcublas" not in dynamic, "an unused library must not be needed at run time"
    script = f"import ctypes; print(ctypes.CDLL({str(library)!r}).start(None))"
    run = ["env", f"LD_LIBRARY_PATH={tmp_path}", sys.executable, "-c", script]
    assert subprocess.run(run, capture_output=True, text=True).stdout == "1001\n"


def test_every_stub_is_defined(tmp_path: Path, compiler: list[str]) -> None:
    for library, path in stubs.write_stubs(tmp_path).items():
        # Not loaded, so that nobody in this process takes it for the driver.
        with path.open("rb") as file:
            symbols: Any = ELFFile(file).get_section_by_name(".dynsym")
            defined = {symbol.name for symbol in symbols.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF"}
        assert defined >= {f.name for f in api.FUNCTIONS.values() if f.library == library}
