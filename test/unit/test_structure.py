"""The project's own rules: who may import whom, and that passes, ops and files come with what they promise."""

import ast
import inspect
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from occamy_xdsl.dialects.dnn import Dnn
from occamy_xdsl.pipelines import PASSES, get_all_passes

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "occamy_xdsl"

ROOMS = [
    ["tools"],
    ["backend"],
    ["compiler"],
    ["memory_budget"],
    ["pipeline_run"],
    ["pipelines"],
    ["importer"],
    ["runtime"],
    ["report"],
    ["simulator"],
    ["lowering"],
    ["transforms"],
    ["operators"],
    ["analysis"],
    ["planning"],
    ["interpreters"],
    ["dialects"],
    ["files"],
    ["signals"],
    ["errors", "version"],
]
"""From top to bottom: a room imports from the rooms below it alone, never from one beside or above it."""

LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}

READS_ONNX = {
    "backend.py": "is the onnx.backend interface",
    "compiler.py": "takes a ModelProto",
    "dialects/onnx.py": "derives its ops from onnx.defs",
    "operators/schema_inference.py": "asks onnx for result types",
    "runtime/bind.py": "reads tensors from .pb files",
    "tools/reference.py": "asks ONNX Runtime for every value",
}
"""Why a file outside the importer imports onnx."""


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """The dotted names that a file imports, at its top and inside of functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def tracked() -> list[Path]:
    """The files of the repository; the tests are skipped in a copy that is not one."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git repository")
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file()]


def test_imports_point_downward():
    wrong = []
    for path in sources():
        room = room_of(path)
        if room == "__init__":
            continue
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "occamy_xdsl" or parts[1] == room:
                continue
            if LEVEL[parts[1]] <= LEVEL[room]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong


def test_planning_knows_nothing_of_xdsl():
    names = {name.split(".")[0] for path in (PACKAGE / "planning").rglob("*.py") for name in imports(path)}
    assert "xdsl" not in names


def test_only_the_importer_reads_onnx_models():
    readers = {
        path.relative_to(PACKAGE).as_posix()
        for path in sources()
        if room_of(path) != "importer" and any(name.split(".")[0] == "onnx" for name in imports(path))
    }
    assert readers == set(READS_ONNX)


def test_every_pass_file_is_registered():
    classes = {
        path: [n.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ClassDef)]
        for path in sources()
        if room_of(path) in ("transforms", "lowering")
    }
    found = {path for path, names in classes.items() if any(name.endswith("Pass") for name in names)}
    registered = {
        ROOT / package.replace(".", "/") / f"{name.replace('-', '_')}.py"
        for package, names in PASSES.items()
        for name in names
    }
    assert found == registered


@pytest.mark.parametrize("name", sorted(get_all_passes()))
def test_pass_is_documented(name: str):
    cls = get_all_passes()[name]()
    assert cls.name == name
    text = inspect.cleandoc(cls.__doc__ or "")
    shown = ["Refuses"] if name.startswith("verify-") else ["Before:", "After:"]
    assert [part for part in ("Requires:", "Ensures:", *shown) if part not in text] == []
    assert text.count("```mlir") == len(shown)


def test_every_pass_has_a_lit_test():
    tests = {
        path.stem
        for folder in ("transforms", "lowering")
        for path in (ROOT / "test" / folder).rglob("*.mlir")
    }
    assert sorted(set(get_all_passes()) - tests) == []


def documented_constraints(doc: str) -> set[str]:
    return set(re.findall(r"^\s*- \(([CF]\d+)\)", doc, re.MULTILINE))


def test_every_constraint_of_dnn_is_tested():
    text = (ROOT / "test" / "dialects" / "dnn" / "invalid.mlir").read_text()
    checked = set(re.findall(r"// CHECK: '(dnn\.\w+)' op .*\((\w\d+)\)$", text, re.MULTILINE))
    missing = []
    shared = set[str]()
    for op in Dnn.operations:
        own = sorted(documented_constraints(op.__doc__ or ""))
        missing += [f"{op.name} ({code})" for code in own if (op.name, code) not in checked]
        for base in op.__mro__[1:]:
            shared |= documented_constraints(base.__dict__.get("__doc__") or "")
    missing += sorted(shared - {code for _, code in checked})
    assert not missing


def test_every_constraint_that_dnn_reports_is_documented():
    unknown = []
    for op in Dnn.operations:
        documented = set[str]()
        reported = set[str]()
        for cls in op.__mro__:
            if cls.__module__.startswith("occamy_xdsl"):
                documented |= documented_constraints(cls.__doc__ or "")
                reported |= set(re.findall(r'"([CF]\d+)"', inspect.getsource(cls)))
        unknown += [f"{op.name} ({code})" for code in sorted(reported - documented)]
    assert not unknown


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("paths of one machine", r"(?<![\w.])/(?:home|root|work|Users|tmp/[a-z])/"),
        ("package index hosts", r"(?:index-url|trusted-host|find-links)[ =:]+\S*/"),
        ("unfinished work", "TODO|FIXME|XXX"),
    ],
)
def test_tracked_files_are_free_of(name: str, pattern: str):
    this = Path(__file__)
    found = []
    for path in tracked():
        if path == this:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if re.search(pattern, line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not found


def test_tracked_files_are_small():
    assert [str(path.relative_to(ROOT)) for path in tracked() if path.stat().st_size > 1 << 20] == []
