"""Values from the command line and comparison of outputs."""

from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from occamy_xdsl.errors import InvalidInputError
from occamy_xdsl.lowering.signature import ELEMENT_TYPES, TensorSpec
from occamy_xdsl.runtime.bind import compare, parse_expectations, parse_inputs, random_tensor

X = TensorSpec("x", "float32", (2, 3))
B = TensorSpec("b:0", "int64", ())
SPECS = (X, B)


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("x=1.5", np.full((2, 3), 1.5, np.float32)),
        ("x:2x3xf32=1,2,3,4,5,6", np.arange(1, 7, dtype=np.float32).reshape(2, 3)),
        ("x:2x3xfloat32=[[1 2 3], [4 5 -6e1]]", np.array([[1, 2, 3], [4, 5, -60]], np.float32)),
        ("x=nan", np.full((2, 3), np.nan, np.float32)),
        ("b:0=7", np.array(7)),
        ("b:0:i64=-0x10", np.array(-16)),
        ("b:0:int64=9223372036854775807", np.array(2**63 - 1)),
    ],
)
def test_numbers(option: str, expected: np.ndarray) -> None:
    (value,) = parse_inputs([option], SPECS).values()
    np.testing.assert_array_equal(value, expected, strict=True)


def test_truth_values() -> None:
    spec = TensorSpec("m", "bool", (4,))
    value = parse_inputs(["m:4xi1=true,0,False,1"], [spec])["m"]
    np.testing.assert_array_equal(value, np.array([True, False, False, True]), strict=True)


def test_longest_name_wins() -> None:
    specs = [
        TensorSpec("a", "float32", ()),
        TensorSpec("a:0", "float32", ()),
        TensorSpec("a=b", "float32", ()),
    ]
    values = parse_inputs(["a:0=1", "a=b=2", "a:f32=3"], specs)
    assert values == {"a:0": 1, "a=b": 2, "a": 3}


def test_files(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3), np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(x))
    (tmp_path / "x.pb").write_bytes(onnx.numpy_helper.from_array(x, "x").SerializeToString())
    for name in ("x.npy", "fortran.npy", "x.pb"):
        value = parse_inputs([f"x=@{tmp_path / name}"], SPECS)["x"]
        np.testing.assert_array_equal(value, x, strict=True)
        assert value.flags.c_contiguous
    np.testing.assert_array_equal(parse_expectations([f"x:2x3xf32=@{tmp_path}/x.pb"], SPECS)["x"], x)


def test_bfloat16_files(tmp_path: Path) -> None:
    spec, x = TensorSpec("x", "bfloat16", (3,)), np.array([1, -2, 0.5], ml_dtypes.bfloat16)
    np.save(tmp_path / "x.npy", x)
    tensor = onnx.helper.make_tensor("x", onnx.TensorProto.BFLOAT16, [3], [1, -2, 0.5])
    (tmp_path / "x.pb").write_bytes(tensor.SerializeToString())
    for name in ("x.npy", "x.pb"):
        value = parse_inputs([f"x=@{tmp_path / name}"], [spec])["x"]
        np.testing.assert_array_equal(value, x, strict=True)


def test_random_values() -> None:
    values = parse_inputs(["random:3"], SPECS)
    assert set(values) == {"x", "b:0"}
    again = parse_inputs(["b:0=random:3", "x=random:3"], SPECS)
    other = parse_inputs(["random:4", "b:0=5"], SPECS)
    np.testing.assert_array_equal(values["x"], again["x"])
    assert values["b:0"] == again["b:0"]
    assert other["b:0"] == 5
    assert not np.array_equal(values["x"], other["x"])
    # Inputs of one type and shape differ from each other.
    twins = parse_inputs(["random:0"], [TensorSpec("a", "float32", (9,)), TensorSpec("b", "float32", (9,))])
    assert not np.array_equal(twins["a"], twins["b"])


@pytest.mark.parametrize("dtype", ELEMENT_TYPES)
def test_random_values_of_every_type(dtype: str) -> None:
    value = random_tensor(TensorSpec("x", dtype, (50, 40)), 0, 0)
    assert (value.dtype, value.shape) == (ELEMENT_TYPES[dtype].numpy, (50, 40))
    assert random_tensor(TensorSpec("x", dtype, ()), 0, 0).shape == ()
    numbers = value.astype(np.float64)
    if value.dtype.kind in "iu" and value.dtype.itemsize > 1:
        assert set(np.unique(numbers)) == set(range(10))
    elif value.dtype.kind not in "biu":
        assert abs(numbers.mean()) < 0.1
        assert 0.9 < numbers.std() < 1.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["z=1"], "'z=1' gives no value to any input, the inputs are: x, b:0; forms: "),
        (["x"], "'x' gives no value to any input"),
        (["x:2x3xf32"], "'x:2x3xf32' has no value; forms: "),
        (["x:3x2xf32=0"], "'x:3x2xf32=0': expected float32[2,3]"),
        (["x:2x3xf64=0"], "'x:2x3xf64=0': expected float32[2,3]"),
        (["x:2x3xfoo=0"], "'x:2x3xfoo=0': 'foo' is no element type"),
        (["x=1,2"], "'x=1,2': 2 values, expected one or all of float32[2,3]"),
        (["x="], "'x=': 0 values, expected one or all of float32[2,3]"),
        (["x=one"], "'x=one': not values of type float32: 'one'"),
        (["b:0=1.5"], "'b:0=1.5': not values of type int64: '1.5'"),
        (["b:0=9223372036854775808"], "'b:0=9223372036854775808': not values of type int64"),
        (["x=0", "x=1"], "input 'x' is given twice"),
        (["x=random:-1"], "'x=random:-1': the seed must be a non-negative integer, got '-1'"),
        (["random:"], "'random:': the seed must be a non-negative integer, got ''"),
        (["x=@none.npy"], "none.npy: No such file or directory"),
        (["x=@none.pb"], "none.pb: No such file or directory"),
    ],
)
def test_refuses(options: list[str], message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_inputs(options, SPECS)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_refuses_files(tmp_path: Path) -> None:
    np.save(tmp_path / "double.npy", np.zeros((2, 3)))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "double.npy").read_bytes()[:100])
    np.save(tmp_path / "object.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "text.npy").write_text("text")
    (tmp_path / "text.pb").write_text("text")
    (tmp_path / "empty.pb").write_bytes(b"")
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(InvalidInputError) as caught:
            parse_inputs([f"x=@{path}"], SPECS)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)
    with pytest.raises(InvalidInputError, match=r"npy: 'x': expected float32\[2,3\], got float64\[2,3\]"):
        parse_inputs([f"x=@{tmp_path}/double.npy"], SPECS)


def test_expectations_name_outputs() -> None:
    with pytest.raises(
        InvalidInputError, match="'z=1' gives no value to any output, the outputs are: x, b:0"
    ):
        parse_expectations(["z=1"], SPECS)


def test_compare_agrees_with_numpy() -> None:
    random = np.random.default_rng(5)
    verdicts: set[bool] = set()
    for case in range(200):
        want = random.choice([0.0, 1.0, -3.0, np.nan, np.inf, -np.inf, 1e-6], (3, 4)).astype(np.float32)
        got = want.copy()
        if case % 2:
            got.flat[case % 12] = random.choice([np.nan, np.inf, 0.0, 1.001, -3.002])
        got = got * np.float32(1 + random.choice([0, 1e-4, 1e-2]))
        rtol, atol = random.choice([0, 1e-3]), random.choice([0, 1e-5])
        result = compare("y", got, want, rtol, atol)
        close = np.isclose(got, want, rtol, atol, equal_nan=True)
        assert result.mismatches == np.count_nonzero(~close), (got, want)
        assert result.elements == 12
        assert result.worst is None or not close[result.worst]
        verdicts.add(result.equal)
    assert verdicts == {True, False}


def test_compare_reports() -> None:
    result = compare("y", np.array([[1.0, 2.0], [3.5, 4.0]]), np.array([[1.0, 2.0], [3.0, 5.0]]))
    assert (result.max_difference, result.max_relative, result.worst) == (1.0, 0.2, (1, 1))
    assert str(result) == (
        "output 'y': 2 of 4 elements differ, max difference 1 (0.2 of the largest value), worst at [1,1]"
    )
    same = compare("y", np.zeros((0, 2)), np.zeros((0, 2)))
    assert str(same) == "output 'y': equal, max difference 0 (0 of the largest value)"
    assert np.isnan(compare("y", np.array([np.nan, 1]), np.array([1.0, 1])).max_difference)
    assert compare("y", np.array(1.0), np.array(0.0)).max_relative == np.inf


def test_compare_integers_exactly() -> None:
    large = np.array([2**62, -(2**63), 5])
    assert compare("n", large, large, 0, 0).equal
    assert compare("n", large + 1, large, 0, 0).mismatches == 3
    assert compare("n", np.array([-(2**63)]), np.array([2**63 - 1]), 0, 0).max_difference == 2.0**64
    assert compare("n", np.array([100], np.uint8), np.array([101], np.uint8), 0.01, 0).equal
    assert not compare("m", np.array([True, False]), np.array([True, True])).equal


def test_compare_refuses_other_shapes() -> None:
    with pytest.raises(InvalidInputError, match=r"output 'y': shape \(2,\), expected value has \(3,\)"):
        compare("y", np.zeros(2), np.zeros(3))
