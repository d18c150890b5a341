// RUN: occamy-opt %s -p convert-dnn-to-cpu --split-input-file --verify-diagnostics | filecheck %s

// CHECK: convert-dnn-to-cpu: the module has no function main
func.func @other() {
  func.return
}

// -----

// CHECK: convert-dnn-to-cpu: function main is not in buffer form, it has tensor<4xf32>
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = dnn.softmax input(%x : tensor<4xf32>) {axis = 0 : i64, log = false} -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}
