"""Reads a model without its weights: large tensors stay in the file, mapped, until someone asks for them."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.message import DecodeError
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from occamy_xdsl.errors import ArgumentTypeError, InvalidInputError, InvalidModelError

LARGE = 1024
"""Bytes of raw tensor data above which they are left in place."""

IN_MODEL = "occamy.in_model"
"""The external-data key that marks a tensor left in the model's own bytes: `<offset>,<length>`."""

_CHILDREN: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse_tensor"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {
        5: "tensor",
        6: "graph",
        10: "tensor",
        11: "graph",
        22: "sparse_tensor",
        23: "sparse_tensor",
    },
    "sparse_tensor": {1: "tensor", 2: "tensor"},
    "tensor": {9: "raw_data"},
}
"""The fields of onnx.proto on the way from a model to raw data: message, field number, what it holds."""


@dataclass(frozen=True)
class Source:
    """A model and where its tensors' bytes are."""

    model: ModelProto
    label: str
    """The file's name in messages; `<model>` for a model that came as bytes or as an object."""
    folder: Path | None
    """Where external data lies; None for a model that is no file."""
    data: memoryview
    """The serialized model, in which tensors marked `IN_MODEL` lie."""


def read(model: str | Path | bytes | ModelProto) -> Source:
    """
    A model from a path, its bytes or its object.

    Raises InvalidInputError for a file that cannot be read, InvalidModelError for one that is no ONNX model, and
    ArgumentTypeError for anything else.
    """
    if isinstance(model, ModelProto):
        return _checked(Source(model, "<model>", None, memoryview(b"")))
    if isinstance(model, bytes):
        return _checked(Source(_parse(memoryview(model), "<model>"), "<model>", None, memoryview(model)))
    if not isinstance(model, str | os.PathLike):  # pyright: ignore[reportUnnecessaryIsInstance]  # users may err
        raise ArgumentTypeError(f"a model is a path, bytes or a ModelProto, got {type(model).__name__}")
    path = Path(model)
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise InvalidInputError(
                f"{path}: a pipe or device, but a model is read more than once; - reads one from standard input"
            )
        with path.open("rb") as file:
            empty = file.seek(0, 2) == 0
            data = memoryview(b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except OSError as e:
        raise InvalidInputError(f"{path}: {e.strerror or e}") from None
    except ValueError as e:  # a name with a null character
        raise InvalidInputError(f"{str(path)!r}: {e}") from None
    return _checked(Source(_parse(data, str(path)), str(path), path.parent, data))


def data_files(source: Source) -> list[Path]:
    """The files in which tensors of a model have their data, as far as the model may name them."""
    if source.folder is None:
        return []
    locations = {
        entry.value: None
        for tensor in _tensors(source.model)
        if tensor.data_location == TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location" and entry.value
    }
    return [source.folder / location for location in locations]


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    """All tensors of a model, those in attributes of nodes and in their subgraphs included."""
    yield from _tensors_of_graph(model.graph)
    for function in model.functions:
        yield from _tensors_of_nodes(function.node)


def _tensors_of_graph(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _tensors_of_nodes(graph.node)


def _tensors_of_nodes(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        yield from (attribute.t, *attribute.tensors)
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)
        for graph in (attribute.g, *attribute.graphs):
            yield from _tensors_of_graph(graph)


def _checked(source: Source) -> Source:
    if not source.model.HasField("graph") or not source.model.ir_version:
        raise InvalidModelError("not an ONNX model: it has no graph", file=source.label)
    return source


def _parse(data: memoryview, label: str) -> ModelProto:
    if not data:
        raise InvalidModelError("not an ONNX model: the file is empty", file=label)
    model = ModelProto()
    try:
        skeleton = bytearray()
        _copy_small(data, "model", 0, len(data), skeleton)
        model.ParseFromString(bytes(skeleton))
    except (ValueError, IndexError, DecodeError, RecursionError):
        raise InvalidModelError("not an ONNX model, or a truncated one", file=label) from None
    return model


def _copy_small(data: memoryview, message: str, position: int, end: int, out: bytearray) -> None:
    """Appends to `out` the message at [position, end) with each large `raw_data` replaced by its place."""
    children, marks = _CHILDREN[message], b""
    for number, payload, start, stop in _fields(data, position, end):
        child = children.get(number)
        if child is None or stop - payload <= LARGE:
            out += data[start:stop]
        elif child == "raw_data":
            entry = _field(1, IN_MODEL.encode()) + _field(2, f"{payload},{stop - payload}".encode())
            marks = _varint(14 << 3) + _varint(1) + _field(13, entry)
        else:
            inner = bytearray()
            _copy_small(data, child, payload, stop, inner)
            out += _field(number, inner)
    out += marks  # last, since the last of two values of one field counts


def _fields(data: memoryview, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """
    Number, start of the payload, start and end of each field of a message in protobuf's wire format.

    The payload of a field that is not length-delimited starts at its end. Raises ValueError where the bytes
    are no message.
    """
    while position < end:
        start = position
        tag, position = _read_varint(data, position)
        payload = None
        match tag & 7:
            case 0:
                _, position = _read_varint(data, position)
            case 1:
                position += 8
            case 2:
                length, payload = _read_varint(data, position)
                position = payload + length
            case 5:
                position += 4
            case _:
                raise ValueError("unknown wire type")
        if position > end:
            raise ValueError("truncated field")
        yield tag >> 3, position if payload is None else payload, start, position


def _read_varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, payload: bytes | bytearray) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(payload)) + payload
