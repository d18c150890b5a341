"""Puts the simulated libraries in the place of NVIDIA's, and watches a program that uses them."""

import atexit
import ctypes
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

from occamy_xdsl.errors import UsageError
from occamy_xdsl.lowering.cuda import stubs
from occamy_xdsl.lowering.cuda.api import C_TYPES, CONSTANTS, FUNCTIONS, Function, llvm_type
from occamy_xdsl.simulator import host_memory
from occamy_xdsl.simulator.cublas import Cublas
from occamy_xdsl.simulator.cudart import CudaRuntime
from occamy_xdsl.simulator.cudnn import Cudnn
from occamy_xdsl.simulator.cudnn_model import WorkspaceModel, default_workspace_bytes
from occamy_xdsl.simulator.device import Device
from occamy_xdsl.simulator.driver import CudaDriver
from occamy_xdsl.simulator.faults import FaultError, RefusalError, SimulationError, Violation
from occamy_xdsl.simulator.report import KernelReport, Report
from occamy_xdsl.simulator.trace import HOST, Trace

_FAULT_STATUS = {
    "cudart": CONSTANTS["cudaErrorInvalidValue"],
    "cuda": CONSTANTS["CUDA_ERROR_INVALID_VALUE"],
    "cudnn": CONSTANTS["CUDNN_STATUS_BAD_PARAM"],
    "cublas": CONSTANTS["CUBLAS_STATUS_INVALID_VALUE"],
}
_STATUS_PREFIXES = {
    "cudart": "cudaError",
    "cuda": "CUDA_ERROR_",
    "cudnn": "CUDNN_STATUS_",
    "cublas": "CUBLAS_STATUS_",
}

_LOOKUP = "cuGetProcAddress_v2"
"""The one function that is served also while nothing is simulated."""
_SERVED = [function for function in FUNCTIONS.values() if function.name != _LOOKUP]

JETSONS = ("sm_72", "sm_87")
"""Architectures of which all devices are integrated: Xavier and Orin."""


@cache
def _stub_libraries() -> dict[str, ctypes.CDLL]:
    """The stubs, built once and loaded for the life of the process: what is loaded later binds to them."""
    folder = Path(tempfile.mkdtemp(prefix="occamy-simulator-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    paths = stubs.write_stubs(folder)
    libraries = {name: ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL) for name, path in paths.items()}
    for name, function in FUNCTIONS.items():
        entry = getattr(libraries[function.library], name)
        entry.restype = C_TYPES[llvm_type(function.result)]
        entry.argtypes = [C_TYPES[p.llvm_type] for p in function.parameters]
    return libraries


def _prototype(function: Function) -> Any:
    """The type of callbacks that serve a function."""
    result = C_TYPES[llvm_type(function.result)]
    return ctypes.CFUNCTYPE(result, *(C_TYPES[p.llvm_type] for p in function.parameters))


def _set_hook(function: Function, callback: Any) -> None:
    """Lets a callback, or with None nobody, serve the calls of a stub."""
    hook = ctypes.c_void_p.in_dll(_stub_libraries()[function.library], stubs.HOOK + function.name)
    hook.value = None if callback is None else ctypes.cast(callback, ctypes.c_void_p).value


@cache
def _symbol_lookup() -> Any:
    """
    `cuGetProcAddress` of the stubs, as a callback that lives as long as the process.

    A program, as `cuda.bindings` is, asks once, and may do so while nothing is simulated. The stub of a driver's
    function has one version; it is found by the name without that.
    """
    library = _stub_libraries()["cuda"]
    entries = {
        re.sub(r"_v\d+$", "", f.name): ctypes.cast(getattr(library, f.name), ctypes.c_void_p).value or 0
        for f in FUNCTIONS.values()
        if f.library == "cuda"
    }

    def find(symbol: int | None, result: int | None, version: int, flags: int, found: int | None) -> int:
        try:
            entry = entries.get(host_memory.read_string(symbol, "the symbol"), 0)
            host_memory.write_result(result, entry)
        except FaultError:
            return CONSTANTS["CUDA_ERROR_INVALID_VALUE"]
        return 0 if entry else CONSTANTS["CUDA_ERROR_NOT_FOUND"]

    return _prototype(FUNCTIONS[_LOOKUP])(find)


class _ErrorTexts:
    """The functions that turn a status into text."""

    def __init__(self) -> None:
        self._texts: dict[str, ctypes.Array[ctypes.c_char]] = {}

    def functions(self) -> dict[str, Callable[..., Any]]:
        """The functions of all libraries by name."""
        found: dict[str, Callable[..., Any]] = {"cudaGetLastError": lambda: 0}
        for name, library in (
            ("cudaGetErrorName", "cudart"),
            ("cudaGetErrorString", "cudart"),
            ("cudnnGetErrorString", "cudnn"),
            ("cublasGetStatusString", "cublas"),
        ):
            found[name] = partial(self._address, library)
        for name in ("cuGetErrorName", "cuGetErrorString"):
            found[name] = self._write_address
        return found

    def _write_address(self, status: int, result: int | None) -> None:
        host_memory.write_result(result, self._address("cuda", status))

    def _address(self, library: str, status: int) -> int:
        prefix = _STATUS_PREFIXES[library]
        names = [n for n, value in CONSTANTS.items() if value == status and n.startswith(prefix)]
        success = {"cudart": "cudaSuccess", "cuda": "CUDA_SUCCESS"}.get(library, prefix + "SUCCESS")
        text = success if status == 0 else names[0] if names else f"{prefix}{status}"
        buffer = self._texts.setdefault(text, ctypes.create_string_buffer(text.encode()))
        return ctypes.addressof(buffer)


class Simulator:
    """
    Runs a program for CUDA, in this process, without a GPU.

    ::

        with Simulator() as simulator:
            library = simulator.load(path)
            library.occamy_create(...)
        print(simulator.report())

    Leaving the block raises SimulationError if the program broke a rule or left something behind, unless
    `strict` is false; `violations` has the list. Only one simulator can be active at a time, and the program
    must not have NVIDIA's libraries loaded. Nothing here says how fast the program is.

    `architecture` is the device's, for example `sm_90`; `capacity` its memory in bytes; `workspace_bytes`
    answers how much workspace a convolution algorithm needs. `integrated` says that the device has the host's
    memory, by default where its architecture is one of JETSONS, and `pageable` that it reaches what is not
    registered there. `fail` is (n, status): the n-th call that returns a status, from 1, does nothing and returns
    that one. `parameters_end_with_null` says that arrays of kernel parameters end with a null pointer, as those of
    generated code do, so that their number is known.
    """

    _active: ClassVar["Simulator | None"] = None

    def __init__(
        self,
        *,
        architecture: str = "sm_90",
        capacity: int = 1 << 34,
        workspace_bytes: WorkspaceModel = default_workspace_bytes,
        integrated: bool | None = None,
        pageable: bool = False,
        fail: tuple[int, int] | None = None,
        parameters_end_with_null: bool = True,
        strict: bool = True,
    ):
        self._device = Device(
            capacity,
            int(architecture.removeprefix("sm_")),
            is_integrated=architecture in JETSONS if integrated is None else integrated,
            reaches_host=pageable,
        )
        self._runtime = CudaRuntime(self._device)
        self._implementations: dict[str, Callable[..., Any]] = {
            **self._runtime.functions(),
            **CudaDriver(
                self._device, self._runtime, parameters_end_with_null=parameters_end_with_null
            ).functions(),
            **Cudnn(self._device, workspace_bytes).functions(),
            **Cublas(self._device).functions(),
            **_ErrorTexts().functions(),
        }
        self._fail = fail
        self._strict = strict
        self._callbacks: dict[str, Any] = {}
        self._errors: list[BaseException] = []
        self._refusals: list[str] = []
        self._allocations = 0
        self.calls: list[str] = []
        """Names of the calls that return a status, in order."""

    @property
    def trace(self) -> Trace:
        """All calls and all work of the streams, in order."""
        return self._device.trace

    @property
    def violations(self) -> list[Violation]:
        """What the program did wrong so far; what it left behind is added when the simulation ends."""
        return self._device.violations

    def fail_call(self, number: int, status: int) -> None:
        """The `number`-th call from now that returns a status, from 1, will do nothing and return this one."""
        self._fail = len(self.calls) + number, status

    def leaks(self) -> list[str]:
        """One line for each kind of thing that is created and not destroyed, or allocated and not freed, so far."""
        return [*self._device.leaks(), *self._runtime.leaks()]

    def write_trace(self, path: Path) -> None:
        """Write the trace for chrome://tracing or Perfetto."""
        self.trace.write(path)

    # --- life ---

    def __enter__(self) -> "Simulator":
        if Simulator._active is not None:
            raise UsageError("a simulation is already running in this process")
        _set_hook(FUNCTIONS[_LOOKUP], _symbol_lookup())
        Simulator._active = self
        for function in _SERVED:
            callback = self._callbacks[function.name] = _prototype(function)(self._server(function))
            _set_hook(function, callback)
        return self

    def __exit__(
        self, type_: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for function in _SERVED:
            _set_hook(function, None)
        Simulator._active = None
        for message in self.leaks():
            self._device.violation(message, ("exit", 0))
        if error is None and self._errors:
            raise self._errors[0]
        if error is None and self._strict and self.violations:
            raise SimulationError(self.violations)

    def load(self, path: Path) -> ctypes.CDLL:
        """Load a shared library whose calls of CUDA this simulator serves."""
        if Simulator._active is not self:
            raise UsageError("libraries can be loaded only while the simulation runs")
        # A name without a slash would be looked for where the system has its libraries.
        return ctypes.CDLL(str(path.resolve()))

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a CUDA function from Python, as a program would; numbers and ctypes pointers are arguments."""
        return getattr(_stub_libraries()[FUNCTIONS[name].library], name)(*arguments)

    # --- calls ---

    def _server(self, function: Function) -> Callable[..., Any]:
        """What is called in the place of a function."""
        implementation = self._implementations[function.name]
        name, library = function.name, function.library
        if not function.returns_status or name in ("cuGetErrorName", "cuGetErrorString", "cudaGetLastError"):
            return lambda *arguments: implementation(*arguments) or 0

        def serve(*arguments: Any) -> int:
            self.calls.append(name)
            number = len(self.calls)
            self._device.call = name, number
            self.trace.add(name, HOST, call=number)
            if self._fail is not None and self._fail[0] == number:
                return self._fail[1]
            try:
                status = implementation(*arguments) or 0
            except RefusalError as refusal:
                self._refusals.append(f"call {number}, {name}: {refusal}")
                return refusal.status
            except FaultError as fault:
                self._device.violation(str(fault))
                return _FAULT_STATUS[library]
            except Exception as error:
                # It cannot pass through the calling machine code.
                self._errors.append(error)
                return CONSTANTS["cudaErrorUnknown"]
            if name in ("cudaMalloc", "cuMemAlloc_v2"):
                self._allocations += 1
            return status

        return serve

    def report(self) -> Report:
        """What the program did so far."""
        kernels = {
            name: KernelReport(
                statistics.launches,
                statistics.blocks,
                statistics.warp_instructions,
                sum(access.used_bytes for access in statistics.accesses.values()),
                sum(access.moved_bytes for access in statistics.accesses.values()),
            )
            for name, statistics in self._device.kernels.items()
        }
        return Report(
            calls=dict(Counter(self.calls)),
            kernels=kernels,
            copied_bytes=dict(self._device.copied_bytes),
            allocations=self._allocations,
            peak_device_bytes=self._device.memory.peak,
            refusals=tuple(self._refusals),
            notes=dict(self._device.notes),
        )
