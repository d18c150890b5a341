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

// A loop carries its value in the order in which the body computes it; a result is ordered as the first branch has it.
// CHECK-LABEL: func.func @control_flow
// CHECK-NEXT:    [[X:%.*]] = dnn.copy input(%x : tensor<1x8x4x4xf32>) -> tensor<1x8x4x4xf32, #dnn.order<0, 2, 3, 1>>
// CHECK-NEXT:    %p = dnn.loop condition(%c : tensor<i1>) inits([[X]] : tensor<1x8x4x4xf32, #dnn.order<0, 2, 3, 1>>)
// CHECK-NEXT:    ^bb0(%a: tensor<1x8x4x4xf32, #dnn.order<0, 2, 3, 1>>):
// CHECK-NEXT:      %m = dnn.conv
// CHECK-NEXT:      dnn.yield %c, %m : tensor<i1>, tensor<1x8x4x4xf32, #dnn.order<0, 2, 3, 1>>
// CHECK:         %y = dnn.if condition(%c : tensor<i1>) -> tensor<1x8x4x4xf32, #dnn.order<0, 2, 3, 1>> then {
// CHECK-NEXT:      %l = dnn.softmax
// CHECK-NEXT:      dnn.yield %l
// CHECK-NEXT:    } otherwise {
// CHECK-NEXT:      [[Y:%.*]] = dnn.copy input(%x : tensor<1x8x4x4xf32>) -> tensor<1x8x4x4xf32, #dnn.order<0, 2, 3, 1>>
// CHECK-NEXT:      dnn.yield [[Y]]
// CHECK-NEXT:    }
// CHECK-NEXT:    dnn.softmax input(%y : tensor<1x8x4x4xf32, #dnn.order<0, 2, 3, 1>>) {{.*}} -> tensor<1x8x4x4xf32>
func.func @control_flow(%c: tensor<i1>, %x: tensor<1x8x4x4xf32>, %w: tensor<8x8x1x1xf32>) -> tensor<1x8x4x4xf32> {
  %p = dnn.loop condition(%c : tensor<i1>) inits(%x : tensor<1x8x4x4xf32>) -> tensor<1x8x4x4xf32> body {
  ^bb0(%a: tensor<1x8x4x4xf32>):
    %m = dnn.conv input(%a : tensor<1x8x4x4xf32>) filter(%w : tensor<8x8x1x1xf32>) {strides = array<i64: 1, 1>, dilations = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, group = 1 : i64} -> tensor<1x8x4x4xf32>
    dnn.yield %c, %m : tensor<i1>, tensor<1x8x4x4xf32>
  }
  %y = dnn.if condition(%c : tensor<i1>) -> tensor<1x8x4x4xf32> then {
    %l = dnn.softmax input(%p : tensor<1x8x4x4xf32>) {axis = 1 : i64, log = false} -> tensor<1x8x4x4xf32>
    dnn.yield %l : tensor<1x8x4x4xf32>
  } otherwise {
    dnn.yield %x : tensor<1x8x4x4xf32>
  }
  %z = dnn.softmax input(%y : tensor<1x8x4x4xf32>) {axis = 1 : i64, log = false} -> tensor<1x8x4x4xf32>
  func.return %z : tensor<1x8x4x4xf32>
}
