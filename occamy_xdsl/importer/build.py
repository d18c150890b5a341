"""ModelProto to a module of the `onnx` dialect."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx.defs
import onnx.inliner
import onnx.shape_inference
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto, TypeProto
from xdsl.dialects.builtin import (
    DYNAMIC_INDEX,
    ArrayAttr,
    DictionaryAttr,
    FunctionType,
    IntegerAttr,
    ModuleOp,
    NameLoc,
    NoneAttr,
    NoneType,
    StringAttr,
    TensorType,
    UnrankedTensorType,
    i64,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.utils.exceptions import VerifyException

from occamy_xdsl.dialects import onnx as dialect
from occamy_xdsl.dialects.onnx import Kind
from occamy_xdsl.dialects.weights import dense_or_ref, string_attr
from occamy_xdsl.errors import InvalidInputError, InvalidModelError, UnsupportedModelError
from occamy_xdsl.importer.model_file import LARGE, read
from occamy_xdsl.importer.tensors import TensorReader
from occamy_xdsl.operators import find_operator

OLDEST_OPSET = 7
"""
The oldest version of ai.onnx whose operators are all accepted: broadcasting changed its meaning in it.

Of models of an older opset those are accepted whose operators have not changed since.
"""

Subgraph = tuple[str, GraphProto]


def import_model(
    model: str | Path | bytes | ModelProto,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    *,
    allow_custom: bool = False,
    expand_functions: bool = True,
) -> ModuleOp:
    """
    The module of a model: one function `main`, one operation a node, in order of execution. With
    `expand_functions`, a node whose operator has no conversion of its own becomes the nodes of the function
    by which ONNX defines it.

    `shapes` gives whole input shapes by input name, `dims` values of symbolic dimensions by name; what
    remains unbound is `?`. Weights are not read. Local functions are inlined. Nodes of operators that the
    onnx package does not know are refused, all at once, or become `onnx.Custom` with `allow_custom`.

    Raises InvalidInputError for a wrong path, shape or dimension, UnsupportedModelError for unknown
    operators and opsets, InvalidModelError for a model that is not valid ONNX.
    """
    source = read(model)
    proto, file = source.model, source.label
    if not proto.graph.output:
        raise InvalidModelError("the graph has no outputs", file=file)
    if proto.functions:
        try:
            proto = onnx.inliner.inline_local_functions(proto)
        except Exception as e:  # the C++ inliner's exceptions have no common base
            fact = str(e).splitlines()[0] if str(e) else type(e).__name__
            raise InvalidModelError(f"local functions cannot be inlined: {fact}", file=file) from None
    _refuse_undecoded_names(proto.graph, file)
    opsets = _opsets(proto, file)
    if expand_functions:
        proto = _expand_functions(proto, opsets)
    if not allow_custom:
        _refuse_unknown_operators(proto.graph, opsets, file)
    order = _order(proto.graph, frozenset(), file)
    binding = _Binding.of(proto.graph, shapes or {}, dims or {})
    importer = _Importer(file, opsets, TensorReader(source), binding)
    inferred = _infer(proto, order)
    nodes = [(index, proto.graph.node[index], inferred.node[i]) for i, index in enumerate(order)]
    function = importer.function(proto.graph, nodes, inferred)
    if importer.faults:
        raise InvalidModelError(nodes=importer.faults, file=file)
    versions = {domain or "ai.onnx": IntegerAttr(version, i64) for domain, version in sorted(opsets.items())}
    return ModuleOp(
        [function],
        attributes={
            "onnx.ir_version": IntegerAttr(proto.ir_version, i64),
            "onnx.opset": DictionaryAttr(versions),
        },
    )


def _domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _refuse_undecoded_names(graph: GraphProto, file: str) -> None:
    """The protobuf package hands out names that are no UTF-8 as bytes; nothing could be said about them."""
    names: list[str | bytes] = [graph.name]
    names += [value.name for value in [*graph.input, *graph.output, *graph.value_info]]
    names += [tensor.name for tensor in graph.initializer]
    names += [sparse.values.name for sparse in graph.sparse_initializer]
    values = [*graph.input, *graph.output, *graph.value_info]
    names += [dim.dim_param for value in values for dim in value.type.tensor_type.shape.dim]
    for node in graph.node:
        names += [node.name, node.op_type, node.domain, *node.input, *node.output]
        names += [attribute.name for attribute in node.attribute]
        for _, subgraph in _subgraphs(node):
            _refuse_undecoded_names(subgraph, file)
    _refuse_undecoded(names, file)


def _refuse_undecoded(names: Iterable[str | bytes], file: str) -> None:
    for name in names:
        if isinstance(name, bytes):
            raise InvalidModelError(f"the name {name!r} is no UTF-8", file=file)


def _opsets(proto: ModelProto, file: str) -> dict[str, int]:
    """The version of each imported domain, the default domain as ""."""
    _refuse_undecoded((entry.domain for entry in proto.opset_import), file)
    opsets = dict[str, int]()
    for entry in proto.opset_import:
        if opsets.setdefault(_domain(entry.domain), entry.version) != entry.version:
            raise InvalidModelError(
                f"domain '{entry.domain or 'ai.onnx'}' is imported in two versions", file=file
            )
    newest, version = onnx.defs.onnx_opset_version(), opsets.get("")
    if version is None and any(not _domain(node.domain) for node in proto.graph.node):
        raise InvalidModelError("no opset of ai.onnx is imported", file=file)
    if version is not None and not 1 <= version <= newest:
        raise UnsupportedModelError(
            f"ai.onnx opset {version} is not supported, {OLDEST_OPSET} to {newest} are", file=file
        )
    return opsets


def _subgraphs(node: NodeProto) -> list[Subgraph]:
    return [(a.name, a.g) for a in node.attribute if a.type == AttributeProto.GRAPH]


def _node_name(node: NodeProto, index: int) -> str:
    return node.name or f"{node.op_type}_{index}"


def _fault(node: NodeProto, index: int, fact: str, file: str) -> InvalidModelError:
    return InvalidModelError(nodes=[(_node_name(node, index), node.op_type, fact)], file=file)


def _walk(graph: GraphProto) -> Iterator[tuple[int, NodeProto]]:
    for index, node in enumerate(graph.node):
        yield index, node
        for _, subgraph in _subgraphs(node):
            yield from _walk(subgraph)


def _state_defaults(node: NodeProto, op: type[dialect.OnnxOp]) -> None:
    """Adds the schema's defaults to a node: the inliner takes from it what a body refers to, and no defaults."""
    stated = {attribute.name for attribute in node.attribute}
    for name, attribute in op.schema.attributes.items():
        if name not in stated and attribute.default_value.type != AttributeProto.UNDEFINED:
            node.attribute.append(attribute.default_value)


def _expand_functions(proto: ModelProto, opsets: Mapping[str, int]) -> ModelProto:
    """
    Replaces nodes of operators that have no conversion, and that ONNX defines as functions, by their bodies.

    A body may hold further such operators. One that the onnx package cannot build stays as it is, and is
    refused later with all others.
    """
    tried = set[tuple[str, str]]()
    while wanted := {(node.domain, node.op_type) for _, node in _walk(proto.graph)} - tried:
        tried |= wanted
        for domain, name in sorted(wanted):
            made = dialect.find_op(_domain(domain), name, opsets.get(_domain(domain), 0))
            if made is None or find_operator(_domain(domain), name, made.since_version):
                continue
            schema = cast("Any", made.schema)  # onnx's type stubs lack these two
            if not schema.has_function and not schema.has_context_dependent_function:
                continue
            typed = ModelProto()
            typed.CopyFrom(proto)
            for _, node in _walk(typed.graph):
                if (node.domain, node.op_type) == (domain, name):
                    _state_defaults(node, made)
            typed.graph.value_info.extend(_infer(proto, range(len(proto.graph.node))).value_info)
            for tensor in proto.graph.initializer:
                type = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
                typed.graph.value_info.append(onnx.helper.make_value_info(tensor.name, type))
            with suppress(Exception):  # the C++ inliner's exceptions have no common base
                inlined = onnx.inliner.inline_selected_functions(
                    typed, [(domain, name)], inline_schema_functions=True
                )
                del inlined.graph.value_info[:]
                inlined.graph.value_info.extend(proto.graph.value_info)
                proto = inlined
    return proto


def _refuse_unknown_operators(graph: GraphProto, opsets: Mapping[str, int], file: str) -> None:
    unknown = list[tuple[str, str, str]]()
    for index, node in _walk(graph):
        domain = _domain(node.domain)
        version = opsets.get(domain)
        first, shown = dialect.first_version(domain, node.op_type), domain or "ai.onnx"
        if version is None:
            reason = f"domain '{shown}' is not imported by the model"
        elif found := dialect.find_op(domain, node.op_type, version):
            if domain or version >= OLDEST_OPSET or found is dialect.find_op("", node.op_type, OLDEST_OPSET):
                continue
            reason = f"has another meaning in opset {version}; opsets from {OLDEST_OPSET} are supported"
        elif first is None:
            reason = f"no such operator in domain '{shown}'" + (f" (opset {version})" if not domain else "")
        elif first > version:
            reason = f"new in opset {first} of '{shown}', the model imports {version}"
        else:
            reason = f"withdrawn from opset {version} of '{shown}'"
        unknown.append((_node_name(node, index), f"{domain}.{node.op_type}".lstrip("."), reason))
    if unknown:
        raise UnsupportedModelError(nodes=unknown, file=file)


def _order(graph: GraphProto, outer: frozenset[str], file: str) -> list[int]:
    """
    Positions of `graph`'s nodes in an order of execution: the file's where it is one, else sorted.

    Refuses values defined twice or nowhere, and cycles. `outer` holds the names visible from around.
    """
    sources = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    sources |= {sparse.values.name for sparse in graph.sparse_initializer}
    producer = dict[str, int]()
    for index, node in enumerate(graph.node):
        for name in filter(None, node.output):
            if name in producer or name in sources:
                raise _fault(node, index, f"value '{name}' is defined twice", file)
            producer[name] = index
    visible = outer | sources | producer.keys()
    needs = list[list[int]]()
    for index, node in enumerate(graph.node):
        names = _reads(node)
        missing = sorted(names - visible)
        if missing:
            raise _fault(node, index, f"value '{missing[0]}' is defined nowhere", file)
        needs.append(sorted({producer[name] for name in names if name in producer}))
    if all(need < index for index, of in enumerate(needs) for need in of):
        return list(range(len(graph.node)))
    warnings.warn(f"{file}: nodes are not in topological order; sorted", stacklevel=4)
    order, done, path = list[int](), set[int](), set[int]()
    for root in range(len(needs)):
        stack = [(root, iter(needs[root]))] if root not in done else []
        path.update(index for index, _ in stack)
        while stack:
            index, rest = stack[-1]
            following = next((need for need in rest if need not in done), None)
            if following is None:
                stack.pop()
                path.discard(index)
                done.add(index)
                order.append(index)
            elif following in path:
                raise _fault(graph.node[following], following, "depends on its own output", file)
            else:
                path.add(following)
                stack.append((following, iter(needs[following])))
    return order


def _reads(node: NodeProto) -> set[str]:
    """The names that a node needs from its own graph or from around it."""
    names = set(filter(None, node.input))
    for _, graph in _subgraphs(node):
        inner = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        inner |= {sparse.values.name for sparse in graph.sparse_initializer}
        inner |= {name for inside in graph.node for name in inside.output}
        for inside in graph.node:
            names |= _reads(inside) - inner
    return names


def _infer(proto: ModelProto, order: Sequence[int]) -> GraphProto:
    """
    The graph, in `order`, with the types that the onnx package can tell of undeclared values.

    Only element types are taken from it: shapes are this compiler's business.
    """
    light = ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    graph = proto.graph
    light.graph.CopyFrom(GraphProto(name=graph.name or "graph", input=graph.input, output=graph.output))
    light.graph.value_info.extend(graph.value_info)
    light.graph.node.extend(graph.node[index] for index in order)
    for tensor in graph.initializer:
        is_small = len(tensor.raw_data) <= LARGE and not tensor.external_data
        bare = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        light.graph.initializer.append(tensor if is_small else bare)
    try:
        return onnx.shape_inference.infer_shapes(light).graph
    except Exception:  # the C++ inference's exceptions have no common base; without it types stay unknown
        return light.graph


@dataclass
class _Binding:
    """Values of symbolic dimensions by name, and whole shapes of inputs by name."""

    dims: dict[str, int]
    shapes: dict[str, tuple[int, ...]]

    @staticmethod
    def of(graph: GraphProto, shapes: Mapping[str, Sequence[int]], dims: Mapping[str, int]) -> _Binding:
        """Raises InvalidInputError for names that the model lacks and for values that contradict it."""
        constants = {tensor.name for tensor in graph.initializer}
        inputs = {value.name: value.type for value in graph.input if value.name not in constants}
        known = sorted({s for t in inputs.values() for d in t.tensor_type.shape.dim if (s := _symbol(d))})
        binding = _Binding(dict(dims), {})
        for name, value in dims.items():
            if name not in known:
                raise InvalidInputError(
                    f"no dimension '{name}'; the model's are: {', '.join(known) or 'none'}"
                )
            if value < 1:
                raise InvalidInputError(f"dimension '{name}' must be positive, got {value}")
        for name, shape in shapes.items():
            binding._bind_shape(name, tuple(shape), inputs)
        return binding

    def _bind_shape(self, name: str, shape: tuple[int, ...], inputs: Mapping[str, TypeProto]) -> None:
        if name not in inputs:
            raise InvalidInputError(f"no input '{name}'; the model's are: {', '.join(inputs) or 'none'}")
        shown = "x".join(map(str, shape))
        if any(size < 1 for size in shape):
            raise InvalidInputError(f"input '{name}': dimensions must be positive, got {shown}")
        declared = inputs[name].tensor_type
        if not inputs[name].HasField("tensor_type"):
            raise InvalidInputError(f"input '{name}' is no tensor, it has no shape")
        self.shapes[name] = shape
        if not declared.HasField("shape"):
            return
        if len(declared.shape.dim) != len(shape):
            raise InvalidInputError(
                f"input '{name}' has {len(declared.shape.dim)} dimensions, got {len(shape)}: {shown}"
            )
        for index, (dim, size) in enumerate(zip(declared.shape.dim, shape, strict=True)):
            if dim.HasField("dim_value") and dim.dim_value >= 0 and dim.dim_value != size:
                raise InvalidInputError(
                    f"input '{name}': dimension {index} is {dim.dim_value} in the model, got {size}"
                )
            symbol = _symbol(dim)
            if symbol and self.dims.setdefault(symbol, size) != size:
                bound = self.dims[symbol]
                raise InvalidInputError(
                    f"input '{name}': dimension '{symbol}' is {bound} elsewhere, got {size}"
                )

    def dim(self, dim: Any) -> int:
        """The size of a TensorShapeProto.Dimension, DYNAMIC_INDEX where unknown."""
        if dim.HasField("dim_value"):
            return dim.dim_value if dim.dim_value >= 0 else DYNAMIC_INDEX
        return self.dims.get(_symbol(dim), DYNAMIC_INDEX)


def _symbol(dim: Any) -> str:
    """The name that equal dimensions share; exporters write "?" and "-1" for dimensions without a name."""
    return "" if dim.dim_param in ("?", "-1") else dim.dim_param


@dataclass
class _Scope:
    """The values of one graph by name; constants are made in `block` when first asked for."""

    block: Block
    prefix: str
    parent: _Scope | None
    values: dict[str, SSAValue]
    constants: dict[str, TensorProto | SparseTensorProto]
    types: dict[str, TypeProto]
    """What the model declares."""
    inferred: dict[str, TypeProto]
    """What the onnx package infers."""


@dataclass
class _Importer:
    file: str
    opsets: dict[str, int]
    tensors: TensorReader
    binding: _Binding
    faults: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    """Nodes that do not satisfy their schema, gathered to be reported together."""
    none: dialect.NoValueOp | None = None
    keys: set[str] = field(default_factory=set[str])
    """The keys of weights given out, since nodes may share a name."""

    def unique(self, key: str) -> str:
        """`key`, or where another tensor has it, the first free `key#2`, `key#3` ..."""
        free, number = key, 2
        while free in self.keys:
            free, number = f"{key}#{number}", number + 1
        self.keys.add(free)
        return free

    # ---- Types

    def type(self, proto: TypeProto, *, with_shape: bool = True) -> Attribute:
        """The type of a value; `onnx.Unknown` where the model leaves the element type out."""
        match proto.WhichOneof("value"):
            case "tensor_type" | "sparse_tensor_type" as kind:
                tensor = proto.tensor_type if kind == "tensor_type" else proto.sparse_tensor_type
                if (element := dialect.element_type_or_none(tensor.elem_type)) is None:
                    return dialect.UnknownType()
                if with_shape and tensor.HasField("shape"):
                    type = TensorType(element, [self.binding.dim(dim) for dim in tensor.shape.dim])
                else:
                    type = UnrankedTensorType(element)
                return type if kind == "tensor_type" else dialect.SparseTensorType(type)
            case "sequence_type":
                return dialect.SeqType(self.type(proto.sequence_type.elem_type, with_shape=with_shape))
            case "optional_type":
                return dialect.OptType(self.type(proto.optional_type.elem_type, with_shape=with_shape))
            case "map_type":
                if (key := dialect.element_type_or_none(proto.map_type.key_type)) is None:
                    return dialect.UnknownType()
                return dialect.MapType(key, self.type(proto.map_type.value_type, with_shape=with_shape))
            case _:
                return dialect.UnknownType()

    def value_type(self, name: str, scope: _Scope, from_schema: Attribute) -> Attribute:
        """The declared type of a node's output, else with unknown shape the one that its schema tells."""
        if not name:
            return NoneType()
        type = self.type(scope.types[name]) if name in scope.types else from_schema
        if isinstance(type, dialect.UnknownType):
            type = from_schema
        if isinstance(type, dialect.UnknownType) and name in scope.inferred:
            return self.type(scope.inferred[name], with_shape=False)
        return type

    # ---- Graphs

    def function(
        self, graph: GraphProto, nodes: Sequence[tuple[int, NodeProto, NodeProto]], inferred: GraphProto
    ) -> FuncOp:
        """The function `main` of the outermost graph."""
        block = Block()
        scope = self.scope(graph, inferred, block, "", None)
        arguments = list[DictionaryAttr]()
        for value in graph.input:
            if value.name in scope.constants:
                continue
            type = self.type(value.type)
            if value.name in self.binding.shapes and isinstance(type, TensorType | UnrankedTensorType):
                element = cast("TensorType[Attribute]", type).element_type
                type = TensorType(element, self.binding.shapes[value.name])
            if isinstance(type, dialect.UnknownType):
                raise InvalidModelError(f"input '{value.name}' has no element type", file=self.file)
            self.define(value.name, block.insert_arg(type, len(block.args)), scope)
            arguments.append(self.argument_attributes(value.name, value.type, type))
        self.nodes(nodes, scope)
        seen = set[str]()
        for value in graph.output:
            if value.name in seen:
                raise InvalidModelError(f"output '{value.name}' is listed twice", file=self.file)
            seen.add(value.name)
        results = [self.output(value, scope) for value in graph.output]
        block.add_op(ReturnOp(*results))
        function_type = FunctionType.from_lists([arg.type for arg in block.args], [v.type for v in results])
        return FuncOp(
            "main",
            function_type,
            Region(block),
            arg_attrs=ArrayAttr(arguments),
            res_attrs=ArrayAttr(
                self.argument_attributes(value.name, value.type, result.type)
                for value, result in zip(graph.output, results, strict=True)
            ),
        )

    def argument_attributes(self, name: str, proto: TypeProto, type: Attribute) -> DictionaryAttr:
        """The name of an input or output, and the names of those of its dimensions that are not bound."""
        attributes: dict[str, Attribute] = {"onnx.name": string_attr(name)}
        if isinstance(type, TensorType) and DYNAMIC_INDEX in type.get_shape():
            declared = [dim.dim_param for dim in proto.tensor_type.shape.dim]
            sizes = type.get_shape()
            if len(declared) == len(sizes) and any(declared):
                names = [p if s == DYNAMIC_INDEX else "" for p, s in zip(declared, sizes, strict=True)]
                attributes["onnx.dim_params"] = ArrayAttr(map(string_attr, names))
        return DictionaryAttr(attributes)

    def output(self, value: onnx.ValueInfoProto, scope: _Scope) -> SSAValue:
        """The value of a graph output. Refuses one that contradicts its declaration."""
        found = self.lookup(value.name, scope)
        if found is None:
            raise InvalidModelError(f"output '{value.name}' is produced by no node", file=self.file)
        declared = self.type(value.type)
        if not _compatible(found.type, declared):
            raise InvalidModelError(
                f"output '{value.name}' is declared {declared}, its value is {found.type}", file=self.file
            )
        return found

    def scope(
        self, graph: GraphProto, inferred: GraphProto, block: Block, prefix: str, parent: _Scope | None
    ) -> _Scope:
        constants = dict[str, TensorProto | SparseTensorProto]()
        for tensor in graph.initializer:
            if tensor.name in constants:
                raise InvalidModelError(f"initializer '{tensor.name}' is defined twice", file=self.file)
            constants[tensor.name] = tensor
        constants |= {sparse.values.name: sparse for sparse in graph.sparse_initializer}
        declared = {value.name: value.type for value in [*graph.value_info, *graph.output]}
        known = {value.name: value.type for value in [*inferred.value_info, *inferred.output]}
        return _Scope(block, prefix, parent, {}, constants, declared, known)

    def define(self, name: str, value: SSAValue, scope: _Scope) -> None:
        if name in scope.values:
            raise InvalidModelError(f"value '{name}' is defined twice", file=self.file)
        scope.values[name] = value
        # xDSL drops a number after `_`, the report shows it again.
        hint = re.sub(r"_(\d+)$", r"-\1", re.sub(r"[^\w$.-]", "_", name, flags=re.ASCII))
        value.name_hint = hint if SSAValue.is_valid_name(hint) else None

    def lookup(self, name: str, scope: _Scope) -> SSAValue | None:
        """The value called `name` in the scope or around it; a constant is made where it is defined."""
        at: _Scope | None = scope
        while at is not None:
            if name in at.values:
                return at.values[name]
            if name in at.constants:
                constant = at.constants[name]
                op = self.constant(constant, at.prefix + name)
                op.location = NameLoc(StringAttr(name), NoneAttr())
                at.block.add_op(op)
                self.define(name, op.results[0], at)
                return op.results[0]
            at = at.parent
        return None

    def constant(self, tensor: TensorProto | SparseTensorProto, key: str) -> Operation:
        op = dialect.op_class("Constant")
        if isinstance(tensor, SparseTensorProto):
            value = self.sparse(tensor, key)
            return op.make([], [value.type], sparse_value=value)
        return op.make([], [self.tensors.type(tensor)], value=self.tensor(tensor, key))

    def tensor(self, tensor: TensorProto, key: str) -> Attribute:
        return self.tensors.attribute(tensor, self.unique(key))

    def sparse(self, tensor: SparseTensorProto, key: str) -> dialect.SparseAttr:
        dense = TensorType(self.tensors.type(tensor.values).element_type, tensor.dims)
        values = self.tensor(tensor.values, key + ".values")
        return dialect.SparseAttr(values, self.tensor(tensor.indices, key + ".indices"), dense)

    def region(
        self,
        graph: GraphProto,
        inferred: GraphProto,
        prefix: str,
        outer: _Scope,
        argument_types: Sequence[Attribute],
    ) -> Region:
        """The region of a subgraph; `argument_types` are for inputs whose type the subgraph leaves out."""
        block = Block()
        scope = self.scope(graph, inferred, block, prefix, outer)
        for index, value in enumerate(graph.input):
            type = self.type(value.type)
            if isinstance(type, dialect.UnknownType) and index < len(argument_types):
                type = argument_types[index]
            self.define(value.name, block.insert_arg(type, len(block.args)), scope)
        visible = set[str]()
        at: _Scope | None = outer
        while at is not None:
            visible |= at.values.keys() | at.constants.keys()
            at = at.parent
        order = _order(graph, frozenset(visible), self.file)
        self.nodes([(index, graph.node[index], inferred.node[index]) for index in order], scope)
        results = list[SSAValue]()
        for value in graph.output:
            if value.name not in scope.values and value.name not in scope.constants:
                raise InvalidModelError(
                    f"subgraph '{prefix.rstrip('/')}': output '{value.name}' is computed outside of it; put an "
                    "Identity node in between",
                    file=self.file,
                )
            found = self.lookup(value.name, scope)
            assert found is not None
            results.append(found)
        block.add_op(dialect.YieldOp.make(results))
        return Region(block)

    # ---- Nodes

    def fault(self, node: NodeProto, name: str, fact: str) -> InvalidModelError:
        return InvalidModelError(nodes=[(name, node.op_type, fact)], file=self.file)

    def nodes(self, nodes: Sequence[tuple[int, NodeProto, NodeProto]], scope: _Scope) -> None:
        for index, node, inferred in nodes:
            op = self.node(node, inferred, _node_name(node, index), scope)
            scope.block.add_op(op)
            for name, value in zip(node.output, op.results, strict=False):
                if name:
                    self.define(name, value, scope)

    def no_value(self, scope: _Scope) -> SSAValue:
        """The one `onnx.NoValue` of the function, made at its start when first needed."""
        if self.none is None:
            while scope.parent is not None:
                scope = scope.parent
            self.none = dialect.NoValueOp.make()
            if (first := scope.block.first_op) is None:
                scope.block.add_op(self.none)
            else:
                scope.block.insert_op_before(self.none, first)
        return self.none.results[0]

    def node(self, node: NodeProto, inferred: NodeProto, name: str, scope: _Scope) -> Operation:
        """The operation of a node; what breaks its schema is recorded in `faults`."""
        location = NameLoc(StringAttr(name), NoneAttr())
        operands = list[SSAValue]()
        inputs = list(node.input)
        while inputs and not inputs[-1]:
            inputs.pop()
        for value_name in inputs:
            value = self.lookup(value_name, scope) if value_name else self.no_value(scope)
            assert value is not None, "checked by _order"
            operands.append(value)
        outputs = list(node.output)
        while len(outputs) > 1 and not outputs[-1]:
            outputs.pop()
        properties, regions = self.attributes(node, inferred, name, scope, operands)
        domain = _domain(node.domain)
        version = self.opsets.get(domain)
        cls = dialect.find_op(domain, node.op_type, version) if version is not None else None
        if cls is not None and node.op_type == "Constant" and not operands and len(outputs) == 1:
            op = self.constant_node(node, properties, scope)
            if op is not None:
                op.location = location
                return op
        types = [dialect.UnknownType()] * len(outputs)
        if cls is not None:
            types = cls.result_types_of(operands, properties, len(outputs))
        result_types = [
            self.value_type(output, scope, type) for output, type in zip(outputs, types, strict=True)
        ]
        if cls is None:
            properties |= {"domain_name": StringAttr(domain), "function_name": StringAttr(node.op_type)}
            if regions:
                properties["region_names"] = ArrayAttr(map(StringAttr, regions))
            return dialect.CustomOp.create(
                operands=operands,
                result_types=result_types,
                attributes=properties,
                regions=list(regions.values()),
                location=location,
            )
        op = cls.create(
            operands=operands,
            result_types=result_types,
            properties=properties,
            regions=[regions.get(region, Region()) for region in cls.region_names],
            location=location,
        )
        try:
            op.verify_()
        except VerifyException as e:
            self.faults.append((name, node.op_type, str(e)))
        return op

    def constant_node(
        self, node: NodeProto, properties: dict[str, Attribute], scope: _Scope
    ) -> Operation | None:
        """Constant with its value as a tensor, whichever attribute gave it; None where it is ill-formed."""
        if len(node.attribute) != 1:
            return None
        op, attribute = dialect.op_class("Constant"), node.attribute[0]
        match attribute.name, attribute.type:
            case "value", AttributeProto.TENSOR:
                return op.make([], [self.tensors.type(attribute.t)], value=properties["value"])
            case "sparse_value", AttributeProto.SPARSE_TENSOR:
                value = cast("dialect.SparseAttr", properties["sparse_value"])
                return op.make([], [value.type], sparse_value=value)
            case name, kind if name in _CONSTANT_KINDS and kind == _CONSTANT_KINDS[name][0]:
                _, dtype, data_type = _CONSTANT_KINDS[name]
                array = np.array(onnx.helper.get_attribute_value(attribute), dtype)
                type = TensorType(dialect.element_type(data_type), array.shape)
                key = self.unique(scope.prefix + node.output[0])
                return op.make([], [type], value=dense_or_ref(array, key))
            case _:
                return None

    def attributes(
        self, node: NodeProto, inferred: NodeProto, name: str, scope: _Scope, operands: Sequence[SSAValue]
    ) -> tuple[dict[str, Attribute], dict[str, Region]]:
        """The attributes of a node by name, and the regions of its graph attributes by name."""
        found, regions = dict[str, Attribute](), dict[str, Region]()
        for proto, inferred_proto in zip(node.attribute, inferred.attribute, strict=True):
            if proto.name in found or proto.name in regions:
                raise self.fault(node, name, f"attribute '{proto.name}' is given twice")
            if proto.ref_attr_name:
                raise self.fault(node, name, f"attribute '{proto.name}' refers to a function's, here is none")
            key = f"{scope.prefix}{node.output[0] if node.op_type == 'Constant' else f'{name}/{proto.name}'}"
            match proto.type:
                case AttributeProto.GRAPH:
                    prefix = f"{scope.prefix}{name}/{proto.name}/"
                    given = _body_types(node, operands)
                    regions[proto.name] = self.region(proto.g, inferred_proto.g, prefix, scope, given)
                case AttributeProto.TENSOR:
                    found[proto.name] = self.tensor(proto.t, key)
                case AttributeProto.SPARSE_TENSOR:
                    found[proto.name] = self.sparse(proto.sparse_tensor, key)
                case AttributeProto.TYPE_PROTO:
                    found[proto.name] = self.type(proto.tp)
                case kind if kind in _KINDS:
                    found[proto.name] = dialect.to_attribute(
                        _KINDS[kind], onnx.helper.get_attribute_value(proto)
                    )
                case _:
                    raise self.fault(node, name, f"attribute '{proto.name}' has no supported type")
        return found, regions


_KINDS = {
    AttributeProto.INT: Kind.INT,
    AttributeProto.INTS: Kind.INTS,
    AttributeProto.FLOAT: Kind.FLOAT,
    AttributeProto.FLOATS: Kind.FLOATS,
    AttributeProto.STRING: Kind.STRING,
    AttributeProto.STRINGS: Kind.STRINGS,
}

_CONSTANT_KINDS: dict[str, tuple[int, Any, int]] = {
    "value_int": (AttributeProto.INT, np.int64, TensorProto.INT64),
    "value_ints": (AttributeProto.INTS, np.int64, TensorProto.INT64),
    "value_float": (AttributeProto.FLOAT, np.float32, TensorProto.FLOAT),
    "value_floats": (AttributeProto.FLOATS, np.float32, TensorProto.FLOAT),
    "value_string": (AttributeProto.STRING, object, TensorProto.STRING),
    "value_strings": (AttributeProto.STRINGS, object, TensorProto.STRING),
}
"""Constant's attributes that are no tensors: their kind, and the numpy and ONNX type of the tensor meant."""


def _body_types(node: NodeProto, operands: Sequence[SSAValue]) -> list[Attribute]:
    """What Loop and Scan pass to their bodies, by element type; empty for other operators."""
    of_operands = [dialect.type_named(dialect.type_name(operand.type) or "") for operand in operands]
    if node.op_type == "Loop":
        return [dialect.type_named("tensor(int64)"), dialect.type_named("tensor(bool)"), *of_operands[2:]]
    return of_operands if node.op_type == "Scan" else []


def _compatible(a: Attribute, b: Attribute) -> bool:
    """Whether two declared types may be of one value: equal where both are known."""
    if not isinstance(a, TensorType | UnrankedTensorType) or not isinstance(
        b, TensorType | UnrankedTensorType
    ):
        return True
    if cast("TensorType[Attribute]", a).element_type != cast("TensorType[Attribute]", b).element_type:
        return False
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return True
    pairs = list(zip(a.get_shape(), b.get_shape(), strict=False))
    return len(a.get_shape()) == len(b.get_shape()) and all(
        x == y or DYNAMIC_INDEX in (x, y) for x, y in pairs
    )
