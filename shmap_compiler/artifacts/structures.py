"""Structures of arguments and results as JSON, and back.

A file does not contain the user's classes. A container whose children have names, such as a named
tuple or a dataclass, is read back as a named tuple with the same class name and fields. A class
that has metadata for JAX besides these names, as static fields of a dataclass are, cannot be saved.
"""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Collection
from keyword import iskeyword

import jax
from jax.tree_util import DictKey, GetAttrKey

from shmap_compiler.artifacts.checks import MOST_LEVELS
from shmap_compiler.base.descriptions import show_type_of
from shmap_compiler.base.errors import Problem
from shmap_compiler.base.untyped import Json, PyTree, Unchecked

_LEAF = object()


def write_structure(tree: PyTree) -> Json:
    """JSON: a leaf as true, None as false, a container as [its kind, its keys, its children]."""
    return _write(_filled(tree))


def read_structure(text: Json) -> PyTree:
    """The structure that `write_structure` wrote, with named tuples for the user's classes."""
    return jax.tree.structure(_read(text))


def structure_problems(tree: PyTree, root: str) -> list[Problem]:
    """The containers that cannot be written; `root` names the outermost one."""
    problems: list[Problem] = []
    _check(_filled(tree), root, problems)
    return problems


def is_same_in_file(found: PyTree, saved: PyTree) -> bool:
    """Whether a structure would be read back as `saved`, which came from a file.

    The user's own classes are accepted for the named tuples of the file.
    """
    return not structure_problems(found, "") and write_structure(found) == write_structure(saved)


def _filled(tree: PyTree) -> PyTree:
    return jax.tree.unflatten(tree, [_LEAF] * tree.num_leaves)


def _level(tree: PyTree) -> list[tuple[Unchecked, PyTree]]:
    """(key, child) of each child of a container."""
    pairs, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)
    return [(path[0], child) for path, child in pairs]


def _write(tree: PyTree) -> Json:
    if tree is None or tree is _LEAF:
        return tree is _LEAF
    if type(tree) in (list, tuple):
        return [type(tree).__name__, None, [_write(child) for child in tree]]
    keys = [key for key, _ in _level(tree)]
    children = [_write(child) for _, child in _level(tree)]
    if isinstance(tree, dict) or isinstance(next(iter(keys), None), DictKey):
        # JAX sorts the keys of a dict; those of an OrderedDict, or of the user's class, stay.
        is_sorted = isinstance(tree, dict) and not isinstance(tree, OrderedDict)
        return ["dict" if is_sorted else "ordered", [key.key for key in keys], children]
    return [f"class {type(tree).__name__}", [key.name for key in keys], children]


def _read(text: Json) -> PyTree:
    if isinstance(text, bool):
        return _LEAF if text else None
    kind, keys, children = text
    values = [_read(child) for child in children]
    if keys is None:
        return {"list": list, "tuple": tuple}[kind](values)
    if kind in ("dict", "ordered"):
        container = dict if kind == "dict" else OrderedDict
        return container(zip(keys, values, strict=True))
    return namedtuple(kind.removeprefix("class "), keys)(*values)


def _check(tree: PyTree, path: str, problems: list[Problem], depth: int = 0) -> None:
    if tree is None or tree is _LEAF:
        return
    level = _level(tree)
    if depth > MOST_LEVELS:
        problems.append(
            Problem(
                f"{path[:60]}...",
                f"a structure of more than {MOST_LEVELS} levels",
                f"at most {MOST_LEVELS} levels of containers in each other",
                "flatten it at the boundary of the function that is saved",
            )
        )
        return
    kinds = {isinstance(key, DictKey) for key, _ in level}
    is_named = len(kinds) < 2 and all(_has_name(key) for key, _ in level)
    if type(tree) not in (list, tuple) and not is_named:
        problems.append(
            Problem(
                path,
                show_type_of(tree),
                "tuples, lists, dicts with strings or whole numbers as keys, or classes whose "
                "parts JAX knows by name, as those of named tuples: without a leading _",
                "convert it at the boundary of the function that is saved",
            )
        )
        return
    if _has_metadata(tree, level):
        problems.append(
            Problem(
                path,
                f"{show_type_of(tree)} with metadata, such as static fields",
                "containers without metadata: a file does not contain the user's classes, and "
                "a program is valid for one value of the metadata",
                "pass or return its arrays, and close over the rest",
            )
        )
        return
    for key, child in level:
        _check(child, path + jax.tree_util.keystr((key,)), problems, depth + 1)


def _has_name(key: Unchecked) -> bool:
    if isinstance(key, GetAttrKey):  # the name of a field of a named tuple, once it is read
        return key.name.isidentifier() and not iskeyword(key.name) and key.name[0] != "_"
    return isinstance(key, DictKey) and type(key.key) in (str, int)


def _has_metadata(tree: PyTree, level: list[tuple[Unchecked, PyTree]]) -> bool:
    """Whether JAX knows more of a container than its class and the names of its parts."""
    if isinstance(tree, dict):
        return False
    data = jax.tree.structure(tree).node_data()
    metadata = None if data is None else data[1]
    if metadata is None or (isinstance(metadata, Collection) and not metadata):
        return False
    # Some classes repeat the names there.
    names = [key.name if isinstance(key, GetAttrKey) else key.key for key, _ in level]
    return not isinstance(metadata, tuple | list) or list(metadata) != names
