// One program on its way to a GPU, after each step.
// RUN: occamy-opt %s -p dnn-fuse-layers,dce | filecheck %s --check-prefix=FUSED
// RUN: occamy-opt %s -p dnn-fuse-layers,dce,dnn-insert-memory-ops | filecheck %s --check-prefix=BUFFERS
// RUN: occamy-opt %s -p dnn-fuse-layers,dce,dnn-insert-memory-ops,dnn-coalesce-tensors,cuda-assign-workspaces | filecheck %s --check-prefix=WORKSPACE
// RUN: occamy-opt %s -p 'dnn-fuse-layers,dce,dnn-insert-memory-ops,dnn-coalesce-tensors,cuda-assign-workspaces,dnn-convert-to-pool{alignment=256},verify-dnn-pool' | filecheck %s --check-prefix=POOL
// RUN: occamy-opt %s -p 'dnn-fuse-layers,dce,dnn-insert-memory-ops,dnn-coalesce-tensors,cuda-assign-workspaces,dnn-convert-to-pool{alignment=256},verify-dnn-pool,convert-dnn-to-cuda' | filecheck %s --check-prefix=HOST

// The activation becomes the epilogue of the convolution.
// FUSED:      %0 = dnn.conv {{.*}} -> tensor<1x4x8x8xf32> epilogue {
// FUSED:        arith.maximumf
// FUSED:      %y = dnn.softmax input(%0 : tensor<1x4x8x8xf32>)

// Memory becomes explicit.
// BUFFERS:      %0 = dnn.malloc : memref<1x4x8x8xf32>
// BUFFERS-NEXT: dnn.conv {{.*}} outs(%0 : memref<1x4x8x8xf32>)
// BUFFERS:      %y = dnn.malloc : memref<1x4x8x8xf32>
// BUFFERS-NEXT: dnn.softmax input(%0 : memref<1x4x8x8xf32>) outs(%y : memref<1x4x8x8xf32>)
// BUFFERS-NEXT: dnn.dealloc %0
// BUFFERS-NEXT: dnn.copy input(%y : memref<1x4x8x8xf32>) outs(%out : memref<1x4x8x8xf32>)

// Everything is computed in the caller's memory. Under a peak of no bytes the library gets no workspace.
// WORKSPACE-NOT:  dnn.malloc
// WORKSPACE:      dnn.conv {{.*}} outs(%out : memref<1x4x8x8xf32>)
// WORKSPACE-SAME:   cuda.algorithm = 0 : i64, cuda.library_bytes = 0 : i64
// WORKSPACE:      dnn.softmax input(%out : memref<1x4x8x8xf32>) outs(%out : memref<1x4x8x8xf32>)

// So there is nothing for a pool to hold.
// POOL-NOT:  dnn.mempool_init
// POOL:      dnn.plan = {planner = "search", pool_bytes = 0 : i64

// HOST-LABEL: llvm.func @occamy_setup(
// HOST:         [[BYTES:%.*]] = llvm.mlir.constant(2560) : i64
// HOST-NEXT:    llvm.store [[BYTES]], [[REST:%.*]] : i64, !llvm.ptr
// HOST:         [[BYTES:%.*]] = llvm.load [[REST]]
// HOST:         [[ALL:%.*]] = llvm.add [[BYTES]], {{%.*}} : i64
// HOST:         llvm.call @cudaMalloc({{%.*}}, [[ALL]])
// HOST-LABEL: llvm.func @occamy_launch(
// HOST:         llvm.call @cudnnConvolutionBiasActivationForward
// HOST:         llvm.call @cudnnSoftmaxForward
// HOST-LABEL: llvm.func @occamy_main(
// HOST:         llvm.call @cudaMemcpyAsync
// HOST:         llvm.call @occamy_launch
// HOST:         llvm.call @cudaMemcpyAsync
// HOST:         llvm.call @cudaStreamSynchronize
// HOST-LABEL: llvm.func @occamy_abandon(
// HOST-LABEL: llvm.func @occamy_teardown(
func.func @main(%x: tensor<1x3x8x8xf32> {dnn.kind = "input"}) -> tensor<1x4x8x8xf32> {
  %w = dnn.constant dense<0.5> : tensor<4x3x3x3xf32> -> tensor<4x3x3x3xf32>
  %0 = dnn.conv input(%x : tensor<1x3x8x8xf32>) filter(%w : tensor<4x3x3x3xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>}
    -> tensor<1x4x8x8xf32>
  %1 = dnn.elementwise ins(%0 : tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32> body {
  ^bb0(%a: f32):
    %zero = arith.constant 0.0 : f32
    %relu = arith.maximumf %a, %zero : f32
    dnn.yield %relu : f32
  }
  %y = dnn.softmax input(%1 : tensor<1x4x8x8xf32>) {log = false, axis = 1 : i64} -> tensor<1x4x8x8xf32>
  func.return %y : tensor<1x4x8x8xf32>
}
