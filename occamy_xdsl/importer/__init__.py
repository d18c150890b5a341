"""ONNX models to the `onnx` dialect; nothing above this package touches protobufs."""

from occamy_xdsl.importer.build import import_model
from occamy_xdsl.importer.model_source import ModelSource

__all__ = ["ModelSource", "import_model"]
