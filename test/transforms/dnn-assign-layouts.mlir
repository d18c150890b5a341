// RUN: occamy-opt %s -p dnn-assign-layouts | filecheck %s

// A convolution writes channels-last, elementwise work and a split of the channels keep that order, a transpose
// to channels-last is then row-major, and the caller gets row-major data.
// CHECK-LABEL: @follow
// CHECK:       %c = dnn.conv input(%x : tensor<1x4x8x8xf32>){{.*}}-> tensor<1x4x8x8xf32, #dnn.order<0, 2, 3, 1>>
// CHECK-NEXT:  %e = dnn.elementwise ins(%c : {{.*}}) -> tensor<1x4x8x8xf32, #dnn.order<0, 2, 3, 1>>
// CHECK:       %s = dnn.reshape input(%e : {{.*}}) -> tensor<1x2x2x8x8xf32, #dnn.order<0, 3, 4, 1, 2>>
// CHECK-NEXT:  %m = dnn.softmax
// CHECK-NEXT:  %t = dnn.transpose input(%e : {{.*}}) {{.*}}-> tensor<1x8x8x4xf32>
// CHECK-NEXT:  %r = dnn.reduce input(%e : {{.*}}) {{.*}}-> tensor<1x4xf32>
// CHECK-NEXT:  [[OUT:%.*]] = dnn.copy input(%e : tensor<1x4x8x8xf32, #dnn.order<0, 2, 3, 1>>) -> tensor<1x4x8x8xf32>
// CHECK-NEXT:  func.return %t, %r, [[OUT]]
func.func @follow(%x: tensor<1x4x8x8xf32>, %w: tensor<4x4x1x1xf32>) -> (tensor<1x8x8x4xf32>, tensor<1x4xf32>, tensor<1x4x8x8xf32>) {
  %c = dnn.conv input(%x : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x1x1xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>}
    -> tensor<1x4x8x8xf32>
  %e = dnn.elementwise ins(%c : tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32> body {
  ^bb0(%a: f32):
    %o = arith.negf %a : f32
    dnn.yield %o : f32
  }
  %s = dnn.reshape input(%e : tensor<1x4x8x8xf32>) -> tensor<1x2x2x8x8xf32>
  %m = dnn.softmax input(%s : tensor<1x2x2x8x8xf32>) {axis = 1 : i64, log = false} -> tensor<1x2x2x8x8xf32>
  %t = dnn.transpose input(%e : tensor<1x4x8x8xf32>) {permutation = array<i64: 0, 2, 3, 1>} -> tensor<1x8x8x4xf32>
  %r = dnn.reduce input(%e : tensor<1x4x8x8xf32>) {kind = "mean", axes = array<i64: 2, 3>} -> tensor<1x4xf32>
  func.return %t, %r, %e : tensor<1x8x8x4xf32>, tensor<1x4xf32>, tensor<1x4x8x8xf32>
}
