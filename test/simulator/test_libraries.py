"""The simulated cuDNN against ONNX Runtime, the simulated cuBLAS against numpy, and what both refuse."""

import ctypes

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from occamy_xdsl.simulator import Simulator

RNG = np.random.default_rng(7)


def onnx_run(op: str, inputs: list[np.ndarray], **attributes) -> np.ndarray:
    """The result of one ONNX operator in ONNX Runtime."""
    names = [f"x{i}" for i in range(len(inputs))]
    infos = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape)
        for n, x in zip(names, inputs, strict=True)
    ]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **attributes)], "g", infos, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, dict(zip(names, inputs, strict=True)))[0]


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


class Convolution:
    """One convolution set up in the simulator, to be run with any arguments changed."""

    def __init__(self, p, x, w, y_shape, pads, strides, dilations, groups=1, channels_last=False):
        self.p, self.shape = p, y_shape
        self.handle = p.make("cudnnCreate")
        self.w_descriptor = p.make("cudnnCreateFilterDescriptor")
        rank = x.ndim
        p.call("cudnnSetFilterNdDescriptor", self.w_descriptor, 0, 0, rank, p.ints(*w.shape))
        self.convolution = p.make("cudnnCreateConvolutionDescriptor")
        geometry = [p.ints(*g) for g in (pads, strides, dilations)]
        p.call("cudnnSetConvolutionNdDescriptor", self.convolution, rank - 2, *geometry, 1, 0)
        p.call("cudnnSetConvolutionGroupCount", self.convolution, groups)
        self.x_descriptor, self.y_descriptor = p.tensor(*x.shape), p.tensor(*y_shape)
        self.x, self.w = p.upload(x), p.upload(w)
        self.y = p.make("cudaMalloc", 4 * int(np.prod(y_shape)))

    def workspace_bytes(self, algorithm: int, status: int = 0) -> int:
        size = ctypes.c_size_t()
        arguments = (self.handle, self.x_descriptor, self.w_descriptor, self.convolution, self.y_descriptor)
        name = "cudnnGetConvolutionForwardWorkspaceSize"
        self.p.call(name, *arguments, algorithm, ctypes.byref(size), status=status)
        return size.value

    def forward(
        self, algorithm: int = 0, workspace: int | None = None, size: int = 0, status: int = 0, **changed
    ):
        p, one, zero = self.p, self.p.pointer(1.0), self.p.pointer(0.0)
        address = {"x": self.x, "w": self.w, "y": self.y} | changed
        p.call(
            "cudnnConvolutionForward",
            *(self.handle, one, self.x_descriptor, address["x"], self.w_descriptor, address["w"]),
            *(self.convolution, algorithm, workspace, size, zero, self.y_descriptor, address["y"]),
            status=status,
        )  # fmt: skip

    def destroy(self) -> None:
        p = self.p
        for kind, handle in (
            ("Tensor", self.x_descriptor),
            ("Tensor", self.y_descriptor),
            ("Filter", self.w_descriptor),
            ("Convolution", self.convolution),
        ):
            p.call(f"cudnnDestroy{kind}Descriptor", handle)
        p.call("cudnnDestroy", self.handle)
        for address in (self.x, self.w, self.y):
            p.call("cudaFree", address)


@pytest.mark.parametrize(
    ("x", "w", "pads", "strides", "dilations", "groups"),
    [
        ((2, 3, 9, 8), (4, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1),
        ((1, 4, 11, 10), (6, 2, 3, 2), (2, 0), (2, 3), (2, 1), 2),
        ((1, 6, 7, 7), (6, 1, 3, 3), (1, 1), (1, 1), (1, 1), 6),
        ((1, 2, 6, 5, 7), (3, 2, 2, 3, 3), (0, 1, 1), (1, 2, 1), (1, 1, 2), 1),
    ],
)
def test_convolution(program, x, w, pads, strides, dilations, groups) -> None:
    a, b = random(*x), random(*w)
    expected = onnx_run(
        "Conv", [a, b], pads=[*pads, *pads], strides=strides, dilations=dilations, group=groups
    )
    with Simulator() as simulator:
        p = program(simulator)
        c = Convolution(p, a, b, expected.shape, pads, strides, dilations, groups)
        assert c.workspace_bytes(0) == 0
        size = c.workspace_bytes(1)
        workspace = p.make("cudaMalloc", size)
        for algorithm, address, bytes_ in ((0, None, 0), (1, workspace, size)):
            c.forward(algorithm, address, bytes_)
            result = p.download(c.y, expected.shape)
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
        p.call("cudaFree", workspace)
        c.destroy()


def test_convolution_with_bias_residual_and_relu_in_nhwc(program) -> None:
    """The fused call, activations in NHWC and the residual in the place of the result."""
    x, w, z, bias = random(1, 5, 6, 7), random(4, 5, 3, 3), random(1, 4, 6, 7), random(4)
    expected = onnx_run("Conv", [x, w, bias], pads=[1, 1, 1, 1])
    expected = np.maximum(expected + z, 0)
    with Simulator() as simulator:
        p = program(simulator)
        handle = p.make("cudnnCreate")
        descriptors: list[tuple[str, int]] = []

        def make(kind: str) -> int:
            descriptors.append((kind, p.make(f"cudnnCreate{kind}Descriptor")))
            return descriptors[-1][1]

        xd, yd, bd = make("Tensor"), make("Tensor"), make("Tensor")
        wd, cd, ad = make("Filter"), make("Convolution"), make("Activation")
        p.call("cudnnSetTensor4dDescriptor", xd, 1, 0, *x.shape)
        p.call("cudnnSetTensor4dDescriptorEx", yd, 0, *z.shape, 168, 1, 28, 4)
        p.call("cudnnSetTensor4dDescriptor", bd, 0, 0, 1, 4, 1, 1)
        p.call("cudnnSetFilter4dDescriptor", wd, 0, 1, *w.shape)
        p.call("cudnnSetConvolution2dDescriptor", cd, 1, 1, 1, 1, 1, 1, 1, 0)
        p.call("cudnnSetConvolutionMathType", cd, 3)
        p.call("cudnnSetActivationDescriptor", ad, 1, 1, 0.0)
        arrays = [x.transpose(0, 2, 3, 1), w.transpose(0, 2, 3, 1), bias, z.transpose(0, 2, 3, 1)]
        dx, dw, db, dy = (p.upload(a) for a in arrays)
        one = p.pointer(1.0)

        def run(activation: int, algorithm: int, status: int) -> None:
            p.call(
                "cudnnConvolutionBiasActivationForward",
                *(handle, one, xd, dx, wd, dw, cd, algorithm, None, 0, one, yd, dy, bd, db),
                *(activation, yd, dy),
                status=status,
            )

        identity = make("Activation")
        p.call("cudnnSetActivationDescriptor", identity, 5, 1, 0.0)
        run(identity, 0, 3000)  # cuDNN fuses IDENTITY only in algorithm 1
        run(ad, 0, 0)
        result = p.download(dy, (1, 6, 7, 4)).transpose(0, 3, 1, 2)
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
        for kind, descriptor in descriptors:
            p.call(f"cudnnDestroy{kind}Descriptor", descriptor)
        p.call("cudnnDestroy", handle)
        for address in (dx, dw, db, dy):
            p.call("cudaFree", address)


def test_what_convolutions_refuse(program) -> None:
    """Shapes that only pads on one side would give, algorithms that do not fit, a workspace that is short."""
    with Simulator() as simulator:
        p = program(simulator)
        c = Convolution(p, random(1, 2, 8, 8), random(2, 2, 3, 3), (1, 2, 7, 7), (0, 0), (1, 1), (1, 1))
        c.forward(status=2000)
        c.destroy()
        c = Convolution(p, random(1, 2, 8, 8), random(2, 2, 3, 3), (1, 2, 3, 3), (0, 0), (2, 2), (1, 1))
        for algorithm in (3, 4, 5, 6, 7):
            c.workspace_bytes(algorithm, status=3000)
        c.forward(2, None, 0, status=2000)
        c.destroy()
    first, *_, last = simulator.report().refusals
    assert "the output has shape (1, 2, 7, 7), the convolution gives (1, 2, 6, 6)" in first
    assert "a workspace of 0 bytes, algorithm 2 needs 648" in last


def test_what_convolutions_must_not_do(program, lenient) -> None:
    """Workspace over an operand, in-place work, and a value that a workspace has overwritten."""
    x, w = random(1, 2, 8, 8), random(2, 2, 3, 3)
    with lenient as simulator:
        p = program(simulator)
        c = Convolution(p, x, w, (1, 2, 6, 6), (0, 0), (1, 1), (1, 1))
        c.forward(2, c.x, 4096, status=2000)
        c.forward(0, None, 0, y=c.x, status=2000)
        pool = p.upload(np.zeros(2048, np.float32))
        c.forward(2, pool, 4096)
        p.call("cudaMemcpyAsync", c.x, pool + 4000, 256, 3, None)
        p.call("cudaStreamSynchronize", None, status=700)
        p.call("cudaFree", pool)
        c.destroy()
    overlap, in_place, clobbered = (v.message for v in simulator.violations)
    assert overlap == "x and the workspace overlap"
    assert in_place == "x and the output overlap"
    assert clobbered.startswith("reads 96 bytes that 'cudnnConvolutionForward' overwrote as workspace")


@pytest.mark.parametrize(
    ("mode", "op", "attributes"),
    [
        (0, "MaxPool", {}),
        (1, "AveragePool", {"count_include_pad": 1}),
        (2, "AveragePool", {"count_include_pad": 0}),
    ],
)
def test_pooling(program, mode: int, op: str, attributes: dict) -> None:
    x = random(2, 3, 9, 7)
    expected = onnx_run(op, [x], kernel_shape=[3, 2], pads=[1, 0, 1, 0], strides=[2, 1], **attributes)
    with Simulator() as simulator:
        p = program(simulator)
        handle, pooling = p.make("cudnnCreate"), p.make("cudnnCreatePoolingDescriptor")
        p.call("cudnnSetPooling2dDescriptor", pooling, mode, 1, 3, 2, 1, 0, 2, 1)
        xd, yd = p.tensor(*x.shape), p.tensor(*expected.shape)
        dx, dy = p.upload(x), p.make("cudaMalloc", expected.nbytes)
        one, zero = p.pointer(1.0), p.pointer(0.0)
        p.call("cudnnPoolingForward", handle, pooling, one, xd, dx, zero, yd, dy)
        np.testing.assert_allclose(p.download(dy, expected.shape), expected, rtol=1e-5)
        p.call("cudnnPoolingForward", handle, pooling, one, xd, dx, zero, xd, dy, status=2000)
        for kind, d in (("Tensor", xd), ("Tensor", yd), ("Pooling", pooling)):
            p.call(f"cudnnDestroy{kind}Descriptor", d)
        p.call("cudnnDestroy", handle)
        p.call("cudaFree", dx)
        p.call("cudaFree", dy)


@pytest.mark.parametrize(("algorithm", "op"), [(0, "Softmax"), (1, "Softmax"), (2, "LogSoftmax")])
def test_softmax(program, algorithm: int, op: str) -> None:
    x = random(3, 5, 2, 1)
    expected = onnx_run(op, [x], axis=1)
    with Simulator() as simulator:
        p = program(simulator)
        handle, d, dx = p.make("cudnnCreate"), p.tensor(*x.shape), p.upload(x)
        one, zero = p.pointer(1.0), p.pointer(0.0)
        p.call("cudnnSoftmaxForward", handle, algorithm, 1, one, d, dx, zero, d, dx)
        np.testing.assert_allclose(p.download(dx, x.shape), expected, rtol=1e-4, atol=1e-6)
        p.call("cudnnDestroyTensorDescriptor", d)
        p.call("cudnnDestroy", handle)
        p.call("cudaFree", dx)


@pytest.mark.parametrize("trans_a", [0, 1])
@pytest.mark.parametrize("trans_b", [0, 1])
def test_sgemm_is_column_major(program, trans_a: int, trans_b: int) -> None:
    """Padding between columns stays as it is, and beta = 0 does not read the result."""
    m, n, k = 3, 5, 4
    a, b = random(m, k), random(k, n)
    with Simulator() as simulator:
        p = program(simulator)
        handle = p.make("cublasCreate_v2")

        def stored(matrix: np.ndarray, leading: int) -> np.ndarray:
            """Columns of the matrix, `leading` elements apart, padding -1."""
            storage = np.full((matrix.shape[1], leading), -1, np.float32)
            storage[:, : matrix.shape[0]] = matrix.T
            return storage

        da = p.upload(stored(a.T if trans_a else a, 6))
        db = p.upload(stored(b.T if trans_b else b, 7))
        dc = p.make("cudaMalloc", 4 * n * 5)
        arguments = (handle, trans_a, trans_b, m, n, k, p.pointer(2.0), da, 6, db, 7)
        p.call("cublasSgemm_v2", *arguments, p.pointer(0.0), dc, 5)
        p.call("cudaMemsetAsync", dc + 4 * 3, 0, 8, None)
        p.call("cublasSgemm_v2", *arguments, p.pointer(0.5), dc, 5)
        column = np.zeros(3, np.float32)
        p.call("cudaMemcpyAsync", column.ctypes.data, dc + 4 * 5, 12, 2, None)
        p.call("cudaStreamSynchronize", None)
        np.testing.assert_allclose(column, 3 * (a @ b)[:, 1], rtol=1e-5)
        p.call("cublasSgemm_v2", *arguments, p.pointer(0.0), dc, 2, status=7)  # fewer than the rows of C
        p.call("cublasDestroy_v2", handle)
        for address in (da, db, dc):
            p.call("cudaFree", address)
    assert simulator.report().notes == {
        "matrix products for which cuBLAS allocates a workspace of its own": 2
    }


def test_batched_sgemm_with_workspace(program) -> None:
    """Row-major products as column-major ones of transposes, one matrix shared by the whole batch."""
    a, b = random(3, 2, 4), random(4, 5)
    with Simulator() as simulator:
        p = program(simulator)
        handle, stream = p.make("cublasCreate_v2"), p.make("cudaStreamCreateWithFlags", 1)
        workspace = p.make("cudaMalloc", 4096)
        p.call("cublasSetStream_v2", handle, stream)
        p.call("cublasSetWorkspace_v2", handle, workspace + 4, 4000, status=7)
        p.call("cublasSetWorkspace_v2", handle, workspace, 4096)
        p.call("cublasSetMathMode", handle, 2)
        da, db = p.upload(a, stream), p.upload(b, stream)
        dc = p.make("cudaMalloc", 4 * 3 * 2 * 5)
        one, zero = p.pointer(1.0), p.pointer(0.0)
        p.call(
            "cublasSgemmStridedBatched",
            *(handle, 0, 0, 5, 2, 4, one, db, 5, 0, da, 4, 8, zero, dc, 5, 10, 3),
        )
        np.testing.assert_allclose(p.download(dc, (3, 2, 5), stream=stream), a @ b, rtol=1e-5)
        p.call("cublasDestroy_v2", handle)
        for address in (da, db, dc, workspace):
            p.call("cudaFree", address)
        p.call("cudaStreamDestroy", stream)
    assert not simulator.report().notes
