"""
cuDNN's forward functions in numpy, with the limits that NVIDIA documents.

What the real library refuses with a status (shapes that do not fit, an algorithm that does not support a
problem) is refused with the same status. Numbers are those of numpy, not of NVIDIA's kernels.

Source: cuDNN 9 API reference, cudnn_ops and cudnn_cnn libraries.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, TypeAlias, TypeVar

import numpy as np

from occamy_xdsl.lowering.cuda.api import CONSTANTS
from occamy_xdsl.simulator import host_memory
from occamy_xdsl.simulator.cudnn_model import (
    BAD_PARAM,
    NOT_SUPPORTED,
    PRECOMPUTED,
    Activation,
    Convolution,
    Filter,
    Pooling,
    Problem,
    Tensor,
    WorkspaceModel,
    check_algorithm,
    convolve,
    convolve_back,
    pool,
    softmax,
)
from occamy_xdsl.simulator.device import Device, Stream
from occamy_xdsl.simulator.faults import FaultError, RefusalError
from occamy_xdsl.simulator.functions import SimulatedLibrary, implements
from occamy_xdsl.simulator.memory import Region
from occamy_xdsl.simulator.ptx.arithmetic import Array

VERSION = 91000
"""What the library says its version is: 10000 major + 100 minor + patch."""
_RELU, _IDENTITY = CONSTANTS["CUDNN_ACTIVATION_RELU"], CONSTANTS["CUDNN_ACTIVATION_IDENTITY"]

Descriptor = TypeVar("Descriptor")
Handle: TypeAlias = int | None


@dataclass(eq=False)
class Context:
    """A cuDNN handle."""

    stream: Stream


_KINDS: dict[str, type] = {
    "Tensor": Tensor,
    "Filter": Filter,
    "Convolution": Convolution,
    "Pooling": Pooling,
    "Activation": Activation,
}


class Cudnn(SimulatedLibrary):
    """libcudnn."""

    def __init__(self, device: Device, workspace_bytes: WorkspaceModel):
        super().__init__(device)
        self._workspace_bytes = workspace_bytes
        self._texts: dict[int, bytes] = {}

    def functions(self) -> dict[str, Callable[..., Any]]:
        descriptors: dict[str, Callable[..., Any]] = {}
        for name, type_ in _KINDS.items():
            descriptors[f"cudnnCreate{name}Descriptor"] = self._creator(name, type_)
            descriptors[f"cudnnDestroy{name}Descriptor"] = self._destroyer(name, type_)
        return {**super().functions(), **descriptors}

    def _creator(self, name: str, type_: type) -> Callable[[Handle], None]:
        kind = f"cuDNN {name.lower()} descriptor"
        return lambda result: host_memory.write_result(result, self.device.create(type_(), kind))

    def _destroyer(self, name: str, type_: type) -> Callable[[Handle], None]:
        def destroy(descriptor: Handle) -> None:
            self.device.destroy(descriptor, type_, f"cuDNN {name.lower()} descriptor")

        return destroy

    def _get(self, handle: Handle, type_: type[Descriptor]) -> Descriptor:
        return self.device.get(handle, type_, f"cuDNN {type_.__name__.lower()} descriptor")

    def _context(self, handle: Handle) -> Context:
        return self.device.get(handle, Context, "cuDNN")

    @implements("cudnnGetVersion")
    def get_version(self) -> int:
        return VERSION

    @implements("cudnnCreate")
    def create(self, result: int | None) -> None:
        self.device.has_context = True
        context = Context(self.device.default_stream)
        host_memory.write_result(result, self.device.create(context, "cuDNN handle"))

    @implements("cudnnDestroy")
    def destroy(self, handle: Handle) -> None:
        self.device.destroy(handle, Context, "cuDNN")

    @implements("cudnnSetStream")
    def set_stream(self, handle: Handle, stream: Handle) -> None:
        self._context(handle).stream = self.device.stream(stream)

    # --- descriptors ---

    @implements("cudnnSetTensor4dDescriptor")
    def set_tensor_4d(self, descriptor: Handle, format_: int, dtype: int, *shape: int) -> None:
        self._get(descriptor, Tensor).set(shape, dtype, format_=format_)

    @implements("cudnnSetTensor4dDescriptorEx")
    def set_tensor_4d_strides(self, descriptor: Handle, dtype: int, *numbers: int) -> None:
        self._get(descriptor, Tensor).set(numbers[:4], dtype, strides=numbers[4:])

    @implements("cudnnSetTensorNdDescriptor")
    def set_tensor(self, descriptor: Handle, dtype: int, rank: int, dims: Handle, strides: Handle) -> None:
        shape = host_memory.read_ints(dims, rank, "the dimensions")
        steps = host_memory.read_ints(strides, rank, "the strides")
        self._get(descriptor, Tensor).set(shape, dtype, strides=steps)

    @implements("cudnnSetFilter4dDescriptor")
    def set_filter_4d(self, descriptor: Handle, dtype: int, format_: int, *shape: int) -> None:
        self._get(descriptor, Filter).set(shape, dtype, format_=format_)

    @implements("cudnnSetFilterNdDescriptor")
    def set_filter(self, descriptor: Handle, dtype: int, format_: int, rank: int, dims: Handle) -> None:
        shape = host_memory.read_ints(dims, rank, "the dimensions")
        self._get(descriptor, Filter).set(shape, dtype, format_=format_)

    def _set_convolution(self, descriptor: Handle, geometry: Sequence[Sequence[int]], mode: int) -> None:
        pads, strides, dilations = map(tuple, geometry)
        if min(pads) < 0 or min(strides) < 1 or min(dilations) < 1:
            raise RefusalError(BAD_PARAM, f"pads {pads}, strides {strides}, dilations {dilations}")
        found = self._get(descriptor, Convolution)
        found.pads, found.strides, found.dilations = pads, strides, dilations
        found.flipped = mode == CONSTANTS["CUDNN_CONVOLUTION"]

    @implements("cudnnSetConvolution2dDescriptor")
    def set_convolution_2d(self, descriptor: Handle, *numbers: int) -> None:
        self._set_convolution(descriptor, (numbers[:2], numbers[2:4], numbers[4:6]), numbers[6])

    @implements("cudnnSetConvolutionNdDescriptor")
    def set_convolution(
        self,
        descriptor: Handle,
        rank: int,
        pads: Handle,
        strides: Handle,
        dilations: Handle,
        mode: int,
        compute: int,
    ) -> None:
        arrays = {"pads": pads, "strides": strides, "dilations": dilations}
        geometry = [host_memory.read_ints(a, rank, f"the {name}") for name, a in arrays.items()]
        self._set_convolution(descriptor, geometry, mode)

    @implements("cudnnSetConvolutionMathType")
    def set_math_type(self, descriptor: Handle, type_: int) -> None:
        self._get(descriptor, Convolution).math_type = type_

    @implements("cudnnSetConvolutionGroupCount")
    def set_groups(self, descriptor: Handle, groups: int) -> None:
        if groups < 1:
            raise RefusalError(BAD_PARAM, f"{groups} groups")
        self._get(descriptor, Convolution).groups = groups

    def _set_pooling(
        self, descriptor: Handle, mode: int, nan: int, geometry: Sequence[Sequence[int]]
    ) -> None:
        found = self._get(descriptor, Pooling)
        found.mode, found.propagates_nan = mode, nan == CONSTANTS["CUDNN_PROPAGATE_NAN"]
        found.window, found.pads, found.strides = map(tuple, geometry)
        if any(p >= k for p, k in zip(found.pads, found.window, strict=True)) or min(found.pads) < 0:
            raise RefusalError(BAD_PARAM, f"pads {found.pads} for windows of {found.window}")

    @implements("cudnnSetPooling2dDescriptor")
    def set_pooling_2d(self, descriptor: Handle, mode: int, nan: int, *numbers: int) -> None:
        self._set_pooling(descriptor, mode, nan, (numbers[:2], numbers[2:4], numbers[4:]))

    @implements("cudnnSetPoolingNdDescriptor")
    def set_pooling(
        self,
        descriptor: Handle,
        mode: int,
        nan: int,
        rank: int,
        window: Handle,
        pads: Handle,
        strides: Handle,
    ) -> None:
        arrays = {"window": window, "pads": pads, "strides": strides}
        geometry = [host_memory.read_ints(a, rank, f"the {name}") for name, a in arrays.items()]
        self._set_pooling(descriptor, mode, nan, geometry)

    @implements("cudnnSetActivationDescriptor")
    def set_activation(self, descriptor: Handle, mode: int, nan: int, coefficient: float) -> None:
        found = self._get(descriptor, Activation)
        found.mode, found.coefficient = mode, coefficient
        found.propagates_nan = nan == CONSTANTS["CUDNN_PROPAGATE_NAN"]

    # --- convolution ---

    def _needed_bytes(self, algorithm: int, x: Tensor, w: Filter, convolution: Convolution, y: Tensor) -> int:
        """Workspace of a convolution; raises RefusalError where cuDNN would refuse it."""
        if not convolution.pads:
            raise FaultError("the convolution descriptor was never set")
        expected = convolution.output_shape(x, w)
        if y.shape != expected:
            # This is also what becomes of pads that differ between the two sides: there is no way to say them.
            raise RefusalError(BAD_PARAM, f"the output has shape {y.shape}, the convolution gives {expected}")
        if not x.dtype == w.dtype == y.dtype:
            raise RefusalError(NOT_SUPPORTED, "input, filter and output differ in data type")
        check_algorithm(algorithm, convolution, w)
        itemsize = np.dtype(x.dtype).itemsize
        problem = Problem(x.shape, w.shape, y.shape, itemsize, convolution.groups)
        return self._workspace_bytes(algorithm, problem)

    @implements("cudnnGetConvolutionForwardWorkspaceSize")
    def get_workspace_size(
        self,
        handle: Handle,
        x: Handle,
        w: Handle,
        convolution: Handle,
        y: Handle,
        algorithm: int,
        result: Handle,
    ) -> None:
        self._context(handle)
        size = self._needed_bytes(
            algorithm,
            self._get(x, Tensor),
            self._get(w, Filter),
            self._get(convolution, Convolution),
            self._get(y, Tensor),
        )
        host_memory.write_result(result, size)

    def _check_regions(self, inputs: dict[str, Region], output: Region, workspace: Region) -> None:
        """Raise FaultError where something overlaps the output or the workspace."""
        for name, region in inputs.items():
            if region.overlaps(output):
                raise FaultError(f"{name} and the output overlap")
        named = {**inputs, "the output": output, "the workspace": workspace}
        for (a, first_), (b, second) in combinations(named.items(), 2):
            if "the workspace" in (a, b) and first_.overlaps(second):
                raise FaultError(f"{a} and {b} overlap")

    @implements("cudnnConvolutionForward")
    def convolution_forward(
        self,
        handle: Handle,
        alpha: Handle,
        x_descriptor: Handle,
        x: Handle,
        w_descriptor: Handle,
        w: Handle,
        convolution: Handle,
        algorithm: int,
        workspace: Handle,
        workspace_bytes: int,
        beta: Handle,
        y_descriptor: Handle,
        y: Handle,
    ) -> None:
        scales = self._scale(alpha, "alpha"), self._scale(beta, "beta")
        y_tensor = self._get(y_descriptor, Tensor)
        self._convolution(
            self._context(handle),
            (self._get(x_descriptor, Tensor), x),
            (self._get(w_descriptor, Filter), w),
            self._get(convolution, Convolution),
            algorithm,
            (workspace, workspace_bytes),
            scales,
            (y_tensor, y),
            None,
            None,
            (y_tensor, y),
        )

    @implements("cudnnConvolutionBiasActivationForward")
    def convolution_bias_activation_forward(
        self,
        handle: Handle,
        alpha1: Handle,
        x_descriptor: Handle,
        x: Handle,
        w_descriptor: Handle,
        w: Handle,
        convolution: Handle,
        algorithm: int,
        workspace: Handle,
        workspace_bytes: int,
        alpha2: Handle,
        z_descriptor: Handle,
        z: Handle,
        bias_descriptor: Handle,
        bias: Handle,
        activation: Handle,
        y_descriptor: Handle,
        y: Handle,
    ) -> None:
        mode = self._get(activation, Activation)
        if mode.mode not in (_RELU, _IDENTITY):
            raise RefusalError(NOT_SUPPORTED, "only RELU and IDENTITY can be fused into a convolution")
        if mode.mode == _IDENTITY and algorithm != PRECOMPUTED:
            raise RefusalError(NOT_SUPPORTED, "IDENTITY can be fused only by algorithm IMPLICIT_PRECOMP_GEMM")
        self._convolution(
            self._context(handle),
            (self._get(x_descriptor, Tensor), x),
            (self._get(w_descriptor, Filter), w),
            self._get(convolution, Convolution),
            algorithm,
            (workspace, workspace_bytes),
            (self._scale(alpha1, "alpha1"), self._scale(alpha2, "alpha2")),
            (self._get(z_descriptor, Tensor), z),
            (self._get(bias_descriptor, Tensor), bias),
            mode,
            (self._get(y_descriptor, Tensor), y),
        )

    def _scale(self, address: Handle, name: str) -> float:
        return host_memory.read_float(address, name)

    def _convolution(
        self,
        context: Context,
        x: tuple[Tensor, Handle],
        w: tuple[Filter, Handle],
        convolution: Convolution,
        algorithm: int,
        workspace: tuple[Handle, int],
        scales: tuple[float, float],
        z: tuple[Tensor, Handle],
        bias: tuple[Tensor, Handle] | None,
        activation: Activation | None,
        y: tuple[Tensor, Handle],
    ) -> None:
        """Enqueue `y = activation(scales[0] * conv(x, w) + scales[1] * z + bias)`."""
        needed = self._needed_bytes(algorithm, x[0], w[0], convolution, y[0])
        address, size = workspace
        if size < needed:
            raise RefusalError(
                BAD_PARAM, f"a workspace of {size} bytes, algorithm {algorithm} needs {needed}"
            )
        if needed and not address:
            raise FaultError("the workspace is a null pointer")
        scratch = Region.of_bytes(address or 0, size if address else 0)
        x_region, w_region, y_region = x[0].at(x[1], "x"), w[0].at(w[1], "w"), y[0].at(y[1], "y")
        inputs = {"x": x_region, "w": w_region}
        if bias is not None:
            if bias[0].shape != (1, w[0].shape[0], *(1,) * len(convolution.pads)):
                raise RefusalError(BAD_PARAM, f"a bias of shape {bias[0].shape} for {w[0].shape[0]} channels")
            inputs["the bias"] = bias[0].at(bias[1], "the bias")
        z_region = z[0].at(z[1], "z") if scales[1] else None
        if z_region is not None and z_region != y_region:
            if z[0].shape != y[0].shape:
                raise RefusalError(BAD_PARAM, f"z has shape {z[0].shape}, y has {y[0].shape}")
            inputs["z"] = z_region
        self._check_regions(inputs, y_region, scratch)
        memory = self.device.memory

        def action() -> None:
            memory.clobber(scratch.address, scratch.bytes)
            compute = np.float64 if x[0].dtype == np.float64 else np.float32

            def read(region: Region) -> Array:
                return memory.read(region).astype(compute)

            result = scales[0] * convolve(read(x_region), read(w_region), convolution)
            if z_region is not None:
                result = result + scales[1] * read(z_region)
            if "the bias" in inputs:
                result = result + read(inputs["the bias"])
            if activation is not None and activation.mode == _RELU:
                relu = np.maximum if activation.propagates_nan else np.fmax
                result = relu(result, 0)
            memory.write(y_region, result)

        name = "cudnnConvolutionForward" if bias is None else "cudnnConvolutionBiasActivationForward"
        arguments = {"x": x[0].shape, "w": w[0].shape, "algorithm": algorithm, "workspace": size}
        self.device.enqueue(context.stream, name, action, **arguments)

    # --- the gradient by the input, which is a transposed convolution ---

    @implements("cudnnGetConvolutionBackwardDataWorkspaceSize")
    def get_backward_data_workspace_size(
        self,
        handle: Handle,
        w: Handle,
        dy: Handle,
        convolution: Handle,
        dx: Handle,
        algorithm: int,
        result: Handle,
    ) -> None:
        self._context(handle)
        self._check_backward_data(
            algorithm,
            self._get(w, Filter),
            self._get(dy, Tensor),
            self._get(convolution, Convolution),
            self._get(dx, Tensor),
        )
        host_memory.write_result(result, 0)

    @staticmethod
    def _check_backward_data(
        algorithm: int, w: Filter, dy: Tensor, convolution: Convolution, dx: Tensor
    ) -> None:
        if algorithm != CONSTANTS["CUDNN_CONVOLUTION_BWD_DATA_ALGO_0"]:
            raise RefusalError(
                NOT_SUPPORTED, "the simulator has only algorithm 0 of the gradient by the input"
            )
        expected = convolution.output_shape(dx, w)
        if dy.shape != expected:
            raise RefusalError(BAD_PARAM, f"dy has shape {dy.shape}, the convolution of dx gives {expected}")

    @implements("cudnnConvolutionBackwardData")
    def convolution_backward_data(
        self,
        handle: Handle,
        alpha: Handle,
        w_descriptor: Handle,
        w: Handle,
        dy_descriptor: Handle,
        dy: Handle,
        convolution: Handle,
        algorithm: int,
        workspace: Handle,
        workspace_bytes: int,
        beta: Handle,
        dx_descriptor: Handle,
        dx: Handle,
    ) -> None:
        found = self._get(convolution, Convolution)
        filter_, source = self._get(w_descriptor, Filter), self._get(dy_descriptor, Tensor)
        target = self._get(dx_descriptor, Tensor)
        w_region, dy_region = filter_.at(w, "the filter"), source.at(dy, "dy")
        dx_region = target.at(dx, "dx")
        self._check_backward_data(algorithm, filter_, source, found, target)
        scratch = Region.of_bytes(workspace or 0, workspace_bytes)
        self._check_regions({"the filter": w_region, "dy": dy_region}, dx_region, scratch)
        scales = self._scale(alpha, "alpha"), self._scale(beta, "beta")
        memory = self.device.memory

        def action() -> None:
            memory.clobber(scratch.address, scratch.bytes)
            filter_values = memory.read(w_region)
            result = scales[0] * convolve_back(memory.read(dy_region), filter_values, found, target.shape)
            if scales[1]:
                result = result + scales[1] * memory.read(dx_region)
            memory.write(dx_region, result)

        name = "cudnnConvolutionBackwardData"
        self.device.enqueue(self._context(handle).stream, name, action, dy=source.shape, w=filter_.shape)

    # --- pooling and softmax ---

    def _map(
        self,
        name: str,
        handle: Handle,
        scales: tuple[Handle, Handle],
        x: Region,
        y: Region,
        function: Callable[[Array], Array],
        *,
        may_alias: bool = False,
    ) -> None:
        """Enqueue `y = alpha * function(x) + beta * y`."""
        alpha, beta = self._scale(scales[0], "alpha"), self._scale(scales[1], "beta")
        if x.overlaps(y) and not (may_alias and x == y):
            raise FaultError("x and y overlap")
        memory = self.device.memory

        def action() -> None:
            compute = np.float64 if x.dtype == np.float64 else np.float32
            with np.errstate(all="ignore"):
                result = alpha * function(memory.read(x).astype(compute))
            if beta:
                result = result + beta * memory.read(y)
            memory.write(y, result)

        self.device.enqueue(self._context(handle).stream, name, action, x=x.shape)

    @implements("cudnnPoolingForward")
    def pooling_forward(
        self,
        handle: Handle,
        pooling: Handle,
        alpha: Handle,
        x_descriptor: Handle,
        x: Handle,
        beta: Handle,
        y_descriptor: Handle,
        y: Handle,
    ) -> None:
        found = self._get(pooling, Pooling)
        source, target = (
            self._get(x_descriptor, Tensor).at(x, "x"),
            self._get(y_descriptor, Tensor).at(y, "y"),
        )
        if not found.window:
            raise FaultError("the pooling descriptor was never set")
        sizes = zip(source.shape[2:], found.window, found.pads, found.strides, strict=True)
        expected = (*source.shape[:2], *(1 + (n + 2 * p - k) // s for n, k, p, s in sizes))
        if target.shape != expected:
            raise RefusalError(
                BAD_PARAM, f"the output has shape {target.shape}, the pooling gives {expected}"
            )
        self._map("cudnnPoolingForward", handle, (alpha, beta), source, target, lambda a: pool(a, found))

    @implements("cudnnSoftmaxForward")
    def softmax_forward(
        self,
        handle: Handle,
        algorithm: int,
        mode: int,
        alpha: Handle,
        x_descriptor: Handle,
        x: Handle,
        beta: Handle,
        y_descriptor: Handle,
        y: Handle,
    ) -> None:
        source, target = (
            self._get(x_descriptor, Tensor).at(x, "x"),
            self._get(y_descriptor, Tensor).at(y, "y"),
        )
        if source.shape != target.shape:
            raise RefusalError(BAD_PARAM, f"x has shape {source.shape}, y has {target.shape}")
        instance = mode == CONSTANTS["CUDNN_SOFTMAX_MODE_INSTANCE"]
        axes = tuple(range(1, len(source.shape))) if instance else (1,)

        def function(values: Array) -> Array:
            return softmax(values, algorithm, axes)

        self._map("cudnnSoftmaxForward", handle, (alpha, beta), source, target, function, may_alias=True)
