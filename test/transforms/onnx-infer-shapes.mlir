// RUN: occamy-opt %s -p onnx-infer-shapes --split-input-file | filecheck %s

// Undeclared shapes are computed; a known shape reaches Reshape through shape arithmetic, which disappears.

func.func @main(%x: tensor<2x3x8x8xf32> {onnx.name = "x"}, %w: tensor<4x3x3x3xf32> {onnx.name = "w"})
    -> (tensor<*xf32> {onnx.name = "y"}) {
  %none = onnx.NoValue() : () -> none
  %c = onnx.Conv(%x, %w) {auto_pad = "SAME_UPPER", strides = array<i64: 2, 2>} : (tensor<2x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<*xf32>
  %s = onnx.Shape(%c) {start = 0 : i64, end = 1 : i64} : (tensor<*xf32>) -> tensor<*xi64>
  %m = onnx.Constant() {value = dense<-1> : tensor<1xi64>} : () -> tensor<1xi64>
  %t = onnx.Concat(%s, %m) {axis = 0 : i64} : (tensor<*xi64>, tensor<1xi64>) -> tensor<*xi64>
  %y = onnx.Reshape(%c, %t) : (tensor<*xf32>, tensor<*xi64>) -> tensor<*xf32>
  func.return %y : tensor<*xf32>
}

// CHECK:      func.func @main(%x: tensor<2x3x8x8xf32> {onnx.name = "x"}, %w: tensor<4x3x3x3xf32> {onnx.name = "w"}) -> (tensor<2x64xf32> {onnx.name = "y"}) {
// CHECK:        %c = onnx.Conv(%x, %w) {{.*}} -> tensor<2x4x4x4xf32>
// CHECK-NOT:    onnx.Shape
// CHECK:        %t = onnx.Constant() {value = dense<[2, -1]> : tensor<2xi64>} : () -> tensor<2xi64>
// CHECK-NEXT:   %y = onnx.Reshape(%c, %t) : (tensor<2x4x4x4xf32>, tensor<2xi64>) -> tensor<2x64xf32>
// CHECK-NEXT:   func.return %y : tensor<2x64xf32>

// -----

// Folding has the semantics of the generated code: integer division truncates.

func.func @main() -> (tensor<*xi32> {onnx.name = "y"}) {
  %a = onnx.Constant() {value = dense<[8, -8, 7, -7]> : tensor<4xi32>} : () -> tensor<4xi32>
  %b = onnx.Constant() {value = dense<[-3, 3, -2, 2]> : tensor<4xi32>} : () -> tensor<4xi32>
  %y = onnx.Div(%a, %b) : (tensor<4xi32>, tensor<4xi32>) -> tensor<*xi32>
  func.return %y : tensor<*xi32>
}

// CHECK:      func.func @main() -> (tensor<4xi32> {onnx.name = "y"}) {
// CHECK-NEXT:   %y = onnx.Constant() {value = dense<[-2, -2, -3, -3]> : tensor<4xi32>} : () -> tensor<4xi32>
// CHECK-NEXT:   func.return

// -----

// An If of known condition is the branch it takes.

func.func @main(%x: tensor<3xf32> {onnx.name = "x"}) -> (tensor<*xf32> {onnx.name = "y"}) {
  %c = onnx.Constant() {value = dense<false> : tensor<i1>} : () -> tensor<i1>
  %y = onnx.If(%c) ({
    %a = onnx.Neg(%x) : (tensor<3xf32>) -> tensor<*xf32>
    onnx.Yield(%a) : (tensor<*xf32>) -> ()
  }, {
    %b = onnx.Abs(%x) : (tensor<3xf32>) -> tensor<*xf32>
    onnx.Yield(%b) : (tensor<*xf32>) -> ()
  }) : (tensor<i1>) -> tensor<*xf32>
  func.return %y : tensor<*xf32>
}

// CHECK:      func.func @main(%x: tensor<3xf32> {onnx.name = "x"}) -> (tensor<3xf32> {onnx.name = "y"}) {
// CHECK-NEXT:   %b = onnx.Abs(%x) : (tensor<3xf32>) -> tensor<3xf32>
// CHECK-NEXT:   func.return %b : tensor<3xf32>

// -----

// What would enlarge the model stays: 16 KiB of f32 from 4 KiB of i8.

func.func @main() -> (tensor<*xf32> {onnx.name = "y"}) {
  %w = onnx.Constant() {value = #weights.ref<"w">} : () -> tensor<64x64xi8>
  %y = onnx.Cast(%w) {to = 1 : i64} : (tensor<64x64xi8>) -> tensor<*xf32>
  func.return %y : tensor<*xf32>
}

// CHECK: %y = onnx.Cast(%w) {to = 1 : i64} : (tensor<64x64xi8>) -> tensor<64x64xf32>

// -----

// An operator without a conversion gets the shape that the onnx package infers.

func.func @main(%x: tensor<2x8xf32> {onnx.name = "x"}) -> (tensor<*xf32> {onnx.name = "y"}) {
  %k = onnx.Constant() {value = dense<3> : tensor<1xi64>} : () -> tensor<1xi64>
  %y, %i = onnx.TopK(%x, %k) : (tensor<2x8xf32>, tensor<1xi64>) -> (tensor<*xf32>, tensor<*xi64>)
  func.return %y : tensor<*xf32>
}

// CHECK: onnx.TopK(%x, %k) : (tensor<2x8xf32>, tensor<1xi64>) -> (tensor<2x3xf32>, tensor<2x3xi64>)
