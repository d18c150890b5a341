// RUN: occamy-opt %s -p 'dnn-insert-memory-ops,dnn-coalesce-tensors' --split-input-file | filecheck %s
// RUN: occamy-opt %s -p 'dnn-insert-memory-ops,dnn-coalesce-tensors{views=false in_place=false}' --split-input-file | filecheck %s --check-prefix=OFF

// A chain of elementwise work needs no memory at all: it runs in the caller's output.
// CHECK-LABEL: @chain
// CHECK-NEXT:  dnn.softmax input(%x : memref<8xf32>) outs(%out : memref<8xf32>)
// CHECK-NEXT:  dnn.softmax input(%out : memref<8xf32>) outs(%out : memref<8xf32>)
// CHECK-NEXT:  func.return
// OFF-LABEL:   @chain
// OFF:         %a = dnn.malloc
// OFF:         %b = dnn.malloc
// OFF:         dnn.copy input(%b : memref<8xf32>) outs(%out : memref<8xf32>)
func.func @chain(%x: tensor<8xf32>) -> tensor<8xf32> {
  %a = dnn.softmax input(%x : tensor<8xf32>) {axis = 0 : i64, log = false} -> tensor<8xf32>
  %b = dnn.softmax input(%a : tensor<8xf32>) {axis = 0 : i64, log = false} -> tensor<8xf32>
  func.return %b : tensor<8xf32>
}

// -----

// Slices, reshapes and transposes are views; the parts of a concatenation are computed in their places.
// CHECK-LABEL: @views
// CHECK-NEXT:  [[S:%.*]] = dnn.view %x[8] : memref<4x8xf32> -> memref<2x8xf32>
// CHECK:       [[LOW:%.*]] = dnn.view %out[0] : memref<4x8xf32> -> memref<2x8xf32>
// CHECK-NEXT:  dnn.softmax input({{%.*}} : memref<2x8xf32>) outs([[LOW]] : memref<2x8xf32>)
// CHECK:       [[HIGH:%.*]] = dnn.view %out[16] : memref<4x8xf32> -> memref<2x8xf32>
// CHECK-NEXT:  dnn.softmax input({{%.*}} : memref<2x8xf32>) outs([[HIGH]] : memref<2x8xf32>)
// CHECK-NEXT:  func.return
func.func @views(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %s = dnn.slice input(%x : tensor<4x8xf32>)
    {offsets = array<i64: 1, 0>, sizes = array<i64: 2, 8>, strides = array<i64: 1, 1>} -> tensor<2x8xf32>
  %a = dnn.softmax input(%s : tensor<2x8xf32>) {axis = 1 : i64, log = false} -> tensor<2x8xf32>
  %b = dnn.softmax input(%s : tensor<2x8xf32>) {axis = 0 : i64, log = false} -> tensor<2x8xf32>
  %c = dnn.concat ins(%a, %b : tensor<2x8xf32>, tensor<2x8xf32>) {axis = 0 : i64} -> tensor<4x8xf32>
  func.return %c : tensor<4x8xf32>
}

// -----

// %a is read in two ways, as it is and transposed: the sum must not overwrite it.
// CHECK-LABEL: @read_in_another_order
// CHECK:       %a = dnn.malloc : memref<4x4xf32>
// CHECK-NEXT:  dnn.softmax input(%x : memref<4x4xf32>) outs(%a : memref<4x4xf32>)
// CHECK-NEXT:  [[T:%.*]] = dnn.view %a[0] : memref<4x4xf32> -> memref<4x4xf32, strided<[1, 4]>>
// CHECK-NEXT:  dnn.elementwise ins(%a, [[T]] : {{.*}}) outs(%out : memref<4x4xf32>)
func.func @read_in_another_order(%x: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %a = dnn.softmax input(%x : tensor<4x4xf32>) {axis = 1 : i64, log = false} -> tensor<4x4xf32>
  %t = dnn.transpose input(%a : tensor<4x4xf32>) {permutation = array<i64: 1, 0>} -> tensor<4x4xf32>
  %s = dnn.elementwise ins(%a, %t : tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32> body {
  ^bb0(%p: f32, %q: f32):
    %o = arith.addf %p, %q : f32
    dnn.yield %o : f32
  }
  func.return %s : tensor<4x4xf32>
}

// -----

// %a is used again after the second softmax, which therefore needs a buffer of its own.
// CHECK-LABEL: @used_again
// CHECK-NEXT:  dnn.softmax input(%x : memref<8xf32>) outs(%out : memref<8xf32>)
// CHECK-NEXT:  %b = dnn.malloc : memref<8xf32>
// CHECK-NEXT:  dnn.softmax input(%out : memref<8xf32>) outs(%b : memref<8xf32>)
// CHECK-NEXT:  dnn.elementwise ins(%out, %b : memref<8xf32>, memref<8xf32>) outs(%out : memref<8xf32>)
func.func @used_again(%x: tensor<8xf32>) -> tensor<8xf32> {
  %a = dnn.softmax input(%x : tensor<8xf32>) {axis = 0 : i64, log = false} -> tensor<8xf32>
  %b = dnn.softmax input(%a : tensor<8xf32>) {axis = 0 : i64, log = false} -> tensor<8xf32>
  %s = dnn.elementwise ins(%a, %b : tensor<8xf32>, tensor<8xf32>) -> tensor<8xf32> body {
  ^bb0(%p: f32, %q: f32):
    %o = arith.addf %p, %q : f32
    dnn.yield %o : f32
  }
  func.return %s : tensor<8xf32>
}

// -----

// An input that is an output is copied: the caller's input is never written, and never handed back.
// CHECK-LABEL: @input_is_output
// CHECK-NEXT:  dnn.copy input(%x : memref<8xf32>) outs(%out : memref<8xf32>)
// CHECK-NEXT:  func.return
func.func @input_is_output(%x: tensor<8xf32>) -> tensor<8xf32> {
  func.return %x : tensor<8xf32>
}

// -----

// Rows of %a that become a part of an output in another order are copied there at once, so that %a may die.
// CHECK-LABEL: @returned_in_another_order
// CHECK-NEXT:    [[A:%.*]] = dnn.malloc : memref<3x4xf32, strided<[1, 3]>>
// CHECK-NEXT:    dnn.softmax input(%x : memref<3x4xf32>) outs([[A]] :
// CHECK-NEXT:    [[R:%.*]] = dnn.view [[A]][0]
// CHECK-NEXT:    [[P:%.*]] = dnn.view %out[0]
// CHECK-NEXT:    dnn.copy input([[R]] : {{.*}}) outs([[P]] :
// CHECK-NEXT:    dnn.reduce input([[A]]
// CHECK-NEXT:    dnn.dealloc [[A]]
// CHECK-NEXT:    [[T:%.*]] = dnn.view %out[8]
// CHECK-NEXT:    dnn.softmax input(%x : memref<3x4xf32>) outs([[T]] :
func.func @returned_in_another_order(%x: tensor<3x4xf32>) -> (tensor<5x4xf32>, tensor<3xf32>) {
  %a = dnn.softmax input(%x : tensor<3x4xf32>) {axis = 1 : i64, log = false} -> tensor<3x4xf32, #dnn.order<1, 0>>
  %r = dnn.slice input(%a : tensor<3x4xf32, #dnn.order<1, 0>>) {offsets = array<i64: 0, 0>, sizes = array<i64: 2, 4>, strides = array<i64: 1, 1>} -> tensor<2x4xf32, #dnn.order<1, 0>>
  %c = dnn.copy input(%r : tensor<2x4xf32, #dnn.order<1, 0>>) -> tensor<2x4xf32>
  %s = dnn.reduce input(%a : tensor<3x4xf32, #dnn.order<1, 0>>) {kind = "sum", axes = array<i64: 1>} -> tensor<3xf32>
  %t = dnn.softmax input(%x : tensor<3x4xf32>) {axis = 0 : i64, log = false} -> tensor<3x4xf32>
  %y = dnn.concat ins(%c, %t : tensor<2x4xf32>, tensor<3x4xf32>) {axis = 0 : i64} -> tensor<5x4xf32>
  func.return %y, %s : tensor<5x4xf32>, tensor<3xf32>
}
