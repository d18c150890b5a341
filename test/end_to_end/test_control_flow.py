"""Compiled control flow computes what ONNX Runtime does, whichever way the conditions go, and never reads a stale byte."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from control_flow import PROGRAMS, inputs_of
from onnx.backend.test.loader import load_model_tests

import occamy_xdsl.compiler as oc
from occamy_xdsl.backend import OccamyBackend

VARIANTS = {
    "default": {},
    "eager": {"memory": "eager"},
    "lazy": {"memory": "lazy"},
    "stream": {"stream_weights": True},
}


def check(program: str, **options: object) -> None:
    model = PROGRAMS[program]()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    executable = oc.compile(model, **options)
    for seed in range(6):
        inputs = inputs_of(seed)
        outputs = executable.run(inputs, poison=True)
        for want, got in zip(session.run(None, inputs), outputs.values(), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * abs(want).max() + 1e-7)


@pytest.mark.parametrize("variant", VARIANTS)
def test_images_and_every_kind_of_memory(variant: str):
    check("images", **VARIANTS[variant])


@pytest.mark.parametrize("program", ["changes_places", "loops_in_loops", "scans", "random_0", "random_4"])
def test_same_as_onnxruntime(program: str):
    check(program)


def test_a_loop_is_compiled_once_for_any_number_of_iterations(shared: Path):
    """One pool, of less than two matrices, however long the loop runs."""
    path = shared / "cases/memory/m15_loop.onnx"
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    executable = oc.compile(path)
    assert executable.pool_bytes <= 2 * 512 * 512 * 4
    # A permutation times 512 stays one: nothing grows, vanishes or is rounded.
    order = np.random.default_rng(0).permutation(512)
    exact = (512 * np.eye(512)[order]).astype(np.float32)
    for count in (0, 1, 10, 300):
        inputs = {"n": np.array(count, np.int64), "x": exact}
        (want,) = session.run(None, inputs)
        np.testing.assert_array_equal(executable.run(inputs, poison=True)["y"], want)
    inputs = {"n": np.array(2, np.int64), "x": np.random.default_rng(1).standard_normal((512, 512), np.float32)}
    (want,) = session.run(None, inputs)
    np.testing.assert_allclose(executable.run(inputs)["y"], want, rtol=1e-3, atol=1e-4 * abs(want).max())


def test_profiles_time_control_flow_as_a_whole(shared: Path):
    executable = oc.compile(shared / "cases/memory/m15_loop.onnx", profile=True)
    outputs = executable.run({"n": np.array(2, np.int64), "x": np.eye(512, dtype=np.float32)})
    names = [kernel for _, kernel in executable.compilation.kernels()]
    assert names.count("scf.while") == 1
    assert len(outputs[oc.CLOCK]) == len(names) + 1


NODE_TESTS = ("test_if", "test_loop11", "test_scan9_sum", "test_range_float_type_positive_delta_expanded")


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_onnx_node_tests():
    cases = [case for case in load_model_tests(kind="node") if case.name in NODE_TESTS]
    assert len(cases) == len(NODE_TESTS)
    for case in cases:
        prepared = OccamyBackend.prepare(case.model)
        for inputs, wanted in case.data_sets:
            for got, want in zip(prepared.run(inputs), wanted, strict=True):
                np.testing.assert_allclose(got, want, rtol=case.rtol, atol=case.atol)
