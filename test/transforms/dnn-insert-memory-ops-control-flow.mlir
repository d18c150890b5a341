// RUN: occamy-opt %s -p 'dnn-insert-memory-ops' | filecheck %s
// RUN: occamy-opt %s -p 'dnn-insert-memory-ops{mode=eager}' | filecheck %s --check-prefix=EAGER
// RUN: occamy-opt %s -p 'dnn-insert-memory-ops{mode=lazy}' | filecheck %s --check-prefix=LAZY

// Each branch frees what neither needs any more: %s and %t die in different ones.
// CHECK-LABEL: func.func @main
// CHECK:         %y = dnn.malloc : memref<4xf32>
// CHECK-NEXT:    dnn.if condition(%c : memref<i1>) outs(%y : memref<4xf32>) then {
// CHECK-NEXT:      dnn.dealloc %s : memref<4xf32>
// CHECK-NEXT:      %a = dnn.malloc : memref<4xf32>
// CHECK-NEXT:      dnn.softmax input(%t : memref<4xf32>) outs(%a : memref<4xf32>)
// CHECK-NEXT:      dnn.dealloc %t : memref<4xf32>
// CHECK-NEXT:      dnn.copy input(%a : memref<4xf32>) outs(%y : memref<4xf32>)
// CHECK-NEXT:      dnn.dealloc %a : memref<4xf32>
// CHECK-NEXT:      dnn.yield
// CHECK-NEXT:    } otherwise {
// CHECK-NEXT:      dnn.dealloc %t : memref<4xf32>
// CHECK-NEXT:      dnn.copy input(%s : memref<4xf32>) outs(%y : memref<4xf32>)
// CHECK-NEXT:      dnn.dealloc %s : memref<4xf32>
// CHECK-NEXT:      dnn.yield
// CHECK-NEXT:    }
// CHECK-NEXT:    dnn.copy input(%y : memref<4xf32>) outs(%out : memref<4xf32>)
// CHECK-NEXT:    dnn.dealloc %y : memref<4xf32>
// CHECK-NEXT:    func.return

// Nothing is allocated inside.
// EAGER-LABEL: func.func @main
// EAGER-NEXT:    %s = dnn.malloc
// EAGER-NEXT:    %t = dnn.malloc
// EAGER-NEXT:    %y = dnn.malloc
// EAGER-NEXT:    %a = dnn.malloc
// EAGER:         dnn.if condition(%c : memref<i1>) outs(%y : memref<4xf32>) then {
// EAGER-NEXT:      dnn.softmax input(%t : memref<4xf32>) outs(%a : memref<4xf32>)
// EAGER-NEXT:      dnn.copy
// EAGER-NEXT:      dnn.yield

// What a branch yields is in host memory when it ends.
// LAZY-LABEL: func.func @main
// LAZY:         dnn.if condition(%c : memref<i1>) outs(%y : memref<4xf32, "host">) then {
// LAZY-NEXT:      [[T:%.*]] = dnn.malloc : memref<4xf32>
// LAZY-NEXT:      dnn.memcpy [[T]], %t "h2d"
// LAZY:         } otherwise {
// LAZY-NEXT:      [[S:%.*]] = dnn.malloc : memref<4xf32>
// LAZY-NEXT:      dnn.memcpy [[S]], %s "h2d"
// LAZY-NEXT:      [[Y:%.*]] = dnn.malloc : memref<4xf32>
// LAZY-NEXT:      dnn.copy input([[S]] : memref<4xf32>) outs([[Y]] : memref<4xf32>)
// LAZY-NEXT:      dnn.dealloc [[S]] : memref<4xf32>
// LAZY-NEXT:      dnn.memcpy %y, [[Y]] "d2h"
// LAZY-NEXT:      dnn.dealloc [[Y]] : memref<4xf32>
// LAZY-NEXT:      dnn.yield
func.func @main(%c: tensor<i1> {onnx.name = "c"}, %x: tensor<4xf32> {onnx.name = "x"}) -> (tensor<4xf32> {onnx.name = "y"}) {
  %s = dnn.softmax input(%x : tensor<4xf32>) {axis = 0 : i64, log = false} -> tensor<4xf32>
  %t = dnn.softmax input(%s : tensor<4xf32>) {axis = 0 : i64, log = true} -> tensor<4xf32>
  %y = dnn.if condition(%c : tensor<i1>) -> tensor<4xf32> then {
    %a = dnn.softmax input(%t : tensor<4xf32>) {axis = 0 : i64, log = false} -> tensor<4xf32>
    dnn.yield %a : tensor<4xf32>
  } otherwise {
    dnn.yield %s : tensor<4xf32>
  }
  func.return %y : tensor<4xf32>
}

// The first values are copied to buffers that the body writes anew. Two values change places, by way of copies; the
// truth value stays as it is, but is the next condition, too.
// CHECK-LABEL: func.func @loop
// CHECK:         dnn.copy input(%c : memref<i1>) outs(%condition : memref<i1>)
// CHECK-NEXT:    dnn.copy input(%x : memref<4xf32>) outs(%p : memref<4xf32>)
// CHECK-NEXT:    dnn.copy input(%s : memref<4xf32>) outs(%q : memref<4xf32>)
// CHECK-NEXT:    dnn.dealloc %s : memref<4xf32>
// CHECK-NEXT:    dnn.copy input(%c : memref<i1>) outs(%r : memref<i1>)
// CHECK-NEXT:    dnn.loop condition(%condition : memref<i1>) outs(%p, %q, %r : memref<4xf32>, memref<4xf32>, memref<i1>) body {
// CHECK-NEXT:      [[Q:%.*]] = dnn.malloc : memref<4xf32>
// CHECK-NEXT:      dnn.copy input(%q : memref<4xf32>) outs([[Q]] : memref<4xf32>)
// CHECK-NEXT:      [[P:%.*]] = dnn.malloc : memref<4xf32>
// CHECK-NEXT:      dnn.copy input(%p : memref<4xf32>) outs([[P]] : memref<4xf32>)
// CHECK-NEXT:      dnn.copy input(%r : memref<i1>) outs(%condition : memref<i1>)
// CHECK-NEXT:      dnn.copy input([[Q]] : memref<4xf32>) outs(%p : memref<4xf32>)
// CHECK-NEXT:      dnn.dealloc [[Q]] : memref<4xf32>
// CHECK-NEXT:      dnn.copy input([[P]] : memref<4xf32>) outs(%q : memref<4xf32>)
// CHECK-NEXT:      dnn.dealloc [[P]] : memref<4xf32>
// CHECK-NEXT:      dnn.yield
// CHECK-NEXT:    }
// CHECK-NEXT:    dnn.dealloc %r : memref<i1>
func.func @loop(%c: tensor<i1> {onnx.name = "c"}, %x: tensor<4xf32> {onnx.name = "x"}) -> (tensor<4xf32> {onnx.name = "y"}) {
  %s = dnn.softmax input(%x : tensor<4xf32>) {axis = 0 : i64, log = false} -> tensor<4xf32>
  %p, %q, %r = dnn.loop condition(%c : tensor<i1>) inits(%x, %s, %c : tensor<4xf32>, tensor<4xf32>, tensor<i1>) -> tensor<4xf32>, tensor<4xf32>, tensor<i1> body {
  ^bb0(%a: tensor<4xf32>, %b: tensor<4xf32>, %d: tensor<i1>):
    dnn.yield %d, %b, %a, %d : tensor<i1>, tensor<4xf32>, tensor<4xf32>, tensor<i1>
  }
  func.return %p : tensor<4xf32>
}
