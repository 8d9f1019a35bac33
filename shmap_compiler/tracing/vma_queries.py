"""Whether the user's function queries along which axes a value varies, or casts such types.

`jax.typeof(x).manual_axis_type.varying` is right only with JAX's types of varying values
(`varying_types`), as are casts to unreduced and reduced values. These types cost time and reject
some correct programs, so only functions that query them are traced with them. Whether a function
does is read from the code that it may reach: what it defines, closes over, is given as a static
argument, or names in its module and in modules named there, through defaults, members of classes,
attributes and containers, too. What a registry holds for a class of a package is reached with that
class. Code reached in another way, such as by an import inside a call, is not scanned. A false
positive only costs time. The backward rule of a `custom_vjp` function is traced when a derivative
is taken, apart from the function; then its own code is scanned.

`jax.lax.pcast` and `all_gather(..., to="invarying")` cast these types, which matters only to
derivatives inside of a function, and to the backward rules of `custom_vjp` functions.
"""

from __future__ import annotations

import collections
import functools
import itertools
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import jax
from jax.extend import core as jex_core
from jax.extend import linear_util

from shmap_compiler.base import objects
from shmap_compiler.base.closures import attribute_paths, contents
from shmap_compiler.base.jax_compat import is_jaxpr
from shmap_compiler.base.untyped import Function, Unchecked, Wrapped
from shmap_compiler.tracing.library_code import (
    PARTS,
    PLAIN,
    Search,
    is_installed,
    is_of_library,
    library_code,
)

_REDUCTIONS = frozenset({"unreduced", "reduced"})
"""The casts that are meaningless without such types."""

_QUERIES = frozenset({"manual_axis_type", "mat"})
"""The attributes of a type that say along which axes a value varies."""

_QUESTIONS = _REDUCTIONS | _QUERIES
"""What makes no sense without types."""

_CASTS = frozenset({"pcast", "pvary", "invarying"})
"""What casts a value: two functions, and an argument of `all_gather`."""

_REVERSE = frozenset(
    {"grad", "value_and_grad", "vjp", "jacrev", "jacobian", "hessian", "linearize"}
    | {"linear_transpose"}
)
"""The functions of JAX that take reverse-mode derivatives, or whose results are transposed."""

_GRADIENTS = _REVERSE - {"vjp", "linearize", "linear_transpose"}
"""Those that transpose at once."""

_RULED = frozenset({"custom_root", "defjvp", "defjvps"})
"""What makes a derivative rule of functions that it is given while the body runs."""

_RULED_BACKWARD = frozenset({"defvjp"})
"""What makes a forward and a backward rule of them, of which the former is traced without types."""

_WORDS = _QUESTIONS | _CASTS | _REVERSE | _RULED | _RULED_BACKWARD

_MOST_HELD = 256

_SILENT = frozenset({"jax", "jaxlib", "numpy", "shmap_compiler"}) | sys.stdlib_module_names
"""Packages whose code is not scanned: their results do not depend on varying types."""


def asks(fun: Function) -> bool:
    """Whether code that `fun` may reach names one of the attributes, or casts to reduced.

    Or differentiates a cast, which leaves no trace without types. Backward rules are traced on
    their own (`rule_asks`), all other rules with the types of the function.
    """
    words = frozenset().union(*_words(fun, _reached_but_backward))
    if not words.isdisjoint(_QUESTIONS):
        return True
    # What only rules name is not differentiated while the function is traced.
    may_differentiate = not words.isdisjoint(_REVERSE)
    return may_differentiate and _reaches(fun, _REVERSE, _reached_at_once) and casts(fun)


def rule_asks(backward: Wrapped, silent: dict[int, Unchecked] | None = None) -> bool:
    """Whether code that a backward rule may reach names one of the attributes.

    Args:
      backward: a rule as an equation holds it, which JAX and this package have wrapped.
      silent: by their ids, values that other rules reach, none of which asks. They are not scanned
        again; those of this rule are added.
    """
    silent = {} if silent is None else silent
    seen = {**silent}
    for fun in _of_the_user(backward):
        if _reaches(fun, _QUERIES, _reached_or_held, seen=seen):
            return True
    silent.update(seen)
    return False


def seems_to_differentiate(fun: Function) -> bool:
    """Whether `fun`, or what it names or closes over, names a reverse-mode derivative.

    It may not take it, and others further away may. Names of other things do not count, such as the
    attribute of `state.grad` or the key of `config["grad"]`.
    """
    for value in _values([fun], _reached, levels=_NEAR):
        if isinstance(value, FunctionType):
            if not _is_silent(value):
                found = _reads_derivative(value)
            else:
                found = value.__name__ in _REVERSE or _maker(value) in _REVERSE
            if found:
                return True
    return False


def _reads_derivative(fun: FunctionType) -> bool:
    """Whether code reads what takes a derivative: a global, or a function of a module."""
    inner = dict(zip(fun.__code__.co_freevars, map(contents, fun.__closure__ or ()), strict=True))
    for root, *path in attribute_paths(fun.__code__):
        name = (root, *path)[-1]
        if name not in _REVERSE:
            continue
        imported = sys.modules.get(root) if root in fun.__code__.co_names else None
        value = inner.get(root, fun.__globals__.get(root, imported))
        for attribute in path:
            is_module = issubclass(type(value), ModuleType)
            value = vars(value).get(attribute) if is_module else None
        if callable(value):
            return True
    return False


_NEAR = 3
"""Levels of values: of a method of an object with members, the method, its function, and those that
this names."""


def casts_to_reduced(fun: Function) -> bool:
    """Whether code that `fun` may reach casts to unreduced or reduced."""
    return _reaches(fun, _REDUCTIONS, _reached)


def casts(fun: Function) -> bool:
    """Whether code that `fun` may reach, also through containers, casts a value."""
    return _reaches(fun, _CASTS, _reached_or_held)


def rules_differentiate(fun: Function, *, at_once: bool) -> bool:
    """Whether derivative rules of functions that `fun` may reach take derivatives themselves.

    JAX traces them when a derivative of `fun` is taken. Only reverse mode, and `custom_vjp`
    functions in forward mode, depend on types.

    Args:
      at_once: whether a forward rule counts only if it names a function that returns a derivative,
        not if it may leave the transposition to its backward rule, as one that calls `jax.vjp` may.
    """
    reverse = _GRADIENTS if at_once else _REVERSE
    values = [*_values([fun], _reached_or_held)]
    words = frozenset().union(*(_words_of(v) for v in values if isinstance(v, FunctionType)))
    rules = [value for value in values if isinstance(value, _RULED_FUNCTIONS)]
    has_backward = any(isinstance(rule, jax.custom_vjp) for rule in rules)
    if not words.isdisjoint(_RULED) and (has_backward or not words.isdisjoint(_REVERSE)):
        return True
    if not words.isdisjoint(_RULED_BACKWARD) and not words.isdisjoint(reverse):
        return True
    for rule in rules:
        if isinstance(rule, jax.custom_jvp):
            given = _jvp_rules(rule)
            if _holds_backward_rule(given) or _any_reaches(given, _REVERSE):
                return True
        elif _any_reaches([rule.fwd], reverse):
            return True
    return False


def _jvp_rules(fun: jax.custom_jvp) -> list[Unchecked]:
    """The rule of a function, and those given to `defjvps`, of which JAX makes one."""
    rule = getattr(fun, "jvp", None)
    return [rule, *_reached_or_held(rule)] if rule else []


def _holds_backward_rule(funs: Sequence[Unchecked]) -> bool:
    return any(isinstance(value, jax.custom_vjp) for value in _values(funs, _reached_or_held))


def _any_reaches(funs: Sequence[Unchecked], words: frozenset[str]) -> bool:
    return any(_reaches(fun, words, _reached_or_held) for fun in funs)


def _values(
    funs: Sequence[Unchecked],
    reached: Callable[[Unchecked], Iterator[Unchecked]],
    levels: int | None = None,
    seen: dict[int, Unchecked] | None = None,
) -> Iterator[Unchecked]:
    """All values that functions may reach, the nearest first.

    Args:
      reached: the values that come after a value; none do after code that is not scanned.
      levels: how far from the functions the values may be; 1 for the functions alone.
      seen: by their ids, values that are left out. Those found are added.
    """
    seen = {} if seen is None else seen
    waiting: dict[int, list[Unchecked]] = collections.defaultdict(list)
    for each in [each for each in seen.values() if type(each) is _Handler]:
        waiting[id(each.of)].append(each.handler)
    level = list(funs)
    found = None
    while level and levels != 0:
        following: list[Unchecked] = []
        library: list[Unchecked] = []
        for value in level:
            if type(value) in PLAIN or id(value) in seen or not objects.is_readable(value):
                continue
            if levels is None and _is_of_package(value):
                library.append(value)
                continue
            seen[id(value)] = value  # keeps it, and so its id
            if type(value) is _Handler:
                waiting[id(value.of)].append(value.handler)
                continue
            yield value
            if _is_scanned(value):
                following += reached(value)
        if library:
            found = library_code(library, _search(reached), found)
            yield from (value for value in found.telling if id(value) not in seen)
            seen.update(found.code)
            following += found.others(_search(reached))
        for of in waiting.keys() & seen.keys():
            following += waiting.pop(of)
        level = following
        levels = None if levels is None else levels - 1


def _is_of_package(value: object) -> bool:
    """Whether a package that is scanned defines a function or class."""
    return is_of_library(value) and not _is_silent(value)


def _is_scanned(value: object) -> bool:
    return not (isinstance(value, (FunctionType, type)) and _is_silent(value))


@functools.cache
def _search(reached: Callable[[Unchecked], Iterator[Unchecked]]) -> Search:
    """Of library code, only functions that name one of the words are values that count."""
    return Search(reached, _looked_up, _is_scanned, _tells)


def _tells(value: object) -> bool:
    return isinstance(value, FunctionType) and not _WORDS.isdisjoint(_words_of(value))


def _reaches(
    fun: Function,
    words: frozenset[str],
    reached: Callable[[Unchecked], Iterator[Unchecked]],
    levels: int | None = None,
    seen: dict[int, Unchecked] | None = None,
) -> bool:
    """Whether code that `fun` may reach contains one of the words."""
    return any(not words.isdisjoint(found) for found in _words(fun, reached, levels, seen))


def _words(
    fun: Function,
    reached: Callable[[Unchecked], Iterator[Unchecked]],
    levels: int | None = None,
    seen: dict[int, Unchecked] | None = None,
) -> Iterator[Iterable[str]]:
    """The words of the functions that `fun` may reach."""
    for value in _values([fun], reached, levels, seen):
        if isinstance(value, FunctionType):
            yield _words_of(value)


def _words_of(fun: FunctionType) -> frozenset[str]:
    own = frozenset({fun.__name__}) if _is_silent(fun) else _names(fun.__code__)
    return own | {_maker(fun)}


def _maker(fun: FunctionType) -> str:
    """The function that a function is, or in which it was made: "grad" of what `jax.grad` made."""
    return fun.__code__.co_qualname.partition(".")[0]


def _is_silent(value: object) -> bool:
    name = value.__name__ if isinstance(value, ModuleType) else value.__module__
    return name is not None and name.partition(".")[0] in _SILENT


@functools.lru_cache(maxsize=4096)
def _names(code: CodeType) -> frozenset[str]:
    """The attributes and globals that a function names, and its strings, as for `getattr`."""
    inner = [_names(c) for c in code.co_consts if isinstance(c, CodeType)]
    texts = [c for c in code.co_consts if isinstance(c, str)]
    return frozenset(code.co_names).union(texts, *inner)


def _reached(value: object) -> Iterator[Unchecked]:
    """The values whose code may run when `value` is used."""
    yield objects.attributes(value).get("__wrapped__")
    if isinstance(value, FunctionType):
        for cell in value.__closure__ or ():
            yield contents(cell)
        yield from (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        yield from _named(value)
    elif isinstance(value, (functools.partial, functools.partialmethod)):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, (MethodType, staticmethod, classmethod)):
        yield from (value.__func__, getattr(value, "__self__", None))
    elif isinstance(value, property):
        yield from (value.fget, value.fset)
    elif isinstance(value, functools.cached_property):
        yield value.func
    elif isinstance(value, type):
        yield from value.__bases__
        yield from (member for member in vars(value).values() if _may_run(member))
    else:
        yield type(value)


def _may_run(member: object) -> bool:
    """Whether the member of a class is code, or a description of how it is called."""
    return callable(member) or issubclass(type(member), PARTS)


def _reached_or_held(value: object) -> Iterator[Unchecked]:
    """Like `_reached`, and the first values that a container or an object holds."""
    yield from _reached(value)
    yield from itertools.islice(_elements(value), _MOST_HELD)
    if not (isinstance(value, (type, ModuleType)) or _is_ours(value)):
        held = (each for name, each in objects.attributes(value).items() if name != _ANNOTATIONS)
        yield from itertools.islice(held, _MOST_HELD)


_ANNOTATIONS = "__annotations__"
"""The attribute of a function or class method that names types, which it does not use."""


def _elements(value: object) -> Iterator[Unchecked]:
    """The elements of a container; of a registry, with the classes that they are for."""
    if not isinstance(value, dict):
        yield from objects.elements(value)
        return
    for key, element in dict.items(value):
        of = key() if type(key) in _WEAK else key
        if isinstance(of, type) and _is_of_package(of) and not _holds_users_code(element):
            yield _Handler(of, element)
        else:
            yield element


_WEAK = (weakref.ref, weakref.KeyedRef)


def _holds_users_code(handler: object) -> bool:
    """Whether a function or class of the user's handles the objects, alone or beside others."""
    held = [handler, *objects.elements(handler), *objects.attributes(handler).values()]
    called = (each.func if isinstance(each, functools.partial) else each for each in held)
    return any(isinstance(e, (FunctionType, type)) and not is_installed(e) for e in called)


@dataclass(frozen=True, eq=False)
class _Handler:
    """What handles objects of a package's class, which no code has that does not reach the class.

    JAX's registry of pytrees, for example, holds functions for the classes of all packages that are
    imported, of which a body uses few.
    """

    of: type
    handler: Unchecked


def _is_ours(value: object) -> bool:
    """Whether a value is of a class of this package, whose `__wrapped__` is all that may run.

    A function that was mapped has what was made of it in such an attribute.
    """
    return type(value).__module__.partition(".")[0] == "shmap_compiler"


def _reached_at_once(value: object) -> Iterator[Unchecked]:
    """The same without rules of a derivative that is taken later."""
    return _reached(value) if isinstance(value, _RULED_FUNCTIONS) else _reached_or_held(value)


_RULED_FUNCTIONS = (jax.custom_jvp, jax.custom_vjp)


def _reached_but_backward(value: object) -> Iterator[Unchecked]:
    """The same with rules that are traced with the types of their function."""
    yield from _reached_at_once(value)
    if isinstance(value, jax.custom_jvp):
        yield from _jvp_rules(value)
    elif isinstance(value, jax.custom_vjp):
        yield value.fwd


def is_of_jax(rule: Wrapped) -> bool:
    """Whether a rule is one of JAX's own, which runs nothing of the user's.

    It does not if it is given a function, or a program that was traced from one.
    """
    return not any(True for _ in _of_the_user(rule, is_jaxpr))


def _of_the_user(
    rule: Wrapped, counts: Callable[[Unchecked], bool] = lambda _: False
) -> Iterator[Unchecked]:
    """The functions and objects of the user's that a wrapped rule calls or is given.

    Args:
      counts: whether another value is one of these.
    """
    pending: list[Unchecked] = [rule]
    seen: dict[int, Any] = {}
    while pending:
        value = pending.pop()
        if type(value) in PLAIN or id(value) in seen or not objects.is_readable(value):
            continue
        seen[id(value)] = value
        if counts(value):
            yield value
        elif isinstance(value, linear_util.WrappedFun):
            pending += [value.f, value.transforms]
        elif isinstance(value, FunctionType) and _is_silent(value):
            pending += map(contents, value.__closure__ or ())
        elif isinstance(value, jex_core.JaxprEqn):  # of a primitive with a rule (`reverse_rules`)
            pending += value.params.values()
        elif isinstance(value, (functools.partial, MethodType, tuple)):
            pending += _reached_or_held(value)
        elif isinstance(value, FunctionType) or not _is_silent(type(value)):
            yield value
        elif callable(value):
            pending += objects.attributes(value).values()
        elif isinstance(vars(type(value)).get("val"), MemberDescriptorType):
            pending.append(value.val)  # an argument that `nondiff_argnums` names


def _named(fun: FunctionType) -> Iterator[Unchecked]:
    """The globals that a function names, and what it may look up in modules that it names."""
    for scope, names in _looked_up(fun):
        yield from (scope[name] for name in names if not issubclass(type(scope[name]), ModuleType))


def _looked_up(value: object) -> Iterator[tuple[Mapping[str, Unchecked], Iterable[str]]]:
    """Where a function or a class has what it names, and the names."""
    if isinstance(value, type):
        yield vars(value), [name for name, member in vars(value).items() if _may_run(member)]
    if not isinstance(value, FunctionType):
        return
    names = _names(value.__code__)
    closed_over = map(contents, value.__closure__ or ())
    modules = (m for m in closed_over if issubclass(type(m), ModuleType) and not _is_silent(m))
    scopes = [value.__globals__, *map(vars, modules)]
    for scope in scopes:
        found = names.intersection(scope)
        for inside in (scope[n] for n in found if issubclass(type(scope[n]), ModuleType)):
            if not _is_silent(inside) and not any(s is vars(inside) for s in scopes):
                scopes.append(vars(inside))
        yield scope, found
