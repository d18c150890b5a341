// RUN: occamy-opt %s -p 'dnn-convert-to-pool,verify-dnn-pool' | filecheck %s
// RUN: occamy-opt %s -p 'dnn-convert-to-pool{alignment=4 planner=first-fit}' | filecheck %s --check-prefix=A4
// RUN: occamy-opt %s -p 'dnn-convert-to-pool{reuse=false}' | filecheck %s --check-prefix=ALONE

// %a and %b are live together and lie side by side; %c is born after %a's death and takes its place.
// CHECK-LABEL: func.func @main
// CHECK-SAME:    dnn.plan = {planner = "search", pool_bytes = 128 : i64, lower_bound = {{[0-9]+}} : i64}
// CHECK-NEXT:    %pool = dnn.mempool_init align 64 : memref<128xi8>
// CHECK:         %a = dnn.mem_offset %pool[[[A:.*]], 64] : memref<128xi8> -> memref<16xf32>
// CHECK:         %b = dnn.mem_offset %pool[{{.*}}, 64] : memref<128xi8> -> memref<16xf32>
// CHECK:         %c = dnn.mem_offset %pool[[[A]], 64] : memref<128xi8> -> memref<16xf32>
// CHECK:         dnn.dealloc %pool : memref<128xi8>
// CHECK-NEXT:    func.return
// CHECK-NOT:     dnn.malloc
// A4:            dnn.mempool_init align 4 : memref<128xi8>
// ALONE:         dnn.mempool_init align 64 : memref<192xi8>
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
