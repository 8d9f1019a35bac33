"""The grammar of `in_axes` and `out_axes`: which dimensions of an array have which names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from shmap_compiler.base.descriptions import show_value
from shmap_compiler.base.errors import Problem, TypeProblem, spec_error
from shmap_compiler.base.untyped import PyTree, Unchecked


@dataclass(frozen=True)
class AxisMapping:
    """The named dimensions of one array, or of every array of a subtree.

    Attributes:
      positions: (name, dimension) in the order of dimensions.
      rank: how many dimensions the array must have, named ones included; None for any number.
      where: the part of `in_axes` or `out_axes` that says so: `in_axes[0]`.
      text: what is written there.
    """

    positions: tuple[tuple[str, int], ...]
    rank: int | None
    where: str
    text: str

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.positions)

    def position(self, name: str) -> int | None:
        """The dimension of that name, if there is one."""
        return next((at for named, at in self.positions if named == name), None)

    @property
    def least_rank(self) -> int:
        """The rank that the array has at least: its named dimensions are among its dimensions."""
        return max((at + 1 for _, at in self.positions), default=0)

    @property
    def shown(self) -> str:
        return f"{self.where}={self.text}"


class Mappings:
    """A pytree of axis mappings, as it was given.

    Attributes:
      tree: the same with an `AxisMapping` in place of each mapping.
      leaves: those.
    """

    def __init__(self, root: str, tree: PyTree, problems: list[Problem]):
        """
        Args:
          root: `in_axes` or `out_axes`.
          problems: where to add what is wrong.
        """
        if root == "in_axes" and isinstance(tree, list) and not _is_mapping(tree):
            tree = tuple(tree)  # a list of mappings, one for each argument
        self.root = root
        if isinstance(tree, tuple) and not tree:
            self.tree: Any = ()
            self.leaves: list[AxisMapping] = []
            return
        paths, structure = jax.tree_util.tree_flatten_with_path(tree, is_leaf=_is_mapping)
        self.leaves = [
            _parsed(root + jax.tree_util.keystr(path), entry, problems) for path, entry in paths
        ]
        self.tree = jax.tree.unflatten(structure, self.leaves)

    def of_leaves(self, who: str, value: object) -> list[AxisMapping]:
        """The mapping of each array of `value`, of which the tree is a prefix.

        Raises:
          SpecError: it is not.
        """
        found: list[AxisMapping] = []

        def collect(mapping: AxisMapping, subtree: PyTree) -> None:
            found.extend([mapping] * len(jax.tree.leaves(subtree)))

        try:
            jax.tree.map(collect, self.tree, value, is_leaf=_is_parsed)
        except ValueError:
            raise spec_error(who, [self._no_prefix(value)]) from None
        return found

    def _no_prefix(self, value: object) -> Problem:
        what = "tuple of arguments" if self.root == "in_axes" else "result"
        shown = jax.tree.unflatten(
            jax.tree.structure(self.tree, is_leaf=_is_parsed), [_Text(m.text) for m in self.leaves]
        )
        return Problem(
            self.root,
            f"{shown!r}, for a {what} of the structure {jax.tree.structure(value)}",
            f"a tree prefix of the {what}, with an axis mapping for each array or subtree",
            "give one mapping per array, or one for all: a list of names that ends in `...`, or a "
            "dict from dimensions to names",
        )


@dataclass(frozen=True)
class _Text:
    text: str

    def __repr__(self) -> str:
        return self.text


def _is_parsed(value: object) -> bool:
    return isinstance(value, AxisMapping)


def _is_mapping(tree: object) -> bool:
    """Whether this is one mapping, and not a container of mappings."""
    if isinstance(tree, dict):
        return all(_is_leaf(v) for v in tree.values())
    if isinstance(tree, (tuple, list)):
        return all(v is None or _is_leaf(v) for v in tree)
    return False


def _is_leaf(value: object) -> bool:
    return jax.tree_util.all_leaves([value])


def _parsed(where: str, entry: Unchecked, problems: list[Problem]) -> AxisMapping:
    found = list(_wrong(where, entry))
    problems += found
    if found:
        return AxisMapping((), None, where, repr(entry))
    if isinstance(entry, dict):
        pairs = [(name, at) for at, name in entry.items()]
        return AxisMapping(_in_order(pairs), None, where, repr(entry))
    names = list(entry)
    is_open = bool(names) and names[-1] is ...
    names = names[:-1] if is_open else names
    pairs = [(name, at) for at, name in enumerate(names) if name is not None]
    rank = None if is_open else len(names)
    return AxisMapping(_in_order(pairs), rank, where, _shown(entry))


def _in_order(pairs: Sequence[tuple[str, int]]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(pairs, key=lambda pair: pair[1]))


def _shown(entry: Sequence[Unchecked]) -> str:
    inner = ", ".join("..." if name is ... else repr(name) for name in entry)
    return f"[{inner}]" if isinstance(entry, list) else f"({inner})"


def sizes_of(
    who: str,
    paths: Sequence[str],
    shapes: Sequence[tuple[int, ...]],
    mappings: Sequence[AxisMapping],
    given: Mapping[str, int],
    names: Sequence[str],
) -> dict[str, int]:
    """The size of each of `names`, from `axis_sizes` and from the shapes of the arguments.

    Raises:
      SpecError: sizes differ or cannot be inferred, or an argument has too few dimensions.
    """
    problems: list[Problem] = []
    sizes = dict(given)
    source = {name: f"axis_sizes[{name!r}]" for name in given}
    for path, shape, mapping in zip(paths, shapes, mappings, strict=True):
        wrong_rank = list(_wrong_rank(path, shape, mapping))
        problems += wrong_rank
        for name, at in () if wrong_rank else mapping.positions:
            if sizes.setdefault(name, shape[at]) != shape[at]:
                problems.append(_sizes_differ(path, shape, mapping, at, sizes[name], source[name]))
            source.setdefault(name, f"dimension {at} of {path}, of shape {shape}")
    if not problems:
        problems += [_no_size(name) for name in names if name not in sizes]
    if problems:
        raise spec_error(who, problems)
    return {name: sizes[name] for name in names}


# ------------------------------------------------------------------------------------- mistakes


def _wrong(where: str, entry: object) -> Iterator[Problem]:
    if not isinstance(entry, (dict, tuple, list)):
        yield TypeProblem(
            where,
            show_value(entry),
            "an axis mapping: a list of axis names, or a dict from dimensions to axis names",
            "write e.g. ['batch', ...] or {0: 'batch'}; [...] or {} if no dimension is named",
        )
        return
    if isinstance(entry, dict):
        names, positions = list(entry.values()), list(entry)
    else:
        names = list(entry[:-1] if entry and entry[-1] is ... else entry)
        positions = []
    for at in positions:
        if type(at) is not int:
            yield TypeProblem(
                where, f"the key {show_value(at)}", "dimensions as keys", "write {0: 'batch'}"
            )
        elif at < 0:
            yield Problem(
                where,
                f"dimension {at}: xmap doesn't support negative axes",
                "a dimension counted from the first, which is 0",
                "count from the first dimension of the array, named ones included",
            )
    for name in names:
        if name is ... or not (isinstance(name, str) or (name is None and not positions)):
            fix = "write a name such as 'batch'"
            fix = "write `...` as the last entry of a list" if name is ... else fix
            yield TypeProblem(where, show_value(name), "a string as the name of an axis", fix)
    strings = [name for name in names if isinstance(name, str)]
    for name in sorted({n for n in strings if strings.count(n) > 1}):
        yield Problem(
            where,
            f"{name!r} more than once",
            "named axes that are unique within each mapping",
            "give each dimension a name of its own",
        )


def _wrong_rank(path: str, shape: tuple[int, ...], mapping: AxisMapping) -> Iterator[Problem]:
    if len(shape) < mapping.least_rank:
        yield Problem(
            path,
            f"an array of rank {len(shape)}, of shape {shape}",
            f"at least {mapping.least_rank} dimensions, which {mapping.shown} implies",
            "name only dimensions that the argument has",
        )
    elif mapping.rank is not None and mapping.rank != len(shape):
        yield Problem(
            path,
            f"an array of rank {len(shape)}, of shape {shape}",
            f"rank {mapping.rank}, which {mapping.shown} asserts",
            "end the list with `...` to accept further dimensions",
        )


def _sizes_differ(
    path: str, shape: tuple[int, ...], mapping: AxisMapping, at: int, size: int, source: str
) -> Problem:
    name = next(named for named, position in mapping.positions if position == at)
    return Problem(
        path,
        f"size {shape[at]} of axis {name!r}: dimension {at} of shape {shape}, "
        f"named by {mapping.shown}",
        f"size {size}, as {source} has it",
        "pass arguments in which the axis has one size, or use different names",
    )


def _no_size(name: str) -> Problem:
    return Problem(
        f"axis {name!r}",
        "no size: no argument has an array along it",
        "a size for every axis in in_axes",
        f"write axis_sizes={{{name!r}: ...}}",
    )
