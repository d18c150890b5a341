"""Every pass keeps the meaning of every network: interpreted after each pass, it computes what ONNX Runtime does."""

import numpy as np
import onnxruntime
import pytest
from nets import NETS
from xdsl.passes import PassPipeline

from occamy_xdsl.dialects.signature import function_named
from occamy_xdsl.importer import import_model
from occamy_xdsl.interpreters.buffer import run_buffers
from occamy_xdsl.interpreters.value import run_values
from occamy_xdsl.pipeline_run import available_passes, make_context
from occamy_xdsl.pipelines import Options, stages

VARIANTS = {
    "pool": Options(),
    "no-fuse": Options(fuse=False),
    "no-reuse": Options(reuse=False),
    "no-inplace": Options(in_place=False),
    "no-reorder": Options(reorder=False),
    "stripes": Options(stripe_budget=1000, recompute_budget=1000),
    "eager": Options(memory="eager"),
    "lazy": Options(memory="lazy"),
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("net", NETS)
def test_each_pass_keeps_the_meaning(net: str, variant: str):
    model = NETS[net]()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    inputs = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()}
    want = session.run(None, inputs)

    context, passes = make_context(), available_passes()
    module = import_model(model)
    for stage in stages(VARIANTS[variant])[:-1]:
        for text in stage.passes:
            PassPipeline.parse_spec(passes, text).apply(context, module)
            module.verify()
            if text.startswith("onnx-"):
                continue
            main = function_named(module)
            run = run_values if main.function_type.outputs.data else run_buffers
            got = run(module, list(inputs.values()))
            for a, b in zip(got, want, strict=True):
                assert a.shape == b.shape, text
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * abs(b).max(), err_msg=text)
