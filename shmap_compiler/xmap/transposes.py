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
from shmap_compiler.replication.collective_rules import mask_of_type
from shmap_compiler.replication.inference import infer_program
from shmap_compiler.transforms.batching import leave_p
from shmap_compiler.xmap.batching_rules import Run, names_axis, naming

AxisEnv = tuple[tuple[str, int], ...]

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
        extents = infer_program(region, program, [*[()] * len(values), *vmapped], mask_of_type)
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


def placed_linear_call(eqn: Eqn, who: str, sizes: AxisEnv, vmapped: AxisEnv, run: Run) -> Eqn:
    """A linear call whose function is placed, with the transpose placed by `run`.

    Args:
      sizes: of logical axes.
      vmapped: the vmapped axes, with their sizes.
    """
    _make_vmappable(eqn.primitive)

    def trace() -> Traced:
        named: list[Traced] = []

        def in_scope() -> tuple[()]:
            named.append(eqn.params["transpose_thunk"]())
            return ()

        with vmapped_axes.body(who):
            trace_in_scope(in_scope, sizes, [])
            ((program, values),) = named
            types = [shaped_array(t.shape, t.dtype, t.weak_type) for t in program.in_avals]
            return _traced(lambda *args: run(program, args), vmapped, types, values)

    return eqn.replace(
        params={**eqn.params, "transpose_thunk": PlacedTranspose(trace, vmapped, who)}
    )


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
    vmapped = _Vmapped(callee, axis, dims)
    function = _traced(vmapped, rest, [jax.typeof(x) for x in args], args)
    out = [0 if m else None for m in vmapped.mapped]
    if transpose_thunk.sums_whole(axis.name, dims[constants:fixed], out):
        if names_axis(callee, axis.name):  # each position has an operand and a result of its own
            args = [*args[:fixed], *map(partial(_stacked, axis), args[fixed:], dims[fixed:])]
            dims = [*dims[:fixed], *[0] * (len(args) - fixed)]
        vmapped = _Vmapped(callee, axis, dims, out=0)
        function = _traced(vmapped, rest, [jax.typeof(x) for x in args], args)
        out = [0] * len(out)

    def trace() -> Traced:
        program, values = transpose_thunk()
        at = [*[None] * len(values), *dims[constants:fixed], *out]
        types = [
            _with_dimension(t, d, axis.size) for t, d in zip(program.in_avals, at, strict=True)
        ]
        transpose = _Vmapped(program, axis, at)

        def of_operands(*args):
            results = zip(transpose(*args), transpose.mapped, dims[fixed:], strict=True)
            return [_cotangent(axis, x, mapped, d) for x, mapped, d in results]

        with vmapped_axes.body(transpose_thunk.who):
            return _traced(of_operands, rest, types, values)

    callee, given = function
    params["num_callee_consts"] = constants + len(given) - len(args)
    transpose = PlacedTranspose(trace, rest, transpose_thunk.who)
    return primitive.bind(*given, callee=callee, transpose_thunk=transpose, **params), out


class _Vmapped:
    """A program as JAX vmaps it, whose vmapped results are stacked; or all of them.

    Attributes:
      mapped: which results are, after a call.
    """

    def __init__(self, program: Jaxpr, axis, dims, *, out: int | None = None):
        self.axis, self.out, self.mapped = axis, out, list[bool]()
        run = jex_core.jaxpr_as_fun(program)

        def leaving(*args):
            self.mapped.clear()
            return [leave_p.bind(x, mapped=self.mapped) for x in run(*args)]

        self.run = jax.vmap(leaving, tuple(dims), None, axis_name=axis.name, axis_size=axis.size)

    def __call__(self, *args):
        results = self.run(*args)
        if self.out is None:
            return results
        return [
            x if mapped else _stacked(self.axis, x, None)
            for x, mapped in zip(results, self.mapped, strict=True)
        ]


def _cotangent(axis, x, mapped: bool, d: int | None):
    """The cotangent of an operand that is vmapped at `d`: the sum, if it is not."""
    if d is None:
        return x.sum(0) if mapped else x
    return jnp.moveaxis(_stacked(axis, x, 0 if mapped else None), 0, d)


def _stacked(axis, x, d):
    return jnp.broadcast_to(x, (axis.size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)


def _with_dimension(t: Aval, d: int | None, size: int) -> Aval:
    shape = t.shape if d is None else (*t.shape[:d], size, *t.shape[d:])
    return shaped_array(shape, t.dtype, t.weak_type)


def _make_vmappable(primitive: jex_core.Primitive) -> None:
    if primitive not in batching.fancy_primitive_batchers:  # JAX has no rule
        batching.fancy_primitive_batchers[primitive] = partial(_batch, primitive)
