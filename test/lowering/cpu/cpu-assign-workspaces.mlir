// RUN: occamy-opt %s -p 'cpu-assign-workspaces{target=x86-64-v3}' | filecheck %s

// The second operand is transposed and no constant: the kernel packs panels of it. The first product needs nothing.
// CHECK-LABEL: @main
// CHECK-NEXT:  dnn.matmul a(%a : memref<4x8xf32>) b(%b : memref<8x16xf32>) outs(%c : memref<4x16xf32>)
// CHECK-NEXT:  %bt = dnn.view
// CHECK-NEXT:  %workspace = dnn.malloc : memref<[[BYTES:[0-9]+]]xi8>
// CHECK-NEXT:  dnn.matmul a(%a : memref<4x8xf32>) b(%bt : {{.*}}) outs(%c : memref<4x16xf32>) workspace(%workspace : memref<[[BYTES]]xi8>)
// CHECK-NEXT:  dnn.dealloc %workspace
func.func @main(%a: memref<4x8xf32>, %b: memref<8x16xf32>, %t: memref<16x8xf32>, %c: memref<4x16xf32>) {
  dnn.matmul a(%a : memref<4x8xf32>) b(%b : memref<8x16xf32>) outs(%c : memref<4x16xf32>)
  %bt = dnn.view %t[0] : memref<16x8xf32> -> memref<8x16xf32, strided<[1, 8]>>
  dnn.matmul a(%a : memref<4x8xf32>) b(%bt : memref<8x16xf32, strided<[1, 8]>>) outs(%c : memref<4x16xf32>)
  func.return
}
