"""Reductions over a dimension of size 0, and integer ones whose result no integer is, on both targets."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import DTypeLike
from onnx import ModelProto, TensorProto, helper

import occamy_xdsl as oc
from occamy_xdsl.compiler import Compilation, Model
from occamy_xdsl.interpreters.buffer import run_buffers
from occamy_xdsl.lowering.cpu.emit import write_library
from occamy_xdsl.pipelines import Options
from occamy_xdsl.runtime.cuda import simulate
from occamy_xdsl.simulator import Simulator

REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
Arrays = dict[str, np.ndarray]


def model(dtype: DTypeLike, shape: tuple[int, ...], kinds: tuple[str, ...] = REDUCTIONS) -> ModelProto:
    """Each reduction of `x` over dimension 1 is an output of its own."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    left = [size for axis, size in enumerate(shape) if axis != 1]
    nodes = [helper.make_node(f"Reduce{kind}", ["x", "axes"], [kind], keepdims=0) for kind in kinds]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", element, shape)],
        [helper.make_tensor_value_info(kind, element, left) for kind in kinds],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [1])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def interpreted(proto: ModelProto, x: np.ndarray, _: Path) -> Arrays:
    compilation = Compilation(Model(proto), Options())
    compilation.run_to("mem")
    names = [output.name for output in proto.graph.output]
    return dict(zip(names, run_buffers(compilation.module, [x]), strict=True))


def on_cpu(proto: ModelProto, x: np.ndarray, _: Path) -> Arrays:
    return oc.compile(proto).run({"x": x})


def on_gpu(proto: ModelProto, x: np.ndarray, folder: Path) -> Arrays:
    write_library(Compilation(Model(proto), Options(target="cuda")).compiled(folder), folder / "m.so")
    return simulate(folder / "m.so", {"x": x}, Simulator())


@pytest.fixture(params=[interpreted, on_cpu, on_gpu], ids=lambda run: run.__name__)
def run(request: pytest.FixtureRequest) -> Callable[[ModelProto, np.ndarray, Path], Arrays]:
    if request.param is on_gpu:
        request.getfixturevalue("compiler")
    return request.param


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int64])
@pytest.mark.parametrize("shape", [(2, 0, 3), (2, 0)])
def test_nothing(run, dtype: DTypeLike, shape: tuple[int, ...], tmp_path: Path) -> None:
    """As ONNX Runtime, but for the mean, which ONNX leaves undefined: NaN as in numpy, not 0; 0 in integers."""
    proto, x = model(dtype, shape), np.zeros(shape, dtype)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    want = dict(zip(REDUCTIONS, session.run(None, {"x": x}), strict=True))
    assert not want["Mean"].any()
    if np.dtype(dtype).kind == "f":
        want["Mean"][...] = np.nan
        assert (want["Max"] == -np.inf).all()
    got = run(proto, x, tmp_path)
    for kind in REDUCTIONS:
        assert (got[kind].dtype, got[kind].shape) == (want[kind].dtype, want[kind].shape)
        np.testing.assert_array_equal(got[kind], want[kind], err_msg=kind)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize(
    ("number", "bound"), [(0, min), (-1, min), ("most", max)], ids=["log of 0", "log of less", "root of more"]
)
def test_no_integer(
    run, dtype: DTypeLike, number: int | str, bound: Callable[..., int], tmp_path: Path
) -> None:
    """Minus infinity and what is too large become the nearest f64 that is in range, NaN the least."""
    limits = np.iinfo(dtype)
    largest = 2**31 - 1 if dtype is np.int32 else 2**63 - 1024
    kind = "LogSum" if bound is min else "L2"
    x = np.full((2, 3), limits.max if number == "most" else number, dtype)
    got = run(model(dtype, x.shape, (kind,)), x, tmp_path)
    np.testing.assert_array_equal(got[kind], np.full(2, bound(limits.min, largest), dtype))
