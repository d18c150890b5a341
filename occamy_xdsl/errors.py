"""What the package reports to its users: each error is one line and has the exit code of the commands."""

from typing import ClassVar


class OccamyError(Exception):
    """Base of all errors meant for users."""

    exit_code: ClassVar[int] = 70


class InvalidInputError(OccamyError):
    """A value given for an input or output of a model has the wrong name, dtype, shape, layout or form."""

    exit_code: ClassVar[int] = 3


class UsageError(OccamyError):
    """An option, a file name or a combination of them cannot be honoured."""

    exit_code: ClassVar[int] = 2
