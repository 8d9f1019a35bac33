"""What the code of installed packages reaches, which is searched once.

A search of the code that a user's function may reach spends most of its time in the packages that
the function calls. Their functions and classes reach the same ones at each search, until a name is
bound to another. What modules hold besides, such as registries, changes at any time: the functions
and classes that name it are returned, and what they reach is to be read again at each search.
"""

from __future__ import annotations

import collections
import functools
import operator
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType

import numpy as np

from shmap_compiler.base import objects
from shmap_compiler.base.caches import Cache
from shmap_compiler.base.untyped import Unchecked

PLAIN = frozenset({str, bytes, bool, int, float, complex, type(None), np.ndarray, ModuleType})
"""Types of values by which no other ones are reached."""

PARTS = (
    staticmethod,
    classmethod,
    property,
    functools.cached_property,
    functools.partialmethod,
)
"""Members of classes that are code, or describe how it is called."""

Scope = Mapping[str, Unchecked]


@dataclass(frozen=True)
class Search:
    """How code is searched.

    Attributes:
      reached: the values that come after a value.
      looked_up: where a function or class looks names up, and the names.
      is_scanned: whether values come after a function or class.
      tells: whether a value is one that is searched for.
    """

    reached: Callable[[Unchecked], Iterable[Unchecked]]
    looked_up: Callable[[Unchecked], Iterable[tuple[Scope, Iterable[str]]]]
    is_scanned: Callable[[Unchecked], bool]
    tells: Callable[[Unchecked], bool]


@dataclass(frozen=True)
class Names:
    """Names that code looks up in a module or class.

    Attributes:
      size: the number of names that the scope had.
      of_code: those of code of installed packages, which is `code`.
      changing: those of other values, or of None, for which another value may be set later.
    """

    scope: Scope
    size: int
    of_code: list[str]
    code: list[Unchecked]
    changing: list[str]

    def hold(self) -> bool:
        """Whether the names are still those of the same code."""
        if len(self.scope) != self.size:
            return False
        return all(map(operator.is_, map(self.scope.get, self.of_code), self.code))


@dataclass(frozen=True)
class LibraryCode:
    """The code that functions and classes of installed packages reach.

    Attributes:
      code: by their ids, the functions and classes that are reached.
      telling: those that are searched for.
      names: what they look up in modules and classes.
      changing: those after which come other values than code, not by such a name.
      before: what the same search found before, which is left out here.
    """

    code: dict[int, Unchecked]
    telling: list[Unchecked]
    names: list[Names]
    changing: list[Unchecked]
    before: LibraryCode | None

    def others(self, search: Search) -> Iterator[Unchecked]:
        """The other values that the code reaches now."""
        for each in self.names:
            yield from map(each.scope.get, each.changing)
        for value in self.changing:
            yield from search.reached(value)


def library_code(
    roots: Sequence[Unchecked], search: Search, before: LibraryCode | None = None
) -> LibraryCode:
    """What functions and classes of installed packages reach.

    Args:
      before: what a search of the same code found before, which is left out.
    """
    # What is found holds the roots and what was found before, so ids last.
    key = (search, id(before), frozenset(map(id, roots)))
    known = _SEARCHED.find(key)
    if known is not None and not all(names.hold() for names in known.names):
        _SEARCHED.remove(key, known)
    return _SEARCHED.get(key, lambda: _searched(roots, search, before))


_SEARCHED = Cache[LibraryCode](256)


def forget() -> None:
    """Forgets what was searched, and which packages are installed, for tests."""
    _SEARCHED.clear()
    _is_installed.cache_clear()
    _folders.cache_clear()


def _searched(
    roots: Sequence[Unchecked], search: Search, before: LibraryCode | None
) -> LibraryCode:
    found_before: set[int] = set()
    earlier = before
    while earlier is not None:
        found_before.update(earlier.code)
        earlier = earlier.before
    code: dict[int, Unchecked] = {}
    changing: list[Unchecked] = []
    scopes: dict[int, Scope] = {}
    names: dict[int, set[str]] = collections.defaultdict(set)
    pending = [*roots]
    while pending:
        value = pending.pop()
        if id(value) in code or id(value) in found_before:
            continue
        code[id(value)] = value
        if not search.is_scanned(value):
            continue
        named: set[int] = set()
        for scope, looked_up in search.looked_up(value):
            scopes[id(scope)] = scope
            names[id(scope)].update(looked_up)
            named.update(id(scope[name]) for name in looked_up)
        others = [each for each in search.reached(value) if type(each) not in PLAIN]
        pending += filter(_is_code, others)
        if any(id(each) not in named for each in others if not _is_code(each)):
            changing.append(value)
    found_before.update(code)
    found = [_names(scope, names[of], found_before) for of, scope in scopes.items()]
    return LibraryCode(code, [*filter(search.tells, code.values())], found, changing, before)


def _names(scope: Scope, names: Iterable[str], code: Collection[int]) -> Names:
    of_code = [name for name in names if id(scope[name]) in code]
    others = [name for name in names if id(scope[name]) not in code]
    changing = [n for n in others if scope[n] is None or type(scope[n]) not in PLAIN]
    return Names(scope, len(scope), of_code, [scope[name] for name in of_code], changing)


def _is_code(value: Unchecked) -> bool:
    """Whether a value is code of an installed package, or a part of a class."""
    if issubclass(type(value), (FunctionType, type)):
        return is_installed(value)
    return type(value) in PARTS


def is_of_library(value: Unchecked) -> bool:
    """Whether a value is a function or class that a module of an installed package defines.

    Not if it was made in a function, of other functions perhaps.
    """
    if not issubclass(type(value), (FunctionType, type)) or not is_installed(value):
        return False
    found: Unchecked = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = objects.attributes(found).get(name)
    return found is value


def is_installed(code: Unchecked) -> bool:
    """Whether a function or class is of Python's library, or of an installed package."""
    return _is_installed(code.__module__)


@functools.lru_cache(maxsize=4096)
def _is_installed(module: str | None) -> bool:
    """Whether a module is in Python's library, or of a package in a folder of installed ones."""
    package = (module or "").partition(".")[0]
    if package in sys.stdlib_module_names:
        return True
    attributes = objects.attributes(sys.modules.get(package))
    places = [attributes.get("__file__"), *(attributes.get("__path__") or ())]
    return any(place is not None and place.startswith(_folders()) for place in places)


@functools.lru_cache(maxsize=1)
def _folders() -> tuple[str, ...]:
    """The folders of installed packages."""
    named = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    found = {*named, *site.getsitepackages(), site.getusersitepackages()}
    return tuple(os.path.join(folder, "") for folder in found)
