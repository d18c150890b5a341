"""`occamy ops`: the ONNX operators that are supported."""

import json
from typing import Annotated, Literal

import typer


def ops(
    format: Annotated[Literal["table", "md", "json"], typer.Option(help="How to print it.")] = "table",
) -> None:
    """List the supported ONNX operators."""
    from occamy_xdsl.operators import all_operators

    operators = all_operators()
    if format == "json":
        keys = ("domain", "name", "since", "until", "limits")
        print(json.dumps([{key: getattr(o, key) for key in keys} for o in operators], indent=2))
        return
    rows = [
        (f"{o.domain}.{o.name}" if o.domain else o.name, versions(o.since, o.until), o.limits)
        for o in operators
    ]
    if format == "md":
        print("| operator | opset | limits |\n|---|---|---|")
        for row in rows:
            print("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |")
        return
    names, opsets = (max(len(row[i]) for row in rows) for i in (0, 1))
    for name, opset, limits in rows:
        print(f"{name:<{names}}  {opset:<{opsets}}  {limits}".rstrip())


def versions(since: int, until: int | None) -> str:
    """A range of opset versions: `13 to 17`, `since 18`, or one version alone."""
    if until is None:
        return f"since {since}"
    return str(since) if since == until else f"{since} to {until}"
