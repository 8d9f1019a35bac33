"""What programs of the field in `examples/` send, and that training through them works.

That they equal their references is tested with all other examples, in `test_examples.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compilers import fast_jit
from example_programs import MODULES, arguments, collectives, executable

# What the descriptions of the algorithms promise. A loop's body counts once.
MESSAGES = [
    # Keys and values.
    ("ring_attention", "attention", {"collective-permute": 2}),
    ("ring_attention", "causal_attention", {"collective-permute": 2}),
    # The results, from the last stage to all.
    ("pipeline", "pipeline", {"collective-permute": 1, "all-reduce": 1}),
    # Four rims, and the largest change.
    ("halo_stencil", "cold_rim", {"collective-permute": 4}),
    ("halo_stencil", "torus", {"collective-permute": 4}),
    ("halo_stencil", "until_steady", {"collective-permute": 4, "all-reduce": 1}),
    ("fft_by_all_to_all", "power_spectrum", {"all-to-all": 1}),
    ("fft_by_all_to_all", "poisson", {"all-to-all": 2}),
    # Tokens there and back, and the means for the loss.
    ("mixture_of_experts", "mixture", {"all-to-all": 2, "all-reduce": 1}),
    # Tokens before each attention and MLP, and sums after them; in the gradient the other way
    # round, but not those of the first layer's input. The loss.
    (
        "sequence_parallel",
        "loss_and_gradients",
        {"all-gather": 8, "reduce-scatter": 7, "all-reduce": 1},
    ),
    # The loss and all gradients, in one message.
    ("equinox_model", "predict", {}),
    ("equinox_model", "loss_and_gradients", {"all-reduce": 1}),
]


@pytest.mark.parametrize(("file", "name", "expected"), MESSAGES)
def test_sends_what_its_description_says(file, name, expected):
    assert collectives(executable(file, name, "shardy").as_text()) == expected


def test_fsdp_never_sums_whole_gradients():
    """Four arrays, four reduce-scatters; the one all-reduce is that of the loss."""
    sent = collectives(executable("fsdp", "training_step", "shardy").as_text())
    assert (sent["reduce-scatter"], sent["all-reduce"]) == (4, 1)


def test_mixture_of_experts_drops_tokens_and_keeps_tokens():
    """Or the example would show only one of the two."""
    tokens, _ = MODULES["mixture_of_experts"].mixture(*arguments("mixture_of_experts", "mixture"))
    dropped = np.all(np.asarray(tokens) == 0, axis=-1)
    assert 0 < dropped.sum() < len(dropped) / 2


def test_until_steady_takes_more_than_a_few_steps():
    _, steps = MODULES["halo_stencil"].until_steady(*arguments("halo_stencil", "until_steady"))
    assert 10 < int(steps) < 1000


def weighted_sum(results):
    """A number that depends on every number of `results`, with derivatives that all differ."""
    return sum(
        jnp.vdot(leaf, jnp.cos(jnp.arange(leaf.size)).reshape(leaf.shape))
        for leaf in jax.tree.leaves(results)
    )


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("ring_attention", "attention"),
        ("ring_attention", "causal_attention"),
        ("pipeline", "pipeline"),
        ("mixture_of_experts", "mixture"),
        ("halo_stencil", "cold_rim"),
        ("halo_stencil", "torus"),
        ("fft_by_all_to_all", "power_spectrum"),
        ("fft_by_all_to_all", "poisson"),
    ],
)
def test_gradients_equal_those_of_the_reference(file, name):
    module, args = MODULES[file], arguments(file, name)
    everything = tuple(range(len(args)))

    def gradients(fun):
        return fast_jit(jax.grad(lambda *args: weighted_sum(fun(*args)), everything))(*args)

    found = gradients(getattr(module, name))
    expected = gradients(getattr(module, f"{name}_reference"))
    for found_leaf, expected_leaf in zip(
        jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
    ):
        scale = np.abs(expected_leaf).max()
        assert scale > 0
        np.testing.assert_allclose(found_leaf, expected_leaf, rtol=0, atol=2e-5 * scale)
