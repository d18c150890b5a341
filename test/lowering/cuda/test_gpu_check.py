"""The scripts that check a real GPU, without one: what they prepare, pack, run, note and resume."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gpu_check
import gpu_pack
import gpu_prepare
import numpy as np
import onnxruntime
import pytest
from nets import NETS
from onnx import numpy_helper

SCRIPT = Path(gpu_check.__file__)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, compiler: list[str]) -> Path:
    """A folder with two networks."""
    folder = tmp_path_factory.mktemp("prepared")
    for net in ("op/gather", "small/unet"):
        gpu_prepare.prepare(net, "cuda", folder / net.replace("/", "-"))
    return folder


def run(script: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A script in another folder, which finds nothing of ours but what it looks for itself."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if script == SCRIPT:
        environment["PYTHONPATH"] = str(SCRIPT.parents[1])
    command = [sys.executable, script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd="/")


def test_packed_networks_are_checked_from_a_clean_folder(prepared: Path, tmp_path: Path) -> None:
    archive = tmp_path / "pack.tar.xz"
    sizes = gpu_pack.pack(prepared, ["op/gather", "small/unet"], archive)
    assert archive.stat().st_size < 10 << 20
    assert list(sizes) == ["code", "expected outputs", "libraries", "models for PyTorch"]
    assert sizes["libraries"][0] > sum(p.stat().st_size for p in prepared.glob("*/model.so"))
    assert sum(packed for _, packed in sizes.values()) <= archive.stat().st_size
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path], check=True)
    pack = tmp_path / "gpu-pack"
    done = run(pack / "gpu_check.py", "--simulate", "small")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count('"right": true') == 2, "as calls and as a graph"
    # Without a simulation it needs nothing that has to be compiled, and says in one line that there is no device.
    code = f"""
import sys
for name in ("llvmlite", "mlir", "onnx", "onnxruntime", "typer", "rich"):
    sys.modules[name] = None
sys.path.insert(0, {str(pack)!r})
import gpu_check, occamy_xdsl, xdsl
assert all(m.__file__.startswith({str(pack)!r}) for m in (occamy_xdsl, xdsl))
sys.argv = ["gpu_check.py"]
sys.exit(gpu_check.main())
"""
    if Path("/dev/nvidiactl").exists():
        return
    (tmp_path / "main.py").write_text(code)
    done = run(tmp_path / "main.py")
    assert done.returncode == 3, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: no GPU can be used here: ")
    assert not (pack / "results").exists()


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="there is a GPU")
def test_no_gpu_is_said_before_networks_are_prepared(tmp_path: Path) -> None:
    done = run(SCRIPT, "--find", "--folder", tmp_path / "nothing")
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (3, "", 1)
    assert done.stderr.startswith("error: no GPU can be used here: ")


def test_what_is_wrong_is_found(prepared: Path, tmp_path: Path) -> None:
    folder = tmp_path / "small-unet"
    folder.mkdir()
    for path in (prepared / "small-unet").iterdir():
        (folder / path.name).symlink_to(path)
    expected = dict(np.load(folder / "expected.npz"))
    (folder / "expected.npz").unlink()
    np.savez(
        folder / "expected.npz", **{name: y + np.float32(0.01) * y.max() for name, y in expected.items()}
    )
    done = run(SCRIPT, "--simulate", "--folder", tmp_path, "--systems", "occamy")
    assert done.returncode == 1
    assert '"right": false' in done.stdout
    assert "1 networks, 1 runs of ours are wrong" in done.stdout


@pytest.mark.parametrize(
    ("got", "share"), [([0, 1, 4], 0.25), ([0, 1, np.nan], np.inf), ([0, 1], np.inf), ([0, 2, 4], 0.0)]
)
def test_difference(got: list[float], share: float) -> None:
    got_array, want = np.array(got, np.float32), np.array([0, 2, 4], np.float32)
    assert gpu_check.difference({"y": got_array}, {"y": want}) == share


def test_results_are_written_step_by_step_and_resumed(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured of the same library is kept, errors are tried again, and a new library starts anew."""
    file = tmp_path / "results" / "gpu-test-gpu-1.json"
    runs: list[tuple[str, str]] = []
    answers = {"torch": {"skipped": "no PyTorch"}, "occamy": {"difference": 0.0, "ms": {"p50": 1.5}}}

    def pretend(arguments: list[str]) -> dict[str, object]:
        if arguments == ["--device"]:
            return {"name": "Test GPU 1", "architecture": "sm_90"}
        net, system = Path(arguments[1]).name, arguments[2]
        if runs:
            previous_net, previous_system = runs[-1]
            known = json.loads(file.read_text())["nets"][previous_net.replace("-", "/")]
            assert previous_system in known, "written before the next one starts"
        runs.append((net, system))
        return dict(answers.get(system, {"error": "failed"}))

    monkeypatch.setattr(gpu_check, "in_own_process", pretend)

    def main(*nets: str) -> tuple[int, list[tuple[str, str]]]:
        runs.clear()
        systems = ["--systems", "occamy", "torch"]
        command = ["gpu_check.py", *nets, "--folder", str(prepared), "--results", str(file.parent), *systems]
        monkeypatch.setattr(sys, "argv", command)
        return gpu_check.main(), list(runs)

    assert main("op/gather") == (0, [("op-gather", "occamy"), ("op-gather", "torch")])
    assert main() == (0, [("small-unet", "occamy"), ("small-unet", "torch")])
    assert main() == (0, [])
    content = json.loads(file.read_text())
    assert content["device"]["name"] == "Test GPU 1"
    assert content["nets"]["op/gather"]["occamy"] == {"difference": 0.0, "ms": {"p50": 1.5}, "right": True}
    assert content["nets"]["op/gather"]["torch"] == {"skipped": "no PyTorch"}
    content["nets"]["op/gather"]["occamy"] = {"error": "out of memory"}
    content["nets"]["small/unet"]["library"] = "of an earlier release"
    file.write_text(json.dumps(content))
    assert main()[1] == [("op-gather", "occamy"), ("small-unet", "occamy"), ("small-unet", "torch")]
    answers["occamy"] = {"difference": 2e-4}
    content["nets"].clear()
    file.write_text(json.dumps(content))
    assert main()[0] == 1


def test_a_process_that_ends_is_an_error(prepared: Path) -> None:
    row = gpu_check.in_own_process(["--one", str(prepared / "missing"), "occamy", "--simulate"])
    assert row["error"].startswith("exit code 1: FileNotFoundError: ")


def test_compressible_weights_are_no_easier() -> None:
    """The network still computes something of every input: outputs differ from each other, and are no constants."""
    model = gpu_prepare.compressible(NETS["resnet"]())
    for before, after in zip(NETS["resnet"]().graph.initializer, model.graph.initializer, strict=True):
        a, b = numpy_helper.to_array(before), numpy_helper.to_array(after)
        assert a.shape == b.shape
        assert a.dtype == b.dtype
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    first, second = (
        session.run(None, {"x": rng.standard_normal((1, 3, 33, 33), np.float32)})[0] for _ in range(2)
    )
    assert np.unique(first).size == first.size
    assert np.abs(first - second).max() > 1e-3


def test_large_outputs_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the nearest of 16 bits of mantissa, the implicit one apart; small ones stay as they are."""
    exact = np.array([1.0, 1 + 2**-16, 1 + 2**-17 + 2**-20, -3.0e-20, np.inf, np.nan, 0.0], np.float32)
    np.testing.assert_array_equal(gpu_prepare.rounded(exact), exact)
    monkeypatch.setattr(gpu_prepare, "LARGE", 0)
    got = gpu_prepare.rounded(exact)
    np.testing.assert_array_equal(
        got[[0, 1, 2, 4, 5, 6]], np.array([1, 1 + 2**-16, 1 + 2**-16, np.inf, np.nan, 0])
    )
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    changed = gpu_prepare.rounded(values)
    assert 0 < np.abs(changed / values - 1).max() <= 2**-17
    assert not (changed.view(np.uint32) & 0x7F).any()


@pytest.mark.slow
def test_resnet50_at_full_size(tmp_path: Path, compiler: list[str]) -> None:
    """The paper's network on 224 x 224 pixels, with random weights, through the script that checks a real GPU."""
    gpu_prepare.prepare("light/resnet50", "cuda", tmp_path / "light-resnet50")
    done = run(SCRIPT, "--simulate", "--folder", tmp_path, "--systems", "occamy")
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"right": true' in done.stdout
