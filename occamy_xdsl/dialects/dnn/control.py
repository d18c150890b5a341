"""Ops of the `dnn` dialect that choose or repeat other ops: control flow that depends on data."""

from collections.abc import Sequence

from xdsl.dialects.builtin import MemRefType, TensorType, i1
from xdsl.ir import Attribute, Block, Region, SSAValue
from xdsl.irdl import BaseAttr, irdl_op_definition, operand_def, region_def, traits_def, var_operand_def
from xdsl.traits import RecursiveMemoryEffect

from occamy_xdsl.dialects.dnn.base import KernelOp, YieldOp, element_type_of, shape_of


class ControlOp(KernelOp):
    """
    Base of the ops that run their regions on a condition. The regions hold ops of the same form as the op
    itself, and use values of the blocks around it directly.

    In value form a region yields values, and the op has results. In buffer form it yields nothing: its ops
    write the memrefs in `outs`, which are listed there because more than one op may write each.

    Further shared constraints:

    - (F5) `condition` is one truth value: an `i1` without dimensions.
    - (F6) The op computes something: it has results or `outs`.
    - (F7) A region is one block that ends in `dnn.yield`; in buffer form it takes and yields nothing.
    """

    traits = traits_def(RecursiveMemoryEffect())

    @property
    def truth(self) -> SSAValue:
        """The operand `condition`."""
        return self.group("condition")[0]

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The block of each region, in the order in which positions count them."""
        return tuple(region.block for region in self.regions)

    @staticmethod
    def yielded(block: Block) -> tuple[SSAValue, ...]:
        """What a block of such an op yields."""
        last = block.last_op
        assert isinstance(last, YieldOp)
        return tuple(last.values)

    def result_shapes(self) -> Sequence[tuple[int, ...]]:
        return [shape_of(value) for value in self.destinations]

    def verify_(self) -> None:
        super().verify_()
        if shape_of(self.truth) or element_type_of(self.truth) != i1:
            raise self.fail(f"condition must be one i1, got {self.truth.type}", "F5")
        if not self.destinations:
            raise self.fail("computes nothing", "F6")
        for name, region in self.named_regions.items():
            block = region.first_block
            if block is None or region.last_block is not block or not isinstance(block.last_op, YieldOp):
                raise self.fail(f"region '{name}' must be one block that ends in dnn.yield", "F7")
            if self.is_buffer_form and (block.args or self.yielded(block)):
                raise self.fail(f"region '{name}' must take and yield nothing in buffer form", "F7")


@irdl_op_definition
class IfOp(ControlOp):
    """
    Runs one of two regions.

    Constraints:

    - (C1) In value form each region takes nothing and yields values of the results' types.

    Examples, in value form and in buffer form:

    ```mlir
    %y = dnn.if condition(%c : tensor<i1>) -> tensor<4xf32> then {
      %a = dnn.softmax input(%x : tensor<4xf32>) {..} -> tensor<4xf32>
      dnn.yield %a : tensor<4xf32>
    } otherwise {
      dnn.yield %x : tensor<4xf32>
    }
    dnn.if condition(%c : memref<i1>) outs(%y : memref<4xf32>) then {
      dnn.softmax input(%x : memref<4xf32>) outs(%y : memref<4xf32>) {..}
      dnn.yield
    } otherwise {
      dnn.copy input(%x : memref<4xf32>) outs(%y : memref<4xf32>)
      dnn.yield
    }
    ```

    Source: ONNX If-25, and `scf.if` of MLIR.
    """

    name = "dnn.if"
    condition = operand_def(BaseAttr(TensorType) | BaseAttr(MemRefType))
    then = region_def("single_block")
    otherwise = region_def("single_block")

    def __init__(self, condition: SSAValue, results: Sequence[Attribute], then: Region, otherwise: Region):
        """Value form."""
        super().__init__(operands=[condition, [], []], result_types=[results], regions=[then, otherwise])

    def verify_(self) -> None:
        super().verify_()
        types = [result.type for result in self.results]
        for name, region in self.named_regions.items():
            given = [value.type for value in self.yielded(region.block)]
            if not self.is_buffer_form and (region.block.args or given != types):
                shown = ", ".join(map(str, types))
                raise self.fail(f"region '{name}' must take nothing and yield ({shown})", "C1")


@irdl_op_definition
class LoopOp(ControlOp):
    """
    Runs its body as long as the condition holds, which is looked at before each iteration.

    Value form: the body takes the carried values, first `inits`, and yields the next condition and the next
    carried values. The results are the last ones; those are `inits` where the body never runs.

    Buffer form: `outs` hold the carried values and `condition` the condition. Both have their first value
    before the loop; the body writes the next one over it.

    Constraints:

    - (C1) `inits`, the body's arguments and the results have the same types; in buffer form there are no
      `inits`.
    - (C2) In value form the body yields one i1 without dimensions, then values of the results' types.

    Examples, in value form and in buffer form:

    ```mlir
    %y = dnn.loop condition(%c : tensor<i1>) inits(%x : tensor<4xf32>) -> tensor<4xf32> body {
    ^bb0(%a : tensor<4xf32>):
      %b = dnn.softmax input(%a : tensor<4xf32>) {..} -> tensor<4xf32>
      %n = dnn.elementwise ins(%b, ..) -> tensor<i1> body {..}
      dnn.yield %n, %b : tensor<i1>, tensor<4xf32>
    }
    dnn.loop condition(%c : memref<i1>) outs(%a : memref<4xf32>) body {
      dnn.softmax input(%a : memref<4xf32>) outs(%a : memref<4xf32>) {..}
      dnn.elementwise ins(%a, ..) outs(%c : memref<i1>) body {..}
      dnn.yield
    }
    ```

    Source: ONNX Loop-25, and `scf.while` of MLIR.
    """

    name = "dnn.loop"
    condition = operand_def(BaseAttr(TensorType) | BaseAttr(MemRefType))
    inits = var_operand_def(TensorType)
    body = region_def("single_block")

    def __init__(self, condition: SSAValue, inits: Sequence[SSAValue], body: Region):
        """Value form."""
        results = [value.type for value in inits]
        super().__init__(operands=[condition, inits, [], []], result_types=[results], regions=[body])

    def verify_(self) -> None:
        super().verify_()
        types = [result.type for result in self.results]
        block = self.body.block
        inits, taken = ([v.type for v in values] for values in (self.inits, block.args))
        if inits != types or taken != types:
            raise self.fail("inits, arguments of the body and results must have the same types", "C1")
        if not self.is_buffer_form:
            given = self.yielded(block)
            is_condition = given and not shape_of(given[0]) and element_type_of(given[0]) == i1
            if not is_condition or [value.type for value in given[1:]] != types:
                raise self.fail("body must yield one i1 and values of the results' types", "C2")
