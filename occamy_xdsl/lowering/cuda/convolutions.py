"""Which algorithm a convolution runs with, and how much workspace it needs: a database, or a safe default."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, cast

from occamy_xdsl.errors import UsageError

VERSION = 1
"""Version of the file format."""

IMPLICIT_GEMM, IMPLICIT_PRECOMP_GEMM = 0, 1
"""Values of cudnnConvolutionFwdAlgo_t."""


@dataclass(frozen=True)
class Problem:
    """A convolution, as the choice of its algorithm depends on it; shapes are (N, C, spatial...)."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    pads: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int

    @property
    def key(self) -> str:
        """The problem as text, for example `x1x3x8x8 w4x3x3x3 y1x4x8x8 p1x1 s1x1 d1x1 g1`."""
        parts = {
            "x": self.x,
            "w": self.w,
            "y": self.y,
            "p": self.pads,
            "s": self.strides,
            "d": self.dilations,
        }
        return " ".join(n + "x".join(map(str, v)) for n, v in parts.items()) + f" g{self.groups}"


@dataclass(frozen=True)
class Choice:
    """An algorithm, by the value of cudnnConvolutionFwdAlgo_t, with the bytes of its workspace."""

    algorithm: int
    workspace_bytes: int
    milliseconds: float | None = None
    """Measured time of one run; None where it was never measured."""


ZERO_WORKSPACE = Choice(IMPLICIT_GEMM, 0)
"""What always works."""


def default_choice(problem: Problem) -> Choice:
    """
    IMPLICIT_PRECOMP_GEMM with room for its table of indices: 8 bytes a filter tap, 4 an output position.

    What cuDNN really asks for depends on device and version. A model that is created where it asks for more
    runs IMPLICIT_GEMM, which needs nothing.
    """
    return Choice(IMPLICIT_PRECOMP_GEMM, 8 * prod(problem.w[1:]) + 4 * prod(problem.y[2:]))


@dataclass(frozen=True)
class Database:
    """Measured choices by (architecture, version of cuDNN, `Problem.key`); the version is 9 for 9.x.y."""

    entries: Mapping[tuple[str, int, str], tuple[Choice, ...]]

    @staticmethod
    def load(path: Path) -> "Database":
        """Read a file that `save` wrote; raises UsageError that names it."""
        try:
            content: Any = json.loads(path.read_text())
            if content["version"] != VERSION:
                raise UsageError(f"{path}: version {content['version']}, expected {VERSION}")
            entries: dict[tuple[str, int, str], tuple[Choice, ...]] = {}
            for entry in content["convolutions"]:
                key = str(entry["architecture"]), int(entry["cudnn"]), str(entry["problem"])
                entries[key] = tuple(Choice(**choice) for choice in entry["choices"])
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error}") from None
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{path}: not a database of convolutions: {error}") from None
        return Database(entries)

    def save(self, path: Path) -> None:
        """Write the database as JSON, in a stable order."""
        convolutions = [
            {"architecture": a, "cudnn": v, "problem": p, "choices": [asdict(c) for c in choices]}
            for (a, v, p), choices in sorted(self.entries.items())
        ]
        path.write_text(json.dumps({"version": VERSION, "convolutions": convolutions}, indent=1) + "\n")

    def choose(self, problem: Problem, architecture: str, cudnn: int, limit: int | None) -> Choice:
        """
        The fastest known choice whose workspace is at most `limit` bytes (any if None).

        Without an entry it is the default, or where that does not fit the algorithm without workspace.
        """
        known = self.entries.get((architecture, cudnn, problem.key), ())
        fitting = [c for c in known if limit is None or c.workspace_bytes <= limit]
        measured = [c for c in fitting if c.milliseconds is not None]
        if measured:
            return min(measured, key=lambda choice: cast(float, choice.milliseconds))
        if fitting:
            return fitting[0]
        default = default_choice(problem)
        return default if limit is None or default.workspace_bytes <= limit else ZERO_WORKSPACE


EMPTY = Database({})
