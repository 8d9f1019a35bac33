"""Replication: along which mesh axes values vary, and what follows from it.

`inference` solves a Graph by the rules of `collective_rules` and along the wires of `wiring`;
`history` tells why a value varies; `check` refuses out_specs that hide varying results; `hangs`
refuses collectives that only some devices would reach.
"""

from shmap_compiler.replication.assume import assume_replicated, assume_replicated_p
from shmap_compiler.replication.inference import Replication, infer_program

__all__ = ["Replication", "assume_replicated", "assume_replicated_p", "infer_program"]
