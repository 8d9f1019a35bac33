"""What type checkers know of the public API. Read by pyright, and never run."""

from collections.abc import Callable
from typing import Any, assert_type

import jax
from jax.sharding import PartitionSpec as P

from shmap_compiler import Executable, Graph, Lowered, pmap, shard_map, smap


def body(x: jax.Array, scale: float) -> dict[str, jax.Array]:
    return {"x": x * scale}


def uses(x: jax.Array) -> None:
    mapped = shard_map(body, in_specs=(P("i"), None), out_specs=P("i"))
    assert_type(mapped(x, 2.0), dict[str, jax.Array])
    mapped(x, "2")  # pyright: ignore[reportArgumentType]
    assert_type(mapped.trace(x, 2.0), Graph)
    assert_type(mapped.lower(x, 2.0), Lowered)
    assert_type(mapped.lower(x, 2.0).compile(), Executable)


@shard_map(in_specs=P("i"), out_specs=P("i"))
def decorated(x: jax.Array) -> jax.Array:
    return x


@smap(in_axes=0, out_axes=0, axis_name="i")
def decorated_by_smap(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x, x


def uses_decorated(x: jax.Array) -> None:
    assert_type(decorated(x), jax.Array)
    assert_type(decorated_by_smap(x), tuple[jax.Array, jax.Array])
    plain: Callable[[jax.Array], Any] = decorated
    jax.jit(plain)(x)


def uses_pmap(x: jax.Array) -> None:
    mapped = pmap(body, "i", in_axes=(0, None))
    assert_type(mapped(x, 2.0), dict[str, jax.Array])
    mapped(x, "2")  # pyright: ignore[reportArgumentType]
    assert_type(mapped.trace(x, 2.0), Graph)
    assert_type(mapped.lower(x, 2.0), jax.stages.Lowered)
