"""The memory report: why buffers need memory of their own, and what each means of lowering the peak gives."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from control_flow import PROGRAMS
from onnx import ModelProto, TensorProto, helper, numpy_helper
from xdsl.parser import Parser

from occamy_xdsl.compiler import Compilation, Model
from occamy_xdsl.pipeline_run import make_context
from occamy_xdsl.pipelines import Options
from occamy_xdsl.report.html import budget_curve
from occamy_xdsl.report.memory import BudgetStep, Kind, MemoryReport, ModeStep, Tensor
from occamy_xdsl.report.table import render

RANGE = "axis = 0 : i64, log = false"


def reasons(body: str, forbidden: str = "") -> dict[str, str]:
    """The reason for each buffer that is live at the peak of a function with inputs x, y and output out."""
    text = f"""
    func.func @main(%x: memref<8xf32> {{dnn.kind = "input"}}, %y: memref<8xf32> {{dnn.kind = "input"}},
                    %out: memref<8xf32> {{dnn.kind = "output"}}) {{
      {body}
      func.return
    }}"""
    module = Parser(make_context(), text).parse_module()
    report = MemoryReport.of(
        module, model="m", target="cpu", memory="pool", planner="search", passes=[], forbidden=forbidden
    )
    assert sum(t.bytes for t in report.live_at_peak()) == report.max_live_bytes
    assert all(t.reason for t in report.live_at_peak())
    return {t.name: t.reason for t in report.tensors if t.reason}


def test_operands_of_the_caller():
    assert reasons(f"""
      %a = dnn.malloc : memref<8xf32>
      dnn.softmax input(%x : memref<8xf32>) outs(%a : memref<8xf32>) {{{RANGE}}}
      dnn.softmax input(%a : memref<8xf32>) outs(%out : memref<8xf32>) {{{RANGE}}}
    """) == {"a": "its operands belong to the caller"}


def test_operand_that_is_read_again():
    assert reasons(f"""
      %a = dnn.malloc : memref<8xf32>
      dnn.softmax input(%x : memref<8xf32>) outs(%a : memref<8xf32>) {{{RANGE}}}
      %b = dnn.malloc : memref<8xf32>
      dnn.softmax input(%a : memref<8xf32>) outs(%b : memref<8xf32>) {{{RANGE}}}
      dnn.elementwise ins(%a, %b : memref<8xf32>, memref<8xf32>) outs(%out : memref<8xf32>) body {{
      ^bb0(%p: f32, %q: f32):
        %s = arith.addf %p, %q : f32
        dnn.yield %s : f32
      }}
    """) == {"a": "its operands belong to the caller", "b": "a is still read by dnn.elementwise"}


def test_operand_that_is_smaller_or_read_out_of_order():
    assert reasons("""
      %a = dnn.malloc : memref<1x1x1x8xf32>
      dnn.elementwise outs(%a : memref<1x1x1x8xf32>) body {
        %one = arith.constant 1.0 : f32
        dnn.yield %one : f32
      }
      %b = dnn.malloc : memref<1x1x2x8xf32>
      dnn.pad input(%a : memref<1x1x1x8xf32>) outs(%b : memref<1x1x2x8xf32>) {
        low = array<i64: 0, 0, 1, 0>, high = array<i64: 0, 0, 0, 0>, mode = "constant", value = 0.0 : f32}
      %c = dnn.malloc : memref<1x1x2x8xf32>
      dnn.lrn input(%b : memref<1x1x2x8xf32>) outs(%c : memref<1x1x2x8xf32>) {
        size = 3 : i64, alpha = 1.0 : f64, beta = 1.0 : f64, bias = 1.0 : f64}
      %v = dnn.view %c[8] : memref<1x1x2x8xf32> -> memref<8xf32>
      dnn.copy input(%v : memref<8xf32>) outs(%out : memref<8xf32>)
    """) == {
        "b": "a is smaller (32 bytes)",
        "c": "lrn reads elements of b after it has written others",
    }


SOFTMAX_OF_SOFTMAX = f"""
    %a = dnn.malloc : memref<8xf32>
    dnn.softmax input(%x : memref<8xf32>) outs(%a : memref<8xf32>) {{{RANGE}}}
    %b = dnn.malloc : memref<8xf32>
    dnn.softmax input(%a : memref<8xf32>) outs(%b : memref<8xf32>) {{{RANGE}}}
    dnn.softmax input(%b : memref<8xf32>) outs(%out : memref<8xf32>) {{{RANGE}}}
"""


def test_operand_that_an_option_keeps_in_its_place():
    caller = "its operands belong to the caller"
    assert reasons(SOFTMAX_OF_SOFTMAX, "--no-inplace") == {"a": caller, "b": "--no-inplace was given"}


def test_buffer_of_parts_rows_and_constants():
    assert reasons(f"""
      %whole = dnn.malloc : memref<16xf32>
      %low = dnn.view %whole[0] : memref<16xf32> -> memref<8xf32>
      dnn.softmax input(%x : memref<8xf32>) outs(%low : memref<8xf32>) {{{RANGE}}}
      %high = dnn.view %whole[8] : memref<16xf32> -> memref<8xf32>
      dnn.elementwise ins(%x : memref<8xf32>) outs(%high : memref<8xf32>) body {{
      ^bb0(%p: f32):
        dnn.yield %p : f32
      }}
      %rows = dnn.malloc : memref<8xf32>
      dnn.copy input(%high : memref<8xf32>) outs(%rows : memref<8xf32>) {{keep}}
      %weights = dnn.constant dense<1.0> : tensor<8xf32> -> memref<8xf32>
      %c = dnn.malloc : memref<8xf32>
      dnn.softmax input(%weights : memref<8xf32>) outs(%c : memref<8xf32>) {{{RANGE}}}
      %none = dnn.malloc : memref<8xf32>
      dnn.elementwise outs(%none : memref<8xf32>) body {{
        %one = arith.constant 1.0 : f32
        dnn.yield %one : f32
      }}
      dnn.elementwise ins(%low, %rows, %c, %none : memref<8xf32>, memref<8xf32>, memref<8xf32>, memref<8xf32>)
        outs(%out : memref<8xf32>) body {{
      ^bb0(%p: f32, %q: f32, %r: f32, %s: f32):
        dnn.yield %p : f32
      }}
    """) == {
        "whole": "built in place by dnn.softmax, dnn.elementwise",
        "rows": "rows that the next stripe needs again",
        "c": "its operands are constants",
        "none": "it has no operands",
    }


def test_operand_of_another_type_and_in_the_output():
    assert reasons(f"""
      dnn.softmax input(%x : memref<8xf32>) outs(%out : memref<8xf32>) {{{RANGE}}}
      %a = dnn.malloc : memref<8xf32>
      dnn.softmax input(%out : memref<8xf32>) outs(%a : memref<8xf32>) {{{RANGE}}}
      %b = dnn.malloc : memref<2x4xf32>
      %v = dnn.view %a[0] : memref<8xf32> -> memref<2x4xf32, strided<[1, 2]>>
      dnn.elementwise ins(%v : memref<2x4xf32, strided<[1, 2]>>) outs(%b : memref<2x4xf32>) body {{
      ^bb0(%p: f32):
        dnn.yield %p : f32
      }}
      %f = dnn.view %b[0] : memref<2x4xf32> -> memref<8xf32>
      dnn.softmax input(%f : memref<8xf32>) outs(%out : memref<8xf32>) {{{RANGE}}}
    """) == {"a": "its operands are in outputs of the caller", "b": "a has another layout"}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_live_at_the_peak_where_control_flow_leaves_gaps(name: str):
    found = Compilation(Model(PROGRAMS[name]()), Options()).report()
    assert sum(t.bytes for t in found.live_at_peak()) == found.max_live_bytes
    assert all(t.reason and not t.reason.startswith("dnn.") for t in found.live_at_peak())
    for position, live in enumerate(found.timeline):
        buffers = [t for t in found.tensors if t.kind in ("activation", "workspace") and t.is_live(position)]
        assert sum(t.bytes for t in buffers) == live
    assert MemoryReport.from_json(found.to_json()) == found


def report(*, compare: bool = False, **options: object) -> MemoryReport:
    """Of the sum of relu(softmax(x))."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["a"], "wide"),
        helper.make_node("Relu", ["a"], ["b"], "after"),
        helper.make_node("ReduceSum", ["b"], ["y"], "sum", keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
    )
    model = Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    return Compilation(model, Options(**options)).report(compare=compare)


def test_parts_of_a_tensor_count_together():
    """Those of stripes have its name; workspaces have none of the model's, and are told by their nodes."""

    def tensor(name: str, node: str, size: int, first: int, kind: Kind = "activation") -> Tensor:
        return Tensor(name, node, size, 0, first, 5, None, kind)

    report = MemoryReport(
        *("m", "cpu", "pool", "search"),
        *(0, 0, 0, 0, 0, 0),
        peak_position=3,
        peak_node="n",
        tensors=[
            tensor("a", "n", 60, 0),
            tensor("b", "m", 100, 0),
            tensor("a", "n", 30, 2),
            tensor("a", "o", 30, 3),
            tensor("a", "p", 500, 4),
            tensor("workspace", "n", 5, 3, "workspace"),
            tensor("workspace", "m", 6, 3, "workspace"),
        ],
    )
    expected = [("a", 120), ("b", 100), ("workspace of m", 6), ("workspace of n", 5)]
    assert report.largest_at_peak(5) == expected
    assert report.largest_at_peak(1) == expected[:1]


def test_the_waterfall_ends_in_the_pool():
    size = 4 * 64 * 64
    found = report()
    steps = {step.name: step.max_live_bytes for step in found.waterfall}
    assert next(iter(steps)) == "no reuse"
    assert list(steps)[-1] == "packing"
    assert steps["no reuse"] == 2 * size + 4
    assert steps["liveness"] == 2 * size
    assert steps["views, in place"] == size
    assert steps["packing"] == found.pool_bytes == size
    assert found.order_status == "proven optimal"
    assert found.lower_bound == found.max_live_bytes == size
    assert MemoryReport.from_json(found.to_json()) == found
    for text in ("views, in place", "own memory since", "its operands belong to the caller"):
        assert text in found.to_html()


@pytest.mark.parametrize("flag", ["reorder", "fuse"])
def test_means_that_are_off_are_not_listed(flag: str):
    name = {"reorder": "order", "fuse": "fusion"}[flag]
    assert name in [step.name for step in report().waterfall]
    assert name not in [step.name for step in report(**{flag: False}).waterfall]


def convolutions(names: tuple[str, str] = ("a", "b")) -> ModelProto:
    """Two convolutions of 64 x 64 pixels, with 3, 16 and 4 channels, and a pool over 8 x 8 pixels."""
    first, second = (np.ones(shape, np.float32) for shape in ((16, 3, 3, 3), (4, 16, 3, 3)))
    nodes = [
        helper.make_node("Conv", ["x", "v"], [names[0]], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Conv", [names[0], "w"], [names[1]], "second", pads=[1, 1, 1, 1]),
        helper.make_node("MaxPool", [names[1]], ["y"], "pool", kernel_shape=[8, 8], strides=[8, 8]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 64, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 8, 8])],
        [numpy_helper.from_array(first, "v"), numpy_helper.from_array(second, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


FIRST, SECOND, POOL = 64 * 64 * 16 * 3 * 9, 64 * 64 * 4 * 16 * 9, 8 * 8 * 4 * 64
"""Multiply-accumulates of the convolutions, and what the pool reads."""

WEIGHTS = 4 * 9 * (16 * 3 + 4 * 16)
"""Bytes of both filters."""


def test_what_a_run_does():
    found = Compilation(Model(convolutions()), Options()).report()
    assert found.arithmetic == FIRST + SECOND + POOL
    assert (found.calls, found.weights_read_bytes) == (3, WEIGHTS)
    assert found.pool_bytes == 4 * 64 * 64 * (16 + 4)


def test_names_are_those_of_the_model():
    found = Compilation(Model(convolutions(("t_1", "t_2"))), Options()).report()
    assert {t.name for t in found.live_at_peak()} == {"t_1", "t_2"}
    assert [t.reason for t in found.live_at_peak()][
        1
    ] == "conv reads elements of t_1 after it has written others"


@pytest.mark.parametrize(
    ("key", "value"),
    [("pool_bytes", "1"), ("timeline", None), ("passes", 3), ("tensors", [{}]), ("model", 1), ("more", 1)],
)
def test_other_json_is_no_report(key: str, value: object):
    values = json.loads(report().to_json())
    with pytest.raises(ValueError, match="not a memory report"):
        MemoryReport.from_json(json.dumps({**values, key: value}))


@pytest.mark.parametrize("text", ["", "null", "[]", "[" * 100_000])
def test_other_text_is_no_report(text: str):
    with pytest.raises(ValueError, match="not a memory report"):
        MemoryReport.from_json(text)


def test_budgets():
    model = Model(convolutions())
    base, *others = model.memory_report(budgets=True).budgets
    assert [step.stripe_budget for step in (base, *others)] == [0, 2, 5, 10, 25]
    assert (base.pool_bytes, base.arithmetic, base.calls) == (4 * 64 * 64 * 20, FIRST + SECOND + POOL, 3)
    assert (base.extra_percent, base.weights_read_bytes) == (0, WEIGHTS)
    for step in others:
        assert step.options == f"--optimize memory --stripe-budget {step.stripe_budget:g}%"
        compilation = Compilation(model, Options(optimize="memory", stripe_budget=step.stripe_budget))
        assert step.pool_bytes == compilation.report().pool_bytes
        kernels = compilation.ir("mem").count("dnn.conv ")
        assert step.weights_read_bytes == kernels // 2 * WEIGHTS
        assert step.extra_percent == round(100 * (step.arithmetic / base.arithmetic - 1), 2)
        assert 0 <= step.extra_percent <= step.stripe_budget
    assert others[-1].pool_bytes < base.pool_bytes / 2
    assert Model(convolutions()).memory_report().budgets == []
    assert model.memory_report(memory="eager", budgets=True).budgets == []


def test_the_waterfall_says_what_stripes_cost():
    found = Compilation(Model(convolutions()), Options(optimize="memory", stripe_budget=25)).report()
    *_, outputs, stripes, packing = found.waterfall
    assert (outputs.name, outputs.max_live_bytes) == ("caller's outputs", 4 * 64 * 64 * 20)
    assert (stripes.name, stripes.max_live_bytes) == ("stripes", found.max_live_bytes)
    whole = FIRST + SECOND + POOL
    assert stripes.extra_percent == round(100 * (found.arithmetic / whole - 1), 2)
    assert (packing.name, packing.max_live_bytes) == ("packing", found.pool_bytes)


def with_budgets() -> MemoryReport:
    """A report of 4 MB at most, 3 MB at 5 % and 2.9 MB at 25 %."""
    sizes = {0: 4_000_000, 2: 3_500_000, 5: 3_000_000, 10: 3_000_000, 25: 2_900_000}
    steps = [
        BudgetStep(f"--stripe-budget {b}%", b, size, 100 + b, b / 2, 10 + b, 8) for b, size in sizes.items()
    ]
    return replace(report(), budgets=steps)


def test_advice_on_budgets():
    assert with_budgets().advice() == [
        "the next MB: --stripe-budget 5% brings it to 3,000,000 bytes at +2.50 % arithmetic and 15 calls instead of 10",
        "the lowest pool: --stripe-budget 25% brings it to 2,900,000 bytes at +12.50 % arithmetic and 35 calls "
        "instead of 10",
    ]
    flat = replace(with_budgets(), budgets=[replace(s, pool_bytes=5) for s in with_budgets().budgets])
    assert flat.advice() == ["stripes within 25 % do not lower the pool"]
    assert report().advice() == []


def test_budgets_are_shown():
    found = with_budgets()
    text = render(found, 10)
    for fact in ("3,500,000", "+12.50 %", "the next MB: "):
        assert fact in text
        assert fact in found.to_html()
    assert found._repr_html_() in found.to_html()
    svg = ElementTree.fromstring(budget_curve(found))
    circles = svg.findall("circle")
    # 160 units are 4 MB, 360 are 25 %, the origin is at (80, 170).
    assert [float(c.get("cx", "")) for c in circles] == pytest.approx([80, 108.8, 152, 224, 440])
    assert [float(c.get("cy", "")) for c in circles] == pytest.approx([10, 30, 50, 50, 54])
    assert MemoryReport.from_json(found.to_json()) == found


def test_modes():
    """Of the sum of relu(softmax(x)): a, b of 16 KiB and the sum of 4 bytes; lazily, copies of what is read."""
    size = 4 * 64 * 64
    modes = report_of_modes()
    assert [mode.name for mode in modes.values()] == ["eager", "lazy", "liveness", "original's pool", "pool"]
    found = {name: mode.bytes for name, mode in modes.items()}
    assert (found["eager"], found["liveness"]) == (2 * size + 4, 2 * size)
    assert (found["original's pool"], found["pool"]) == (2 * size, size)
    assert found["lazy"] > found["eager"]
    assert (modes["eager"].allocations, modes["pool"].allocations) == (3, 0)
    text = render(replace(report(), modes=list(modes.values())), 10)
    assert "first fit, nothing in place" in text


def report_of_modes() -> dict[str, ModeStep]:
    found = report(compare=True)
    for mode in ("eager", "lazy", "pool"):
        assert report(memory=mode).pool_bytes == {m.name: m.bytes for m in found.modes}[mode]
    return {mode.name: mode for mode in found.modes}
