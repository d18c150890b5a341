// RUN: occamy-opt %s -p dnn-slide-windows --split-input-file | filecheck %s

// Rows 2 and 3 of %a are the first two of %b: they move to the front of %a, whose buffer %b takes.
// CHECK-LABEL: @slides
// CHECK:       [[A:%.*]] = dnn.malloc : memref<4x2xf32>
// CHECK-NEXT:  dnn.softmax input(%x {{.*}} outs([[A]] : memref<4x2xf32>)
// CHECK-NEXT:  [[BACK:%.*]] = dnn.view [[A]][2] : memref<4x2xf32> -> memref<3x2xf32>
// CHECK-NEXT:  [[FRONT:%.*]] = dnn.view [[A]][0] : memref<4x2xf32> -> memref<3x2xf32>
// CHECK-NEXT:  dnn.copy input([[BACK]] : memref<3x2xf32>) outs([[FRONT]] : memref<3x2xf32>) {keep}
// CHECK-NEXT:  [[NEW:%.*]] = dnn.view [[A]][6]
// CHECK-NEXT:  dnn.copy input(%y : memref<1x2xf32>) outs([[NEW]] : memref<1x2xf32>)
// CHECK-NEXT:  dnn.softmax input([[A]] : memref<4x2xf32>) outs(%out : memref<4x2xf32>)
// CHECK-NEXT:  dnn.dealloc [[A]]
// CHECK-NEXT:  func.return
func.func @slides(%x: memref<4x2xf32> {dnn.kind = "input"}, %y: memref<1x2xf32> {dnn.kind = "input"}, %out: memref<4x2xf32> {dnn.kind = "output"}) {
  %a = dnn.malloc : memref<4x2xf32>
  dnn.softmax input(%x : memref<4x2xf32>) outs(%a : memref<4x2xf32>) {axis = 0 : i64, log = false}
  %back = dnn.view %a[2] : memref<4x2xf32> -> memref<3x2xf32>
  %k = dnn.malloc : memref<3x2xf32>
  dnn.copy input(%back : memref<3x2xf32>) outs(%k : memref<3x2xf32>) {keep}
  dnn.dealloc %a : memref<4x2xf32>
  %b = dnn.malloc : memref<4x2xf32>
  %front = dnn.view %b[0] : memref<4x2xf32> -> memref<3x2xf32>
  dnn.copy input(%k : memref<3x2xf32>) outs(%front : memref<3x2xf32>)
  dnn.dealloc %k : memref<3x2xf32>
  %new = dnn.view %b[6] : memref<4x2xf32> -> memref<1x2xf32>
  dnn.copy input(%y : memref<1x2xf32>) outs(%new : memref<1x2xf32>)
  dnn.softmax input(%b : memref<4x2xf32>) outs(%out : memref<4x2xf32>) {axis = 0 : i64, log = false}
  dnn.dealloc %b : memref<4x2xf32>
  func.return
}

// -----

// A window that is lower becomes rows of the buffer, in its strides.
// CHECK-LABEL: @lower
// CHECK:       [[A:%.*]] = dnn.malloc : memref<2x4xf32>
// CHECK:       [[BACK:%.*]] = dnn.view [[A]][2] : memref<2x4xf32> -> memref<2x2xf32, strided<[4, 1]>>
// CHECK:       [[FRONT:%.*]] = dnn.view [[A]][0] : memref<2x4xf32> -> memref<2x2xf32, strided<[4, 1]>>
// CHECK:       dnn.copy input([[BACK]] {{.*}} outs([[FRONT]] {{.*}} {keep}
// CHECK-NOT:   dnn.malloc
// CHECK:       [[B:%.*]] = dnn.view [[A]][0] : memref<2x4xf32> -> memref<2x3xf32, strided<[4, 1]>>
// CHECK-NEXT:  dnn.softmax input([[B]]
func.func @lower(%x: memref<2x4xf32> {dnn.kind = "input"}, %y: memref<2x1xf32> {dnn.kind = "input"}, %out: memref<2x3xf32> {dnn.kind = "output"}) {
  %a = dnn.malloc : memref<2x4xf32>
  dnn.softmax input(%x : memref<2x4xf32>) outs(%a : memref<2x4xf32>) {axis = 0 : i64, log = false}
  %back = dnn.view %a[2] : memref<2x4xf32> -> memref<2x2xf32, strided<[4, 1]>>
  %k = dnn.malloc : memref<2x2xf32>
  dnn.copy input(%back : memref<2x2xf32, strided<[4, 1]>>) outs(%k : memref<2x2xf32>) {keep}
  dnn.dealloc %a : memref<2x4xf32>
  %b = dnn.malloc : memref<2x3xf32>
  %front = dnn.view %b[0] : memref<2x3xf32> -> memref<2x2xf32, strided<[3, 1]>>
  dnn.copy input(%k : memref<2x2xf32>) outs(%front : memref<2x2xf32, strided<[3, 1]>>)
  dnn.dealloc %k : memref<2x2xf32>
  %new = dnn.view %b[2] : memref<2x3xf32> -> memref<2x1xf32, strided<[3, 1]>>
  dnn.copy input(%y : memref<2x1xf32>) outs(%new : memref<2x1xf32, strided<[3, 1]>>)
  dnn.softmax input(%b : memref<2x3xf32>) outs(%out : memref<2x3xf32>) {axis = 0 : i64, log = false}
  dnn.dealloc %b : memref<2x3xf32>
  func.return
}

// -----

// %a is read once more after its rows were kept: they stay where they are.
// CHECK-LABEL: @read_again
// CHECK-COUNT-3: dnn.malloc
func.func @read_again(%x: memref<4x2xf32> {dnn.kind = "input"}, %y: memref<4x2xf32> {dnn.kind = "output"}, %out: memref<4x2xf32> {dnn.kind = "output"}) {
  %a = dnn.malloc : memref<4x2xf32>
  dnn.softmax input(%x : memref<4x2xf32>) outs(%a : memref<4x2xf32>) {axis = 0 : i64, log = false}
  %back = dnn.view %a[2] : memref<4x2xf32> -> memref<3x2xf32>
  %k = dnn.malloc : memref<3x2xf32>
  dnn.copy input(%back : memref<3x2xf32>) outs(%k : memref<3x2xf32>) {keep}
  dnn.softmax input(%a : memref<4x2xf32>) outs(%y : memref<4x2xf32>) {axis = 0 : i64, log = false}
  dnn.dealloc %a : memref<4x2xf32>
  %b = dnn.malloc : memref<4x2xf32>
  %front = dnn.view %b[0] : memref<4x2xf32> -> memref<3x2xf32>
  dnn.copy input(%k : memref<3x2xf32>) outs(%front : memref<3x2xf32>)
  dnn.dealloc %k : memref<3x2xf32>
  dnn.softmax input(%b : memref<4x2xf32>) outs(%out : memref<4x2xf32>) {axis = 0 : i64, log = false}
  dnn.dealloc %b : memref<4x2xf32>
  func.return
}

// -----

// The rows that stay are read on their own, too.
// CHECK-LABEL: @read_alone
// CHECK-COUNT-3: dnn.malloc
func.func @read_alone(%x: memref<4x2xf32> {dnn.kind = "input"}, %y: memref<3x2xf32> {dnn.kind = "output"}, %out: memref<4x2xf32> {dnn.kind = "output"}) {
  %a = dnn.malloc : memref<4x2xf32>
  dnn.softmax input(%x : memref<4x2xf32>) outs(%a : memref<4x2xf32>) {axis = 0 : i64, log = false}
  %back = dnn.view %a[2] : memref<4x2xf32> -> memref<3x2xf32>
  %k = dnn.malloc : memref<3x2xf32>
  dnn.copy input(%back : memref<3x2xf32>) outs(%k : memref<3x2xf32>) {keep}
  dnn.dealloc %a : memref<4x2xf32>
  %b = dnn.malloc : memref<4x2xf32>
  %front = dnn.view %b[0] : memref<4x2xf32> -> memref<3x2xf32>
  dnn.copy input(%k : memref<3x2xf32>) outs(%front : memref<3x2xf32>)
  dnn.softmax input(%k : memref<3x2xf32>) outs(%y : memref<3x2xf32>) {axis = 0 : i64, log = false}
  dnn.dealloc %k : memref<3x2xf32>
  dnn.softmax input(%b : memref<4x2xf32>) outs(%out : memref<4x2xf32>) {axis = 0 : i64, log = false}
  dnn.dealloc %b : memref<4x2xf32>
  func.return
}

// -----

// While %c is live, the whole of %a would be more than the rows that stay.
// CHECK-LABEL: @raises_the_peak
// CHECK-COUNT-4: dnn.malloc
func.func @raises_the_peak(%x: memref<4x2xf32> {dnn.kind = "input"}, %z: memref<100xf32> {dnn.kind = "input"}, %y: memref<100xf32> {dnn.kind = "output"}, %out: memref<4x2xf32> {dnn.kind = "output"}) {
  %a = dnn.malloc : memref<4x2xf32>
  dnn.softmax input(%x : memref<4x2xf32>) outs(%a : memref<4x2xf32>) {axis = 0 : i64, log = false}
  %back = dnn.view %a[2] : memref<4x2xf32> -> memref<3x2xf32>
  %k = dnn.malloc : memref<3x2xf32>
  dnn.copy input(%back : memref<3x2xf32>) outs(%k : memref<3x2xf32>) {keep}
  dnn.dealloc %a : memref<4x2xf32>
  %c = dnn.malloc : memref<100xf32>
  dnn.softmax input(%z : memref<100xf32>) outs(%c : memref<100xf32>) {axis = 0 : i64, log = false}
  dnn.softmax input(%c : memref<100xf32>) outs(%y : memref<100xf32>) {axis = 0 : i64, log = false}
  dnn.dealloc %c : memref<100xf32>
  %b = dnn.malloc : memref<4x2xf32>
  %front = dnn.view %b[0] : memref<4x2xf32> -> memref<3x2xf32>
  dnn.copy input(%k : memref<3x2xf32>) outs(%front : memref<3x2xf32>)
  dnn.dealloc %k : memref<3x2xf32>
  dnn.softmax input(%b : memref<4x2xf32>) outs(%out : memref<4x2xf32>) {axis = 0 : i64, log = false}
  dnn.dealloc %b : memref<4x2xf32>
  func.return
}

// -----

// Most rows leave: the window would be kept for the few that stay.
// CHECK-LABEL: @few_stay
// CHECK-COUNT-3: dnn.malloc
func.func @few_stay(%x: memref<4x2xf32> {dnn.kind = "input"}, %out: memref<4x2xf32> {dnn.kind = "output"}) {
  %a = dnn.malloc : memref<4x2xf32>
  dnn.softmax input(%x : memref<4x2xf32>) outs(%a : memref<4x2xf32>) {axis = 0 : i64, log = false}
  %back = dnn.view %a[6] : memref<4x2xf32> -> memref<1x2xf32>
  %k = dnn.malloc : memref<1x2xf32>
  dnn.copy input(%back : memref<1x2xf32>) outs(%k : memref<1x2xf32>) {keep}
  dnn.dealloc %a : memref<4x2xf32>
  %b = dnn.malloc : memref<4x2xf32>
  %front = dnn.view %b[0] : memref<4x2xf32> -> memref<1x2xf32>
  dnn.copy input(%k : memref<1x2xf32>) outs(%front : memref<1x2xf32>)
  dnn.dealloc %k : memref<1x2xf32>
  dnn.softmax input(%b : memref<4x2xf32>) outs(%out : memref<4x2xf32>) {axis = 0 : i64, log = false}
  dnn.dealloc %b : memref<4x2xf32>
  func.return
}
