"""The memory report: why buffers need memory of their own, and what each means of lowering the peak gives."""

import pytest
from onnx import TensorProto, helper
from xdsl.parser import Parser

from occamy_xdsl.compiler import Compilation, Model, make_context
from occamy_xdsl.pipelines import Options
from occamy_xdsl.report.memory import MemoryReport

RANGE = "axis = 0 : i64, log = false"


def reasons(body: str) -> dict[str, str]:
    """The reason for each buffer that is live at the peak of a function with inputs x, y and output out."""
    text = f"""
    func.func @main(%x: memref<8xf32> {{dnn.kind = "input"}}, %y: memref<8xf32> {{dnn.kind = "input"}},
                    %out: memref<8xf32> {{dnn.kind = "output"}}) {{
      {body}
      func.return
    }}"""
    module = Parser(make_context(), text).parse_module()
    report = MemoryReport.of(module, model="m", target="cpu", memory="pool", planner="search", passes=[])
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


def report(**options: object) -> MemoryReport:
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
    return Compilation(model, Options(**options)).report()


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
