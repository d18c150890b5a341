// RUN: occamy-opt %s -p 'convert-dnn-to-cpu{target=x86-64-v3}' | filecheck %s

// Two equal ops share one kernel; buffers are windows of the pool, of the weights and of the caller's arrays.
// CHECK-LABEL: builtin.module attributes {occamy.pool_bytes = 128 : i64, occamy.weights_bytes = 64 : i64,
// CHECK-SAME:    occamy.weights = [{value = dense<3.000000e+00> : tensor<16xf32>, offset = 0 : i64}]}
// CHECK:         func.func @[[SOFTMAX:softmax_16_[0-9a-f]+]](
// CHECK-NOT:     func.func @softmax
// CHECK:         func.func @[[ADD:elementwise_16_[0-9a-f]+]](
// CHECK:         func.func @occamy_main(%pool: memref<128xi8>, %weights: memref<64xi8>, %x: memref<64xi8>, %out: memref<64xi8>) {
// CHECK:           [[X:%.*]] = memref.view %x[{{%.*}}][] : memref<64xi8> to memref<16xf32>
// CHECK-NEXT:      [[A:%.*]] = memref.view %pool[{{%.*}}][] : memref<128xi8> to memref<16xf32>
// CHECK-NEXT:      func.call @[[SOFTMAX]]([[X]], [[A]])
// CHECK-NEXT:      [[B:%.*]] = memref.view %pool[{{%.*}}][] : memref<128xi8> to memref<16xf32>
// CHECK-NEXT:      func.call @[[SOFTMAX]]([[A]], [[B]])
// CHECK-NEXT:      [[W:%.*]] = memref.view %weights[{{%.*}}][] : memref<64xi8> to memref<16xf32>
// CHECK-NEXT:      [[OUT:%.*]] = memref.view %out[{{%.*}}][] : memref<64xi8> to memref<16xf32>
// CHECK-NEXT:      func.call @[[ADD]]([[B]], [[W]], [[OUT]])
// CHECK-NEXT:      func.return
func.func @main(%x: memref<16xf32> {dnn.kind = "input"}, %out: memref<16xf32> {dnn.kind = "output"}) {
  %pool = dnn.mempool_init align 64 : memref<128xi8>
  %w = dnn.constant dense<3.0> : tensor<16xf32> -> memref<16xf32>
  %a = dnn.mem_offset %pool[0, 64] : memref<128xi8> -> memref<16xf32>
  dnn.softmax input(%x : memref<16xf32>) outs(%a : memref<16xf32>) {axis = 0 : i64, log = false}
  %b = dnn.mem_offset %pool[64, 64] : memref<128xi8> -> memref<16xf32>
  dnn.softmax input(%a : memref<16xf32>) outs(%b : memref<16xf32>) {axis = 0 : i64, log = false}
  dnn.elementwise ins(%b, %w : memref<16xf32>, memref<16xf32>) outs(%out : memref<16xf32>) body {
  ^bb0(%p: f32, %q: f32):
    %s = arith.addf %p, %q : f32
    dnn.yield %s : f32
  }
  dnn.dealloc %pool : memref<128xi8>
  func.return
}
