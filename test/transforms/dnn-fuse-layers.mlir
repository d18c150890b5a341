// RUN: occamy-opt %s -p dnn-fuse-layers,dce --split-input-file | filecheck %s

// Batch normalisation goes into filter and bias, the residual and the activation into the epilogue.
// CHECK-LABEL: @conv_bn_add_relu
// CHECK:       [[W:%.*]] = dnn.constant #weights.ref<"filter-mul-conv1
// CHECK:       [[B:%.*]] = dnn.constant dense<1.200000e+00> : tensor<4xf32>
// CHECK:       %y = dnn.conv input(%x : tensor<1x4x8x8xf32>) filter([[W]] : tensor<4x4x3x3xf32>)
// CHECK-SAME:    bias([[B]] : tensor<4xf32>) extras(%r : tensor<1x4x8x8xf32>)
// CHECK-NEXT:  ^bb0([[SUM:%.*]]: f32, [[RES:%.*]]: f32):
// CHECK-NEXT:    [[ADD:%.*]] = arith.addf [[SUM]], [[RES]] : f32
// CHECK:         arith.maximumf [[ADD]]
// CHECK-NOT:   dnn.elementwise
func.func @conv_bn_add_relu(%x: tensor<1x4x8x8xf32>, %r: tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32> {
  %w = dnn.constant dense<0.5> : tensor<4x4x3x3xf32> -> tensor<4x4x3x3xf32>
  %b = dnn.constant dense<0.1> : tensor<4xf32> -> tensor<4xf32>
  %scale = dnn.constant dense<2.0> : tensor<4x1x1xf32> -> tensor<4x1x1xf32>
  %shift = dnn.constant dense<1.0> : tensor<4x1x1xf32> -> tensor<4x1x1xf32>
  %c = dnn.conv input(%x : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x3x3xf32>) bias(%b : tensor<4xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>}
    -> tensor<1x4x8x8xf32>
  %n = dnn.elementwise ins(%c, %scale, %shift : tensor<1x4x8x8xf32>, tensor<4x1x1xf32>, tensor<4x1x1xf32>) -> tensor<1x4x8x8xf32> body {
  ^bb0(%a: f32, %s: f32, %t: f32):
    %m = arith.mulf %a, %s : f32
    %o = arith.addf %m, %t : f32
    dnn.yield %o : f32
  }
  %sum = dnn.elementwise ins(%n, %r : tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32> body {
  ^bb0(%a: f32, %s: f32):
    %o = arith.addf %a, %s : f32
    dnn.yield %o : f32
  }
  %y = dnn.elementwise ins(%sum : tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32> body {
  ^bb0(%a: f32):
    %zero = arith.constant 0.0 : f32
    %o = arith.maximumf %a, %zero : f32
    dnn.yield %o : f32
  }
  func.return %y : tensor<1x4x8x8xf32>
}

// -----

// The convolution's result is returned as well, so the activation must not swallow it.
// CHECK-LABEL: @other_user
// CHECK:       dnn.conv
// CHECK-NOT:   epilogue
// CHECK:       dnn.elementwise
func.func @other_user(%x: tensor<1x4x8x8xf32>, %w: tensor<4x4x1x1xf32>) -> (tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>) {
  %c = dnn.conv input(%x : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x1x1xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>}
    -> tensor<1x4x8x8xf32>
  %y = dnn.elementwise ins(%c : tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32> body {
  ^bb0(%a: f32):
    %o = arith.negf %a : f32
    dnn.yield %o : f32
  }
  func.return %c, %y : tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>
}

// -----

// The addend has one value a column: no bias of the output channels, it stays in the epilogue.
// CHECK-LABEL: @not_a_bias
// CHECK:       dnn.conv input(%x : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x1x1xf32>) extras(%t : tensor<8xf32>)
// CHECK:         arith.addf
func.func @not_a_bias(%x: tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32> {
  %w = dnn.constant dense<0.5> : tensor<4x4x1x1xf32> -> tensor<4x4x1x1xf32>
  %t = dnn.constant dense<[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]> : tensor<8xf32> -> tensor<8xf32>
  %c = dnn.conv input(%x : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x1x1xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>}
    -> tensor<1x4x8x8xf32>
  %y = dnn.elementwise ins(%c, %t : tensor<1x4x8x8xf32>, tensor<8xf32>) -> tensor<1x4x8x8xf32> body {
  ^bb0(%a: f32, %b: f32):
    %o = arith.addf %a, %b : f32
    dnn.yield %o : f32
  }
  func.return %y : tensor<1x4x8x8xf32>
}

// -----

// The result grows by broadcasting, so the producer's tile is not the consumer's.
// CHECK-LABEL: @grows
// CHECK:       dnn.matmul
// CHECK-NOT:   epilogue
// CHECK:       dnn.elementwise
func.func @grows(%a: tensor<1x8xf32>, %b: tensor<8x4xf32>, %r: tensor<3x4xf32>) -> tensor<3x4xf32> {
  %m = dnn.matmul a(%a : tensor<1x8xf32>) b(%b : tensor<8x4xf32>) -> tensor<1x4xf32>
  %y = dnn.elementwise ins(%m, %r : tensor<1x4xf32>, tensor<3x4xf32>) -> tensor<3x4xf32> body {
  ^bb0(%x: f32, %z: f32):
    %o = arith.addf %x, %z : f32
    dnn.yield %o : f32
  }
  func.return %y : tensor<3x4xf32>
}

// -----

// Padding by 0 of the spatial dimensions joins the convolution's own; any other padding stays.
// CHECK-LABEL: @padding
// CHECK:       dnn.conv input(%x : tensor<1x1x4x4xf32>){{.*}}pads = array<i64: 1, 2, 3, 4>
// CHECK:       dnn.pad
// CHECK-NEXT:  dnn.conv
func.func @padding(%x: tensor<1x1x4x4xf32>, %w: tensor<1x1x1x1xf32>) -> (tensor<1x1x8x10xf32>, tensor<1x1x6x6xf32>) {
  %p = dnn.pad input(%x : tensor<1x1x4x4xf32>)
    {low = array<i64: 0, 0, 1, 2>, high = array<i64: 0, 0, 3, 4>, mode = "constant", value = 0.0 : f32} -> tensor<1x1x8x10xf32>
  %c = dnn.conv input(%p : tensor<1x1x8x10xf32>) filter(%w : tensor<1x1x1x1xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x1x8x10xf32>
  %q = dnn.pad input(%x : tensor<1x1x4x4xf32>)
    {low = array<i64: 0, 0, 1, 1>, high = array<i64: 0, 0, 1, 1>, mode = "constant", value = 1.0 : f32} -> tensor<1x1x6x6xf32>
  %d = dnn.conv input(%q : tensor<1x1x6x6xf32>) filter(%w : tensor<1x1x1x1xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x1x6x6xf32>
  func.return %c, %d : tensor<1x1x8x10xf32>, tensor<1x1x6x6xf32>
}
