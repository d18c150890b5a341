"""Which node of the model an op comes from."""

from xdsl.dialects.builtin import FileLineColLoc, LocationAttr, NameLoc
from xdsl.ir import Operation


def node_name(op: Operation) -> str:
    """The ONNX node that an op came from; the op's own name where none is known."""
    location: LocationAttr = op.location
    if isinstance(location, NameLoc):
        return location.desc.data
    if isinstance(location, FileLineColLoc):
        return location.filename.data
    return op.name
