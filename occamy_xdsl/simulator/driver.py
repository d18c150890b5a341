"""
The CUDA driver: modules of PTX and launches of their kernels.

Source: CUDA Driver API 13, modules Module Management and Execution Control.
"""

from dataclasses import dataclass

import numpy as np

from occamy_xdsl.lowering.cuda.api import CONSTANTS
from occamy_xdsl.simulator import host_memory, ptx
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


class CudaDriver(SimulatedLibrary):
    """libcuda."""

    def __init__(self, device: Device, *, parameters_end_with_null: bool):
        super().__init__(device)
        self._parameters_end_with_null = parameters_end_with_null
        # Functions are no resources: they are never destroyed and cannot leak.
        self._functions: dict[int, ModuleFunction] = {}

    def _check_context(self) -> None:
        if not self.device.has_context:
            raise FaultError("no context: call cudaSetDevice or another function of the runtime first")

    @implements("cuDeviceGetName")
    def get_name(self, result: int | None, size: int, number: int) -> None:
        if number != 0:
            raise RefusalError(CONSTANTS["CUDA_ERROR_INVALID_DEVICE"], f"there is no device {number}")
        text = b"simulator"[: size - 1] + b"\0"
        host_memory.write_bytes(result, np.frombuffer(text, np.uint8), "the name")

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
