"""Without a pool each run allocates; where the system has no memory, the run says so and goes on to live."""

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from occamy_xdsl.compiler import compile
from occamy_xdsl.errors import OccamyError

LARGE = 1 << 28
"""Bytes of the product below, which is the one large tensor."""

N = 8192
M = LARGE // 4 // N


def large_product(looped: bool) -> ModelProto:
    """The sum of all products of an element of x (N, 1) and one of y (1, M), computed twice with `looped`."""
    nodes = [
        helper.make_node("MatMul", ["x", "y"], ["p"], "outer"),
        helper.make_node("Sin", ["p"], ["q"], "sines"),
        helper.make_node("ReduceSum", ["q"], ["s"], "sum", keepdims=0),
    ]
    constants = []
    if looped:
        body = helper.make_graph(
            [
                *nodes,
                helper.make_node("Add", ["t", "s"], ["u"], "total"),
                helper.make_node("Identity", ["c"], ["d"]),
            ],
            "body",
            [
                helper.make_tensor_value_info("i", TensorProto.INT64, []),
                helper.make_tensor_value_info("c", TensorProto.BOOL, []),
                helper.make_tensor_value_info("t", TensorProto.FLOAT, []),
            ],
            [
                helper.make_tensor_value_info("d", TensorProto.BOOL, []),
                helper.make_tensor_value_info("u", TensorProto.FLOAT, []),
            ],
        )
        constants = [
            numpy_helper.from_array(np.array(0, np.float32), "zero"),
            numpy_helper.from_array(np.array(2), "two"),
        ]
        nodes = [helper.make_node("Loop", ["two", "", "zero"], ["s"], "twice", body=body)]
    graph = helper.make_graph(
        nodes,
        "large_product",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [N, 1]),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, M]),
        ],
        [helper.make_tensor_value_info("s", TensorProto.FLOAT, [])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def inputs() -> dict[str, np.ndarray]:
    return {"x": np.full((N, 1), 0.5, np.float32), "y": np.full((1, M), 2, np.float32)}


@pytest.mark.parametrize("looped", [False, True], ids=["straight", "loop"])
@pytest.mark.parametrize("memory", ["eager", "lazy"])
def test_a_program_without_memory_says_so(memory: str, looped: bool, compiler: list[str], tmp_path: Path):
    program = tmp_path / "program"
    compile(large_product(looped), memory=memory).save(program)
    for name, array in inputs().items():
        np.save(tmp_path / f"{name}.npy", array)
    command = [program, tmp_path / "x.npy", tmp_path / "y.npy", "-o", tmp_path / "out"]
    limit = LARGE // 2

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    done = subprocess.run(command, preexec_fn=limited, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (4, "occamy_run: out of memory for a buffer\n")
    assert not (tmp_path / "out").exists()


def test_a_model_in_memory_survives():
    """In a process of its own, whose limit is set and lifted again."""
    subprocess.run([sys.executable, __file__], check=True)


def survive() -> None:
    executable = compile(large_product(looped=False), memory="lazy")
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + LARGE // 2, resource.RLIM_INFINITY))
    with pytest.raises(OccamyError, match=r"^occamy_run: out of memory for a buffer$"):
        executable.run(inputs())
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    (got,) = executable.run(inputs()).values()
    np.testing.assert_allclose(got, N * M * np.sin(1), rtol=1e-3)  # a sum of 67 million floats


if __name__ == "__main__":
    survive()
