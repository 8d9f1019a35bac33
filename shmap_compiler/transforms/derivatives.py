"""Derivatives of a shard_mapped program: two Graphs, one before the other.

The forward Graph computes the results and what the derivative needs later (the residuals); the
linear Graph maps residuals and tangents to tangents. Reverse mode transposes the linear Graph.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Iterator, Sequence, Set

import jax
from jax.interpreters import ad
from jax.interpreters import partial_eval as pe
from jax.sharding import PartitionSpec

from shmap_compiler.base import specs
from shmap_compiler.base.jax_compat import (
    HIGH_PRIMITIVE,
    jaxprs_in,
    open_jaxpr,
    replace_jaxpr,
    varies_along,
)
from shmap_compiler.base.jax_compat.name_stacks import in_scopes_of_its_own, without_transpose
from shmap_compiler.base.meshes import Axes
from shmap_compiler.base.untyped import AnyValue, Aval, Jaxpr
from shmap_compiler.base.values import as_weak, has_tangent
from shmap_compiler.checks.derived_programs import check_derived
from shmap_compiler.checks.hangs import check_hangs
from shmap_compiler.collectives import psum
from shmap_compiler.graph.graph import Graph
from shmap_compiler.graph.nested_graphs import nested_graphs
from shmap_compiler.graph.primitive import bind, parameters, shmap_p
from shmap_compiler.jaxprs.building import where
from shmap_compiler.jaxprs.contents import equations, names_any
from shmap_compiler.jaxprs.held_programs import CUSTOM_LIN, REGIONS
from shmap_compiler.replication.collective_rules import jax_axes
from shmap_compiler.replication.inference import infer_program
from shmap_compiler.tracing.trace import retrace
from shmap_compiler.transforms import outer_types, rule_types
from shmap_compiler.transforms.branch_axes import UNKNOWN_AXES, AxesOfProgram, BranchAxes
from shmap_compiler.transforms.checkpoint import split_for_derivative
from shmap_compiler.transforms.cotangent_types import with_cotangent_types
from shmap_compiler.transforms.derivatives_in_rules import refuse_in_derivative_rules
from shmap_compiler.transforms.halves import halves
from shmap_compiler.transforms.linear_regions import transpose
from shmap_compiler.transforms.split import Split


def _jvp(primals, tangents, *, graph: Graph, witness):
    nonzero_tangent = tuple(map(_is_nonzero, tangents))
    outside = None
    if outer_types.typed_outside(graph):
        outside = tuple(varies_along(jax.typeof(x)) for x in primals)
    both, changes, constants = _with_tangents(graph, nonzero_tangent, outside)
    results = bind(both, *constants, *primals, *where(nonzero_tangent, tangents))
    outs = results[: len(graph.out_specs)]
    out_tangents = results[len(graph.out_specs) :]
    if outer_types.typed_outside(graph):
        out_tangents = outer_types.with_types_of(where(changes, outs), out_tangents)
    out_tangents = iter(out_tangents)
    return outs, [next(out_tangents) if c else _zero(x) for x, c in zip(outs, changes, strict=True)]


def _with_tangents(
    graph: Graph, nonzero_tangent: tuple[bool, ...], outside: Sequence[Axes] | None
) -> tuple[Graph, list[bool], list[AnyValue]]:
    """(the program with its derivative, which outputs have nonzero tangents, constants).

    The constants are values for the leading inputs of the program, and tangents come last.

    Args:
      nonzero_tangent: which inputs have nonzero tangents.
      outside: see `rule_types.with_types`.
    """
    count = len(nonzero_tangent)
    tangent_specs = where(nonzero_tangent, graph.in_specs)
    fun = in_scopes_of_its_own(rule_types.with_types(graph, outside))

    def with_tangents(*blocks):
        values, tangents = blocks[:count], blocks[count:]

        def of_differentiated(*differentiated):
            rows, given = zip(values, nonzero_tangent, strict=True), iter(differentiated)
            return fun(*[next(given) if nonzero else x for x, nonzero in rows])

        outs, out_tangents = jax.jvp(of_differentiated, where(nonzero_tangent, values), tangents)
        return [*outs, *where(inexact, out_tangents)]

    inexact = [has_tangent(t) for t in graph.body_out_types]
    inexact_specs = where(inexact, graph.out_specs)
    traced = retrace(
        graph,
        with_tangents,
        [*graph.in_specs, *tangent_specs],
        [*graph.out_specs, *inexact_specs],
        [*graph.in_types, *[_tangent_type(t) for t in where(nonzero_tangent, graph.in_types)]],
        equal_inputs=[*graph.inputs_are_equal, *where(nonzero_tangent, graph.inputs_are_equal)],
    )
    refuse_in_derivative_rules(graph, traced.graph.jaxpr)
    if outside is not None:
        of_constants = [varies_along(jax.typeof(x)) for x in traced.constants]
        outside = [*of_constants, *outside, *where(nonzero_tangent, outside)]
    both = rule_types.with_residual_types(traced.graph, outside)
    names = [f"input [{k}]" for k in range(count)]
    tangent_names = [f"the tangent of {name}" for name in where(nonzero_tangent, names)]
    check_derived("jvp", graph, both, [*names, *tangent_names])
    unknown_in = (False,) * (len(traced.constants) + count) + (True,) * sum(nonzero_tangent)
    parts = split_for_derivative(both, unknown_in)
    results = len(graph.out_specs)
    depend = parts.unknown_out[results:]
    if all(depend):
        _SPLITS[both] = unknown_in, parts
    else:  # a tangent that does not depend on the others is zero
        kept = [True] * results + depend
        both = dataclasses.replace(
            both,
            jaxpr=replace_jaxpr(both.jaxpr, outvars=list(where(kept, both.jaxpr.jaxpr.outvars))),
            out_specs=where(kept, both.out_specs),
        )
    rest = iter(depend)
    return both, [next(rest) if s else False for s in inexact], traced.constants


_SPLITS: weakref.WeakKeyDictionary[Graph, tuple[tuple[bool, ...], Split]] = (
    weakref.WeakKeyDictionary()
)
"""Programs with tangents, split as a reverse-mode derivative will need them."""


def _partial_eval(trace, *tracers, graph: Graph, witness):
    """Runs what depends on known values only, and leaves the rest for later."""
    unknown_in = tuple(not t.is_known() for t in tracers)
    kept = _SPLITS.get(graph)
    if kept is not None and kept[0] == unknown_in:
        parts = kept[1]
    else:
        parts = split_for_derivative(graph, unknown_in)
    nothing_now = all(parts.unknown_out) and not open_jaxpr(parts.known).eqns
    if not any(unknown_in) or nothing_now:
        return trace.default_process_primitive(shmap_p, tracers, parameters(graph))
    known_in, known_out = ([not u for u in row] for row in (unknown_in, parts.unknown_out))
    both = halves(
        graph,
        parts.with_unknown_outputs_only(),
        known_in,
        where(known_out, graph.out_specs),
        unknown_in,
        where(parts.unknown_out, graph.out_specs),
    )
    inputs = [t.pval.get_known() for t in where(known_in, tracers)]
    results = bind(both.known, *inputs)
    residuals = map(trace.new_instantiated_const, both.residuals(inputs, results))
    operands = [*residuals, *where(unknown_in, tracers)]
    later = iter(trace.default_process_primitive(shmap_p, operands, parameters(both.staged)))
    now = iter(results)
    return [next(later) if u else next(now) for u in parts.unknown_out]


def _transpose(cotangents, *args, graph: Graph, witness):
    linear = [ad.is_undefined_primal(a) for a in args]
    known = [a for a, is_linear in zip(args, linear, strict=True) if not is_linear]
    linear_specs = [s for s, m in zip(graph.in_specs, linear, strict=True) if m]
    known_specs = [s for s, m in zip(graph.in_specs, linear, strict=True) if not m]
    cotangents = [ad.instantiate_zeros(ct) for ct in cotangents]
    types = [a.aval if m else jax.typeof(a) for a, m in zip(args, linear, strict=True)]
    outside = outer_types.axes_outside(graph, [*types, *map(jax.typeof, cotangents)])
    if outside:
        cotangents = [outer_types.as_share(ct, graph, outside) for ct in cotangents]

    program, out_axes, in_axes = _cotangent_types(graph, linear)
    branches = _branch_axes(graph, program)

    def backward(*blocks):
        known_blocks, cts = blocks[: len(known)], blocks[len(known) :]
        shares = [
            _share(ct, axes - _whole_or_split(s, graph), graph)
            for ct, axes, s in zip(cts, out_axes, graph.out_specs, strict=True)
        ]
        results = transpose(program, linear, known_blocks, shares, branches)
        sums = [
            _sum(x, axes - _whole_or_split(s, graph), graph)
            for x, axes, s in zip(results, in_axes, linear_specs, strict=True)
        ]
        if graph.check_vma:
            return sums
        # JAX sums them along all axes that specs leave out, and such sums are not weakly typed.
        manual = frozenset(graph.manual_axes)
        return [
            as_weak(x, False) if manual - specs.own_cotangent_axes(s) else x
            for x, s in zip(sums, linear_specs, strict=True)
        ]

    traced = retrace(
        graph,
        backward,
        [*known_specs, *map(specs.cotangent_spec, graph.out_specs)],
        [specs.cotangent_spec(s) for s in linear_specs],
        [jax.typeof(x) for x in (*known, *cotangents)],
        without_transpose,
        # The cotangent of a copy is that of the array.
        [*where([not m for m in linear], graph.inputs_are_equal), *[True] * len(cotangents)],
    )
    names = [f"residual {k}" for k in range(len(known))]
    names += [f"the cotangent of result [{k}]" for k in range(len(cotangents))]
    check_derived("gradient", graph, traced.graph, names)
    if _may_diverge(traced.graph):
        check_hangs(traced.graph, f"the gradient of `{graph.name}`", names)
    results = bind(traced.graph, *traced.constants, *known, *cotangents)
    if outside:
        rows = zip(results, where(linear, types), strict=True)
        results = [outer_types.summed(x, outside, t) for x, t in rows]
    results = iter(results)
    return [next(results) if is_linear else None for is_linear in linear]


def _branch_axes(graph: Graph, program: Jaxpr) -> BranchAxes:
    """Those of a program with the inputs of a graph; unknown if no region of it has branches."""
    if not any(names_any(region, ("cond",)) for region in _regions(program)):
        return UNKNOWN_AXES
    varying = [graph.replication.of(v) for v in open_jaxpr(graph.jaxpr).invars]
    return AxesOfProgram(graph.region, infer_program(graph.region, program, varying))


def _regions(program: Jaxpr) -> Iterator[Jaxpr]:
    for eqn in equations(program):
        if eqn.primitive.name in REGIONS:
            yield from jaxprs_in(eqn.params)


def _may_diverge(graph: Graph) -> bool:
    """Whether devices may diverge, so that rules of the user's may make collectives deadlock."""
    return names_any(graph.jaxpr, ("cond", "while"))


def _cotangent_types(
    graph: Graph, linear: Sequence[bool]
) -> tuple[Jaxpr, list[frozenset[str]], list[frozenset[str]]]:
    """(the program to transpose; the axes along which the cotangent of each output, and of each
    linear input, is a share of each device's own).

    With check_vma every value has axes of its own. Without it, all values have all axes: whatever a
    device computes counts as its own, whether other devices compute the same or not. Axes that the
    program does not use are left out: along them all devices compute the same.
    """
    manual = frozenset(graph.manual_axes)
    if not graph.check_vma:
        everything = manual & _used_axes(graph)
        return graph.jaxpr, [everything] * len(graph.out_specs), [everything] * sum(linear)
    program, out_axes = with_cotangent_types(graph, linear)
    linear_specs = [s for s, m in zip(graph.in_specs, linear, strict=True) if m]
    return (
        program,
        [axes & manual for axes in out_axes],
        [specs.own_cotangent_axes(s) for s in linear_specs],
    )


def _whole_or_split(spec: PartitionSpec, graph: Graph) -> frozenset[str]:
    """The axes along which the cotangent of an array is not made from the devices' shares.

    With check_vma the cotangent is each device's own also where the array is unreduced. Without it,
    as in JAX, an unreduced array counts as one that its spec replicates.
    """
    own = specs.own_cotangent_axes(spec)
    return own if graph.check_vma else own - spec.unreduced


def _used_axes(graph: Graph) -> Set[str]:
    """The axes that specs mention, and those that collectives name.

    All, if it calls backward rules of the user's, which may name any.
    """
    used: set[str] = set()
    for each in nested_graphs(graph):
        if names_any(each.jaxpr, [CUSTOM_LIN, HIGH_PRIMITIVE, "linear_call"]):
            return frozenset(graph.manual_axes)
        used.update(*map(specs.own_cotangent_axes, (*each.in_specs, *each.out_specs)))
        used.update(*map(jax_axes, equations(each.jaxpr)))
    return used


# A result that its spec replicates over n devices is one array. Where each device's copy has a
# cotangent of its own, that is 1/n of the cotangent of the array; and the cotangent of an argument
# replicated over n devices is the sum of those of its n copies.


def _share(cotangent: AnyValue, replicating: Set[str], graph: Graph) -> AnyValue:
    replicas = math.prod(graph.mesh.shape[a] for a in replicating)
    return cotangent / replicas if replicas > 1 else cotangent


def _sum(cotangent: AnyValue, replicating: Set[str], graph: Graph) -> AnyValue:
    axes = tuple(a for a in graph.mesh.axis_names if a in replicating)
    size = math.prod(graph.mesh.shape[a] for a in axes)
    return psum(cotangent, axes=axes, groups=None, size=size) if axes else cotangent


def _is_nonzero(tangent: object) -> bool:
    return type(tangent) is not ad.Zero and jax.typeof(tangent).dtype != jax.dtypes.float0


def _tangent_type(type_: Aval) -> Aval:
    return type_.to_tangent_aval()


def _zero(primal: AnyValue) -> ad.Zero:
    return ad.Zero(jax.typeof(primal).to_tangent_aval())


ad.primitive_jvps[shmap_p] = _jvp
pe.custom_partial_eval_rules[shmap_p] = _partial_eval
ad.primitive_transposes[shmap_p] = _transpose
