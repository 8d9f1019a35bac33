"""Moves a traced program from the mesh on which it was typed to the one on which it is placed.

Collectives whose results JAX types as equal on all devices become those that it uses without types:
it evaluates the placed program, in which values have none. Derivative rules are traced later, on
the types with which their functions were.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core as jex_core
from jax.extend import linear_util
from jax.sharding import AbstractMesh, NamedSharding

from shmap_compiler.base.jax_compat import (
    equation_context,
    open_jaxpr,
    replace_jaxpr,
    replace_jaxprs_in,
    run_with_axes,
    trace_in_scope,
    type_on_mesh,
    with_types_in,
)
from shmap_compiler.base.untyped import Atom, Aval, Eqn, Jaxpr, Parameter, Setting, Wrapped
from shmap_compiler.jaxprs.rewriting import Rewriter
from shmap_compiler.tracing.vma_erasure import call_on_mesh, with_types_by_need


def retyped(jaxpr: Jaxpr, typed_on: AbstractMesh, mesh: AbstractMesh) -> Aval:
    """The program on types of `mesh`, in whose scope its equations are evaluated.

    Args:
      typed_on: the mesh of its types, all of whose axes are manual.
    """
    with jax.sharding.use_abstract_mesh(mesh):
        probe = trace_in_scope(jnp.sin, (), [type_on_mesh(mesh, (), (), jnp.float32, False)])
    return _Retyping(typed_on, mesh, equation_context(open_jaxpr(probe).eqns[0])).jaxpr(jaxpr)


class _Retyping(Rewriter):
    def __init__(self, typed_on: AbstractMesh, mesh: AbstractMesh, context: Setting):
        super().__init__()
        self.typed_on = typed_on
        self.mesh = mesh
        self.context = context

    def rewrite(self, jaxpr: Jaxpr) -> Jaxpr:
        inner = open_jaxpr(jaxpr)
        replaced: dict[Any, Any] = {}

        def atom(old: Atom) -> Atom:
            return (
                self.literal(old) if isinstance(old, jex_core.Literal) else replaced.get(old, old)
            )

        def define(old: Atom) -> Atom:
            if (type_ := self.type(old.aval)) is not old.aval:
                replaced[old] = type(old)(type_)
            return atom(old)

        constvars, invars = ([define(v) for v in row] for row in (inner.constvars, inner.invars))
        eqns = [
            eqn.replace(
                primitive=_UNTYPED.get(eqn.primitive.name, eqn.primitive),
                invars=[atom(v) for v in eqn.invars],
                outvars=[define(v) for v in eqn.outvars],
                params=self.params(eqn),
                ctx=self.context,
            )
            for eqn in inner.eqns
        ]
        outvars = [atom(v) for v in inner.outvars]
        return replace_jaxpr(jaxpr, constvars=constvars, invars=invars, eqns=eqns, outvars=outvars)

    def type(self, old: Aval) -> Aval:
        if not isinstance(getattr(old, "sharding", None), NamedSharding):
            return old
        return type_on_mesh(self.mesh, (), old.shape, old.dtype, old.weak_type)

    def literal(self, old: jex_core.Literal) -> jex_core.Literal:
        t: Any = old.aval
        sharding = getattr(t, "sharding", None)
        if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
            return old
        value = np.asarray(old.val)  # without its type, which is on the other mesh
        new = type_on_mesh(self.mesh, (), t.shape, t.dtype, t.weak_type)
        return jex_core.Literal(value.item() if t.weak_type else value, new)

    def params(self, eqn: Eqn) -> dict[str, Parameter]:
        params = replace_jaxprs_in(with_types_in(eqn, self.type), self.jaxpr)
        groups = {"axis_index_groups": None} if eqn.primitive.name == _INVARIANT_SUM else {}
        rules = {k: self.traced_later(params[k]) for k in _TRACED_LATER if k in params}
        rules |= {k: self.called_later(params[k]) for k in _CALLED_LATER if k in params}
        return {k: None if _is_split(v) else v for k, v in params.items()} | groups | rules

    def traced_later(self, rule: Wrapped) -> Wrapped:
        """A derivative rule that JAX traces with the types with which it traced the function."""
        typed_on, mesh = self.typed_on, self.mesh  # without what this object remembers

        def trace(*args):
            run = partial(rule.call_wrapped, *args)
            jaxpr, *rest = run_with_axes(run, typed_on, typed_on.axis_names)
            return retyped(jaxpr, typed_on, mesh), *rest

        return linear_util.wrap_init(trace, debug_info=rule.debug_info)

    def called_later(self, rule: Wrapped) -> Wrapped:
        """A backward rule, which may cast."""
        typed_on, mesh = self.typed_on, self.mesh

        def run(*args):
            types = [type_on_mesh(typed_on, (), x.shape, x.dtype, False) for x in args]
            place = partial(retyped, typed_on=typed_on, mesh=mesh)
            call = partial(call_on_mesh, rule, args, typed_on, types, place)
            return with_types_by_need(partial(call, typed=False), partial(call, typed=True))

        return linear_util.wrap_init(run, debug_info=rule.debug_info)


_INVARIANT_SUM = "psum_invariant"

_TRACED_LATER = ("jvp_jaxpr_fun", "fwd_jaxpr_thunk")
"""Parameters that are derivative rules, whose programs JAX asks for when it differentiates."""

_CALLED_LATER = ("bwd",)
"""Those that it calls then."""

_UNTYPED = {_INVARIANT_SUM: lax.psum_p, "all_gather_invariant": lax.all_gather_p}
"""By the name of a collective of typed programs, the one without types."""


def _is_split(value: object) -> bool:
    """Whether a parameter is a sharding on the mesh of the types, which is no mesh of devices."""
    return isinstance(value, NamedSharding) and isinstance(value.mesh, AbstractMesh)
