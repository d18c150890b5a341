// RUN: occamy-opt %s | occamy-opt | filecheck %s
// RUN: occamy-opt %s --print-op-generic | occamy-opt | filecheck %s

// Every op prints, parses and verifies, in custom and in generic form.

// CHECK-LABEL: @memory
func.func @memory(%x: memref<4x8xf32> {dnn.kind = "input"}) {
  // CHECK: %pool = dnn.mempool_init align 64 : memref<1024xi8>
  %pool = dnn.mempool_init align 64 : memref<1024xi8>
  // CHECK-NEXT: %a = dnn.mem_offset %pool[64, 128] : memref<1024xi8> -> memref<4x8xf32, strided<[1, 4]>>
  %a = dnn.mem_offset %pool[64, 128] : memref<1024xi8> -> memref<4x8xf32, strided<[1, 4]>>
  // CHECK-NEXT: dnn.copy input(%x : memref<4x8xf32>) outs(%a : memref<4x8xf32, strided<[1, 4]>>)
  dnn.copy input(%x : memref<4x8xf32>) outs(%a : memref<4x8xf32, strided<[1, 4]>>)
  // CHECK-NEXT: %b = dnn.malloc : memref<4x8xf32>
  %b = dnn.malloc : memref<4x8xf32>
  // CHECK-NEXT: dnn.memcpy %b, %x "h2d" : memref<4x8xf32>, memref<4x8xf32>
  dnn.memcpy %b, %x "h2d" : memref<4x8xf32>, memref<4x8xf32>
  // CHECK-NEXT: %v = dnn.view %b[16] : memref<4x8xf32> -> memref<8x2xf32, strided<[1, 8]>>
  %v = dnn.view %b[16] : memref<4x8xf32> -> memref<8x2xf32, strided<[1, 8]>>
  // CHECK-NEXT: dnn.dealloc %b : memref<4x8xf32>
  dnn.dealloc %b : memref<4x8xf32>
  // CHECK-NEXT: dnn.dealloc %pool : memref<1024xi8>
  dnn.dealloc %pool : memref<1024xi8>
  func.return
}

// CHECK-LABEL: @constants
func.func @constants() {
  // CHECK: dnn.constant dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32> -> tensor<2xf32>
  %c = dnn.constant dense<[1.0, 2.0]> : tensor<2xf32> -> tensor<2xf32>
  // CHECK-NEXT: dnn.constant #weights.ref<"conv1.weight"> -> memref<64x3x7x7xf32>
  %w = dnn.constant #weights.ref<"conv1.weight"> -> memref<64x3x7x7xf32>
  func.return
}

// CHECK-LABEL: @rearrange
func.func @rearrange(%x: tensor<2x3xf32>) {
  // CHECK: dnn.reshape input(%x : tensor<2x3xf32>) -> tensor<6xf32>
  %r = dnn.reshape input(%x : tensor<2x3xf32>) -> tensor<6xf32>
  // CHECK-NEXT: dnn.transpose input(%x : tensor<2x3xf32>) {permutation = array<i64: 1, 0>} -> tensor<3x2xf32>
  %t = dnn.transpose input(%x : tensor<2x3xf32>) {permutation = array<i64: 1, 0>} -> tensor<3x2xf32>
  // CHECK-NEXT: dnn.slice input(%r : tensor<6xf32>) {offsets = array<i64: 5>, sizes = array<i64: 3>, strides = array<i64: -2>} -> tensor<3xf32>
  %s = dnn.slice input(%r : tensor<6xf32>)
    {offsets = array<i64: 5>, sizes = array<i64: 3>, strides = array<i64: -2>} -> tensor<3xf32>
  // CHECK-NEXT: dnn.broadcast input(%s : tensor<3xf32>) -> tensor<2x3xf32>
  %b = dnn.broadcast input(%s : tensor<3xf32>) -> tensor<2x3xf32>
  // CHECK-NEXT: dnn.concat ins(%x, %b : tensor<2x3xf32>, tensor<2x3xf32>) {axis = 1 : i64} -> tensor<2x6xf32>
  %c = dnn.concat ins(%x, %b : tensor<2x3xf32>, tensor<2x3xf32>) {axis = 1 : i64} -> tensor<2x6xf32>
  func.return
}

// CHECK-LABEL: @windows
func.func @windows(%x: tensor<1x4x8x8xf32>, %w: tensor<4x4x3x3xf32>, %b: tensor<4xf32>,
                   %v: tensor<2x12x3x3xf32>, %d: tensor<12x1x1xf32>, %u: tensor<1xf32>) {
  // CHECK: dnn.conv input(%x : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x3x3xf32>) bias(%b : tensor<4xf32>) extras(%x : tensor<1x4x8x8xf32>)
  // CHECK-SAME: {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>}
  // CHECK-SAME: -> tensor<1x4x8x8xf32, #dnn.order<0, 2, 3, 1>> epilogue {
  // CHECK-NEXT: ^bb0(%sum: f32, %residual: f32):
  %c = dnn.conv input(%x : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x3x3xf32>) bias(%b : tensor<4xf32>)
    extras(%x : tensor<1x4x8x8xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>}
    -> tensor<1x4x8x8xf32, #dnn.order<0, 2, 3, 1>> epilogue {
  ^bb0(%sum: f32, %residual: f32):
    %s = arith.addf %sum, %residual : f32
    dnn.yield %s : f32
  }
  // CHECK: dnn.conv input(%x : tensor<1x4x8x8xf32>) joined(%x, %c : tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32, #dnn.order<0, 2, 3, 1>>)
  // CHECK-SAME: filter(%v : tensor<2x12x3x3xf32>) prologue_extras(%d, %u : tensor<12x1x1xf32>, tensor<1xf32>)
  // CHECK-SAME: -> tensor<1x2x8x8xf32> prologue {
  // CHECK-NEXT: ^bb0(%a: f32, %scale: f32, %shift: f32):
  // CHECK: dnn.yield
  // CHECK-NEXT: } epilogue {
  // CHECK-NEXT: ^bb0({{%.*}}: f32):
  %j = dnn.conv input(%x : tensor<1x4x8x8xf32>) joined(%x, %c : tensor<1x4x8x8xf32>, tensor<1x4x8x8xf32, #dnn.order<0, 2, 3, 1>>)
    filter(%v : tensor<2x12x3x3xf32>) prologue_extras(%d, %u : tensor<12x1x1xf32>, tensor<1xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>}
    -> tensor<1x2x8x8xf32> prologue {
  ^bb0(%a: f32, %scale: f32, %shift: f32):
    %m = arith.mulf %a, %scale : f32
    %n = arith.addf %m, %shift : f32
    dnn.yield %n : f32
  } epilogue {
  ^bb0(%sum: f32):
    %e = arith.negf %sum : f32
    dnn.yield %e : f32
  }
  // CHECK: dnn.conv_transpose input(%x : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x3x3xf32>)
  // CHECK-SAME: output_padding = array<i64: 1, 1>
  %t = dnn.conv_transpose input(%x : tensor<1x4x8x8xf32>) filter(%w : tensor<4x4x3x3xf32>)
    {group = 1 : i64, output_padding = array<i64: 1, 1>, strides = array<i64: 2, 2>,
     pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>} -> tensor<1x4x16x16xf32>
  // CHECK: %p, %i = dnn.pool input(%x : tensor<1x4x8x8xf32>) {kind = "max", kernel = array<i64: 2, 2>
  // CHECK-SAME: -> tensor<1x4x4x4xf32>, tensor<1x4x4x4xi64>
  %p, %i = dnn.pool input(%x : tensor<1x4x8x8xf32>)
    {kind = "max", kernel = array<i64: 2, 2>, count_include_pad = false, strides = array<i64: 2, 2>,
     pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>} -> tensor<1x4x4x4xf32>, tensor<1x4x4x4xi64>
  func.return
}

// CHECK-LABEL: @products
func.func @products(%a: tensor<4x8xf32>, %b: tensor<8x16xf32>, %c: tensor<16xf32>) {
  // CHECK: dnn.matmul a(%a : tensor<4x8xf32>) b(%b : tensor<8x16xf32>) bias(%c : tensor<16xf32>) -> tensor<4x16xf32>
  %y = dnn.matmul a(%a : tensor<4x8xf32>) b(%b : tensor<8x16xf32>) bias(%c : tensor<16xf32>) -> tensor<4x16xf32>
  func.return
}

// CHECK-LABEL: @scalars
func.func @scalars(%x: tensor<2x3xui8>, %y: tensor<3xf32>) {
  // CHECK: dnn.elementwise ins(%x, %y : tensor<2x3xui8>, tensor<3xf32>) -> tensor<2x3xf32> body {
  // CHECK-NEXT: ^bb0(%a: i8, %b: f32):
  %z = dnn.elementwise ins(%x, %y : tensor<2x3xui8>, tensor<3xf32>) -> tensor<2x3xf32> body {
  ^bb0(%a: i8, %b: f32):
    %f = arith.uitofp %a : i8 to f32
    %s = arith.mulf %f, %b : f32
    dnn.yield %s : f32
  }
  func.return
}

// CHECK-LABEL: @along_axes
func.func @along_axes(%x: tensor<2x8xf32>, %s: tensor<8xf32>) {
  // CHECK: dnn.reduce input(%x : tensor<2x8xf32>) {kind = "mean", axes = array<i64: 1>} -> tensor<2xf32>
  %r = dnn.reduce input(%x : tensor<2x8xf32>) {kind = "mean", axes = array<i64: 1>} -> tensor<2xf32>
  // CHECK-NEXT: dnn.arg_reduce input(%x : tensor<2x8xf32>) {kind = "max", axis = 1 : i64, select_last = false} -> tensor<2xi64>
  %a = dnn.arg_reduce input(%x : tensor<2x8xf32>) {kind = "max", axis = 1 : i64, select_last = false} -> tensor<2xi64>
  // CHECK-NEXT: dnn.softmax input(%x : tensor<2x8xf32>) {log = false, axis = 1 : i64} -> tensor<2x8xf32>
  %m = dnn.softmax input(%x : tensor<2x8xf32>) {axis = 1 : i64, log = false} -> tensor<2x8xf32>
  // CHECK-NEXT: dnn.layer_norm input(%x : tensor<2x8xf32>) scale(%s : tensor<8xf32>) {epsilon = 1.000000e-05 : f32, axis = 1 : i64} -> tensor<2x8xf32>
  %l = dnn.layer_norm input(%x : tensor<2x8xf32>) scale(%s : tensor<8xf32>) {axis = 1 : i64, epsilon = 1.0e-05 : f32} -> tensor<2x8xf32>
  // CHECK-NEXT: dnn.lrn input(%x : tensor<2x8xf32>)
  %n = dnn.lrn input(%x : tensor<2x8xf32>)
    {alpha = 1.0e-04 : f32, beta = 7.5e-01 : f32, bias = 1.0 : f32, size = 5 : i64} -> tensor<2x8xf32>
  // CHECK-NEXT: dnn.pad input(%x : tensor<2x8xf32>)
  %p = dnn.pad input(%x : tensor<2x8xf32>)
    {low = array<i64: 0, 1>, high = array<i64: 0, 2>, mode = "constant", value = 0.0 : f32} -> tensor<2x11xf32>
  func.return
}

// CHECK-LABEL: @sampling
func.func @sampling(%x: tensor<10x4xf32>, %i: tensor<3xi64>) {
  // CHECK: dnn.gather data(%x : tensor<10x4xf32>) indices(%i : tensor<3xi64>) {axis = 0 : i64} -> tensor<3x4xf32>
  %g = dnn.gather data(%x : tensor<10x4xf32>) indices(%i : tensor<3xi64>) {axis = 0 : i64} -> tensor<3x4xf32>
  // CHECK-NEXT: dnn.resize input(%x : tensor<10x4xf32>) {mode = "linear"
  %r = dnn.resize input(%x : tensor<10x4xf32>)
    {mode = "linear", coordinate_transformation_mode = "half_pixel", nearest_mode = "floor",
     scales = array<f64: 1.0, 2.0>, cubic_coeff_a = -0.75 : f32, exclude_outside = false} -> tensor<10x8xf32>
  func.return
}

// CHECK-LABEL: @stripes
func.func @stripes(%x: tensor<1x2x8x4xf32>, %b: memref<4xf32>, %d: memref<4xf32>) {
  // CHECK: %y = dnn.stripe ins(%x : tensor<1x2x8x4xf32>) {dims = array<i64: 2>, ends = array<i64: 2, 4>, halo = "keep"} -> tensor<1x2x4x4xf32> body {
  // CHECK-NEXT: ^bb0(%a: tensor<1x2x8x4xf32>):
  // CHECK-NEXT: %p = dnn.pool
  // CHECK-NEXT: dnn.yield %p : tensor<1x2x4x4xf32>
  %y = dnn.stripe ins(%x : tensor<1x2x8x4xf32>) {dims = array<i64: 2>, ends = array<i64: 2, 4>, halo = "keep"} -> tensor<1x2x4x4xf32> body {
  ^bb0(%a: tensor<1x2x8x4xf32>):
    %p = dnn.pool input(%a : tensor<1x2x8x4xf32>)
      {count_include_pad = false, dilations = array<i64: 1, 1>, kernel = array<i64: 2, 1>, kind = "max",
       pads = array<i64: 0, 0, 0, 0>, strides = array<i64: 2, 1>} -> tensor<1x2x4x4xf32>
    dnn.yield %p : tensor<1x2x4x4xf32>
  }
  // CHECK: dnn.copy input(%b : memref<4xf32>) outs(%d : memref<4xf32>) {keep}
  dnn.copy input(%b : memref<4xf32>) outs(%d : memref<4xf32>) {keep}
  func.return
}

// CHECK-LABEL: @control
func.func @control(%c: tensor<i1>, %x: tensor<4xf32>) {
  // CHECK: %y = dnn.if condition(%c : tensor<i1>) -> tensor<4xf32> then {
  // CHECK-NEXT: %a = dnn.softmax
  // CHECK-NEXT: dnn.yield %a : tensor<4xf32>
  // CHECK-NEXT: } otherwise {
  // CHECK-NEXT: dnn.yield %x : tensor<4xf32>
  // CHECK-NEXT: }
  %y = dnn.if condition(%c : tensor<i1>) -> tensor<4xf32> then {
    %a = dnn.softmax input(%x : tensor<4xf32>) {axis = 0 : i64, log = false} -> tensor<4xf32>
    dnn.yield %a : tensor<4xf32>
  } otherwise {
    dnn.yield %x : tensor<4xf32>
  }
  // CHECK-NEXT: %z, %d = dnn.loop condition(%c : tensor<i1>) inits(%y, %c : tensor<4xf32>, tensor<i1>) -> tensor<4xf32>, tensor<i1> body {
  // CHECK-NEXT: ^bb0(%b: tensor<4xf32>, %e: tensor<i1>):
  // CHECK-NEXT: dnn.yield %e, %x, %c : tensor<i1>, tensor<4xf32>, tensor<i1>
  // CHECK-NEXT: }
  %z, %d = dnn.loop condition(%c : tensor<i1>) inits(%y, %c : tensor<4xf32>, tensor<i1>) -> tensor<4xf32>, tensor<i1> body {
  ^bb0(%b: tensor<4xf32>, %e: tensor<i1>):
    dnn.yield %e, %x, %c : tensor<i1>, tensor<4xf32>, tensor<i1>
  }
  func.return
}

// CHECK-LABEL: @control_of_buffers
func.func @control_of_buffers(%c: memref<i1>, %x: memref<4xf32>) {
  // CHECK: dnn.if condition(%c : memref<i1>) outs(%x : memref<4xf32>) then {
  // CHECK-NEXT: dnn.loop condition(%c : memref<i1>) outs(%x : memref<4xf32>) body {
  // CHECK-NEXT: dnn.softmax
  // CHECK-NEXT: dnn.yield
  // CHECK-NEXT: }
  // CHECK-NEXT: dnn.yield
  // CHECK-NEXT: } otherwise {
  // CHECK-NEXT: dnn.yield
  // CHECK-NEXT: }
  dnn.if condition(%c : memref<i1>) outs(%x : memref<4xf32>) then {
    dnn.loop condition(%c : memref<i1>) outs(%x : memref<4xf32>) body {
      dnn.softmax input(%x : memref<4xf32>) outs(%x : memref<4xf32>) {axis = 0 : i64, log = false}
      dnn.yield
    }
    dnn.yield
  } otherwise {
    dnn.yield
  }
  func.return
}
