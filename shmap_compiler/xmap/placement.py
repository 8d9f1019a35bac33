"""Where each logical axis is placed: on mesh axes, in a loop, and in `vmap` for the rest."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from shmap_compiler.base.errors import Problem, spec_error
from shmap_compiler.base.jax_compat import AnyMesh, is_axis_of_with_mesh
from shmap_compiler.base.untyped import Unchecked
from shmap_compiler.xmap.resources import SerialLoop, loops_in_scope


@dataclass(frozen=True)
class Loop:
    """A loop: `key` tells it from others."""

    key: Hashable
    length: int
    text: str


@dataclass(frozen=True)
class Placement:
    """Where a logical axis is. Its index is that along the mesh axes, then the loop, then `vmap`.

    Attributes:
      name: of the logical axis.
      size: of the logical axis.
      mesh_axes: those that it is split over, major axis first.
      parts: how many devices they have.
      loop: what of a device's part it is cut further by.
      vmapped: the name of the vmapped axis of the rest; None if each device has one position.
    """

    name: str
    size: int
    mesh_axes: tuple[str, ...]
    parts: int
    loop: Loop | None
    vmapped: str | None

    @property
    def local(self) -> int:
        """The size of the vmapped axis."""
        return self.size // self.parts // (self.loop.length if self.loop else 1)

    @property
    def physical(self) -> tuple[str, ...]:
        """The axes that stand for the logical one in collectives, major axis first."""
        return (*self.mesh_axes, *((self.vmapped,) if self.vmapped else ()))

    @property
    def is_itself(self) -> bool:
        """Whether the logical axis is a vmapped axis of the same name."""
        return self.physical == (self.name,)


def place_axes(
    who: str,
    sizes: Mapping[str, int],
    resources: Mapping[str, tuple[Unchecked, ...]],
    found: AnyMesh | None,
    taken: Sequence[str] = (),
) -> dict[str, Placement]:
    """The placement of each logical axis.

    Args:
      found: the mesh of the call.
      taken: names that no vmapped axis may have.

    Raises:
      SpecError: resources are not in scope, or do not fit the sizes of axes.
    """
    mesh_sizes = {} if found is None else dict(found.shape)
    loops = loops_in_scope()
    problems = list(_missing(resources, mesh_sizes, loops))
    placements: dict[str, Placement] = {}
    names = {*sizes, *mesh_sizes, *taken}
    for name, size in () if problems else sizes.items():
        assigned = resources.get(name, ())
        axes = tuple(r for r in assigned if isinstance(r, str) and r not in loops)
        cut = [_loop(r, loops) for r in assigned if isinstance(r, SerialLoop) or r in loops]
        parts = math.prod(mesh_sizes[a] for a in axes)
        problems += _wrong_assignment(name, size, assigned, axes, cut, parts)
        if problems:
            continue
        loop = cut[0] if cut else None
        local = size // parts // (loop.length if loop else 1)
        vmapped = None
        if not axes and not loop and name not in mesh_sizes:
            vmapped = name
        elif not axes or local != 1:
            vmapped = _new_name(name, names)
            names.add(vmapped)
        placements[name] = Placement(name, size, axes, parts, loop, vmapped)
    keys = {p.loop.key for p in placements.values() if p.loop}
    if len(keys) > 1:
        problems.append(_several_loops([p for p in placements.values() if p.loop]))
    if problems:
        raise spec_error(who, problems)
    return placements


def all_vmapped(
    placements: Mapping[str, Placement], found: AnyMesh | None, taken: Sequence[str]
) -> dict[str, Placement]:
    """The same placements, where axes with one position on each device are vmapped, too.

    So they are wherever vmap changes what is computed, by a rule of the user's.

    Args:
      found: the mesh of the call.
      taken: names that no vmapped axis may have.
    """
    names = {*placements, *taken, *(() if found is None else found.axis_names)}
    names.update(p.vmapped for p in placements.values() if p.vmapped)
    new = {}
    for name, placement in placements.items():
        vmapped = placement.vmapped or _new_name(name, names)
        names.add(vmapped)
        new[name] = replace(placement, vmapped=vmapped)
    return new


def _new_name(name: str, names: set[str]) -> str:
    """A name for the part of an axis that is vmapped."""
    local = f"{name} (local)"
    while local in names:
        local += "'"
    return local


def _loop(resource: Unchecked, loops: Mapping[str, int]) -> Loop:
    if isinstance(resource, SerialLoop):
        return Loop(id(resource), resource.length, repr(resource))
    return Loop(resource, loops[resource], repr(resource))


# ------------------------------------------------------------------------------------- mistakes


def _missing(
    resources: Mapping[str, tuple[Unchecked, ...]],
    mesh_sizes: Mapping[str, int],
    loops: Mapping[str, int],
) -> Iterator[Problem]:
    known = {*mesh_sizes, *loops}
    for name, assigned in resources.items():
        for resource in assigned:
            if isinstance(resource, str) and resource not in known:
                listed = ", ".join(f"{a!r} of size {n}" for a, n in mesh_sizes.items())
                is_old = is_axis_of_with_mesh(resource)
                yield Problem(
                    f"axis_resources[{name!r}]",
                    f"resource {resource!r}; in-scope resources are insufficient: "
                    f"{listed or 'there is no mesh in scope'}"
                    + ("; JAX's own `with mesh:` around the call is not read" if is_old else ""),
                    "an axis of the mesh in scope, or a loop in scope",
                    "call it inside `with shmap_compiler.mesh(devices, names):` or "
                    "`with jax.set_mesh(mesh):`, or pass mesh=... to xmap",
                )


def _wrong_assignment(
    name: str,
    size: int,
    assigned: Sequence[Unchecked],
    axes: Sequence[str],
    cut: Sequence[Loop],
    parts: int,
) -> Iterator[Problem]:
    where = f"axis_resources[{name!r}]"
    total = parts * math.prod(loop.length for loop in cut)
    if len(cut) > 1:
        yield Problem(
            where, f"{len(cut)} loops", "at most one loop for an axis", "use one longer loop"
        )
    elif cut and tuple(assigned[: len(axes)]) != tuple(axes):
        yield Problem(
            where,
            f"{tuple(assigned)!r}, with a mesh axis after a loop",
            "mesh axes first: a device computes the chunks of its own part",
            f"write {(*axes, *[r for r in assigned if r not in axes])!r}",
        )
    elif size % total:
        yield Problem(
            where,
            f"size {size} of axis {name!r}, on {', '.join(map(repr, assigned))}",
            f"a multiple of {total}, the product of their sizes: {total} does not divide {size}",
            "pad the axis, or assign other resources",
        )


def _several_loops(placements: Sequence[Placement]) -> Problem:
    listed = ", ".join(f"{p.loop.text} for {p.name!r}" for p in placements if p.loop)
    return Problem(
        "axis_resources",
        f"several loops: {listed}",
        "one loop in a call of xmap",
        "use `with serial_loop(name, length):` and that name for all of these axes, or nest xmaps",
    )
