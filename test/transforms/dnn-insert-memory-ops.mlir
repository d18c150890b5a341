// RUN: occamy-opt %s -p 'dnn-insert-memory-ops' | filecheck %s
// RUN: occamy-opt %s -p 'dnn-insert-memory-ops{mode=eager}' | filecheck %s --check-prefix=EAGER
// RUN: occamy-opt %s -p 'dnn-insert-memory-ops{mode=lazy}' | filecheck %s --check-prefix=LAZY

// A buffer lives from the op that writes it to the last op that uses it or a view of it.
// CHECK-LABEL: func.func @main(%x: memref<2x4xf32> {onnx.name = "x", dnn.kind = "input"}, %out: memref<4x2xf32> {onnx.name = "y", dnn.kind = "output"}) {
// CHECK-NEXT:    %a = dnn.malloc : memref<2x4xf32>
// CHECK-NEXT:    dnn.softmax input(%x : memref<2x4xf32>) outs(%a : memref<2x4xf32>)
// CHECK-NEXT:    %b = dnn.malloc : memref<2x4xf32>
// CHECK-NEXT:    dnn.softmax input(%a : memref<2x4xf32>) outs(%b : memref<2x4xf32>)
// CHECK-NEXT:    dnn.dealloc %a : memref<2x4xf32>
// CHECK-NEXT:    %t = dnn.malloc : memref<4x2xf32>
// CHECK-NEXT:    [[V:%.*]] = dnn.view %b[0] : memref<2x4xf32> -> memref<4x2xf32, strided<[1, 4]>>
// CHECK-NEXT:    dnn.copy input([[V]] : memref<4x2xf32, strided<[1, 4]>>) outs(%t : memref<4x2xf32>)
// CHECK-NEXT:    dnn.dealloc %b : memref<2x4xf32>
// CHECK-NEXT:    dnn.copy input(%t : memref<4x2xf32>) outs(%out : memref<4x2xf32>)
// CHECK-NEXT:    dnn.dealloc %t : memref<4x2xf32>
// CHECK-NEXT:    func.return

// All buffers are allocated first and freed last.
// EAGER-LABEL: func.func @main
// EAGER-NEXT:    %a = dnn.malloc
// EAGER-NEXT:    %b = dnn.malloc
// EAGER-NEXT:    %t = dnn.malloc
// EAGER-NEXT:    dnn.softmax
// EAGER:         dnn.copy input(%t : memref<4x2xf32>) outs(%out : memref<4x2xf32>)
// EAGER-NEXT:    dnn.dealloc %a
// EAGER-NEXT:    dnn.dealloc %b
// EAGER-NEXT:    dnn.dealloc %t
// EAGER-NEXT:    func.return

// Tensors stay in host memory, and come to the device around each op.
// LAZY-LABEL: func.func @main
// LAZY-NEXT:    %a = dnn.malloc : memref<2x4xf32, "host">
// LAZY-NEXT:    %b = dnn.malloc : memref<2x4xf32, "host">
// LAZY-NEXT:    %t = dnn.malloc : memref<4x2xf32, "host">
// LAZY-NEXT:    [[A1:%.*]] = dnn.malloc : memref<2x4xf32>
// LAZY-NEXT:    dnn.softmax input(%x : memref<2x4xf32>) outs([[A1]] : memref<2x4xf32>)
// LAZY-NEXT:    dnn.memcpy %a, [[A1]] "d2h"
// LAZY-NEXT:    dnn.dealloc [[A1]] : memref<2x4xf32>
// LAZY-NEXT:    [[A2:%.*]] = dnn.malloc : memref<2x4xf32>
// LAZY-NEXT:    dnn.memcpy [[A2]], %a "h2d"
// LAZY-NEXT:    [[B1:%.*]] = dnn.malloc : memref<2x4xf32>
// LAZY-NEXT:    dnn.softmax input([[A2]] : memref<2x4xf32>) outs([[B1]] : memref<2x4xf32>)
// LAZY-NEXT:    dnn.dealloc [[A2]] : memref<2x4xf32>
// LAZY-NEXT:    dnn.memcpy %b, [[B1]] "d2h"
func.func @main(%x: tensor<2x4xf32> {onnx.name = "x"}) -> (tensor<4x2xf32> {onnx.name = "y"}) {
  %a = dnn.softmax input(%x : tensor<2x4xf32>) {axis = 1 : i64, log = false} -> tensor<2x4xf32>
  %b = dnn.softmax input(%a : tensor<2x4xf32>) {axis = 0 : i64, log = false} -> tensor<2x4xf32>
  %t = dnn.transpose input(%b : tensor<2x4xf32>) {permutation = array<i64: 1, 0>} -> tensor<4x2xf32>
  func.return %t : tensor<4x2xf32>
}
