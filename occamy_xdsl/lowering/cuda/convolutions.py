"""Which algorithm a convolution runs with, and how much workspace it needs: a database, or a safe default."""

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

from occamy_xdsl.errors import UsageError

VERSION = 2
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
    """Median time of one run; None where it was never measured."""

    @staticmethod
    def read(values: Any) -> "Choice":
        """The choice that `asdict` made `values` of; raises KeyError, TypeError or ValueError for anything else."""
        time = values["milliseconds"]
        return Choice(
            int(values["algorithm"]), int(values["workspace_bytes"]), None if time is None else float(time)
        )

    def __str__(self) -> str:
        return f"algorithm {self.algorithm}, {self.workspace_bytes} bytes, {self.milliseconds} ms"


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
class Machine:
    """What times depend on besides the problem."""

    device: str
    """Name of the GPU, as its driver says it."""
    architecture: str
    """`sm_XX`."""
    cudnn: int
    """Version of cuDNN: 10000 major + 100 minor + patch."""

    def __str__(self) -> str:
        return f"'{self.device}' ({self.architecture}, cuDNN {self.cudnn // 10000}.{self.cudnn // 100 % 100})"


Measured: TypeAlias = Mapping[str, tuple[Choice, ...]]
"""Measured choices by `Problem.key`."""


@dataclass(frozen=True)
class Database:
    """Measured choices of several machines."""

    entries: Mapping[Machine, Measured]

    @staticmethod
    def load(path: Path) -> "Database":
        """Read a file that `to_json` wrote; raises UsageError that names it."""
        try:
            content: Any = json.loads(path.read_text(encoding="utf-8"))
            if content["version"] != VERSION:
                raise UsageError(f"{path}: version {content['version']}, expected {VERSION}")
            entries: dict[Machine, Measured] = {}
            for entry in content["machines"]:
                machine = Machine(str(entry["device"]), str(entry["architecture"]), int(entry["cudnn"]))
                entries[machine] = {
                    str(problem): tuple(Choice.read(choice) for choice in choices)
                    for problem, choices in entry["convolutions"].items()
                }
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error}") from None
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise UsageError(f"{path}: not a database of convolutions: {error}") from None
        return Database(entries)

    def to_json(self) -> str:
        """The database as text, in a stable order."""
        machines = [
            asdict(machine)
            | {"convolutions": {p: [asdict(c) for c in measured[p]] for p in sorted(measured)}}
            for machine, measured in sorted(self.entries.items(), key=lambda entry: astuple(entry[0]))
        ]
        return json.dumps({"version": VERSION, "machines": machines}, indent=1) + "\n"

    def with_measured(self, machine: Machine, measured: Measured) -> "Database":
        """The database with newer choices of one machine; those of other problems and machines stay."""
        return Database({**self.entries, machine: {**self.entries.get(machine, {}), **measured}})

    def measured(self, architecture: str, cudnn: int, device: str | None = None) -> Measured:
        """
        What is known of an architecture and a major version of cuDNN, by the newest version that was measured.

        Raises UsageError where nothing is, or where several devices have that architecture and `device` is none
        of them.
        """
        fitting = {
            machine: measured
            for machine, measured in self.entries.items()
            if (machine.architecture, machine.cudnn // 10000) == (architecture, cudnn)
            and device in (None, machine.device)
        }
        if not fitting:
            known = ", ".join(sorted(map(str, self.entries))) or "none"
            wanted = f"'{device}' of {architecture}" if device else architecture
            raise UsageError(f"no convolutions of {wanted} with cuDNN {cudnn}; there are those of: {known}")
        devices = sorted({machine.device for machine in fitting})
        if len(devices) > 1:
            raise UsageError(
                f"convolutions of several devices of {architecture}: {', '.join(devices)}; "
                "--tuning-device names one"
            )
        return fitting[max(fitting, key=lambda machine: machine.cudnn)]


def choose(measured: Measured, problem: Problem, limit: int | None) -> Choice:
    """
    The fastest measured choice whose workspace is at most `limit` bytes (any if None).

    Without one it is the default, or where that does not fit the algorithm without workspace.
    """
    fitting = [
        choice
        for choice in measured.get(problem.key, ())
        if choice.milliseconds is not None and (limit is None or choice.workspace_bytes <= limit)
    ]
    if fitting:
        return min(fitting, key=lambda choice: (choice.milliseconds, choice.workspace_bytes))
    default = default_choice(problem)
    return default if limit is None or default.workspace_bytes <= limit else ZERO_WORKSPACE
