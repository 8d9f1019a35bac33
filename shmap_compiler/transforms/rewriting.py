"""Rewrites equations of a program and of the programs that it holds."""

from __future__ import annotations

import operator
from typing import Any

from shmap_compiler.base.jax_compat import Eqn, Jaxpr, open_jaxpr, replace_jaxpr, replace_jaxprs_in
from shmap_compiler.transforms.split import named, renamed

REGIONS = ("checkpoint", "remat2")
"""Names of JAX's primitive for `jax.checkpoint`."""

HOLDERS = (*REGIONS, "scan", "jit", "pjit", "closed_call", "core_call", "eval_jaxpr")
"""Names of primitives whose rules follow those of the equations that they hold."""


class Rewriting:
    """Rewrites the equations of a program and of those it holds; a shared program stays shared."""

    def __init__(self):
        self._known: dict[int, tuple[Any, Any]] = {}

    def jaxpr(self, jaxpr: Jaxpr) -> Any:
        if id(jaxpr) not in self._known:
            self._known[id(jaxpr)] = jaxpr, self._rewritten(jaxpr)
        return self._known[id(jaxpr)][1]

    def _rewritten(self, jaxpr: Jaxpr) -> Any:
        inner = open_jaxpr(jaxpr)
        names: dict[Any, Any] = {}
        eqns = [step for eqn in inner.eqns for step in self.equation(renamed(eqn, names), names)]
        if len(eqns) == len(inner.eqns) and all(map(operator.is_, eqns, inner.eqns)):
            return jaxpr
        outvars = [named(v, names) for v in inner.outvars]
        return replace_jaxpr(jaxpr, eqns=eqns, outvars=outvars)

    def equation(self, eqn: Eqn, names: dict[Any, Any]) -> list[Any]:
        """The equations that take the place of `eqn`, or names for its results in `names`."""
        params = replace_jaxprs_in(eqn.params, self.jaxpr)
        return [eqn if params is eqn.params else eqn.replace(params=params)]
