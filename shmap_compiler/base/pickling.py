"""Pickles decorated functions of modules by their names, as pickle does with other functions."""

from __future__ import annotations

import sys
from typing import SupportsIndex


class PickledByName:
    """An object that stands in its module for the function that it was made of."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[object, ...]:
        return _name_in_module(self) or super().__reduce_ex__(protocol)


def _name_in_module(value: object) -> str | None:
    """The name by which its module finds `value`; None if it finds another object, or none."""
    name = getattr(value, "__qualname__", None)
    found: object = sys.modules.get(value.__module__)
    for part in name.split(".") if isinstance(name, str) else ():
        found = getattr(found, part, None)
    return name if found is value else None
