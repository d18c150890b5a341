"""A few random networks, compiled in a few ways each; `make fuzz` takes many."""

import fuzz
import pytest
from fuzz import Outcome, shrunk, ways_of
from random_nets import Case, random_case

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
