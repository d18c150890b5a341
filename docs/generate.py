"""
Writes what the documentation takes from the code: whole pages, and the output of commands inside of others.

`python docs/generate.py` rewrites; with `--check` it names what is out of date and exits 1.

In README.md and the hand-written pages, what stands between these comments and `<!-- end -->` is written here:

- `<!-- output: COMMAND -->`: what a command prints, in a folder with `docs` and a model `small_cnn.onnx`;
- `<!-- source: MODULE.FUNCTION -->`: the source of a function of the project;
- `<!-- table: NAME -->`: one of the tables below.
"""

import argparse
import dataclasses
import difflib
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from xdsl.irdl import OptionalDef, VariadicDef

from occamy_xdsl.dialects.dnn import ControlOp, Dnn, KernelOp
from occamy_xdsl.dialects.dnn.compute import FusableOp, WindowOp
from occamy_xdsl.dialects.dnn.shape import ShapeOp
from occamy_xdsl.operators import all_operators
from occamy_xdsl.pipelines import Options, get_all_passes, stages
from occamy_xdsl.report.memory import BudgetStep, MemoryReport, ModeStep, PassStep, Tensor
from occamy_xdsl.tools.commands.ops import versions

ROOT = Path(__file__).resolve().parents[1]
NOTE = "<!-- Written by docs/generate.py; change the code, not this page. -->"

SHARED = {
    KernelOp: "All ops that compute",
    FusableOp: "Ops with an epilogue",
    WindowOp: "Ops with a sliding window",
    ShapeOp: "Ops that only move elements",
    ControlOp: "Control flow",
}
"""Base classes whose documentation holds for the ops under them."""


def documentation(cls: type[Any]) -> str:
    """A class's docstring, with a paragraph for each of its sections."""
    text = inspect.cleandoc(cls.__doc__ or "")
    return re.sub(r"(?<!\n)\n(?=(Requires|Ensures|Raises):)", "\n\n", text)


# --- the dnn dialect --------------------------------------------------------------------------------------


def count(definition: object) -> str:
    """How many values a definition of IRDL stands for: an optional one is optional and variadic too."""
    if isinstance(definition, OptionalDef):
        return "optional"
    return "any number" if isinstance(definition, VariadicDef) else "one"


def property_type(constraint: object) -> str:
    """The kind of attribute that a property takes, in words."""
    text = repr(constraint)
    for pattern, words in (
        (r"DenseArrayBase", "array of i64"),
        (r"DenseIntOrFP", "dense constant or weights"),
        (r"IntegerAttr.*IntegerType\((\d+)\)", "i{}"),
        (r"StringAttr", "string"),
        (r"FloatAttr.*Float(\d+)Type", "f{}"),
        (r"FloatAttr", "float"),
        (r"IntegerAttr", "integer"),
    ):
        if match := re.search(pattern, text):
            return words.format(*match.groups())
    return "attribute"


def dnn_page() -> str:
    parts = [
        "# The dnn dialect",
        NOTE,
        inspect.cleandoc(
            """
            Layers of a network, and the memory between them. Names follow the paper; `-` becomes `_`, because
            MLIR's syntax has no `-` inside names:

            | the paper and its code | here |
            |---|---|
            | `dnn.malloc`, `dnn.dealloc`, `dnn.memcpy` | the same |
            | `dnn.mempool-init` | `dnn.mempool_init` |
            | `dnn.mem-offset(base, offset, size)` | `dnn.mem_offset %base[offset, size]` |

            A constraint's number stands at the end of the error that reports it.
            """
        ),
    ]
    for cls, title in SHARED.items():
        ops = [f"[`{op.name}`](#{anchor(op.name)})" for op in Dnn.operations if cls in op.__mro__]
        parts += [f"## {title}", documentation(cls), "For: " + ", ".join(ops) + "."]
    for op in sorted(Dnn.operations, key=lambda op: op.name):
        definition = op.get_irdl_definition()
        python_names = {name: own for name, (own, _) in definition.accessor_names.items()}
        rows = [f"| operand | `{name}` | {count(d)} |" for name, d in definition.operands]
        rows += [f"| result | `{name}` | {count(d)} |" for name, d in definition.results]
        rows += [
            f"| property | `{python_names.get(name, name)}` | "
            f"{property_type(d.constr)}{', optional' if isinstance(d, OptionalDef) else ''} |"
            for name, d in sorted(definition.properties.items())
            if not name.endswith("SegmentSizes")
        ]
        rows += [f"| region | `{name}` | {count(d)} |" for name, d in definition.regions]
        parts += [f"## {op.name}", documentation(op)]
        if rows:
            parts.append("| kind | name | what |\n|---|---|---|\n" + "\n".join(rows))
    parts += [f"## #{attribute.name}\n\n{documentation(attribute)}" for attribute in Dnn.attributes]
    return "\n\n".join(parts) + "\n"


def anchor(heading: str) -> str:
    """The fragment under which GitHub links a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


# --- passes, pipelines, operators -------------------------------------------------------------------------


def field_notes(cls: type[Any]) -> dict[str, str]:
    """The docstring that follows each field of a dataclass, by field."""
    notes = re.findall(
        r'^    (\w+): [^\n]*\n    """(.*?)"""', inspect.getsource(cls), re.MULTILINE | re.DOTALL
    )
    return {name: " ".join(text.split()) for name, text in notes}


def passes_page() -> str:
    parts = [
        "# Passes",
        NOTE,
        "Each is a pass of `occamy-opt -p`; [pipelines](pipelines.md) shows their order.",
    ]
    for name, load in sorted(get_all_passes().items()):
        cls = load()
        parts += [f"## {name}", documentation(cls)]
        notes = field_notes(cls)
        rows = list[str]()
        for option in dataclasses.fields(cls):
            default = str(option.default).lower() if isinstance(option.default, bool) else str(option.default)
            choices = ", ".join(f"`{c}`" for c in get_args(option.type))
            rows.append(f"| `{option.name}` | `{default}` | {notes.get(option.name) or choices} |")
        if rows:
            parts.append("| option | default | meaning |\n|---|---|---|\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def pipelines_page() -> str:
    parts = [
        "# Pipelines",
        NOTE,
        "What `occamy compile` runs, in stages; `--emit STAGE` prints the program after one of them, and "
        "`--print-pipeline` the whole pipeline for given options, to be pasted into `occamy-opt -p`.",
    ]
    for memory in ("pool", "lazy", "eager"):
        rows = [
            f"| `{stage.name}` | {'<br>'.join(f'`{text}`' for text in stage.passes)} |"
            for stage in stages(Options(memory=memory))
        ]
        parts += [f"## --memory {memory}", "| stage | passes |\n|---|---|\n" + "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


def operators_page() -> str:
    operators = all_operators()
    names = {(o.domain, o.name) for o in operators}
    rows = "\n".join(
        f"| {o.domain + '.' if o.domain else ''}{o.name} | {versions(o.since, o.until)} | {o.limits} |"
        for o in operators
    )
    return "\n\n".join(
        [
            "# Supported operators",
            NOTE,
            f"{len(names)} operators of ONNX, by opset version. A model is checked as a whole: one error lists "
            "every node that is not supported. `occamy ops` prints this table.",
            f"| operator | opset | what is refused |\n|---|---|---|\n{rows}\n",
        ]
    )


PAGES: dict[str, Callable[[], str]] = {
    "docs/dialects/dnn.md": dnn_page,
    "docs/passes.md": passes_page,
    "docs/pipelines.md": pipelines_page,
    "docs/operators.md": operators_page,
}


# --- parts of hand-written pages --------------------------------------------------------------------------


def memory_table() -> str:
    results: dict[str, dict[str, int]] = json.loads((ROOT / "bench" / "results" / "memory.json").read_text())
    rows = [
        f"| {net} | {r['all'] / 1e6:.1f} | {r['live'] / 1e6:.2f} | **{r['pool'] / 1e6:.2f}** "
        f"| {r['pool'] / r['bound'] - 1:.1%} | **{r['striped'] / 1e6:.2f}** |"
        for net, r in results.items()
    ]
    head = (
        "| network | all tensors | freed after last use | pool | above its bound | in stripes |\n"
        "|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(rows)


def measured_table() -> str:
    """The paper's networks, without those of the onnx package."""
    rows = json.loads((ROOT / "bench" / "results" / "memory-znver5.json").read_text())["nets"]
    columns = {
        "eager": "eager",
        "lazy": "lazy",
        "liveness": "liveness",
        "original": "original's pool",
        "pool": "pool",
        "striped_pool": "in stripes",
        "ort_run": "ONNX Runtime",
        "torch_run": "PyTorch",
    }
    lines = ["| network | " + " | ".join(columns.values()) + " |", "|---" * (1 + len(columns)) + "|"]
    for row in rows:
        if not row["net"].startswith("light_"):
            cells = [f"{row[key] / 1e6:,.2f}" if row[key] is not None else "-" for key in columns]
            lines.append(f"| {row['net']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def report_tables() -> str:
    """The keys of a memory report as JSON, and those of the items in its lists."""
    parts = [inspect.cleandoc(MemoryReport.__doc__ or "").partition("\n\n")[2]]
    for cls, keys in (
        (MemoryReport, ""),
        (Tensor, "`tensors`"),
        (PassStep, "`passes` and `waterfall`"),
        (BudgetStep, "`budgets`"),
        (ModeStep, "`modes`"),
    ):
        notes = field_notes(cls)
        rows = [f"| `{field.name}` | {notes[field.name].rstrip('.')} |" for field in dataclasses.fields(cls)]
        head = f"Each item of {keys}:" if keys else "The report:"
        parts.append(head + "\n\n| key | what |\n|---|---|\n" + "\n".join(rows))
    return "\n\n".join(parts)


TABLES: dict[str, Callable[[], str]] = {
    "measured": measured_table,
    "memory": memory_table,
    "report": report_tables,
}


def run(command: str, folder: Path) -> str:
    """Standard output of a command in `folder`; its programs are those of this environment."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        shlex.split(command), cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())


def block(kind: str, what: str, folder: Path) -> str:
    """What stands between the comments of one kind."""
    match kind:
        case "output":
            language = "mlir" if what.startswith("occamy-opt") else "text"
            return f"```{language}\n{run(what, folder)}\n```"
        case "source":
            module, _, function = what.rpartition(".")
            return f"```python\n{inspect.getsource(getattr(import_module(module), function)).strip()}\n```"
        case _:
            return TABLES[what]()


BLOCK = re.compile(r"<!-- (output|source|table): (.*?) -->\n.*?<!-- end -->", re.DOTALL)


def filled(text: str, folder: Path) -> str:
    """A hand-written page with its blocks made anew."""
    return BLOCK.sub(lambda m: f"<!-- {m[1]}: {m[2]} -->\n{block(m[1], m[2], folder)}\n<!-- end -->", text)


def generated() -> dict[Path, str]:
    """What each page with generated content must hold."""
    pages = {ROOT / name: make() for name, make in PAGES.items()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "docs").symlink_to(ROOT / "docs")
        run("python docs/examples/small_cnn.py small_cnn.onnx", folder)
        for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
            if path not in pages:
                pages[path] = filled(path.read_text(), folder)
    return pages


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes the generated documentation.")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 if a page is out of date"
    )
    check = parser.parse_args().check
    stale = False
    for path, text in generated().items():
        old = path.read_text() if path.exists() else ""
        if old == text:
            continue
        if check:
            name = path.relative_to(ROOT).as_posix()
            print(f"{name} is out of date; run `make docs`")
            difference = difflib.unified_diff(
                old.splitlines(), text.splitlines(), "old", "new", lineterm="", n=1
            )
            print("\n".join(f"    {line}" for line in list(difference)[:20]))
            stale = True
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
