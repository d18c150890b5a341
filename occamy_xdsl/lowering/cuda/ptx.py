"""From kernels to PTX text, by MLIR's NVPTX back end."""

import re
from collections.abc import Sequence
from functools import cache

from occamy_xdsl.lowering import toolchain
from occamy_xdsl.lowering.cuda.kernels.spec import GpuKernel, gpu_module

CHIPS = ("sm_72", "sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100")
"""Architectures that code is generated for, from Jetson AGX Xavier to Blackwell."""

# Vectors are left to convert-gpu-to-nvvm: convert-vector-to-llvm would use 64-bit indices beside 32-bit ones.
_PIPELINE = (
    "builtin.module("
    "nvvm-attach-target{{chip={chip} O=3}},"
    "gpu.module("
    "canonicalize,cse,expand-strided-metadata,lower-affine,convert-scf-to-cf,"
    "convert-gpu-to-nvvm{{use-bare-ptr-memref-call-conv=1 index-bitwidth=32}},convert-math-to-llvm,"
    "canonicalize,cse,reconcile-unrealized-casts),"
    "gpu-module-to-binary{{format=isa}})"
)


@cache
def assemble(text: str, chip: str) -> str:
    """
    PTX of the one gpu.module in the MLIR module `text`, for an architecture of CHIPS.

    Raises ToolError for our bugs.
    """
    if chip not in CHIPS:
        raise ValueError(f"unknown architecture '{chip}', known are: {' '.join(CHIPS)}")
    output = toolchain.run_mlir_opt(text, _PIPELINE.format(chip=chip))
    match = re.search(r'assembly = "((?:[^"\\]|\\.)*)"', output, re.DOTALL)
    if match is None:
        raise toolchain.ToolError("mlir-opt", "no PTX in the output")
    return re.sub(r"\\([0-9A-Fa-f]{2})", lambda m: chr(int(m[1], 16)), match[1]).rstrip("\0")


def compile_kernels(kernels: Sequence[GpuKernel], chip: str) -> str:
    """PTX of a module that holds each distinct kernel once; raises as `assemble` and `gpu_module`."""
    module = gpu_module(kernels, chip)
    module.verify()
    return assemble(str(module), chip)
