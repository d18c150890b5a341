// RUN: not occamy-opt %s -p convert-onnx-to-dnn 2>&1 | filecheck %s

// All nodes that are not supported are reported at once.

func.func @main(%x: tensor<2x8xf32> {onnx.name = "x"}, %k: tensor<1xi64> {onnx.name = "k"})
    -> (tensor<*xf32> {onnx.name = "a"}, tensor<*xf32> {onnx.name = "b"}, tensor<*xf32> {onnx.name = "c"}) {
  %a = onnx.Det(%x) : (tensor<2x8xf32>) -> tensor<*xf32> loc("det")
  %b = onnx.Reshape(%x, %k) : (tensor<2x8xf32>, tensor<1xi64>) -> tensor<*xf32> loc("shape")
  %t = onnx.Constant() {value = dense<true> : tensor<i1>} : () -> tensor<i1>
  %none = onnx.NoValue() : () -> none
  %c = onnx.Dropout(%x, %none, %t) : (tensor<2x8xf32>, none, tensor<i1>) -> tensor<*xf32> loc("drop")
  func.return %a, %b, %c : tensor<*xf32>, tensor<*xf32>, tensor<*xf32>
}

// CHECK:      node 'det' (Det): operator not supported
// CHECK-NEXT: node 'shape' (Reshape): the shape is computed at run time; it must be known at compile time
// CHECK-NEXT: node 'drop' (Dropout): training_mode
