"""What a function reads besides its arguments, as a key: equal keys mean equal values.

A traced program is used again only where nothing that the function reads can have changed since, as
`jax.shard_map` traces a function at each call. Numbers and strings are compared by value,
containers by their contents, and by identity what does not change: arrays, and what JAX and NumPy
define. Functions are followed to the variables that they read, also those of other modules; modules
and classes to the attributes that have a name which the function reads. Anything else may have
changed from one call to the next, and nobody can tell: objects, context variables, files, the time.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import functools
import sys
import types
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from shmap_compiler.base.closures import codes, contents
from shmap_compiler.base.untyped import Unchecked
from shmap_compiler.graph.structural_keys import Identity, key

_SCALARS = (bool, int, float, complex, str, bytes, range, slice, enum.Enum, type(None), type(...))


class _Field(NamedTuple):
    value: None


_CONSTANT = (
    types.ClassMethodDescriptorType,
    types.GenericAlias,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    type(vars(_Field)["value"]),
)
"""What describes the attributes of a class, and types with arguments, as in `dict[str, int]`."""
_MOST_BYTES = 1024
"""Of an array of NumPy, whose elements may change."""
_MOST_FOLLOWED = 200
"""Functions, modules and classes: following them must take less time than tracing."""

_LIBRARIES = frozenset({"jax", "jaxlib", "numpy", "shmap_compiler"})
_PURE = frozenset({"_functools", "_operator", "builtins", "itertools", "math", "cmath"})
"""Modules of Python whose functions written in C read nothing but their arguments."""
_READ_ANYTHING = frozenset(
    {"eval", "exec", "getattr", "globals", "id", "input", "locals", "open", "vars", "__import__"}
)
_IMPORT = dis.opmap["IMPORT_NAME"]


def variables_key(fun: FunctionType) -> Hashable:
    """The variables and default values that `fun` reads; None if they cannot be compared."""
    return _key_of(lambda reader: reader.function(fun))


def values_key(fun: FunctionType, values: Sequence[Unchecked]) -> Hashable:
    """Values that are passed to `fun`, and what these read; None if they cannot be compared."""
    names = _names(fun.__code__) or ()
    return _key_of(lambda reader: tuple(reader.value(each, names) for each in values))


def _key_of(read: Callable[[_Reader], Hashable]) -> Hashable:
    try:
        return read(_Reader())
    except (_CannotBeCompared, RecursionError):  # the latter of a container that holds itself
        return None


class _CannotBeCompared(Exception):
    """A variable may have changed without a trace."""


class _Reader:
    def __init__(self) -> None:
        self._entered: dict[Hashable, int] = {}

    def function(self, fun: FunctionType) -> Hashable:
        names = _names(fun.__code__)
        if names is None or any(name in _READ_ANYTHING - fun.__globals__.keys() for name in names):
            raise _CannotBeCompared
        cells = map(contents, fun.__closure__ or ())
        own = (fun.__dict__[name] for name in names if name in fun.__dict__)
        defaults = fun.__defaults__, fun.__kwdefaults__
        read = (*cells, *map(fun.__globals__.get, names), *own, *defaults)
        if "random" in names and any(each is np for each in read):
            raise _CannotBeCompared  # numpy.random
        return Identity(fun.__code__), *(self.value(each, names) for each in read)

    def value(self, value: Unchecked, names: tuple[str, ...]) -> Hashable:
        """
        Args:
          names: the attributes that may be read, if it is a module or a class.
        """
        if isinstance(value, _SCALARS):
            return type(value), value if isinstance(value, enum.Enum) else key(value)
        parts = _parts(value)
        if parts is not None:
            return tuple(self.value(part, names) for part in (type(value), *parts))
        if isinstance(value, np.ndarray):
            if value.nbytes > _MOST_BYTES:
                raise _CannotBeCompared
            return key(value)
        return _identity(value), self._followed(value, names)

    def _followed(self, value: Unchecked, names: tuple[str, ...]) -> Hashable:
        """What is read through something that stays the same."""
        if isinstance(value, jax.Array):
            return None
        read = names if isinstance(value, (ModuleType, type)) else ()
        number = self._entered.get((id(value), read))
        if number is not None:
            return number
        self._entered[id(value), read] = len(self._entered)
        if len(self._entered) > _MOST_FOLLOWED:
            raise _CannotBeCompared
        if _is_of_a_library(value):
            return None
        if isinstance(value, FunctionType):
            is_library = _is_library(value.__globals__.get("__name__"))
            return self._held(value) if is_library else self.function(value)
        if isinstance(value, _CONSTANT):
            return None
        if isinstance(value, BuiltinFunctionType):
            if not _is_pure(value):
                raise _CannotBeCompared
            return None
        if isinstance(value, ModuleType):
            return None if _is_library(value.__name__) else self._attributes(value, names)
        if isinstance(value, type):
            return None if _is_library(value.__module__) else self._class(value, names)
        if _is_library(type(value).__module__):
            return tuple(self.value(each, names) for each in _functions_of(value))
        raise _CannotBeCompared

    def _held(self, fun: FunctionType) -> Hashable:
        """What was passed to a library that made a function of it, such as that of `jax.vmap`."""
        held = (*map(contents, fun.__closure__ or ()), fun.__defaults__, fun.__kwdefaults__)
        return tuple(self.value(each, ()) for each in held)

    def _attributes(self, value: ModuleType | type, names: tuple[str, ...]) -> Hashable:
        found = {name: vars(value)[name] for name in names if name in vars(value)}
        return tuple((name, self.value(each, names)) for name, each in found.items())

    def _class(self, cls: type, names: tuple[str, ...]) -> Hashable:
        """The attributes that are read, and what its methods read, which nobody calls by name."""
        if cls.__module__ in _PURE:
            return None
        own = (each for name, each in vars(cls).items() if name != "__repr__")
        methods = [each for each in own if isinstance(each, FunctionType)]
        read = [names, *(_names(each.__code__) or () for each in methods)]
        read_here = tuple(dict.fromkeys(name for each in read for name in each))
        found = tuple(self.value(each, read_here) for each in (*methods, *cls.__bases__))
        return found, self._attributes(cls, read_here)


def _parts(value: object) -> Sequence[Unchecked] | None:
    if isinstance(value, (tuple, list)):
        return value
    if isinstance(value, dict):
        return [part for item in value.items() for part in item]
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        is_frozen = cast("Any", type(value)).__dataclass_params__.frozen
        return [getattr(value, f.name) for f in dataclasses.fields(value)] if is_frozen else None
    if isinstance(value, (staticmethod, classmethod)):
        return (value.__func__,)
    return (value.fget,) if isinstance(value, property) else None


def _is_library(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in _LIBRARIES


def _is_of_a_library(value: object) -> bool:
    """Whether it is what a library has under this name, which holds nothing of the user's."""
    module = getattr(value, "__module__", None)
    if not isinstance(module, str) or not _is_library(module) or module not in sys.modules:
        return False
    return vars(sys.modules[module]).get(getattr(value, "__name__", None)) is value


def _is_pure(value: BuiltinFunctionType) -> bool:
    """Whether it is a function of C that reads no state, rather than a method of an object."""
    holder = value.__self__
    if isinstance(holder, type):
        return holder.__module__ in _PURE
    return isinstance(holder, ModuleType) and holder.__name__ in _PURE


def _functions_of(value: object) -> Iterator[Unchecked]:
    """The functions that an object of a library holds, such as what is jitted."""
    attributes = [*getattr(value, "__dict__", {}).values(), getattr(value, "__wrapped__", None)]
    yield from (each for each in attributes if isinstance(each, FunctionType))


@functools.lru_cache(maxsize=4096)
def _names(code: CodeType) -> tuple[str, ...] | None:
    """What a function, or one written in it, looks up by name; None if it imports something."""
    inside = tuple(codes(code))
    if any(_IMPORT in each.co_code[::2] for each in inside):
        return None
    return tuple(dict.fromkeys(name for each in inside for name in each.co_names))


class _LivingObject:
    """Equal to itself, as long as it lives. Does not keep it alive."""

    __slots__ = ("_hash", "_object")

    def __init__(self, value: Unchecked) -> None:
        self._object, self._hash = weakref.ref(value), id(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _LivingObject):
            return False
        alive = self._object()
        return alive is not None and alive is other._object()


def _identity(value: object) -> Hashable:
    try:
        return _LivingObject(value)
    except TypeError:  # of a class that has no place for weak references
        return Identity(value)
