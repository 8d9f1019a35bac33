"""What programs import: each sees the modules beside its own file, and none beside another's.

Two programs of one command line may come from two copies of a folder, with modules of the same
names. The folder of the program whose code runs is entered: it is first in `sys.path`, and
`sys.modules` has what programs of this folder imported from it. When another folder is entered,
these modules are taken out, and put back when the first one is entered again.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from types import ModuleType

TARGET = "shmap_target_"
"""Begins the names of modules that are loaded as files, so that they collide with no others."""


@dataclass
class _Scope:
    """What programs in a folder see.

    Attributes:
      path: `sys.path`, which they may have changed.
      modules: those imported from the folder, or through an entry that only this `path` has.
    """

    folder: str
    path: list[str]
    modules: dict[str, ModuleType] = field(default_factory=dict)


_common: list[str] = []  # sys.path outside of all scopes
_scopes: dict[str, _Scope] = {}
_entered: list[_Scope] = []  # at most one


def enter(folder: str) -> None:
    """Makes imports those of programs in `folder`, until another folder is entered."""
    folder = os.path.abspath(folder)
    if _entered and _entered[0].folder == folder:
        return
    if _entered:
        _leave(_entered.pop())
    else:
        _common[:] = sys.path
    scope = _scopes.setdefault(folder, _Scope(folder, [folder, *_common]))
    sys.path[:] = scope.path
    sys.modules.update(scope.modules)
    _entered.append(scope)


def _leave(scope: _Scope) -> None:
    scope.path = list(sys.path)
    entries = set(map(os.path.abspath, scope.path)) - set(map(os.path.abspath, _common))
    entries.add(scope.folder)
    scope.modules = {
        name: module
        for name, module in list(sys.modules.items())
        if any(_is_from(entry, name, module) for entry in entries)
    }
    for name in scope.modules:
        del sys.modules[name]


def _is_from(entry: str, name: str, module: ModuleType) -> bool:
    """Whether a module was found through this entry of `sys.path`."""
    file = getattr(module, "__file__", None)
    path = os.path.abspath(file) if isinstance(file, str) else ""
    if name.startswith(TARGET):
        return os.path.dirname(path) == entry
    place = os.path.join(entry, *name.split("."))
    folders = getattr(module, "__path__", None) or ()  # of a package
    return path.startswith(f"{place}.") or place in map(os.path.abspath, folders)
