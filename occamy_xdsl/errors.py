"""The errors a user can meet, each with the exit code of the command line."""

from collections.abc import Sequence
from typing import Any


class OccamyError(Exception):
    """A fault of the input or of the request, one fact a line. Everything else is a fault of ours."""

    exit_code: int = 70


class InvalidInputError(OccamyError):
    """The request cannot be understood: a missing file, a wrong name, a shape that does not fit."""

    exit_code = 2


class UsageError(OccamyError):
    """An option, a file name or a combination of them cannot be honoured."""

    exit_code = 2


class ArgumentTypeError(UsageError, TypeError):
    """An argument of a Python function is of a wrong type, or the function has none of that name."""


class UnsupportedModelError(OccamyError):
    """
    The model is refused.

    `nodes` holds (node name, operator, reason) for every offending node, in graph order; `facts` are
    further lines that belong to no node.
    """

    exit_code = 3

    def __init__(
        self,
        message: str = "",
        *,
        nodes: Sequence[tuple[str, str, str]] = (),
        facts: Sequence[str] = (),
        file: str = "",
    ):
        self.nodes = list(nodes)
        prefix = f"{file}: " if file else ""
        lines = [f"{prefix}{message}"] if message else []
        lines += [f"{prefix}{fact}" for fact in facts]
        lines += [f"{prefix}node '{node}' ({op}): {reason}" for node, op, reason in nodes]
        super().__init__("\n".join(lines))


class NoDeviceError(OccamyError):
    """Code for a GPU cannot run here: its libraries cannot be loaded, or there is no device."""

    exit_code = 3


class InvalidModelError(UnsupportedModelError):
    """The model is not a valid ONNX model, so that no compiler could accept it."""


class MemoryLimitError(OccamyError):
    """
    The plan does not fit the memory limit.

    All sizes are bytes: `needed` is the smallest pool found, `limit` what was allowed; `peak_node` is the
    node at which `needed` is reached, `largest_tensors` the largest live values there (name, bytes), and
    `advice` the option that would help most. `what` is limited: the memory (pool), or a workspace.
    """

    exit_code = 4

    def __init__(
        self,
        needed: int,
        limit: int,
        peak_node: str,
        largest_tensors: Sequence[tuple[str, int]],
        advice: str,
        what: str = "memory",
    ):
        self._arguments = (needed, limit, peak_node, list(largest_tensors), advice, what)
        self.needed = needed
        self.limit = limit
        self.peak_node = peak_node
        self.largest_tensors = list(largest_tensors)
        self.advice = advice
        tensors = ", ".join(f"{name} ({size} bytes)" for name, size in largest_tensors)
        super().__init__(
            f"{what} limit: {needed} bytes needed, limit {limit} bytes; peak at node '{peak_node}'; "
            f"largest live tensors: {tensors}; {advice}"
        )

    def __reduce__(self) -> tuple[type["MemoryLimitError"], tuple[Any, ...]]:
        """Copies, and what comes from another process, are made from the arguments, not from the message."""
        return MemoryLimitError, self._arguments
