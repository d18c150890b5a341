// RUN: occamy-opt %s -p 'dnn-stripe{budget=5}' | filecheck %s
// RUN: occamy-opt %s -p 'dnn-stripe{budget=5 batch=true}' | filecheck %s --check-prefix=BATCH

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

// Attention: the scores never exist whole. The keys are read whole for any row of the queries, so they are made
// before; with batch, each head has its own.
// CHECK-LABEL: @attention
// CHECK-NEXT:  %k = dnn.transpose
// CHECK-NEXT:  %y = dnn.stripe {{.*}}dims = array<i64: 1>{{.*}} -> tensor<2x256x16xf32> body {
// CHECK-NEXT:  ^bb0
// CHECK-NEXT:    dnn.matmul
// CHECK-NEXT:    dnn.softmax
// CHECK-NEXT:    dnn.matmul
// CHECK-NEXT:    dnn.yield
// BATCH-LABEL: @attention
// BATCH:       %y = dnn.stripe {{.*}}dims = array<i64: 0>, ends = array<i64: 1, 2>{{.*}} -> tensor<2x256x16xf32> body {
func.func @attention(%q: tensor<2x256x16xf32>, %kt: tensor<2x256x16xf32>, %v: tensor<2x256x16xf32>) -> tensor<2x256x16xf32> {
  %k = dnn.transpose input(%kt : tensor<2x256x16xf32>) {permutation = array<i64: 0, 2, 1>} -> tensor<2x16x256xf32>
  %s = dnn.matmul a(%q : tensor<2x256x16xf32>) b(%k : tensor<2x16x256xf32>) -> tensor<2x256x256xf32>
  %p = dnn.softmax input(%s : tensor<2x256x256xf32>) {axis = 2 : i64, log = false} -> tensor<2x256x256xf32>
  %y = dnn.matmul a(%p : tensor<2x256x256xf32>) b(%v : tensor<2x256x16xf32>) -> tensor<2x256x16xf32>
  func.return %y : tensor<2x256x16xf32>
}
