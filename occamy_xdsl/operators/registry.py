"""The table of supported ONNX operators: one entry for each operator and range of opset versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from xdsl.ir import SSAValue

if TYPE_CHECKING:
    from occamy_xdsl.operators.emitter import Emitter
    from occamy_xdsl.operators.node import Node

Results: TypeAlias = "SSAValue | Sequence[SSAValue | None]"
Rule: TypeAlias = "Callable[[Node, Emitter], Results]"


@dataclass(frozen=True)
class Operator:
    """
    Support for one ONNX operator from opset version `since` to `until`, inclusive (None: the newest).

    `rule` converts a node to dnn ops; the types of what it returns are the operator's shape rule. `limits`
    says in words what of the operator is refused; empty where nothing is.
    """

    domain: str
    name: str
    since: int
    until: int | None
    rule: Rule
    limits: str


_ENTRIES: dict[tuple[str, str], dict[int, tuple[Rule, str]]] = {}


def operator(*names: str, since: int = 1, domain: str = "", limits: str = "") -> Callable[[Rule], Rule]:
    """
    Registers a rule for the operators `names` of `domain` from opset version `since` on, until an entry with
    a greater `since` takes over.
    """

    def register(rule: Rule) -> Rule:
        for name in names:
            entries = _ENTRIES.setdefault((domain, name), {})
            assert since not in entries, f"{name} has two entries since {since}"
            entries[since] = rule, limits
        return rule

    return register


def all_operators() -> list[Operator]:
    """Every entry, by domain, name and version."""
    result = list[Operator]()
    for (domain, name), entries in sorted(_ENTRIES.items()):
        versions = sorted(entries)
        for since, following in zip(versions, [*versions[1:], None], strict=True):
            rule, limits = entries[since]
            until = None if following is None else following - 1
            result.append(Operator(domain, name, since, until, rule, limits))
    return result


def find_operator(domain: str, name: str, version: int) -> Operator | None:
    """The entry for opset `version` of `domain`, None where there is none."""
    entries = _ENTRIES.get((domain, name), {})
    since = max((v for v in entries if v <= version), default=None)
    if since is None:
        return None
    following = min((v for v in entries if v > version), default=None)
    rule, limits = entries[since]
    return Operator(domain, name, since, None if following is None else following - 1, rule, limits)
