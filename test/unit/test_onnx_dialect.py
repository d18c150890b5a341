"""The dialect says of every operator what the schemas of the onnx package say."""

import re
from pathlib import Path

import onnx.defs
import pytest
from onnx import TensorProto
from onnx.helper import get_attribute_value
from xdsl.dialects.builtin import NoneType, TensorType, f32, i64
from xdsl.traits import Pure
from xdsl.utils.test_value import create_ssa_value

from occamy_xdsl.dialects import onnx as dialect
from occamy_xdsl.dialects.onnx import Onnx, find_op, op_class

INVALID = Path(__file__).parents[1] / "dialects/onnx/invalid.mlir"
SCHEMAS = [schema for schema in onnx.defs.get_all_schemas_with_history() if not schema.deprecated]


@pytest.mark.parametrize("op", [dialect.OnnxOp, dialect.CustomOp])
def test_each_stated_constraint_is_broken_once(op: type):
    stated = set(re.findall(r"^\s*- (\(C\d+\))", op.__doc__, re.MULTILINE))
    custom = op is dialect.CustomOp
    checks = [line for line in INVALID.read_text().splitlines() if line.startswith("// CHECK")]
    own = [
        line for line in checks if not re.search("Yield'|NoValue'", line) and ("Custom'" in line) == custom
    ]
    assert stated == set(re.findall(r"(\(C\d+\))", "\n".join(own)))


def test_every_version_of_every_operator_has_a_class_with_its_signature():
    assert len(SCHEMAS) > 600
    for schema in SCHEMAS:
        found = find_op(schema.domain, schema.name, schema.since_version)
        assert found is not None, schema.name
        for old, new in ((schema.inputs, found.schema.inputs), (schema.outputs, found.schema.outputs)):
            assert [(p.name, p.option) for p in old] == [(p.name, p.option) for p in new]
            assert all(a.types <= b.types for a, b in zip(old, new, strict=True))
        stated = {name: (a.type, a.required, a.default_value) for name, a in schema.attributes.items()}
        found_attributes = found.schema.attributes
        assert stated == {n: (a.type, a.required, a.default_value) for n, a in found_attributes.items()}


def test_names_are_unique_and_those_of_the_newest_carry_no_version():
    names = [op.name for op in Onnx.operations]
    assert len(names) == len(set(names))
    for schema in onnx.defs.get_all_schemas():
        if not schema.deprecated:
            assert op_class(schema.name) is find_op(schema.domain, schema.name, schema.since_version)


@pytest.mark.parametrize(
    ("name", "opset", "expected"),
    [
        ("Softmax", 12, "onnx.SoftmaxV11"),
        ("Softmax", 13, "onnx.Softmax"),
        ("BatchNormalization", 9, "onnx.BatchNormalizationV9"),
        ("Conv", 1, "onnx.Conv"),
        ("Upsample", 11, "onnx.Upsample"),
        ("Gelu", 19, None),
        ("GroupNormalization", 17, None),
        ("GroupNormalization", 20, "onnx.GroupNormalizationV18"),
        ("GroupNormalization", 21, "onnx.GroupNormalization"),
        ("NoSuchOperator", 20, None),
    ],
)
def test_dispatch_on_opset(name: str, opset: int, expected: str | None):
    found = find_op("", name, opset)
    assert (found and found.name) == expected


def test_attributes_come_as_python_with_the_schemas_defaults():
    x = create_ssa_value(TensorType(f32, [1, 1, 4, 4]))
    pool = op_class("MaxPool").make(
        [x], [TensorType(f32, [1, 1, 2, 2])], kernel_shape=(2, 2), auto_pad="SAME_UPPER"
    )
    assert pool.attr("kernel_shape") == (2, 2)
    assert pool.attr("auto_pad") == "SAME_UPPER"
    assert pool.attr("ceil_mode") == 0
    assert pool.attr("pads", (0, 0, 0, 0)) == (0, 0, 0, 0)
    assert pool.attr("pads") is None
    with pytest.raises(KeyError):
        pool.attr("alpha")
    assert "ceil_mode" not in pool.properties


def test_defaults_are_those_of_the_schemas():
    for op in list(Onnx.operations):
        if not issubclass(op, dialect.OnnxOp):
            continue
        made = op.create()
        for name, attribute in op.schema.attributes.items():
            default = attribute.default_value
            if default.type == onnx.AttributeProto.UNDEFINED:
                assert made.attr(name) is None
                continue
            expected = get_attribute_value(default)
            got = made.attr(name)
            if isinstance(expected, bytes):
                assert got == expected.decode()
            elif isinstance(expected, list):
                assert list(got) == [e.decode() if isinstance(e, bytes) else e for e in expected]
            else:
                assert got == expected


def test_operands_and_results_by_formal_name():
    x, s = create_ssa_value(TensorType(f32, [2, 3])), create_ssa_value(TensorType(f32, [2]))
    none = dialect.NoValueOp.make()
    resize = op_class("Resize").make([x, none.results[0], s], [TensorType(f32, [4, 6])])
    assert resize.operand("X") is x
    assert resize.operand("roi") is None
    assert resize.operand("scales") is s
    assert resize.operand("sizes") is None
    assert resize.result("Y") is resize.results[0]
    with pytest.raises(KeyError):
        resize.operand("W")
    concat = op_class("Concat").make([x, x, x], [TensorType(f32, [6, 3])], axis=0)
    assert concat.variadic_operand("inputs") == (x, x, x)
    dropout = op_class("Dropout").make([x], [TensorType(f32, [2, 3]), NoneType()])
    assert dropout.result("mask") is None


def test_element_types_are_those_of_tensor_proto():
    numbers = set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}
    for number in numbers:
        element = dialect.element_type(number)
        assert dialect.data_type(element) == number
        name = dialect.type_name(TensorType(element, [1]))
        assert name is not None
        assert dialect.type_name(dialect.type_named(name)) == name
    known = {name for schema in SCHEMAS for p in [*schema.inputs, *schema.outputs] for name in p.types}
    tensors = {name for name in known if name.startswith("tensor(")}
    assert tensors == {dialect.type_name(TensorType(dialect.element_type(n), [])) for n in numbers}


def test_only_random_generators_are_impure():
    impure = {
        schema.name
        for schema in onnx.defs.get_all_schemas()
        if not schema.deprecated
        and not op_class(schema.name).has_trait(Pure)
        and not op_class(schema.name).region_names
    }
    assert impure == {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }


def test_then_comes_before_else():
    assert op_class("If").region_names == ("then_branch", "else_branch")
    assert dialect.IfOp is op_class("If")
    with pytest.raises(AttributeError):
        _ = dialect.NoSuchOp


def test_result_types_follow_type_variables_and_type_attributes():
    x = create_ssa_value(TensorType(f32, [2, 3]))
    assert str(op_class("Relu").result_types_of([x], {}, 1)[0]) == "tensor<*xf32>"
    assert str(op_class("Shape").result_types_of([x], {}, 1)[0]) == "tensor<*xi64>"
    to = dialect.to_attribute(onnx.defs.OpSchema.AttrType.INT, TensorProto.INT64)
    assert str(op_class("Cast").result_types_of([x], {"to": to}, 1)[0]) == "tensor<*xi64>"
    sequence = op_class("SequenceEmpty").result_types_of([], {"dtype": to}, 1)[0]
    assert sequence == dialect.SeqType(dialect.type_named("tensor(int64)"))
    assert i64 == dialect.element_type(TensorProto.INT64)
