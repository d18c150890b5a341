"""Buffers as CSV in the format of the MiniMalloc benchmark: `id,lower,upper,size`, optionally `alignment`."""

import csv
from collections.abc import Sequence
from typing import TextIO

from occamy_xdsl.planning.intervals import Buffer

COLUMNS = ("id", "lower", "upper", "size")


def read_buffers(file: TextIO) -> list[Buffer]:
    """
    Reads one buffer a line below a header; `lower` is the first position, `upper` the exclusive last one.

    Columns may come in any order. Raises ValueError naming the line when the header lacks a column or has an
    unknown one (MiniMalloc's gaps and fixed offsets are not supported), when a number is not an integer, when
    a live range is empty or when an id comes twice.
    """
    reader = csv.reader(file)
    try:
        header = [name.strip() for name in next(reader, list[str]())]
        lines = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from None
    allowed = (*COLUMNS, "alignment")
    if not set(COLUMNS) <= set(header) <= set(allowed) or len(set(header)) < len(header):
        expected = f"{','.join(COLUMNS)}[,alignment]"
        raise ValueError(f"line 1: the header must be {expected}, got {','.join(header)!r}")
    buffers: list[Buffer] = []
    seen: set[str] = set()
    for number, row in lines:
        where = f"line {number}"
        if len(row) != len(header):
            raise ValueError(f"{where}: expected {len(header)} fields, got {len(row)}")
        field = dict(zip(header, (cell.strip() for cell in row), strict=True))
        if field["id"] in seen:
            raise ValueError(f"{where}: id {field['id']!r} comes twice")
        seen.add(field["id"])
        try:
            lower, upper, size = (int(field[name]) for name in COLUMNS[1:])
            buffers.append(Buffer(field["id"], lower, upper, size, int(field.get("alignment", "1"))))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
    return buffers


def write_buffers(file: TextIO, buffers: Sequence[Buffer], offsets: Sequence[int] | None = None) -> None:
    """
    Writes what `read_buffers` reads, followed by a column `offset` in bytes when `offsets` are given.

    The column `alignment` is written only when some buffer has one.
    """
    aligned = any(buffer.alignment != 1 for buffer in buffers)
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*COLUMNS, *["alignment"] * aligned, *["offset"] * (offsets is not None)])
    for i, buffer in enumerate(buffers):
        row = [buffer.id, buffer.first, buffer.last, buffer.size]
        row += [buffer.alignment] * aligned
        row += [] if offsets is None else [offsets[i]]
        writer.writerow(row)
