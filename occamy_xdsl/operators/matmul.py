"""Gemm, MatMul and their relatives."""

from xdsl.dialects.builtin import TensorType, f32
from xdsl.ir import Attribute, SSAValue

from occamy_xdsl.dialects.dnn import MatmulOp, shape_of
from occamy_xdsl.dialects.dnn.geometry import broadcast_shapes
from occamy_xdsl.operators.emitter import Emitter
from occamy_xdsl.operators.node import Node
from occamy_xdsl.operators.registry import operator
from occamy_xdsl.operators.scalars import Scalar


def _scaled(emit: Emitter, value: SSAValue, factor: float) -> SSAValue:
    return value if factor == 1 else emit.elementwise(lambda x: _times(x, factor), value)


def _times(x: Scalar, factor: float) -> Scalar:
    """`x * factor` where x may be an integer and the factor not."""
    return x * factor if x.is_float or factor == int(factor) else (x.cast(f32) * factor).cast(x.element)


@operator("Gemm", since=7)
def gemm(node: Node, emit: Emitter) -> SSAValue:
    """alpha * op(A) * op(B) + beta * C."""
    if node.rank(0) != 2 or node.rank(1) != 2:
        node.reject(f"needs matrices, got shapes {list(node.shape(0))} and {list(node.shape(1))}")
    a, b = (
        emit.transpose(node[index], (1, 0)) if node.flag(name) else node[index]
        for index, name in enumerate(("transA", "transB"))
    )
    (rows, inner), (depth, columns) = shape_of(a), shape_of(b)
    if inner != depth:
        node.reject(f"cannot multiply {rows}x{inner} by {depth}x{columns}")
    alpha, beta = node.attr("alpha"), node.attr("beta")
    result = TensorType(node.element(), (rows, columns))
    bias = node.optional(2)
    if bias is not None and beta == 0:
        bias = None
    if bias is not None:
        bias = _scaled(emit, bias, beta)
    if alpha == 1:
        return emit.add(MatmulOp(a, b, bias, result))
    product = emit.add(MatmulOp(a, b, None, result))
    if bias is None:
        return _scaled(emit, product, alpha)
    return emit.elementwise(lambda x, c: _times(x, alpha) + c, product, bias)


def multiply(node: Node, emit: Emitter, a: SSAValue, b: SSAValue, element: Attribute) -> SSAValue:
    """numpy.matmul with elements of type `element`: a vector is a row on the left, a column on the right."""
    left, right = shape_of(a), shape_of(b)
    if not left or not right:
        node.reject("cannot multiply scalars")
    if len(left) == 1:
        a = emit.reshape(a, (1, *left))
    if len(right) == 1:
        b = emit.reshape(b, (*right, 1))
    wide, tall = shape_of(a), shape_of(b)
    batch = broadcast_shapes(wide[:-2], tall[:-2])
    if wide[-1] != tall[-2] or batch is None:
        node.reject(f"cannot multiply shapes {list(left)} and {list(right)}")
    product = emit.add(MatmulOp(a, b, None, TensorType(element, (*batch, wide[-2], tall[-1]))))
    shape = (*batch, *wide[-2:-1][: len(left) - 1], *tall[-1:][: len(right) - 1])
    return emit.reshape(product, shape)


@operator("MatMul")
def matmul(node: Node, emit: Emitter) -> SSAValue:
    return multiply(node, emit, node[0], node[1], node.element())
