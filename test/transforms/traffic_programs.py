"""What gradients send: shard_mapped programs and the collectives of their compiled gradients.

    python test/transforms/traffic_programs.py > docs/traffic.md

Each program is differentiated with respect to its weights three times: as ours, and by
`jax.shard_map` with and without `check_vma`. All run in float64.
"""

from __future__ import annotations

import functools
import math
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

if __name__ == "__main__":  # under pytest, conftest.py has done the same
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

# ------------------------------------------------------------------------------------ measuring


@dataclass(frozen=True)
class Traffic:
    """What one device sends in one run: all-reduces, other collectives, and bytes.

    The number of matrix products shows what is computed more than once.
    """

    all_reduces: int
    others: int
    sent: int
    products: int


@dataclass(frozen=True)
class Gradient:
    """What a compiled gradient costs, and its error.

    Attributes:
      temporaries: bytes of one device's temporary buffers.
    """

    traffic: Traffic
    temporaries: int
    error: float

    @property
    def right(self) -> bool:
        return self.error <= 1e-9


@dataclass(frozen=True)
class Program:
    """A per-device function of (weights, batch), and the same function of full arrays.

    Attributes:
      weights: shape and spec of each, by name.
      batch: shape and spec of the batch, or several; the type is int if the shape has an `int`.
      axes: the axes over which the program is per-device, or none for all.
      remat: whether the whole shard_map stands under `jax.checkpoint`.
    """

    name: str
    mesh: dict[str, int]
    weights: dict[str, tuple[tuple[int, ...], P]]
    batch: Any
    out_spec: P
    fun: Callable[[dict[str, Any], Any], Any]
    full: Callable[[dict[str, Any], Any], Any]
    axes: frozenset[str] = frozenset()
    remat: bool = False

    def arguments(self) -> tuple[dict[str, Any], Any]:
        rng = np.random.default_rng(0)
        weights = {k: rng.normal(size=shape) / 2 for k, (shape, _) in self.weights.items()}
        batch = [
            rng.integers(8, size=shape[1:]) if shape[:1] == (int,) else rng.normal(size=shape)
            for shape, _ in self.batch
        ]
        return weights, tuple(batch)

    def sharded(self, shard_map: Callable[..., Any]) -> Callable[..., Any]:
        mesh = jax.make_mesh(
            tuple(self.mesh.values()),
            tuple(self.mesh),
            axis_types=(AxisType.Auto,) * len(self.mesh),
        )
        specs = {k: spec for k, (_, spec) in self.weights.items()}, tuple(s for _, s in self.batch)
        options: dict[str, Any] = {"axis_names": self.axes} if self.axes else {}
        fun = shard_map(self.fun, mesh=mesh, in_specs=specs, out_specs=self.out_spec, **options)
        return jax.checkpoint(fun) if self.remat else fun


SHARD_MAPS = {
    "ours": shard_map,
    "checked": functools.partial(jax.shard_map, check_vma=True),
    "unchecked": functools.partial(jax.shard_map, check_vma=False),
}


def measure(program: Program) -> dict[str, Gradient | None]:
    """The gradients by all of SHARD_MAPS; None where one refuses the program."""
    with jax.enable_x64(True):
        truth = jax.jit(_value_and_grad(program.full))(*program.arguments())
        return {which: _measure(program, which, truth) for which in SHARD_MAPS}


def _measure(program: Program, which: str, truth: Any) -> Gradient | None:
    arguments = program.arguments()
    try:
        fun = program.sharded(SHARD_MAPS[which])
        compiled = jax.jit(_value_and_grad(fun)).lower(*arguments).compile()
    except (TypeError, ValueError):
        if which == "ours":
            raise
        return None
    temporaries = compiled.memory_analysis().temp_size_in_bytes
    return Gradient(traffic(compiled.as_text()), temporaries, _error(compiled(*arguments), truth))


def _value_and_grad(fun: Callable[..., Any]) -> Callable[..., Any]:
    return jax.value_and_grad(lambda weights, batch: jnp.sum(jnp.square(fun(weights, batch))))


def _error(found: Any, truth: Any) -> float:
    """The largest error of a result, in units of its largest magnitude (which must not be 0)."""
    assert all(np.any(x) for x in jax.tree.leaves(truth)), "a gradient that is zero tests nothing"
    found, truth = jax.tree.map(np.asarray, (found, truth))
    errors = jax.tree.map(lambda x, y: np.max(np.abs(x - y)) / np.max(np.abs(y)), found, truth)
    return float(max(jax.tree.leaves(errors)))


# --------------------------------------------------------------- collectives of an HLO module

_HEADER = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.-]+) \(.*\{$")
_COLLECTIVE = re.compile(
    r" = (?P<type>\(.*?\)|\S+) "
    r"(?P<kind>all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)
_CALLED = re.compile(r"(?:to_apply|calls|body|\w+_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_STEPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_ARRAY = re.compile(r"[a-z]+(\d*)\w*\[([\d,]*)\]")


def traffic(hlo: str) -> Traffic:
    """What a device sends, and how many products it computes."""

    def of_line(line: str) -> dict[str, int] | None:
        if " dot(" in line:
            return {"products": 1}
        if not (found := _COLLECTIVE.search(line)):
            return None
        kind = "all_reduces" if found["kind"] == "all-reduce" else "others"
        return {kind: 1, "sent": _sent(found["kind"], _bytes(found["type"]), _group_size(line))}

    total = count_in(hlo, of_line)
    return Traffic(total["all_reduces"], total["others"], total["sent"], total["products"])


def count_in(hlo: str, of_line: Callable[[str], dict[str, int] | None]) -> Counter[str]:
    """What is counted in a module: loops by their steps, and every branch as if it were taken.

    Args:
      of_line: the counts of an instruction; None for one that may call computations.
    """
    bodies: dict[str, list[str]] = {}
    for line in hlo.splitlines():
        if header := _HEADER.match(line):
            bodies[header["name"]] = body = []
            if header["entry"]:
                entry = header["name"]
        elif line.startswith("  "):
            body.append(line)

    def counted(name: str) -> Counter[str]:
        total: Counter[str] = Counter()
        for line in bodies[name]:
            if (found := of_line(line)) is not None:
                total.update(found)
                continue
            called = _CALLED.findall(line)
            for branches in _BRANCHES.findall(line):
                called += re.findall(r"[\w.-]+", branches)
            steps = _STEPS.search(line)
            assert steps or " while(" not in line, f"unknown number of steps: {line}"
            for inner in called:
                for key, count in counted(inner).items():
                    total[key] += count * (int(steps[1]) if steps else 1)
        return total

    return counted(entry)


def _sent(kind: str, result: int, group: int) -> int:
    """Bytes that a device of a group sends along a ring, for a result of so many bytes."""
    if kind == "collective-permute":
        return result
    blocks = {"all-reduce": 2 / group, "reduce-scatter": 1}.get(kind, 1 / group)
    return round(result * blocks * (group - 1))


def _group_size(line: str) -> int:
    """Devices in a group, from any of the forms of replica groups."""
    if found := re.search(r"replica_groups=mesh\[(.*?)\] \{(.*?)\}", line):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", found[2]))
    if found := re.search(r"replica_groups=\[\d+,(\d+)\]<=", line):
        return int(found[1])
    found = re.search(r"replica_groups=\{\{([\d,]*)\}", line)
    return len(found[1].split(",")) if found else 0


def _bytes(type_: str) -> int:
    return sum(
        int(bits or 8) // 8 * math.prod(int(size) for size in sizes.split(",") if size)
        for bits, sizes in _ARRAY.findall(type_)
    )


# ------------------------------------------------------------------------------------- programs

T = {"t": 4}
DT = {"d": 2, "t": 4}
BATCH = (((8, 16), P()),)
ROWS = (((8, 16), P("t")),)
MLP = {"up": ((16, 32), P(None, "t")), "down": ((32, 16), P("t", None))}
TWO_MLPS = {f"{name}{k}": weight for k in (1, 2) for name, weight in MLP.items()}
RING = [(k, (k + 1) % 4) for k in range(4)]


def psum(x):
    return lax.psum(x, "t")


def alone(x):
    """The collective of one device."""
    return x


def layer(up, down, x, reduce):
    return reduce(jnp.tanh(x @ up) @ down)


def norm(x):
    x = x - x.mean(-1, keepdims=True)
    return x / jnp.sqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-5)


def attend(q, k, v):
    """Attention of arrays [position, head, channel]."""
    scores = jnp.einsum("qhc,khc->hqk", q, k) / math.sqrt(q.shape[-1])
    return jnp.einsum("hqk,khc->qhc", jax.nn.softmax(scores), v)


def attention(w, x, reduce):
    q, k, v = (jnp.einsum("se,ehc->shc", x, w[name]) for name in "qkv")
    return reduce(jnp.einsum("shc,hce->se", attend(q, k, v), w["o"]))


ATTENTION = {
    **{name: ((16, 4, 4), P(None, "t", None)) for name in "qkv"},
    "o": ((4, 4, 16), P("t", None, None)),
}


def both(body, *collectives):
    """A function for one device with `collectives`, and the same one for full arrays."""

    def with_collectives(given):
        return lambda w, batch: body(w, *batch, *given)

    return with_collectives(collectives), with_collectives((alone,) * len(collectives))


def mlp(w, x, reduce):
    x = layer(w["up1"], w["down1"], x, reduce)
    return layer(w["up2"], w["down2"], x, reduce)


def attention_block(w, x, reduce):
    return x + attention(w, norm(x), reduce)


def transformer_layer(w, x, reduce):
    x = x + attention(w, norm(x) * w["scale1"], reduce)
    return x + layer(w["up"], w["down"], norm(x) * w["scale2"], reduce) + w["bias"]


def mlp_with_loss(w, x, reduce, mean):
    y = mlp(w, x, reduce) + w["bias"]
    return mean(jnp.mean(jnp.square(y - x)))


def data_parallel(w, x, mean):
    return mean(jnp.mean(jnp.square(jnp.tanh(x @ w["a"]) @ w["b"])))


def shared_weights(w, x, reduce):
    def step(carry, _):
        return carry + layer(w["up"], w["down"], carry * w["scale"], reduce), None

    return lax.scan(step, x, length=3)[0]


def stacked_layers(w, x, reduce):
    def step(carry, weights):
        return carry + layer(weights["up"], weights["down"], carry, reduce), None

    return lax.scan(step, x, w)[0]


def loop_constant(w, x, reduce):
    return lax.fori_loop(0, 3, lambda k, y: jnp.sin(y * w["scale"] + k), x) * reduce(x.sum())


def cond_invariant(w, x, reduce):
    def wide(y):
        return layer(w["up"], w["down"], y, reduce)

    return lax.cond(
        reduce(jnp.abs(w["up"]).sum()) > 0, wide, lambda y: y * w["scale"], x * w["scale"]
    )


def cond_varying(w, batch):
    (x,) = batch
    return lax.cond(x.sum() > 0, lambda y: y * w["scale"], lambda y: jnp.sin(y * w["bias"]), x)


def cond_varying_full(w, batch):
    return jnp.concatenate([cond_varying(w, (block,)) for block in jnp.split(batch[0], 4)])


def remat_inside(w, x, reduce):
    for k in (1, 2):
        x = jax.checkpoint(functools.partial(layer, reduce=reduce))(w[f"up{k}"], w[f"down{k}"], x)
    return x


def gathered_layers(w, x, gather, policy=None):
    @functools.partial(jax.checkpoint, policy=policy)
    def step(x, weights):
        return x + jnp.tanh(jnp.tanh(x @ gather(weights["a"])) @ gather(weights["b"])), None

    return lax.scan(step, x, w)[0]


def gathered_layers_that_save_products(w, x, gather):
    return gathered_layers(w, x, gather, jax.checkpoint_policies.dots_saveable)


def cross_entropy(w, x, labels, reduce, top, first):
    logits = x @ w["vocabulary"]
    logits = logits - top(lax.stop_gradient(logits).max(-1))[:, None]
    own = labels - first(logits.shape[-1])
    inside = (own >= 0) & (own < logits.shape[-1])
    picked = jnp.take_along_axis(logits, jnp.where(inside, own, 0)[:, None], 1)[:, 0]
    picked = reduce(jnp.where(inside, picked, 0.0))
    return jnp.mean(jnp.log(reduce(jnp.exp(logits).sum(-1))) - picked)


def embedding(w, tokens, reduce, first):
    own = tokens - first(w["table"].shape[0])
    inside = (own >= 0) & (own < w["table"].shape[0])
    rows = jnp.where(inside[:, None], w["table"][jnp.where(inside, own, 0)], 0.0)
    return jnp.tanh(reduce(rows) @ w["a"])


def position_of_block(size):
    return lax.axis_index("t") * size


def zero(size):
    return 0


@jax.custom_vjp
def swish(x):
    return x * jax.nn.sigmoid(x)


def swish_forward(x):
    return swish(x), x


def swish_backward(x, ct):
    s = jax.nn.sigmoid(x)
    return (ct * s * (1 + x * (1 - s)),)


swish.defvjp(swish_forward, swish_backward)


def with_custom_vjp(w, x, reduce):
    return swish(reduce(swish(x @ w["up"]) @ w["down"]) * w["scale"])


def nested_jit(w, x, reduce):
    @jax.jit
    def inner(up, down, scale, y):
        return layer(up, down, y * scale, reduce)

    return inner(w["up2"], w["down2"], w["scale"], inner(w["up1"], w["down1"], w["scale"], x))


def gathered_keys(w, x, gather):
    """Attention of each device's positions to all, whose keys and values it computes."""
    every = gather(x)
    return jax.nn.softmax(x @ w["q"] @ (every @ w["k"]).T) @ (every @ w["v"])


def ring_matmul(w, batch):
    """all_gather(x) @ w, where each block is multiplied while it passes by."""
    (x,) = batch
    rows, first = x.shape[0], lax.axis_index("t")
    out = jnp.zeros((4 * rows, w["up"].shape[1]))
    for k in range(4):
        out = lax.dynamic_update_slice_in_dim(out, x @ w["up"], (first - k) % 4 * rows, 0)
        x = lax.ppermute(x, "t", RING) if k < 3 else x
    return jnp.tanh(out)


def ring_attention(w, batch):
    (x,) = batch
    q, k, v = (jnp.einsum("se,ehc->shc", x, w[name]) for name in "qkv")

    def step(state, _):
        weighted, total, k, v = state
        scores = jnp.exp(jnp.einsum("qhc,khc->qhk", q, k) / 4)
        weighted = weighted + jnp.einsum("qhk,khc->qhc", scores, v)
        k, v = lax.ppermute((k, v), "t", RING)
        return (weighted, total + scores.sum(-1), k, v), None

    start = (jnp.zeros_like(q), jnp.zeros_like(q[..., 0]), k, v)
    weighted, total, _, _ = lax.scan(step, start, length=4)[0]
    return jnp.einsum("shc,hce->se", weighted / total[..., None], w["o"])


def ring_attention_full(w, batch):
    (x,) = batch
    q, k, v = (jnp.einsum("se,ehc->shc", x, w[name]) for name in "qkv")
    scores = jax.nn.softmax(jnp.einsum("qhc,khc->qhk", q, k) / 4)
    return jnp.einsum("shc,hce->se", jnp.einsum("qhk,khc->qhc", scores, v), w["o"])


def mixture(w, x, exchange, back):
    """Every token goes to every expert, one per device, and the gate weighs what returns."""
    gate = jax.nn.softmax(x @ w["gate"])
    sent = exchange(jnp.broadcast_to(x, (4, *x.shape)))
    found = back(jnp.einsum("knc,kcd->knd", jnp.tanh(sent), w["expert"]))
    return jnp.einsum("nk,knd->nd", gate, found)


def to_experts(x):
    return lax.all_to_all(x, "t", 0, 1, tiled=True)


def from_experts(x):
    return lax.all_to_all(x, "t", 1, 0, tiled=True)


def pipeline(w, batch):
    """Two microbatches pass four stages; the last stage has the results after five steps."""
    (x,) = batch
    stage = lax.axis_index("t")
    micro = x.reshape(2, 4, 16)

    def step(carry, k):
        entering = jnp.where(stage == 0, micro[jnp.minimum(k, 1)], carry)
        y = jnp.tanh(entering @ w["stage"][0])
        return lax.ppermute(y, "t", RING), y

    _, results = lax.scan(step, jnp.zeros((4, 16)), jnp.arange(5))
    return psum(jnp.where(stage == 3, results[3:], 0.0)).reshape(8, 16)


def pipeline_full(w, batch):
    (x,) = batch
    for k in range(4):
        x = jnp.tanh(x @ w["stage"][k])
    return x


def gathered_weights(w, x, gather, mean):
    return mean(jnp.mean(jnp.square(jnp.tanh(x @ gather(w["a"])) @ gather(w["b"]))))


def gathered_result(w, x, gather):
    return jnp.tanh(gather(x @ w["a"]))


def gathered_then_summed(w, x, gather, mean):
    return mean(jnp.mean(jnp.square(gather(x @ w["a"]))))


def sequence_parallel(w, x, gather, scatter):
    return x + layer(w["up"], w["down"], gather(norm(x) * w["scale"]), scatter)


def sharded_norm(w, x, mean):
    x = x - mean(x.mean(-1, keepdims=True))
    deviation = jnp.sqrt(mean(jnp.square(x).mean(-1, keepdims=True)) + 1e-5)
    return x / deviation * w["scale"] + w["bias"]


def batch_norm(w, x, mean):
    y = x @ w["a"]
    y = y - mean(y.mean(0))
    y = y / jnp.sqrt(mean(jnp.square(y).mean(0)) + 1e-5)
    return jnp.tanh(y * w["scale"])


def pmean_t(x):
    return lax.pmean(x, "t")


def gather_rows(x):
    return lax.all_gather(x, "t", tiled=True)


def gather_columns(x):
    return lax.all_gather(x, "t", axis=1, tiled=True)


def gather_equal_columns(x):
    return lax.all_gather(x, "t", axis=1, tiled=True, to="invarying")


def scatter_rows(x):
    return lax.psum_scatter(x, "t", tiled=True)


SQUARE = ((16, 16), P())
VECTOR = ((16,), P())
LAYERS = {"a": ((3, 16, 64), P(None, "t")), "b": ((3, 64, 16), P(None, "t"))}
D_ROWS = (((8, 16), P("d")),)

PROGRAMS = [
    Program("MLP", T, TWO_MLPS, BATCH, P(), *both(mlp, psum)),
    Program("attention block", T, ATTENTION, BATCH, P(), *both(attention_block, psum)),
    Program(
        "transformer layer",
        T,
        {**ATTENTION, **MLP, "scale1": VECTOR, "scale2": VECTOR, "bias": VECTOR},
        BATCH,
        P(),
        *both(transformer_layer, psum),
    ),
    Program(
        "data x tensor parallel, loss inside",
        DT,
        {**TWO_MLPS, "bias": VECTOR},
        D_ROWS,
        P(),
        *both(mlp_with_loss, psum, lambda x: lax.pmean(x, "d")),
    ),
    Program(
        "data parallel, loss inside",
        T,
        {"a": SQUARE, "b": SQUARE},
        ROWS,
        P(),
        *both(data_parallel, pmean_t),
    ),
    Program(
        "scan with shared weights",
        T,
        {**MLP, "scale": VECTOR},
        BATCH,
        P(),
        *both(shared_weights, psum),
    ),
    Program(
        "scan over stacked layers",
        T,
        {"up": ((3, 16, 32), P(None, None, "t")), "down": ((3, 32, 16), P(None, "t", None))},
        BATCH,
        P(),
        *both(stacked_layers, psum),
    ),
    Program(
        "fori_loop with a loop constant",
        T,
        {"scale": VECTOR},
        ROWS,
        P("t"),
        *both(loop_constant, psum),
    ),
    Program(
        "cond, invariant predicate",
        T,
        {**MLP, "scale": VECTOR},
        BATCH,
        P(),
        *both(cond_invariant, psum),
    ),
    Program(
        "cond, varying predicate",
        T,
        {"scale": VECTOR, "bias": VECTOR},
        ROWS,
        P("t"),
        cond_varying,
        cond_varying_full,
    ),
    Program("remat inside", T, TWO_MLPS, BATCH, P(), *both(remat_inside, psum)),
    Program(
        "remat in a scan over gathered layers (FSDP)",
        T,
        LAYERS,
        ROWS,
        P("t"),
        *both(gathered_layers, gather_rows),
    ),
    Program(
        "the same remat, products saved",
        T,
        LAYERS,
        ROWS,
        P("t"),
        *both(gathered_layers_that_save_products, gather_rows),
    ),
    Program("remat outside", T, TWO_MLPS, BATCH, P(), *both(mlp, psum), remat=True),
    Program(
        "softmax cross-entropy",
        T,
        {"vocabulary": ((16, 8), P(None, "t"))},
        (*BATCH, ((int, 8), P())),
        P(),
        *both(cross_entropy, psum, lambda x: lax.pmax(x, "t"), position_of_block)[:1],
        lambda w, batch: cross_entropy(w, *batch, alone, alone, zero),
    ),
    Program(
        "embedding split by vocabulary",
        T,
        {"table": ((8, 16), P("t")), "a": ((16, 8), P(None, "t"))},
        (((int, 8), P()),),
        P(None, "t"),
        *both(embedding, psum, position_of_block)[:1],
        lambda w, batch: embedding(w, *batch, alone, zero),
    ),
    Program(
        "custom_vjp",
        T,
        {**MLP, "scale": VECTOR},
        BATCH,
        P(),
        *both(with_custom_vjp, psum),
    ),
    Program("nested jit", T, {**TWO_MLPS, "scale": VECTOR}, BATCH, P(), *both(nested_jit, psum)),
    Program(
        "ring matmul",
        T,
        {"up": MLP["up"]},
        ROWS,
        P(None, "t"),
        ring_matmul,
        lambda w, batch: jnp.tanh(batch[0] @ w["up"]),
    ),
    Program(
        "ring attention",
        T,
        {name: (shape, P()) for name, (shape, _) in ATTENTION.items()},
        ROWS,
        P("t"),
        ring_attention,
        ring_attention_full,
    ),
    Program(
        "attention to gathered positions",
        T,
        dict.fromkeys("qkv", SQUARE),
        (((64, 16), P("t")),),
        P("t"),
        *both(gathered_keys, gather_rows),
    ),
    Program(
        "mixture of experts",
        T,
        {"gate": ((16, 4), P()), "expert": ((4, 16, 16), P("t"))},
        ROWS,
        P("t"),
        *both(mixture, to_experts, from_experts),
    ),
    Program(
        "pipeline",
        T,
        {"stage": ((4, 16, 16), P("t"))},
        BATCH,
        P(),
        pipeline,
        pipeline_full,
    ),
    Program(
        "partial manual",
        DT,
        {"a": SQUARE, "b": SQUARE},
        D_ROWS,
        P(),
        *both(data_parallel, lambda x: lax.pmean(x, "d")),
        axes=frozenset({"d"}),
    ),
    Program(
        "gathered weights (FSDP)",
        T,
        {"a": ((16, 16), P("t")), "b": ((16, 16), P("t"))},
        ROWS,
        P(),
        *both(gathered_weights, gather_rows, pmean_t),
    ),
    Program(
        "sequence parallel (all_gather, psum_scatter)",
        T,
        {**MLP, "scale": VECTOR},
        ROWS,
        P("t"),
        *both(sequence_parallel, gather_rows, scatter_rows),
    ),
    Program(
        "all_gather of the result",
        T,
        {"a": ((16, 16), P(None, "t"))},
        BATCH,
        P(),
        *both(gathered_result, gather_columns),
    ),
    Program(
        'all_gather(to="invarying") of the result',
        T,
        {"a": ((16, 16), P(None, "t"))},
        BATCH,
        P(),
        *both(gathered_result, gather_equal_columns),
    ),
    Program(
        "all_gather, then a mean",
        T,
        {"a": ((16, 16), P(None, "t"))},
        BATCH,
        P(),
        *both(gathered_then_summed, gather_columns, pmean_t),
    ),
    Program(
        "layer norm over a split axis",
        T,
        {"scale": ((16,), P("t")), "bias": ((16,), P("t"))},
        (((8, 16), P(None, "t")),),
        P(None, "t"),
        *both(sharded_norm, pmean_t),
    ),
    Program(
        "batch norm",
        T,
        {"a": SQUARE, "scale": VECTOR},
        ROWS,
        P("t"),
        *both(batch_norm, pmean_t),
    ),
]


# ------------------------------------------------------------------------------------- the page

RELEASE = "jax " + ".".join(jax.__version__.split(".")[:2])
_PAGE = """\
# Gradients compared with jax.shard_map

This page compares the cost of gradients for {count} programs: what one device sends, computes and
stores when the value and its gradient with respect to the weights are evaluated once. A cell such
as `3 + 0, 4608 B, 11 x, 1024 B` gives, in this order,

- the number of all-reduces + the number of other collectives,
- the bytes that the device sends,
- the number of matrix products that it computes,
- the bytes of its temporary buffers.

No single figure is enough: `jax.checkpoint`, for example, saves memory by computing, and sending,
the same values twice.

*wrong* marks a gradient whose relative error, compared with the same function on one device, is
more than 1e-9. *rejected* means that JAX does not accept the program.

## How it is measured

- In float64, compiled for CPU devices: eight, as a 2x4 mesh, for `data x tensor parallel` and
  `partial manual`, and four for all other programs.
- A collective in a loop counts once for each iteration; one in a branch, as if the branch were
  taken.
- Bytes sent are those of a ring algorithm: an all-reduce of b bytes over n devices sends
  2b(n-1)/n.
- Measured with {release}; with other supported releases the bytes sent are the same, but XLA may
  combine all-reduces and allocate buffers differently.
- `shmap-combine-all-reduces` copies small operands into one buffer, which counts as temporary: at
  most 2048 B for each combined all-reduce. This is why `cond, varying predicate` takes 128 B more
  than with JAX.

`python test/transforms/traffic_programs.py > docs/traffic.md` writes this page, and
`test/transforms/test_traffic.py` repeats the measurements.

## Results

| program | shmap_compiler | JAX, check_vma=True | JAX, check_vma=False |
|---|---|---|---|"""


def row(program: Program, gradients: dict[str, Gradient | None]) -> str:
    """The line of the page for the gradients of a program, by the names in SHARD_MAPS."""
    return " | ".join(["| " + program.name, *map(_cell, gradients.values())]) + " |"


def _cell(gradient: Gradient | None) -> str:
    if gradient is None:
        return "rejected"
    sent = gradient.traffic
    wrong = "" if gradient.right else ", *wrong*"
    parts = (
        f"{sent.all_reduces} + {sent.others}",
        f"{sent.sent} B",
        f"{sent.products} x",
        f"{gradient.temporaries} B",
    )
    return ", ".join(parts) + wrong


def main() -> None:
    print(_PAGE.format(release=RELEASE, count=len(PROGRAMS)))
    for program in PROGRAMS:
        print(row(program, measure(program)), flush=True)


if __name__ == "__main__":
    main()
