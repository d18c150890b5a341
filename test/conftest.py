"""Fixtures and options of the whole suite."""

import os
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser):
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow, which take minutes")


def pytest_configure(config: pytest.Config):
    config.addinivalue_line("markers", "slow: takes minutes; runs with --slow only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]):
    if not config.getoption("--slow"):
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="runs with --slow"))


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
