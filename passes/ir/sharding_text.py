"""Shardings as XLA writes them (its "V2" form), from a mesh and axis names per dimension.

    {replicated}                                      every device holds everything
    {manual}                                          the value is per-device
    {devices=[4,2]<=[8]}                              4 x 2 tiles, devices 0..7 in order
    {devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}
                                                      2 tiles, each on 4 devices; device order is
                                                      iota reshaped to 4x2 and transposed
    {devices=[1,4,2]<=[8] last_tile_dims={manual, replicated}}
                                                      manual over 4 devices, automatic over 2
    {unreduced}                                       every device holds a summand
    {devices=[2,1,4]<=[8] last_tile_dims={unreduced}}
                                                      2 tiles, each the sum of what 4 devices hold

The device order is canonical, so that equal shardings have equal texts: axes of size one are left
out, and axes that stay neighbours in the transposed order are merged.
"""

from __future__ import annotations

from collections.abc import Sequence

from .mesh import Mesh

FULLY_MANUAL = "{manual}"
REPLICATED = "{replicated}"
UNREDUCED = "{unreduced}"


def full_sharding(
    mesh: Mesh,
    dims: Sequence[Sequence[str]],
    outer: Sequence[str] = (),
    unreduced: Sequence[str] = (),
) -> str:
    """The sharding of a full array whose dimension d is split over the axes `dims[d]`.

    Args:
      outer: the axes that are manual already around this value (a nested region).
      unreduced: those along which each device holds a summand of the array.
    """
    tiles = [mesh.product(axes) for axes in dims]
    used = [axis for axes in dims for axis in axes]
    groups = {
        "manual": [axis for axis in mesh.names if axis in outer],
        "unreduced": [axis for axis in mesh.names if axis in unreduced],
    }
    groups = {kind: axes for kind, axes in groups.items() if mesh.product(axes) > 1}
    special = [axis for axes in groups.values() for axis in axes]
    rest = mesh.without([*used, *special])
    order = _iota(mesh, [*used, *special, *rest])
    copies = mesh.product(rest)
    if not groups:
        if mesh.product(used) == 1:
            return REPLICATED
        return (
            _tiled(tiles, order, "")
            if copies == 1
            else _tiled([*tiles, copies], order, " last_tile_dim_replicate")
        )
    if list(groups) == ["unreduced"] and mesh.product(used) == copies == 1:
        return UNREDUCED
    kinds = [*groups, *(["replicated"] if copies > 1 else [])]
    sizes = [*map(mesh.product, groups.values()), *([copies] if copies > 1 else [])]
    return _tiled([*tiles, *sizes], order, f" last_tile_dims={{{', '.join(kinds)}}}")


def region_sharding(mesh: Mesh, rank: int, manual: Sequence[str]) -> str:
    """The sharding of a per-device value in a region where the axes `manual` are manual.

    XLA knows no manual sharding over one device, so `manual` must be of size two at least, unless
    it is all there is.
    """
    manual = [axis for axis in mesh.names if axis in manual]
    automatic = mesh.without(manual)
    if mesh.product(automatic) == 1:
        return FULLY_MANUAL
    tiles = [*[1] * rank, mesh.product(manual), mesh.product(automatic)]
    order = _iota(mesh, [*manual, *automatic])
    return _tiled(tiles, order, " last_tile_dims={manual, replicated}")


def _tiled(tiles: Sequence[int], order: str, suffix: str) -> str:
    return f"{{devices=[{_commas(tiles)}]{order}{suffix}}}"


def _iota(mesh: Mesh, order: Sequence[str]) -> str:
    """The ids of the mesh's devices with its axes transposed to `order`: `<=[4,2]T(1,0)`."""
    runs: list[list[str]] = []
    for axis in (axis for axis in order if mesh.sizes[axis] > 1):
        if runs and _follows(mesh, runs[-1][-1], axis):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    if len(runs) <= 1:
        return f"<=[{mesh.size}]"
    in_mesh_order = sorted(runs, key=lambda run: mesh.names.index(run[0]))
    shape = [mesh.product(run) for run in in_mesh_order]
    return f"<=[{_commas(shape)}]T({_commas([in_mesh_order.index(run) for run in runs])})"


def _follows(mesh: Mesh, left: str, right: str) -> bool:
    """Whether `right` comes directly after `left` in the mesh, axes of size one aside."""
    return mesh.stride(left) == mesh.stride(right) * mesh.sizes[right]


def _commas(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
