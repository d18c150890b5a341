// RUN: occamy-opt %s -p convert-onnx-to-dnn --print-debuginfo --split-input-file | filecheck %s

// Batch normalisation becomes x * scale + shift, with both computed here; the scalar bound of Clip is inlined;
// SoftmaxV11 normalises all dimensions from 1 on. An output that is an input or a constant is copied.

func.func @main(%x: tensor<1x2x4x4xf32> {onnx.name = "x"})
    -> (tensor<*xf32> {onnx.name = "y"}, tensor<1x2x4x4xf32> {onnx.name = "x2"}, tensor<f32> {onnx.name = "k"}) {
  %none = onnx.NoValue() : () -> none
  %gamma = onnx.Constant() {value = dense<[1.0, 2.0]> : tensor<2xf32>} : () -> tensor<2xf32>
  %beta = onnx.Constant() {value = dense<[0.0, 1.0]> : tensor<2xf32>} : () -> tensor<2xf32>
  %mean = onnx.Constant() {value = dense<[0.0, 3.0]> : tensor<2xf32>} : () -> tensor<2xf32>
  %var = onnx.Constant() {value = dense<[4.0, 1.0]> : tensor<2xf32>} : () -> tensor<2xf32>
  %b = onnx.BatchNormalization(%x, %gamma, %beta, %mean, %var) {epsilon = 0.0 : f32} : (tensor<1x2x4x4xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) -> tensor<*xf32> loc("bn")
  %hi = onnx.Constant() {value = dense<6.0> : tensor<f32>} : () -> tensor<f32>
  %c = onnx.Clip(%b, %none, %hi) : (tensor<*xf32>, none, tensor<f32>) -> tensor<*xf32> loc("clip")
  %p = onnx.MaxPool(%c) {kernel_shape = array<i64: 3, 3>, strides = array<i64: 2, 2>, ceil_mode = 1 : i64} : (tensor<*xf32>) -> tensor<*xf32> loc("pool")
  %y = onnx.SoftmaxV11(%p) : (tensor<*xf32>) -> tensor<*xf32> loc("softmax")
  func.return %y, %x, %hi : tensor<*xf32>, tensor<1x2x4x4xf32>, tensor<f32>
}

// CHECK:      func.func @main(%x: tensor<1x2x4x4xf32> {onnx.name = "x"} {{.*}}) -> (tensor<1x2x2x2xf32> {onnx.name = "y"}, tensor<1x2x4x4xf32> {onnx.name = "x2"}, tensor<f32> {onnx.name = "k"}) {
// CHECK-NEXT:   %[[SCALE:.*]] = dnn.constant dense<{{\[}}{{\[}}[5.000000e-01]], {{\[}}[2.000000e+00]]]> : tensor<2x1x1xf32>
// CHECK-NEXT:   %[[SHIFT:.*]] = dnn.constant dense<{{\[}}{{\[}}[0.000000e+00]], {{\[}}[-5.000000e+00]]]> : tensor<2x1x1xf32>
// CHECK-NEXT:   %b = dnn.elementwise ins(%x, %[[SCALE]], %[[SHIFT]] : {{.*}}) -> tensor<1x2x4x4xf32> body {
// CHECK-NEXT:   ^bb0(%[[X:.*]]: f32 {{.*}}, %[[S:.*]]: f32 {{.*}}, %[[T:.*]]: f32 {{.*}}):
// CHECK-NEXT:     %[[M:.*]] = arith.mulf %[[X]], %[[S]] : f32
// CHECK-NEXT:     %[[A:.*]] = arith.addf %[[M]], %[[T]] : f32
// CHECK-NEXT:     dnn.yield %[[A]] : f32
// CHECK-NEXT:   } loc("bn")
// CHECK:        %c = dnn.elementwise ins(%b : tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32> body {
// CHECK:          arith.constant 6.000000e+00 : f32
// CHECK-NEXT:     arith.minimumf
// CHECK:        } loc("clip")
// CHECK-NEXT:   %p = dnn.pool input(%c : tensor<1x2x4x4xf32>) {{.*}} -> tensor<1x2x2x2xf32> loc("pool")
// CHECK-NEXT:   %[[F:.*]] = dnn.reshape input(%p : tensor<1x2x2x2xf32>) -> tensor<1x8xf32> loc("softmax")
// CHECK-NEXT:   %[[SM:.*]] = dnn.softmax input(%[[F]] : tensor<1x8xf32>) {axis = 1 : i64, log = false} -> tensor<1x8xf32> loc("softmax")
// CHECK-NEXT:   %y = dnn.reshape input(%[[SM]] : tensor<1x8xf32>) -> tensor<1x2x2x2xf32> loc("softmax")
// CHECK-NEXT:   %[[X2:.*]] = dnn.copy input(%x : tensor<1x2x4x4xf32>) -> tensor<1x2x4x4xf32>
// CHECK-NEXT:   %[[K:.*]] = dnn.copy input(%hi : tensor<f32>) -> tensor<f32>
// CHECK-NEXT:   func.return %y, %[[X2]], %[[K]] :

// -----

// Negative pads cut before the others add; elements keep their sign. An operand used twice is read once.

func.func @main(%x: tensor<3x4xui8> {onnx.name = "x"}) -> (tensor<*xui8> {onnx.name = "y"}) {
  %pads = onnx.Constant() {value = dense<[-1, 0, 1, 0]> : tensor<4xi64>} : () -> tensor<4xi64>
  %p = onnx.Pad(%x, %pads) : (tensor<3x4xui8>, tensor<4xi64>) -> tensor<*xui8>
  %y = onnx.Max(%p, %p) : (tensor<*xui8>, tensor<*xui8>) -> tensor<*xui8>
  func.return %y : tensor<*xui8>
}

// CHECK:      %[[CUT:.*]] = dnn.slice input(%x : tensor<3x4xui8>) {offsets = array<i64: 1, 0>, sizes = array<i64: 2, 4>, strides = array<i64: 1, 1>} -> tensor<2x4xui8>
// CHECK-NEXT: %p = dnn.pad input(%[[CUT]] : tensor<2x4xui8>) {low = array<i64: 0, 0>, high = array<i64: 1, 0>, mode = "constant", value = 0 : i8} -> tensor<3x4xui8>
// CHECK-NEXT: %y = dnn.elementwise ins(%p : tensor<3x4xui8>) -> tensor<3x4xui8> body {
// CHECK-NEXT: ^bb0(%[[E:.*]]: i8 {{.*}}):
// CHECK-NEXT:   arith.maxui %[[E]], %[[E]] : i8

// -----

// A trip count becomes a carried counter and a comparison; ops of the body keep the names of their nodes.

func.func @main(%n: tensor<i64> {onnx.name = "n"}, %c: tensor<i1> {onnx.name = "c"}, %x: tensor<4xf32> {onnx.name = "x"}) -> (tensor<*xf32> {onnx.name = "y"}) {
  %y = onnx.Loop(%n, %c, %x) ({
  ^bb0(%i: tensor<*xi64>, %g: tensor<*xi1>, %a: tensor<*xf32>):
    %b = onnx.Softmax(%a) {axis = 0 : i64} : (tensor<*xf32>) -> tensor<*xf32> loc("inner")
    onnx.Yield(%g, %b) : (tensor<*xi1>, tensor<*xf32>) -> ()
  }) : (tensor<i64>, tensor<i1>, tensor<4xf32>) -> tensor<*xf32> loc("loop")
  func.return %y : tensor<*xf32>
}

// CHECK:      %[[ZERO:.*]] = dnn.constant dense<0> : tensor<i64> -> tensor<i64> loc("loop")
// CHECK-NEXT: %[[GO:.*]] = dnn.elementwise ins(%c, %n : tensor<i1>, tensor<i64>) -> tensor<i1> body {
// CHECK:        arith.cmpi slt
// CHECK:        arith.andi
// CHECK:      %y, %{{.*}} = dnn.loop condition(%[[GO]] : tensor<i1>) inits(%x, %[[ZERO]] : tensor<4xf32>, tensor<i64>) -> tensor<4xf32>, tensor<i64> body {
// CHECK-NEXT: ^bb0(%[[A:.*]]: tensor<4xf32> {{.*}}, %[[I:.*]]: tensor<i64> {{.*}}):
// CHECK-NEXT:   %b = dnn.softmax input(%[[A]] : tensor<4xf32>) {axis = 0 : i64, log = false} -> tensor<4xf32> loc("inner")
// CHECK-NEXT:   %[[J:.*]] = dnn.elementwise ins(%[[I]] : tensor<i64>) -> tensor<i64> body {
// CHECK:          arith.addi
// CHECK:        %[[NEXT:.*]] = dnn.elementwise ins(%[[J]], %n : tensor<i64>, tensor<i64>) -> tensor<i1> body {
// CHECK:          arith.cmpi slt
// CHECK-NEXT:     dnn.yield
// CHECK:        dnn.yield %[[NEXT]], %b, %[[J]] : tensor<i1>, tensor<4xf32>, tensor<i64>
// CHECK:      } loc("loop")

// -----

// A loop that runs twice in any case is unrolled, and so has scan outputs. Results that none uses are left out.

func.func @main(%c: tensor<1xi1> {onnx.name = "c"}, %x: tensor<4xf32> {onnx.name = "x"}) -> (tensor<*xf32> {onnx.name = "y"}) {
  %k = onnx.Constant() {value = dense<2> : tensor<i64>} : () -> tensor<i64>
  %none = onnx.NoValue() : () -> none
  %y, %s = onnx.Loop(%k, %none, %x) ({
  ^bb0(%i: tensor<*xi64>, %g: tensor<*xi1>, %a: tensor<*xf32>):
    %f = onnx.Cast(%i) {to = 1 : i64} : (tensor<*xi64>) -> tensor<*xf32>
    %b = onnx.Add(%a, %f) : (tensor<*xf32>, tensor<*xf32>) -> tensor<*xf32>
    %d = onnx.Identity(%b) : (tensor<*xf32>) -> tensor<*xf32>
    onnx.Yield(%g, %b, %d) : (tensor<*xi1>, tensor<*xf32>, tensor<*xf32>) -> ()
  }) : (tensor<i64>, none, tensor<4xf32>) -> (tensor<*xf32>, tensor<*xf32>)
  %r, %unused = onnx.If(%c) ({
    %e = onnx.Relu(%s) : (tensor<*xf32>) -> tensor<*xf32>
    onnx.Yield(%e, %x) : (tensor<*xf32>, tensor<4xf32>) -> ()
  }, {
    onnx.Yield(%s, %x) : (tensor<*xf32>, tensor<4xf32>) -> ()
  }) : (tensor<1xi1>) -> (tensor<*xf32>, tensor<*xf32>)
  func.return %r : tensor<*xf32>
}

// CHECK-NOT:  dnn.loop
// CHECK:      %s = dnn.concat ins(%{{.*}}, %{{.*}} : tensor<1x4xf32>, tensor<1x4xf32>) {axis = 0 : i64} -> tensor<2x4xf32>
// CHECK-NEXT: %[[C:.*]] = dnn.reshape input(%c : tensor<1xi1>) -> tensor<i1>
// CHECK-NEXT: %r = dnn.if condition(%[[C]] : tensor<i1>) -> tensor<2x4xf32> then {
// CHECK:        dnn.yield %e : tensor<2x4xf32>
// CHECK:      } otherwise {
// CHECK-NEXT:   dnn.yield %s : tensor<2x4xf32>
// CHECK:      }
