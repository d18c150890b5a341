"""The database of convolutions: what is chosen, what is stored, what is refused."""

from pathlib import Path

import numpy as np
import pytest
from nets import Net

from occamy_xdsl.compiler import Compilation, Model
from occamy_xdsl.errors import UsageError
from occamy_xdsl.lowering.cuda.convolutions import Choice, Database, Machine, Problem, choose
from occamy_xdsl.pipelines import Options

PROBLEM = Problem((1, 3, 8, 8), (4, 3, 3, 3), (1, 4, 8, 8), (1, 1), (1, 1), (1, 1), 1)
SLOW, FAST, HUNGRY = Choice(0, 0, 0.3), Choice(6, 5000, 0.1), Choice(7, 90000, 0.05)
XAVIER = Machine("Xavier", "sm_75", 92800)
MEASURED = {PROBLEM.key: (SLOW, FAST, HUNGRY)}


@pytest.mark.parametrize(("limit", "expected"), [(None, HUNGRY), (89999, FAST), (4999, SLOW), (0, SLOW)])
def test_fastest_that_fits(limit: int | None, expected: Choice) -> None:
    assert choose(MEASURED, PROBLEM, limit) == expected


def test_default_without_an_entry() -> None:
    """8 bytes for each of 27 taps and 4 for each of 64 positions, or nothing below that."""
    assert choose({}, PROBLEM, None) == Choice(1, 8 * 27 + 4 * 64)
    assert choose({}, PROBLEM, 471) == Choice(0, 0)
    assert choose({PROBLEM.key: (Choice(4, 100),)}, PROBLEM, None).algorithm == 1, "never measured"


def test_entries_of_the_architecture_and_major_version() -> None:
    database = Database({XAVIER: MEASURED})
    assert database.measured("sm_75", 9) == MEASURED
    known = r"; there are those of: 'Xavier' \(sm_75, cuDNN 9.28\)$"
    for wanted, fact in (
        (("sm_75", 8), "sm_75 with cuDNN 8"),
        (("sm_90", 9), "sm_90 with cuDNN 9"),
        (("sm_75", 9, "T4"), "'T4' of sm_75 with cuDNN 9"),
    ):
        with pytest.raises(UsageError, match=f"^no convolutions of {fact}{known}"):
            database.measured(*wanted)


def test_newest_version_counts() -> None:
    newer = {PROBLEM.key: (SLOW,)}
    for version, expected in ((92900, newer), (92700, MEASURED)):
        both = Database({XAVIER: MEASURED}).with_measured(Machine("Xavier", "sm_75", version), newer)
        assert both.measured("sm_75", 9) == expected


def test_devices_of_one_architecture() -> None:
    other = {PROBLEM.key: (SLOW,)}
    both = Database({XAVIER: MEASURED}).with_measured(Machine("T4", "sm_75", 92800), other)
    with pytest.raises(UsageError, match="several devices of sm_75: T4, Xavier; --tuning-device names one"):
        both.measured("sm_75", 9)
    assert both.measured("sm_75", 9, "T4") == other


def test_merging_keeps_what_was_not_measured_again() -> None:
    merged = Database({XAVIER: {"a": (SLOW,), "b": (SLOW,)}}).with_measured(XAVIER, {"b": (FAST,)})
    assert merged.entries == {XAVIER: {"a": (SLOW,), "b": (FAST,)}}


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "database.json"
    database = Database({XAVIER: MEASURED, Machine("T4", "sm_75", 91000): {}})
    path.write_text(database.to_json())
    assert Database.load(path) == database
    assert Database.load(path).to_json() == path.read_text()


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("{}", "not a database"),
        ("[", "not a database"),
        ("3", "not a database"),
        ("[" * 100_000, "not a database"),
        (
            '{"version": 2, "machines": [{"device": "T4", "architecture": "sm_75", "cudnn": 91000, "convolutions": '
            '{"x": [{"algorithm": 1, "workspace_bytes": "much", "milliseconds": 1}]}}]}',
            "not a database",
        ),
        ('{"version": 1, "convolutions": []}', "version 1, expected 2"),
        ('{"version": 2, "machines": [{"device": "T4"}]}', "not a database"),
        (
            '{"version": 2, "machines": [{"device": "", "architecture": "", "cudnn": 9, "convolutions": []}]}',
            "not",
        ),
    ],
)
def test_file_that_is_none(tmp_path: Path, text: str, fact: str) -> None:
    path = tmp_path / "database.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"database.json: {fact}"):
        Database.load(path)
    with pytest.raises(UsageError, match=r"missing\.json: No such file"):
        Database.load(tmp_path / "missing.json")


def two_convolutions() -> Model:
    """A convolution at the peak of the network, and one where less is live."""
    n = Net()
    wide = n.conv(n.op("Sigmoid", "x"), 16, 16)
    low = n.op("MaxPool", n.op("Sigmoid", wide), kernel_shape=[8, 8], strides=[8, 8])
    return Model(n.model({"x": (1, 16, 64, 64)}, [n.conv(low, 16, 16)]))


def choices_of(compilation: Compilation) -> list[tuple[int, int]]:
    """Algorithm and bytes for the library of each convolution, in order."""
    compilation.run_to("mem")
    return [
        tuple(op.attributes[name].value.data for name in ("cuda.algorithm", "cuda.library_bytes"))
        for op in compilation.module.walk()
        if op.name == "dnn.conv"
    ]


def test_choices_reach_the_plan(tmp_path: Path) -> None:
    """The fastest algorithm where its workspace fits under the peak, a limit, or nothing."""
    model = two_convolutions()
    problems = Compilation(model, Options(target="cuda")).convolutions()
    assert [p.y for p in problems] == [(1, 16, 64, 64), (1, 16, 8, 8)]
    path = tmp_path / 'my "tuned" convolutions.json'
    measured = {p.key: (SLOW, FAST, HUNGRY, Choice(2, 1 << 30, 0.01)) for p in problems}
    path.write_text(Database({XAVIER: measured}).to_json())

    def tuned(**options: object) -> Compilation:
        return Compilation(model, Options(target="cuda:sm_75", tuning=str(path), **options))

    untuned = Compilation(model, Options(target="cuda:sm_75"))
    assert choices_of(untuned)[1] == (1, 8 * 16 * 9 + 4 * 64)
    assert choices_of(tuned()) == [(0, 0), (7, 90000)]
    assert tuned().pool_bytes == untuned.pool_bytes
    assert choices_of(tuned(workspace_limit=6000)) == [(6, 5000), (6, 5000)]
    assert choices_of(tuned(workspace_limit=1 << 30)) == [(2, 1 << 30), (2, 1 << 30)]
    with pytest.raises(UsageError, match=r"convolutions\.json: no convolutions of 'T4' of sm_75"):
        choices_of(tuned(tuning_device="T4"))


def test_only_for_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tuning 'x\.json': target 'cpu' has none"):
        Options(tuning="x.json")
    with pytest.raises(UsageError, match="tuning device 'T4': no effect without tuning"):
        Options(target="cuda", tuning_device="T4")


def test_tuned_model_runs(tmp_path: Path, build) -> None:
    """Creating a model asks the library again, and takes what was planned where it needs no more."""
    from occamy_xdsl.simulator import Simulator

    n = Net()
    model = n.model({"x": (1, 3, 16, 16)}, [n.op("MaxPool", n.conv("x", 3, 8), kernel_shape=[2, 2])])
    (problem,) = Compilation(Model(model), Options(target="cuda")).convolutions()
    path = tmp_path / "tuned.json"
    path.write_text(Database({XAVIER: {problem.key: (Choice(6, 4096, 0.1), Choice(0, 0, 0.2))}}).to_json())
    compiled = build(model, tuning=str(path), workspace_limit=4096)
    for needed, algorithm in ((4096, 6), (4097, 0)):
        simulator = Simulator(
            architecture="sm_75", workspace_bytes=lambda chosen, problem, n=needed: n if chosen == 6 else 0
        )
        with simulator:
            compiled.check(compiled.run(simulator))
        assert f'"algorithm": {algorithm}' in simulator.trace.to_json()
        np.testing.assert_equal(simulator.report().allocations, 1)
