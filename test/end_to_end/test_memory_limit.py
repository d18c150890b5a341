"""The memory limit: exact, tried in every way before it is refused, and refused with advice that holds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from nets import NETS

from occamy_xdsl import compiler
from occamy_xdsl.compiler import Compilation, Model
from occamy_xdsl.errors import MemoryLimitError
from occamy_xdsl.pipelines import Options


def planned(model: Model, **options: object) -> Compilation:
    compilation = Compilation(model, Options(**options))
    compilation.run_to("mem")
    return compilation


@pytest.fixture
def unet(shared: Path) -> Model:
    return Model(shared / "cases/memory/m17_unet.onnx")


def test_the_reported_bytes_are_enough_and_64_fewer_are_not(unet: Model):
    report = planned(unet, stripe_budget=0).report()
    assert planned(unet, stripe_budget=0, memory_limit=report.pool_bytes).pool_bytes == report.pool_bytes

    with pytest.raises(MemoryLimitError) as refusal:
        planned(unet, stripe_budget=0, memory_limit=report.pool_bytes - 64)
    error = refusal.value
    assert (error.needed, error.limit) == (report.pool_bytes, report.pool_bytes - 64)
    assert error.peak_node == report.peak_node
    assert error.largest_tensors == [(t.name, t.bytes) for t in report.live_at_peak()[:5]]
    assert f"peak at node '{report.peak_node}'" in str(error)


def test_levers_are_pulled_until_the_limit_is_met(shared: Path, monkeypatch: pytest.MonkeyPatch):
    model = Model(shared / "cases/memory/m05_reduce_at_end.onnx")
    enough = planned(model).pool_bytes
    assert planned(model, reorder=False).pool_bytes > enough

    def levers(options: Options) -> list[Options]:
        return [replace(options, planner="first-fit"), replace(options, reorder=True)]

    monkeypatch.setattr(compiler, "levers", levers)
    compilation = planned(model, reorder=False, memory_limit=enough)
    assert (compilation.pool_bytes, compilation.options.reorder) == (enough, True)
    assert compilation.ir("mem").count(f"memref<{enough}xi8>") > 0


def test_stripes_are_a_lever(unet: Model):
    limit = planned(unet).pool_bytes - 64
    compilation = planned(unet, memory_limit=limit)
    assert compilation.pool_bytes <= limit
    assert compilation.options.stripes > 0


def test_recomputation_is_the_last_lever():
    """Neither another order nor stripes meet this limit: h, 4 KiB, is not needed while 12 KiB are live."""
    model = Model(NETS["kept"]())
    without = planned(model, optimize="memory", stripe_budget=25).pool_bytes
    compilation = planned(model, memory_limit=without - 4096)
    assert compilation.pool_bytes == without - 4096
    assert compilation.options.recompute_budget > 0
    x = np.random.default_rng(4).standard_normal((32, 32)).astype(np.float32)
    whole, limited = (compiler.compile(model, memory_limit=limit) for limit in (None, without - 4096))
    for a, b in zip(whole.run({"x": x}).values(), limited.run({"x": x}).values(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("options", "flags"),
    [
        ({"reuse": False}, "--no-reuse"),
        ({"memory": "eager"}, "--memory eager"),
        ({"reuse": False, "fuse": False}, "--no-fuse --no-reuse"),
    ],
)
def test_the_advice_is_computed(unet: Model, options: dict[str, object], flags: str):
    options = {"stripe_budget": 0.0, **options} if options.get("reuse", True) else options
    enough = planned(unet, stripe_budget=0).pool_bytes
    with pytest.raises(MemoryLimitError) as refusal:
        planned(unet, memory_limit=enough, **options)
    assert f"hint: without {flags}, {enough} bytes are enough" in str(refusal.value)
