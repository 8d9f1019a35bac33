"""Eager mode: a shard_mapped function runs primitive by primitive, and can be looked at.

An eager value has one block on each device. Every primitive applied to such values becomes a Graph
of one operation, which is compiled once for its types and parameters, and kept.
"""

import shmap_compiler.eager.outside_jit  # noqa: F401, it gives the primitive its rule
from shmap_compiler.eager.operations import PROGRAMS
from shmap_compiler.eager.value import EagerValue

__all__ = ["PROGRAMS", "EagerValue"]
