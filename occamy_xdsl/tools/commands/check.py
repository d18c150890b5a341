"""`occamy check`: results against another implementation."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from occamy_xdsl.report.names import printable
from occamy_xdsl.tools.options import CompileOptions, ModelArgument, takes_compile_options
from occamy_xdsl.tools.output import note, progress

if TYPE_CHECKING:
    from occamy_xdsl.compiler import Compilation
    from occamy_xdsl.runtime.executable import Array


@takes_compile_options
def check(
    model: ModelArgument,
    options: CompileOptions,
    against: Annotated[
        Literal["onnxruntime", "reference"],
        typer.Option(help="ONNX Runtime, or the program before fusion in numpy."),
    ] = "onnxruntime",
    each_node: Annotated[
        bool, typer.Option("--each-node", help="Find the first node whose result differs.")
    ] = False,
    input: Annotated[
        list[str], typer.Option(metavar="NAME=@x.npy", help="Value of an input, as for run; may be repeated.")
    ] = [],  # noqa: B006  # typer copies it
    seed: Annotated[int, typer.Option(metavar="S", min=0, help="Seed of the other inputs.")] = 0,
    rtol: Annotated[float | None, typer.Option(metavar="R", min=0, help="Relative tolerance.")] = None,
    atol: Annotated[float | None, typer.Option(metavar="A", min=0, help="Absolute tolerance.")] = None,
) -> None:
    """Compare a model's results with another implementation; exit 1 where they differ."""
    from occamy_xdsl.compiler import compile_to_memory
    from occamy_xdsl.runtime import bind
    from occamy_xdsl.tools.reference import reference

    tolerances = (bind.RTOL if rtol is None else rtol, bind.ATOL if atol is None else atol)
    with progress(f"compiling {model}"):
        compilation = options.compilation(model)
        executable = compile_to_memory(compilation)
    specs = executable.signature.inputs
    inputs = bind.parse_inputs(input, specs)
    for position, spec in enumerate(specs):
        if spec.name not in inputs:
            inputs[spec.name] = bind.random_tensor(spec, seed, position)
    if each_node and (culprit := first_difference(compilation, against, inputs, tolerances)):
        print(printable(culprit))
        raise typer.Exit(1)
    want = reference(against, compilation)(inputs)
    comparisons = [
        bind.compare(name, value, want[name], *tolerances) for name, value in executable.run(inputs).items()
    ]
    for comparison in comparisons:
        print(printable(str(comparison)))
    if not all(comparison.equal for comparison in comparisons):
        if each_node:
            note("no node differs on its own: see whether --no-fuse, --no-inplace or --no-reuse changes that")
        raise typer.Exit(1)


def first_difference(
    compilation: "Compilation",
    against: str,
    inputs: Mapping[str, "Array"],
    tolerances: tuple[float, float],
) -> str:
    """
    The first node whose result differs, in words; empty where none does.

    Both implementations run the model with all results of nodes as outputs, so nothing is fused away.
    """
    from occamy_xdsl.compiler import Compilation, compile_to_memory
    from occamy_xdsl.runtime import bind
    from occamy_xdsl.tools.reference import reference, with_all_values

    proto, nodes = with_all_values(compilation.model)
    exposed = Compilation(replace(compilation.model, source=proto), compilation.options)
    want: dict[str, Any] = reference(against, exposed)(inputs)
    got = compile_to_memory(exposed).run(inputs)
    compared = 0
    for node, operator, results in nodes:
        for name in results:
            comparison = bind.compare(name, got[name], want[name], *tolerances)
            if not comparison.equal:
                return f"node '{node}' ({operator}): {comparison}"
            compared += 1
    note(f"each node: {compared} values of {len(nodes)} nodes are equal")
    return ""
