"""Random programs for `shard_map`, with an oracle that says what each of them computes."""

from programs.generate import programs
from programs.program import Program

__all__ = ["Program", "programs"]
