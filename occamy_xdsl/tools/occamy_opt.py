"""`occamy-opt`: xdsl-opt with the project's dialects, passes and ONNX files, and errors a user can read."""

import argparse
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import IO, Any, cast

from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, DenseResourceAttr, ModuleOp, StringAttr
from xdsl.utils.arg_spec import parse_spec
from xdsl.utils.exceptions import ArgSpecParseError, DiagnosticException, ParseError
from xdsl.xdsl_opt_main import xDSLOptMain

from occamy_xdsl.dialects import get_all_dialects
from occamy_xdsl.errors import InvalidInputError, OccamyError
from occamy_xdsl.files import refuse_overwriting, replacing
from occamy_xdsl.pipelines import get_all_passes
from occamy_xdsl.signals import exit_on_signals
from occamy_xdsl.tools.output import open_closed_streams, print_anything
from occamy_xdsl.tools.universe import get_onnx_frontend


class _Versions(str):
    """What `--version` prints: found out when xDSL formats it, as asking LLVM takes longer than most runs."""

    def format(self, *_: object, **__: object) -> str:
        from occamy_xdsl.tools.commands.version import version_table

        return version_table()


class OccamyOptMain(xDSLOptMain):
    """The driver. What is registered here is left alone where xDSL already found it by entry point."""

    version_format = _Versions()
    output: Path | None = None
    """The file that the result goes to; None for standard output."""

    def register_all_dialects(self) -> None:
        """xDSL's dialects and ours."""
        super().register_all_dialects()
        for name, factory in get_all_dialects().items():
            if name not in self.ctx.registered_dialect_names:
                self.ctx.register_dialect(name, factory)

    def register_all_passes(self) -> None:
        """xDSL's passes and ours."""
        super().register_all_passes()
        for name, factory in get_all_passes().items():
            self.register_pass(name, factory)

    def register_all_frontends(self) -> None:
        """xDSL's frontends and ours."""
        super().register_all_frontends()
        self.available_frontends["onnx"] = get_onnx_frontend

    def register_all_arguments(self, arg_parser: argparse.ArgumentParser) -> None:
        """xDSL's arguments and ours."""
        super().register_all_arguments(arg_parser)
        arg_parser.add_argument(
            "--shape", action="append", default=[], metavar="NAME:1x3x8x8", help="shape of an ONNX input"
        )
        arg_parser.add_argument(
            "--dim", action="append", default=[], metavar="NAME=4", help="value of a symbolic ONNX dimension"
        )
        arg_parser.add_argument(
            "--allow-custom", action="store_true", help="import operators unknown to ONNX as onnx.Custom"
        )
        arg_parser.add_argument(
            "--weights", type=Path, metavar="FILE", help="attach weights that --save-weights wrote"
        )
        arg_parser.add_argument(
            "--save-weights", type=Path, metavar="FILE", help="write the weights that the result refers to"
        )
        arg_parser.add_argument(
            "--elide-constants",
            type=int,
            metavar="N",
            help="print dense constants of more than N elements as ...",
        )
        arg_parser.add_argument(
            "--print-liveness", action="store_true", help="print when each buffer is live before the result"
        )
        arg_parser.add_argument(
            "--print-plan", action="store_true", help="print the map of the pool before the result"
        )

    def run(self) -> None:
        """As xDSL, but the output is complete or absent, and may be the input file; `-` is standard output."""
        if self.args.output_file in (None, "-"):
            self.output = self.args.output_file = None
            super().run()
            return
        self.output = Path(self.args.output_file)
        with replacing(self.output) as temporary:
            self.args.output_file = str(temporary)
            super().run()

    def setup_pipeline(self) -> None:
        """As xDSL, with an error of our own for unknown passes and options."""
        try:
            super().setup_pipeline()
        except ValueError as e:
            raise InvalidInputError(f"-p: {e}") from None

    def get_input_stream(self) -> tuple[IO[bytes], str]:
        """As xDSL, but a frontend that was asked for makes up for a name without an extension that says so."""
        stream, extension = super().get_input_stream()
        if self.args.frontend and extension not in self.available_frontends:
            extension = parse_spec(self.args.frontend).name
        return stream, extension

    def prepare_input(self) -> tuple[list[tuple[IO[bytes], int]], str]:
        """As xDSL, with an error of our own for unknown file types; `-` is standard input."""
        if self.args.input_file == "-":
            self.args.input_file = None
        try:
            return super().prepare_input()
        except ValueError as e:
            raise InvalidInputError(f"{self.args.input_file}: {e}") from None
        except OSError as e:
            raise InvalidInputError(message(e)) from None

    def parse_chunk(self, chunk: IO[bytes], file_extension: str, start_offset: int = 0) -> ModuleOp | None:
        """The module of one chunk, its weights attached."""
        spec = parse_spec(self.args.frontend or file_extension)
        self.check_options(spec.name == "onnx")
        if spec.name == "onnx":
            from occamy_xdsl.tools.onnx_frontend import OnnxFrontend

            frontend = OnnxFrontend.from_spec(spec)
            frontend = replace(
                frontend,
                shape=(*frontend.shape, *self.args.shape),
                dim=(*frontend.dim, *self.args.dim),
                allow_custom=frontend.allow_custom or self.args.allow_custom,
            )
            return frontend.parse(self.ctx, chunk, self.get_input_name())
        try:
            module = super().parse_chunk(chunk, file_extension, start_offset)
        except UnicodeDecodeError:
            raise InvalidInputError(f"{self.get_input_name()}: not text in UTF-8") from None
        if module is not None and self.args.weights is not None:
            from occamy_xdsl.dialects.weights import WeightsFile

            WeightsFile.load(self.args.weights).attach(module)
        return module

    def check_options(self, is_onnx: bool) -> None:
        """Raises InvalidInputError for options without effect on the input, UsageError where it would be lost."""
        given = (
            (("--weights",) if self.args.weights is not None else ())
            if is_onnx
            else tuple(
                f"--{name.replace('_', '-')}"
                for name in ("shape", "dim", "allow_custom")
                if getattr(self.args, name)
            )
        )
        if given:
            kind = "an ONNX model" if is_onnx else "no ONNX model"
            raise InvalidInputError(
                f"{', '.join(given)}: no effect on {self.get_input_name()}, which is {kind}"
            )
        written = [path for path in (self.output, self.args.save_weights) if path is not None]
        if len(written) > 1:
            refuse_overwriting(written[:1], written[1:])
        if self.args.input_file is None:
            return
        if is_onnx:
            from occamy_xdsl.importer import ModelSource

            refuse_overwriting(written, ModelSource(self.args.input_file).files())
        elif self.args.save_weights is not None:
            refuse_overwriting([self.args.save_weights], [Path(self.args.input_file)])

    def output_resulting_program(self, prog: ModuleOp) -> str:
        """The text of the result after the listings; its weights go to the file that was asked for."""
        if self.args.save_weights is not None:
            from occamy_xdsl.dialects.weights import WeightsFile, references

            WeightsFile.save(self.args.save_weights, references(prog))
        if self.args.elide_constants is not None:
            self.ctx.get_dialect("builtin")  # the printer asks the loaded dialects for the elided resource
            elide_constants(prog, self.args.elide_constants)
        listings = ""
        if self.args.print_liveness or self.args.print_plan:
            from occamy_xdsl.report.listing import liveness_listing, plan_listing

            listings += liveness_listing(prog) if self.args.print_liveness else ""
            listings += plan_listing(prog) if self.args.print_plan else ""
        return listings + super().output_resulting_program(prog)


def elide_constants(module: ModuleOp, limit: int) -> None:
    """Replaces dense constants of more than `limit` elements by MLIR's `dense_resource<__elided__>`."""
    for op in module.walk():
        for attributes in (op.properties, op.attributes):
            for name, attr in attributes.items():
                if isinstance(attr, DenseIntOrFPElementsAttr):
                    dense = cast("DenseIntOrFPElementsAttr[Any]", attr)
                    if prod(dense.get_shape()) > limit:
                        attributes[name] = DenseResourceAttr(StringAttr("__elided__"), dense.type)


def message(error: BaseException) -> str:
    """The fact that an error states, without the program that xDSL prints around it."""
    while isinstance(error, DiagnosticException) and isinstance(error.__cause__, DiagnosticException):
        error = error.__cause__
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """One line on stderr, without the place in our code that noticed."""
    print(f"warning: {message}", file=sys.stderr)


def main(args: Sequence[str] | None = None) -> None:
    """Exits 1 with one `error:` line a fact for a fault of the input; a traceback is a fault of ours."""
    if args is None:
        open_closed_streams()
        print_anything()
        with exit_on_signals():
            main(sys.argv[1:])
        return
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show_warning
            try:
                OccamyOptMain("Occamy's modular optimizer driver", args).run()
            finally:
                sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OccamyError as e:
        sys.exit("\n".join(f"error: {line}" for line in str(e).splitlines()))
    except MemoryError as e:
        sys.exit(f"error: out of memory: {e}")
    except (ArgSpecParseError, DiagnosticException, ParseError, OSError) as e:
        if isinstance(e, OSError) and e.filename is None:
            # What is buffered must go somewhere when Python closes the stream.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(f"error: {message(e)}")


if __name__ == "__main__":
    main()
