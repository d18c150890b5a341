"""
Runs a command of `occamy` over and over, each time with a signal at another of the moments at which it touches files:

    python interrupted.py STRIDE SIGNAL FOLDER TEMPORARY ARGUMENT...

Of these moments every STRIDE-th is taken. FOLDER is where the command writes, TEMPORARY where temporary files are made.
Prints, for each moment, a line of JSON: what happened there, the exit code, and the files that are left.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

from occamy_xdsl.tools import occamy

EVENTS = {"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.symlink", "subprocess.Popen"}


class Moments:
    """Counts what touches files in some folders, and sends this process a signal at one of these moments."""

    def __init__(self, folders: list[Path]):
        self.folders = [str(folder) for folder in folders]
        self.count = 0
        self.fatal = -1
        self.event = ""
        sys.addaudithook(self.see)

    def see(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in EVENTS or not any(folder in str(a) for a in arguments for folder in self.folders):
            return
        self.count += 1
        if self.count == self.fatal:
            self.event = f"{event} {arguments[0]}"
            os.kill(os.getpid(), SIGNAL)
            os.kill(os.getpid(), SIGNAL)


def run() -> int:
    """The exit code of the command."""
    try:
        return occamy.main(None)
    except SystemExit as stop:
        return int(stop.code or 0)


def forked(moments: Moments, number: int) -> tuple[str, int]:
    """What the command was doing at one moment, and its exit code."""
    read, write = os.pipe()
    if child := os.fork():
        os.close(write)
        with os.fdopen(read) as pipe:
            event = pipe.read()
        return event, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    moments.count, moments.fatal = 0, number
    code = run()
    os.write(write, moments.event.encode())
    sys.exit(code)  # what is to be done at the end of the process is part of it


if __name__ == "__main__":
    STRIDE, SIGNAL = int(sys.argv[1]), signal.Signals[sys.argv[2]]
    folders = [Path(argument) for argument in sys.argv[3:5]]
    sys.argv[1:] = sys.argv[5:]
    moments = Moments(folders)
    # What is imported late is imported now.
    assert run() == 0
    signal.signal(SIGNAL, signal.SIG_DFL)
    for number in range(1, moments.count + 1, STRIDE):
        for folder in folders:
            shutil.rmtree(folder)
            folder.mkdir()
        event, code = forked(moments, number)
        left = [str(path.relative_to(folder)) for folder in folders for path in sorted(folder.rglob("*"))]
        print(json.dumps({"event": event, "code": code, "left": left}), flush=True)
