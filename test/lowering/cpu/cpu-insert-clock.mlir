// RUN: occamy-opt %s -p 'convert-dnn-to-cpu{target=x86-64-v3},cpu-insert-clock' | filecheck %s
// RUN: not occamy-opt %s -p cpu-insert-clock 2>&1 | filecheck %s --check-prefix=EARLY

// Two calls, three times of 16 bytes each.
// CHECK:       func.func @occamy_main(%pool: {{.*}}, %times: memref<48xi8>)
// CHECK:       memref.view %times[%{{.*}}][] : memref<48xi8> to memref<16xi8>
// CHECK-NEXT:  %{{.*}} = arith.constant 1 : i32
// CHECK-NEXT:  func.call @clock_gettime(%{{.*}}, %{{.*}}) : (i32, memref<16xi8>) -> i32
// CHECK-NEXT:  func.call @softmax
// CHECK:       func.call @clock_gettime
// CHECK-NEXT:  func.call @softmax
// CHECK-NEXT:  %{{.*}} = arith.constant 32 : index
// CHECK-NEXT:  memref.view %times
// CHECK-NEXT:  arith.constant
// CHECK-NEXT:  func.call @clock_gettime
// CHECK-NEXT:  func.return
// CHECK:       func.func private @clock_gettime(i32, memref<16xi8>) -> i32

// EARLY: cpu-insert-clock: the module has no function occamy_main
func.func @main(%x: memref<16xf32> {dnn.kind = "input"}, %out: memref<16xf32> {dnn.kind = "output"}) {
  %pool = dnn.mempool_init align 64 : memref<64xi8>
  %a = dnn.mem_offset %pool[0, 64] : memref<64xi8> -> memref<16xf32>
  dnn.softmax input(%x : memref<16xf32>) outs(%a : memref<16xf32>) {axis = 0 : i64, log = false}
  dnn.softmax input(%a : memref<16xf32>) outs(%out : memref<16xf32>) {axis = 0 : i64, log = false}
  dnn.dealloc %pool : memref<64xi8>
  func.return
}
