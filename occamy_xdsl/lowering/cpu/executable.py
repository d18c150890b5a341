"""The `main` of a stand-alone executable: reads .npy files, runs the model once and writes .npy files."""

import io

import numpy as np
from xdsl.dialects.builtin import i8, i32, i64

from occamy_xdsl.lowering.host import (
    NULL,
    PTR,
    VOID,
    FunctionBuilder,
    HostModule,
    Operand,
    Prototype,
    Value,
)
from occamy_xdsl.lowering.interface import Code
from occamy_xdsl.lowering.signature import Signature, TensorSpec, file_names

_STDERR = 2
_PATH_BYTES = 4096
_MAX_HEADER_BYTES = 65536
"""Bytes of the longest .npy header that is read; numpy's are 64 to 128 for tensors of plain element types."""

USAGE, WRONG_INPUT, OUT_OF_MEMORY, FAILED_WRITE = 2, 3, 4, 70
NO_DEVICE = WRONG_INPUT
"""Exit codes of the program; as the command line's, 3 is also that there is no GPU where one is needed."""

_HELP = """\
Runs a compiled model once.

inputs, each a .npy file in C order, in this order:
{inputs}
outputs, written to DIR:
{outputs}
options:
  -o DIR        folder for the outputs, created if needed (default: the current folder)
  --signature   print the signature of the model as JSON
  --help        print this text

exit codes: 0 success, 2 bad usage, 3 wrong input or weights file{or_no_gpu}, 4 out of memory, 70 output not written"""


def define_main(host: HostModule, signature: Signature, loader: str | None = None) -> None:
    """
    Define `main` in a module that has the functions of the C interface.

    `int loader(void)`, defined elsewhere, is called before them and says what is wrong where it does not return 0.
    """
    _define_normalise(host)
    _define_read_npy(host)
    _define_write_npy(host)
    _define_make_folders(host)
    _define_usage(host, signature)

    f = host.function("main", i32, [i32, PTR])
    argument_count, arguments = f.arguments
    count = argument_count.extended()
    paths = f.array(8 * max(1, len(signature.inputs)))
    folder, given = f.variable(".", PTR), f.variable(0)
    position = f.variable(1)
    with f.while_(lambda: position.get() < count):
        argument = f.load(arguments + (position.get() << 3), PTR)
        position.set(position.get() + 1)
        with f.if_((f.call("strcmp", argument, "--help") == 0) | (f.call("strcmp", argument, "-h") == 0)):
            f.call("occamy_usage", 1, arguments)
            f.call("puts", _help(signature))
            f.return_(0)
        with f.if_(f.call("strcmp", argument, "--signature") == 0):
            f.call("puts", f.call("occamy_signature"))
            f.return_(0)
        is_folder = f.call("strcmp", argument, "-o") == 0
        with f.if_(is_folder):
            with f.if_(position.get() == count):
                _refuse_usage(f, arguments, "-o needs a folder")
            folder.set(f.load(arguments + (position.get() << 3), PTR))
            position.set(position.get() + 1)
            with f.if_(f.load(folder.get(), i8) == 0):
                _refuse_usage(f, arguments, "-o needs a folder")
        with f.if_(is_folder == 0):
            with f.if_(f.load(argument, i8) == ord("-")):
                _refuse_usage(f, arguments, "unknown option '%s'", argument)
            with f.if_(given.get() == len(signature.inputs)):
                _refuse_usage(f, arguments, "too many inputs: '%s'", argument)
            f.store(argument, paths + (given.get() << 3))
            given.set(given.get() + 1)
    for index, spec in enumerate(signature.inputs):
        with f.if_(given.get() == index):
            _refuse_usage(f, arguments, "input %s %s is missing", f"'{spec.name}'", str(spec))

    if loader is not None:
        host.declare(loader, Prototype(i32, ()))
        with f.if_(f.call(loader) != 0):
            f.return_(NO_DEVICE)
    model = f.array(8)
    code = f.call("occamy_create", model, NULL)
    with f.if_(code != 0):
        f.call("dprintf", _STDERR, "%s\n", f.call("occamy_error", NULL))
        with f.if_(code == Code.OUT_OF_MEMORY):
            f.return_(OUT_OF_MEMORY)
        f.return_(WRONG_INPUT)

    inputs = f.array(8 * max(1, len(signature.inputs)))
    outputs = f.array(8 * max(1, len(signature.outputs)))
    for index, spec in enumerate(signature.inputs):
        _allocate(f, inputs + 8 * index, spec)
        path, data = f.load(paths + 8 * index, PTR), f.load(inputs + 8 * index, PTR)
        _check(f, "occamy_read_npy", path, spec.name, *_header_fields(spec), data, spec.bytes)
    for index, spec in enumerate(signature.outputs):
        _allocate(f, outputs + 8 * index, spec)

    handle = f.load(model, PTR)
    code = f.call("occamy_run", handle, inputs, outputs)
    with f.if_(code != 0):
        f.call("dprintf", _STDERR, "%s\n", f.call("occamy_error", handle))
        with f.if_(code == Code.OUT_OF_MEMORY):
            f.return_(OUT_OF_MEMORY)
        f.return_(WRONG_INPUT)
    f.call("occamy_make_folders", folder.get())
    for index, (spec, file) in enumerate(zip(signature.outputs, file_names(signature.outputs), strict=True)):
        header, data = npy_header(spec), f.load(outputs + 8 * index, PTR)
        place = (folder.get(), file)
        _check(f, "occamy_write_npy", *place, f.constant(header), len(header), data, spec.bytes)
    f.call("occamy_destroy", handle)
    f.return_(0)


def npy_header(spec: TensorSpec) -> bytes:
    """What precedes the data in the .npy file of a tensor."""
    buffer = io.BytesIO()
    fields = {"descr": spec.element.npy, "fortran_order": False, "shape": spec.shape}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


def _header_fields(spec: TensorSpec) -> tuple[str, str, str]:
    """The three entries of a .npy header, written the way `occamy_normalise` leaves them."""
    order = "'fortran_order':False"
    return f"'descr':'{spec.element.npy}'", order, f"'shape':{spec.shape}".replace(" ", "")


def _help(signature: Signature) -> str:
    def rows(specs: tuple[TensorSpec, ...], files: list[str] | None = None) -> str:
        names = files or [spec.name for spec in specs]
        return "\n".join(f"  {name}  {spec}" for name, spec in zip(names, specs, strict=True))

    return _HELP.format(
        inputs=rows(signature.inputs) or "  none",
        outputs=rows(signature.outputs, file_names(signature.outputs)),
        or_no_gpu=" or no GPU" if signature.is_cuda else "",
    )


def _refuse_usage(f: FunctionBuilder, arguments: Value, message: str, *values: Operand) -> None:
    """Print a message and the usage, and return USAGE."""
    f.call("dprintf", _STDERR, f"{message}\n", *values)
    f.call("occamy_usage", _STDERR, arguments)
    f.return_(USAGE)


def _allocate(f: FunctionBuilder, address: Value, spec: TensorSpec) -> None:
    """Store at `address` a pointer to room for a tensor."""
    with f.if_(f.call("posix_memalign", address, 64, max(1, spec.bytes)) != 0):
        f.call("dprintf", _STDERR, "out of memory for %s\n", f"'{spec.name}' {spec}, {spec.bytes} bytes")
        f.return_(OUT_OF_MEMORY)


def _check(f: FunctionBuilder, name: str, *arguments: Operand) -> None:
    """Call a function and return its result unless that is zero."""
    code = f.call(name, *arguments)
    with f.if_(code != 0):
        f.return_(code)


def _define_usage(host: HostModule, signature: Signature) -> None:
    """`static void occamy_usage(int descriptor, char **argv)`."""
    f = host.function("occamy_usage", VOID, [i32, PTR], internal=True)
    descriptor, arguments = f.arguments
    program = f.variable(f.load(arguments, PTR), PTR)
    with f.if_(program.get() == NULL):
        program.set("model")
    inputs = " ".join(["INPUT.npy"] * len(signature.inputs)) if len(signature.inputs) < 4 else "INPUT.npy ..."
    f.call("dprintf", descriptor, f"usage: %s {inputs} [-o DIR] | --signature | --help\n", program.get())
    f.return_()


def _define_normalise(host: HostModule) -> None:
    """
    `static void occamy_normalise(char *text)`.

    Brings a .npy header to one spelling: no white space, single quotes, `?` for bytes beyond ASCII.
    """
    f = host.function("occamy_normalise", VOID, [PTR], internal=True)
    (text,) = f.arguments
    source, target = f.variable(text, PTR), f.variable(text, PTR)
    with f.while_(lambda: f.load(source.get(), i8) != 0):
        character = f.variable(f.load(source.get(), i8), i8)
        with f.if_(character.get() == ord('"')):
            character.set(ord("'"))
        with f.if_(character.get() > 0x7E):
            character.set(ord("?"))
        with f.if_(character.get() > ord(" ")):
            f.store(character.get(), target.get(), i8)
            target.set(target.get() + 1)
        source.set(source.get() + 1)
    f.store(0, target.get(), i8)
    f.return_()


def _define_read_npy(host: HostModule) -> None:
    """
    `static int occamy_read_npy(path, name, descr, order, shape, void *data, size_t bytes)`.

    Fills `data` from a .npy file of format version 1, 2 or 3 (numpy.lib.format) whose header has the three
    given entries; prints what is wrong and returns WRONG_INPUT otherwise.
    """
    f = host.function("occamy_read_npy", i32, [PTR, PTR, PTR, PTR, PTR, PTR, i64], internal=True)
    path, name, descr, order, shape, data, size = f.arguments

    def refuse(message: str, *values: Operand) -> None:
        f.call("dprintf", _STDERR, f"%s: input '%s': {message}\n", path, name, *values)
        f.return_(WRONG_INPUT)

    file = f.call("fopen", path, "rb")
    with f.if_(file == NULL):
        refuse("%m")
    prefix = f.array(16)
    with f.if_(f.call("fread", prefix, 1, 10, file) != 10):
        refuse("not a .npy file: shorter than its fixed part")
    with f.if_((f.load(prefix, i8) != 0x93) | (f.call("memcmp", prefix + 1, "NUMPY", 5) != 0)):
        refuse("not a .npy file: no magic number at its start")
    version = f.load(prefix + 6, i8).extended()
    with f.if_((version == 0) | (version > 3)):
        refuse("version %lu of the .npy format is unknown", version)

    def byte(index: int) -> Value:
        return f.load(prefix + index, i8).extended() << 8 * (index - 8)

    length = f.variable(byte(8) | byte(9))
    with f.if_(version > 1):
        with f.if_(f.call("fread", prefix + 10, 1, 2, file) != 2):
            refuse("the header is cut off")
        length.set(length.get() | byte(10) | byte(11))
    with f.if_(length.get() > _MAX_HEADER_BYTES):
        refuse("the header of %lu bytes is too long", length.get())
    header = f.array(_MAX_HEADER_BYTES + 1)
    with f.if_(f.call("fread", header, 1, length.get(), file) != length.get()):
        refuse("the header is cut off")
    f.store(0, header + length.get(), i8)
    f.call("occamy_normalise", header)
    for entry in (descr, order, shape):
        with f.if_(f.call("strstr", header, entry) == NULL):
            refuse("expected %s, got %.200s", entry, header)

    read = f.call("fread", data, 1, size, file)
    with f.if_(read != size):
        refuse("%lu bytes of data, expected %lu", read, size)
    with f.if_(f.call("fread", prefix, 1, 1, file) != 0):
        refuse("more than the expected %lu bytes of data", size)
    f.call("fclose", file)
    f.return_(0)


def _define_write_npy(host: HostModule) -> None:
    """`static int occamy_write_npy(folder, name, header, size_t header_bytes, data, size_t bytes)`."""
    f = host.function("occamy_write_npy", i32, [PTR, PTR, PTR, i64, PTR, i64], internal=True)
    folder, name, header, header_size, data, size = f.arguments
    path = f.array(_PATH_BYTES)
    length = f.call("snprintf", path, _PATH_BYTES, "%s/%s", folder, name)
    with f.if_(length > _PATH_BYTES - 1):
        f.call("dprintf", _STDERR, "%s: the path is too long\n", folder)
        f.return_(USAGE)
    file = f.call("fopen", path, "wb")
    with f.if_(file == NULL):
        f.call("dprintf", _STDERR, "%s: %m\n", path)
        f.return_(USAGE)
    written = f.call("fwrite", header, 1, header_size, file) + f.call("fwrite", data, 1, size, file)
    with f.if_((f.call("fclose", file) != 0) | (written != header_size + size)):
        f.call("dprintf", _STDERR, "%s: %m\n", path)
        f.return_(FAILED_WRITE)
    f.return_(0)


def _define_make_folders(host: HostModule) -> None:
    """
    `static void occamy_make_folders(char *path)`.

    Creates the folder and its parents. Errors show up when a file is opened in it, with the file's name.
    """
    f = host.function("occamy_make_folders", VOID, [PTR], internal=True)
    (path,) = f.arguments
    end = f.variable(path, PTR)
    with f.while_(lambda: f.load(end.get(), i8) != 0):
        with f.if_((f.load(end.get(), i8) == ord("/")) & (end.get() != path)):
            f.store(0, end.get(), i8)
            f.call("mkdir", path, 0o777)
            f.store(ord("/"), end.get(), i8)
        end.set(end.get() + 1)
    f.call("mkdir", path, 0o777)
    f.return_()
