"""Objects in sight of a body whose classes run code when they are looked at.

What a body reads is looked for in what it names, closes over and is an attribute of; to look there
must not do, or fail by, what these classes do.
"""

import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import pmap, shard_map, xmap

MESH = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
X = np.arange(8, dtype=np.float32)


class OfAnything:
    """As the library of C functions that numba names: each name is an attribute."""

    __slots__ = ("own",)

    def __getattr__(self, name):
        return OfAnything()


class OfNothing:
    __slots__ = ("own",)

    def __getattr__(self, name):
        raise ImportError(name)


class WithoutItems(dict):
    def items(self):
        raise ImportError

    values = __iter__ = items


class WithoutElements(tuple):
    __slots__ = ()

    def __iter__(self):
        raise ImportError


class WithoutClass:
    @property
    def __class__(self):
        raise ImportError


class Held:
    pass


HELD = Held()
OBJECTS = {
    "of anything": OfAnything(),
    "of nothing": OfNothing(),
    "a mapping": WithoutItems(a=1),
    "a tuple": WithoutElements((1, 2)),
    "no class": WithoutClass(),
    "a proxy": weakref.proxy(HELD),
    "a proxy of what is gone": weakref.proxy(Held()),
}


class Model:
    def __init__(self, held):
        self.held = held

    def __call__(self, x):
        return 2 * lax.psum(x, "i")


def closing_over(held):
    return lambda x: 2 * lax.psum(x, "i") + (held is None)


def of_default(held):
    return lambda x, held=held: 2 * lax.psum(x, "i")


def naming(held):
    scope = {"held": held, "lax": lax}
    exec("def body(x): return 2 * lax.psum(x, 'i') + (held is None)", scope)
    return scope["body"]


def differentiating(held):
    return lambda x: jax.grad(lambda x: lax.psum((x * x).sum(), "i"))(x) / 4 + (held is None)


def by_a_callback(held):
    def on_host(x):
        return held is None or np.asarray(2 * x)

    return lambda x: jax.pure_callback(on_host, x, lax.psum(x, "i"))


@pytest.mark.usefixtures("equal_programs_compile_once")
@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize("make", [Model, closing_over, of_default, naming, by_a_callback])
def test_an_object_in_sight(make, name):
    body = make(OBJECTS[name])
    expected = 2 * X.reshape(4, 2).sum(0)
    for _ in range(2):
        mapped = shard_map(body, mesh=MESH, in_specs=P("i"), out_specs=P())
        np.testing.assert_array_equal(jax.jit(mapped)(X), expected)
        np.testing.assert_array_equal(mapped(X), expected)
    np.testing.assert_array_equal(pmap(body, "i")(X.reshape(4, 2)), [expected] * 4)
    named = xmap(body, ["i", ...], [...])
    np.testing.assert_array_equal(named(X.reshape(4, 2)), expected)


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_in_sight_of_a_derivative(name):
    body = differentiating(OBJECTS[name])
    mapped = shard_map(body, mesh=MESH, in_specs=P("i"), out_specs=P("i"))
    np.testing.assert_array_equal(jax.jit(mapped)(X), jnp.asarray(X) / 2)
