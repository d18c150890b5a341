// RUN: occamy-opt %s --print-liveness | filecheck %s
// RUN: occamy-opt %s -p dnn-convert-to-pool --print-plan | filecheck %s --check-prefix=PLAN

// %a is read for the last time where %b is written: both are live there. %c may have %a's place.
// CHECK:      // liveness of @main
// CHECK-NEXT: // buffer {{ +}}bytes{{ +}}first{{ +}}last  written by
// CHECK-NEXT: // a {{ +}}64 {{ +}}0 {{ +}}1  dnn.softmax
// CHECK-NEXT: // b {{ +}}64 {{ +}}1 {{ +}}2  dnn.softmax
// CHECK-NEXT: // c {{ +}}64 {{ +}}2 {{ +}}3  dnn.softmax
// CHECK-NEXT: // max-live 128 bytes over 4 positions
// CHECK-NEXT: builtin.module

// PLAN:      // plan of @main
// PLAN-NEXT: //{{ +}}offset{{ +}}bytes{{ +}}first{{ +}}last  buffer
// PLAN-NEXT: // {{ +}}0 {{ +}}64 {{ +}}0 {{ +}}1  a
// PLAN-NEXT: // {{ +}}0 {{ +}}64 {{ +}}2 {{ +}}3  c
// PLAN-NEXT: // {{ +}}64 {{ +}}64 {{ +}}1 {{ +}}2  b
// PLAN-NEXT: // pool 128 bytes
// PLAN-NEXT: builtin.module
func.func @main(%x: memref<16xf32> {dnn.kind = "input"}, %out: memref<16xf32> {dnn.kind = "output"}) {
  %a = dnn.malloc : memref<16xf32>
  dnn.softmax input(%x : memref<16xf32>) outs(%a : memref<16xf32>) {axis = 0 : i64, log = false}
  %b = dnn.malloc : memref<16xf32>
  dnn.softmax input(%a : memref<16xf32>) outs(%b : memref<16xf32>) {axis = 0 : i64, log = false}
  dnn.dealloc %a : memref<16xf32>
  %c = dnn.malloc : memref<16xf32>
  dnn.softmax input(%b : memref<16xf32>) outs(%c : memref<16xf32>) {axis = 0 : i64, log = false}
  dnn.dealloc %b : memref<16xf32>
  dnn.softmax input(%c : memref<16xf32>) outs(%out : memref<16xf32>) {axis = 0 : i64, log = false}
  dnn.dealloc %c : memref<16xf32>
  func.return
}
