// RUN: occamy-opt %s -p cpu-stream-weights | filecheck %s

// The first kernel's weights, neighbours in one range, are asked for at the start, and those of the next kernel that
// reads any. They are dropped after the last kernel that reads them. Starts are multiples of 64 KiB.
// CHECK-LABEL: func.func @occamy_main
// CHECK:         %w2 = memref.view
// CHECK-NEXT:    %[[AT:.*]] = arith.constant 0 : index
// CHECK-NEXT:    %[[START:.*]] = memref.view %weights[%[[AT]]][] : memref<400000xi8> to memref<1xi8>
// CHECK-NEXT:    %[[SIZE:.*]] = arith.constant 4352 : i64
// CHECK-NEXT:    %[[WILL:.*]] = arith.constant 3 : i32
// CHECK-NEXT:    func.call @madvise(%[[START]], %[[SIZE]], %[[WILL]]) : (memref<1xi8>, i64, i32) -> i32
// CHECK-NEXT:    arith.constant 262144 : index
// CHECK-NEXT:    memref.view
// CHECK-NEXT:    arith.constant 17856 : i64
// CHECK-NEXT:    arith.constant 3 : i32
// CHECK-NEXT:    func.call @madvise
// CHECK-NEXT:    func.call @a
// CHECK-NEXT:    func.call @c
// CHECK:         arith.constant 4352 : i64
// CHECK-NEXT:    arith.constant 3 : i32
// CHECK-NEXT:    func.call @madvise
// CHECK-NEXT:    func.call @b
// CHECK:         arith.constant 17856 : i64
// CHECK-NEXT:    arith.constant 4 : i32
// CHECK-NEXT:    func.call @madvise
// CHECK-NEXT:    func.call @a
// CHECK:         arith.constant 4352 : i64
// CHECK-NEXT:    arith.constant 4 : i32
// CHECK-NEXT:    func.call @madvise
// CHECK-NEXT:    func.return
// CHECK:       func.func private @madvise(memref<1xi8>, i64, i32) -> i32
func.func private @a(memref<1024xf32>, memref<64xf32>) -> ()
func.func private @b(memref<64xf32>) -> ()
func.func private @c(memref<16xi8>) -> ()
func.func @occamy_main(%pool: memref<16xi8>, %weights: memref<400000xi8>) {
  %c0 = arith.constant 0 : index
  %c4096 = arith.constant 4096 : index
  %far = arith.constant 279744 : index
  %w0 = memref.view %weights[%c0][] : memref<400000xi8> to memref<1024xf32>
  %w1 = memref.view %weights[%c4096][] : memref<400000xi8> to memref<64xf32>
  %w2 = memref.view %weights[%far][] : memref<400000xi8> to memref<64xf32>
  func.call @a(%w0, %w1) : (memref<1024xf32>, memref<64xf32>) -> ()
  func.call @c(%pool) : (memref<16xi8>) -> ()
  func.call @b(%w2) : (memref<64xf32>) -> ()
  func.call @a(%w0, %w1) : (memref<1024xf32>, memref<64xf32>) -> ()
  func.return
}
