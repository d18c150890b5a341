"""The networks that the GPU target is checked with, by name, with random weights."""

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path

import onnx_nets
from onnx import ModelProto

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "test"))
from gpu_ops import CASES  # noqa: E402  # a folder of tests is no package
from nets import NETS as SMALL  # noqa: E402

PAPER = (
    "alexnet",
    "mobilenetv2",
    "resnet50",
    "srgan",
    "ssd_resnet50",
    "yolov1",
    "yolov3_tiny",
    "yolov5s",
    "vgg19",
    "densenet121",
    "efficientnet_b0",
    "unet",
    "bert_base",
    "vit_b16",
    "gpt2_small",
    "convnext_t",
)
"""Those of `paper_nets.py` in the folder of shared cases, which OCCAMY_SHARED names; absent without it."""


def networks() -> Mapping[str, Callable[[], ModelProto]]:
    """How to build each network: of one op, small ones of `test/nets.py`, `onnx_nets`, those of the paper."""
    found: dict[str, Callable[[], ModelProto]] = {f"op/{name}": build for name, build in CASES.items()}
    found |= {f"small/{name}": build for name, build in SMALL.items()}
    found |= {f"light/{name}": partial(_light, name) for name in onnx_nets.NETS}
    if _paper_file().is_file():
        found |= {f"paper/{name}": partial(_paper, name) for name in PAPER}
    return found


def _light(name: str) -> ModelProto:
    return onnx_nets.with_random_weights(onnx_nets.load(name))


def _paper_file() -> Path:
    return Path(os.environ.get("OCCAMY_SHARED", ROOT.parent / "shared")) / "nets" / "paper_nets.py"


@cache
def _paper_module() -> object:
    spec = importlib.util.spec_from_file_location("paper_nets", _paper_file())
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _paper(name: str) -> ModelProto:
    return _paper_module().build(name)
