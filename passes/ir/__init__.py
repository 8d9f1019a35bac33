"""Reading and writing the IR: body form, meshes, collectives, shardings, MLIR contexts."""
