"""Faults that are seeded into kernels, each of which the interpreter must name."""

from collections.abc import Callable

import numpy as np
import pytest

from occamy_xdsl.simulator import ptx
from occamy_xdsl.simulator.memory import DeviceMemory, Region
from occamy_xdsl.simulator.ptx import machine

# y[64 * block + i] = x[64 * block + 63 - i] through shared memory, one block of 64 threads.
REVERSE = """
.version 7.5
.target sm_75
.address_size 64
.visible .entry reverse(
    .param .u64 .ptr .align 1 reverse_param_0,
    .param .u64 .ptr .align 1 reverse_param_1
)
.maxntid 64, 1, 1
{
    .local .align 8 .b8 __local_depot0[8];
    .reg .pred %p<3>;
    .reg .b32 %r<12>;
    .reg .b64 %rd<12>;
    .shared .align 16 .b8 tile[256];
    ld.param.b64 %rd1, [reverse_param_0];
    ld.param.b64 %rd2, [reverse_param_1];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, %ctaid.x;
    mad.lo.s32 %r3, %r2, 64, %r1;
    mul.wide.u32 %rd3, %r3, 4;
    add.s64 %rd4, %rd1, %rd3;
    ld.global.b32 %r4, [%rd4];
    shl.b32 %r5, %r1, 2;
    cvt.u64.u32 %rd5, %r5;
    mov.b64 %rd6, tile;
    add.s64 %rd7, %rd6, %rd5;
    st.shared.b32 [%rd7], %r4;
    bar.sync 0;
    sub.s64 %rd8, %rd6, %rd5;
    ld.shared.b32 %r6, [%rd8+252];
    add.s64 %rd9, %rd2, %rd3;
    st.global.b32 [%rd9], %r6;
    ret;
}
"""
X = np.arange(128, dtype=np.float32)


def run(text: str, *, grid=(2, 1, 1), block=(64, 1, 1), parameters=2, out_bytes=512, width=8, write=True):
    memory = DeviceMemory(1 << 20)
    memory.operation = 1
    source, target = memory.allocate(X.nbytes), memory.allocate(out_bytes)
    if write:
        memory.write(Region(source, (128,), (1,), X.dtype), X)
    values = [address.to_bytes(8, "little")[:width] for address in (source, target, source)]
    statistics = ptx.launch(ptx.parse(text), "reverse", grid, block, values[:parameters], memory)
    return memory.read(Region(target, (128,), (1,), X.dtype)), statistics


def test_the_kernel_is_right_and_coalesced() -> None:
    got, statistics = run(REVERSE)
    np.testing.assert_array_equal(got, X.reshape(2, 64)[:, ::-1].ravel())
    assert statistics.efficiency == 1.0
    assert statistics.blocks == 2
    assert [a.sectors for a in statistics.accesses.values()] == [16, 16]


def replaced(old: str, new: str) -> str:
    assert old in REVERSE
    return REVERSE.replace(old, new, 1)


FAULTS: dict[str, tuple[str, dict, str]] = {
    "store out of bounds": (REVERSE, {"out_bytes": 400}, "out-of-bounds access of 4 bytes"),
    "one block too many": (REVERSE, {"grid": (3, 1, 1)}, "out-of-bounds access of 4 bytes"),
    "wild address": (
        replaced("add.s64 %rd9, %rd2, %rd3;", "mov.b64 %rd9, 4096;"),
        {},
        "0x1000 is no address of the device",
    ),
    "misaligned vector load": (
        replaced(
            "ld.global.b32 %r4, [%rd4];", "add.s64 %rd4, %rd1, 4; ld.global.v4.b32 {%r4,%r7,%r8,%r9}, [%rd4];"
        ),
        {},
        "misaligned access of 16 bytes",
    ),
    "uninitialised global memory": (REVERSE, {"write": False}, "reads bytes that were never written"),
    "uninitialised shared memory": (
        replaced("st.shared.b32 [%rd7], %r4;", ""),
        {},
        "reads shared memory that was never written",
    ),
    "uninitialised local memory": (
        replaced("bar.sync 0;", "mov.b64 %rd10, __local_depot0; ld.local.b32 %r7, [%rd10+4];"),
        {},
        "reads local memory that was never written",
    ),
    "local memory out of bounds": (
        replaced("bar.sync 0;", "mov.b64 %rd10, __local_depot0; st.local.b32 [%rd10+8], %r1;"),
        {},
        "local memory out of bounds: byte 8 of 8",
    ),
    "shared memory out of bounds": (
        replaced("ld.shared.b32 %r6, [%rd8+252];", "ld.shared.b32 %r6, [%rd8+256];"),
        {},
        "shared memory out of bounds: bytes 256 to 259 of 256",
    ),
    "race between store and load": (
        replaced("bar.sync 0;", "st.shared.b32 [%rd7], %r1;").replace(
            "st.shared.b32 [%rd7], %r4;", "st.shared.b32 [%rd7], %r4; bar.sync 0;", 1
        ),
        {},
        "shared-memory race: thread 63 wrote here since the last barrier",
    ),
    "race between load and store": (
        replaced("ld.shared.b32 %r6, [%rd8+252];", "ld.shared.b32 %r6, [%rd8+252]; st.shared.b32 [%rd7], %r6;"),
        {},
        "shared-memory race: another thread used these bytes",
    ),
    "race between two stores": (
        replaced("st.shared.b32 [%rd7], %r4;", "st.shared.b32 [%rd7], %r4; st.shared.b32 [tile], %r1;"),
        {},
        "shared-memory race: another thread used these bytes",
    ),
    "divergent barrier": (
        replaced("bar.sync 0;", "setp.lt.u32 %p1, %r1, 40; @%p1 bra $L; bar.sync 0; $L: bar.sync 0;"),
        {},
        "divergent barrier: thread",
    ),
    "barrier after an exit": (
        replaced("bar.sync 0;", "setp.gt.u32 %p1, %r1, 40; @%p1 ret; bar.sync 0;"),
        {},
        "divergent barrier: thread (41, 0, 0) of the same block has ended",
    ),
    "partial-warp shuffle": (
        replaced(
            "bar.sync 0;", "setp.gt.u32 %p1, %r1, 40; @%p1 shfl.sync.bfly.b32 %r7|%p2, %r1, 1, 31, -1; bar.sync 0;"
        ),
        {},
        "partial-warp shuffle",
    ),
    "shuffle from a lane that is not there": (
        replaced(
            "bar.sync 0;", "setp.gt.u32 %p1, %r1, 39; @%p1 shfl.sync.bfly.b32 %r7, %r1, 8, 31, 0xFFFFFF00; bar.sync 0;"
        ).replace(".maxntid 64", ".maxntid 56"),
        {"block": (56, 1, 1)},
        "shuffle reads a lane that takes no part",
    ),
    "register read before it is written": (
        replaced("shl.b32 %r5, %r1, 2;", "shl.b32 %r5, %r9, 2;"),
        {},
        "register %r9 is read before it is written",
    ),
    "too few parameters": (REVERSE, {"parameters": 1}, "takes 2 parameters, the launch passes 1"),
    "too many parameters": (REVERSE, {"parameters": 3}, "takes 2 parameters, the launch passes 3"),
    "parameter of the wrong size": (REVERSE, {"width": 4}, "parameter 0 has 8 bytes, the launch passes 4"),
    "block larger than built for": (REVERSE, {"block": (65, 1, 1)}, "block of 65 threads, the kernel is built for 64"),
    "empty grid": (REVERSE, {"grid": (0, 1, 1)}, "empty launch"),
    "grid too large": (REVERSE, {"grid": (1, 1, 65536)}, "larger than a device allows"),
    "too much shared memory": (replaced("tile[256]", "tile[50000]"), {}, "a block has at most 49152"),
    "store to a constant": (
        replaced(".visible", ".const .align 4 .b8 table[4] = {1, 2, 3, 4};\n.visible").replace(
            "bar.sync 0;", "mov.b64 %rd10, table; st.global.b32 [%rd10], %r1; bar.sync 0;", 1
        ),
        {},
        "store to a variable of the module",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found(name: str) -> None:
    text, launch, message = FAULTS[name]
    with pytest.raises(ptx.PtxError) as error:
        run(text, **launch)
    assert message in str(error.value)
    assert "kernel 'reverse'" in str(error.value)


def test_faults_say_where() -> None:
    with pytest.raises(ptx.PtxError) as error:
        run(REVERSE, out_bytes=400)
    expected = "kernel 'reverse', thread (36, 0, 0) of block (1, 0, 0), PTX line 33: "
    assert str(error.value).startswith(expected)
    assert str(error.value).endswith("st.global.b32 [%rd9], %r6")


def test_endless_loops_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "STEP_LIMIT", 1000)
    with pytest.raises(ptx.PtxError, match="endless loop"):
        run(replaced("bar.sync 0;", "$L: bra $L;"))


def test_equal_stores_of_several_threads_are_no_race() -> None:
    """All lanes that hold the sum of a warp may store it."""
    run(replaced("bar.sync 0;", "bar.sync 0; mov.b32 %r7, 5; st.shared.b32 [tile+128], %r7; bar.sync 0;").replace(
        "ld.shared.b32 %r6, [%rd8+252];", "ld.shared.b32 %r6, [tile+128];", 1
    ))  # fmt: skip


def test_generic_addresses_local_memory_and_constants() -> None:
    """`cvta` to generic addresses of each space; a table in constant memory; a value kept in local memory."""
    text = (
        REVERSE.replace(".visible", ".const .align 4 .b32 table[2] = {7, 0x3F800000};\n.visible")
        .replace("mov.b64 %rd6, tile;", "mov.b64 %rd11, tile; cvta.shared.u64 %rd6, %rd11;")
        .replace("st.shared.b32", "st.b32")
        .replace(
            "ld.shared.b32 %r6, [%rd8+252];",
            """ld.b32 %r6, [%rd8+252];
            mov.b64 %rd10, __local_depot0; cvta.local.u64 %rd10, %rd10; st.b32 [%rd10], %r6;
            ld.const.b32 %r7, [table+4]; ld.b32 %r8, [%rd10]; add.rn.f32 %r6, %r7, %r8;""",
        )
    )
    got, _ = run(text)
    np.testing.assert_array_equal(got, X.reshape(2, 64)[:, ::-1].ravel() + 1)


@pytest.mark.parametrize(
    ("mode", "amount", "clamp", "source"),
    [
        ("bfly", 5, 31, lambda lane: lane ^ 5),
        ("down", 3, 31, lambda lane: np.where(lane + 3 < 32, lane + 3, lane)),
        ("up", 3, 0, lambda lane: np.where(lane >= 3, lane - 3, lane)),
        ("idx", 9, 31, lambda lane: 0 * lane + 9),
    ],
)
def test_shuffles(mode: str, amount: int, clamp: int, source: Callable) -> None:
    text = replaced("bar.sync 0;", f"shfl.sync.{mode}.b32 %r4, %r4, {amount}, {clamp}, -1;")
    text = text.replace("st.shared.b32 [%rd7], %r4;", "").replace(
        "ld.shared.b32 %r6, [%rd8+252];", "mov.b32 %r6, %r4;"
    )
    got, _ = run(text)
    lanes = np.arange(128) % 32
    np.testing.assert_array_equal(got, X[np.arange(128) - lanes + source(lanes)])


def test_strided_access_wastes_sectors() -> None:
    """Every second element: half of each sector is used."""
    text = replaced("mad.lo.s32 %r3, %r2, 64, %r1;", "shl.b32 %r3, %r1, 1;")
    memory = DeviceMemory(1 << 20)
    memory.operation = 1
    source = memory.allocate(512)
    memory.write(Region(source, (128,), (1,), X.dtype), X)
    pointers = [source.to_bytes(8, "little")] * 2
    statistics = ptx.launch(ptx.parse(text), "reverse", (1, 1, 1), (64, 1, 1), pointers, memory)
    assert statistics.load_efficiency == 0.5


def test_text_that_is_not_ptx() -> None:
    for text in ("", "\x7fELF", ".version 7.0"):
        with pytest.raises(ptx.PtxSyntaxError, match="no PTX"):
            ptx.parse(text)
    with pytest.raises(ptx.PtxSyntaxError, match="brace is not closed"):
        ptx.parse(REVERSE[:-3])
