// RUN: occamy-opt %s -p convert-dnn-to-cuda | filecheck %s

// Buffers outside of a pool are allocated when the model runs, on the device and, pinned, on the host. What a failed
// run leaves is freed by occamy_abandon.
// CHECK-LABEL: llvm.func @occamy_launch(
// CHECK:         llvm.call @cudaHostAlloc(
// CHECK:         llvm.call @cudaMalloc(
// CHECK:         llvm.call @cudnnSoftmaxForward(
// CHECK:         llvm.call @cudaMemcpyAsync(
// CHECK:         llvm.call @cudaFree(
// CHECK:         llvm.call @cudaMalloc(
// CHECK:         llvm.call @cudaMemcpyAsync(
// CHECK:         llvm.call @cudnnSoftmaxForward(
// CHECK:         llvm.call @cudaFree(
// CHECK:         llvm.call @cudaFreeHost(
// CHECK-LABEL: llvm.func @occamy_abandon(
// CHECK:         llvm.call @cudaStreamSynchronize(
// CHECK:         llvm.call @cudaFreeHost(
// CHECK:         llvm.call @cudaFree(
func.func @main(%x: memref<4x8xf32> {dnn.kind = "input"}, %out: memref<4x8xf32> {dnn.kind = "output"}) {
  %home = dnn.malloc : memref<4x8xf32, "host">
  %a = dnn.malloc : memref<4x8xf32>
  dnn.softmax input(%x : memref<4x8xf32>) outs(%a : memref<4x8xf32>) {log = false, axis = 1 : i64}
  dnn.memcpy %home, %a "d2h" : memref<4x8xf32, "host">, memref<4x8xf32>
  dnn.dealloc %a : memref<4x8xf32>
  %b = dnn.malloc : memref<4x8xf32>
  dnn.memcpy %b, %home "h2d" : memref<4x8xf32>, memref<4x8xf32, "host">
  dnn.softmax input(%b : memref<4x8xf32>) outs(%out : memref<4x8xf32>) {log = false, axis = 0 : i64}
  dnn.dealloc %b : memref<4x8xf32>
  dnn.dealloc %home : memref<4x8xf32, "host">
  func.return
}
