"""Makes Graphs of the programs of `jax.shard_map` that a body calls.

A library that the user's function calls may map its own functions with `jax.shard_map`. As Graphs
they are checked, differentiated and lowered like those of this package.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax

from shmap_compiler.base import specs
from shmap_compiler.base.errors import BodyError, Problem
from shmap_compiler.base.jax_compat import (
    AnyMesh,
    RegionOfJax,
    is_ref,
    open_jaxpr,
    region_of_jax,
    with_manual_axes,
)
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.untyped import Eqn, Jaxpr
from shmap_compiler.graph.graph import Graph, HangCheck
from shmap_compiler.graph.nested_graphs import holds_graph
from shmap_compiler.graph.primitive import bind
from shmap_compiler.jaxprs.contents import names_any
from shmap_compiler.jaxprs.rewriting import Names, Rewriter, copy_equations
from shmap_compiler.tracing.canonicalize_collectives import normalize
from shmap_compiler.tracing.vma_erasure import erase, without_types


def with_graphs_of_regions(
    jaxpr: Jaxpr, mesh: AnyMesh, axes: Sequence[str], who: str, *, check_hangs: bool
) -> Jaxpr:
    """The closed `jaxpr`, in which shard_maps of JAX's own are equations that hold a Graph.

    Args:
      mesh, axes: the mesh, and its axes that are manual in the program.
      who: the user's function.
      check_hangs: as for `shard_map`.

    Raises:
      BodyError: a region is split over an axis that is manual around it.
    """
    if not names_any(jaxpr, ("shard_map",)):
        return jaxpr
    rewritten = _Regions(mesh, tuple(axes), who, check_hangs).jaxpr(jaxpr)
    if rewritten is jaxpr:
        return jaxpr
    # Where JAX checks the types of a region, its results are typed, whatever the operands are.
    return without_types(rewritten)


class _Regions(Rewriter):
    def __init__(self, mesh: AnyMesh, axes: tuple[str, ...], who: str, check_hangs: bool):
        super().__init__()
        self.mesh = mesh
        self.axes = axes
        self.who = who
        self.check_hangs = check_hangs

    def equation(self, eqn: Eqn, names: Names) -> list[Eqn]:
        if eqn.primitive.name != "shard_map" or holds_graph(eqn):
            return super().equation(eqn, names)
        region = region_of_jax(eqn)
        # What may be done with summands and with references is up to JAX.
        if specs.has_reductions((region.in_specs, region.out_specs)):
            return [eqn]
        if any(is_ref(v.aval) for v in eqn.invars):
            return [eqn]
        split = {a for spec in (*region.in_specs, *region.out_specs) for a in specs.mentioned(spec)}
        if again := split.intersection(self.axes):
            raise BodyError(self.who, [_split_again(eqn, sorted(again))])
        graph = self.graph(region)
        with jax.sharding.use_abstract_mesh(with_manual_axes(self.mesh, self.axes)):
            template = jax.make_jaxpr(functools.partial(bind, graph))(*(v.aval for v in eqn.invars))
        template = open_jaxpr(template)
        copied: Names = dict(zip(template.invars, eqn.invars, strict=True))
        copied.update(zip(template.outvars, eqn.outvars, strict=True))
        return copy_equations(template.eqns, copied, source_info=eqn.source_info, ctx=eqn.ctx)

    def graph(self, region: RegionOfJax) -> Graph:
        axes = tuple(a for a in self.mesh.axis_names if a in {*self.axes, *region.manual_axes})
        inside = with_manual_axes(self.mesh, axes)
        jaxpr = with_graphs_of_regions(
            region.jaxpr, self.mesh, axes, self.who, check_hangs=self.check_hangs
        )
        if region.check_vma:
            jaxpr = erase(jaxpr, inside, axes, untracked=self.axes)
        else:
            jaxpr = without_types(jaxpr)
        return Graph(
            name=region.name,
            jaxpr=normalize(jaxpr, inside, axes, f"`{region.name}`"),
            mesh=self.mesh,
            manual_axes=tuple(a for a in axes if a in region.manual_axes),
            outer_manual_axes=self.axes,
            in_specs=region.in_specs,
            out_specs=region.out_specs,
            check_vma=region.check_vma,
            hang_check=HangCheck.ALL if self.check_hangs else HangCheck.NONE,
        )


def _split_again(eqn: Eqn, axes: Sequence[str]) -> Problem:
    """JAX makes such specs of what it saves for the backward pass of a nested region."""
    along = ", ".join(map(repr, axes))
    return Problem(
        f"jax.shard_map at {source_line(eqn)}",
        f"specs that split arrays over {along}, which a shard_map around it has made manual",
        "only axes that are not manual yet",
        "if it is differentiated inside of the body, pass check_vma=False to jax.shard_map, or use "
        "shmap_compiler.shard_map in its place",
    )
