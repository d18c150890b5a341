// RUN: occamy-opt %s --split-input-file --verify-diagnostics | filecheck %s

// Each function breaks one constraint; the message names it.

// CHECK: 'dnn.softmax' op mixes value form and buffer form, got memref<4xf32> (F1)
func.func @broken(%x: memref<4xf32>) {
  %y = dnn.softmax input(%x : memref<4xf32>) {axis = 0 : i64, log = false} -> tensor<4xf32>
  func.return
}

// -----

// CHECK: 'dnn.softmax' op needs static shapes, got tensor<?xf32> (F2)
func.func @broken(%x: tensor<?xf32>) {
  %y = dnn.softmax input(%x : tensor<?xf32>) {axis = 0 : i64, log = false} -> tensor<?xf32>
  func.return
}

// -----

// CHECK: 'dnn.softmax' op needs static strides and no offset, got memref<4xf32, strided<[1], offset: 3>> (F2)
func.func @broken(%x: memref<4xf32, strided<[1], offset: 3>>, %o: memref<4xf32>) {
  dnn.softmax input(%x : memref<4xf32, strided<[1], offset: 3>>) outs(%o : memref<4xf32>) {axis = 0 : i64, log = false}
  func.return
}

// -----

// CHECK: 'dnn.softmax' op computes shapes [(4,)], got [(5,)] (F3)
func.func @broken(%x: tensor<4xf32>) {
  %y = dnn.softmax input(%x : tensor<4xf32>) {axis = 0 : i64, log = false} -> tensor<5xf32>
  func.return
}

// -----

// CHECK: 'dnn.elementwise' op region must take (f32), got (f64) (F4)
func.func @broken(%x: tensor<4xf32>) {
  %y = dnn.elementwise ins(%x : tensor<4xf32>) -> tensor<4xf64> body {
    ^bb0(%a: f64):
      dnn.yield %a : f64
    }
  func.return
}

// -----

// CHECK: 'dnn.elementwise' op region must yield (f64) (F4)
func.func @broken(%x: tensor<4xf32>) {
  %y = dnn.elementwise ins(%x : tensor<4xf32>) -> tensor<4xf64> body {
    ^bb0(%a: f32):
      dnn.yield %a : f32
    }
  func.return
}

// -----

// CHECK: 'dnn.conv' op has extras but no epilogue (F5)
func.func @broken(%x: tensor<1x3x8x8xf32>, %w: tensor<4x3x1x1xf32>, %r: tensor<1x4x8x8xf32>) {
  %y = dnn.conv input(%x : tensor<1x3x8x8xf32>) filter(%w : tensor<4x3x1x1xf32>) extras(%r : tensor<1x4x8x8xf32>) {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  func.return
}

// -----

// CHECK: 'dnn.conv' op extras must broadcast to (1, 4, 8, 8), got tensor<5xf32> (F5)
func.func @broken(%x: tensor<1x3x8x8xf32>, %w: tensor<4x3x1x1xf32>, %r: tensor<5xf32>) {
  %y = dnn.conv input(%x : tensor<1x3x8x8xf32>) filter(%w : tensor<4x3x1x1xf32>) extras(%r : tensor<5xf32>) {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32> epilogue {
    ^bb0(%a: f32, %b: f32):
      dnn.yield %a : f32
    }
  func.return
}

// -----

// CHECK: 'dnn.conv' op needs 2 positive strides and dilations and 4 pads, got [1], [1, 1] and [0, 0, 0, 0] (F6)
func.func @broken(%x: tensor<1x3x8x8xf32>, %w: tensor<4x3x1x1xf32>) {
  %y = dnn.conv input(%x : tensor<1x3x8x8xf32>) filter(%w : tensor<4x3x1x1xf32>) {group = 1 : i64, strides = array<i64: 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  func.return
}

// -----

// CHECK: 'dnn.reshape' op must keep the element type, got ['f32', 'f64'] (F5)
func.func @broken(%x: tensor<4xf32>) {
  %y = dnn.reshape input(%x : tensor<4xf32>) -> tensor<4xf64>
  func.return
}

// -----

// CHECK: 'dnn.dealloc' op must free what dnn.malloc or dnn.mempool_init made, got memref<4xf32> (C1)
func.func @broken(%x: memref<4xf32>) {
  dnn.dealloc %x : memref<4xf32>
  func.return
}

// -----

// CHECK: 'dnn.mempool_init' op alignment must be a power of two, got 48 (C1)
func.func @broken() {
  %p = dnn.mempool_init align 48 : memref<64xi8>
  func.return
}

// -----

// CHECK: 'dnn.mem_offset' op offset must not be negative, got -4 (C1)
func.func @broken(%p: memref<1024xi8>) {
  %v = dnn.mem_offset %p[-4, 64] : memref<1024xi8> -> memref<16xf32>
  func.return
}

// -----

// CHECK: 'dnn.mem_offset' op offset 2 is not a multiple of f32's 4 bytes (C2)
func.func @broken(%p: memref<1024xi8>) {
  %v = dnn.mem_offset %p[2, 64] : memref<1024xi8> -> memref<16xf32>
  func.return
}

// -----

// CHECK: 'dnn.mem_offset' op size 60 is less than the view's 64 bytes (C3)
func.func @broken(%p: memref<1024xi8>) {
  %v = dnn.mem_offset %p[0, 60] : memref<1024xi8> -> memref<16xf32>
  func.return
}

// -----

// CHECK: 'dnn.mem_offset' op ends at byte 1040, past the pool's 1024 bytes (C4)
func.func @broken(%p: memref<1024xi8>) {
  %v = dnn.mem_offset %p[976, 64] : memref<1024xi8> -> memref<16xf32>
  func.return
}

// -----

// CHECK: 'dnn.view' op must keep the element type, got memref<4xf32> and memref<4xi32> (C1)
func.func @broken(%x: memref<4xf32>) {
  %v = dnn.view %x[0] : memref<4xf32> -> memref<4xi32>
  func.return
}

// -----

// CHECK: 'dnn.view' op reaches elements 2 to 5, the source spans 4 (C2)
func.func @broken(%x: memref<4xf32>) {
  %v = dnn.view %x[2] : memref<4xf32> -> memref<4xf32>
  func.return
}

// -----

// CHECK: 'dnn.memcpy' op needs equal types, got memref<4xf32> and memref<5xf32> (C1)
func.func @broken(%a: memref<4xf32>, %b: memref<5xf32>) {
  dnn.memcpy %a, %b "h2d" : memref<4xf32>, memref<5xf32>
  func.return
}

// -----

// CHECK: 'dnn.memcpy' op kind must be h2d, d2h or d2d, got up (C2)
func.func @broken(%a: memref<4xf32>, %b: memref<4xf32>) {
  dnn.memcpy %a, %b "up" : memref<4xf32>, memref<4xf32>
  func.return
}

// -----

// CHECK: 'dnn.copy' op must keep the element type, got memref<4xf32> and memref<4xi32> (C1)
func.func @broken(%a: memref<4xf32>, %b: memref<4xi32>) {
  dnn.copy input(%a : memref<4xf32>) outs(%b : memref<4xi32>)
  func.return
}

// -----

// CHECK: 'dnn.copy' op moves elements 2 behind themselves (C2)
func.func @broken(%a: memref<4x2xf32>) {
  %head = dnn.view %a[0] : memref<4x2xf32> -> memref<3x2xf32>
  %tail = dnn.view %a[2] : memref<4x2xf32> -> memref<3x2xf32>
  dnn.copy input(%head : memref<3x2xf32>) outs(%tail : memref<3x2xf32>)
  func.return
}

// -----

// CHECK: 'dnn.reshape' op must keep 4 elements, got 5 in tensor<5xf32> (C1)
func.func @broken(%x: tensor<4xf32>) {
  %y = dnn.reshape input(%x : tensor<4xf32>) -> tensor<5xf32>
  func.return
}

// -----

// CHECK: 'dnn.transpose' op permutation must order 2 dimensions, got [0, 0] (C1)
func.func @broken(%x: tensor<2x3xf32>) {
  %y = dnn.transpose input(%x : tensor<2x3xf32>) {permutation = array<i64: 0, 0>} -> tensor<2x3xf32>
  func.return
}

// -----

// CHECK: 'dnn.slice' op needs 1 offsets, sizes and non-zero strides (C1)
func.func @broken(%x: tensor<4xf32>) {
  %y = dnn.slice input(%x : tensor<4xf32>) {offsets = array<i64: 0>, sizes = array<i64: 2>, strides = array<i64: 0>} -> tensor<2xf32>
  func.return
}

// -----

// CHECK: 'dnn.slice' op takes elements 1 to 5 of a dimension of 4 (C2)
func.func @broken(%x: tensor<4xf32>) {
  %y = dnn.slice input(%x : tensor<4xf32>) {offsets = array<i64: 1>, sizes = array<i64: 3>, strides = array<i64: 2>} -> tensor<3xf32>
  func.return
}

// -----

// CHECK: 'dnn.broadcast' op cannot broadcast (3,) to (4,) (C1)
func.func @broken(%x: tensor<3xf32>) {
  %y = dnn.broadcast input(%x : tensor<3xf32>) -> tensor<4xf32>
  func.return
}

// -----

// CHECK: 'dnn.concat' op needs inputs with a dimension 2 (C1)
func.func @broken(%x: tensor<3x2xf32>) {
  %y = dnn.concat ins(%x : tensor<3x2xf32>) {axis = 2 : i64} -> tensor<3x2xf32>
  func.return
}

// -----

// CHECK: 'dnn.concat' op inputs must agree outside dimension 1, got [(3, 2), (4, 2)] (C2)
func.func @broken(%x: tensor<3x2xf32>, %z: tensor<4x2xf32>) {
  %y = dnn.concat ins(%x, %z : tensor<3x2xf32>, tensor<4x2xf32>) {axis = 1 : i64} -> tensor<3x4xf32>
  func.return
}

// -----

// CHECK: 'dnn.conv' op needs equal ranks >= 3, got (1, 3, 8, 8) and (4, 3, 1) (C1)
func.func @broken(%x: tensor<1x3x8x8xf32>, %w: tensor<4x3x1xf32>) {
  %y = dnn.conv input(%x : tensor<1x3x8x8xf32>) filter(%w : tensor<4x3x1xf32>) {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  func.return
}

// -----

// CHECK: 'dnn.conv' op cannot split 3 channels for filter (4, 2, 1, 1) in 1 groups (C2)
func.func @broken(%x: tensor<1x3x8x8xf32>, %w: tensor<4x2x1x1xf32>) {
  %y = dnn.conv input(%x : tensor<1x3x8x8xf32>) filter(%w : tensor<4x2x1x1xf32>) {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  func.return
}

// -----

// CHECK: 'dnn.conv' op bias must have 4 elements, got tensor<5xf32> (C3)
func.func @broken(%x: tensor<1x3x8x8xf32>, %w: tensor<4x3x1x1xf32>, %b: tensor<5xf32>) {
  %y = dnn.conv input(%x : tensor<1x3x8x8xf32>) filter(%w : tensor<4x3x1x1xf32>) bias(%b : tensor<5xf32>) {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  func.return
}

// -----

// CHECK: 'dnn.conv' op cannot join tensor<1x2x8x7xf32> to tensor<1x3x8x8xf32> (C4)
func.func @broken(%x: tensor<1x3x8x8xf32>, %z: tensor<1x2x8x7xf32>, %w: tensor<4x5x1x1xf32>) {
  %y = dnn.conv input(%x : tensor<1x3x8x8xf32>) joined(%z : tensor<1x2x8x7xf32>) filter(%w : tensor<4x5x1x1xf32>) {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  func.return
}

// -----

// CHECK: 'dnn.conv' op cannot join tensor<1x2x8x8xf64> to tensor<1x3x8x8xf32> (C4)
func.func @broken(%x: tensor<1x3x8x8xf32>, %z: tensor<1x2x8x8xf64>, %w: tensor<4x5x1x1xf32>) {
  %y = dnn.conv input(%x : tensor<1x3x8x8xf32>) joined(%z : tensor<1x2x8x8xf64>) filter(%w : tensor<4x5x1x1xf32>) {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  func.return
}

// -----

// CHECK: 'dnn.conv' op cannot join inputs in 2 groups (C4)
func.func @broken(%x: tensor<1x2x8x8xf32>, %w: tensor<4x2x1x1xf32>) {
  %y = dnn.conv input(%x : tensor<1x2x8x8xf32>) joined(%x : tensor<1x2x8x8xf32>) filter(%w : tensor<4x2x1x1xf32>) {group = 2 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  func.return
}

// -----

// CHECK: 'dnn.conv' op cannot split 5 channels for filter (4, 3, 1, 1) in 1 groups (C2)
func.func @broken(%x: tensor<1x3x8x8xf32>, %z: tensor<1x2x8x8xf32>, %w: tensor<4x3x1x1xf32>) {
  %y = dnn.conv input(%x : tensor<1x3x8x8xf32>) joined(%z : tensor<1x2x8x8xf32>) filter(%w : tensor<4x3x1x1xf32>) {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  func.return
}

// -----

// CHECK: 'dnn.conv' op region must yield (f32) (F4)
func.func @broken(%x: tensor<1x3x8x8xf32>, %w: tensor<4x3x1x1xf32>) {
  %y = dnn.conv input(%x : tensor<1x3x8x8xf32>) filter(%w : tensor<4x3x1x1xf32>) {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32> prologue {
  ^bb0(%a: f32):
    %m = arith.extf %a : f32 to f64
    dnn.yield %m : f64
  }
  func.return
}

// -----

// CHECK: 'dnn.conv' op has prologue_extras but no prologue (C5)
func.func @broken(%x: tensor<1x3x8x8xf32>, %w: tensor<4x3x1x1xf32>, %s: tensor<3x1x1xf32>) {
  %y = dnn.conv input(%x : tensor<1x3x8x8xf32>) filter(%w : tensor<4x3x1x1xf32>) prologue_extras(%s : tensor<3x1x1xf32>) {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32>
  func.return
}

// -----

// CHECK: 'dnn.conv' op prologue_extras need one element for each of 3 channels, got tensor<3x1x8xf32> (C5)
func.func @broken(%x: tensor<1x3x8x8xf32>, %w: tensor<4x3x1x1xf32>, %s: tensor<3x1x8xf32>) {
  %y = dnn.conv input(%x : tensor<1x3x8x8xf32>) filter(%w : tensor<4x3x1x1xf32>) prologue_extras(%s : tensor<3x1x8xf32>) {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x4x8x8xf32> prologue {
  ^bb0(%a: f32, %b: f32):
    %m = arith.mulf %a, %b : f32
    dnn.yield %m : f32
  }
  func.return
}

// -----

// CHECK: 'dnn.conv_transpose' op needs equal ranks >= 3, got (1, 4, 4, 4) and (4, 2, 2) (C1)
func.func @broken(%x: tensor<1x4x4x4xf32>, %w: tensor<4x2x2xf32>) {
  %y = dnn.conv_transpose input(%x : tensor<1x4x4x4xf32>) filter(%w : tensor<4x2x2xf32>) {group = 1 : i64, output_padding = array<i64: 0, 0>, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x2x5x5xf32>
  func.return
}

// -----

// CHECK: 'dnn.conv_transpose' op cannot split 4 channels for filter (3, 2, 2, 2) in 1 groups (C2)
func.func @broken(%x: tensor<1x4x4x4xf32>, %w: tensor<3x2x2x2xf32>) {
  %y = dnn.conv_transpose input(%x : tensor<1x4x4x4xf32>) filter(%w : tensor<3x2x2x2xf32>) {group = 1 : i64, output_padding = array<i64: 0, 0>, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x2x5x5xf32>
  func.return
}

// -----

// CHECK: 'dnn.conv_transpose' op bias must have 2 elements, got tensor<3xf32> (C3)
func.func @broken(%x: tensor<1x4x4x4xf32>, %w: tensor<4x2x2x2xf32>, %b: tensor<3xf32>) {
  %y = dnn.conv_transpose input(%x : tensor<1x4x4x4xf32>) filter(%w : tensor<4x2x2x2xf32>) bias(%b : tensor<3xf32>) {group = 1 : i64, output_padding = array<i64: 0, 0>, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x2x5x5xf32>
  func.return
}

// -----

// CHECK: 'dnn.conv_transpose' op needs 2 output paddings >= 0, got [0, -1] (C4)
func.func @broken(%x: tensor<1x4x4x4xf32>, %w: tensor<4x2x2x2xf32>) {
  %y = dnn.conv_transpose input(%x : tensor<1x4x4x4xf32>) filter(%w : tensor<4x2x2x2xf32>) {group = 1 : i64, output_padding = array<i64: 0, -1>, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x2x5x5xf32>
  func.return
}

// -----

// CHECK: 'dnn.pool' op kind must be max or average, got median (C1)
func.func @broken(%x: tensor<1x3x8x8xf32>) {
  %y = dnn.pool input(%x : tensor<1x3x8x8xf32>) {kind = "median", kernel = array<i64: 2, 2>, count_include_pad = false, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x3x7x7xf32>
  func.return
}

// -----

// CHECK: 'dnn.pool' op needs 2 kernel sizes > 0, got [2] (C2)
func.func @broken(%x: tensor<1x3x8x8xf32>) {
  %y = dnn.pool input(%x : tensor<1x3x8x8xf32>) {kind = "max", kernel = array<i64: 2>, count_include_pad = false, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x3x7x7xf32>
  func.return
}

// -----

// CHECK: 'dnn.pool' op has 7 to 7 windows over 8 elements, got 9 (C3)
func.func @broken(%x: tensor<1x3x8x8xf32>) {
  %y = dnn.pool input(%x : tensor<1x3x8x8xf32>) {kind = "max", kernel = array<i64: 2, 2>, count_include_pad = false, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x3x9x7xf32>
  func.return
}

// -----

// CHECK: 'dnn.pool' op kind average has one result, got 2 (C4)
func.func @broken(%x: tensor<1x3x8x8xf32>) {
  %y:2 = dnn.pool input(%x : tensor<1x3x8x8xf32>) {kind = "average", kernel = array<i64: 2, 2>, count_include_pad = false, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x3x7x7xf32>, tensor<1x3x7x7xi64>
  func.return
}

// -----

// CHECK: 'dnn.matmul' op cannot multiply (4, 8) by (9, 2) (C1)
func.func @broken(%a: tensor<4x8xf32>, %b: tensor<9x2xf32>) {
  %y = dnn.matmul a(%a : tensor<4x8xf32>) b(%b : tensor<9x2xf32>) -> tensor<4x2xf32>
  func.return
}

// -----

// CHECK: 'dnn.matmul' op cannot broadcast (2,) and (3,) (C2)
func.func @broken(%a: tensor<2x4x8xf32>, %b: tensor<3x8x2xf32>) {
  %y = dnn.matmul a(%a : tensor<2x4x8xf32>) b(%b : tensor<3x8x2xf32>) -> tensor<2x4x2xf32>
  func.return
}

// -----

// CHECK: 'dnn.matmul' op bias must broadcast to (4, 2), got tensor<3xf32> (C3)
func.func @broken(%a: tensor<4x8xf32>, %b: tensor<8x2xf32>, %c: tensor<3xf32>) {
  %y = dnn.matmul a(%a : tensor<4x8xf32>) b(%b : tensor<8x2xf32>) bias(%c : tensor<3xf32>) -> tensor<4x2xf32>
  func.return
}

// -----

// CHECK: 'dnn.elementwise' op operands must broadcast to (4,), got tensor<3xf32> (C1)
func.func @broken(%x: tensor<3xf32>) {
  %y = dnn.elementwise ins(%x : tensor<3xf32>) -> tensor<4xf32> body {
    ^bb0(%a: f32):
      dnn.yield %a : f32
    }
  func.return
}

// -----

// CHECK: 'dnn.reduce' op kind must be one of sum, mean, max, min, prod, l1, l2, sum_square, log_sum, log_sum_exp, got median (C1)
func.func @broken(%x: tensor<2x3xf32>) {
  %y = dnn.reduce input(%x : tensor<2x3xf32>) {kind = "median", axes = array<i64: 1>} -> tensor<2xf32>
  func.return
}

// -----

// CHECK: 'dnn.reduce' op axes must be ascending dimensions of (2, 3), got [1, 0] (C2)
func.func @broken(%x: tensor<2x3xf32>) {
  %y = dnn.reduce input(%x : tensor<2x3xf32>) {kind = "sum", axes = array<i64: 1, 0>} -> tensor<f32>
  func.return
}

// -----

// CHECK: 'dnn.reduce' op must keep the element type, got tensor<2xf64> (C3)
func.func @broken(%x: tensor<2x3xf32>) {
  %y = dnn.reduce input(%x : tensor<2x3xf32>) {kind = "sum", axes = array<i64: 1>} -> tensor<2xf64>
  func.return
}

// -----

// CHECK: 'dnn.arg_reduce' op kind must be max or min, got sum (C1)
func.func @broken(%x: tensor<2x3xf32>) {
  %y = dnn.arg_reduce input(%x : tensor<2x3xf32>) {kind = "sum", axis = 1 : i64, select_last = false} -> tensor<2xi64>
  func.return
}

// -----

// CHECK: 'dnn.arg_reduce' op axis must be a dimension of (2, 3), got 2 (C2)
func.func @broken(%x: tensor<2x3xf32>) {
  %y = dnn.arg_reduce input(%x : tensor<2x3xf32>) {kind = "max", axis = 2 : i64, select_last = false} -> tensor<2xi64>
  func.return
}

// -----

// CHECK: 'dnn.softmax' op axis must be one of 1 dimensions, got 1 (C1)
func.func @broken(%x: tensor<4xf32>) {
  %y = dnn.softmax input(%x : tensor<4xf32>) {axis = 1 : i64, log = false} -> tensor<4xf32>
  func.return
}

// -----

// CHECK: 'dnn.layer_norm' op axis must be one of 2 dimensions, got -1 (C1)
func.func @broken(%x: tensor<2x8xf32>) {
  %y = dnn.layer_norm input(%x : tensor<2x8xf32>) {axis = -1 : i64, epsilon = 1.0e-05 : f32} -> tensor<2x8xf32>
  func.return
}

// -----

// CHECK: 'dnn.layer_norm' op scale and bias must broadcast to (2, 8), got tensor<7xf32> (C2)
func.func @broken(%x: tensor<2x8xf32>, %s: tensor<7xf32>) {
  %y = dnn.layer_norm input(%x : tensor<2x8xf32>) scale(%s : tensor<7xf32>) {axis = 1 : i64, epsilon = 1.0e-05 : f32} -> tensor<2x8xf32>
  func.return
}

// -----

// CHECK: 'dnn.lrn' op needs rank >= 2 and size > 0, got tensor<1x8x4x4xf32> and 0 (C1)
func.func @broken(%x: tensor<1x8x4x4xf32>) {
  %y = dnn.lrn input(%x : tensor<1x8x4x4xf32>) {alpha = 1.0e-04 : f32, beta = 7.5e-01 : f32, bias = 1.0 : f32, size = 0 : i64} -> tensor<1x8x4x4xf32>
  func.return
}

// -----

// CHECK: 'dnn.pad' op needs 1 lows and highs >= 0, got [-1] and [2] (C1)
func.func @broken(%x: tensor<4xf32>) {
  %y = dnn.pad input(%x : tensor<4xf32>) {low = array<i64: -1>, high = array<i64: 2>, mode = "edge"} -> tensor<5xf32>
  func.return
}

// -----

// CHECK: 'dnn.pad' op mode constant does not go with value None (C2)
func.func @broken(%x: tensor<4xf32>) {
  %y = dnn.pad input(%x : tensor<4xf32>) {low = array<i64: 1>, high = array<i64: 2>, mode = "constant"} -> tensor<7xf32>
  func.return
}

// -----

// CHECK: 'dnn.gather' op axis must be a dimension of (10, 4), got 2 (C1)
func.func @broken(%d: tensor<10x4xf32>, %i: tensor<3xi64>) {
  %y = dnn.gather data(%d : tensor<10x4xf32>) indices(%i : tensor<3xi64>) {axis = 2 : i64} -> tensor<3x4xf32>
  func.return
}

// -----

// CHECK: 'dnn.gather' op indices must be i32 or i64, got tensor<3xf32> (C2)
func.func @broken(%d: tensor<10x4xf32>, %i: tensor<3xf32>) {
  %y = dnn.gather data(%d : tensor<10x4xf32>) indices(%i : tensor<3xf32>) {axis = 0 : i64} -> tensor<3x4xf32>
  func.return
}

// -----

// CHECK: 'dnn.gather' op must keep the element type, got tensor<3x4xf64> (C3)
func.func @broken(%d: tensor<10x4xf32>, %i: tensor<3xi64>) {
  %y = dnn.gather data(%d : tensor<10x4xf32>) indices(%i : tensor<3xi64>) {axis = 0 : i64} -> tensor<3x4xf64>
  func.return
}

// -----

// CHECK: 'dnn.resize' op needs 2 scales > 0, got [1.0] (C1)
func.func @broken(%x: tensor<2x4xf32>) {
  %y = dnn.resize input(%x : tensor<2x4xf32>) {coordinate_transformation_mode = "asymmetric", cubic_coeff_a = -0.75 : f32, exclude_outside = false, mode = "nearest", nearest_mode = "floor", scales = array<f64: 1.0>} -> tensor<2x8xf32>
  func.return
}

// -----

// CHECK: 'dnn.resize' op allows nearest, linear, cubic, got lanczos (C2)
func.func @broken(%x: tensor<2x4xf32>) {
  %y = dnn.resize input(%x : tensor<2x4xf32>) {coordinate_transformation_mode = "asymmetric", cubic_coeff_a = -0.75 : f32, exclude_outside = false, mode = "lanczos", nearest_mode = "floor", scales = array<f64: 1.0, 2.0>} -> tensor<2x8xf32>
  func.return
}

// -----

// CHECK: 'dnn.resize' op allows half_pixel, half_pixel_symmetric, pytorch_half_pixel, align_corners, asymmetric, tf_half_pixel_for_nn, got tf_crop_and_resize (C3)
func.func @broken(%x: tensor<2x4xf32>) {
  %y = dnn.resize input(%x : tensor<2x4xf32>) {coordinate_transformation_mode = "tf_crop_and_resize", cubic_coeff_a = -0.75 : f32, exclude_outside = false, mode = "nearest", nearest_mode = "floor", scales = array<f64: 1.0, 2.0>} -> tensor<2x8xf32>
  func.return
}

// -----

// CHECK: 'dnn.resize' op allows round_prefer_floor, round_prefer_ceil, floor, ceil, got up (C4)
func.func @broken(%x: tensor<2x4xf32>) {
  %y = dnn.resize input(%x : tensor<2x4xf32>) {coordinate_transformation_mode = "asymmetric", cubic_coeff_a = -0.75 : f32, exclude_outside = false, mode = "nearest", nearest_mode = "up", scales = array<f64: 1.0, 2.0>} -> tensor<2x8xf32>
  func.return
}

// -----

// CHECK: 'dnn.stripe' op ends must ascend from above 0 to 4, got [2, 3] (C1)
func.func @broken(%x: tensor<1x2x4x4xf32>) {
  %y = dnn.stripe ins(%x : tensor<1x2x4x4xf32>) {dims = array<i64: 2>, ends = array<i64: 2, 3>, halo = "keep"} -> tensor<1x2x4x4xf32> body {
  ^bb0(%a: tensor<1x2x4x4xf32>):
    %s = dnn.softmax input(%a : tensor<1x2x4x4xf32>) {axis = 1 : i64, log = false} -> tensor<1x2x4x4xf32>
    dnn.yield %s : tensor<1x2x4x4xf32>
  }
  func.return
}

// -----

// CHECK: 'dnn.stripe' op ends must ascend from above 0 to 4, got [4, 2, 4] (C1)
func.func @broken(%x: tensor<1x2x4x4xf32>) {
  %y = dnn.stripe ins(%x : tensor<1x2x4x4xf32>) {dims = array<i64: 2>, ends = array<i64: 4, 2, 4>, halo = "keep"} -> tensor<1x2x4x4xf32> body {
  ^bb0(%a: tensor<1x2x4x4xf32>):
    %s = dnn.softmax input(%a : tensor<1x2x4x4xf32>) {axis = 1 : i64, log = false} -> tensor<1x2x4x4xf32>
    dnn.yield %s : tensor<1x2x4x4xf32>
  }
  func.return
}

// -----

// CHECK: 'dnn.stripe' op dims must name a dimension of each result, got [4] (C1)
func.func @stripe_dims(%x: tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32> {
  %y = dnn.stripe ins(%x : tensor<1x2x4x4xf32>) {dims = array<i64: 4>, ends = array<i64: 2, 4>, halo = "keep"} -> tensor<1x2x4x4xf32> body {
  ^bb0(%a: tensor<1x2x4x4xf32>):
    %s = dnn.softmax input(%a : tensor<1x2x4x4xf32>) {axis = 1 : i64, log = false} -> tensor<1x2x4x4xf32>
    dnn.yield %s : tensor<1x2x4x4xf32>
  }
  func.return %y : tensor<1x2x4x4xf32>
}

// -----

// CHECK: 'dnn.stripe' op body must compute row by row, got 'dnn.softmax' op (C4)
func.func @stripe_two_ways(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %y = dnn.stripe ins(%x : tensor<4x4xf32>) {dims = array<i64: 0>, ends = array<i64: 2, 4>, halo = "keep"} -> tensor<4x4xf32> body {
  ^bb0(%a: tensor<4x4xf32>):
    %s = dnn.softmax input(%a : tensor<4x4xf32>) {axis = 1 : i64, log = false} -> tensor<4x4xf32>
    %m = dnn.matmul a(%a : tensor<4x4xf32>) b(%s : tensor<4x4xf32>) -> tensor<4x4xf32>
    dnn.yield %m : tensor<4x4xf32>
  }
  func.return %y : tensor<4x4xf32>
}

// -----

// CHECK: 'dnn.stripe' op halo must be keep or recompute, got mirror (C2)
func.func @broken(%x: tensor<1x2x4x4xf32>) {
  %y = dnn.stripe ins(%x : tensor<1x2x4x4xf32>) {dims = array<i64: 2>, ends = array<i64: 2, 4>, halo = "mirror"} -> tensor<1x2x4x4xf32> body {
  ^bb0(%a: tensor<1x2x4x4xf32>):
    %s = dnn.softmax input(%a : tensor<1x2x4x4xf32>) {axis = 1 : i64, log = false} -> tensor<1x2x4x4xf32>
    dnn.yield %s : tensor<1x2x4x4xf32>
  }
  func.return
}

// -----

// CHECK: 'dnn.stripe' op body must take values of the operands' types (C3)
func.func @broken(%x: tensor<1x2x4x4xf32>) {
  %y = dnn.stripe ins(%x : tensor<1x2x4x4xf32>) {dims = array<i64: 2>, ends = array<i64: 2, 4>, halo = "keep"} -> tensor<1x2x4x4xf32> body {
  ^bb0(%a: tensor<1x2x4x8xf32>):
    %s = dnn.softmax input(%a : tensor<1x2x4x8xf32>) {axis = 1 : i64, log = false} -> tensor<1x2x4x8xf32>
    dnn.yield %s : tensor<1x2x4x8xf32>
  }
  func.return
}

// -----

// CHECK: 'dnn.stripe' op body must yield what its ops compute, of the results' types (C3)
func.func @broken(%x: tensor<1x2x4x4xf32>) {
  %y = dnn.stripe ins(%x : tensor<1x2x4x4xf32>) {dims = array<i64: 2>, ends = array<i64: 2, 4>, halo = "keep"} -> tensor<1x2x4x4xf32> body {
  ^bb0(%a: tensor<1x2x4x4xf32>):
    %s = dnn.softmax input(%a : tensor<1x2x4x4xf32>) {axis = 1 : i64, log = false} -> tensor<1x2x4x4xf32>
    dnn.yield %a : tensor<1x2x4x4xf32>
  }
  func.return
}

// -----

// CHECK: 'dnn.stripe' op body must compute row by row, got 'dnn.softmax' op (C4)
func.func @broken(%x: tensor<1x2x4x4xf32>) {
  %y = dnn.stripe ins(%x : tensor<1x2x4x4xf32>) {dims = array<i64: 2>, ends = array<i64: 2, 4>, halo = "keep"} -> tensor<1x2x4x4xf32> body {
  ^bb0(%a: tensor<1x2x4x4xf32>):
    %s = dnn.softmax input(%a : tensor<1x2x4x4xf32>) {axis = 2 : i64, log = false} -> tensor<1x2x4x4xf32>
    dnn.yield %s : tensor<1x2x4x4xf32>
  }
  func.return
}

// -----

// CHECK: 'dnn.if' op condition must be one i1, got tensor<1xi1> (F5)
func.func @broken(%c: tensor<1xi1>, %x: tensor<4xf32>) {
  %y = dnn.if condition(%c : tensor<1xi1>) -> tensor<4xf32> then {
    dnn.yield %x : tensor<4xf32>
  } otherwise {
    dnn.yield %x : tensor<4xf32>
  }
  func.return
}

// -----

// CHECK: 'dnn.loop' op computes nothing (F6)
func.func @broken(%c: tensor<i1>) {
  dnn.loop condition(%c : tensor<i1>) body {
    dnn.yield %c : tensor<i1>
  }
  func.return
}

// -----

// CHECK: 'dnn.loop' op region 'body' must take and yield nothing in buffer form (F7)
func.func @broken(%c: memref<i1>, %x: memref<4xf32>) {
  dnn.loop condition(%c : memref<i1>) outs(%x : memref<4xf32>) body {
    dnn.yield %c : memref<i1>
  }
  func.return
}

// -----

// CHECK: 'dnn.if' op region 'otherwise' must take nothing and yield (tensor<4xf32>) (C1)
func.func @broken(%c: tensor<i1>, %x: tensor<4xf32>) {
  %y = dnn.if condition(%c : tensor<i1>) -> tensor<4xf32> then {
    dnn.yield %x : tensor<4xf32>
  } otherwise {
    dnn.yield %c : tensor<i1>
  }
  func.return
}

// -----

// CHECK: 'dnn.loop' op inits, arguments of the body and results must have the same types (C1)
func.func @broken(%c: tensor<i1>, %x: tensor<4xf32>) {
  %y = dnn.loop condition(%c : tensor<i1>) inits(%x : tensor<4xf32>) -> tensor<4xf32> body {
  ^bb0(%a: tensor<i1>):
    dnn.yield %c, %x : tensor<i1>, tensor<4xf32>
  }
  func.return
}

// -----

// CHECK: 'dnn.loop' op body must yield one i1 and values of the results' types (C2)
func.func @broken(%c: tensor<i1>, %x: tensor<4xf32>) {
  %y = dnn.loop condition(%c : tensor<i1>) inits(%x : tensor<4xf32>) -> tensor<4xf32> body {
  ^bb0(%a: tensor<4xf32>):
    dnn.yield %a : tensor<4xf32>
  }
  func.return
}
