// The two halves of a concatenation, from two slices of the input.
func.func @main(%x: tensor<4x8xf32> {onnx.name = "x"}) -> (tensor<4x8xf32> {onnx.name = "y"}) {
  %s = dnn.slice input(%x : tensor<4x8xf32>)
    {offsets = array<i64: 1, 0>, sizes = array<i64: 2, 8>, strides = array<i64: 1, 1>} -> tensor<2x8xf32>
  %a = dnn.softmax input(%s : tensor<2x8xf32>) {axis = 1 : i64, log = false} -> tensor<2x8xf32>
  %b = dnn.softmax input(%s : tensor<2x8xf32>) {axis = 0 : i64, log = false} -> tensor<2x8xf32>
  %y = dnn.concat ins(%a, %b : tensor<2x8xf32>, tensor<2x8xf32>) {axis = 0 : i64} -> tensor<4x8xf32>
  func.return %y : tensor<4x8xf32>
}
