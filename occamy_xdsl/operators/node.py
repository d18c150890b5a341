"""What a conversion rule sees of an ONNX node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from xdsl.dialects.builtin import NoneType
from xdsl.ir import Attribute, SSAValue

from occamy_xdsl.dialects.dnn import element_type_of, shape_of
from occamy_xdsl.operators.emitter import InvalidNodeError, UnsupportedNodeError, known_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from occamy_xdsl.dialects.onnx import OnnxOp


class ReportedNodeError(Exception):
    """The node cannot be converted because of other nodes, which are already reported."""


@dataclass(frozen=True)
class Node:
    """
    One ONNX node on its way to the dnn dialect.

    `operands` are its operands already converted: tensors of static shape, None where absent.
    """

    op: OnnxOp
    operands: tuple[SSAValue | None, ...]
    convert: Callable[[str, Sequence[SSAValue], bool], Sequence[SSAValue]]
    """What `subgraph` does."""

    def subgraph(
        self, name: str, arguments: Sequence[SSAValue] = (), *, repeats: bool = False
    ) -> Sequence[SSAValue]:
        """
        Converts the graph attribute `name` for `arguments` where the emitter writes now; returns its outputs.

        With `repeats`, what its values became is forgotten, since they become something else each time.
        """
        return self.convert(name, arguments, repeats)

    def refuse(self, reason: str) -> NoReturn:
        """Says that the node is not supported. Nodes are reported all at once."""
        raise UnsupportedNodeError(reason)

    def reject(self, fact: str) -> NoReturn:
        """Says that the node is invalid."""
        raise InvalidNodeError(fact)

    def attr(self, name: str, default: Any = None) -> Any:
        """
        The attribute as Python value; the schema's default, then `default`, where it is not stated.

        An attribute that the operator does not have in its version counts as not stated.
        """
        return self.op.attr(name, default) if name in self.op.schema.attributes else default

    def flag(self, name: str) -> bool:
        """An integer attribute that is a truth value."""
        return bool(self.attr(name, 0))

    def has(self, index: int) -> bool:
        """Whether operand `index` is present."""
        return index < len(self.operands) and self.operands[index] is not None

    def optional(self, index: int) -> SSAValue | None:
        """Operand `index`, None where absent."""
        return self.operands[index] if index < len(self.operands) else None

    def __getitem__(self, index: int) -> SSAValue:
        """Operand `index`, which must be present."""
        value = self.optional(index)
        if value is None:
            self.reject(f"operand {index} is missing")
        return value

    @property
    def variadic(self) -> list[SSAValue]:
        """All operands of an operator whose operands are all one list."""
        return [self[index] for index in range(len(self.operands))]

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Shape of operand `index`, in elements."""
        return shape_of(self[index])

    def rank(self, index: int = 0) -> int:
        return len(self.shape(index))

    def element(self, index: int = 0) -> Attribute:
        """Element type of operand `index`."""
        return element_type_of(self[index])

    def constant(self, index: int) -> NDArray[Any] | None:
        """The values of operand `index` where they are known at compile time; None where absent too."""
        value = self.optional(index)
        return None if value is None else known_array(value)

    def known(self, index: int, what: str) -> NDArray[Any]:
        """The values of operand `index`, which must be known; `what` names it in the refusal."""
        values = self.constant(index)
        if values is None:
            if self.has(index):
                self.refuse(f"{what} is computed at run time; it must be known at compile time")
            self.reject(f"operand {index} ({what}) is missing")
        return values

    def known_ints(self, index: int, what: str) -> list[int]:
        """As `known`, for integers in row-major order."""
        return [int(v) for v in self.known(index, what).ravel()]

    def known_scalar(self, index: int, what: str) -> Any:
        """As `known`, for a tensor of one element: a Python number."""
        values = self.known(index, what)
        if values.size != 1:
            self.reject(f"{what} must be a scalar, got shape {list(values.shape)}")
        return values.item()

    def require_rank(self, index: int, rank: int, *, or_more: bool = False) -> tuple[int, ...]:
        """The shape of operand `index`, which must have `rank` dimensions."""
        shape = self.shape(index)
        if len(shape) < rank or (len(shape) > rank and not or_more):
            more = " or more" if or_more else ""
            self.reject(f"operand {index} must have {rank}{more} dimensions, got shape {list(shape)}")
        return shape

    def axis(self, value: int, rank: int) -> int:
        """`value` counted from 0; a negative axis counts from the end."""
        if not -rank <= value < rank:
            self.reject(f"axis {value} is not one of {rank} dimensions")
        return value + rank if value < 0 else value

    def axes(self, values: list[int] | tuple[int, ...], rank: int) -> list[int]:
        """`values` counted from 0, in the order given. Each may occur once."""
        result = [self.axis(int(value), rank) for value in values]
        if len(set(result)) != len(result):
            self.reject(f"axes {list(values)} repeat a dimension")
        return result

    def wants(self, index: int) -> bool:
        """Whether result `index` exists and is used."""
        results = self.op.results
        return (
            index < len(results)
            and not isinstance(results[index].type, NoneType)
            and bool(results[index].uses)
        )
