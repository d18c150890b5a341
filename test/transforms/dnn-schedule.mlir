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
