"""The passes of the project; `get_all_passes` is the one place where they are listed."""

from collections.abc import Callable
from importlib import import_module
from typing import cast

from xdsl.passes import ModulePass

PASSES: dict[str, str] = {
    "convert-onnx-to-dnn": "ConvertOnnxToDnnPass",
    "dnn-assign-layouts": "DnnAssignLayoutsPass",
    "dnn-coalesce-tensors": "DnnCoalesceTensorsPass",
    "dnn-convert-to-pool": "DnnConvertToPoolPass",
    "dnn-fuse-layers": "DnnFuseLayersPass",
    "dnn-insert-memory-ops": "DnnInsertMemoryOpsPass",
    "onnx-infer-shapes": "OnnxInferShapesPass",
    "verify-dnn-pool": "VerifyDnnPoolPass",
}
"""Class of each pass, by the pass's name. It lives in the file of that name, with _ for -."""


def get_all_passes() -> dict[str, Callable[[], type[ModulePass]]]:
    """Every pass by name, imported when it is first needed."""

    def loader(name: str, cls: str) -> Callable[[], type[ModulePass]]:
        def load() -> type[ModulePass]:
            module = import_module(f"{__name__}.{name.replace('-', '_')}")
            return cast(type[ModulePass], getattr(module, cls))

        return load

    return {name: loader(name, cls) for name, cls in PASSES.items()}
