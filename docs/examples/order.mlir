// Two branches, each large at first and small at the end, in an order that keeps both large tensors.
func.func @main(%x: tensor<1x4096xf32> {onnx.name = "x"}) -> tensor<1xf32> {
  %a = dnn.softmax input(%x : tensor<1x4096xf32>) {axis = 1 : i64, log = false} -> tensor<1x4096xf32>
  %b = dnn.softmax input(%x : tensor<1x4096xf32>) {axis = 1 : i64, log = true} -> tensor<1x4096xf32>
  %p = dnn.reduce input(%a : tensor<1x4096xf32>) {kind = "max", axes = array<i64: 1>} -> tensor<1xf32>
  %q = dnn.reduce input(%b : tensor<1x4096xf32>) {kind = "max", axes = array<i64: 1>} -> tensor<1xf32>
  %y = dnn.elementwise ins(%p, %q : tensor<1xf32>, tensor<1xf32>) -> tensor<1xf32> body {
  ^bb0(%u: f32, %v: f32):
    %s = arith.addf %u, %v : f32
    dnn.yield %s : f32
  }
  func.return %y : tensor<1xf32>
}
