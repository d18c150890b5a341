"""Single-node models through import, inference, conversion and the numpy interpreter, against ONNX Runtime."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidArgument
from xdsl.dialects.builtin import ModuleOp

from occamy_xdsl.errors import OccamyError
from occamy_xdsl.interpreters.value import run_values

Array = NDArray[Any]
NAN, INF = float("nan"), float("inf")


@dataclass(frozen=True)
class Known:
    """An operand that is an initializer."""

    array: Array


@dataclass(frozen=True)
class Case:
    """One node: operands are run-time arrays, known arrays, or None where absent."""

    op: str
    operands: Sequence[Array | Known | None]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    outputs: int = 1
    tolerance: float = 1e-5

    def __str__(self) -> str:
        shown = ",".join(f"{k}={v}" for k, v in self.attributes.items() if not isinstance(v, TensorProto))
        return f"{self.op}-{self.opset}-{shown}"[:100]

    def model(self) -> ModelProto:
        """Every output has its element type inferred by the onnx package, and no declared shape."""
        names = ["" if v is None else f"i{i}" for i, v in enumerate(self.operands)]
        inputs, constants = [], []
        for name, value in zip(names, self.operands, strict=True):
            if isinstance(value, Known):
                constants.append(numpy_helper.from_array(value.array, name))
            elif value is not None:
                kind = helper.np_dtype_to_tensor_dtype(value.dtype)
                inputs.append(helper.make_tensor_value_info(name, kind, value.shape))
        outputs = [f"o{i}" for i in range(self.outputs)]
        node = helper.make_node(self.op, names, outputs, name="node", **self.attributes)
        graph = helper.make_graph(
            [node], "g", inputs, [helper.make_empty_tensor_value_info(name) for name in outputs], constants
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)

    @property
    def arrays(self) -> list[Array]:
        return [value for value in self.operands if isinstance(value, np.ndarray)]


def theirs(model: ModelProto, arrays: Sequence[Array]) -> list[Array]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {i.name: a for i, a in zip(session.get_inputs(), arrays, strict=True)})


_random = np.random.default_rng(0)


def f(*shape: int) -> Array:
    return _random.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> Array:
    return np.abs(f(*shape)) + np.float32(0.1)


def whole(low: int, high: int, *shape: int, dtype: type = np.int64) -> Array:
    return _random.integers(low, high, shape).astype(dtype)


def truth(*shape: int) -> Array:
    return _random.integers(0, 2, shape).astype(np.bool_)


def i64(*values: int) -> Known:
    return Known(np.array(values, np.int64))


def f32(*values: float) -> Known:
    return Known(np.array(values, np.float32))


def scalar(value: float, dtype: Any = np.float32) -> Known:
    return Known(np.array(value, dtype))


SPECIAL = np.array([-INF, -2.5, -1.5, -0.5, -0.0, 0.0, 0.5, 1.5, 2.5, 3.0, 88.0, INF, NAN], np.float32)

UNARY = [
    *(
        "Abs",
        "Ceil",
        "Cos",
        "Erf",
        "Exp",
        "Floor",
        "Neg",
        "Reciprocal",
        "Round",
        "Sigmoid",
        "Sin",
        "Softsign",
    ),
    *("Tanh", "Atan", "Sinh", "Cosh", "Asinh", "Softplus", "Tan"),
]
REDUCTIONS = (
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceMax", "ReduceMean", "ReduceMin"),
    *("ReduceProd", "ReduceSum"),
)
CASES = [
    *(Case(op, [f(3, 4)]) for op in UNARY),
    *(Case(op, [positive(3, 4)]) for op in ("Log", "Sqrt")),
    *(Case(op, [np.tanh(f(3, 4))]) for op in ("Acos", "Asin", "Atanh")),
    Case("Acosh", [positive(3, 4) + 1]),
    *(Case(op, [SPECIAL]) for op in ("Abs", "Ceil", "Exp", "Floor", "Neg", "Round", "Sqrt", "Tanh", "Relu")),
    *(Case(op, [whole(-9, 9, 5, dtype=np.int32)]) for op in ("Abs", "Neg", "Sign")),
    Case("Abs", [whole(0, 9, 5, dtype=np.uint8)]),
    Case("Sign", [np.array([-2.0, -0.0, 0.0, 3.0], np.float32)]),
    Case("IsNaN", [SPECIAL]),
    Case("IsInf", [SPECIAL]),
    Case("IsInf", [SPECIAL], {"detect_negative": 0}),
    Case("IsInf", [SPECIAL], {"detect_positive": 0}),
    Case("IsInf", [SPECIAL], {"detect_positive": 0, "detect_negative": 0}),
    # Activations
    Case("LeakyRelu", [f(3, 4)], {"alpha": 0.1}),
    Case("PRelu", [f(1, 3, 2, 2), f(3, 1, 1)]),
    Case("Elu", [f(3, 4)], {"alpha": 0.7}),
    Case("Selu", [f(3, 4)]),
    Case("Selu", [f(3, 4)], {"alpha": 1.1, "gamma": 2.0}),
    Case("Celu", [f(3, 4)], {"alpha": 2.0}),
    Case("ThresholdedRelu", [f(3, 4)], {"alpha": 0.3}),
    Case("HardSigmoid", [f(3, 4) * 4]),
    Case("HardSigmoid", [f(3, 4)], {"alpha": 0.5, "beta": 0.2}),
    Case("HardSwish", [f(3, 4) * 4]),
    Case("Mish", [f(3, 4) * 4], opset=18),
    Case("Gelu", [f(3, 4)], opset=20),
    Case("Gelu", [f(3, 4)], {"approximate": "tanh"}, opset=20),
    Case("Shrink", [f(3, 4)], {"lambd": 0.3, "bias": 0.1}),
    Case("Softplus", [f(3, 4) * 100]),
    Case("Clip", [f(3, 4)], {"min": -0.5, "max": 0.25}, opset=10),
    Case("Clip", [f(3, 4)], {"max": 0.25}, opset=7),
    Case("Clip", [f(3, 4)]),
    Case("Clip", [f(3, 4), scalar(-0.5)]),
    Case("Clip", [f(3, 4), None, scalar(0.5)]),
    Case("Clip", [f(3, 4), np.array(-0.5, np.float32), np.array(0.1, np.float32)]),
    Case("Clip", [f(3, 4), scalar(0.5), scalar(-0.5)]),
    Case("Clip", [whole(-9, 9, 7, dtype=np.int32), scalar(-3, np.int32), scalar(4, np.int32)]),
    # Arithmetic
    *(Case(op, [f(2, 3, 4), f(3, 1)]) for op in ("Add", "Sub", "Mul", "Div")),
    *(Case(op, [whole(1, 9, 2, 3), whole(-9, -1, 3)]) for op in ("Add", "Sub", "Mul", "Div")),
    Case("Div", [whole(-9, 9, 8, dtype=np.int32), Known(whole(2, 5, 8, dtype=np.int32))]),
    Case("Div", [whole(0, 255, 8, dtype=np.uint8), whole(1, 20, 8, dtype=np.uint8)]),
    Case("Add", [f(3, 4), scalar(2.0)]),
    Case("Add", [f(2, 3, 4), f(2, 3, 1)], opset=7),
    Case("Pow", [positive(3, 4), f(4)]),
    *(Case("Pow", [f(3, 4), scalar(e)]) for e in (1.0, 2.0, 3.0)),
    Case("Pow", [positive(3, 4), scalar(0.5)]),
    Case("Pow", [f(3, 4), scalar(2, np.int64)]),
    Case("Pow", [whole(-4, 4, 5), scalar(3, np.int64)]),
    Case("Mod", [whole(-9, 9, 12), whole(1, 5, 12)]),
    Case("Mod", [whole(-9, 9, 12, dtype=np.int32), whole(-5, -1, 12, dtype=np.int32)]),
    Case("Mod", [whole(-9, 9, 12), whole(1, 5, 12)], {"fmod": 1}),
    Case("Mod", [f(12) * 9, positive(12)], {"fmod": 1}, tolerance=1e-4),
    *(Case(op, [f(2, 3), f(3), f(2, 1)]) for op in ("Sum", "Max", "Min", "Mean")),
    Case("Max", [whole(-9, 9, 4), whole(-9, 9, 4)]),
    Case("Min", [whole(0, 200, 4, dtype=np.uint64), whole(0, 200, 4, dtype=np.uint64)]),
    # Logic
    *(Case(op, [whole(0, 3, 3, 4), whole(0, 3, 4)]) for op in ("Equal", "Greater", "Less", "LessOrEqual")),
    *(Case(op, [SPECIAL, SPECIAL[::-1].copy()]) for op in ("Equal", "Greater", "Less", "GreaterOrEqual")),
    *(Case(op, [truth(3, 4), truth(4)]) for op in ("And", "Or", "Xor", "Equal")),
    Case("Not", [truth(3, 4)]),
    *(
        Case(op, [whole(-9, 9, 5), whole(-9, 9, 5)], opset=18)
        for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")
    ),
    Case("BitwiseNot", [whole(0, 99, 5, dtype=np.uint8)], opset=18),
    Case(
        "BitShift", [whole(0, 99, 5, dtype=np.uint8), whole(0, 7, 5, dtype=np.uint8)], {"direction": "LEFT"}
    ),
    Case(
        "BitShift",
        [whole(0, 99, 5, dtype=np.uint32), whole(0, 9, 5, dtype=np.uint32)],
        {"direction": "RIGHT"},
    ),
    Case("Where", [truth(3, 1), f(3, 4), f(4)]),
    Case("Where", [truth(3, 4), whole(0, 9, 3, 4), whole(0, 9, 3, 1)]),
    # Casts
    Case("Cast", [f(3, 4) * 10], {"to": TensorProto.INT32}),
    Case("Cast", [f(3, 4) * 10], {"to": TensorProto.FLOAT16}, tolerance=1e-3),
    Case("Cast", [f(3, 4)], {"to": TensorProto.DOUBLE}),
    Case("Cast", [np.array([0.0, -0.0, 0.3, -2.0, NAN], np.float32)], {"to": TensorProto.BOOL}),
    Case("Cast", [positive(4) * 9], {"to": TensorProto.UINT8}),
    Case("Cast", [truth(5)], {"to": TensorProto.FLOAT}),
    Case("Cast", [truth(5)], {"to": TensorProto.INT64}),
    Case("Cast", [whole(0, 255, 5, dtype=np.uint8)], {"to": TensorProto.FLOAT}),
    Case("Cast", [whole(0, 255, 5, dtype=np.uint8)], {"to": TensorProto.INT32}),
    Case("Cast", [whole(-500, 500, 5)], {"to": TensorProto.INT8}),
    Case("CastLike", [f(3), whole(0, 1, 2)]),
    # Convolutions
    Case("Conv", [f(2, 3, 7, 6), f(4, 3, 3, 2)]),
    Case("Conv", [f(1, 3, 7, 6), Known(f(4, 3, 3, 3)), f(4)], {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    Case("Conv", [f(1, 4, 7, 6), f(6, 2, 3, 3)], {"group": 2, "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    Case("Conv", [f(1, 4, 7, 6), f(4, 1, 2, 4)], {"group": 4, "strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    Case("Conv", [f(1, 2, 9), f(3, 2, 4)], {"auto_pad": "VALID", "strides": [3]}),
    Case("Conv", [f(1, 2, 5, 4, 5), f(3, 2, 2, 2, 3)], {"pads": [1, 0, 1, 0, 1, 0]}, tolerance=1e-4),
    Case("ConvTranspose", [f(1, 3, 4, 5), f(3, 2, 3, 3), f(2)]),
    Case("ConvTranspose", [f(1, 3, 4, 5), f(3, 2, 3, 2)], {"strides": [2, 3], "output_padding": [1, 2]}),
    Case(
        "ConvTranspose",
        [f(1, 4, 4, 5), f(4, 2, 3, 3)],
        {"group": 2, "dilations": [2, 1], "pads": [1, 0, 0, 2]},
    ),
    Case("ConvTranspose", [f(1, 2, 4, 4), f(2, 3, 3, 3)], {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    Case("ConvTranspose", [f(1, 2, 4, 4), f(2, 3, 3, 3)], {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    Case("ConvTranspose", [f(1, 2, 4, 4), f(2, 3, 3, 3)], {"strides": [3, 2], "output_shape": [10, 8]}),
    # Pools
    Case("MaxPool", [f(1, 2, 7, 6)], {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    Case("MaxPool", [f(1, 2, 7, 6)], {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}, outputs=2),
    Case("MaxPool", [f(1, 2, 9)], {"kernel_shape": [3], "dilations": [2], "pads": [2, 1]}, outputs=2),
    Case("MaxPool", [f(1, 2, 7, 6)], {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER"}, opset=8),
    Case("MaxPool", [whole(-9, 9, 1, 2, 6, 6, dtype=np.int8)], {"kernel_shape": [3, 3]}),
    Case("AveragePool", [f(1, 2, 7, 6)], {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    Case(
        "AveragePool", [f(1, 2, 7, 6)], {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "count_include_pad": 1}
    ),
    Case("AveragePool", [f(1, 2, 8)], {"kernel_shape": [3], "dilations": [2], "ceil_mode": 1}, opset=19),
    Case("LpPool", [f(1, 2, 7, 6)], {"kernel_shape": [3, 2], "p": 2, "pads": [1, 0, 1, 1]}, tolerance=1e-4),
    Case("LpPool", [f(1, 2, 7, 6)], {"kernel_shape": [2, 2], "p": 1, "strides": [2, 2]}, tolerance=1e-4),
    *(Case(op, [f(2, 3, 4, 5)]) for op in ("GlobalAveragePool", "GlobalMaxPool")),
    # Matrix products
    *(
        Case(
            "Gemm",
            [f(*((4, 3) if ta else (3, 4))), f(*((5, 4) if tb else (4, 5))), f(*c)],
            {"transA": ta, "transB": tb, "alpha": 0.5, "beta": 2.0},
        )
        for ta, tb, c in ((0, 0, (5,)), (1, 0, (3, 1)), (0, 1, (1, 5)), (1, 1, ()), (0, 0, (1,)))
    ),
    Case("Gemm", [f(3, 4), f(4, 5)]),
    Case("Gemm", [f(3, 4), f(4, 5), f(3, 5)], {"beta": 0.0}),
    Case("Gemm", [f(3, 4), f(4, 5), f(5)], opset=7),
    *(
        Case("MatMul", [f(*a), f(*b)])
        for a, b in (
            ((3, 4), (4, 5)),
            ((4,), (4, 5)),
            ((3, 4), (4,)),
            ((4,), (4,)),
            ((2, 1, 3, 4), (5, 4, 2)),
        )
    ),
    # Reductions
    *(
        Case(op, [positive(2, 3, 4)], {"axes": [-1, 0], "keepdims": keep}, opset=12, tolerance=1e-4)
        for op in (*REDUCTIONS, "ReduceLogSumExp", "ReduceSumSquare")
        for keep in (0, 1)
    ),
    *(Case(op, [positive(2, 3, 4), i64(1)], {"keepdims": 0}, opset=18, tolerance=1e-4) for op in REDUCTIONS),
    Case("ReduceSum", [f(2, 3, 4)], {"noop_with_empty_axes": 1}),
    Case("ReduceL2", [f(2, 3, 4)], {"noop_with_empty_axes": 1}, opset=18),
    Case("ReduceSum", [f(2, 3, 4)], opset=13, tolerance=1e-4),
    Case("ReduceMax", [whole(-9, 9, 3, 4, dtype=np.int32)], {"axes": [1]}),
    Case("ReduceMean", [f(2, 3, 4)], {"axes": [1, 2]}, opset=7),
    *(
        Case(
            op, [whole(0, 3, 3, 5, dtype=np.int32)], {"axis": -1, "keepdims": keep, "select_last_index": last}
        )
        for op in ("ArgMax", "ArgMin")
        for keep in (0, 1)
        for last in (0, 1)
    ),
    # Normalisation
    *(
        Case(op, [f(2, 3, 4)], {"axis": axis}, opset=opset)
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for axis in (0, 1, -1)
        for opset in (11, 13)
    ),
    Case("BatchNormalization", [f(2, 3, 4, 4), *(Known(positive(3)) for _ in range(4))], tolerance=1e-4),
    Case("BatchNormalization", [f(2, 3, 4), *(positive(3) for _ in range(4))], {"epsilon": 0.1}, opset=9),
    Case(
        "BatchNormalization", [f(2, 300), *(Known(positive(300)) for _ in range(4))], opset=15, tolerance=1e-4
    ),
    Case("InstanceNormalization", [f(2, 3, 4, 5), f(3), f(3)], {"epsilon": 0.01}, tolerance=1e-4),
    Case("LayerNormalization", [f(2, 3, 4), f(4), f(4)], tolerance=1e-4),
    Case("LayerNormalization", [f(2, 3, 4), f(3, 4)], {"axis": 1, "epsilon": 0.1}, tolerance=1e-4),
    Case("LayerNormalization", [f(2, 3, 4), f(4), f(4)], outputs=3, tolerance=1e-4),
    *(
        Case("GroupNormalization", [f(2, 6, 4), f(n), f(n)], {"num_groups": 3}, opset=opset, tolerance=1e-4)
        for opset, n in ((18, 3), (21, 6))
    ),
    Case("MeanVarianceNormalization", [f(2, 3, 4, 5)], tolerance=1e-4),
    *(Case("LpNormalization", [f(3, 4)], {"p": p, "axis": axis}) for p in (1, 2) for axis in (0, -1)),
    Case("LRN", [f(1, 7, 3, 3)], {"size": 3, "alpha": 0.1, "beta": 0.5, "bias": 2.0}),
    Case("LRN", [f(1, 7, 3, 3)], {"size": 5}, opset=7),
    # Movement
    Case("Identity", [f(3)]),
    Case("Reshape", [f(2, 3, 4), i64(0, -1)]),
    Case("Reshape", [f(2, 3, 4), i64(4, 1, 6)], opset=5 + 2),
    Case("Reshape", [f(0, 3), i64(3, 0)], {"allowzero": 1}),
    *(Case("Flatten", [f(2, 3, 4)], {"axis": axis}) for axis in (0, 1, 3, -1)),
    Case("Squeeze", [f(1, 3, 1)], {"axes": [0]}, opset=11),
    Case("Squeeze", [f(1, 3, 1)]),
    Case("Squeeze", [f(1, 3, 1), i64(-1)]),
    Case("Unsqueeze", [f(3, 4)], {"axes": [0, 3]}, opset=11),
    Case("Unsqueeze", [f(3, 4), i64(-1, 1)]),
    Case("Transpose", [f(2, 3, 4)]),
    Case("Transpose", [f(2, 3, 4)], {"perm": [1, 0, 2]}),
    Case("DepthToSpace", [f(1, 8, 2, 3)], {"blocksize": 2}),
    Case("DepthToSpace", [f(1, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}),
    Case("SpaceToDepth", [f(1, 2, 4, 6)], {"blocksize": 2}),
    Case("Concat", [f(2, 3), f(2, 1), f(2, 0)], {"axis": -1}),
    Case("Concat", [f(2, 3)], {"axis": 0}),
    Case("Split", [f(2, 6)], {"axis": 1}, opset=11, outputs=3),
    Case("Split", [f(2, 6)], {"axis": -1, "split": [1, 5]}, opset=11, outputs=2),
    Case("Split", [f(6), i64(4, 2)], outputs=2),
    Case("Split", [f(7)], {"num_outputs": 3}, opset=18, outputs=3),
    Case("Slice", [f(5, 6)], {"starts": [1, -3], "ends": [100, -1]}, opset=9),
    Case("Slice", [f(5, 6)], {"starts": [1], "ends": [3], "axes": [1]}, opset=9),
    Case("Slice", [f(5, 6), i64(-1, 0), i64(-100, 5), i64(0, 1), i64(-2, 2)]),
    Case("Slice", [f(5, 6), i64(4), i64(2), i64(-1)]),
    Case("Slice", [f(5, 6), i64(0), i64(2**63 - 1), i64(0), i64(3)]),
    Case("Slice", [f(5), i64(3), i64(-(2**63)), i64(0), i64(-1)]),
    Case("Pad", [f(2, 3)], {"pads": [0, 1, 2, 0], "value": 1.5}, opset=10),
    Case("Pad", [f(2, 3), i64(0, 1, 2, -1), scalar(1.5)]),
    *(Case("Pad", [f(4, 5), i64(1, 2, 3, 0)], {"mode": mode}) for mode in ("edge", "reflect", "constant")),
    Case("Pad", [f(4, 5), i64(2, 6, 1, 7)], {"mode": "wrap"}, opset=19),
    Case("Pad", [f(4, 5), i64(1, 2), None, i64(-1)], {"mode": "edge"}, opset=18),
    Case("Pad", [whole(0, 9, 3), i64(1, 1), scalar(7, np.int64)]),
    Case("Expand", [f(3, 1), i64(2, 1, 4)]),
    Case("Expand", [f(3, 4), i64(1)]),
    Case("Tile", [f(2, 3), i64(2, 3)]),
    Case("Tile", [f(2), i64(0)]),
    Case("Gather", [f(4, 5), Known(np.array([[0, -1], [2, 1]]))]),
    Case("Gather", [f(4, 5), whole(-5, 5, 3)], {"axis": 1}),
    Case("Gather", [f(4, 5), scalar(-2, np.int64)], {"axis": 1}),
    Case("Gather", [f(4, 5), i64(3)], {"axis": 0}),
    # Constants
    Case("ConstantOfShape", [i64(2, 3)]),
    Case("ConstantOfShape", [i64(2, 3)], {"value": numpy_helper.from_array(np.array([7], np.int32))}),
    Case("ConstantOfShape", [i64(2, 3)], {"value": numpy_helper.from_array(np.array([NAN], np.float32))}),
    Case("Where", [truth(3), f(3), scalar(-INF)]),
    Case("Max", [f(3), scalar(NAN)]),
    Case("Shape", [f(2, 3, 4)]),
    Case("Shape", [f(2, 3, 4)], {"start": 1, "end": -1}),
    Case("Size", [f(2, 3, 4)]),
    Case("Range", [scalar(1, np.int64), scalar(9, np.int64), scalar(3, np.int64)]),
    Case("Range", [scalar(1.0), scalar(-2.1), scalar(-0.5)]),
    Case("EyeLike", [f(3, 4)], {"k": 1}),
    Case("EyeLike", [f(3, 4)], {"k": -1, "dtype": TensorProto.INT64}),
    *(Case("Trilu", [f(2, 4, 3)], {"upper": upper}) for upper in (0, 1)),
    Case("Trilu", [whole(0, 9, 4, 4), scalar(-1, np.int64)], {"upper": 0}),
    Case("Dropout", [f(3, 4)], opset=7),
    Case("Dropout", [f(3, 4), scalar(0.3)], outputs=2),
    Case("OneHot", [whole(-4, 4, 2, 3), scalar(4, np.int64), f(2)]),
    Case("OneHot", [whole(0, 4, 2, 3), i64(4), f(2)], {"axis": 1}),
    # Resizing
    Case("Upsample", [f(1, 2, 2, 3)], {"mode": "nearest", "scales": [1.0, 1.0, 2.0, 3.0]}, opset=7),
    Case("Upsample", [f(1, 2, 2, 3), f32(1, 1, 2, 2)], {"mode": "linear"}, opset=9),
    Case("Resize", [f(1, 2, 4, 6), f32(1, 1, 2, 0.5)], opset=10),
    Case("Resize", [f(1, 2, 4, 6), f32(1, 1, 1.5, 2)], {"mode": "linear"}, opset=10),
    *(
        Case(
            "Resize",
            [f(1, 1, 4, 6), None, f32(1, 1, *scales)],
            {"mode": mode, "coordinate_transformation_mode": how},
            tolerance=1e-4,
        )
        for mode in ("nearest", "linear", "cubic")
        for how in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
        for scales in ((2.0, 0.5), (2.5, 1.0))
    ),
    *(
        Case("Resize", [f(1, 1, 4, 6), None, None, i64(1, 1, 7, 4)], {"mode": mode}, tolerance=1e-4)
        for mode in ("nearest", "linear", "cubic")
    ),
    *(
        Case("Resize", [f(1, 1, 4, 6), None, f32(1, 1, 1.5, 0.7)], {"nearest_mode": mode})
        for mode in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    ),
    Case(
        "Resize",
        [f(1, 1, 4, 6), None, None, i64(7, 4)],
        {"mode": "linear", "axes": [2, 3]},
        opset=18,
        tolerance=1e-4,
    ),
    *(
        Case(
            "Resize",
            [f(1, 1, 4, 6), None, None, i64(8, 8)],
            {"axes": [2, 3], "keep_aspect_ratio_policy": policy},
            opset=18,
        )
        for policy in ("not_larger", "not_smaller")
    ),
    Case(
        "Resize",
        [f(1, 1, 4, 6), None, f32(1, 1, 1.5, 1.5)],
        {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1},
        tolerance=1e-4,
    ),
    # Recurrences
    *(
        Case(
            op,
            [
                f(5, 2, 3),
                f(d, gates * 4, 3) * 0.5,
                f(d, gates * 4, 4) * 0.5,
                f(d, 2 * gates * 4),
                None,
                f(d, 2, 4),
            ],
            {"hidden_size": 4, "direction": direction, **extra},
            outputs=2,
        )
        for op, gates, extra in (
            ("RNN", 1, {}),
            ("GRU", 3, {}),
            ("GRU", 3, {"linear_before_reset": 1}),
            ("LSTM", 4, {}),
            ("LSTM", 4, {"clip": 0.5}),
            ("LSTM", 4, {"input_forget": 1}),
        )
        for direction, d in (("forward", 1), ("reverse", 1), ("bidirectional", 2))
    ),
    Case(
        "LSTM",
        [
            f(3, 2, 3),
            Known(f(1, 16, 3)),
            Known(f(1, 16, 4)),
            None,
            Known(np.array([3, 3], np.int32)),
            f(1, 2, 4),
            f(1, 2, 4),
            Known(f(1, 12)),
        ],
        {"hidden_size": 4},
        outputs=3,
    ),
    Case("RNN", [f(3, 2, 3), f(1, 4, 3), f(1, 4, 4)], {"hidden_size": 4, "activations": ["Relu"]}, outputs=1),
    # Gathering and running sums
    Case("GatherElements", [f(3, 4), whole(-3, 3, 2, 4)], {"axis": 0}),
    Case("GatherElements", [f(2, 3, 4), whole(0, 4, 2, 3, 6, dtype=np.int32)], {"axis": -1}),
    Case("GatherND", [f(3, 4, 5), whole(0, 3, 2, 2)]),
    Case("GatherND", [f(3, 4, 5), whole(-3, 3, 2, 3, 3)]),
    Case("GatherND", [f(2, 3, 4), whole(0, 3, 2, 5, 1)], {"batch_dims": 1}),
    *(
        Case("CumSum", [f(3, 7), Known(np.array(axis, np.int64))], {"exclusive": e, "reverse": r})
        for axis in (0, -1)
        for e in (0, 1)
        for r in (0, 1)
    ),
    Case("CumSum", [whole(-9, 9, 5, dtype=np.int32), Known(np.array([0], np.int64))]),
    # Quantisation
    Case("QuantizeLinear", [f(3, 4) * 50, scalar(0.5), scalar(3, np.uint8)]),
    Case("QuantizeLinear", [f(3, 4) * 50, f32(0.5, 1, 2), Known(np.array([0, 5, -3], np.int8))], {"axis": 0}),
    Case("QuantizeLinear", [f(3, 4) * 50, scalar(0.5)]),
    Case("DequantizeLinear", [whole(0, 255, 3, 4, dtype=np.uint8), scalar(0.5), scalar(3, np.uint8)]),
    Case("DequantizeLinear", [whole(-99, 99, 3, 4, dtype=np.int8), f32(0.5, 1, 2)], {"axis": 0}),
]

# Operators that ONNX defines as functions of others
CASES += [
    Case("DynamicQuantizeLinear", [f(3, 4)], outputs=3),
    Case("CenterCropPad", [f(4, 5), i64(3, 7)], opset=18),
    Case("NegativeLogLikelihoodLoss", [f(3, 4), whole(0, 4, 3)], {"reduction": "mean"}),
    Case("SoftmaxCrossEntropyLoss", [f(3, 4, 2), whole(0, 4, 3, 2)], {"reduction": "sum"}, tolerance=1e-4),
]

U8, I8 = np.uint8, np.int8
SMALL = (-64, 64)
"""
int8 values for which ONNX Runtime is right on every processor: without VNNI instructions it adds two products of
uint8 and int8 in 16 bits, which saturate.
"""
CASES += [
    Case("MatMulInteger", [whole(0, 255, 3, 4, dtype=U8), whole(0, 255, 4, 5, dtype=U8)]),
    Case(
        "MatMulInteger",
        [whole(0, 255, 2, 3, 4, dtype=U8), whole(*SMALL, 4, 5, dtype=I8), scalar(7, U8), scalar(-3, I8)],
    ),
    Case(
        "MatMulInteger",
        [
            whole(0, 255, 3, 4, dtype=U8),
            Known(whole(*SMALL, 4, 5, dtype=I8)),
            np.array(9, U8),
            Known(whole(-9, 9, 5, dtype=I8)),
        ],
    ),
    Case("ConvInteger", [whole(0, 255, 1, 2, 5, 5, dtype=U8), whole(0, 255, 3, 2, 3, 3, dtype=U8)]),
    Case(
        "ConvInteger",
        [
            whole(0, 255, 1, 2, 5, 5, dtype=U8),
            whole(0, 255, 3, 2, 3, 3, dtype=U8),
            scalar(9, U8),
            scalar(3, U8),
        ],
        {"pads": [1, 1, 0, 1], "strides": [2, 1]},
    ),
    Case(
        "QLinearMatMul",
        [
            *(whole(0, 255, 3, 4, dtype=U8), scalar(0.02), scalar(100, U8)),
            *(whole(0, 255, 4, 5, dtype=U8), scalar(0.03), scalar(120, U8)),
            *(scalar(0.2), scalar(128, U8)),
        ],
    ),
    Case(
        "QLinearConv",
        [
            *(whole(0, 255, 1, 2, 5, 5, dtype=U8), scalar(0.02), scalar(100, U8)),
            *(Known(whole(*SMALL, 3, 2, 3, 3, dtype=I8)), f32(0.03, 0.02, 0.01), Known(np.zeros(3, I8))),
            *(scalar(0.2), scalar(128, U8), Known(whole(-99, 99, 3, dtype=np.int32))),
        ],
        {"pads": [1, 1, 1, 1]},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_single_node(converted: Callable[..., ModuleOp], case: Case) -> None:
    model = case.model()
    got, want = run_values(converted(model), case.arrays), theirs(model, case.arrays)
    assert len(got) == len(want)
    for mine, other in zip(got, want, strict=True):
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)
        np.testing.assert_allclose(mine, other, case.tolerance, case.tolerance)


# Results without elements, and sums of nothing
CASES += [
    Case("Conv", [f(1, 0, 5, 5), Known(f(4, 0, 3, 3)), f(4)]),
    Case("Conv", [f(0, 2, 5, 5), Known(f(4, 2, 3, 3))]),
    Case("ConvTranspose", [f(1, 0, 5, 5), Known(f(0, 4, 3, 3)), Known(f(4))]),
    Case("MatMul", [f(2, 3, 0), f(0, 4)]),
    Case("Gemm", [f(3, 0), f(0, 4), f(3, 1)]),
    Case("Resize", [f(1, 2, 1, 4), None, f32(1, 1, 0.5, 2)]),
    Case("Resize", [f(0, 2, 3, 4), None, f32(1, 1, 2, 2)], {"mode": "linear"}),
    Case("Softmax", [f(0, 3)]),
    Case("MaxPool", [f(0, 2, 3, 5)], {"kernel_shape": [1, 3]}, outputs=2),
]


@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_recurrence_of_no_steps(converted: Callable[..., ModuleOp], op: str, gates: int) -> None:
    """The last state is the first one. ONNX Runtime has no answer: it leaves the memory as it is, or crashes."""
    first = f(1, 2, 4)
    operands = [f(0, 2, 3), f(1, gates * 4, 3), f(1, gates * 4, 4), None, None, first]
    case = Case(op, operands, {"hidden_size": 4}, outputs=2)
    every, last = run_values(converted(case.model()), case.arrays)
    assert every.shape == (0, 1, 2, 4)
    np.testing.assert_array_equal(last, first)


TOO_LARGE = [
    Case("AveragePool", [f(1, 1, 3, 3)], {"kernel_shape": [5, 5]}),
    Case("MaxPool", [f(1, 1, 3, 3)], {"kernel_shape": [2, 3], "dilations": [4, 1]}),
    Case("Conv", [f(1, 1, 3, 3), Known(f(1, 1, 4, 3))]),
]


@pytest.mark.parametrize("case", TOO_LARGE, ids=str)
def test_windows_larger_than_the_input_are_refused(converted: Callable[..., ModuleOp], case: Case) -> None:
    with pytest.raises((Fail, InvalidArgument)):
        theirs(case.model(), case.arrays)
    with pytest.raises(
        OccamyError, match=r"node 'node' \(\w+\): a window of .* elements is larger than the input"
    ):
        converted(case.model())
