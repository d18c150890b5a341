"""Inside-op liveness: which operands may die while the result is born, so that both can share memory."""

from xdsl.ir import SSAValue

from occamy_xdsl.dialects import dnn


def in_place_operands(op: dnn.KernelOp) -> tuple[SSAValue, ...]:
    """
    Operands whose memory an op's first destination may take, best first; in either form.

    The op reads each element of such an operand before it writes the element at the same place, and not
    again. The operand must have the very type of the destination, and no other operand may show the same
    memory in another way.
    """
    match op:
        case dnn.ElementwiseOp():
            candidates = tuple(op.ins)
        case dnn.FusableOp():
            candidates = tuple(op.extras)
        case dnn.SoftmaxOp() | dnn.LayerNormOp():
            candidates = (op.input,)
        case _:
            candidates = ()
    return tuple(v for v in candidates if v.type == op.destinations[0].type)
