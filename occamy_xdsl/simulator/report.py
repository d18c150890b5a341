"""What a simulated program did, in numbers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class KernelReport:
    """All launches of one generated kernel."""

    launches: int
    blocks: int
    warp_instructions: int
    used_bytes: int
    """Bytes of global memory that threads asked for."""
    moved_bytes: int
    """Bytes of the 32-byte sectors that hold them, counted for each warp."""

    @property
    def efficiency(self) -> float:
        """Share of the moved bytes that is used."""
        return self.used_bytes / self.moved_bytes if self.moved_bytes else 1.0


@dataclass(frozen=True)
class Report:
    """Counts of a simulation; sizes are bytes."""

    calls: Mapping[str, int]
    """How often each function was called."""
    kernels: Mapping[str, KernelReport]
    """Generated kernels by name."""
    copied_bytes: Mapping[str, int]
    """Bytes by direction: `host to device`, `device to host`, `device to device`."""
    allocations: int
    peak_device_bytes: int
    refusals: tuple[str, ...]
    """Errors that the libraries returned and a correct program handles."""
    notes: Mapping[str, int]
    """What is not wrong but worth knowing, with its count."""

    @property
    def efficiency(self) -> float:
        """Share of the bytes moved by all generated kernels that is used."""
        moved = sum(kernel.moved_bytes for kernel in self.kernels.values())
        return sum(kernel.used_bytes for kernel in self.kernels.values()) / moved if moved else 1.0

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data, for JSON."""
        return asdict(self) | {"efficiency": self.efficiency}

    def __str__(self) -> str:
        lines = [
            f"calls               {sum(self.calls.values())}",
            f"device allocations  {self.allocations}",
            f"peak device bytes   {self.peak_device_bytes}",
            *(f"bytes {way:<22}{size}" for way, size in self.copied_bytes.items()),
        ]
        for name, kernel in self.kernels.items():
            counts = f"{kernel.launches} launches, {kernel.warp_instructions} warp instructions"
            lines.append(f"kernel {name}: {counts}, {kernel.efficiency:.1%} of the moved bytes used")
        lines += [f"refused: {refusal}" for refusal in self.refusals]
        lines += [f"note: {count} {note}" for note, count in self.notes.items()]
        return "\n".join(lines)
