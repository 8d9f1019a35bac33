"""Programs of the original's XMapTestManualSPMD, on meshes and inside of jit.

The original ran them with the flags of its lowering to manual shardings, which ours always uses,
and with `pjit`, which is `jax.jit` today. Each takes the `Api` of original_programs.py.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from original_programs import Api

MANUAL = {}


def program(fun):
    MANUAL[fun.__name__] = fun
    return fun


TWENTY = np.arange(20, dtype=np.float32)


def wave(x):
    return jnp.sin(jnp.cos(x) + x) * x


@program
def manual_basic(api: Api):
    with api.mesh((2,), ("x",)):
        return api.xmap(wave, ["i"], ["i"], axis_resources={"i": "x"})(TWENTY)


@program
def manual_replicated(api: Api):
    f = api.xmap(wave, [...], [...], axis_sizes={"i": 4}, axis_resources={"i": "x"})
    with api.mesh((2,), ("x",)):
        return f(TWENTY)


@program
def manual_in_jit(api: Api):
    f = api.xmap(lambda x: jnp.sin(x) + x, ["i"], ["i"], axis_resources={"i": "x"})
    with api.mesh((2, 1), ("x", "y")) as mesh:
        return api.jit(lambda x: f(x * x) + x, mesh, P("y"), None)(TWENTY)


@program
def manual_in_jit_replicated(api: Api):
    options = {"axis_sizes": {"i": 4}, "axis_resources": {"i": "x"}}
    f = api.xmap(lambda x: jnp.sin(x) + x, {}, {}, **options)
    with api.mesh((2, 1), ("x", "y")) as mesh:
        return api.jit(lambda x: f(x * x) + x, mesh, P("y"), None)(TWENTY)


@program
def manual_nested_constraint(api: Api):
    def body(x):
        return api.constraint(jnp.sin(x), meshes[-1], P()) + x

    f = api.xmap(body, ["i", ...], ["i", ...], axis_resources={"i": "x"})
    meshes = []
    with api.mesh((2, 1), ("x", "y")) as mesh:
        meshes.append(mesh)
        return api.jit(lambda x: f(x * x) + x, mesh, P("y"), None)(TWENTY.reshape(4, 5))


def collective(api, shape, names):
    resources = dict(zip("ij", names, strict=False))
    f = api.xmap(lambda x: api.lax.psum(x, "i"), ["i", "j"], ["j"], axis_resources=resources)
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    with api.mesh(shape, names) as mesh:
        return api.jit(lambda x: f(x * x), mesh, P(*names), None)(x)


@program
def manual_collective_1d(api: Api):
    return collective(api, (2,), ("x",))


@program
def manual_collective_2d(api: Api):
    return collective(api, (2, 2), ("x", "y"))


@program
def manual_all_gather(api: Api):
    f = api.xmap(
        lambda x: api.lax.all_gather(x, "i", axis=0, tiled=True),
        ["i", None],
        [None],
        axis_resources={"i": "x"},
    )
    with api.mesh((2,), ("x",)) as mesh:
        x = np.arange(8, dtype=np.float32).reshape(2, 4)
        result = api.jit(f, mesh, P("x", None), P(None))(x)
        return result, result.addressable_data(0)


@program
def manual_reduce_scatter(api: Api):
    f = api.xmap(
        lambda x: api.lax.psum_scatter(x, "i", scatter_dimension=0, tiled=True),
        [None, None],
        ["i", None, None],
        axis_sizes={"i": 2},
        axis_resources={"i": "x"},
    )
    with api.mesh((2,), ("x",)) as mesh:
        x = np.arange(8, dtype=np.float32).reshape(2, 4)
        g = api.jit(lambda x: f(x).reshape(2, 4), mesh, P(None, None), P("x", None))
        result = g(x)
        return result, result.addressable_data(0)


@program
def manual_bare_collective(api: Api):
    f = api.xmap(lambda x: api.lax.psum(x, "i"), ["i", ...], [...], axis_resources={"i": "x"})
    with api.mesh((2,), ("x",)):
        return f(TWENTY.reshape(4, 5))


@program
def manual_ppermute(api: Api):
    f = api.xmap(
        lambda x: api.lax.ppermute(x, "i", perm=[(0, 1), (1, 0)]),
        ["i", ...],
        ["i", ...],
        axis_resources={"i": "x"},
    )
    with api.mesh((2,), ("x",)) as mesh:
        return api.jit(f, mesh, P("x"), P("x"))(TWENTY[:10].reshape(2, 5))


@program
def manual_constants_in_lowering(api: Api):
    """A rule for vmap that adds a constant, of the size that a device has (the original's has too).

    There the rule was that of a primitive; `custom_vmap` is the public way to have one.
    """

    @jax.custom_batching.custom_vmap
    def numbered(x):
        return x

    @numbered.def_vmap
    def _(size, is_batched, x):
        return x + np.arange(x.size, dtype=np.float32).reshape(x.shape), True

    f = api.xmap(numbered, ["i"], ["i"], axis_resources={"i": "x"})
    with api.mesh((2,), ("x",)) as mesh:
        return api.jit(f, mesh, None, None)(np.ones(20, np.float32))
