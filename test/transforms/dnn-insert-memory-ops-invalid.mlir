// RUN: occamy-opt %s -p dnn-insert-memory-ops --verify-diagnostics | filecheck %s

// CHECK: 'dnn.stripe' op must be expanded first, by dnn-expand-stripes
func.func @main(%x: tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32> {
  %y = dnn.stripe ins(%x : tensor<1x2x4x4xf32>) {dims = array<i64: 2>, ends = array<i64: 2, 4>, halo = "keep"} -> tensor<1x2x4x4xf32> body {
  ^bb0(%a: tensor<1x2x4x4xf32>):
    %s = dnn.softmax input(%a : tensor<1x2x4x4xf32>) {axis = 1 : i64, log = false} -> tensor<1x2x4x4xf32>
    dnn.yield %s : tensor<1x2x4x4xf32>
  }
  func.return %y : tensor<1x2x4x4xf32>
}
