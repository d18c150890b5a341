"""
Runs a PTX kernel with numpy: one array element a thread, many blocks at a time.

Threads that diverge run one group after the other, the one at the lowest instruction first; where they meet
they continue together. The order of blocks is ascending. Every fault names the kernel, the thread, the block
and the line of the PTX text.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np

from occamy_xdsl.simulator.ptx.arithmetic import RAW, Array
from occamy_xdsl.simulator.ptx.errors import AccessError, PtxError
from occamy_xdsl.simulator.ptx.instructions import Code, access_bytes, compile_instruction
from occamy_xdsl.simulator.ptx.parser import TYPE_BITS, Instruction, Program, layout
from occamy_xdsl.simulator.ptx.spaces import (
    MODULE_WINDOW,
    GlobalMemory,
    LocalMemory,
    ModuleData,
    SharedMemory,
    first,
)
from occamy_xdsl.simulator.ptx.statistics import WARP, KernelStatistics

CHUNK_THREADS = 1 << 15
"""Threads that run together: enough to hide Python's cost of an instruction, few enough for the cache."""
STEP_LIMIT = 5_000_000
"""Instructions a chunk may take before it counts as an endless loop."""
MAX_BLOCK_THREADS = 1024
MAX_SHARED_BYTES = 48 << 10
"""Shared memory of a block that needs no opt-in (CUDA C++ Programming Guide, Compute Capabilities)."""

Extent = tuple[int, int, int]


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
        self.module_data = ModuleData(bytes(image))
        module = {variable: MODULE_WINDOW + offset for variable, offset in offsets.items()}
        self._symbols = {**module, **shared, **local}
        self._check(parameters)
        self._parameters = dict(zip((p.name for p in kernel.parameters), parameters, strict=True))
        accesses = [
            i for i in kernel.instructions if i.opcode[0] in ("ld", "st") and i.opcode[-1] in TYPE_BITS
        ]
        self._granule = min([16, *map(access_bytes, accesses)])
        self.code = [compile_instruction(instruction, self) for instruction in kernel.instructions]
        """The instructions with their operands resolved."""

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
                Run(self, self._chunk(np.arange(start, min(start + step, blocks)))).run()
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
            shared=SharedMemory(len(blocks), self._shared_bytes, self._granule),
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


class Run:
    """Executes the instructions of a kernel for one chunk."""

    def __init__(self, machine: Machine, chunk: Chunk):
        self.machine = machine
        self.chunk = chunk
        self._waiting: dict[int, Array] = {}
        self._finished = np.zeros(chunk.count, np.bool_)
        self._steps = 0

    def run(self) -> None:
        code = self.machine.code
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

    def _step(self, code: "Code", position: int, lanes: Lanes) -> "list[tuple[int, Lanes]] | None":
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
