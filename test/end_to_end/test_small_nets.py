"""Small networks compiled with every switch compute what ONNX Runtime does, and never read a stale byte."""

import numpy as np
import onnxruntime
import pytest
from nets import NETS

import occamy_xdsl.compiler as oc

VARIANTS = {
    "default": {},
    "avx2": {"target": "cpu:x86-64-v3"},
    "no-fuse": {"fuse": False},
    "no-reuse": {"reuse": False},
    "no-inplace": {"in_place": False},
    "eager": {"memory": "eager"},
    "lazy": {"memory": "lazy"},
    "stream": {"stream_weights": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("net", NETS)
def test_same_as_onnxruntime(net: str, variant: str):
    model = NETS[net]()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    inputs = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()}
    executable = oc.compile(model, **VARIANTS[variant])
    for _ in range(2):  # the second run meets what the first one left in the pool
        outputs = executable.run(inputs, poison=executable.signature.memory == "pool")
        for want, got in zip(session.run(None, inputs), outputs.values(), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * abs(want).max())
