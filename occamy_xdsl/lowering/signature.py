"""The contract of a compiled model: its inputs and outputs, and the bytes it needs."""

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class ElementType:
    """An element type that can cross the boundary of a compiled model."""

    mlir: str
    """Spelling in the dnn dialect, for example `ui8`."""
    numpy: np.dtype[Any]
    """Representation in the caller's memory."""

    @property
    def npy(self) -> str:
        """The type in the header of a .npy file, for example `<f4`; bfloat16 is what numpy writes: `<V2`."""
        return self.numpy.str if self.numpy.itemsize > 1 else self.numpy.str.replace("<", "|")


ELEMENT_TYPES: dict[str, ElementType] = {
    "bool": ElementType("i1", np.dtype(np.bool_)),
    "int8": ElementType("i8", np.dtype(np.int8)),
    "int16": ElementType("i16", np.dtype(np.int16)),
    "int32": ElementType("i32", np.dtype(np.int32)),
    "int64": ElementType("i64", np.dtype(np.int64)),
    "uint8": ElementType("ui8", np.dtype(np.uint8)),
    "uint16": ElementType("ui16", np.dtype(np.uint16)),
    "uint32": ElementType("ui32", np.dtype(np.uint32)),
    "uint64": ElementType("ui64", np.dtype(np.uint64)),
    "float16": ElementType("f16", np.dtype(np.float16)),
    "bfloat16": ElementType("bf16", np.dtype(ml_dtypes.bfloat16)),
    "float32": ElementType("f32", np.dtype(np.float32)),
    "float64": ElementType("f64", np.dtype(np.float64)),
}
"""Element types by the name used in signatures, which is numpy's."""


@dataclass(frozen=True)
class TensorSpec:
    """Name, element type (a key of `ELEMENT_TYPES`) and static shape of an input or output, row-major."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def element(self) -> ElementType:
        """The element type."""
        return ELEMENT_TYPES[self.dtype]

    @property
    def bytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self.element.numpy.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


_UNSAFE = re.compile(r'[\x00-\x20\x7f/\\:*?"<>|]')


def file_names(specs: Iterable[TensorSpec]) -> list[str]:
    """
    The .npy file name of each tensor.

    Characters that file systems or shells reserve become `_`, names are cut to 200 bytes, and a name already
    taken gets the position of the tensor appended.
    """
    names: list[str] = []
    for position, spec in enumerate(specs):
        stem = _UNSAFE.sub("_", spec.name).encode()[:200].decode(errors="ignore")
        while f"{stem}.npy" in names:
            stem = f"{stem}_{position}"
        names.append(f"{stem}.npy")
    return names


@dataclass(frozen=True)
class Signature:
    """
    Everything a caller of a compiled model has to know.

    `pool_bytes` and `weights_bytes` are bytes; the pool starts at a multiple of `pool_alignment`, a power of
    two; the weights start at a multiple of 64.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    target: str
    version: str
    pool_bytes: int
    weights_bytes: int
    pool_alignment: int = 64
    memory: str = "pool"
    """`pool`, or `lazy` or `eager` for a model whose runs allocate their buffers."""

    @property
    def is_cuda(self) -> bool:
        """Whether the model runs on a GPU, with its pool in device memory."""
        return self.target.partition(":")[0] == "cuda"

    def to_json(self) -> str:
        """The signature as one line of ASCII JSON."""
        tensors = {
            kind: [{"name": spec.name, "dtype": spec.dtype, "shape": spec.shape} for spec in specs]
            for kind, specs in (("inputs", self.inputs), ("outputs", self.outputs))
        }
        rest = {
            "target": self.target,
            "version": self.version,
            "pool_bytes": self.pool_bytes,
            "pool_alignment": self.pool_alignment,
            "weights_bytes": self.weights_bytes,
            "memory": self.memory,
        }
        return json.dumps(tensors | rest)

    @staticmethod
    def from_json(text: str | bytes) -> "Signature":
        """The signature that `to_json` wrote; raises ValueError if the text is anything else."""
        try:
            fields = cast(dict[str, Any], json.loads(text))
            fields["inputs"] = _specs(fields["inputs"])
            fields["outputs"] = _specs(fields["outputs"])
            return Signature(**fields)
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a signature: {error}") from None


def _specs(fields: Iterable[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(field["name"], field["dtype"], tuple(field["shape"])) for field in fields)
