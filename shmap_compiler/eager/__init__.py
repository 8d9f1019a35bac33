"""Eager mode: a shard_mapped function runs primitive by primitive, and can be looked at.

An eager value has one block on each device. Every primitive applied to such values becomes a Graph
of one operation, which is compiled once for its types and parameters, and kept.
"""

from shmap_compiler.eager.call import call_eagerly
from shmap_compiler.eager.trace import PROGRAMS
from shmap_compiler.eager.value import EagerValue

__all__ = ["PROGRAMS", "EagerValue", "call_eagerly"]
