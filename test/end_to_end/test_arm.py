"""Programs for 64-bit ARM, under emulation: the same results as ONNX Runtime, from NEON instead of AVX."""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from occamy_xdsl.compiler import Compilation, Model
from occamy_xdsl.errors import UsageError
from occamy_xdsl.lowering.cpu.emit import write_executable
from occamy_xdsl.lowering.linker import find_compiler
from occamy_xdsl.lowering.signature import file_names
from occamy_xdsl.pipelines import Options
from occamy_xdsl.runtime.bind import random_tensor
from occamy_xdsl.tools.reference import onnxruntime

sys.path.insert(0, str(Path(__file__).parents[1]))
from nets import NETS

EMULATOR = next(filter(None, map(shutil.which, ("qemu-aarch64", "qemu-aarch64-static"))), None)
SYSROOT = Path("/usr/aarch64-linux-gnu")

try:
    find_compiler("aarch64")
    MISSING = ""
except UsageError as error:
    MISSING = str(error)

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
    pytest.mark.skipif(
        EMULATOR is None or not SYSROOT.exists(), reason="needs qemu-aarch64 and its C library"
    ),
    pytest.mark.skipif(
        platform.machine() == "aarch64", reason="tests of programs for this machine are elsewhere"
    ),
]


CASES = [*((name, "balanced") for name in NETS), ("mobilenet", "memory"), ("resnet", "memory")]


@pytest.mark.parametrize(("name", "optimize"), CASES)
def test_same_results_as_onnxruntime(name: str, optimize: str, tmp_path: Path):
    assert EMULATOR is not None
    model = Model(NETS[name]())
    compiled = Compilation(model, Options(target="cpu:cortex-a53", optimize=optimize)).compiled(tmp_path)
    program = tmp_path / "program"
    write_executable(compiled, program)
    signature = compiled.signature
    inputs = {spec.name: random_tensor(spec, 0, i) for i, spec in enumerate(signature.inputs)}
    files = [tmp_path / f"input{i}.npy" for i in range(len(inputs))]
    for file, value in zip(files, inputs.values(), strict=True):
        np.save(file, value)
    command = [EMULATOR, "-L", SYSROOT, program, *files, "-o", tmp_path]
    subprocess.run(command, check=True, timeout=60)
    for file, (output, want) in zip(
        file_names(signature.outputs), onnxruntime(model)(inputs).items(), strict=True
    ):
        got = np.load(tmp_path / file)
        scale = float(np.abs(want).max(initial=0)) or 1.0
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * scale, err_msg=output)
