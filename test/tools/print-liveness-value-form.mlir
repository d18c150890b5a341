// RUN: not occamy-opt %s --print-liveness 2>&1 | filecheck %s
// RUN: not occamy-opt %s --print-plan 2>&1 | filecheck %s
// RUN: occamy-opt %s -p dnn-insert-memory-ops --print-liveness | filecheck %s --check-prefix=BUFFERS

// CHECK:   error: function @main is in value form and has no buffers yet: run dnn-insert-memory-ops first
// BUFFERS: // liveness of @main
func.func @main(%x: tensor<16xf32>) -> tensor<16xf32> {
  %a = dnn.softmax input(%x : tensor<16xf32>) {axis = 0 : i64, log = false} -> tensor<16xf32>
  func.return %a : tensor<16xf32>
}
