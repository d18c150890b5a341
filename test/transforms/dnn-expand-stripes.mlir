// RUN: occamy-opt %s -p dnn-expand-stripes | filecheck %s

// The first stripe runs ahead by the window: rows 0-4 of %p for rows 0-3 of %q. Rows 3 and 4 are handed on, so the
// second stripe computes rows 5-7 alone.
// CHECK-LABEL: @keep
// CHECK:       offsets = array<i64: 0, 0, 0, 0>, sizes = array<i64: 1, 2, 6, 4>
// CHECK-NEXT:  dnn.conv {{.*}}pads = array<i64: 1, 0, 0, 0>{{.*}} -> tensor<1x2x5x4xf32>
// CHECK-NEXT:  dnn.conv {{.*}}pads = array<i64: 1, 0, 0, 0>{{.*}} -> tensor<1x2x4x4xf32>
// CHECK-NEXT:  dnn.slice {{.*}}offsets = array<i64: 0, 0, 3, 0>, sizes = array<i64: 1, 2, 2, 4>
// CHECK-NEXT:  dnn.copy {{.*}} {keep} -> tensor<1x2x2x4xf32>
// CHECK-NEXT:  dnn.slice input(%x {{.*}}offsets = array<i64: 0, 0, 4, 0>, sizes = array<i64: 1, 2, 4, 4>
// CHECK-NEXT:  dnn.conv {{.*}}pads = array<i64: 0, 0, 1, 0>{{.*}} -> tensor<1x2x3x4xf32>
// CHECK-NEXT:  dnn.concat {{.*}}axis = 2{{.*}} -> tensor<1x2x5x4xf32>
// CHECK-NEXT:  dnn.conv {{.*}}pads = array<i64: 0, 0, 1, 0>{{.*}} -> tensor<1x2x4x4xf32>
// CHECK-NEXT:  dnn.concat {{.*}}axis = 2{{.*}} -> tensor<1x2x8x4xf32>
// CHECK-NEXT:  func.return
func.func @keep(%x: tensor<1x2x8x4xf32>, %w: tensor<2x2x3x1xf32>) -> tensor<1x2x8x4xf32> {
  %y = dnn.stripe ins(%x, %w : tensor<1x2x8x4xf32>, tensor<2x2x3x1xf32>) {dims = array<i64: 2>, ends = array<i64: 4, 8>, halo = "keep"} -> tensor<1x2x8x4xf32> body {
  ^bb0(%a: tensor<1x2x8x4xf32>, %f: tensor<2x2x3x1xf32>):
    %p = dnn.conv input(%a : tensor<1x2x8x4xf32>) filter(%f : tensor<2x2x3x1xf32>)
      {dilations = array<i64: 1, 1>, group = 1 : i64, pads = array<i64: 1, 0, 1, 0>, strides = array<i64: 1, 1>} -> tensor<1x2x8x4xf32>
    %q = dnn.conv input(%p : tensor<1x2x8x4xf32>) filter(%f : tensor<2x2x3x1xf32>)
      {dilations = array<i64: 1, 1>, group = 1 : i64, pads = array<i64: 1, 0, 1, 0>, strides = array<i64: 1, 1>} -> tensor<1x2x8x4xf32>
    dnn.yield %q : tensor<1x2x8x4xf32>
  }
  func.return %y : tensor<1x2x8x4xf32>
}

// Both stripes compute five rows of %p, two of them twice.
// CHECK-LABEL: @recompute
// CHECK-NOT:   dnn.copy
// CHECK:       dnn.conv {{.*}}pads = array<i64: 1, 0, 0, 0>{{.*}} -> tensor<1x2x5x4xf32>
// CHECK:       dnn.conv {{.*}}pads = array<i64: 1, 0, 0, 0>{{.*}} -> tensor<1x2x4x4xf32>
// CHECK:       dnn.slice {{.*}}offsets = array<i64: 0, 0, 2, 0>, sizes = array<i64: 1, 2, 6, 4>
// CHECK-NEXT:  dnn.conv {{.*}}pads = array<i64: 0, 0, 1, 0>{{.*}} -> tensor<1x2x5x4xf32>
// CHECK-NEXT:  dnn.conv {{.*}}pads = array<i64: 0, 0, 1, 0>{{.*}} -> tensor<1x2x4x4xf32>
// CHECK-NEXT:  dnn.concat
func.func @recompute(%x: tensor<1x2x8x4xf32>, %w: tensor<2x2x3x1xf32>) -> tensor<1x2x8x4xf32> {
  %y = dnn.stripe ins(%x, %w : tensor<1x2x8x4xf32>, tensor<2x2x3x1xf32>) {dims = array<i64: 2>, ends = array<i64: 4, 8>, halo = "recompute"} -> tensor<1x2x8x4xf32> body {
  ^bb0(%a: tensor<1x2x8x4xf32>, %f: tensor<2x2x3x1xf32>):
    %p = dnn.conv input(%a : tensor<1x2x8x4xf32>) filter(%f : tensor<2x2x3x1xf32>)
      {dilations = array<i64: 1, 1>, group = 1 : i64, pads = array<i64: 1, 0, 1, 0>, strides = array<i64: 1, 1>} -> tensor<1x2x8x4xf32>
    %q = dnn.conv input(%p : tensor<1x2x8x4xf32>) filter(%f : tensor<2x2x3x1xf32>)
      {dilations = array<i64: 1, 1>, group = 1 : i64, pads = array<i64: 1, 0, 1, 0>, strides = array<i64: 1, 1>} -> tensor<1x2x8x4xf32>
    dnn.yield %q : tensor<1x2x8x4xf32>
  }
  func.return %y : tensor<1x2x8x4xf32>
}
