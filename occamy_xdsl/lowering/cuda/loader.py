"""
Loading NVIDIA's libraries while a program runs, so that it can say what is missing where there are none.

A program that names them as needed would not start there: the dynamic loader ends it before `main`. A compiled library
names them, as is usual, and whoever loads it hears of the loader what is missing.
"""

import re
from collections.abc import Iterable
from itertools import groupby

from occamy_xdsl.lowering.cuda.api import FUNCTIONS, LIBRARIES, Function
from occamy_xdsl.lowering.cuda.stubs import llvm_parameters, llvm_result

LOAD = "occamy_load_libraries"
"""`int occamy_load_libraries(void)`: 0, or 1 after a line on standard error that says what is missing."""

_NOW = 2
"""RTLD_NOW of the C library: cuDNN finds its own parts, so that nothing has to be global."""

_STDERR = 2
_MESSAGE = "no GPU can be used here: %s\n"

_FORWARDER = """\
@{name}.entry = internal global ptr null
define hidden {result} @{name}({parameters}) {{
  %entry = load ptr, ptr @{name}.entry
  %result = tail call {result} %entry({parameters})
  ret {result} %result
}}
"""

_FIND = """\
  %{name} = call ptr @dlsym(ptr %{library}, ptr @{name}.name)
  %{name}.missing = icmp eq ptr %{name}, null
  br i1 %{name}.missing, label %failed, label %{name}.found
{name}.found:
  store ptr %{name}, ptr @{name}.entry
"""

_OPEN = """\
  %{library} = call ptr @dlopen(ptr @{library}.name, i32 {now})
  %{library}.missing = icmp eq ptr %{library}, null
  br i1 %{library}.missing, label %failed, label %{library}.opened
{library}.opened:
"""

_LOADER = """\
declare ptr @dlopen(ptr, i32)
declare ptr @dlsym(ptr, ptr)
declare ptr @dlerror()
declare i32 @dprintf(i32, ptr, ...)
define i32 @{load}() {{
{body}  ret i32 0
failed:
  %text = call ptr @dlerror()
  %printed = call i32 (i32, ptr, ...) @dprintf(i32 {stderr}, ptr @message.name, ptr %text)
  ret i32 1
}}
"""


def called(texts: Iterable[str]) -> list[Function]:
    """The functions of NVIDIA's libraries that modules in the llvm dialect declare, in the order of the table."""
    names = {name for text in texts for name in re.findall(r"llvm\.func @(\w+)\(", text)}
    return [function for name, function in FUNCTIONS.items() if name in names]


def loader(functions: Iterable[Function]) -> str:
    """
    LLVM IR that defines `functions`, which go to those of the libraries, and `LOAD`, which must be called before.

    Of the libraries only those are loaded that define one of them, the driver first: it is missing where there is no
    GPU.
    """
    ordered = sorted(functions, key=lambda function: (function.library != "cuda", function.library))
    texts = [
        _FORWARDER.format(name=f.name, result=llvm_result(f), parameters=llvm_parameters(f)) for f in ordered
    ]
    constants, body = {"message": _MESSAGE}, ""
    for library, own in groupby(ordered, key=lambda function: function.library):
        constants[library] = LIBRARIES[library].soname
        body += _OPEN.format(library=library, now=_NOW)
        for function in own:
            constants[function.name] = function.name
            body += _FIND.format(name=function.name, library=library)
    texts += [_constant(name, text) for name, text in constants.items()]
    return "".join([*texts, _LOADER.format(load=LOAD, body=body, stderr=_STDERR)])


def _constant(name: str, text: str) -> str:
    """A NUL-terminated string."""
    data = text.encode() + b"\0"
    content = "".join(f"\\{byte:02X}" for byte in data)
    return f'@{name}.name = internal constant [{len(data)} x i8] c"{content}"\n'
