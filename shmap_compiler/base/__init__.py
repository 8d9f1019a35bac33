"""What every room uses: errors, partition specs, caches, tables of text, and what JAX keeps to
itself."""
