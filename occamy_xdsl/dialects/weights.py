"""
The `weights` dialect: `#weights.ref<"key">` stands for a tensor whose bytes never enter the IR.

The text holds the key only; the Python object holds a lazily loaded or lazily derived numpy array.
"""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
from xdsl.dialects.builtin import (
    AnyFloat,
    ArrayAttr,
    BFloat16Type,
    BytesAttr,
    ComplexType,
    DenseIntOrFPElementsAttr,
    FixedBitwidthType,
    Float4E2M1FNType,
    Float6E2M3FNType,
    Float6E3M2FNType,
    Float8E4M3FNType,
    Float8E4M3FNUZType,
    Float8E5M2FNUZType,
    Float8E5M2Type,
    Float8E8M0FNUType,
    Float16Type,
    Float32Type,
    Float64Type,
    IntegerType,
    MemRefType,
    Signedness,
    StringAttr,
    TensorType,
)
from xdsl.ir import Attribute, Data, Dialect, Operation, ParametrizedAttribute
from xdsl.irdl import irdl_attr_definition
from xdsl.parser import AttrParser
from xdsl.printer import Printer

from occamy_xdsl.errors import InvalidInputError
from occamy_xdsl.files import replacing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]
    DType = np.dtype[Any]

MAX_INLINE_INTEGERS = 64
"""Elements up to which an integer or boolean tensor is written into the IR: such tensors are shapes."""

MAX_INLINE_OTHERS = 8
"""Elements up to which any other tensor is written into the IR: such tensors are scalars and scales."""

_SPELLED = re.compile(r"(splat|literal)\(([0-9a-f]*):(\w+):([\dx]*)\)")
"""Keys that hold their values: kind, bytes, numpy type, dimensions."""

_LONGEST_KEY = 96
"""Characters; a longer derived key keeps its label and becomes a hash."""


def _unsigned(width: int) -> IntegerType:
    return IntegerType(width, Signedness.UNSIGNED)


_NUMPY_NAMES: dict[Attribute, str] = {
    IntegerType(1): "bool",
    **{IntegerType(n): f"int{n}" for n in (2, 4, 8, 16, 32, 64)},
    **{_unsigned(n): f"uint{n}" for n in (2, 4, 8, 16, 32, 64)},
    Float16Type(): "float16",
    Float32Type(): "float32",
    Float64Type(): "float64",
    BFloat16Type(): "bfloat16",
    Float8E4M3FNType(): "float8_e4m3fn",
    Float8E4M3FNUZType(): "float8_e4m3fnuz",
    Float8E5M2Type(): "float8_e5m2",
    Float8E5M2FNUZType(): "float8_e5m2fnuz",
    Float8E8M0FNUType(): "float8_e8m0fnu",
    Float6E2M3FNType(): "float6_e2m3fn",
    Float6E3M2FNType(): "float6_e3m2fn",
    Float4E2M1FNType(): "float4_e2m1fn",
    ComplexType(Float32Type()): "complex64",
    ComplexType(Float64Type()): "complex128",
}
_ELEMENT_TYPES = {name: element for element, name in _NUMPY_NAMES.items()}


def dtype_named(name: str) -> DType:
    """The numpy type called `name`; those that numpy lacks (bfloat16, float8, int4) come from ml_dtypes."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))


def numpy_dtype(element: Attribute) -> DType:
    """The numpy type of an element type; object for strings. Raises KeyError where numpy has none."""
    if element.name == "onnx.String":
        return np.dtype(object)
    return dtype_named(_NUMPY_NAMES[element])


def element_type(dtype: DType) -> Attribute:
    """The element type of a numpy type. Raises KeyError where there is none."""
    return _ELEMENT_TYPES[dtype.name]


class Weights:
    """
    A tensor known at compile time: its key, numpy dtype and shape, and the means to get its values.

    Two objects are equal where their keys are. Values are produced at each call of `array` (a weak
    reference spares the work while someone still holds the last result), so no large array is kept alive
    by the IR. `dtype` and `shape` are None only for a reference that was parsed from text and not yet
    attached to a `WeightsFile`.
    """

    __slots__ = ("__weakref__", "_cache", "_dtype", "_is_term", "_loader", "_shape", "key", "splat_value")

    def __init__(
        self,
        key: str,
        dtype: DType | None = None,
        shape: tuple[int, ...] | None = None,
        loader: Callable[[], Array] | None = None,
    ):
        self.key = key
        self._dtype = dtype
        self._shape = shape
        self._loader = loader
        self._cache: weakref.ref[Array] | None = None
        self._is_term = False  # whether the key was built by `derived`, so that its commas are in brackets
        self.splat_value: Any = None
        """The one value of all elements where the tensor was made by `splat`, else None."""

    @staticmethod
    def derived(
        label: str,
        fn: Callable[..., Array],
        *inputs: Weights,
        dtype: DType | None = None,
        shape: tuple[int, ...] | None = None,
    ) -> Weights:
        """
        The lazily computed `fn(*arrays of inputs)`.

        `label` names the function with its parameters: equal labels on equal inputs must mean equal values,
        since the key is built from them. Without `dtype` and `shape` asking for either computes the array.
        """
        keys = [weights.key for weights in inputs]
        key = f"{label}({', '.join(keys)})"
        is_ambiguous = any("," in weights.key and not weights._is_term for weights in inputs)
        if len(key) > _LONGEST_KEY or is_ambiguous:
            key = f"{label[:40]}#{blake2b(repr((label, keys)).encode(), digest_size=16).hexdigest()}"
        made = Weights(key, dtype, shape, lambda: fn(*(weights.array() for weights in inputs)))
        made._is_term = True
        return made

    @staticmethod
    def splat(value: Any, dtype: DType, shape: tuple[int, ...]) -> Weights:
        """A tensor of one repeated value; its array is a broadcast view that occupies one element."""
        element = np.asarray(value, dtype)
        bits = element.tobytes().hex()
        dims = "x".join(map(str, shape))
        weights = Weights(f"splat({bits}:{dtype.name}:{dims})", dtype, shape)
        weights._loader = lambda: np.broadcast_to(element, shape)
        weights.splat_value = element[()]
        return weights

    @staticmethod
    def literal(array: Array) -> Weights:
        """A small tensor whose key spells its bytes, so that text alone restores it."""
        dims = "x".join(map(str, array.shape))
        key = f"literal({array.tobytes().hex()}:{array.dtype.name}:{dims})"
        return Weights(key, array.dtype, array.shape, lambda: array)

    @staticmethod
    def named(key: str) -> Weights:
        """
        The weights of a key found in text: with data where the key spells it, else without.

        Raises ValueError or AttributeError for a key that spells no tensor.
        """
        if not (match := _SPELLED.fullmatch(key)):
            return Weights(key)
        kind, bits, name, dims = cast("tuple[str, str, str, str]", match.groups())
        shape = tuple(map(int, dims.split("x"))) if dims else ()
        values = np.frombuffer(bytes.fromhex(bits), dtype_named(name))
        if kind == "splat":
            return Weights.splat(values.reshape(()), values.dtype, shape)
        return Weights.literal(values.reshape(shape))

    @staticmethod
    def of(array: Array, key: str) -> Weights:
        """Weights that keep `array` alive: for values that exist nowhere else."""
        return Weights(key, array.dtype, array.shape, lambda: array)

    @property
    def has_data(self) -> bool:
        """Whether `array` can succeed; False for a reference parsed from text and not attached."""
        return self._loader is not None

    @property
    def dtype(self) -> DType:
        """The numpy element type."""
        if self._dtype is None:
            self._dtype = self.array().dtype
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions, in elements."""
        if self._shape is None:
            self._shape = self.array().shape
        return self._shape

    @property
    def nbytes(self) -> int:
        """Bytes of the values when packed; sub-byte elements count one byte each, as numpy stores them."""
        return prod(self.shape) * self.dtype.itemsize

    def array(self) -> Array:
        """The values, read-only by convention. Raises InvalidInputError where no data is attached."""
        if self._cache is not None and (cached := self._cache()) is not None:
            return cached
        if self._loader is None:
            raise InvalidInputError(
                f"weights '{self.key}': data not loaded; give the file that holds it with --weights FILE"
            )
        array = self._loader()
        self._cache = weakref.ref(array)
        return array

    def attach(self, other: Weights) -> None:
        """Takes the values of `other`, for a reference that was parsed from text."""
        self._dtype, self._shape, self._loader = other._dtype, other._shape, other._loader
        self._cache, self.splat_value = None, other.splat_value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weights) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Weights({self.key!r}, {self._dtype}, {self._shape})"


@irdl_attr_definition
class WeightsRefAttr(Data[Weights]):
    """
    A reference to a tensor by its key.

    Example:

    ```mlir
    #weights.ref<"conv1.weight">
    ```
    """

    name = "weights.ref"

    @classmethod
    def parse_parameter(cls, parser: AttrParser) -> Weights:
        """The key; its data is attached later, see `WeightsFile.attach`."""
        with parser.in_angle_brackets():
            # xDSL's lexer takes a string beyond ASCII for bytes
            literal = parser.parse_optional_bytes_literal()
            key = parser.parse_str_literal() if literal is None else literal.decode(errors="replace")
            try:
                return Weights.named(key)
            except (AttributeError, ValueError):
                parser.raise_error(f"weights key does not spell a tensor: {key}")

    def print_parameter(self, printer: Printer) -> None:
        """The key alone."""
        with printer.in_angle_brackets():
            printer.print_string_literal(self.data.key)


def _written_by_value(element: Attribute) -> bool:
    """Whether xDSL and numpy store the element's bytes differently: booleans and types under one byte."""
    return isinstance(element, FixedBitwidthType) and element.bitwidth < 8


def dense_attr(array: Array) -> DenseIntOrFPElementsAttr:
    """`array` written out as an inline `dense<...>` of tensor type. Raises KeyError for an unknown dtype."""
    element = element_type(array.dtype)
    type = cast("TensorType[Any]", TensorType(element, array.shape))
    if _written_by_value(element):
        as_python = int if isinstance(element, IntegerType) else float
        values: list[Any] = [as_python(value) for value in array.ravel()]
        return DenseIntOrFPElementsAttr[Any].from_list(type, values)
    return DenseIntOrFPElementsAttr(type, BytesAttr(np.ascontiguousarray(array).tobytes()))


def dense_or_ref(array: Array | Weights, key: str = "") -> Attribute:
    """
    The attribute of a constant tensor: inline up to the sizes above, else a reference named `key`.

    `Weights` are asked for their values only where they are small. Strings (dtype object) become an array
    attribute of strings, row-major.
    """
    limit = MAX_INLINE_INTEGERS if array.dtype.kind in "biu" else MAX_INLINE_OTHERS
    if array.dtype.kind == "O":
        values = array.array() if isinstance(array, Weights) else array
        return ArrayAttr([string_attr(value) for value in values.ravel().tolist()])
    if prod(array.shape) > limit:
        return WeightsRefAttr(array if isinstance(array, Weights) else Weights.of(array, key))
    values = array.array() if isinstance(array, Weights) else array
    dense = dense_attr(values)
    # xDSL prints NaN, infinities and some large floats in hexadecimal, which it parses as integers
    is_plain = array.dtype.kind in "biu" or (array.dtype.kind == "f" and bool((abs(values) < 1e6).all()))
    if values.size and not is_plain and "0x" in str(dense).rpartition(" : ")[0]:
        is_splat = values.tobytes() == values.ravel()[:1].tobytes() * values.size
        first = values.ravel()[0]
        spelled = Weights.splat(first, values.dtype, values.shape) if is_splat else Weights.literal(values)
        return WeightsRefAttr(spelled)
    return dense


def string_attr(value: str | bytes) -> StringAttr | BytesAttr:
    """A string as an attribute: StringAttr where it is ASCII, else its bytes, as xDSL parses them back."""
    data = value if isinstance(value, bytes) else value.encode()
    return StringAttr(data.decode()) if data.isascii() else BytesAttr(data)


def string_value(attr: Attribute) -> str | bytes:
    """Inverse of `string_attr`; bytes only where they are no UTF-8. Raises TypeError for other attributes."""
    if isinstance(attr, StringAttr):
        return attr.data
    if not isinstance(attr, BytesAttr):
        raise TypeError(f"no string: {attr}")
    try:
        return attr.data.decode()
    except UnicodeDecodeError:
        return attr.data


def to_array(attr: Attribute, type: Attribute) -> Array:
    """
    The values of a constant of shaped type `type`, whichever way `dense_or_ref` wrote it.

    Raises InvalidInputError where the data of a reference is not loaded, or contradicts `type`.
    """
    assert isinstance(type, TensorType | MemRefType), f"a constant has a ranked type, got {type}"
    type = cast("TensorType[Attribute] | MemRefType[Attribute]", type)
    if isinstance(attr, WeightsRefAttr):
        array, dtype = attr.data.array(), numpy_dtype(type.element_type)
        if array.shape != type.get_shape() or array.dtype != dtype:
            raise InvalidInputError(
                f"weights '{attr.data.key}': the data is {array.dtype}{list(array.shape)}, "
                f"the program wants {dtype}{list(type.get_shape())}"
            )
        return array
    if isinstance(attr, ArrayAttr):
        strings = [string_value(item) for item in cast("ArrayAttr[Attribute]", attr).data]
        return np.array(strings, object).reshape(type.get_shape())
    assert isinstance(attr, DenseIntOrFPElementsAttr)
    dense = cast("DenseIntOrFPElementsAttr[IntegerType | AnyFloat]", attr)
    element = dense.get_element_type()
    if _written_by_value(element):
        array = np.array(list(dense.iter_values())).astype(numpy_dtype(element))
    else:
        array = np.frombuffer(dense.data.data, numpy_dtype(element))
    return array.reshape(dense.get_shape())


def references(module: Operation) -> Iterable[Weights]:
    """Every reference of a module, each key once, in order of the operations; nested arrays included."""
    seen = set[int]()
    for op in module.walk():
        stack = [*op.properties.values(), *op.attributes.values()]
        while stack:
            attr = stack.pop()
            if isinstance(attr, WeightsRefAttr) and id(attr.data) not in seen:
                seen.add(id(attr.data))
                yield attr.data
            elif isinstance(attr, ArrayAttr):
                stack += cast("ArrayAttr[Attribute]", attr).data
            elif isinstance(attr, ParametrizedAttribute):
                stack += attr.parameters


class WeightsFile:
    """
    Tensors by key in one file of the safetensors layout: header length, JSON header, bytes.

    Element types that safetensors has no name for are written under numpy's name.
    """

    _NAMES = {
        "bool": "BOOL",
        **{f"int{n}": f"I{n}" for n in (8, 16, 32, 64)},
        **{f"uint{n}": f"U{n}" for n in (8, 16, 32, 64)},
        "float16": "F16",
        "bfloat16": "BF16",
        "float32": "F32",
        "float64": "F64",
        "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2",
        "float8_e8m0fnu": "F8_E8M0",
        "complex64": "C64",
    }

    def __init__(self, weights: Mapping[str, Weights]):
        self.weights = dict(weights)

    @staticmethod
    def save(path: Path, weights: Iterable[Weights]) -> None:
        """
        Writes the values of `weights`, one tensor in memory at a time, largest element type first.

        `path` may be the file that they are read from. Raises UsageError where it cannot be written.
        """
        unique = {item.key: item for item in weights}
        ordered = sorted(unique.values(), key=lambda item: (-item.dtype.itemsize, item.key))
        header, position = dict[str, Any](), 0
        for item in ordered:
            end = position + item.nbytes
            name = WeightsFile._NAMES.get(item.dtype.name, item.dtype.name)
            header[item.key] = {"dtype": name, "shape": list(item.shape), "data_offsets": [position, end]}
            position = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with replacing(path) as temporary, temporary.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for item in ordered:
                file.write(np.ascontiguousarray(item.array()).tobytes())

    @staticmethod
    def load(path: Path) -> WeightsFile:
        """Reads the header only; each tensor is mapped when asked for. Raises InvalidInputError."""
        try:
            with path.open("rb") as file:
                return WeightsFile(WeightsFile._read(path, file))
        except OSError as e:
            raise InvalidInputError(f"{path}: {e.strerror}") from None
        except (ValueError, KeyError, RecursionError, TypeError, AttributeError):
            raise InvalidInputError(f"{path}: not a weights file, see --save-weights") from None

    @staticmethod
    def _read(path: Path, file: BinaryIO) -> dict[str, Weights]:
        names: dict[str, str] = {name: dtype for dtype, name in WeightsFile._NAMES.items()}
        length = int.from_bytes(file.read(8), "little")
        size = path.stat().st_size
        if length > size - 8:
            raise ValueError
        result = dict[str, Weights]()
        for key, entry in json.loads(file.read(length)).items():
            if key == "__metadata__":
                continue
            name: str = entry["dtype"]
            dtype = dtype_named(names.get(name, name))
            shape, (begin, end) = tuple(map(int, entry["shape"])), entry["data_offsets"]
            if not 0 <= begin <= end <= size - 8 - length or end - begin != prod(shape) * dtype.itemsize:
                raise ValueError
            result[key] = Weights(key, dtype, shape, _mapped(path, 8 + length + begin, dtype, shape))
        return result

    def attach(self, module: Operation) -> None:
        """Gives each reference of `module` that has no data its data; keys that are not in the file stay."""
        for weights in references(module):
            if not weights.has_data and (found := self.weights.get(weights.key)):
                weights.attach(found)


def _mapped(path: Path, offset: int, dtype: DType, shape: tuple[int, ...]) -> Callable[[], Array]:
    def load() -> Array:
        if not prod(shape):
            return np.zeros(shape, dtype)
        data = np.memmap(path, np.uint8, "r", offset, (prod(shape) * dtype.itemsize,))
        return np.frombuffer(data, dtype).reshape(shape)

    return load


WeightsDialect = Dialect("weights", [], [WeightsRefAttr])
