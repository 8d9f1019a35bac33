"""Splits a program in two: one that runs now, and one that runs later and takes residuals.

A derivative splits a program of values and tangents: values are computed now, tangents later.
`jax.checkpoint` splits a program of known and unknown values under a policy. `halves` makes Graphs
of the two programs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend import core as jex_core
from jax.interpreters import partial_eval as pe

from shmap_compiler.base.jax_compat import (
    axis_of_effect,
    offload_spaces,
    open_jaxpr,
    policy_saves,
    replace_jaxpr,
)
from shmap_compiler.base.untyped import AnyValue, Atom, Eqn, Function, Jaxpr, Setting
from shmap_compiler.jaxprs.building import where, with_equations


@dataclass(frozen=True)
class Split:
    """The two halves of a program.

    Attributes:
      known: known inputs -> known outputs, then residuals.
      staged: residuals, then instantiated inputs -> instantiated outputs.
      unknown_out, instantiated_out: which outputs of the program are so.
    """

    known: Jaxpr
    staged: Jaxpr
    unknown_out: list[bool]
    instantiated_out: list[bool]

    def with_unknown_outputs_only(self) -> Split:
        """Without the outputs of the staged half that the known half has, too."""
        both = zip(self.unknown_out, self.instantiated_out, strict=True)
        kept = [u for u, i in both if i]
        outvars = list(where(kept, open_jaxpr(self.staged).outvars))
        return dataclasses.replace(
            self,
            staged=replace_jaxpr(self.staged, outvars=outvars),
            instantiated_out=list(self.unknown_out),
        )


def split(
    closed: Jaxpr,
    unknown_in: Sequence[bool],
    instantiated_in: Sequence[bool],
    saveable: Function,
) -> Split:
    """Splits a program under a checkpoint policy, with the mesh of the program in scope.

    A value is unknown if it depends on unknown inputs. It is instantiated if the staged program has
    it, as an input or recomputed. Other values that staged equations read are residuals.
    """
    jaxpr = open_jaxpr(closed)
    state = {v: (u, i) for v, u, i in zip(jaxpr.invars, unknown_in, instantiated_in, strict=True)}
    residuals: dict[Any, None] = {}
    known, staged = [], []

    def read(atom):
        return state[atom] if isinstance(atom, jex_core.Var) else (False, True)

    def stage(eqn):
        for atom in eqn.invars:
            if not read(atom)[1]:
                residuals[atom] = None
        staged.append(eqn)

    for eqn in jaxpr.eqns:
        unknown = [read(v)[0] for v in eqn.invars]
        rule = pe.partial_eval_jaxpr_custom_rules.get(eqn.primitive)
        if rule is not None and (any(unknown) or saveable is not save_everything):
            instantiated = [read(v)[1] for v in eqn.invars]
            now, later, unknown_out, instantiated_out, extra = rule(
                saveable, unknown, instantiated, eqn
            )
            known += [now] if now is not None else []
            staged += [later] if later is not None else []
            residuals.update(dict.fromkeys(extra))
            state.update(
                zip(eqn.outvars, zip(unknown_out, instantiated_out, strict=True), strict=True)
            )
        elif any(unknown):
            stage(eqn)
            state.update(dict.fromkeys(eqn.outvars, (True, True)))
        else:
            known.append(eqn)
            decision = saveable(eqn.primitive, *[v.aval for v in eqn.invars], **eqn.params)
            save = _has_effects(eqn) or policy_saves(decision)
            if not save and (spaces := offload_spaces(decision)):
                away, back = _offload(eqn.outvars, *spaces)
                known += away
                staged += back
                residuals.update(dict.fromkeys(v for step in away for v in step.outvars))
            elif not save:
                stage(eqn)
            state.update(dict.fromkeys(eqn.outvars, (False, not save)))

    unknown_out = [read(v)[0] for v in jaxpr.outvars]
    instantiated_out = [read(v)[1] for v in jaxpr.outvars]
    known_in = [not u for u in unknown_in]
    known_out = [not u for u in unknown_out]
    return Split(
        known=with_equations(
            closed,
            where(known_in, jaxpr.invars),
            [*where(known_out, jaxpr.outvars), *residuals],
            known,
        ),
        staged=with_equations(
            closed,
            [*residuals, *where(instantiated_in, jaxpr.invars)],
            where(instantiated_out, jaxpr.outvars),
            staged,
        ),
        unknown_out=unknown_out,
        instantiated_out=instantiated_out,
    )


def _offload(
    values: Sequence[Atom], kept_in: Setting, offloaded_to: Setting
) -> tuple[list[Eqn], list[Eqn]]:
    """The equations that move values to another memory space, and those that move them back."""
    away, back = [], []
    for value in values:
        step = _moved(value, offloaded_to)
        away.append(step)
        back.append(_moved(step.outvars[0], kept_in).replace(outvars=[value]))
    return away, back


def _moved(value: Atom, space: Setting) -> Eqn:
    move = functools.partial(jax.device_put, device=space, may_alias=False)
    (template,) = open_jaxpr(jax.make_jaxpr(move)(value.aval)).eqns
    return template.replace(invars=[value], outvars=[jex_core.Var(template.outvars[0].aval)])


def save_everything(*_: AnyValue, **__: AnyValue) -> bool:
    """The policy under which the staged program recomputes nothing."""
    return True


def _has_effects(eqn: Eqn) -> bool:
    return any(axis_of_effect(e) is None for e in eqn.effects)
