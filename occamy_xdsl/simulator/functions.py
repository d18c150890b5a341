"""How the simulated libraries are written: methods of a class, each marked with the C function it stands for."""

from collections.abc import Callable
from typing import Any, TypeVar

from occamy_xdsl.simulator.device import Device

Method = TypeVar("Method", bound=Callable[..., Any])

_NAMES = "implemented_names"


def implements(*names: str) -> Callable[[Method], Method]:
    """
    Mark a method as the C functions `names`.

    It gets the C arguments: numbers, and addresses as int or None. A status function returns its status, or
    None for success, and may raise FaultError or RefusalError.
    """

    def mark(method: Method) -> Method:
        setattr(method, _NAMES, names)
        return method

    return mark


class SimulatedLibrary:
    """Base of the simulated libraries; `functions` finds the marked methods."""

    def __init__(self, device: Device):
        self.device = device

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The implemented C functions by name."""
        methods = (getattr(self, name) for name in dir(type(self)))
        return {name: method for method in methods for name in getattr(method, _NAMES, ())}
