"""Batching of collectives over the named axis of a vmap, inside shard_mapped programs.

JAX's own batching rules apply a collective to the positions of the vmapped axis on one device. That
is not enough if the vmapped dimension is itself split over mesh axes (`spmd_axis_name`), and most
of them do not accept a collective that also names other axes. Inside a body such collectives are
decomposed by the `split` rules of their records; every other use of a primitive keeps JAX's rule.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Hashable, Iterator, Sequence
from contextvars import ContextVar

import jax.numpy as jnp
from jax import lax
from jax.extend import source_info_util
from jax.interpreters import batching

from shmap_compiler.base.errors import BodyError, Problem
from shmap_compiler.base.jax_compat import explicit_axes, mesh_in_scope
from shmap_compiler.base.source_lines import shown_source
from shmap_compiler.base.untyped import AnyValue
from shmap_compiler.collectives import COLLECTIVES, JAX_FORMS, JaxForm
from shmap_compiler.collectives.collective_errors import refusals
from shmap_compiler.collectives.split_axes import SplitAxis
from shmap_compiler.collectives.use import Use


class SplitName:
    """The name of a vmapped axis of which only the minor part is vmapped on each device.

    It is equal to the `name` that collectives use. The major part is split over `mesh_axes`.
    """

    def __init__(self, name: Hashable, mesh_axes: tuple[str, ...]):
        if isinstance(name, SplitName):  # a shard_map nested in one that splits the axis
            name, mesh_axes = name.name, (*name.mesh_axes, *mesh_axes)
        self.name = name
        self.mesh_axes = mesh_axes

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SplitName):
            return (self.name, self.mesh_axes) == (other.name, other.mesh_axes)
        return self.name == other

    def __repr__(self) -> str:
        return repr(self.name)


_body: ContextVar[str | None] = ContextVar("body", default=None)


@contextlib.contextmanager
def body(who: str) -> Iterator[None]:
    """The rules below apply in this context, which traces the function that `who` describes."""
    token = _body.set(who)
    try:
        yield
    finally:
        _body.reset(token)


def _batch(primitive, form, ordinary, axis_data, args, dims, **params):
    who = _body.get()
    key = "axes" if "axes" in params else "axis_name"
    names = params[key] if isinstance(params[key], (tuple, list)) else (params[key],)
    named = tuple(n for n in names if not isinstance(n, int))
    mesh_axes = axis_data.name.mesh_axes if isinstance(axis_data.name, SplitName) else ()
    is_whole = params.get("axis_index_groups") is None  # JAX refuses groups of a vmapped axis
    is_right = form.jax_batches and (form.jax_batches_equal or None not in dims)
    # JAX makes a reduction over a dimension of it, and does not lower that beside Explicit axes.
    mesh = mesh_in_scope()
    is_lowered = "axes" not in params or mesh is None or not explicit_axes(mesh)
    alone = len(named) == 1 and not mesh_axes and is_right and is_whole and is_lowered
    if who is None or axis_data.name not in named or alone:
        return ordinary(axis_data, args, dims, **params)
    place = named.index(axis_data.name)
    axis = SplitAxis((*named[:place], *mesh_axes), axis_data.size, named[place + 1 :])
    arguments = {k: v for k, v in params.items() if k != key}
    use = _use(primitive.name, named, axis_data, mesh_axes, arguments)
    problems = refusals(use, [x.dtype for x in args]) or _unsupported(form, use, axis, dims)
    if problems:
        raise BodyError(who, problems)
    stacked = [
        jnp.broadcast_to(x, (axis_data.size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        for x, d in zip(args, dims, strict=True)
    ]
    return form.split(axis, *stacked, **params)


def _use(name, named, axis_data, mesh_axes, arguments) -> Use:
    sizes = {n: lax.axis_size(n) for n in named if n != axis_data.name}
    split = math.prod(lax.axis_size(a) for a in mesh_axes)
    return Use(
        name=name,
        axes=named,
        place=shown_source(source_info_util.current()),
        sizes={**sizes, axis_data.name: axis_data.size * split},
        arguments=arguments,
    )


def _unsupported(
    form: JaxForm, use: Use, axis: SplitAxis, dims: Sequence[AnyValue]
) -> list[Problem]:
    split = f"an axis with {axis.slots} positions on each device, by vmap"
    if axis.slots > 1 and use.groups is not None:
        return [
            Problem(
                use.where,
                f"axis_index_groups={use.groups} along {split}",
                "groups of whole devices, or a collective over the whole axis",
                "use two axes instead of groups, or place one position on each device",
            )
        ]
    found = [(form.one_slot, split)] if axis.slots > 1 and form.one_slot else []
    found += [(r, r.found) for at, r in form.unmapped.items() if dims[at] is not None]
    return [Problem(use.where, what, refusal.needed, refusal.fix) for refusal, what in found]


def _register() -> None:
    """In the table of JAX's rules, as vmap finds no others; our family has rules of its own."""
    for primitive, ordinary in list(batching.fancy_primitive_batchers.items()):
        form = JAX_FORMS.get(primitive.name)
        if form is None or form.split is None or primitive in COLLECTIVES:
            continue
        batching.fancy_primitive_batchers[primitive] = functools.partial(
            _batch, primitive, form, ordinary
        )
        if form.register_derivative is not None:
            form.register_derivative(primitive, lambda: _body.get() is not None)


_register()
