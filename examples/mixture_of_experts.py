"""A mixture of experts: each token is sent to the one network that a router picks for it.

Eight experts are placed on eight devices, which also share the tokens. Tokens are sent to their
experts and back by two all-to-alls, each of which sends equally many rows to every device: a device
reserves `CAPACITY` rows for each expert. A token that finds its expert's rows taken is dropped: its
result is zero, and the residual connection around such a layer keeps it as it was.

The second result is the loss that training adds to keep the experts equally busy.

    python examples/mixture_of_experts.py    how busy the experts are
    shmap run examples/mixture_of_experts.py:mixture

Written from the descriptions in "Switch Transformers: Scaling to Trillion Parameter Models with
Simple and Efficient Sparsity" (Fedus, Zoph, Shazeer, 2021) and "GShard" (Lepikhin et al., 2020).
"""

import os
from functools import partial
from typing import NamedTuple

# Eight virtual CPU devices, requested before JAX is imported. JAX_PLATFORMS=tpu overrides this.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from shmap_compiler import shard_map

EXPERTS = 8
TOKENS, CAPACITY = 12, 2  # per device; with equally busy experts each gets 1.5 of 12 tokens
FEATURES, HIDDEN = 8, 16

mesh = Mesh(np.array(jax.devices()[:EXPERTS]), ("expert",))


class Weights(NamedTuple):
    router: jax.Array  # [features, experts]
    w_in: jax.Array  # [experts, features, hidden]
    w_out: jax.Array  # [experts, hidden, features]


def choose(router, tokens):
    """Each token's probability for each expert, and its expert as a row of zeros and a one."""
    probabilities = jax.nn.softmax(tokens @ router)
    chosen = jax.nn.one_hot(jnp.argmax(probabilities, axis=-1), EXPERTS)
    return probabilities, chosen


def places(chosen):
    """[token, expert, place]: a one where a token sits, at most one token in each place.

    Tokens take an expert's places in order. `one_hot` has no one for a place beyond the capacity.
    """
    place = (jnp.cumsum(chosen, axis=0) - 1).astype(jnp.int32)
    return chosen[..., None] * jax.nn.one_hot(place, CAPACITY)


def imbalance(share, probability):
    """One if experts are equally busy, more if not.

    `share` are the shares of tokens that chose each expert, `probability` the mean probabilities.
    Only the latter have a derivative.
    """
    return EXPERTS * jnp.sum(share * probability)


@partial(
    shard_map,
    mesh=mesh,
    in_specs=(Weights(P(), P("expert"), P("expert")), P("expert")),
    out_specs=(P("expert"), P()),
)
def mixture(weights, tokens):
    probabilities, chosen = choose(weights.router, tokens)
    seats = places(chosen)

    # [expert, place, feature] before, [sender, place, feature] after: the first dimension counts
    # devices both times, as the experts are numbered like them.
    sent = jnp.einsum("tep,tf->epf", seats, tokens)
    received = lax.all_to_all(sent, "expert", split_axis=0, concat_axis=0)
    answers = jax.nn.relu(received @ weights.w_in[0]) @ weights.w_out[0]
    returned = lax.all_to_all(answers, "expert", split_axis=0, concat_axis=0)

    by_gate = seats * (chosen * probabilities)[..., None]
    result = jnp.einsum("tep,epf->tf", by_gate, returned)

    means = chosen.mean(axis=0), probabilities.mean(axis=0)
    return result, imbalance(*lax.pmean(means, "expert"))


def mixture_reference(weights, tokens):
    """Every expert answers every token, and all answers but one are thrown away."""
    probabilities, chosen = choose(weights.router, tokens)
    hidden = jax.nn.relu(jnp.einsum("tf,efh->teh", tokens, weights.w_in))
    answers = jnp.einsum("teh,ehf->tef", hidden, weights.w_out)

    # Places are given per device: count the tokens of the same device that came no later.
    by_device = chosen.reshape(EXPERTS, TOKENS, EXPERTS)
    fits = (jnp.cumsum(by_device, axis=1) <= CAPACITY).reshape(chosen.shape)

    result = jnp.einsum("te,tef->tf", chosen * fits * probabilities, answers)
    return result, imbalance(chosen.mean(axis=0), probabilities.mean(axis=0))


def mixture_args():
    random = np.random.default_rng(0)

    def normal(*shape):
        return jnp.asarray(random.standard_normal(shape), jnp.float32)

    weights = Weights(
        router=normal(FEATURES, EXPERTS),
        w_in=normal(EXPERTS, FEATURES, HIDDEN) / FEATURES**0.5,
        w_out=normal(EXPERTS, HIDDEN, FEATURES) / HIDDEN**0.5,
    )
    return weights, normal(EXPERTS * TOKENS, FEATURES)


def main():
    weights, tokens = mixture_args()
    result, loss = jax.jit(mixture)(weights, tokens)
    expected, expected_loss = mixture_reference(weights, tokens)
    answered = int(jnp.sum(jnp.any(result != 0, axis=1)))
    print(f"{len(tokens)} tokens, {EXPERTS} experts on {mesh.size} devices")
    print(f"  answered     {answered}, the others found their expert full")
    print(f"  imbalance    {loss:.4f} (one device: {expected_loss:.4f})")
    print(f"  difference   {jnp.abs(result - expected).max():.1e}")


if __name__ == "__main__":
    main()
