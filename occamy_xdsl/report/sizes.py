"""Sizes in bytes, as the command line writes them."""

import re

from occamy_xdsl.errors import UsageError

_UNITS = {"": 1, "B": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("", 1024), ("iB", 1024), ("B", 1000))
}


def parse_size(text: str) -> int:
    """
    `64MiB`, `64M` (both powers of 1024), `64MB` (powers of 1000), `100B` or `100`, in bytes.

    Upper and lower case are the same. Raises UsageError.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", text.strip())
    units = {name.lower(): factor for name, factor in _UNITS.items()}
    factor = None if match is None else units.get(match[2].lower())
    if match is None or factor is None:
        raise UsageError(f"'{text}' is not a size such as 64MiB, 500KB or 1048576")
    return int(float(match[1]) * factor) if "." in match[1] else int(match[1]) * factor


def format_size(count: int) -> str:
    """Bytes for reading, in powers of 1024 with three digits: `98 B`, `3.93 MiB`."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size < 1000:
            break
        size, unit = size / 1024, larger
    if unit == "B":
        return f"{count} B"
    return f"{size:.{2 if size < 10 else 1 if size < 100 else 0}f} {unit}"
