"""Fixtures and options of the whole suite: the shared cases, and a synthetic compiled model."""

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from occamy_xdsl.errors import UsageError
from occamy_xdsl.lowering import linker
from occamy_xdsl.lowering.cpu.emit import CompiledModel, write_executable, write_library
from occamy_xdsl.lowering.signature import Signature, TensorSpec
from occamy_xdsl.lowering.toolchain import Isa

SHAPE = (16, 64)
PAGE = 4096

# y = 2 x + w, through a copy of 2 x in the pool, so that a wrong pool or wrong weights show; n = b + 1.
AFFINE = """
func.func @occamy_main(%pool: !llvm.ptr, %weights: !llvm.ptr, %x: !llvm.ptr, %b: !llvm.ptr,
                       %y: !llvm.ptr, %n: !llvm.ptr) {{
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %size = arith.constant 1024 : index
  %stride = arith.constant {stride} : i64
  %two = arith.constant 2.0 : f32
  scf.for %i = %zero to %size step %one {{
    %j = arith.index_cast %i : index to i64
    %px = llvm.getelementptr %x[%j] : (!llvm.ptr, i64) -> !llvm.ptr, f32
    %pp = llvm.getelementptr %pool[%j] : (!llvm.ptr, i64) -> !llvm.ptr, f32
    %vx = llvm.load %px : !llvm.ptr -> f32
    %vp = arith.mulf %vx, %two : f32
    llvm.store %vp, %pp : f32, !llvm.ptr
  }}
  scf.for %i = %zero to %size step %one {{
    %j = arith.index_cast %i : index to i64
    %k = arith.muli %j, %stride : i64
    %pp = llvm.getelementptr %pool[%j] : (!llvm.ptr, i64) -> !llvm.ptr, f32
    %pw = llvm.getelementptr %weights[%k] : (!llvm.ptr, i64) -> !llvm.ptr, f32
    %py = llvm.getelementptr %y[%j] : (!llvm.ptr, i64) -> !llvm.ptr, f32
    %vp = llvm.load %pp : !llvm.ptr -> f32
    %vw = llvm.load %pw : !llvm.ptr -> f32
    %vy = arith.addf %vp, %vw : f32
    llvm.store %vy, %py : f32, !llvm.ptr
  }}
  %vb = llvm.load %b : !llvm.ptr -> i64
  %c1 = arith.constant 1 : i64
  %vn = arith.addi %vb, %c1 : i64
  llvm.store %vn, %n : i64, !llvm.ptr
  return
}}
"""

ModelFactory = Callable[..., CompiledModel]


@pytest.fixture(scope="session")
def affine_model(tmp_path_factory: pytest.TempPathFactory) -> ModelFactory:
    """
    Makes the model with inputs x float32[16,64], b:0 int64[] and outputs a/y = 2 x + w, n = b + 1.

    w are the elements 0, stride, 2 stride ... of the weights, whose element i is i % 4096. The pool is
    exactly one page.
    """

    def make(stride: int = 1, pool_bytes: int = PAGE) -> CompiledModel:
        weights = tmp_path_factory.mktemp("model") / "weights"
        elements = 1024 * stride
        weights.write_bytes((np.arange(elements) % 4096).astype(np.float32).tobytes())
        signature = Signature(
            inputs=(TensorSpec("x", "float32", SHAPE), TensorSpec("b:0", "int64", ())),
            outputs=(TensorSpec("a/y", "float32", SHAPE), TensorSpec("n", "int64", ())),
            target="cpu",
            version="0.1.0",
            pool_bytes=pool_bytes,
            weights_bytes=4 * elements,
        )
        return CompiledModel(AFFINE.format(stride=stride), signature, weights, Isa.host())

    return make


@pytest.fixture
def affine_input() -> np.ndarray:
    """A value of x."""
    return np.random.default_rng(1).standard_normal(SHAPE, np.float32)


@pytest.fixture(scope="session")
def compiler() -> list[str]:
    """The command of the C compiler; without one the test is skipped."""
    try:
        return linker.find_compiler()
    except UsageError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def affine_libraries(
    affine_model: ModelFactory, compiler: list[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The model as a library, by the place of its weights."""
    folder = tmp_path_factory.mktemp("library")
    paths = {place: folder / f"{place}.so" for place in ("embed", "file")}
    write_library(affine_model(), paths["embed"], "embed")
    write_library(affine_model(), paths["file"], "file")
    return paths


@pytest.fixture(scope="session")
def affine_programs(
    affine_model: ModelFactory, compiler: list[str], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The model as an executable, by the place of its weights."""
    folder = tmp_path_factory.mktemp("program")
    paths = {place: folder / place for place in ("embed", "file")}
    write_executable(affine_model(), paths["embed"], "embed")
    write_executable(affine_model(), paths["file"], "file")
    return paths


def pytest_addoption(parser: pytest.Parser):
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow, which take minutes")


def pytest_configure(config: pytest.Config):
    config.addinivalue_line("markers", "slow: takes minutes; runs with --slow only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]):
    if not config.getoption("--slow"):
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="runs with --slow"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """
    The folder of cases and models that lies beside the repository, or where OCCAMY_SHARED says.

    Tests that need it are skipped where it is absent.
    """
    default = Path(__file__).resolve().parents[2] / "shared"
    path = Path(os.environ.get("OCCAMY_SHARED", default))
    if not path.is_dir():
        pytest.skip(f"no shared cases at {path} (set OCCAMY_SHARED)")
    return path


@pytest.fixture(scope="session")
def paper_nets(shared: Path) -> ModuleType:
    """The module of the shared folder that builds the networks of the paper, and more."""
    spec = importlib.util.spec_from_file_location("paper_nets", shared / "nets/paper_nets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
