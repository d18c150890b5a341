// RUN: occamy-opt %s --split-input-file --verify-diagnostics | filecheck %s

// CHECK: 'onnx.Conv' op number of operands must be 2 to 3, got 1 (C1)
func.func @c1(%x: tensor<1x3x8x8xf32>) {
  %y = onnx.Conv(%x) : (tensor<1x3x8x8xf32>) -> tensor<*xf32>
  func.return
}

// -----

// CHECK: 'onnx.Conv' op needs operand 'W', got none (C2)
func.func @c2(%x: tensor<1x3x8x8xf32>) {
  %none = onnx.NoValue() : () -> none
  %y = onnx.Conv(%x, %none) : (tensor<1x3x8x8xf32>, none) -> tensor<*xf32>
  func.return
}

// -----

// CHECK: 'onnx.Relu' op number of results must be 1, got 2 (C3)
func.func @c3(%x: tensor<4xf32>) {
  %y, %z = onnx.Relu(%x) : (tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>)
  func.return
}

// -----

// CHECK: 'onnx.Relu' op has no attribute 'alpha' (C4)
func.func @c4(%x: tensor<4xf32>) {
  %y = "onnx.Relu"(%x) <{alpha = 1.0 : f32}> : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

// CHECK: 'onnx.LeakyRelu' op attribute 'alpha' is an f32, got 1 : i64 (C5)
func.func @c5(%x: tensor<4xf32>) {
  %y = onnx.LeakyRelu(%x) {alpha = 1 : i64} : (tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

// CHECK: 'onnx.MaxPool' op attribute 'kernel_shape' is an i64 array, got [1 : i64] (C5)
func.func @c5_ints(%x: tensor<1x1x4xf32>) {
  %y = onnx.MaxPool(%x) {kernel_shape = [1 : i64]} : (tensor<1x1x4xf32>) -> tensor<1x1x4xf32>
  func.return
}

// -----

// CHECK: 'onnx.Cast' op needs attribute 'to' (C6)
func.func @c6(%x: tensor<4xf32>) {
  %y = onnx.Cast(%x) : (tensor<4xf32>) -> tensor<4xi64>
  func.return
}

// -----

// CHECK: 'onnx.Conv' op operand 'X' may not be tensor(int64), got tensor<1x3x8x8xi64> (C7)
func.func @c7(%x: tensor<1x3x8x8xi64>) {
  %y = onnx.Conv(%x, %x) : (tensor<1x3x8x8xi64>, tensor<1x3x8x8xi64>) -> tensor<*xi64>
  func.return
}

// -----

// CHECK: 'onnx.Shape' op result 'shape' may not be tensor(float), got tensor<1xf32> (C7)
func.func @c7_result(%x: tensor<4xf32>) {
  %y = onnx.Shape(%x) : (tensor<4xf32>) -> tensor<1xf32>
  func.return
}

// -----

// CHECK: 'onnx.Relu' op operand 0 has a type that ONNX lacks: tensor<4xindex> (C7)
func.func @c7_index(%x: tensor<4xindex>) {
  %y = onnx.Relu(%x) : (tensor<4xindex>) -> tensor<4xindex>
  func.return
}

// -----

// CHECK: 'onnx.Add' op operand 'B' has the element type of 'A', tensor(float), got tensor(double) (C8)
func.func @c8(%x: tensor<4xf32>, %y: tensor<4xf64>) {
  %z = onnx.Add(%x, %y) : (tensor<4xf32>, tensor<4xf64>) -> tensor<4xf32>
  func.return
}

// -----

// CHECK: 'onnx.Relu' op result 'Y' has the element type of 'X', tensor(float), got tensor(float16) (C8)
func.func @c8_result(%x: tensor<4xf32>) {
  %z = onnx.Relu(%x) : (tensor<4xf32>) -> tensor<4xf16>
  func.return
}

// -----

// CHECK: 'onnx.If' op number of regions must be 2, got 0 (C9)
func.func @c9(%c: tensor<i1>) {
  %y = onnx.If(%c) : (tensor<i1>) -> tensor<4xf32>
  func.return
}

// -----

// CHECK: 'onnx.Loop' op region 'body' is not one block ending in onnx.Yield (C9)
func.func @c9_end(%n: tensor<i64>, %c: tensor<i1>, %x: tensor<4xf32>) {
  %y = onnx.Loop(%n, %c, %x) ({
  }) : (tensor<i64>, tensor<i1>, tensor<4xf32>) -> tensor<4xf32>
  func.return
}

// -----

// CHECK: 'onnx.Constant' op has one value, got 0 (C10)
func.func @c10() {
  %x = onnx.Constant() : () -> tensor<f32>
  func.return
}

// -----

// CHECK: 'onnx.Constant' op result has the value's type tensor<2xf32>, got tensor<3xf32> (C10)
func.func @c10_type() {
  %x = onnx.Constant() {value = dense<[1.0, 2.0]> : tensor<2xf32>} : () -> tensor<3xf32>
  func.return
}

// -----

// CHECK: 'onnx.NoValue' op has no operand and one result of type none (C1)
func.func @no_value() {
  %x = onnx.NoValue() : () -> tensor<f32>
  func.return
}

// -----

// CHECK: 'onnx.Yield' op has no result, got 1 (C1)
func.func @yield_result(%c: tensor<i1>) {
  onnx.If(%c) ({
    %x = onnx.Yield() : () -> tensor<f32>
  }, {
    onnx.Yield() : () -> ()
  }) : (tensor<i1>) -> ()
  func.return
}

// -----

// CHECK: 'onnx.Yield' op ends a region of an onnx operation, got func.func (C2)
func.func @yield_outside() {
  onnx.Yield() : () -> ()
}

// -----

// CHECK: 'onnx.Custom' op needs string 'domain_name', got None (C1)
func.func @custom() {
  onnx.Custom() {function_name = "F"} : () -> ()
  func.return
}
