"""Fixtures of the whole suite."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """
    The folder of cases and models that lies beside the repository, or where OCCAMY_SHARED says.

    Tests that need it are skipped where it is absent.
    """
    default = Path(__file__).resolve().parents[2] / "shared"
    path = Path(os.environ.get("OCCAMY_SHARED", default))
    if not path.is_dir():
        pytest.skip(f"no shared cases at {path} (set OCCAMY_SHARED)")
    return path
