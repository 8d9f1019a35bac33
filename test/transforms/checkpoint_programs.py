"""Bodies with `jax.checkpoint` regions, and what their compiled gradients cost.

A body is a structure (a loop, branches, nested regions) around one layer, which gathers its
weights, multiplies, and sums over devices; a policy decides what the layer's region saves.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from traffic_programs import count_in

from shmap_compiler import shard_map

LAYERS, ROWS, WIDTH, HIDDEN = 3, 32, 16, 64

policies = jax.checkpoint_policies

POLICIES: dict[str, Callable[..., Any] | None] = {
    "None": None,
    "nothing_saveable": policies.nothing_saveable,
    "everything_saveable": policies.everything_saveable,
    "dots_saveable": policies.dots_saveable,
    "dots_with_no_batch_dims_saveable": policies.dots_with_no_batch_dims_saveable,
    "save_only_these_names": policies.save_only_these_names("product"),
    "save_any_names_but_these": policies.save_any_names_but_these("product"),
    "save_anything_except_these_names": policies.save_anything_except_these_names(
        "product", "activation"
    ),
    "save_from_both_policies": policies.save_from_both_policies(
        policies.save_only_these_names("activation"), policies.dots_saveable
    ),
    "save_and_offload_only_these_names": policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["activation"],
        names_which_can_be_offloaded=["product"],
        offload_src="device",
        offload_dst="pinned_host",
    ),
    "offload_dot_with_no_batch_dims": policies.offload_dot_with_no_batch_dims(
        "device", "pinned_host"
    ),
}

Layer = Callable[[Any, Any], Any]
Checkpoint = Callable[[Layer], Layer]

# ------------------------------------------------------------------------------------ structures


def layer(w, x):
    gathered = {k: lax.all_gather(w[k], "t", axis=0, tiled=True) for k in ("in", "out")}
    product = checkpoint_name(x @ gathered["in"], "product")
    x = x + jnp.sin(checkpoint_name(jnp.tanh(product), "activation") @ gathered["out"])
    product = checkpoint_name(x @ w["up"], "product")
    activation = checkpoint_name(jnp.tanh(product), "activation")
    return x + jnp.sin(lax.psum(activation @ w["down"], "t"))


def of_layer(w, k):
    return {name: weight[k] for name, weight in w.items()}


def unrolled(checkpoint):
    def body(w, x):
        for k in range(LAYERS):
            x = checkpoint(layer)(of_layer(w, k), x)
        return x

    return body


def scanned(step: Layer):
    return lambda w, x: lax.scan(lambda x, w: (step(w, x), None), x, w)[0]


def scan(checkpoint):
    return scanned(checkpoint(layer))


def scan_with_loop_constant(checkpoint):
    def body(w, x):
        def step(x, _):
            return checkpoint(layer)(of_layer(w, 0), x), None

        return lax.scan(step, x, length=LAYERS)[0]

    return body


def fori_loop(checkpoint):
    return lambda w, x: lax.fori_loop(
        0, LAYERS, lambda k, x: checkpoint(layer)(of_layer(w, k), x), x
    )


def nested(checkpoint):
    return scanned(checkpoint(lambda w, x: checkpoint(layer)(w, checkpoint(layer)(w, x))))


def loop_in_a_region(checkpoint):
    return scanned(checkpoint(lambda w, x: lax.fori_loop(0, 2, lambda _, x: layer(w, x), x)))


def all_layers_in_a_region(checkpoint):
    return checkpoint(scanned(layer))


def jit_around(checkpoint):
    return scanned(jax.jit(checkpoint(layer)))


def jit_inside(checkpoint):
    return scanned(checkpoint(jax.jit(layer)))


def branch(checkpoint):
    def step(w, x):
        positive = lax.psum(x.sum(), "t") > 0
        return lax.cond(positive, checkpoint(layer), lambda w, x: 2 * x, w, x)

    return scanned(step)


def branch_in_a_region(checkpoint):
    def step(w, x):
        return lax.cond(lax.psum(x.sum(), "t") > 0, layer, lambda w, x: 2 * x, w, x)

    return scanned(checkpoint(step))


STRUCTURES: dict[str, Callable[[Checkpoint], Layer]] = {
    f.__name__: f
    for f in (
        unrolled,
        scan,
        scan_with_loop_constant,
        fori_loop,
        nested,
        loop_in_a_region,
        all_layers_in_a_region,
        jit_around,
        jit_inside,
        branch,
        branch_in_a_region,
    )
}

# ------------------------------------------------------------------------------------- measuring

SHARD_MAPS = {"ours": shard_map, "jax": jax.shard_map}
WEIGHT_SPECS = {
    "in": P(None, "t"),
    "out": P(None, "t"),
    "up": P(None, None, "t"),
    "down": P(None, "t"),
}


@dataclass(frozen=True)
class Cost:
    """Of one device: bytes of temporaries; by their names in HLO, how many operations it runs."""

    temporaries: int
    operations: dict[str, int]


def arguments() -> tuple[dict[str, Any], Any]:
    rng = np.random.default_rng(0)
    shapes = {"in": (WIDTH, HIDDEN), "out": (HIDDEN, WIDTH)}
    shapes |= {"up": shapes["in"], "down": shapes["out"]}
    weights = {k: rng.normal(size=(LAYERS, *s)) / s[0] for k, s in shapes.items()}
    return jax.tree.map(np.float32, (weights, rng.normal(size=(4 * ROWS, WIDTH))))


def gradient(body: Layer, which: str, where: str, around: Checkpoint) -> Callable[..., Any]:
    """The gradient of a body, by one of SHARD_MAPS, taken "inside" of it or "outside".

    Args:
      around: applied to the shard_mapped function.
    """
    mesh = jax.make_mesh((4,), ("t",), axis_types=(AxisType.Auto,))
    specs = (WEIGHT_SPECS, P("t"))
    if where == "inside":
        grad = jax.grad(lambda w, x: jnp.sum(jnp.square(body(w, x))), argnums=(0, 1))
        return SHARD_MAPS[which](grad, mesh=mesh, in_specs=specs, out_specs=specs)
    mapped = around(SHARD_MAPS[which](body, mesh=mesh, in_specs=specs, out_specs=P("t")))
    return jax.grad(lambda w, x: jnp.sum(jnp.square(mapped(w, x))), argnums=(0, 1))


_OPERATION = re.compile(
    r" = (?:\(.*?\)|\S+) "
    r"(dot|tanh|all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


def cost(compiled: Any) -> Cost:
    def of_line(line: str) -> dict[str, int] | None:
        found = _OPERATION.search(line)
        return {found[1]: 1} if found else None

    return Cost(
        compiled.memory_analysis().temp_size_in_bytes, dict(count_in(compiled.as_text(), of_line))
    )
