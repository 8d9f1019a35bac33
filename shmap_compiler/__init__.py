"""shmap_compiler: a compiler for per-device JAX programs with explicit collectives."""

import shmap_compiler.transforms  # noqa: F401  registers the rules of the primitive
from shmap_compiler.api import ShardMapped, shard_map, smap
from shmap_compiler.errors import (
    BodyError,
    HangError,
    Problem,
    ReplicationError,
    ResultTypeError,
    ShmapError,
    SpecError,
    TargetError,
    UnknownAxisError,
)
from shmap_compiler.graph import Graph
from shmap_compiler.replication import Replication, assume_replicated
from shmap_compiler.stages import PARTITIONERS, STAGES, Executable, Lowered

__all__ = [
    "PARTITIONERS",
    "STAGES",
    "BodyError",
    "Executable",
    "Graph",
    "HangError",
    "Lowered",
    "Problem",
    "Replication",
    "ReplicationError",
    "ResultTypeError",
    "ShardMapped",
    "ShmapError",
    "SpecError",
    "TargetError",
    "UnknownAxisError",
    "assume_replicated",
    "shard_map",
    "smap",
]
