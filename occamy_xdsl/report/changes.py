"""What grew and what shrank between two memory reports."""

from collections import Counter
from dataclasses import dataclass

from occamy_xdsl.report.memory import MemoryReport

TOTALS = ("pool_bytes", "max_live_bytes", "sum_bytes", "workspace_bytes", "weights_bytes", "io_bytes")


@dataclass(frozen=True)
class Change:
    """One size in bytes in two reports; 0 where it does not exist."""

    name: str
    old: int
    new: int

    @property
    def difference(self) -> int:
        return self.new - self.old

    @property
    def label(self) -> str:
        """The name for reading: that of a total without its unit."""
        return self.name.removesuffix("_bytes").replace("_", "-") if self.name in TOTALS else self.name


@dataclass(frozen=True)
class Changes:
    """All totals, and the buffers whose sizes differ, those that changed most first."""

    totals: list[Change]
    tensors: list[Change]


def changes(old: MemoryReport, new: MemoryReport) -> Changes:
    """Compares buffers by name and node; those of one name and node count together."""
    before, after = _sizes(old), _sizes(new)
    tensors = [
        Change(name, before[name], after[name])
        for name in sorted(before | after)
        if before[name] != after[name]
    ]
    tensors.sort(key=lambda change: -abs(change.difference))
    return Changes([Change(name, getattr(old, name), getattr(new, name)) for name in TOTALS], tensors)


def _sizes(report: MemoryReport) -> Counter[str]:
    sizes = Counter[str]()
    for t in report.tensors:
        if t.kind != "view":
            sizes[f"{t.name} of {t.node}" if t.node and t.node != t.name else t.name] += t.bytes
    return sizes
