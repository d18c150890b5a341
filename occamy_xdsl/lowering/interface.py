"""What a caller of a compiled model meets: names of functions, codes, and where the weights are."""

from enum import IntEnum
from pathlib import Path
from typing import Literal

EXPORTS = (
    "occamy_pool_bytes",
    "occamy_signature",
    "occamy_create",
    "occamy_run",
    "occamy_destroy",
    "occamy_error",
)
"""The public functions, in the order of the header."""

DEVICE_EXPORTS = ("occamy_stream", "occamy_enqueue", "occamy_capture")
"""Further public functions of a model for a GPU."""

DEVICE_ALIGNMENT = 256
"""Bytes to which buffers in device memory are aligned, the pool among them, as the libraries like it."""

CLOCK = "clock_gettime"
"""The function of the C library (POSIX 2001) that a profile calls, and the output that holds what it said."""

WeightsPlace = Literal["embed", "file"]
"""Where an artefact has its weights: in its read-only data, or in the file `<artefact>.weights` beside it."""


class Code(IntEnum):
    """What `occamy_create` and `occamy_run` return."""

    OK = 0
    BAD_ARGUMENT = 1
    OUT_OF_MEMORY = 2
    WEIGHTS = 3
    DEVICE = 4


CODE_MEANINGS = {
    Code.OK: "success",
    Code.BAD_ARGUMENT: "a pointer is null, or the pool is not aligned",
    Code.OUT_OF_MEMORY: "the pool, the handle or a buffer cannot be allocated",
    Code.WEIGHTS: "the weights file is missing, unreadable or of another model",
    Code.DEVICE: "a function of a GPU library failed",
}


def weights_path(artefact: Path) -> Path:
    """The path of the weights file of an artefact."""
    return artefact.with_name(artefact.name + ".weights")
