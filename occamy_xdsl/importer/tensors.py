"""Tensors of a model as weights: checked at import, read when asked for."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx.numpy_helper
from numpy.typing import NDArray
from onnx import TensorProto
from xdsl.dialects.builtin import FixedBitwidthType, IntegerType, TensorType
from xdsl.ir import Attribute

from occamy_xdsl.dialects import onnx as dialect
from occamy_xdsl.dialects.weights import Weights, dense_or_ref, numpy_dtype
from occamy_xdsl.errors import InvalidModelError
from occamy_xdsl.importer.model_file import IN_MODEL, Source

_TYPED_FIELD = {
    **dict.fromkeys(("float", "complex64"), "float_data"),
    **dict.fromkeys(("double", "complex128"), "double_data"),
    "int64": "int64_data",
    "string": "string_data",
    **dict.fromkeys(("uint32", "uint64"), "uint64_data"),
}
"""TensorProto's field for a type's values where `raw_data` does not hold them; `int32_data` for the rest."""


class TensorReader:
    """Makes weights of a model's TensorProtos. Every method raises InvalidModelError naming the tensor."""

    def __init__(self, source: Source):
        self.source = source

    def type(self, tensor: TensorProto) -> TensorType[Attribute]:
        """The tensor type of a constant."""
        try:
            element = dialect.element_type(tensor.data_type)
        except KeyError:
            raise self._refused(tensor, f"unknown element type {tensor.data_type}") from None
        if any(dim < 0 for dim in tensor.dims):
            raise self._refused(tensor, f"negative dimension in {list(tensor.dims)}")
        return TensorType(element, tensor.dims)

    def attribute(self, tensor: TensorProto, key: str) -> Attribute:
        """Its inline value or, for a large one, a reference named `key`."""
        return dense_or_ref(self.weights(tensor, key))

    def weights(self, tensor: TensorProto, key: str) -> Weights:
        """Lazily read weights named `key`; what can be checked without reading is checked here."""
        type = self.type(tensor)
        element, shape = type.element_type, tuple(tensor.dims)
        dtype, count = numpy_dtype(element), prod(shape)
        bits = element.bitwidth if isinstance(element, FixedBitwidthType) else dtype.itemsize * 8
        bits = 8 if element == IntegerType(1) else bits
        packed = bits % 8 != 0
        size = (count * bits + 7) // 8

        def load() -> NDArray[Any]:
            if raw is None:
                return onnx.numpy_helper.to_array(tensor).reshape(shape)
            if packed:
                filled = TensorProto(dims=shape, data_type=tensor.data_type, raw_data=bytes(raw()))
                return onnx.numpy_helper.to_array(filled)
            return np.frombuffer(raw(), dtype, count).reshape(shape)

        raw = self._bytes(tensor, size)
        if raw is not None and tensor.data_type == TensorProto.STRING:
            raise self._refused(tensor, "strings cannot be raw data")
        if raw is None:
            self._check_typed_data(tensor, count, bits)
        return Weights(key, dtype, shape, load)

    def _bytes(self, tensor: TensorProto, size: int) -> Callable[[], Any] | None:
        """Reads the tensor's `size` raw bytes; None where the values are in a typed field."""
        if tensor.data_location != TensorProto.EXTERNAL:
            if not tensor.HasField("raw_data"):
                return None
            if len(tensor.raw_data) != size:
                raise self._refused(tensor, f"{len(tensor.raw_data)} bytes of data, its type needs {size}")
            return lambda: tensor.raw_data
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if IN_MODEL in entries:
            offset, length = map(int, entries[IN_MODEL].split(","))
            if length != size or offset + length > len(self.source.data):
                raise self._refused(tensor, f"{length} bytes of data, its type needs {size}")
            data = self.source.data[offset : offset + length]
            return lambda: data
        return self._external(tensor, entries, size)

    def _external(self, tensor: TensorProto, entries: dict[str, str], size: int) -> Callable[[], Any]:
        location = entries.get("location", "")
        if self.source.folder is None:
            raise self._refused(tensor, f"its data is in file '{location}'; give the model as a path")
        try:
            offset, length = int(entries.get("offset", 0)), int(entries.get("length", size))
        except ValueError:
            raise self._refused(tensor, "offset and length of its external data are no numbers") from None
        folder = self.source.folder.resolve()
        path = (folder / location).resolve()
        if not location or Path(location).is_absolute() or not path.is_relative_to(folder):
            raise self._refused(tensor, f"external data file '{location}' is not inside the model's folder")
        if not path.is_file():
            raise self._refused(tensor, f"external data file '{location}' is missing")
        if length != size:
            raise self._refused(
                tensor, f"{length} bytes of external data in '{location}', its type needs {size}"
            )
        available = path.stat().st_size
        if offset < 0 or offset + size > available:
            raise self._refused(
                tensor,
                f"external data file '{location}' is too short: bytes {offset} to {offset + size} wanted, "
                f"it has {available}",
            )
        return lambda: np.memmap(path, np.uint8, "r", offset, (size,)) if size else b""

    def _check_typed_data(self, tensor: TensorProto, count: int, bits: int) -> None:
        name = dialect.type_name(self.type(tensor))
        assert name is not None
        element = name.removeprefix("tensor(").removesuffix(")")
        field = _TYPED_FIELD.get(element, "int32_data")
        per_value = 2 if element.startswith("complex") else 1
        wanted = (count * bits + 7) // 8 if bits < 8 else count * per_value
        got = len(getattr(tensor, field))
        if got != wanted and not (bits < 8 and got == count):
            raise self._refused(tensor, f"{got} values in {field}, its type needs {wanted}")

    def _refused(self, tensor: TensorProto, fact: str) -> InvalidModelError:
        return InvalidModelError(f"tensor '{tensor.name}': {fact}", file=self.source.label)
