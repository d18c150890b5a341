// RUN: occamy-opt %s -p cuda-assign-workspaces | filecheck %s
// RUN: occamy-opt %s -p 'cuda-assign-workspaces{limit=100}' | filecheck %s --check-prefix=LIMIT

// Room for the index table of the default algorithm, 8 * 27 taps + 4 * 64 positions, in multiples of 256 bytes;
// nothing for it below the limit. The second convolution pads unequally, so its input is copied, too: 3 * 9 * 9
// elements come first. The product gets what cuBLAS asks for; softmax needs nothing.
// CHECK-LABEL: @main
// CHECK-NEXT:    %workspace = dnn.malloc : memref<512xi8>
// CHECK-NEXT:    dnn.conv input(%x : {{.*}}) workspace(%workspace : memref<512xi8>)
// CHECK-SAME:      cuda.algorithm = 1 : i64, cuda.library_bytes = 472 : i64
// CHECK-NEXT:    dnn.dealloc %workspace
// CHECK-NEXT:    [[W:%.*]] = dnn.malloc : memref<1536xi8>
// CHECK-NEXT:    dnn.conv {{.*}} workspace([[W]] : memref<1536xi8>)
// CHECK-SAME:      cuda.algorithm = 1 : i64, cuda.library_bytes = 412 : i64
// CHECK-NEXT:    dnn.dealloc [[W]]
// CHECK-NEXT:    [[G:%.*]] = dnn.malloc : memref<4194304xi8>
// CHECK-NEXT:    dnn.matmul {{.*}} workspace([[G]] : memref<4194304xi8>) {cuda.library_bytes = 4194304 : i64}
// CHECK-NEXT:    dnn.dealloc [[G]]
// CHECK-NEXT:    dnn.softmax
// CHECK-NEXT:    func.return

// LIMIT-LABEL: @main
// LIMIT-NEXT:    dnn.conv input(%x : {{.*}}) outs(%y : {{.*}}cuda.algorithm = 0 : i64, cuda.library_bytes = 0 : i64
// LIMIT-NEXT:    [[W:%.*]] = dnn.malloc : memref<1024xi8>
// LIMIT:         dnn.matmul {{.*}} {cuda.library_bytes = 100 : i64}
func.func @main(%x: memref<1x3x8x8xf32>, %w: memref<4x3x3x3xf32>, %y: memref<1x4x8x8xf32>, %z: memref<1x4x7x7xf32>,
                %a: memref<4x8xf32>, %b: memref<8x16xf32>, %c: memref<4x16xf32>) {
  dnn.conv input(%x : memref<1x3x8x8xf32>) filter(%w : memref<4x3x3x3xf32>) outs(%y : memref<1x4x8x8xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 1, 1, 1, 1>, dilations = array<i64: 1, 1>}
  dnn.conv input(%x : memref<1x3x8x8xf32>) filter(%w : memref<4x3x3x3xf32>) outs(%z : memref<1x4x7x7xf32>)
    {group = 1 : i64, strides = array<i64: 1, 1>, pads = array<i64: 0, 0, 1, 1>, dilations = array<i64: 1, 1>}
  dnn.matmul a(%a : memref<4x8xf32>) b(%b : memref<8x16xf32>) outs(%c : memref<4x16xf32>)
  dnn.softmax input(%c : memref<4x16xf32>) outs(%c : memref<4x16xf32>) {axis = 1 : i64, log = false}
  func.return
}
