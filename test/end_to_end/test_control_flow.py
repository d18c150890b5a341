"""Compiled control flow computes what ONNX Runtime does, whichever way it goes, and never reads a stale byte."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from control_flow import PROGRAMS, inputs_of
from onnx.parser import parse_model

import occamy_xdsl.compiler as oc
from occamy_xdsl.errors import UnsupportedModelError
from occamy_xdsl.pipelines import Options

VARIANTS = {
    "default": {},
    "lazy": {"memory": "lazy"},
    "stream": {"stream_weights": True},
}


def check(program: str, **options: object) -> None:
    model = PROGRAMS[program]()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    executable = oc.compile(model, **options)
    for seed in range(6):
        inputs = inputs_of(seed)
        outputs = executable.run(inputs, poison=executable.signature.memory == "pool")
        for want, got in zip(session.run(None, inputs), outputs.values(), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * abs(want).max() + 1e-7)


@pytest.mark.parametrize("variant", VARIANTS)
def test_images_and_every_kind_of_memory(variant: str):
    check("images", **VARIANTS[variant])


@pytest.mark.parametrize("program", ["changes_places", "loops_in_loops", "random_0"])
def test_same_as_onnxruntime(program: str):
    check(program)


def test_a_loop_is_compiled_once_for_any_number_of_iterations(shared: Path):
    """`n` times a = a @ a / 512: one pool, of less than two matrices, however long the loop runs."""
    path = shared / "cases/memory/m15_loop.onnx"
    executable = oc.compile(path)
    assert executable.pool_bytes <= 2 * 512 * 512 * 4
    # A permutation times 512 stays one, so that nothing grows, vanishes or is rounded.
    start = np.random.default_rng(0).permutation(512)
    for count in (0, 1, 10, 300):
        order = start
        for _ in range(count):
            order = order[order]
        a, want = ((512 * np.eye(512)[rows]).astype(np.float32) for rows in (start, order))
        outputs = executable.run({"n": np.array(count, np.int64), "x": a}, poison=True)
        np.testing.assert_array_equal(outputs["y"], want)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    inputs = {
        "n": np.array(2, np.int64),
        "x": np.random.default_rng(1).standard_normal((512, 512), np.float32),
    }
    (want,) = session.run(None, inputs)
    np.testing.assert_allclose(executable.run(inputs)["y"], want, rtol=1e-3, atol=1e-4 * abs(want).max())


def test_profiles_time_control_flow_as_a_whole(shared: Path):
    executable = oc.compile(shared / "cases/memory/m15_loop.onnx", profile=True)
    outputs = executable.run({"n": np.array(2, np.int64), "x": np.eye(512, dtype=np.float32)})
    names = [kernel for _, kernel in executable.compilation.kernels()]
    assert names.count("scf.while") == 1
    assert len(outputs[oc.CLOCK]) == len(names) + 1


SCAN_OF_DECLARED_ROWS = """
<ir_version: 8, opset_import: ["": 18]>
g (int64 n, bool go, float[1] y) => (float[1] last, float[5, 1] rows) {
   last, rows = Loop (n, go, y) <body: graph = b (int64 i, bool c, float[1] a) => (bool c2, float[1] d, float[1] row) {
      c2 = Identity (c)
      x = Constant <value: tensor = float[5] {1, 2, 3, 4, 5}> ()
      axis = Constant <value: tensor = int64[1] {0}> ()
      one = Constant <value: tensor = int64 {1}> ()
      end = Add (i, one)
      from = Unsqueeze (i, axis)
      to = Unsqueeze (end, axis)
      part = Slice (x, from, to)
      d = Add (a, part)
      row = Identity (d)
   }>
}
"""
"""The model of ONNX's node test loop11: its declared output tells how often the loop runs."""

SCAN = """
<ir_version: 8, opset_import: ["": 18]>
g (float[2] start, float[3, 2] x) => (float[2] sum, float[2, 3] sums) {
   sum, sums = Scan <num_scan_inputs = 1, scan_input_directions = [1], scan_output_axes = [1],
                     body: graph = b (float[2] before, float[2] x) => (float[2] after, float[2] row) {
      after = Add (before, x)
      row = Identity (after)
   }> (start, x)
}
"""

NO_TRIP_COUNT = """
<ir_version: 8, opset_import: ["": 18]>
g (float limit, float[2] x) => (float[2] y) {
   y = Loop ("", "", x) <body: graph = b (int64 i, bool c, float[2] a) => (bool c2, float[2] b) {
      b = Add (a, a)
      sum = ReduceSum <keepdims = 0> (b)
      c2 = Less (sum, limit)
   }>
}
"""


def test_scan_outputs():
    executable = oc.compile(parse_model(SCAN_OF_DECLARED_ROWS))
    outputs = executable.run({"n": np.int64(5), "go": np.bool_(True), "y": np.float32([-2])})
    np.testing.assert_array_equal(outputs["rows"][:, 0], [-1, 1, 4, 8, 13])
    np.testing.assert_array_equal(outputs["last"], [13])
    executable = oc.compile(parse_model(SCAN))
    outputs = executable.run({"start": np.float32([1, 2]), "x": np.float32([[1, 10], [2, 20], [3, 30]])})
    np.testing.assert_array_equal(outputs["sum"], [7, 62])
    np.testing.assert_array_equal(outputs["sums"], [[4, 6, 7], [32, 52, 62]])


def test_a_loop_without_trip_count_ends_by_its_own_condition():
    executable = oc.compile(parse_model(NO_TRIP_COUNT))
    for limit, factor in ((0, 2), (12, 4), (13, 8)):
        outputs = executable.run({"limit": np.float32(limit), "x": np.float32([1, 2])}, poison=True)
        np.testing.assert_array_equal(outputs["y"], factor * np.float32([1, 2]))


def test_what_is_refused_is_named():
    several = SCAN_OF_DECLARED_ROWS.replace("float[5, 1] rows", "float[M, 1] rows")
    with pytest.raises(
        UnsupportedModelError, match="a row for each iteration, and their number is known only"
    ):
        oc.compile(parse_model(several))
    with pytest.raises(UnsupportedModelError, match="control flow that depends on data runs on the CPU only"):
        oc.Compilation(oc.Model(parse_model(NO_TRIP_COUNT)), Options(target="cuda")).run_to("mlir")
