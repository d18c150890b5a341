"""The version of the package, in one place."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("occamy-xdsl")
except PackageNotFoundError:  # run from a checkout that is not installed
    VERSION = "0.1.0"
