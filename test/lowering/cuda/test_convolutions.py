"""The database of convolutions: what is chosen, what is stored, what is refused."""

from pathlib import Path

import numpy as np
import pytest
from nets import Net

from occamy_xdsl.compiler import Compilation, Model, make_context
from occamy_xdsl.errors import UsageError
from occamy_xdsl.lowering.cuda.convolutions import EMPTY, Choice, Database, Problem
from occamy_xdsl.lowering.cuda.cuda_assign_workspaces import CudaAssignWorkspacesPass
from occamy_xdsl.pipelines import Options
from occamy_xdsl.transforms.dnn_insert_memory_ops import DnnInsertMemoryOpsPass

PROBLEM = Problem((1, 3, 8, 8), (4, 3, 3, 3), (1, 4, 8, 8), (1, 1), (1, 1), (1, 1), 1)
SLOW, FAST, HUNGRY = Choice(0, 0, 0.3), Choice(6, 5000, 0.1), Choice(7, 90000, 0.05)


def database() -> Database:
    return Database({("sm_75", 9, PROBLEM.key): (SLOW, FAST, HUNGRY)})


@pytest.mark.parametrize(("limit", "expected"), [(None, HUNGRY), (89999, FAST), (4999, SLOW), (0, SLOW)])
def test_fastest_that_fits(limit: int | None, expected: Choice) -> None:
    assert database().choose(PROBLEM, "sm_75", 9, limit) == expected


def test_default_without_an_entry() -> None:
    """8 bytes for each of 27 taps and 4 for each of 64 positions, or nothing below that."""
    for known in (EMPTY, Database({("sm_90", 9, PROBLEM.key): (FAST,), ("sm_75", 8, PROBLEM.key): (FAST,)})):
        assert known.choose(PROBLEM, "sm_75", 9, None) == Choice(1, 8 * 27 + 4 * 64)
        assert known.choose(PROBLEM, "sm_75", 9, 471) == Choice(0, 0)


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "database.json"
    database().save(path)
    assert Database.load(path) == database()
    text = path.read_text()
    Database.load(path).save(path)
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("text", "fact"),
    [("{}", "not a database"), ("[", "not a database"), ('{"version": 9, "convolutions": []}', "version 9")],
)
def test_file_that_is_none(tmp_path: Path, text: str, fact: str) -> None:
    path = tmp_path / "database.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"database.json: {fact}"):
        Database.load(path)
    with pytest.raises(UsageError, match=r"missing\.json: No such file"):
        Database.load(tmp_path / "missing.json")


def test_choice_reaches_the_op(tmp_path: Path) -> None:
    """The pass finds the entry of a convolution of a model, and plans its bytes."""
    n = Net()
    y = n.op("Conv", "x", n.const(np.ones((4, 3, 3, 3))), pads=[1, 1, 1, 1])
    module = Compilation(Model(n.model({"x": (1, 3, 8, 8)}, [y])), Options(target="cuda"))
    module.run_to("dnn")
    path = tmp_path / "database.json"
    database().save(path)
    DnnInsertMemoryOpsPass().apply(make_context(), module.module)
    CudaAssignWorkspacesPass(database=str(path), limit=6000).apply(make_context(), module.module)
    text = str(module.module)
    assert "cuda.algorithm = 6 : i64, cuda.library_bytes = 5000 : i64" in text
    assert "dnn.malloc : memref<5120xi8>" in text
