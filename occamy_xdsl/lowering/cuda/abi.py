"""
The C interface of a model compiled for a GPU: the functions of the CPU's, over those of `cuda.program`.

The pool that `occamy_create` may be given is device memory. Without one the model allocates pool, copies of
inputs and outputs, and weights together, otherwise the last two. Inputs and outputs are host memory.
"""

from xdsl.dialects.builtin import i32, i64

from occamy_xdsl.lowering.cpu import abi
from occamy_xdsl.lowering.cpu.abi import WeightsFile
from occamy_xdsl.lowering.cuda import api
from occamy_xdsl.lowering.cuda.program import (
    ABANDON,
    ERROR,
    LAUNCH,
    MAIN,
    MAKE_GRAPH,
    MESSAGE_BYTES,
    SETUP,
    SOURCE,
    STREAM,
    TEARDOWN,
)
from occamy_xdsl.lowering.host import NULL, PTR, VOID, HostModule, Prototype
from occamy_xdsl.lowering.interface import Code
from occamy_xdsl.lowering.signature import Signature


def define_interface(
    host: HostModule,
    signature: Signature,
    model_bytes: int,
    weights: WeightsFile | None,
) -> None:
    """
    Define the functions of `abi.exports` in `host`, for model handles of `model_bytes` bytes.

    With `weights` None they are embedded: the symbol `abi.WEIGHTS` is defined elsewhere. Their file stays mapped as
    long as the model lives where the device reads it.
    """
    host.declare(SETUP, Prototype(i32, (PTR, PTR, PTR)))
    host.declare(MAIN, Prototype(i32, (PTR, PTR, PTR)))
    host.declare(ABANDON, Prototype(VOID, (PTR,)))
    host.declare(TEARDOWN, Prototype(VOID, (PTR,)))
    host.declare(LAUNCH, Prototype(i32, (PTR,)))
    host.declare(MAKE_GRAPH, Prototype(i32, (PTR,)))
    api.declare(host, "cudaStreamSynchronize")
    abi.define_description(host, signature)
    if weights is not None and signature.weights_bytes:
        abi.define_map_weights(host, signature, weights)
    elif signature.weights_bytes:
        host.external(abi.WEIGHTS)
    _define_create(host, signature, model_bytes, weights)
    _define_run(host, signature)

    f = host.function("occamy_destroy", VOID, [PTR])
    (model,) = f.arguments
    with f.if_(model != NULL):
        f.call(TEARDOWN, model)
        if weights is not None and signature.weights_bytes:
            source = f.load(model + SOURCE, PTR)
            with f.if_(source != NULL):
                f.call("munmap", source, signature.weights_bytes + abi.TRAILER_BYTES)
        f.call("free", model)
    f.return_()

    f = host.function("occamy_error", PTR, [PTR])
    (model,) = f.arguments
    with f.if_(model == NULL):
        f.return_(f.address(abi.LAST_ERROR))
    f.return_(model + ERROR)

    f = host.function("occamy_stream", PTR, [PTR])
    f.return_(f.load(f.arguments[0] + STREAM, PTR))
    _define_call(host, "occamy_enqueue", LAUNCH)
    _define_call(host, "occamy_capture", MAKE_GRAPH)


def _define_create(
    host: HostModule, signature: Signature, model_bytes: int, weights: WeightsFile | None
) -> None:
    """`int occamy_create(void **model, void *pool_or_null)`."""
    f = host.function("occamy_create", i32, [PTR, PTR])
    result, pool = f.arguments
    abi.check_create(f, signature)
    model = f.call("calloc", 1, model_bytes)
    with f.if_(model == NULL):
        abi.fail(f, Code.OUT_OF_MEMORY, "occamy_create: out of memory for the model handle")
    source = f.variable(NULL, PTR)
    if signature.weights_bytes:
        if weights is None:
            source.set(f.address(abi.WEIGHTS))
        else:
            code = f.call("occamy_map_weights", source.pointer)
            with f.if_(code != 0):
                f.call("free", model)
                f.return_(code)
    code = f.call(SETUP, model, pool, source.get())
    is_mapped = weights is not None and signature.weights_bytes > 0

    def unmap() -> None:
        f.call("munmap", source.get(), signature.weights_bytes + abi.TRAILER_BYTES)

    with f.if_(code != 0):
        f.call("snprintf", f.address(abi.LAST_ERROR), MESSAGE_BYTES, "%s", model + ERROR)
        f.call(TEARDOWN, model)
        if is_mapped:
            unmap()
        f.call("free", model)
        f.return_(code)
    if is_mapped:
        with f.if_(f.load(model + SOURCE, PTR) == NULL):
            unmap()
    f.store(model, result)
    f.return_(Code.OK)


def _define_run(host: HostModule, signature: Signature) -> None:
    """`int occamy_run(void *model, const void *const *inputs, void *const *outputs)`."""
    f = host.function("occamy_run", i32, [PTR, PTR, PTR])
    model, inputs, outputs = f.arguments
    with f.if_(model == NULL):
        abi.fail(f, Code.BAD_ARGUMENT, "occamy_run: the model is a null pointer")

    def refuse(message: str) -> None:
        f.call("snprintf", model + ERROR, MESSAGE_BYTES, "%s", message)
        f.return_(Code.BAD_ARGUMENT)

    abi.load_tensors(f, inputs, "input", signature.inputs, refuse)
    abi.load_tensors(f, outputs, "output", signature.outputs, refuse)
    code = f.call(MAIN, model, inputs, outputs)
    with f.if_(code != 0):
        # What was enqueued still uses the caller's memory.
        f.call(ABANDON, model)
        f.return_(code)
    f.store(0, model + ERROR, i64)
    f.return_(Code.OK)


def _define_call(host: HostModule, name: str, function: str) -> None:
    """`int name(void *model)`: what `function` does."""
    f = host.function(name, i32, [PTR])
    (model,) = f.arguments
    with f.if_(model == NULL):
        abi.fail(f, Code.BAD_ARGUMENT, f"{name}: the model is a null pointer")
    code = f.call(function, model)
    with f.if_(code != 0):
        f.return_(code)
    f.store(0, model + ERROR, i64)
    f.return_(Code.OK)
