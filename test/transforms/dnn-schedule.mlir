// RUN: occamy-opt %s -p dnn-schedule | filecheck %s

// Each large value is reduced as soon as it exists, so that only one of them is live.
// CHECK-LABEL: @main
// CHECK-SAME:    dnn.order_search = {peak_bytes = 4104 : i64, status = "proven optimal"}
// CHECK-NEXT:    %a = dnn.softmax
// CHECK-NEXT:    %c = dnn.reduce input(%a
// CHECK-NEXT:    %b = dnn.softmax
// CHECK-NEXT:    %d = dnn.reduce input(%b
// CHECK-NEXT:    %y = dnn.concat ins(%c, %d
func.func @main(%x: tensor<2x512xf32>) -> tensor<4xf32> {
  %a = dnn.softmax input(%x : tensor<2x512xf32>) {axis = 1 : i64, log = false} -> tensor<2x512xf32>
  %b = dnn.softmax input(%x : tensor<2x512xf32>) {axis = 0 : i64, log = false} -> tensor<2x512xf32>
  %c = dnn.reduce input(%a : tensor<2x512xf32>) {kind = "sum", axes = array<i64: 1>} -> tensor<2xf32>
  %d = dnn.reduce input(%b : tensor<2x512xf32>) {kind = "max", axes = array<i64: 1>} -> tensor<2xf32>
  %y = dnn.concat ins(%c, %d : tensor<2xf32>, tensor<2xf32>) {axis = 0 : i64} -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}

// A branch is ordered by itself; what does not need it then moves to where less is live.
// CHECK-LABEL: func.func @control_flow
// CHECK-SAME:    dnn.order_search = {peak_bytes = 16396 : i64, status = "best found"}
// CHECK-NEXT:    %y = dnn.if condition(%c : tensor<i1>) -> tensor<1xf32> then {
// CHECK-NEXT:      %a = dnn.softmax
// CHECK-NEXT:      %p = dnn.reduce input(%a
// CHECK-NEXT:      %b = dnn.softmax
// CHECK-NEXT:      %q = dnn.reduce input(%b
// CHECK:         %k = dnn.softmax
// CHECK-NEXT:    %m = dnn.reduce input(%k
func.func @control_flow(%c: tensor<i1>, %x: tensor<1x4096xf32>) -> tensor<1xf32> {
  %k = dnn.softmax input(%x : tensor<1x4096xf32>) {axis = 1 : i64, log = true} -> tensor<1x4096xf32>
  %y = dnn.if condition(%c : tensor<i1>) -> tensor<1xf32> then {
    %a = dnn.softmax input(%x : tensor<1x4096xf32>) {axis = 1 : i64, log = false} -> tensor<1x4096xf32>
    %b = dnn.softmax input(%x : tensor<1x4096xf32>) {axis = 1 : i64, log = true} -> tensor<1x4096xf32>
    %p = dnn.reduce input(%a : tensor<1x4096xf32>) {kind = "max", axes = array<i64: 1>} -> tensor<1xf32>
    %q = dnn.reduce input(%b : tensor<1x4096xf32>) {kind = "max", axes = array<i64: 1>} -> tensor<1xf32>
    %s = dnn.elementwise ins(%p, %q : tensor<1xf32>, tensor<1xf32>) -> tensor<1xf32> body {
    ^bb0(%u: f32, %v: f32):
      %w = arith.addf %u, %v : f32
      dnn.yield %w : f32
    }
    dnn.yield %s : tensor<1xf32>
  } otherwise {
    %r = dnn.reduce input(%x : tensor<1x4096xf32>) {kind = "max", axes = array<i64: 1>} -> tensor<1xf32>
    dnn.yield %r : tensor<1xf32>
  }
  %m = dnn.reduce input(%k : tensor<1x4096xf32>) {kind = "min", axes = array<i64: 1>} -> tensor<1xf32>
  %z = dnn.elementwise ins(%y, %m : tensor<1xf32>, tensor<1xf32>) -> tensor<1xf32> body {
  ^bb0(%u: f32, %v: f32):
    %w = arith.addf %u, %v : f32
    dnn.yield %w : f32
  }
  func.return %z : tensor<1xf32>
}
