// RUN: occamy-opt %s -p 'convert-dnn-to-cpu{target=x86-64-v3},cpu-check-allocations' | filecheck %s
// RUN: not occamy-opt %s -p cpu-check-allocations 2>&1 | filecheck %s --check-prefix=EARLY

// A byte tells whether all allocations so far succeeded. Where it does, kernels run and conditions are read; buffers
// are freed in any case.
// CHECK-LABEL: func.func @occamy_main
// CHECK-SAME:    -> i1
// CHECK-NEXT:    [[GOOD:%.*]] = memref.alloca() : memref<i8>
// CHECK-NEXT:    [[ONE:%.*]] = arith.constant 1 : i8
// CHECK-NEXT:    memref.store [[ONE]], [[GOOD]][] : memref<i8>
// CHECK:         [[A:%.*]] = memref.alloc() {alignment = 64 : i64} : memref<64xi8>
// CHECK-NEXT:    [[ADDRESS:%.*]] = "memref.extract_aligned_pointer_as_index"([[A]])
// CHECK-NEXT:    [[NULL:%.*]] = arith.constant 0 : index
// CHECK-NEXT:    [[HAD:%.*]] = arith.cmpi ne, [[ADDRESS]], [[NULL]] : index
// CHECK-NEXT:    [[BYTE:%.*]] = arith.extui [[HAD]] : i1 to i8
// CHECK-NEXT:    [[BEFORE:%.*]] = memref.load [[GOOD]][] : memref<i8>
// CHECK-NEXT:    [[STILL:%.*]] = arith.andi [[BEFORE]], [[BYTE]] : i8
// CHECK-NEXT:    memref.store [[STILL]], [[GOOD]][] : memref<i8>
// CHECK:         memref.load [[GOOD]]
// CHECK:         scf.if %{{.*}} {
// CHECK-NEXT:      func.call @softmax
// CHECK-NEXT:    }
// CHECK:         scf.while () : () -> () {
// CHECK-NEXT:      memref.load [[GOOD]]
// CHECK-NEXT:      arith.trunci
// CHECK-NEXT:      [[TRUE:%.*]] = scf.if %{{.*}} -> (i1) {
// CHECK-NEXT:        memref.load %{{.*}}[] : memref<i8>
// CHECK-NEXT:        arith.trunci
// CHECK-NEXT:        scf.yield
// CHECK-NEXT:      } else {
// CHECK-NEXT:        arith.constant false
// CHECK-NEXT:        scf.yield
// CHECK-NEXT:      }
// CHECK-NEXT:      scf.condition([[TRUE]])
// CHECK-NEXT:    } do {
// CHECK-NEXT:      memref.load [[GOOD]]
// CHECK-NEXT:      arith.trunci
// CHECK-NEXT:      scf.if %{{.*}} {
// CHECK-NEXT:        func.call @softmax
// CHECK:         memref.dealloc [[A]]
// CHECK-NEXT:    [[LAST:%.*]] = memref.load [[GOOD]][] : memref<i8>
// CHECK-NEXT:    [[RESULT:%.*]] = arith.trunci [[LAST]] : i8 to i1
// CHECK-NEXT:    func.return [[RESULT]] : i1

// EARLY: cpu-check-allocations: the module has no function occamy_main
func.func @main(%c: memref<i1> {dnn.kind = "input"}, %x: memref<16xf32> {dnn.kind = "input"}, %out: memref<16xf32> {dnn.kind = "output"}) {
  %a = dnn.malloc : memref<16xf32>
  dnn.softmax input(%x : memref<16xf32>) outs(%a : memref<16xf32>) {axis = 0 : i64, log = false}
  dnn.loop condition(%c : memref<i1>) outs(%out : memref<16xf32>) body {
    dnn.softmax input(%a : memref<16xf32>) outs(%out : memref<16xf32>) {axis = 0 : i64, log = false}
    dnn.yield
  }
  dnn.dealloc %a : memref<16xf32>
  func.return
}
