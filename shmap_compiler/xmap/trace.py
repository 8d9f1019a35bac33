"""Traces the function of an xmap along logical axes.

Arguments lose their named dimensions, and collectives name logical axes. Which axes a value has is
not in its type: `named_shapes` infers it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
from jax.sharding import AbstractMesh

from shmap_compiler.base.errors import BodyError, Problem, ShmapError, UnknownAxisError
from shmap_compiler.base.jax_compat import (
    closes_over_explicit,
    constants_to_inputs,
    is_of_other_mesh,
    mesh_in_scope,
    trace_in_scope,
    type_on_mesh,
    varying_type,
    varying_types,
    with_manual_axes,
)
from shmap_compiler.base.untyped import AnyValue, Aval, Function, Jaxpr
from shmap_compiler.collectives import collective_errors, vmapped_axes
from shmap_compiler.tracing.reverse_rules import with_custom_vjp
from shmap_compiler.tracing.trace import on_explicit_axes
from shmap_compiler.tracing.vma_erasure import trace_with_types
from shmap_compiler.tracing.vma_queries import casts
from shmap_compiler.tracing.vma_typing import REFUSALS, refused_by_types, trace_by_need
from shmap_compiler.xmap.axes import AxisMapping
from shmap_compiler.xmap.retyped import retyped


@dataclass(frozen=True)
class Scope:
    """What a named program may name besides its own axes, and the mesh in whose scope it runs.

    Attributes:
      outer: the axes of enclosing xmaps.
      mesh: the mesh as the body sees it, which may be empty.
    """

    outer: Mapping[str, int]
    mesh: AbstractMesh


def trace_named(
    flat_fun: Callable[..., Sequence[AnyValue]],
    *,
    user_fun: Function,
    who: str,
    sizes: Mapping[str, int],
    types: Sequence[Aval],
    mappings: Sequence[AxisMapping],
    scope: Scope,
    check_vma: bool,
) -> tuple[Jaxpr, tuple[AnyValue, ...]]:
    """(closed jaxpr of `flat_fun`, the values of its leading inputs).

    Args:
      types: of the full arguments.
      check_vma: whether derivatives that it takes have the meaning that JAX's types give them.

    Raises:
      BodyError: the function uses a collective in an invalid way.
    """
    known = {**scope.outer, **sizes}

    def traced(*args):
        try:
            with vmapped_axes.body(who):
                return flat_fun(*args)
        except ShmapError:
            raise
        except Exception as error:
            refusal = collective_errors.refused(error, who, known)
            if refusal is None:
                raise
            raise _in_words_of_xmap(refusal, known) from error

    def inner_types(mesh: AbstractMesh) -> list[Aval]:
        return [_inner_type(t, m, mesh) for t, m in zip(types, mappings, strict=True)]

    def untyped_on(mesh: AbstractMesh) -> Jaxpr:
        def trace(fun: Function, types: Sequence[Aval]) -> Jaxpr:
            return trace_in_scope(fun, tuple(sizes.items()), types)

        with varying_types(False), jax.sharding.use_abstract_mesh(mesh):
            return with_custom_vjp(trace(traced, inner_types(mesh)), trace)

    def untyped():
        around = mesh_in_scope()
        try:
            return untyped_on(scope.mesh)
        except ValueError as error:
            if not (scope.outer and around and is_of_other_mesh(error)):
                raise
        # It closes over values of an enclosing xmap, in which fewer mesh axes are manual.
        return retyped(untyped_on(around), around, scope.mesh)

    def logical() -> AbstractMesh:
        """A mesh of the logical axes, all manual."""
        if math.prod(known.values()) >= 2**31:
            raise BodyError(who, [_too_many_positions(known)])
        return with_manual_axes(AbstractMesh(tuple(known.values()), tuple(known)), known)

    def typed():
        """The same on logical axes, whose types give inner derivatives a meaning."""
        body = logical()
        types = [
            varying_type(type_, body, mapping.names)
            for type_, mapping in zip(inner_types(body), mappings, strict=True)
        ]
        jaxpr = trace_with_types(
            traced, body, tuple(known), types, is_named=True, untracked=scope.outer
        )
        return retyped(jaxpr, body, scope.mesh)

    def cast():
        """On axes without a mesh, JAX takes no casts."""
        if check_vma:
            return typed()
        body = logical()
        return retyped(untyped_on(body), body, scope.mesh)

    try:
        traced_program = (
            trace_by_need(untyped, typed, user_fun, who, _IN_XMAP) if check_vma else untyped()
        )
    except NotImplementedError as error:
        if not closes_over_explicit(error):
            raise
        raise BodyError(who, [on_explicit_axes(error)]) from error
    except BodyError:
        if not casts(user_fun):
            raise
        traced_program = _with_casts(cast, who)
    jaxpr, constants = constants_to_inputs(traced_program)
    return jaxpr, tuple(constants)


_IN_XMAP = (
    "take the gradient outside xmap; or mark the value with jax.lax.pcast; or pass "
    "check_vma=False, with which each position gets its own share of a gradient, and sum it"
)


def _with_casts(cast: Callable[[], Jaxpr], who: str) -> Jaxpr:
    try:
        return cast()
    except ShmapError:
        raise
    except REFUSALS as error:
        raise BodyError(who, [refused_by_types(error, _IN_XMAP)]) from error


def _inner_type(full: Aval, mapping: AxisMapping, mesh: AbstractMesh) -> Aval:
    """The type of an argument without its named dimensions."""
    named = {at for _, at in mapping.positions}
    shape = [size for at, size in enumerate(full.shape) if at not in named]
    return type_on_mesh(mesh, (), shape, full.dtype, bool(getattr(full, "weak_type", False)))


def _in_words_of_xmap(error: ShmapError, sizes: Mapping[str, int]) -> ShmapError:
    """What an error says of axes that do not exist, said of named axes."""
    if not isinstance(error, UnknownAxisError):
        return error
    known = ", ".join(f"{name!r} of size {size}" for name, size in sizes.items())
    return UnknownAxisError(
        error.who,
        [
            Problem(
                problem.where,
                problem.found,
                f"a named axis: {known or 'there is none'}",
                "use one of these names, or name a dimension of an argument so in in_axes"
                if known
                else "name a dimension of an argument so in in_axes",
            )
            for problem in error.problems
        ],
    )


def _too_many_positions(sizes: Mapping[str, int]) -> Problem:
    listed = ", ".join(f"{name!r} of size {size}" for name, size in sizes.items())
    return Problem(
        "a derivative taken inside the function",
        f"axes {listed}: {math.prod(sizes.values())} positions in all",
        "less than 2**31 positions in all, where a function of named axes differentiates",
        "take the derivative outside of xmap, or name fewer dimensions",
    )
