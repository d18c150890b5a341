"""The documentation is true: generated parts are up to date, marked commands run, links lead somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
]
RUN = re.compile(r"^<!-- run -->\n```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(#[^)\s]*)?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_generated_parts_are_up_to_date():
    done = subprocess.run(
        [sys.executable, "docs/generate.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("net", ["resnet50", "squeezenet"])
def test_table_of_memory_is_up_to_date(net: str):
    done = subprocess.run(
        [sys.executable, "bench/memory.py", "--check", net], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", [p for p in PAGES if RUN.search(p.read_text())], ids=name_of)
def test_commands_run(page: Path, tmp_path: Path, compiler: list[str]):
    """In order, in one folder; `sh` stops at the first command that fails."""
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    for language, text in RUN.findall(page.read_text()):
        command = {"sh": ["sh", "-e", "-x", "-c", text], "python": [sys.executable, "-c", text]}[language]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path):
    broken = []
    for target, fragment in LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        if "://" in target:
            continue
        path = page.parent / target if target else page
        if not path.exists():
            broken.append(target)
        elif fragment and fragment[1:] not in anchors(path):
            broken.append(target + fragment)
    assert not broken


def anchors(page: Path) -> set[str]:
    """The fragments of a page's headings, as GitHub makes them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(text)}
