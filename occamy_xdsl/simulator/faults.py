"""What can go wrong in a simulated program: faults of the program, and requests that a library refuses."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Violation:
    """Something the program must not do, whether or not a real device would notice."""

    call: str
    """Function of the call that is at fault, or `exit` for what is left at the end."""
    number: int
    """Number of that call, from 1; 0 at the end."""
    message: str

    def __str__(self) -> str:
        where = f"call {self.number}, {self.call}" if self.number else "at the end"
        return f"{where}: {self.message}"


class FaultError(Exception):
    """Raised where a call or a deferred operation does something it must not."""


class RefusalError(Exception):
    """Raised where the real library returns an error that a correct program may meet and must handle."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class SimulationError(Exception):
    """The program is wrong; one line for each violation."""

    def __init__(self, violations: Sequence[Violation]):
        super().__init__("\n".join(map(str, violations)))
        self.violations = tuple(violations)
