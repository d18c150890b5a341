"""`occamy tune`: refused until kernels can be tuned."""

from occamy_xdsl.errors import UsageError
from occamy_xdsl.tools.options import CompileOptions, ModelArgument, takes_compile_options


@takes_compile_options
def tune(model: ModelArgument, options: CompileOptions) -> None:
    """Refine the choice of kernels by measuring them (not available yet)."""
    raise UsageError("tune: not available yet, kernels are chosen by shape alone")
