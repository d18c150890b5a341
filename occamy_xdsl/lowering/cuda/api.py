"""
The functions of NVIDIA's libraries that the CUDA target calls, as the C prototypes of their headers.

This one table drives the declarations in generated host code, the stub libraries that artefacts are linked
against, and the simulator. Some of the driver's functions are there for `cuda.bindings` alone, through which
`runtime.device` calls them. The cuDNN functions are those of the API that version 8 (Jetson) and 9 share.

Sources: cuda_runtime_api.h and driver_types.h, cuda.h (CUDA 13), cudnn_ops.h and cudnn_cnn.h (cuDNN 9),
cublas_api.h (CUDA 13). Argument names are ours where the header's would say less.
"""

import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import f32, f64, i32, i64
from xdsl.ir import Attribute

from occamy_xdsl.lowering.host import PTR, HostModule, Prototype

_CUDART = """
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaRuntimeGetVersion(int *version);
cudaError_t cudaDriverGetVersion(int *version);
cudaError_t cudaMemGetInfo(size_t *free, size_t *total);
cudaError_t cudaMalloc(void **pointer, size_t bytes);
cudaError_t cudaFree(void *pointer);
cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags);
cudaError_t cudaFreeHost(void *pointer);
cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned int flags);
cudaError_t cudaHostUnregister(void *pointer);
cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int flags);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *pointer);
cudaError_t cudaMemcpyAsync(void *target, const void *source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *target, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph,
                                          unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGetLastError();
const char *cudaGetErrorName(cudaError_t status);
const char *cudaGetErrorString(cudaError_t status);
"""

_CUDA = """
CUresult cuInit(unsigned int flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *found);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDeviceGetName(char *name, int bytes, CUdevice device);
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device);
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device);
CUresult cuCtxGetCurrent(CUcontext *context);
CUresult cuCtxSetCurrent(CUcontext context);
CUresult cuCtxGetDevice(CUdevice *device);
CUresult cuMemGetInfo_v2(size_t *free, size_t *total);
CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr pointer);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr target, const void *source, size_t bytes, CUstream stream);
CUresult cuMemcpyDtoHAsync_v2(void *target, CUdeviceptr source, size_t bytes, CUstream stream);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuEventCreate(CUevent *event, unsigned int flags);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventSynchronize(CUevent event);
CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuModuleUnload(CUmodule module);
CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z,
                        unsigned int shared_bytes, CUstream stream, void **parameters, void **extra);
CUresult cuGetErrorName(CUresult status, const char **text);
CUresult cuGetErrorString(CUresult status, const char **text);
"""

_CUDNN = """
size_t cudnnGetVersion();
const char *cudnnGetErrorString(cudnnStatus_t status);
cudnnStatus_t cudnnCreate(cudnnHandle_t *handle);
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle);
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream);
cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t *descriptor);
cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t descriptor);
cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t descriptor, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w);
cudnnStatus_t cudnnSetTensor4dDescriptorEx(cudnnTensorDescriptor_t descriptor, cudnnDataType_t type,
                                           int n, int c, int h, int w, int n_stride, int c_stride,
                                           int h_stride, int w_stride);
cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t descriptor, cudnnDataType_t type, int rank,
                                         const int *dims, const int *strides);
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t *descriptor);
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t descriptor);
cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t descriptor, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w);
cudnnStatus_t cudnnSetFilterNdDescriptor(cudnnFilterDescriptor_t descriptor, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int rank, const int *dims);
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t *descriptor);
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t descriptor);
cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t descriptor, int pad_h, int pad_w,
                                              int stride_h, int stride_w, int dilation_h, int dilation_w,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t compute_type);
cudnnStatus_t cudnnSetConvolutionNdDescriptor(cudnnConvolutionDescriptor_t descriptor, int rank,
                                              const int *pads, const int *strides, const int *dilations,
                                              cudnnConvolutionMode_t mode, cudnnDataType_t compute_type);
cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t descriptor, cudnnMathType_t type);
cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t descriptor, int groups);
cudnnStatus_t cudnnCreatePoolingDescriptor(cudnnPoolingDescriptor_t *descriptor);
cudnnStatus_t cudnnDestroyPoolingDescriptor(cudnnPoolingDescriptor_t descriptor);
cudnnStatus_t cudnnSetPooling2dDescriptor(cudnnPoolingDescriptor_t descriptor, cudnnPoolingMode_t mode,
                                          cudnnNanPropagation_t nan, int window_h, int window_w,
                                          int pad_h, int pad_w, int stride_h, int stride_w);
cudnnStatus_t cudnnSetPoolingNdDescriptor(cudnnPoolingDescriptor_t descriptor, cudnnPoolingMode_t mode,
                                          cudnnNanPropagation_t nan, int rank, const int *window,
                                          const int *pads, const int *strides);
cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t *descriptor);
cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t descriptor);
cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t descriptor,
                                           cudnnActivationMode_t mode, cudnnNanPropagation_t nan,
                                           double coefficient);
cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(
    cudnnHandle_t handle, cudnnTensorDescriptor_t x_descriptor, cudnnFilterDescriptor_t w_descriptor,
    cudnnConvolutionDescriptor_t convolution, cudnnTensorDescriptor_t y_descriptor,
    cudnnConvolutionFwdAlgo_t algorithm, size_t *bytes);
cudnnStatus_t cudnnConvolutionForward(
    cudnnHandle_t handle, const void *alpha, cudnnTensorDescriptor_t x_descriptor, const void *x,
    cudnnFilterDescriptor_t w_descriptor, const void *w, cudnnConvolutionDescriptor_t convolution,
    cudnnConvolutionFwdAlgo_t algorithm, void *workspace, size_t workspace_bytes, const void *beta,
    cudnnTensorDescriptor_t y_descriptor, void *y);
cudnnStatus_t cudnnConvolutionBiasActivationForward(
    cudnnHandle_t handle, const void *alpha1, cudnnTensorDescriptor_t x_descriptor, const void *x,
    cudnnFilterDescriptor_t w_descriptor, const void *w, cudnnConvolutionDescriptor_t convolution,
    cudnnConvolutionFwdAlgo_t algorithm, void *workspace, size_t workspace_bytes, const void *alpha2,
    cudnnTensorDescriptor_t z_descriptor, const void *z, cudnnTensorDescriptor_t bias_descriptor,
    const void *bias, cudnnActivationDescriptor_t activation, cudnnTensorDescriptor_t y_descriptor, void *y);
cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t handle, cudnnFilterDescriptor_t w_descriptor, cudnnTensorDescriptor_t dy_descriptor,
    cudnnConvolutionDescriptor_t convolution, cudnnTensorDescriptor_t dx_descriptor,
    cudnnConvolutionBwdDataAlgo_t algorithm, size_t *bytes);
cudnnStatus_t cudnnConvolutionBackwardData(
    cudnnHandle_t handle, const void *alpha, cudnnFilterDescriptor_t w_descriptor, const void *w,
    cudnnTensorDescriptor_t dy_descriptor, const void *dy, cudnnConvolutionDescriptor_t convolution,
    cudnnConvolutionBwdDataAlgo_t algorithm, void *workspace, size_t workspace_bytes, const void *beta,
    cudnnTensorDescriptor_t dx_descriptor, void *dx);
cudnnStatus_t cudnnPoolingForward(
    cudnnHandle_t handle, cudnnPoolingDescriptor_t pooling, const void *alpha,
    cudnnTensorDescriptor_t x_descriptor, const void *x, const void *beta,
    cudnnTensorDescriptor_t y_descriptor, void *y);
cudnnStatus_t cudnnSoftmaxForward(
    cudnnHandle_t handle, cudnnSoftmaxAlgorithm_t algorithm, cudnnSoftmaxMode_t mode, const void *alpha,
    cudnnTensorDescriptor_t x_descriptor, const void *x, const void *beta,
    cudnnTensorDescriptor_t y_descriptor, void *y);
"""

_CUBLAS = """
cublasStatus_t cublasCreate_v2(cublasHandle_t *handle);
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle);
cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t workspace_bytes);
cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode);
cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t trans_a, cublasOperation_t trans_b,
                              int m, int n, int k, const float *alpha, const float *a, int lda,
                              const float *b, int ldb, const float *beta, float *c, int ldc);
cublasStatus_t cublasSgemmStridedBatched(
    cublasHandle_t handle, cublasOperation_t trans_a, cublasOperation_t trans_b, int m, int n, int k,
    const float *alpha, const float *a, int lda, long long int stride_a, const float *b, int ldb,
    long long int stride_b, const float *beta, float *c, int ldc, long long int stride_c, int batch_count);
const char *cublasGetStatusString(cublasStatus_t status);
"""


@dataclass(frozen=True)
class Library:
    """A shared library: its SONAME, and the status its stub returns where there is no device to use."""

    soname: str
    no_device: int


LIBRARIES: Mapping[str, Library] = {
    "cudart": Library("libcudart.so.13", 100),  # cudaErrorNoDevice
    "cuda": Library("libcuda.so.1", 100),  # CUDA_ERROR_NO_DEVICE
    "cudnn": Library("libcudnn.so.9", 1001),  # CUDNN_STATUS_NOT_INITIALIZED
    "cublas": Library("libcublas.so.13", 1),  # CUBLAS_STATUS_NOT_INITIALIZED
}
"""The libraries by short name, with the SONAMEs of CUDA 13 and cuDNN 9."""

STATUS_TYPES = ("cudaError_t", "CUresult", "cudnnStatus_t", "cublasStatus_t")
"""Result types that say whether a call succeeded; 0 is success in all of them."""

_SCALARS: Mapping[str, Attribute] = {
    "double": f64,
    "float": f32,
    "size_t": i64,
    "long long int": i64,
    "unsigned long long": i64,
    "cuuint64_t": i64,
    "CUdeviceptr": i64,
    "int": i32,
    "unsigned int": i32,
}
C_TYPES: Mapping[Attribute, Any] = {
    PTR: ctypes.c_void_p,
    i32: ctypes.c_int32,
    i64: ctypes.c_int64,
    f32: ctypes.c_float,
    f64: ctypes.c_double,
}
"""What Python passes for a type in the llvm dialect."""
# Pointers to structures that only the libraries know. What is neither here nor above is an enumeration.
_HANDLE = re.compile(
    r"(CU(context|event|function|module|stream)|cuda(Stream|Event|Graph|GraphExec)_t|cudnn(Handle|\w+Descriptor)_t|cublasHandle_t)$"
)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a C function, with its type as C writes it, without const."""

    name: str
    type: str

    @property
    def llvm_type(self) -> Attribute:
        """Type in the llvm dialect: enumerations are i32, handles are pointers."""
        return llvm_type(self.type)


@dataclass(frozen=True)
class Function:
    """A C function: the short name of its library, its result type without const, and its parameters."""

    name: str
    library: str
    result: str
    parameters: tuple[Parameter, ...]

    @property
    def returns_status(self) -> bool:
        """Whether the result says whether the call succeeded."""
        return self.result in STATUS_TYPES

    @property
    def prototype(self) -> Prototype:
        """The prototype for generated host code."""
        return Prototype(llvm_type(self.result), tuple(p.llvm_type for p in self.parameters))


def llvm_type(c_type: str) -> Attribute:
    """The llvm-dialect type of a C type of the table."""
    if c_type.endswith("*") or _HANDLE.match(c_type):
        return PTR
    return _SCALARS.get(c_type, i32)


def _parse_parameter(text: str) -> Parameter:
    match = re.fullmatch(r"(.*?[\s*])(\w+)", text.strip())
    assert match is not None, text
    return Parameter(match[2], normalized_type(match[1]))


def normalized_type(text: str) -> str:
    """A C type without const, `enum` and optional spaces, for example `void **`."""
    words = re.sub(r"\b(const|enum|struct)\b", "", text).replace("*", " * ").split()
    stars = words.count("*")
    return " ".join(word for word in words if word != "*") + (" " + "*" * stars if stars else "")


def _parse(library: str, declarations: str) -> dict[str, Function]:
    functions: dict[str, Function] = {}
    for declaration in declarations.split(";")[:-1]:
        match = re.fullmatch(r"\s*(.*?)(\w+)\((.*)\)", declaration, re.DOTALL)
        assert match is not None, declaration
        parameters = [_parse_parameter(text) for text in match[3].split(",") if text]
        functions[match[2]] = Function(match[2], library, normalized_type(match[1]), tuple(parameters))
    return functions


FUNCTIONS: Mapping[str, Function] = {
    **_parse("cudart", _CUDART),
    **_parse("cuda", _CUDA),
    **_parse("cudnn", _CUDNN),
    **_parse("cublas", _CUBLAS),
}
"""Every function by its linker symbol."""


def declare(host: HostModule, *names: str) -> None:
    """Declare functions of the table in `host`, so that `FunctionBuilder.call` knows them."""
    for name in names:
        host.declare(name, FUNCTIONS[name].prototype)


CONSTANTS: Mapping[str, int] = {
    # cudaError_t, of which CUresult is a part under other names
    "cudaErrorInvalidValue": 1,
    "cudaErrorMemoryAllocation": 2,
    "cudaErrorInvalidMemcpyDirection": 21,
    "cudaErrorNoDevice": 100,
    "cudaErrorInvalidDevice": 101,
    "cudaErrorInvalidResourceHandle": 400,
    "cudaErrorNotReady": 600,
    "cudaErrorHostMemoryAlreadyRegistered": 712,
    "cudaErrorHostMemoryNotRegistered": 713,
    "cudaErrorIllegalAddress": 700,
    "cudaErrorLaunchFailure": 719,
    "cudaErrorStreamCaptureUnsupported": 900,
    "cudaErrorStreamCaptureInvalidated": 901,
    "cudaErrorUnknown": 999,
    "CUDA_ERROR_INVALID_VALUE": 1,
    "CUDA_ERROR_INVALID_DEVICE": 101,
    "CUDA_ERROR_INVALID_CONTEXT": 201,
    "CUDA_ERROR_NO_BINARY_FOR_GPU": 209,
    "CUDA_ERROR_INVALID_PTX": 218,
    "CUDA_ERROR_INVALID_HANDLE": 400,
    "CUDA_ERROR_NOT_FOUND": 500,
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": 701,
    # cudaMemcpyKind, flags and modes
    "cudaMemcpyHostToDevice": 1,
    "cudaMemcpyDeviceToHost": 2,
    "cudaMemcpyDeviceToDevice": 3,
    "cudaStreamNonBlocking": 1,
    "cudaEventDefault": 0,
    "cudaEventDisableTiming": 2,
    "cudaHostAllocDefault": 0,
    "cudaHostAllocMapped": 2,
    "cudaHostRegisterMapped": 2,
    "cudaHostRegisterReadOnly": 8,
    "cudaStreamCaptureModeThreadLocal": 1,
    # cudaDeviceAttr
    "cudaDevAttrMultiProcessorCount": 16,
    "cudaDevAttrIntegrated": 18,
    "cudaDevAttrComputeCapabilityMajor": 75,
    "cudaDevAttrComputeCapabilityMinor": 76,
    "cudaDevAttrPageableMemoryAccess": 88,
    "cudaDevAttrHostRegisterReadOnlySupported": 113,
    # cudaMemoryType
    "cudaMemoryTypeUnregistered": 0,
    "cudaMemoryTypeHost": 1,
    "cudaMemoryTypeDevice": 2,
    # cudnnStatus_t (cuDNN 9)
    "CUDNN_STATUS_NOT_INITIALIZED": 1001,
    "CUDNN_STATUS_BAD_PARAM": 2000,
    "CUDNN_STATUS_NOT_SUPPORTED": 3000,
    "CUDNN_STATUS_EXECUTION_FAILED": 5000,
    # cudnnDataType_t, cudnnTensorFormat_t
    "CUDNN_DATA_FLOAT": 0,
    "CUDNN_DATA_DOUBLE": 1,
    "CUDNN_DATA_HALF": 2,
    "CUDNN_TENSOR_NCHW": 0,
    "CUDNN_TENSOR_NHWC": 1,
    # cudnnConvolutionMode_t, cudnnMathType_t, cudnnConvolutionFwdAlgo_t
    "CUDNN_CONVOLUTION": 0,
    "CUDNN_CROSS_CORRELATION": 1,
    "CUDNN_DEFAULT_MATH": 0,
    "CUDNN_FMA_MATH": 3,
    "CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM": 0,
    "CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM": 1,
    "CUDNN_CONVOLUTION_FWD_ALGO_GEMM": 2,
    "CUDNN_CONVOLUTION_FWD_ALGO_DIRECT": 3,
    "CUDNN_CONVOLUTION_FWD_ALGO_FFT": 4,
    "CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING": 5,
    "CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD": 6,
    "CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED": 7,
    # cudnnConvolutionBwdDataAlgo_t; algorithm 0 adds in no fixed order
    "CUDNN_CONVOLUTION_BWD_DATA_ALGO_0": 0,
    # cudnnNanPropagation_t, cudnnPoolingMode_t, cudnnActivationMode_t, softmax
    "CUDNN_NOT_PROPAGATE_NAN": 0,
    "CUDNN_PROPAGATE_NAN": 1,
    "CUDNN_POOLING_MAX": 0,
    "CUDNN_POOLING_AVERAGE_COUNT_INCLUDE_PADDING": 1,
    "CUDNN_POOLING_AVERAGE_COUNT_EXCLUDE_PADDING": 2,
    "CUDNN_POOLING_MAX_DETERMINISTIC": 3,
    "CUDNN_ACTIVATION_RELU": 1,
    "CUDNN_ACTIVATION_IDENTITY": 5,
    "CUDNN_SOFTMAX_FAST": 0,
    "CUDNN_SOFTMAX_ACCURATE": 1,
    "CUDNN_SOFTMAX_LOG": 2,
    "CUDNN_SOFTMAX_MODE_INSTANCE": 0,
    "CUDNN_SOFTMAX_MODE_CHANNEL": 1,
    # cublasStatus_t, cublasOperation_t, cublasMath_t
    "CUBLAS_STATUS_NOT_INITIALIZED": 1,
    "CUBLAS_STATUS_INVALID_VALUE": 7,
    "CUBLAS_STATUS_EXECUTION_FAILED": 13,
    "CUBLAS_OP_N": 0,
    "CUBLAS_OP_T": 1,
    "CUBLAS_DEFAULT_MATH": 0,
    "CUBLAS_PEDANTIC_MATH": 2,
}
"""Values of the enumeration constants that are used, by their C names."""
