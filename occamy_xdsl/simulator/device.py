"""
The simulated device: memory, handles, and streams whose work waits until somebody synchronises.

Work is put off as long as the API allows, so that a missing synchronisation shows as data that are not
there, and not as a race that goes well by luck.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from occamy_xdsl.simulator.faults import FaultError, Violation
from occamy_xdsl.simulator.memory import DeviceMemory
from occamy_xdsl.simulator.ptx import AccessError, KernelStatistics, PtxError
from occamy_xdsl.simulator.trace import Trace

ILLEGAL_ADDRESS = 700
"""cudaErrorIllegalAddress, what a synchronisation returns after a fault."""

Object = TypeVar("Object")


class Clock(dict[str, int]):
    """
    How many operations of each stream, by name, have surely happened: a vector clock.

    Source: C. Fidge, Timestamps in message-passing systems that preserve the partial ordering, 1988.
    """

    def join(self, other: Mapping[str, int]) -> None:
        """Make it the time at which also all of `other` has happened."""
        for stream, count in other.items():
            self[stream] = max(count, self.get(stream, 0))


@dataclass(eq=False)
class Operation:
    """A piece of work in a stream."""

    name: str
    call: int
    """Number of the call that asked for it."""
    action: Callable[[], None]
    arguments: Mapping[str, Any]
    after: Clock
    """What had happened when it was asked for, as far as the host knew."""
    done: bool = False
    clock: Clock = field(default_factory=Clock)
    """What has surely happened before its end."""


@dataclass(eq=False)
class Graph:
    """Work that was captured."""

    operations: list[Operation] = field(default_factory=list[Operation])


@dataclass(eq=False)
class GraphExecutable:
    """A graph that can be launched."""

    graph: Graph


@dataclass(eq=False)
class Stream:
    """A queue of work; while it is captured, work goes to the graph."""

    name: str
    blocking: bool
    """Whether the default stream waits for it."""
    queue: deque[Operation] = field(default_factory=deque[Operation])
    capture: Graph | None = None
    clock: Clock = field(default_factory=Clock)
    """What has surely happened before its next operation."""


@dataclass(eq=False)
class Event:
    """A point in a stream."""

    record: Operation | None = None
    stream: Stream | None = None


class Device:
    """Everything that the libraries share."""

    def __init__(self, capacity: int, architecture: int, *, is_integrated: bool, reaches_host: bool):
        self.memory = DeviceMemory(capacity, reaches_host=reaches_host)
        self.is_integrated = is_integrated
        """Whether the device has the host's memory."""
        self.architecture = architecture
        """Compute capability as in `sm_90`: 90."""
        self.trace = Trace()
        self.has_context = False
        """Whether a call has made the device current."""
        self.violations: list[Violation] = []
        self.kernels: dict[str, KernelStatistics] = {}
        self.copied_bytes: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self.call: tuple[str, int] = ("", 0)
        """Name and number of the call that is being served."""
        self.default_stream = Stream("default stream", blocking=False)
        self.host_clock = Clock()
        """What the host has waited for."""
        self._moments: dict[int, tuple[str, int]] = {}
        """Stream and place in it of each operation, by number."""
        self._handles: dict[int, tuple[str, object]] = {}
        self._next_handle = 0x6000_0000_0000
        self._operations = 0

    def violation(self, message: str, call: tuple[str, int] | None = None) -> None:
        """Record a fault that does not end the call."""
        name, number = call or self.call
        self.violations.append(Violation(name, number, message))

    # --- handles ---

    def create(self, item: object, kind: str) -> int:
        """A handle for an object; its value is no mapped address."""
        self._next_handle += 0x1000
        self._handles[self._next_handle] = kind, item
        return self._next_handle

    def get(self, handle: int | None, type_: type[Object], kind: str) -> Object:
        """The object behind a handle; raises FaultError if it is not a live one of that type."""
        if not handle:
            raise FaultError(f"the {kind} handle is null")
        _, item = self._handles.get(handle, ("", None))
        if not isinstance(item, type_):
            raise FaultError(f"{handle:#x} is not a live {kind} handle")
        return item

    def destroy(self, handle: int | None, type_: type[Object], kind: str) -> Object:
        """Remove a handle and return its object; raises FaultError as `get`."""
        item = self.get(handle, type_, kind)
        assert handle is not None
        del self._handles[handle]
        return item

    def leaks(self) -> list[str]:
        """What was created and never destroyed, allocated and never freed, started and never waited for."""
        counts = Counter(kind for kind, _ in self._handles.values())
        found = [f"{count} {kind} never destroyed" for kind, count in sorted(counts.items())]
        found += self.memory.leaks()
        waiting = sum(len(stream.queue) for stream in self._streams())
        if waiting:
            found.append(f"{waiting} operations of streams that nobody waited for")
        return found

    # --- streams ---

    def _streams(self) -> list[Stream]:
        return [self.default_stream, *(s for _, s in self._handles.values() if isinstance(s, Stream))]

    def stream(self, handle: int | None) -> Stream:
        """The stream behind a handle, the default stream for null."""
        return self.default_stream if not handle else self.get(handle, Stream, "stream")

    def refuse_in_capture(self) -> None:
        """Raise FaultError if a stream is being captured, which forbids the call that is being served."""
        if any(stream.capture is not None for stream in self._streams()):
            raise FaultError("not allowed while a stream is being captured")

    def enqueue(self, stream: Stream, name: str, action: Callable[[], None], **arguments: Any) -> Operation:
        """Put work at the end of a stream, or into the graph that is being captured."""
        operation = Operation(name, self.call[1], action, arguments, self.now())
        self.append(stream, operation)
        return operation

    def now(self) -> Clock:
        """What has happened as far as the host knows."""
        return Clock(self.host_clock)

    def append(self, stream: Stream, operation: Operation) -> None:
        """Put an operation at the end of a stream, or into the graph that is being captured."""
        if stream.capture is not None:
            stream.capture.operations.append(operation)
        else:
            stream.queue.append(operation)

    def drain(self, stream: Stream, until: Operation | None = None) -> int:
        """
        Run the work of a stream, up to the operation `until` if given; a cudaError_t.

        The default stream first waits for all blocking ones (CUDA C++ Programming Guide, Default Stream).
        """
        if stream is self.default_stream:
            for other in self._streams():
                if other.blocking and (status := self.drain(other)):
                    return status
        while stream.queue and not (until is not None and until.done):
            operation = stream.queue.popleft()
            if not self._execute(operation, stream):
                stream.queue.clear()
                return ILLEGAL_ADDRESS
        return 0

    def wait(self, stream: Stream, until: Operation | None = None) -> int:
        """Let the host wait for the work of a stream, as `drain` does it."""
        status = self.drain(stream, until)
        self.host_clock.join(stream.clock if until is None else until.clock)
        return status

    def drain_all(self) -> int:
        """Let the host wait for the work of all streams; a cudaError_t."""
        return next((status for stream in self._streams() if (status := self.wait(stream))), 0)

    def _execute(self, operation: Operation, stream: Stream) -> bool:
        """Run one operation; whether it went well."""
        self._operations += 1
        self.memory.operation = self._operations
        self.memory.operation_names[self._operations] = operation.name
        self._tick(operation, stream)
        self.trace.add(operation.name, stream.name, call=operation.call, **operation.arguments)
        operation.done = True
        try:
            operation.action()
        except (FaultError, AccessError, PtxError) as error:
            self.violation(str(error), (operation.name, operation.call))
            return False
        finally:
            operation.clock = Clock(stream.clock)
        return True

    def _tick(self, operation: Operation, stream: Stream) -> None:
        """The time at which an operation happens: after all before it in the stream, and what the host knew of."""
        clock = stream.clock
        clock.join(operation.after)
        # The default stream and blocking ones wait for each other.
        if stream is self.default_stream:
            for other in self._streams():
                if other.blocking:
                    clock.join(other.clock)
        elif stream.blocking:
            clock.join(self.default_stream.clock)
        clock[stream.name] = clock.get(stream.name, 0) + 1
        self._moments[self._operations] = stream.name, clock[stream.name]

        def is_before(number: int) -> bool:
            """Whether an operation has surely happened before the one that runs now."""
            name, place = self._moments[number]
            return clock.get(name, 0) >= place

        self.memory.is_before = is_before if len(self._streams()) > 2 else None
