"""
Reads PTX text as LLVM's NVPTX back end writes it: kernels, their instructions and the module's variables.

Source: Parallel Thread Execution ISA 8.6, chapters 4 and 5.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from occamy_xdsl.simulator.ptx.inlining import functions_of, inline_calls

TYPE_BITS: Mapping[str, int] = {
    **{f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)},
    **{"f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32, "f32": 32, "f32x2": 64, "f64": 64},
    "pred": 1,
}
"""Bits of each type, predicates included."""


class PtxSyntaxError(ValueError):
    """The text is not PTX, or PTX that no kernel of this compiler contains."""


@dataclass(frozen=True)
class Variable:
    """A named piece of memory: a parameter, or a shared, local, constant or global variable."""

    name: str
    space: str
    """`param`, `shared`, `local`, `const` or `global`."""
    size: int
    """Bytes."""
    alignment: int
    data: bytes = b""
    """Initial contents, empty if there are none."""


@dataclass(frozen=True)
class Instruction:
    """One instruction, split at its commas and dots."""

    opcode: tuple[str, ...]
    """For example `("ld", "global", "v4", "b32")`."""
    operands: tuple[str, ...]
    predicate: str
    """Register that guards it, or an empty string."""
    negated: bool
    """Whether it runs where the predicate is false."""
    line: int
    """Line number in the PTX text, from 1."""
    text: str


@dataclass(frozen=True)
class Kernel:
    """One `.entry` function."""

    name: str
    parameters: tuple[Variable, ...]
    max_threads: int | None
    """Most threads of a block by `.maxntid` or `.reqntid`, None if not stated."""
    required_block: bool
    """Whether the block must have exactly `max_threads` threads."""
    register_bits: Mapping[str, int]
    """Bits of the registers that start with each prefix; 1 for predicates."""
    variables: tuple[Variable, ...]
    """Shared and local variables of the kernel."""
    instructions: tuple[Instruction, ...]
    labels: Mapping[str, int]
    """Index of the instruction after each label."""


@dataclass(frozen=True)
class Program:
    """One PTX module."""

    version: str
    """Version of the PTX ISA, for example `7.8`."""
    target: str
    """Least architecture, for example `sm_90`."""
    variables: tuple[Variable, ...]
    """Variables outside of functions."""
    kernels: Mapping[str, Kernel]


_VARIABLE = re.compile(
    r"\.(?P<space>shared|local|const|global)\s+(?:\.align\s+(?P<align>\d+)\s+)?\.(?P<type>\w+)\s+"
    r"(?P<name>[\w$]+)(?P<dims>(?:\[\d*\])*)\s*(?:=\s*(?P<init>[^;]*))?;"
)
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(?P<outer>\d+)\s+)?\.(?P<type>[bfsu]\d+)(?P<rest>[^,]*?)\s(?P<name>[\w$]+)"
    r"(?:\[(?P<count>\d+)\])?\s*(?:,|$)"
)
_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*(?:\((.*?)\))?([^{]*)\{", re.DOTALL)


def _variable(match: re.Match[str]) -> Variable:
    element = TYPE_BITS[match["type"]] // 8
    data = b""
    if match["init"] is not None:
        numbers = re.sub(r"[{}\s]", "", match["init"]).split(",")
        data = b"".join((int(n, 0) & ((1 << 8 * element) - 1)).to_bytes(element, "little") for n in numbers)
    count = prod(int(n) for n in re.findall(r"\d+", match["dims"])) if match["dims"] != "[]" else 0
    alignment = int(match["align"] or element)
    return Variable(match["name"], match["space"], max(element * count, len(data)), alignment, data)


def _parameter(match: re.Match[str]) -> Variable:
    element = TYPE_BITS[match["type"]] // 8
    # `.ptr .align n` speaks of what a pointer points to.
    return Variable(
        match["name"], "param", element * int(match["count"] or 1), int(match["outer"] or element)
    )


def split_operands(text: str) -> tuple[str, ...]:
    """The operands between commas that are outside of braces and brackets."""
    return tuple(part.strip() for part in re.split(r",(?![^{\[]*[}\]])", text)) if text.strip() else ()


def _instruction(text: str, line: int) -> Instruction:
    match = re.fullmatch(r"(?:@(!?)(%?[\w$]+)\s+)?([\w.:]+)\s*(.*)", text, re.DOTALL)
    if match is None:
        raise PtxSyntaxError(f"PTX line {line}: cannot read '{text}'")
    negated, predicate, opcode, operands = match.groups()
    name, *modifiers = opcode.split(".")
    return Instruction(
        (name, *modifiers),
        split_operands(operands),
        predicate or "",
        negated == "!",
        line,
        " ".join(text.split()),
    )


def _closing_brace(text: str, start: int) -> int:
    depth = 1
    for match in re.finditer(r"[{}]", text[start:]):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return start + match.start()
    raise PtxSyntaxError("a brace is not closed")


def _kernel(name: str, parameters: str, directives: str, body: str, first_line: int) -> Kernel:
    registers: dict[str, int] = {}
    variables: list[Variable] = []
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for line, text in enumerate(body.split("\n"), first_line):
        if variable := _VARIABLE.search(text):
            variables.append(_variable(variable))
            continue
        # Only the blocks of inline assembly start with a brace; vector operands keep theirs.
        for statement in (part.strip().removeprefix("{").strip() for part in text.split(";")):
            while label := re.match(r"([$\w]+):\s*", statement):
                labels[label[1]] = len(instructions)
                statement = statement[label.end() :]
            if register := re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", statement):
                bits = 1 if register[1] == "pred" else TYPE_BITS[register[1]]
                for names in split_operands(register[2]):
                    registers[re.sub(r"<\d+>$|(?<=\D)\d+$", "", names)] = bits
            elif statement and statement != "}" and not statement.startswith("."):
                instructions.append(_instruction(statement, line))
    limit = re.search(r"\.(maxntid|reqntid)\s+([\d,\s]+)", directives)
    return Kernel(
        name,
        tuple(_parameter(match) for match in _PARAMETER.finditer(" ".join(parameters.split()))),
        prod(int(n) for n in limit[2].split(",")) if limit else None,
        limit is not None and limit[1] == "reqntid",
        registers,
        tuple(variables),
        tuple(instructions),
        labels,
    )


@lru_cache(maxsize=16)
def parse(text: str) -> Program:
    """
    The kernels and variables of a PTX module; a program may load the same one often.

    Raises PtxSyntaxError if the text is not PTX.
    """
    text = re.sub(r"//[^\n]*", "", text.rstrip("\0"))
    version = re.search(r"^\s*\.version\s+(\S+)", text, re.MULTILINE)
    target = re.search(r"^\s*\.target\s+(\w+)", text, re.MULTILINE)
    if version is None or target is None:
        raise PtxSyntaxError("no PTX: the text states no .version and .target")
    functions = functions_of(text)
    kernels: dict[str, Kernel] = {}
    outside: list[str] = []
    position = 0
    for entry in _ENTRY.finditer(text):
        end = _closing_brace(text, entry.end())
        first_line = text.count("\n", 0, entry.end()) + 1
        name, parameters, directives = entry.groups()
        body = inline_calls(text[entry.end() : end], functions)
        kernels[name] = _kernel(name, parameters or "", directives, body, first_line)
        outside.append(text[position : entry.start()])
        position = end + 1
    outside.append(text[position:])
    variables = tuple(_variable(match) for match in _VARIABLE.finditer("\n".join(outside)))
    return Program(version[1], target[1], variables, kernels)


def layout(variables: Sequence[Variable]) -> tuple[dict[str, int], int]:
    """Byte offset of each variable when they are placed one after another, and the bytes of all."""
    offsets: dict[str, int] = {}
    end = 0
    for variable in variables:
        end = -(-end // variable.alignment) * variable.alignment
        offsets[variable.name] = end
        end += variable.size
    return offsets, end
