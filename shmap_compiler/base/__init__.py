"""Used by every room: errors, specs, meshes, caches, text tables, and undocumented parts of JAX."""
