// RUN: occamy-opt %s -p 'convert-dnn-to-cuda{stream-weights=true}' | filecheck %s

// Copies of 1024 bytes for input and output each, and two slots of 256 bytes for the three filters of 256.
// CHECK-LABEL: llvm.func @occamy_setup(
// CHECK:         [[BYTES:%.*]] = llvm.mlir.constant(2560) : i64
// CHECK-NEXT:    llvm.store [[BYTES]], [[REST:%.*]] : i64, !llvm.ptr
// CHECK:         [[BYTES:%.*]] = llvm.load [[REST]]
// CHECK-NEXT:    [[POOL:%.*]] = llvm.mlir.constant(2048) : i64
// CHECK-NEXT:    [[ALL:%.*]] = llvm.add [[BYTES]], [[POOL]] : i64
// CHECK:         llvm.call @cudaMalloc({{%.*}}, [[ALL]])
// CHECK-NOT:     llvm.call @cudaMemcpyAsync
// CHECK:         llvm.call @cudaEventCreateWithFlags

// The first two filters are copied before the first convolution; the third one waits until that is done.
// CHECK-LABEL: llvm.func @occamy_launch(
// CHECK:         llvm.call @cudaStreamWaitEvent
// CHECK:         llvm.call @cudaMemcpyAsync
// CHECK:         llvm.call @cudaEventRecord
// CHECK:         llvm.call @cudaStreamWaitEvent
// CHECK:         llvm.call @cudaMemcpyAsync
// CHECK:         llvm.call @cudaEventRecord
// CHECK:         llvm.call @cudaStreamWaitEvent
// CHECK:         llvm.call @cudnnConvolutionForward
// CHECK:         llvm.call @cudaEventRecord
// CHECK:         llvm.call @cudaStreamWaitEvent
// CHECK:         llvm.call @cudaMemcpyAsync
// CHECK:         llvm.call @cudaEventRecord
// CHECK:         llvm.call @cudaStreamWaitEvent
// CHECK:         llvm.call @cudnnConvolutionForward
// CHECK:         llvm.call @cudaEventRecord
// CHECK:         llvm.call @cudaStreamWaitEvent
// CHECK:         llvm.call @cudnnConvolutionForward
// CHECK:         llvm.call @cudaEventRecord
// CHECK:         llvm.call @cudaStreamSynchronize
// CHECK-LABEL: llvm.func @occamy_teardown(
// CHECK:         llvm.call @cudaEventDestroy
// CHECK:         llvm.call @cudaStreamDestroy
// CHECK:         llvm.call @cudaStreamDestroy
func.func @main(%x: memref<1x4x8x8xf32> {dnn.kind = "input"}, %out: memref<1x4x8x8xf32> {dnn.kind = "output"}) {
  %pool = dnn.mempool_init align 256 : memref<2048xi8>
  %a = dnn.mem_offset %pool[0, 1024] : memref<2048xi8> -> memref<1x4x8x8xf32>
  %b = dnn.mem_offset %pool[1024, 1024] : memref<2048xi8> -> memref<1x4x8x8xf32>
  %u = dnn.constant dense<1.0> : tensor<4x4x1x1xf32> -> memref<4x4x1x1xf32>
  %v = dnn.constant dense<2.0> : tensor<4x4x1x1xf32> -> memref<4x4x1x1xf32>
  %w = dnn.constant dense<3.0> : tensor<4x4x1x1xf32> -> memref<4x4x1x1xf32>
  dnn.conv input(%x : memref<1x4x8x8xf32>) filter(%u : memref<4x4x1x1xf32>) outs(%a : memref<1x4x8x8xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>}
  dnn.conv input(%a : memref<1x4x8x8xf32>) filter(%v : memref<4x4x1x1xf32>) outs(%b : memref<1x4x8x8xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>}
  dnn.conv input(%b : memref<1x4x8x8xf32>) filter(%w : memref<4x4x1x1xf32>) outs(%out : memref<1x4x8x8xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>}
  dnn.dealloc %pool : memref<2048xi8>
  func.return
}
