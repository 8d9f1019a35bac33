"""The arguments and results of the user's function, as the generated source takes and returns them.

Dicts, lists and tuples stay as they are, and the source unpacks them by the user's names. Other
containers, such as the states of optimizers, the source takes and returns as lists of their leaves.
"""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass

import jax

from shmap_compiler.base.untyped import AnyValue, Function, PyTree, Unchecked


@dataclass(frozen=True)
class Leaf:
    """One array among the arguments or results.

    Attributes:
      name: a name for a variable.
      path: how the source gets it from the argument: `params["w1"]`.
      index: its number among all of them.
    """

    name: str
    path: str
    index: int


@dataclass(frozen=True)
class Side:
    """One argument, or one result.

    Attributes:
      name: of the parameter.
      tree: its structure, with numbers of leaves as leaves.
      is_plain: whether the source takes it as it is, rather than as a list of leaves.
      leaves: its arrays.
    """

    name: str
    tree: PyTree
    is_plain: bool
    leaves: tuple[Leaf, ...]

    @property
    def shown(self) -> PyTree:
        """The container that the source takes or returns, with numbers of leaves as leaves."""
        return self.tree if self.is_plain else [leaf.index for leaf in self.leaves]

    def given(self, value: PyTree) -> AnyValue:
        """What the source takes, or returns, for a value of the user's."""
        return value if self.is_plain else jax.tree.leaves(value)


def read_sides(values: Sequence[AnyValue], names: Sequence[str]) -> tuple[Side, ...]:
    """Reads arguments, or results.

    Args:
      values: pytrees.
      names: one for each.
    """
    sides, count = [], 0
    for value, name in zip(values, names, strict=True):
        leaves, tree = jax.tree.flatten(value)
        numbers = range(count, count + len(leaves))
        count += len(leaves)
        numbered = jax.tree.unflatten(tree, numbers)
        is_plain = _is_plain(numbered)
        found = []
        with_paths = jax.tree_util.tree_leaves_with_path(numbered)
        for position, (path, index) in enumerate(with_paths):
            text = name + "".join(map(_shown, path)) if is_plain else f"{name}[{position}]"
            found.append(Leaf(_variable(name, path), text, index))
        sides.append(Side(name, numbered, is_plain, tuple(found)))
    return tuple(sides)


def parameter_names(fun: Function, count: int) -> tuple[str, ...]:
    """Names of the first parameters of a function; those it does not tell are `arg0` and so on."""
    names: list[str] = []
    try:
        parameters = inspect.signature(fun).parameters.values()
    except (TypeError, ValueError):
        parameters = ()
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}_{k}" for k in range(count - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    names += [f"arg{k}" for k in range(len(names), count)]
    return tuple(names[:count])


def _is_plain(tree: PyTree) -> bool:
    """Whether a pytree can be written as a literal."""
    if type(tree) is dict:
        keys = all(isinstance(key, (str, int)) for key in tree)
        return keys and all(map(_is_plain, tree.values()))
    if type(tree) in (list, tuple):
        return all(map(_is_plain, tree))
    return tree is None or isinstance(tree, int)


def _shown(key: Unchecked) -> str:
    if isinstance(key, jax.tree_util.DictKey):
        return f"[{quoted(key.key) if isinstance(key.key, str) else key.key}]"
    return f"[{key.idx}]"


def quoted(text: str) -> str:
    """A string literal, as formatters write it."""
    shown = repr(text)
    if shown[0] == "'" and '"' not in text:
        shown = '"' + shown[1:-1] + '"'
    return shown


def _variable(name: str, path: Sequence[Unchecked]) -> str:
    """A name for a leaf: the last name on its path, and what follows it."""
    parts = [name]
    for key in path:
        if isinstance(key, jax.tree_util.DictKey) and isinstance(key.key, str):
            parts = [key.key]
        elif isinstance(key, jax.tree_util.GetAttrKey):
            parts = [*parts, key.name]
        else:
            parts.append(str(getattr(key, "idx", getattr(key, "key", ""))))
    return identifier("_".join(parts))


def identifier(text: str) -> str:
    """A text as the name of a variable."""
    name = re.sub(r"\W+", "_", text).strip("_")
    if not name or name[0].isdigit():
        name = f"x{name}"
    if keyword.iskeyword(name) or name in ("l", "O", "I"):  # linters mistake these for digits
        name += "_"
    return name[:28]
