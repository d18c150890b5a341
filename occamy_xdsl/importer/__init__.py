"""ONNX models to the `onnx` dialect; nothing above this package touches protobufs."""

from occamy_xdsl.importer.build import import_model

__all__ = ["import_model"]
