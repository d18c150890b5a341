"""Models with independently computed results: the shared correctness cases and trained networks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xdsl.dialects.builtin import ModuleOp

from occamy_xdsl.interpreters.value import run_named, run_values

Convert = Callable[..., ModuleOp]

FAST_MODELS = {
    "blazeface_front": 1e-3,
    "magika_v3_3": 1e-3,
    "silero_vad_ifless": 1e-3,
    "silero_vad_sequence": 1e-3,
    "silero_vad_static": 1e-3,
    "basic_pitch": 1e-3,
}
"""Trained models that numpy runs in about a second, and the share of an output's maximum they may be off."""


def test_open_cases(shared: Path, converted: Convert) -> None:
    failures, folders = list[str](), sorted((shared / "cases/open").iterdir())
    assert folders
    for folder in folders:
        arrays = np.load(folder / "io.npz")
        inputs = {key[3:]: arrays[key] for key in arrays if key.startswith("in_")}
        wanted = [arrays[key] for key in arrays if key.startswith("want_")]
        got = list(run_named(converted(folder / "model.onnx"), inputs).values())
        same = [
            mine.dtype == want.dtype
            and mine.shape == want.shape
            and np.allclose(mine, want, 1e-5, 1e-6, equal_nan=True)
            for mine, want in zip(got, wanted, strict=True)
        ]
        if not all(same):
            failures.append(folder.name)
    assert not failures


@pytest.mark.parametrize("name", FAST_MODELS)
def test_trained_models(
    shared: Path, converted: Convert, fixture_inputs: Callable[[str], dict[str, Any]], name: str
) -> None:
    inputs = fixture_inputs(name)
    module = converted(
        shared / f"models/files/{name}.onnx", {k: v.shape for k, v in inputs.items() if v.ndim}
    )
    got = run_values(module, list(inputs.values()))
    arrays = np.load(shared / f"models/fixtures/{name}.npz")
    wanted = [arrays[key] for key in arrays if key.startswith("out:")]
    for mine, want in zip(got, wanted, strict=True):
        assert np.abs(mine - want).max() <= FAST_MODELS[name] * np.abs(want).max()
