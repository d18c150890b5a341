"""Executables from the JIT and from libraries: values, checks of inputs and outputs, saving."""

import dataclasses
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from occamy_xdsl.errors import InvalidInputError, OccamyError, UsageError
from occamy_xdsl.lowering import interface
from occamy_xdsl.lowering.cpu import emit
from occamy_xdsl.lowering.signature import ELEMENT_TYPES, Signature, TensorSpec
from occamy_xdsl.lowering.toolchain import Isa
from occamy_xdsl.runtime.executable import Executable, aligned_bytes, open_library
from occamy_xdsl.runtime.jit import jit

SHAPE = (16, 64)
WEIGHTS = np.arange(1024, dtype=np.float32).reshape(SHAPE)
B = np.array(41)


@pytest.fixture(params=["jit", "embed", "file"])
def executable(request: pytest.FixtureRequest, affine_model: Callable[..., emit.CompiledModel]) -> Executable:
    if request.param == "jit":
        return jit(affine_model())
    return open_library(request.getfixturevalue("affine_libraries")[request.param])


def check(outputs: dict[str, np.ndarray], x: np.ndarray) -> None:
    assert list(outputs) == ["a/y", "n"]
    np.testing.assert_array_equal(outputs["a/y"], 2 * x + WEIGHTS, strict=True)
    np.testing.assert_array_equal(outputs["n"], np.array(42), strict=True)


def test_ways_to_call(executable: Executable, affine_input: np.ndarray) -> None:
    named = {"b:0": B, "x": affine_input}
    check(executable.run(named), affine_input)
    check(executable.run(affine_input, B), affine_input)
    check(executable(affine_input, B), affine_input)
    check(executable(**named), affine_input)
    check(executable(named), affine_input)


def test_describes_itself(executable: Executable, affine_model: Callable[..., emit.CompiledModel]) -> None:
    assert executable.signature == affine_model().signature
    assert executable.pool_bytes == 4096
    inputs, outputs = "x: float32[16,64], b:0: int64[]", "a/y: float32[16,64], n: int64[]"
    assert repr(executable) == f"<Executable ({inputs}) -> ({outputs})>"


class DLPackOnly:
    """A tensor of a foreign library: nothing but the DLPack protocol."""

    def __init__(self, array: np.ndarray):
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class DeviceTensor(DLPackOnly):
    """A tensor in device memory."""

    def __dlpack__(self, **options: Any) -> Any:
        raise BufferError("the tensor is on device cuda:0")


def test_kinds_of_inputs(executable: Executable, affine_input: np.ndarray) -> None:
    check(executable.run(DLPackOnly(affine_input), DLPackOnly(B)), affine_input)
    check(executable.run(affine_input, 41), affine_input)
    check(executable.run(affine_input, np.int64(41)), affine_input)


def test_strided_and_misaligned_inputs_are_copied(executable: Executable, affine_input: np.ndarray) -> None:
    transposed = np.ascontiguousarray(affine_input.T).T
    assert not transposed.flags.c_contiguous
    check(executable.run(transposed, B), affine_input)
    misaligned = np.empty(affine_input.nbytes + 1, np.uint8)[1:].view(np.float32).reshape(SHAPE)
    misaligned[...] = affine_input
    check(executable.run(misaligned, B), affine_input)
    read_only = affine_input.copy()
    read_only.flags.writeable = False
    check(executable.run(read_only, B), affine_input)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([{"x": 0}], "input 'b:0' (int64[]) is missing"),
        ([{"x": 0, "b:0": 0, "c": 0}], "no input is named 'c', the inputs are: x, b:0"),
        ([0], "expected 2 inputs (x, b:0), got 1"),
        ([], "expected 2 inputs (x, b:0), got 0"),
        ([np.zeros(SHAPE), B], "input 'x': expected float32[16,64], got float64[16,64]"),
        ([np.zeros((64, 16), "f4"), B], "input 'x': expected float32[16,64], got float32[64,16]"),
        ([np.zeros(SHAPE, ">f4"), B], "input 'x': expected float32[16,64], got byte-swapped float32[16,64]"),
        ([np.zeros(SHAPE, "f4"), [41]], "input 'b:0': expected int64[], got int64[1]"),
        ([np.zeros(SHAPE, "f4"), True], "input 'b:0': expected int64[], got bool[]"),
        ([[[1.0], [2.0, 3.0]], B], "input 'x': not readable as an array: "),
        ([DeviceTensor(B), B], "input 'x': not readable as an array: the tensor is on device cuda:0"),
    ],
)
def test_refuses_inputs(executable: Executable, inputs: list[Any], message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        executable.run(*inputs)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_refuses_mixed_call(executable: Executable, affine_input: np.ndarray) -> None:
    with pytest.raises(InvalidInputError, match="all inputs by position or all by name"):
        executable(affine_input, **{"b:0": B})


def test_writes_into_given_outputs(executable: Executable, affine_input: np.ndarray) -> None:
    y = np.full(SHAPE, np.nan, np.float32)
    outputs = executable.run(affine_input, B, out={"a/y": y})
    assert outputs["a/y"] is y
    check(outputs, affine_input)


def test_refuses_outputs(executable: Executable, affine_input: np.ndarray) -> None:
    read_only = np.zeros(SHAPE, np.float32)
    read_only.flags.writeable = False
    shared = np.zeros(1024 + 2, np.float32)
    for out, message in [
        ({"y": read_only}, "no output is named 'y', the outputs are: a/y, n"),
        ({"a/y": [1.0]}, "output 'a/y': expected a numpy array, got list"),
        ({"a/y": np.zeros(SHAPE)}, "output 'a/y': expected float32[16,64], got float64[16,64]"),
        ({"a/y": read_only}, "output 'a/y': expected a contiguous, aligned and writeable array"),
        (
            {"a/y": np.zeros(SHAPE[::-1], np.float32).T},
            "output 'a/y': expected a contiguous, aligned and writeable array",
        ),
        ({"a/y": affine_input}, "output 'a/y': shares memory with an input or another output"),
        (
            {"a/y": shared[:1024].reshape(SHAPE), "n": shared[1022:1024].view(np.int64).reshape(())},
            "output 'n': shares memory with an input or another output",
        ),
    ]:
        with pytest.raises(InvalidInputError) as caught:
            executable.run(affine_input, B, out=out)
        assert str(caught.value) == message


def test_poison(executable: Executable, affine_input: np.ndarray) -> None:
    check(executable.run(affine_input, B, poison=True), affine_input)


def test_poison_shows_reads_of_unwritten_memory() -> None:
    """A model that returns what it finds in the pool, and leaves its second output unwritten."""
    text = """
    func.func @occamy_main(%pool: !llvm.ptr, %weights: !llvm.ptr, %y: !llvm.ptr, %z: !llvm.ptr) {
      %v = llvm.load %pool : !llvm.ptr -> f32
      llvm.store %v, %y : f32, !llvm.ptr
      return
    }
    """
    outputs = (TensorSpec("y", "float32", ()), TensorSpec("z", "float16", (3,)))
    executable = jit(emit.CompiledModel(text, Signature((), outputs, "cpu", "0", 64, 0), None, Isa.host()))
    results = executable.run(poison=True)
    assert np.isnan(results["y"])
    assert np.isnan(results["z"]).all()


def test_clones_run_in_parallel(executable: Executable, affine_input: np.ndarray) -> None:
    errors: list[BaseException] = []

    def work(clone: Executable, x: np.ndarray) -> None:
        try:
            for _ in range(50):
                check(clone.run(x, B), x)
        except BaseException as error:  # a thread must hand its failure to the test
            errors.append(error)

    # Two threads share the first executable, the third has its own pool.
    executables = [executable, executable, executable.clone()]
    threads = [
        threading.Thread(target=work, args=(one, affine_input + number))
        for number, one in enumerate(executables)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


@pytest.mark.parametrize("place", ["embed", "file"])
def test_save_and_open(
    place: interface.WeightsPlace,
    affine_model: Callable[..., emit.CompiledModel],
    affine_input: np.ndarray,
    tmp_path: Path,
    compiler: list[str],
) -> None:
    executable = jit(affine_model())
    executable.save(tmp_path / "m.so", weights=place)
    opened = open_library(str(tmp_path / "m.so"))
    check(opened.run(affine_input, B), affine_input)
    (tmp_path / "copy").mkdir()
    opened.save(tmp_path / "copy" / "m.so")
    check(open_library(tmp_path / "copy" / "m.so").run(affine_input, B), affine_input)
    opened.save(tmp_path / "copy" / "m.h")
    executable.save(tmp_path / "m.h")
    assert (tmp_path / "m.h").read_text() == (tmp_path / "copy" / "m.h").read_text()
    executable.save(tmp_path / "m.o", weights=place)
    assert (tmp_path / "m.o").read_bytes()[:4] == b"\x7fELF"
    executable.save(tmp_path / "m", weights=place)
    np.save(tmp_path / "x.npy", affine_input)
    np.save(tmp_path / "b.npy", B)
    subprocess.run([tmp_path / "m", "x.npy", "b.npy"], cwd=tmp_path, check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "a_y.npy"), 2 * affine_input + WEIGHTS)


def test_save_refuses(
    affine_model: Callable[..., emit.CompiledModel], affine_libraries: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=r"unknown suffix '\.dll'"):
        jit(affine_model()).save(tmp_path / "m.dll")
    for place in ("stream", "elsewhere"):
        with pytest.raises(UsageError, match=f"weights cannot be kept as '{place}'"):
            jit(affine_model()).save(tmp_path / "m.so", place)
    with pytest.raises(UsageError, match=r"saved as .so or .h, not as '.o'"):
        open_library(affine_libraries["embed"]).save(tmp_path / "m.o")
    with pytest.raises(UsageError, match="nowhere"):
        jit(affine_model()).save(tmp_path / "nowhere" / "m.so")


def test_open_reads_a_replaced_library(
    affine_model: Callable[..., emit.CompiledModel],
    affine_input: np.ndarray,
    tmp_path: Path,
    compiler: list[str],
) -> None:
    """Both the old and the new library work in one process, though they have one name."""
    path = tmp_path / "m.so"
    emit.write_library(affine_model(), path, "embed")
    first = open_library(path)
    emit.write_library(affine_model(stride=2), path, "embed")
    second = open_library(path)
    check(first.run(affine_input, B), affine_input)
    expected = 2 * affine_input + (2 * np.arange(1024, dtype=np.float32)).reshape(SHAPE)
    np.testing.assert_array_equal(second.run(affine_input, B)["a/y"], expected)


def test_open_refuses(tmp_path: Path, affine_libraries: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match=r"none\.so: cannot be loaded"):
        open_library(tmp_path / "none.so")
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(UsageError, match=r"text\.so: cannot be loaded"):
        open_library(tmp_path / "text.so")
    import ctypes.util

    if other := ctypes.util.find_library("m"):
        target = next(
            line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if other in line
        )
        with pytest.raises(UsageError, match="not a library compiled by occamy-xdsl"):
            open_library(target)
    (tmp_path / "m.so").write_bytes(affine_libraries["file"].read_bytes())
    with pytest.raises(OccamyError, match=r"m\.so\.weights': No such file or directory"):
        open_library(tmp_path / "m.so")


@pytest.mark.parametrize("dtype", ELEMENT_TYPES)
def test_every_element_type_passes_through(dtype: str) -> None:
    """A model that copies its input."""
    element = ELEMENT_TYPES[dtype].numpy
    text = f"""
    func.func @occamy_main(%pool: !llvm.ptr, %weights: !llvm.ptr, %x: !llvm.ptr, %y: !llvm.ptr) {{
      %size = llvm.mlir.constant({6 * element.itemsize} : i64) : i64
      "llvm.intr.memcpy"(%y, %x, %size) <{{isVolatile = false}}> : (!llvm.ptr, !llvm.ptr, i64) -> ()
      return
    }}
    """
    inputs, outputs = (TensorSpec("x", dtype, (2, 3)),), (TensorSpec("y", dtype, (2, 3)),)
    executable = jit(emit.CompiledModel(text, Signature(inputs, outputs, "cpu", "0", 0, 0), None, Isa.host()))
    x = np.array([[0, 1, 1], [1, 0, 1]]).astype(element)
    np.testing.assert_array_equal(executable.run(x)["y"], x, strict=True)


def test_element_types_are_those_of_onnx_and_numpy() -> None:
    assert np.dtype(ml_dtypes.bfloat16) == ELEMENT_TYPES["bfloat16"].numpy
    for name, element in ELEMENT_TYPES.items():
        assert element.numpy.name == name
        bits = 1 if name == "bool" else 8 * element.numpy.itemsize
        assert element.mlir.lstrip("uibf") == str(bits)


def test_signature_survives_json() -> None:
    inputs = (TensorSpec('é"\\', "bool", ()), TensorSpec("x", "float16", (0, 3)))
    signature = Signature(inputs, (), "cpu", "1", 10, 20, 128)
    assert Signature.from_json(signature.to_json()) == signature
    for text in ("{}", "[]", "no", '{"inputs": []}'):
        with pytest.raises(ValueError, match=r"signature|Expecting"):
            Signature.from_json(text)


def test_aligned_bytes() -> None:
    for size in (1, 100):
        array = aligned_bytes(size, 256)
        assert array.nbytes == size
        assert array.ctypes.data % 256 == 0


def test_jit_maps_weights(affine_model: Callable[..., emit.CompiledModel], tmp_path: Path) -> None:
    """The JIT holds 64 MiB of weights as clean pages of their file."""
    model = affine_model(stride=1 << 14)
    assert model.weights is not None
    with model.weights.open("rb") as file:  # pages not yet on disk would count as dirty
        os.fsync(file.fileno())
    executable = jit(model)
    outputs = executable.run(np.zeros(SHAPE, np.float32), B)
    assert outputs["a/y"][0, 1] == (1 << 14) % 4096
    sizes: dict[str, int] = {}
    current = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if ":" not in line.split()[0]:
            current = str(model.weights) in line
        elif current and line.endswith(" kB"):
            key, value, _ = line.split()
            sizes[key] = sizes.get(key, 0) + int(value)
    assert sizes["Rss:"] > 4 << 10
    assert sizes["Private_Dirty:"] == 0
    assert sizes["Anonymous:"] == 0


def test_jit_refuses_other_processors(affine_model: Callable[..., emit.CompiledModel]) -> None:
    model = affine_model()
    other = "cortex-a72" if Isa.host().triple.startswith("x86_64") else "x86-64"
    with pytest.raises(UsageError, match=f"the model is compiled for {other}, this processor is "):
        jit(dataclasses.replace(model, isa=Isa.parse(other)))


def test_running_needs_no_linker(affine_model: Callable[..., emit.CompiledModel], tmp_path: Path) -> None:
    """A process that finds no compiler at all can run a model."""
    model = affine_model()
    program = f"""
import sys
sys.path.insert(0, {str(Path.cwd())!r})
import numpy as np
from pathlib import Path
from occamy_xdsl.lowering.cpu.emit import CompiledModel
from occamy_xdsl.lowering.signature import Signature
from occamy_xdsl.lowering.toolchain import Isa
from occamy_xdsl.runtime.jit import jit
signature = Signature.from_json({model.signature.to_json()!r})
model = CompiledModel({model.mlir!r}, signature, Path({str(model.weights)!r}), Isa.host())
print(jit(model).run(np.zeros((16, 64), np.float32), 41)["n"])
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PATH": str(tmp_path), "OCCAMY_CC": "/nowhere/cc"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "42\n"


def test_running_a_library_needs_no_compiler(
    affine_libraries: dict[str, Path], affine_input: np.ndarray, tmp_path: Path
) -> None:
    """Neither LLVM nor onnx: a machine that only runs models has Python, numpy and xDSL."""
    script = f"""
import sys
for name in ("llvmlite", "onnx", "onnxruntime", "mlir", "typer", "rich"):
    sys.modules[name] = None
import numpy as np
import occamy_xdsl as oc
executable = oc.open({str(affine_libraries["embed"])!r})
print(executable.run(np.zeros((16, 64), np.float32), 41)["n"])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "42\n", done.stderr
