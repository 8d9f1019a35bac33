"""shmap_compiler: a compiler for per-device JAX programs with explicit collectives."""

from importlib.metadata import version as _version

import shmap_compiler.transforms
import shmap_compiler.unjit.embedded_rules  # noqa: F401  and those of embedded StableHLO
from shmap_compiler import named
from shmap_compiler.base.errors import (
    ArgumentTypeError,
    ArtifactError,
    BodyError,
    DerivativeError,
    HangError,
    Problem,
    ReplicationError,
    ResultTypeError,
    ShmapError,
    SimulationError,
    SpecError,
    SpecTypeError,
    TargetError,
    TargetTypeError,
    UnjitError,
    UnknownAxisError,
    UnreducedError,
    VaryingValueError,
)
from shmap_compiler.frontend.shard_map import shard_map
from shmap_compiler.frontend.shard_mapped import ShardMapped
from shmap_compiler.frontend.smap import smap
from shmap_compiler.graph.graph import Graph
from shmap_compiler.lowering.added_passes import passes
from shmap_compiler.lowering.overlap import overlap
from shmap_compiler.lowering.watchdog import watch_collectives
from shmap_compiler.pmap.pmap import Pmapped, pmap
from shmap_compiler.replication import Replication, assume_replicated
from shmap_compiler.simulate.simulate_module import simulate_module
from shmap_compiler.simulate.simulation import Simulation
from shmap_compiler.simulate.validation import Validation
from shmap_compiler.stages.compiled import Compiled, CompiledForTarget
from shmap_compiler.stages.executable import Executable
from shmap_compiler.stages.explaining import explain
from shmap_compiler.stages.imported import ImportedModule, import_module
from shmap_compiler.stages.loading import load
from shmap_compiler.stages.lower_call import PARTITIONERS
from shmap_compiler.stages.lowered import STAGES, Lowered
from shmap_compiler.stages.overlap_report import OverlapChoice, OverlapReport
from shmap_compiler.stages.portable import Portable
from shmap_compiler.targets import Target
from shmap_compiler.targets.compiler_options import compiler_options
from shmap_compiler.unjit.block_key import block_key
from shmap_compiler.unjit.embedded import call_stablehlo
from shmap_compiler.unjit.from_jit import unjit
from shmap_compiler.unjit.ranked_shardings import ShardingChoice, ShardingSearch
from shmap_compiler.unjit.sharding_search import search_shardings
from shmap_compiler.unjit.unjitted import Unjitted
from shmap_compiler.unjit.validation import UnjitValidation
from shmap_compiler.xmap.named_lowered import NamedLowered
from shmap_compiler.xmap.named_program import NamedProgram
from shmap_compiler.xmap.resources import SerialLoop, mesh, serial_loop
from shmap_compiler.xmap.xmap import XMapped, xmap

__version__ = _version("shmap_compiler")

__all__ = [
    "PARTITIONERS",
    "STAGES",
    "ArgumentTypeError",
    "ArtifactError",
    "BodyError",
    "Compiled",
    "CompiledForTarget",
    "DerivativeError",
    "Executable",
    "Graph",
    "HangError",
    "ImportedModule",
    "Lowered",
    "NamedLowered",
    "NamedProgram",
    "OverlapChoice",
    "OverlapReport",
    "Pmapped",
    "Portable",
    "Problem",
    "Replication",
    "ReplicationError",
    "ResultTypeError",
    "SerialLoop",
    "ShardMapped",
    "ShardingChoice",
    "ShardingSearch",
    "ShmapError",
    "Simulation",
    "SimulationError",
    "SpecError",
    "SpecTypeError",
    "Target",
    "TargetError",
    "TargetTypeError",
    "UnjitError",
    "UnjitValidation",
    "Unjitted",
    "UnknownAxisError",
    "UnreducedError",
    "Validation",
    "VaryingValueError",
    "XMapped",
    "__version__",
    "assume_replicated",
    "block_key",
    "call_stablehlo",
    "compiler_options",
    "explain",
    "import_module",
    "load",
    "mesh",
    "named",
    "overlap",
    "passes",
    "pmap",
    "search_shardings",
    "serial_loop",
    "shard_map",
    "simulate_module",
    "smap",
    "unjit",
    "watch_collectives",
    "xmap",
]
