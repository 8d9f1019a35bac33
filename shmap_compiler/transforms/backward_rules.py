"""What the backward rules of `custom_vjp` functions take and return.

In JAX with check_vma such a rule works on values as their types say: along an axis along which an
operand or a result varies, its cotangent is each device's own; along all others every device has
the whole of it. So a rule that people write sums by itself, with psum over the devices, what they
owe a weight that is equal on all of them. `with_types` notes these types before a derivative is
taken, as they are known of the function, and not of its linear program.

A rule made by `jax.vjp` of a function with psum or psum_scatter is another thing: we trace it
without such types, and then these transpose to psum and all_gather, which is right where every
cotangent is a share of each device's own (`sums_shares`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from jax.extend import core as jex_core
from jax.extend import linear_util

from shmap_compiler import collectives as coll
from shmap_compiler import specs
from shmap_compiler._compat import (
    is_jaxpr,
    open_jaxpr,
    replace_jaxpr,
    trace_with_axes,
    with_manual_axes,
)
from shmap_compiler.graph import Graph, equations
from shmap_compiler.normalize import normalize
from shmap_compiler.replication.collective_rules import mask_of_type
from shmap_compiler.replication.inference import Frame, Replication, infer_program

Axes = frozenset[str]

PRIMITIVE = "custom_lin"
"""What a forward derivative puts where the rule will be called."""

_FUNCTION = "custom_vjp_call"


# ------------------------------------------------------------------------------- noting the types


@dataclass(frozen=True)
class _TypedRule:
    """A backward rule, and along which axes the function's operands and results vary."""

    rule: Any
    operands: tuple[Axes, ...]
    results: tuple[Axes, ...]

    def __call__(self, *args: Any) -> Any:
        return self.rule.call_wrapped(*args)


def with_types(graph: Graph) -> Callable[..., list[Any]]:
    """`graph.fun`, in which each backward rule knows its types."""
    if not any(eqn.primitive.name == _FUNCTION for eqn in equations(graph.jaxpr)):
        return graph.fun
    outside = set(graph.outer_manual_axes)
    inputs = [{*specs.mentioned(s), *outside} for s in graph.in_specs]
    types = infer_program(graph, graph.jaxpr, inputs, mask_of_type)
    return jex_core.jaxpr_as_fun(_noted(graph.jaxpr, types.frame, types, {}))


def _noted(jaxpr: Any, frame: Frame, types: Replication, known: dict[int, Any]) -> Any:
    """
    Args:
      known: by the identity of its frame, a program held by several equations alike.
    """
    if id(frame) not in known:
        eqns = [
            _noted_in(eqn, frame, *frame.nested.get(position, (None, ())), types, known)
            for position, eqn in enumerate(open_jaxpr(jaxpr).eqns)
        ]
        known[id(frame)] = replace_jaxpr(jaxpr, eqns=eqns)
    return known[id(frame)]


def _noted_in(
    eqn: Any,
    frame: Frame,
    wiring: Any,
    frames: Sequence[Frame],
    types: Replication,
    known: dict[int, Any],
) -> Any:
    if eqn.primitive.name == _FUNCTION:
        return eqn.replace(params={**eqn.params, "bwd": _typed(eqn, frame, types)})
    if wiring is None:
        return eqn
    inner = {id(p.jaxpr): f for p, f in zip(wiring.programs, frames, strict=True)}

    def noted(value: Any) -> Any:
        if is_jaxpr(value) and id(open_jaxpr(value)) in inner:
            return _noted(value, inner[id(open_jaxpr(value))], types, known)
        if isinstance(value, tuple) and any(map(is_jaxpr, value)):
            return tuple(map(noted, value))
        return value

    return eqn.replace(params={k: noted(v) for k, v in eqn.params.items()})


def _typed(eqn: Any, frame: Frame, types: Replication) -> Any:
    def axes(atoms: Sequence[Any]) -> tuple[Axes, ...]:
        return tuple(frozenset(types.axes.names(frame.mask(v))) for v in atoms)

    rule = eqn.params["bwd"]
    typed = _TypedRule(rule, axes(eqn.invars), axes(eqn.outvars))
    return linear_util.wrap_init(typed, debug_info=rule.debug_info)


# ------------------------------------------------------------------------------ reading the rules


@dataclass(frozen=True)
class BackwardRule:
    """The rule that an equation of a linear program will call."""

    graph: Graph
    eqn: Any

    @cached_property
    def _program(self) -> Any:
        """From residuals and the cotangents of results to those of operands that move."""
        eqn, count = self.eqn, self.eqn.params["num_res"]

        def backward(*blocks):
            def linear(*tangents):
                return eqn.primitive.bind(*blocks[:count], *tangents, **eqn.params)

            types = [v.aval for v in eqn.invars[count:]]
            return jax.linear_transpose(linear, *types)(list(blocks[count:]))

        axes = self.graph.all_manual_axes
        mesh = with_manual_axes(self.graph.mesh, axes)
        types = [v.aval for v in (*eqn.invars[:count], *eqn.outvars)]
        traced = trace_with_axes(backward, mesh, self.graph.manual_axes, types)
        return normalize(traced, mesh, axes, f"`{self.graph.name}`")

    def returned(self, residuals: Sequence[Axes], cotangents: Sequence[Axes]) -> tuple[Axes, ...]:
        """The axes along which the cotangents vary that it returns.

        Args:
          residuals, cotangents: those along which what it is called with does.
        """
        return infer_program(self.graph, self._program, [*residuals, *cotangents]).outputs

    @property
    def operands(self) -> list[Axes] | None:
        """The axes along which the operands vary that move; None if that is not known."""
        typed = self._typed
        if typed is None:
            return None
        still = self.eqn.params["in_zeros"]
        return [axes for axes, zero in zip(typed.operands, still, strict=True) if not zero]

    @property
    def results(self) -> list[Axes] | None:
        """The axes along which the results vary; None if that is not known."""
        return None if self._typed is None else list(self._typed.results)

    @property
    def _typed(self) -> _TypedRule | None:
        rule = self.eqn.params["bwd"].f
        return rule if isinstance(rule, _TypedRule) else None

    @cached_property
    def sums_shares(self) -> bool:
        """Whether `jax.vjp` made a psum in it, or an all_gather, from a psum_scatter."""
        made = (coll.psum_p, coll.all_gather_p)
        program = equations(self._program)
        return any(eqn.primitive in made and _is_transposed(eqn) for eqn in program)

    def sums_whole(self) -> Axes:
        """The axes over which it sums cotangents by itself."""
        count = self.eqn.params["num_res"]
        mark = frozenset(self.graph.all_manual_axes[:1])
        inputs = [frozenset()] * count + [mark] * len(self.eqn.outvars)
        marked = infer_program(self.graph, self._program, inputs, lambda eqn, mask, axes: mask)
        own = (eqn for eqn in self._sums if not _is_transposed(eqn) and marked.of(eqn.invars[0]))
        return frozenset(axis for eqn in own for axis in eqn.params["axes"])

    @property
    def _sums(self) -> list[Any]:
        return [eqn for eqn in equations(self._program) if eqn.primitive is coll.psum_p]


def _is_transposed(eqn: Any) -> bool:
    """Whether `jax.vjp` made an equation of a rule, which is itself called by a transposition."""
    return str(eqn.source_info.name_stack).count("transpose(") > 1
