"""Weights are read when asked for, kept by no one, and survive text and files bit for bit."""

import gc
import json
import weakref
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from xdsl.context import Context
from xdsl.dialects.builtin import ArrayAttr, Builtin, DenseIntOrFPElementsAttr, ModuleOp, TensorType
from xdsl.parser import Parser

from occamy_xdsl.dialects import onnx, weights
from occamy_xdsl.dialects.weights import Weights, WeightsFile, WeightsRefAttr, dense_or_ref, to_array
from occamy_xdsl.errors import InvalidInputError

FLOATS = [0.0, -0.0, 1.5, -np.inf, np.nan, 1e-7, 123456789.0, 1 / 3]
FLOAT8S = [0.0, -1.5, np.nan, 2**-6, 32.0]
TINY_FLOATS = [0.0, -0.0, -1.5, 0.5, 4.0]
NUMBERS = {
    "bool": [0, 1],
    **{f"int{n}": [-(2 ** (n - 1)), -1, 0, 2 ** (n - 1) - 1] for n in (2, 4, 8, 16, 32, 64)},
    **{f"uint{n}": [0, 1, 2 ** (n - 1), 2**n - 1] for n in (2, 4, 8, 16, 32, 64)},
    **{name: FLOATS for name in ("float16", "float32", "float64", "bfloat16", "complex64", "complex128")},
    **{f"float8_{name}": FLOAT8S for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz")},
    "float8_e8m0fnu": [1.0, 2.0**-100, np.nan],
    **{name: TINY_FLOATS for name in ("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn")},
}


def dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def parse(text: str):
    context = Context()
    for dialect in (Builtin, weights.WeightsDialect, onnx.Onnx):
        context.load_dialect(dialect)
    return Parser(context, text).parse_attribute()


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid:RuntimeWarning")
def test_small_tensors_survive_text(name: str):
    array = np.array(NUMBERS[name]).astype(dtype(name))
    shaped = (
        array,
        array[:1].reshape(()),
        array.reshape(-1, 1),
        np.full((2, 3), array[-1]),
        array[:0].reshape(0, 3),
    )
    for value in shaped:
        attr = dense_or_ref(value, "k")
        if value.size == 0 or (np.isfinite(value.astype(complex)).all() and name.startswith("int")):
            assert isinstance(attr, DenseIntOrFPElementsAttr)
        type = TensorType(weights.element_type(value.dtype), value.shape)
        assert parse(str(type)) == type
        back = parse(str(attr))
        assert back == attr
        assert same_bits(to_array(attr, type), value)
        assert same_bits(to_array(back, type), value)


def test_strings_survive_text():
    array = np.array([["a", ""], ['"\\\n', "é"]], object)
    attr = parse(str(dense_or_ref(array, "k")))
    assert isinstance(attr, ArrayAttr)
    assert to_array(attr, TensorType(onnx.StringType(), [2, 2])).tolist() == array.tolist()


def test_keys_survive_text():
    attr = WeightsRefAttr(Weights('a/b:0 "é"\n'))
    assert parse(str(attr)) == attr


@pytest.mark.parametrize(
    ("type", "most"), [(np.int64, 64), (np.uint8, 64), (np.bool_, 64), (np.float32, 8), (np.float16, 8)]
)
def test_only_small_tensors_are_inline(type: type, most: int):
    assert isinstance(dense_or_ref(np.ones(most, type), "k"), DenseIntOrFPElementsAttr)
    assert dense_or_ref(np.ones(most + 1, type), "k") == WeightsRefAttr(Weights("k"))


def test_large_weights_are_not_read_to_make_the_attribute():
    def fail():
        raise AssertionError("read")

    attr = dense_or_ref(Weights("k", np.dtype(np.float32), (9,), fail))
    assert str(attr) == '#weights.ref<"k">'


def test_equality_and_hash_are_by_key():
    a, b = Weights.of(np.zeros(3), "k"), Weights.of(np.ones(3), "k")
    assert a == b
    assert hash(a) == hash(b)
    assert a != Weights.of(np.zeros(3), "l")
    assert WeightsRefAttr(a) == WeightsRefAttr(b)


def test_derived_is_lazy_recomputed_and_not_kept():
    calls = []

    def double(x: np.ndarray) -> np.ndarray:
        calls.append(1)
        return x * 2

    base = Weights.of(np.arange(4.0), "w")
    derived = Weights.derived("double", double, base, dtype=np.dtype(np.float64), shape=(4,))
    assert (derived.key, derived.shape, derived.nbytes, calls) == ("double(w)", (4,), 32, [])
    first = derived.array()
    assert first.tolist() == [0, 2, 4, 6]
    assert derived.array() is first, "shared while someone holds it"
    gone = weakref.ref(first)
    del first
    gc.collect()
    assert gone() is None
    assert derived.array().tolist() == [0, 2, 4, 6]
    assert len(calls) == 2


def test_derived_without_stated_type_tells_it():
    derived = Weights.derived("t", np.transpose, Weights.of(np.zeros((2, 5), np.int8), "w"))
    assert derived.shape == (5, 2)
    assert derived.dtype == np.int8


def test_long_keys_become_a_hash_of_label_and_inputs():
    long = Weights.of(np.zeros(1), "x" * 200)
    a, b = Weights.derived("f", np.negative, long), Weights.derived("f", np.negative, long)
    assert a.key == b.key
    assert len(a.key) < 100
    assert Weights.derived("g", np.negative, long).key != a.key
    assert Weights.derived("f", np.negative, Weights.of(np.zeros(1), "x" * 201)).key != a.key


def test_keys_with_commas_do_not_run_into_each_other():
    def zeros(key: str) -> Weights:
        return Weights.of(np.zeros(1), key)

    apart = [
        Weights.derived("f", np.add, zeros("a, b")),
        Weights.derived("f", np.add, zeros("a"), zeros("b")),
        Weights.derived("f", np.add, Weights.derived("g", np.add, zeros("a"), zeros("b"))),
        Weights.derived("f", np.add, zeros("g(a, b)")),
    ]
    assert len({weights.key for weights in apart}) == len(apart)
    assert apart[2].key == "f(g(a, b))"


def test_references_inside_of_attributes_are_found():
    ref = WeightsRefAttr(Weights("v"))
    sparse = onnx.SparseAttr(ref, WeightsRefAttr(Weights("i")), TensorType(onnx.element_type(1), [4]))
    op = onnx.op_class("Constant").make([], [sparse.type], sparse_value=sparse)
    assert {found.key for found in weights.references(ModuleOp([op]))} == {"v", "i"}


def test_splat_occupies_one_element():
    splat = Weights.splat(1.5, np.dtype(np.float32), (1000, 1000, 1000))
    assert splat.nbytes == 4 * 10**9
    assert splat.splat_value == 1.5
    array = splat.array()
    assert array.strides == (0, 0, 0)
    assert array[999, 0, 1] == 1.5


def test_reference_from_text_has_no_data():
    attr = parse('#weights.ref<"conv1.weight">')
    assert isinstance(attr, WeightsRefAttr)
    assert not attr.data.has_data
    with pytest.raises(InvalidInputError, match=r"'conv1\.weight': data not loaded.*--weights"):
        attr.data.array()


def module_of(*items: Weights) -> ModuleOp:
    op = onnx.op_class("Constant")
    return ModuleOp(
        [
            op.make(
                [], [TensorType(weights.element_type(w.dtype), w.shape)], value=WeightsRefAttr(Weights(w.key))
            )
            for w in items
        ]
    )


def test_file_keeps_every_type_and_is_read_on_demand(tmp_path: Path):
    rng = np.random.default_rng(0)
    items = [
        Weights.of(rng.integers(0, 2, (3, 5)).astype(dtype(name)), f"w {name}")
        for name in NUMBERS
        if not name.startswith("complex")
    ]
    items.append(Weights.of(np.zeros((0, 4), np.float32), "empty"))
    path = tmp_path / "w.safetensors"
    WeightsFile.save(path, items)
    module = module_of(*items)
    WeightsFile.load(path).attach(module)
    found = {w.key: w for w in weights.references(module)}
    assert len(found) == len(items)
    for item in items:
        assert same_bits(found[item.key].array(), item.array()), item.key


def test_file_is_safetensors(tmp_path: Path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    path = tmp_path / "w.safetensors"
    WeightsFile.save(path, [Weights.of(array, "a"), Weights.of(np.array([7], np.int8), "b")])
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert json.loads(raw[8 : 8 + length]) == {
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "I8", "shape": [1], "data_offsets": [24, 25]},
    }
    assert (8 + length) % 8 == 0
    assert raw[8 + length :] == array.tobytes() + b"\x07"


def test_unknown_keys_stay_without_data_and_wrong_types_are_refused(tmp_path: Path):
    path = tmp_path / "w"
    WeightsFile.save(path, [Weights.of(np.zeros(9, np.float32), "a")])
    module = module_of(Weights.of(np.zeros(9, np.float32), "a"), Weights.of(np.zeros(9, np.float32), "z"))
    WeightsFile.load(path).attach(module)
    a, z = weights.references(module)
    assert a.has_data
    assert not z.has_data
    with pytest.raises(
        InvalidInputError, match=r"'a': the data is float32\[9\], the program wants int8\[9\]"
    ):
        to_array(WeightsRefAttr(a), TensorType(weights.element_type(np.dtype(np.int8)), [9]))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 7,
        b"\xff" * 100,
        (2).to_bytes(8, "little") + b"[]",
        (9).to_bytes(8, "little") + b'{"a": {}}',
    ],
)
def test_broken_files_are_refused(tmp_path: Path, content: bytes):
    path = tmp_path / "w"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match="not a weights file"):
        WeightsFile.load(path)


def test_truncated_file_is_refused(tmp_path: Path):
    path = tmp_path / "w"
    WeightsFile.save(path, [Weights.of(np.zeros(9, np.float32), "a")])
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InvalidInputError, match="not a weights file"):
        WeightsFile.load(path)
    with pytest.raises(InvalidInputError, match="No such file"):
        WeightsFile.load(tmp_path / "absent")
