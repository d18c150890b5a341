// RUN: occamy-opt %s -p verify-dnn-pool | filecheck %s

// Two buffers share bytes, but their lives do not overlap.
// CHECK-LABEL: @main
func.func @main(%x: memref<16xf32>, %out: memref<16xf32>) {
  %pool = dnn.mempool_init align 64 : memref<64xi8>
  %a = dnn.mem_offset %pool[0, 64] : memref<64xi8> -> memref<16xf32>
  dnn.copy input(%x : memref<16xf32>) outs(%a : memref<16xf32>)
  dnn.copy input(%a : memref<16xf32>) outs(%out : memref<16xf32>)
  %b = dnn.mem_offset %pool[0, 64] : memref<64xi8> -> memref<16xf32>
  dnn.copy input(%x : memref<16xf32>) outs(%b : memref<16xf32>)
  dnn.dealloc %pool : memref<64xi8>
  func.return
}

// Buffers of different branches share bytes, also with what only the other branch reads; a carried buffer's bytes are
// free in the body between its last use and where it is written anew.
// CHECK-LABEL: func.func @control_flow
func.func @control_flow(%c: memref<i1>, %x: memref<16xf32>, %out: memref<16xf32>) {
  %pool = dnn.mempool_init align 64 : memref<128xi8>
  %a = dnn.mem_offset %pool[0, 64] : memref<128xi8> -> memref<16xf32>
  dnn.softmax input(%x : memref<16xf32>) outs(%a : memref<16xf32>) {axis = 0 : i64, log = false}
  dnn.if condition(%c : memref<i1>) outs(%out : memref<16xf32>) then {
    %b = dnn.mem_offset %pool[0, 64] : memref<128xi8> -> memref<16xf32>
    dnn.softmax input(%x : memref<16xf32>) outs(%b : memref<16xf32>) {axis = 0 : i64, log = false}
    dnn.copy input(%b : memref<16xf32>) outs(%out : memref<16xf32>)
    dnn.yield
  } otherwise {
    dnn.copy input(%a : memref<16xf32>) outs(%out : memref<16xf32>)
    dnn.yield
  }
  %r = dnn.mem_offset %pool[0, 64] : memref<128xi8> -> memref<16xf32>
  dnn.copy input(%out : memref<16xf32>) outs(%r : memref<16xf32>)
  dnn.loop condition(%c : memref<i1>) outs(%r : memref<16xf32>) body {
    %d = dnn.mem_offset %pool[64, 64] : memref<128xi8> -> memref<16xf32>
    dnn.softmax input(%r : memref<16xf32>) outs(%d : memref<16xf32>) {axis = 0 : i64, log = true}
    %e = dnn.mem_offset %pool[0, 64] : memref<128xi8> -> memref<16xf32>
    dnn.softmax input(%d : memref<16xf32>) outs(%e : memref<16xf32>) {axis = 0 : i64, log = false}
    %f = dnn.mem_offset %pool[64, 64] : memref<128xi8> -> memref<16xf32>
    dnn.softmax input(%e : memref<16xf32>) outs(%f : memref<16xf32>) {axis = 0 : i64, log = false}
    dnn.copy input(%f : memref<16xf32>) outs(%r : memref<16xf32>)
    dnn.yield
  }
  dnn.copy input(%r : memref<16xf32>) outs(%out : memref<16xf32>)
  func.return
}
