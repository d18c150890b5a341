"""Signals that end a process: as exceptions, so that what it began is cleared away, and never in between."""

import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NoReturn

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What a user, a system or a closed terminal sends to end a process."""


@contextmanager
def undisturbed(*, forget: bool = False) -> Generator[None]:
    """
    Puts off signals that end the process until the block is done, or forgets them: what their handlers raise in a
    finalizer is lost, so there they are not called.

    Python has its handlers called in the main thread alone: in others nothing is to be put off.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught = list[int]()

    def note(number: int, _: Any) -> None:
        caught.append(number)

    # None is a handler that Python did not install and cannot put back.
    handlers = {number: signal.getsignal(number) for number in ENDING_SIGNALS}
    handlers = {number: handler for number, handler in handlers.items() if handler is not None}
    for number in handlers:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in [] if forget else caught:
            signal.raise_signal(number)


@contextmanager
def exit_on_signals() -> Generator[None]:
    """
    For a program: the first of `ENDING_SIGNALS` raises SystemExit with 128 and its number. Later ones are ignored, and
    so are all once the block is done, when nothing but clearing away is left.

    Those that the caller of the process has ignored, as nohup does, stay ignored.
    """
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _exit)
    try:
        yield
    finally:
        _ignore()


def _exit(number: int, _: Any) -> NoReturn:
    _ignore()
    sys.exit(128 + number)


def _ignore() -> None:
    for number in ENDING_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
