"""Kernels in machine code beside their PTX: when they are embedded, and what a device does that refuses them."""

import shutil
import sys
from pathlib import Path

import pytest
from nets import NETS

from occamy_xdsl.errors import UsageError
from occamy_xdsl.lowering import toolchain
from occamy_xdsl.simulator import Simulator

FAKE = """#!{python}
import sys
assert "-arch=sm_75" in sys.argv and ".target sm_75" in open(sys.argv[2]).read()
open(sys.argv[4], "wb").write(b"\\x7fELF machine code")
"""


@pytest.fixture
def fake_ptxas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in the place of ptxas that writes what no device takes."""
    path = tmp_path / "ptxas"
    path.write_text(FAKE.format(python=sys.executable))
    path.chmod(0o755)
    monkeypatch.setenv("OCCAMY_PTXAS", str(path))


def test_device_that_refuses_machine_code_takes_ptx(build, fake_ptxas: None) -> None:
    model = build(NETS["resnet"](), cubin=True)
    assert b"\x7fELF machine code" in model.library.read_bytes()
    with Simulator(architecture="sm_75") as simulator:
        model.check(model.run(simulator))
    report = simulator.report()
    assert report.calls["cuModuleLoadData"] == 2
    assert len(report.refusals) == 1


def test_only_ptx_by_default(build, fake_ptxas: None) -> None:
    model = build(NETS["resnet"]())
    assert b"machine code" not in model.library.read_bytes()
    with Simulator(architecture="sm_75") as simulator:
        model.check(model.run(simulator))
    assert simulator.report().calls["cuModuleLoadData"] == 1


def test_no_ptxas(build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCCAMY_PTXAS", str(tmp_path / "missing"))
    with pytest.raises(UsageError, match="no ptxas to assemble kernels with: OCCAMY_PTXAS is "):
        build(NETS["resnet"](), cubin=True)


def test_a_ptxas_that_does_not_start(build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ptxas").touch(0o644)
    monkeypatch.setenv("OCCAMY_PTXAS", str(tmp_path / "ptxas"))
    with pytest.raises(UsageError, match=r"ptxas does not start: .*Permission denied"):
        build(NETS["resnet"](), cubin=True)


def test_machine_code_of_ptxas(build) -> None:
    """An ELF file for CUDA's machines, e_machine 190."""
    if shutil.which("ptxas") is None:
        pytest.skip("ptxas is not on PATH; `make ptx-check` assembles the kernels of all networks")
    text = build(NETS["resnet"]()).compilation.compiled_kernels()
    code = toolchain.assemble_ptx(text, "sm_75")
    assert code[:4] == b"\x7fELF"
    assert int.from_bytes(code[18:20], "little") == 190
    with pytest.raises(UsageError, match="ptxas does not know sm_10"):
        toolchain.assemble_ptx(text, "sm_10")
