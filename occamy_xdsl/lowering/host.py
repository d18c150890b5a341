"""
A small structured builder for host code: llvm-dialect functions that call the C library.

The C ABI of a compiled model and the `main` of an executable are written with it. Python functions read like
the C they stand for::

    f = host.function("area", i64, [PTR])
    (rectangle,) = f.arguments
    with f.if_(rectangle == NULL):
        f.return_(0)
    f.return_(f.load(rectangle, i64) * f.load(rectangle + 8, i64))

Integers are unsigned unless a method says otherwise; pointers are `!llvm.ptr`, and `pointer + n` moves by n
bytes. Python `int`, `str` and `NULL` operands become constants of the type the other side asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from xdsl.dialects import llvm
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    ModuleOp,
    StringAttr,
    TensorType,
    f64,
    i8,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.hints import isa

PTR = llvm.LLVMPointerType()
VOID = llvm.LLVMVoidType()


class Null:
    """The type of `NULL`, the null pointer constant."""


NULL = Null()


@dataclass(frozen=True)
class Prototype:
    """C prototype of a function: result type, parameter types, and whether more arguments may follow."""

    result: Attribute
    parameters: tuple[Attribute, ...]
    variadic: bool = False

    @property
    def type(self) -> llvm.LLVMFunctionType:
        """The prototype as an llvm-dialect function type."""
        return llvm.LLVMFunctionType(self.parameters, self.result, self.variadic)


LIBC: dict[str, Prototype] = {
    "calloc": Prototype(PTR, (i64, i64)),
    "close": Prototype(i32, (i32,)),
    "dladdr": Prototype(i32, (PTR, PTR)),
    "dprintf": Prototype(i32, (i32, PTR), variadic=True),
    "fclose": Prototype(i32, (PTR,)),
    "fopen": Prototype(PTR, (PTR, PTR)),
    "fread": Prototype(i64, (PTR, i64, i64, PTR)),
    "free": Prototype(VOID, (PTR,)),
    "fwrite": Prototype(i64, (PTR, i64, i64, PTR)),
    "lseek": Prototype(i64, (i32, i64, i32)),
    "malloc": Prototype(PTR, (i64,)),
    "memcmp": Prototype(i32, (PTR, PTR, i64)),
    "mkdir": Prototype(i32, (PTR, i32)),
    "mmap": Prototype(PTR, (PTR, i64, i32, i32, i32, i64)),
    "munmap": Prototype(i32, (PTR, i64)),
    "open": Prototype(i32, (PTR, i32), variadic=True),
    "posix_memalign": Prototype(i32, (PTR, i64, i64)),
    "printf": Prototype(i32, (PTR,), variadic=True),
    "puts": Prototype(i32, (PTR,)),
    "readlink": Prototype(i64, (PTR, PTR, i64)),
    "snprintf": Prototype(i32, (PTR, i64, PTR), variadic=True),
    "strcmp": Prototype(i32, (PTR, PTR)),
    "strlen": Prototype(i64, (PTR,)),
    "strstr": Prototype(PTR, (PTR, PTR)),
}
"""The C library functions host code may call (64-bit POSIX: `size_t` and `off_t` are i64)."""


@dataclass(frozen=True, eq=False)
class Value:
    """An SSA value with C's operators; every operation is appended at the builder's current position."""

    ssa: SSAValue
    function: FunctionBuilder

    @property
    def type(self) -> Attribute:
        """The MLIR type of the value."""
        return self.ssa.type

    def __add__(self, other: Operand) -> Value:
        if self.type == PTR:
            return self.function.offset(self, other)
        return self.function.binary(llvm.AddOp, self, other)

    def __sub__(self, other: Operand) -> Value:
        return self.function.binary(llvm.SubOp, self, other)

    def __mul__(self, other: Operand) -> Value:
        return self.function.binary(llvm.MulOp, self, other)

    def __and__(self, other: Operand) -> Value:
        return self.function.logic(llvm.AndOp, self, other)

    def __or__(self, other: Operand) -> Value:
        return self.function.logic(llvm.OrOp, self, other)

    def __lshift__(self, other: Operand) -> Value:
        return self.function.binary(llvm.ShlOp, self, other)

    def __eq__(self, other: Operand) -> Value:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.function.compare("eq", self, other)

    def __ne__(self, other: Operand) -> Value:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.function.compare("ne", self, other)

    def __lt__(self, other: Operand) -> Value:
        return self.function.compare("ult", self, other)

    def __gt__(self, other: Operand) -> Value:
        return self.function.compare("ugt", self, other)

    def is_negative(self) -> Value:
        """Whether the value, read as signed, is below zero."""
        return self.function.compare("slt", self, 0)

    def extended(self) -> Value:
        """The value zero-extended to i64."""
        return self.function.append(llvm.ZExtOp(self.ssa, i64))

    def address(self) -> Value:
        """The pointer as an i64."""
        return self.function.append(llvm.PtrToIntOp(self.ssa, i64))


Operand = Value | int | str | Null


@dataclass(frozen=True)
class Variable:
    """A local variable of a function: storage on the stack that LLVM promotes to registers."""

    pointer: Value
    type: Attribute

    def get(self) -> Value:
        """Read the variable."""
        return self.pointer.function.load(self.pointer, self.type)

    def set(self, value: Operand) -> None:
        """Assign to the variable."""
        self.pointer.function.store(value, self.pointer, self.type)


class HostModule:
    """A module of host functions, string constants and declarations; `module` is ordinary xDSL IR."""

    module: ModuleOp

    def __init__(self) -> None:
        self.module = ModuleOp([])
        self._prototypes: dict[str, Prototype] = {}
        self._constants: dict[bytes, str] = {}

    def declare(self, name: str, prototype: Prototype) -> None:
        """Declare a function defined elsewhere."""
        self._prototypes[name] = prototype
        self._add(llvm.FuncOp(name, prototype.type, llvm.LinkageAttr("external")))

    def prototype(self, name: str) -> Prototype:
        """The prototype of a declared or defined function; C library functions are declared on first use."""
        if name not in self._prototypes:
            self.declare(name, LIBC[name])
        return self._prototypes[name]

    def constant(self, data: bytes) -> str:
        """The name of a private constant global holding `data`; equal data share one global."""
        if data not in self._constants:
            name = self._constants[data] = f"constant_{len(self._constants)}"
            # A string attribute is re-encoded as UTF-8 when printed, so other bytes travel as numbers.
            value = StringAttr(data.decode("ascii")) if data.isascii() else _dense_bytes(data)
            self._add_global(name, len(data), "private", value, constant=True, alignment=8)
        return self._constants[data]

    def zeros(self, name: str, size: int, *, thread_local: bool = False) -> None:
        """Define an internal mutable global of `size` zero bytes."""
        self._add_global(name, size, "internal", _dense_bytes(bytes(size)), thread_local=thread_local)

    def external(self, name: str) -> None:
        """Declare a constant global defined elsewhere."""
        self._add_global(name, 1, "external", None, constant=True)

    def function(
        self, name: str, result: Attribute, parameters: Sequence[Attribute], *, internal: bool = False
    ) -> FunctionBuilder:
        """Start the definition of a function; `internal` is C's `static`."""
        prototype = self._prototypes[name] = Prototype(result, tuple(parameters))
        entry, body = Block(arg_types=prototype.parameters), Block()
        linkage = llvm.LinkageAttr("internal" if internal else "external")
        self._add(llvm.FuncOp(name, prototype.type, linkage, body=Region([entry, body])))
        return FunctionBuilder(self, prototype, entry, body)

    def _add(self, operation: Operation) -> None:
        self.module.body.block.add_op(operation)

    def _add_global(
        self,
        name: str,
        size: int,
        linkage: str,
        value: Attribute | None,
        *,
        constant: bool = False,
        thread_local: bool = False,
        alignment: int | None = None,
    ) -> None:
        array = llvm.LLVMArrayType(size, i8)
        self._add(
            llvm.GlobalOp(
                array,
                name,
                linkage,
                constant=constant,
                thread_local_=thread_local,
                value=value,
                alignment=alignment,
            )
        )


class FunctionBuilder:
    """Writes the body of one function, statement by statement."""

    def __init__(self, host: HostModule, prototype: Prototype, entry: Block, body: Block):
        self._host = host
        self._prototype = prototype
        self._block = body
        # Stack variables live in the entry block: storage does not grow in loops and LLVM can promote it.
        self._jump_to_body = llvm.BrOp(body)
        entry.add_op(self._jump_to_body)
        self.arguments = [Value(argument, self) for argument in entry.args]
        """The parameters of the function, in order."""

    # --- values ---

    def append(self, operation: Operation) -> Value:
        """Append an operation with one result."""
        self._block.add_op(operation)
        return Value(operation.results[0], self)

    def value(self, operand: Operand, type: Attribute = i64) -> Value:
        """`operand` as a value: integers of `type`, text as the address of its UTF-8 bytes and a NUL."""
        match operand:
            case Value():
                return operand
            case Null():
                return self.append(llvm.ZeroOp.create(result_types=[PTR]))
            case str():
                return self.address(self._host.constant(operand.encode() + b"\0"))
            case int():
                assert isa(type, IntegerType), f"an integer where {type} is wanted"
                return self.append(llvm.ConstantOp(IntegerAttr(int(operand), type), type))

    def address(self, symbol: str) -> Value:
        """The address of a global or function."""
        return self.append(llvm.AddressOfOp(symbol, PTR))

    def constant(self, data: bytes) -> Value:
        """The address of constant bytes."""
        return self.address(self._host.constant(data))

    def float_constant(self, value: float) -> Value:
        """A double."""
        return self.append(llvm.ConstantOp(FloatAttr(value, f64), f64))

    def offset(self, pointer: Value, count: Operand) -> Value:
        """`pointer` moved by `count` bytes."""
        # Constant indices are 32-bit in the llvm dialect.
        index = count if isinstance(count, int) and count < 2**31 else self.value(count).ssa
        return self.append(llvm.GEPOp.from_mixed_indices(pointer.ssa, [index], i8))

    def binary(self, operation: type[llvm.ArithmeticBinOpOverflow], left: Value, right: Operand) -> Value:
        """An arithmetic operation that wraps."""
        return self.append(operation(left.ssa, self.value(right, left.type).ssa))

    def logic(self, operation: type[llvm.AndOp | llvm.OrOp], left: Value, right: Operand) -> Value:
        """A bitwise operation."""
        return self.append(operation(left.ssa, self.value(right, left.type).ssa))

    def compare(self, predicate: str, left: Value, right: Operand) -> Value:
        """An integer or pointer comparison; pointers are compared as addresses."""
        if left.type == PTR:
            left = left.address()
            right = 0 if isinstance(right, Null) else self.value(right).address()
        number = llvm.ICmpPredicateFlag(predicate).to_int()
        return self.append(llvm.ICmpOp(left.ssa, self.value(right, left.type).ssa, IntegerAttr(number, i64)))

    # --- memory ---

    def load(self, pointer: Value, type: Attribute) -> Value:
        """Read a value of `type`."""
        return self.append(llvm.LoadOp(pointer.ssa, type))

    def store(self, value: Operand, pointer: Value, type: Attribute = PTR) -> None:
        """Write a value of `type`."""
        self._block.add_op(llvm.StoreOp(self.value(value, type).ssa, pointer.ssa))

    def array(self, size: int) -> Value:
        """The address of `size` bytes on the stack, 16-byte aligned and not initialised."""
        one = llvm.ConstantOp(IntegerAttr(1, i64), i64)
        storage = llvm.AllocaOp(one.result, llvm.LLVMArrayType(size, i8), alignment=16)
        block = self._jump_to_body.parent_block()
        assert block is not None
        block.insert_ops_before([one, storage], self._jump_to_body)
        return Value(storage.res, self)

    def variable(self, initial: Operand, type: Attribute = i64) -> Variable:
        """A new local variable of at most 8 bytes."""
        variable = Variable(self.array(8), type)
        variable.set(initial)
        return variable

    # --- control flow ---

    def call(self, name: str, *arguments: Operand) -> Value:
        """
        Call a function of the module or of the C library.

        Arguments beyond the parameters of a variadic function are i64 if they are Python integers. The result
        of a void function must not be used.
        """
        prototype = self._host.prototype(name)
        extra = len(arguments) - len(prototype.parameters)
        assert extra == 0 or (extra > 0 and prototype.variadic), f"wrong number of arguments for {name}"
        types = [*prototype.parameters, *[i64] * extra]
        values = [self.value(argument, type) for argument, type in zip(arguments, types, strict=True)]
        for value, type in zip(values, prototype.parameters, strict=False):
            assert value.type == type, f"{name}: argument of type {value.type}, parameter of type {type}"
        operation = llvm.CallOp(
            name,
            *(value.ssa for value in values),
            return_type=None if prototype.result == VOID else prototype.result,
            var_callee_type=prototype.type if prototype.variadic else None,
        )
        self._block.add_op(operation)
        return Value(operation.returned, self) if operation.returned is not None else values[0]

    def return_(self, value: Operand | None = None) -> None:
        """Return from the function."""
        result = None if value is None else self.value(value, self._prototype.result).ssa
        self._block.add_op(llvm.ReturnOp(result))

    @contextmanager
    def if_(self, condition: Value) -> Generator[None]:
        """Run the body if `condition` holds."""
        then, after = self._new_blocks(2)
        self._block.add_op(llvm.CondBrOp(condition.ssa, then, [], after, []))
        self._block = then
        yield
        self._fall_through(after)

    @contextmanager
    def while_(self, condition: Callable[[], Value]) -> Generator[None]:
        """Repeat the body as long as what `condition` builds holds."""
        test, body, after = self._new_blocks(3)
        self._fall_through(test)
        self._block.add_op(llvm.CondBrOp(condition().ssa, body, [], after, []))
        self._block = body
        yield
        self._fall_through(test)
        self._block = after

    @contextmanager
    def for_(self, count: Operand) -> Generator[Value]:
        """Repeat the body with an i64 index from 0 to `count` - 1."""
        index = self.variable(0)
        with self.while_(lambda: index.get() < count):
            current = index.get()
            yield current
            index.set(current + 1)

    def _new_blocks(self, count: int) -> list[Block]:
        """Blocks placed after the current one, so that the text reads in order."""
        region = self._block.parent_region()
        assert region is not None
        blocks = [Block() for _ in range(count)]
        region.insert_block(blocks, region.get_block_index(self._block) + 1)
        return blocks

    def _fall_through(self, target: Block) -> None:
        """Continue at `target` unless the current block has already returned."""
        if not isinstance(self._block.last_op, llvm.ReturnOp):
            self._block.add_op(llvm.BrOp(target))
        self._block = target


def _dense_bytes(data: bytes) -> DenseIntOrFPElementsAttr:
    return DenseIntOrFPElementsAttr.from_list(TensorType(i8, [len(data)]), list(data))
