"""What the kernel counts for a running program is what the plan says: pool, inputs and outputs, weights once."""

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from occamy_xdsl.compiler import CompiledExecutable, compile
from occamy_xdsl.errors import UsageError

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from measure import Usage, measure

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

RUNTIME = 3 << 20
"""Bytes for libc, the program's code, stack and heap; a program that does nothing has 2 MiB resident."""


def products(*sizes: int) -> ModelProto:
    """x multiplied by one matrix after the other, with a Relu between."""
    rng = np.random.default_rng(2)
    weights, nodes, value = [], [], "x"
    for i, (rows, columns) in enumerate(pairwise(sizes)):
        matrix = rng.standard_normal((rows, columns), np.float32) / np.float32(rows**0.5)
        weights.append(numpy_helper.from_array(matrix, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [value, f"w{i}"], [f"p{i}"], f"product{i}"))
        value = f"p{i}"
        if i < len(sizes) - 2:
            nodes.append(helper.make_node("Relu", [value], [f"r{i}"]))
            value = f"r{i}"
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, sizes[0]])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, sizes[-1]])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def usages(
    executable: CompiledExecutable, path: Path, weights: str = "embed", copies: int = 1
) -> list[Usage]:
    executable.save(path, weights=weights)
    return measure(path, executable.signature, copies)


def test_weights_are_in_memory_once(compiler: list[str], tmp_path: Path):
    executable = compile(products(2048, 2048))
    size = 4 * 2048 * 2048
    (usage,) = usages(executable, tmp_path / "program")
    assert size <= usage.peak_rss <= 1.05 * size + RUNTIME

    four = usages(executable, tmp_path / "program", copies=4)
    assert sum(usage.proportional for usage in four) <= 1.1 * size + 4 * (1 << 20)


def test_streamed_weights_are_in_memory_one_after_the_other(compiler: list[str], tmp_path: Path):
    net = products(1024, 6144, 1024, 4096)
    session = onnxruntime.InferenceSession(net.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(3).standard_normal((1, 1024), np.float32)
    (want,) = session.run(None, {"x": x})
    executable = compile(net, stream_weights=True)
    for _ in range(2):
        (got,) = executable.run({"x": x}).values()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)

    size = 4 * 1024 * (6144 + 6144 + 4096)  # 64 MiB
    assert executable.signature.weights_bytes >= size
    (usage,) = usages(executable, tmp_path / "program", "file")
    assert usage.peak_rss <= size / 4
    assert executable.memory_report().resident_weights_bytes <= size / 4
    with pytest.raises(UsageError, match="streamed"):
        executable.save(tmp_path / "other", weights="embed")


NETS = ["m02_densenet", "m05_reduce_at_end", "m09_attention_sliced", "m17_unet", "m19_pad_depthwise"]


@pytest.mark.parametrize("net", NETS)
def test_a_program_allocates_pool_inputs_and_outputs(
    net: str, compiler: list[str], shared: Path, tmp_path: Path
):
    executable = compile(shared / f"cases/memory/{net}.onnx")
    report = executable.memory_report()
    planned = report.pool_bytes + report.io_bytes
    assert "alloc" not in executable.ir("llvm")
    (usage,) = usages(executable, tmp_path / "program")
    # Pages of a buffer that no element reaches are never resident, so it may also be less.
    assert 0.75 * planned <= usage.anonymous <= 1.05 * planned + (1 << 20)
