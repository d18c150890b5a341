"""A typed builder of kernel functions over the func, scf, arith, memref, vector and math dialects."""

import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Concatenate, TypeAlias, cast

from xdsl.dialects import arith, func, math, memref, scf, vector
from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    FixedBitwidthType,
    FloatAttr,
    FunctionType,
    IndexType,
    IntegerAttr,
    IntegerType,
    StringAttr,
    VectorType,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
)
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import IRDLOperation
from xdsl.utils.hints import isa

from occamy_xdsl.lowering.cpu.kernels import vector_math, vector_ops
from occamy_xdsl.lowering.cpu.kernels.spec import STORAGE_TYPES, Buffer, Kernel
from occamy_xdsl.lowering.toolchain import Isa

index = IndexType()


@dataclass(frozen=True)
class Index:
    """
    An index known up to a constant: `base + offset`, with operators that fold what is static.

    A constant distance costs no op until it is used as an address, which keeps the IR of unrolled code small.
    """

    builder: "KernelBuilder"
    base: SSAValue
    offset: int = 0

    def __add__(self, other: "IndexLike") -> "Index":
        if isinstance(other, int):
            return Index(self.builder, self.base, self.offset + other)
        return Index(
            self.builder,
            self.builder.emit(arith.AddiOp(self.base, other.base)),
            self.offset + other.offset,
        )

    __radd__ = __add__

    def __sub__(self, other: "IndexLike") -> "Index":
        if isinstance(other, int):
            return self + -other
        return Index(
            self.builder,
            self.builder.emit(arith.SubiOp(self.base, other.base)),
            self.offset - other.offset,
        )

    def __rsub__(self, other: int) -> "Index":
        constant = self.builder.index_constant(other - self.offset)
        return Index(self.builder, self.builder.emit(arith.SubiOp(constant, self.base)))

    def __mul__(self, other: "IndexLike") -> "IndexLike":
        if isinstance(other, int):
            if other == 0:
                return 0
            if other == 1:
                return self
            factor = self.builder.index_constant(other)
            return Index(
                self.builder, self.builder.emit(arith.MuliOp(self.base, factor)), self.offset * other
            )
        return Index(self.builder, self.builder.emit(arith.MuliOp(self.value, other.value)))

    __rmul__ = __mul__

    def __floordiv__(self, other: int) -> "Index":
        if other == 1:
            return self
        divisor = self.builder.index_constant(other)
        return Index(self.builder, self.builder.emit(arith.DivUIOp(self.value, divisor)))

    def __mod__(self, other: int) -> "IndexLike":
        if other == 1:
            return 0
        divisor = self.builder.index_constant(other)
        return Index(self.builder, self.builder.emit(arith.RemUIOp(self.value, divisor)))

    @property
    def value(self) -> SSAValue:
        """The index as one SSA value."""
        if self.offset == 0:
            return self.base
        return self.builder.emit(arith.AddiOp(self.base, self.builder.index_constant(self.offset)))


IndexLike: TypeAlias = Index | int
Body: TypeAlias = Callable[..., Sequence[SSAValue] | None]
LoopBody: TypeAlias = Callable[Concatenate[IndexLike, ...], Sequence[SSAValue] | None]
ConstantKey: TypeAlias = tuple[Hashable, ...]
ConstantAttribute: TypeAlias = IntegerAttr | FloatAttr | DenseIntOrFPElementsAttr


@dataclass(frozen=True)
class View:
    """A kernel argument as a flat memref, addressed by one index in elements."""

    flat: SSAValue
    """Rank-1 memref of the whole extent."""
    buffer: Buffer

    def at(self, *indices: IndexLike) -> IndexLike:
        """Index of an element in `flat`; trailing indices that are left out are 0."""
        position: IndexLike = self.buffer.origin
        for i, stride in zip(indices, self.buffer.strides, strict=False):
            position = position + i * stride
        return position


@cache
def vector_type(element: Attribute, lanes: int | None) -> Attribute:
    """The vector of `lanes` elements, or the element type itself if `lanes` is None."""
    return element if lanes is None else VectorType(element, [lanes])


def element_type(value: SSAValue) -> Attribute:
    """Type of the lanes of a vector, or of a scalar."""
    type_ = value.type
    return cast(VectorType, type_).element_type if isinstance(type_, VectorType) else type_


class KernelBuilder:
    """
    Builds the function of one kernel.

    Loops take their body as a callable and return what it yields after the last iteration; those that run at
    most once by static bounds leave no loop behind. Constants are kept once, at the start of the function.
    """

    def __init__(self, kernel: Kernel, isa: Isa):
        self.isa = isa
        arguments = kernel.arguments
        types = [*(buffer.memref_type() for buffer in arguments), *[index] * kernel.run_time_sizes]
        self._entry = Block(arg_types=types)
        self._block = self._entry
        self._constants: dict[ConstantKey, SSAValue] = {}
        self._prologue: list[Operation] = []
        self._function = func.FuncOp(kernel.symbol, FunctionType.from_lists(types, []), Region(self._entry))
        if isa.vector_bytes == 64:
            # LLVM's tuning for these processors prefers 256 bits, and would split the vectors.
            settings = [
                ArrayAttr([StringAttr(f"{limit}-vector-width"), StringAttr("512")])
                for limit in ("prefer", "min-legal")
            ]
            self._function.attributes["passthrough"] = ArrayAttr(settings)
        buffers, sizes = self._entry.args[: len(arguments)], self._entry.args[len(arguments) :]
        self.views = tuple(self._flatten(a, b) for a, b in zip(buffers, arguments, strict=True))
        """The arguments, in the order of `kernel.arguments`."""
        self.sizes = tuple(Index(self, size) for size in sizes)
        """The sizes that follow them."""

    def stack(self, elements: int, dtype: str) -> View:
        """Scratch on the stack for the whole function; its contents are undefined."""
        buffer = Buffer.contiguous((elements,), dtype)
        op = memref.AllocaOp.get(buffer.element_type, alignment=64, shape=[elements])
        self._prologue.append(op)
        return View(op.memref, buffer)

    def _flatten(self, argument: SSAValue, buffer: Buffer) -> View:
        extent = buffer.extent
        flat = Buffer.contiguous((extent,), buffer.dtype).memref_type()
        if argument.type == flat:
            return View(argument, buffer)
        cast = memref.ReinterpretCastOp(argument, [], [], [], [0], [extent], [1], flat)
        return View(self.emit(cast), buffer)

    def finish(self) -> func.FuncOp:
        """End the function and return it."""
        self._block.add_op(func.ReturnOp())
        first = self._entry.first_op
        assert first is not None
        if self._prologue:
            self._entry.insert_ops_before(self._prologue, first)
        return self._function

    def emit(self, op: Operation) -> SSAValue:
        """Append an op and return its first result."""
        self._block.add_op(op)
        return op.results[0]

    # --- constants ---

    def _constant(self, key: ConstantKey, make: Callable[[], ConstantAttribute]) -> SSAValue:
        """The constant that `make` returns, made once for each key."""
        if key not in self._constants:
            op = arith.ConstantOp(make())
            self._prologue.append(op)
            self._constants[key] = op.result
        return self._constants[key]

    def index_constant(self, value: int) -> SSAValue:
        """A constant of type index."""
        return self._constant(("index", value), lambda: IntegerAttr(value, index))

    def constant(self, value: float, element: Attribute, lanes: int | None = None) -> SSAValue:
        """The scalar `value`, or a vector that has it in every lane."""

        def make() -> ConstantAttribute:
            type_ = vector_type(element, lanes)
            if isa(type_, VectorType[IntegerType]):
                return DenseIntOrFPElementsAttr.from_list(type_, [int(value)])
            if isa(type_, VectorType[AnyFloat]):
                return DenseIntOrFPElementsAttr.from_list(type_, [float(value)])
            if isa(type_, IntegerType):
                return IntegerAttr(int(value), type_, truncate_bits=True)
            assert isinstance(type_, AnyFloat)
            return FloatAttr(float(value), type_)

        return self._constant(("splat", repr(value), element, lanes), make)  # repr: -0.0 equals 0.0

    def value_of(self, i: IndexLike) -> SSAValue:
        """An index as an SSA value."""
        return self.index_constant(i) if isinstance(i, int) else i.value

    # --- control flow ---

    def _nested(self, block: Block, body: Body, *arguments: Index | SSAValue) -> None:
        outer, self._block = self._block, block
        block.add_op(scf.YieldOp(*(body(*arguments) or ())))
        self._block = outer

    def for_(
        self, lo: IndexLike, hi: IndexLike, step: int, body: LoopBody, inits: Sequence[SSAValue] = ()
    ) -> Sequence[SSAValue]:
        """
        `for i in range(lo, hi, step)`: `body(i, *carried)` returns the next carried values, if there are any.

        Static bounds that allow at most one iteration leave no loop.
        """
        if isinstance(lo, int) and isinstance(hi, int):
            if lo >= hi:
                return inits
            if lo + step >= hi:
                return body(lo, *inits) or ()
        block = Block(arg_types=[index, *(value.type for value in inits)])
        induction, *carried = block.args
        self._nested(block, body, Index(self, induction), *carried)
        bounds = (self.value_of(lo), self.value_of(hi), self.index_constant(step))
        loop = scf.ForOp(*bounds, inits, Region(block))
        self._block.add_op(loop)
        return loop.results

    def if_(
        self, condition: SSAValue | bool, then: Body, otherwise: Body | None = None
    ) -> Sequence[SSAValue]:
        """What the branch that is taken returns; both must return the same types."""
        if isinstance(condition, bool):
            branch = then if condition else otherwise
            return (branch() if branch is not None else None) or ()
        true, false = Block(), Block()
        self._nested(true, then)
        terminator = true.last_op
        assert terminator is not None
        types = [value.type for value in terminator.operands]
        if otherwise is not None:
            self._nested(false, otherwise)
        op = scf.IfOp(condition, types, Region(true), Region(false) if otherwise is not None else Region())
        self._block.add_op(op)
        return op.results

    # --- index arithmetic ---

    def compare(self, predicate: str, a: IndexLike, b: IndexLike) -> SSAValue | bool:
        """`a` against `b` by one of slt, sle, sgt, sge, eq, ne; a bool if both are static."""
        if isinstance(a, int) and isinstance(b, int):
            return bool(getattr(operator, predicate.lstrip("s"))(a, b))
        return self.emit(arith.CmpiOp(self.value_of(a), self.value_of(b), predicate))

    def minimum(self, a: IndexLike, b: IndexLike) -> IndexLike:
        """The smaller of two indices, as signed numbers."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return Index(self, self.emit(arith.MinSIOp(self.value_of(a), self.value_of(b))))

    def maximum(self, a: IndexLike, b: IndexLike) -> IndexLike:
        """The greater of two indices, as signed numbers."""
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return Index(self, self.emit(arith.MaxSIOp(self.value_of(a), self.value_of(b))))

    # --- memory ---

    def mask(self, valid: IndexLike, lanes: int) -> SSAValue:
        """A vector of i1 whose first `valid` lanes are set."""
        if not isinstance(valid, int):
            return self.emit(vector.CreateMaskOp([valid.value], VectorType(i1, [lanes])))
        values = [int(lane < valid) for lane in range(lanes)]
        type_ = VectorType(i1, [lanes])
        return self._constant(
            ("mask", valid, lanes), lambda: DenseIntOrFPElementsAttr.from_list(type_, values)
        )

    def _lane_offsets(self, stride: int, lanes: int) -> SSAValue:
        values = [stride * lane for lane in range(lanes)]
        type_ = VectorType(i64, [lanes])
        return self._constant(
            ("offsets", stride, lanes), lambda: DenseIntOrFPElementsAttr.from_list(type_, values)
        )

    def load(
        self,
        view: View,
        at: IndexLike,
        lanes: int | None = None,
        *,
        valid: IndexLike | None = None,
        stride: int = 1,
    ) -> SSAValue:
        """
        The element at index `at`, or a vector of `lanes` elements that are `stride` elements apart.

        Only the first `valid` lanes (all if None) touch memory; the others are 0. An i1 is loaded as an i1.
        """
        element = view.buffer.element_type
        position = self.value_of(at)
        if lanes is None or stride == 0:
            value = self.emit(memref.LoadOp.get(view.flat, [position]))
            value = self._from_storage(value, view)
            return value if lanes is None else self.splat(value, lanes)
        if valid is None or (isinstance(valid, int) and valid >= lanes):
            valid = lanes
        type_ = VectorType(element, [lanes])
        if stride == 1 and valid == lanes:
            value = self.emit(vector.LoadOp(view.flat, [position], type_))
        else:
            mask = self.mask(valid, lanes)
            zero = self.constant(0, element, lanes)
            if stride == 1:
                value = self.emit(vector.MaskedLoadOp(view.flat, [position], mask, zero))
            else:
                offsets = self._lane_offsets(stride, lanes)
                value = self.emit(vector_ops.GatherOp(view.flat, position, offsets, mask, zero))
        return self._from_storage(value, view)

    def _from_storage(self, value: SSAValue, view: View) -> SSAValue:
        if view.buffer.dtype == "i1":
            return self.emit(vector_ops.TruncIOp(value, vector_ops.retype(i1, value.type)))
        return value

    def store(
        self, value: SSAValue, view: View, at: IndexLike, *, valid: IndexLike | None = None, stride: int = 1
    ) -> None:
        """Store a scalar, or the first `valid` lanes (all if None) of a vector `stride` elements apart."""
        lanes = vector_ops.lanes_of(value)
        position = self.value_of(at)
        if view.buffer.dtype == "i1":
            value = self.emit(vector_ops.ExtUIOp(value, vector_ops.retype(i8, value.type)))
        if lanes is None:
            self._block.add_op(memref.StoreOp.get(value, view.flat, [position]))
            return
        if valid is None or (isinstance(valid, int) and valid >= lanes):
            valid = lanes
        if stride == 1 and valid == lanes:
            self._block.add_op(vector.StoreOp(value, view.flat, [position]))
            return
        if valid == 1:
            # LLVM 22 stores all bytes of the wider source where a truncated vector has one lane unmasked.
            self._block.add_op(memref.StoreOp.get(self.lane(value, 0), view.flat, [position]))
            return
        mask = self.mask(valid, lanes)
        if stride == 1:
            self._block.add_op(vector.MaskedStoreOp(view.flat, [position], mask, value))
        else:
            offsets = self._lane_offsets(stride, lanes)
            self._block.add_op(vector_ops.ScatterOp(view.flat, position, offsets, mask, value))

    def prefetch(self, view: View, at: IndexLike) -> None:
        """Hint that the cache line of an element will be read soon; the index may be out of bounds."""
        self._block.add_op(vector_ops.PrefetchOp(view.flat, self.value_of(at)))

    # --- scalars and vectors ---

    def splat(self, value: SSAValue, lanes: int | None) -> SSAValue:
        """A vector with the scalar in every lane; the scalar itself if `lanes` is None."""
        if lanes is None or vector_ops.lanes_of(value) is not None:
            return value
        return self.emit(vector.BroadcastOp(value, cast(VectorType, vector_type(value.type, lanes))))

    def lane(self, value: SSAValue, lane: int) -> SSAValue:
        """One lane of a vector."""
        return self.emit(vector.ExtractOp(value, [lane], element_type(value)))

    def fma(self, a: SSAValue, b: SSAValue, c: SSAValue) -> SSAValue:
        """`a * b + c`, rounded once where the processor has such an instruction, else twice."""
        if not self.isa.fma or element_type(a) not in (f32, f64):
            return self.emit(arith.AddfOp(self.emit(arith.MulfOp(a, b)), c))
        return self.emit(math.FmaOp(a, b, c))

    def apply(self, op: type[IRDLOperation], *operands: SSAValue) -> SSAValue:
        """A function of the math dialect, by its vector form where `vector_math` has one."""
        expansion = vector_math.EXPANSIONS.get(op.name)
        if expansion is not None and all(element_type(operand) == f32 for operand in operands):
            return expansion(self, *operands)
        return self.emit(op(*operands))

    def convert(self, value: SSAValue, source: str, target: str) -> SSAValue:
        """
        A scalar or vector of dtype `source` as dtype `target`, by the signedness of the dtypes.

        Floats become integers towards zero; what is out of their range is the nearest float in it, and NaN the least.
        Integers are cut to the low bits.
        """
        if source == target:
            return value
        from_type, to_type = element_type(value), i1 if target == "i1" else STORAGE_TYPES[target]
        from_float, to_float = isinstance(from_type, AnyFloat), isinstance(to_type, AnyFloat)
        signed = source.startswith("i") and source != "i1"
        type_ = vector_ops.retype(to_type, value.type)
        if not from_float and to_float:
            return self.emit((vector_ops.SIToFPOp if signed else vector_ops.UIToFPOp)(value, type_))
        if from_float and not to_float:
            if source in ("f16", "bf16"):
                return self.convert(self.convert(value, source, "f32"), "f32", target)
            make = vector_ops.FPToUIOp if target.startswith("ui") else vector_ops.FPToSIOp
            return self.emit(make(self._within(value, target), type_))
        assert isinstance(from_type, FixedBitwidthType)
        from_bits, to_bits = from_type.bitwidth, to_type.bitwidth
        if from_float:
            if from_bits == to_bits:  # f16 and bf16
                return self.convert(self.convert(value, source, "f32"), "f32", target)
            if to_type == bf16:
                return self._round_to_bf16(self.convert(value, source, "f32"))
            return self.emit((arith.ExtFOp if from_bits < to_bits else arith.TruncFOp)(value, type_))
        if from_bits < to_bits:
            return self.emit((vector_ops.ExtSIOp if signed else vector_ops.ExtUIOp)(value, type_))
        return value if from_bits == to_bits else self.emit(vector_ops.TruncIOp(value, type_))

    def _within(self, value: SSAValue, target: str) -> SSAValue:
        """An f32 or f64 in the range of an integer dtype: out of it, LLVM may do without a result."""
        if target == "i1":
            return value
        float_, lanes = element_type(value), vector_ops.lanes_of(value)
        bits = STORAGE_TYPES[target].bitwidth
        low, high = (0, 2**bits - 1) if target.startswith("ui") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        # The largest float that does not round up past the largest integer.
        excess = max(high.bit_length() - (24 if float_ == f32 else 53), 0)
        for op, bound in ((arith.MaxnumfOp, low), (arith.MinnumfOp, high >> excess << excess)):
            value = self.emit(op(value, self.constant(bound, float_, lanes)))
        return value

    def _round_to_bf16(self, value: SSAValue) -> SSAValue:
        """
        The nearest bf16 to an f32, ties to even, by integer arithmetic.

        Without an instruction for it, LLVM would call a function that not every C runtime has.
        """
        lanes = vector_ops.lanes_of(value)
        bits = self.emit(arith.BitcastOp(value, vector_type(i32, lanes)))
        sixteen, one, half, quiet = (self.constant(n, i32, lanes) for n in (16, 1, 0x7FFF, 0x40))
        high = self.emit(arith.ShRUIOp(bits, sixteen))
        odd = self.emit(arith.AndIOp(high, one))
        rounded = self.emit(arith.AddiOp(self.emit(arith.AddiOp(bits, half)), odd))
        rounded = self.emit(arith.ShRUIOp(rounded, sixteen))
        is_nan = self.compare_values("uno", value, value)
        rounded = self.select(is_nan, self.emit(arith.OrIOp(high, quiet)), rounded)
        half_word = self.emit(vector_ops.TruncIOp(rounded, vector_type(i16, lanes)))
        return self.emit(arith.BitcastOp(half_word, vector_type(bf16, lanes)))

    def compare_values(self, predicate: str, a: SSAValue, b: SSAValue) -> SSAValue:
        """Lane by lane: a float predicate (oeq, olt, uno, ...) or an integer one (eq, slt, ult, ...)."""
        is_integer = isinstance(element_type(a), IntegerType)
        return self.emit((vector_ops.CmpiOp if is_integer else vector_ops.CmpfOp)(predicate, a, b))

    def select(self, condition: SSAValue, a: SSAValue, b: SSAValue) -> SSAValue:
        """`a` where the condition holds, else `b`, lane by lane."""
        return self.emit(vector_ops.SelectOp(condition, a, b))

    def reduce(self, kind: str, value: SSAValue) -> SSAValue:
        """
        All lanes of a vector combined by add, mul, minimumf, maximumf, minsi, maxui, and, or, ...

        Float sums and products are reassociated: neighbouring halves are combined, log2(lanes) deep.
        """
        properties: dict[str, Attribute] = {
            "kind": vector.CombiningKindAttr(vector.CombiningKindFlag(kind)),
            "fastmath": arith.FastMathFlagsAttr([FastMathFlag.REASSOC] if kind in ("add", "mul") else "none"),
        }
        if isinstance(element_type(value), IntegerType):
            properties["fastmath"] = arith.FastMathFlagsAttr("none")
        return self.emit(
            vector.ReductionOp.create(
                operands=[value], result_types=[element_type(value)], properties=properties
            )
        )

    def inline(self, block: Block, arguments: Sequence[SSAValue]) -> list[SSAValue]:
        """
        The scalar arith and math ops of `block` on `arguments`; returns the operands of its terminator.

        If an argument is a vector, so is the work: all vector arguments have the same number of lanes,
        scalars are broadcast, and the functions of `vector_math` take the place of calls to libm. 16-bit
        floats are computed in f32 and rounded once, at the end.
        """
        lanes = next((n for n in map(vector_ops.lanes_of, arguments) if n is not None), None)
        values: dict[SSAValue, SSAValue] = {
            a: self._widened(self.splat(b, lanes)) for a, b in zip(block.args, arguments, strict=True)
        }
        terminator = block.last_op
        assert terminator is not None
        for op in block.ops:
            if op is not terminator:
                operands = [values[operand] for operand in op.operands]
                values[op.results[0]] = self._inline_op(op, operands, lanes)
        return [self._narrowed(values[operand], operand.type) for operand in terminator.operands]

    def _widened(self, value: SSAValue) -> SSAValue:
        """A 16-bit float as f32, any other value as it is."""
        type = element_type(value)
        return self.convert(value, str(type), "f32") if type in (f16, bf16) else value

    def _narrowed(self, value: SSAValue, scalar: Attribute) -> SSAValue:
        """The inverse of `_widened`, for a value that stands for one of type `scalar`."""
        return self.convert(value, "f32", str(scalar)) if scalar in (f16, bf16) else value

    def _inline_op(self, op: Operation, operands: Sequence[SSAValue], lanes: int | None) -> SSAValue:
        assert len(op.results) == 1
        assert not op.regions
        scalar = op.results[0].type
        wide = f32 if scalar in (f16, bf16) else scalar
        if isinstance(op, arith.ConstantOp):
            assert isinstance(op.value, IntegerAttr | FloatAttr)
            return self.constant(op.value.value.data, wide, lanes)
        if isinstance(op, arith.BitcastOp):
            value = self._narrowed(operands[0], op.input.type)
            return self._widened(self.emit(arith.BitcastOp(value, vector_type(scalar, lanes))))
        if isinstance(op, arith.ExtFOp | arith.TruncFOp) and element_type(operands[0]) == wide:
            return operands[0]
        expanded = self._expand(op, operands)
        if expanded is not None:
            return expanded
        assert isinstance(op, IRDLOperation)
        form = vector_ops.VECTOR_FORMS.get(op.name, type(op))
        known = form.get_irdl_definition().properties
        properties = {name: value for name, value in op.properties.items() if name in known}
        result_types = [vector_type(wide, lanes)]
        return self.emit(form.create(operands=operands, result_types=result_types, properties=properties))

    def _expand(self, op: Operation, operands: Sequence[SSAValue]) -> SSAValue | None:
        """A function of the math dialect in the ops of `vector_math`, None where the op stays as it is."""
        if any(element_type(operand) != f32 for operand in operands):
            return None
        expansion = vector_math.EXPANSIONS.get(op.name)
        if expansion is not None:
            return expansion(self, *operands)
        if isinstance(op, math.PowFOp) and isinstance(constant := op.rhs.owner, arith.ConstantOp):
            exponent = constant.value
            assert isinstance(exponent, FloatAttr)
            return vector_math.power(self, operands[0], exponent.value.data)
        return None
