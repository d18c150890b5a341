// RUN: occamy-opt %s -p 'dnn-insert-memory-ops,dnn-coalesce-tensors' --print-liveness | filecheck %s

// Positions inside a loop follow its own. %condition is not live between where it is read and where it is written
// anew; what is carried, and what is captured, is live all the time.
// CHECK:      // liveness of @swap
// CHECK:      // q {{ +}}16 {{ +}}0 {{ +}}7  dnn.softmax
// CHECK-NEXT: // condition {{ +}}1 {{ +}}1 {{ +}}7  dnn.copy, live 1 to 3, 5 to 7
// CHECK-NEXT: // p {{ +}}16 {{ +}}4 {{ +}}7  dnn.copy
// CHECK-NEXT: // max-live 33 bytes over 8 positions
// CHECK-NEXT: // dnn.loop at 3: body 4 to 7
// CHECK:      // liveness of @branches
// CHECK:      // dnn.if at 1: then 2 to 2, otherwise empty

// Two carried values change places through one buffer; the result is carried in the caller's memory.
// CHECK-LABEL: func.func @swap
// CHECK:         dnn.loop condition(%condition : memref<i1>) outs(%out, %q : memref<4xf32>, memref<4xf32>) body {
// CHECK-NEXT:      %p = dnn.malloc : memref<4xf32>
// CHECK-NEXT:      dnn.copy input(%out : memref<4xf32>) outs(%p : memref<4xf32>)
// CHECK-NEXT:      dnn.copy input(%c : memref<i1>) outs(%condition : memref<i1>)
// CHECK-NEXT:      dnn.copy input(%q : memref<4xf32>) outs(%out : memref<4xf32>)
// CHECK-NEXT:      dnn.copy input(%p : memref<4xf32>) outs(%q : memref<4xf32>)
// CHECK-NEXT:      dnn.dealloc %p : memref<4xf32>
// CHECK-NEXT:      dnn.yield
func.func @swap(%c: tensor<i1> {onnx.name = "c"}, %x: tensor<4xf32> {onnx.name = "x"}) -> (tensor<4xf32> {onnx.name = "y"}) {
  %s = dnn.softmax input(%x : tensor<4xf32>) {axis = 0 : i64, log = false} -> tensor<4xf32>
  %p, %q = dnn.loop condition(%c : tensor<i1>) inits(%x, %s : tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>, tensor<4xf32> body {
  ^bb0(%a: tensor<4xf32>, %b: tensor<4xf32>):
    dnn.yield %c, %b, %a : tensor<i1>, tensor<4xf32>, tensor<4xf32>
  }
  func.return %p : tensor<4xf32>
}

// The body's last op writes the next value in place: the product has read the present one by then.
// CHECK-LABEL: func.func @in_place
// CHECK:         dnn.loop condition(%condition : memref<i1>) outs(%out : memref<8x8xf32>) body {
// CHECK-NEXT:      %b = dnn.malloc : memref<8x8xf32>
// CHECK-NEXT:      dnn.matmul a(%out : memref<8x8xf32>) b(%out : memref<8x8xf32>) outs(%b : memref<8x8xf32>)
// CHECK-NEXT:      dnn.softmax input(%b : memref<8x8xf32>) outs(%out : memref<8x8xf32>)
// CHECK-NEXT:      dnn.dealloc %b : memref<8x8xf32>
func.func @in_place(%c: tensor<i1> {onnx.name = "c"}, %x: tensor<8x8xf32> {onnx.name = "x"}) -> (tensor<8x8xf32> {onnx.name = "y"}) {
  %p = dnn.loop condition(%c : tensor<i1>) inits(%x : tensor<8x8xf32>) -> tensor<8x8xf32> body {
  ^bb0(%a: tensor<8x8xf32>):
    %b = dnn.matmul a(%a : tensor<8x8xf32>) b(%a : tensor<8x8xf32>) -> tensor<8x8xf32>
    %d = dnn.softmax input(%b : tensor<8x8xf32>) {axis = 1 : i64, log = false} -> tensor<8x8xf32>
    dnn.yield %c, %d : tensor<i1>, tensor<8x8xf32>
  }
  func.return %p : tensor<8x8xf32>
}

// The condition is computed from the present value after the next one: that one waits in a buffer of its own.
// CHECK-LABEL: func.func @read_later
// CHECK:           dnn.softmax input(%out : memref<4xf32>) outs(%b : memref<4xf32>)
// CHECK:           dnn.reduce input(%out : memref<4xf32>) outs(%n : memref<f32>)
// CHECK-NEXT:      dnn.elementwise ins(%n : memref<f32>) outs(%condition : memref<i1>)
// CHECK:           dnn.copy input(%b : memref<4xf32>) outs(%out : memref<4xf32>)
func.func @read_later(%c: tensor<i1> {onnx.name = "c"}, %x: tensor<4xf32> {onnx.name = "x"}) -> (tensor<4xf32> {onnx.name = "y"}) {
  %p = dnn.loop condition(%c : tensor<i1>) inits(%x : tensor<4xf32>) -> tensor<4xf32> body {
  ^bb0(%a: tensor<4xf32>):
    %b = dnn.softmax input(%a : tensor<4xf32>) {axis = 0 : i64, log = false} -> tensor<4xf32>
    %n = dnn.reduce input(%a : tensor<4xf32>) {kind = "max", axes = array<i64: 0>} -> tensor<f32>
    %d = dnn.elementwise ins(%n : tensor<f32>) -> tensor<i1> body {
    ^bb0(%u: f32):
      %z = arith.constant 0.5 : f32
      %g = arith.cmpf ogt, %u, %z : f32
      dnn.yield %g : i1
    }
    dnn.yield %d, %b : tensor<i1>, tensor<4xf32>
  }
  func.return %p : tensor<4xf32>
}

// One branch yields what the other works on in place.
// CHECK-LABEL: func.func @branches
// CHECK-NEXT:    dnn.softmax input(%x : memref<4xf32>) outs(%out : memref<4xf32>) {log = true, axis = 0 : i64}
// CHECK-NEXT:    dnn.if condition(%c : memref<i1>) outs(%out : memref<4xf32>) then {
// CHECK-NEXT:      dnn.softmax input(%out : memref<4xf32>) outs(%out : memref<4xf32>) {log = false, axis = 0 : i64}
// CHECK-NEXT:      dnn.yield
// CHECK-NEXT:    } otherwise {
// CHECK-NEXT:      dnn.yield
// CHECK-NEXT:    }
// CHECK-NEXT:    func.return
func.func @branches(%c: tensor<i1> {onnx.name = "c"}, %x: tensor<4xf32> {onnx.name = "x"}) -> (tensor<4xf32> {onnx.name = "y"}) {
  %s = dnn.softmax input(%x : tensor<4xf32>) {axis = 0 : i64, log = true} -> tensor<4xf32>
  %y = dnn.if condition(%c : tensor<i1>) -> tensor<4xf32> then {
    %a = dnn.softmax input(%s : tensor<4xf32>) {axis = 0 : i64, log = false} -> tensor<4xf32>
    dnn.yield %a : tensor<4xf32>
  } otherwise {
    dnn.yield %s : tensor<4xf32>
  }
  func.return %y : tensor<4xf32>
}
