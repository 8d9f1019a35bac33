"""Groups of devices as XLA writes them by mesh axes, whatever the axes are called."""

import jax
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map
from shmap_compiler.explain.replica_groups import groups_of_text

NAMES = ["i", "{i}", "a]", "a b", 'q"x']
COLUMNS, ROWS = ((0, 2, 4, 6), (1, 3, 5, 7)), ((0, 1), (2, 3), (4, 5), (6, 7))


@pytest.mark.parametrize("name", [*NAMES, "it's"])
def test_groups_along_axes(name):
    mesh = f"mesh['{name}'=4,'j'=2]"
    assert groups_of_text(f"{mesh} {{'{name}'}}, use_global_device_ids=true", 8) == COLUMNS
    assert groups_of_text(f"{mesh} {{'j'}}", 8) == ROWS
    assert groups_of_text(f"{mesh} {{'{name}','j'}}", 8) == (tuple(range(8)),)
    halves = ((0, 2), (1, 3), (4, 6), (5, 7))
    assert groups_of_text(f"{mesh} {{'{name}':(2)2}}", 8) == halves


@pytest.mark.parametrize("name", NAMES[:-1])
def test_a_program_is_explained(name):
    mesh = jax.make_mesh((4, 2), (name, "j"), axis_types=(AxisType.Auto,) * 2)
    total = shard_map(
        lambda x: lax.psum(x, name), mesh=mesh, in_specs=P(name, "j"), out_specs=P(None, "j")
    )
    (found,) = total.lower(jax.ShapeDtypeStruct((8, 8), "float32")).compile().explain().collectives
    assert found.axes == (name,)
