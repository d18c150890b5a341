"""A library for a GPU calls only what its libraries export; `make cuda-link-check` asks NVIDIA's own."""

from dataclasses import replace
from pathlib import Path

import pytest
from cuda_link_check import check, driver_functions, missing, symbols
from nets import NETS

from occamy_xdsl.compiler import Model
from occamy_xdsl.lowering.cuda import stubs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, compiler: list[str]) -> Path:
    """A folder with the stubs."""
    folder = tmp_path_factory.mktemp("stubs")
    stubs.write_stubs(folder)
    return folder


@pytest.mark.parametrize("name", ["resnet", "attention"])
def test_stubs_resolve_everything(name: str, folder: Path) -> None:
    exports = {path.name: symbols(path).exported for path in folder.iterdir()}
    functions, problems = check(Model(NETS[name]()), exports, [folder])
    assert problems == []
    assert functions > 20


def test_what_is_not_exported_is_found(folder: Path) -> None:
    exports = {path.name: symbols(path).exported for path in folder.iterdir()}
    runtime = symbols(folder / "libcudart.so.13")
    artefact = replace(
        runtime, needed=("libcudart.so.13",), undefined=frozenset({"cudaMalloc", "cudnnCreate"})
    )
    assert missing(artefact, exports) == ["cudnnCreate"], "cuDNN has it, which is not needed"
    exports["libcudart.so.13"] -= {"cudaMalloc"}
    assert missing(artefact, exports) == ["cudaMalloc", "cudnnCreate"]


def test_the_loader_has_the_last_word(folder: Path, tmp_path: Path) -> None:
    """Without one of the libraries nothing is resolved, whatever a table of symbols says."""
    exports = {path.name: symbols(path).exported for path in folder.iterdir()}
    for path in folder.iterdir():
        if "cudnn" not in path.name:
            (tmp_path / path.name).symlink_to(path)
    _, problems = check(Model(NETS["resnet"]()), exports, [tmp_path])
    assert len(problems) == 1
    assert "libcudnn.so.9: cannot open shared object file" in problems[0]


def test_a_macro_renames_a_function(tmp_path: Path) -> None:
    header = tmp_path / "cuda.h"
    header.write_text(
        "#define cuMemAlloc cuMemAlloc_v2\n"
        "CUresult CUDAAPI cuMemAlloc(CUdeviceptr *p, size_t n);\n"
        "CUresult CUDAAPI cuLaunchKernel(CUfunction f);\n"
    )
    assert driver_functions(header) == {"cuLaunchKernel"}
