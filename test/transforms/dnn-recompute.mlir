// RUN: occamy-opt %s -p 'dnn-recompute{budget=50}' --split-input-file | filecheck %s
// RUN: occamy-opt %s -p 'dnn-recompute{budget=50 limit=16384}' --split-input-file | filecheck %s --check-prefix=ENOUGH
// RUN: occamy-opt %s -p 'dnn-recompute{budget=0}' --split-input-file | filecheck %s --check-prefix=ENOUGH

// %h is needed at the start and at the end; between, %a and %b are live. Computing it twice lets it die.
// CHECK-LABEL: @late
// CHECK:       %h = dnn.elementwise
// CHECK:       dnn.reduce input(%h
// CHECK:       %a = dnn.broadcast
// CHECK:       %b = dnn.softmax
// CHECK:       dnn.reduce input(%b
// CHECK:       [[H:%.*]] = dnn.elementwise ins(%x
// CHECK:       dnn.elementwise ins([[H]],
// ENOUGH-LABEL:    @late
// ENOUGH-COUNT-3:  dnn.elementwise
// ENOUGH-NOT:      dnn.elementwise
func.func @late(%x: tensor<32x32xf32>) -> tensor<32xf32> {
  %h = dnn.elementwise ins(%x : tensor<32x32xf32>) -> tensor<32x32xf32> body {
  ^bb0(%u: f32):
    %e = math.exp %u : f32
    dnn.yield %e : f32
  }
  %m = dnn.reduce input(%h : tensor<32x32xf32>) {kind = "max", axes = array<i64: 1>} -> tensor<32xf32>
  %r = dnn.reshape input(%m : tensor<32xf32>) -> tensor<1x1x32xf32>
  %a = dnn.broadcast input(%r : tensor<1x1x32xf32>) -> tensor<2x32x32xf32>
  %b = dnn.softmax input(%a : tensor<2x32x32xf32>) {axis = 1 : i64, log = false} -> tensor<2x32x32xf32>
  %s = dnn.reduce input(%b : tensor<2x32x32xf32>) {kind = "sum", axes = array<i64: 0>} -> tensor<32x32xf32>
  %t = dnn.elementwise ins(%h, %s : tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32> body {
  ^bb0(%u: f32, %v: f32):
    %w = arith.mulf %u, %v : f32
    dnn.yield %w : f32
  }
  %p = dnn.reduce input(%t : tensor<32x32xf32>) {kind = "sum", axes = array<i64: 1>} -> tensor<32xf32>
  %q = dnn.elementwise ins(%p : tensor<32xf32>) -> tensor<32xf32> body {
  ^bb0(%u: f32):
    %w = arith.negf %u : f32
    dnn.yield %w : f32
  }
  func.return %q : tensor<32xf32>
}
