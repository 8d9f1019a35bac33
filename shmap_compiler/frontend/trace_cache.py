"""Caches ShardMapped objects on the user's function.

jit knows a function by its identity. A `shard_map(f, ...)` that is built anew at each step of a
loop would be traced, lowered and compiled at each step; so one that has been traced is kept with
`f`, and given out again if all that `f` reads is as it was (`variables.py`). One that has also been
traced after changes is not given out any more: jit may have programs of either kind for it.

It is kept in `f` itself: no table of ours keeps `f`, or the arrays that it closes over, alive. The
two refer to each other, so that the garbage collector has to free them.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from types import FunctionType
from typing import NamedTuple, TypeVar, cast

import jax

from shmap_compiler.base.caches import Cache
from shmap_compiler.base.untyped import Function, Setting
from shmap_compiler.base.values import is_hashable
from shmap_compiler.frontend.variables import Mapped, variables_key
from shmap_compiler.graph import structural_keys

_Mapped = TypeVar("_Mapped", bound=Mapped)
ATTRIBUTE = "__shard_mapped__"
"""Of a function: what has been made of it."""


class Key(NamedTuple):
    """Of what is computed: the other arguments of shard_map, and the variables that are read."""

    options: Hashable
    variables: Hashable


def key(fun: Function, options: dict[str, Setting]) -> Key | None:
    """Equal for what computes the same; None where nobody can tell.

    Callable objects may have changed from one call to the next. So may the variables that a plain
    function reads, but most of those can be compared.

    Args:
      options: the other arguments of shard_map. They are not checked yet, and may be anything.
    """
    found = _options_key(options) if isinstance(fun, FunctionType) else None
    variables = None if found is None else variables_key(fun)
    return None if variables is None else Key(found, variables)


def _options_key(options: dict[str, Setting]) -> Hashable:
    try:
        leaves, structure = jax.tree.flatten(options)
    except (TypeError, ValueError):
        return None
    metadata = tuple(map(structural_keys.key, structural_keys.metadata(structure)))
    found = structure, metadata, tuple((type(leaf), leaf) for leaf in leaves)
    return found if is_hashable(found) else None


def unchanged(mapped: Mapped, before: Key | None) -> Key | None:
    """The key from before a trace; None if the function changed what it reads when it was traced.

    Its next trace then gives something else.
    """
    if before is None or variables_key(cast("FunctionType", mapped.fun)) != before.variables:
        return None
    return before


def find(kind: type[_Mapped], fun: Function, options: dict[str, Setting]) -> _Mapped | None:
    """What has been kept for `fun` and equal options, if anything of this kind."""
    made = _made_of(fun)
    if made is None:
        return None
    wanted = key(fun, options)
    mapped = made.mapped.find((kind, wanted))
    if not isinstance(mapped, kind):
        return None
    # A list or dict of specs may have been changed since.
    return mapped if _options_key(mapped.options) == _options_key(options) else None


def keep(mapped: Mapped, found: Hashable) -> None:
    """Keeps `mapped`, which was traced, with its function by its key, if it can be known again."""
    if found is not None:
        made = _made_of(mapped.fun) or _Made.new(mapped.fun)
        made.mapped.get((type(mapped), found), lambda: mapped)
    note(mapped, found)


def note(mapped: Mapped, found: Hashable) -> None:
    """Notes the key under which `mapped` was traced, and lets it go if it had another one before.

    A trace without a key is noted as well: jit may have a program of it.
    """
    if not isinstance(mapped.fun, FunctionType):
        return
    made = _made_of(mapped.fun) or _Made.new(mapped.fun)
    first = made.traced.setdefault(mapped, found)
    if first != found:
        made.traced[mapped] = None
        for each in (first, found):
            made.mapped.remove((type(mapped), each), mapped)


class _Made:
    """What has been made of one function.

    Attributes:
      mapped: what is given out again.
      traced: the keys of all that have been traced; None after a trace under another key.
    """

    def __init__(self, fun: FunctionType):
        self.of = weakref.ref(fun)
        self.mapped: Cache[Mapped] = Cache(maxsize=64)
        self.traced: weakref.WeakKeyDictionary[Mapped, Hashable] = weakref.WeakKeyDictionary()

    @staticmethod
    def new(fun: Function) -> _Made:
        """Replaces that of another function, which `functools.wraps` copied."""
        made = fun.__dict__[ATTRIBUTE] = _Made(fun)
        return made

    def __reduce__(self) -> tuple[object, ...]:
        """A pickled function comes without it."""
        return type(None), ()


def _made_of(fun: Function) -> _Made | None:
    """`functools.wraps` copies the attributes of a function to another one; these do not count."""
    made = getattr(fun, ATTRIBUTE, None)
    return made if isinstance(made, _Made) and made.of() is fun else None
