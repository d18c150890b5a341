func.func @main(%go: tensor<i1> {onnx.name = "go"}, %x: tensor<64x64xf32> {onnx.name = "x"}) -> (tensor<64x64xf32> {onnx.name = "y"}) {
  %y = dnn.loop condition(%go : tensor<i1>) inits(%x : tensor<64x64xf32>) -> tensor<64x64xf32> body {
  ^bb0(%a: tensor<64x64xf32>):
    %p = dnn.matmul a(%a : tensor<64x64xf32>) b(%a : tensor<64x64xf32>) -> tensor<64x64xf32>
    %s = dnn.softmax input(%p : tensor<64x64xf32>) {axis = 1 : i64, log = false} -> tensor<64x64xf32>
    %m = dnn.reduce input(%s : tensor<64x64xf32>) {kind = "max", axes = array<i64: 0, 1>} -> tensor<f32>
    %n = dnn.elementwise ins(%m : tensor<f32>) -> tensor<i1> body {
    ^bb0(%u: f32):
      %half = arith.constant 5.000000e-01 : f32
      %g = arith.cmpf olt, %u, %half : f32
      dnn.yield %g : i1
    }
    dnn.yield %n, %s : tensor<i1>, tensor<64x64xf32>
  }
  func.return %y : tensor<64x64xf32>
}
