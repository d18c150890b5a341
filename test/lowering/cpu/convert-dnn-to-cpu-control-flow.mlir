// RUN: occamy-opt %s -p 'convert-dnn-to-cpu{target=x86-64-v3}' | filecheck %s

// Conditions are bytes in memory, read anew before each iteration. Windows stand in front of all control flow, so that
// every region can use them.
// CHECK-LABEL:   func.func @occamy_main
// CHECK:           [[C:%.*]] = memref.view %c[{{%.*}}][] : memref<1xi8> to memref<i8>
// CHECK-NEXT:      [[BYTE:%.*]] = memref.load [[C]][] : memref<i8>
// CHECK-NEXT:      [[TRUE:%.*]] = arith.trunci [[BYTE]] : i8 to i1
// CHECK-NEXT:      [[X:%.*]] = memref.view %x
// CHECK-NEXT:      [[OUT:%.*]] = memref.view %out
// CHECK-NEXT:      [[A:%.*]] = memref.view %pool
// CHECK-NEXT:      scf.if [[TRUE]] {
// CHECK-NEXT:        func.call @[[SOFTMAX:softmax_16_[0-9a-f]+]]([[X]], [[OUT]])
// CHECK-NEXT:      } else {
// CHECK-NEXT:        scf.while () : () -> () {
// CHECK-NEXT:          [[BYTE2:%.*]] = memref.load [[C]][] : memref<i8>
// CHECK-NEXT:          [[TRUE2:%.*]] = arith.trunci [[BYTE2]] : i8 to i1
// CHECK-NEXT:          scf.condition([[TRUE2]])
// CHECK-NEXT:        } do {
// CHECK-NEXT:          func.call @[[SOFTMAX]]([[X]], [[A]])
// CHECK-NEXT:          func.call @[[SOFTMAX]]([[A]], [[OUT]])
// CHECK-NEXT:          scf.yield
// CHECK-NEXT:        }
// CHECK-NEXT:      }
// CHECK-NEXT:      func.return
func.func @main(%c: memref<i1> {dnn.kind = "input"}, %x: memref<16xf32> {dnn.kind = "input"}, %out: memref<16xf32> {dnn.kind = "output"}) {
  %pool = dnn.mempool_init align 64 : memref<64xi8>
  dnn.if condition(%c : memref<i1>) outs(%out : memref<16xf32>) then {
    dnn.softmax input(%x : memref<16xf32>) outs(%out : memref<16xf32>) {axis = 0 : i64, log = false}
    dnn.yield
  } otherwise {
    dnn.loop condition(%c : memref<i1>) outs(%out : memref<16xf32>) body {
      %a = dnn.mem_offset %pool[0, 64] : memref<64xi8> -> memref<16xf32>
      dnn.softmax input(%x : memref<16xf32>) outs(%a : memref<16xf32>) {axis = 0 : i64, log = false}
      dnn.softmax input(%a : memref<16xf32>) outs(%out : memref<16xf32>) {axis = 0 : i64, log = false}
      dnn.yield
    }
    dnn.yield
  }
  dnn.dealloc %pool : memref<64xi8>
  func.return
}
