"""JAX's own programs as data: what they contain, and the programs that their equations hold."""
