// RUN: occamy-opt %s -p 'dnn-split-weights{max_bytes=32768}' | filecheck %s

// 64 rows of f32: 128 columns are 32 KiB. The bias is cut like the columns, the broadcast factor is not.
// CHECK-LABEL: func.func @main
// CHECK:         %[[W0:.*]] = dnn.constant #weights.ref<"columns[0:128](w)"> -> memref<64x128xf32>
// CHECK-NEXT:    %[[B0:.*]] = dnn.view %bias[0] : memref<200xf32> -> memref<128xf32>
// CHECK-NEXT:    %[[Y0:.*]] = dnn.view %y[0] : memref<2x200xf32> -> memref<2x128xf32, strided<[200, 1]>>
// CHECK-NEXT:    dnn.matmul a(%x : memref<2x64xf32>) b(%[[W0]] : memref<64x128xf32>) bias(%[[B0]] : memref<128xf32>) extras(%factor : memref<1xf32>) outs(%[[Y0]] : {{.*}}) epilogue {
// CHECK:         %[[W1:.*]] = dnn.constant #weights.ref<"columns[128:200](w)"> -> memref<64x72xf32>
// CHECK-NEXT:    %[[B1:.*]] = dnn.view %bias[128] : memref<200xf32> -> memref<72xf32>
// CHECK-NEXT:    %[[Y1:.*]] = dnn.view %y[128] : memref<2x200xf32> -> memref<2x72xf32, strided<[200, 1]>>
// CHECK-NEXT:    dnn.matmul a(%x : memref<2x64xf32>) b(%[[W1]] : {{.*}} bias(%[[B1]] : {{.*}} outs(%[[Y1]] :
// CHECK-NOT:     #weights.ref<"w">
// CHECK:         #weights.ref<"small"> -> memref<64x128xf32>
// CHECK-NEXT:    dnn.matmul {{.*}} outs(%z : memref<2x128xf32>)
func.func @main(%x: memref<2x64xf32>, %bias: memref<200xf32>, %factor: memref<1xf32>, %y: memref<2x200xf32>, %z: memref<2x128xf32>) {
  %w = dnn.constant #weights.ref<"w"> -> memref<64x200xf32>
  dnn.matmul a(%x : memref<2x64xf32>) b(%w : memref<64x200xf32>) bias(%bias : memref<200xf32>) extras(%factor : memref<1xf32>) outs(%y : memref<2x200xf32>) epilogue {
  ^bb0(%acc: f32, %f: f32):
    %p = arith.mulf %acc, %f : f32
    dnn.yield %p : f32
  }
  %s = dnn.constant #weights.ref<"small"> -> memref<64x128xf32>
  dnn.matmul a(%x : memref<2x64xf32>) b(%s : memref<64x128xf32>) outs(%z : memref<2x128xf32>)
  func.return
}
