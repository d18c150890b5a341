"""
Ops of MLIR 22's gpu dialect that xDSL 0.75 lacks or prints in a form that MLIR does not read.

They are built, verified and printed by kernels, never parsed, so they are in no dialect.
"""

from collections.abc import Sequence

from xdsl.dialects import gpu
from xdsl.dialects.builtin import (
    I32,
    ArrayAttr,
    DenseArrayBase,
    DictionaryAttr,
    FunctionType,
    StringAttr,
    i1,
    i32,
)
from xdsl.ir import Region, SSAValue
from xdsl.irdl import (
    IRDLOperation,
    irdl_op_definition,
    operand_def,
    prop_def,
    region_def,
    result_def,
    traits_def,
)
from xdsl.printer import Printer
from xdsl.traits import HasParent, IsolatedFromAbove, IsTerminator


@irdl_op_definition
class KernelOp(IRDLOperation):
    """A `gpu.func` that is launched from the host, with the block size it is built for."""

    name = "gpu.func"
    sym_name = prop_def(StringAttr)
    function_type = prop_def(FunctionType)
    argument_attributes = prop_def(ArrayAttr[DictionaryAttr])
    block_size = prop_def(DenseArrayBase[I32])
    body = region_def()
    traits = traits_def(IsolatedFromAbove(), HasParent(gpu.ModuleOp))

    def __init__(
        self,
        name: str,
        type_: FunctionType,
        argument_attributes: Sequence[DictionaryAttr],
        block_size: Sequence[int],
        body: Region,
    ):
        super().__init__(
            properties={
                "sym_name": StringAttr(name),
                "function_type": type_,
                "argument_attributes": ArrayAttr(argument_attributes),
                "block_size": DenseArrayBase.from_list(i32, block_size),
            },
            regions=[body],
        )

    def print(self, printer: Printer):
        printer.print_string(f" @{self.sym_name.data}(")
        for i, (argument, attributes) in enumerate(
            zip(self.body.block.args, self.argument_attributes, strict=True)
        ):
            printer.print_string(", " if i else "")
            printer.print_block_argument(argument)
            if attributes.data:
                printer.print_string(" ")
                printer.print_attr_dict(attributes.data)
        printer.print_string(") kernel attributes {known_block_size = ")
        printer.print_attribute(self.block_size)
        printer.print_string("} ")
        printer.print_region(self.body, print_entry_block_args=False)


@irdl_op_definition
class ReturnOp(IRDLOperation):
    """Ends a kernel."""

    name = "gpu.return"
    traits = traits_def(IsTerminator(), HasParent(KernelOp))
    assembly_format = "attr-dict"


@irdl_op_definition
class ShuffleOp(IRDLOperation):
    """The value that the lane `laneid xor offset` of the warp has; all 32 lanes take part."""

    name = "gpu.shuffle"
    value = operand_def()
    offset = operand_def(i32)
    width = operand_def(i32)
    result = result_def()
    valid = result_def(i1)

    def __init__(self, value: SSAValue, offset: SSAValue, width: SSAValue):
        super().__init__(operands=[value, offset, width], result_types=[value.type, i1])

    def print(self, printer: Printer):
        printer.print_string(" xor ")
        printer.print_list(self.operands, printer.print_operand)
        printer.print_string(" : ")
        printer.print_attribute(self.value.type)
