"""Well-known networks on small images, compiled for a GPU and run under the simulator: all layers, right numbers."""

from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from light_nets import NETS, reduced
from onnx import ModelProto

from occamy_xdsl.lowering.signature import Signature
from occamy_xdsl.simulator import Report, Simulator

CHIP = "sm_75"

QUICK = ("light_bvlc_alexnet", "light_squeezenet", "bert_base", "gpt2_small", "vit_b16")

SIZES = {
    "resnet50": {"hw": 64},
    "mobilenetv2": {"hw": 64},
    "ssd_resnet50": {"hw": 264, "labels": 5},
    "unet": {"hw": 32},
    "efficientnet_b0": {"hw": 32},
    "srgan": {"h": 12, "w": 16},
    "yolov3_tiny": {"hw": 64, "no": 15},
    "yolov5s": {"hw": 64, "nc": 3},
    "convnext_t": {"hw": 32},
    "bert_base": {"seq": 16, "layers": 2, "dim": 64, "heads": 4, "ff": 128, "vocab": 1000},
    "vit_b16": {"hw": 64, "layers": 2, "dim": 64, "heads": 4, "ff": 128},
    "gpt2_small": {"past": 127, "layers": 2, "dim": 64, "heads": 4, "vocab": 1000},
}
"""Networks of `paper_nets`, and what makes them small: all but transformers keep every layer."""


def quick_first(names: list[str]) -> list[object]:
    """The names as parameters, those that take more than seconds marked as slow."""
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


def check(model) -> Report:
    """Right numbers, one allocation, nothing refused, and no rule broken, which the simulator raises."""
    with Simulator(architecture=CHIP) as simulator:
        outputs = model.run(simulator)
    model.check(outputs)
    report = simulator.report()
    assert report.allocations == 1
    assert report.refusals == ()
    return report


@pytest.mark.parametrize("name", quick_first(NETS))
def test_light_nets(name: str, build) -> None:
    """Elementwise work and copies use nearly all of what they move."""
    kernels = check(build(reduced(name))).kernels.items()
    counted = [counts for kernel, counts in kernels if kernel.startswith(("elementwise_", "copy_"))]
    share = sum(counts.used_bytes for counts in counted) / sum(counts.moved_bytes for counts in counted)
    assert share >= (0.94 if name == "light_densenet121" else 0.98)


@pytest.mark.parametrize("name", quick_first(list(SIZES)))
def test_networks_of_the_paper_and_more(name: str, build, paper_nets: ModuleType) -> None:
    net = paper_nets.Net(name, 0, 17, False, 1)
    getattr(paper_nets, name)(net, **SIZES[name])
    kinds = {"float32": "FLOAT", "int64": "INT64"}

    def feed(signature: Signature) -> dict[str, np.ndarray]:
        return paper_nets.feeds_for([(s.name, kinds[s.dtype], s.shape) for s in signature.inputs])

    check(build(net.model(), feed=feed))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["blazeface_front", "blazeface_back", "ppocrv2_cls", "magika_v3_3"])
def test_trained_models(name: str, build, shared: Path) -> None:
    model: ModelProto = onnx.load(shared / "models/files" / f"{name}.onnx")
    with np.load(shared / "models/fixtures" / f"{name}.npz") as fixture:
        inputs = {key.removeprefix("in:"): fixture[key] for key in fixture if key.startswith("in:")}
    for value in model.graph.input:
        if value.name in inputs:
            for dim, size in zip(value.type.tensor_type.shape.dim, inputs[value.name].shape, strict=True):
                dim.dim_value = size
    check(build(model, feed=lambda _: inputs))
