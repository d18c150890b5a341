"""Vector forms of the math dialect's functions on f32, with the special values of libm."""

from collections.abc import Callable, Mapping

from xdsl.ir import SSAValue

EXPANSIONS: Mapping[str, Callable[..., SSAValue]] = {}
"""Builder of each op that is expanded, by the op's name; the others become a call to libm for each lane."""
