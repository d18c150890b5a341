"""Plans a pool from a MiniMalloc CSV file: `python -m occamy_xdsl.planning FILE.csv`."""

import argparse
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from occamy_xdsl.errors import UsageError
from occamy_xdsl.files import read_text, replacing
from occamy_xdsl.planning.csv import read_buffers, write_buffers
from occamy_xdsl.planning.intervals import Buffer
from occamy_xdsl.planning.planners import PLANNERS, plan
from occamy_xdsl.signals import exit_on_signals


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        "python -m occamy_xdsl.planning",
        description="Assigns offsets to buffers; prints the height reached and the lower bound, in bytes.",
        epilog="Exit status: 0 planned, 2 bad usage or bad file, 4 capacity missed.",
    )
    parser.add_argument("file", metavar="FILE.csv", help="columns id,lower,upper,size; - is stdin")
    parser.add_argument("--planner", choices=PLANNERS, default="search", help="default: %(default)s")
    parser.add_argument("--capacity", type=int, metavar="BYTES", help="stop at the first plan within it")
    parser.add_argument("--alignment", type=int, default=1, metavar="BYTES", help="of offsets; default: 1")
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="SECONDS", help="default: 60")
    parser.add_argument("-o", "--output", metavar="OFFSETS.csv", help="input and offsets; - is stdout")
    return parser


def _read(path: str) -> list[Buffer]:
    if path == "-":
        return read_buffers(io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig", newline=""))
    return read_buffers(io.StringIO(read_text(Path(path)), newline=""))


def _write(path: str, buffers: Sequence[Buffer], offsets: Sequence[int]) -> None:
    if path == "-":
        write_buffers(sys.stdout, buffers, offsets)
        return
    with replacing(Path(path)) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        write_buffers(file, buffers, offsets)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status, 0 or 4; exits with 2 on bad usage or a bad file."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.alignment < 1:
        parser.error(f"argument --alignment: must be positive, got {options.alignment}")
    if not options.time_limit >= 0:
        parser.error(f"argument --time-limit: must not be negative, got {options.time_limit}")
    try:
        buffers = _read(options.file)
        found = plan(
            [buffer.body() for buffer in buffers],
            options.planner,
            options.alignment,
            options.time_limit,
            node_limit=None,
            capacity=options.capacity,
        )
        if options.output is not None:
            _write(options.output, buffers, found.offsets)
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}")
    except UsageError as error:
        parser.error(str(error))
    except ValueError as error:
        parser.error(f"{options.file}: {error}")
    # Results on stdout, unless the offsets are there.
    summary = sys.stderr if options.output == "-" else sys.stdout
    print(f"height {found.height}\nlower bound {found.lower_bound}", file=summary)
    if options.capacity is None or found.height <= options.capacity:
        return 0
    reason = "no plan is that low" if found.lower_bound > options.capacity else "found no plan that low"
    print(f"error: {found.height} bytes exceed the capacity of {options.capacity}: {reason}", file=sys.stderr)
    return 4


if __name__ == "__main__":
    with exit_on_signals():
        sys.exit(main())
