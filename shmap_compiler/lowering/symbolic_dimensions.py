"""Rejects symbolic dimensions, such as `b` in `jax.export.symbolic_shape("b, 8")`, in a body.

JAX exports them from its shard_map, but when the exported program is called, XLA does not refine
the types inside of a per-device region: the call fails, or ends the process, as soon as the body
broadcasts a constant or makes an `iota` of such a shape. So the export is rejected instead. Other
parts of an exported program may have symbolic dimensions, and a body may compute with their sizes.
"""

from __future__ import annotations

from collections.abc import Iterator

from jax import export

from shmap_compiler.base.errors import Problem, TargetError
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.untyped import Aval, LoweringContext
from shmap_compiler.graph.graph import Graph
from shmap_compiler.jaxprs.contents import equations


def refuse_symbolic_dimensions(graph: Graph, ctx: LoweringContext) -> None:
    """Raises TargetError if an array of the graph has a symbolic dimension.

    Args:
      ctx: of the lowering rule; only an export has dimension variables.
    """
    if not ctx.dim_var_values:
        return
    for type_, line in _arrays(graph):
        found = [str(d) for d in getattr(type_, "shape", ()) if export.is_symbolic_dim(d)]
        if found:
            raise TargetError(f"`{graph.name}`", [_problem(type_, line, found)])


def _arrays(graph: Graph) -> Iterator[tuple[Aval, str]]:
    """The types of all arrays, and where the body computes with them."""
    for eqn in equations(graph.jaxpr):
        for variable in (*eqn.invars, *eqn.outvars):
            yield variable.aval, f"a block at {source_line(eqn)}"
    for type_ in graph.in_types:
        yield type_, "an argument"


def _problem(type_: Aval, where: str, dimensions: list[str]) -> Problem:
    names = ", ".join(map(repr, dimensions))
    several = "dimensions" if len(dimensions) > 1 else "dimension"
    return Problem(
        f"{where}, of type {type_.str_short()}",
        f"the symbolic {several} {names} of jax.export",
        "sizes that are known when the program is exported: XLA cannot refine the shapes inside "
        "of a per-device body",
        "export with concrete shapes, once for each size, or keep the symbolic dimension outside "
        "of the shard_map",
    )
