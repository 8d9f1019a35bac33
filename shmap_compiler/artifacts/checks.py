"""Validates the header of a file, which may be any JSON, before it is used.

Each function raises `Malformed` with what was found and what is needed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import jax.numpy as jnp
from jax.sharding import AxisType

from shmap_compiler.base.descriptions import show_type_of, with_article
from shmap_compiler.base.jax_compat import HOST_KIND
from shmap_compiler.base.specs import mentioned
from shmap_compiler.base.untyped import Aval, Json, Unchecked
from shmap_compiler.records.signature import Signature

# Deeper ones would exceed the recursion limits of Python and JAX.
MOST_LEVELS = 100
_LARGEST_DIMENSION = 2**63 - 1


class Malformed(ValueError):
    """The contents of a file are not valid for its kind."""

    def __init__(self, found: str, needed: str):
        self.found, self.needed = found, needed
        super().__init__(f"{found}; needed: {needed}")


def field(header: Json, name: str, *types: type) -> Json:
    """A field of a header, of one of these types exactly: true is not a number."""
    if not isinstance(header, Mapping):
        raise Malformed(f"{show_type_of(header)} in its header", f"fields, such as {name!r}")
    if name not in header:
        raise Malformed(f"no {name!r} in its header", "a header as save() writes it")
    if type(header[name]) not in types:
        wanted = " or ".join("null" if t is type(None) else t.__name__ for t in types)
        raise Malformed(
            f"{show_type_of(header[name])} as {name!r} in its header", with_article(wanted)
        )
    return header[name]


def entries(header: Json, name: str, *types: type) -> list[Json]:
    """A list in a header whose entries are of one of these types."""
    found = field(header, name, list)
    strangers = [each for each in found if type(each) not in types]
    if strangers:
        wanted = " or ".join(t.__name__ for t in types)
        raise Malformed(
            f"{show_type_of(strangers[0])} in {name!r} of its header",
            f"entries of type {wanted}",
        )
    return found


def mesh_sizes(header: Json) -> tuple[tuple[str, ...], tuple[int, ...], tuple[AxisType, ...]]:
    """Names, sizes and types of the axes of the mesh."""
    axes, kinds = field(header, "mesh", dict), entries(header, "axis_types", str)
    sizes = tuple(axes.values())
    if not all(type(size) is int and size > 0 for size in sizes) or math.prod(sizes) >= 2**31:
        raise Malformed(
            f"the mesh {axes}", "sizes of at least 1, of which the product is below 2^31"
        )
    names = AxisType.__members__
    if len(kinds) != len(axes) or any(kind not in names for kind in kinds):
        raise Malformed(f"axis types {kinds} for the mesh {axes}", f"one of {list(names)} for each")
    return tuple(axes), sizes, tuple(AxisType[kind] for kind in kinds)


def memory_kinds(header: Json, name: str) -> tuple[str | None, ...]:
    """The memory kind of each array, None for that of the device."""
    found = entries(header, name, str, type(None))
    for kind in found:
        choice(name, kind, (None, HOST_KIND))
    return tuple(found)


def type_text(text: Json) -> tuple[str, tuple[int, ...]]:
    """(element type, shape) of a type in a header."""
    if not text or type(text[0]) is not str:
        raise Malformed(f"{text!r} as a type", "the element type and the sizes")
    name, *shape = text
    if not all(type(size) is int and 0 <= size <= _LARGEST_DIMENSION for size in shape):
        raise Malformed(f"the type {text!r}", "sizes from 0 to 2^63 - 1")
    return name, tuple(shape)


def tree_depth(text: Json, level: int = 0) -> None:
    """Raises Malformed if a structure in a header is too deep, or not one."""
    if isinstance(text, bool):
        return
    if level > MOST_LEVELS:
        raise Malformed("a structure of too many levels", f"at most {MOST_LEVELS} levels")
    if not isinstance(text, list) or len(text) != 3 or not isinstance(text[2], list):
        raise Malformed(f"{text!r:.60} as a structure", "[kind, keys, children]")
    kind, keys, children = text
    is_class = type(kind) is str and kind.startswith("class ")
    is_dict = kind in ("dict", "ordered")
    if kind not in ("list", "tuple") and not is_dict and not is_class:
        raise Malformed(f"{kind!r:.60} as a container", "list, tuple, dict, ordered or class NAME")
    is_keyed = is_dict or is_class
    names = keys if isinstance(keys, list) else []
    if is_keyed != isinstance(keys, list) or (is_keyed and len(names) != len(children)):
        raise Malformed(f"the keys {keys!r:.60} for {len(children)} children", "a key for each")
    allowed = (str, int) if is_dict else (str,)
    repeated = [key for key, count in Counter(map(repr, names)).items() if count > 1]
    if repeated or not all(type(key) in allowed for key in names):
        raise Malformed(f"the keys {keys!r:.60}", "different strings or whole numbers")
    for child in children:
        tree_depth(child, level + 1)


def signature(found: Signature) -> None:
    """Raises Malformed if the parts of a signature do not fit together."""
    inputs = len(found.in_types)
    _count("in_paths", len(found.in_paths), inputs - len(found.constants))
    _count("in_specs", len(found.in_specs), inputs)
    _count("in_tree", found.in_tree.num_leaves, len(found.in_paths) + len(found.static))
    _count("out_specs", len(found.out_specs), len(found.out_types))
    _count("in_memory_kinds", len(found.in_memory_kinds), inputs)
    _count("out_memory_kinds", len(found.out_memory_kinds), len(found.out_types))
    _count("out_tree", found.out_tree.num_leaves, len(found.out_types))
    positions = [position for position, _, _ in found.static]
    if len(set(positions)) < len(positions) or not set(positions) <= set(
        range(found.in_tree.num_leaves)
    ):
        raise Malformed(f"'static' at {positions}", "different positions of arguments")
    types, specs = (*found.in_types, *found.out_types), (*found.in_specs, *found.out_specs)
    for type_, spec in zip(types, specs, strict=True):
        axes = mentioned(spec)
        if len(set(axes)) < len(axes) or not set(axes) <= set(found.mesh.axis_names):
            raise Malformed(
                f"the spec {spec}", f"axes of {tuple(found.mesh.axis_names)}, each once"
            )
        if len(spec) > len(type_.shape):
            raise Malformed(f"the spec {spec} for shape {type_.shape}", "at most one entry each")


def numbers(name: str, found: Iterable[Unchecked], count: int, limit: int) -> tuple[int, ...]:
    """Different whole numbers from 0 up to `limit`, `count` of them."""
    found = tuple(found)
    if len(found) != count or len(set(map(repr, found))) < len(found):
        raise Malformed(f"{name!r} with {len(found)} entries", f"{count} different ones")
    if not all(type(each) is int and 0 <= each < limit for each in found):
        raise Malformed(f"{name!r} {found!r:.60}", f"whole numbers from 0 to {limit - 1}")
    return found


def choice(name: str, found: object, choices: Sequence[Json]) -> Json:
    if found not in choices:
        raise Malformed(f"{found!r:.60} as {name!r} in its header", f"one of {list(choices)}")
    return found


def element_type(name: str) -> Aval:
    """The element type that a header names."""
    try:
        dtype = jnp.dtype(name)
    except TypeError:
        raise Malformed(f"the element type {name!r:.60}", "one that JAX knows") from None
    if dtype.kind in "OUSMm" or dtype.fields or dtype.subdtype:
        raise Malformed(f"the element type {name!r:.60}", "one of numbers or booleans")
    return dtype


def _count(name: str, found: int, needed: int) -> None:
    if found != needed:
        raise Malformed(f"{name!r} for {found} arrays in its header", f"{needed} of them")
