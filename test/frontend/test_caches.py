"""What is computed once and kept, and what is freed again."""

import contextlib
import contextvars
import copy
import dataclasses
import datetime
import enum
import functools
import gc
import json
import operator
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections import Counter, deque
from types import ModuleType
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from jax.example_libraries import optimizers
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from numpy import random as np_random

from shmap_compiler import pmap, shard_map, smap, xmap
from shmap_compiler.base.caches import Cache
from shmap_compiler.base.errors import SpecError
from shmap_compiler.frontend import call_traced

DEVICES = np.array(jax.devices()[:8])
MESH = Mesh(DEVICES.reshape(4, 2), ("i", "j"))
X = jnp.arange(64, dtype=jnp.float32).reshape(8, 8)
LINES = {"mesh": MESH, "in_specs": P("i"), "out_specs": P("i")}

EVENTS = Counter()  # what JAX reports: programs traced, lowered and compiled
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **_: EVENTS.update([name.rpartition("/")[2]])
)
LOWERED, COMPILED = "jaxpr_to_mlir_module_duration", "backend_compile_duration"


@pytest.fixture(scope="module", autouse=True)
def collections_look_at_new_objects_only():
    """Collecting what the tests before these left alive takes a second each time."""
    gc.collect()
    gc.freeze()


@contextlib.contextmanager
def nothing_lowered():
    EVENTS.clear()
    yield
    assert (EVENTS[LOWERED], EVENTS[COMPILED]) == (0, 0)


TRACED = deque(maxlen=200)
"""The identities of the functions that were traced last, each as often as it was.

A function that counts its own traces reads something that changes, and is traced at each call.
"""


@pytest.fixture(autouse=True)
def noted_traces(monkeypatch):
    trace = call_traced._trace

    def noted(who, mapped, *rest):
        TRACED.append(id(mapped.fun))
        return trace(who, mapped, *rest)

    monkeypatch.setattr(call_traced, "_trace", noted)
    yield
    TRACED.clear()


def counted(scale=1.0):
    """(a new function, how often it has been traced)."""

    def total(block):
        return scale * block * lax.psum(jnp.sum(block), "i")

    return total, functools.partial(TRACED.count, id(total))


def call(function, *args):
    """One call, finished: launches in flight would pile up."""
    return np.asarray(jax.block_until_ready(function(*args)))


def loss(function):
    return lambda x: jnp.sum(function(x) ** 2)


# --------------------------------------------------------------- calling again, built anew

BUILDERS = {
    "specs": lambda f: shard_map(f, **LINES),
    "a list of specs": lambda f: shard_map(f, **{**LINES, "in_specs": [P("i")]}),
    "an equal mesh": lambda f: shard_map(
        f, **{**LINES, "mesh": Mesh(DEVICES.reshape(4, 2), ("i", "j"))}
    ),
    "the mesh in scope": lambda f: shard_map(f, in_specs=P("i"), out_specs=P("i")),
    "all options": lambda f: shard_map(
        f, axis_names={"i"}, check_vma=False, check_hangs=False, **LINES
    ),
    "a decorator": lambda f: shard_map(**LINES)(f),
    "smap": lambda f: smap(f, in_axes=0, out_axes=0, axis_name="i"),
}


@pytest.mark.parametrize("parts", BUILDERS)
def test_equal_parts_are_traced_lowered_and_compiled_once(parts):
    total, traces = counted()
    with jax.set_mesh(MESH):
        first = call(jax.jit(BUILDERS[parts](total)), X)
        np.testing.assert_allclose(first, X * X.sum())
        with nothing_lowered():
            for _ in range(3):
                np.testing.assert_array_equal(call(jax.jit(BUILDERS[parts](total)), X), first)
    assert traces() == 1


def test_equal_trees_of_specs_are_traced_lowered_and_compiled_once():
    def body(blocks):
        return blocks["a"] + blocks["b"][0]

    def build():
        return jax.jit(shard_map(body, **{**LINES, "in_specs": ({"a": P("i"), "b": [P("i")]},)}))

    first = call(build(), {"a": X, "b": [X]})
    with nothing_lowered():
        np.testing.assert_array_equal(call(build(), {"a": X, "b": [X]}), first)
    assert TRACED.count(id(body)) == 1


TRANSFORMED = {
    "another jit": lambda f: jax.jit(lambda x: f(x)),
    "a loop in a jit": lambda f: jax.jit(lambda x: f(f(f(x)))),
    "grad": lambda f: jax.grad(loss(f)),
    "vmap": lambda f: jax.jit(lambda x: jax.vmap(f)(x[None])),
    "checkpoint": lambda f: jax.jit(jax.grad(loss(jax.checkpoint(f)))),
    "fori_loop": lambda f: jax.jit(lambda x: lax.fori_loop(0, 2, lambda _, y: f(y), x)),
}


@pytest.mark.parametrize("kind", TRANSFORMED)
def test_transformations_do_not_trace_again(kind):
    total, traces = counted(scale=1e-3)
    call(jax.jit(shard_map(total, **LINES)), X)
    transformed = TRANSFORMED[kind]
    result = call(transformed(lambda x: shard_map(total, **LINES)(x)), X)
    assert traces() == 1
    single = transformed(lambda x: 1e-3 * x * jnp.sum(x))
    np.testing.assert_allclose(result, single(X), rtol=1e-4)


EAGER = {
    "call": lambda f: f,
    "grad": lambda f: jax.grad(loss(f)),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (x,))[1],
    "vmap": lambda f: lambda x: jax.vmap(f)(jnp.stack([x, x])),
    "second derivative": lambda f: lambda x: jax.jvp(jax.grad(loss(f)), (x,), (x,))[1],
}


@pytest.mark.parametrize("kind", EAGER)
def test_eager_calls_lower_nothing_again(kind):
    def body(block):
        return jnp.sin(block) * lax.psum(block, "i")

    def program():
        return EAGER[kind](shard_map(body, **LINES))

    first = call(program(), X)
    np.testing.assert_allclose(first, call(jax.jit(program()), X), rtol=1e-4)
    with nothing_lowered():
        np.testing.assert_array_equal(call(program(), X), first)


def test_lowering_again_gives_the_same_object():
    total, traces = counted()
    lowered = shard_map(total, **LINES).lower(X)
    other_values = X + 1
    with nothing_lowered():
        assert shard_map(total, **LINES).lower(other_values) is lowered
    assert shard_map(total, **LINES).trace(X) is lowered.graph
    assert traces() == 1
    assert shard_map(total, **LINES).lower(X, partitioner="shardy") is not lowered
    assert shard_map(total, **LINES).lower(X, groups="ids") is not lowered


# ----------------------------------------------------------------- what is not the same

OTHER_PARTS = {
    "mesh": {"mesh": Mesh(DEVICES[::-1].reshape(4, 2), ("i", "j"))},
    "in_specs": {"in_specs": P(None, "i")},
    "out_specs": {"out_specs": P("i", "j")},
    "axis_names": {"axis_names": {"i"}},
    "check_vma": {"check_vma": False},
    "check_hangs": {"check_hangs": False},
}


@pytest.mark.parametrize("part", OTHER_PARTS)
def test_other_parts_make_another_function(part):
    total, traces = counted()
    one = shard_map(total, **LINES)
    one.trace(X)
    other = shard_map(total, **{**LINES, **OTHER_PARTS[part]})
    assert shard_map(total, **LINES) is one
    assert getattr(other, part) == OTHER_PARTS[part][part]
    other.trace(X)
    assert traces() == 2


def test_specs_changed_in_place_count_as_they_are():
    specs = {"a": P("i")}
    parts = {"mesh": MESH, "out_specs": P(None, "i")}

    def body(blocks):
        return blocks["a"]

    shard_map(body, in_specs=(specs,), **parts).trace({"a": X})
    specs["a"] = P(None, "i")
    assert shard_map(body, in_specs=({"a": P("i")},), **parts).trace({"a": X}).in_specs == (P("i"),)
    assert shard_map(body, in_specs=(specs,), **parts).trace({"a": X}).in_specs == (P(None, "i"),)


def test_mistaken_parts_are_refused_as_ever():
    total, _ = counted()
    shard_map(total, **LINES).trace(X)
    for specs in (P("k"), "i", [np.ones(2)]):
        with pytest.raises(SpecError, match="in_specs"):
            shard_map(total, **{**LINES, "in_specs": specs}).trace(X)
    with pytest.raises(ValueError, match="sorting"):
        shard_map(total, **{**LINES, "in_specs": {1: P("i"), "a": P("i")}}).trace(X)


def test_other_types_settings_and_named_axes_are_traced_anew():
    total, traces = counted()
    mapped = shard_map(total, **LINES)
    mapped.trace(X)
    mapped.trace(X.astype(jnp.bfloat16))
    with jax.default_matmul_precision("highest"):
        mapped.trace(X)
    assert traces() == 3

    def count(block):
        return block * lax.psum(1, "b")

    batched = jax.vmap(shard_map(count, **LINES), axis_name="b")
    for size in (2, 3):
        np.testing.assert_array_equal(batched(jnp.ones((size, 8))), size * np.ones((size, 8)))


def test_variables_are_those_of_the_call():
    def scaled(block, times=1.0):
        return sum(w * times for _ in range(2)) * block

    for w in (1.0, 2.0, jnp.float32(3.0), jnp.float32(4.0)):
        expected = 2 * w * np.asarray(X)
        np.testing.assert_array_equal(call(jax.jit(shard_map(scaled, **LINES)), X), expected)
        np.testing.assert_array_equal(call(shard_map(scaled, **LINES), X), expected)
        compiled = shard_map(scaled, **LINES).lower(X).compile()
        np.testing.assert_array_equal(call(compiled, X), expected)
    w, scaled.__defaults__ = 1.0, (5.0,)
    np.testing.assert_array_equal(call(jax.jit(shard_map(scaled, **LINES)), X), 10 * X)


def test_global_variables_are_those_of_the_call():
    scope = {}
    exec("def scaled(block): return (lambda: w)() * block", scope)
    for w in (1.0, 2.0):
        scope["w"] = w
        np.testing.assert_array_equal(call(jax.jit(shard_map(scope["scaled"], **LINES)), X), w * X)


def test_code_is_that_of_the_call():
    def once(block):
        return block

    def twice(block):
        return 2 * block

    def body(block):
        return once(block)

    def negated(block):
        return -once(block)

    for changed, other in ((once, twice), (body, negated)):
        for code in (changed.__code__, other.__code__, changed.__code__):
            changed.__code__ = code
            compiled = shard_map(body, **LINES).lower(X).compile()
            for run in (jax.jit(shard_map(body, **LINES)), compiled):
                np.testing.assert_array_equal(call(run, X), body(X))


def test_what_a_function_changes_itself_is_that_of_the_call():
    """As with `jax.shard_map`; pmap and xmap trace it once, as those of JAX."""
    calls = 0

    def counting(block):
        nonlocal calls
        calls += 1
        return calls * block

    for count in (1, 2, 3):
        mapped = jax.jit(shard_map(counting, **LINES))
        np.testing.assert_array_equal(call(mapped, X), count * X)
    lowered = [shard_map(counting, **LINES).lower(X).as_text() for _ in range(2)]
    assert lowered[0] != lowered[1]


class Factor:
    value = 1.0


FACTOR = {"value": 1.0}
NAME, SOURCE = "value", "Factor.value"


def helper(block):
    return FACTOR["value"] * block


def read_in_place():
    """(what it is, a function, a call that sets the factor that the function reads)."""
    kept, items, array, module = Factor(), [1.0], np.ones(1), ModuleType("of_the_user")
    partial, method = functools.partial(lambda d, b: d[0] * b, items), Scaled().scaled
    yield "dict", lambda b: FACTOR["value"] * b, lambda f: FACTOR.update(value=f)
    yield "list", lambda b: items[0] * b, lambda f: items.__setitem__(0, f)
    yield "object", lambda b: kept.value * b, lambda f: setattr(kept, "value", f)
    yield "class", lambda b: Factor.value * b, lambda f: setattr(Factor, "value", f)
    yield "module", lambda b: module.value * b, lambda f: setattr(module, "value", f)
    yield "array", lambda b: float(array[0]) * b, lambda f: array.fill(f)
    yield "function", lambda b: helper(b), lambda f: FACTOR.update(value=f)
    yield "partial", lambda b: partial(b), lambda f: items.__setitem__(0, f)
    yield "method", lambda b: method(b), lambda f: setattr(method.__self__, "factor", f)
    yield from read_indirectly()
    yield from read_by_transformed_functions()
    yield from read_from_other_objects()
    yield from read_by_other_names()
    yield from read_through_parameters()


def read_indirectly():
    other, variable = ModuleType("other"), contextvars.ContextVar("factor")
    exec("def scaled(block): return block * value", vars(other))
    sys.modules["other_module_of_the_user"] = other
    scaled, own, frozen = other.scaled, Own(), Frozen(1.0)
    cycle = [1.0]
    cycle.append(cycle)

    @functools.wraps(jnp.sin)
    def decorated(block):
        return FACTOR["value"] * block

    def holder(block):
        return holder.factor * block

    def set_value(factor):
        Factor.value = factor

    def importing(block):
        import other_module_of_the_user as found

        return found.value * block

    yield "other module", lambda b: scaled(b), lambda f: setattr(other, "value", f)
    yield "context", lambda b: variable.get() * b, variable.set
    yield "decorated", decorated, lambda f: FACTOR.update(value=f)
    yield "jitted", jax.jit(decorated), lambda f: (FACTOR.update(value=f), jax.clear_caches())
    yield "attribute", holder, lambda f: setattr(holder, "factor", f)
    yield "getattr", lambda b: getattr(Factor, "value") * b, lambda f: setattr(Factor, "value", f)  # noqa: B009
    yield "getattr, by variable", lambda b: getattr(Factor, NAME) * b, set_value
    yield "eval", lambda b: eval(SOURCE) * b, set_value
    yield "import", importing, lambda f: setattr(other, "value", f)
    yield "hash", lambda b: own.factor * b, lambda f: setattr(own, "factor", f)
    yield "frozen", lambda b: Frozen(1.0).scaled(b), lambda f: setattr(Frozen, "shared", f)
    yield "instance", lambda b: frozen.scaled(b), lambda f: setattr(Frozen, "shared", f)
    yield "cycle", lambda b: cycle[0] * b, lambda f: cycle.__setitem__(0, f)
    yield "static method", lambda b: Scaled.static(b), lambda f: setattr(Scaled, "shared", f)
    yield "environment", in_environment, lambda f: os.environ.update(FACTOR=str(f))
    yield "random", by_the_seed, lambda f: np.random.seed(int(f))


def read_by_transformed_functions():
    """The functions of the user are in what JAX made of them."""
    kept, items = Scaled(), [1.0]
    of_a_partial = jax.vmap(functools.partial(lambda d, b: d[0] * b, items))
    gradient = jax.value_and_grad(lambda b: jnp.sum(FACTOR["value"] * b))
    of_a_method, partial = jax.vmap(kept.scaled), jax.tree_util.Partial(helper)
    of_an_object = jax.vmap(Called(kept))
    wrapper = functools.wraps(jnp.sin)(lambda b: FACTOR["value"] * b)
    step_size = optimizers.sgd(lambda _: FACTOR["value"])
    nested = jax.checkpoint(jax.vmap(jax.jit(helper)))

    def updated(block):
        state = step_size.update_fn(0, block, step_size.init_fn(0 * block))
        return -step_size.params_fn(state)

    def set_kept(factor):
        kept.factor = factor

    def set_factor(factor):
        FACTOR["value"] = factor
        jax.clear_caches()

    yield "value_and_grad", lambda b: b * gradient(b)[1], set_factor
    yield "vmap of a partial", lambda b: of_a_partial(b), lambda f: items.__setitem__(0, f)
    yield "vmap of a method", lambda b: of_a_method(b), set_kept
    yield "vmap of an object", lambda b: of_an_object(b), set_kept
    yield "transformed twice", lambda b: nested(b), set_factor
    yield "Partial", lambda b: partial(b), set_factor
    yield "wrapper", lambda b: wrapper(b), set_factor
    yield "optimizer", lambda b: updated(b), set_factor


def read_from_other_objects():
    """The values are in objects of NumPy, or beside the contents of their objects."""
    state, array, masked = np.random.RandomState(0), np.ones(8), np.ma.array(np.ones(8))
    objects, poly, frozen = np.array([1.0], object), np.poly1d([1.0]), Frozen(1.0)
    flat, scaled = array.flat, jax.custom_jvp(functools.partial(lambda d, b: d["f"] * b, {}))
    scaled.defjvp(lambda primals, tangents: (scaled(*primals), scaled(*tangents)))
    kept = [WithMore.of(kind) for kind in (tuple, float, dict)]
    vectorized = np.frompyfunc(lambda x: FACTOR["value"] * x, 1, 1)
    level = Level.ONE

    def set_mask(factor):
        masked.mask = np.arange(8) >= factor

    yield (
        "state of NumPy",
        lambda b: float(state.get_state()[1][0]) * b,
        lambda f: state.seed(int(f)),
    )
    yield "masked array", lambda b: float(masked.sum()) * b, set_mask
    yield "array of objects", lambda b: objects[0] * b, lambda f: objects.__setitem__(0, f)
    yield "polynomial", lambda b: float(poly(0)) * b, lambda f: poly.coeffs.__setitem__(0, f)
    yield "flat iterator", lambda b: float(flat[0]) * b, array.fill
    yield "ufunc", lambda b: float(vectorized(1.0)) * b, lambda f: FACTOR.update(value=f)
    yield "custom_jvp", lambda b: scaled(b), lambda f: scaled.fun.args[0].update(f=f)
    yield "enumeration", lambda b: level.factor * b, lambda f: setattr(level, "factor", f)

    def set_frozen(factor):
        object.__setattr__(frozen, "factor", factor)

    yield "more than fields", lambda b: frozen.factor * b, set_frozen
    for kind in (list, dict, float, functools.partial):
        more = WithSlots.of(kind)

        def slotted(block, more=more):
            return more.factor() * block

        yield f"slots of a {kind.__name__}", slotted, more.set_factor
    for each in kept:
        kind = type(each).__base__.__name__

        def more(block, each=each):
            return each.factor * block

        yield f"more than a {kind}", more, functools.partial(setattr, each, "factor")


def read_by_other_names():
    module = ModuleType("of_the_user")
    get, get_any = operator.attrgetter("value"), getattr

    def called(block):
        return block

    def set_module(factor):
        module.value = factor

    yield "names of a module", lambda b: module.__dict__["value"] * b, set_module
    yield "attrgetter", lambda b: operator.attrgetter("value")(module) * b, set_module
    yield "an attrgetter", lambda b: get(module) * b, set_module
    yield "getattr by another name", lambda b: get_any(module, "value") * b, set_module
    yield (
        "names of a class",
        lambda b: Factor.__dict__["value"] * b,
        lambda f: setattr(Factor, "value", f),
    )
    yield "class of a class", lambda b: OfMeta.factor * b, lambda f: FACTOR.update(value=f)
    yield "function's", lambda b: called.factor * b, lambda f: setattr(called, "factor", f)
    of_a_module, frozen = functools.partial(value_of, module), Frozen(1.0)
    yield "module passed on", lambda b: value_of(module) * b, set_module
    yield "module in a partial", lambda b: of_a_module() * b, set_module
    yield "class passed on", lambda b: value_of(Factor) * b, lambda f: setattr(Factor, "value", f)
    yield (
        "function passed on",
        lambda b: factor_of(called) * b,
        functools.partial(setattr, called, "factor"),
    )
    yield (
        "instance passed on",
        lambda b: shared_by(frozen) * b,
        lambda f: setattr(Frozen, "shared", f),
    )
    yield "property", lambda b: product_of(frozen) * b, lambda f: FACTOR.update(value=f)


def read_through_parameters():
    """Lists and tuples, whose names only code has that does not have their holder as a variable."""

    def called(block):
        return block

    class Outer:
        Inner = type("Inner", (), {})

    module, other = ModuleType("of_the_user"), ModuleType("other")
    module.inner, Outer.module = other, other
    lazy, computed = ModuleType("lazy"), []
    lazy.__getattr__ = lambda name: computed[-1]
    frozen, level, held = Frozen(1.0), Level.ONE, Frozen(Listed)
    of_a_class, items = functools.partial(first_of, Listed), {"class": Listed}

    def set_list(holder):
        return lambda factor: setattr(holder, "factors", [factor])

    def set_tuple(factor):
        Outer.Inner.factors = (factor,)

    def set_if_there(factor):
        Optional.factors = [factor]
        if factor == 1.0:
            del Optional.factors

    yield "list of a class", lambda b: first_of(Listed) * b, set_list(Listed)
    yield "list of a base class", lambda b: first_of(OfListed) * b, set_list(Listed)
    yield "list of a function", lambda b: first_of(called) * b, set_list(called)
    yield "list of an enumeration", lambda b: first_of(level) * b, set_list(Level)
    yield "tuple of a class in a class", lambda b: first_of_inner(Outer) * b, set_tuple
    yield "class in a dict", lambda b: first_of(items["class"]) * b, set_list(Listed)
    yield "class in a frozen instance", lambda b: first_of(held.own) * b, set_list(Listed)
    yield "class of a frozen instance", lambda b: first_of(frozen) * b, set_list(Frozen)
    yield "class in a partial", lambda b: of_a_class() * b, set_list(Listed)
    yield "class method", lambda b: Listed.first() * b, set_list(Listed)
    yield "property of a list", lambda b: frozen.first * b, set_list(Frozen)
    yield "module of a module passed on", lambda b: first_of(module.inner) * b, set_list(other)
    yield "attribute that a module computes", lambda b: lazy.factor * b, computed.append
    yield "module of a class", lambda b: first_of(Outer.module) * b, set_list(other)
    yield (
        "hasattr",
        lambda b: first_of(Optional) * b if hasattr(Optional, "factors") else b,
        set_if_there,
    )
    names, flags = ("has_two", "has_three", "has_five"), type("Flags", (), {})

    def set_flag(factor):
        for name, number in zip(names, (2.0, 3.0, 5.0), strict=True):
            if factor == number:
                setattr(flags, name, ())
            elif name in vars(flags):
                delattr(flags, name)

    def by_flags(block):
        return (
            block * ([2.0, 3.0, 5.0, 1.0][[*(hasattr(flags, n) for n in names), True].index(True)])
        )

    yield "hasattr of names in a tuple", by_flags, set_flag


def first_of(holder):
    return holder.factors[0]


def first_of_inner(holder):
    return holder.Inner.factors[0]


class Listed:
    @classmethod
    def first(cls):
        return cls.factors[0]


class OfListed(Listed):
    pass


class Optional:
    pass


def value_of(holder):
    return holder.value


def factor_of(holder):
    return holder.factor


def shared_by(holder):
    return holder.shared


def product_of(holder):
    return holder.product


class WithMore:
    @staticmethod
    def of(kind):
        return type("More", (kind,), {})()


class WithSlots:
    @staticmethod
    def of(kind):
        class More(kind):
            __slots__ = ("__factor",)

            def factor(self):
                return self.__factor

            def set_factor(self, factor):
                self.__factor = factor

        return More(*[abs] * (kind is functools.partial))


class Level(enum.Enum):
    ONE = 1


class Meta(type):
    @property
    def factor(cls):
        return FACTOR["value"]


class OfMeta(metaclass=Meta):
    pass


class Called:
    def __init__(self, held):
        self.held = held

    def __call__(self, block):
        return self.held.factor * block


def by_the_seed(block):
    return float(np.random.get_state()[1][0]) * block


def in_environment(block):
    return float(os.environ["FACTOR"]) * block


class Own:
    def __hash__(self):
        return 1

    def __eq__(self, other):
        return type(other) is Own


@dataclasses.dataclass(frozen=True)
class Frozen:
    shared: ClassVar[float] = 1.0
    own: float

    @property
    def first(self):
        return self.factors[0]

    @property
    def product(self):
        return self.own * FACTOR["value"]

    def scaled(self, block):
        return self.shared * self.own * block


class Scaled:
    shared = 1.0

    def scaled(self, block):
        return self.factor * block

    @staticmethod
    def static(block):
        return Scaled.shared * block


@pytest.mark.usefixtures("equal_programs_compile_once")
@pytest.mark.parametrize(
    ("fun", "set_factor"), [pytest.param(*each, id=what) for what, *each in read_in_place()]
)
def test_variables_changed_in_place_are_those_of_the_call(fun, set_factor):
    """As under jax.shard_map, which traces a function at each call."""
    mapped = shard_map(fun, **LINES)

    def twice(x):
        for factor in (2.0, 3.0):
            set_factor(factor)
            x = mapped(x)
        return x

    for factor in (1.0, 5.0):
        set_factor(factor)
        np.testing.assert_array_equal(call(jax.jit(shard_map(fun, **LINES)), X), factor * X)
        gradient = call(jax.grad(lambda x: mapped(x).sum()), X)
        np.testing.assert_array_equal(gradient, np.full_like(X, factor))
        np.testing.assert_array_equal(call(mapped.lower(X).compile(), X), factor * X)
        np.testing.assert_array_equal(call(jax.jit(twice), X), 6 * X)


FRONT_ENDS = {
    "shard_map": lambda f: shard_map(f, **LINES),
    "pmap": pmap,
    "xmap": lambda f: xmap(f, in_axes=["rows", ...], out_axes=["rows", ...]),
}


@pytest.mark.parametrize("front_end", FRONT_ENDS)
def test_what_is_mapped_anew_has_no_programs_of_other_variables(front_end):
    """jit has programs of the first object, of either factor; it knows it by its identity."""
    items = [1.0]

    def scaled(block):
        return items[0] * block

    mapped, other = FRONT_ENDS[front_end], X + 1
    first = mapped(scaled)
    for items[0], argument in ((1.0, X), (2.0, other[:, :4])):
        np.testing.assert_array_equal(call(jax.jit(first), argument), items[0] * argument)
    for items[0] in (2.0, 1.0):
        for argument in (X, other[:, :4]):
            result = call(jax.jit(mapped(scaled)), argument)
            np.testing.assert_array_equal(result, items[0] * argument)
    assert mapped(scaled) is mapped(scaled)


def test_what_was_traced_with_variables_that_cannot_be_compared_is_not_given_out():
    kept = Factor()
    kept.value = factor = 2.0

    def scaled(block):
        return (factor.value if isinstance(factor, Factor) else factor) * block

    first, factor = shard_map(scaled, **LINES), kept
    call(jax.jit(first), X)
    factor = 3.0
    first.lower(X)
    np.testing.assert_array_equal(call(jax.jit(shard_map(scaled, **LINES)), X), 3 * X)


READ_WHAT_CHANGES = {
    "generator": (lambda rng: lambda b: rng.uniform() * b)(np.random.default_rng(0)),
    "generator of NumPy": lambda b: np.random.default_rng().uniform() * b,
    "module of NumPy": lambda b: np_random.rand() * b,
    "function of NumPy": (lambda new: lambda b: new().uniform() * b)(np.random.default_rng),
    "file": (lambda load: lambda b: load("factor.npy") * b)(np.load),
    "library passed on": lambda b: drawn_by(np) * b,
    "date": lambda b: datetime.datetime.now().microsecond * b,
    "time": lambda b: time.time() * b,
    "setting": lambda b: b if jax.config.jax_debug_nans else 2 * b,
    "settings": (lambda settings: lambda b: b if settings.jax_debug_nans else 2 * b)(jax.config),
}


def drawn_by(library):
    return library.random.uniform()


@pytest.mark.parametrize("what", READ_WHAT_CHANGES)
def test_functions_that_read_what_changes_are_traced_at_each_call(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("factor.npy", np.float32(2.0))
    body = READ_WHAT_CHANGES[what]
    for _ in range(3):
        shard_map(body, **LINES).lower(X)
    assert TRACED.count(id(body)) == 3


class Size(enum.IntEnum):
    LARGE = 8

    def doubled(self):
        return 2 * self


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    own: float


class Pair(NamedTuple):
    scale: float
    shift: float = 0.0


def ordinary_functions():
    array, number, dtype, axes = np.ones(2), np.float32(2.0), np.dtype("float32"), {"i", "j"}
    frozen, pair, size = Frozen(2.0), Pair(2.0), Size.LARGE
    gradient = jax.grad(lambda b: jnp.sum(jnp.tanh(b) * number))
    of_rows = jax.vmap(functools.partial(helper_of_rows, pair))
    inner = shard_map(jnp.sin, mesh=MESH, in_specs=P("j"), out_specs=P("j"), axis_names={"j"})
    adam = optax.adam(1e-3)
    slotted = Slotted(2.0)
    spec, mesh, limits = P("i"), MESH, np.finfo(np.float32)
    weights = {"w": [array, (1, 2.0)], "b": None}

    @jax.custom_jvp
    @jax.jit
    def custom(block):
        return jax.nn.gelu(block)

    custom.defjvp(lambda primals, tangents: (custom(*primals), tangents[0]))
    yield "functions of JAX", lambda b: lax.psum(jnp.mean(jax.nn.relu(b)), "i") * jnp.ones_like(b)
    yield "numbers", lambda b: b * number * np.pi + limits.max
    yield "arrays", lambda b: b * array[0] + weights["w"][0][1]
    yield "types", lambda b: b.astype(dtype).astype(jnp.bfloat16).astype(np.float32)
    yield "configuration", lambda b: frozen.scaled(b) + pair.shift + size.doubled()
    yield "gradient", lambda b: gradient(b)
    yield "vmap", lambda b: of_rows(b)
    yield "custom rule", lambda b: custom(b)
    yield "random numbers", lambda b: b + jax.random.normal(jax.random.key(0), b.shape)
    yield "mesh and specs", lambda b: b * len(mesh.axis_names) + len(spec) + len(axes)
    yield "optimizer", lambda b: adam.update(b, adam.init(b))[0]
    yield "loop", lambda b: lax.scan(lambda c, x: (c + x, c), 0 * b[0], b)[1]
    yield "class passed on", lambda b: b * shared_by(Frozen) + Scaled().static(b)
    yield "module of a library passed on", lambda b: ones_of(jnp) + b
    yield "lazy module", lambda b: optax.apply_updates(b, b)
    yield "slots", lambda b: b * slotted.own
    yield "mapped function", lambda b: lax.psum(b, ()) if inner.check_vma else inner(b)


def ones_of(library):
    return library.ones(())


def helper_of_rows(pair, row):
    return pair.scale * row + pair.shift


@pytest.mark.parametrize(
    "body", [pytest.param(body, id=what) for what, body in ordinary_functions()]
)
def test_ordinary_functions_are_traced_once(body):
    for _ in range(3):
        shard_map(body, **LINES).lower(X)
    assert TRACED.count(id(body)) == 1


def test_arrays_that_a_function_read_once_are_freed():
    def of_its_shape(block):
        return block * weights.shape[0]

    for _ in range(3):
        weights = jnp.zeros(5)
        alive = weakref.ref(weights)
        call(jax.grad(loss(shard_map(of_its_shape, **LINES))), X)
        shard_map(of_its_shape, **LINES).lower(X)
        weights = None
        gc.collect()
        assert alive() is None


def test_shapes_that_are_used_stay_in_the_cache():
    total, traces = counted()
    mapped = shard_map(total, **LINES)
    for size in range(1, 80):
        mapped.trace(X)
        mapped.trace(jnp.ones((8, size)))
    assert traces() == 79


def test_values_of_an_enclosing_trace_are_those_of_the_call():
    @jax.jit
    def program(x, ws):
        def scaled(block):
            return block * w

        results = []
        for w in ws:  # noqa: B007 `scaled` reads it
            results.append(shard_map(scaled, **LINES)(x))
        return sum(results)

    ws = [jnp.full(8, 1.0), jnp.full(8, 10.0), jnp.full(8, 100.0)]
    np.testing.assert_array_equal(call(program, X, ws), 111 * np.asarray(X))


def test_callable_objects_may_change():
    class Scaled:
        def __call__(self, block):
            return self.factor * block

    scaled = Scaled()
    for scaled.factor in (1.0, 2.0):
        np.testing.assert_array_equal(
            call(jax.jit(shard_map(scaled, **LINES)), X), scaled.factor * X
        )


def test_arguments_without_spec_count_by_type_and_value():
    class Unhashable:
        __hash__ = None

    def scaled(block, factor):
        return block * (factor.value if isinstance(factor, Unhashable) else factor)

    mapped = shard_map(scaled, mesh=MESH, in_specs=(P("i"), None), out_specs=P("i"))
    ints = X.astype(int)
    assert mapped.trace(ints, 2) is mapped.trace(ints, 2)
    graphs = [mapped.trace(ints, factor) for factor in (1, 1.0, True, 0.0, -0.0)]
    assert len(set(map(id, graphs))) == 5
    factor = Unhashable()
    for factor.value in (2.0, 3.0):
        compiled = mapped.lower(X, factor).compile()
        np.testing.assert_array_equal(call(compiled, X, factor), factor.value * X)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Powers:
    array: jax.Array
    power: object = dataclasses.field(metadata={"static": True})


def test_numbers_in_metadata_count_by_type_and_sign():
    def body(powers):
        return powers.array * powers.power

    mapped, ints = shard_map(body, **LINES), X.astype(int)
    assert mapped.trace(Powers(ints, 1)) is mapped.trace(Powers(ints, 1))
    graphs = [mapped.trace(Powers(ints, power)) for power in (1, 1.0, True, 0.0, -0.0)]
    assert len(set(map(id, graphs))) == 5
    specs = [Powers(P("i"), power) for power in (0.0, -0.0)]
    made = [shard_map(body, **{**LINES, "in_specs": (spec,)}) for spec in specs]
    for each, power in zip(made, (0.0, -0.0), strict=True):
        call(jax.jit(each), Powers(X, power))
    again = [shard_map(body, **{**LINES, "in_specs": (spec,)}) for spec in specs]
    assert again == made


def test_what_functions_in_metadata_read_is_that_of_the_call():
    factor = 1.0

    def of(number):
        return factor * number

    mapped = shard_map(lambda powers: powers.power(powers.array), **LINES)
    for factor in (2.0, 3.0):
        for power in (of, functools.partial(of)):
            compiled = mapped.lower(Powers(X, power)).compile()
            np.testing.assert_array_equal(call(compiled, Powers(X, power)), factor * X)
    assert mapped.trace(Powers(X, of)) is mapped.trace(Powers(X, of))


def test_what_functions_without_spec_read_is_that_of_the_call():
    factor = 1.0

    def scaled(block, by):
        return block * by()

    mapped = shard_map(scaled, mesh=MESH, in_specs=(P("i"), None), out_specs=P("i"))

    def by():
        return factor

    class Reads:
        def __call__(self):
            return factor

    for read in (by, functools.partial(by), Reads()):
        for factor in (2.0, 3.0):
            program = jax.jit(lambda x, read=read: mapped(x, read))
            np.testing.assert_array_equal(call(program, X), factor * X)
            compiled = mapped.lower(X, read).compile()
            np.testing.assert_array_equal(call(compiled, X, read), factor * X)
    factor = 2.0
    assert mapped.trace(X, by) is mapped.trace(X, by)


@pytest.mark.parametrize("kind", ["class", "module", "function"])
def test_what_is_read_of_arguments_without_spec_is_that_of_the_call(kind):
    holders = {"class": Listed, "module": ModuleType("of_the_user"), "function": lambda: None}
    mapped = shard_map(
        lambda block, holder: first_of(holder) * block,
        mesh=MESH,
        in_specs=(P("i"), None),
        out_specs=P("i"),
    )
    holder = holders[kind]
    for factor in (2.0, 3.0):
        holder.factors = [factor]
        program = jax.jit(lambda x: mapped(x, holder))
        np.testing.assert_array_equal(call(program, X), factor * X)


def test_a_wrapper_does_not_pass_for_what_it_wraps():
    def body(block):
        return block + 1

    call(jax.jit(shard_map(body, **LINES)), X)

    @functools.wraps(body)
    def twice(block):
        return 2 * body(block)

    @functools.wraps(body)
    def double(block):  # reads no variable, as `body`
        return 2 * block

    cases = [(twice, 2 * (X + 1)), (body, X + 1), (twice, 2 * (X + 1)), (double, 2 * X)]
    for function, expected in cases:
        np.testing.assert_array_equal(call(jax.jit(shard_map(function, **LINES)), X), expected)


def test_functions_and_mapped_functions_can_be_copied_and_pickled():
    mapped = shard_map(jnp.sin, **LINES)
    mapped.lower(X)
    np.testing.assert_allclose(copy.deepcopy(mapped)(X), np.sin(X), rtol=1e-6)
    total, traces = counted()
    shard_map(total, **LINES).trace(X)
    (attribute,) = vars(total)
    assert pickle.loads(pickle.dumps(vars(total))) == {attribute: None}
    setattr(total, attribute, None)
    shard_map(total, **LINES).trace(X)
    shard_map(total, **LINES).trace(X)
    assert traces() == 2


@shard_map(**LINES)
def decorated_sine(block):
    return jnp.sin(block)


@pmap
def decorated_rows(row):
    return 2 * row


@functools.partial(xmap, in_axes=["rows", ...], out_axes=["rows", ...])
def decorated_names(row):
    return 3 * row


class OfAModel:
    @shard_map(**LINES)
    def decorated(block):
        return block


@pytest.mark.parametrize(
    "mapped",
    [decorated_sine, decorated_rows, decorated_names, OfAModel.decorated],
    ids=["shard_map", "pmap", "xmap", "method"],
)
def test_decorated_functions_are_pickled_by_name(mapped):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(mapped, protocol)) is mapped
    assert copy.deepcopy(mapped) is mapped


# -------------------------------------------------------------------------------- memory


# Python's cache of attributes keeps names that are built at run time, in 4096 slots that their
# addresses choose: JAX builds such names, and thousands of calls go by before the slots are full.
clear_attribute_cache = getattr(sys, "_clear_internal_caches", sys._clear_type_cache)


def growth(step, calls):
    """(blocks of memory, arrays) that a quarter of `calls` calls leaves behind, at the least.

    What stays at each call shows in every quarter, unlike what fills a cache or comes and goes.
    """
    counts = []
    for number in range(calls + 1):
        if number % (calls // 4) == 0:
            gc.collect()
            clear_attribute_cache()
            counts.append((sys.getallocatedblocks(), len(jax.live_arrays())))
        step()
    return np.diff(counts, axis=0).min(0)


def total_of(block):
    return lax.psum(block, "i") * block


MAPPED = shard_map(total_of, **LINES)
PROGRAM, EXECUTABLE, GRADIENT = jax.jit(MAPPED), MAPPED.lower(X).compile(), jax.grad(loss(MAPPED))
STEPS = {
    "compiled": (lambda: call(PROGRAM, X), 100),
    "executable": (lambda: call(EXECUTABLE, X), 100),
    "eager": (lambda: call(MAPPED, X), 100),
    "eager gradient": (lambda: call(GRADIENT, X), 100),
    "compiled, built anew": (lambda: call(jax.jit(shard_map(total_of, **LINES)), X), 100),
    "eager, built anew": (lambda: call(shard_map(total_of, **LINES), X), 100),
    "lowered, built anew": (lambda: shard_map(total_of, **LINES).lower(X), 100),
    "traced, of a new function": (lambda: shard_map(counted()[0], **LINES).trace(X), 400),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", STEPS)
def test_memory_does_not_grow(kind):
    step, calls = STEPS[kind]
    blocks, arrays = growth(step, calls)
    assert arrays <= 0
    assert blocks < calls / 8


@pytest.mark.slow
def test_growth_is_noticed():
    kept = []
    blocks, arrays = growth(lambda: kept.append(jnp.zeros(3)), 100)
    assert blocks >= 25
    assert arrays == 25


USES = {
    "jit": lambda mapped: call(jax.jit(mapped), X),
    "jit of grad": lambda mapped: call(jax.jit(jax.grad(loss(mapped))), X),
    "eager": lambda mapped: call(mapped, X),
    "eager gradient": lambda mapped: call(jax.grad(loss(mapped)), X),
    "compile": lambda mapped: call(mapped.lower(X).compile(), X),
}


@pytest.mark.parametrize("use", USES)
def test_functions_are_freed(use):
    total, _ = counted()
    USES[use](shard_map(total, **LINES))
    alive = weakref.ref(total)
    del total
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("use", USES)
def test_functions_that_close_over_arrays_are_freed_without_garbage_collection(use):
    array = jnp.full(8, 2.0)

    def scaled(block):
        return block * array

    alive = weakref.ref(scaled)
    USES[use](shard_map(scaled, **LINES))
    gc.collect()  # what JAX leaves behind of its own
    gc.disable()
    try:
        del scaled
        assert alive() is None
    finally:
        gc.enable()


def test_a_cache_is_bounded():
    cache = Cache(maxsize=3)
    for number in range(5):
        assert cache.get(number, lambda number=number: -number) == -number
    assert [cache.find(number) for number in range(5)] == [None, None, -2, -3, -4]


def test_of_two_values_made_at_once_the_first_one_stays():
    cache = Cache(maxsize=3)

    def make_while_another_thread_does():
        assert cache.get("key", lambda: "first") == "first"
        return "second"

    assert cache.get("key", make_while_another_thread_does) == "first"
    assert cache.find("key") == "first"


# ------------------------------------------------------------------------------- threads


def in_eight_threads(work):
    """The results of work(0), work(1), ... computed in threads that start together."""
    results, barrier = {}, threading.Barrier(8)

    def run(number):
        barrier.wait()
        results[number] = work(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=300)
    return [results[number] for number in range(8)]


LOWERINGS = {
    "jit of grad": lambda f: jax.jit(jax.grad(loss(shard_map(f, **LINES)))).lower(X).as_text(),
    "gspmd": lambda f: shard_map(f, **LINES).lower(X).as_text(),
    "shardy": lambda f: shard_map(f, **LINES).lower(X, partitioner="shardy").as_text(),
}


@pytest.mark.parametrize("kind", LOWERINGS)
def test_eight_threads_lower_different_functions(kind):
    def work(number):
        return LOWERINGS[kind](counted(scale=number)[0])

    alone = [work(number) for number in range(8)]
    assert len(set(alone)) == 8
    assert in_eight_threads(work) == alone


@pytest.mark.parametrize("kind", LOWERINGS)
def test_eight_threads_lower_one_function(kind):
    total, _ = counted()
    assert set(in_eight_threads(lambda _: LOWERINGS[kind](total))) == {LOWERINGS[kind](total)}


def test_eight_threads_call():
    total, _ = counted()
    lock = threading.Lock()

    def work(number):
        function = jax.jit(shard_map(total, **LINES))
        function.lower(X)
        with lock:  # the devices are shared: collectives of two programs must not mix
            return call(function, X + number)

    for number, result in enumerate(in_eight_threads(work)):
        np.testing.assert_allclose(result, (X + number) * (X + number).sum())


# ------------------------------------------------------------- the persistent cache of JAX

SCRIPT = """
import json, sys
import jax, jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P
from shmap_compiler import shard_map

def body(params, x):
    y = lax.psum(x @ params["w"], "j") + params["b"]
    return lax.pmean(jnp.sum(jnp.tanh(y) ** 2), "i")

mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
mapped = shard_map(body, mesh=mesh, in_specs=({"w": P("j"), "b": P()}, P("i", "j")), out_specs=P())
args = jax.block_until_ready(({"w": jnp.ones((8, 4)), "b": jnp.ones(4)}, jnp.ones((8, 8))))
events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name.rpartition("/")[2]))
gradient = jax.block_until_ready(jax.jit(jax.value_and_grad(mapped))(*args))
executable = jax.block_until_ready(mapped.lower(*args).compile()(*args))
json.dump([events.count("cache_hits"), events.count("cache_misses")], sys.stdout)
"""


@pytest.mark.slow
@pytest.mark.subprocess
def test_the_persistent_cache_hits_in_another_process(tmp_path):
    def hits_and_misses(hash_seed):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    hits, misses = hits_and_misses("1")
    assert hits == 0
    assert misses >= 2
    assert hits_and_misses("2") == [misses, 0]
