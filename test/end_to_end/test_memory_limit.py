"""The memory limit: exact, tried in every way before it is refused, and refused with advice that holds."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from nets import NETS
from onnx import ModelProto, TensorProto, helper

from occamy_xdsl import compiler, memory_budget
from occamy_xdsl.compiler import Compilation, Model
from occamy_xdsl.errors import MemoryLimitError
from occamy_xdsl.pipelines import Options, flags, levers


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
    assert error.largest_tensors == report.largest_at_peak(5)
    assert f"peak at node '{report.peak_node}'" in str(error)


def test_levers_are_pulled_until_the_limit_is_met(shared: Path, monkeypatch: pytest.MonkeyPatch):
    model = Model(shared / "cases/memory/m05_reduce_at_end.onnx")
    enough = planned(model).pool_bytes
    assert planned(model, reorder=False).pool_bytes > enough

    def levers(options: Options) -> list[Options]:
        return [replace(options, planner="first-fit"), replace(options, reorder=True)]

    monkeypatch.setattr(memory_budget, "levers", levers)
    compilation = planned(model, reorder=False, memory_limit=enough)
    assert (compilation.pool_bytes, compilation.options.reorder) == (enough, True)
    assert compilation.ir("mem").count(f"memref<{enough}xi8>") > 0


def budgets(options: Options) -> list[tuple[float | None, float]]:
    """For stripes and for recomputation, of each lever."""
    return [(lever.stripe_budget, lever.recompute_budget) for lever in levers(options)]


def test_levers_in_order_of_their_cost():
    assert budgets(Options()) == [(0, 0), (2, 0), (5, 0), (10, 0), (0, 25), (25, 0), (25, 25)]
    assert budgets(Options(optimize="memory")) == [(5, 0), (10, 0), (5, 25), (25, 0), (25, 25)]
    assert budgets(Options(stripe_budget=0)) == [(0, 0), (0, 25)]
    assert budgets(Options(stripe_budget=8, recompute_budget=30)) == [(8, 30)]
    assert budgets(Options(memory="eager")) == [(None, 0)]
    assert all(lever.optimize == "memory" for lever in levers(Options()))


@pytest.fixture
def yolo() -> Model:
    """Stripes within 5 % lower its pool, those within 2 % do not."""
    return Model(NETS["yolo"]())


TARGET = "cpu:x86-64-v3"


def test_the_cheapest_stripes_that_are_enough_are_taken(yolo: Model):
    """And what they cost is said in one line."""
    whole = planned(yolo, target=TARGET)
    little, enough = (planned(yolo, target=TARGET, stripe_budget=budget) for budget in (2, 5))
    limit = whole.pool_bytes - 64
    assert little.pool_bytes > limit >= enough.pool_bytes
    said = list[str]()
    compilation = Compilation(yolo, Options(target=TARGET, memory_limit=limit), note=said.append)
    report = compilation.report()
    assert report.pool_bytes <= limit
    assert report.limit_options == flags(compilation.options) == "--optimize memory --stripe-budget 5%"
    (line,) = said
    extra = round(100 * (enough.report().arithmetic / whole.report().arithmetic - 1), 2)
    assert line == (
        f"memory limit of {limit} bytes met with --optimize memory --stripe-budget 5%: {report.pool_bytes} bytes "
        f"instead of {whole.pool_bytes}, {extra:g} % more arithmetic, {report.calls} kernel calls instead of "
        f"{whole.report().calls}"
    )


def test_nothing_is_said_where_no_lever_is_needed(unet: Model):
    said = list[str]()
    limit = planned(unet).pool_bytes
    report = Compilation(unet, Options(memory_limit=limit), note=said.append).report()
    assert (said, report.limit_options) == ([], "")


def most(size: str | int = "N") -> ModelProto:
    """The largest of softmax(x) of `size` elements, which must be there all at once."""
    nodes = [
        helper.make_node("Softmax", ["x"], ["a"], "softmax", axis=0),
        helper.make_node("ReduceMax", ["a"], ["y"], "most", keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"dims": {"N": 1000}}, "hint: with --dim N=100, 400 bytes are enough"),
        ({"shapes": {"x": (1000,)}}, "hint: with --shape x:100, 400 bytes are enough"),
    ],
)
def test_smaller_inputs_are_advised(options: dict[str, dict[str, int]], advice: str):
    with pytest.raises(MemoryLimitError) as refusal:
        planned(Model(most(), **options), memory_limit=400)
    assert (refusal.value.needed, refusal.value.advice) == (4000, advice)
    with pytest.raises(MemoryLimitError) as refusal:
        planned(Model(most(), **options), memory_limit=3)
    assert refusal.value.advice == f"{advice[: advice.index('100')]}1, 4 bytes are needed"


def test_where_nothing_helps():
    with pytest.raises(MemoryLimitError) as refusal:
        planned(Model(most(1000)), memory_limit=400)
    assert refusal.value.advice == (
        "hint: these options need the least of all that was tried, only smaller inputs need less"
    )


def test_a_budget_that_was_given_is_kept(yolo: Model):
    limit = planned(yolo, target=TARGET).pool_bytes - 64
    with pytest.raises(MemoryLimitError) as refusal:
        planned(yolo, target=TARGET, stripe_budget=2, memory_limit=limit)
    assert refusal.value.needed == limit + 64
    assert "hint: without --stripe-budget 2% and with --optimize memory --stripe-budget 5%, " in str(
        refusal.value
    )
    assert str(refusal.value).endswith(" bytes are enough")


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
