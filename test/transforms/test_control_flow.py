"""
Every pass keeps the meaning of control flow, whichever way the conditions go; the proof of a pool finds its faults.
"""

from collections.abc import Iterator

import numpy as np
import onnxruntime
import pytest
from control_flow import PROGRAMS, inputs_of, random_program
from onnx import ModelProto
from xdsl.context import Context
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.passes import PassPipeline
from xdsl.utils.exceptions import PassFailedException

from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.signature import function_named
from occamy_xdsl.importer import import_model
from occamy_xdsl.interpreters.buffer import PoisonError, run_buffers
from occamy_xdsl.interpreters.value import run_values
from occamy_xdsl.pipeline_run import available_passes, make_context
from occamy_xdsl.pipelines import Options, stages
from occamy_xdsl.transforms.verify_dnn_pool import VerifyDnnPoolPass

VARIANTS = {
    "pool": Options(),
    "no-fuse": Options(fuse=False),
    "no-reuse": Options(reuse=False),
    "no-inplace": Options(in_place=False),
    "stripes": Options(stripe_budget=1000),
    "eager": Options(memory="eager"),
    "lazy": Options(memory="lazy"),
}
INPUTS = 4


def programs_after_each_pass(model: ModelProto, options: Options) -> Iterator[tuple[str, ModuleOp]]:
    """The module of a model after each pass of the standard pipeline, up to the pool."""
    context, passes = make_context(), available_passes()
    module = import_model(model)
    for stage in stages(options)[:-1]:
        for text in stage.passes:
            PassPipeline.parse_spec(passes, text).apply(context, module)
            module.verify()
            if not text.startswith("onnx-"):
                yield text, module


def check_meaning(model: ModelProto, options: Options) -> None:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = [session.run(None, inputs_of(seed)) for seed in range(INPUTS)]
    for index, (text, module) in enumerate(programs_after_each_pass(model, options)):
        main = function_named(module)
        in_value_form = bool(main.function_type.outputs.data)
        run = run_values if in_value_form else run_buffers
        # Other inputs after each pass, more of them where memory is shared.
        for seed in (index + k for k in range(1 if in_value_form else 2)):
            seed %= INPUTS
            got = run(module, list(inputs_of(seed).values()))
            for a, b in zip(got, wanted[seed], strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * abs(b).max() + 1e-7, err_msg=text)


@pytest.mark.parametrize("variant", ["pool", "no-reuse", "no-inplace", "lazy"])
@pytest.mark.parametrize("program", ["changes_places", "loops_in_loops"])
def test_each_pass_keeps_the_meaning(program: str, variant: str):
    check_meaning(PROGRAMS[program](), VARIANTS[variant])


@pytest.mark.parametrize(
    "program",
    ["dies_in_one_branch", "images", "in_place", "random_3", "random_4", "scans", "yields_what_it_captures"],
)
def test_each_pass_of_the_default_keeps_the_meaning(program: str):
    check_meaning(PROGRAMS[program](), Options())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_random_programs(seed: int):
    for variant in VARIANTS.values():
        check_meaning(random_program(seed), variant)


MOVES = 24
"""Buffers that are moved, of all that could be."""


@pytest.mark.parametrize("program", ["loops_in_loops"])
def test_the_proof_of_a_pool_is_sound(program: str):
    """Buffers are moved over others: what the proof accepts computes the same, whatever the conditions."""
    *_, (_, module) = programs_after_each_pass(PROGRAMS[program](), Options())
    inputs = [list(inputs_of(seed).values()) for seed in range(INPUTS)]
    wanted = [run_buffers(module, arrays) for arrays in inputs]
    buffers = [op for op in module.walk() if isinstance(op, dnn.MemOffsetOp)]
    moves = [(op, at) for op in buffers for at in sorted({b.offset.value.data for b in buffers})]
    moves = [(op, at) for op, at in moves if at != op.offset.value.data]
    moves = [(op, at) for op, at in moves if at + op.size.value.data <= dnn.byte_size(op.pool)]
    refused = 0
    for index in np.random.default_rng(0).permutation(len(moves))[:MOVES]:
        op, at = moves[index]
        own, op.properties["offset"] = op.offset, IntegerAttr(at, i64)
        try:
            VerifyDnnPoolPass().apply(Context(), module)
        except PassFailedException:
            refused += 1
        else:
            for arrays, want in zip(inputs, wanted, strict=True):
                try:
                    got = run_buffers(module, arrays)
                except PoisonError as error:
                    pytest.fail(f"{op.view.name_hint} at {at}: {error}")
                for a, b in zip(got, want, strict=True):
                    np.testing.assert_array_equal(a, b)
        op.properties["offset"] = own
    assert 0 < refused < len(moves)
