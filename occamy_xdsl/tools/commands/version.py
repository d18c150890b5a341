"""`occamy version`: what is installed."""

import json
import platform
from importlib.metadata import version as installed
from typing import Annotated

import typer

from occamy_xdsl.errors import UsageError
from occamy_xdsl.version import VERSION


def version(
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Print the versions of the compiler and of what it builds on."""
    print(json.dumps(versions(), indent=2) if as_json else version_table())


def versions() -> dict[str, str]:
    """Versions of the compiler and of what it builds on."""
    return {"occamy-xdsl": VERSION} | tool_versions()


def version_table() -> str:
    """`versions` for reading, one a line."""
    return "\n".join(f"{name:<12} {text}" for name, text in versions().items())


def tool_versions() -> dict[str, str]:
    """Versions of Python, of the packages that decide what is generated, and of LLVM and mlir-opt."""
    from occamy_xdsl.lowering.toolchain import LLVM_VERSION, find_tool

    try:
        _, mlir = find_tool("mlir-opt")
    except UsageError as error:
        mlir = str(error)
    return {
        "python": platform.python_version(),
        **{name: installed(name) for name in ("xdsl", "onnx", "numpy", "llvmlite")},
        "llvm": LLVM_VERSION,
        "mlir-opt": mlir,
    }
