"""Tracing with axes in scope, and what JAX's errors mean there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, TypeVar

import jax
from jax.core import AbstractValue, eval_context
from jax.extend import core as jex_core
from jax.extend import linear_util
from jax.interpreters import partial_eval
from jax.sharding import (
    AbstractMesh,
)

from shmap_compiler.base.frames import with_room
from shmap_compiler.base.jax_compat.meshes import no_mesh
from shmap_compiler.base.jax_compat.programs import ClosedJaxpr
from shmap_compiler.base.jax_compat.settings import setting
from shmap_compiler.base.untyped import AnyValue, Aval, Function, Jaxpr

_T = TypeVar("_T")


_lower_jaxpr: Any = getattr(partial_eval, "lower_jaxpr2", None)

EXPANDS_HIGH_PRIMITIVES = _lower_jaxpr is not None
"""Whether `without_high_primitives` can expand them, as it can from JAX 0.12 on."""


def without_high_primitives(closed: Jaxpr, mesh: AbstractMesh, axes: Sequence[str]) -> Jaxpr:
    """The jaxpr as JAX lowers it: in JAX 0.12, some primitives stand for programs until then."""
    if not getattr(closed, "is_high", False):
        return closed
    return run_with_axes(lambda: _lower_jaxpr(closed), mesh, axes)


def trace_with_axes(
    fun: Function, mesh: AbstractMesh, axes: Sequence[str], avals: Sequence[Aval]
) -> AnyValue:
    """ClosedJaxpr of `fun` on `avals`, with collectives over `axes` of `mesh` in scope."""
    # From one mesh JAX enters another one of its size only.
    with no_mesh(), jax.sharding.use_abstract_mesh(mesh):
        return trace_in_scope(fun, [(a, mesh.shape[a]) for a in axes], avals)


def trace_in_scope(
    fun: Function, axis_env: Sequence[tuple[str, int]], avals: Sequence[Aval]
) -> AnyValue:
    """ClosedJaxpr of `fun` on `avals`, with these axes in scope besides those that are."""
    # JAX would check the program after the names of the axes have gone out of scope.
    with jax.enable_checks(False):
        if setting("jax_debug_key_reuse"):  # only this looks for it inside
            return jax.make_jaxpr(fun, axis_env=list(axis_env))(*avals)
        return _in_scope(axis_env, lambda: _traced_flat(fun, avals))


def _in_scope(axis_env: Sequence[tuple[str, int]], run: Callable[[], _T]) -> _T:
    """Result of `run()`, with these axes in scope besides those that are.

    `vmap` of nothing is what takes least time of all that brings a name into scope.
    """
    with jex_core.take_current_trace() as trace:
        pass
    found: list[_T] = []

    def in_scope() -> None:
        with jex_core.set_current_trace(trace):  # no batching: only the name is of use
            found.append(run())

    scoped = in_scope
    for axis, size in reversed(axis_env):
        scoped = functools.partial(_run_with_axis, axis, size, scoped)
    scoped()
    return found[0]


def _run_with_axis(axis: str, size: int, job: Callable[[], None]) -> None:
    token = _job.set(job)
    try:
        _with_axis(axis, size)()
    finally:
        _job.reset(token)


@functools.lru_cache(maxsize=256, typed=True)  # names of other types may equal strings
def _with_axis(axis: str, size: int) -> Callable[[], tuple[()]]:
    return jax.vmap(_run_job, axis_name=axis, axis_size=size)


def _run_job() -> tuple[()]:
    _job.get()()
    return ()


_job: ContextVar[Callable[[], None]] = ContextVar("job")


def _traced_flat(fun: Function, avals: Sequence[Aval]) -> AnyValue:
    """ClosedJaxpr of `fun`, without what jit does for each argument: `make_jaxpr` takes ten times
    as long for the hundreds of arguments of a gradient.
    """
    info = getattr(fun, _DEBUG_INFO, None) or jax.api_util.debug_info("shard_map", fun, avals, {})
    flat = linear_util.wrap_init(lambda *args: jax.tree.leaves(fun(*args)), debug_info=info)
    types = [t if isinstance(t, AbstractValue) else jax.typeof(t) for t in avals]
    jaxpr, _, consts = with_room(partial_eval.trace_to_jaxpr_dynamic, flat, types)
    return ClosedJaxpr(jaxpr, consts)


def refuses_unreduced(error: Exception) -> bool:
    """Whether JAX rejected an operation on values whose types are unreduced or reduced."""
    trace, module = error.__traceback__, ""
    while trace is not None:
        trace, module = trace.tb_next, trace.tb_frame.f_globals.get("__name__", "")
    return module.partition(".")[0] == "jax" and "reduced" in str(error)


def needs_varying_types(error: BaseException | None) -> bool:
    """Whether JAX rejected a cast that is valid only within `varying_types`."""
    while error is not None:
        if str(error).startswith("Unsupported pcast from="):
            return True
        error = error.__cause__
    return False


def shows_varying_type(error: Exception) -> bool:
    """Whether an error of JAX shows a type that says along which axes a value varies."""
    return isinstance(error, (TypeError, ValueError)) and "{V:" in str(error)


_DEBUG_INFO = "__fun_debug_info__"  # jax.api_util.debug_info looks it up; not documented
setattr(_run_job, _DEBUG_INFO, jax.api_util.debug_info("shard_map", _run_job, (), {}))


def described_as(
    fun: Callable[..., _T],
    user_fun: Function,
    count: int,
    paths: Sequence[str],
    closed_over: int = 0,
) -> Callable[..., _T]:
    """`fun`, which errors of JAX describe by the name, line and arguments of a user's function.

    Args:
      count: the number of the user's arguments.
      paths: which leaves of them `fun` takes, as in `args[0]['w']`.
      closed_over: the number of arrays that it takes before.
    """
    info = jax.api_util.debug_info("shard_map", user_fun, (0,) * count, {})
    names = info.arg_names or ()
    if len(names) == count:  # otherwise they belong to another function
        places = [path.removeprefix("args[").partition("]") for path in paths]
        found = tuple(names[int(argument)] + rest for argument, _, rest in places)
        found = ("an array that the function closes over",) * closed_over + found
        setattr(fun, _DEBUG_INFO, info._replace(arg_names=found))
    return fun


def described_alike(fun: Callable[..., _T], other: Function) -> Callable[..., _T]:
    """`fun`, which errors of JAX describe as they describe `other`, if that was `described_as`."""
    if hasattr(other, _DEBUG_INFO):
        setattr(fun, _DEBUG_INFO, getattr(other, _DEBUG_INFO))
    return fun


def is_of_other_mesh(error: Exception) -> bool:
    """Whether JAX rejected a value whose type has a mesh with other manual axes."""
    return isinstance(error, ValueError) and "should match the aval mesh" in str(error)


def closes_over_explicit(error: Exception) -> bool:
    """Whether JAX rejected an array on Explicit axes that was made outside of the body."""
    return isinstance(error, NotImplementedError) and "Closing over inputs" in str(error)


def run_with_axes(fun: Callable[[], _T], mesh: AbstractMesh, axes: Sequence[str]) -> _T:
    """Result of trace-time work `fun()` that needs the names of `axes` in scope."""
    result: list[_T] = []

    def record() -> tuple[()]:
        result.append(fun())
        return ()

    trace_with_axes(record, mesh, axes, ())
    return result[0]


with eval_context():
    _NO_TRACE = jex_core.get_opaque_trace_state()


def is_tracing() -> bool:
    """Whether a transformation is in progress, even if none of the values is a tracer."""
    return jex_core.get_opaque_trace_state() != _NO_TRACE
