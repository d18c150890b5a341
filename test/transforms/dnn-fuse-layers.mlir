// RUN: occamy-opt %s -p dnn-fuse-layers,dce --split-input-file | filecheck %s
// RUN: occamy-opt %s -p "dnn-fuse-layers{inputs=false}" --split-input-file | filecheck %s --check-prefix=OUTPUTS

// OUTPUTS-NOT: prologue {
// OUTPUTS-NOT: joined
// OUTPUTS:     @shuffle
// OUTPUTS-NOT: prologue {
// OUTPUTS-NOT: joined

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

// -----

// Work on a tensor that others need moves into every convolution that reads its result, padded or not.
// CHECK-LABEL: @prologue
// CHECK-NOT:   dnn.elementwise
// CHECK:       %y = dnn.conv input(%x : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x3x3xf32>) prologue_extras(%s : tensor<4x1x1xf32>)
// CHECK-SAME:    prologue {
// CHECK-NEXT:  ^bb0([[A:%.*]]: f32, [[B:%.*]]: f32):
// CHECK:         [[M:%.*]] = arith.addf [[A]], [[B]] : f32
// CHECK-NEXT:    [[R:%.*]] = arith.maximumf [[M]]
// CHECK-NEXT:    dnn.yield [[R]] : f32
// CHECK:       %z = dnn.conv input(%x : tensor<1x4x8x8xf32>) filter(%v : tensor<2x4x1x1xf32>) prologue_extras(%s : tensor<4x1x1xf32>)
// CHECK-SAME:    prologue {
func.func @prologue(%x: tensor<1x4x8x8xf32>, %s: tensor<4x1x1xf32>, %w: tensor<4x4x3x3xf32>, %v: tensor<2x4x1x1xf32>)
    -> (tensor<1x4x8x8xf32>, tensor<1x2x8x8xf32>) {
  %n = dnn.elementwise ins(%x, %s : tensor<1x4x8x8xf32>, tensor<4x1x1xf32>) -> tensor<1x4x8x8xf32> body {
  ^bb0(%a: f32, %b: f32):
    %zero = arith.constant 0.0 : f32
    %m = arith.addf %a, %b : f32
    %o = arith.maximumf %m, %zero : f32
    dnn.yield %o : f32
  }
  %y = dnn.conv input(%n : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x3x3xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  %z = dnn.conv input(%n : tensor<1x4x8x8xf32>) filter(%v : tensor<2x4x1x1xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x2x8x8xf32>
  func.return %y, %z : tensor<1x4x8x8xf32>, tensor<1x2x8x8xf32>
}

// -----

// The result is returned as well.
// CHECK-LABEL: @prologue_result_returned
// CHECK:       dnn.elementwise
// CHECK:       dnn.conv
// CHECK-NOT:   prologue
func.func @prologue_result_returned(%x: tensor<1x4x8x8xf32>, %s: tensor<4x1x1xf32>, %w: tensor<4x4x3x3xf32>) -> (tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>) {
  %n = dnn.elementwise ins(%x, %s : tensor<1x4x8x8xf32>, tensor<4x1x1xf32>) -> tensor<1x4x8x8xf32> body {
  ^bb0(%a: f32, %b: f32):
    %zero = arith.constant 0.0 : f32
    %m = arith.addf %a, %b : f32
    %o = arith.maximumf %m, %zero : f32
    dnn.yield %o : f32
  }
  %y = dnn.conv input(%n : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x3x3xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  func.return %y, %n : tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>
}

// -----

// The other operand has one value a column, not a channel.
// CHECK-LABEL: @prologue_by_column
// CHECK:       dnn.elementwise
// CHECK:       dnn.conv
// CHECK-NOT:   prologue
func.func @prologue_by_column(%x: tensor<1x4x8x8xf32>, %s: tensor<8xf32>, %w: tensor<4x4x3x3xf32>) -> (tensor<1x4x8x8xf32>) {
  %n = dnn.elementwise ins(%x, %s : tensor<1x4x8x8xf32>, tensor<8xf32>) -> tensor<1x4x8x8xf32> body {
  ^bb0(%a: f32, %b: f32):
    %zero = arith.constant 0.0 : f32
    %m = arith.addf %a, %b : f32
    %o = arith.maximumf %m, %zero : f32
    dnn.yield %o : f32
  }
  %y = dnn.conv input(%n : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x3x3xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  func.return %y : tensor<1x4x8x8xf32>
}

// -----

// A division for each product would cost more than it saves.
// CHECK-LABEL: @prologue_dear
// CHECK:       dnn.elementwise
// CHECK:       dnn.conv
// CHECK-NOT:   prologue
func.func @prologue_dear(%x: tensor<1x4x8x8xf32>, %s: tensor<4x1x1xf32>, %w: tensor<4x4x3x3xf32>) -> (tensor<1x4x8x8xf32>) {
  %n = dnn.elementwise ins(%x, %s : tensor<1x4x8x8xf32>, tensor<4x1x1xf32>) -> tensor<1x4x8x8xf32> body {
  ^bb0(%a: f32, %b: f32):
    %zero = arith.constant 0.0 : f32
    %m = arith.divf %a, %b : f32
    %o = arith.maximumf %m, %zero : f32
    dnn.yield %o : f32
  }
  %y = dnn.conv input(%n : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x3x3xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  func.return %y : tensor<1x4x8x8xf32>
}

// -----

// The convolution adds the result as well.
// CHECK-LABEL: @prologue_as_residual
// CHECK:       dnn.elementwise
// CHECK:       dnn.conv
// CHECK-NOT:   prologue
func.func @prologue_as_residual(%x: tensor<1x4x8x8xf32>, %s: tensor<4x1x1xf32>, %w: tensor<4x4x3x3xf32>) -> (tensor<1x4x8x8xf32>) {
  %n = dnn.elementwise ins(%x, %s : tensor<1x4x8x8xf32>, tensor<4x1x1xf32>) -> tensor<1x4x8x8xf32> body {
  ^bb0(%a: f32, %b: f32):
    %zero = arith.constant 0.0 : f32
    %m = arith.addf %a, %b : f32
    %o = arith.maximumf %m, %zero : f32
    dnn.yield %o : f32
  }
  %y = dnn.conv input(%n : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x3x3xf32>) extras(%n : tensor<1x4x8x8xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32> epilogue {
  ^bb0(%a: f32, %b: f32):
    %o = arith.addf %a, %b : f32
    dnn.yield %o : f32
  }
  func.return %y : tensor<1x4x8x8xf32>
}

// -----

// Nothing else needs the operand, so the work is done in place.
// CHECK-LABEL: @prologue_in_place
// CHECK:       dnn.elementwise
// CHECK:       dnn.conv
// CHECK-NOT:   prologue
func.func @prologue_in_place(%i: tensor<1x4x8x8xf32>, %s: tensor<4x1x1xf32>, %w: tensor<4x4x3x3xf32>) -> (tensor<1x4x8x8xf32>) {
  %x = dnn.softmax input(%i : tensor<1x4x8x8xf32>) {axis = 1 : i64, log = false} -> tensor<1x4x8x8xf32>
  %n = dnn.elementwise ins(%x, %s : tensor<1x4x8x8xf32>, tensor<4x1x1xf32>) -> tensor<1x4x8x8xf32> body {
  ^bb0(%a: f32, %b: f32):
    %zero = arith.constant 0.0 : f32
    %m = arith.addf %a, %b : f32
    %o = arith.maximumf %m, %zero : f32
    dnn.yield %o : f32
  }
  %y = dnn.conv input(%n : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x3x3xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  func.return %y : tensor<1x4x8x8xf32>
}

// -----

// The parts of a concatenation, and the work on it, go to the convolution that alone needs it.
// CHECK-LABEL: @join
// CHECK-NOT:   dnn.concat
// CHECK-NOT:   dnn.elementwise
// CHECK:       dnn.conv input(%x : tensor<1x4x8x8xf32>) joined(%i, %x : tensor<1x2x8x8xf32>, tensor<1x4x8x8xf32>) filter(%w : tensor<4x10x3x3xf32>)
// CHECK-SAME:    prologue {
func.func @join(%x: tensor<1x4x8x8xf32>, %i: tensor<1x2x8x8xf32>, %w: tensor<4x10x3x3xf32>) -> tensor<1x4x8x8xf32> {
  %j = dnn.concat ins(%x, %i, %x : tensor<1x4x8x8xf32>, tensor<1x2x8x8xf32>, tensor<1x4x8x8xf32>) {axis = 1 : i64} -> tensor<1x10x8x8xf32>
  %n = dnn.elementwise ins(%j : tensor<1x10x8x8xf32>) -> tensor<1x10x8x8xf32> body {
  ^bb0(%a: f32):
    %o = arith.negf %a : f32
    dnn.yield %o : f32
  }
  %y = dnn.conv input(%n : tensor<1x10x8x8xf32>) filter(%w : tensor<4x10x3x3xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  func.return %y : tensor<1x4x8x8xf32>
}

// -----

// The concatenation is returned as well.
// CHECK-LABEL: @join_returned
// CHECK:       dnn.concat
// CHECK-NOT:   joined
func.func @join_returned(%x: tensor<1x2x8x8xf32>, %i: tensor<1x2x8x8xf32>, %w: tensor<4x4x3x3xf32>) -> (tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>) {
  %j = dnn.concat ins(%x, %i : tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>) {axis = 1 : i64} -> tensor<1x4x8x8xf32>
  %y = dnn.conv input(%j : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x3x3xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  func.return %y, %j : tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>
}

// -----

// Groups of channels do not follow the parts.
// CHECK-LABEL: @join_groups
// CHECK:       dnn.concat
// CHECK-NOT:   joined
func.func @join_groups(%x: tensor<1x2x8x8xf32>, %i: tensor<1x2x8x8xf32>, %w: tensor<4x2x3x3xf32>) -> (tensor<1x4x8x8xf32>) {
  %j = dnn.concat ins(%x, %i : tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>) {axis = 1 : i64} -> tensor<1x4x8x8xf32>
  %y = dnn.conv input(%j : tensor<1x4x8x8xf32>) filter(%w : tensor<4x2x3x3xf32>)
    {group = 2 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  func.return %y : tensor<1x4x8x8xf32>
}

// -----

// Rows are joined, not channels.
// CHECK-LABEL: @join_rows
// CHECK:       dnn.concat
// CHECK-NOT:   joined
func.func @join_rows(%x: tensor<1x4x4x8xf32>, %i: tensor<1x4x4x8xf32>, %w: tensor<4x4x3x3xf32>) -> (tensor<1x4x8x8xf32>) {
  %j = dnn.concat ins(%x, %i : tensor<1x4x4x8xf32>, tensor<1x4x4x8xf32>) {axis = 2 : i64} -> tensor<1x4x8x8xf32>
  %y = dnn.conv input(%j : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x3x3xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  func.return %y : tensor<1x4x8x8xf32>
}

// -----

// The parts are small slices of a tensor that would have to be kept until the convolution; two halves are the
// whole of it.
// CHECK-LABEL: @join_slices
// CHECK:       [[J:%.*]] = dnn.concat
// CHECK:       dnn.conv input([[J]] : tensor<1x4x8x8xf32>)
// CHECK:       dnn.conv input([[L:%.*]] : tensor<1x2x8x8xf32>) joined([[R:%.*]] : tensor<1x2x8x8xf32>)
func.func @join_slices(%x: tensor<1x64x8x8xf32>, %z: tensor<1x4x8x8xf32>, %w: tensor<4x4x1x1xf32>) -> (tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>) {
  %a = dnn.slice input(%x : tensor<1x64x8x8xf32>) {offsets = array<i64: 0, 0, 0, 0>, sizes = array<i64: 1, 2, 8, 8>, strides = array<i64: 1, 1, 1, 1>} -> tensor<1x2x8x8xf32>
  %b = dnn.slice input(%x : tensor<1x64x8x8xf32>) {offsets = array<i64: 0, 9, 0, 0>, sizes = array<i64: 1, 2, 8, 8>, strides = array<i64: 1, 1, 1, 1>} -> tensor<1x2x8x8xf32>
  %j = dnn.concat ins(%a, %b : tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>) {axis = 1 : i64} -> tensor<1x4x8x8xf32>
  %y = dnn.conv input(%j : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x1x1xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  %c = dnn.slice input(%z : tensor<1x4x8x8xf32>) {offsets = array<i64: 0, 2, 0, 0>, sizes = array<i64: 1, 2, 8, 8>, strides = array<i64: 1, 1, 1, 1>} -> tensor<1x2x8x8xf32>
  %d = dnn.slice input(%z : tensor<1x4x8x8xf32>) {offsets = array<i64: 0, 0, 0, 0>, sizes = array<i64: 1, 2, 8, 8>, strides = array<i64: 1, 1, 1, 1>} -> tensor<1x2x8x8xf32>
  %k = dnn.concat ins(%c, %d : tensor<1x2x8x8xf32>, tensor<1x2x8x8xf32>) {axis = 1 : i64} -> tensor<1x4x8x8xf32>
  %v = dnn.conv input(%k : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x1x1xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  func.return %y, %v : tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>
}

// -----

// A long concatenation continues the one that has its first inputs.
// CHECK-LABEL: @prefix
// CHECK:       [[A:%.*]] = dnn.concat ins(%a, %b, %a, %b : {{.*}}
// CHECK:       dnn.concat ins([[A]], %a : tensor<4x4xf32>, tensor<1x4xf32>) {axis = 0 : i64} -> tensor<5x4xf32>
// CHECK:       dnn.concat ins(%b, %b, %a, %b, %a : {{.*}}
func.func @prefix(%a: tensor<1x4xf32>, %b: tensor<1x4xf32>) -> (tensor<4x4xf32>, tensor<5x4xf32>, tensor<5x4xf32>) {
  %c = dnn.concat ins(%a, %b, %a, %b : tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>) {axis = 0 : i64} -> tensor<4x4xf32>
  %d = dnn.concat ins(%a, %b, %a, %b, %a : tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>) {axis = 0 : i64} -> tensor<5x4xf32>
  %e = dnn.concat ins(%b, %b, %a, %b, %a : tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>) {axis = 0 : i64} -> tensor<5x4xf32>
  func.return %c, %d, %e : tensor<4x4xf32>, tensor<5x4xf32>, tensor<5x4xf32>
}

// Also one that itself continues an earlier one.
// CHECK-LABEL: @prefixes
// CHECK:       [[A:%.*]] = dnn.concat ins(%a, %b, %a, %b : {{.*}}
// CHECK:       [[B:%.*]] = dnn.concat ins([[A]], %a, %b, %a, %b : {{.*}}
// CHECK:       dnn.concat ins([[B]], %b : tensor<8x4xf32>, tensor<1x4xf32>) {axis = 0 : i64} -> tensor<9x4xf32>
func.func @prefixes(%a: tensor<1x4xf32>, %b: tensor<1x4xf32>) -> (tensor<4x4xf32>, tensor<8x4xf32>, tensor<9x4xf32>) {
  %c = dnn.concat ins(%a, %b, %a, %b : tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>) {axis = 0 : i64} -> tensor<4x4xf32>
  %d = dnn.concat ins(%a, %b, %a, %b, %a, %b, %a, %b : tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>) {axis = 0 : i64} -> tensor<8x4xf32>
  %e = dnn.concat ins(%a, %b, %a, %b, %a, %b, %a, %b, %b : tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>, tensor<1x4xf32>) {axis = 0 : i64} -> tensor<9x4xf32>
  func.return %c, %d, %e : tensor<4x4xf32>, tensor<8x4xf32>, tensor<9x4xf32>
}

// -----

// A shuffle has fewer elements to move behind a depthwise convolution with a stride; filter 1 was meant for
// the channel that comes second after the shuffle, 3.
// CHECK-LABEL: @shuffle
// CHECK:       [[W:%.*]] = dnn.constant dense<{{\[\[\[\[0.0.*\[2.0.*\[4.0.*\[1.0.*\[3.0.*\[5.0}}
// CHECK:       [[C:%.*]] = dnn.conv input(%x : tensor<1x6x8x8xf32>) filter([[W]] : tensor<6x1x1x1xf32>)
// CHECK-NEXT:  [[P:%.*]] = dnn.reshape input([[C]] : tensor<1x6x4x4xf32>) -> tensor<1x2x3x4x4xf32>
// CHECK-NEXT:  [[T:%.*]] = dnn.transpose input([[P]] : tensor<1x2x3x4x4xf32>) {permutation = array<i64: 0, 2, 1, 3, 4>}
// CHECK-NEXT:  %y = dnn.reshape input([[T]] : tensor<1x3x2x4x4xf32>) -> tensor<1x6x4x4xf32>
// CHECK-NEXT:  func.return %y
func.func @shuffle(%x: tensor<1x6x8x8xf32>) -> tensor<1x6x4x4xf32> {
  %w = dnn.constant dense<[[[[0.0]]], [[[1.0]]], [[[2.0]]], [[[3.0]]], [[[4.0]]], [[[5.0]]]]> : tensor<6x1x1x1xf32> -> tensor<6x1x1x1xf32>
  %p = dnn.reshape input(%x : tensor<1x6x8x8xf32>) -> tensor<1x2x3x8x8xf32>
  %t = dnn.transpose input(%p : tensor<1x2x3x8x8xf32>) {permutation = array<i64: 0, 2, 1, 3, 4>} -> tensor<1x3x2x8x8xf32>
  %q = dnn.reshape input(%t : tensor<1x3x2x8x8xf32>) -> tensor<1x6x8x8xf32>
  %y = dnn.conv input(%q : tensor<1x6x8x8xf32>) filter(%w : tensor<6x1x1x1xf32>)
    {group = 6 : i64, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x6x4x4xf32>
  func.return %y : tensor<1x6x4x4xf32>
}

// -----

// Not behind a convolution that mixes channels.
// CHECK-LABEL: @shuffle_then_mix
// CHECK:       dnn.transpose
// CHECK:       %y = dnn.conv
// CHECK-NEXT:  func.return
func.func @shuffle_then_mix(%x: tensor<1x6x8x8xf32>) -> tensor<1x6x4x4xf32> {
  %w = dnn.constant dense<1.0> : tensor<6x3x1x1xf32> -> tensor<6x3x1x1xf32>
  %p = dnn.reshape input(%x : tensor<1x6x8x8xf32>) -> tensor<1x2x3x8x8xf32>
  %t = dnn.transpose input(%p : tensor<1x2x3x8x8xf32>) {permutation = array<i64: 0, 2, 1, 3, 4>} -> tensor<1x3x2x8x8xf32>
  %q = dnn.reshape input(%t : tensor<1x3x2x8x8xf32>) -> tensor<1x6x8x8xf32>
  %y = dnn.conv input(%q : tensor<1x6x8x8xf32>) filter(%w : tensor<6x3x1x1xf32>)
    {group = 2 : i64, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x6x4x4xf32>
  func.return %y : tensor<1x6x4x4xf32>
}

// -----

// Nor where the filter is not known.
// CHECK-LABEL: @shuffle_any_filter
// CHECK:       dnn.transpose
// CHECK:       %y = dnn.conv
// CHECK-NEXT:  func.return
func.func @shuffle_any_filter(%x: tensor<1x6x8x8xf32>, %w: tensor<6x1x1x1xf32>) -> tensor<1x6x4x4xf32> {
  %p = dnn.reshape input(%x : tensor<1x6x8x8xf32>) -> tensor<1x2x3x8x8xf32>
  %t = dnn.transpose input(%p : tensor<1x2x3x8x8xf32>) {permutation = array<i64: 0, 2, 1, 3, 4>} -> tensor<1x3x2x8x8xf32>
  %q = dnn.reshape input(%t : tensor<1x3x2x8x8xf32>) -> tensor<1x6x8x8xf32>
  %y = dnn.conv input(%q : tensor<1x6x8x8xf32>) filter(%w : tensor<6x1x1x1xf32>)
    {group = 6 : i64, strides = array<i64: 2, 2>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x6x4x4xf32>
  func.return %y : tensor<1x6x4x4xf32>
}

// -----

// Sums are kept in the type of what is stored, so a conversion stays an op of its own.
// CHECK-LABEL: @conversion
// CHECK:       dnn.matmul
// CHECK-NOT:   epilogue
// CHECK:       dnn.elementwise
func.func @conversion(%a: tensor<4x8xf32>, %b: tensor<8x4xf32>) -> tensor<4x4xf64> {
  %m = dnn.matmul a(%a : tensor<4x8xf32>) b(%b : tensor<8x4xf32>) -> tensor<4x4xf32>
  %y = dnn.elementwise ins(%m : tensor<4x4xf32>) -> tensor<4x4xf64> body {
  ^bb0(%x: f32):
    %o = arith.extf %x : f32 to f64
    dnn.yield %o : f64
  }
  func.return %y : tensor<4x4xf64>
}

// -----

// A batch normalisation on each side of a sum: both go into the convolution before them, the sum into the second.
// CHECK-LABEL: @normalised_sum
// CHECK:       [[A:%.*]] = dnn.conv input(%x : tensor<1x4x8x8xf32>) filter({{%.*}} : tensor<4x4x1x1xf32>)
// CHECK-NOT:   epilogue
// CHECK:       dnn.conv input(%x : tensor<1x4x8x8xf32>) filter({{%.*}} : tensor<4x4x1x1xf32>) extras([[A]] : tensor<1x4x8x8xf32>)
// CHECK-SAME:  epilogue {
// CHECK-NOT:   arith.mulf
// CHECK:       func.return
func.func @normalised_sum(%x: tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32> {
  %w = dnn.constant dense<0.5> : tensor<4x4x1x1xf32> -> tensor<4x4x1x1xf32>
  %scale = dnn.constant dense<2.0> : tensor<4x1x1xf32> -> tensor<4x1x1xf32>
  %a = dnn.conv input(%x : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x1x1xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>}
    -> tensor<1x4x8x8xf32>
  %na = dnn.elementwise ins(%a, %scale : tensor<1x4x8x8xf32>, tensor<4x1x1xf32>) -> tensor<1x4x8x8xf32> body {
  ^bb0(%p: f32, %q: f32):
    %m = arith.mulf %p, %q : f32
    dnn.yield %m : f32
  }
  %b = dnn.conv input(%x : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x1x1xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>}
    -> tensor<1x4x8x8xf32>
  %nb = dnn.elementwise ins(%b, %scale : tensor<1x4x8x8xf32>, tensor<4x1x1xf32>) -> tensor<1x4x8x8xf32> body {
  ^bb0(%p: f32, %q: f32):
    %m = arith.mulf %p, %q : f32
    dnn.yield %m : f32
  }
  %y = dnn.elementwise ins(%nb, %na : tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32>) -> tensor<1x4x8x8xf32> body {
  ^bb0(%p: f32, %q: f32):
    %m = arith.addf %p, %q : f32
    dnn.yield %m : f32
  }
  func.return %y : tensor<1x4x8x8xf32>
}

// -----

// In a loop as elsewhere; but the exponential, which is the same in each iteration, stays in front of it.
// CHECK-LABEL: func.func @fuse
// CHECK-NEXT:    %a = dnn.elementwise ins(%x : tensor<4x4xf32>)
// CHECK:           math.exp
// CHECK:         dnn.loop
// CHECK-NEXT:    ^bb0(%b: tensor<4x4xf32>):
// CHECK-NEXT:      %s = dnn.matmul a(%b : tensor<4x4xf32>) b(%b : tensor<4x4xf32>) extras(%a : tensor<4x4xf32>) -> tensor<4x4xf32> epilogue {
// CHECK:           dnn.yield %c, %s : tensor<i1>, tensor<4x4xf32>
func.func @fuse(%c: tensor<i1>, %x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %a = dnn.elementwise ins(%x : tensor<4x4xf32>) -> tensor<4x4xf32> body {
  ^bb0(%u: f32):
    %v = math.exp %u : f32
    dnn.yield %v : f32
  }
  %p = dnn.loop condition(%c : tensor<i1>) inits(%x : tensor<4x4xf32>) -> tensor<4x4xf32> body {
  ^bb0(%b: tensor<4x4xf32>):
    %m = dnn.matmul a(%b : tensor<4x4xf32>) b(%b : tensor<4x4xf32>) -> tensor<4x4xf32>
    %s = dnn.elementwise ins(%m, %a : tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> body {
    ^bb0(%u: f32, %w: f32):
      %v = arith.addf %u, %w : f32
      dnn.yield %v : f32
    }
    dnn.yield %c, %s : tensor<i1>, tensor<4x4xf32>
  }
  func.return %p : tensor<4x4xf32>
}

// -----

// One slope a channel after a shuffle into space is one a channel of the convolution in front of it, each four times.
// CHECK-LABEL: func.func @shuffle_into_space
// CHECK:         [[S:%.*]] = dnn.constant dense<{{.*}}5.000000e-01]], {{\[\[}}2.000000e+00{{.*}} : tensor<1x8x1x1xf32>
// CHECK:         [[C:%.*]] = dnn.conv {{.*}} extras([[S]] : tensor<1x8x1x1xf32>)
// CHECK:           arith.mulf
// CHECK:         dnn.reshape input([[C]]
// CHECK-NEXT:    dnn.transpose
// CHECK-NEXT:    [[Y:%.*]] = dnn.reshape
// CHECK-NEXT:    func.return [[Y]]
func.func @shuffle_into_space(%x: tensor<1x2x3x3xf32>, %w: tensor<8x2x1x1xf32>) -> tensor<1x2x6x6xf32> {
  %slope = dnn.constant dense<[[[0.5]], [[2.0]]]> : tensor<2x1x1xf32> -> tensor<2x1x1xf32>
  %c = dnn.conv input(%x : tensor<1x2x3x3xf32>) filter(%w : tensor<8x2x1x1xf32>) {dilations = array<i64: 1, 1>, group = 1 : i64, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} -> tensor<1x8x3x3xf32>
  %s = dnn.reshape input(%c : tensor<1x8x3x3xf32>) -> tensor<1x2x2x2x3x3xf32>
  %t = dnn.transpose input(%s : tensor<1x2x2x2x3x3xf32>) {permutation = array<i64: 0, 1, 4, 2, 5, 3>} -> tensor<1x2x3x2x3x2xf32>
  %j = dnn.reshape input(%t : tensor<1x2x3x2x3x2xf32>) -> tensor<1x2x6x6xf32>
  %y = dnn.elementwise ins(%j, %slope : tensor<1x2x6x6xf32>, tensor<2x1x1xf32>) -> tensor<1x2x6x6xf32> body {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %b : f32
    dnn.yield %p : f32
  }
  func.return %y : tensor<1x2x6x6xf32>
}

// -----

// Not where the shuffled tensor has another user, nor with a constant that varies over the image.
// CHECK-LABEL: func.func @not_hoisted
// CHECK:         dnn.conv
// CHECK-NEXT:    dnn.reshape
// CHECK-NEXT:    [[J:%.*]] = dnn.transpose
// CHECK-NEXT:    dnn.elementwise ins([[J]] :
// CHECK:         dnn.conv
// CHECK-NEXT:    [[K:%.*]] = dnn.reshape
// CHECK-NEXT:    dnn.elementwise ins([[K]], %m :
func.func @not_hoisted(%x: tensor<1x2x3x3xf32>, %w: tensor<8x2x1x1xf32>) -> (tensor<9x8xf32>, tensor<9x8xf32>, tensor<1x8x9xf32>) {
  %c = dnn.conv input(%x : tensor<1x2x3x3xf32>) filter(%w : tensor<8x2x1x1xf32>) {dilations = array<i64: 1, 1>, group = 1 : i64, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} -> tensor<1x8x3x3xf32>
  %s = dnn.reshape input(%c : tensor<1x8x3x3xf32>) -> tensor<8x9xf32>
  %j = dnn.transpose input(%s : tensor<8x9xf32>) {permutation = array<i64: 1, 0>} -> tensor<9x8xf32>
  %y = dnn.elementwise ins(%j : tensor<9x8xf32>) -> tensor<9x8xf32> body {
  ^bb0(%a: f32):
    %p = arith.mulf %a, %a : f32
    dnn.yield %p : f32
  }
  %m = dnn.constant dense<[[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]]> : tensor<8x9xf32> -> tensor<8x9xf32>
  %d = dnn.conv input(%x : tensor<1x2x3x3xf32>) filter(%w : tensor<8x2x1x1xf32>) {dilations = array<i64: 1, 1>, group = 1 : i64, pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 1, 1>} -> tensor<1x8x3x3xf32>
  %k = dnn.reshape input(%d : tensor<1x8x3x3xf32>) -> tensor<1x8x9xf32>
  %z = dnn.elementwise ins(%k, %m : tensor<1x8x9xf32>, tensor<8x9xf32>) -> tensor<1x8x9xf32> body {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %b : f32
    dnn.yield %p : f32
  }
  func.return %j, %y, %z : tensor<9x8xf32>, tensor<9x8xf32>, tensor<1x8x9xf32>
}
