"""Networks in stripes compute what they compute whole."""

import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from xdsl.dialects.builtin import TensorType, f32
from xdsl.parser import Parser
from xdsl.passes import PassPipeline
from xdsl.utils.test_value import create_ssa_value

from occamy_xdsl import compiler
from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.dnn.rows import row_maps, row_unit
from occamy_xdsl.dialects.signature import function_named
from occamy_xdsl.importer import import_model
from occamy_xdsl.interpreters.buffer import run_buffers
from occamy_xdsl.interpreters.value import run_values
from occamy_xdsl.pipeline_run import available_passes, make_context
from occamy_xdsl.pipelines import Options, stages
from occamy_xdsl.planning.stripes import Halo, Plan, Segment, stripe_ends
from occamy_xdsl.transforms.dnn_stripe import rows_of, wrap

sys.path.insert(0, str(Path(__file__).parents[1]))
from nets import NETS

CUTS = [
    *(
        (net, halo, False)
        for net in ("resnet", "inception", "unet", "mobilenet")
        for halo in ("keep", "recompute")
    ),
    *(
        (net, "keep", False)
        for net in ("densenet", "shufflenet", "attention", "sequences", "superresolution")
    ),
    *((net, "keep", True) for net in ("densenet", "attention", "sequences")),
]


@pytest.mark.parametrize(("net", "halo", "batch"), CUTS)
def test_stripes_keep_the_meaning(net: str, halo: Halo, batch: bool):
    """The longest segments from every third op on, in 2 stripes and in stripes of one row, against ONNX Runtime."""
    model = NETS[net]()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(2)
    inputs = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()}
    want = session.run(None, inputs)
    context, passes = make_context(), available_passes()

    def run(*names: str):
        for name in names:
            PassPipeline.parse_spec(passes, name).apply(context, module)
            module.verify()

    module = import_model(model)
    onnx_stage, dnn_stage = stages(Options())[:2]
    run(*onnx_stage.passes, *dnn_stage.passes)
    start, segments, slides = module, 0, 0
    graph = rows_of(function_named(start), batch=batch).graph
    count = len(graph.ops)
    for first in range(0, count - 1, 3):
        last = next((k for k in range(count, first, -1) if first in graph.inside(first, k)), first)
        if len(graph.inside(first, last)) < 2:
            continue
        rows = graph.values[graph.leaving(first, last)[-1]].rows
        for ends in {stripe_ends(rows, 2), stripe_ends(rows, rows)}:
            module = start.clone()
            wrap(function_named(module), Plan((Segment(first, last, ends, halo),), 0, 0), batch=batch)
            module.verify()
            whole = run_values(module, list(inputs.values()))
            run("dnn-expand-stripes")
            striped = run_values(module, list(inputs.values()))
            run("dnn-insert-memory-ops", "dnn-coalesce-tensors", "dnn-slide-windows")
            slides += sum(isinstance(op, dnn.CopyOp) and bool(op.overlap) for op in module.walk())
            run("dnn-convert-to-pool", "verify-dnn-pool")
            pooled = run_buffers(module, list(inputs.values()))
            segments += 1
            for a, b, c, d in zip(want, whole, striped, pooled, strict=True):
                scale = abs(a).max()
                np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5 * scale)
                # numpy sums products in an order that depends on the shape.
                np.testing.assert_allclose(c, b, rtol=0, atol=1e-6 * scale)
                np.testing.assert_allclose(d, b, rtol=0, atol=1e-6 * scale)
    assert segments
    assert slides or (net, halo) != ("unet", "keep")


def test_generated_code_computes_the_same_bits():
    model = NETS["unet"]()
    x = np.random.default_rng(3).standard_normal((1, 3, 16, 16)).astype(np.float32)
    whole, striped = (compiler.compile(model, stripe_budget=budget) for budget in (0, 1000))
    assert striped.memory_report().pool_bytes < whole.memory_report().pool_bytes
    for a, b in zip(whole.run({"x": x}).values(), striped.run({"x": x}).values(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("have", "shape"),
    [
        ((2, 3, 4, 5), (2, 12, 5)),  # joined
        ((2, 12, 5), (2, 3, 4, 5)),  # split
        ((2, 3, 4, 5), (6, 20)),
        ((1, 6, 1, 4), (6, 2, 2)),
        ((4, 6), (6, 4)),
    ],
)
def test_rows_of_a_reshape(have: tuple[int, ...], shape: tuple[int, ...]):
    """The rows that a map names, reshaped, are the rows of the result, for whole groups of rows; else it has none."""
    x = np.arange(np.prod(have)).reshape(have)
    op = dnn.ReshapeOp(create_ssa_value(TensorType(f32, have)), shape)
    found = 0
    for dim in range(len(shape)):
        maps = row_maps(op, dim)
        if maps is None:
            continue
        (rows_of,) = maps
        assert rows_of is not None
        unit = row_unit(op, dim)
        for begin in range(0, shape[dim], unit):
            for end in range(begin + unit, shape[dim] + 1, unit):
                part = x.take(range(*rows_of(begin, end)), rows_of.dim)
                want = x.reshape(shape).take(range(begin, end), dim)
                np.testing.assert_array_equal(part.reshape(want.shape), want)
        found += 1
    assert found == {(2, 12, 5): 3, (2, 3, 4, 5): 3, (6, 20): 2, (6, 2, 2): 2, (6, 4): 0}[shape]


def test_views_of_constants_need_no_memory():
    """A transposed weight is memory of the caller's, however large; the peak is the result, 2 x 4 bytes."""
    text = """
    builtin.module {
      func.func @main(%x : tensor<2x8xf32>) -> tensor<2x1xf32> {
        %w = dnn.constant dense<0.0> : tensor<1x8xf32> -> tensor<1x8xf32>
        %t = dnn.transpose input(%w : tensor<1x8xf32>) {permutation = array<i64: 1, 0>} -> tensor<8x1xf32>
        %p = dnn.matmul a(%x : tensor<2x8xf32>) b(%t : tensor<8x1xf32>) -> tensor<2x1xf32>
        %y = dnn.softmax input(%p : tensor<2x1xf32>) {axis = 0 : i64, log = false} -> tensor<2x1xf32>
        func.return %y : tensor<2x1xf32>
      }
    }
    """
    module = Parser(make_context(), text).parse_module()
    module.verify()
    assert max(rows_of(function_named(module), batch=False).graph.plain) == 2 * 4
