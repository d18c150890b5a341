"""From a compiled CPU model to artefacts: object, shared library, executable and header."""

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, get_args

from occamy_xdsl.errors import UsageError
from occamy_xdsl.files import replacing_all, temporary_folder
from occamy_xdsl.lowering import linker, toolchain
from occamy_xdsl.lowering.cpu import abi
from occamy_xdsl.lowering.cpu.executable import define_main
from occamy_xdsl.lowering.host import HostModule
from occamy_xdsl.lowering.interface import WeightsPlace, weights_path
from occamy_xdsl.lowering.signature import Signature

MAX_EMBEDDED_BYTES = 2**31 - 2**24
"""Largest weights that code can address in the same file: the small code model reaches 2 GiB."""


class Artefact(Protocol):
    """What the functions below write: a model after lowering, for any target."""

    @property
    def signature(self) -> Signature:
        """The signature of the model."""
        ...

    @property
    def machine(self) -> str:
        """The kind of processor that the host code is for, as in LLVM's target triples."""
        ...

    @property
    def weights(self) -> Path | None:
        """File of `signature.weights_bytes` bytes; None if there are no weights."""
        ...

    @property
    def streams_weights(self) -> bool:
        """Whether the weights have to be in a file, from which parts of them are read when they are needed."""
        ...

    def define_interface(self, host: HostModule, weights: abi.WeightsFile | None) -> None:
        """Define the functions of the C interface."""
        ...

    def object_with(self, host: HostModule, *, program: bool) -> bytes:
        """Object code of the model and of `host`, which has the `main` of a program if this is one."""
        ...

    @property
    def loader(self) -> str | None:
        """`int loader(void)`, which a program must call first and which says what is wrong; None if there is none."""
        ...

    def embedded(self) -> Mapping[str, bytes]:
        """Read-only data by symbol, besides the weights."""
        ...

    def libraries(self, folder: Path) -> Sequence[Path]:
        """Shared libraries to link a library with; those that have to be made first are put into `folder`."""
        ...


@dataclass(frozen=True)
class CompiledModel:
    """A model for a CPU after lowering: everything an artefact is made of."""

    mlir: str
    """
    Module on upstream dialects that defines `func.func @occamy_main(pool, weights, inputs..., outputs...)`,
    all parameters `!llvm.ptr`.
    """
    signature: Signature
    weights: Path | None
    """File of `signature.weights_bytes` bytes; None if there are no weights."""
    isa: toolchain.Isa
    streams_weights: bool = False
    """Whether the code drops weights from memory after use, so that they must be mapped from a file."""
    allocates: bool = False
    """Whether each run allocates buffers, and `occamy_main` returns an i1 that tells whether it could."""

    def __post_init__(self) -> None:
        size = self.weights.stat().st_size if self.weights is not None else 0
        if size != self.signature.weights_bytes:
            raise ValueError(f"weights of {size} bytes, signature says {self.signature.weights_bytes}")

    @property
    def machine(self) -> str:
        """The kind of processor, as in LLVM's target triples."""
        return self.isa.machine

    def object_code(self) -> bytes:
        """Object code of the model alone, with the symbol `abi.ENTRY`, for the JIT; raises ToolError."""
        return toolchain.compile_mlir(self.mlir, self.isa)

    def define_interface(self, host: HostModule, weights: abi.WeightsFile | None) -> None:
        """Define the functions of the C interface."""
        abi.define_interface(host, self.signature, weights, self.allocates)

    def object_with(self, host: HostModule, *, program: bool) -> bytes:
        """One object with the model and its interface."""
        lowered = toolchain.translate_to_llvm(toolchain.run_mlir_opt(self.mlir))
        interface = toolchain.translate_to_llvm(str(host.module))
        return toolchain.emit_object(toolchain.optimize(lowered, self.isa, others=[interface]), self.isa)

    @property
    def loader(self) -> None:
        """The C library is there before the program starts."""

    def embedded(self) -> Mapping[str, bytes]:
        """Nothing but weights."""
        return {}

    def libraries(self, folder: Path) -> Sequence[Path]:
        """None but those of the C compiler."""
        return ()


def write_library(model: Artefact, path: Path, weights: WeightsPlace = "embed") -> None:
    """
    Write a shared library with the C interface.

    Raises UsageError if there is no linker or the weights are too large to embed, ToolError for our bugs.
    """

    def link(objects: Sequence[Path], output: Path) -> None:
        parts = [*objects, *model.libraries(output.parent)]
        linker.link_shared(parts, output, abi.exports(model.signature), machine=model.machine)

    _write(model, path, weights, link)


def write_executable(model: Artefact, path: Path, weights: WeightsPlace = "embed") -> None:
    """Write a program that runs the model on .npy files; raises as `write_library`."""

    def link(objects: Sequence[Path], output: Path) -> None:
        linker.link_executable(objects, output, model.machine)

    _write(model, path, weights, link, program=True)


def write_object(model: Artefact, path: Path, weights: WeightsPlace = "embed") -> None:
    """
    Write a relocatable object with the C interface.

    Needs a linker only to embed weights. A weights file is looked for beside the library that the object
    becomes part of, or the program, which then must be started by its path. Raises as `write_library`.
    """

    def merge(objects: Sequence[Path], output: Path) -> None:
        if len(objects) == 1:
            objects[0].rename(output)
        else:
            linker.link_relocatable(objects, output, model.machine)

    _write(model, path, weights, merge)


def check_weights_place(place: str) -> WeightsPlace:
    """`place` if weights can be kept there; raises UsageError."""
    for known in get_args(WeightsPlace):
        if place == known:
            return known
    raise UsageError(f"weights cannot be kept as '{place}', only as: embed file")


def _write(
    model: Artefact,
    path: Path,
    place: WeightsPlace,
    link: Callable[[Sequence[Path], Path], None],
    *,
    program: bool = False,
) -> None:
    """Compile the model and its interface, link them, and put the result and its weights file in place."""
    signature, place = model.signature, check_weights_place(place)
    if model.streams_weights and place == "embed":
        raise UsageError("weights that are streamed cannot be embedded, only kept in a file")
    in_file = model.weights if place == "file" else None
    embedded = model.weights if place == "embed" else None
    if embedded is not None and signature.weights_bytes > MAX_EMBEDDED_BYTES:
        raise UsageError(
            f"weights of {signature.weights_bytes} bytes are too large to embed, "
            f"at most {MAX_EMBEDDED_BYTES} are possible: keep them in a file"
        )
    trailer = b"" if in_file is None else abi.weights_trailer(signature.weights_bytes, _sha256(in_file))
    host = HostModule()
    file = None if in_file is None else abi.WeightsFile(trailer, beside_program=program)
    model.define_interface(host, file)
    if program:
        define_main(host, signature, model.loader)
    written = [path] if in_file is None else [path, weights_path(path)]
    with replacing_all(*written) as results, temporary_folder(results[0].parent) as folder:
        objects = [folder / "model.o"]
        host.module.verify()
        objects[0].write_bytes(model.object_with(host, program=program))
        for symbol, data in model.embedded().items():
            (folder / symbol).write_bytes(data)
            objects.append(linker.embed_file(folder / symbol, symbol, folder))
        if embedded is not None:
            objects.append(linker.embed_file(embedded, abi.WEIGHTS, folder))
        linked = folder / "artefact"
        link(objects, linked)
        linked.rename(results[0])
        if in_file is not None:
            with in_file.open("rb") as source, results[1].open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
                target.write(trailer)


def _sha256(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()
