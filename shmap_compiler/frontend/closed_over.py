"""Arrays on Explicit axes that a function closes over, as further inputs of its body.

JAX rejects such an array inside of a body, where these axes are Manual. Each trace therefore runs a
copy of the function that has a block instead of each array: in variables of enclosing functions, in
globals of its module, and in the functions of that module, `functools.partial`s, methods and
pytrees that these contain. What the function changes in its copies of variables, globals, lists,
dicts and attributes is changed in the originals after the call. JAX still rejects an array that the
body reads in another way, such as from an attribute of an object, and an array that is split over a
manual axis.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from types import CellType, FunctionType, MethodType
from typing import Any

import jax
from jax.extend import core as jex_core
from jax.sharding import NamedSharding

from shmap_compiler.base import objects
from shmap_compiler.base.closures import assigned_globals, contents, named_globals
from shmap_compiler.base.jax_compat import (
    explicit_axes,
    replace_jaxpr,
    type_reductions,
    type_split,
)
from shmap_compiler.base.meshes import ManualRegion
from shmap_compiler.base.untyped import AnyValue, Aval, Function, PyTree, Unchecked
from shmap_compiler.base.values import type_of
from shmap_compiler.frontend.trace_cache import ATTRIBUTE
from shmap_compiler.graph.graph import Graph

_WITHOUT_ARRAYS = frozenset({"jax", "jaxlib", "numpy", "shmap_compiler"})
"""Packages in whose globals no array of the user's is."""
_Jitted = type(jax.jit(lambda: None))


@dataclass(frozen=True)
class ClosedOver:
    """The arrays on Explicit axes that a function closes over.

    Attributes:
      fun: the function.
      values: the arrays that are not split over manual axes, each once.
      assigned: the globals that the function, or one that it calls, assigns: their names, with the
        identities of the modules' globals.
    """

    fun: Function
    values: tuple[AnyValue, ...] = ()
    assigned: frozenset[tuple[int, str]] = frozenset()

    def with_blocks(self, blocks: Sequence[AnyValue]) -> Function:
        """The function, with these blocks in the places of `values`."""
        if not self.values:
            return self.fun
        by_id = {id(value): block for value, block in zip(self.values, blocks, strict=True)}
        copies = _Copies(lambda array: by_id.get(id(array), array), self.assigned)
        copied = copies(self.fun)
        before = copies.contents()

        def run(*args: PyTree) -> PyTree:
            try:
                return copied(*args)
            finally:
                copies.write_back(before)

        return run


def closed_over(fun: Function, region: ManualRegion) -> ClosedOver:
    """What `fun`, whose body runs in `region`, closes over."""
    if not explicit_axes(region.mesh):
        return ClosedOver(fun)
    found: dict[int, AnyValue] = {}

    def note(array: AnyValue) -> AnyValue:
        if _is_replicated(type_of(array), region):
            found[id(array)] = array
        return array

    visited = _Copies(note)
    visited(fun)
    return ClosedOver(fun, tuple(found.values()), visited.assigned() if found else frozenset())


def without_unused(graph: Graph, inputs: range) -> tuple[Graph, list[int]]:
    """(the graph without those of the inputs that it does not read, the positions of the rest)."""
    jaxpr = graph.jaxpr.jaxpr
    read = {v for eqn in jaxpr.eqns for v in eqn.invars if isinstance(v, jex_core.Var)}
    read.update(v for v in jaxpr.outvars if isinstance(v, jex_core.Var))
    used = [k for k in inputs if jaxpr.invars[k] in read]
    if len(used) == len(inputs):
        return graph, used
    kept = [*range(inputs.start), *used, *range(inputs.stop, len(jaxpr.invars))]
    program = replace_jaxpr(
        graph.jaxpr,
        invars=[jaxpr.invars[k] for k in kept],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return replace(graph, jaxpr=program, in_specs=tuple(graph.in_specs[k] for k in kept)), used


def _is_replicated(type_: Aval, region: ManualRegion) -> bool:
    """Whether an array is on Explicit axes of the mesh, and not split over manual ones."""
    sharding = getattr(type_, "sharding", None)
    if not isinstance(sharding, NamedSharding) or type_reductions(type_):
        return False
    mesh = sharding.mesh
    if mesh.axis_names != region.mesh.axis_names or not explicit_axes(mesh):
        return False
    return not any(axis in region.manual_axes for axes in type_split(type_) for axis in axes)


class _Copies:
    """Copies functions, and the values that they contain, with other arrays.

    Values that contain none of these arrays are not copied, except functions that name a global
    that a copied function assigns.
    """

    def __init__(
        self,
        replaced: Callable[[AnyValue], AnyValue],
        assigned: frozenset[tuple[int, str]] = frozenset(),
    ):
        self._replaced, self._assigned = replaced, assigned
        # By the identities of values, which stay theirs as long as they are here, too.
        self._made: dict[int, tuple[Any, Any]] = {}
        self._scopes: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}

    def __call__(self, value: Unchecked) -> Unchecked:
        """A copy of `value`; itself if it holds none of the arrays."""
        if id(value) not in self._made:
            self._made[id(value)] = value, value  # for a function that refers to itself
            self._made[id(value)] = value, self._copy(value)
        return self._made[id(value)][1]

    def assigned(self) -> frozenset[tuple[int, str]]:
        """The globals that the functions among the values assign."""
        functions = (value for value, _ in self._made.values() if isinstance(value, FunctionType))
        return frozenset(
            (id(each.__globals__), name)
            for each in functions
            for name in assigned_globals(each.__code__)
        )

    def contents(self) -> list[dict[Hashable, Unchecked]]:
        """What is in each copy that the functions may change."""
        return [_contents(copy) for _, copy in self._changeable()]

    def write_back(self, before: Sequence[dict[Hashable, Unchecked]]) -> None:
        """Changes in the originals what was changed in their copies.

        Args:
          before: the contents of the copies when they had been made.
        """
        originals = {id(copy): value for value, copy in self._made.values()}
        for (value, copy), old in zip(self._changeable(), before, strict=True):
            new = _contents(copy)
            if new.keys() == old.keys() and not _differ([*new.values()], [*map(old.get, new)]):
                continue
            restored = {key: originals.get(id(each), each) for key, each in new.items()}
            if isinstance(value, list):
                value[:] = restored.values()
            elif isinstance(value, CellType):
                _fill(value, restored)
            else:
                for key in old.keys() - new.keys():
                    value.pop(key, None)
                value.update((k, v) for k, v in restored.items() if new[k] is not old.get(k, old))

    def _changeable(self) -> list[tuple[Unchecked, Unchecked]]:
        """(original, copy) of all that functions may change."""
        copied = [(value, copy) for value, copy in self._made.values() if copy is not value]
        kept = [each for each in copied if isinstance(each[0], (list, dict, CellType))]
        attributes = [(_attributes(value), _attributes(copy)) for value, copy in copied]
        return [*self._scopes.values(), *kept, *(a for a in attributes if None not in a)]

    def _scope(self, module: dict[str, Unchecked]) -> dict[str, Unchecked]:
        """The copy of the globals of a module, which all copied functions of it share."""
        return self._scopes.setdefault(id(module), (module, {**module}))[1]

    def _copy(self, value: Unchecked) -> Unchecked:
        if not objects.is_readable(value):
            return value
        if isinstance(value, jax.Array):
            return self._replaced(value)
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, functools.partial):
            held = value.func, value.args, value.keywords
            made = [self(each) for each in held]
            return functools.partial(made[0], *made[1], **made[2]) if _differ(made, held) else value
        if isinstance(value, MethodType):
            held = value.__func__, value.__self__
            made = [self(each) for each in held]
            return MethodType(*made) if _differ(made, held) else value
        if isinstance(value, _Jitted):
            function = getattr(value, "__wrapped__", value)
            made = self(function)
            return value if made is function else made
        if type(value) is dict:  # keys that cannot be sorted make it no pytree
            held = [*value.values()]
            made = [self(each) for each in held]
            return dict(zip(value, made, strict=True)) if _differ(made, held) else value
        return self._pytree(value)

    def _pytree(self, value: Unchecked) -> Unchecked:
        try:  # one level, so that what is in two places is copied once
            held, tree = jax.tree.flatten(value, is_leaf=lambda part: part is not value)
        except (TypeError, ValueError):  # such as an OrderedDict with keys that cannot be sorted
            return value
        if any(each is value for each in held):
            return value
        made = [self(each) for each in held]
        return jax.tree.unflatten(tree, made) if _differ(made, held) else value

    def _function(self, fun: FunctionType) -> FunctionType:
        named = _named(fun)
        changed = {name: new for name, old in named.items() if (new := self(old)) is not old}
        old_cells = fun.__closure__ or ()
        cells = tuple(map(self._cell, old_cells))
        old_defaults = fun.__defaults__, fun.__kwdefaults__
        defaults = [self(each) for each in old_defaults]
        is_assigned = any((id(fun.__globals__), name) in self._assigned for name in named)
        is_changed = changed or _differ(cells, old_cells) or _differ(defaults, old_defaults)
        if not (is_changed or is_assigned):
            return fun
        own = [CellType() if contents(cell) is fun else None for cell in old_cells]
        cells = tuple(mine or cell for mine, cell in zip(own, cells, strict=True))
        own_names = [name for name, value in named.items() if value is fun]
        has_scope = changed or own_names or is_assigned
        scope = self._scope(fun.__globals__) if has_scope else fun.__globals__
        scope.update(changed)
        made = FunctionType(fun.__code__, scope, fun.__name__, defaults[0], cells)
        for cell in filter(None, own):  # a function that calls itself
            cell.cell_contents = made
        scope.update(dict.fromkeys(own_names, made))
        made.__kwdefaults__ = defaults[1]
        made.__qualname__ = fun.__qualname__
        made.__dict__.update(fun.__dict__)
        return made

    def _cell(self, cell: CellType) -> CellType:
        value = contents(cell)
        made = self(value)
        if made is value:
            return cell
        return self._made.setdefault(id(cell), (cell, CellType(made)))[1]


def _contents(holder: Unchecked) -> dict[Hashable, Unchecked]:
    if isinstance(holder, CellType):
        value = contents(holder)
        return {} if value is holder else {None: value}
    if isinstance(holder, list):
        return dict(enumerate(holder))
    return {key: value for key, value in holder.items() if key != ATTRIBUTE}


def _fill(cell: CellType, held: dict[Hashable, Unchecked]) -> None:
    if held:
        cell.cell_contents = held[None]
    else:
        del cell.cell_contents


def _attributes(value: Unchecked) -> dict[str, Unchecked] | None:
    found = None if isinstance(value, jax.Array) else objects.attribute(value, "__dict__")
    return found if isinstance(found, dict) else None


def _named(fun: FunctionType) -> dict[str, Unchecked]:
    """The globals of a user's module that a function names, but for functions of other modules."""
    scope = fun.__globals__
    if scope.get("__name__", "").partition(".")[0] in _WITHOUT_ARRAYS:
        return {}
    found = {name: scope[name] for name in named_globals(fun) if name in scope}
    return {
        name: value
        for name, value in found.items()
        if not isinstance(value, FunctionType) or value.__globals__ is scope
    }


def _differ(made: Sequence[Unchecked], held: Sequence[Unchecked]) -> bool:
    return any(new is not old for new, old in zip(made, held, strict=True))
