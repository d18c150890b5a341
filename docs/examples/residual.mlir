// A residual layer: y = Relu(x + Relu(x w) w).
func.func @main(%x: tensor<16x64xf32> {onnx.name = "x"}) -> (tensor<*xf32> {onnx.name = "y"}) {
  %w = onnx.Constant() {value = dense<0.1> : tensor<64x64xf32>} : () -> tensor<64x64xf32>
  %a = onnx.MatMul(%x, %w) : (tensor<16x64xf32>, tensor<64x64xf32>) -> tensor<*xf32>
  %b = onnx.Relu(%a) : (tensor<*xf32>) -> tensor<*xf32>
  %c = onnx.MatMul(%b, %w) : (tensor<*xf32>, tensor<64x64xf32>) -> tensor<*xf32>
  %s = onnx.Add(%c, %x) : (tensor<*xf32>, tensor<16x64xf32>) -> tensor<*xf32>
  %y = onnx.Relu(%s) : (tensor<*xf32>) -> tensor<*xf32>
  func.return %y : tensor<*xf32>
}
