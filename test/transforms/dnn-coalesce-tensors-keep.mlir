// RUN: occamy-opt %s -p dnn-coalesce-tensors | filecheck %s

// A copy that says so stays: its source may die before its result is used.
// CHECK-LABEL: @main
// CHECK:       dnn.copy input(%a : {{.*}}) outs(%b : {{.*}}) {keep}
func.func @main(%x: memref<4xf32> {dnn.kind = "input"}, %out: memref<4xf32> {dnn.kind = "output"}) {
  %a = dnn.malloc : memref<4xf32>
  dnn.softmax input(%x : memref<4xf32>) outs(%a : memref<4xf32>) {axis = 0 : i64, log = false}
  %b = dnn.malloc : memref<4xf32>
  dnn.copy input(%a : memref<4xf32>) outs(%b : memref<4xf32>) {keep}
  dnn.dealloc %a : memref<4xf32>
  dnn.copy input(%b : memref<4xf32>) outs(%out : memref<4xf32>)
  dnn.dealloc %b : memref<4xf32>
  func.return
}
