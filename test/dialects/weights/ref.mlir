// RUN: occamy-opt %s | occamy-opt | filecheck %s
// RUN: occamy-opt %s --save-weights %t.safetensors 2>&1 | filecheck %s
// RUN: occamy-opt %s --weights %t.safetensors | filecheck %s
// RUN: occamy-opt %s --elide-constants 2 | filecheck %s --check-prefix=ELIDED

// Keys that spell their values have data without a file, so that they can be saved.
// CHECK-LABEL: func.func @spelled
func.func @spelled() {
  // CHECK-NEXT: value = #weights.ref<"splat(000080ff:float32:2x3)">
  %a = onnx.Constant() {value = #weights.ref<"splat(000080ff:float32:2x3)">} : () -> tensor<2x3xf32>
  // CHECK-NEXT: value = #weights.ref<"literal(0000807f0000c07f:float32:2)">
  %b = onnx.Constant() {value = #weights.ref<"literal(0000807f0000c07f:float32:2)">} : () -> tensor<2xf32>
  // ELIDED: value = dense_resource<__elided__> : tensor<3xi64>
  // ELIDED: value = dense<[1, 2]> : tensor<2xi64>
  %c = onnx.Constant() {value = dense<[1, 2, 3]> : tensor<3xi64>} : () -> tensor<3xi64>
  %d = onnx.Constant() {value = dense<[1, 2]> : tensor<2xi64>} : () -> tensor<2xi64>
  func.return
}
