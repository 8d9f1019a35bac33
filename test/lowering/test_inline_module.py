"""Programs join the module of an enclosing jit, with the functions that they call."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map
from shmap_compiler.base.jax_compat import partitioner as partitioner_of_jax


def mapped(shift):
    @jax.jit
    def step(x):
        return jnp.sin(x) + shift

    @jax.jit
    def step_0(x):  # the name that `step` would get
        return jnp.sin(x) - shift

    def body(x):
        return step(step(x)) + step_0(step_0(x))

    mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
    return shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P("i"))


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_functions_of_one_name_stay_apart(partitioner):
    """Those of the jit and of two programs in it."""
    first, second = mapped(1.0), mapped(10.0)

    @jax.jit
    def step(x):
        return jnp.cos(x)

    @jax.jit
    def whole(x):
        return second(first(step(step(x))))

    x = np.linspace(0.0, 1.0, 8)
    with jax.enable_x64(True), partitioner_of_jax(partitioner):
        found, text = whole(x), whole.lower(x).as_text()
    wanted = np.cos(np.cos(x))
    for shift in (1.0, 10.0):
        plus, minus = np.sin(wanted) + shift, np.sin(wanted) - shift
        wanted = np.sin(plus) + shift + np.sin(minus) - shift
    np.testing.assert_allclose(found, wanted, rtol=1e-12)
    functions = re.findall(r"func\.func (\w+) @(\w+)", text)
    assert all(kind == "private" or name == "main" for kind, name in functions)
    assert len([name for _, name in functions if name.startswith("step")]) == 5
