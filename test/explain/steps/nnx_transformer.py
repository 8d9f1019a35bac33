"""A training step of a flax.nnx transformer with optax, on a mesh of data and model.

The MLP of each layer is a shard_mapped function; XLA's partitioner divides everything else, as the
shardings of the arguments ask for. Nothing is allocated: the arguments are types.

    shmap explain test/explain/steps/nnx_transformer.py:step --target tpu:v5e:2x4
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

VOCABULARY, FEATURES, HEADS, HIDDEN, LAYERS = 16384, 1024, 16, 4096, 2
BATCH, LENGTH = 16, 1024

mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
optimizer = optax.adamw(3e-4)


@shard_map(
    mesh=mesh,
    in_specs=(P("data"), P(None, "model"), P("model", None)),
    out_specs=P("data"),
)
def mlp(x, up, down):
    """Each device has some of the hidden features, and the sum over "model" has all of them."""
    hidden = jax.nn.gelu(x @ up)
    return lax.psum(hidden @ down, "model")


class Layer(nnx.Module):
    def __init__(self, rngs):
        self.norms = nnx.List([nnx.LayerNorm(FEATURES, rngs=rngs) for _ in range(2)])
        self.attention = nnx.MultiHeadAttention(
            HEADS, FEATURES, dtype=jnp.bfloat16, decode=False, rngs=rngs
        )
        self.up = nnx.Linear(FEATURES, HIDDEN, use_bias=False, rngs=rngs)
        self.down = nnx.Linear(HIDDEN, FEATURES, use_bias=False, rngs=rngs)

    def __call__(self, x, mask):
        with jax.named_scope("attention"):
            x = x + self.attention(self.norms[0](x), mask=mask)
        with jax.named_scope("mlp"):
            weights = (self.up.kernel[...], self.down.kernel[...])
            return x + mlp(self.norms[1](x), *(w.astype(jnp.bfloat16) for w in weights))


class Transformer(nnx.Module):
    def __init__(self, rngs):
        self.embedding = nnx.Embed(VOCABULARY, FEATURES, dtype=jnp.bfloat16, rngs=rngs)
        self.layers = nnx.List([Layer(rngs) for _ in range(LAYERS)])
        self.norm = nnx.LayerNorm(FEATURES, dtype=jnp.bfloat16, rngs=rngs)

    def __call__(self, tokens):
        x = self.embedding(tokens)
        mask = nnx.make_causal_mask(tokens)
        for number, layer in enumerate(self.layers):
            with jax.named_scope(f"layer_{number}"):
                x = layer(x, mask).astype(jnp.bfloat16)
        with jax.named_scope("logits"):
            return self.embedding.attend(self.norm(x))


definition, parameters = nnx.split(nnx.eval_shape(lambda: Transformer(nnx.Rngs(0))), nnx.Param)[:2]


def loss(parameters, tokens):
    logits = nnx.merge(definition, parameters)(tokens[:, :-1]).astype(jnp.float32)
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


@jax.jit
def step(parameters, state, tokens):
    value, gradients = jax.value_and_grad(loss)(parameters, tokens)
    updates, state = optimizer.update(gradients, state, parameters)
    return optax.apply_updates(parameters, updates), state, value


def split(path, type_):
    """Heads and hidden features are split over "model"; norms and biases are on every device."""
    name = jax.tree_util.keystr(path)
    spec = P()
    if "['embedding']" in name or "['down']" in name:
        spec = P("model", None)
    elif "['out']" in name and len(type_.shape) == 3:
        spec = P("model", None, None)
    elif "['up']" in name or len(type_.shape) == 3:
        spec = P(None, "model")
    return jax.ShapeDtypeStruct(type_.shape, type_.dtype, sharding=NamedSharding(mesh, spec))


def step_args():
    types = jax.tree_util.tree_map_with_path(split, parameters)
    state = jax.tree_util.tree_map_with_path(split, jax.eval_shape(optimizer.init, types))
    tokens = NamedSharding(mesh, P("data"))
    return types, state, jax.ShapeDtypeStruct((BATCH, LENGTH + 1), jnp.int32, sharding=tokens)
