"""Single PTX instructions against numpy, and against values worked out from the PTX ISA."""

import numpy as np
import pytest

from occamy_xdsl.simulator import ptx
from occamy_xdsl.simulator.memory import DeviceMemory, Region

KERNEL = """
.version 8.6
.target sm_90
.address_size 64
.visible .entry k(.param .u64 k_param_0, .param .u64 k_param_1)
{{
    .reg .pred %p<3>;
    .reg .b16 %rs<9>;
    .reg .b32 %r<9>;
    .reg .b64 %rd<9>;
    ld.param.b64 %rd7, [k_param_0];
    ld.param.b64 %rd8, [k_param_1];
    mov.u32 %r8, %tid.x;
    mul.wide.u32 %rd6, %r8, 32;
    add.s64 %rd7, %rd7, %rd6;
    mul.wide.u32 %rd6, %r8, 8;
    add.s64 %rd8, %rd8, %rd6;
    {loads}
    {code}
    st.global.{out} [%rd8], {result};
    ret;
}}
"""
PREFIX = {2: "%rs", 4: "%r", 8: "%rd"}


def run(code: str, inputs: list[np.ndarray], out: np.dtype) -> np.ndarray:
    """
    The results of `code`, one thread for each element.

    In it `A`, `B`, `C` stand for the registers of the inputs and `D` for that of the result.
    """
    threads = len(inputs[0])
    slots = np.zeros((threads, 4), np.uint64)
    loads = []
    for i, (name, array) in enumerate(zip("ABC", inputs, strict=False)):
        size = array.dtype.itemsize
        slots[:, i : i + 1].view(array.dtype)[:, 0] = array
        register = f"{PREFIX[size]}{i + 1}"
        loads.append(f"ld.global.b{8 * size} {register}, [%rd7+{8 * i}];")
        code = code.replace(name, register)
    result = f"{PREFIX[out.itemsize]}5"
    text = KERNEL.format(
        loads="\n".join(loads), code=code.replace("D", result), out=f"b{8 * out.itemsize}", result=result
    )
    memory = DeviceMemory(1 << 20)
    memory.operation = 1
    source, target = memory.allocate(slots.nbytes), memory.allocate(8 * threads)
    memory.write(Region(source, slots.shape, (4, 1), slots.dtype), slots)
    pointers = [address.to_bytes(8, "little") for address in (source, target)]
    ptx.launch(ptx.parse(text), "k", (1, 1, 1), (threads, 1, 1), pointers, memory)
    return memory.read(Region(target, (threads,), (8 // out.itemsize,), out))


RNG = np.random.default_rng(3)
F = np.concatenate(
    [RNG.standard_normal(40) * 10.0 ** RNG.integers(-6, 6, 40), [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0]]
).astype(np.float32)
G = np.roll(F, 7)
I32 = np.concatenate([RNG.integers(-(2**31), 2**31, 40), [0, 1, -1, 2**31 - 1, -(2**31)]]).astype(np.int32)
J32 = np.roll(I32, 3)
U32, V32 = I32.view(np.uint32), J32.view(np.uint32)
NONZERO = np.where(J32 == 0, 7, J32)
BIG = np.array([int(a) * int(b) for a, b in zip(U32, V32, strict=True)], object)
SIGNED_BIG = np.array([int(a) * int(b) for a, b in zip(I32, J32, strict=True)], object)
U64 = (U32.astype(np.uint64) << 32) | V32
SMALL = F.clip(-30000, 30000)
H = SMALL.astype(np.float16)
SHIFTS = (np.arange(len(U32)) % 40).astype(np.uint32)


def f32(function) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(function(F.astype(np.float64), G.astype(np.float64))).astype(np.float32)


def towards_zero(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    quotients = [
        abs(int(x)) // abs(int(y)) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(a, b, strict=True)
    ]
    return np.array(quotients, np.int64).astype(np.int32)


EXACT = [
    ("add.rn.f32 D, A, B;", [F, G], f32(lambda x, y: x + y)),
    ("sub.rn.f32 D, A, B;", [F, G], f32(lambda x, y: x - y)),
    ("mul.rn.f32 D, A, B;", [F, G], f32(lambda x, y: x * y)),
    ("div.rn.f32 D, A, B;", [F, G], f32(lambda x, y: x / y)),
    ("fma.rn.f32 D, A, B, A;", [F, G], f32(lambda x, y: x * y + x)),
    ("sqrt.rn.f32 D, A;", [F], f32(lambda x, y: np.sqrt(x))),
    ("neg.f32 D, A;", [F], -F),
    ("abs.f32 D, A;", [F], np.abs(F)),
    ("max.NaN.f32 D, A, B;", [F, G], np.maximum(F, G)),
    ("min.NaN.f32 D, A, B;", [F, G], np.minimum(F, G)),
    ("max.f32 D, A, B;", [F, G], np.fmax(F, G)),
    ("add.f64 D, A, A;", [F.astype(np.float64)], 2 * F.astype(np.float64)),
    ("fma.rn.f32 D, A, 0f40000000, 0f3F800000;", [F], f32(lambda x, y: 2 * x + 1)),
    ("cvt.rn.f32.s32 D, A;", [I32], I32.astype(np.float32)),
    ("cvt.rn.f32.u32 D, A;", [U32], U32.astype(np.float32)),
    ("cvt.rn.f16.f32 D, A;", [SMALL], H),
    ("cvt.f32.f16 D, A;", [H], H.astype(np.float32)),
    ("add.rn.f16 D, A, A;", [H], (2 * H.astype(np.float32)).astype(np.float16)),
    ("cvt.f64.f32 D, A;", [F], F.astype(np.float64)),
    ("cvt.rmi.f32.f32 D, A;", [F], np.floor(F)),
    ("cvt.rni.f32.f32 D, A;", [F], np.rint(F)),
    ("cvt.s64.s32 D, A;", [I32], I32.astype(np.int64)),
    ("cvt.u64.u32 D, A;", [U32], U32.astype(np.uint64)),
    ("cvt.u32.u64 D, A;", [U64], V32),
    ("cvt.s32.s8 D, A;", [I32], I32.astype(np.int8).astype(np.int32)),
    ("mul.wide.s32 D, A, B;", [I32, J32], I32.astype(np.int64) * J32),
    ("mul.lo.s32 D, A, B;", [U32, V32], U32 * V32),
    ("mul.hi.u32 D, A, B;", [U32, V32], (BIG >> 32).astype(np.uint32)),
    ("mul.hi.s32 D, A, B;", [I32, J32], (SIGNED_BIG >> 32).astype(np.int32)),
    ("mad.lo.s32 D, A, B, A;", [U32, V32], U32 * V32 + U32),
    ("div.s32 D, A, B;", [I32, NONZERO], towards_zero(I32, NONZERO)),
    ("rem.u32 D, A, B;", [U32, V32 | 1], U32 % (V32 | 1)),
    ("min.s32 D, A, B;", [I32, J32], np.minimum(I32, J32)),
    ("max.u32 D, A, B;", [U32, V32], np.maximum(U32, V32)),
    ("xor.b32 D, A, -1;", [U32], ~U32),
    ("not.b32 D, A;", [U32], ~U32),
    ("shl.b32 D, A, B;", [U32, SHIFTS], np.where(SHIFTS > 31, 0, U32 << (SHIFTS & 31)).astype(np.uint32)),
    ("shr.s32 D, A, B;", [I32, SHIFTS], I32 >> np.minimum(SHIFTS, 31).astype(np.int32)),
    ("shr.u32 D, A, B;", [U32, SHIFTS], np.where(SHIFTS > 31, 0, U32 >> (SHIFTS & 31)).astype(np.uint32)),
    ("bfe.u32 D, A, 6, 5;", [U32], (U32 >> 6) & 31),
    ("bfe.s32 D, A, 6, 5;", [I32], (I32 << 21) >> 27),
    ("bfi.b32 D, A, B, 8, 16;", [U32, V32], (V32 & 0xFF0000FF) | ((U32 & 0xFFFF) << 8)),
    ("popc.b32 D, A;", [U32], np.array([int(u).bit_count() for u in U32], np.uint32)),
    ("clz.b32 D, A;", [U32], np.array([32 - int(u).bit_length() for u in U32], np.uint32)),
    ("prmt.b32 D, A, B, 0x3210;", [U32, V32], U32),
    ("prmt.b32 D, A, B, 0x0476;", [U32, V32],
     (U32 & 255) << 24 | (V32 & 255) << 16 | V32 >> 16 & 0xFF00 | V32 >> 16 & 255),
    ("lop3.b32 D, A, B, A, 0x3C;", [U32, V32], U32 ^ V32),
    ("shf.l.wrap.b32 D, A, B, 4;", [U32, V32], V32 << 4 | U32 >> 28),
    ("shf.r.wrap.b32 D, A, B, 36;", [U32, V32], U32 >> 4 | V32 << 28),
    ("mov.b64 D, {A, B};", [U32, V32], (V32.astype(np.uint64) << 32) | U32),
    ("mov.b64 {%r3, D}, A;", [U64], U32),
    ("setp.lt.f32 %p1, A, B; selp.f32 D, A, B, %p1;", [F, G], np.where(F < G, F, G)),
    ("setp.geu.f32 %p1, A, B; selp.b32 D, 1, 0, %p1;", [F, G], (~(F < G)).astype(np.uint32)),
    ("setp.nan.f32 %p1, A, B; selp.b32 D, 1, 0, %p1;", [F, G], (np.isnan(F) | np.isnan(G)).astype(np.uint32)),
    ("setp.neu.f32 %p1, A, B; selp.b32 D, 1, 0, %p1;", [F, G], (F != G).astype(np.uint32)),
    ("setp.ne.f32 %p1, A, B; selp.b32 D, 1, 0, %p1;", [F, G], ((F > G) | (F < G)).astype(np.uint32)),
    ("setp.lt.s32 %p1, A, B; setp.gt.s32 %p2, A, 0; and.pred %p1, %p1, %p2; selp.b32 D, 1, 0, %p1;",
     [I32, J32], ((I32 < J32) & (I32 > 0)).astype(np.uint32)),
    ("mad.lo.cc.u32 %r3, A, B, A; madc.hi.u32 D, A, B, 0;", [U32, V32], ((BIG + U32) >> 32).astype(np.uint32)),
    ("mov.b32 D, 7; setp.lt.s32 %p1, A, 0; @%p1 bra $L; mov.b32 D, 9; $L:",
     [I32], np.where(I32 < 0, 7, 9).astype(np.uint32)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "inputs", "expected"), EXACT, ids=lambda v: v[:24] if isinstance(v, str) else ""
)
def test_exact(code: str, inputs: list[np.ndarray], expected: np.ndarray) -> None:
    got = run(code, inputs, expected.dtype)
    np.testing.assert_array_equal(got, expected)


APPROXIMATE = [
    ("ex2.approx.ftz.f32 D, A;", lambda x: np.exp2(x)),
    ("lg2.approx.f32 D, A;", lambda x: np.log2(x)),
    ("rsqrt.approx.f32 D, A;", lambda x: 1 / np.sqrt(x)),
    ("rcp.approx.ftz.f32 D, A;", lambda x: 1 / x),
    ("tanh.approx.f32 D, A;", lambda x: np.tanh(x)),
    ("sqrt.approx.f32 D, A;", lambda x: np.sqrt(x)),
]


@pytest.mark.parametrize(("code", "function"), APPROXIMATE)
def test_approximate(code: str, function) -> None:
    x = np.linspace(0.1, 20, 50).astype(np.float32)
    np.testing.assert_allclose(run(code, [x], np.dtype(np.float32)), function(x), rtol=1e-6)


def test_conversions_to_integers_saturate() -> None:
    x = np.array([0.5, -0.5, 2.5, 3e9, -3e9, np.nan, np.inf, 1e20], np.float32)
    expected = [0, 0, 2, 2**31 - 1, -(2**31), 0, 2**31 - 1, 2**31 - 1]
    assert run("cvt.rni.s32.f32 D, A;", [x], np.dtype(np.int32)).tolist() == expected
    expected = [0, 0, 2, 3 * 10**9, 0, 0, 2**32 - 1, 2**32 - 1]
    assert run("cvt.rzi.u32.f32 D, A;", [x], np.dtype(np.uint32)).tolist() == expected
    top = run("cvt.rzi.s64.f32 D, A;", [x], np.dtype(np.int64))
    assert top[[3, 6, 7]].tolist() == [3 * 10**9, 2**63 - 1, 2**63 - 1]


def test_directed_rounding() -> None:
    """1 + 2^-30 lies between two floats; the largest float below 1 + 2^-23 is 1."""
    x, y = np.array([1, -1], np.float32), np.array([2**-30, -(2**-30)], np.float32)
    above = np.nextafter(np.float32(1), np.float32(2))
    results = {
        mode: run(f"add.{mode}.f32 D, A, B;", [x, y], np.dtype(np.float32)) for mode in ("rm", "rp", "rz")
    }
    assert results["rm"].tolist() == [1, -above]
    assert results["rp"].tolist() == [above, -1]
    assert results["rz"].tolist() == [1, -1]


def test_signed_zeros_and_packed_halves() -> None:
    zero = np.array([0.0, -0.0], np.float32)
    assert not np.signbit(run("max.f32 D, A, B;", [zero, -zero], np.dtype(np.float32))).any()
    assert np.signbit(run("min.f32 D, A, B;", [zero, -zero], np.dtype(np.float32))).all()
    pairs = np.array([[1.5, -2], [3, 0.25]], np.float16)
    got = run("fma.rn.f16x2 D, A, A, A;", [pairs.view(np.uint32)[:, 0]], np.dtype(np.uint32))
    np.testing.assert_array_equal(got[:, None].view(np.float16), pairs * pairs + pairs)
    one, two = np.array([1], np.float32), np.array([2], np.float32)
    packed = run("cvt.rn.f16x2.f32 D, A, B;", [one, two], np.dtype(np.uint32))
    assert packed[:, None].view(np.float16).tolist() == [[2, 1]]


def test_bfloat16_rounds_to_nearest_even() -> None:
    x = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7FC00001], np.uint32).view(np.float32)
    got = run("cvt.rn.bf16.f32 D, A;", [x], np.dtype(np.uint16))
    assert got.tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7FFF]
    back = run("cvt.f32.bf16 D, A;", [got], np.dtype(np.float32))
    assert back[:3].tolist() == [1.0, 1.015625, 1.0078125]


@pytest.mark.parametrize(
    "code", ["brkpt;", "fly.f32 D, A;", "add.rm.f64 D, A, A;", "call foo;", "mov.b32 D, x;"]
)
def test_unknown_instructions_are_named(code: str) -> None:
    with pytest.raises(ptx.PtxError, match=r"PTX line \d+"):
        run(code, [F], np.dtype(np.float32))
