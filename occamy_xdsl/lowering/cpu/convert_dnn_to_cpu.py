"""`convert-dnn-to-cpu`: a function in pool form becomes calls of generated kernels, on upstream dialects."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from xdsl.context import Context
from xdsl.dialects import arith, memref, scf
from xdsl.dialects.builtin import (
    ArrayAttr,
    DictionaryAttr,
    IndexType,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    NoneAttr,
    i1,
    i8,
    i64,
)
from xdsl.dialects.func import CallOp, FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter
from xdsl.utils.exceptions import PassFailedException

from occamy_xdsl.analysis.aliasing import offset_in_root, root_of
from occamy_xdsl.analysis.regions import ops_of
from occamy_xdsl.dialects import dnn
from occamy_xdsl.dialects.location import node_name
from occamy_xdsl.dialects.signature import function_for
from occamy_xdsl.dialects.weights import Weights, WeightsRefAttr
from occamy_xdsl.errors import UnsupportedModelError
from occamy_xdsl.lowering.attributes import POOL_BYTES, WEIGHTS, WEIGHTS_BYTES
from occamy_xdsl.lowering.cpu.kernels.spec import Buffer, Kernel, Packing
from occamy_xdsl.lowering.cpu.select import KernelCall, buffer_of, select
from occamy_xdsl.lowering.toolchain import Isa

ENTRY = "occamy_main"
"""The function that the pass makes of `main`."""

WEIGHTS_ALIGNMENT = 64
"""Bytes to which each tensor of the weights blob is aligned: a cache line, and the widest vector."""


@dataclass(frozen=True)
class ConvertDnnToCpuPass(ModulePass):
    """
    Selects a kernel template for every op, generates the kernels' code, and calls them in order.

    All buffers are windows of byte arrays: the pool, the weights blob, and the caller's inputs and outputs.
    Equal kernels are generated once; convolutions, pools, elementwise work and copies that differ in their number of
    rows alone, as those of stripes do, are one kernel that is told the rows. Weights are listed, packed as their
    kernels read them, in the module attribute `occamy.weights`; the driver writes the blob. Buffers outside a pool
    (modes eager and lazy) become heap allocations. `dnn.if` becomes `scf.if`, `dnn.loop` becomes `scf.while`; their
    conditions are read from memory.

    Requires: one function `main` in buffer form.
    Ensures: the dialects func, memref, scf, arith, vector and math only; the entry is
    `occamy_main(pool, weights, inputs..., outputs...)`.

    Before:

    ```mlir
    %a = dnn.mem_offset %pool[64, 16] : memref<128xi8> -> memref<4xf32>
    dnn.softmax input(%x : memref<4xf32>) outs(%a : memref<4xf32>) {axis = 0 : i64, log = false}
    ```

    After:

    ```mlir
    %0 = memref.view %in[%c0][] : memref<16xi8> to memref<4xf32>
    %1 = memref.view %pool[%c64][] : memref<128xi8> to memref<4xf32>
    func.call @softmax_4_0f3a9c1e(%0, %1) : (memref<4xf32>, memref<4xf32>) -> ()
    ```
    """

    name = "convert-dnn-to-cpu"

    target: str = "host"
    """Processor to generate code for: `host`, or a name that LLVM knows."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        isa = Isa.host() if self.target == "host" else Isa.parse(self.target)
        function = function_for(op, self.name)
        dnn.check_form(function, "buffer", self.name)
        _Conversion(op, function, isa).run()


@dataclass
class _Conversion:
    module: ModuleOp
    function: FuncOp
    isa: Isa
    kernels: dict[Kernel, str] = field(default_factory=dict[Kernel, str])
    """Symbol of each kernel that is called."""
    blob: dict[str, tuple[Attribute, int]] = field(default_factory=dict[str, tuple[Attribute, int]])
    """Value and byte offset of each tensor in the weights blob, by key."""
    blob_bytes: int = 0
    bases: dict[SSAValue, tuple[SSAValue, int]] = field(default_factory=dict[SSAValue, tuple[SSAValue, int]])
    """Byte array that each root buffer lies in, and its offset there in bytes."""
    indices: dict[int, SSAValue] = field(default_factory=dict[int, SSAValue])
    views: dict[tuple[SSAValue, int, Buffer], SSAValue] = field(
        default_factory=dict[tuple[SSAValue, int, Buffer], SSAValue]
    )

    refused: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    """Node, op and reason for each op that no kernel can do."""

    def run(self) -> None:
        self.block = self.entry = Block()
        source = self.function.body.block
        pool_bytes = next(
            (dnn.byte_size(op.pool) for op in source.ops if isinstance(op, dnn.MempoolInitOp)), 0
        )
        self.pool = self.entry.insert_arg(_bytes_type(pool_bytes), 0)
        self.pool.name_hint = "pool"
        self.weights = self.entry.insert_arg(_bytes_type(0), 1)
        self.weights.name_hint = "weights"
        for argument in source.args:
            own = self.entry.insert_arg(_bytes_type(dnn.byte_size(argument)), len(self.entry.args))
            own.name_hint = argument.name_hint
            self.bases[argument] = own, 0
        self.calls = self.chosen(source)
        for op in source.ops:
            self.convert(op)
        if self.refused:
            raise UnsupportedModelError(nodes=self.refused)
        self.entry.add_op(ReturnOp())
        # Only now is the size of the blob known.
        self.weights = Rewriter.replace_value_with_new_type(self.weights, _bytes_type(self.blob_bytes))
        kernels = [self.define(kernel, symbol) for kernel, symbol in self.kernels.items()]
        entry = FuncOp(ENTRY, ([a.type for a in self.entry.args], []), Region(self.entry))
        self.module.attributes[POOL_BYTES] = IntegerAttr(pool_bytes, i64)
        self.module.attributes[WEIGHTS_BYTES] = IntegerAttr(self.blob_bytes, i64)
        self.module.attributes[WEIGHTS] = ArrayAttr(
            DictionaryAttr({"value": value, "offset": IntegerAttr(offset, i64)})
            for value, offset in self.blob.values()
        )
        Rewriter.erase_op(self.function)
        self.module.body.block.add_ops([*kernels, entry])

    def define(self, kernel: Kernel, symbol: str) -> FuncOp:
        function = kernel.build(self.isa)
        assert function.sym_name.data == symbol
        return function

    def convert(self, op: Operation) -> None:
        match op:
            case dnn.MempoolInitOp() | dnn.ViewOp() | dnn.ConstantOp() | ReturnOp() | dnn.YieldOp():
                pass
            case dnn.MemOffsetOp():
                self.bases[op.view] = self.pool, op.offset.value.data
            case dnn.MallocOp():
                self.allocate(op.buffer)
            case dnn.DeallocOp():
                if not isinstance(op.buffer.owner, dnn.MempoolInitOp):
                    self.insert(memref.DeallocOp.get(self.bases[op.buffer][0]), op)
            case dnn.MemcpyOp():
                self.call(select(dnn.CopyOp.between(op.source, op.destination), self.isa), op)
            case dnn.IfOp() if op.is_buffer_form:
                condition = self.truth(op, self.block)
                then, otherwise = (self.region(block, scf.YieldOp()) for block in op.blocks)
                self.insert(scf.IfOp(condition, [], then, otherwise), op)
            case dnn.LoopOp() if op.is_buffer_form:
                before = Block()
                before.add_op(scf.ConditionOp(self.truth(op, before)))
                body = self.region(op.body.block, scf.YieldOp())
                self.insert(scf.WhileOp([], [], Region(before), body), op)
            case dnn.KernelOp() if op.is_buffer_form:
                self.call(self.calls[op], op)
            case _:
                raise PassFailedException(f"convert-dnn-to-cpu: '{op.name}' op is not in dnn buffer form")

    def region(self, source: Block, last: Operation) -> Region:
        """The code of a region of control flow, which ends in `last`."""
        around, self.block = self.block, Block()
        for op in source.ops:
            self.convert(op)
        self.block.add_op(last)
        region, self.block = Region(self.block), around
        return region

    def truth(self, op: dnn.ControlOp, block: Block) -> SSAValue:
        """Whether the condition of an op holds, read at the end of `block`: an i1 is a byte of 0 or 1."""
        buffer = buffer_of(op.truth)
        base, offset = self.place(op.truth, buffer, None)
        load = memref.LoadOp.get(self.window(base, offset, buffer), [])
        truncate = arith.TruncIOp(load.res, i1)
        block.add_ops([load, truncate])
        return truncate.result

    def insert(self, op: Operation, source: Operation) -> None:
        op.location = source.location
        self.block.add_op(op)

    def allocate(self, buffer: SSAValue) -> None:
        op = memref.AllocOp([], [], _bytes_type(dnn.byte_size(buffer)), IntegerAttr(64, i64))
        self.insert(op, cast(Operation, buffer.owner))
        self.bases[buffer] = op.memref, 0

    def chosen(self, source: Block) -> dict[Operation, KernelCall]:
        """
        The kernel of each op that computes.

        Kernels that differ in their number of rows alone, as those of stripes do, are one that takes any.
        """
        calls = {
            op: select(op, self.isa)
            for op in ops_of(source)
            if isinstance(op, dnn.KernelOp) and not isinstance(op, dnn.ControlOp) and op.is_buffer_form
        }
        shared = {call.kernel: call.kernel.for_any_rows(self.isa) for call in calls.values()}
        served = Counter(found[0] for found in shared.values() if found is not None)

        def choice(call: KernelCall) -> KernelCall:
            found = shared[call.kernel]
            if found is None or served[found[0]] == 1:
                return call
            return replace(call, kernel=found[0], sizes=found[1])

        return {op: choice(call) for op, call in calls.items()}

    def call(self, call: KernelCall, op: Operation) -> None:
        if call.packed is not None and not _is_known(call.operands[call.packed]):
            reason = "weights that are computed at run time are not supported, its kernel reads packed ones"
            self.refused.append((node_name(op), op.name, reason))
            return
        arguments = list[SSAValue]()
        for index, (operand, buffer) in enumerate(zip(call.operands, call.kernel.arguments, strict=True)):
            packing = call.kernel.packing if index == call.packed else None
            base, offset = self.place(operand, buffer, packing)
            arguments.append(self.window(base, offset - buffer.origin * buffer.element_bytes, buffer))
        arguments += map(self.index, call.sizes)
        symbol = self.kernels.setdefault(call.kernel, call.kernel.symbol)
        self.insert(CallOp(symbol, arguments, []), op)

    def place(
        self, operand: SSAValue | Weights, buffer: Buffer, packing: Packing | None
    ) -> tuple[SSAValue, int]:
        """Byte array and byte offset of an operand's element (0, 0, ...)."""
        if isinstance(operand, Weights):
            size = buffer.extent * buffer.element_bytes
            return self.weights, self.offset_in_blob(operand, WeightsRefAttr(operand), size)
        root = root_of(operand)
        shift = offset_in_root(operand) * dnn.element_bytes(dnn.element_type_of(operand))
        if isinstance(root.owner, dnn.ConstantOp):
            if packing is not None:
                packed = Weights.derived(packing.layout, packing.pack, seen_through(operand))
                size = buffer.extent * buffer.element_bytes
                return self.weights, self.offset_in_blob(packed, WeightsRefAttr(packed), size)
            size = dnn.byte_size(root)
            return self.weights, self.offset_in_blob(root.owner.weights, root.owner.value, size) + shift
        base, offset = self.bases[root]
        return base, offset + shift

    def offset_in_blob(self, weights: Weights, value: Attribute, size: int) -> int:
        """Where the weights blob holds `weights` of `size` bytes, in bytes."""
        if weights.key not in self.blob:
            self.blob[weights.key] = value, self.blob_bytes
            self.blob_bytes += -(-size // WEIGHTS_ALIGNMENT) * WEIGHTS_ALIGNMENT
        return self.blob[weights.key][1]

    def window(self, base: SSAValue, offset: int, buffer: Buffer) -> SSAValue:
        """The memref argument for a buffer whose first element lies `offset` bytes into `base`."""
        key = base, offset, buffer
        if key not in self.views:
            self.views[key] = self.make_window(base, offset, buffer)
        return self.views[key]

    def make_window(self, base: SSAValue, offset: int, buffer: Buffer) -> SSAValue:
        type = buffer.memref_type()
        flat = MemRefType(buffer.element_type, [buffer.extent])
        view = memref.ViewOp(base, self.index(offset), [], flat if type.layout != NoneAttr() else type)
        # Where the base is defined, so that all blocks inside of it can use the window. No op that contains the
        # present one has been added yet, so it stands before them.
        block = base.owner if isinstance(base.owner, Block) else cast(Block, base.owner.parent)
        block.add_op(view)
        if view.result.type == type:
            return view.result
        cast_ = memref.ReinterpretCastOp.from_dynamic(
            view.result, [0], list(buffer.shape), list(buffer.strides), type
        )
        block.add_op(cast_)
        return cast_.result

    def index(self, value: int) -> SSAValue:
        if value not in self.indices:
            constant = arith.ConstantOp(IntegerAttr(value, IndexType()))
            first = self.entry.first_op
            if first is None:
                self.entry.add_op(constant)
            else:
                self.entry.insert_op_before(constant, first)
            self.indices[value] = constant.result
        return self.indices[value]


def _is_known(operand: SSAValue | Weights) -> bool:
    return isinstance(operand, Weights) or isinstance(root_of(operand).owner, dnn.ConstantOp)


def seen_through(operand: SSAValue) -> Weights:
    """The values of a constant, as the view `operand` of it shows them."""
    constant = root_of(operand).owner
    assert isinstance(constant, dnn.ConstantOp)
    weights = constant.weights
    if operand is constant.output:
        return weights
    offset, shape, strides = offset_in_root(operand), dnn.shape_of(operand), dnn.strides_of(operand)

    def view(array: NDArray[Any]) -> NDArray[Any]:
        flat = np.ascontiguousarray(array).reshape(-1)[offset:]
        return as_strided(flat, shape, [stride * flat.itemsize for stride in strides])

    label = f"view-{offset}-{'x'.join(map(str, shape))}-{'x'.join(map(str, strides))}"
    return Weights.derived(label, view, weights, dtype=weights.dtype, shape=shape)


def _bytes_type(size: int) -> MemRefType[Attribute]:
    return MemRefType(i8, [size])
