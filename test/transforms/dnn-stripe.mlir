// RUN: occamy-opt %s -p 'dnn-stripe{budget=5}' | filecheck %s

// The large result of the convolution never exists whole; the reduction over rows ends the segment.
// CHECK-LABEL: @chain
// CHECK-NEXT:  %p = dnn.stripe ins(%x, %w : {{.*}}halo = "keep"} -> tensor<1x64x16x16xf32> body {
// CHECK-NEXT:  ^bb0
// CHECK-NEXT:    dnn.conv
// CHECK-NEXT:    dnn.pool
// CHECK-NEXT:    dnn.yield
// CHECK-NEXT:  }
// CHECK-NEXT:  dnn.reduce input(%p
func.func @chain(%x: tensor<1x1x64x64xf32>, %w: tensor<64x1x3x3xf32>) -> tensor<1x64x16xf32> {
  %c = dnn.conv input(%x : tensor<1x1x64x64xf32>) filter(%w : tensor<64x1x3x3xf32>)
    {dilations = array<i64: 1, 1>, group = 1 : i64, pads = array<i64: 1, 1, 1, 1>, strides = array<i64: 1, 1>} -> tensor<1x64x64x64xf32>
  %p = dnn.pool input(%c : tensor<1x64x64x64xf32>)
    {count_include_pad = false, dilations = array<i64: 1, 1>, kernel = array<i64: 4, 4>, kind = "max",
     pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 4, 4>} -> tensor<1x64x16x16xf32>
  %r = dnn.reduce input(%p : tensor<1x64x16x16xf32>) {kind = "mean", axes = array<i64: 2>} -> tensor<1x64x16xf32>
  func.return %r : tensor<1x64x16xf32>
}

// Nothing to gain: the only buffers are the caller's.
// CHECK-LABEL: @alone
// CHECK-NOT:   dnn.stripe
func.func @alone(%x: tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32> {
  %s = dnn.softmax input(%x : tensor<1x2x4x4xf32>) {axis = 1 : i64, log = false} -> tensor<1x2x4x4xf32>
  func.return %s : tensor<1x2x4x4xf32>
}
