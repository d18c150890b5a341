// RUN: occamy-opt %s -p cuda-assign-workspaces | filecheck %s
// RUN: occamy-opt %s -p 'cuda-assign-workspaces{limit=100}' | filecheck %s --check-prefix=LIMIT

// The peak is at the second convolution: its result, and a copy of its input that pads 3 * 9 * 9 elements, because
// cuDNN pads both ends equally. There the library gets nothing. The first convolution has room for the index table
// of the default algorithm, 8 * 27 taps + 4 * 64 positions in multiples of 256 bytes. A product gets no less than
// 16 KiB, which cuBLAS needs. Softmax needs nothing.
// CHECK-LABEL: @main
// CHECK:         %workspace = dnn.malloc : memref<512xi8>
// CHECK-NEXT:    dnn.conv input(%x : {{.*}}) workspace(%workspace : memref<512xi8>)
// CHECK-SAME:      cuda.algorithm = 1 : i64, cuda.library_bytes = 472 : i64
// CHECK-NEXT:    dnn.dealloc %workspace
// CHECK:         [[W:%.*]] = dnn.malloc : memref<1024xi8>
// CHECK-NEXT:    dnn.conv {{.*}} workspace([[W]] : memref<1024xi8>)
// CHECK-SAME:      cuda.algorithm = 0 : i64, cuda.library_bytes = 0 : i64
// CHECK-NEXT:    dnn.dealloc [[W]]
// CHECK:         [[G:%.*]] = dnn.malloc : memref<16384xi8>
// CHECK-NEXT:    dnn.matmul {{.*}} workspace([[G]] : memref<16384xi8>) {cuda.library_bytes = 16384 : i64}
// CHECK-NEXT:    dnn.dealloc [[G]]
// CHECK-NEXT:    dnn.softmax
// CHECK-NEXT:    func.return

// LIMIT-LABEL: @main
// LIMIT:         dnn.conv input(%x : {{.*}}) outs(%y : {{.*}}cuda.algorithm = 0 : i64, cuda.library_bytes = 0 : i64
// LIMIT:         [[W:%.*]] = dnn.malloc : memref<1024xi8>
// LIMIT:         dnn.matmul {{.*}} {cuda.library_bytes = 16384 : i64}
func.func @main(%x: memref<1x3x8x8xf32>, %w: memref<4x3x3x3xf32>, %y: memref<1x4x8x8xf32>,
                %a: memref<4x8xf32>, %b: memref<8x16xf32>, %c: memref<4x16xf32>) {
  dnn.conv input(%x : memref<1x3x8x8xf32>) filter(%w : memref<4x3x3x3xf32>) outs(%y : memref<1x4x8x8xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>}
  %z = dnn.malloc : memref<1x4x7x7xf32>
  dnn.conv input(%x : memref<1x3x8x8xf32>) filter(%w : memref<4x3x3x3xf32>) outs(%z : memref<1x4x7x7xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 1, 1>, dilations = array<i64: 1, 1>}
  dnn.dealloc %z : memref<1x4x7x7xf32>
  dnn.matmul a(%a : memref<4x8xf32>) b(%b : memref<8x16xf32>) outs(%c : memref<4x16xf32>)
  dnn.softmax input(%c : memref<4x16xf32>) outs(%c : memref<4x16xf32>) {axis = 1 : i64, log = false}
  func.return
}

// The prologue of the first convolution is at the peak and is computed for 32 of 64 channels at once, with a copy of
// their part of the filter, which is no constant, of 512 bytes; that of the second one has room for all of them, 64 * 64 * 4 bytes, and the library for its table.
// CHECK-LABEL: @prologue
// CHECK:         [[A:%.*]] = dnn.malloc : memref<8704xi8>
// CHECK-NEXT:    dnn.conv {{.*}} workspace([[A]] : memref<8704xi8>)
// CHECK-SAME:      cuda.prologue_channels = 32 : i64, cuda.algorithm = 0 : i64, cuda.library_bytes = 0 : i64
// CHECK:         [[B:%.*]] = dnn.malloc : memref<17152xi8>
// CHECK-NEXT:    dnn.conv {{.*}} workspace([[B]] : memref<17152xi8>)
// CHECK-SAME:      cuda.prologue_channels = 64 : i64, cuda.algorithm = 1 : i64, cuda.library_bytes = 768 : i64
func.func @prologue(%x: memref<1x64x8x8xf32>, %w: memref<4x64x1x1xf32>, %y: memref<1x4x8x8xf32>) {
  %big = dnn.malloc : memref<100000xi8>
  dnn.copy input(%big : memref<100000xi8>) outs(%big : memref<100000xi8>)
  dnn.conv input(%x : memref<1x64x8x8xf32>) filter(%w : memref<4x64x1x1xf32>) outs(%y : memref<1x4x8x8xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>}
    prologue {
  ^bb0(%a: f32):
    %zero = arith.constant 0.0 : f32
    %relu = arith.maximumf %a, %zero : f32
    dnn.yield %relu : f32
  }
  dnn.copy input(%big : memref<100000xi8>) outs(%big : memref<100000xi8>)
  dnn.dealloc %big : memref<100000xi8>
  dnn.conv input(%x : memref<1x64x8x8xf32>) filter(%w : memref<4x64x1x1xf32>) outs(%y : memref<1x4x8x8xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>}
    prologue {
  ^bb0(%a: f32):
    %zero = arith.constant 0.0 : f32
    %relu = arith.maximumf %a, %zero : f32
    dnn.yield %relu : f32
  }
  func.return
}

// Nobody needs the input of the first convolution afterwards: its prologue is computed there. That of the second one is
// the caller's, that of the third one is read again.
// CHECK-LABEL: @in_place
// CHECK:         dnn.conv input(%a : memref<1x64x8x8xf32>) {{.*}} outs(%y : memref<1x4x8x8xf32>)
// CHECK-SAME:      cuda.prologue_in_place
// CHECK-NOT:     cuda.prologue_in_place
// CHECK:         func.return
func.func @in_place(%x: memref<1x64x8x8xf32>, %w: memref<4x64x1x1xf32>, %y: memref<1x4x8x8xf32>) {
  %a = dnn.malloc : memref<1x64x8x8xf32>
  dnn.copy input(%x : memref<1x64x8x8xf32>) outs(%a : memref<1x64x8x8xf32>)
  dnn.conv input(%a : memref<1x64x8x8xf32>) filter(%w : memref<4x64x1x1xf32>) outs(%y : memref<1x4x8x8xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>}
    prologue {
  ^bb0(%p: f32):
    %e = math.exp %p : f32
    dnn.yield %e : f32
  }
  dnn.dealloc %a : memref<1x64x8x8xf32>
  dnn.conv input(%x : memref<1x64x8x8xf32>) filter(%w : memref<4x64x1x1xf32>) outs(%y : memref<1x4x8x8xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>}
    prologue {
  ^bb0(%p: f32):
    %e = math.exp %p : f32
    dnn.yield %e : f32
  }
  %b = dnn.malloc : memref<1x64x8x8xf32>
  dnn.copy input(%x : memref<1x64x8x8xf32>) outs(%b : memref<1x64x8x8xf32>)
  dnn.conv input(%b : memref<1x64x8x8xf32>) filter(%w : memref<4x64x1x1xf32>) outs(%y : memref<1x4x8x8xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 0, 0>, dilations = array<i64: 1, 1>}
    prologue {
  ^bb0(%p: f32):
    %e = math.exp %p : f32
    dnn.yield %e : f32
  }
  dnn.copy input(%b : memref<1x64x8x8xf32>) outs(%x : memref<1x64x8x8xf32>)
  dnn.dealloc %b : memref<1x64x8x8xf32>
  func.return
}

// Only one row of the result is computed from zeros. At the peak, the first convolution, only what that needs is
// copied, 3 * 3 * 8 elements; the second one has room for the whole input and its zeros, 3 * 9 * 10 elements, and for
// the table.
// CHECK-LABEL: @padded_rows
// CHECK:         [[A:%.*]] = dnn.malloc : memref<512xi8>
// CHECK-NEXT:    dnn.conv {{.*}} workspace([[A]] : memref<512xi8>)
// CHECK-SAME:      cuda.algorithm = 0 : i64, cuda.library_bytes = 0 : i64}
// CHECK:         [[B:%.*]] = dnn.malloc : memref<1792xi8>
// CHECK-NEXT:    dnn.conv {{.*}} workspace([[B]] : memref<1792xi8>)
// CHECK-SAME:      cuda.pads_at_once, cuda.algorithm = 1 : i64, cuda.library_bytes = 440 : i64}
func.func @padded_rows(%x: memref<1x3x8x8xf32>, %w: memref<4x3x3x3xf32>, %y: memref<1x4x7x8xf32>) {
  %big = dnn.malloc : memref<100000xi8>
  dnn.copy input(%big : memref<100000xi8>) outs(%big : memref<100000xi8>)
  dnn.conv input(%x : memref<1x3x8x8xf32>) filter(%w : memref<4x3x3x3xf32>) outs(%y : memref<1x4x7x8xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 0, 1>, dilations = array<i64: 1, 1>}
  dnn.copy input(%big : memref<100000xi8>) outs(%big : memref<100000xi8>)
  dnn.dealloc %big : memref<100000xi8>
  dnn.conv input(%x : memref<1x3x8x8xf32>) filter(%w : memref<4x3x3x3xf32>) outs(%y : memref<1x4x7x8xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 0, 1>, dilations = array<i64: 1, 1>}
  func.return
}
