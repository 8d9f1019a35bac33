"""Makes programs from the equations of another one."""

from __future__ import annotations

from collections.abc import Sequence

from shmap_compiler.base.jax_compat import open_jaxpr, replace_jaxpr
from shmap_compiler.base.untyped import AnyValue, Atom, Eqn, Jaxpr


def with_equations(
    closed: Jaxpr, invars: Sequence[Atom], outvars: Sequence[Atom], eqns: list[Eqn]
) -> Jaxpr:
    """A program of some equations of `closed`, with the effects of these equations."""
    return replace_jaxpr(
        closed,
        invars=list(invars),
        outvars=list(outvars),
        eqns=eqns,
        effects={effect for eqn in eqns for effect in eqn.effects},
        debug_info=open_jaxpr(closed).debug_info.with_unknown_names(),
    )


def is_dropped(var: Atom) -> bool:
    """Whether a result of an equation is used nowhere."""
    return type(var).__name__ == "DropVar"


def where(mask: Sequence[bool], values: Sequence[AnyValue]) -> tuple[AnyValue, ...]:
    """The values at which `mask` is true."""
    return tuple(v for m, v in zip(mask, values, strict=True) if m)
