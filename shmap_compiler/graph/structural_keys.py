"""Structural keys: equal keys mean equal programs.

JAX compares most jaxprs by identity, and makes new ones whenever a function is re-created. The key
of a jaxpr is its structure instead: types, primitives, parameters, wiring. What cannot be compared
by content (functions, arrays a program closed over) is compared by identity; a key holds such
objects, so that no other object can get their identity. Numbers of different types, and zeros of
different signs, differ.

A key leaves out what does not change the results of a program: names of variables, source lines,
and derivative rules, because what runs outside of jit has already been differentiated.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend import core as jex_core

from shmap_compiler.base.jax_compat import equation_context, is_jaxpr, jaxprs_in, open_jaxpr
from shmap_compiler.base.untyped import Aval, Jaxpr, Parameter, TreeDef, Unchecked
from shmap_compiler.base.values import is_hashable
from shmap_compiler.graph.graph import Graph
from shmap_compiler.jaxprs.contents import once_per_jaxpr, primitives
from shmap_compiler.jaxprs.held_programs import CUSTOM_JVP, CUSTOM_VJP, REGIONS
from shmap_compiler.jaxprs.transposed import as_the_user_gave_it, transposes

_DERIVATIVE_RULES = {
    **{name: {"policy"} for name in REGIONS},
    CUSTOM_JVP: {"jvp_jaxpr_fun"},
    CUSTOM_VJP: {"fwd_jaxpr_thunk", "bwd", "out_trees"},
}


class Key:
    """A hashable whose hash is computed once."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, *parts: Hashable):
        self._parts = parts
        self._hash = hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return isinstance(other, Key) and self._hash == other._hash and self._parts == other._parts


@dataclass(frozen=True)
class Identity:
    """Equal to itself only. Keeps its object alive."""

    object: Unchecked

    def __hash__(self) -> int:
        return id(self.object)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.object is other.object


def parameters_key(primitive: jex_core.Primitive, params: dict[str, Parameter]) -> Hashable:
    """Key of the parameters of one equation."""
    ignored = _DERIVATIVE_RULES.get(primitive.name, ())
    return tuple((name, key(value)) for name, value in params.items() if name not in ignored)


def type_key(aval: Aval) -> Hashable:
    """Key of the type of a block: without its sharding, because all axes in sight are manual."""
    return aval.shape, aval.dtype, aval.weak_type


def key(value: object) -> Hashable:
    """Key of a parameter's value."""
    if is_jaxpr(value):
        return jaxpr_key(value)
    if isinstance(value, (bool, int, str, bytes)) or value is None:
        return type(value), value
    if isinstance(value, float):
        return type(value), value.hex()
    if isinstance(value, complex):
        return type(value), value.real.hex(), value.imag.hex()
    if isinstance(value, (np.ndarray, np.generic)):
        return _numpy_key(np.asarray(value))
    if isinstance(value, (tuple, list)):
        return type(value), tuple(map(key, value))
    if isinstance(value, dict):
        return dict, tuple((key(k), key(v)) for k, v in value.items())
    if isinstance(value, functools.partial):
        return functools.partial, key(value.func), key(value.args), key(value.keywords)
    if isinstance(value, Graph):
        return _graph_key(value)
    if isinstance(value, jax.Array):
        return Identity(value)
    try:
        hash(value)
    except TypeError:
        return Identity(value)
    return type(value), value


def _numpy_key(array: np.ndarray) -> Hashable:
    if array.dtype.hasobject:
        return Identity(array)
    return np.ndarray, array.shape, array.dtype, array.tobytes()


def _graph_key(graph: Graph) -> Hashable:
    return (
        Graph,
        jaxpr_key(graph.jaxpr),
        graph.mesh,
        graph.manual_axes,
        graph.outer_manual_axes,
        graph.in_specs,
        graph.out_specs,
    )


@once_per_jaxpr
def jaxpr_key(jaxpr: Jaxpr) -> Key:
    """Key of an open or closed jaxpr."""
    inner = open_jaxpr(jaxpr)
    numbers: dict[Any, int] = {}

    def define(variables):
        return tuple((numbers.setdefault(v, len(numbers)), v.aval) for v in variables)

    def use(atom):
        if isinstance(atom, jex_core.Literal):
            return atom.aval, key(atom.val)
        return numbers[atom]

    inputs = define((*inner.constvars, *inner.invars))
    eqns = tuple(
        (
            eqn.primitive,
            parameters_key(eqn.primitive, eqn.params),
            tuple(map(use, eqn.invars)),
            define(eqn.outvars),
            equation_context(eqn),
        )
        for eqn in inner.eqns
    )
    consts = tuple(map(key, getattr(jaxpr, "consts", ())))
    return Key(inputs, eqns, tuple(map(use, inner.outvars)), consts)


# ----------------------------------------------------------------- structures of pytrees


def metadata(tree: TreeDef) -> list[object]:
    """The data besides its parts of each container of a structure, such as static fields.

    Those of two equal structures correspond, and are equal. Names of parts are left out if they are
    strings, as in most dicts.
    """
    found: list[object] = []
    node = tree.node_data()
    if node is None:
        return found
    kind, data = node
    if kind is dict:
        data = None if all(type(name) is str for name in data) else tuple(data)
    if data is not None:
        found.append(data)
    for child in tree.children():
        found += metadata(child)
    return found


def is_same_tree(found: TreeDef, needed: TreeDef) -> bool:
    """Whether structures are equal, and so are the types and signs of numbers in their metadata."""
    if found != needed:
        return False
    pairs = zip(metadata(found), metadata(needed), strict=True)
    return all(key(a) == key(b) for a, b in pairs if is_hashable(b))


# ------------------------------------------------------------- facts about parameters


def primitives_in(params: dict[str, Parameter]) -> frozenset[jex_core.Primitive]:
    """All primitives of the programs among the parameters of an equation."""
    return frozenset().union(*map(primitives, jaxprs_in(params)))


def transposes_in(primitive: str, params: dict[str, Parameter]) -> bool:
    """Whether programs among the parameters of an equation take reverse-mode derivatives."""
    return any(map(_transposes, jaxprs_in(as_the_user_gave_it(primitive, params))))


_transposes = once_per_jaxpr(transposes)
