"""A library whose weights file is gone says so, as a fault of the input."""

from pathlib import Path
from shutil import copy

import pytest

from occamy_xdsl.errors import InvalidInputError
from occamy_xdsl.runtime.executable import open_library


def test_a_missing_weights_file_is_the_users_fault(affine_libraries: dict[str, Path], tmp_path: Path):
    copy(affine_libraries["file"], tmp_path / "m.so")
    with pytest.raises(InvalidInputError, match=r"m\.so"):
        open_library(tmp_path / "m.so")
