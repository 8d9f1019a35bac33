"""A transformer of named axes, trained with four assignments of its axes to devices.

The model is written once, on one number of one example at one time: `xmap` maps it over the axes
`batch`, `time`, `embed`, `heads`, `size`, `hidden` and `vocab`, and products and softmaxes name the
axes that they sum over. Which axes are split over which devices is said outside, in
`axis_resources`, and never changes what is computed:

- one device: no axis has resources, all are vectorized;
- data: each device has some of the sequences, and gradients are summed;
- data and tensor: besides, each has some of the heads and some of the hidden layer;
- sequence and tensor: instead of sequences, each device has some of the times. It gathers the keys
  and values of all times.

    python examples/named_transformer.py    trains with each, and shows losses and collectives
    shmap lower examples/named_transformer.py:loss --stage named    the named shape of every value
    shmap run examples/named_transformer.py:loss
    shmap run examples/named_transformer.py:sequence_loss
"""

import os
import re

# Eight virtual CPU devices, requested before JAX is imported. JAX_PLATFORMS=tpu overrides this.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shmap_compiler import named, xmap

LAYERS, RATE, STEPS = 2, 0.3, 20
SIZES = {"batch": 8, "time": 16, "embed": 32, "heads": 4, "size": 8, "hidden": 64, "vocab": 12}

# The axes of every array.
LAYER = {
    "query": ["embed", "heads", "size"],
    "key": ["embed", "heads", "size"],
    "value": ["embed", "heads", "size"],
    "out": ["heads", "size", "embed"],
    "up": ["embed", "hidden"],
    "down": ["hidden", "embed"],
}
PARAMS = {
    "tokens": ["vocab", "embed"],
    "times": ["time", "embed"],
    "layers": [LAYER] * LAYERS,
    "logits": ["embed", "vocab"],
}
TOKENS = ["batch", "time"]


def normalized(x):
    """x: f32[] along embed, among others, as all values here are."""
    centered = x - named.mean(x, "embed")
    return centered * lax.rsqrt(named.mean(centered**2, "embed") + 1e-6)


def attention(layer, x):
    """Each time attends to itself and to earlier ones."""
    query, key, value = (
        named.pdot(x, layer[name], "embed") for name in ("query", "key", "value")
    )  # along batch, time, heads and size
    keys, values = (lax.all_gather(each, "time") for each in (key, value))  # f32[time]
    scores = named.pdot(query, keys, "size") / SIZES["size"] ** 0.5
    seen = jnp.arange(SIZES["time"]) <= lax.axis_index("time")
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf))
    mixed = named.pdot(weights, values, (), pos_contract=((0,), (0,)))
    return named.pdot(mixed, layer["out"], ("heads", "size"))


def mlp(layer, x):
    hidden = jax.nn.relu(named.pdot(x, layer["up"], "embed"))
    return named.pdot(hidden, layer["down"], "hidden")


def next_token_loss(params, token, following):
    """How badly the model guesses the token that follows each one."""
    one_hot = named.one_hot(token, SIZES["vocab"], axis="vocab")
    x = named.pdot(one_hot, params["tokens"], "vocab") + params["times"]
    for layer in params["layers"]:
        x = x + attention(layer, normalized(x))
        x = x + mlp(layer, normalized(x))
    guess = named.log_softmax(named.pdot(normalized(x), params["logits"], "embed"), "vocab")
    right = named.one_hot(following, SIZES["vocab"], axis="vocab")
    return -named.mean(named.sum(right * guess, "vocab"), ("batch", "time"))


devices = np.array(jax.devices()[:8])
line = jax.sharding.Mesh(devices, ("x",))
square = jax.sharding.Mesh(devices.reshape(4, 2), ("x", "y"))
ASSIGNMENTS = {
    "one device": ({}, None),
    "data": ({"batch": "x"}, line),
    "data and tensor": ({"batch": "x", "heads": "y", "hidden": "y"}, square),
    "sequence and tensor": ({"time": "x", "heads": "y", "hidden": "y"}, square),
}


def assigned(axis_resources, mesh):
    """The loss of the whole batch, with the axes on these devices."""
    axes = (PARAMS, TOKENS, TOKENS)
    return xmap(next_token_loss, axes, [], axis_resources=axis_resources, mesh=mesh)


loss = assigned(*ASSIGNMENTS["data and tensor"])
sequence_loss = assigned(*ASSIGNMENTS["sequence and tensor"])
loss_reference = sequence_loss_reference = assigned(*ASSIGNMENTS["one device"])


def loss_args():
    """Random weights; sequences that count up, by one, two or three."""
    random = np.random.default_rng(0)

    def weights(axes):
        return jnp.asarray(random.normal(0, 0.2, [SIZES[name] for name in axes]), jnp.float32)

    def is_mapping(axes):
        return isinstance(axes, list) and isinstance(axes[0], str)

    params = jax.tree.map(weights, PARAMS, is_leaf=is_mapping)
    start, step = np.arange(SIZES["batch"])[:, None], 1 + np.arange(SIZES["batch"])[:, None] % 3
    text = (start + step * np.arange(SIZES["time"] + 1)) % SIZES["vocab"]
    return params, jnp.asarray(text[:, :-1]), jnp.asarray(text[:, 1:])


sequence_loss_args = loss_args


def trained(loss, params, *data):
    """(the loss at each step of gradient descent, how many collectives a step has)."""

    @jax.jit
    def step(params):
        value, gradient = jax.value_and_grad(loss)(params, *data)
        return value, jax.tree.map(lambda w, g: w - RATE * g, params, gradient)

    compiled, losses = step.lower(params).compile().as_text(), []
    for _ in range(STEPS):
        value, params = jax.block_until_ready(step(params))
        losses.append(float(value))
    kinds = re.findall(r" (all-reduce|all-gather|reduce-scatter|all-to-all)(?:-start)?\(", compiled)
    return losses, ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))


def main():
    params, *data = loss_args()
    print(f"loss in steps 1, {STEPS // 2} and {STEPS} of training, collectives of a step")
    for name, assignment in ASSIGNMENTS.items():
        losses, collectives = trained(assigned(*assignment), params, *data)
        shown = "  ".join(f"{losses[k]:.4f}" for k in (0, STEPS // 2 - 1, STEPS - 1))
        print(f"  {name:20} {shown}   {collectives or 'none'}")


if __name__ == "__main__":
    main()
