"""
The CUDA runtime: memory, copies, streams, events and graphs.

Source: CUDA Runtime API 13, modules Device, Stream, Event, Memory and Graph Management.
"""

import ctypes
from dataclasses import dataclass, replace

import numpy as np

from occamy_xdsl.lowering.cuda.api import CONSTANTS
from occamy_xdsl.simulator import host_memory
from occamy_xdsl.simulator.device import Device, Event, Graph, GraphExecutable, Stream
from occamy_xdsl.simulator.faults import FaultError, RefusalError
from occamy_xdsl.simulator.functions import SimulatedLibrary, implements
from occamy_xdsl.simulator.memory import Region

VERSION = 13000
"""What the runtime and the driver say their version is: 1000 major + 10 minor."""
H2D, D2H, D2D = (CONSTANTS[f"cudaMemcpy{way}"] for way in ("HostToDevice", "DeviceToHost", "DeviceToDevice"))


@dataclass(frozen=True)
class Registered:
    """Memory of the host that the device reaches, and where it does."""

    bytes: int
    device_address: int


class CudaRuntime(SimulatedLibrary):
    """libcudart."""

    def __init__(self, device: Device):
        super().__init__(device)
        self._pinned: dict[int, ctypes.Array[ctypes.c_uint8]] = {}
        self._registered: dict[int, Registered] = {}
        """Memory of the host that the device can reach, by address."""
        self._created_streams = 0

    def leaks(self) -> list[str]:
        """One line for each pinned host allocation that is not freed, or registration that is not ended."""
        pinned = [
            f"{len(block)} bytes of pinned host memory were never freed" for block in self._pinned.values()
        ]
        return pinned + [
            f"{found.bytes} bytes of host memory were never unregistered"
            for address, found in self._registered.items()
            if address not in self._pinned
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
            CONSTANTS["cudaDevAttrIntegrated"]: int(self.device.is_integrated),
            CONSTANTS["cudaDevAttrPageableMemoryAccess"]: int(self.device.memory.reaches_host),
            CONSTANTS["cudaDevAttrHostRegisterReadOnlySupported"]: 1,
            CONSTANTS["cudaDevAttrComputeCapabilityMajor"]: self.device.architecture // 10,
            CONSTANTS["cudaDevAttrComputeCapabilityMinor"]: self.device.architecture % 10,
        }
        if attribute not in values:
            raise FaultError(f"the simulator knows no value of device attribute {attribute}")
        host_memory.write_result(result, values[attribute], "int32")

    @implements("cudaRuntimeGetVersion", "cudaDriverGetVersion", "cuDriverGetVersion")
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
        address = ctypes.addressof(block)
        self._pinned[address] = block
        self._map(address, len(block), read_only=False)
        host_memory.write_result(result, address)

    @implements("cudaFreeHost")
    def free_host(self, address: int | None) -> int:
        if not address:
            return 0
        if address not in self._pinned:
            raise FaultError(f"{address:#x} is not pinned host memory, or was freed before")
        status = self.device.drain_all()
        self.device.memory.unmap_host(self._registered.pop(address).device_address)
        del self._pinned[address]
        return status

    def _map(self, address: int, size: int, *, read_only: bool) -> None:
        mapped = self.device.memory.map_host(address, size, read_only=read_only)
        self._registered[address] = Registered(size, mapped)

    def _find_registered(self, address: int) -> tuple[int, Registered] | None:
        """The registered memory around an address, and where it starts."""
        entries = self._registered.items()
        return next(((a, r) for a, r in entries if a <= address < a + r.bytes), None)

    @implements("cudaHostRegister")
    def register(self, address: int | None, size: int, flags: int) -> None:
        if not address or not size:
            raise FaultError("no memory to register")
        host_memory.read_bytes(address, 1, "the memory to register")
        host_memory.read_bytes(address + size - 1, 1, "the end of the memory to register")
        if self._find_registered(address) or self._find_registered(address + size - 1):
            status = CONSTANTS["cudaErrorHostMemoryAlreadyRegistered"]
            raise RefusalError(status, f"{address:#x} is registered already")
        read_only = bool(flags & CONSTANTS["cudaHostRegisterReadOnly"])
        if not read_only and not host_memory.is_writable(address):
            raise RefusalError(CONSTANTS["cudaErrorInvalidValue"], "the memory cannot be written to")
        self._map(address, size, read_only=read_only)

    @implements("cudaHostUnregister")
    def unregister(self, address: int | None) -> int:
        found = self._registered.get(address or 0)
        if found is None or address in self._pinned:
            status = CONSTANTS["cudaErrorHostMemoryNotRegistered"]
            raise RefusalError(status, f"{address or 0:#x} is not the address of registered memory")
        status = self.device.drain_all()
        self.device.memory.unmap_host(found.device_address)
        del self._registered[address or 0]
        return status

    @implements("cudaHostGetDevicePointer")
    def get_device_pointer(self, result: int | None, address: int | None, flags: int) -> None:
        found = self._find_registered(address or 0)
        if found is None:
            raise RefusalError(CONSTANTS["cudaErrorInvalidValue"], f"{address or 0:#x} is not registered")
        start, registered = found
        host_memory.write_result(result, registered.device_address + (address or 0) - start)

    @implements("cudaPointerGetAttributes")
    def get_pointer_attributes(self, result: int | None, address: int | None) -> None:
        """Type, device, and the addresses on device and host: since CUDA 11 unknown memory is no error."""
        kind, on_device, on_host = "Unregistered", 0, address or 0
        if found := self._find_registered(address or 0):
            start, registered = found
            kind, on_device = "Host", registered.device_address + on_host - start
        elif self.device.memory.is_allocated(address or 0):
            kind, on_device, on_host = "Device", address or 0, 0
        fields = np.array([CONSTANTS[f"cudaMemoryType{kind}"], on_device, on_host], np.uint64)
        host_memory.write_bytes(result, fields, "the address for the result")

    @implements("cudaMemcpyAsync")
    def copy(self, target: int | None, source: int | None, size: int, kind: int, stream: int | None) -> None:
        device, memory = self.device, self.device.memory
        if not target or not source:
            raise FaultError("a null pointer")
        if kind not in (H2D, D2H, D2D):
            raise RefusalError(CONSTANTS["cudaErrorInvalidMemcpyDirection"], f"unknown direction {kind}")
        to, from_ = Region.of_bytes(target, size), Region.of_bytes(source, size)

        def action() -> None:
            if kind == H2D:
                data = np.frombuffer(host_memory.read_bytes(source, size, "source of the copy"), np.uint8)
                memory.write(to, data)
            elif kind == D2H:
                host_memory.write_bytes(target, memory.read(from_), "target of the copy")
            else:
                memory.write(to, memory.read(from_))

        if kind == D2D and to.overlaps(from_):
            raise FaultError("source and target overlap")
        way = {H2D: "host to device", D2H: "device to host", D2D: "device to device"}[kind]
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
        return self.device.wait(found)

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
            waiting.clock.join(record.clock)

        waiting = device.stream(stream)
        device.enqueue(waiting, "cudaStreamWaitEvent", action)

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
        return self.device.wait(found.stream, found.record)

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
            call = self.device.call[1]
            self.device.append(target, replace(operation, call=call, after=self.device.now(), done=False))

    @implements("cudaGraphExecDestroy")
    def destroy_executable(self, executable: int | None) -> None:
        self.device.destroy(executable, GraphExecutable, "executable graph")

    @implements("cudaGraphDestroy")
    def destroy_graph(self, graph: int | None) -> None:
        self.device.destroy(graph, Graph, "graph")
