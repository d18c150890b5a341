"""What a program is imported from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onnx import ModelProto
from xdsl.dialects.builtin import ModuleOp

from occamy_xdsl.errors import OccamyError
from occamy_xdsl.importer.build import import_model
from occamy_xdsl.importer.model_file import data_files, read


@dataclass(frozen=True)
class ModelSource:
    """
    Where a model comes from, and what its symbolic dimensions are.

    `source` is a path, the bytes of a model file, or a ModelProto; `shapes` gives whole input shapes by input
    name, `dims` sizes of symbolic dimensions by name, in elements.
    """

    source: str | Path | bytes | ModelProto
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])
    dims: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def name(self) -> str:
        """The file's name without its suffix; "model" where there is no file."""
        return Path(self.source).stem if isinstance(self.source, str | Path) else "model"

    def import_module(self) -> ModuleOp:
        """A new module in the onnx dialect. Raises what `import_model` raises."""
        return import_model(self.source, self.shapes, self.dims)

    def files(self) -> list[Path]:
        """
        The files that a compilation reads: the model's, and those in which its tensors have their data.

        What is wrong with them is for `import_module` to say.
        """
        if not isinstance(self.source, str | Path):
            return []
        own = Path(self.source)
        if not own.is_file():  # what comes through a pipe can be read once only
            return [own]
        try:
            return [own, *data_files(read(own))]
        except OccamyError:
            return [own]
