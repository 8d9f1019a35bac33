"""An xmap with mesh axes inside an xmap: one equation, placed together with the outer one.

Its mesh axes are those of the outer call's mesh, so it can only be placed inside the outer
`shard_map`, and its collectives may name axes of the outer xmap.
"""

from __future__ import annotations

import dataclasses

import jax
from jax.extend import core as jex_core
from jax.extend.core import Primitive
from jax.interpreters import ad, batching

from shmap_compiler.base.errors import BodyError, Problem
from shmap_compiler.base.jax_compat import close_jaxpr, shaped_array, trace_in_scope
from shmap_compiler.base.untyped import AnyValue
from shmap_compiler.xmap.axes import AxisMapping
from shmap_compiler.xmap.named_jaxpr import NamedJaxpr

region_p = Primitive("xmap")
region_p.multiple_results = True


def bind(program: NamedJaxpr, *args: AnyValue) -> list[AnyValue]:
    """Applies a program to full arrays, after the values of its constants."""
    return region_p.bind(*args, program=program, jaxpr=program.jaxpr)


def _type(*types, program, jaxpr):
    outs = zip(program.out_shapes, jaxpr.jaxpr.outvars, strict=True)
    return [shaped_array(s, v.aval.dtype, v.aval.weak_type) for s, v in outs], program.effects


def _batch(axis, args, dims, *, program, jaxpr):
    """The named program, vmapped: the batch is its first dimension without a name."""
    args = [
        x if d is None else jax.numpy.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True)
    ]
    at = [None if d is None else 0 for d in dims]
    mapped = jax.vmap(jex_core.jaxpr_as_fun(jaxpr), at, 0, axis_name=axis.name, axis_size=axis.size)
    types = []
    for v, d in zip(jaxpr.jaxpr.invars, at, strict=True):
        shape = v.aval.shape if d is None else (axis.size, *v.aval.shape)
        types.append(shaped_array(shape, v.aval.dtype, v.aval.weak_type))
    batched = close_jaxpr(trace_in_scope(mapped, tuple(program.sizes.items()), types))
    whole = len(program.constants)
    ins = zip(program.in_mappings, at[whole:], strict=True)
    new = dataclasses.replace(
        program,
        jaxpr=batched,
        in_mappings=tuple(m if d is None else _moved(m) for m, d in ins),
        out_mappings=tuple(map(_moved, program.out_mappings)),
    )
    return bind(new, *args), [0] * len(program.out_mappings)


def _moved(mapping: AxisMapping) -> AxisMapping:
    """The mapping of arrays with a new first dimension."""
    positions = tuple((name, at + 1) for name, at in mapping.positions)
    rank = None if mapping.rank is None else mapping.rank + 1
    return dataclasses.replace(mapping, positions=positions, rank=rank)


def _refuse_derivative(primals, tangents, *, program, jaxpr):
    raise BodyError(program.who, [_DIFFERENTIATED])


_DIFFERENTIATED = Problem(
    "a derivative taken inside an xmap",
    "the derivative of an xmap with mesh axes, inside the function of another xmap",
    "a derivative of the outer xmap, or an inner xmap without mesh axes: derivatives are taken of "
    "placed programs, and the inner xmap is placed with the outer one",
    "differentiate the function that calls the outer xmap, or leave the axes of the inner one "
    "without resources",
)

region_p.def_effectful_abstract_eval(_type)
ad.primitive_jvps[region_p] = _refuse_derivative
batching.fancy_primitive_batchers[region_p] = _batch
