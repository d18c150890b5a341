"""
Device functions that kernels call, put in the place of the calls.

LLVM inlines what it can; what is left are functions of libdevice that ask not to be, such as the core of `pow` for
f64. They take and return scalars, and call nothing themselves.

Source: Parallel Thread Execution ISA 8.6, section 7.1 (function declarations and definitions).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_FUNCTION = re.compile(
    r"\.func\s*(?:\(\s*\.param\s+\.\w+\s+(?P<result>[\w$]+)\s*\))?\s*(?P<name>[\w$]+)\s*"
    r"\((?P<parameters>[^)]*)\)\s*(?P<directives>[^{;]*)\{"
)
_CALL = re.compile(
    r"call(?:\.uni)?\s+(?:\(\s*(?P<result>[\w$]+)\s*\)\s*,\s*)?(?P<name>[\w$]+)\s*,\s*"
    r"\((?P<arguments>[^)]*)\)\s*;"
)


@dataclass(frozen=True)
class Function:
    """One `.func`: the names of its parameters and of its result, and its text without comments, on one line."""

    parameters: tuple[str, ...]
    result: str
    body: str


def functions_of(text: str) -> dict[str, Function]:
    """The functions of a module that can be put in the place of calls, by name."""
    found: dict[str, Function] = {}
    for match in _FUNCTION.finditer(text):
        depth, end = 1, match.end()
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        body = " ; ".join(text[match.end() : end - 1].split("\n"))
        if not _CALL.search(body) and not re.search(r"\.(local|shared|const|global)\s+\.align", body):
            names = re.findall(r"([\w$]+)\s*(?:,|$)", match["parameters"].strip())
            found[match["name"]] = Function(tuple(names), match["result"] or "", body)
    return found


def inline_calls(kernel: str, functions: Mapping[str, Function]) -> str:
    """
    The text of a kernel with the functions that it calls in it, on the line of the call each.

    A value that is passed becomes a register of its own. Calls of other functions stay as they are.
    """
    count = 0

    def inlined(call: re.Match[str]) -> str:
        nonlocal count
        function = functions.get(call["name"])
        if function is None:
            return call[0]
        count += 1
        body = function.body
        for names in re.findall(r"\.reg\s+\.\w+\s+%(\w+?)<\d+>", body):
            body = re.sub(rf"%{names}(?=\d|<)", f"%inline{count}_{names}", body)
        body = re.sub(r"\$L\w+", lambda label: f"{label[0]}_inline{count}", body)
        passed = [name.strip() for name in call["arguments"].split(",") if name.strip()]
        names = dict(zip(function.parameters, passed, strict=True)) | {function.result: call["result"] or ""}
        body = _through_registers(body, names)
        body = re.sub(r"\bret\s*;", f"bra $L_inline{count};", body)
        return f"{body} $L_inline{count}: ;"

    text = _CALL.sub(inlined, kernel)
    if not count:
        return kernel
    local = re.findall(r"\.param\s+\.\w+\s+([\w$]+)\s*;", text)
    return _through_registers(text, {name: name for name in local})


def _through_registers(text: str, names: Mapping[str, str]) -> str:
    """Loads and stores of parameters become moves from and to registers; `names` are those of the caller."""

    def load(match: re.Match[str]) -> str:
        type_, register, name = match.groups()
        return f"mov.{type_} {register}, {_register(type_, names[name])};" if name in names else match[0]

    def store(match: re.Match[str]) -> str:
        type_, name, value = match.groups()
        if name not in names:
            return match[0]
        register = _register(type_, names[name])
        return f".reg .{type_} {register}; mov.{type_} {register}, {value};"

    text = re.sub(r"ld\.param\.(\w+)\s+(%\w+)\s*,\s*\[([\w$]+)\]\s*;", load, text)
    return re.sub(r"st\.param\.(\w+)\s+\[([\w$]+)\]\s*,\s*([^;]+);", store, text)


def _register(type_: str, parameter: str) -> str:
    return f"%{type_}_{parameter}"
