"""Reads what Python objects hold without running code of their classes.

That may do anything, such as import a library or connect to a server when an attribute is read, and
fail. What it makes of an object is not what the object holds, either.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from shmap_compiler.base.untyped import Unchecked


def attributes(value: Unchecked) -> Mapping[str, Unchecked]:
    """The attributes that an object has of its own, besides its slots."""
    found = attribute(value, "__dict__")
    return found if isinstance(found, (dict, MappingProxyType)) else {}


def attribute(value: Unchecked, name: str) -> Unchecked:
    """The attribute of an object; None if it has none of its own or of its class."""
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return None


def elements(value: Unchecked) -> Iterable[Unchecked]:
    """The values of a dict, or the elements of another container; of any other object, none."""
    return next((each(value) for kind, each in _ELEMENTS if issubclass(type(value), kind)), ())


_ELEMENTS: tuple[tuple[type, Callable[[Any], Iterable[Unchecked]]], ...] = (
    (dict, dict.values),
    (MappingProxyType, MappingProxyType.values),
    *((kind, kind.__iter__) for kind in (list, tuple, set, frozenset, collections.deque)),
)


def is_readable(value: Unchecked) -> bool:
    """Whether the class of an object can be asked for; not if it is a proxy of one that is gone."""
    try:
        return value.__class__ is not None
    except Exception:  # whatever the user's property raises
        return False
