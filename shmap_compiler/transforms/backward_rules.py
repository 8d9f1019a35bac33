"""What the backward rules of `custom_vjp` functions take and return.

A rule works on cotangents of the types that JAX gives them (`rule_types`): along an axis along
which an operand or a result varies, its cotangent is each device's own; along all other axes every
device has the whole cotangent. So a rule that is written by hand sums, with a psum over devices,
their contributions to the gradient of a weight that is equal on all of them.

A rule made by `jax.vjp` of a function with psum or psum_scatter is different: it is traced without
such types, and then these transpose to psum and all_gather, which is right where every cotangent is
a share of each device's own (`sums_shares`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import jax
from jax.extend import core as jex_core
from jax.extend import linear_util

from shmap_compiler import collectives as coll
from shmap_compiler.base.jax_compat import (
    defining_file,
    is_defined_in_jax,
    open_jaxpr,
    trace_with_axes,
    varying_types,
)
from shmap_compiler.base.jax_compat.name_stacks import transforms
from shmap_compiler.base.meshes import Axes
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.untyped import AnyValue, Atom, Eqn, Function, Jaxpr
from shmap_compiler.base.values import has_tangent
from shmap_compiler.graph.graph import Graph
from shmap_compiler.jaxprs.building import where
from shmap_compiler.jaxprs.contents import equations
from shmap_compiler.jaxprs.transposed import uses_transposed
from shmap_compiler.replication.frames import Replication
from shmap_compiler.replication.inference import infer_program, infer_types
from shmap_compiler.replication.typed_rule import TypedRule
from shmap_compiler.tracing.canonicalize_collectives import normalize
from shmap_compiler.tracing.vma_erasure import with_types_of
from shmap_compiler.tracing.vma_typing import REFUSALS


def of_one_position(backward: Function) -> Function:
    """A backward rule that works on one position of named axes, which devices share out.

    A derivative in it is that of this position, whatever varies along the axes of the mesh.
    """

    def rule(residuals, cotangents):
        return backward(residuals, cotangents)

    return rule


_OF_ONE_POSITION = of_one_position.__code__.co_filename
"""The file that defines such a rule."""


@dataclass(frozen=True)
class BackwardRule:
    """The rule that an equation of a linear program will call.

    Attributes:
      has_types: whether it is traced with JAX's types of varying values.
    """

    graph: Graph
    eqn: Eqn
    has_types: bool = False

    @cached_property
    def _program(self) -> Jaxpr:
        """From residuals and the cotangents of results to those of differentiated operands."""
        eqn, count = self.eqn, self.eqn.params["num_res"]

        inexact = [has_tangent(v.aval) for v in eqn.outvars]

        def backward(*blocks):
            residuals = self._with_literals(blocks[:count])

            def linear(*tangents):
                return where(inexact, eqn.primitive.bind(*residuals, *tangents, **eqn.params))

            types = [v.aval for v in eqn.invars[count:]]
            return jax.linear_transpose(linear, *types)(where(inexact, blocks[count:]))

        return self._traced(backward, self.graph.manual_axes)

    def line(self, eqn: Eqn) -> str:
        """The user's line of a collective of the rule."""

        count = self.eqn.params["num_res"]

        def backward(*blocks):
            residuals = self._with_literals(blocks[:count])
            self.eqn.params["bwd"].call_wrapped(*residuals, *blocks[count:])
            return ()

        def traced():
            with varying_types(False):
                return self._traced(backward, self.graph.all_manual_axes)

        # While JAX transposes, all equations of the thread get the source line of the call. In
        # another thread, the rule is called directly, where no axes of an outer one are in scope.
        with ThreadPoolExecutor(1) as thread:
            called = _collectives(thread.submit(traced).result())
        own = _collectives(self._program)
        if [e.primitive for e in called] != [e.primitive for e in own]:
            return "an unknown line"
        return next(source_line(c) for c, e in zip(called, own, strict=True) if e is eqn)

    def _with_literals(self, residuals: Sequence[AnyValue]) -> list[AnyValue]:
        """The residuals, with the values of constants, which the rule may read as in JAX."""
        rows = zip(self.eqn.invars, residuals, strict=False)
        return [v.val if isinstance(v, jex_core.Literal) else x for v, x in rows]

    def _traced(self, backward: Function, axes: Sequence[str]) -> Jaxpr:
        """The program of a function of residuals and cotangents.

        Args:
          axes: the manual axes that are not in scope yet.
        """
        graph, count = self.graph, self.eqn.params["num_res"]
        types = [v.aval for v in (*self.eqn.invars[:count], *self.eqn.outvars)]
        traced = trace_with_axes(backward, graph.body_mesh, axes, types)
        return normalize(traced, graph.body_mesh, graph.all_manual_axes, f"`{graph.name}`")

    def returned(self, residuals: Sequence[Axes], cotangents: Sequence[Axes]) -> tuple[Axes, ...]:
        """The axes along which the cotangents that the rule returns vary.

        Args:
          residuals, cotangents: the axes along which its arguments vary.
        """
        return infer_program(self.graph.region, self._program, [*residuals, *cotangents]).outputs

    @property
    def operands(self) -> list[Axes] | None:
        """The axes along which each differentiated operand varies; None if they are unknown."""
        typed = self._typed
        if typed is None:
            return None
        in_zeros = self.eqn.params["in_zeros"]
        rows = zip(typed.operands, in_zeros, strict=True)
        return [self._of_several(axes) for axes, zero in rows if not zero]

    @property
    def results(self) -> list[Axes] | None:
        """The axes along which each result varies; None if they are unknown."""
        return None if self._typed is None else [*map(self._of_several, self._typed.results)]

    @property
    def residuals(self) -> list[Axes]:
        """The axes along which the residuals vary by their types, which must be known."""
        assert self._typed is not None
        return [*map(self._of_several, self._typed.residuals)]

    def residuals_inside(self, alone: Sequence[Axes]) -> list[Axes]:
        """The axes along which the residuals vary, in a Graph inside of another one.

        Args:
          alone: those along which they vary if the Graph is on its own, where any input may vary
            along the axes of the enclosing ones.
        """
        outer = frozenset(self.graph.outer_manual_axes)
        rows = zip(alone, self.residuals, strict=True)
        return [found - (outer - typed) for found, typed in rows]

    def _of_several(self, axes: Axes) -> Axes:
        """Those axes of a type along which there are several devices: nothing else can differ."""
        return frozenset(a for a in axes if self.graph.mesh.shape[a] > 1)

    @property
    def _typed(self) -> TypedRule | None:
        rule = self.eqn.params["bwd"].f
        return rule if isinstance(rule, TypedRule) else None

    @cached_property
    def sums_shares(self) -> bool:
        """Whether it has a transpose of a sum that `jax.vjp` made: a psum or an all_gather."""
        if self.has_types:
            return False
        program = equations(self._program)
        return any(eqn.primitive in _TRANSPOSED_SUMS and is_transposed(eqn) for eqn in program)

    @cached_property
    def fails_without_types(self) -> bool:
        """Whether it cannot be traced without JAX's types.

        If its forward rule was traced with types, it may have saved a function that `jax.vjp` or
        `jax.linearize` returned, which takes values of these types only.
        """
        try:
            _ = self._program
        except REFUSALS:
            return True
        return False

    @cached_property
    def uses_derivatives(self) -> bool:
        """Whether it computes with what a derivative in it gives, rather than to return it.

        Rules of JAX's own, such as that of `odeint`, are linear in what it gives. Derivatives in
        those of named programs (`of_one_position`) need no types, unless they sum over positions.
        """
        bwd = self.eqn.params["bwd"]
        if is_defined_in_jax(bwd):
            return False
        if defining_file(bwd) == _OF_ONE_POSITION and not self.sums_shares:
            return False
        return uses_transposed(self._program)

    @property
    def asks_types(self) -> bool:
        """Whether its code seems to query along which axes a value varies."""
        return self._typed is not None and self._typed.asks

    @property
    def is_of_own_values(self) -> bool:
        """Whether all that it takes varies along all axes along which anything of it varies."""
        typed = self._typed
        if typed is None:
            return False
        count = self.eqn.params["num_res"]
        kept = zip(self.eqn.invars[:count], typed.residuals, strict=True)
        residuals = [axes for v, axes in kept if has_tangent(v.aval)]
        rows = [*typed.operands, *typed.results, *residuals]
        return len({*map(self._of_several, rows)}) <= 1

    def with_types(self) -> BackwardRule:
        """The rule, traced with JAX's types of varying values.

        Raises:
          REFUSALS: the types reject it.
        """
        typed = self._typed
        assert typed is not None
        bwd = self.eqn.params["bwd"]
        called = with_types_of(bwd, [*typed.residuals, *typed.results])
        rule = linear_util.wrap_init(
            dataclasses.replace(typed, rule=called), debug_info=bwd.debug_info
        )
        new = BackwardRule(
            self.graph, self.eqn.replace(params={**self.eqn.params, "bwd": rule}), has_types=True
        )
        _ = new._program
        return new

    def sums_whole(self) -> Axes:
        """The axes over which psums that the user wrote sum cotangents."""
        own = (
            eqn
            for eqn in equations(self._program)
            if eqn.primitive is coll.psum_p
            and not is_transposed(eqn)
            and self.depends_on_cotangents(eqn.invars[0])
        )
        return frozenset(axis for eqn in own for axis in eqn.params["axes"])

    def equations(self) -> Iterator[Eqn]:
        """All equations of the rule."""
        return equations(self._program)

    @property
    def returns(self) -> list[Atom]:
        """The cotangents of differentiated operands, as variables of the rule."""
        return open_jaxpr(self._program).outvars

    def types(self, cotangents: Sequence[Axes]) -> Replication:
        """The types of all values in it, by JAX's rules."""
        inputs = [*self.residuals, *cotangents]
        return infer_types(self.graph.region, self._program, inputs)

    def depends_on_cotangents(self, atom: Atom) -> bool:
        return bool(self._marked.of(atom))

    @cached_property
    def _marked(self) -> Replication:
        """A solution in which exactly the values that depend on cotangents vary."""
        mark = frozenset(self.graph.all_manual_axes)
        residuals = [frozenset[str]()] * self.eqn.params["num_res"]
        inputs = [*residuals, *[mark] * len(self.eqn.outvars)]
        return infer_program(self.graph.region, self._program, inputs, lambda eqn, mask, axes: mask)


_TRANSPOSED_SUMS = {r.transpose for r in coll.RECORDS if r.combines is coll.Combines.SUM}


def _collectives(program: Jaxpr) -> list[Eqn]:
    return [eqn for eqn in equations(program) if eqn.primitive in coll.COLLECTIVES]


def is_transposed(eqn: Eqn) -> bool:
    """Whether an equation of a rule was made by `jax.vjp`, not only by the call of the rule."""
    return transforms(eqn.source_info.name_stack, "transpose") > 1
