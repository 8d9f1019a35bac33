"""The command `shmap-opt`: runs passes on MLIR files, without JAX."""
