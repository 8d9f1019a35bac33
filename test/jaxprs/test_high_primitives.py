"""Functions that JAX 0.12 keeps as primitives holding programs until they are lowered."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import run_together
from jax import lax
from jax.interpreters import ad
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map, xmap
from shmap_compiler.base.errors import BodyError, ResultTypeError, SpecError

MESH = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
X = jnp.arange(8.0)


def search(x):
    return jnp.searchsorted(jnp.arange(4.0), x) + jnp.interp(
        x, jnp.arange(3.0), 2 * jnp.arange(3.0)
    )


def root(x):
    """The y with y**3 = x + sum of all x, which sends inside of the program held."""

    def newton(f, y):
        return lax.fori_loop(0, 20, lambda _, y: y - f(y) / (3 * y**2), y)

    def solve(g, y):
        return y / g(jnp.ones_like(y))

    return lax.custom_root(lambda y: y**3 - x - lax.psum(x, "i"), x + 1, newton, solve)


def mapped(body, function, check_vma=False):
    return function(body, mesh=MESH, in_specs=P("i"), out_specs=P("i"), check_vma=check_vma)


@pytest.mark.parametrize("body", [search, root])
@pytest.mark.parametrize("transform", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_equals_jax(body, transform):
    expected = jax.jit(mapped(body, jax.shard_map))(X)
    np.testing.assert_allclose(transform(mapped(body, shard_map))(X), expected, rtol=1e-6)


def test_gradient_of_a_root_equals_jax():
    ours, theirs = (
        jax.jit(jax.grad(lambda x, f=f: mapped(root, f)(x).sum()))(X)
        for f in (shard_map, jax.shard_map)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def root_of_a_gradient(x):
    """A derivative taken inside, which needs JAX's types, before a function that keeps them."""
    slope = jax.grad(lambda v: jnp.sum(jnp.sin(v) * v))(x)
    return root(slope**2 + 1)


def scalar(function):
    return lambda x: (function(x) ** 2).sum()


TRANSFORMATIONS = {
    "value": lambda f: f,
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (jnp.cos(x),)),
    "grad": lambda f: jax.grad(scalar(f)),
    "hvp": lambda f: lambda x: jax.jvp(jax.grad(scalar(f)), (x,), (jnp.cos(x),)),
    "checkpoint": lambda f: jax.grad(scalar(jax.checkpoint(f))),
    "vmap": lambda f: lambda x: jax.vmap(jax.grad(scalar(f)))(jnp.stack([x, 2 * x])),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
@pytest.mark.parametrize("inside", [lambda f: f, jax.checkpoint], ids=["plain", "checkpoint"])
def test_root_after_a_derivative_inside_equals_jax(name, inside):
    functions = [
        TRANSFORMATIONS[name](mapped(inside(root_of_a_gradient), f, check_vma=True))
        for f in (shard_map, jax.shard_map)
    ]
    ours, theirs = run_together(functions, X)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5), ours, theirs)


LEAVES = {
    "ldexp": lambda x: jnp.ldexp(x, 2),
    "frexp": lambda x: jnp.frexp(x)[0],
    "einsum": lambda x: jnp.einsum("i,i->i", x, x),
}


@pytest.mark.parametrize("transform", ["grad", "checkpoint"])
@pytest.mark.parametrize("name", LEAVES)
def test_function_with_a_transpose_of_its_own_after_a_derivative_inside_equals_jax(name, transform):
    def body(x):
        return LEAVES[name](jax.grad(lambda v: jnp.sum(jnp.sin(v) * v))(x))

    ours, theirs = (
        jax.jit(TRANSFORMATIONS[transform](mapped(body, f, check_vma=True)))(X + 0.5)
        for f in (shard_map, jax.shard_map)
    )
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


# ------------------------------------------------------------------- rules for reverse mode only

SINCE_012 = pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="new in JAX 0.12")
ONE = jnp.ones(1)


def scaled(w, x):
    return w * x, lax.psum(x.sum(), "i")


def forward(w, x):
    return scaled(w, x), (w, x)


def backward(residuals, cotangents):
    (w, x), (of_product, of_sum) = residuals, cotangents
    return lax.psum((of_product * x).sum(), "i"), of_product * w + of_sum


def by_custom_vjp(**options):
    call = jax.custom_vjp(scaled)
    call.defvjp(forward, backward, **options)
    return call


def by_primitive():
    hijax = importlib.import_module("jax.experimental.hijax")

    class Scaled(hijax.HiPrim):
        def __init__(self, *types):
            self.in_avals = types
            self.out_aval = types[1], jax.typeof(lax.psum(jnp.zeros(()), "i"))
            self.params = {}
            super().__init__()

        def expand(self, w, x):
            return scaled(w, x * ONE)  # an array that the program closes over

        def vjp_fwd(self, nonzero, w, x):
            return forward(w, x)

        def vjp_bwd_retval(self, residuals, cotangents):
            return backward(residuals, cotangents)

    return lambda w, x: Scaled(jax.typeof(w), jax.typeof(x))(w, x)


def by_accumulators():
    call = jax.custom_vjp(scaled)

    def accumulate(residuals, cotangents, *sums):
        for sum_, found in zip(sums, backward(residuals, cotangents), strict=True):
            sum_.accum(found)

    call.defvjp_with_accums(forward, accumulate, generic_batching=True)
    return call


RULES = {
    "primitive": by_primitive,
    "generic": lambda: by_custom_vjp(generic_batching=True),
    "accumulators": by_accumulators,
}


def used(call):
    def body(w, x):
        product, total = call(w, x)
        return jnp.sin(product) + total

    return body


def in_loop(call):
    body = used(call)
    return lambda w, x: lax.scan(lambda c, _: (body(w, c), None), x, None, length=2)[0]


def of_derivative(call):
    body = used(call)
    return lambda w, x: w * jax.grad(lambda x: body(w, x).sum())(x)


def after_derivative(call):
    """A derivative taken inside needs JAX's types, with which the rule is then traced."""
    body = used(call)
    return lambda w, x: body(w, jax.grad(lambda v: jnp.sum(jnp.sin(v) * v))(x))


def differentiated(body, function, transform):
    f = function(body, mesh=MESH, in_specs=(P(), P("i")), out_specs=P("i"))
    return transform(lambda w, x: (f(w, x) ** 2).sum())(3.0, X / 7)


OF_BOTH = {
    "grad": lambda f: jax.jit(jax.grad(f, (0, 1))),
    "eager": lambda f: jax.grad(f, (0, 1)),
    "second": lambda f: jax.jit(jax.grad(lambda w, x: jax.grad(f)(w, x))),
    "vmap": lambda f: lambda w, x: jax.vmap(jax.grad(f, (0, 1)), (0, None))(THREE, x),
}
THREE = np.arange(3, dtype=np.float32)


@functools.cache
def of_a_custom_vjp(inside, transform):
    """By JAX; for all rules."""
    body = inside(by_custom_vjp())
    return differentiated(body, jax.shard_map, lambda f: jax.jit(OF_BOTH[transform](f)))


@SINCE_012
@pytest.mark.usefixtures("equal_programs_compile_once")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("transform", OF_BOTH)
@pytest.mark.parametrize("inside", [used, in_loop, of_derivative, after_derivative])
def test_backward_rule_of_a_primitive_equals_that_of_a_custom_vjp(rule, inside, transform):
    found = differentiated(inside(RULES[rule]()), shard_map, OF_BOTH[transform])
    expected = of_a_custom_vjp(inside, transform)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


def summed_in_vmap(w, x):
    """The sum over devices is equal for all of a vmap, which only `generic_batching` allows."""
    body = used(by_custom_vjp(generic_batching=True))
    return jax.vmap(body, (0, None))(w * jnp.arange(3.0), x).sum(0)


@SINCE_012
def test_gradient_of_a_shared_result_of_a_vmap_equals_jax():
    found, expected = (
        differentiated(summed_in_vmap, f, jax.grad) for f in (shard_map, jax.shard_map)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def with_unused_result(function):
    """(the gradients, the types of the cotangent of a result that is not used)."""
    hijax = importlib.import_module("jax.experimental.hijax")
    kinds = set()

    class Twice(hijax.HiPrim):
        def __init__(self, *types):
            self.in_avals, self.out_aval, self.params = types, (types[1], types[1]), {}
            super().__init__()

        def expand(self, w, x):
            return w * x, 2 * x

        def vjp_fwd(self, nonzero, w, x):
            return self.expand(w, x), x

        def vjp_bwd_retval(self, x, cotangents):
            of_product, of_rest = cotangents
            kinds.add(type(of_rest))
            return lax.psum((of_product * x).sum(), "i"), ad.Zero(jax.typeof(x).to_ct_aval())

    def body(w, x):
        return jnp.sin(Twice(jax.typeof(w), jax.typeof(x))(w, x)[0])

    return differentiated(body, function, lambda f: jax.grad(f, (0, 1))), kinds


@SINCE_012
def test_zero_cotangents_of_a_primitive_equal_jax():
    found, kinds = with_unused_result(shard_map)
    expected, _ = with_unused_result(jax.shard_map)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)
    assert ad.Zero in kinds


@SINCE_012
@pytest.mark.parametrize("resources", [{}, {"i": "i"}], ids=["vmapped", "placed"])
def test_backward_rule_of_a_primitive_in_xmap(resources):
    def gradient(call):
        f = xmap(
            lambda w, x: call(w, x)[0],
            in_axes=({}, {0: "i"}),
            out_axes={0: "i"},
            axis_resources=resources,
        )
        with jax.set_mesh(MESH):
            return jax.grad(lambda w: (f(w, X[:, None]) ** 2).sum())(3.0)

    found = [gradient(rule()) for rule in RULES.values()]
    np.testing.assert_allclose(found, gradient(by_custom_vjp()), rtol=1e-5)


@SINCE_012
@pytest.mark.parametrize("resources", [{}, {"i": "i"}], ids=["vmapped", "placed"])
def test_backward_rule_that_closes_over_an_array_in_xmap(resources):
    def gradient(**options):
        call = jax.custom_vjp(lambda w, x: w * x * ONE)
        call.defvjp(
            lambda w, x: (w * x * ONE, x),
            lambda x, ct: (lax.psum((ct * x).sum(), "i"), 3 * ct * ONE),
            **options,
        )
        f = xmap(call, in_axes=({}, {0: "i"}), out_axes={0: "i"}, axis_resources=resources)
        with jax.set_mesh(MESH):
            return jax.grad(lambda w, x: (f(w, x) ** 2).sum(), (0, 1))(3.0, X[:, None])

    found, expected = gradient(generic_batching=True), gradient()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


SETTINGS = {
    "jax_custom_vjp3": lambda x: by_custom_vjp()(2.0, x)[0],
    "jax_remat3": lambda x: jax.checkpoint(jnp.sin)(x),
    "jax_scan3": lambda x: lax.fori_loop(0, 3, lambda _, x: jnp.sin(x), x),
}


@pytest.mark.parametrize("setting", [s for s in SETTINGS if hasattr(jax.config, s)])
def test_hidden_settings_of_jax_are_refused(setting):
    """With them, derivatives would be those of JAX's check_vma=False."""
    before = getattr(jax.config, setting)
    jax.config.update(setting, True)
    try:
        with pytest.raises(BodyError, match=f"turn the setting off.*{setting}"):
            jax.jit(mapped(SETTINGS[setting], shard_map))(X)
    finally:
        jax.config.update(setting, before)


@pytest.mark.skipif(jax.__version_info__ >= (0, 12), reason="JAX 0.12 expands them")
def test_primitive_that_jax_cannot_expand_is_refused():
    hijax = importlib.import_module("jax.experimental.hijax")

    class Doubled(hijax.VJPHiPrimitive):
        def __init__(self, type_):
            self.in_avals, self.out_aval, self.params = (type_,), type_, {}
            super().__init__()

        def expand(self, x):
            return 2 * x

    with pytest.raises(BodyError, match=r"Doubled at (.|\n)*JAX 0\.12 or later"):
        jax.jit(mapped(lambda x: Doubled(jax.typeof(x))(x), shard_map))(X)


@SINCE_012
@pytest.mark.parametrize("transform", [jax.jit, lambda f: f], ids=["jit", "eager"])
def test_value_of_a_type_of_the_users_is_no_argument(transform):
    hijax = importlib.import_module("jax.experimental.hijax")

    class Pair:
        pass

    class PairType(hijax.HiType):
        def __eq__(self, other):
            return type(self) is type(other)

        def __hash__(self):
            return 0

        def lo_ty(self):
            return [jax.typeof(X)] * 2

        def lower_val(self, pair):
            return [X, X]

        def raise_val(self, *arrays):
            return Pair()

        def str_short(self, *args, **options):
            return "pair"

    hijax.register_hitype(Pair, lambda pair: PairType())
    with pytest.raises(SpecError, match=r"args\[0\](.|\n)*needed: an array"):
        transform(mapped(lambda x: X, shard_map))(Pair())
    with pytest.raises(ResultTypeError, match=r"result(.|\n)*needed: an array"):
        transform(mapped(lambda x: Pair(), shard_map))(X)


@SINCE_012
@pytest.mark.parametrize("transform", ["value", "grad", "jvp", "vmap"])
def test_primitive_with_a_function_and_an_array_after_a_derivative_inside(transform):
    hijax = importlib.import_module("jax.experimental.hijax")

    class Applied(hijax.HiPrim):
        def __init__(self, type_, fun):
            self.in_avals, self.out_aval, self.params = (type_,), type_, {"fun": fun}
            super().__init__()

        def expand(self, x):
            return self.fun(x) * ONE  # an array that the program closes over

        def jvp(self, primals, tangents):
            return self(*primals), 5 * ONE * tangents[0] * lax.cos(primals[0])

        def batch(self, axis, args, dims):
            return jax.vmap(self.expand, dims)(*args), dims[0]

        vjp_fwd, vjp_bwd_retval = hijax.vjp_from_jvp

    def body(x):
        slope = jax.grad(lambda v: jnp.sum(jnp.sin(v) * v))(x)
        return Applied(jax.typeof(slope), jnp.sin)(slope)

    found, expected = (
        jax.jit(TRANSFORMATIONS[transform](mapped(body, f, check_vma=True)))(X)
        for f in (shard_map, jax.shard_map)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), found, expected)


KNOWN = {
    *("CheckpointName", "CheckpointNameFwd", "PrimalLeftTangentRight", "OptRemat"),
    *("CustomJVPTraced", "CustomVJPTraced", "CustomRoot", "_RootLinearMap", "RematTraced", "Scan3"),
    *("Einsum", "Frexp", "Ldexp", "Nonzero", "SearchSorted"),
}
"""JAX's own: either leaves, or converted, or refused."""


@SINCE_012
def test_all_high_primitives_of_jax_are_known():
    """One more that holds functions or programs needs a conversion, or must be refused."""
    hijax = importlib.import_module("jax.experimental.hijax")
    kinds = hijax.HiPrim.__subclasses__()
    found = {
        k.__name__
        for k in kinds
        if k.__module__.startswith("jax.") and "pallas" not in k.__module__
    }
    assert found == KNOWN
