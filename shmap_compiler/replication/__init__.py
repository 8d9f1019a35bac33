"""Replication: along which mesh axes values vary, and what follows from it.

`inference` solves a program by the rules of `collective_rules`, and gives `frames`;
`region_dataflow` describes how values reach the programs that equations hold. The checks of the
result are in `shmap_compiler.checks`.
"""

from shmap_compiler.replication.assume import assume_replicated, assume_replicated_p
from shmap_compiler.replication.frames import Replication
from shmap_compiler.replication.inference import infer_program

__all__ = ["Replication", "assume_replicated", "assume_replicated_p", "infer_program"]
