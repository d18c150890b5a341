"""The networks of the paper and more, at real size, agree with ONNX Runtime within 1e-4 of the largest value."""

from types import ModuleType

import numpy as np
import onnxruntime
import pytest
from networks import PAPER

import occamy_xdsl.compiler as oc


@pytest.mark.slow
@pytest.mark.parametrize("net", PAPER)
def test_agrees_with_onnxruntime(net: str, paper_nets: ModuleType):
    model = paper_nets.build(net)
    executable = oc.compile(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    kinds = {"float32": "FLOAT", "int64": "INT64"}
    specs = [(s.name, kinds[s.dtype], s.shape) for s in executable.signature.inputs]
    inputs = paper_nets.feeds_for(specs)
    outputs = executable.run(inputs, poison=True)
    for value, want in zip(session.get_outputs(), session.run(None, inputs), strict=True):
        assert abs(outputs[value.name] - want).max() <= 1e-4 * abs(want).max()
        assert np.isfinite(outputs[value.name]).all()
