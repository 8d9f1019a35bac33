"""Random programs of library calls, with nested `jax.vmap` as the reference.

The reference shares nothing with shard_map: a program over mesh axes is the same Python function
under one `jax.vmap(axis_name=...)` per axis, on blocks that NumPy-like reshapes cut out of the full
arrays. Everything is float64, so a difference is a defect and not rounding.
"""

from library_programs.generate import draw_program
from library_programs.program import Program
from library_programs.reference import reference

__all__ = ["Program", "draw_program", "reference"]
