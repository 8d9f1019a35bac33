"""What a function reads besides its arguments, as a key: equal keys mean equal values.

A traced program is used again only where nothing that the function reads can have changed since, as
`jax.shard_map` traces a function at each call. Numbers and strings are compared by value,
containers by their contents, and by identity what does not change: arrays, and what JAX and NumPy
define. Functions are followed to the variables that they read, also those of other modules, and to
what was passed to the library that made them; modules to the attributes that have a name which the
function reads; classes and functions, which may be passed on, to those that have a name which any
function in sight reads. Anything else may have changed from one call to the next, and nobody can
tell: objects, modules that are passed on, context variables, random generators, settings, files,
the time.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import functools
import inspect
import itertools
import operator
import sys
import types
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, Protocol, TypeGuard, cast, runtime_checkable

import jax
import numpy as np
from jax.core import ShapedArray
from jax.sharding import AbstractMesh, Mesh, PartitionSpec, Sharding

from shmap_compiler.base import objects
from shmap_compiler.base.closures import codes, contents
from shmap_compiler.base.jax_compat import is_jaxpr
from shmap_compiler.base.untyped import Function, Setting, Unchecked
from shmap_compiler.graph.structural_keys import Identity, key

_SCALARS = frozenset(
    {
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        range,
        slice,
        type(None),
        type(...),
        type(NotImplemented),
    }
)
_IMMUTABLE = (bool, int, float, complex, str, bytes, enum.Enum, np.generic)
"""Whose subclasses may have more attributes."""
_CONTAINERS = frozenset({tuple, list, dict, set, frozenset})


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
    inspect.Signature,
)
"""What describes functions and attributes of classes; types with arguments, as `dict[str, int]`."""
_CONSTANT_OF_LIBRARIES = (
    AbstractMesh,
    jax.Device,
    Mesh,
    PartitionSpec,
    Sharding,
    jax.ShapeDtypeStruct,
    jax.tree_util.PyTreeDef,
    ShapedArray,
    np.dtype,
    type(np.sum),
)
_Jitted = type(jax.jit(lambda: None))
_Cached = type(jax.process_count)
_FUNCTIONS = frozenset({FunctionType, _Jitted})
_METHODS = (FunctionType, property, staticmethod, classmethod)
_FOLLOWED = _FUNCTIONS | {BuiltinFunctionType, ModuleType, type}
_MOST_BYTES = 1024
"""Of an array of NumPy, whose elements may change."""
_MOST_FOLLOWED = 200
"""Functions, modules and classes: following them must take less time than tracing."""

_LIBRARIES = frozenset({"jax", "jaxlib", "ml_dtypes", "numpy", "shmap_compiler"})
_READ_STATE = {
    "jax.numpy": {"load"},
    "numpy": {
        "datetime64",  # of "now"
        "fromfile",
        "genfromtxt",
        "geterr",
        "load",
        "loadtxt",
        "memmap",
        "random",
    },
}
"""What of the libraries reads more than its arguments, by module."""
_PURE = frozenset({"_functools", "_operator", "builtins", "itertools", "math", "cmath"})
"""Modules of Python whose functions written in C read nothing but their arguments."""
_PURE_CLASSES = _PURE | {
    "abc",
    "collections",
    "dataclasses",
    "enum",
    "functools",
    "types",
    "typing",
}
"""Those whose classes, and functions written in Python, read nothing but their arguments."""
_READ_ANYTHING = frozenset(
    {"eval", "exec", "getattr", "globals", "id", "input", "locals", "open", "vars", "__import__"}
)
_GIVE_ALL = frozenset({"__closure__", "__dict__", "__getattribute__", "__globals__"})
"""Attributes through which others are read whose names do not show."""
_NOT_CALLED = frozenset({"__annotate__", "__annotate_func__", "__repr__"})
"""Methods that describe their class or instance, and compute nothing that is traced."""
_IMPORT = dis.opmap["IMPORT_NAME"]


@runtime_checkable
class Mapped(Protocol):
    """A function and how it is mapped: a `MappedFunction`, or a `Pmapped`."""

    @property
    def fun(self) -> Function: ...

    @property
    def options(self) -> dict[str, Setting]: ...


def variables_key(fun: FunctionType) -> Hashable:
    """The variables and default values that `fun` reads; None if they cannot be compared."""
    return _key_of(lambda reader: reader.function(fun))


def values_key(fun: FunctionType, values: Sequence[Unchecked]) -> Hashable:
    """Values that are passed to `fun`, and what these read; None if they cannot be compared."""
    if not values:
        return ()
    return _key_of(lambda reader: reader.passed(values, fun))


def _key_of(read: Callable[[_Reader], Hashable]) -> Hashable:
    reader = _Reader()
    try:
        return read(reader), reader.attributes()
    except (_CannotBeCompared, RecursionError):  # the latter of a container that holds itself
        return None


class _CannotBeCompared(Exception):
    """A variable may have changed without a trace."""


class _Reader:
    """
    Attributes:
      _entered: what has been followed, with a number.
      _names: those that functions in sight read, of whatever it is.
      _holders: the classes and functions in sight that have attributes.
      _libraries: modules of libraries that are passed on.
    """

    def __init__(self) -> None:
        self._entered: dict[Hashable, int] = {}
        self._names: set[str] = set()
        self._holders: list[Function] = []
        self._libraries: list[ModuleType] = []

    def function(self, fun: FunctionType) -> Hashable:
        reads = _reads(fun.__code__)
        if reads is None or not fun.__globals__.keys() >= reads.unclear_names:
            raise _CannotBeCompared
        self._names |= reads.any_names
        cells = map(contents, fun.__closure__ or ())
        defaults = fun.__defaults__, fun.__kwdefaults__
        variables = (*cells, *map(fun.__globals__.get, reads.names))
        for name, each in zip((*fun.__code__.co_freevars, *reads.names), variables, strict=True):
            if _is_module(each):
                self._refuse_unclear_module(each, reads.of_variables.get(name, frozenset()))
        read = (*variables, *defaults)
        return Identity(fun.__code__), *(self.value(each, reads) for each in read)

    def passed(self, values: Sequence[Unchecked], fun: FunctionType) -> Hashable:
        """Values that are passed to a function, which may pass them on."""
        found = tuple(self._part(each) for each in values)
        return found, self.function(fun) if self._holders or self._libraries else None

    def attributes(self) -> Hashable:
        """Those of the classes and functions in sight that may be read.

        Code in sight may read what another function passes on. Numbers and strings count in any
        case, for code that is not.
        """
        found: dict[Hashable, Hashable] = {}
        before = None
        while before != (now := (len(self._names), len(self._holders))):
            before = now
            for number, holder in enumerate(self._holders):
                for name, each in list(vars(holder).items()):
                    is_number = type(each) in _SCALARS and name[:2] != "__"
                    if (name in self._names or is_number) and (number, name) not in found:
                        found[number, name] = self._part(each)
        for module in self._libraries:
            _refuse_state(module, self._names)
        return tuple(found.items())

    def value(self, value: Unchecked, reads: _Reads) -> Hashable:
        """
        Args:
          reads: what may be read of it, if it is a module.
        """
        if value is None:
            return None
        if not objects.is_readable(value):
            raise _CannotBeCompared
        kind = type(value)
        if kind is str:
            self._names.add(value)  # `hasattr` may look for it
        if kind in _SCALARS:
            return kind, key(value)
        if kind in _CONTAINERS:
            return kind, *map(self._part, _items(value))
        if kind in _FOLLOWED:
            return _identity(value), self._followed(value, reads)
        if kind is np.ndarray and not value.dtype.hasobject and value.nbytes <= _MOST_BYTES:
            return key(value)
        if isinstance(value, jax.Array):
            return _identity(value)
        if isinstance(value, np.generic) and _is_library(kind.__module__):
            return kind, key(value)
        parts = _parts(value)
        if parts is not None:
            return tuple(map(self._part, (kind, *parts)))
        if isinstance(value, _IMMUTABLE):
            return _identity(value), *map(self._part, (kind, *_attributes(value)))
        return _identity(value), self._followed(value, reads)

    def _part(self, value: Unchecked) -> Hashable:
        """Like `value`, of what code that does not show may read by any name."""
        if _is_module(value):
            self._refuse_unclear_module(value, None)
        return self.value(value, _NOTHING)

    def _refuse_unclear_module(self, module: ModuleType, read: frozenset[str] | None) -> None:
        """Refuses a module of the user's of which it is not clear what is read.

        Args:
          read: the attributes that are read right where it is; None if it is also passed on.
        """
        attributes = vars(module)
        if _is_library(module.__name__):
            if read is None:
                self._libraries.append(module)
        elif read is None or ("__getattr__" in attributes and not read <= attributes.keys()):
            raise _CannotBeCompared

    def _followed(self, value: Unchecked, reads: _Reads) -> Hashable:
        """What is read through something that stays the same."""
        read = id(reads) if isinstance(value, ModuleType) else None
        number = self._entered.get((id(value), read))
        if number is not None:
            return number
        self._entered[id(value), read] = len(self._entered)
        if len(self._entered) > _MOST_FOLLOWED:
            raise _CannotBeCompared
        if type(value) is object or isinstance(value, _CONSTANT) or _is_of_a_library(value):
            return None
        if isinstance(value, (FunctionType, _Jitted)) and vars(value):
            self._holders.append(value)
        if isinstance(value, FunctionType):
            module = value.__globals__.get("__name__")
            is_library = module in _PURE_CLASSES or _is_library(module)
            return self._held(value) if is_library else self.function(value)
        if isinstance(value, BuiltinFunctionType):
            if not _is_pure(value):
                raise _CannotBeCompared
            return None
        if isinstance(value, ModuleType):
            return self._module(value, reads)
        if isinstance(value, type):
            return None if _is_library(value.__module__) else self._class(value)
        if _is_library(type(value).__module__):
            return tuple(map(self._part, _held_by(value)))
        raise _CannotBeCompared

    def _held(self, fun: FunctionType) -> Hashable:
        """What was passed to a library that made a function of it, such as that of `jax.vmap`."""
        held = (*map(contents, fun.__closure__ or ()), fun.__defaults__, fun.__kwdefaults__)
        return tuple(map(self._part, held))

    def _module(self, module: ModuleType, reads: _Reads) -> Hashable:
        if type(module) is not ModuleType:  # such as one whose attributes are computed
            raise _CannotBeCompared
        names = reads.names
        if not _is_library(module.__name__):
            attributes = vars(module)
            found = [(name, attributes[name]) for name in names if name in attributes]
            for name, each in found:
                if _is_module(each):
                    self._refuse_unclear_module(each, reads.of_attributes.get(name, frozenset()))
            return tuple((name, self.value(each, reads)) for name, each in found)
        _refuse_state(module, names)
        return None

    def _class(self, cls: type) -> Hashable:
        """What its methods read, which nobody calls by name. Its attributes follow later."""
        if cls in (operator.attrgetter, operator.methodcaller):
            raise _CannotBeCompared
        if cls.__module__ in _PURE_CLASSES:
            return None
        if _is_of_c(cls):
            raise _CannotBeCompared
        self._holders.append(cls)
        own = [each for name, each in vars(cls).items() if name not in _NOT_CALLED]
        methods = [each for each in own if isinstance(each, _METHODS)]
        above = (each for each in (*cls.__bases__, type(cls)) if each not in (object, type))
        return tuple(map(self._part, (*methods, *above)))


def _is_module(value: object) -> TypeGuard[ModuleType]:
    """By its type: what is not readable has no class."""
    return issubclass(type(value), ModuleType)


def _items(value: Unchecked) -> Iterable[Unchecked]:
    if issubclass(type(value), dict):
        return (part for item in dict.items(value) for part in item)
    return objects.elements(value)


def _parts(value: Unchecked) -> Sequence[Unchecked] | None:
    """What an object consists of besides its class, if that is known."""
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords, *_attributes(value)
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if not cast("Any", type(value)).__dataclass_params__.frozen:
            return None
        return _attributes(value)
    if isinstance(value, (staticmethod, classmethod)):
        return (value.__func__,)
    if isinstance(value, property):
        return (value.fget,)
    if isinstance(value, (tuple, list, dict)) and not isinstance(value, enum.Enum):
        factory = value.default_factory if isinstance(value, defaultdict) else None
        return factory, *_items(value), *_attributes(value)
    return None


def _attributes(value: Unchecked) -> Sequence[Unchecked]:
    """The names and values of an object's own attributes."""
    names = (name for each in type(value).__mro__ for name in _slots(each))
    slots = {name: objects.attribute(value, name) for name in names}
    return (*_items({**objects.attributes(value)}), *_items(slots))


def _is_library(module: str | None) -> bool:
    """Whether it is a module of a library; `numpy.random` has a state, and does not count."""
    if module is None or module.partition(".")[0] not in _LIBRARIES:
        return False
    return not module.startswith("numpy.random")


def _refuse_state(module: ModuleType, names: Collection[str]) -> None:
    """Refuses a module of a library if something is read of it that changes."""
    if not _READ_STATE.get(module.__name__, set()).isdisjoint(names):
        raise _CannotBeCompared
    if "config" in names and any(name.startswith("jax_") or name == "read" for name in names):
        raise _CannotBeCompared


def _is_of_a_library(value: object) -> bool:
    """Whether it is what a library has under this name, which holds nothing of the user's."""
    module = getattr(value, "__module__", None)
    if not isinstance(module, str) or not _is_library(module) or module not in sys.modules:
        return False
    name = getattr(value, "__name__", None)
    is_own = isinstance(name, str) and vars(sys.modules[module]).get(name) is value
    if is_own and name in _READ_STATE.get(module, ()):
        raise _CannotBeCompared
    return is_own


def _is_pure(value: BuiltinFunctionType) -> bool:
    """Whether it is a function of C that reads no state, rather than a method of an object."""
    holder = value.__self__
    if isinstance(holder, type):
        return holder.__module__ in _PURE
    is_pure = isinstance(holder, ModuleType) and holder.__name__ in _PURE
    return is_pure and value.__name__ not in _READ_ANYTHING


def _held_by(value: Unchecked) -> Iterable[Unchecked]:
    """What an object of a library consists of, such as the function that is jitted."""
    if is_jaxpr(value) or isinstance(value, _CONSTANT_OF_LIBRARIES):
        return ()
    if isinstance(value, np.ufunc):
        if value.__name__.endswith("(vectorized)"):  # of a Python function, which is not shown
            raise _CannotBeCompared
        return ()
    if isinstance(value, (_Jitted, _Cached)):
        return (value.__wrapped__,)
    kind = type(value)
    if kind.__module__.startswith("shmap_compiler.") and isinstance(value, Mapped):
        return value.fun, value.options
    if any(map(_is_of_c, kind.__mro__[:-1])):  # it consists of more than its attributes
        raise _CannotBeCompared
    slots = [name for each in kind.__mro__ for name in _slots(each)]
    if not slots and objects.attribute(value, "__dict__") is None:
        raise _CannotBeCompared
    held = [objects.attribute(value, name) for name in slots]
    own = objects.attributes(value).items()
    return *held, *(each for name, each in own if name == "__wrapped__" or name[:2] != "__")


def _is_of_c(cls: type) -> bool:
    """Whether it is written in C, as `datetime.datetime` is, so that its methods do not show."""
    return isinstance(vars(cls).get("__new__"), BuiltinFunctionType)


def _slots(cls: type) -> Iterable[str]:
    """The names, as they are mangled, of the attributes that `__slots__` declares."""
    if "__slots__" not in vars(cls):
        return ()
    return (n for n, each in vars(cls).items() if isinstance(each, types.MemberDescriptorType))


class _Reads(NamedTuple):
    """What a function, or one written in it, looks up.

    Attributes:
      names: of variables and attributes.
      any_names: these, and what it has as strings, as in `hasattr(cls, "scale")`.
      unclear_names: those of functions that read anything, unless its module has others of these
        names.
      of_variables: for each global variable and each of an enclosing function, the attributes that
        are read of it; None if it is also passed on.
      of_attributes: the same for attributes.
    """

    names: tuple[str, ...]
    any_names: frozenset[str]
    unclear_names: frozenset[str]
    of_variables: dict[str, frozenset[str] | None]
    of_attributes: dict[str, frozenset[str] | None]


_NOTHING = _Reads((), frozenset(), frozenset(), {}, {})


@functools.lru_cache(maxsize=4096)
def _reads(code: CodeType) -> _Reads | None:
    """None if the function imports something, or reads attributes by names that do not show."""
    inside = tuple(codes(code))
    if any(_IMPORT in each.co_code[::2] for each in inside):
        return None
    names = tuple(dict.fromkeys(name for each in inside for name in each.co_names))
    if not _GIVE_ALL.isdisjoint(names):
        return None
    strings = frozenset(value for each in inside for value in _strings(each.co_consts))
    tables: tuple[dict[str, frozenset[str] | None], ...] = ({}, {})
    for each in inside:
        loads = [i for i in dis.get_instructions(each) if i.opname != "EXTENDED_ARG"]
        for load, following in itertools.pairwise(loads):
            if load.opname not in _LOADS | _LOADS_OF_ATTRIBUTES:
                continue
            table = tables[load.opname in _LOADS_OF_ATTRIBUTES]
            read = table.get(load.argval, frozenset())
            if read is not None:
                is_read = following.opname in _LOADS_OF_ATTRIBUTES
                read = read | {following.argval} if is_read else None
            table[load.argval] = read
    unclear = _READ_ANYTHING.intersection(names)
    return _Reads(names, strings.union(names), unclear, *tables)


def _strings(constants: Iterable[object]) -> Iterable[str]:
    """Constants that may be names of attributes, also those of patterns, which are in tuples."""
    for each in constants:
        if isinstance(each, str) and each.isidentifier():
            yield each
        elif isinstance(each, (tuple, frozenset)):
            yield from _strings(each)


_LOADS = frozenset(
    {
        "LOAD_GLOBAL",
        "LOAD_NAME",
        "LOAD_DEREF",
        "LOAD_CLASSDEREF",
        "LOAD_FROM_DICT_OR_DEREF",
        "LOAD_FROM_DICT_OR_GLOBALS",
    }
)
_LOADS_OF_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


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
