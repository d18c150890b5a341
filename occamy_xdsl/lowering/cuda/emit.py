"""A model compiled for a GPU, in the form from which artefacts are written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from occamy_xdsl.lowering import toolchain
from occamy_xdsl.lowering.cpu.abi import WeightsFile
from occamy_xdsl.lowering.cuda import abi, loader, stubs
from occamy_xdsl.lowering.cuda.program import KERNELS, MACHINE_CODE
from occamy_xdsl.lowering.host import HostModule
from occamy_xdsl.lowering.linker import HOST
from occamy_xdsl.lowering.signature import Signature


@dataclass(frozen=True)
class CompiledCudaModel:
    """A model for a GPU after lowering; the host code is for this machine's processor."""

    host: str
    """Module in the llvm dialect with the functions of `cuda.program`."""
    ptx: str
    """The kernels; empty if there are none."""
    model_bytes: int
    """Bytes of a model handle."""
    signature: Signature
    weights: Path | None
    """File of `signature.weights_bytes` bytes; None if there are no weights."""
    machine_code: bytes = b""
    """The kernels for one architecture; empty where only PTX is wanted."""
    streams_weights: bool = False
    """Whether the weights must be in a file, which stays mapped while the model lives."""

    @property
    def machine(self) -> str:
        """This machine's."""
        return HOST

    def define_interface(self, host: HostModule, weights: WeightsFile | None) -> None:
        """Define the functions of the C interface."""
        abi.define_interface(host, self.signature, self.model_bytes, weights)

    def object_with(self, host: HostModule, *, program: bool) -> bytes:
        """One object with the host code and its interface; in that of a program every function is defined."""
        modules = [self.host, str(host.module)]
        texts = [toolchain.translate_to_llvm(text) for text in modules]
        if program:
            texts.append(loader.loader(loader.called(modules)))
        isa = toolchain.Isa.host()
        return toolchain.emit_object(toolchain.optimize(texts[0], isa, others=texts[1:]), isa)

    @property
    def loader(self) -> str:
        """A program loads NVIDIA's libraries itself, and so can say that there are none."""
        return loader.LOAD

    def embedded(self) -> Mapping[str, bytes]:
        """The PTX, which the driver compiles when a model is created, unless it takes the machine code."""
        if not self.ptx:
            return {}
        return {KERNELS: self.ptx.encode() + b"\0", MACHINE_CODE: self.machine_code or bytes(4)}

    def libraries(self, folder: Path) -> Sequence[Path]:
        """Stubs of NVIDIA's libraries: none has to be installed here."""
        return list(stubs.write_stubs(folder).values())
