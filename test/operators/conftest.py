"""From an ONNX model to the onnx dialect with static shapes and to the dnn dialect, as fixtures."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from onnx import ModelProto
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from occamy_xdsl.importer import import_model
from occamy_xdsl.transforms.convert_onnx_to_dnn import ConvertOnnxToDnnPass
from occamy_xdsl.transforms.onnx_infer_shapes import OnnxInferShapesPass


def _inferred(model: ModelProto | Path, shapes: Mapping[str, Sequence[int]] | None = None) -> ModuleOp:
    module = import_model(model, shapes)
    OnnxInferShapesPass().apply(Context(), module)
    module.verify()
    return module


def _converted(model: ModelProto | Path, shapes: Mapping[str, Sequence[int]] | None = None) -> ModuleOp:
    module = _inferred(model, shapes)
    ConvertOnnxToDnnPass().apply(Context(), module)
    module.verify()
    return module


@pytest.fixture(scope="session")
def inferred() -> Callable[..., ModuleOp]:
    """A model, with optional input shapes, in the onnx dialect with static shapes."""
    return _inferred


@pytest.fixture(scope="session")
def converted() -> Callable[..., ModuleOp]:
    """A model, with optional input shapes, in the dnn dialect."""
    return _converted


@pytest.fixture(scope="session")
def fixture_inputs(shared: Path) -> Callable[[str], dict[str, Any]]:
    """The inputs of the shared model called `name`, by name; empty where the model has no fixture."""
    import numpy as np

    def load(name: str) -> dict[str, Any]:
        path = shared / f"models/fixtures/{name}.npz"
        if not path.exists():
            return {}
        arrays = np.load(path)
        return {key[3:]: arrays[key] for key in arrays if key.startswith("in:")}

    return load
