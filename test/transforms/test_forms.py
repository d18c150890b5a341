"""Every pass refuses, in one line, a program that has not the form it requires."""

import pytest
from xdsl.parser import Parser
from xdsl.passes import PassPipeline
from xdsl.utils.exceptions import PassFailedException

from occamy_xdsl.pipeline_run import available_passes, make_context

ONNX = """
func.func @main(%x: tensor<2x4xf32>) -> tensor<2x4xf32> {
  %y = "onnx.Relu"(%x) : (tensor<2x4xf32>) -> tensor<2x4xf32>
  func.return %y : tensor<2x4xf32>
}
"""

VALUE = """
func.func @main(%x: tensor<2x4xf32>) -> tensor<2x4xf32> {
  %y = dnn.softmax input(%x : tensor<2x4xf32>) {log = false, axis = 1 : i64} -> tensor<2x4xf32>
  func.return %y : tensor<2x4xf32>
}
"""

BUFFER = """
func.func @main(%x: memref<2x4xf32>, %y: memref<2x4xf32> {dnn.kind = "output"}) {
  dnn.softmax input(%x : memref<2x4xf32>) outs(%y : memref<2x4xf32>) {log = false, axis = 1 : i64}
  func.return
}
"""

BLOCKS = """
func.func @main(%x: memref<4xf32>) {
  cf.br ^end
^end:
  func.return
}
"""

VALUE_PASSES = (
    "dnn-assign-layouts",
    "dnn-fuse-dequantization",
    "dnn-fuse-layers",
    "dnn-insert-memory-ops",
    "dnn-recompute",
    "dnn-schedule",
    "dnn-stripe",
)
BUFFER_PASSES = (
    "convert-dnn-to-cpu",
    "convert-dnn-to-cuda",
    "cpu-assign-workspaces",
    "cuda-assign-workspaces",
    "dnn-borrow-outputs",
    "dnn-coalesce-tensors",
    "dnn-convert-to-pool",
    "verify-dnn-pool",
)


def apply(program: str, name: str) -> None:
    context = make_context()
    module = Parser(context, program).parse_module()
    PassPipeline.parse_spec(available_passes(), name).apply(context, module)


@pytest.mark.parametrize("name", VALUE_PASSES)
def test_passes_on_values_refuse_buffers(name: str):
    apply(VALUE, name)
    with pytest.raises(
        PassFailedException, match=f"{name}: function main is not in value form, it has memref"
    ):
        apply(BUFFER, name)


@pytest.mark.parametrize("name", BUFFER_PASSES)
def test_passes_on_buffers_refuse_values(name: str):
    apply(BUFFER, name)
    with pytest.raises(
        PassFailedException, match=f"{name}: function main is not in buffer form, it has tensor"
    ):
        apply(VALUE, name)


@pytest.mark.parametrize("name", VALUE_PASSES + BUFFER_PASSES)
def test_passes_on_dnn_refuse_onnx_and_more_blocks_than_one(name: str):
    with pytest.raises(PassFailedException, match=r"'onnx\.Relu' op; run convert-onnx-to-dnn first"):
        apply(ONNX, name)
    with pytest.raises(PassFailedException, match="must have one block, got 2"):
        apply(BLOCKS, name)


def test_pools_are_aligned_to_powers_of_two():
    with pytest.raises(PassFailedException, match="power of two, got 3"):
        apply(BUFFER, "dnn-convert-to-pool{alignment=3}")
