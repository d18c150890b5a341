"""The structured builder of host code, run through the JIT."""

import ctypes
import math

import pytest
from xdsl.dialects.builtin import i8, i32, i64

from occamy_xdsl.lowering import toolchain
from occamy_xdsl.lowering.host import NULL, PTR, HostModule


def compiled(host: HostModule) -> toolchain.JitModule:
    host.module.verify()
    isa = toolchain.Isa.host()
    llvm_ir = toolchain.translate_to_llvm(str(host.module))
    return toolchain.JitModule(toolchain.emit_object(toolchain.optimize(llvm_ir, isa), isa))


def test_loops_and_branches() -> None:
    """Euclid by subtraction, and a sum of squares that returns early."""
    host = HostModule()
    f = host.function("gcd", i64, [i64, i64])
    a, b = f.variable(f.arguments[0]), f.variable(f.arguments[1])
    with f.while_(lambda: a.get() != b.get()):
        larger = a.get() > b.get()
        with f.if_(larger):
            a.set(a.get() - b.get())
        with f.if_(larger == 0):
            b.set(b.get() - a.get())
    f.return_(a.get())

    f = host.function("squares", i64, [i64, i64])
    count, limit = f.arguments
    total = f.variable(0)
    with f.for_(count) as index:
        total.set(total.get() + index * index)
        with f.if_(total.get() > limit):
            f.return_(limit)
    f.return_(total.get())

    module = compiled(host)
    prototype = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)
    gcd, squares = module.function("gcd", prototype), module.function("squares", prototype)
    for x, y in [(12, 18), (17, 5), (9, 9), (1, 100)]:
        assert gcd(x, y) == math.gcd(x, y)
    for count in range(8):
        assert squares(count, 50) == min(50, sum(i * i for i in range(count)))


def test_memory_calls_and_constants() -> None:
    """Text with quotes and other bytes, variadic calls, arrays, pointers."""
    host = HostModule()
    text, data = 'é "quoted" \\ %d', bytes(range(256))
    f = host.function("same", i32, [PTR, PTR])
    buffer = f.array(64)
    f.call("snprintf", buffer, 64, text, 7)
    equal_text = f.call("strcmp", buffer, f.arguments[0]) == 0
    equal_data = f.call("memcmp", f.constant(data), f.arguments[1], 256) == 0
    with f.if_(equal_text & equal_data & (f.arguments[0] != NULL)):
        f.return_(1)
    f.return_(0)

    f = host.function("last", i8, [PTR])
    f.return_(f.load(f.arguments[0] + (f.call("strlen", f.arguments[0]) - 1), i8))

    module = compiled(host)
    same = module.function("same", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p))
    assert same(text.replace("%d", "7").encode(), data) == 1
    assert same(b"another", data) == 0
    assert same(text.replace("%d", "7").encode(), data[:-1] + b"\0") == 0
    last = module.function("last", ctypes.CFUNCTYPE(ctypes.c_char, ctypes.c_char_p))
    assert last(b"abc") == b"c"


def test_wrong_calls_are_found_when_building() -> None:
    f = HostModule().function("f", i32, [PTR])
    with pytest.raises(AssertionError, match="wrong number of arguments for strlen"):
        f.call("strlen")
    with pytest.raises(AssertionError, match="strlen: argument of type i64"):
        f.call("strlen", f.arguments[0].address())
