// RUN: occamy-opt %s -p 'dnn-convert-to-pool{planner=best-guess}' --verify-diagnostics | filecheck %s

// CHECK: dnn-convert-to-pool: no planner 'best-guess', choose one of
func.func @main() {
  func.return
}
