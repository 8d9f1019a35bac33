"""psum, pmax and pmin: every device of a group receives the reduction over the group."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad
from jax.interpreters.mlir import ir
from jaxlib.mlir.dialects import stablehlo as hlo

from shmap_compiler.base.untyped import Function
from shmap_compiler.collectives import rows, split_axes
from shmap_compiler.collectives.base import (
    DeviceGroups,
    define,
    fill_reduction,
    replica_groups,
    same_dimension_batcher,
)
from shmap_compiler.collectives.extremum_derivative import define_derivative, define_in_bodies
from shmap_compiler.collectives.jax_params import group_params, named_axes
from shmap_compiler.collectives.record import (
    NO_KEYS,
    RANDOM_KEYS,
    Collective,
    Combines,
    JaxForm,
    Refusal,
    Result,
    Waits,
)

psum_p = Primitive("psum")
pmax_p = Primitive("pmax")
pmin_p = Primitive("pmin")


def psum(x: jax.Array, *, axes: tuple[str, ...], groups: DeviceGroups, size: int) -> jax.Array:
    return psum_p.bind(x, axes=axes, groups=groups, size=size)


def pmax(x: jax.Array, *, axes: tuple[str, ...], groups: DeviceGroups, size: int) -> jax.Array:
    return pmax_p.bind(x, axes=axes, groups=groups, size=size)


def pmin(x: jax.Array, *, axes: tuple[str, ...], groups: DeviceGroups, size: int) -> jax.Array:
    return pmin_p.bind(x, axes=axes, groups=groups, size=size)


def _type(x, *, axes, groups, size):
    return x


def _lowering(combine):
    def lowering(ctx, x, *, axes, groups, size):
        op = hlo.AllReduceOp([x.type], [x], replica_groups(ctx, axes, groups))
        fill_reduction(op, ir.RankedTensorType(x.type).element_type, combine)
        return op.results

    return lowering


def _psum_transpose(ct, x, **params):
    return [ct if type(ct) is ad.Zero else psum(ct, **params)]


# ---------------------------------------------------------------------------------- JAX's forms


def _expansion(named: Function, positional: Function):
    def expansion(params, sizes):
        dims = tuple(a for a in named_axes(params) if isinstance(a, int))
        group = group_params(params, sizes)

        def fun(x):
            x = positional(x, dims) if dims else x
            return named(x, **group) if group["axes"] else x

        return fun

    return expansion


def _expand_named_psum(params, sizes):
    group = group_params(params, sizes)
    return lambda x: psum(x, **group)


def _split(reduce: Function, positional: Function):
    def rule(axis, x, *, axes, axis_index_groups=None):
        dims = tuple(a + 1 for a in axes if isinstance(a, int))
        x = positional(x, dims) if dims else x
        if axis_index_groups is not None:
            return split_axes.grouped(lax_reduction, x, axis, axis_index_groups)
        return reduce(x, axis), None

    lax_reduction = getattr(lax, reduce.__name__)
    return rule


def _sum_dimensions(x, dims):
    return jnp.sum(x, dims, dtype=x.dtype)


def _extremum_forms(name, named, positional, split):
    expansion = _expansion(named, positional)
    return (
        JaxForm(
            name,
            expansion,
            _split(split, positional),
            positional=True,
            jax_batches=False,  # to an extremum without a derivative
            register_derivative=define_in_bodies,
        ),
        JaxForm(f"unreduced_{name}", expansion),
    )


# ------------------------------------------------------------------------------------- records


for _primitive, _combine in ((psum_p, hlo.add), (pmax_p, hlo.maximum), (pmin_p, hlo.minimum)):
    define(_primitive, _type, _lowering(_combine), same_dimension_batcher(_primitive))
ad.deflinear2(psum_p, _psum_transpose)
for _primitive in (pmax_p, pmin_p):
    define_derivative(_primitive, psum)

PSUM = Collective(
    primitive=psum_p,
    result=Result.SAME,
    waits=Waits.GROUP,
    hlo="all-reduce",
    forms=(
        JaxForm(
            "psum",
            _expansion(psum, _sum_dimensions),
            _split(split_axes.psum, _sum_dimensions),
            positional=True,
        ),
        JaxForm(
            "psum_invariant",
            _expand_named_psum,
            _split(split_axes.psum, _sum_dimensions),
            jax_batches=False,  # unless types of varying values are on
        ),
        JaxForm("unreduced_psum", _expand_named_psum),
        JaxForm("shmap_psum_invariant", _expand_named_psum),
    ),
    on_rows=rows.reduction(rows.SUM),
    functions=("psum", "pmean"),
    combines=Combines.SUM,
    transpose=psum_p,
    invariant_in_jax=True,
    unequal_groups=True,
    refused_types={RANDOM_KEYS: NO_KEYS},
)


def _extremum(primitive, named, positional, split, fold) -> Collective:
    name = primitive.name
    unordered = Refusal(
        "an operand of complex numbers",
        "numbers with an order",
        f"apply {name} to the absolute values, or to real and imaginary parts",
    )
    return Collective(
        primitive=primitive,
        result=Result.SAME,
        waits=Waits.GROUP,
        hlo="all-reduce",
        forms=_extremum_forms(name, named, positional, split),
        on_rows=rows.reduction(fold),
        functions=(name,),
        invariant_in_jax=True,
        unequal_groups=True,
        refused_types={"c": unordered, RANDOM_KEYS: NO_KEYS},
        xla_rejects=lambda result: jnp.issubdtype(result.dtype, jnp.complexfloating),
    )


PMAX = _extremum(pmax_p, pmax, jnp.max, split_axes.pmax, rows.MAX)
PMIN = _extremum(pmin_p, pmin, jnp.min, split_axes.pmin, rows.MIN)
