"""`shard_map` maps a per-device function over blocks of arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar, overload

from shmap_compiler.base.jax_compat import AnyMesh
from shmap_compiler.base.untyped import Function, PyTree, Wrapped
from shmap_compiler.frontend.arguments import INFER
from shmap_compiler.frontend.former_arguments import explains_former_arguments
from shmap_compiler.frontend.shard_mapped import ShardMapped, make, names_of_axes

_P = ParamSpec("_P")
_R = TypeVar("_R")


@overload
def shard_map(
    f: Callable[_P, _R],
    /,
    *,
    out_specs: PyTree,
    axis_names: str | Iterable[str] = ...,
    in_specs: PyTree = ...,
    mesh: AnyMesh | None = ...,
    check_vma: bool = ...,
    check_hangs: bool = ...,
) -> ShardMapped[_P, _R]: ...


@overload
def shard_map(
    f: None = None,
    /,
    *,
    out_specs: PyTree,
    axis_names: str | Iterable[str] = ...,
    in_specs: PyTree = ...,
    mesh: AnyMesh | None = ...,
    check_vma: bool = ...,
    check_hangs: bool = ...,
) -> Callable[[Callable[_P, _R]], ShardMapped[_P, _R]]: ...


@explains_former_arguments
def shard_map(
    f: Function | None = None,
    /,
    *,
    out_specs: PyTree,
    axis_names: str | Iterable[str] = frozenset(),
    in_specs: PyTree = INFER,
    mesh: AnyMesh | None = None,
    check_vma: bool = True,
    check_hangs: bool = True,
) -> Wrapped:
    """Maps a per-device function over the blocks of its arguments on a mesh of devices.

    Each device applies `f` to its blocks of the arguments. Collectives in `f` name mesh axes.
    Inside `jax.jit`, or under any other transformation, `f` is traced and compiled. Called
    directly, it runs eagerly, operation by operation: `f` may print its values, branch on values
    that are equal on all devices, and be stepped through.

    Args:
      f: The per-device function, of arrays and pytrees of arrays. Arrays that it closes over are
        replicated. If omitted, a decorator is returned.
      out_specs: A pytree of `PartitionSpec`, a prefix of the result: how blocks form the full
        array. Along axes that a spec does not mention, blocks must be equal.
      axis_names: The axes over which `f` is per-device; by default, all axes of the mesh. The
        others stay automatic.
      in_specs: A pytree of `PartitionSpec`, a prefix of the tuple of arguments. Dimension `d` of an
        argument is split over the mesh axes that its spec names at `d`. Along axes that a spec does
        not mention, all devices get equal blocks. An argument whose spec is None is passed to `f`
        unchanged. If omitted, all axes must be of type Explicit, and the types of the arguments
        determine how they are split.
      mesh: The devices (`jax.sharding.Mesh`), or only their arrangement (`AbstractMesh`). If
        omitted, the mesh in scope (`jax.set_mesh`), or that of the arguments.
      check_vma: Whether to reject results that may differ along axes that their specs do not
        mention.
      check_hangs: Whether to reject collectives that could deadlock because some devices do not
        reach them.

    Returns:
      A `ShardMapped`, a function of full arrays that takes positional arguments. Tracing, lowering
      and compilation are cached by argument types, even if `shard_map` is applied to `f` again
      with equal arguments.

    Raises:
      SpecError: The mesh, the specs, and the arguments or results do not fit together. Raised by
        calls, as are `BodyError`, `HangError` and `ReplicationError` for mistakes in `f`.

    Examples:
      >>> def normalize(block):  # f32[2] on each of eight devices
      ...     return block / lax.psum(jnp.sum(block), "i")
      >>> f = shard_map(normalize, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
      >>> f(x).shape, jnp.allclose(jax.jit(f)(x), x / x.sum()).item()
      ((16,), True)
    """
    options = {
        "mesh": mesh,
        "in_specs": in_specs,
        "out_specs": out_specs,
        "axis_names": names_of_axes(f, axis_names),
        "check_vma": check_vma,
        "check_hangs": check_hangs,
    }

    def mapped(fun: Callable[_P, _R]) -> ShardMapped[_P, _R]:
        return make(fun, options)

    return mapped if f is None else mapped(f)
