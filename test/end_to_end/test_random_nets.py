"""A few random networks, compiled in a few ways each; `make fuzz` takes many."""

import fuzz
import numpy as np
import pytest
from fuzz import Outcome, Sample, shrunk, ways_of
from onnx.parser import parse_model
from random_nets import Case, random_case

from occamy_xdsl.compiler import Compilation, Model
from occamy_xdsl.pipelines import Options

SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
def test_same_as_onnxruntime(seed: int):
    case = random_case(seed)
    outcome = fuzz.isolated(case, ways_of(seed, 1))
    assert not outcome.failures, "\n".join(text for _, text in outcome.failures.values())
    assert outcome.checks or outcome.refusals


def test_the_same_seed_gives_the_same_network():
    one, two = random_case(3), random_case(3)
    assert one.model.SerializeToString() == two.model.SerializeToString()
    assert one.model.SerializeToString() != random_case(4).model.SerializeToString()


def test_a_failing_network_is_made_smaller(monkeypatch: pytest.MonkeyPatch):
    """Down to the one node that the failure needs."""

    def isolated(case: Case, ways: list[str]) -> Outcome:
        found = any(node.op_type == "Concat" for node in case.model.graph.node)
        return Outcome(failures={ways[0]: ("kind", "text")} if found else {})

    case = next(
        c for c in map(random_case, range(100)) if isolated(c, [""]).failures and len(c.model.graph.node) > 10
    )
    monkeypatch.setattr(fuzz, "isolated", isolated)
    assert [node.op_type for node in shrunk(case, "default", "kind").model.graph.node] == ["Concat"]


def test_no_position_past_a_dimension_shorter_than_half_the_window():
    """Of one column no window of five lies inside: the guards behind the outputs show what is written past it."""
    model = parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[1, 1, 16, 1] x) => (float[1, 1, 16, 1] y, int64[1, 1, 16, 1] i) {
           y, i = MaxPool <kernel_shape = [5, 5], pads = [2, 2, 2, 2]> (x)
        }
    """)
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 16, 1)
    want = np.minimum(np.arange(16) + 2, 15).reshape(1, 1, 16, 1)
    sample = Sample({"x": x}, {"y": want.astype(np.float32), "i": want}, {"y": 0.0, "i": 0.0})
    fuzz.check_code(Compilation(Model(model), Options()), [sample])
