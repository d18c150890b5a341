"""
How much the searches do, in steps that are the same on any machine: planning stays quick where these stay low.

`states` are sets of executed ops that the search for an order visits, `models` are ops whose execution in stripes is
modelled, once for each end of a segment and each way to run it. A number that a change lowers is updated here; one
that grows needs a reason in the change.
"""

from pathlib import Path
from typing import Any, NamedTuple

import onnx
import pytest
from xdsl.dialects.func import FuncOp

from occamy_xdsl.compiler import Compilation, Model
from occamy_xdsl.dialects.signature import function_named
from occamy_xdsl.pipelines import Options
from occamy_xdsl.planning.order import Op, find_order
from occamy_xdsl.planning.stripes import SegmentModel, find_stripes
from occamy_xdsl.transforms.dnn_schedule import StorageGraph
from occamy_xdsl.transforms.dnn_stripe import rows_of

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"


class Effort(NamedTuple):
    states: int
    models: int


NETS = {
    "light_bvlc_alexnet": Effort(0, 93),
    "light_inception_v1": Effort(0, 7_532),
    "light_resnet50": Effort(0, 2_471),
    "light_shufflenet": Effort(5, 18_181),
    "light_squeezenet": Effort(0, 1_340),
    "light_vgg19": Effort(0, 1_156),
    "light_zfnet512": Effort(0, 136),
}


def in_order_of_the_model(path: Path) -> FuncOp:
    """The program in value form, right before the search for an order."""
    compilation = Compilation(Model(path), Options(target="cpu:x86-64-v3", reorder=False))
    compilation.run_to("dnn")
    return function_named(compilation.module)


@pytest.mark.parametrize("name", NETS)
def test_light_nets(name: str, monkeypatch: pytest.MonkeyPatch):
    function = in_order_of_the_model(LIGHT / f"{name}.onnx")
    models, add = [0], SegmentModel.add

    def counted(*arguments: Any):
        models[0] += 1
        return add(*arguments)

    monkeypatch.setattr(SegmentModel, "add", counted)
    states = StorageGraph(function.body.block).search(30_000).states
    find_stripes(rows_of(function, batch=False).graph, 0.05)
    assert Effort(states, models[0]) == NETS[name]


def dense_blocks(count: int, layers: int) -> tuple[list[Op], list[int]]:
    """A DenseNet of at least `count` ops: each layer reads all results of its block; value 0 is the input."""
    ops, sizes, block = list[Op](), [16], [0]
    while len(ops) < count:
        for value, (reads, size) in enumerate([(tuple(block), 32), ((len(sizes),), 8)], len(sizes)):
            ops.append(Op(reads, (value,)))
            sizes.append(size)
        block.append(len(sizes) - 1)
        if len(block) > layers:  # a transition
            ops.append(Op(tuple(block), (len(sizes),)))
            block = [len(sizes)]
            sizes.append(16)
    return ops, sizes


@pytest.mark.parametrize("layers", [24, 3000])
def test_3000_ops_of_a_densenet_need_no_search(layers: int):
    ops, sizes = dense_blocks(3000, layers)
    found = find_order(ops, sizes)
    assert (found.optimal, found.states) == (True, 0)
