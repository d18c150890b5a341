// RUN: occamy-opt %s -p dnn-convert-if-to-select | filecheck %s

// Inner branches first; a value that both branches yield needs no choice. What holds a loop stays.

// CHECK-LABEL: @nested
// CHECK-NOT:     dnn.if
// CHECK:         %a = dnn.softmax input(%x : tensor<4xf32>) {log = true, axis = 0 : i64} -> tensor<4xf32>
// CHECK-NEXT:    %[[IN:.*]] = dnn.elementwise ins(%d, %a, %x : tensor<i1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32> body {
// CHECK-NEXT:    ^bb0(%[[C:.*]]: i1, %[[A:.*]]: f32, %[[X:.*]]: f32):
// CHECK-NEXT:      %[[S:.*]] = arith.select %[[C]], %[[A]], %[[X]] : f32
// CHECK-NEXT:      dnn.yield %[[S]] : f32
// CHECK-NEXT:    }
// CHECK-NEXT:    %[[Y:.*]] = dnn.elementwise ins(%c, %[[IN]], %x : tensor<i1>, tensor<4xf32>, tensor<4xf32>)
// CHECK:         func.return %[[Y]], %x
func.func @nested(%c: tensor<i1>, %d: tensor<i1>, %x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %y, %same = dnn.if condition(%c : tensor<i1>) -> tensor<4xf32>, tensor<4xf32> then {
    %i = dnn.if condition(%d : tensor<i1>) -> tensor<4xf32> then {
      %a = dnn.softmax input(%x : tensor<4xf32>) {log = true, axis = 0 : i64} -> tensor<4xf32>
      dnn.yield %a : tensor<4xf32>
    } otherwise {
      dnn.yield %x : tensor<4xf32>
    }
    dnn.yield %i, %x : tensor<4xf32>, tensor<4xf32>
  } otherwise {
    dnn.yield %x, %x : tensor<4xf32>, tensor<4xf32>
  }
  func.return %y, %same : tensor<4xf32>, tensor<4xf32>
}

// CHECK-LABEL: @with_a_loop
// CHECK:         dnn.if condition
// CHECK-NEXT:      dnn.loop condition
func.func @with_a_loop(%c: tensor<i1>, %x: tensor<4xf32>) -> tensor<4xf32> {
  %y = dnn.if condition(%c : tensor<i1>) -> tensor<4xf32> then {
    %z = dnn.loop condition(%c : tensor<i1>) inits(%x : tensor<4xf32>) -> tensor<4xf32> body {
    ^bb0(%a: tensor<4xf32>):
      dnn.yield %c, %a : tensor<i1>, tensor<4xf32>
    }
    dnn.yield %z : tensor<4xf32>
  } otherwise {
    dnn.yield %x : tensor<4xf32>
  }
  func.return %y : tensor<4xf32>
}
