"""How an eager value is printed: the block of every device, with its place in the mesh."""

from __future__ import annotations

import jax
import numpy as np

from shmap_compiler.base import specs
from shmap_compiler.base.jax_compat import is_key_type
from shmap_compiler.eager.layout import Layout

MAX_BLOCKS = 64
MAX_ELEMENTS = 200
"""Larger meshes and larger blocks are abbreviated."""


def show_value(layout: Layout, aval: object, rows: jax.Array) -> str:
    """For example:

    f32[2] on mesh(i=2), one block on each device
      i=0 (cpu:0): [0. 1.]
      i=1 (cpu:1): [2. 3.]
    """
    lines = [f"{specs.show_type(aval)} on {specs.show_mesh(layout.mesh)}, one block on each device"]
    return "\n".join(lines + [f"  {line}" for line in show_blocks(layout, rows)])


def show_blocks(layout: Layout, rows: jax.Array) -> list[str]:
    """One entry per device; a block of several lines starts on a line of its own."""
    entries = []
    for position, block in layout.local_blocks(rows):
        if len(entries) == MAX_BLOCKS:
            entries.append(f"... and {layout.count - MAX_BLOCKS} more")
            break
        text = _show_block(block)
        separator = "\n    " if "\n" in text else " "
        entries.append(f"{place(layout, position)}:" + separator + text.replace("\n", "\n    "))
    return entries


def place(layout: Layout, position: int) -> str:
    """Where a block is: `i=0, j=1 (cpu:1)`."""
    coordinates = ", ".join(f"{a}={k}" for a, k in layout.coordinates(position).items())
    devices = layout.devices(position)
    where = str(devices[0]) if len(devices) == 1 else f"{len(devices)} devices"
    return f"{coordinates} ({where})"


def _show_block(block: jax.Array) -> str:
    if is_key_type(block):
        return f"{block.dtype} {np.asarray(jax.random.key_data(block))}"
    return np.array2string(np.asarray(block), threshold=MAX_ELEMENTS, edgeitems=3)
