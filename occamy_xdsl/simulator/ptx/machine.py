"""
Runs a PTX kernel with numpy: one array element a thread, many blocks at a time.

Threads that diverge run one group after the other, the one at the lowest instruction first; where they meet
they continue together. The order of blocks is ascending. Every fault names the kernel, the thread, the block
and the line of the PTX text.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

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
from occamy_xdsl.simulator.ptx.parser import TYPE_BITS, Instruction, Program, layout, split_operands
from occamy_xdsl.simulator.ptx.spaces import (
    LOCAL_WINDOW,
    MODULE_WINDOW,
    SHARED_WINDOW,
    AccessError,
    GlobalMemory,
    LocalMemory,
    ModuleData,
    SharedMemory,
    as_bytes,
    check_aligned,
    first,
)
from occamy_xdsl.simulator.ptx.statistics import WARP, AccessStatistics, KernelStatistics

CHUNK_THREADS = 1 << 15
"""Threads that run together: enough to hide Python's cost of an instruction, few enough for the cache."""
STEP_LIMIT = 5_000_000
"""Instructions a chunk may take before it counts as an endless loop."""
MAX_BLOCK_THREADS = 1024
MAX_SHARED_BYTES = 48 << 10
"""Shared memory of a block that needs no opt-in (CUDA C++ Programming Guide, Compute Capabilities)."""

Extent = tuple[int, int, int]


class PtxError(Exception):
    """A fault of a kernel or of its launch."""

    def __init__(self, kernel: str, message: str, where: str = ""):
        super().__init__(f"kernel '{kernel}'{where}: {message}")
        self.kernel = kernel
        self.message = message


@dataclass(frozen=True)
class Lanes:
    """The threads that run an instruction, as a mask over all threads of the chunk."""

    mask: Array
    full: bool
    """Whether these are all threads."""

    @cached_property
    def index(self) -> Array:
        """Their positions, ascending."""
        return np.flatnonzero(self.mask)

    def where(self, condition: Array) -> "Lanes | None":
        """Those of them for which a condition holds, None if there are none."""
        mask = self.mask & condition
        if not mask.any():
            return None
        return Lanes(mask, bool(mask.all()))


@dataclass
class Chunk:
    """State of some blocks that run together; every block takes a whole number of warps of positions."""

    count: int
    """Positions; those beyond the threads of a block never run."""
    block: Array
    """Block of each position, numbered within the chunk."""
    thread: Array
    """Thread of each position, numbered within its block."""
    warp: Array
    """Warp of each position, numbered within the chunk."""
    exists: Array
    special: Mapping[str, Array]
    shared: SharedMemory
    local: LocalMemory
    registers: dict[str, Array] = field(default_factory=dict[str, Array])
    carry: Array = field(default_factory=lambda: np.zeros(1, np.uint64))


class Machine:
    """
    One launch of a kernel: checks its configuration, then runs its blocks.

    `parameters` are the bytes of each kernel parameter. Raises PtxError.
    """

    def __init__(
        self,
        program: Program,
        name: str,
        grid: Extent,
        block: Extent,
        parameters: Sequence[bytes],
        memory: GlobalMemory,
        *,
        dynamic_shared_bytes: int = 0,
        statistics: KernelStatistics | None = None,
    ):
        self.kernel = kernel = program.kernels[name]
        self.grid, self.block, self.memory = grid, block, memory
        self.statistics = statistics if statistics is not None else KernelStatistics()
        self.threads = prod(block)
        shared, self._shared_bytes = layout(
            [v for v in (*program.variables, *kernel.variables) if v.space == "shared"]
        )
        self._shared_bytes += dynamic_shared_bytes
        local, self._local_bytes = layout([v for v in kernel.variables if v.space == "local"])
        data = [v for v in program.variables if v.space in ("const", "global")]
        offsets, size = layout(data)
        image = bytearray(size)
        for variable in data:
            image[offsets[variable.name] : offsets[variable.name] + len(variable.data)] = variable.data
        self._module = ModuleData(bytes(image))
        module = {variable: MODULE_WINDOW + offset for variable, offset in offsets.items()}
        self._symbols = {**module, **shared, **local}
        self._check(parameters)
        self._parameters = dict(zip((p.name for p in kernel.parameters), parameters, strict=True))
        self._code = [_compile(instruction, self) for instruction in kernel.instructions]

    def _check(self, parameters: Sequence[bytes]) -> None:
        kernel = self.kernel
        if len(parameters) != len(kernel.parameters):
            expected = f"takes {len(kernel.parameters)} parameters"
            raise PtxError(kernel.name, f"{expected}, the launch passes {len(parameters)}")
        for i, (value, parameter) in enumerate(zip(parameters, kernel.parameters, strict=True)):
            if len(value) != parameter.size:
                fact = f"parameter {i} has {parameter.size} bytes, the launch passes {len(value)}"
                raise PtxError(kernel.name, fact)
        if min(self.grid + self.block) < 1:
            raise PtxError(kernel.name, f"empty launch: grid {self.grid}, block {self.block}")
        if self.threads > MAX_BLOCK_THREADS or self.block[2] > 64:
            raise PtxError(kernel.name, f"block {self.block} is larger than a device allows")
        if self.grid[0] >= 2**31 or max(self.grid[1:]) > 65535:
            raise PtxError(kernel.name, f"grid {self.grid} is larger than a device allows")
        limit = kernel.max_threads
        if limit is not None and (self.threads > limit or (kernel.required_block and self.threads != limit)):
            raise PtxError(kernel.name, f"block of {self.threads} threads, the kernel is built for {limit}")
        if self._shared_bytes > MAX_SHARED_BYTES:
            fact = f"{self._shared_bytes} bytes of shared memory"
            raise PtxError(kernel.name, f"{fact}, a block has at most {MAX_SHARED_BYTES}")

    def run(self) -> KernelStatistics:
        """Run all blocks; raises PtxError."""
        blocks = prod(self.grid)
        self.statistics.launches += 1
        self.statistics.blocks += blocks
        step = max(1, CHUNK_THREADS // self.threads)
        with np.errstate(all="ignore"):
            for start in range(0, blocks, step):
                _Run(self, self._chunk(np.arange(start, min(start + step, blocks)))).run()
        return self.statistics

    def _chunk(self, blocks: Array) -> Chunk:
        padded = -(-self.threads // WARP) * WARP
        thread = np.tile(np.arange(padded), len(blocks))
        identifier = np.repeat(blocks, padded)
        special: dict[str, Array] = {"%laneid": thread % WARP, "%warpid": thread // WARP}
        for prefix, number, extent in (("", thread, self.block), ("cta", identifier, self.grid)):
            x, y, _ = extent
            for axis, value in zip("xyz", (number % x, number // x % y, number // (x * y)), strict=True):
                special[f"%{prefix}{'tid' if not prefix else 'id'}.{axis}"] = value
            for axis, value in zip("xyz", extent, strict=True):
                special[f"%n{prefix}{'tid' if not prefix else 'id'}.{axis}"] = np.array([value])
        return Chunk(
            count=len(thread),
            block=np.repeat(np.arange(len(blocks)), padded),
            thread=thread,
            warp=np.arange(len(thread)) // WARP,
            exists=thread < self.threads,
            special={name: value.astype(np.uint32) for name, value in special.items()},
            shared=SharedMemory(len(blocks), self._shared_bytes),
            local=LocalMemory(len(thread), self._local_bytes),
        )

    # --- operands, resolved once for each instruction ---

    def symbol(self, name: str) -> int | None:
        """Address of a variable, None if there is none of that name."""
        return self._symbols.get(name)

    def parameter(self, name: str) -> bytes:
        """Bytes of a kernel parameter."""
        return self._parameters[name]

    def is_register(self, name: str) -> bool:
        """Whether an operand is a register; inline assembly has some without a percent sign."""
        return name.startswith("%") or name in self.kernel.register_bits

    def register_bits(self, name: str) -> int:
        """Bits of a register by its declaration."""
        prefix = re.sub(r"\d+$", "", name)
        bits = self.kernel.register_bits
        return bits[name] if name in bits else bits[prefix]


class _Run:
    """Executes the instructions of a kernel for one chunk."""

    def __init__(self, machine: Machine, chunk: Chunk):
        self.machine = machine
        self.chunk = chunk
        self._waiting: dict[int, Array] = {}
        self._finished = np.zeros(chunk.count, np.bool_)
        self._steps = 0

    def run(self) -> None:
        code = self.machine._code  # pyright: ignore[reportPrivateUsage]
        groups: dict[int, Array] = {0: self.chunk.exists}
        while groups or self._waiting:
            if not groups:
                groups = self._release()
            position = min(groups)
            mask = groups.pop(position)
            lanes = Lanes(mask, bool(mask.all()))
            meeting = min(groups, default=len(code))
            while True:
                if position == len(code):
                    self._finished |= lanes.mask
                    break
                if position >= meeting and position in groups:
                    groups[position] = groups[position] | lanes.mask
                    break
                follow = self._step(code[position], position, lanes)
                if follow is None:
                    position += 1
                    continue
                for target, part in follow:
                    groups[target] = groups[target] | part.mask if target in groups else part.mask
                break

    def _step(self, code: "_Code", position: int, lanes: Lanes) -> "list[tuple[int, Lanes]] | None":
        """Run one instruction; where the threads go that do not simply take the next one."""
        self._steps += 1
        machine, instruction = self.machine, code.instruction
        if self._steps > STEP_LIMIT:
            raise PtxError(machine.kernel.name, f"more than {STEP_LIMIT} instructions: an endless loop?")
        machine.statistics.warp_instructions += (
            self.chunk.count // WARP if lanes.full else len(np.unique(self.chunk.warp[lanes.index]))
        )
        taken: Lanes | None = lanes
        if instruction.predicate:
            predicate = self.register(instruction.predicate, instruction)
            taken = lanes.where(~predicate if instruction.negated else predicate)
        name = instruction.opcode[0]
        if name in ("bra", "ret", "exit", "bar", "barrier"):
            return self._control(instruction, position + 1, lanes, taken)
        if taken is not None:
            assert code.execute is not None
            try:
                code.execute(self, taken)
            except AccessError as error:
                raise self.error(instruction, str(error), int(taken.index[error.position])) from None
        return None

    def _control(
        self, instruction: Instruction, following: int, lanes: Lanes, taken: Lanes | None
    ) -> list[tuple[int, Lanes]] | None:
        """Branches, ends and barriers, for the threads whose predicate holds."""
        if taken is None:
            return None
        kernel = self.machine.kernel
        name = instruction.opcode[0]
        if name in ("bar", "barrier") and "warp" in instruction.opcode:
            return None
        if name in ("bar", "barrier"):
            old = self._waiting.get(following)
            self._waiting[following] = taken.mask if old is None else old | taken.mask
            targets: list[tuple[int, Lanes]] = []
        elif name == "bra":
            targets = [(kernel.labels[instruction.operands[-1]], taken)]
        else:
            self._finished |= taken.mask
            targets = []
        rest = lanes.where(~taken.mask)
        if rest is not None:
            targets.append((following, rest))
        return targets

    def _release(self) -> dict[int, Array]:
        """Let the threads go on that wait at barriers, if in every block all wait at the same one."""
        chunk = self.chunk
        for position, mask in self._waiting.items():
            instruction = self.machine.kernel.instructions[position - 1]
            blocks = np.unique(chunk.block[mask])
            others = chunk.exists & ~mask & np.isin(chunk.block, blocks)
            if others.any():
                missing = first(others)
                why = "has ended" if self._finished[missing] else "waits at another barrier"
                fact = f"divergent barrier: thread {self._thread(missing)} of the same block {why}"
                raise self.error(instruction, fact, first(mask & (chunk.block == chunk.block[missing])))
            chunk.shared.barrier(blocks)
        released, self._waiting = self._waiting, {}
        return released

    # --- used by compiled instructions ---

    def _thread(self, position: int) -> Extent:
        special = self.chunk.special
        x, y, z = (int(special[f"%tid.{axis}"][position]) for axis in "xyz")
        return x, y, z

    def error(self, instruction: Instruction, message: str, position: int) -> PtxError:
        """The fault of an instruction, met by the thread at a position of the chunk."""
        block = tuple(int(self.chunk.special[f"%ctaid.{axis}"][position]) for axis in "xyz")
        where = f", thread {self._thread(position)} of block {block}, PTX line {instruction.line}"
        return PtxError(self.machine.kernel.name, f"{message}: {instruction.text}", where)

    def register(self, name: str, instruction: Instruction) -> Array:
        """Raw bits of a register for all positions."""
        value = self.chunk.special.get(name)
        if value is None:
            value = self.chunk.registers.get(name)
        if value is None:
            raise PtxError(
                self.machine.kernel.name,
                f"register {name} is read before it is written: {instruction.text}",
                f", PTX line {instruction.line}",
            )
        return value

    def write(self, name: str, value: Array, lanes: Lanes) -> None:
        """Set a register of some threads; numbers are extended by their sign to a wider register."""
        if name == "_":
            return
        raw = RAW[self.machine.register_bits(name)]
        if value.dtype != raw:
            value = value.astype(raw)
        if value.shape != (self.chunk.count,):
            value = np.broadcast_to(value, self.chunk.count)
        if not lanes.full:
            old = self.chunk.registers.get(name)
            value = np.where(lanes.mask, value, raw(0) if old is None else old)
        self.chunk.registers[name] = value


Source = Callable[[_Run], Array]


@dataclass(frozen=True)
class _Code:
    """An instruction with its operands resolved; branches and barriers have no function."""

    instruction: Instruction
    execute: Callable[[_Run, Lanes], None] | None


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


def _source(text: str, type_: str, instruction: Instruction, machine: Machine) -> Source:
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


def _address(text: str, instruction: Instruction, machine: Machine) -> Source:
    """Reader of `[base+offset]` as int64."""
    match = re.fullmatch(r"\[\s*([%$\w]+)\s*(?:\+\s*(-?\w+))?\s*\]", text)
    if match is None:
        raise PtxError(machine.kernel.name, f"cannot read the address in PTX line {instruction.line}: {text}")
    offset = int(match[2] or "0", 0)
    base = _source(match[1], "b64", instruction, machine)
    if machine.is_register(match[1]) and machine.register_bits(match[1]) == 32:
        base = _source(match[1], "b32", instruction, machine)
    return lambda run: base(run).astype(np.int64) + offset


def _compile(instruction: Instruction, machine: Machine) -> _Code:
    """Resolve the operands of an instruction; raises PtxError if it is unknown."""
    name, *modifiers = instruction.opcode
    try:
        if name in ("bra", "ret", "exit", "bar", "barrier"):
            return _Code(instruction, None)
        if name in ("membar", "fence", "prefetch", "pragma", "nanosleep"):
            return _Code(instruction, lambda run, lanes: None)
        if name in ("ld", "ldu", "st"):
            return _Code(instruction, _memory_access(instruction, machine))
        if name == "shfl":
            return _Code(instruction, _shuffle(instruction, machine))
        if name in ("addc", "subc", "madc") or "cc" in modifiers:
            return _Code(instruction, _carry_operation(instruction, machine))
        if name == "mov" and "{" in "".join(instruction.operands):
            return _Code(instruction, _move_vector(instruction, machine))
        if name == "cvta":
            return _Code(instruction, _convert_address(instruction, machine))
        target, *sources = instruction.operands
        operation = find(instruction.opcode, len(sources))
        return _Code(instruction, _arithmetic(target, sources, operation, instruction, machine))
    except (UnknownInstructionError, KeyError, ValueError):
        fact = f"the simulator does not know this instruction: {instruction.text}"
        raise PtxError(machine.kernel.name, fact, f", PTX line {instruction.line}") from None


def _arithmetic(
    target: str, sources: Sequence[str], operation: Operation, instruction: Instruction, machine: Machine
) -> Callable[[_Run, Lanes], None]:
    readers = [
        _source(text, type_, instruction, machine)
        for text, type_ in zip(sources, operation.sources, strict=True)
    ]
    result = operation.result
    extends = result not in FLOATS and result != "pred"

    def execute(run: _Run, lanes: Lanes) -> None:
        value = operation.compute(*(reader(run) for reader in readers))
        # Integers stay numbers, so that a wider register gets them by their sign.
        run.write(target, value if extends else encode(value, result), lanes)

    return execute


def _convert_address(instruction: Instruction, machine: Machine) -> Callable[[_Run, Lanes], None]:
    """`cvta`: between addresses of a space and generic ones."""
    space = next(m for m in instruction.opcode if m in ("global", "shared", "local", "const", "param"))
    window = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW}.get(space, 0)
    sign = -1 if "to" in instruction.opcode else 1
    target, text = instruction.operands
    source = _source(text, "s64", instruction, machine)
    return lambda run, lanes: run.write(target, source(run) + sign * window, lanes)


def _move_vector(instruction: Instruction, machine: Machine) -> Callable[[_Run, Lanes], None]:
    """`mov` that packs registers into a wider one, or unpacks it."""
    target, source = instruction.operands
    bits = TYPE_BITS[instruction.opcode[-1]]
    parts = split_operands((target if target.startswith("{") else source)[1:-1])
    width = bits // len(parts)
    if target.startswith("{"):
        whole = _source(source, f"b{bits}", instruction, machine)

        def unpack(run: _Run, lanes: Lanes) -> None:
            value = whole(run)
            for i, part in enumerate(parts):
                run.write(part, (value >> (i * width)).astype(RAW[width]), lanes)

        return unpack
    readers = [_source(part, f"b{width}", instruction, machine) for part in parts]

    def pack(run: _Run, lanes: Lanes) -> None:
        value: Array = np.zeros(1, RAW[bits])
        for i, reader in enumerate(readers):
            value = value | (reader(run).astype(RAW[bits]) << (i * width))
        run.write(target, value, lanes)

    return pack


def _carry_operation(instruction: Instruction, machine: Machine) -> Callable[[_Run, Lanes], None]:
    """32-bit addition and multiplication with carry in and out, as in libdevice's argument reduction."""
    name, *modifiers = instruction.opcode
    if TYPE_BITS[modifiers[-1]] != 32 or name.startswith("sub"):
        raise UnknownInstructionError(name)
    target, *sources = instruction.operands
    readers = [_source(text, "u32", instruction, machine) for text in sources]

    def execute(run: _Run, lanes: Lanes) -> None:
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


def _shuffle(instruction: Instruction, machine: Machine) -> Callable[[_Run, Lanes], None]:
    """`shfl.sync`: all lanes that the mask names must take part (PTX ISA, shfl.sync)."""
    mode = instruction.opcode[2]
    targets, *sources = instruction.operands
    target, _, valid = targets.partition("|")
    value_source, *others = [_source(text, "u32", instruction, machine) for text in sources]

    def execute(run: _Run, lanes: Lanes) -> None:
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


def _memory_access(instruction: Instruction, machine: Machine) -> Callable[[_Run, Lanes], None]:
    modifiers = instruction.opcode[1:]
    is_store = instruction.opcode[0] == "st"
    type_ = modifiers[-1]
    width = TYPE_BITS[type_] // 8
    lanes_text = next((m[1:] for m in modifiers if re.fullmatch(r"v\d", m)), "1")
    size = width * int(lanes_text)
    place, registers = instruction.operands if is_store else reversed(instruction.operands)
    parts = split_operands(registers[1:-1]) if registers.startswith("{") else (registers,)
    space = next((m for m in modifiers if m in ("global", "shared", "local", "const", "param")), "generic")
    if space == "param":
        return _load_parameter(place, parts, type_, machine)
    address = _address(place, instruction, machine)
    readers = [_source(part, f"b{8 * width}", instruction, machine) for part in parts] if is_store else []

    def execute(run: _Run, lanes: Lanes) -> None:
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


def _load_parameter(
    place: str, parts: Sequence[str], type_: str, machine: Machine
) -> Callable[[_Run, Lanes], None]:
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

    def execute(run: _Run, lanes: Lanes) -> None:
        for part, value in zip(parts, raw, strict=True):
            run.write(part, value, lanes)

    return execute


def _transfer(
    run: _Run,
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
        memory = run.machine._module  # pyright: ignore[reportPrivateUsage]
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
