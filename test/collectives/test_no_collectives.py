"""`jax.sharding.no_collectives` forbids collectives, as it does in `jax.shard_map`."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import pmap, shard_map, xmap
from shmap_compiler.base.errors import BodyError

no_collectives = getattr(jax.sharding, "no_collectives", None)
pytestmark = pytest.mark.skipif(no_collectives is None, reason="new in JAX 0.12")

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
X = jnp.arange(16.0)


def partly(w, x):
    with no_collectives({"i"}):
        y = w * x
    return lax.psum(y, "i")


def cast_before(w, x):
    w = lax.pcast(w, ("i", "j"), to="varying")
    with no_collectives({"i"}):
        y = w * x
    return lax.psum(y, "i")


def jitted(w, x):
    with no_collectives({"i"}):
        return jax.jit(lambda y: lax.psum(y, "i"))(w * x)


BODIES = {
    "local": (lambda w, x: jnp.sin(w * x), P(("i", "j"))),
    "sum": (lambda w, x: lax.psum(w * x, "i"), P("j")),
    "sum of others": (lambda w, x: lax.psum(w * x, "j"), P("i")),
    "gather": (lambda w, x: lax.all_gather(w * x, ("i", "j"))[0], P(("i", "j"))),
    "index": (lambda w, x: w * x * lax.axis_index("i"), P(("i", "j"))),
    "permute": (lambda w, x: lax.ppermute(w * x, "i", [(0, 1), (1, 0)]), P(("i", "j"))),
    "partly": (partly, P("j")),
    "cast before": (cast_before, P("j")),
    "jitted": (jitted, P("j")),
}
USES = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "gradient of x": lambda f: jax.jit(jax.grad(lambda w, x: f(w, x).sum(), 1)),
    "gradient of w": lambda f: jax.jit(jax.grad(lambda w, x: f(w, x).sum())),
}


def is_refused(name, use, function, axes):
    body, out_spec = BODIES[name]
    f = USES[use](function(body, mesh=MESH, in_specs=(P(), P(("i", "j"))), out_specs=out_spec))
    try:
        with no_collectives(axes):
            f(2.0, X)
    except Exception as error:
        if "no_collectives" not in str(error):
            raise
        return True
    return False


@pytest.mark.parametrize("axes", [{"i"}, set()], ids=["around", "inside"])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", BODIES)
def test_refuses_what_jax_refuses(name, use, axes):
    if (name, use, axes) == ("partly", "gradient of w", set()):
        pytest.skip("JAX sums where `w` is first used, and shmap_compiler anywhere")
    assert is_refused(name, use, shard_map, axes) == is_refused(name, use, jax.shard_map, axes)


def test_error_names_the_line():
    f = shard_map(BODIES["sum"][0], mesh=MESH, in_specs=(P(), P(("i", "j"))), out_specs=P("j"))
    error = r"psum over 'i' at .*test_no_collectives.*\n.*forbids"
    with pytest.raises(BodyError, match=error), no_collectives({"i"}):
        f(2.0, X)


@pytest.mark.parametrize("use", USES)
def test_refused_although_it_was_called_before(use):
    body, out_spec = BODIES["sum"]
    f = USES[use](shard_map(body, mesh=MESH, in_specs=(P(), P(("i", "j"))), out_specs=out_spec))
    f(2.0, X)
    with pytest.raises(BodyError, match="forbids"), no_collectives({"i"}):
        f(2.0, X)


def test_error_of_a_derivative_names_what_it_is_derived_from():
    f = shard_map(BODIES["local"][0], mesh=MESH, in_specs=(P(), P("i")), out_specs=P("i"))
    error = r"psum over 'i' at .*test_no_collectives"
    with pytest.raises(BodyError, match=error), no_collectives({"i"}):
        jax.grad(lambda w: f(w, X).sum())(2.0)


def total(x):
    return lax.psum(x, "q")


@pytest.mark.parametrize("forbidden", ["q", "i"])
def test_xmap(forbidden):
    f = xmap(total, in_axes={0: "q"}, out_axes={}, axis_resources={"q": "i"})
    with jax.set_mesh(MESH):
        with pytest.raises(BodyError, match="forbids"), no_collectives({forbidden}):
            f(X)
        assert f(X) == X.sum()


def test_pmap():
    f = pmap(total, axis_name="q")
    with pytest.raises(BodyError, match="forbids"), no_collectives({"q"}):
        f(X[:8])
    assert f(X[:8])[0] == X[:8].sum()
