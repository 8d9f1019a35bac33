"""One of several processes that run the same programs on one mesh: see test_processes.py.

    python process.py RANK COUNT PORT FOLDER

Writes FOLDER/RANK.json: the name of each check, with None or its error.
"""

import json
import os
import sys
import traceback

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify, multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import SpecError, load, pmap, shard_map  # before JAX knows of other processes
from shmap_compiler.base.errors import VaryingValueError

RANK, COUNT, PORT = map(int, sys.argv[1:4])
FOLDER = sys.argv[4]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{PORT}", COUNT, RANK, initialization_timeout=200)

MESH = Mesh(np.array(jax.devices()).reshape(COUNT, 2), ("i", "j"))
X = np.arange(COUNT * 2 * 4, dtype=np.float32).reshape(COUNT * 2, 4)
SPLIT = P("i", "j")


def on_mesh(array, spec):
    sharding = NamedSharding(MESH, spec)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def mapped(f, in_specs=SPLIT, out_specs=SPLIT):
    return shard_map(f, mesh=MESH, in_specs=in_specs, out_specs=out_specs)


def whole(array):
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def assert_equal(found, expected):
    np.testing.assert_allclose(whole(found), expected, rtol=1e-5)


def assert_same(f, *args):
    """An eager call gives what the compiled one gives."""
    assert_equal(f(*args), whole(jax.jit(f)(*args)))


XS = on_mesh(X, SPLIT)
SQUARES = mapped(lambda x: lax.psum(x, "i") * x)
EXPECTED = X * np.tile(X.reshape(COUNT, 2, 4).sum(0), (COUNT, 1))


def compiled():
    assert_equal(jax.jit(SQUARES)(XS), EXPECTED)


def gradient():
    loss = jax.jit(jax.grad(lambda x: mapped(lambda x: lax.psum(x, "i") * x)(x).sum()))
    assert_equal(loss(XS), 2 * np.tile(X.reshape(COUNT, 2, 4).sum(0), (COUNT, 1)))


def eager():
    assert_equal(SQUARES(XS), EXPECTED)
    assert_equal(SQUARES(X), EXPECTED)  # an array that every process has


def eager_constants():
    local = jnp.float32(3)
    assert_same(mapped(lambda x: x * 2.5 + jnp.arange(2.0) * np.float32(3) + local), XS)
    one = mapped(lambda x: (x, 1.0, jax.random.key(0)), out_specs=(SPLIT, P(), P()))(XS)[1]
    assert float(one.addressable_shards[0].data) == 1.0


def eager_loops_and_keys():
    assert_same(mapped(lambda x: lax.scan(lambda c, r: (c + r, c * 2.0), jnp.zeros(2), x)[1]), XS)
    key = jax.random.key(0)

    def noise(x):
        return x + jax.random.normal(jax.random.fold_in(key, lax.axis_index("i")), x.shape)

    assert_same(mapped(noise), XS)


def eager_derivatives():
    def scaled(x):
        loss = lambda w: lax.psum(jnp.sum((w * x) ** 2), ("i", "j"))  # noqa: E731
        return x * jax.grad(loss)(jnp.float32(2))

    assert_same(mapped(scaled), XS)
    assert_equal(jax.grad(lambda x: jnp.sum(mapped(lambda x: x * x)(x)))(XS), 2 * X)


def eager_if():
    def body(x):
        total = lax.psum(jnp.sum(x), ("i", "j"))
        assert float(total) == X.sum()
        return x + 1 if total > 3 else x

    assert_equal(mapped(body)(XS), X + 1)


def eager_if_of_what_varies():
    with pytest.raises(VaryingValueError, match="that may differ along axis 'i'") as raised:
        mapped(lambda x: x if lax.axis_index("i") == 0 else -x)(XS)
    shown = [line for line in str(raised.value).splitlines() if line.strip().startswith("i=")]
    assert len(shown) == 2, shown  # this process' own


def eager_print(capture=[]):  # noqa: B006
    mapped(lambda x: capture.append(str(x)) or x)(XS)
    (text,) = capture
    assert text.count("i=") == 3, text  # of the mesh, and of two devices
    assert f"i={RANK}, j=1" in text


def checks():
    """Every process reads the errors of all devices."""

    def body(x):
        checkify.check(x.sum() > 30, "{}", x.sum())
        return x

    for f in (mapped(body), lambda x: mapped(body)(mapped(body)(x))):
        error, _ = jax.jit(checkify.checkify(f))(XS)
        sums = X.reshape(COUNT, 2, 2, 2).sum((1, 3)).ravel()
        found = [
            f"at mapped index {i}: {n} (`check` failed)" for i, n in enumerate(sums) if n <= 30
        ]
        assert error.get() == "\n".join(found)


def stages():
    lowered = SQUARES.lower(XS)
    assert "stablehlo.all_reduce" in lowered.as_text("body")
    executable = lowered.compile()
    assert_equal(executable(XS), EXPECTED)
    assert "all-reduce" in executable.as_text()
    assert "all-reduce" in str(executable.explain())


def saved_programs():
    lowered = SQUARES.lower(XS)
    path = os.path.join(FOLDER, f"program.{RANK}")
    lowered.compile().save(path)
    assert_equal(load(path)(XS), EXPECTED)
    lowered.save(path)
    assert_equal(load(path).compile()(XS), EXPECTED)


ROWS = X.reshape(COUNT * 2, 4)
OWN = ROWS[2 * RANK : 2 * RANK + 2]  # of the two devices of this process


def assert_own(found, expected):
    """A result of pmap has the rows of this process, on its devices."""
    assert found.is_fully_addressable
    assert [s.device for s in found.addressable_shards] == jax.local_devices()[
        : len(found.devices())
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def pmap_of_own_rows():
    f = pmap(lambda x: (x + lax.axis_index("i"), lax.psum(x, "i")), "i", out_axes=(-1, None))
    for rows in (OWN, f(OWN)[0].T - (np.arange(2.0)[:, None] + 2 * RANK)):
        found, total = f(rows)
        assert_own(found.T, OWN + np.arange(2.0)[:, None] + 2 * RANK)
        assert_own(total, ROWS.sum(0))
    first, total = f(OWN[:1])
    assert_own(first.T, OWN[:1] + RANK)
    assert_own(total, ROWS[::2].sum(0))


def pmap_arguments():
    f = pmap(
        lambda x, s, n, *, y: x * s * n + y,
        in_axes=(1, None, None),
        static_broadcasted_argnums=2,
    )
    assert_own(f(OWN.T, 3, 2, y=OWN), OWN * 7)
    assert_own(
        pmap(lambda: lax.axis_index("i"), "i", axis_size=2 * COUNT)(), 2 * RANK + np.arange(2)
    )
    keys = jax.random.split(jax.random.key(RANK), 2)
    assert_own(pmap(jax.random.bits)(keys), jax.vmap(jax.random.bits)(keys))
    own = pmap(lambda k: jax.random.fold_in(k, 1))(keys)
    assert_own(
        jax.random.key_data(own),
        jax.random.key_data(jax.vmap(jax.random.fold_in, (0, None))(keys, 1)),
    )
    assert pmap(lambda x: x)(np.zeros((2, 3), jax.dtypes.float0)).shape == (2, 3)
    empty = pmap(lambda x: x[:0])(OWN)
    assert_own(empty, OWN[:, :0])
    assert [s.data.shape for s in empty.addressable_shards] == [(1, 0)] * 2
    given = pmap(lambda x: x * 2)(OWN)
    assert_own(pmap(lambda x: x * 2, donate_argnums=0)(given), OWN * 4)
    assert given.is_deleted()


def pmap_of_weak_types():
    """As on one process: a Python number takes the element type of what it is combined with."""
    rows, weak = OWN.astype(jnp.bfloat16), jnp.broadcast_to(jnp.asarray(0.5), (2, 4))
    f = pmap(lambda x, w, s: (x * w, x * s, w * s), in_axes=(0, 0, None))
    found = f(rows, weak, 0.5)
    assert [x.dtype for x in found] == [jnp.bfloat16, jnp.bfloat16, jnp.float32]
    assert [x.weak_type for x in found] == [False, False, True]
    for x, expected in zip(found, (rows * weak, rows * 0.5, weak * 0.5), strict=True):
        assert_own(x, expected)
    types = f.eval_shape(rows, weak, 0.5)
    assert [(t.dtype, t.weak_type) for t in types] == [(x.dtype, x.weak_type) for x in found]
    assert f.lower(rows, weak, 0.5).out_info[1].dtype == jnp.bfloat16


def pmap_of_gradients():
    step = pmap(jax.grad(lambda x: lax.pmean(jnp.sum(x**2), "i")), "i")
    assert_own(step(OWN), 2 * OWN)


def pmap_nested():
    inner = pmap(lambda x: lax.psum(x, ("i", "j")), "j")
    for _ in range(2):
        assert_own(pmap(inner, "i")(OWN[None, :, 0]), np.full((1, 2), ROWS[:, 0].sum()))
    with jax.disable_jit():
        assert_own(pmap(lambda x: lax.psum(x, "i"), "i")(OWN), np.tile(ROWS.sum(0), (2, 1)))


def pmap_on_own_devices():
    f = pmap(lambda x: lax.psum(x, "i"), "i", devices=jax.local_devices(), out_axes=None)
    assert_own(f(OWN), OWN.sum(0))
    assert_own(jax.jit(f)(OWN), OWN.sum(0))
    assert_own(jax.grad(lambda x: f(x).sum())(OWN), np.ones_like(OWN))


def pmap_on_interleaved_devices():
    devices = [d for pair in zip(*map(jax.local_devices, range(COUNT)), strict=True) for d in pair]
    f = pmap(lambda x: x * 0 + lax.axis_index("i"), "i", devices=devices)
    assert_own(f(OWN), np.array([[RANK], [COUNT + RANK]]) + np.zeros(4))


def pmap_stages():
    f = pmap(lambda x: {"x": x, "sum": lax.psum(x, "i")}, "i", out_axes={"x": 1, "sum": None})
    assert {k: t.shape for k, t in f.eval_shape(OWN).items()} == {"x": (4, 2), "sum": (4,)}
    assert dict(f.trace(OWN).mesh.shape) == {"i": 2 * COUNT}
    assert f.lower(OWN).args_info[0][0].shape == (2 * COUNT, 4)


def pmap_errors():
    f = pmap(lambda x: lax.psum(x, "i"), "i")
    with pytest.raises(
        SpecError, match=r"(?s)3 rows in args\[0\].*at most 2 rows.*of each process"
    ):
        f(np.ones((3, 4)))
    transformed = jax.jit(f), jax.grad(lambda x: f(x).sum()), jax.vmap(f, 1)
    for g in transformed:
        with pytest.raises(
            SpecError, match=r"(?s)values that a transformation traces.*pmap outermost"
        ):
            g(OWN)
    with pytest.raises(SpecError, match="an array on devices of several processes"):
        f(on_mesh(X, P(("i", "j"))))


CHECKS = [
    compiled,
    gradient,
    eager,
    eager_constants,
    eager_loops_and_keys,
    eager_derivatives,
    eager_if,
    eager_if_of_what_varies,
    eager_print,
    checks,
    stages,
    saved_programs,
    pmap_of_own_rows,
    pmap_arguments,
    pmap_of_weak_types,
    pmap_of_gradients,
    pmap_nested,
    pmap_on_own_devices,
    pmap_on_interleaved_devices,
    pmap_stages,
    pmap_errors,
]

if __name__ == "__main__":
    results = {}
    for check in CHECKS:
        try:
            check()
            results[check.__name__] = None
        except Exception:
            results[check.__name__] = traceback.format_exc()
        with open(os.path.join(FOLDER, f"{RANK}.json"), "w") as file:
            json.dump(results, file)
