"""Which buffer a memref of `dnn` buffer form belongs to."""

from xdsl.ir import SSAValue

from occamy_xdsl.dialects import dnn


def root_of(value: SSAValue) -> SSAValue:
    """The argument, allocation, pool view or constant that `value` is, or is a view of."""
    # Analyses ask for it so often that isinstance, which is slow for ops, would be most of their time.
    while type(owner := value.owner) is dnn.ViewOp:
        value = owner.source
    return value


def offset_in_root(value: SSAValue) -> int:
    """Elements from the first element of `value`'s root to its own first element."""
    offset = 0
    while isinstance(value.owner, dnn.ViewOp):
        offset += value.owner.offset.value.data
        value = value.owner.source
    return offset
