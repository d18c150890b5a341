"""Finding the MLIR tools, errors that name what failed, targets, and loaded code."""

import ctypes
import gc
import stat

import llvmlite.binding as llvm
import pytest

from occamy_xdsl.errors import UsageError
from occamy_xdsl.lowering import toolchain
from occamy_xdsl.lowering.toolchain import (
    Isa,
    JitModule,
    ToolError,
    compile_mlir,
    emit_object,
    find_tool,
    optimize,
    run_mlir_opt,
    translate_to_llvm,
)

DOUBLE = """
func.func @double(%p: memref<4xi32>) {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %four = arith.constant 4 : index
  scf.for %i = %zero to %four step %one {
    %x = memref.load %p[%i] : memref<4xi32>
    %y = arith.addi %x, %x : i32
    memref.store %y, %p[%i] : memref<4xi32>
  }
  return
}
"""


@pytest.fixture
def fresh_tools():
    """Forget which tools were found, before and after."""
    find_tool.cache_clear()
    yield
    find_tool.cache_clear()


def fake_tool(folder, script):
    path = folder / "mlir-opt"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_compiles_loads_and_runs():
    function = JitModule(compile_mlir(DOUBLE, Isa.host())).function(
        "double", ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    )
    gc.collect()  # the module must live as long as its function
    values = (ctypes.c_int32 * 4)(1, -2, 3, 2**30)
    function(values)
    assert list(values) == [2, -4, 6, -(2**31)]


def test_same_input_gives_the_same_object():
    assert compile_mlir(DOUBLE, Isa.parse("x86-64-v3")) == compile_mlir(DOUBLE, Isa.parse("x86-64-v3"))


@pytest.mark.parametrize(("cpu", "machine"), [("x86-64-v4", 62), ("x86-64-v2", 62), ("cortex-a72", 183)])
def test_cross_compiles(cpu, machine):
    code = compile_mlir(DOUBLE, Isa.parse(cpu))
    assert code[:4] == b"\x7fELF"
    assert int.from_bytes(code[18:20], "little") == machine  # e_machine of the ELF header


def test_unknown_symbol():
    with pytest.raises(KeyError):
        JitModule(compile_mlir(DOUBLE, Isa.host())).address("absent")


def test_bad_mlir_is_reported_with_a_reproducer():
    with pytest.raises(ToolError, match="no_such_value") as raised:
        run_mlir_opt('func.func @f() { "test.op"(%no_such_value) : (i32) -> () }')
    assert raised.value.stage == "mlir-opt"
    assert raised.value.reproducer is not None
    text = raised.value.reproducer.read_text()
    raised.value.reproducer.unlink()
    assert text.startswith("// mlir-opt '--pass-pipeline=builtin.module(")
    assert "no_such_value" in text


def test_untranslatable_module_names_the_stage():
    with pytest.raises(ToolError) as raised:
        translate_to_llvm("func.func @f() { return }")
    assert raised.value.stage == "mlir-translate"
    raised.value.reproducer.unlink()


def test_bad_llvm_ir_names_the_stage():
    with pytest.raises(ToolError, match="expected top-level entity") as raised:
        optimize("nonsense", Isa.host())
    assert raised.value.stage == "llvm"
    raised.value.reproducer.unlink()


def test_hung_tool_is_an_error(tmp_path, monkeypatch, fresh_tools):
    major = llvm.llvm_version_info[0]
    fake_tool(tmp_path, f'[ "$1" = --version ] && echo "LLVM version {major}.1.0" || exec sleep 60')
    monkeypatch.setenv("OCCAMY_MLIR_BIN", str(tmp_path))
    monkeypatch.setattr(toolchain, "TIME_LIMIT", 0.2)
    with pytest.raises(ToolError, match=r"no result after 0\.2 s") as raised:
        run_mlir_opt("")
    raised.value.reproducer.unlink()


def test_wrong_version_names_both(tmp_path, monkeypatch, fresh_tools):
    fake_tool(tmp_path, 'echo "LLVM version 14.0.6"')
    monkeypatch.setenv("OCCAMY_MLIR_BIN", str(tmp_path))
    ours = ".".join(map(str, llvm.llvm_version_info))
    with pytest.raises(UsageError, match=rf"LLVM version 14\.0\.6.*{ours}"):
        find_tool("mlir-opt")


def test_no_tool(tmp_path, monkeypatch, fresh_tools):
    monkeypatch.setenv("OCCAMY_MLIR_BIN", str(tmp_path))
    with pytest.raises(UsageError, match=f"not found in '{tmp_path}'"):
        find_tool("mlir-opt")


@pytest.mark.parametrize(
    ("cpu", "vector_bytes", "registers", "fma"),
    [
        ("x86-64-v4", 64, 32, True),
        ("x86-64-v3", 32, 16, True),
        ("x86-64-v2", 16, 16, False),
        ("skylake-avx512", 64, 32, True),
        ("znver4", 64, 32, True),
        ("cortex-a72", 16, 32, True),
    ],
)
def test_processors(cpu, vector_bytes, registers, fma):
    isa = Isa.parse(cpu)
    assert (isa.cpu, isa.vector_bytes, isa.vector_registers, isa.fma) == (cpu, vector_bytes, registers, fma)


def test_unknown_processor_lists_those_that_are_known():
    with pytest.raises(ValueError, match=r"unknown processor 'x87', known are: native .*cortex-a72"):
        Isa.parse("x87")


def test_vector_width_agrees_with_llvm():
    """LLVM uses registers of the width that we say for every x86 processor that we name."""
    names = {64: "zmm", 32: "ymm", 16: "xmm"}
    for vector_bytes, cpus in toolchain._X86_VECTOR_BYTES.items():
        for cpu in cpus.split():
            isa = Isa.parse(cpu)
            code = f"""
            define <{vector_bytes // 4} x float> @f(ptr %p) "min-legal-vector-width"="512" {{
              %x = load <{vector_bytes // 4} x float>, ptr %p, align 4
              %y = fadd <{vector_bytes // 4} x float> %x, %x
              ret <{vector_bytes // 4} x float> %y
            }}"""
            machine = toolchain._target_machine(isa, 2)
            assembly = machine.emit_assembly(optimize(code, isa))
            assert names[vector_bytes] in assembly, cpu
            assert "call" not in assembly, cpu


def test_object_of_a_module_is_emitted_at_any_level():
    module = optimize(translate_to_llvm(run_mlir_opt(DOUBLE)), Isa.host(), level=2)
    assert all(emit_object(module, Isa.host(), level)[:4] == b"\x7fELF" for level in range(4))
