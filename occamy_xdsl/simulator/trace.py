"""The course of a simulation in Chrome's trace format."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HOST = "host"
"""Track of the calls of the program."""


@dataclass(frozen=True)
class Event:
    """One call of the program, or one piece of work of a stream."""

    name: str
    track: str
    time: int
    """Place in the order of all events; it says nothing about duration."""
    arguments: Mapping[str, Any]


@dataclass
class Trace:
    """
    All events of a simulation, in order.

    `write` makes a file for chrome://tracing or Perfetto (Trace Event Format, complete and counter events):
    one track for the host, one for each stream, and the device memory in use. One microsecond is one event.
    """

    events: list[Event] = field(default_factory=list[Event])
    memory: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """(time, bytes of device memory in use) at each change."""

    def add(self, name: str, track: str, **arguments: Any) -> int:
        """Append an event; its time."""
        self.events.append(Event(name, track, len(self.events), arguments))
        return len(self.events) - 1

    def add_memory(self, used: int) -> None:
        """Note the bytes of device memory in use after the last event."""
        self.memory.append((len(self.events), used))

    def to_json(self) -> str:
        """The trace as JSON text."""
        tracks = {name: i for i, name in enumerate(dict.fromkeys(e.track for e in self.events))}
        records: list[dict[str, Any]] = [
            {"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": name}}
            for name, i in tracks.items()
        ]
        records += [
            {
                "ph": "X",
                "name": event.name,
                "pid": 0,
                "tid": tracks[event.track],
                "ts": event.time,
                "dur": 1,
                "args": dict(event.arguments),
            }
            for event in self.events
        ]
        records += [
            {"ph": "C", "name": "device memory", "pid": 0, "ts": time, "args": {"bytes": used}}
            for time, used in self.memory
        ]
        return json.dumps({"traceEvents": records, "displayTimeUnit": "ms"}, indent=1)

    def write(self, path: Path) -> None:
        """Write the trace to a file."""
        path.write_text(self.to_json() + "\n", encoding="utf-8")
