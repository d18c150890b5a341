// RUN: occamy-opt %s -p 'dnn-fuse-dequantization,dnn-fuse-layers,dce' | filecheck %s

// The scale has one value a column: it multiplies the sums. The zero points are 0: the integers stay as they are.
// CHECK-LABEL: func.func @columns
// CHECK:         %[[Q:.*]] = dnn.constant dense<1> : tensor<8x4xi8>
// CHECK-NOT:     dnn.elementwise
// CHECK:         dnn.matmul a(%x : tensor<2x8xf32>) b(%{{.*}} : tensor<8x4xi8>) extras(%{{.*}} : tensor<1x4xf32>)
// CHECK:           arith.mulf
// CHECK-NEXT:      dnn.yield
func.func @columns(%x: tensor<2x8xf32>) -> tensor<2x4xf32> {
  %q = dnn.constant dense<1> : tensor<8x4xi8> -> tensor<8x4xi8>
  %s = dnn.constant dense<[[1.0, 2.0, 3.0, 4.0]]> : tensor<1x4xf32> -> tensor<1x4xf32>
  %w = dnn.elementwise ins(%q, %s : tensor<8x4xi8>, tensor<1x4xf32>) -> tensor<8x4xf32> body {
  ^bb0(%a: i8, %b: f32):
    %z = arith.constant 0 : i8
    %af = arith.sitofp %a : i8 to f32
    %zf = arith.sitofp %z : i8 to f32
    %d = arith.subf %af, %zf : f32
    %p = arith.mulf %d, %b : f32
    dnn.yield %p : f32
  }
  %y = dnn.matmul a(%x : tensor<2x8xf32>) b(%w : tensor<8x4xf32>) -> tensor<2x4xf32>
  func.return %y : tensor<2x4xf32>
}

// The scale changes along the sum, or something else reads the floats: nothing to take out of the sum.
// CHECK-LABEL: func.func @rows
// CHECK:         dnn.elementwise
// CHECK:         dnn.matmul
// CHECK-LABEL: func.func @shared
// CHECK:         dnn.elementwise
// CHECK:         dnn.matmul
func.func @rows(%x: tensor<2x8xf32>) -> tensor<2x4xf32> {
  %q = dnn.constant dense<1> : tensor<8x4xi8> -> tensor<8x4xi8>
  %s = dnn.constant dense<2.0> : tensor<8x1xf32> -> tensor<8x1xf32>
  %w = dnn.elementwise ins(%q, %s : tensor<8x4xi8>, tensor<8x1xf32>) -> tensor<8x4xf32> body {
  ^bb0(%a: i8, %b: f32):
    %af = arith.sitofp %a : i8 to f32
    %p = arith.mulf %af, %b : f32
    dnn.yield %p : f32
  }
  %y = dnn.matmul a(%x : tensor<2x8xf32>) b(%w : tensor<8x4xf32>) -> tensor<2x4xf32>
  func.return %y : tensor<2x4xf32>
}
func.func @shared(%x: tensor<2x8xf32>) -> (tensor<2x4xf32>, tensor<8x4xf32>) {
  %q = dnn.constant dense<1> : tensor<8x4xi8> -> tensor<8x4xi8>
  %s = dnn.constant dense<2.0> : tensor<1x1xf32> -> tensor<1x1xf32>
  %w = dnn.elementwise ins(%q, %s : tensor<8x4xi8>, tensor<1x1xf32>) -> tensor<8x4xf32> body {
  ^bb0(%a: i8, %b: f32):
    %af = arith.sitofp %a : i8 to f32
    %p = arith.mulf %af, %b : f32
    dnn.yield %p : f32
  }
  %y = dnn.matmul a(%x : tensor<2x8xf32>) b(%w : tensor<8x4xf32>) -> tensor<2x4xf32>
  func.return %y, %w : tensor<2x4xf32>, tensor<8x4xf32>
}
