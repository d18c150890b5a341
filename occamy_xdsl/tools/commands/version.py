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
    versions = {"occamy-xdsl": VERSION} | tool_versions()
    if as_json:
        print(json.dumps(versions, indent=2))
        return
    for name, text in versions.items():
        print(f"{name:<12} {text}")


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
