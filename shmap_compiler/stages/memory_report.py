"""Reports by how much a program exceeds the memory of a device, and which arrays it holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from shmap_compiler.base import specs
from shmap_compiler.base.bits import bytes_of
from shmap_compiler.base.errors import Problem, TargetError
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.text_tables import show_bytes
from shmap_compiler.base.untyped import Aval
from shmap_compiler.graph.graph import Graph
from shmap_compiler.graph.nested_graphs import all_equations
from shmap_compiler.records.signature import Signature
from shmap_compiler.stages.compiled import CompiledForTarget
from shmap_compiler.targets.target import Target

_SHOWN = 5
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Demand:
    """What a program needs on one device and what there is, in bytes."""

    needed: int
    available: int


def read_demand(message: str) -> Demand | None:
    """The figures in XLA's message that a program does not fit; None in any other message."""
    match = re.search(
        r"Ran out of memory.*?\(([\d.]+)([KMGT]?)\) exceeds available \w+ \(([\d.]+)([KMGT]?)\)",
        message,
        re.DOTALL,
    )
    if match is None:
        return None
    needed, available = (float(match[i]) * _UNITS[match[i + 1]] for i in (1, 3))
    return Demand(int(needed), int(available))


def check_capacity(compiled: CompiledForTarget, graph: Graph | None) -> None:
    """For compilers that do not check it themselves, as that for GPUs.

    Raises:
      TargetError: the program needs more memory than a device of its target has.
    """
    chip = compiled.target.chip
    needed = compiled.memory_analysis().total
    if chip is not None and needed > chip.hbm_bytes:
        demand = Demand(needed, chip.hbm_bytes)
        problem = does_not_fit(demand, compiled.target, compiled.signature, graph)
        raise TargetError(compiled.signature.who, [problem])


def does_not_fit(
    demand: Demand, target: Target, signature: Signature, graph: Graph | None
) -> Problem:
    over = demand.needed - demand.available
    arrays = sorted(_arrays(signature, graph), key=lambda pair: -pair[0])[:_SHOWN]
    largest = "; ".join(f"{what}, {show_bytes(size)}" for size, what in arrays)
    return Problem(
        f"memory of one device of {target.where}",
        f"{show_bytes(demand.needed)} needed; the largest arrays on a device: {largest}",
        f"at most {show_bytes(demand.available)}: it is {show_bytes(over)} over",
        "split these arrays over more devices, recompute instead of keeping (jax.checkpoint), or "
        "choose a target with more memory",
    )


def _arrays(signature: Signature, graph: Graph | None) -> Iterator[tuple[int, str]]:
    """(bytes on one device, what it is) of arrays of a program, each kind once."""
    constants = [f"closed over [{i}]" for i in range(len(signature.constants))]
    outputs = [f"result [{i}]" for i in range(len(signature.out_types))]
    for paths, types, all_specs in (
        ((*constants, *signature.in_paths), signature.in_types, signature.in_specs),
        (outputs, signature.out_types, signature.out_specs),
    ):
        for path, type_, spec in zip(paths, types, all_specs, strict=True):
            shape = specs.shard_shape(type_.shape, spec, signature.mesh)
            block = type_.update(shape=shape)
            yield _bytes(block), f"{path} {specs.show_type(block)}"
    seen = set()
    for eqn in all_equations(graph.jaxpr) if graph is not None else ():
        for var in eqn.outvars:
            if hasattr(var.aval, "shape") and hasattr(var.aval, "dtype"):
                what = f"{eqn.primitive} {specs.show_type(var.aval)} at {source_line(eqn)}"
                if what not in seen:
                    seen.add(what)
                    yield _bytes(var.aval), what


def _bytes(type_: Aval) -> int:
    return bytes_of(type_.shape, type_.dtype)
