"""Errors for mistakes in using a collective: those JAX rejects while tracing, and those it accepts.

Both are described in terms of what the user called: the function of `jax.lax`, its arguments, the
sizes of the axes. A mistake that is not understood here gets JAX's own message.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from shmap_compiler.base.errors import (
    Problem,
    ShmapError,
    TypeProblem,
    UnknownAxisError,
    body_error,
)
from shmap_compiler.base.jax_compat import is_forbidden, tracks_varying_types
from shmap_compiler.base.source_lines import source_line
from shmap_compiler.base.untyped import AxisName, DType, Eqn, Parameter
from shmap_compiler.collectives import JAX_FORMS, function_of_lax, record_in_jax_form
from shmap_compiler.collectives import argument_checks as checks
from shmap_compiler.collectives.record import RANDOM_KEYS
from shmap_compiler.collectives.use import Use, listed, use_in_traceback


def refused(error: Exception, who: str, sizes: Mapping[str, int]) -> ShmapError | None:
    """The error for a collective in the user's function that JAX rejects; None for other errors."""
    use = use_in_traceback(error.__traceback__, sizes)
    if use is None:
        return None
    unknown = list(checks.unknown_axes(use))
    if unknown and (isinstance(error, NameError) or use.name == "pcast"):
        return UnknownAxisError(who, unknown)
    if is_forbidden(error):
        return body_error(who, [forbidden(use.name, use.axes, use.place)])
    # An axis that is unknown to us but not to JAX belongs to a vmap inside the function.
    if unknown and tracks_varying_types() and _is_about_types(error):
        return body_error(who, [_of_vmap_beside_types(use)])
    problems = [] if unknown else list(_problems(use))
    return body_error(who, problems or [_as_jax_says(use, error)])


def forbidden(name: str, axes: Sequence[AxisName], place: str) -> Problem:
    """The problem of a collective that `jax.sharding.no_collectives` forbids over these axes.

    Args:
      name: of the function of `jax.lax`, or of its primitive.
    """
    return Problem(
        f"{function_of_lax(name)} over {listed(axes)} at {place}",
        "a collective that jax.sharding.no_collectives forbids here",
        "collectives over other axes only",
        "communicate outside of the context, or leave the axes out of it",
    )


def _is_about_types(error: Exception) -> bool:
    return isinstance(error, AssertionError) or "varying" in str(error)


def _of_vmap_beside_types(use: Use) -> Problem:
    """JAX's types of varying values know the axes of the mesh only."""
    of_vmap = [axis for axis in use.axes if axis not in use.sizes]
    return Problem(
        use.where,
        f"axis {listed(of_vmap)} of a vmap, where JAX's types of varying values are on",
        "an axis of the mesh: derivatives inside a function need these types, which know no others",
        "compute along the dimension of the array instead, outside of the vmap; or take the "
        "derivative outside of shard_map",
    )


def _problems(use: Use) -> Iterator[Problem]:
    at_first = [*checks.wrong_types(use), *checks.repeated_axes(use)]
    if at_first:
        yield from at_first
        return
    groups = list(checks.wrong_groups(use))
    yield from groups
    if not groups:
        for shape in use.shapes:
            yield from checks.wrong_dimensions(use, shape)
    yield from checks.wrong_perm(use)
    yield from checks.wrong_source(use)


def let_through(eqn: Eqn, sizes: Mapping[str, int]) -> list[Problem]:
    """What is wrong with an equation that JAX traced, but XLA would reject, abort or hang on."""
    if _is_plain(eqn):
        return []  # the usual case
    named = eqn.params["axes"] if "axes" in eqn.params else eqn.params["axis_name"]
    named = named if isinstance(named, (tuple, list)) else (named,)
    use = Use(
        name=eqn.primitive.name.removesuffix("_dynamic"),
        axes=tuple(a for a in named if not isinstance(a, int)),
        place="",
        sizes=sizes,
        shapes=tuple(getattr(v.aval, "shape", ()) for v in eqn.invars),
        arguments=_arguments(eqn),
    )
    positional = [a for a in named if isinstance(a, int)]
    form = JAX_FORMS.get(use.name)
    if positional and not (form and form.positional):
        return list(_no_names(dataclasses.replace(use, place=source_line(eqn)), positional))
    dtypes = [getattr(v.aval, "dtype", None) for v in eqn.invars]
    if not refusals(use, dtypes):
        return []  # the usual case: looking up the line takes longer than all checks
    return refusals(dataclasses.replace(use, place=source_line(eqn)), dtypes)


def _arguments(eqn: Eqn) -> dict[str, Parameter]:
    """What an equation is given besides axes and blocks."""
    found = {k: v for k, v in eqn.params.items() if k not in ("axes", "axis_name")}
    if eqn.primitive.name == "pbroadcast_dynamic" and isinstance(eqn.invars[1], Literal):
        found["source"] = int(eqn.invars[1].val)
    return found


def _is_plain(eqn: Eqn) -> bool:
    """Whether an equation names different axes, and has nothing else that could be wrong."""
    record = record_in_jax_form(eqn.primitive.name)
    axes, rest = eqn.params.get("axes"), eqn.params.keys() - {"axes"}
    if record is None or rest - {"axis_index_groups"}:
        return False
    if any(_kind(getattr(v.aval, "dtype", None)) in record.refused_types for v in eqn.invars):
        return False
    if not isinstance(axes, tuple) or any(type(axis) is not str for axis in axes):
        return False
    return len(set(axes)) == len(axes) and eqn.params.get("axis_index_groups") is None


def _no_names(use: Use, dimensions: Sequence[int]) -> Iterator[Problem]:
    known = ", ".join(map(repr, use.sizes))
    yield Problem(
        f"{function_of_lax(use.name)} over {listed(dimensions)} at {use.place}",
        f"dimension {listed(dimensions)} of the block",
        f"names of manual axes of the mesh: {known}",
        "write the name of a mesh axis",
    )


def refusals(use: Use, dtypes: Sequence[DType]) -> list[Problem]:
    """The same for one use, on operands of the given types."""
    return [*checks.wrong_types(use), *checks.repeated_axes(use)] or [
        *checks.wrong_groups(use),
        *checks.wrong_perm(use),
        *checks.wrong_source(use),
        *checks.wrong_slices(use, dtypes),
        *checks.dimensions_from_the_end(use),
        *_refused_types(use, dtypes),
    ]


def _refused_types(use: Use, dtypes: Sequence[DType]) -> Iterator[Problem]:
    record = record_in_jax_form(use.name)
    if record is None or not record.refused_types:
        return
    kinds = set(map(_kind, dtypes))
    for kind, refusal in record.refused_types.items():
        if kind in kinds:
            problem = TypeProblem if kind == RANDOM_KEYS else Problem
            yield problem(use.where, refusal.found, refusal.needed, refusal.fix)


def _kind(dtype: DType) -> str:
    """The kind of an element type, as `Collective.refused_types` has it; "" for None."""
    if dtype is None:
        return ""
    return RANDOM_KEYS if jnp.issubdtype(dtype, jax.dtypes.extended) else np.dtype(dtype).kind


def _as_jax_says(use: Use, error: Exception) -> Problem:
    kind = TypeProblem if isinstance(error, TypeError) else Problem
    return kind(
        use.where,
        f"{error}" or type(error).__name__,
        f"arguments that JAX accepts for {use.name} on blocks of shape "
        f"{', '.join(map(str, use.shapes)) or 'unknown'}",
        f"see the documentation of jax.lax.{use.name}",
    )
