"""MaxPool, AveragePool, LpPool and their global forms."""

from collections.abc import Sequence

from xdsl.dialects.builtin import TensorType, i64
from xdsl.ir import Attribute, SSAValue

from occamy_xdsl.dialects.dnn import PoolOp
from occamy_xdsl.operators.convolution import Windows, place_windows
from occamy_xdsl.operators.emitter import Emitter
from occamy_xdsl.operators.node import Node
from occamy_xdsl.operators.registry import operator


def _pool(
    emit: Emitter,
    value: SSAValue,
    windows: Windows,
    results: Sequence[Attribute],
    kind: str,
    count_include_pad: bool = False,
) -> Sequence[SSAValue]:
    return emit.add_all(
        PoolOp(
            value,
            results,
            kind=kind,
            kernel=windows.kernel,
            strides=windows.strides,
            pads=windows.pads,
            dilations=windows.dilations,
            count_include_pad=count_include_pad,
        )
    )


@operator("MaxPool", limits="Indices with storage_order 1 (column-major)")
def max_pool(node: Node, emit: Emitter) -> Sequence[SSAValue]:
    windows, sizes = place_windows(node, node.attr("kernel_shape"), ceil_mode=node.flag("ceil_mode"))
    shape = (*node.shape(0)[:2], *sizes)
    results: list[Attribute] = [TensorType(node.element(), shape)]
    if node.wants(1):
        if node.flag("storage_order"):
            node.refuse("Indices in column-major order (storage_order 1)")
        results.append(TensorType(i64, shape))
    return _pool(emit, node[0], windows, results, "max")


@operator("AveragePool")
def average_pool(node: Node, emit: Emitter) -> Sequence[SSAValue]:
    windows, sizes = place_windows(node, node.attr("kernel_shape"), ceil_mode=node.flag("ceil_mode"))
    result = TensorType(node.element(), (*node.shape(0)[:2], *sizes))
    return _pool(emit, node[0], windows, [result], "average", node.flag("count_include_pad"))


@operator("LpPool", since=2, limits="p other than 1 and 2; ceil_mode")
def lp_pool(node: Node, emit: Emitter) -> SSAValue:
    """As the average of the powers, padding included, times the window's elements."""
    windows, sizes = place_windows(node, node.attr("kernel_shape"), ceil_mode=node.flag("ceil_mode"))
    power: int = node.attr("p")
    if power not in (1, 2):
        node.refuse(f"p = {power}; supported are 1 and 2")
    if node.flag("ceil_mode"):
        node.refuse("ceil_mode")
    count = 1
    for size in windows.kernel:
        count *= size
    powers = emit.elementwise(lambda x: x.absolute() if power == 1 else x * x, node[0])
    result = TensorType(node.element(), (*node.shape(0)[:2], *sizes))
    (mean,) = _pool(emit, powers, windows, [result], "average", count_include_pad=True)
    return emit.elementwise(lambda x: x * count if power == 1 else (x * count).sqrt(), mean)


def _spatial(node: Node) -> list[int]:
    if node.rank() < 2:
        node.reject(f"needs an input of rank 2 or more, got shape {list(node.shape())}")
    return list(range(2, node.rank()))


@operator("GlobalAveragePool")
def global_average_pool(node: Node, emit: Emitter) -> SSAValue:
    return emit.reduce(node[0], "mean", _spatial(node), keep=True)


@operator("GlobalMaxPool")
def global_max_pool(node: Node, emit: Emitter) -> SSAValue:
    return emit.reduce(node[0], "max", _spatial(node), keep=True)


@operator("GlobalLpPool", since=2, limits="p other than 1 and 2")
def global_lp_pool(node: Node, emit: Emitter) -> SSAValue:
    power: int = node.attr("p")
    if power not in (1, 2):
        node.refuse(f"p = {power}; supported are 1 and 2")
    return emit.reduce(node[0], f"l{power}", _spatial(node), keep=True)
