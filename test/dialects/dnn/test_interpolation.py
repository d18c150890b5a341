"""`resize_taps` against ONNX's reference implementation of Resize."""

import itertools

import numpy as np
import pytest
from onnx.reference.ops.op_resize import Resize

from occamy_xdsl.dialects.dnn.interpolation import resize_taps

TRANSFORMATIONS = ["half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric", "pytorch_half_pixel"]
NEAREST = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
SIZES = [(4, 8, None), (4, 3, 0.8), (5, 7, None), (7, 5, 5 / 7), (6, 6, None), (3, 10, 3.4), (8, 4, None)]


def expected(x, mode, transformation, nearest, a, exclude, scale):
    (y,) = Resize._run(
        None,
        x,
        None,
        scales=np.array([scale]),
        coordinate_transformation_mode=transformation,
        cubic_coeff_a=a,
        exclude_outside=exclude,
        extrapolation_value=0.0,
        keep_aspect_ratio_policy="stretch",
        mode=mode,
        nearest_mode=nearest,
    )
    return y


@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("size", SIZES)
def test_agrees_with_the_onnx_reference(transformation, size):
    in_size, out_size, scale = size
    scale = scale or out_size / in_size
    x = np.random.default_rng(0).standard_normal(in_size)
    cases = [("nearest", nearest, False) for nearest in NEAREST]
    cases += [
        (mode, "floor", exclude) for mode, exclude in itertools.product(("linear", "cubic"), (False, True))
    ]
    for mode, nearest, exclude in cases:
        indices, weights = resize_taps(mode, transformation, nearest, -0.5, exclude, scale, in_size, out_size)
        got = (x[indices] * weights).sum(axis=1)
        want = expected(x, mode, transformation, nearest, -0.5, exclude, scale)
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12, err_msg=f"{mode} {nearest} {exclude}")


def test_equal_size_has_one_tap():
    indices, weights = resize_taps("cubic", "half_pixel", "floor", -0.75, False, 1.0, 5, 5)
    assert indices.tolist() == [[0], [1], [2], [3], [4]]
    assert (weights == 1).all()


def test_a_single_output_of_pytorch_half_pixel_is_the_first_element():
    indices, weights = resize_taps("cubic", "pytorch_half_pixel", "floor", -0.75, False, 0.25, 4, 1)
    assert indices.tolist() == [[0]]
    assert weights.tolist() == [[1]]


def test_ties_round_as_the_mode_says():
    coordinates_at_half = ("nearest", "asymmetric")
    floor, _ = resize_taps(*coordinates_at_half, "round_prefer_floor", -0.75, False, 2.0, 2, 4)
    ceil, _ = resize_taps(*coordinates_at_half, "round_prefer_ceil", -0.75, False, 2.0, 2, 4)
    assert floor[:, 0].tolist() == [0, 0, 1, 1]
    assert ceil[:, 0].tolist() == [0, 1, 1, 1]
