"""Resize kernels against ONNX's reference implementation and ONNX Runtime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from occamy_xdsl.lowering.cpu.kernels.resize import Resize
from occamy_xdsl.lowering.cpu.kernels.spec import NUMPY_TYPES, Buffer

dense = Buffer.contiguous


def channels_last(shape, dtype: str = "f32") -> Buffer:
    _, c, h, w = shape
    return Buffer(tuple(shape), (c * h * w, 1, w * c, c), dtype)


def make(
    shape,
    out,
    mode="linear",
    transformation="half_pixel",
    nearest="round_prefer_floor",
    exclude=False,
    layout=channels_last,
    out_layout=None,
    dtype="f32",
):
    scales = tuple(o / i for o, i in zip(out, shape, strict=True))
    target = (out_layout or layout)(out, dtype)
    return Resize(mode, transformation, nearest, -0.75, exclude, scales, layout(shape, dtype), target)  # fmt: skip


def model(k: Resize) -> onnx.ModelProto:
    helper = onnx.helper
    node = helper.make_node(
        "Resize", ["x", "", "", "sizes"], ["y"], mode=k.mode, nearest_mode=k.nearest_mode, cubic_coeff_a=-0.75,
        coordinate_transformation_mode=k.coordinate_transformation_mode, exclude_outside=int(k.exclude_outside),
    )  # fmt: skip
    info = [helper.make_tensor_value_info("x", 1, k.input.shape), helper.make_tensor_value_info("y", 1, None)]
    sizes = helper.make_tensor("sizes", onnx.TensorProto.INT64, [k.output.rank], k.output.shape)
    graph = helper.make_graph([node], "g", info[:1], info[1:], [sizes])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


CASES = [
    make((1, 19, 5, 6), (1, 19, 10, 12), "nearest", "asymmetric", "floor"),
    make((2, 3, 5, 6), (2, 3, 10, 18), "nearest", "asymmetric", "floor", layout=dense),
    make((1, 3, 5, 6), (1, 3, 10, 12), "nearest", "asymmetric", "floor", layout=dense, out_layout=channels_last),
    make((1, 19, 5, 6), (1, 19, 7, 4), "nearest"),
    make((1, 2, 5, 6), (1, 2, 7, 40), "nearest", "half_pixel", "ceil", layout=dense),
    make((1, 19, 5, 6), (1, 19, 10, 12)),
    make((1, 19, 5, 6), (1, 19, 5, 9), "linear", "align_corners"),
    make((1, 3, 5, 6), (1, 3, 10, 37), layout=dense),
    make((1, 3, 8, 8), (1, 3, 4, 5), "linear", "pytorch_half_pixel", layout=dense),
    make((1, 19, 5, 6), (1, 19, 8, 9), "cubic"),
    make((1, 5, 6, 7), (1, 5, 9, 3), "cubic", "half_pixel", exclude=True),
    make((1, 2, 5, 6), (1, 2, 8, 19), "cubic", "asymmetric", layout=dense),
    make((3, 7), (3, 11), layout=dense),
    make((2, 2, 3, 4, 5), (2, 2, 6, 5, 9), layout=dense),
    make((1, 2, 3, 5), (1, 2, 4, 1), "linear", "pytorch_half_pixel", layout=dense),
    make((1, 2, 3, 5), (1, 2, 1, 2), "linear", "pytorch_half_pixel", layout=dense),
    make((1, 2, 5, 3), (1, 2, 4, 2), "nearest", "asymmetric", "floor"),
]  # fmt: skip


def values(k: Resize) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(k.input.shape).astype(NUMPY_TYPES[k.input.dtype])


def test_against_the_reference(isa, run):
    calls = [(k, [values(k), *k.tables]) for k in CASES]
    raw = [(k, [x.view(NUMPY_TYPES[k.arguments[0].dtype]), *tables]) for k, (x, *tables) in calls]
    for (k, (x, *_)), got in zip(calls, run(raw, isa), strict=True):
        (want,) = ReferenceEvaluator(model(k)).run(None, {"x": x})
        np.testing.assert_allclose(got.view(np.float32), want, rtol=1e-5, atol=2e-6, err_msg=k.symbol)


def test_integer_repetition_needs_no_table():
    assert [k.tables for k in CASES[:3]] == [(), (), ()]
    assert len(CASES[3].tables) == 1
    assert len(CASES[5].tables) == 2


@pytest.mark.parametrize("number", [0, 5, 6, 9])
def test_against_onnx_runtime(isa, run, number):
    k = CASES[number]
    x = values(k)
    session = onnxruntime.InferenceSession(model(k).SerializeToString(), providers=["CPUExecutionProvider"])
    (want,) = session.run(None, {"x": x})
    (got,) = run([(k, [x.view(NUMPY_TYPES[k.arguments[0].dtype]), *k.tables])], isa)
    np.testing.assert_allclose(got.view(np.float32), want, rtol=1e-4, atol=1e-5)


def test_other_types(isa, run):
    half = make((1, 9, 4, 4), (1, 9, 8, 8), dtype="f16")
    double = make((1, 9, 4, 4), (1, 9, 7, 8), dtype="f64")
    bytes_ = make((1, 9, 4, 4), (1, 9, 7, 6), "nearest", dtype="ui8")
    x = np.random.default_rng(0).integers(0, 100, half.input.shape)
    got = run(
        [(k, [x.astype(NUMPY_TYPES[k.arguments[0].dtype]), *k.tables]) for k in (half, double, bytes_)], isa
    )
    for k, y in zip((half, double, bytes_), got, strict=True):
        (want,) = ReferenceEvaluator(model(k)).run(None, {"x": x.astype(np.float32)})
        np.testing.assert_allclose(y.astype(np.float64), want, rtol=1e-3, err_msg=k.symbol)
