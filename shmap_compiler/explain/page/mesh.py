"""The mesh, and beside it who holds which block of each array."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from shmap_compiler.explain.figures import Figures
from shmap_compiler.explain.page.arrays import figures
from shmap_compiler.explain.page.holders import coordinates, is_drawn
from shmap_compiler.explain.page.markup import Markup, element

_IN_LINE = 8  # devices of a mesh of one axis

_ROLES = {"closed over": "Closed over", "argument": "Arguments", "result": "Results"}

_HELP = (
    "Devices are numbered by position in the mesh, and each block of an array shows the devices "
    "that hold it. Hover over a device to see its blocks, or over a block to see its devices. "
    "Click a device to pin it."
)


def section(explanation: Figures) -> Markup:
    mesh = explanation.mesh
    groups = (
        figures(title, [layout for layout in explanation.layouts if layout.role == role], mesh)
        for role, title in _ROLES.items()
    )
    return element(
        "section",
        element("h2", "Which device holds what"),
        element("p", _HELP, class_="quiet") if is_drawn(mesh) else "",
        element(
            "div",
            element("div", _mesh(mesh), class_="mesh"),
            element("div", *groups, class_="arrays"),
            class_="holders",
        ),
    )


def _mesh(mesh: Mapping[str, int]) -> Markup:
    count = math.prod(mesh.values())
    sizes = ", ".join(f"{axis}={size}" for axis, size in mesh.items())
    caption = f"mesh({sizes}): {count} device{'s' if count != 1 else ''}"
    if not is_drawn(mesh):
        return element("p", f"{caption}, too many to draw one by one.")
    return element("table", element("caption", caption), *_mesh_rows(mesh))


def _mesh_rows(mesh: Mapping[str, int]) -> Iterator[Markup]:
    """The first axis downwards and the others to the right; a mesh of one axis is a row."""
    if len(mesh) < 2:
        yield from _lines_of_devices(mesh)
        return
    (down, count), *across = mesh.items()
    columns = list(itertools.product(*(range(size) for _, size in across)))
    axes = [axis for axis, _ in across]
    heads = (element("th", *_heads(axes, column), scope="col") for column in columns)
    yield element("tr", element("td"), *heads)
    for i in range(count):
        cells = (_device(mesh, i * len(columns) + j) for j in range(len(columns)))
        yield element("tr", element("th", f"{down}={i}", scope="row"), *cells)


def _lines_of_devices(mesh: Mapping[str, int]) -> Iterator[Markup]:
    devices = range(math.prod(mesh.values()))
    for first in devices[::_IN_LINE]:
        yield element("tr", *(_device(mesh, d) for d in devices[first : first + _IN_LINE]))


def _heads(axes: Sequence[str], values: Sequence[int]) -> Iterator[Markup]:
    return (element("div", f"{axis}={value}") for axis, value in zip(axes, values, strict=True))


def _device(mesh: Mapping[str, int], device: int) -> Markup:
    where = coordinates([device], mesh)
    button = element(
        "button",
        str(device),
        type="button",
        title=where,
        aria_label=f"device {device}, {where}",
        aria_pressed="false",
        data_device=device,
    )
    return element("td", button)
