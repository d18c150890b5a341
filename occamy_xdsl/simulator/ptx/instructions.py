"""
The instructions of a kernel with their operands resolved: functions that run one for some threads.

Whatever does not depend on the threads (types, literals, addresses of variables) is worked out once for each
launch.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from occamy_xdsl.simulator.ptx.arithmetic import (
    FLOATS,
    RAW,
    Array,
    Operation,
    UnknownInstructionError,
    decode,
    encode,
    find,
)
from occamy_xdsl.simulator.ptx.errors import AccessError, PtxError
from occamy_xdsl.simulator.ptx.parser import TYPE_BITS, Instruction, split_operands
from occamy_xdsl.simulator.ptx.spaces import (
    LOCAL_WINDOW,
    MODULE_WINDOW,
    SHARED_WINDOW,
    as_bytes,
    check_aligned,
    first,
)
from occamy_xdsl.simulator.ptx.statistics import WARP, AccessStatistics

if TYPE_CHECKING:
    from occamy_xdsl.simulator.ptx.machine import Lanes, Machine, Run

Source = Callable[["Run"], Array]
Execute = Callable[["Run", "Lanes"], None]


@dataclass(frozen=True)
class Code:
    """An instruction with its operands resolved; branches and barriers have no function."""

    instruction: Instruction
    execute: Execute | None


def _immediate(text: str, type_: str) -> Array | None:
    """A literal as the raw bits of a type, one element that broadcasts; None if it is no literal."""
    raw = RAW[TYPE_BITS[type_]]
    if text[:2] in ("0f", "0F", "0d", "0D") and re.fullmatch(r"[\da-fA-F]+", text[2:]):
        bits = np.array([int(text[2:], 16)], RAW[4 * len(text[2:])])
        number = bits.view(np.float32 if len(text) == 10 else np.float64)
        same = TYPE_BITS[type_] == 4 * len(text[2:])
        return bits if same else encode(number, type_)
    if re.fullmatch(r"-?(0[xX][\da-fA-F]+|\d+)U?", text):
        return np.array([int(text.rstrip("U"), 0) & ((1 << TYPE_BITS[type_]) - 1)], raw)
    return None


def _source(text: str, type_: str, instruction: Instruction, machine: "Machine") -> Source:
    """Reader of an operand as numbers of a type."""
    register = text.lstrip("!")
    if machine.is_register(register):
        if text.startswith("!"):
            return lambda run: ~run.register(register, instruction)
        return lambda run: decode(run.register(register, instruction), type_)
    literal = _immediate(text, type_)
    if literal is None:
        address = machine.symbol(text)
        if address is None:
            raise PtxError(machine.kernel.name, f"unknown operand '{text}' in PTX line {instruction.line}")
        literal = np.array([address], np.uint64)
    value = decode(literal, type_)
    return lambda _: value


def _address(text: str, instruction: Instruction, machine: "Machine") -> Source:
    """Reader of `[base+offset]` as int64."""
    match = re.fullmatch(r"\[\s*([%$\w]+)\s*(?:\+\s*(-?\w+))?\s*\]", text)
    if match is None:
        raise PtxError(machine.kernel.name, f"cannot read the address in PTX line {instruction.line}: {text}")
    offset = int(match[2] or "0", 0)
    base = _source(match[1], "b64", instruction, machine)
    if machine.is_register(match[1]) and machine.register_bits(match[1]) == 32:
        base = _source(match[1], "b32", instruction, machine)
    return lambda run: base(run).astype(np.int64) + offset


def compile_instruction(instruction: Instruction, machine: "Machine") -> Code:
    """Resolve the operands of an instruction; raises PtxError if it is unknown."""
    name, *modifiers = instruction.opcode
    try:
        if name in ("bra", "ret", "exit", "bar", "barrier"):
            return Code(instruction, None)
        if name in ("membar", "fence", "prefetch", "pragma", "nanosleep"):
            return Code(instruction, lambda run, lanes: None)
        if name in ("ld", "ldu", "st"):
            return Code(instruction, _memory_access(instruction, machine))
        if name == "shfl":
            return Code(instruction, _shuffle(instruction, machine))
        if name in ("addc", "subc", "madc") or "cc" in modifiers:
            return Code(instruction, _carry_operation(instruction, machine))
        if name == "mov" and "{" in "".join(instruction.operands):
            return Code(instruction, _move_vector(instruction, machine))
        if name == "cvta":
            return Code(instruction, _convert_address(instruction, machine))
        target, *sources = instruction.operands
        operation = find(instruction.opcode, len(sources))
        return Code(instruction, _arithmetic(target, sources, operation, instruction, machine))
    except (UnknownInstructionError, KeyError, ValueError):
        fact = f"the simulator does not know this instruction: {instruction.text}"
        raise PtxError(machine.kernel.name, fact, f", PTX line {instruction.line}") from None


def _arithmetic(
    target: str, sources: Sequence[str], operation: Operation, instruction: Instruction, machine: "Machine"
) -> Execute:
    readers = [
        _source(text, type_, instruction, machine)
        for text, type_ in zip(sources, operation.sources, strict=True)
    ]
    result = operation.result
    extends = result not in FLOATS and result != "pred"

    def execute(run: "Run", lanes: "Lanes") -> None:
        value = operation.compute(*(reader(run) for reader in readers))
        # Integers stay numbers, so that a wider register gets them by their sign.
        run.write(target, value if extends else encode(value, result), lanes)

    return execute


def _convert_address(instruction: Instruction, machine: "Machine") -> Execute:
    """`cvta`: between addresses of a space and generic ones."""
    space = next(m for m in instruction.opcode if m in ("global", "shared", "local", "const", "param"))
    window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space, 0)
    sign = -1 if "to" in instruction.opcode else 1
    target, text = instruction.operands
    source = _source(text, "s64", instruction, machine)
    return lambda run, lanes: run.write(target, source(run) + sign * window, lanes)


def _move_vector(instruction: Instruction, machine: "Machine") -> Execute:
    """`mov` that packs registers into a wider one, or unpacks it."""
    target, source = instruction.operands
    bits = TYPE_BITS[instruction.opcode[-1]]
    parts = split_operands((target if target.startswith("{") else source)[1:-1])
    width = bits // len(parts)
    if target.startswith("{"):
        whole = _source(source, f"b{bits}", instruction, machine)

        def unpack(run: "Run", lanes: "Lanes") -> None:
            value = whole(run)
            for i, part in enumerate(parts):
                run.write(part, (value >> (i * width)).astype(RAW[width]), lanes)

        return unpack
    readers = [_source(part, f"b{width}", instruction, machine) for part in parts]

    def pack(run: "Run", lanes: "Lanes") -> None:
        value: Array = np.zeros(1, RAW[bits])
        for i, reader in enumerate(readers):
            value = value | (reader(run).astype(RAW[bits]) << (i * width))
        run.write(target, value, lanes)

    return pack


def _carry_operation(instruction: Instruction, machine: "Machine") -> Execute:
    """32-bit addition and multiplication with carry in and out, as in libdevice's argument reduction."""
    name, *modifiers = instruction.opcode
    if TYPE_BITS[modifiers[-1]] != 32 or name.startswith("sub"):
        raise UnknownInstructionError(name)
    target, *sources = instruction.operands
    readers = [_source(text, "u32", instruction, machine) for text in sources]

    def execute(run: "Run", lanes: "Lanes") -> None:
        values = [reader(run).astype(np.uint64) for reader in readers]
        total = values[0]
        if name.startswith("mad"):
            product = values[0] * values[1]
            total = product >> 32 if "hi" in modifiers else product & 0xFFFFFFFF
        total = total + values[-1]
        if name.endswith("c"):
            total = total + run.chunk.carry
        if "cc" in modifiers:
            run.chunk.carry = np.broadcast_to(total >> 32, run.chunk.count)
        run.write(target, (total & 0xFFFFFFFF).astype(np.uint32), lanes)

    return execute


def _shuffle(instruction: Instruction, machine: "Machine") -> Execute:
    """`shfl.sync`: all lanes that the mask names must take part (PTX ISA, shfl.sync)."""
    mode = instruction.opcode[2]
    targets, *sources = instruction.operands
    target, _, valid = targets.partition("|")
    value_source, *others = [_source(text, "u32", instruction, machine) for text in sources]

    def execute(run: "Run", lanes: "Lanes") -> None:
        chunk = run.chunk
        value, (amount, clamp, members) = value_source(run), (source(run) for source in others)
        lane = chunk.thread % WARP
        active = lanes.mask.reshape(-1, WARP)
        warps = active.any(axis=1)
        named = np.broadcast_to((members >> lane.astype(np.uint32)) & 1 != 0, chunk.count).reshape(-1, WARP)
        missing = (named & chunk.exists.reshape(-1, WARP) & ~active)[warps].any(axis=1)
        if missing.any():
            warp = np.flatnonzero(warps)[first(missing)]
            position = int(warp * WARP + first(active[warp]))
            raise run.error(instruction, "partial-warp shuffle: a lane that it names takes no part", position)
        amount, clamp = amount.astype(np.int64), clamp.astype(np.int64)
        segment = (clamp >> 8) & 31
        bound = (lane & segment) | (clamp & 31 & ~segment)
        match mode:
            case "up":
                other = lane - amount
                inside = other >= bound
            case "down":
                other = lane + amount
                inside = other <= bound
            case "bfly":
                other = lane ^ amount
                inside = other <= bound
            case _:
                other = (lane & segment) | (amount & ~segment)
                inside = other <= bound
        other = np.where(inside, other, lane)
        position = np.arange(chunk.count) - lane + other
        absent = lanes.mask & ~lanes.mask[position]
        if absent.any():
            raise run.error(instruction, "shuffle reads a lane that takes no part", first(absent))
        run.write(target, np.broadcast_to(value, chunk.count)[position], lanes)
        if valid:
            run.write(valid, np.broadcast_to(inside, chunk.count), lanes)

    return execute


# --- loads and stores -------------------------------------------------------------------------------------


def access_bytes(instruction: Instruction) -> int:
    """Bytes that one thread loads or stores."""
    lanes = next((m[1:] for m in instruction.opcode if re.fullmatch(r"v\d", m)), "1")
    return int(lanes) * TYPE_BITS[instruction.opcode[-1]] // 8


def _memory_access(instruction: Instruction, machine: "Machine") -> Execute:
    modifiers = instruction.opcode[1:]
    is_store = instruction.opcode[0] == "st"
    type_ = modifiers[-1]
    width, size = TYPE_BITS[type_] // 8, access_bytes(instruction)
    place, registers = instruction.operands if is_store else reversed(instruction.operands)
    parts = split_operands(registers[1:-1]) if registers.startswith("{") else (registers,)
    space = next((m for m in modifiers if m in ("global", "shared", "local", "const", "param")), "generic")
    if space == "param":
        return _load_parameter(place, parts, type_, machine)
    address = _address(place, instruction, machine)
    readers = [_source(part, f"b{8 * width}", instruction, machine) for part in parts] if is_store else []

    def execute(run: "Run", lanes: "Lanes") -> None:
        index = lanes.index
        addresses = np.broadcast_to(address(run), run.chunk.count)[index]
        check_aligned(addresses, size)
        if is_store:
            values = [np.broadcast_to(reader(run), run.chunk.count)[index] for reader in readers]
            data = np.concatenate([as_bytes(value, 8 * width) for value in values], axis=1)
            _transfer(run, instruction, space, index, addresses, size, data)
            return
        data = _transfer(run, instruction, space, index, addresses, size, None)
        words = np.ascontiguousarray(data).view(RAW[8 * width])
        for i, part in enumerate(parts):
            value = np.zeros(run.chunk.count, RAW[8 * width])
            value[index] = words[:, i]
            # Signed numbers are extended by their sign to a wider register.
            run.write(part, value.view(f"i{width}") if type_[0] == "s" else value, lanes)

    return execute


def _load_parameter(place: str, parts: Sequence[str], type_: str, machine: "Machine") -> Execute:
    match = re.fullmatch(r"\[\s*([$\w]+)\s*(?:\+\s*(\d+))?\s*\]", place)
    if match is None:
        raise UnknownInstructionError(place)
    width = TYPE_BITS[type_] // 8
    data, start = machine.parameter(match[1]), int(match[2] or 0)
    values = [
        decode(np.frombuffer(data[start + i * width : start + (i + 1) * width], RAW[8 * width]), type_)
        for i in range(len(parts))
    ]
    raw = [value if type_[0] == "s" else encode(value, type_) for value in values]

    def execute(run: "Run", lanes: "Lanes") -> None:
        for part, value in zip(parts, raw, strict=True):
            run.write(part, value, lanes)

    return execute


def _transfer(
    run: "Run",
    instruction: Instruction,
    space: str,
    index: Array,
    addresses: Array,
    size: int,
    data: Array | None,
) -> Array:
    """Load bytes, or store `data`, for the threads at the positions `index`; the bytes."""
    chunk = run.chunk
    if space == "generic":
        window = int(addresses[0]) >> 56
        if (addresses >> 56 != window).any():
            raise AccessError(
                "generic access to several memory spaces at once", first(addresses >> 56 != window)
            )
        space = {1: "shared", 2: "local"}.get(window, "global")
        if space != "global":
            addresses = addresses - (window << 56)
    if space == "shared":
        blocks, threads = chunk.block[index], chunk.thread[index]
        if data is None:
            return chunk.shared.load(blocks, threads, addresses, size)
        chunk.shared.store(blocks, threads, addresses, data)
        return data
    if space == "local":
        if data is None:
            return chunk.local.load(index, addresses, size)
        chunk.local.store(index, addresses, data)
        return data
    memory = run.machine.memory
    if int(addresses[0]) >= MODULE_WINDOW:
        memory = run.machine.module_data
    elif space == "global":
        accesses = run.machine.statistics.accesses
        access = accesses.setdefault(
            instruction.line, AccessStatistics(instruction.text, is_store=data is not None)
        )
        access.add(chunk.warp[index], addresses, size)
    if data is None:
        return memory.load(addresses, size)
    memory.store(addresses, data)
    return data
