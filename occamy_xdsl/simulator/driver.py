"""
The CUDA driver: its device and context, modules of PTX and launches of their kernels.

Memory, streams and events are those of the runtime, under the driver's names.

Source: CUDA Driver API 13, modules Initialization, Version, Device, Primary Context, Context, Module, Memory, Stream
and Event Management, and Execution Control.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from occamy_xdsl.lowering.cuda.api import CONSTANTS
from occamy_xdsl.simulator import host_memory, ptx
from occamy_xdsl.simulator.cudart import D2H, H2D, CudaRuntime
from occamy_xdsl.simulator.device import Device
from occamy_xdsl.simulator.faults import FaultError, RefusalError
from occamy_xdsl.simulator.functions import SimulatedLibrary, implements


@dataclass(eq=False)
class Module:
    """A loaded module; it dies when it is unloaded, and its functions with it."""

    program: ptx.Program
    live: bool = True


@dataclass(eq=False)
class ModuleFunction:
    """A kernel of a module."""

    module: Module
    name: str


_CONTEXT = 0x7100_0000_0000
"""Handle of the primary context, the only one."""


class CudaDriver(SimulatedLibrary):
    """libcuda."""

    def __init__(self, device: Device, runtime: CudaRuntime, *, parameters_end_with_null: bool):
        super().__init__(device)
        self._runtime = runtime
        self._parameters_end_with_null = parameters_end_with_null
        self._initialized = False
        # Functions are no resources: they are never destroyed and cannot leak.
        self._functions: dict[int, ModuleFunction] = {}

    def _check_context(self) -> None:
        if not self.device.has_context:
            raise FaultError("no context: call cudaSetDevice or another function of the runtime first")

    def _check_device(self, number: int) -> None:
        # A function of the runtime initialises the driver, too.
        if not self._initialized and not self.device.has_context:
            raise FaultError("the driver is not initialised: call cuInit first")
        if number != 0:
            raise RefusalError(CONSTANTS["CUDA_ERROR_INVALID_DEVICE"], f"there is no device {number}")

    # --- device and context ---

    @implements("cuInit")
    def initialize(self, flags: int) -> None:
        self._initialized = True

    @implements("cuDeviceGet")
    def get_device(self, result: int | None, number: int) -> None:
        self._check_device(number)
        host_memory.write_result(result, number, "int32")

    @implements("cuDeviceGetAttribute")
    def get_attribute(self, result: int | None, attribute: int, number: int) -> None:
        self._check_device(number)
        self._runtime.get_attribute(result, attribute, number)

    @implements("cuDevicePrimaryCtxRetain")
    def retain_context(self, result: int | None, number: int) -> None:
        self._check_device(number)
        host_memory.write_result(result, _CONTEXT)

    @implements("cuCtxGetCurrent")
    def get_context(self, result: int | None) -> None:
        self._check_device(0)
        host_memory.write_result(result, _CONTEXT if self.device.has_context else 0)

    @implements("cuCtxSetCurrent")
    def set_context(self, context: int | None) -> None:
        self._check_device(0)
        if context != _CONTEXT:
            raise FaultError(f"{context or 0:#x} is not the primary context")
        self.device.has_context = True

    @implements("cuCtxGetDevice")
    def get_current_device(self, result: int | None) -> None:
        self._check_context()
        host_memory.write_result(result, 0, "int32")

    @implements("cuDeviceGetName")
    def get_name(self, result: int | None, size: int, number: int) -> None:
        self._check_device(number)
        text = b"simulator"[: size - 1] + b"\0"
        host_memory.write_bytes(result, np.frombuffer(text, np.uint8), "the name")

    # --- memory, streams and events ---

    def functions(self) -> dict[str, Callable[..., Any]]:
        """Those of the base class, and those that do what functions of the runtime do where there is a context."""
        runtime = self._runtime
        same: dict[str, Callable[..., Any]] = {
            "cuMemGetInfo_v2": runtime.get_memory_info,
            "cuMemFree_v2": runtime.free,
            "cuStreamCreate": runtime.create_stream,
            "cuStreamSynchronize": runtime.synchronize_stream,
            "cuStreamDestroy_v2": runtime.destroy_stream,
            "cuEventCreate": runtime.create_event,
            "cuEventRecord": runtime.record_event,
            "cuEventSynchronize": runtime.synchronize_event,
            "cuEventElapsedTime_v2": runtime.elapsed_time,
            "cuEventDestroy_v2": runtime.destroy_event,
        }
        return super().functions() | {name: partial(self._in_context, same[name]) for name in same}

    def _in_context(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self._check_context()
        return function(*arguments)

    @implements("cuMemAlloc_v2")
    def allocate(self, result: int | None, size: int) -> None:
        self._check_context()
        if not size:
            raise RefusalError(CONSTANTS["CUDA_ERROR_INVALID_VALUE"], "an allocation of no bytes")
        self._runtime.allocate(result, size)

    @implements("cuMemcpyHtoDAsync_v2")
    def copy_to_device(self, target: int, source: int | None, size: int, stream: int | None) -> None:
        self._check_context()
        self._runtime.copy(target, source, size, H2D, stream)

    @implements("cuMemcpyDtoHAsync_v2")
    def copy_to_host(self, target: int | None, source: int, size: int, stream: int | None) -> None:
        self._check_context()
        self._runtime.copy(target, source, size, D2H, stream)

    # --- kernels ---

    @implements("cuModuleLoadData")
    def load(self, result: int | None, image: int | None) -> None:
        self._check_context()
        text = host_memory.read_string(image, "the image")
        try:
            program = ptx.parse(text)
        except ptx.PtxSyntaxError as error:
            raise RefusalError(CONSTANTS["CUDA_ERROR_INVALID_PTX"], str(error)) from None
        needed = int("".join(c for c in program.target if c.isdigit()))
        if needed > self.device.architecture:
            fact = f"PTX for {program.target} cannot run on sm_{self.device.architecture}"
            raise RefusalError(CONSTANTS["CUDA_ERROR_NO_BINARY_FOR_GPU"], fact)
        host_memory.write_result(result, self.device.create(Module(program), "module"))

    @implements("cuModuleGetFunction")
    def get_function(self, result: int | None, module: int | None, name: int | None) -> None:
        found, text = self.device.get(module, Module, "module"), host_memory.read_string(name, "the name")
        if text not in found.program.kernels:
            raise RefusalError(CONSTANTS["CUDA_ERROR_NOT_FOUND"], f"the module has no kernel '{text}'")
        handle = 0x7000_0000_0000 + 0x1000 * (len(self._functions) + 1)
        self._functions[handle] = ModuleFunction(found, text)
        host_memory.write_result(result, handle)

    @implements("cuModuleUnload")
    def unload(self, module: int | None) -> None:
        self.device.destroy(module, Module, "module").live = False

    @implements("cuLaunchKernel")
    def launch(
        self,
        function: int | None,
        grid_x: int,
        grid_y: int,
        grid_z: int,
        block_x: int,
        block_y: int,
        block_z: int,
        shared_bytes: int,
        stream: int | None,
        parameters: int | None,
        extra: int | None,
    ) -> None:
        self._check_context()
        found = self._functions.get(function or 0)
        if found is None:
            raise FaultError("not a function of a loaded module")
        if extra:
            raise FaultError("the simulator takes parameters by address only, not through `extra`")
        values = self._read_parameters(found, parameters)
        grid, block = (grid_x, grid_y, grid_z), (block_x, block_y, block_z)
        statistics = self.device.kernels.setdefault(found.name, ptx.KernelStatistics())

        def action() -> None:
            if not found.module.live:
                raise FaultError(f"the module of kernel '{found.name}' was unloaded before the kernel ran")
            ptx.launch(
                found.module.program,
                found.name,
                grid,
                block,
                values,
                self.device.memory,
                dynamic_shared_bytes=shared_bytes,
                statistics=statistics,
            )

        target = self.device.stream(stream)
        self.device.enqueue(target, found.name, action, grid=grid, block=block)

    def _read_parameters(self, function: ModuleFunction, address: int | None) -> list[bytes]:
        """The parameter values, copied at the launch as the driver does."""
        parameters = function.module.program.kernels[function.name].parameters
        extra = 1 if self._parameters_end_with_null else 0
        pointers = host_memory.read_pointers(address, len(parameters) + extra, "the array of parameters")
        passed = next((i for i, pointer in enumerate(pointers) if not pointer), len(pointers))
        if passed != len(parameters):
            count = f"at least {passed}" if passed > len(parameters) else str(passed)
            fact = f"takes {len(parameters)} parameters, the launch passes {count}"
            raise FaultError(f"kernel '{function.name}' {fact}")
        return [
            host_memory.read_bytes(pointer, parameter.size, f"parameter {i}")
            for i, (pointer, parameter) in enumerate(zip(pointers, parameters, strict=False))
        ]
