"""Valid models arrive whole and without their weights being read; every other is refused in one clear line a fact."""

import random
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import onnx.defs
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from xdsl.context import Context
from xdsl.dialects.builtin import Builtin, ModuleOp
from xdsl.dialects.func import Func, FuncOp
from xdsl.parser import Parser
from xdsl.printer import Printer

from occamy_xdsl.dialects import onnx as dialect
from occamy_xdsl.dialects.weights import WeightsDialect, to_array
from occamy_xdsl.errors import InvalidInputError, InvalidModelError, OccamyError, UnsupportedModelError
from occamy_xdsl.importer import import_model

LIGHT = sorted((Path(onnx.backend.test.__file__).parent / "data/light").glob("*.onnx"))
node = helper.make_node


def value(name: str, shape: Sequence[int | str | None] | None = (3,), type: int = TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, type, shape)


def tensor(name: str, array: Any) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array), name)


def graph(
    nodes: Sequence[NodeProto], inputs: Sequence[Any], outputs: Sequence[Any], **rest: Any
) -> GraphProto:
    return helper.make_graph(nodes, "g", inputs, outputs, **rest)


def model(
    nodes: Sequence[NodeProto],
    inputs: Sequence[Any] = (value("x"),),
    outputs: Sequence[Any] = (value("y"),),
    initializer: Sequence[TensorProto] = (),
    opsets: Sequence[tuple[str, int]] = (("", 18),),
    functions: Sequence[Any] = (),
    **rest: Any,
) -> ModelProto:
    made = helper.make_model(
        graph(nodes, inputs, outputs, initializer=initializer, **rest),
        opset_imports=[helper.make_opsetid(*opset) for opset in opsets],
        functions=functions,
    )
    made.ir_version = 10
    return made


def context() -> Context:
    made = Context()
    for loaded in (Builtin, Func, WeightsDialect, dialect.Onnx):
        made.load_dialect(loaded)
    return made


def text(module: ModuleOp, *, generic: bool = False) -> str:
    from io import StringIO

    stream = StringIO()
    Printer(stream, print_generic_format=generic).print_op(module)
    return stream.getvalue()


def check_round_trip(module: ModuleOp, where: Context) -> None:
    module.verify()
    is_small = len(operations(module)) < 300  # parsing the generic format takes a millisecond an operation
    for generic in (False, True) if is_small else (False,):
        printed = text(module, generic=generic)
        back = Parser(where, printed).parse_module()
        back.verify()
        assert text(back, generic=generic) == printed


def function(module: ModuleOp) -> FuncOp:
    (found,) = module.ops
    assert isinstance(found, FuncOp)
    return found


def operations(module: ModuleOp) -> list[dialect.OnnxOp]:
    return [op for op in module.walk() if isinstance(op, dialect.OnnxOp)]


def constants(module: ModuleOp) -> dict[str, np.ndarray]:
    found = [op for op in operations(module) if op.name == "onnx.Constant"]
    return {op.node_name: to_array(op.properties["value"], op.results[0].type) for op in found}


# ---- Models of the world


def files(shared: Path) -> Iterator[Path]:
    yield from sorted((shared / "models/files").glob("*.onnx"))
    yield from sorted((shared / "cases/memory").glob("*.onnx"))
    yield from sorted((shared / "cases/open").glob("*/model.onnx"))


def check_against_proto(path: Path, module: ModuleOp) -> None:
    """Operators, their attributes and names, and the bits of all weights, as the onnx package reads them."""
    proto = onnx.load(path)
    nodes = [n for n in proto.graph.node if n.op_type != "Constant"]
    top = [op for op in function(module).body.block.ops if op.name not in ("onnx.NoValue", "func.return")]
    ops = [op for op in top if op.name != "onnx.Constant"]
    if len(ops) == len(nodes):
        pairs = list(zip(ops, nodes, strict=True))
    else:  # nodes that ONNX defines as functions were expanded: the others are still there by name
        by_name = {op.node_name: op for op in ops}
        expanded = {n.op_type for n in nodes if n.name and n.name not in by_name}
        assert all(onnx.defs.get_schema(op_type).has_function for op_type in expanded)
        pairs = [(by_name[n.name], n) for n in nodes if n.name in by_name]
        assert len(pairs) > len(nodes) / 2
    for op, n in pairs:
        if isinstance(op, dialect.CustomOp):
            assert (op.function_name, op.domain_name) == (n.op_type, n.domain)
            continue
        assert isinstance(op, dialect.OnnxOp)
        assert op.schema.name == n.op_type
        assert op.node_name.startswith(n.name or n.op_type)
        for attribute in n.attribute:
            stated = helper.get_attribute_value(attribute)
            if isinstance(stated, bytes):
                assert op.attr(attribute.name) == stated.decode()
            elif isinstance(stated, list):
                assert list(op.attr(attribute.name)) == stated
            elif isinstance(stated, int | float):
                assert op.attr(attribute.name) == stated
    tensors = [(t.name, t) for t in proto.graph.initializer]
    tensors += [(n.name, n.attribute[0].t) for n in proto.graph.node if n.op_type == "Constant" and n.name]
    arrays = [(name, numpy_helper.to_array(t).tobytes()) for name, t in tensors]
    for op in top:
        if op.name == "onnx.Constant" and not op.node_name.startswith("Constant_"):
            array = to_array(op.properties["value"], op.results[0].type)
            assert (op.node_name, array.tobytes()) in arrays


def test_models_of_others_arrive_whole(shared: Path):
    where = context()
    for path in files(shared):
        module = import_model(path, allow_custom=True, expand_functions=False)
        check_round_trip(module, where)
        check_against_proto(path, module)


@pytest.mark.parametrize("path", LIGHT, ids=lambda path: path.stem)
def test_light_nets_arrive_whole(path: Path):
    module = import_model(path)
    check_round_trip(module, context())
    check_against_proto(path, module)


@pytest.fixture(scope="module")
def node_models() -> list[tuple[str, ModelProto]]:
    import warnings

    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [(case.name, case.model) for case in load_model_tests(kind="node")]


def check_node_models(models: Sequence[tuple[str, ModelProto]]) -> None:
    where = context()
    for name, proto in models:
        try:
            module = import_model(proto)
        except OccamyError as e:
            raise AssertionError(name) from e
        check_round_trip(module, where)
        assert "onnx.Unknown" not in text(module), name


def test_a_sample_of_onnx_node_tests(node_models: list[tuple[str, ModelProto]]):
    assert len(node_models) > 1800
    check_node_models(node_models[::20])


@pytest.mark.slow
def test_all_onnx_node_tests(node_models: list[tuple[str, ModelProto]]):
    check_node_models(node_models)


# ---- What arrives


def test_signature_names_opset_and_locations():
    proto = model(
        [node("Neg", ["in put"], ["a"]), node("Relu", ["a"], ["y"], name="last")],
        [value("in put", ("N", 3, None))],
        [value("y", ("N", 3, None))],
        opsets=[("", 17), ("ai.onnx.ml", 3)],
    )
    module = import_model(proto)
    main = function(module)
    assert str(module.attributes["onnx.opset"]) == "{ai.onnx = 17 : i64, ai.onnx.ml = 3 : i64}"
    assert str(main.function_type) == "(tensor<?x3x?xf32>) -> tensor<?x3x?xf32>"
    assert main.arg_attrs is not None
    assert str(main.arg_attrs.data[0]) == '{onnx.name = "in put", onnx.dim_params = ["N", "", ""]}'
    assert [op.node_name for op in operations(module)] == ["Neg_0", "last"]


def test_paths_bytes_and_objects_give_the_same(tmp_path: Path):
    w = np.arange(600, dtype=np.float32).reshape(200, 3)
    proto = model(
        [node("Add", ["x", "w"], ["y"])], outputs=[value("y", (200, 3))], initializer=[tensor("w", w)]
    )
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    modules = [import_model(given) for given in (path, str(path), path.read_bytes(), proto)]
    assert len({text(module) for module in modules}) == 1
    for module in modules:
        assert constants(module)["w"].tolist() == w.tolist()


def test_importing_reads_no_weights(tmp_path: Path):
    w = np.ones((1024, 4096), np.float32)
    proto = model(
        [
            node("MatMul", ["x", "w"], ["a"]),
            node("Constant", [], ["c"], value=tensor("", w[0])),
            node("Add", ["a", "c"], ["y"]),
        ],
        [value("x", (1, 1024))],
        [value("y", (1, 4096))],
        [tensor("w", w)],
    )
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    import_model(path)
    tracemalloc.start()
    module = import_model(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < w.nbytes / 50
    assert constants(module)["w"].shape == w.shape


@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize(
    "type", sorted(set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED, TensorProto.STRING})
)
def test_weights_of_every_type(type: int, raw: bool):
    rng = np.random.default_rng(0)
    dtype = helper.tensor_dtype_to_np_dtype(type)
    array = rng.integers(0, 2, (5, 601)).astype(dtype)
    made = (
        numpy_helper.from_array(array, "w")
        if raw
        else helper.make_tensor("w", type, array.shape, array.ravel().tolist())
    )
    proto = model([], [], [value("w", (5, 601), type)], [made], [("", 28)])
    for given in (proto, proto.SerializeToString()):
        found = constants(import_model(given))["w"]
        assert found.dtype == array.dtype
        assert found.tobytes() == numpy_helper.to_array(made).tobytes()


def test_strings_arrive():
    proto = model(
        [node("Identity", ["w"], ["y"]), node("Constant", [], ["z"], value_strings=["p", "q"])],
        [],
        [value("y", (2,), TensorProto.STRING), value("z", (2,), TensorProto.STRING)],
        [tensor("w", np.array(["a", "é"], object))],
    )
    assert [list(array) for array in constants(import_model(proto)).values()] == [["a", "é"], ["p", "q"]]


def test_constants_given_by_any_attribute_are_tensors():
    given = {"value_int": 3, "value_ints": [1, 2], "value_float": 0.5, "value_floats": [1.0, np.inf]}
    proto = model(
        [node("Constant", [], [name], name=name, **{name: of}) for name, of in given.items()],
        [],
        [
            value(n, np.shape(of), TensorProto.INT64 if "int" in n else TensorProto.FLOAT)
            for n, of in given.items()
        ],
    )
    found = constants(import_model(proto))
    assert {name: array.tolist() for name, array in found.items()} == given
    assert found["value_ints"].dtype == np.int64
    assert found["value_float"].dtype == np.float32


def test_initializer_that_is_an_input_is_a_constant():
    proto = model(
        [node("Add", ["x", "w"], ["y"])],
        [value("x"), value("w")],
        initializer=[tensor("w", np.float32([1, 2, 3]))],
    )
    module = import_model(proto)
    assert len(function(module).body.block.args) == 1
    assert constants(module)["w"].tolist() == [1, 2, 3]


def test_initializer_and_input_that_are_outputs():
    proto = model([], outputs=[value("w"), value("x")], initializer=[tensor("w", np.float32([1, 2, 3]))])
    returned = function(import_model(proto)).body.block.last_op
    assert returned is not None
    assert returned.operands[0].owner.name == "onnx.Constant"
    assert returned.operands[1] is function(returned.parent_op().parent_op()).body.block.args[0]


def test_empty_names_are_absent():
    proto = model(
        [node("Clip", ["x", "", "hi"], ["c"]), node("Dropout", ["c", "", ""], ["y", ""])],
        initializer=[tensor("hi", np.float32(1))],
    )
    clip, dropout = (op for op in operations(import_model(proto)) if op.name != "onnx.Constant")
    assert clip.operand("min") is None
    assert clip.operand("max") is not None
    assert (len(dropout.operands), len(dropout.results)) == (1, 1)


def test_branches_capture_and_keep_their_own_constants():
    def branch(op: str, k: float) -> GraphProto:
        return graph(
            [node(op, ["x2", "k"], ["r"])],
            [],
            [value("r")],
            initializer=[tensor("k", np.full(99, k, np.float32))],
        )

    proto = model(
        [
            node("Add", ["x", "x"], ["x2"]),
            node("If", ["c"], ["y"], name="if", then_branch=branch("Mul", 2), else_branch=branch("Sub", 3)),
        ],
        [value("x", (99,)), value("c", (), TensorProto.BOOL)],
        [value("y", (99,))],
    )
    module = import_model(proto)
    check_round_trip(module, context())
    add = function(module).body.block.first_op
    assert add is not None
    found = next(o for o in operations(module) if o.name == "onnx.If")
    keys = [o.properties["value"].data.key for o in operations(module) if o.name == "onnx.Constant"]
    assert keys == ["if/then_branch/k", "if/else_branch/k"]
    for name, of in (("then_branch", 2), ("else_branch", 3)):
        region = found.region(name)
        assert region is not None
        constant, binary, end = region.block.ops
        assert binary.operands[0] is add.results[0]
        assert to_array(constant.properties["value"], constant.results[0].type)[0] == of
        assert end.name == "onnx.Yield"


def test_nodes_of_one_name_do_not_share_weights():
    def branch(k: float) -> GraphProto:
        k_tensor = tensor("k", np.full(99, k, np.float32))
        return graph([node("Add", ["x", "k"], ["r"])], [], [value("r")], initializer=[k_tensor])

    proto = model(
        [
            node("If", ["c"], ["a"], name="if", then_branch=branch(1), else_branch=branch(2)),
            node("If", ["c"], ["y"], name="if", then_branch=branch(3), else_branch=branch(4)),
        ],
        [value("x", (99,)), value("c", (), TensorProto.BOOL)],
        [value("y", (99,))],
    )
    refs = [
        op.properties["value"].data for op in operations(import_model(proto)) if op.name == "onnx.Constant"
    ]
    assert len({ref.key for ref in refs}) == 4
    assert [ref.array()[0] for ref in refs] == [1, 2, 3, 4]


def test_constants_of_the_outer_graph_used_inside_dominate_later_uses():
    inner = graph([node("Add", ["x", "w"], ["r"])], [], [value("r")])
    proto = model(
        [node("If", ["c"], ["a"], then_branch=inner, else_branch=inner), node("Add", ["a", "w"], ["y"])],
        [value("x"), value("c", (), TensorProto.BOOL)],
        initializer=[tensor("w", np.float32([1, 2, 3]))],
    )
    names = [op.name for op in function(import_model(proto)).body.block.ops]
    assert names == ["onnx.Constant", "onnx.If", "onnx.Add", "func.return"]


def test_untyped_loop_bodies_take_the_types_of_the_operands():
    untyped = [helper.make_empty_tensor_value_info(n) for n in ("i", "go", "s")]
    body = graph(
        [node("Identity", ["go"], ["go2"]), node("Neg", ["s"], ["s2"])],
        untyped,
        [helper.make_empty_tensor_value_info(n) for n in ("go2", "s2")],
    )
    proto = model(
        [node("Loop", ["n", "", "x"], ["y"], body=body)], [value("x"), value("n", (), TensorProto.INT64)]
    )
    (loop,) = (op for op in operations(import_model(proto)) if op.name == "onnx.Loop")
    types = [str(arg.type) for arg in loop.regions[0].block.args]
    assert types == ["tensor<*xi64>", "tensor<*xi1>", "tensor<*xf32>"]


def test_local_functions_are_inlined():
    body = helper.make_function(
        "mine", "Twice", ["a"], ["b"], [node("Add", ["a", "a"], ["b"])], [helper.make_opsetid("", 18)]
    )
    proto = model(
        [node("Twice", ["x"], ["t"], domain="mine"), node("Twice", ["t"], ["y"], domain="mine")],
        opsets=[("", 18), ("mine", 1)],
        functions=[body],
    )
    assert [op.name for op in operations(import_model(proto))] == ["onnx.Add", "onnx.Add"]


def test_nodes_out_of_order_are_sorted_with_a_warning():
    proto = model([node("Relu", ["b"], ["y"]), node("Abs", ["a"], ["b"]), node("Neg", ["x"], ["a"])])
    with pytest.warns(UserWarning, match="not in topological order"):
        module = import_model(proto)
    assert [op.node_name for op in operations(module)] == ["Neg_2", "Abs_1", "Relu_0"]
    check_round_trip(module, context())


def test_sequences_optionals_and_sparse_constants_arrive():
    sparse = helper.make_sparse_tensor(tensor("s", np.float32([5])), tensor("i", np.int64([2])), [4])
    sequence = helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, [3])
    proto = model(
        [
            node("SequenceConstruct", ["x", "x"], ["q"]),
            node("Constant", [], ["c"], sparse_value=sparse),
            node("Optional", ["x"], ["o"]),
            node("OptionalGetElement", ["o"], ["y"]),
        ],
        outputs=[sequence, value("c", (4,)), value("y")],
    )
    module = import_model(proto)
    check_round_trip(module, context())
    assert (
        str(function(module).function_type)
        == "(tensor<3xf32>) -> (!onnx.Seq<tensor<3xf32>>, tensor<4xf32>, tensor<3xf32>)"
    )


def test_a_custom_operator_arrives_where_allowed():
    proto = model(
        [node("Foo", ["x"], ["a"], domain="com.example", k=3), node("Relu", ["a"], ["y"])],
        opsets=[("", 18), ("com.example", 1)],
    )
    module = import_model(proto, allow_custom=True)
    check_round_trip(module, context())
    custom = function(module).body.block.first_op
    assert isinstance(custom, dialect.CustomOp)
    assert (custom.function_name, custom.domain_name) == ("Foo", "com.example")


@pytest.mark.parametrize(("op", "ok"), [("Relu", True), ("Exp", True), ("Add", False)])
def test_older_opsets_are_accepted_where_nothing_changed(op: str, ok: bool):
    proto = model([node(op, ["x"] if ok else ["x", "x"], ["y"], name="old")], opsets=[("", 6)])
    if ok:
        assert operations(import_model(proto))[0].schema.name == op
    else:
        with pytest.raises(UnsupportedModelError, match=r"node 'old'.*opset 6; opsets from 7"):
            import_model(proto)


# ---- Shapes and dimensions


DYNAMIC = model(
    [node("Add", ["x", "z"], ["y"])],
    [value("x", ("N", "M", 3)), value("z", ("N", 1, None))],
    [value("y", ("N", "M", 3))],
)


def test_dimensions_are_bound_by_name_and_by_shape():
    by_name = function(import_model(DYNAMIC, dims={"N": 2, "M": 5}))
    assert str(by_name.function_type) == "(tensor<2x5x3xf32>, tensor<2x1x?xf32>) -> tensor<2x5x3xf32>"
    by_shape = function(import_model(DYNAMIC, {"x": (2, 5, 3), "z": (2, 1, 3)}))
    assert str(by_shape.function_type) == "(tensor<2x5x3xf32>, tensor<2x1x3xf32>) -> tensor<2x5x3xf32>"


def test_an_input_without_a_shape_takes_any():
    proto = model([node("Relu", ["x"], ["y"])], [value("x", None)], [value("y", None)])
    assert (
        str(function(import_model(proto, {"x": (4, 5)})).function_type)
        == "(tensor<4x5xf32>) -> tensor<*xf32>"
    )


@pytest.mark.parametrize(
    ("shapes", "dims", "fact"),
    [
        ({"w": (1,)}, {}, "no input 'w'; the model's are: x, z"),
        ({}, {"K": 1}, "no dimension 'K'; the model's are: M, N"),
        ({"x": (1, 2)}, {}, "input 'x' has 3 dimensions, got 2: 1x2"),
        ({"x": (1, 0, 3)}, {}, "input 'x': dimensions must be positive, got 1x0x3"),
        ({"x": (1, -1, 3)}, {}, "input 'x': dimensions must be positive, got 1x-1x3"),
        ({}, {"N": 0}, "dimension 'N' must be positive, got 0"),
        ({"x": (1, 2, 4)}, {}, "input 'x': dimension 2 is 3 in the model, got 4"),
        ({"x": (1, 2, 3), "z": (2, 1, 3)}, {}, "input 'z': dimension 'N' is 1 elsewhere, got 2"),
        ({"x": (1, 2, 3)}, {"N": 4}, "input 'x': dimension 'N' is 4 elsewhere, got 1"),
    ],
)
def test_wrong_shapes_and_dimensions(shapes: dict[str, tuple[int, ...]], dims: dict[str, int], fact: str):
    with pytest.raises(InvalidInputError) as error:
        import_model(DYNAMIC, shapes, dims)
    assert str(error.value) == fact
    assert error.value.exit_code == 2


# ---- Refusals


def refused(proto: Any, *facts: str, error: type[OccamyError] = InvalidModelError) -> OccamyError:
    with pytest.raises(error) as found:
        import_model(proto)
    lines = str(found.value).splitlines()
    assert len(lines) == len(facts)
    for line, fact in zip(lines, facts, strict=True):
        assert fact in line
    return found.value


def test_all_unknown_operators_are_listed():
    inner = graph([node("Baz", ["x"], ["r"], name="n3")], [], [value("r")])
    proto = model(
        [
            node("Foo", ["x"], ["a"], name="n1"),
            node("Bar", ["x"], ["b"], domain="zz", name="n2"),
            node("If", ["c"], ["y"], then_branch=inner, else_branch=inner, name="if"),
            node("Gelu", ["x"], ["d"], name="n4"),
            node("Qux", ["x"], ["e"], domain="not.imported"),
        ],
        [value("x"), value("c", (), TensorProto.BOOL)],
        opsets=[("", 18), ("zz", 1)],
    )
    error = refused(
        proto,
        "node 'n1' (Foo): no such operator in domain 'ai.onnx' (opset 18)",
        "node 'n2' (zz.Bar): no such operator in domain 'zz'",
        "node 'n3' (Baz): no such operator",
        "node 'n3' (Baz): no such operator",
        "node 'n4' (Gelu): new in opset 20 of 'ai.onnx', the model imports 18",
        "node 'Qux_4' (not.imported.Qux): domain 'not.imported' is not imported",
        error=UnsupportedModelError,
    )
    assert isinstance(error, UnsupportedModelError)
    assert [(name, op) for name, op, _ in error.nodes][:2] == [("n1", "Foo"), ("n2", "zz.Bar")]
    assert error.exit_code == 3


@pytest.mark.parametrize("version", [0, -1, 1000])
def test_opset_out_of_range(version: int):
    refused(
        model([node("Relu", ["x"], ["y"])], opsets=[("", version)]),
        f"opset {version} is not",
        error=UnsupportedModelError,
    )


def test_missing_and_contradicting_opsets():
    refused(model([node("Relu", ["x"], ["y"])], opsets=[]), "no opset of ai.onnx is imported")
    refused(
        model([node("Relu", ["x"], ["y"])], opsets=[("", 18), ("ai.onnx", 17)]), "imported in two versions"
    )


TWICE = "value '{}' is defined twice"
BROKEN_GRAPHS = [
    (
        [node("Neg", ["x"], ["a"]), node("Abs", ["x"], ["a"], name="n")],
        "node 'n' (Abs): " + TWICE.format("a"),
    ),
    ([node("Neg", ["x"], ["x"], name="n")], "node 'n' (Neg): " + TWICE.format("x")),
    ([node("Neg", ["x"], ["w"], name="n")], "node 'n' (Neg): " + TWICE.format("w")),
    ([node("Neg", ["q"], ["y"], name="n")], "node 'n' (Neg): value 'q' is defined nowhere"),
    ([node("Add", ["b", "x"], ["a"]), node("Neg", ["a"], ["b"])], "depends on its own output"),
    ([node("Neg", ["x"], ["a"])], "output 'y' is produced by no node"),
    ([node("Relu", ["x"], ["y"], alpha=1.0)], "(Relu): 'onnx.Relu' op has no attribute 'alpha' (C4)"),
    ([node("Cast", ["x"], ["y"])], "(Cast): 'onnx.CastV13' op needs attribute 'to' (C6)"),
    ([node("Concat", ["x"], ["y"], axis=0.5)], "'onnx.Concat' op attribute 'axis' is an i64"),
    ([node("Add", ["x"], ["y"])], "'onnx.Add' op number of operands must be 2, got 1 (C1)"),
    ([node("Add", ["x", "i"], ["y"])], "'onnx.Add' op operand 'B' has the element type of 'A'"),
    ([node("Constant", [], ["y", "z"], value_int=1)], "number of results must be 1, got 2 (C3)"),
    ([node("Constant", ["x"], ["y"], value_int=1)], "number of operands must be 0, got 1 (C1)"),
    ([node("Constant", [], ["y"], foo=tensor("", np.float32(1)))], "has no attribute 'foo' (C4)"),
    ([node("Constant", [], ["y"])], "(Constant): 'onnx.Constant' op has one value, got 0 (C10)"),
]


@pytest.mark.filterwarnings("ignore:.*not in topological order")
@pytest.mark.parametrize(("nodes", "fact"), BROKEN_GRAPHS)
def test_broken_graphs(nodes: Sequence[NodeProto], fact: str):
    w = tensor("w", np.float32([1, 2, 3]))
    refused(model(nodes, [value("x"), value("i", (3,), TensorProto.INT64)], initializer=[w]), fact)


def test_all_broken_nodes_are_listed():
    refused(
        model([node("Cast", ["x"], ["a"], name="n1"), node("Cast", ["x"], ["y"], name="n2")]),
        "node 'n1' (Cast)",
        "node 'n2' (Cast)",
    )


def test_outputs_listed_twice_and_contradicting_declarations():
    refused(
        model([node("Neg", ["x"], ["y"])], outputs=[value("y"), value("y")]), "output 'y' is listed twice"
    )
    refused(
        model([], outputs=[value("x", (4,))]),
        "output 'x' is declared tensor<4xf32>, its value is tensor<3xf32>",
    )
    refused(model([node("Neg", ["x"], ["y"])], [value("x"), value("x")]), "value 'x' is defined twice")
    w = tensor("w", np.float32([1]))
    refused(model([node("Neg", ["w"], ["y"])], initializer=[w, w]), "initializer 'w' is defined twice")


def test_branch_that_returns_an_outer_value():
    then = graph([], [], [value("x")])
    other = graph([node("Neg", ["x"], ["e"])], [], [value("e")])
    proto = model(
        [node("If", ["c"], ["y"], name="if7", then_branch=then, else_branch=other)],
        [value("x"), value("c", (), TensorProto.BOOL)],
    )
    refused(
        proto,
        "subgraph 'if7/then_branch': output 'x' is computed outside of it; put an Identity node in between",
    )


def broken(name: str, **fields: Any) -> TensorProto:
    made = tensor("w", np.arange(3, dtype=np.float32))
    for key, of in fields.items():
        if key == "dims":
            del made.dims[:]
            made.dims.extend(of)
        else:
            setattr(made, key, of)
    return made


@pytest.mark.parametrize(
    ("fields", "fact"),
    [
        ({"raw_data": b"1234567"}, "tensor 'w': 7 bytes of data, its type needs 12"),
        ({"dims": [-1]}, "tensor 'w': negative dimension in [-1]"),
        ({"dims": [2**40]}, "tensor 'w': 12 bytes of data, its type needs 4398046511104"),
        ({"data_type": 99}, "tensor 'w': unknown element type 99"),
        ({"data_type": TensorProto.STRING, "raw_data": bytes(24)}, "tensor 'w': strings cannot be raw data"),
    ],
)
def test_broken_tensors(fields: dict[str, Any], fact: str):
    refused(model([node("Add", ["x", "w"], ["y"])], initializer=[broken("w", **fields)]), fact)


def test_typed_data_of_the_wrong_length():
    made = helper.make_tensor("w", TensorProto.FLOAT, [3], [1, 2, 3])
    made.float_data.append(4)
    refused(model([node("Add", ["x", "w"], ["y"])], initializer=[made]), "tensor 'w': 4 values in float_data")


# ---- External data


@pytest.fixture
def external(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    w = tensor("w", np.arange(64 * 3, dtype=np.float32).reshape(64, 3))
    proto = model([node("Add", ["x", "w"], ["y"])], outputs=[value("y", (64, 3))], initializer=[w])
    path = folder / "m.onnx"
    onnx.save_model(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def relocate(path: Path, **entries: str) -> Path:
    proto = onnx.load(path, load_external_data=False)
    (made,) = proto.graph.initializer
    old = {entry.key: entry.value for entry in made.external_data}
    del made.external_data[:]
    for key, of in (old | entries).items():
        made.external_data.add(key=key, value=of)
    path.write_bytes(proto.SerializeToString())
    return path


def test_external_data_is_read_when_asked_for(external: Path):
    module = import_model(external)
    assert constants(module)["w"].tolist() == np.arange(64 * 3.0).reshape(64, 3).tolist()


def test_external_data_at_an_offset(external: Path):
    data = (external.parent / "w.bin").read_bytes()
    (external.parent / "w.bin").write_bytes(b"12345" + data)
    relocate(external, offset="5")
    assert constants(import_model(external))["w"][63].tolist() == [189, 190, 191]


def test_external_data_missing_short_or_outside(external: Path, tmp_path: Path):
    data = external.parent / "w.bin"
    for location in ("../w.bin", "/etc/hostname", "", "sub/../../w.bin"):
        relocate(external, location=location)
        refused(external, f"tensor 'w': external data file '{location}' is not inside the model's folder")
    (tmp_path / "secret").write_bytes(data.read_bytes())
    (external.parent / "link").symlink_to(tmp_path / "secret")
    relocate(external, location="link")
    refused(external, "tensor 'w': external data file 'link' is not inside the model's folder")
    relocate(external, location="w.bin", offset="4")
    refused(
        external, "tensor 'w': external data file 'w.bin' is too short: bytes 4 to 772 wanted, it has 768"
    )
    relocate(external, offset="0", length="4")
    refused(external, "tensor 'w': 4 bytes of external data in 'w.bin', its type needs 768")
    relocate(external, offset="none")
    refused(external, "tensor 'w': offset and length of its external data are no numbers")
    relocate(external, offset="0", length="768")
    data.unlink()
    refused(external, "tensor 'w': external data file 'w.bin' is missing")
    refused(external.read_bytes(), "tensor 'w': its data is in file 'w.bin'; give the model as a path")


# ---- Files that are no models


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (b"", "the file is empty"),
        (b"\x00" * 100, "not an ONNX model"),
        (b"\xff" * 100, "not an ONNX model"),
        (b"#!/bin/sh\necho no model\n", "not an ONNX model"),
        (random.Random(0).randbytes(5000), "not an ONNX model"),
        (b"\x08\x08", "it has no graph"),
    ],
)
def test_files_that_are_no_models(tmp_path: Path, content: bytes, fact: str):
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    error = refused(path, fact)
    assert str(error).startswith(f"{path}: ")


def test_missing_files_and_folders(tmp_path: Path):
    for path, fact in ((tmp_path / "absent.onnx", "No such file"), (tmp_path, "directory")):
        with pytest.raises(InvalidInputError, match=fact):
            import_model(path)


def seed_model() -> bytes:
    index, go = value("i", (), TensorProto.INT64), value("go", (), TensorProto.BOOL)
    body = graph(
        [node("Identity", ["go"], ["go2"]), node("Add", ["s", "w"], ["s2"])],
        [index, go, value("s")],
        [value("go2", (), TensorProto.BOOL), value("s2")],
    )
    return model(
        [
            node("Conv", ["im", "k"], ["f"], name="conv", pads=[1, 1, 1, 1], auto_pad="NOTSET"),
            node("Loop", ["n", "", "x"], ["y"], body=body, name="loop"),
        ],
        [value("x"), value("n", (), TensorProto.INT64), value("im", (1, 1, "H", 8))],
        [value("y"), value("f", (1, 9, "H", 8))],
        [tensor("w", np.float32([1, 2, 3])), tensor("k", np.ones((9, 1, 6, 6), np.float32))],
    ).SerializeToString()


def test_every_truncation_is_refused_or_whole():
    data = seed_model()
    for length in range(len(data)):
        with pytest.raises(OccamyError):
            import_model(data[:length])


def test_damaged_models_are_refused_or_imported():
    data, rng = seed_model(), random.Random(1)
    outcomes = {True: 0, False: 0}
    for _ in range(1500):
        damaged = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(data))] = rng.randrange(256)
        try:
            import_model(bytes(damaged))
            outcomes[True] += 1
        except OccamyError:
            outcomes[False] += 1
    assert all(count > 100 for count in outcomes.values())


# ---- Speed


def test_a_thousand_nodes_take_less_than_a_second():
    nodes = [node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(1000)]
    proto = model(nodes, [value("v0")], [value("v1000")])
    start = time.process_time()
    module = import_model(proto)
    text(module)
    assert time.process_time() - start < 1
    assert len(operations(module)) == 1000


def test_a_graph_without_outputs_is_refused():
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    model = helper.make_model(helper.make_graph([], "empty", [value], []))
    refused(model, "the graph has no outputs")
