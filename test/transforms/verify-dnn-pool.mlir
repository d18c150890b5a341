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
