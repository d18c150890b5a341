// RUN: occamy-opt %s | occamy-opt | filecheck %s
// RUN: occamy-opt %s --print-op-generic | occamy-opt | filecheck %s
// RUN: occamy-opt %s --print-op-generic | filecheck %s --check-prefix=GENERIC
// RUN: occamy-opt %s --print-op-generic --print-no-properties | occamy-opt | filecheck %s

// Operands, attributes of every kind, and an operator's newest and superseded signatures.
// CHECK-LABEL: func.func @attributes
// GENERIC: "onnx.Conv"(%x, %w) <{auto_pad = "NOTSET", group = 1 : i64, strides = array<i64: 2, 2>}>
func.func @attributes(%x: tensor<1x3x8x8xf32>, %w: tensor<4x3x3x3xf32>) -> tensor<*xf32> {
  // CHECK-NEXT: %y = onnx.Conv(%x, %w) {auto_pad = "NOTSET", group = 1 : i64, strides = array<i64: 2, 2>} : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<*xf32>
  %y = onnx.Conv(%x, %w) {auto_pad = "NOTSET", group = 1 : i64, strides = array<i64: 2, 2>} : (tensor<1x3x8x8xf32>, tensor<4x3x3x3xf32>) -> tensor<*xf32>
  // CHECK-NEXT: %z = onnx.LeakyRelu(%y) {alpha = 1.000000e-01 : f32} : (tensor<*xf32>) -> tensor<*xf32>
  %z = onnx.LeakyRelu(%y) {alpha = 0.1 : f32} : (tensor<*xf32>) -> tensor<*xf32>
  // CHECK-NEXT: %s = onnx.SoftmaxV11(%z) {axis = 1 : i64} : (tensor<*xf32>) -> tensor<*xf32>
  %s = onnx.SoftmaxV11(%z) {axis = 1 : i64} : (tensor<*xf32>) -> tensor<*xf32>
  // CHECK-NEXT: %t = onnx.Softmax(%s) : (tensor<*xf32>) -> tensor<*xf32>
  %t = onnx.Softmax(%s) : (tensor<*xf32>) -> tensor<*xf32>
  func.return %t : tensor<*xf32>
}

// An absent operand is a NoValue, an absent result has type none.
// CHECK-LABEL: func.func @absent
func.func @absent(%x: tensor<2x3xf32>, %k: tensor<2xf32>) -> tensor<?x?xf32> {
  // CHECK-NEXT: %none = onnx.NoValue() : () -> none
  %none = onnx.NoValue() : () -> none
  // CHECK-NEXT: %y = onnx.Resize(%x, %none, %k) {mode = "nearest"} : (tensor<2x3xf32>, none, tensor<2xf32>) -> tensor<?x?xf32>
  %y = onnx.Resize(%x, %none, %k) {mode = "nearest"} : (tensor<2x3xf32>, none, tensor<2xf32>) -> tensor<?x?xf32>
  %w = onnx.Constant() {value = #weights.ref<"w">} : () -> tensor<1x2x3xf32>
  %r = onnx.Constant() {value = #weights.ref<"r">} : () -> tensor<1x2x2xf32>
  %i = onnx.Constant() {value = #weights.ref<"i">} : () -> tensor<4x1x3xf32>
  // CHECK: %no_y, %last = onnx.RNN(%i, %w, %r) {hidden_size = 2 : i64} {{.*}} -> (none, tensor<1x1x2xf32>)
  %no_y, %last = onnx.RNN(%i, %w, %r) {hidden_size = 2 : i64} : (tensor<4x1x3xf32>, tensor<1x2x3xf32>, tensor<1x2x2xf32>) -> (none, tensor<1x1x2xf32>)
  func.return %y : tensor<?x?xf32>
}

// Constants: dense, by reference, strings, sparse; element types beyond the builtin ones' usual.
// CHECK-LABEL: func.func @constants
func.func @constants() {
  // CHECK-NEXT: onnx.Constant() {value = dense<[1, -1]> : tensor<2xi64>} : () -> tensor<2xi64>
  %a = onnx.Constant() {value = dense<[1, -1]> : tensor<2xi64>} : () -> tensor<2xi64>
  // CHECK-NEXT: onnx.Constant() {value = #weights.ref<"conv1.weight">} : () -> tensor<64x3x7x7xf32>
  %b = onnx.Constant() {value = #weights.ref<"conv1.weight">} : () -> tensor<64x3x7x7xf32>
  // CHECK-NEXT: onnx.Constant() {value = ["a", "b\0A"]} : () -> tensor<2x!onnx.String>
  %c = onnx.Constant() {value = ["a", "b\0A"]} : () -> tensor<2x!onnx.String>
  // CHECK-NEXT: onnx.Constant() {sparse_value = #onnx.sparse<dense<5.000000e+00> : tensor<1xf32>, dense<2> : tensor<1xi64>, tensor<4xf32>>} : () -> tensor<4xf32>
  %d = onnx.Constant() {sparse_value = #onnx.sparse<dense<5.0> : tensor<1xf32>, dense<2> : tensor<1xi64>, tensor<4xf32>>} : () -> tensor<4xf32>
  // CHECK-NEXT: onnx.Constant() {value = dense<200> : tensor<3xui8>} : () -> tensor<3xui8>
  %e = onnx.Constant() {value = dense<200> : tensor<3xui8>} : () -> tensor<3xui8>
  // CHECK-NEXT: onnx.Constant() {value = dense<[-8, 7]> : tensor<2xi4>} : () -> tensor<2xi4>
  %f = onnx.Constant() {value = dense<[-8, 7]> : tensor<2xi4>} : () -> tensor<2xi4>
  // CHECK-NEXT: onnx.Constant() {value = dense<> : tensor<0xi64>} : () -> tensor<0xi64>
  %g = onnx.Constant() {value = dense<> : tensor<0xi64>} : () -> tensor<0xi64>
  func.return
}

// Sequences, optionals and maps.
// CHECK-LABEL: func.func @containers
func.func @containers(%x: tensor<?xf32>, %m: !onnx.Map<i64, tensor<*xf32>>, %u: !onnx.Unknown) {
  // CHECK-NEXT: onnx.SequenceConstruct(%x, %x) : (tensor<?xf32>, tensor<?xf32>) -> !onnx.Seq<tensor<?xf32>>
  %s = onnx.SequenceConstruct(%x, %x) : (tensor<?xf32>, tensor<?xf32>) -> !onnx.Seq<tensor<?xf32>>
  // CHECK-NEXT: onnx.Optional(%s) : (!onnx.Seq<tensor<?xf32>>) -> !onnx.Opt<!onnx.Seq<tensor<?xf32>>>
  %o = onnx.Optional(%s) : (!onnx.Seq<tensor<?xf32>>) -> !onnx.Opt<!onnx.Seq<tensor<?xf32>>>
  // CHECK-NEXT: onnx.CastMap(%m) {cast_to = "TO_FLOAT"} : (!onnx.Map<i64, tensor<*xf32>>) -> tensor<*xf32>
  %c = onnx.CastMap(%m) {cast_to = "TO_FLOAT"} : (!onnx.Map<i64, tensor<*xf32>>) -> tensor<*xf32>
  // CHECK-NEXT: onnx.Relu(%u) : (!onnx.Unknown) -> !onnx.Unknown
  %r = onnx.Relu(%u) : (!onnx.Unknown) -> !onnx.Unknown
  func.return
}

// Subgraphs are regions, which see the values around them; the absent one of two is empty.
// CHECK-LABEL: func.func @regions
func.func @regions(%c: tensor<i1>, %x: tensor<3xf32>) -> tensor<3xf32> {
  // CHECK-NEXT: %y = onnx.If(%c) ({
  // CHECK-NEXT:   %n = onnx.Neg(%x) : (tensor<3xf32>) -> tensor<3xf32>
  // CHECK-NEXT:   onnx.Yield(%n) : (tensor<3xf32>) -> ()
  // CHECK-NEXT: }, {
  // CHECK-NEXT:   onnx.Yield(%x) : (tensor<3xf32>) -> ()
  // CHECK-NEXT: }) : (tensor<i1>) -> tensor<3xf32>
  %y = onnx.If(%c) ({
    %n = onnx.Neg(%x) : (tensor<3xf32>) -> tensor<3xf32>
    onnx.Yield(%n) : (tensor<3xf32>) -> ()
  }, {
    onnx.Yield(%x) : (tensor<3xf32>) -> ()
  }) : (tensor<i1>) -> tensor<3xf32>
  func.return %y : tensor<3xf32>
}

// CHECK-LABEL: func.func @custom
func.func @custom(%x: tensor<3xf32>) -> !onnx.Unknown {
  // CHECK-NEXT: onnx.Custom(%x) {domain_name = "com.example", function_name = "F", k = 3 : i64} : (tensor<3xf32>) -> !onnx.Unknown
  %y = onnx.Custom(%x) {domain_name = "com.example", function_name = "F", k = 3 : i64} : (tensor<3xf32>) -> !onnx.Unknown
  func.return %y : !onnx.Unknown
}
