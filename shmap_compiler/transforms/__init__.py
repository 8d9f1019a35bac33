"""How the shmap primitive behaves under JAX's transformations, one file per kind of rule.

Every rule traces the Graph's own function again under the public transformation (`jax.jvp`,
`jax.linear_transpose`, `jax.vmap`), into new Graphs. Which equations are known and which are staged
is decided here. Importing this package registers the rules.
"""

from shmap_compiler.transforms import batching, checks, derivatives, partial_eval

__all__ = ["batching", "checks", "derivatives", "partial_eval"]
