"""The derivative rules in a jitted program.

`jax.lax.stop_gradient`, `jax.custom_jvp` and `jax.custom_vjp` change derivatives, and no values, so
what XLA compiles has none of them.
"""

from __future__ import annotations

from shmap_compiler.base.jax_compat import HIGH_PRIMITIVE, has_usual_rule
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.untyped import Eqn, Jaxpr
from shmap_compiler.jaxprs.contents import equations, names_any
from shmap_compiler.jaxprs.held_programs import CUSTOM_JVP, CUSTOM_VJP, LINEAR_CALL

_RULES = {
    "stop_gradient": "jax.lax.stop_gradient",
    CUSTOM_JVP: "jax.custom_jvp",
    CUSTOM_VJP: "jax.custom_vjp",
    HIGH_PRIMITIVE: "a function with a rule",
    LINEAR_CALL: "jax.custom_derivatives.linear_call",
    "custom_linear_solve": "jax.lax.custom_linear_solve",
    "random_gamma": "jax.random.gamma",
}


def rules_of(jaxpr: Jaxpr) -> tuple[str, ...]:
    """The lines with derivative rules in a program and those nested in it, except JAX's usual ones.

    Returns:
      Texts such as "train.py:12 (loss): jax.lax.stop_gradient".
    """
    if not names_any(jaxpr, tuple(_RULES)):
        return ()
    found = (each for each in equations(jaxpr) if each.primitive.name in _RULES)
    return tuple(dict.fromkeys(_shown(each) for each in found if not has_usual_rule(each)))


def _shown(eqn: Eqn) -> str:
    place, rule = source_line(eqn), _RULES[eqn.primitive.name]
    return f"{place}: {rule}" if place else rule
