// RUN: occamy-opt %s -p convert-onnx-to-dnn --print-debuginfo --split-input-file | filecheck %s

// Batch normalisation becomes x * scale + shift, with both computed here; the scalar bound of Clip is inlined;
// SoftmaxV11 normalises all dimensions from 1 on. An output that is an input or a constant is copied.

func.func @main(%x: tensor<1x2x4x4xf32> {onnx.name = "x"})
    -> (tensor<*xf32> {onnx.name = "y"}, tensor<1x2x4x4xf32> {onnx.name = "x2"}, tensor<f32> {onnx.name = "k"}) {
  %none = onnx.NoValue() : () -> none
  %gamma = onnx.Constant() {value = dense<[1.0, 2.0]> : tensor<2xf32>} : () -> tensor<2xf32>
  %beta = onnx.Constant() {value = dense<[0.0, 1.0]> : tensor<2xf32>} : () -> tensor<2xf32>
  %mean = onnx.Constant() {value = dense<[0.0, 3.0]> : tensor<2xf32>} : () -> tensor<2xf32>
  %var = onnx.Constant() {value = dense<[4.0, 1.0]> : tensor<2xf32>} : () -> tensor<2xf32>
  %b = onnx.BatchNormalization(%x, %gamma, %beta, %mean, %var) {epsilon = 0.0 : f32} : (tensor<1x2x4x4xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<*xf32> loc("bn")
  %hi = onnx.Constant() {value = dense<6.0> : tensor<f32>} : () -> tensor<f32>
  %c = onnx.Clip(%b, %none, %hi) : (tensor<*xf32>, none, tensor<f32>) -> tensor<*xf32> loc("clip")
  %p = onnx.MaxPool(%c) {kernel_shape = array<i64: 3, 3>, strides = array<i64: 2, 2>, ceil_mode = 1 : i64} : (tensor<*xf32>) -> tensor<*xf32> loc("pool")
  %y = onnx.SoftmaxV11(%p) : (tensor<*xf32>) -> tensor<*xf32> loc("softmax")
  func.return %y, %x, %hi : tensor<*xf32>, tensor<1x2x4x4xf32>, tensor<f32>
}

// CHECK:      func.func @main(%x: tensor<1x2x4x4xf32> {onnx.name = "x"} {{.*}}) -> (tensor<1x2x2x2xf32> {onnx.name = "y"}, tensor<1x2x4x4xf32> {onnx.name = "x2"}, tensor<f32> {onnx.name = "k"}) {
// CHECK-NEXT:   %[[SCALE:.*]] = dnn.constant dense<{{\[}}{{\[}}[5.000000e-01]], {{\[}}[2.000000e+00]]]> : tensor<2x1x1xf32>
// CHECK-NEXT:   %[[SHIFT:.*]] = dnn.constant dense<{{\[}}{{\[}}[0.000000e+00]], {{\[}}[-5.000000e+00]]]> : tensor<2x1x1xf32>
// CHECK-NEXT:   %b = dnn.elementwise ins(%x, %[[SCALE]], %[[SHIFT]] : {{.*}}) -> tensor<1x2x4x4xf32> body {
// CHECK-NEXT:   ^bb0(%[[X:.*]]: f32 {{.*}}, %[[S:.*]]: f32 {{.*}}, %[[T:.*]]: f32 {{.*}}):
// CHECK-NEXT:     %[[M:.*]] = arith.mulf %[[X]], %[[S]] : f32
// CHECK-NEXT:     %[[A:.*]] = arith.addf %[[M]], %[[T]] : f32
// CHECK-NEXT:     dnn.yield %[[A]] : f32
// CHECK-NEXT:   } loc("bn")
// CHECK:        %c = dnn.elementwise ins(%b : tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32> body {
// CHECK:          arith.constant 6.000000e+00 : f32
// CHECK-NEXT:     arith.minimumf
// CHECK:        } loc("clip")
// CHECK-NEXT:   %p = dnn.pool input(%c : tensor<1x2x4x4xf32>) {{.*}} -> tensor<1x2x2x2xf32> loc("pool")
// CHECK-NEXT:   %[[F:.*]] = dnn.reshape input(%p : tensor<1x2x2x2xf32>) -> tensor<1x8xf32> loc("softmax")
// CHECK-NEXT:   %[[SM:.*]] = dnn.softmax input(%[[F]] : tensor<1x8xf32>) {axis = 1 : i64, log = false} -> tensor<1x8xf32> loc("softmax")
// CHECK-NEXT:   %y = dnn.reshape input(%[[SM]] : tensor<1x8xf32>) -> tensor<1x2x2x2xf32> loc("softmax")
// CHECK-NEXT:   %[[X2:.*]] = dnn.copy input(%x : tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
// CHECK-NEXT:   %[[K:.*]] = dnn.copy input(%hi : tensor<f32>) -> tensor<f32>
// CHECK-NEXT:   func.return %y, %[[X2]], %[[K]] :

// -----

// Negative pads cut before the others add; elements keep their sign. An operand used twice is read once.

func.func @main(%x: tensor<3x4xui8> {onnx.name = "x"}) -> (tensor<*xui8> {onnx.name = "y"}) {
  %pads = onnx.Constant() {value = dense<[-1, 0, 1, 0]> : tensor<4xi64>} : () -> tensor<4xi64>
  %p = onnx.Pad(%x, %pads) : (tensor<3x4xui8>, tensor<4xi64>) -> tensor<*xui8>
  %y = onnx.Max(%p, %p) : (tensor<*xui8>, tensor<*xui8>) -> tensor<*xui8>
  func.return %y : tensor<*xui8>
}

// CHECK:      %[[CUT:.*]] = dnn.slice input(%x : tensor<3x4xui8>) {offsets = array<i64: 1, 0>, sizes = array<i64: 2, 4>, strides = array<i64: 1, 1>} -> tensor<2x4xui8>
// CHECK-NEXT: %p = dnn.pad input(%[[CUT]] : tensor<2x4xui8>) {low = array<i64: 0, 0>, high = array<i64: 1, 0>, mode = "constant", value = 0 : i8} -> tensor<3x4xui8>
// CHECK-NEXT: %y = dnn.elementwise ins(%p : tensor<3x4xui8>) -> tensor<3x4xui8> body {
// CHECK-NEXT: ^bb0(%[[E:.*]]: i8 {{.*}}):
// CHECK-NEXT:   arith.maxui %[[E]], %[[E]] : i8
