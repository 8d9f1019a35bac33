module {
  sdy.mesh @mesh = <["i"=2]>
  func.func public @main() {
    return
  }
}
