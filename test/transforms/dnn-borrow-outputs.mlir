// RUN: occamy-opt %s -p dnn-borrow-outputs | filecheck %s

// A chain of buffers of equal size, the output not used before its end: every second one moves into the output.
// Moving %a would leave the peak where %b and %c are live together, so it is %b that moves.
// CHECK-LABEL: func.func @chain
// CHECK:         %a = dnn.malloc : memref<16xf32>
// CHECK:         %b = dnn.view %out[0] : memref<20xf32> -> memref<16xf32>
// CHECK-NEXT:    dnn.softmax input(%a : memref<16xf32>) outs(%b : memref<16xf32>)
// CHECK:         %c = dnn.malloc : memref<16xf32>
// CHECK-NOT:     dnn.dealloc %b
func.func @chain(%x: memref<16xf32> {dnn.kind = "input"}, %out: memref<20xf32> {dnn.kind = "output"}) {
  %a = dnn.malloc : memref<16xf32>
  dnn.softmax input(%x : memref<16xf32>) outs(%a : memref<16xf32>) {axis = 0 : i64, log = false}
  %b = dnn.malloc : memref<16xf32>
  dnn.softmax input(%a : memref<16xf32>) outs(%b : memref<16xf32>) {axis = 0 : i64, log = false}
  dnn.dealloc %a : memref<16xf32>
  %c = dnn.malloc : memref<16xf32>
  dnn.softmax input(%b : memref<16xf32>) outs(%c : memref<16xf32>) {axis = 0 : i64, log = false}
  dnn.dealloc %b : memref<16xf32>
  dnn.pad input(%c : memref<16xf32>) outs(%out : memref<20xf32>) {low = array<i64: 2>, high = array<i64: 2>, mode = "constant", value = 0.0 : f32}
  dnn.dealloc %c : memref<16xf32>
  func.return
}

// The output is written too early, has another element type, or is too small: nothing moves.
// CHECK-LABEL: func.func @cannot
// CHECK-NOT:     dnn.view %{{early|small|other}}
// CHECK:         func.return
func.func @cannot(%x: memref<16xf32> {dnn.kind = "input"}, %early: memref<16xf32> {dnn.kind = "output"},
                  %small: memref<15xf32> {dnn.kind = "output"}, %other: memref<64xi32> {dnn.kind = "output"}) {
  dnn.softmax input(%x : memref<16xf32>) outs(%early : memref<16xf32>) {axis = 0 : i64, log = false}
  %a = dnn.malloc : memref<16xf32>
  dnn.softmax input(%x : memref<16xf32>) outs(%a : memref<16xf32>) {axis = 0 : i64, log = false}
  %b = dnn.malloc : memref<16xf32>
  dnn.softmax input(%a : memref<16xf32>) outs(%b : memref<16xf32>) {axis = 0 : i64, log = false}
  dnn.dealloc %a : memref<16xf32>
  %v = dnn.view %b[1] : memref<16xf32> -> memref<15xf32>
  dnn.softmax input(%v : memref<15xf32>) outs(%small : memref<15xf32>) {axis = 0 : i64, log = false}
  dnn.dealloc %b : memref<16xf32>
  %i = dnn.malloc : memref<64xi32>
  dnn.elementwise outs(%i : memref<64xi32>) body {
    %one = arith.constant 1 : i32
    dnn.yield %one : i32
  }
  dnn.copy input(%i : memref<64xi32>) outs(%other : memref<64xi32>)
  dnn.dealloc %i : memref<64xi32>
  func.return
}
