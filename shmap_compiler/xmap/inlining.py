"""Inlines small functions that the body calls through `jax.jit`.

Helpers of `jax.numpy` and `jax.nn` are jitted. To vmap such a call over each axis, and then to
differentiate it, JAX traces the program in it once for each, which takes longer than its few
equations do.
"""

from __future__ import annotations

from typing import Any

from jax.extend import core as jex_core
from jax.sharding import Sharding

from shmap_compiler.base.jax_compat import open_jaxpr
from shmap_compiler.base.jax_compat.name_stacks import within_scope
from shmap_compiler.base.untyped import Eqn, Parameter
from shmap_compiler.jaxprs.rewriting import copy_equations

_MOST_EQUATIONS = 8
"""Larger functions stay calls: several calls of one then share what is compiled of it."""


def inlined(call: Eqn) -> list[Eqn]:
    """The equations of a call by `jax.jit`, or the call itself if it is not small and plain."""
    program = open_jaxpr(call.params["jaxpr"])
    if len(program.eqns) > _MOST_EQUATIONS or not _is_plain(call.params) or program.constvars:
        return [call]
    made = {v for eqn in program.eqns for v in eqn.outvars}
    results = set(program.outvars) if all(map(_is_variable, program.outvars)) else set()
    if len(results) < len(program.outvars) or not results <= made:
        return [call]
    names: dict[Any, Any] = dict(zip(program.invars, call.invars, strict=True))
    names.update(zip(program.outvars, call.outvars, strict=True))
    scoped = within_scope(program, call.source_info.name_stack)
    return copy_equations(scoped.eqns, names)


def _is_plain(params: dict[str, Parameter]) -> bool:
    """Whether the call does nothing but call: no shardings, layouts, donations, options."""
    shardings = (*params["in_shardings"], *params["out_shardings"])
    layouts = (*params["in_layouts"], *params["out_layouts"])
    return not (
        any(isinstance(s, Sharding) for s in shardings)
        or any(layout is not None for layout in layouts)
        or any(params["donated_invars"])
        or params["compiler_options_kvs"]
    )


def _is_variable(atom: object) -> bool:
    return not isinstance(atom, jex_core.Literal)
