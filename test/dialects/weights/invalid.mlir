// RUN: occamy-opt %s --split-input-file --parsing-diagnostics | filecheck %s

// CHECK: weights key does not spell a tensor: splat(0000:float32:2)
func.func @short() {
  %a = onnx.Constant() {value = #weights.ref<"splat(0000:float32:2)">} : () -> tensor<2xf32>
  func.return
}

// -----

// CHECK: weights key does not spell a tensor: literal(00000000:nosuchtype:1)
func.func @type() {
  %a = onnx.Constant() {value = #weights.ref<"literal(00000000:nosuchtype:1)">} : () -> tensor<1xf32>
  func.return
}
