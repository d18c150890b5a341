"""
Stub libraries: what an artefact for CUDA is linked against where NVIDIA's libraries are not installed.

A stub defines the library's functions without symbol versions, so that the artefact later binds to whatever
release the machine has. Called as it is, a stub says that there is no device. A function whose hook, the
pointer `occamy_hook_<name>`, is set jumps there instead: this is how the simulator enters.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from xdsl.dialects.builtin import f32, f64, i32, i64
from xdsl.ir import Attribute

from occamy_xdsl.files import temporary_folder
from occamy_xdsl.lowering import linker, toolchain
from occamy_xdsl.lowering.cuda.api import FUNCTIONS, LIBRARIES, Function, llvm_type
from occamy_xdsl.lowering.host import PTR

HOOK = "occamy_hook_"
"""Prefix of the exported pointers to the functions that are called in a stub's place."""

_LLVM_NAMES: Mapping[Attribute, str] = {PTR: "ptr", i32: "i32", i64: "i64", f32: "float", f64: "double"}

_STUB = """\
@{hook} = global ptr null
define {result} @{name}({parameters}) {{
  %hook = load ptr, ptr @{hook}
  %set = icmp ne ptr %hook, null
  br i1 %set, label %hooked, label %plain
hooked:
  %result = tail call {result} %hook({parameters})
  ret {result} %result
plain:
  ret {result} {value}
}}
"""


def llvm_result(function: Function) -> str:
    """The result type of a function in LLVM IR."""
    return _LLVM_NAMES[llvm_type(function.result)]


def llvm_parameters(function: Function) -> str:
    """The parameters of a function in LLVM IR, with their names."""
    return ", ".join(f"{_LLVM_NAMES[p.llvm_type]} %{p.name}" for p in function.parameters)


def _stub(function: Function) -> str:
    """LLVM IR of one stub: a status function returns its library's `no_device`, the others zero."""
    result = llvm_result(function)
    zero = "null" if result == "ptr" else "0"
    return _STUB.format(
        name=function.name,
        hook=HOOK + function.name,
        result=result,
        parameters=llvm_parameters(function),
        value=LIBRARIES[function.library].no_device if function.returns_status else zero,
    )


def write_stub(library: str, path: Path, soname: str, functions: Sequence[Function]) -> None:
    """
    Write a shared library with the given name that defines `functions`.

    Raises UsageError if there is no linker.
    """
    isa = toolchain.Isa.host()
    module = toolchain.optimize("".join(map(_stub, functions)), isa)
    exports = [name for function in functions for name in (function.name, HOOK + function.name)]
    with temporary_folder() as folder:
        object_ = folder / f"{library}.o"
        object_.write_bytes(toolchain.emit_object(module, isa))
        linker.link_shared([object_], path, exports, soname=soname)


def write_stubs(folder: Path, sonames: Mapping[str, str] | None = None) -> dict[str, Path]:
    """
    Write the stubs of all libraries into `folder`, each as a file with the name of its SONAME.

    `sonames` overrides the names of CUDA 13, for example `{"cudart": "libcudart.so.12"}`. Returns the path of
    each library by its short name. Raises UsageError if there is no linker.
    """
    names = {library: LIBRARIES[library].soname for library in LIBRARIES} | dict(sonames or {})
    for library, soname in names.items():
        functions = [function for function in FUNCTIONS.values() if function.library == library]
        write_stub(library, folder / soname, soname, functions)
    return {library: folder / soname for library, soname in names.items()}
