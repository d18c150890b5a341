"""
The CUDA runtime: memory, copies, streams, events and graphs.

Source: CUDA Runtime API 13, modules Device, Stream, Event, Memory and Graph Management.
"""

import ctypes
from dataclasses import replace

import numpy as np

from occamy_xdsl.lowering.cuda.api import CONSTANTS
from occamy_xdsl.simulator import host_memory
from occamy_xdsl.simulator.device import Device, Event, Graph, GraphExecutable, Stream
from occamy_xdsl.simulator.faults import FaultError, RefusalError
from occamy_xdsl.simulator.functions import SimulatedLibrary, implements
from occamy_xdsl.simulator.memory import Region

VERSION = 13000
"""What the runtime and the driver say their version is: 1000 major + 10 minor."""
_H2D, _D2H, _D2D = (
    CONSTANTS[f"cudaMemcpy{way}"] for way in ("HostToDevice", "DeviceToHost", "DeviceToDevice")
)


class CudaRuntime(SimulatedLibrary):
    """libcudart."""

    def __init__(self, device: Device):
        super().__init__(device)
        self._pinned: dict[int, ctypes.Array[ctypes.c_uint8]] = {}
        self._created_streams = 0

    def leaks(self) -> list[str]:
        """One line for each pinned host allocation that is not freed."""
        return [
            f"{len(block)} bytes of pinned host memory were never freed" for block in self._pinned.values()
        ]

    # --- device ---

    @implements("cudaSetDevice")
    def set_device(self, number: int) -> None:
        if number != 0:
            raise RefusalError(CONSTANTS["cudaErrorInvalidDevice"], f"there is no device {number}")
        self.device.has_context = True

    @implements("cudaGetDevice")
    def get_device(self, result: int | None) -> None:
        host_memory.write_result(result, 0, "int32")

    @implements("cudaGetDeviceCount")
    def get_device_count(self, result: int | None) -> None:
        host_memory.write_result(result, 1, "int32")

    @implements("cudaDeviceGetAttribute")
    def get_attribute(self, result: int | None, attribute: int, number: int) -> None:
        if number != 0:
            raise RefusalError(CONSTANTS["cudaErrorInvalidDevice"], f"there is no device {number}")
        values = {
            CONSTANTS["cudaDevAttrMultiProcessorCount"]: 1,
            CONSTANTS["cudaDevAttrIntegrated"]: 0,
            CONSTANTS["cudaDevAttrComputeCapabilityMajor"]: self.device.architecture // 10,
            CONSTANTS["cudaDevAttrComputeCapabilityMinor"]: self.device.architecture % 10,
        }
        if attribute not in values:
            raise FaultError(f"the simulator knows no value of device attribute {attribute}")
        host_memory.write_result(result, values[attribute], "int32")

    @implements("cudaRuntimeGetVersion", "cudaDriverGetVersion")
    def get_version(self, result: int | None) -> None:
        host_memory.write_result(result, VERSION, "int32")

    @implements("cudaDeviceSynchronize")
    def synchronize_device(self) -> int:
        self.device.refuse_in_capture()
        return self.device.drain_all()

    # --- memory ---

    @implements("cudaMemGetInfo")
    def get_memory_info(self, free: int | None, total: int | None) -> None:
        memory = self.device.memory
        host_memory.write_result(free, memory.capacity - memory.used)
        host_memory.write_result(total, memory.capacity)

    @implements("cudaMalloc")
    def allocate(self, result: int | None, size: int) -> None:
        self.device.refuse_in_capture()
        self.device.has_context = True
        host_memory.write_result(result, 0)
        if size:
            host_memory.write_result(result, self.device.memory.allocate(size))
            self.device.trace.add_memory(self.device.memory.used)

    @implements("cudaFree")
    def free(self, address: int | None) -> int:
        self.device.refuse_in_capture()
        if not address:
            return 0
        status = self.device.drain_all()  # cudaFree waits for the device
        self.device.memory.free(address)
        self.device.trace.add_memory(self.device.memory.used)
        return status

    @implements("cudaHostAlloc")
    def allocate_host(self, result: int | None, size: int, flags: int) -> None:
        block = (ctypes.c_uint8 * max(size, 1))()
        self._pinned[ctypes.addressof(block)] = block
        host_memory.write_result(result, ctypes.addressof(block))

    @implements("cudaFreeHost")
    def free_host(self, address: int | None) -> int:
        if not address:
            return 0
        if address not in self._pinned:
            raise FaultError(f"{address:#x} is not pinned host memory, or was freed before")
        status = self.device.drain_all()
        del self._pinned[address]
        return status

    @implements("cudaMemcpyAsync")
    def copy(self, target: int | None, source: int | None, size: int, kind: int, stream: int | None) -> None:
        device, memory = self.device, self.device.memory
        if not target or not source:
            raise FaultError("a null pointer")
        if kind not in (_H2D, _D2H, _D2D):
            raise RefusalError(CONSTANTS["cudaErrorInvalidMemcpyDirection"], f"unknown direction {kind}")
        to, from_ = Region.of_bytes(target, size), Region.of_bytes(source, size)

        def action() -> None:
            if kind == _H2D:
                data = np.frombuffer(host_memory.read_bytes(source, size, "source of the copy"), np.uint8)
                memory.write(to, data)
            elif kind == _D2H:
                host_memory.write_bytes(target, memory.read(from_), "target of the copy")
            else:
                memory.write(to, memory.read(from_))

        if kind == _D2D and to.overlaps(from_):
            raise FaultError("source and target overlap")
        way = {_H2D: "host to device", _D2H: "device to host", _D2D: "device to device"}[kind]
        device.copied_bytes[way] += size
        device.enqueue(device.stream(stream), "cudaMemcpyAsync", action, way=way, bytes=size)

    @implements("cudaMemsetAsync")
    def fill(self, target: int | None, value: int, size: int, stream: int | None) -> None:
        if not target:
            raise FaultError("a null pointer")
        device, region = self.device, Region.of_bytes(target, size)
        byte = np.array(value & 0xFF, np.uint8)
        action = lambda: device.memory.write(region, byte)  # noqa: E731
        device.enqueue(device.stream(stream), "cudaMemsetAsync", action, bytes=size)

    # --- streams ---

    @implements("cudaStreamCreateWithFlags")
    def create_stream(self, result: int | None, flags: int) -> None:
        self.device.has_context = True
        self._created_streams += 1
        blocking = not flags & CONSTANTS["cudaStreamNonBlocking"]
        stream = Stream(f"stream {self._created_streams}", blocking)
        host_memory.write_result(result, self.device.create(stream, "stream"))

    @implements("cudaStreamSynchronize")
    def synchronize_stream(self, stream: int | None) -> int:
        found = self.device.stream(stream)
        if found.capture is not None:
            raise FaultError("a stream that is being captured cannot be waited for")
        return self.device.drain(found)

    @implements("cudaStreamDestroy")
    def destroy_stream(self, stream: int | None) -> None:
        found = self.device.destroy(stream, Stream, "stream")
        if found.queue:
            self.device.violation(f"{len(found.queue)} operations of the stream were not waited for")

    @implements("cudaStreamWaitEvent")
    def wait_event(self, stream: int | None, event: int | None, flags: int) -> None:
        device = self.device
        found = device.get(event, Event, "event")
        record, origin = found.record, found.stream
        if record is None or origin is None:
            return

        def action() -> None:
            if not record.done and device.drain(origin, record):
                raise FaultError("the work that this stream waits for has failed")

        device.enqueue(device.stream(stream), "cudaStreamWaitEvent", action)

    # --- events ---

    @implements("cudaEventCreateWithFlags")
    def create_event(self, result: int | None, flags: int) -> None:
        host_memory.write_result(result, self.device.create(Event(), "event"))

    @implements("cudaEventRecord")
    def record_event(self, event: int | None, stream: int | None) -> None:
        device = self.device
        found, found.stream = device.get(event, Event, "event"), device.stream(stream)
        found.record = device.enqueue(found.stream, "cudaEventRecord", lambda: None)

    @implements("cudaEventSynchronize")
    def synchronize_event(self, event: int | None) -> int:
        found = self.device.get(event, Event, "event")
        if found.record is None or found.stream is None:
            return 0
        return self.device.drain(found.stream, found.record)

    @implements("cudaEventElapsedTime")
    def elapsed_time(self, result: int | None, start: int | None, end: int | None) -> None:
        """Always 0 ms: the simulator measures no time."""
        for handle in (start, end):
            event = self.device.get(handle, Event, "event")
            if event.record is None:
                raise FaultError("an event that was never recorded has no time")
            if not event.record.done:
                raise RefusalError(CONSTANTS["cudaErrorNotReady"], "an event has not happened yet")
        host_memory.write_result(result, 0.0, "float32")

    @implements("cudaEventDestroy")
    def destroy_event(self, event: int | None) -> None:
        self.device.destroy(event, Event, "event")

    # --- graphs ---

    @implements("cudaStreamBeginCapture")
    def begin_capture(self, stream: int | None, mode: int) -> None:
        if not stream:
            raise FaultError("the default stream cannot be captured")
        found = self.device.stream(stream)
        if found.capture is not None:
            raise FaultError("the stream is being captured already")
        found.capture = Graph()

    @implements("cudaStreamEndCapture")
    def end_capture(self, stream: int | None, result: int | None) -> None:
        found = self.device.stream(stream)
        if found.capture is None:
            raise FaultError("the stream is not being captured")
        graph, found.capture = found.capture, None
        host_memory.write_result(result, self.device.create(graph, "graph"))

    @implements("cudaGraphInstantiateWithFlags")
    def instantiate(self, result: int | None, graph: int | None, flags: int) -> None:
        executable = GraphExecutable(self.device.get(graph, Graph, "graph"))
        host_memory.write_result(result, self.device.create(executable, "executable graph"))

    @implements("cudaGraphLaunch")
    def launch_graph(self, executable: int | None, stream: int | None) -> None:
        found, target = (
            self.device.get(executable, GraphExecutable, "executable graph"),
            self.device.stream(stream),
        )
        for operation in found.graph.operations:
            self.device.append(target, replace(operation, call=self.device.call[1], done=False))

    @implements("cudaGraphExecDestroy")
    def destroy_executable(self, executable: int | None) -> None:
        self.device.destroy(executable, GraphExecutable, "executable graph")

    @implements("cudaGraphDestroy")
    def destroy_graph(self, graph: int | None) -> None:
        self.device.destroy(graph, Graph, "graph")
