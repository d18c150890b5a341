// RUN: occamy-opt %s -p verify-dnn-pool --split-input-file --verify-diagnostics | filecheck %s

// CHECK: 'dnn.mem_offset' ops overlap: %a at bytes [0, 64), live at ops 4 to 5; %b at bytes [32, 96), live at ops 5 to 5
func.func @overlap(%x: memref<16xf32>) {
  %pool = dnn.mempool_init align 32 : memref<96xi8>
  %a = dnn.mem_offset %pool[0, 64] : memref<96xi8> -> memref<16xf32>
  %b = dnn.mem_offset %pool[32, 64] : memref<96xi8> -> memref<16xf32>
  dnn.copy input(%x : memref<16xf32>) outs(%a : memref<16xf32>)
  dnn.copy input(%a : memref<16xf32>) outs(%b : memref<16xf32>)
  func.return
}

// -----

// A view keeps its buffer alive.
// CHECK: 'dnn.mem_offset' ops overlap: %a at bytes [0, 64)
func.func @overlap_with_view(%x: memref<16xf32>, %out: memref<4xf32>) {
  %pool = dnn.mempool_init align 64 : memref<64xi8>
  %a = dnn.mem_offset %pool[0, 64] : memref<64xi8> -> memref<16xf32>
  dnn.copy input(%x : memref<16xf32>) outs(%a : memref<16xf32>)
  %v = dnn.view %a[4] : memref<16xf32> -> memref<4xf32>
  %b = dnn.mem_offset %pool[0, 64] : memref<64xi8> -> memref<16xf32>
  dnn.copy input(%x : memref<16xf32>) outs(%b : memref<16xf32>)
  dnn.copy input(%v : memref<4xf32>) outs(%out : memref<4xf32>)
  func.return
}

// -----

// CHECK: 'dnn.mem_offset' op offset 4 is not a multiple of the pool's 64 bytes
func.func @alignment() {
  %pool = dnn.mempool_init align 64 : memref<128xi8>
  %a = dnn.mem_offset %pool[4, 64] : memref<128xi8> -> memref<16xf32>
  func.return
}

// -----

// CHECK: 'dnn.malloc' op is left outside the pool: memref<16xf32>
func.func @malloc() {
  %a = dnn.malloc : memref<16xf32>
  dnn.dealloc %a : memref<16xf32>
  func.return
}

// -----

// CHECK: 'dnn.mempool_init' op must be the only one, got 2
func.func @two_pools() {
  %p = dnn.mempool_init align 64 : memref<128xi8>
  %q = dnn.mempool_init align 64 : memref<128xi8>
  func.return
}

// -----

// %a is read in the next iteration, though no later op of the body reads it.
// CHECK: 'dnn.mem_offset' ops overlap: %a at bytes [0, 64), live at ops 4 to 7; %b at bytes [0, 64), live at ops 8 to 9
func.func @around_the_back_edge(%c: memref<i1>, %x: memref<16xf32>, %out: memref<16xf32>) {
  %pool = dnn.mempool_init align 64 : memref<64xi8>
  %a = dnn.mem_offset %pool[0, 64] : memref<64xi8> -> memref<16xf32>
  %b = dnn.mem_offset %pool[0, 64] : memref<64xi8> -> memref<16xf32>
  dnn.softmax input(%x : memref<16xf32>) outs(%a : memref<16xf32>) {axis = 0 : i64, log = false}
  dnn.loop condition(%c : memref<i1>) outs(%out : memref<16xf32>) body {
    %v = dnn.view %a[0] : memref<16xf32> -> memref<16xf32>
    dnn.copy input(%v : memref<16xf32>) outs(%out : memref<16xf32>)
    dnn.softmax input(%out : memref<16xf32>) outs(%b : memref<16xf32>) {axis = 0 : i64, log = false}
    dnn.copy input(%b : memref<16xf32>) outs(%out : memref<16xf32>)
    dnn.yield
  }
  func.return
}

// -----

// After either branch %a is read, but one has lost it.
// CHECK: 'dnn.mem_offset' ops overlap: %a at bytes [0, 64)
func.func @after_a_branch(%c: memref<i1>, %x: memref<16xf32>, %out: memref<16xf32>) {
  %pool = dnn.mempool_init align 64 : memref<64xi8>
  %a = dnn.mem_offset %pool[0, 64] : memref<64xi8> -> memref<16xf32>
  dnn.softmax input(%x : memref<16xf32>) outs(%a : memref<16xf32>) {axis = 0 : i64, log = false}
  dnn.if condition(%c : memref<i1>) outs(%out : memref<16xf32>) then {
    dnn.yield
  } otherwise {
    %b = dnn.mem_offset %pool[0, 64] : memref<64xi8> -> memref<16xf32>
    dnn.softmax input(%x : memref<16xf32>) outs(%b : memref<16xf32>) {axis = 0 : i64, log = false}
    dnn.yield
  }
  dnn.copy input(%a : memref<16xf32>) outs(%out : memref<16xf32>)
  func.return
}
