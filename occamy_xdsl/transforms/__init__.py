"""The passes of the project; `get_all_passes` is the one place where they are listed."""

from collections.abc import Callable

from xdsl.passes import ModulePass


def get_all_passes() -> dict[str, Callable[[], type[ModulePass]]]:
    """Every pass by name, imported when it is first needed."""
    return {}
