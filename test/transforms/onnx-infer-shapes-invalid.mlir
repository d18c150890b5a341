// RUN: not occamy-opt %s -p onnx-infer-shapes 2>&1 | filecheck %s

// All nodes that contradict ONNX are reported at once; what depends on them is not.

func.func @main(%a: tensor<3xf32> {onnx.name = "a"}, %b: tensor<4x2xf32> {onnx.name = "b"})
    -> (tensor<*xf32> {onnx.name = "y"}, tensor<4xf32> {onnx.name = "z"}) {
  %m = onnx.MatMul(%a, %b) : (tensor<3xf32>, tensor<4x2xf32>) -> tensor<*xf32> loc("mm3")
  %t = onnx.Transpose(%b) {perm = array<i64: 0, 2>} : (tensor<4x2xf32>) -> tensor<*xf32> loc("turn")
  %y = onnx.Add(%m, %t) : (tensor<*xf32>, tensor<*xf32>) -> tensor<*xf32> loc("add")
  %z = onnx.Relu(%a) : (tensor<3xf32>) -> tensor<4xf32> loc("relu")
  func.return %y, %z : tensor<*xf32>, tensor<4xf32>
}

// CHECK:      node 'mm3' (MatMul): cannot multiply shapes [3] and [4, 2]
// CHECK-NEXT: node 'turn' (Transpose): perm [0, 2] does not order 2 dimensions
// CHECK-NEXT: node 'relu' (Relu): computes tensor<3xf32>, the model declares tensor<4xf32>
// CHECK-NOT:  add
