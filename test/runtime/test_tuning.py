"""Measuring convolutions, under the simulator with times that are made up, and the command that does it."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from nets import Net

from occamy_xdsl.errors import OccamyError
from occamy_xdsl.lowering.cuda.convolutions import Choice, Database, Machine, Problem
from occamy_xdsl.runtime.device import Device, device, free_bytes
from occamy_xdsl.runtime.tuning import Method, measure
from occamy_xdsl.simulator import Simulator

PROBLEM = Problem((1, 4, 9, 8), (6, 2, 3, 3), (1, 6, 9, 8), (1, 1), (1, 1), (1, 1), 2)
WORKSPACES = {0: 0, 1: 100, 2: 5000, 4: 700, 5: 600, 6: 300, 7: 400}
"""Bytes that the simulated cuDNN asks for; algorithm 3 is never supported."""


pytestmark = pytest.mark.usefixtures("compiler")


def simulator(capacity: int = 1 << 30) -> Simulator:
    return Simulator(
        architecture="sm_87", capacity=capacity, workspace_bytes=lambda algorithm, _: WORKSPACES[algorithm]
    )


def made_up(times: list[float]) -> Method:
    """A method whose timer runs the work, and says it took the next of `times`."""
    left = iter(times)

    def timer(stream: int, enqueue: Callable[[], None]) -> float:
        enqueue()
        return next(left)

    return Method(warmup=1, iterations=3, timer=timer)


def test_sorted_by_the_median() -> None:
    times = [9, 1, 5, 2, 8, 3, 4, 4, 4, 7, 7, 7, 6, 6, 6, 1, 1, 9, 2, 2, 9]
    with simulator() as sim:
        found = measure(PROBLEM, method=made_up(times))
    assert [(c.algorithm, c.workspace_bytes, c.milliseconds) for c in found] == [
        (6, 300, 1), (7, 400, 2), (1, 100, 3), (2, 5000, 4), (0, 0, 5), (5, 600, 6), (4, 700, 7),
    ]  # fmt: skip
    # Once for the expected result; 1 to check, 1 to warm up and 3 to time for each of 7 algorithms.
    assert sim.calls.count("cudnnConvolutionForward") == 1 + 7 * 5
    assert sim.violations == [], "everything is released"


def test_limit_and_free_memory() -> None:
    times = [1.0] * 100
    with simulator():
        assert [c.algorithm for c in measure(PROBLEM, 300, made_up(times))] == [0, 1, 6]
    with simulator(capacity=8192):
        # The tensors take 1152, 432 and 1728 bytes, so 5000 do not fit.
        assert sorted(c.algorithm for c in measure(PROBLEM, None, made_up(times))) == [0, 1, 4, 5, 6, 7]
        assert free_bytes() == 8192


def test_what_is_not_right_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An algorithm whose result is off by more than a thousandth of the largest value does not count."""
    from occamy_xdsl.simulator import cudnn

    right, runs = cudnn.convolve, []

    def wrong_the_third_time(*arguments: object) -> np.ndarray:
        runs.append(1)
        return right(*arguments) * (1.01 if len(runs) == 7 else 1)

    monkeypatch.setattr(cudnn, "convolve", wrong_the_third_time)
    with simulator():
        found = measure(PROBLEM, 300, made_up([1.0] * 100))
    assert [c.algorithm for c in found] == [0, 6], "the seventh run is the first one of algorithm 1"


def test_one_and_three_dimensions() -> None:
    line = Problem((2, 3, 11), (4, 3, 3), (2, 4, 6), (1,), (2,), (1,), 1)
    volume = Problem((1, 2, 4, 5, 6), (2, 2, 2, 2, 2), (1, 2, 3, 6, 5), (0, 1, 0), (1, 1, 1), (1, 1, 1), 1)
    for problem in (line, volume):
        with simulator():
            assert {c.algorithm for c in measure(problem, None, made_up([1.0] * 100))} >= {0, 1}


def test_the_device_is_asked() -> None:
    with simulator():
        assert device() == Device("simulator", "sm_87", 91000, 13000)


@pytest.mark.parametrize("name", ["cuMemAlloc_v2", "cudnnSetTensorNdDescriptor", "cudnnConvolutionForward"])
def test_failures_name_the_call_and_leave_nothing(name: str) -> None:
    with simulator() as sim:
        measure(PROBLEM, 0, made_up([1.0] * 100))
    number = sim.calls.index(name) + 1
    failing = Simulator(architecture="sm_87", fail=(number, 46), strict=False)
    with pytest.raises(OccamyError, match=rf"{name.removesuffix('_v2')}: \w+ \(status 46\)"), failing:
        measure(PROBLEM, 0, made_up([1.0] * 100))
    assert failing.violations == []


def tunable(folder: Path, channels: int) -> Path:
    """A model with one convolution of 3 x 3, in a file."""
    n = Net()
    path = folder / f"{channels}.onnx"
    path.write_bytes(n.model({"x": (1, 3, 8, 8)}, [n.conv("x", 3, channels)]).SerializeToString())
    return path


def test_command_adds_to_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second model adds its convolutions; what is known is not measured again unless asked for."""
    from occamy_xdsl.tools.occamy import main

    file = tmp_path / "c.json"
    machine = Machine("simulator", "sm_87", 91000)
    other = Database({Machine("T4", "sm_75", 92800): {"some problem": (Choice(0, 0, 1.5),)}})
    file.write_text(other.to_json())

    def tune(channels: int, *more: str) -> str:
        model = tunable(tmp_path, channels)
        with simulator() as sim:
            code = main(
                ["tune", str(model), "--target", "cuda:sm_87", "-o", str(file), "--iterations=1", *more]
            )
        assert code == 0
        return f"{sim.calls.count('cudnnConvolutionForward')} runs\n{capsys.readouterr().err}"

    first = tune(4)
    assert (
        f"1 convolutions measured on simulator, 0 known; compile with --target cuda:sm_87 --tuning {file}"
        in first
    )
    tune(5)
    assert tune(4).startswith("0 runs\n0 convolutions measured on simulator, 1 known")
    assert not tune(4, "--again").startswith("0 runs")
    database = Database.load(file)
    assert database.entries.keys() == {*other.entries, machine}
    keys = [f"x1x3x8x8 w{c}x3x3x3 y1x{c}x8x8 p1x1 s1x1 d1x1 g1" for c in (4, 5)]
    assert list(database.entries[machine]) == keys
    code = main(
        ["compile", str(tunable(tmp_path, 4)), "--target=cuda:sm_87", f"--tuning={file}", "--emit=mem", "-o-"]
    )
    assert code == 0
    assert "cuda.algorithm" in capsys.readouterr().out


def test_command_without_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from occamy_xdsl.tools.occamy import main

    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a device")
    file = tmp_path / "c.json"
    for command in ("tune", "bench"):
        more = ["-o", str(file)] if command == "tune" else ["--cuda-graph"]
        assert main([command, str(tunable(tmp_path, 4)), "--target", "cuda", *more]) == 3
        assert "error: no GPU can be used here: " in capsys.readouterr().err
    assert not file.exists()


def test_bench_on_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command's calls are right; the simulator's times say nothing."""
    from occamy_xdsl.tools.occamy import main

    model = tunable(tmp_path, 4)
    launches = {}
    for graph in (False, True):
        with Simulator() as sim:
            command = ["bench", str(model), "--target=cuda", "--iterations=2", "--warmup=1", "--format=json"]
            assert main([*command, *["--cuda-graph"] * graph]) == 0
        result = json.loads(capsys.readouterr().out)
        assert result["device"] == "simulator"
        assert result["cuda_graph"] == graph
        assert result["times_ms"]["on device"]["p50"] == 0
        # Pool, copies of input and output, weights: what one more model takes.
        assert result["device_bytes"] > 4 * 3 * 64 + 4 * 4 * 64
        launches[graph] = sim.calls.count("cudnnConvolutionForward"), sim.calls.count("cudaGraphLaunch")
    assert launches == {False: (6, 0), True: (1, 6)}
