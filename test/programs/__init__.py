"""Random programs for `shard_map`, with an oracle that says what each of them computes."""

from programs.case import Case
from programs.generate import cases, draw_program, programs
from programs.jax_limits import runs_in_jax
from programs.program import Program

__all__ = ["Case", "Program", "cases", "draw_program", "programs", "runs_in_jax"]
