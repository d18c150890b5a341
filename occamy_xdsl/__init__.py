"""
A memory-efficient compiler for neural-network inference.

`load` reads a model, `compile` makes an `Executable` of it, `open` loads a compiled library. Everything is
imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from occamy_xdsl import backend
    from occamy_xdsl.compiler import CompiledExecutable, Model, compile, load
    from occamy_xdsl.errors import (
        ArgumentTypeError,
        InvalidInputError,
        InvalidModelError,
        MemoryLimitError,
        NoDeviceError,
        OccamyError,
        UnsupportedModelError,
        UsageError,
    )
    from occamy_xdsl.report.memory import MemoryReport
    from occamy_xdsl.runtime.executable import Executable
    from occamy_xdsl.runtime.executable import open_library as open

    __version__: str

__all__ = [
    "ArgumentTypeError",
    "CompiledExecutable",
    "Executable",
    "InvalidInputError",
    "InvalidModelError",
    "MemoryLimitError",
    "MemoryReport",
    "Model",
    "NoDeviceError",
    "OccamyError",
    "UnsupportedModelError",
    "UsageError",
    "__version__",
    "backend",
    "compile",
    "load",
    "open",
]

_HOMES = {
    "ArgumentTypeError": "errors",
    "CompiledExecutable": "compiler",
    "Executable": "runtime.executable",
    "InvalidInputError": "errors",
    "InvalidModelError": "errors",
    "MemoryLimitError": "errors",
    "MemoryReport": "report.memory",
    "Model": "compiler",
    "NoDeviceError": "errors",
    "OccamyError": "errors",
    "UnsupportedModelError": "errors",
    "UsageError": "errors",
    "compile": "compiler",
    "load": "compiler",
}
"""The module that each public name lives in under the same name."""


def __getattr__(name: str) -> Any:
    match name:
        case "backend":
            return import_module("occamy_xdsl.backend")
        case "open":
            value = import_module("occamy_xdsl.runtime.executable").open_library
        case "__version__":
            value = import_module("occamy_xdsl.version").VERSION
        case _ if name in _HOMES:
            value = getattr(import_module(f"occamy_xdsl.{_HOMES[name]}"), name)
        case _:
            raise AttributeError(f"module 'occamy_xdsl' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
