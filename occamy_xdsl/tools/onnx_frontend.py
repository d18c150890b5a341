"""xDSL's view of the importer: the frontend for `.onnx` files."""

from dataclasses import dataclass
from pathlib import Path
from typing import IO

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.frontend import Frontend

from occamy_xdsl.errors import InvalidInputError
from occamy_xdsl.importer import import_model


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """`NAME:1x3x224x224` as name and shape; the name may itself hold colons. Raises InvalidInputError."""
    name, _, sizes = text.rpartition(":")
    try:
        return _nonempty(name, text), tuple(int(size) for size in sizes.split("x")) if sizes else ()
    except ValueError:
        raise InvalidInputError(f"--shape wants NAME:1x3x224x224, got '{text}'") from None


def parse_dim(text: str) -> tuple[str, int]:
    """`NAME=4` as name and size. Raises InvalidInputError."""
    name, _, size = text.rpartition("=")
    try:
        return _nonempty(name, text), int(size)
    except ValueError:
        raise InvalidInputError(f"--dim wants NAME=4, got '{text}'") from None


def _nonempty(name: str, text: str) -> str:
    if not name:
        raise ValueError(text)
    return name


@dataclass(frozen=True)
class OnnxFrontend(Frontend):
    """
    Reads an ONNX model with `importer.import_model`.

    `shape` and `dim` are written as on the command line: `onnx{shape="x:1x3x8x8" dim="N=4"}`.
    """

    name = "onnx"

    shape: tuple[str, ...] = ()
    dim: tuple[str, ...] = ()
    allow_custom: bool = False

    def parse(self, ctx: Context, input: IO[bytes], input_name: str) -> ModuleOp:
        """The module of a model file; `-` and pipes are read whole, files stay where they are."""
        path = Path(input_name)
        return import_model(
            path if path.is_file() else input.read(),
            dict(map(parse_shape, self.shape)),
            dict(map(parse_dim, self.dim)),
            allow_custom=self.allow_custom,
        )
