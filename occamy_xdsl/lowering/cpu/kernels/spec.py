"""What a kernel is: the buffers it reads and writes, the scalar work fused into it, its name and its code."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import (
    FixedBitwidthType,
    MemRefType,
    NoneAttr,
    StridedLayoutAttr,
    bf16,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
)
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, SSAValue
from xdsl.printer import Printer

from occamy_xdsl.lowering.toolchain import Isa

STORAGE_TYPES: Mapping[str, FixedBitwidthType] = {
    "f64": f64,
    "f32": f32,
    "f16": f16,
    "bf16": bf16,
    "i64": i64,
    "ui64": i64,
    "i32": i32,
    "ui32": i32,
    "i16": i16,
    "ui16": i16,
    "i8": i8,
    "ui8": i8,
    "i1": i8,
}
"""Element type in memory of each dtype: signedness is a matter of the ops, an i1 is a byte of 0 or 1."""


@dataclass(frozen=True)
class Buffer:
    """
    The layout of one kernel argument; the pointer that is passed is the lowest address of its elements.

    Element (i, j, ...) is `origin + i * strides[0] + j * strides[1] + ...` elements after that address. Only
    where a stride is negative is this not the address of element (0, 0, ...).
    """

    shape: tuple[int, ...]
    """Elements of each dimension, 0 or more."""
    strides: tuple[int, ...]
    """Elements between neighbours of each dimension: 0 where it is broadcast, negative where it is reversed."""
    dtype: str
    """A key of STORAGE_TYPES."""

    def __post_init__(self):
        if len(self.shape) != len(self.strides):
            raise ValueError(f"shape {self.shape} and strides {self.strides} differ in rank")
        if min(self.shape, default=0) < 0:
            raise ValueError(f"negative shape {self.shape}")
        if self.dtype not in STORAGE_TYPES:
            raise ValueError(f"no element type '{self.dtype}', known are {', '.join(STORAGE_TYPES)}")

    @staticmethod
    def contiguous(shape: Sequence[int], dtype: str = "f32") -> "Buffer":
        """Row-major buffer without gaps."""
        return Buffer(tuple(shape), tuple(prod(shape[i + 1 :]) for i in range(len(shape))), dtype)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def elements(self) -> int:
        """Number of index tuples."""
        return prod(self.shape)

    @property
    def extent(self) -> int:
        """Elements from the first one to the last one in memory, both included; 0 if there are none."""
        if 0 in self.shape:
            return 0
        return 1 + sum((n - 1) * abs(s) for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def origin(self) -> int:
        """Elements from the lowest address to element (0, 0, ...)."""
        if 0 in self.shape:
            return 0
        return -sum((n - 1) * min(s, 0) for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def is_contiguous(self) -> bool:
        """Whether it is row-major without gaps; the strides of dimensions of one element do not matter."""
        expected = Buffer.contiguous(self.shape, self.dtype).strides
        triples = zip(self.shape, self.strides, expected, strict=True)
        return 0 in self.shape or all(n == 1 or s == e for n, s, e in triples)

    @property
    def is_dense(self) -> bool:
        """Whether every element of its extent is its own, in any order of dimensions."""
        return self.extent == self.elements

    @property
    def element_type(self) -> FixedBitwidthType:
        """Type of an element in memory."""
        return STORAGE_TYPES[self.dtype]

    @property
    def element_bytes(self) -> int:
        """Bytes of an element in memory."""
        return self.element_type.bitwidth // 8

    def memref_type(self) -> MemRefType:
        """
        The type of the argument, with the identity layout left out.

        It is flat where a stride is negative. The strides of a buffer without elements are spelled out: MLIR
        takes those of `memref<5x0xf32>` for dynamic ones.
        """
        if min(self.strides, default=0) < 0:
            return MemRefType(self.element_type, [self.extent], NoneAttr())
        if 0 not in self.shape and self.strides == Buffer.contiguous(self.shape).strides:
            return MemRefType(self.element_type, self.shape, NoneAttr())
        return MemRefType(self.element_type, self.shape, StridedLayoutAttr(self.strides))

    def broadcast_to(self, shape: Sequence[int]) -> "Buffer":
        """This buffer seen as `shape`, by numpy's rules: a dimension that is missing or 1 gets stride 0."""
        missing = len(shape) - self.rank
        own_shape, own_strides = (1,) * missing + self.shape, (0,) * missing + self.strides
        strides: list[int] = []
        for n, own, stride in zip(shape, own_shape, own_strides, strict=True):
            if own not in (n, 1):
                raise ValueError(f"shape {self.shape} does not broadcast to {tuple(shape)}")
            strides.append(stride if own == n and n != 1 else 0)
        return Buffer(tuple(shape), tuple(strides), self.dtype)


@dataclass(frozen=True)
class Packing:
    """How a kernel wants constant weights."""

    layout: str
    """All that the packed weights depend on besides the constant: kernels with equal layouts share them."""
    pack: Callable[[NDArray[Any]], NDArray[Any]]


def canonical_text(block: Block) -> str:
    """Text of a block of scalar ops that is the same for equal computations, whatever the values' names."""
    names: dict[SSAValue, int] = {}

    def text(attribute: Attribute) -> str:
        stream = StringIO()
        Printer(stream).print_attribute(attribute)
        return stream.getvalue()

    def define(values: Sequence[SSAValue]) -> str:
        for value in values:
            names[value] = len(names)
        return ",".join(text(value.type) for value in values)

    lines = [define(block.args)]
    for op in block.ops:
        operands = ",".join(str(names[operand]) for operand in op.operands)
        attributes = {**op.properties, **op.attributes}
        settings = ",".join(f"{name}={text(attributes[name])}" for name in sorted(attributes))
        lines.append(f"{op.name}({operands}){{{settings}}}:{define(op.results)}")
    return ";".join(lines)


@dataclass(frozen=True)
class FusedScalars:
    """
    Scalar work fused into a kernel.

    The first argument of `block` is the value worked on, the others are the elements of `extras` at the same
    position; the operands of the terminator take the place of the value. Equal if they compute the same.
    """

    block: Block = field(compare=False, repr=False)
    extras: tuple[Buffer, ...] = ()
    """Further inputs with the shape of what the value is an element of; stride 0 where they are broadcast."""
    text: str = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "text", canonical_text(self.block))


class Epilogue(FusedScalars):
    """Work on each result of a kernel while it is still in a register."""


class Prologue(FusedScalars):
    """Work on each element of a kernel's input before it enters the products; `extras` vary by channel alone."""


@dataclass(frozen=True)
class Kernel(ABC):
    """
    One kernel: all that its code depends on, besides the processor.

    Equal kernels have equal code, so one function serves all their calls.
    """

    @property
    @abstractmethod
    def label(self) -> str:
        """Readable part of the symbol: template and sizes, in characters of an identifier."""

    @property
    def symbol(self) -> str:
        """Name of the function: the label and a digest of the whole specification."""
        return f"{self.label}_{hashlib.blake2b(repr(self).encode(), digest_size=4).hexdigest()}"

    @property
    @abstractmethod
    def arguments(self) -> tuple[Buffer, ...]:
        """Arguments in call order: inputs, packed weights, bias, extras, outputs, workspace."""

    @property
    def may_alias(self) -> tuple[int, ...]:
        """Positions of the arguments that may lie in the memory of the output, given equal strides and type."""
        return ()

    @property
    def run_time_sizes(self) -> int:
        """How many sizes the function takes after its buffers, each of type index."""
        return 0

    def for_any_rows(self, isa: Isa) -> "tuple[Kernel, tuple[int, ...]] | None":
        """
        The kernel that computes this for any number of rows of an image, and the sizes to give to it.

        None where there is none that takes no longer. Its buffers show one row.
        """
        return None

    @property
    def packing(self) -> Packing | None:
        """How constant weights are packed; None where the kernel reads none, or reads them as they are."""
        return None

    @property
    def workspace_bytes(self) -> int:
        """Bytes of scratch memory, the last argument if not 0; contents are undefined before and after."""
        return 0

    @abstractmethod
    def build(self, isa: Isa) -> FuncOp:
        """The function, which takes `arguments` and the sizes and returns nothing."""


NUMPY_TYPES: Mapping[str, type[np.generic]] = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "i64": np.int64,
    "ui64": np.uint64,
    "i32": np.int32,
    "ui32": np.uint32,
    "i16": np.int16,
    "ui16": np.uint16,
    "i8": np.int8,
    "ui8": np.uint8,
    "i1": np.bool_,
}
"""numpy's type of each dtype that numpy has."""
