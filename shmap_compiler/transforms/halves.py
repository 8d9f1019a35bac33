"""The two halves of a split program as Graphs, which share residuals."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import jax
from jax import lax
from jax.extend import core as jex_core
from jax.sharding import AbstractMesh, PartitionSpec

from shmap_compiler.base import specs
from shmap_compiler.base.jax_compat import open_jaxpr, replace_jaxpr
from shmap_compiler.base.untyped import AnyValue, Atom, Aval, Eqn, Jaxpr
from shmap_compiler.graph.graph import Graph
from shmap_compiler.jaxprs.building import where
from shmap_compiler.jaxprs.rewriting import Names, named, renamed
from shmap_compiler.transforms.split import Split

ResidualSource = tuple[str, int]
"""Where a residual comes from: ("input", k) or ("output", k) of the known half."""


@dataclass(frozen=True)
class Halves:
    """A split program as two Graphs.

    Attributes:
      known: known inputs -> known outputs, then the residuals that are neither input nor output.
      staged: the residuals, each once, then instantiated inputs -> instantiated outputs.
      sources: where each residual comes from.
    """

    known: Graph
    staged: Graph
    sources: list[ResidualSource]

    def residuals(self, inputs: Sequence[AnyValue], outputs: Sequence[AnyValue]) -> list[AnyValue]:
        """The residuals, from the inputs and outputs of `known`."""
        return [inputs[k] if kind == "input" else outputs[k] for kind, k in self.sources]


def halves(
    graph: Graph,
    parts: Split,
    known_in: Sequence[bool],
    out_specs: Sequence[PartitionSpec],
    staged_in: Sequence[bool],
    staged_out_specs: Sequence[PartitionSpec],
) -> Halves:
    """Makes the Graphs of a split program, on the mesh of `graph`.

    A residual that is an input or an output of the known half anyway is not returned again:
    replicated weights would otherwise be stored once per device. An exception is an output that its
    spec splits over axes along which it does not vary: as an input of the staged half it would
    vary. The other residuals are split along dimension 0, over the axes along which they vary; a
    varying scalar gets that dimension.

    Args:
      known_in, staged_in: which inputs of `graph` are those of the halves.
    """
    jaxpr = open_jaxpr(parts.known)
    count = len(out_specs)
    outputs, residuals = jaxpr.outvars[:count], jaxpr.outvars[count:]
    known = dataclasses.replace(
        graph,
        jaxpr=parts.known,
        in_specs=where(known_in, graph.in_specs),
        out_specs=(*out_specs, *[PartitionSpec()] * len(residuals)),
        equal_inputs=where(known_in, graph.inputs_are_equal),
    )
    replication = known.replication
    mask = replication.frame.mask
    reusable = {
        k: v
        for k, (v, spec) in enumerate(zip(outputs, out_specs, strict=True))
        if not replication.axes.mask(specs.varying_axes(spec)) & ~mask(v)
    }
    sources, new = _sources(jaxpr.invars, reusable, residuals, count)
    varying = [replication.axes.names(mask(v)) for v in new]
    new_specs = [
        PartitionSpec(tuple(a for a in graph.manual_axes if a in axes)) if axes else PartitionSpec()
        for axes in varying
    ]
    scalars = [axes and not v.aval.shape for v, axes in zip(new, varying, strict=True)]
    with jax.sharding.use_abstract_mesh(graph.body_mesh):
        vectors = [
            jex_core.Var(_vector(v.aval)) if s else v for v, s in zip(new, scalars, strict=True)
        ]
        widen = [_reshape(v, w) for v, w, s in zip(new, vectors, scalars, strict=True) if s]
    known = dataclasses.replace(
        known,
        jaxpr=replace_jaxpr(parts.known, eqns=[*jaxpr.eqns, *widen], outvars=[*outputs, *vectors]),
        out_specs=(*out_specs, *new_specs),
    )
    certain = known.certain_replication
    equal_outputs = [
        not certain.frame.mask(v) & ~certain.axes.mask(specs.varying_axes(spec))
        for v, spec in zip(known.jaxpr.jaxpr.outvars, known.out_specs, strict=True)
    ]
    is_vector = {("output", count + k) for k, s in enumerate(scalars) if s}
    unique = list(dict.fromkeys(sources))
    spec_of = {"input": known.in_specs, "output": known.out_specs}
    is_equal = {"input": known.inputs_are_equal, "output": equal_outputs}
    staged = dataclasses.replace(
        graph,
        jaxpr=_with_residuals(parts.staged, sources, is_vector, graph.body_mesh),
        in_specs=(
            *[spec_of[kind][k] for kind, k in unique],
            *where(staged_in, graph.in_specs),
        ),
        out_specs=tuple(staged_out_specs),
        equal_inputs=(
            *[is_equal[kind][k] for kind, k in unique],
            *where(staged_in, graph.inputs_are_equal),
        ),
    )
    return Halves(known, staged, unique)


def _sources(
    inputs: Sequence[Atom], outputs: Mapping[int, Atom], residuals: Sequence[Atom], count: int
) -> tuple[list[ResidualSource], list[Atom]]:
    """(the source of each residual, the residuals that are new outputs of the known half).

    Args:
      outputs: those that may be sources, by their positions.
      count: the number of all outputs, before the new ones.
    """
    known: dict[Atom, ResidualSource] = {}
    known.update({v: ("output", k) for k, v in outputs.items() if isinstance(v, jex_core.Var)})
    known.update({v: ("input", k) for k, v in enumerate(inputs)})
    new: list[Atom] = []
    sources: list[ResidualSource] = []
    for atom in residuals:
        source = known.get(atom) if isinstance(atom, jex_core.Var) else None
        if source is None:
            source = ("output", count + len(new))
            new.append(atom)
            if isinstance(atom, jex_core.Var):
                known[atom] = source
        sources.append(source)
    return sources, new


def _with_residuals(
    staged: Jaxpr,
    sources: Sequence[ResidualSource],
    is_vector: Set[ResidualSource],
    mesh: AbstractMesh,
) -> Jaxpr:
    """The staged program, which takes the residual of each source once."""
    jaxpr = open_jaxpr(staged)
    own = dict(zip(reversed(sources), reversed(jaxpr.invars[: len(sources)]), strict=True))
    names: Names = {v: own[s] for v, s in zip(jaxpr.invars, sources, strict=False)}
    with jax.sharding.use_abstract_mesh(mesh):
        vectors = {s: jex_core.Var(_vector(own[s].aval)) for s in own if s in is_vector}
        narrow = [_reshape(w, own[s]) for s, w in vectors.items()]
    first = [vectors.get(s, own[s]) for s in dict.fromkeys(sources)]
    return replace_jaxpr(
        staged,
        invars=[*first, *jaxpr.invars[len(sources) :]],
        eqns=[*narrow, *(renamed(eqn, names) for eqn in jaxpr.eqns)],
        outvars=[named(v, names) for v in jaxpr.outvars],
    )


def _vector(aval: Aval) -> Aval:
    return jax.make_jaxpr(lambda x: lax.reshape(x, (1,)))(aval).out_avals[0]


def _reshape(source: Atom, target: Atom) -> Eqn:
    shape = target.aval.shape
    template = open_jaxpr(jax.make_jaxpr(lambda x: lax.reshape(x, shape))(source.aval))
    return template.eqns[0].replace(invars=[source], outvars=[target])
