"""Derivative rules of the user's that name logical axes.

JAX traces the rules of `jax.custom_jvp` and `jax.custom_vjp` functions only when it differentiates,
when mesh axes and vmaps have taken the place of logical axes. A function placed here has rules of
the same kind around it, which trace the user's with the logical names in scope and place what they
find.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jax.extend import core as jex_core
from jax.interpreters import batching

from shmap_compiler.base.jax_compat import (
    axis_of_effect,
    constants_to_inputs,
    is_defined_in_jax,
    jaxprs_in,
    program_of_equations,
    trace_in_scope,
)
from shmap_compiler.base.jax_compat.name_stacks import without_transpose
from shmap_compiler.base.untyped import AnyValue, Aval, Eqn, Function, Jaxpr
from shmap_compiler.collectives import vmapped_axes
from shmap_compiler.jaxprs.held_programs import CUSTOM_JVP, CUSTOM_VJP
from shmap_compiler.transforms.backward_rules import of_one_position
from shmap_compiler.xmap.late_rules import AxisEnv, RuleScope, Vmapped

RULED = (CUSTOM_JVP, CUSTOM_VJP)
"""Names of JAX's primitives for functions with derivative rules of the user's."""


def rule_may_name_axes(eqn: Eqn) -> bool:
    """Whether the derivative rule of a call may name logical axes.

    Of JAX's own functions, such as `jax.nn.relu`, only those do that name axes themselves.
    """
    (primal,) = jaxprs_in(eqn.params)[:1]
    is_of_jax = eqn.primitive.name == CUSTOM_JVP and is_defined_in_jax(primal)
    return not is_of_jax or any(axis_of_effect(e) is not None for e in eqn.effects)


def placed_call(eqn: Eqn, scope: RuleScope) -> Callable[..., Sequence[AnyValue]]:
    """The placed function of the operands of `eqn`."""
    call = _Call(eqn, scope)
    of_variables = call.with_jvp() if eqn.primitive.name == "custom_jvp_call" else call.with_vjp()
    positions = [eqn.invars.index(v) for v in call.variables]
    return lambda *operands: of_variables(*[operands[at] for at in positions])


class _Call:
    def __init__(self, eqn: Eqn, scope: RuleScope):
        self.eqn, self.scope = eqn, scope
        self.primal_program = jaxprs_in(eqn.params)[0]
        operands = [v for v in eqn.invars if not isinstance(v, jex_core.Literal)]
        self.variables = list(dict.fromkeys(operands))
        # The call as the user wrote it, to be differentiated where logical names are in scope.
        self.named = jex_core.jaxpr_as_fun(
            program_of_equations(self.primal_program, [eqn], self.variables, eqn.outvars)
        )
        self.smooth_in = [_is_smooth(v.aval) for v in self.variables]
        # JAX rejects derivatives with respect to what a function with a rule closes over.
        arguments = eqn.invars[eqn.params["num_consts"] :]
        self.is_argument = [v in arguments for v in self.variables]
        self.smooth_out = [_is_smooth(v.aval) for v in eqn.outvars]

    def primal(self, *args: AnyValue) -> Sequence[AnyValue]:
        env = dict(zip(self.variables, args, strict=True))
        operands = [v.val if isinstance(v, jex_core.Literal) else env[v] for v in self.eqn.invars]
        with vmapped_axes.body(self.scope.who):
            results = self.scope.run(self.primal_program, operands)
        return [_front(x, tuple(name for name, _ in self.scope.vmapped)) for x in results]

    def of_moving(
        self, args: Sequence[AnyValue], moving: Sequence[bool]
    ) -> Callable[..., Sequence[AnyValue]]:
        """The named call as a function of some of its operands."""

        def fun(*given: AnyValue) -> Sequence[AnyValue]:
            rest = iter(given)
            return self.named(*[next(rest) if m else x for x, m in zip(args, moving, strict=True)])

        return fun

    def moving(self, nonzero_tangent: Sequence[bool]) -> list[bool]:
        """The operands with respect to which it is differentiated: its arguments.

        Among them are also those without a tangent, since JAX keeps the structure of residuals for
        one derivative of a call only. A value that it closes over is one of them only if it has a
        tangent, for which JAX then raises its error.
        """
        rows = zip(self.smooth_in, self.is_argument, nonzero_tangent, strict=True)
        return [smooth and (argument or nonzero) for smooth, argument, nonzero in rows]

    def place(self, fun: Function, *args: AnyValue) -> Sequence[AnyValue]:
        """Traces a function of flat arrays with logical names in scope, and evaluates it placed.

        JAX may trace a rule where the vmaps have still to be applied. So what is placed is held
        together until they are (`_rule_p`).
        """
        with vmapped_axes.body(self.scope.who):
            # That the rule is called by a transposition does not make it one: what it is given
            # depends on that (`transforms/backward_rules.py`).
            jaxpr, constants = constants_to_inputs(
                without_transpose(
                    trace_in_scope(fun, self.scope.logical, [jax.typeof(x) for x in args])
                )
            )
            operands = [*constants, *args]
            rule, more = constants_to_inputs(
                trace_in_scope(
                    lambda *operands: self.scope.run(jaxpr, operands),
                    self.scope.vmapped,
                    [jax.typeof(x) for x in operands],
                )
            )
            return _bind_rule([*more, *operands], rule, self.scope.vmapped, self.scope.who)

    def with_jvp(self) -> Callable[..., Sequence[AnyValue]]:
        call = jax.custom_jvp(self.primal)

        def rule(primals, tangents):
            moving = self.moving([not isinstance(t, SymbolicZero) for t in tangents])

            def fun(*flat):
                args, tangents = flat[: len(primals)], flat[len(primals) :]
                of_moving = self.of_moving(args, moving)
                outs, out_tangents = jax.jvp(of_moving, _where(moving, args), list(tangents))
                return [*outs, *_where(self.smooth_out, out_tangents)]

            found = self.place(fun, *primals, *map(_instantiated, _where(moving, tangents)))
            count = len(self.smooth_out)
            outs, rest = found[:count], iter(found[count:])
            return list(outs), [
                next(rest) if s else np.zeros(jnp.shape(x), jax.dtypes.float0)
                for x, s in zip(outs, self.smooth_out, strict=True)
            ]

        call.defjvp(rule, symbolic_zeros=True)
        return call

    def with_vjp(self) -> Callable[..., Sequence[AnyValue]]:
        call = jax.custom_vjp(self.primal)
        structure: list[Any] = []

        def forward(*primals):
            moving = self.moving([p.perturbed for p in primals])

            def fun(*args):
                def split(*given):
                    outs = self.of_moving(args, moving)(*given)
                    fixed = [x for x, s in zip(outs, self.smooth_out, strict=True) if not s]
                    return _where(self.smooth_out, outs), fixed

                outs, pull, fixed = jax.vjp(split, *_where(moving, args), has_aux=True)
                residuals, tree = jax.tree.flatten(pull)
                structure[:] = [tree]
                return [*outs, *fixed, *residuals]

            found = self.place(fun, *[p.value for p in primals])
            count, smooth = len(self.smooth_out), sum(self.smooth_out)
            changing, fixed = iter(found[:smooth]), iter(found[smooth:count])
            return [next(changing) if s else next(fixed) for s in self.smooth_out], found[count:]

        def backward(residuals, cotangents):
            def fun(*flat):
                pull = jax.tree.unflatten(structure[0], flat[: len(residuals)])
                return pull(list(flat[len(residuals) :]))

            given = map(_instantiated, _where(self.smooth_out, cotangents))
            found = iter(self.place(fun, *residuals, *given))
            moving = self.moving([False] * len(self.variables))
            return tuple(next(found) if m else None for m in moving)

        # Along the axes of a shard_map around the xmap, JAX's types matter to derivatives in it.
        outer = set(jax.sharding.get_abstract_mesh().manual_axes).difference(self.scope.manual)
        rule = backward if outer else of_one_position(backward)
        call.defvjp(forward, rule, symbolic_zeros=True)
        return call


_rule_p = jex_core.Primitive("placed_rule")
"""A placed derivative rule, which names vmapped axes that are not in scope yet."""
_rule_p.multiple_results = True


def _bind_rule(
    args: Sequence[AnyValue], jaxpr: Jaxpr, vmapped: AxisEnv, who: str
) -> Sequence[AnyValue]:
    if not vmapped:
        return jex_core.jaxpr_as_fun(jaxpr)(*args)
    return _rule_p.bind(*args, jaxpr=jaxpr, vmapped=vmapped, who=who)


def _rule_type(*types, jaxpr, vmapped, who):
    return jaxpr.out_avals


def _batch_rule(axis, args, dims, *, jaxpr, vmapped, who):
    batched = Vmapped(jaxpr, axis, dims)  # what the function returns unmapped, its rule must, too
    rest = tuple((name, size) for name, size in vmapped if name != axis.name)
    with vmapped_axes.body(who):
        if not rest:
            results = batched(*args)
        else:
            traced = trace_in_scope(batched, rest, [jax.typeof(x) for x in args])
            program, constants = constants_to_inputs(traced)
            results = _bind_rule([*constants, *args], program, rest, who)
    return results, batched.dims


_front_p = jex_core.Primitive("vmapped_dimensions_first")
"""Puts the dimensions of these vmaps first, as rules do: JAX takes both to have the same ones."""


def _front(x: AnyValue, vmapped: tuple[str, ...]) -> AnyValue:
    return _front_p.bind(x, vmapped=vmapped) if vmapped else x


def _batch_front(axis, args, dims, *, vmapped):
    (x,), (d,) = args, dims
    x = x if d is None else jnp.moveaxis(x, d, 0)
    rest = tuple(name for name in vmapped if name != axis.name)
    return _front(x, rest), (None if d is None else 0)


_front_p.def_abstract_eval(lambda x, *, vmapped: x)
batching.fancy_primitive_batchers[_front_p] = _batch_front
_rule_p.def_abstract_eval(_rule_type)
batching.fancy_primitive_batchers[_rule_p] = _batch_rule


def _is_smooth(aval: Aval) -> bool:
    return hasattr(aval, "dtype") and jnp.issubdtype(aval.dtype, jnp.inexact)


def _instantiated(x: AnyValue) -> AnyValue:
    if not isinstance(x, SymbolicZero):
        return x
    zeros_of: Aval = x.aval
    return jnp.zeros(zeros_of.shape, zeros_of.dtype)


def _where(kept: Sequence[bool], values: Sequence[AnyValue]) -> list[AnyValue]:
    return [x for x, k in zip(values, kept, strict=True) if k]
