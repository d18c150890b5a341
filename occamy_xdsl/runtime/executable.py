"""
Running compiled models on numpy arrays, and loading them from shared libraries.

Nothing here needs a compiler: a machine that only runs libraries has neither LLVM nor onnx.
"""

import ctypes
import shutil
import struct
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from occamy_xdsl.errors import ArgumentTypeError, InvalidInputError, OccamyError, UsageError
from occamy_xdsl.files import replacing_all
from occamy_xdsl.lowering.interface import EXPORTS, Code, WeightsPlace, weights_path
from occamy_xdsl.lowering.signature import Signature, TensorSpec

Array = np.ndarray[Any, np.dtype[Any]]

POISON = 0xFF
"""Fills memory that must not be read: all ones is NaN in every IEEE format, and -1 in signed integers."""


class LoadedModel(Protocol):
    """Code and weights of a model, shared by the executables made from them."""

    @property
    def signature(self) -> Signature:
        """The signature of the model."""
        ...

    def bind(self, pool: int) -> Callable[[Sequence[int], Sequence[int]], None]:
        """
        A function that runs the model in the pool at address `pool` on input and output addresses; with 0
        the model allocates the pool.
        """
        ...

    def save(self, path: Path, weights: WeightsPlace) -> None:
        """Write the model to a file of the kind that the suffix of `path` names; raises UsageError."""
        ...


class Executable:
    """
    A model ready to run, with one memory pool that every run uses.

    Runs of one executable exclude each other (a second thread waits); `clone` gives a thread its own pool.
    """

    def __init__(self, model: LoadedModel):
        self._model = model
        # A model on a GPU allocates its pool there.
        self._pool = None
        if not self.signature.is_cuda:
            self._pool = aligned_bytes(max(1, self.signature.pool_bytes), self.signature.pool_alignment)
        self.bound = model.bind(0 if self._pool is None else self._pool.ctypes.data)
        """Runs the model on addresses of inputs and outputs; for a GPU a `BoundLibrary`."""
        self._lock = threading.Lock()
        self._last: tuple[list[Array], list[Array]] | None = None
        """Inputs and outputs of the last run on a GPU."""

    @property
    def signature(self) -> Signature:
        """Names, element types and shapes of inputs and outputs, and the bytes the model needs."""
        return self._model.signature

    @property
    def pool_bytes(self) -> int:
        """Bytes that a run needs besides weights, inputs and outputs."""
        return self.signature.pool_bytes

    def clone(self) -> "Executable":
        """An executable with the same code and weights, and a pool of its own."""
        return Executable(self._model)

    def save(self, path: str | Path, weights: WeightsPlace = "embed") -> None:
        """
        Write the model to `path`: a library (`.so`), object (`.o`), header (`.h`) or program (no suffix).

        A library opened from a file can only be copied (as it keeps its weights) or described by a header.
        Raises UsageError.
        """
        self._model.save(Path(path), weights)

    def capture(self) -> None:
        """
        Make a CUDA graph of the model: from now on one call launches all its kernels.

        Raises UsageError for a CPU, OccamyError where the GPU refuses.
        """
        if not isinstance(self.bound, BoundLibrary) or not self.signature.is_cuda:
            raise UsageError(f"CUDA graph: target '{self.signature.target}' has none, only cuda")
        self.bound.capture()

    def run(
        self, *inputs: Any, out: Mapping[str, Array] | None = None, poison: bool = False
    ) -> dict[str, Array]:
        """
        Run the model once.

        `inputs` are all inputs in graph order, or one mapping from name to value. Values are numpy arrays,
        objects with `__dlpack__` in host memory, or what `np.asarray` takes; dtype and shape must be those of
        the signature; an array that is not contiguous and aligned is copied first. `out` gives arrays for
        some outputs to be written to; the other outputs are new arrays. With `poison` the pool and the
        outputs are filled with NaN patterns first. Returns the outputs in graph order.

        Raises InvalidInputError that names the input or output, what was expected and what was given, and
        UsageError for `poison` where there is no pool, or on a GPU.
        """
        if poison:
            self.check_poison()
        arrays = bind_inputs(self.signature.inputs, inputs)
        results = _bind_outputs(
            self.signature.outputs, {} if out is None else out, arrays, self.signature.pool_alignment
        )
        with self._lock:
            if poison and self._pool is not None:
                self._pool.fill(POISON)
                for result in results:
                    result.reshape(-1).view(np.uint8).fill(POISON)
            self.bound([array.ctypes.data for array in arrays], [array.ctypes.data for array in results])
            # A GPU that has the host's memory may use them again, see `BoundLibrary.enqueue`.
            self._last = (arrays, results) if self.signature.is_cuda else None
        return {spec.name: array for spec, array in zip(self.signature.outputs, results, strict=True)}

    def check_poison(self) -> None:
        """Raises UsageError where `run` has no pool that it could fill."""
        if self._pool is None:
            raise UsageError("poison: the pool is in the memory of a GPU")
        if self.signature.memory != "pool":
            raise UsageError(
                f"poison: memory '{self.signature.memory}' has no pool to fill, each run allocates its buffers"
            )

    def __call__(self, *inputs: Any, **named: Any) -> dict[str, Array]:
        """Run the model on positional or on keyword inputs; raises as `run`."""
        if inputs and named:
            raise InvalidInputError("give all inputs by position or all by name")
        return self.run(named) if named else self.run(*inputs)

    def __repr__(self) -> str:
        def tensors(specs: tuple[TensorSpec, ...]) -> str:
            return ", ".join(f"{spec.name}: {spec}" for spec in specs)

        signature = self.signature
        return f"<Executable ({tensors(signature.inputs)}) -> ({tensors(signature.outputs)})>"


def aligned_bytes(size: int, alignment: int) -> Array:
    """`size` uninitialised bytes whose address is a multiple of `alignment`."""
    storage = np.empty(size + alignment, np.uint8)
    start = -storage.ctypes.data % alignment
    return storage[start : start + size]


# --- inputs and outputs -----------------------------------------------------------------------------------


def bind_inputs(specs: Sequence[TensorSpec], inputs: tuple[Any, ...]) -> list[Array]:
    """Contiguous arrays for `specs` from positional values or one mapping; raises InvalidInputError."""
    names = ", ".join(spec.name for spec in specs)
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        named = cast(Mapping[str, Any], inputs[0])
        for name in named:
            if all(name != spec.name for spec in specs):
                raise InvalidInputError(f"no input is named '{name}', the inputs are: {names or 'none'}")
        for spec in specs:
            if spec.name not in named:
                raise InvalidInputError(f"input '{spec.name}' ({spec}) is missing")
        inputs = tuple(named[spec.name] for spec in specs)
    if len(inputs) != len(specs):
        raise InvalidInputError(f"expected {len(specs)} inputs ({names or 'none'}), got {len(inputs)}")
    return [as_input(spec, value) for spec, value in zip(specs, inputs, strict=True)]


def as_input(spec: TensorSpec, value: Any) -> Array:
    """`value` as a contiguous, aligned array of the dtype and shape of `spec`; raises InvalidInputError."""
    try:
        if isinstance(value, np.ndarray) or not hasattr(value, "__dlpack__"):
            array = np.asarray(cast(Any, value))
        else:
            array = np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidInputError(f"input '{spec.name}': not readable as an array: {error}") from None
    _check_type(f"input '{spec.name}'", spec, array)
    if array.flags.c_contiguous and array.flags.aligned:
        return array
    return np.array(array, order="C", copy=True)


def _check_type(what: str, spec: TensorSpec, array: Array) -> None:
    """Raise InvalidInputError unless dtype and shape of `array` are those of `spec`."""
    if array.dtype != spec.element.numpy or array.shape != spec.shape:
        order = "" if array.dtype.isnative else "byte-swapped "
        got = f"{order}{array.dtype.name}[{','.join(map(str, array.shape))}]"
        raise InvalidInputError(f"{what}: expected {spec}, got {got}")


def _bind_outputs(
    specs: Sequence[TensorSpec], out: Mapping[str, Array], inputs: Sequence[Array], alignment: int
) -> list[Array]:
    """The arrays to write to: those of `out`, checked, and new ones at multiples of `alignment` for the rest."""
    if not isinstance(out, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]  # users may err
        raise ArgumentTypeError(f"out: expected a mapping from names to arrays, got {type(out).__name__}")
    for name in out:
        if all(name != spec.name for spec in specs):
            names = ", ".join(spec.name for spec in specs)
            raise InvalidInputError(f"no output is named '{name}', the outputs are: {names}")
    arrays: list[Array] = []
    for spec in specs:
        if spec.name not in out:
            storage = aligned_bytes(spec.bytes, alignment)
            arrays.append(storage.view(spec.element.numpy).reshape(spec.shape))
            continue
        array, what = out[spec.name], f"output '{spec.name}'"
        if not isinstance(array, np.ndarray):  # pyright: ignore[reportUnnecessaryIsInstance]  # users may err
            raise InvalidInputError(f"{what}: expected a numpy array, got {type(array).__name__}")
        _check_type(what, spec, array)
        if not (array.flags.c_contiguous and array.flags.aligned and array.flags.writeable):
            raise InvalidInputError(f"{what}: expected a contiguous, aligned and writeable array")
        # Outputs serve as storage before their final value is written.
        if any(np.may_share_memory(array, other) for other in (*inputs, *arrays)):
            raise InvalidInputError(f"{what}: shares memory with an input or another output")
        arrays.append(array)
    return arrays


# --- code from a shared library ---------------------------------------------------------------------------


def _load_library(path: Path) -> ctypes.CDLL:
    """Loads a library, and NVIDIA's before it if it needs them; raises UsageError or NoDeviceError."""
    name = _loadable_name(path)
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        fact = str(error)
    # Most libraries are for a CPU, and load as they are.
    from occamy_xdsl.lowering.cuda.api import LIBRARIES
    from occamy_xdsl.runtime.nvidia import load_libraries

    if any(library.soname in fact for library in LIBRARIES.values()):
        load_libraries()
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            fact = str(error)
    raise UsageError(f"{path}: cannot be loaded: {fact}")


class LibraryModel:
    """A model in a shared library with the C interface of `lowering.cpu.abi`."""

    def __init__(self, path: Path):
        self._path = path.absolute()
        _check_library(path)
        self._library = _load_library(self._path)
        try:
            functions = [getattr(self._library, name) for name in EXPORTS]
        except AttributeError:
            raise UsageError(f"{path}: not a library compiled by occamy-xdsl") from None
        _, describe, *_, destroy, error = functions
        describe.restype = error.restype = ctypes.c_char_p
        destroy.restype = None
        try:
            self._signature = Signature.from_json(describe())
        except ValueError as error:
            raise UsageError(f"{path}: {error}") from None

    @property
    def signature(self) -> Signature:
        """The signature of the model."""
        return self._signature

    def bind(self, pool: int) -> "BoundLibrary":
        """
        The model in the pool at address `pool`.

        Raises InvalidInputError for a weights file that is missing or of another model, else OccamyError.
        """
        return BoundLibrary(self._path, self._library, pool)

    def save(self, path: Path, weights: WeightsPlace) -> None:
        """Copy the library and its weights file, or write a header; raises UsageError."""
        match path.suffix:
            case ".h":
                from occamy_xdsl.lowering.cpu.abi import write_header

                write_header(self.signature, path)
            case ".so":
                # Who runs a library that was at `path` before keeps it.
                with replacing_all(path, weights_path(path)) as (library, weights_file):
                    shutil.copy2(self._path, library)
                    if weights_path(self._path).exists():
                        shutil.copy2(weights_path(self._path), weights_file)
            case suffix:
                raise UsageError(f"{path}: a loaded library is saved as .so or .h, not as '{suffix}'")


class BoundLibrary:
    """A model that the library at `path` created, in the pool at address `pool`; raises as `LibraryModel.bind`."""

    def __init__(self, path: Path, library: ctypes.CDLL, pool: int):
        self._path = path
        self._library = library
        self._model = ctypes.c_void_p()
        if code := library.occamy_create(ctypes.byref(self._model), ctypes.c_void_p(pool)):
            error = InvalidInputError if code == Code.WEIGHTS else OccamyError
            raise error(f"{path}: {library.occamy_error(None).decode()}")
        weakref.finalize(self, library.occamy_destroy, self._model)

    def __call__(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Run the model on addresses; raises OccamyError."""
        pointers = [(ctypes.c_void_p * len(values))(*values) for values in (inputs, outputs)]
        self._check(self._library.occamy_run(self._model, *pointers))

    def _check(self, code: int) -> None:
        if code:
            raise OccamyError(f"{self._path}: {self._library.occamy_error(self._model).decode()}")

    # --- of a model for a GPU ---

    @property
    def stream(self) -> int:
        """The stream on which it runs."""
        function = self._library.occamy_stream
        function.restype = ctypes.c_void_p
        return function(self._model)

    def enqueue(self) -> None:
        """
        Put the model on its stream, on the inputs of the last run, and return.

        A GPU that has the host's memory may write to the outputs of the last run. Raises OccamyError.
        """
        self._check(self._library.occamy_enqueue(self._model))

    def capture(self) -> None:
        """Make a CUDA graph of the model, which later runs launch; raises OccamyError."""
        self._check(self._library.occamy_capture(self._model))


_ELF_RELOCATABLE, _ELF_LOAD, _ELF_INTERPRETER = 1, 1, 3
"""Values of e_type and p_type in the ELF specification: an object, a loaded segment, a program's loader."""

_ELF_HEADER = struct.Struct("<16xH14xQ14xHH")
"""Of a 64-bit file's header: e_type, e_phoff, e_phentsize, e_phnum."""

_ELF_SEGMENT = struct.Struct("<I4xQ16xQ")
"""Of a segment's entry: p_type, p_offset, p_filesz."""


def _check_library(path: Path) -> None:
    """
    Raises UsageError for a file of the ELF format that is no complete shared library.

    The dynamic loader maps what a truncated file promises, and the process dies on its first access.
    """
    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: cannot be loaded: not a file")
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            data = file.read(_ELF_HEADER.size)
            if data[:6] != b"\x7fELF\x02\x01" or len(data) < _ELF_HEADER.size:
                return  # the loader says what is wrong
            kind, table, entry_bytes, entries = _ELF_HEADER.unpack(data)
            file.seek(table)
            segments = [_ELF_SEGMENT.unpack_from(file.read(entry_bytes)) for _ in range(entries)]
    except OSError as error:
        raise UsageError(f"{path}: cannot be loaded: {error.strerror}") from None
    except (struct.error, OverflowError):
        raise UsageError(f"{path}: cannot be loaded: the file is truncated") from None
    if kind == _ELF_RELOCATABLE:
        raise UsageError(f"{path}: an object, which cannot be loaded before it is linked")
    if any(type == _ELF_INTERPRETER for type, _, _ in segments):
        raise UsageError(f"{path}: a program, which runs by itself: see {path} --help")
    if any(type == _ELF_LOAD and offset + filled > size for type, offset, filled in segments):
        raise UsageError(f"{path}: cannot be loaded: the file is truncated")


_loaded: dict[Path, list[tuple[int, int, int]]] = {}


def _loadable_name(path: Path) -> str:
    """
    A spelling of `path` that makes the dynamic loader read the file.

    The loader returns the library it already has under an equal name, even if the file was replaced since; so
    every new content of a path gets another spelling, with more `./`.
    """
    status = path.stat()
    identity = status.st_dev, status.st_ino, status.st_mtime_ns
    versions = _loaded.setdefault(path, [])
    if identity not in versions:
        versions.append(identity)
    return f"{path.parent}/{'./' * versions.index(identity)}{path.name}"


def open_library(path: str | Path) -> Executable:
    """
    The model in the shared library at `path`.

    Raises UsageError, NoDeviceError for a library that needs a GPU where there is none, OccamyError for its
    weights or what its GPU refuses.
    """
    return Executable(LibraryModel(Path(path)))
