"""Linear functions with a transpose of the user's, which may name logical axes.

JAX traces the transpose of a `jax.custom_derivatives.linear_call` when it transposes the placed
program, and has no rule to vmap the call. Here the transpose is traced with the logical names in
scope and placed, and vmapped as the function was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core
from jax.interpreters import batching
from jax.sharding import AbstractMesh

from shmap_compiler.base.jax_compat import constants_to_inputs, shaped_array, trace_in_scope
from shmap_compiler.base.meshes import ManualRegion
from shmap_compiler.base.untyped import AnyValue, Aval, AxisName, Eqn, Function, Jaxpr
from shmap_compiler.collectives import vmapped_axes
from shmap_compiler.collectives.jax_params import named_axes
from shmap_compiler.replication.inference import infer_program, infer_types
from shmap_compiler.xmap.batching_rules import names_axis, naming
from shmap_compiler.xmap.late_rules import AxisEnv, RuleScope, Vmapped, stacked

Dims = Sequence[int | None]
"""Where an axis is in values; None in those that are not vmapped over it."""

Traced = tuple[Jaxpr, Sequence[AnyValue]]
"""A closed jaxpr, and the values of its leading inputs."""


class PlacedTranspose:
    """The transpose of a linear call in a placed program, traced when JAX asks for it.

    Attributes:
      trace: traces it.
      vmapped: the axes that the call is still to be vmapped over, with their sizes.
      who: describes the function of the user's.
    """

    def __init__(self, trace: Callable[[], Traced], vmapped: AxisEnv, who: str):
        self.trace = functools.cache(trace)
        self.vmapped = vmapped
        self.who = who

    def __call__(self) -> Traced:
        return self.trace()

    def sums_whole(self, axis: AxisName, residuals: Dims, cotangents: Dims) -> bool:
        """Whether it sums cotangents over an axis that are equal along it: it takes shares."""
        if all(d is not None for d in cotangents):
            return False
        program, values = self.trace()
        named = (name for eqn in naming(program) for name in named_axes(eqn.params))
        names = tuple(dict.fromkeys(name for name in named if isinstance(name, str)))
        if axis not in names:
            return False
        region = ManualRegion(AbstractMesh((2,) * len(names), names), names)
        vmapped = [() if d is None else (axis,) for d in (*residuals, *cotangents)]
        extents = infer_types(region, program, [*[()] * len(values), *vmapped])
        marks = [*[()] * (len(values) + len(residuals)), *[(axis,)] * len(cotangents)]
        marked = infer_program(region, program, marks, lambda eqn, mask, axes: mask)
        return any(
            axis in named_axes(eqn.params)
            and axis not in extents.of(eqn.invars[0])
            and axis in marked.of(eqn.invars[0])
            for eqn in naming(program)
            if eqn.primitive.name in _SUMS
        )


_SUMS = ("psum", "psum_invariant", "reduce_scatter")
"""Names of JAX's collectives that add what positions have."""


def placed_linear_call(eqn: Eqn, scope: RuleScope) -> Eqn:
    """A linear call whose function is placed, with the transpose placed, too."""
    _make_vmappable(eqn.primitive)

    def trace() -> Traced:
        named: list[Traced] = []

        def in_scope() -> tuple[()]:
            named.append(eqn.params["transpose_thunk"]())
            return ()

        with vmapped_axes.body(scope.who):
            trace_in_scope(in_scope, scope.logical, [])
            ((program, values),) = named
            types = [shaped_array(t.shape, t.dtype, t.weak_type) for t in program.in_avals]
            return _traced(lambda *args: scope.run(program, args), scope.vmapped, types, values)

    transpose = PlacedTranspose(trace, scope.vmapped, scope.who)
    return eqn.replace(params={**eqn.params, "transpose_thunk": transpose})


def _traced(
    fun: Function, axes: AxisEnv, types: Sequence[Aval], values: Sequence[AnyValue]
) -> Traced:
    program, constants = constants_to_inputs(trace_in_scope(fun, axes, types))
    return program, [*constants, *values]


def _batch(primitive, axis, args, dims, *, callee, transpose_thunk, **params):
    if not isinstance(transpose_thunk, PlacedTranspose):
        if any(d is not None for d in dims):
            raise NotImplementedError(f"Batching rule for '{primitive}' not implemented")
        results = primitive.bind(*args, callee=callee, transpose_thunk=transpose_thunk, **params)
        return results, [None] * len(results)
    rest = tuple((name, size) for name, size in transpose_thunk.vmapped if name != axis.name)
    constants, residuals = params["num_callee_consts"], params["num_res"]
    fixed = constants + residuals
    vmapped = Vmapped(callee, axis, dims)
    function = _traced(vmapped, rest, [jax.typeof(x) for x in args], args)
    out = vmapped.dims
    if transpose_thunk.sums_whole(axis.name, dims[constants:fixed], out):
        if names_axis(callee, axis.name):  # each position has an operand and a result of its own
            args = [*args[:fixed], *map(partial(stacked, axis), args[fixed:], dims[fixed:])]
            dims = [*dims[:fixed], *[0] * (len(args) - fixed)]
        vmapped = Vmapped(callee, axis, dims, stacks_all=True)
        function = _traced(vmapped, rest, [jax.typeof(x) for x in args], args)
        out = vmapped.dims

    def trace() -> Traced:
        program, values = transpose_thunk()
        at = [*[None] * len(values), *dims[constants:fixed], *out]
        types = [
            _with_dimension(t, d, axis.size) for t, d in zip(program.in_avals, at, strict=True)
        ]
        transpose = Vmapped(program, axis, at)

        def of_operands(*args):
            results = zip(transpose(*args), transpose.mapped, dims[fixed:], strict=True)
            return [_cotangent(axis, x, mapped, d) for x, mapped, d in results]

        with vmapped_axes.body(transpose_thunk.who):
            return _traced(of_operands, rest, types, values)

    callee, given = function
    params["num_callee_consts"] = constants + len(given) - len(args)
    transpose = PlacedTranspose(trace, rest, transpose_thunk.who)
    return primitive.bind(*given, callee=callee, transpose_thunk=transpose, **params), out


def _cotangent(axis, x, mapped: bool, d: int | None):
    """The cotangent of an operand that is vmapped at `d`: the sum, if it is not."""
    if d is None:
        return x.sum(0) if mapped else x
    return jnp.moveaxis(stacked(axis, x, 0 if mapped else None), 0, d)


def _with_dimension(t: Aval, d: int | None, size: int) -> Aval:
    shape = t.shape if d is None else (*t.shape[:d], size, *t.shape[d:])
    return shaped_array(shape, t.dtype, t.weak_type)


def _make_vmappable(primitive: jex_core.Primitive) -> None:
    if primitive not in batching.fancy_primitive_batchers:  # JAX has no rule
        batching.fancy_primitive_batchers[primitive] = partial(_batch, primitive)
