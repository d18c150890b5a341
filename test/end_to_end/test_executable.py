"""A network becomes a program that stands alone: no environment, no library but the C library's family."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from light_nets import FOLDER, data_set

from occamy_xdsl.tools.occamy import main

C_LIBRARY = ("linux-vdso", "ld-linux", "libc.so", "libm.so", "libpthread.so")


@pytest.fixture(scope="module")
def squeezenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler to link with")
    path = tmp_path_factory.mktemp("program") / "squeezenet"
    assert main(["compile", str(FOLDER / "light_squeezenet.onnx"), "--emit", "exe", "-o", str(path)]) == 0
    return path


def test_runs_in_an_empty_environment(squeezenet: Path, tmp_path: Path):
    inputs, want = data_set("light_squeezenet")
    np.save(tmp_path / "x.npy", *inputs.values())
    command = ["env", "-i", f"./{squeezenet.name}", str(tmp_path / "x.npy"), "-o", str(tmp_path / "out/")]
    subprocess.run(command, cwd=squeezenet.parent, check=True)
    (written,) = (tmp_path / "out").iterdir()
    np.testing.assert_allclose(np.load(written), want, rtol=1e-3)


def test_depends_on_the_c_library_alone(squeezenet: Path):
    listing = subprocess.run(["ldd", squeezenet], capture_output=True, text=True, check=True).stdout
    names = [line.split()[0].rpartition("/")[2] for line in listing.splitlines()]
    assert [name for name in names if not name.startswith(C_LIBRARY)] == []
