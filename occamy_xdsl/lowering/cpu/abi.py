"""
The C interface of a compiled CPU model: its functions as llvm-dialect IR, and its header.

The module declares `occamy_main(pool, weights, inputs..., outputs...)`, which the lowering of the model
defines, and defines the public functions around it. A model handle is five machine words; `occamy_run`
neither allocates nor writes to anything but the handle, the pool and the outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from xdsl.dialects.builtin import i1, i8, i32, i64

from occamy_xdsl.files import replacing
from occamy_xdsl.lowering.host import NULL, PTR, VOID, FunctionBuilder, HostModule, Operand, Prototype, Value
from occamy_xdsl.lowering.interface import CODE_MEANINGS, DEVICE_EXPORTS, EXPORTS, Code
from occamy_xdsl.lowering.signature import Signature, TensorSpec

ENTRY = "occamy_main"
"""Symbol of the compiled model's entry function."""
WEIGHTS = "occamy_weights"
"""Symbol of the embedded weights."""
OUT_OF_MEMORY = "occamy_run: out of memory for a buffer"
"""What `occamy_error` says where a model without a pool lacks memory."""
LAST_ERROR = "occamy_last_error"
"""Symbol of the message of a call that had no model, one a thread."""
TRAILER_BYTES = 64
"""Bytes after the weights in a weights file: they tie the file to its artefact, see `weights_trailer`."""


@dataclass(frozen=True)
class WeightsFile:
    """Weights that are mapped from the file `<artefact>.weights` when a model is created."""

    trailer: bytes
    """The last TRAILER_BYTES bytes the file must have."""
    beside_program: bool = False
    """Whether the artefact is the running program, rather than the library that holds the code."""


def weights_trailer(size: int, sha256: bytes) -> bytes:
    """The trailer of a weights file: magic, bytes of the weights (little-endian), SHA-256 of them, zeros."""
    return (b"OCCAMYW1" + size.to_bytes(8, "little") + sha256).ljust(TRAILER_BYTES, b"\0")


# Byte offsets of the fields of a model handle.
_POOL, _OWNED_POOL, _WEIGHTS, _MAPPING, _ERROR, _HANDLE_BYTES = 0, 8, 16, 24, 32, 40

# Values of constants of the Linux C libraries, the same on x86-64, AArch64 and RISC-V.
_O_RDONLY_CLOEXEC, _SEEK_END, _PROT_READ, _MAP_PRIVATE = 0o2000000, 2, 1, 2
_PATH_BYTES = 4096
_MESSAGE_BYTES = 512


def define_interface(
    host: HostModule, signature: Signature, weights: WeightsFile | None, allocates: bool = False
) -> None:
    """
    Define the functions of `EXPORTS` in `host`.

    With `weights` None they are embedded: the symbol `WEIGHTS` is defined elsewhere. Nothing is linked or
    mapped for a model without weights. A model that `allocates` has an entry that returns whether it could.
    """
    parameters = 2 + len(signature.inputs) + len(signature.outputs)
    host.declare(ENTRY, Prototype(i1 if allocates else VOID, (PTR,) * parameters))
    define_description(host, signature)
    if weights is not None and signature.weights_bytes:
        define_map_weights(host, signature, weights)
    elif signature.weights_bytes:
        host.external(WEIGHTS)
    _define_create(host, signature, weights)
    _define_run(host, signature, allocates)
    _define_destroy(host, signature)

    f = host.function("occamy_error", PTR, [PTR])
    (model,) = f.arguments
    with f.if_(model == NULL):
        f.return_(f.address(LAST_ERROR))
    f.return_(f.load(model + _ERROR, PTR))


def define_description(host: HostModule, signature: Signature) -> None:
    """Define the functions that describe the model, and the memory of the last error."""
    host.zeros(LAST_ERROR, _MESSAGE_BYTES, thread_local=True)

    f = host.function("occamy_pool_bytes", i64, [])
    f.return_(signature.pool_bytes)

    f = host.function("occamy_signature", PTR, [])
    f.return_(signature.to_json())


def fail(f: FunctionBuilder, code: Code, message: str, *arguments: Operand) -> None:
    """Return `code` from a function without a handle; `message` is a printf format."""
    f.call("snprintf", f.address(LAST_ERROR), _MESSAGE_BYTES, message, *arguments)
    f.return_(code)


def check_create(f: FunctionBuilder, signature: Signature) -> None:
    """Forget an earlier failure, check the arguments of `occamy_create`, and set `*model` to null."""
    alignment = signature.pool_alignment
    result, pool = f.arguments
    f.store(0, f.address(LAST_ERROR), i8)
    with f.if_(result == NULL):
        fail(f, Code.BAD_ARGUMENT, "occamy_create: the address for the model is a null pointer")
    f.store(NULL, result)
    with f.if_((pool.address() & (alignment - 1)) != 0):
        fail(f, Code.BAD_ARGUMENT, f"occamy_create: the pool must be aligned to {alignment} bytes")


def _define_create(host: HostModule, signature: Signature, weights: WeightsFile | None) -> None:
    """`int occamy_create(void **model, void *pool_or_null)`."""
    f = host.function("occamy_create", i32, [PTR, PTR])
    result, pool = f.arguments
    check_create(f, signature)
    model = f.call("malloc", _HANDLE_BYTES)
    with f.if_(model == NULL):
        fail(f, Code.OUT_OF_MEMORY, "occamy_create: out of memory for the model handle")
    f.store(pool, model + _POOL)
    f.store(NULL, model + _OWNED_POOL)
    f.store(NULL, model + _WEIGHTS)
    f.store(NULL, model + _MAPPING)
    f.store("", model + _ERROR)
    if signature.pool_bytes:
        with f.if_(pool == NULL):
            status = f.call(
                "posix_memalign", model + _OWNED_POOL, signature.pool_alignment, signature.pool_bytes
            )
            with f.if_(status != 0):
                f.call("free", model)
                needed = f"occamy_create: out of memory for the pool of {signature.pool_bytes} bytes"
                fail(f, Code.OUT_OF_MEMORY, needed)
            f.store(f.load(model + _OWNED_POOL, PTR), model + _POOL)
    if signature.weights_bytes:
        if weights is None:
            f.store(f.address(WEIGHTS), model + _WEIGHTS)
        else:
            code = f.call("occamy_map_weights", model + _MAPPING)
            with f.if_(code != 0):
                f.call("free", f.load(model + _OWNED_POOL, PTR))
                f.call("free", model)
                f.return_(code)
            f.store(f.load(model + _MAPPING, PTR), model + _WEIGHTS)
    f.store(model, result)
    f.return_(Code.OK)


def define_map_weights(host: HostModule, signature: Signature, weights: WeightsFile) -> None:
    """`static int occamy_map_weights(void **mapping)`: map the file, reading no more than its trailer."""
    file_bytes = signature.weights_bytes + TRAILER_BYTES
    f = host.function("occamy_map_weights", i32, [PTR], internal=True)
    (result,) = f.arguments
    path = f.array(_PATH_BYTES)
    if weights.beside_program:
        artefact = f.array(_PATH_BYTES)
        length = f.call("readlink", "/proc/self/exe", artefact, _PATH_BYTES - 1)
        with f.if_(length.is_negative()):
            fail(f, Code.WEIGHTS, "the path of the running program is unknown: /proc/self/exe: %m")
        f.store(0, artefact + length, i8)
    else:
        info = f.array(32)  # Dl_info, whose first field is the path of the library
        f.call("dladdr", f.address("occamy_create"), info)
        artefact = f.load(info, PTR)
    f.call("snprintf", path, _PATH_BYTES, "%s.weights", artefact)

    descriptor = f.call("open", path, _O_RDONLY_CLOEXEC)
    with f.if_(descriptor.is_negative()):
        fail(f, Code.WEIGHTS, "weights file '%s': %m", path)
    size = f.call("lseek", descriptor, 0, _SEEK_END)
    with f.if_(size != file_bytes):
        f.call("close", descriptor)
        fail(f, Code.WEIGHTS, f"weights file '%s' has %ld bytes, expected {file_bytes}", path, size)
    mapping = f.call("mmap", NULL, file_bytes, _PROT_READ, _MAP_PRIVATE, descriptor, 0)
    f.call("close", descriptor)
    with f.if_(mapping.address() == -1):
        fail(f, Code.WEIGHTS, "weights file '%s' cannot be mapped: %m", path)
    trailer = f.constant(weights.trailer)
    with f.if_(f.call("memcmp", mapping + signature.weights_bytes, trailer, TRAILER_BYTES) != 0):
        f.call("munmap", mapping, file_bytes)
        fail(f, Code.WEIGHTS, "weights file '%s' belongs to another model", path)
    f.store(mapping, result)
    f.return_(Code.OK)


def _define_run(host: HostModule, signature: Signature, allocates: bool) -> None:
    """`int occamy_run(void *model, const void *const *inputs, void *const *outputs)`."""
    f = host.function("occamy_run", i32, [PTR, PTR, PTR])
    model, inputs, outputs = f.arguments
    with f.if_(model == NULL):
        fail(f, Code.BAD_ARGUMENT, "occamy_run: the model is a null pointer")

    def refuse(message: str, code: Code = Code.BAD_ARGUMENT) -> None:
        f.store(message, model + _ERROR)
        f.return_(code)

    values = [
        *load_tensors(f, inputs, "input", signature.inputs, refuse),
        *load_tensors(f, outputs, "output", signature.outputs, refuse),
    ]
    good = f.call(ENTRY, f.load(model + _POOL, PTR), f.load(model + _WEIGHTS, PTR), *values)
    if allocates:
        with f.if_(good == 0):
            refuse(OUT_OF_MEMORY, Code.OUT_OF_MEMORY)
    f.store("", model + _ERROR)
    f.return_(Code.OK)


def load_tensors(
    f: FunctionBuilder,
    array: Value,
    kind: str,
    specs: tuple[TensorSpec, ...],
    refuse: Callable[[str], None],
) -> list[Value]:
    """Read the tensor pointers of `array`; `refuse`, with a message, where one is null that has bytes behind it."""

    def refuse_null(pointer: Value, what: str) -> None:
        with f.if_(pointer == NULL):
            refuse(f"occamy_run: {what} is a null pointer")

    if specs:
        refuse_null(array, f"the array of {kind}s")
    pointers: list[Value] = []
    for index, spec in enumerate(specs):
        pointer = f.load(array + 8 * index, PTR)
        if spec.bytes:
            refuse_null(pointer, f"{kind} {index} ('{spec.name}')")
        pointers.append(pointer)
    return pointers


def _define_destroy(host: HostModule, signature: Signature) -> None:
    """`void occamy_destroy(void *model)`."""
    f = host.function("occamy_destroy", VOID, [PTR])
    (model,) = f.arguments
    with f.if_(model == NULL):
        f.return_()
    mapping = f.load(model + _MAPPING, PTR)
    with f.if_(mapping != NULL):
        f.call("munmap", mapping, signature.weights_bytes + TRAILER_BYTES)
    f.call("free", f.load(model + _OWNED_POOL, PTR))
    f.call("free", model)
    f.return_()


_HEADER = """\
/* Interface of a model compiled by occamy-xdsl {version} for {target}.
 *
 * Every tensor is contiguous, row-major and aligned to its element size; outputs must not overlap inputs or
 * each other. Calls on different models may run in parallel, calls on one model may not.{device} */
#ifndef OCCAMY_MODEL_H
#define OCCAMY_MODEL_H

#include <stddef.h>

#define OCCAMY_POOL_BYTES {pool_bytes}u
#define OCCAMY_POOL_ALIGNMENT {pool_alignment}u
#define OCCAMY_WEIGHTS_BYTES {weights_bytes}u

{tensors}

/* Returned by occamy_create and occamy_run. */
enum {{
{codes}
}};

#ifdef __cplusplus
extern "C" {{
#endif

/* Bytes of the memory pool that a model needs. */
size_t occamy_pool_bytes(void);

/* The signature as JSON: inputs, outputs (name, dtype, shape), target, version and bytes. */
const char *occamy_signature(void);

/* Create a model that uses the OCCAMY_POOL_BYTES bytes at pool, or a pool of its own if that is null.
 * On failure *model is null and occamy_error(NULL) says why, in the thread that called. */
int occamy_create(void **model, void *pool);

/* Read the input tensors, write the output tensors, both in the order above. Never allocates. */
int occamy_run(void *model, const void *const *inputs, void *const *outputs);

/* Free the model and the pool it owns; null is ignored. */
void occamy_destroy(void *model);

/* Why the last call on the model failed; with null, why the last call in this thread that was given no model
 * failed. Empty after a success. */
const char *occamy_error(void *model);
{functions}
#ifdef __cplusplus
}}
#endif

#endif
"""


_ON_DEVICE = """
 *
 * The pool is memory of the GPU, tensors are memory of the host. A model allocates device memory once, when it
 * is created: the pool unless it is given, copies of inputs and outputs, and the weights. A GPU that has the
 * host's memory reads weights in place, and inputs and outputs that it can reach: all, or registered ones."""

_DEVICE_FUNCTIONS = """
/* The cudaStream_t on which the model runs. */
void *occamy_stream(void *model);

/* Put the model on its stream and return: from the inputs of the last run to outputs that stay on the device,
 * or in the caller's memory where the device uses that in place; it must still be there.
 * Neither waits nor allocates, so that the caller may capture it. */
int occamy_enqueue(void *model);

/* Make a CUDA graph of the model, which every later run launches. */
int occamy_capture(void *model);
"""


def exports(signature: Signature) -> tuple[str, ...]:
    """The public functions of a model."""
    return (*EXPORTS, *(DEVICE_EXPORTS if signature.is_cuda else ()))


def header(signature: Signature) -> str:
    """The C and C++ header of a compiled model."""
    tensors = [f"#define OCCAMY_INPUTS {len(signature.inputs)}"]
    tensors += _tensor_constants("INPUT", signature.inputs)
    tensors += [f"#define OCCAMY_OUTPUTS {len(signature.outputs)}"]
    tensors += _tensor_constants("OUTPUT", signature.outputs)
    codes = [f"    OCCAMY_{code.name} = {code.value}" for code in Code]
    comments = [f" /* {CODE_MEANINGS[code]} */" for code in Code]
    separators = [","] * (len(codes) - 1) + [""]
    return _HEADER.format(
        version=signature.version,
        target=signature.target,
        device=_ON_DEVICE if signature.is_cuda else "",
        functions=_DEVICE_FUNCTIONS if signature.is_cuda else "",
        pool_bytes=signature.pool_bytes,
        pool_alignment=signature.pool_alignment,
        weights_bytes=signature.weights_bytes,
        tensors="\n".join(tensors),
        codes="\n".join(map("".join, zip(codes, separators, comments, strict=True))),
    )


def _tensor_constants(kind: str, specs: tuple[TensorSpec, ...]) -> list[str]:
    lines: list[str] = []
    for index, spec in enumerate(specs):
        prefix = f"#define OCCAMY_{kind}_{index}"
        # C has no empty initialiser before C23, so the shape of a scalar is one ignored zero.
        shape = ", ".join(map(str, spec.shape)) or "0"
        lines += [
            f"{prefix}_NAME {c_string(spec.name)}",
            f'{prefix}_DTYPE "{spec.dtype}"',
            f"{prefix}_RANK {len(spec.shape)}",
            f"{prefix}_SHAPE {{{shape}}}",
            f"{prefix}_BYTES {spec.bytes}u",
        ]
    return lines


def c_string(text: str) -> str:
    """`text` as a C string literal of printable ASCII: other bytes, quotes and trigraphs as octal escapes."""
    plain = set(range(0x20, 0x7F)) - set(b'"\\?')
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode()) + '"'


def write_header(signature: Signature, path: Path) -> None:
    """Write the C header of a model; raises UsageError."""
    with replacing(path) as temporary:
        temporary.write_text(header(signature))
