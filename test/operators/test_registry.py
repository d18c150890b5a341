"""The operator table, and what is refused before any node is looked at."""

import onnx.defs
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func
from xdsl.parser import Parser

from occamy_xdsl.dialects.onnx import Onnx
from occamy_xdsl.errors import InvalidInputError
from occamy_xdsl.operators import all_operators, find_operator
from occamy_xdsl.transforms.onnx_infer_shapes import OnnxInferShapesPass


def parsed(text: str) -> ModuleOp:
    context = Context()
    for dialect in (Builtin, Func, Onnx):
        context.load_dialect(dialect)
    return Parser(context, text).parse_module()


def test_entries_are_onnx_operators() -> None:
    known = {(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas_with_history()}
    operators = all_operators()
    assert len(operators) > 150
    assert {(entry.domain, entry.name) for entry in operators} <= known


@pytest.mark.parametrize(
    ("name", "boundary"),
    [
        ("Softmax", 13),
        ("ReduceSum", 13),
        ("ReduceMax", 18),
        ("Clip", 11),
        ("Slice", 10),
        ("Pad", 11),
        ("Split", 13),
    ],
)
def test_ranges_end_where_the_meaning_changes(name: str, boundary: int) -> None:
    old, new = find_operator("", name, boundary - 1), find_operator("", name, boundary)
    assert old is not None
    assert new is not None
    assert (old.until, new.since) == (boundary - 1, boundary)
    assert old.rule is not new.rule


def test_unknown_operators_have_no_entry() -> None:
    assert find_operator("", "TopK", 11) is None
    assert find_operator("com.microsoft", "Conv", 1) is None
    assert find_operator("", "Mod", 9) is None  # new in opset 10


def test_unbound_dimensions_are_listed_with_the_option_that_binds_them() -> None:
    module = parsed(
        """
        func.func @main(%a: tensor<?x3x?xf32> {onnx.name = "a", onnx.dim_params = ["batch", "", "width"]},
                        %b: tensor<?x3xf32> {onnx.name = "b"}, %c: tensor<*xf32> {onnx.name = "c"}) {
          func.return
        }
        """
    )
    with pytest.raises(InvalidInputError) as caught:
        OnnxInferShapesPass().apply(Context(), module)
    assert str(caught.value).splitlines() == [
        "unbound dimensions",
        "input 'a' is batchx3xwidth: give --dim batch=N --dim width=N",
        "input 'b' is ?x3: give --shape b:Nx3",
        "input 'c' has no shape: give one as in --shape c:1x3x8x8",
    ]
