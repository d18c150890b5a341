"""Trained models of the shared folder give the outputs recorded with them, at both shapes where there are two."""

from pathlib import Path

import numpy as np
import pytest

import occamy_xdsl.compiler as oc

TOLERANCES = {
    "ppocrv4_det": 1e-3,
    "ppocrv2_cls": 1e-3,
    "blazeface_front": 1e-3,
    "blazeface_back": 1e-3,
    "open_nsfw": 1e-3,
    "ppocrv4_rec": 1e-3,
    "magika_v3_3": 1e-3,
    "basic_pitch": 1e-3,
    "silero_vad_static": 1e-3,
    "silero_vad_sequence": 1e-3,
    "smart_turn_v3_int8": 3e-2,
}
"""Largest difference allowed, relative to the largest value of each output."""

CASES = [
    (name, suffix)
    for name in TOLERANCES
    for suffix in ("", ".alt")
    if suffix == "" or name not in ("blazeface_front", "blazeface_back", "silero_vad_static")
]


@pytest.mark.parametrize(("name", "suffix"), CASES, ids=lambda part: part or "first")
def test_gives_the_recorded_outputs(name: str, suffix: str, shared: Path):
    with np.load(shared / "models/fixtures" / f"{name}{suffix}.npz") as fixture:
        inputs = {key.removeprefix("in:"): fixture[key] for key in fixture if key.startswith("in:")}
        wanted = {key.removeprefix("out:"): fixture[key] for key in fixture if key.startswith("out:")}
    shapes = {key: array.shape for key, array in inputs.items()}
    executable = oc.compile(oc.load(shared / "models/files" / f"{name}.onnx", shapes=shapes))
    outputs = executable.run(inputs, poison=True)
    assert outputs.keys() == wanted.keys()
    for key, want in wanted.items():
        assert outputs[key].shape == want.shape
        difference = abs(outputs[key].astype(np.float64) - want).max()
        assert difference <= TOLERANCES[name] * abs(want).max(), key
