"""Arrays as rectangles of blocks, each with the devices that hold it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shmap_compiler.base.text_tables import show_bytes
from shmap_compiler.explain.figures import Layout
from shmap_compiler.explain.page.holders import coordinates, is_drawn, label, ranges
from shmap_compiler.explain.page.markup import Markup, element, join

MOST_BLOCKS = 64
"""Of arrays in more blocks, the first few are listed instead of drawn."""

_LISTED = 6  # blocks of those that are not drawn
_NAMED = 6  # arrays that are cut alike
_SIDE, _LINE, _LETTER = 180, 20, 7  # pixels: of an array, of a line of text, of a letter
_DENSE, _DENSE_LINE = 16, 13  # where there are more lines, they are lower


def figures(title: str, layouts: Sequence[Layout], mesh: Mapping[str, int]) -> Markup:
    """Arrays of one role; those that are cut alike share a figure."""
    alike: dict[tuple[str, str], list[Layout]] = {}
    for layout in layouts:
        alike.setdefault((layout.type, layout.spec), []).append(layout)
    if not alike:
        return join()
    drawn = (_array(group, mesh) for group in alike.values())
    return join(element("h3", title), element("div", *drawn, class_="figures"))


def _array(alike: Sequence[Layout], mesh: Mapping[str, int]) -> Markup:
    layout = alike[0]
    blocks = Blocks.of(layout)
    few = len(blocks.holders) <= MOST_BLOCKS
    return element(
        "figure",
        element(
            "figcaption",
            _names([each.path for each in alike]),
            element("span", f"{layout.type}  {layout.spec}", class_="type"),
            element("span", _each(blocks, len(alike)), class_="quiet"),
        ),
        *(_planes(blocks, mesh) if few else _first_blocks(blocks, mesh)),
    )


def _names(paths: Sequence[str]) -> Markup:
    names = element("b", ", ".join(paths))
    if len(paths) <= _NAMED:
        return names
    return element("details", element("summary", f"{paths[0]} and {len(paths) - 1} more"), names)


def _each(blocks: Blocks, arrays: int) -> str:
    shape = " \u00d7 ".join(map(str, blocks.layout.block)) or "a scalar"
    count = len(blocks.holders)
    size = show_bytes(blocks.layout.bytes) + (" of each" if arrays > 1 else "")
    if count == 1:
        return f"every device holds all of it: {shape}, {size}"
    return f"{count} blocks; a device holds {shape}, {size}"


@dataclass(frozen=True)
class Blocks:
    """How an array is cut.

    Attributes:
      counts: along each dimension, into how many.
      holders: the devices that hold it, by block.
    """

    layout: Layout
    counts: tuple[int, ...]
    holders: Mapping[tuple[int, ...], Sequence[int]]

    @classmethod
    def of(cls, layout: Layout) -> Blocks:
        holders: dict[tuple[int, ...], list[int]] = {}
        for device, block in enumerate(layout.holds):
            holders.setdefault(block, []).append(device)
        counts = tuple(max(along) + 1 for along in zip(*holders, strict=True))
        return cls(layout, counts, holders)

    @property
    def split(self) -> list[int]:
        """The dimensions that are cut."""
        return [d for d, count in enumerate(self.counts) if count > 1]

    def length(self, dimension: int | None) -> int:
        """Of the whole array; 1 along a dimension that it does not have."""
        return 1 if dimension is None else self.layout.block[dimension] * self.counts[dimension]

    def count(self, dimension: int | None) -> int:
        return 1 if dimension is None else self.counts[dimension]

    def at(self, positions: Mapping[int | None, int]) -> tuple[int, ...]:
        """The block at these positions along dimensions, the first one along others."""
        return tuple(positions.get(d, 0) for d in range(len(self.counts)))


def _planes(blocks: Blocks, mesh: Mapping[str, int]) -> Iterator[Markup]:
    """A drawing for each position along the dimensions that are cut but not drawn."""
    down, across = _drawn_dimensions(blocks)
    edges = (_edge("\u2193", blocks, down), _edge("\u2192", blocks, across))
    yield element("div", "  ".join(filter(None, edges)), class_="edges quiet")
    rest = [d for d in blocks.split if d not in (down, across)]
    for position in itertools.product(*(range(blocks.counts[d]) for d in rest)):
        fixed = dict(zip(rest, position, strict=True))
        if fixed:
            text = ", ".join(f"dim {d}: block {i}" for d, i in fixed.items())
            yield element("div", text, class_="quiet")
        yield _plane(blocks, down, across, fixed, mesh)


def _drawn_dimensions(blocks: Blocks) -> tuple[int | None, int | None]:
    """Which are drawn downwards and to the right: the first two that are cut, if there are two."""
    rank, split = len(blocks.counts), blocks.split
    if rank < 2:
        return None, rank - 1 if rank else None
    if len(split) >= 2:
        return split[0], split[1]
    down = min(split[0], rank - 2) if split else rank - 2
    return down, rank - 1


def _plane(
    blocks: Blocks,
    down: int | None,
    across: int | None,
    fixed: Mapping[int, int],
    mesh: Mapping[str, int],
) -> Markup:
    rows, columns = blocks.count(down), blocks.count(across)
    shown = [blocks.at({**fixed, down: i, across: j}) for i in range(rows) for j in range(columns)]
    cells = (_block(block, blocks.holders[block], mesh) for block in shown)
    longest = max(len(label(blocks.holders[block], mesh)) for block in shown)
    dense = rows > _DENSE
    width, height = _size(blocks.length(down), blocks.length(across))
    width = max(width, columns * (longest * _LETTER + 8))
    height = max(height, rows * (_DENSE_LINE if dense else _LINE))
    grid = f"grid-template-columns:repeat({columns},1fr);width:{width}px;height:{height}px"
    return element("div", *cells, class_="blocks dense" if dense else "blocks", style=grid)


def _size(down: int, across: int) -> tuple[int, int]:
    """Pixels (width, height) in the proportions of the array, as far as they can be drawn."""
    if down == 1 or not down * across:
        return _SIDE, 2 * _LINE
    ratio = min(max(down / across, 1 / 4), 3 / 2)
    return (_SIDE, round(_SIDE * ratio)) if ratio <= 1 else (round(_SIDE / ratio), _SIDE)


def _edge(arrow: str, blocks: Blocks, dimension: int | None) -> str:
    if dimension is None:
        return ""
    count, block = blocks.counts[dimension], blocks.layout.block[dimension]
    cut = f" = {count} \u00d7 {block}" if count > 1 else ""
    return f"{arrow} dim {dimension}: {blocks.length(dimension)}{cut}"


def _block(block: Sequence[int], holders: Sequence[int], mesh: Mapping[str, int]) -> Markup:
    return element(
        "span",
        label(holders, mesh),
        class_="block",
        title=_held(block, holders, mesh),
        data_devices=" ".join(map(str, holders)) if is_drawn(mesh) else None,
    )


def _first_blocks(blocks: Blocks, mesh: Mapping[str, int]) -> Iterator[Markup]:
    first = sorted(blocks.holders.items())[:_LISTED]
    items = (element("li", _held(block, holders, mesh)) for block, holders in first)
    yield element("ul", *items, element("li", f"and {len(blocks.holders) - _LISTED} more blocks"))


def _held(block: Sequence[int], holders: Sequence[int], mesh: Mapping[str, int]) -> str:
    """Which devices hold a block, in words."""
    which = f"block ({', '.join(map(str, block))})" if block else "all of it"
    noun = "device" if len(holders) == 1 else "devices"
    return f"{which}: {noun} {ranges(holders)}; {coordinates(holders, mesh)}"
