// RUN: occamy-opt %s -p 'convert-dnn-to-cuda{chip=sm_80}' | filecheck %s

// One allocation of 1024 bytes for the pool, 768 + 1024 for copies of input and output, and 768 for weights, unless the
// device has the host's memory and reads them there; every call is checked.
// CHECK-LABEL: builtin.module attributes {occamy.pool_bytes = 1024 : i64, occamy.weights_bytes = 768 : i64,
// CHECK-SAME:    occamy.model_bytes = {{[0-9]+}} : i64, occamy.weights = [

// CHECK:       llvm.func @occamy_setup(
// CHECK:         llvm.call @cudaStreamCreateWithFlags
// CHECK:         llvm.call @cudaDeviceGetAttribute
// CHECK:         llvm.call @cudaHostRegister
// CHECK:         llvm.call @cudaHostGetDevicePointer
// CHECK:         [[BYTES:%.*]] = llvm.mlir.constant(2560) : i64
// CHECK-NEXT:    llvm.store [[BYTES]], [[REST:%.*]] : i64, !llvm.ptr
// CHECK:         [[BYTES:%.*]] = llvm.mlir.constant(1792) : i64
// CHECK-NEXT:    llvm.store [[BYTES]], [[REST]] : i64, !llvm.ptr
// CHECK:         [[BYTES:%.*]] = llvm.load [[REST]]
// CHECK-NEXT:    [[POOL:%.*]] = llvm.mlir.constant(1024) : i64
// CHECK-NEXT:    [[ALL:%.*]] = llvm.add [[BYTES]], [[POOL]] : i64
// CHECK:         llvm.call @cudaMalloc({{%.*}}, [[ALL]])
// CHECK:         llvm.call @cudaMemcpyAsync
// CHECK:         llvm.call @cuModuleLoadData
// CHECK:         llvm.call @cuModuleGetFunction
// CHECK:         llvm.call @cudnnCreate(
// CHECK:         llvm.call @cudnnSetConvolutionNdDescriptor
// CHECK:         llvm.call @cudnnGetConvolutionForwardWorkspaceSize

// A stream that is captured must not be waited for.
// CHECK-LABEL: llvm.func @occamy_launch(
// CHECK-NOT:     llvm.call @cudaMalloc
// CHECK-NOT:     llvm.call @cudaStreamSynchronize
// CHECK:         llvm.call @cudaGraphLaunch
// CHECK:         [[STATUS:%.*]] = llvm.call @cudnnConvolutionBiasActivationForward(
// CHECK:         [[FAILED:%.*]] = llvm.icmp "ne" [[STATUS]], {{%.*}} : i32
// CHECK-NEXT:    llvm.cond_br [[FAILED]]
// CHECK:         llvm.call @cuLaunchKernel(
// CHECK-NOT:     llvm.call @cudaStreamSynchronize

// CHECK-LABEL: llvm.func @occamy_make_graph(
// CHECK:         llvm.call @cudaStreamBeginCapture
// CHECK:         llvm.call @occamy_launch
// CHECK:         llvm.call @cudaStreamEndCapture
// CHECK:         llvm.call @cudaGraphInstantiateWithFlags

// CHECK-LABEL: llvm.func @occamy_main(
// CHECK-NOT:     llvm.call @cudaMalloc
// CHECK:         llvm.call @cudaMemcpyAsync
// CHECK:         llvm.call @occamy_launch
// CHECK:         llvm.call @cudaMemcpyAsync
// CHECK:         llvm.call @cudaStreamSynchronize

// CHECK-LABEL: llvm.func @occamy_teardown(
// CHECK:         llvm.call @cudnnDestroyTensorDescriptor
// CHECK:         llvm.call @cuModuleUnload
// CHECK:         llvm.call @cudaFree
// CHECK:         llvm.call @cudaHostUnregister
// CHECK:         llvm.call @cudaStreamDestroy

// CHECK:       "gpu.module"() <{sym_name = "kernels"}> ({
// CHECK-NEXT:    gpu.func @elementwise_1x4x8x8_{{[0-9a-f]+}}({{.*}}) kernel attributes {known_block_size = array<i32: 256, 1, 1>}
// CHECK:           "gpu.thread_id"
// CHECK:           math.exp
// CHECK:           gpu.return
func.func @main(%x: memref<1x3x8x8xf32> {dnn.kind = "input"}, %out: memref<1x4x8x8xf32> {dnn.kind = "output"}) {
  %pool = dnn.mempool_init align 256 : memref<1024xi8>
  %w = dnn.constant dense<0.5> : tensor<4x3x3x3xf32> -> memref<4x3x3x3xf32>
  %b = dnn.constant dense<0.1> : tensor<4xf32> -> memref<4xf32>
  %y = dnn.mem_offset %pool[0, 1024] : memref<1024xi8> -> memref<1x4x8x8xf32>
  dnn.conv input(%x : memref<1x3x8x8xf32>) filter(%w : memref<4x3x3x3xf32>) bias(%b : memref<4xf32>)
    outs(%y : memref<1x4x8x8xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>}
    epilogue {
  ^bb0(%sum: f32):
    %zero = arith.constant 0.0 : f32
    %relu = arith.maximumf %sum, %zero : f32
    dnn.yield %relu : f32
  }
  dnn.elementwise ins(%y : memref<1x4x8x8xf32>) outs(%out : memref<1x4x8x8xf32>) body {
  ^bb0(%a: f32):
    %e = math.exp %a : f32
    dnn.yield %e : f32
  }
  dnn.dealloc %pool : memref<1024xi8>
  func.return
}
