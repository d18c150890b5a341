"""What xDSL's own tools (`xdsl-opt`, `xdsl-gui`) find of this project through its entry point."""

from xdsl.universe import Universe
from xdsl.utils.frontend import Frontend

from occamy_xdsl.dialects import get_all_dialects
from occamy_xdsl.pipelines import get_all_passes


def get_onnx_frontend() -> type[Frontend]:
    """The frontend of `.onnx` files, imported when it is first needed."""
    from occamy_xdsl.tools.onnx_frontend import OnnxFrontend

    return OnnxFrontend


OCCAMY_UNIVERSE = Universe(
    all_dialects=get_all_dialects(),
    all_passes=get_all_passes(),
    all_frontends={"onnx": get_onnx_frontend},
)
