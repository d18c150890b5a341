"""The version of the package, in one place."""

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("occamy-xdsl")
    except PackageNotFoundError:  # a checkout that is not installed
        return "0.1.0"


VERSION = _installed()
