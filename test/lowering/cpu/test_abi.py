"""The C interface of compiled libraries, called from ctypes and from C."""

import ctypes
import dataclasses
import json
import mmap
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import i32, i64

from occamy_xdsl.errors import UsageError
from occamy_xdsl.lowering import interface, linker, toolchain
from occamy_xdsl.lowering.cpu import abi, emit
from occamy_xdsl.lowering.host import NULL, PTR, HostModule, Prototype
from occamy_xdsl.lowering.signature import Signature, TensorSpec

PAGE = 4096
SHAPE = (16, 64)
WEIGHTS = np.arange(1024, dtype=np.float32).reshape(SHAPE)

libc = ctypes.CDLL(None, use_errno=True)


class Library:
    """The functions of a compiled library, as C sees them."""

    def __init__(self, path: Path):
        library = ctypes.CDLL(str(path))
        for name in interface.EXPORTS:
            setattr(self, name.removeprefix("occamy_"), getattr(library, name))
        self.pool_bytes.restype = ctypes.c_size_t
        self.signature.restype = self.error.restype = ctypes.c_char_p
        self.destroy.restype = None

    def message(self, model: ctypes.c_void_p | None = None) -> str:
        """The text of occamy_error."""
        return self.error(model).decode()

    def run_on(self, model: ctypes.c_void_p, inputs: list[Any], outputs: list[Any]) -> int:
        """occamy_run on arrays; None is a null pointer."""
        pointers = [
            (ctypes.c_void_p * len(arrays))(*[None if a is None else a.ctypes.data for a in arrays])
            for arrays in (inputs, outputs)
        ]
        return self.run(model, *pointers)


@pytest.fixture(params=["embed", "file"])
def library(request: pytest.FixtureRequest, affine_libraries: dict[str, Path]) -> Library:
    return Library(affine_libraries[request.param])


def check_run(library: Library, model: ctypes.c_void_p) -> None:
    """Run the model once and compare with numpy."""
    x = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    b, y, n = np.array(41, np.int64), np.full(SHAPE, np.nan, np.float32), np.array(0, np.int64)
    assert library.run_on(model, [x, b], [y, n]) == interface.Code.OK
    np.testing.assert_array_equal(y, 2 * x + WEIGHTS)
    assert n == 42
    assert library.message(model) == ""


def test_run(library: Library) -> None:
    model = ctypes.c_void_p()
    assert library.create(ctypes.byref(model), None) == interface.Code.OK
    check_run(library, model)
    check_run(library, model)
    library.destroy(model)


def test_a_success_leaves_no_message(library: Library) -> None:
    """Of a failed create, of a run without a model, and of a failed run."""
    model, pool = ctypes.c_void_p(), ctypes.create_string_buffer(2 * PAGE)
    misaligned = ctypes.c_void_p(-(-ctypes.addressof(pool) // 64) * 64 + 4)
    for fail in (
        lambda: library.create(ctypes.byref(model), misaligned),
        lambda: library.run(None, None, None),
    ):
        assert fail() == interface.Code.BAD_ARGUMENT
        assert library.message() != ""
        assert library.create(ctypes.byref(model), None) == interface.Code.OK
        assert library.message() == library.message(model) == ""
        library.destroy(model)
    assert library.create(ctypes.byref(model), None) == interface.Code.OK
    assert library.run(model, None, None) == interface.Code.BAD_ARGUMENT
    assert library.message(model) != ""
    assert library.message() == ""
    check_run(library, model)
    library.destroy(model)


def test_describes_itself(library: Library) -> None:
    assert library.pool_bytes() == PAGE
    assert json.loads(library.signature()) == {
        "inputs": [
            {"name": "x", "dtype": "float32", "shape": [16, 64]},
            {"name": "b:0", "dtype": "int64", "shape": []},
        ],
        "outputs": [
            {"name": "a/y", "dtype": "float32", "shape": [16, 64]},
            {"name": "n", "dtype": "int64", "shape": []},
        ],
        "target": "cpu",
        "version": "0.1.0",
        "pool_bytes": PAGE,
        "pool_alignment": 64,
        "memory": "pool",
        "weights_bytes": PAGE,
    }


def test_pool_of_exactly_pool_bytes(library: Library) -> None:
    """The pool lies between two pages that fault on any access."""
    area = mmap.mmap(-1, 3 * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for guard in (start, start + 2 * PAGE):
        assert libc.mprotect(ctypes.c_void_p(guard), PAGE, 0) == 0
    model = ctypes.c_void_p()
    assert library.create(ctypes.byref(model), ctypes.c_void_p(start + PAGE)) == interface.Code.OK
    check_run(library, model)
    library.destroy(model)


def test_refuses_misaligned_pool(library: Library) -> None:
    pool = np.empty(PAGE + 128, np.uint8)
    model = ctypes.c_void_p(1)
    address = -(-pool.ctypes.data // 64) * 64 + 4
    assert library.create(ctypes.byref(model), ctypes.c_void_p(address)) == interface.Code.BAD_ARGUMENT
    assert model.value is None
    assert library.message() == "occamy_create: the pool must be aligned to 64 bytes"


def test_refuses_null_pointers(library: Library) -> None:
    assert library.create(None, None) == interface.Code.BAD_ARGUMENT
    assert library.message() == "occamy_create: the address for the model is a null pointer"
    assert library.run_on(None, [], []) == interface.Code.BAD_ARGUMENT
    assert library.message() == "occamy_run: the model is a null pointer"
    library.destroy(None)

    model = ctypes.c_void_p()
    assert library.create(ctypes.byref(model), None) == interface.Code.OK
    x, b = np.zeros(SHAPE, np.float32), np.array(0, np.int64)
    for inputs, outputs, what in [
        ([None, b], [x, b], "input 0 ('x')"),
        ([x, None], [x, b], "input 1 ('b:0')"),
        ([x, b], [None, b], "output 0 ('a/y')"),
        ([x, b], [x, None], "output 1 ('n')"),
    ]:
        assert library.run_on(model, inputs, outputs) == interface.Code.BAD_ARGUMENT
        assert library.message(model) == f"occamy_run: {what} is a null pointer"
    assert library.run(model, None, None) == interface.Code.BAD_ARGUMENT
    assert library.message(model) == "occamy_run: the array of inputs is a null pointer"
    check_run(library, model)
    library.destroy(model)


def test_out_of_memory(
    affine_model: Callable[..., emit.CompiledModel], tmp_path: Path, compiler: Any
) -> None:
    emit.write_library(affine_model(pool_bytes=2**56), tmp_path / "m.so")
    library = Library(tmp_path / "m.so")
    model = ctypes.c_void_p(1)
    assert library.create(ctypes.byref(model), None) == interface.Code.OUT_OF_MEMORY
    assert model.value is None
    assert library.message() == f"occamy_create: out of memory for the pool of {2**56} bytes"


MALLINFO2 = ["arena", "ordblks", "smblks", "hblks", "hblkhd"]
MALLINFO2 += ["usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"]


class MallInfo2(ctypes.Structure):
    """struct mallinfo2 of the GNU C library."""

    _fields_ = [(name, ctypes.c_size_t) for name in MALLINFO2]


@pytest.mark.skipif(not hasattr(libc, "mallinfo2"), reason="needs the GNU C library")
def test_destroy_frees_everything(library: Library) -> None:
    libc.mallinfo2.restype = MallInfo2
    model = ctypes.c_void_p()

    def cycle(count: int) -> None:
        for _ in range(count):
            assert library.create(ctypes.byref(model), None) == 0
            library.destroy(model)

    def used() -> int:
        information = libc.mallinfo2()
        return information.uordblks + information.hblkhd

    cycle(10)
    bytes_before, maps_before = used(), Path("/proc/self/maps").read_text().count("file.so.weights")
    cycle(1000)
    # One lost pool a cycle would be 4 MB, one lost handle 48 kB.
    assert used() - bytes_before < 20_000
    assert Path("/proc/self/maps").read_text().count("file.so.weights") == maps_before


def test_weights_file_is_checked(affine_libraries: dict[str, Path], tmp_path: Path) -> None:
    source = affine_libraries["file"]
    path = tmp_path / "m.so"
    shutil.copy(source, path)
    content = interface.weights_path(source).read_bytes()
    weights = interface.weights_path(path)
    library, model = Library(path), ctypes.c_void_p()

    def refused() -> str:
        assert library.create(ctypes.byref(model), None) == interface.Code.WEIGHTS
        assert model.value is None
        return library.message()

    assert refused() == f"weights file '{weights}': No such file or directory"
    weights.write_bytes(content[:-1])
    assert refused() == f"weights file '{weights}' has {PAGE + 63} bytes, expected {PAGE + 64}"
    weights.write_bytes(content[:-64] + bytes(64))
    assert refused() == f"weights file '{weights}' belongs to another model"
    weights.write_bytes(content)
    assert library.create(ctypes.byref(model), None) == interface.Code.OK
    check_run(library, model)
    library.destroy(model)


def test_same_model_gives_same_bytes(
    affine_model: Callable[..., emit.CompiledModel], tmp_path: Path, compiler: Any
) -> None:
    for write, name in (
        (emit.write_library, "m.so"),
        (emit.write_executable, "m"),
        (emit.write_object, "m.o"),
    ):
        contents: list[bytes] = []
        for folder in (tmp_path / "a", tmp_path / "another"):
            folder.mkdir(exist_ok=True)
            write(affine_model(), folder / name)
            contents.append((folder / name).read_bytes())
        assert contents[0] == contents[1], name


def test_exports_only_the_interface(affine_libraries: dict[str, Path]) -> None:
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", affine_libraries["embed"]], capture_output=True, text=True, check=True
    )
    assert {line.split()[-1] for line in listed.stdout.splitlines()} == set(interface.EXPORTS)


SMAPS = """
import ctypes, re, sys
import numpy as np
library = ctypes.CDLL(sys.argv[1])
model = ctypes.c_void_p()
assert library.occamy_create(ctypes.byref(model), None) == 0
tensors = [np.zeros((16, 64), np.float32), np.array(0)], [np.zeros((16, 64), np.float32), np.array(0)]
pointers = [(ctypes.c_void_p * 2)(*[t.ctypes.data for t in side]) for side in tensors]
assert library.occamy_run(model, *pointers) == 0
total = dict.fromkeys(["Rss", "Private_Dirty", "Anonymous"], 0)
counted = False
for line in open("/proc/self/smaps"):
    if re.match("[0-9a-f]+-", line):
        counted = sys.argv[1] in line
    elif counted and line.split(":")[0] in total:
        total[line.split(":")[0]] += int(line.split()[1]) << 10
print(*total.values(), tensors[1][0][0, 1])
"""


@pytest.mark.parametrize("place", ["embed", "file"])
def test_weights_are_mapped_not_copied(
    place: interface.WeightsPlace,
    affine_model: Callable[..., emit.CompiledModel],
    tmp_path: Path,
    compiler: Any,
) -> None:
    """A model that reads all over 64 MiB of weights holds them as clean pages of the file."""
    path = tmp_path / "m.so"
    emit.write_library(affine_model(stride=1 << 14), path, place)
    for written in tmp_path.iterdir():  # pages not yet on disk would count as dirty
        with written.open("rb") as file:
            os.fsync(file.fileno())
    done = subprocess.run(
        [sys.executable, "-c", SMAPS, str(path)], capture_output=True, text=True, check=True
    )
    rss, dirty, anonymous, y = (float(word) for word in done.stdout.split())
    assert y == (1 << 14) % 4096
    assert rss > 4 << 20  # at least the pages that were read are resident
    assert dirty < 64 << 10
    assert anonymous < 64 << 10


def counting_driver(host: HostModule) -> None:
    """
    A program that counts the calls of the allocator: it defines malloc and its kin itself.

    Prints how often they were called in create and in two runs.
    """
    for name in ("__libc_malloc", "__libc_calloc", "__libc_realloc", "__libc_memalign"):
        parameters = {"__libc_malloc": (i64,), "__libc_realloc": (PTR, i64)}.get(name, (i64, i64))
        host.declare(name, Prototype(PTR, parameters))
    host.declare("occamy_create", Prototype(i32, (PTR, PTR)))
    host.declare("occamy_run", Prototype(i32, (PTR, PTR, PTR)))
    host.zeros("calls", 8)

    def counted(name: str, result: Any, parameters: list[Any]) -> Any:
        f = host.function(name, result, parameters)
        calls = f.address("calls")
        f.store(f.load(calls, i64) + 1, calls, i64)
        return f

    f = counted("malloc", PTR, [i64])
    f.return_(f.call("__libc_malloc", *f.arguments))
    f = counted("calloc", PTR, [i64, i64])
    f.return_(f.call("__libc_calloc", *f.arguments))
    f = counted("realloc", PTR, [PTR, i64])
    f.return_(f.call("__libc_realloc", *f.arguments))
    f = counted("aligned_alloc", PTR, [i64, i64])
    f.return_(f.call("__libc_memalign", *f.arguments))
    f = counted("posix_memalign", i32, [PTR, i64, i64])
    result, alignment, size = f.arguments
    f.store(f.call("__libc_memalign", alignment, size), result)
    f.return_(0)

    f = host.function("main", i32, [])
    model, inputs, outputs, data = f.array(8), f.array(16), f.array(16), f.array(4 * PAGE)
    f.store(data, inputs)
    f.store(data + PAGE, inputs + 8)
    f.store(data + 2 * PAGE, outputs)
    f.store(data + 3 * PAGE, outputs + 8)
    f.store(0, data + PAGE, i64)
    calls = f.address("calls")
    for index, call in enumerate(["create", "run", "run"]):
        f.store(0, calls, i64)
        if call == "create":
            code = f.call("occamy_create", model, NULL)
        else:
            code = f.call("occamy_run", f.load(model, PTR), inputs, outputs)
        f.store(f.load(calls, i64), data + 3 * PAGE + 8 * (index + 1), i64)
        with f.if_(code != 0):
            f.return_(1)
    counts = [f.load(data + 3 * PAGE + 8 * (index + 1), i64) for index in range(3)]
    f.call("printf", "%lu %lu %lu", *counts)
    f.return_(0)


@pytest.mark.skipif(not hasattr(libc, "__libc_malloc"), reason="needs the GNU C library")
@pytest.mark.parametrize("place", ["embed", "file"])
def test_run_does_not_allocate(
    place: interface.WeightsPlace,
    affine_model: Callable[..., emit.CompiledModel],
    tmp_path: Path,
    compiler: Any,
) -> None:
    host = HostModule()
    counting_driver(host)
    isa = toolchain.Isa.host()
    driver = toolchain.emit_object(
        toolchain.optimize(toolchain.translate_to_llvm(str(host.module)), isa), isa
    )
    (tmp_path / "driver.o").write_bytes(driver)
    emit.write_object(affine_model(), tmp_path / "model.o", place)
    if place == "file":
        # dladdr of the interface gives the path of the program that it is linked into.
        interface.weights_path(tmp_path / "model.o").rename(tmp_path / "program.weights")
    linker.link_executable([tmp_path / "driver.o", tmp_path / "model.o"], tmp_path / "program")
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True, check=True)
    create, first, second = map(int, done.stdout.split())
    assert create >= 2  # the handle and the pool: the counter counts
    assert (first, second) == (0, 0)


C_PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "m.h"

static const size_t shape[OCCAMY_INPUT_0_RANK] = OCCAMY_INPUT_0_SHAPE;
static float x[OCCAMY_INPUT_0_BYTES / sizeof(float)], y[OCCAMY_OUTPUT_0_BYTES / sizeof(float)];

int main(void)
{
    long long b = 41, n = 0;
    const void *inputs[OCCAMY_INPUTS];
    void *outputs[OCCAMY_OUTPUTS];
    void *model;
    size_t i;
    int code = occamy_create(&model, NULL);
    if (code != OCCAMY_OK) {
        fprintf(stderr, "%s\\n", occamy_error(NULL));
        return code;
    }
    for (i = 0; i < shape[0] * shape[1]; i++)
        x[i] = 0.5f;
    inputs[0] = x, inputs[1] = &b;
    outputs[0] = y, outputs[1] = &n;
    if (occamy_run(model, inputs, outputs) != OCCAMY_OK)
        return 10;
    occamy_destroy(model);
    if (occamy_pool_bytes() != OCCAMY_POOL_BYTES || strstr(occamy_signature(), OCCAMY_INPUT_1_NAME) == NULL)
        return 11;
    printf("%g %g %lld %s", y[0], y[1023], n, OCCAMY_OUTPUT_0_NAME);
    return 0;
}
"""


def test_c_program(
    affine_model: Callable[..., emit.CompiledModel],
    affine_libraries: dict[str, Path],
    tmp_path: Path,
    compiler: list[str],
) -> None:
    abi.write_header(affine_model().signature, tmp_path / "m.h")
    (tmp_path / "main.c").write_text(C_PROGRAM)
    warnings = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-std=c99"]
    library = affine_libraries["embed"]
    command = [*compiler, *warnings, "main.c", str(library), "-o", "main", f"-Wl,-rpath,{library.parent}"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True)
    assert done.stdout == "1 1024 42 a/y"


def test_documented_program(tmp_path: Path, compiler: list[str]) -> None:
    """The C program of the documentation, for a model that copies one element."""
    document = Path(__file__).parents[3] / "docs" / "artefacts.md"
    (program,) = re.findall(r"```c\n(.*?)```", document.read_text(), re.DOTALL)
    text = """
    func.func @occamy_main(%pool: !llvm.ptr, %weights: !llvm.ptr, %x: !llvm.ptr, %y: !llvm.ptr) {
      %v = llvm.load %x : !llvm.ptr -> f32
      llvm.store %v, %y : f32, !llvm.ptr
      return
    }
    """
    inputs, outputs = (TensorSpec("x", "float32", (1,)),), (TensorSpec("y", "float32", (1,)),)
    signature = Signature(inputs, outputs, "cpu", "0.1.0", 64, 0)
    model = emit.CompiledModel(text, signature, None, toolchain.Isa.host())
    emit.write_object(model, tmp_path / "m.o")
    abi.write_header(signature, tmp_path / "m.h")
    (tmp_path / "main.c").write_text(program)
    command = [*compiler, "-Wall", "-Wextra", "-pedantic", "-Werror", "-std=c99", "main.c", "m.o", "-o", "m"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "m"], capture_output=True, text=True, check=True)
    assert done.stdout == "y[0] = 1\n"


def test_header_of_awkward_names(tmp_path: Path, compiler: list[str]) -> None:
    """Quotes, backslashes, trigraphs and non-ASCII letters survive in C and C++; scalars have a shape."""
    name = 'a"b\\c??/d\n/é*/'
    spec = TensorSpec(name, "bfloat16", ())
    abi.write_header(Signature((spec,), (), "cpu", "0.1.0", 0, 0), tmp_path / "m.h")
    program = f"""
    #include "m.h"
    static const int shape[] = OCCAMY_INPUT_0_SHAPE;
    int main(void) {{
        static const unsigned char want[] = {{ {", ".join(map(str, name.encode()))} }};
        const char *got = OCCAMY_INPUT_0_NAME;
        unsigned long i;
        for (i = 0; i < sizeof want; i++)
            if ((unsigned char)got[i] != want[i])
                return 1;
        return got[sizeof want] != 0 || shape[0] != 0 || OCCAMY_INPUTS != 1 || OCCAMY_OUTPUTS != 0;
    }}
    """
    (tmp_path / "m.c").write_text(program)
    for language in ("-std=c99", "-std=c11"):
        subprocess.run(
            [*compiler, "-Wall", "-Wextra", "-pedantic", "-Werror", language, "m.c", "-o", "m"],
            cwd=tmp_path,
            check=True,
        )
        subprocess.run([tmp_path / "m"], check=True)
    if shutil.which("c++"):
        command = ["c++", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only", "-x", "c++", "m.c"]
        subprocess.run(command, cwd=tmp_path, check=True)


def test_missing_compiler_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OCCAMY_CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(linker.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"install gcc or clang.*running a model from Python needs none"):
        linker.find_compiler()
    with pytest.raises(
        UsageError, match="for sparc64: install sparc64-linux-gnu-gcc, or `pip install ziglang`"
    ):
        linker.find_compiler("sparc64")


def test_compiler_for_another_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OCCAMY_CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(linker.importlib.util, "find_spec", lambda name: object())
    assert linker.find_compiler("sparc64")[-2:] == ["-target", "sparc64-linux-gnu"]
    (tmp_path / "sparc64-linux-gnu-gcc").touch(0o755)
    assert linker.find_compiler("sparc64") == ["sparc64-linux-gnu-gcc"]


def test_compiler_from_environment(
    monkeypatch: pytest.MonkeyPatch, affine_model: Callable[..., emit.CompiledModel], tmp_path: Path
) -> None:
    monkeypatch.setenv("OCCAMY_CC", "false --some 'option'")
    assert linker.find_compiler() == ["false", "--some", "option"]
    with pytest.raises(UsageError, match="linking failed"):
        emit.write_library(affine_model(), tmp_path / "m.so")
    assert not any(tmp_path.iterdir())  # nothing half-written stays behind


def test_what_is_wrong_stands_before_the_compilers_summary(
    monkeypatch: pytest.MonkeyPatch, affine_model: Callable[..., emit.CompiledModel], tmp_path: Path
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text(
        "#!/bin/sh\necho 'ld: final link failed: No space left on device' >&2\n"
        "echo 'collect2: error: ld returned 1 exit status' >&2\nexit 1\n"
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("OCCAMY_CC", str(compiler))
    with pytest.raises(UsageError, match="final link failed: No space left on device"):
        emit.write_library(affine_model(), tmp_path / "m.so")


def test_object_for_another_processor(
    affine_model: Callable[..., emit.CompiledModel], tmp_path: Path
) -> None:
    """No linker is needed, and the object is of the architecture asked for."""
    x86 = toolchain.Isa.host().triple.startswith("x86_64")
    isa = toolchain.Isa.parse("cortex-a72" if x86 else "x86-64")
    emit.write_object(dataclasses.replace(affine_model(), isa=isa), tmp_path / "m.o", "file")
    machine = int.from_bytes((tmp_path / "m.o").read_bytes()[18:20], "little")
    assert machine == (183 if x86 else 62)  # e_machine of the ELF specification


CONSTANT = """
func.func @occamy_main(%pool: !llvm.ptr, %weights: !llvm.ptr, %y: !llvm.ptr) {
  %v = arith.constant 7 : i32
  llvm.store %v, %y : i32, !llvm.ptr
  return
}
"""


def test_model_without_inputs_weights_and_pool(tmp_path: Path, compiler: list[str]) -> None:
    signature = Signature((), (TensorSpec("y", "int32", ()),), "cpu", "0.1.0", 0, 0)
    model = emit.CompiledModel(CONSTANT, signature, None, toolchain.Isa.host())
    for place in ("embed", "file"):
        emit.write_library(model, tmp_path / f"{place}.so", place)
        emit.write_executable(model, tmp_path / place, place)
        library, handle, y = Library(tmp_path / f"{place}.so"), ctypes.c_void_p(), np.zeros((), np.int32)
        assert library.create(ctypes.byref(handle), None) == interface.Code.OK
        assert library.run(handle, None, (ctypes.c_void_p * 1)(y.ctypes.data)) == interface.Code.OK
        assert y == 7
        library.destroy(handle)
        subprocess.run([tmp_path / place], cwd=tmp_path, check=True)
        assert np.load(tmp_path / "y.npy") == 7
    assert not list(tmp_path.glob("*.weights"))


def test_failed_link_is_one_line(tmp_path: Path, compiler: list[str]) -> None:
    """The entry function is missing from the module."""
    text = "func.func @other() { return }"
    model = emit.CompiledModel(text, Signature((), (), "cpu", "0", 0, 0), None, toolchain.Isa.host())
    with pytest.raises(UsageError, match=r"^linking failed: .*undefined.*occamy_main.*$"):
        emit.write_executable(model, tmp_path / "m")


def test_weights_place() -> None:
    assert emit.check_weights_place("file") == "file"
    with pytest.raises(UsageError, match="weights cannot be kept as 'stream', only as: embed file"):
        emit.check_weights_place("stream")


def test_too_large_to_embed(affine_model: Callable[..., emit.CompiledModel], tmp_path: Path) -> None:
    model = affine_model()
    weights = tmp_path / "weights"
    with weights.open("wb") as file:
        file.truncate(2**31)  # sparse
    signature = dataclasses.replace(model.signature, weights_bytes=2**31)
    large = emit.CompiledModel(model.mlir, signature, weights, model.isa)
    with pytest.raises(UsageError, match=re.escape(f"weights of {2**31} bytes are too large to embed")):
        emit.write_library(large, tmp_path / "m.so")


def test_weights_of_wrong_size(affine_model: Callable[..., emit.CompiledModel]) -> None:
    model = affine_model()
    assert model.weights is not None
    os.truncate(model.weights, 100)
    with pytest.raises(ValueError, match="weights of 100 bytes, signature says 4096"):
        emit.CompiledModel(model.mlir, model.signature, model.weights, model.isa)
