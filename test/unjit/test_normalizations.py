"""Layer norms and RMS norms in jitted programs, as calls of a function that the source defines."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P
from jitted_programs import ROWS, Jitted, floats, layer_norm

from shmap_compiler import unjit

X, SCALE, BIAS = floats(8, 16), floats(16), floats(16)


def unjitted(fun, *args, ins=None, outs=ROWS):
    program = Jitted(fun, args, ins or (ROWS, *[P()] * (len(args) - 1)), outs)
    return unjit(program.jitted(), *args)


def with_bias(x, scale, bias):
    mean = jnp.mean(x, axis=-1, keepdims=True)
    var = jnp.var(x, axis=-1, keepdims=True)
    return (x - mean) / jnp.sqrt(var + 1e-5) * scale + bias


def from_squares(x, scale, bias):
    mean = jnp.mean(x, axis=-1, keepdims=True)
    var = jnp.maximum(0.0, jnp.mean(lax.square(x), -1, keepdims=True) - lax.square(mean))
    multiplier = lax.rsqrt(var + 1e-6) * scale
    return jnp.sin((x - mean) * multiplier + bias)


def rms_norm_in_bfloat16(x, scale):
    wide = x.astype(jnp.float32)
    squares = jnp.mean(wide**2, -1, keepdims=True)
    return (wide * lax.rsqrt(squares + 1e-5)).astype(x.dtype) * (1 + scale)


def without_the_last_degree(x, scale):
    var = jnp.var(x, axis=-1, ddof=1, keepdims=True)
    return (x - jnp.mean(x, axis=-1, keepdims=True)) * lax.rsqrt(var + 1e-6) * scale


HALF = jnp.bfloat16


@pytest.mark.parametrize(
    ("fun", "args", "expected"),
    [
        (
            lambda x, scale: jnp.sin(layer_norm(x, scale)),
            (X, SCALE),
            [
                "def layer_norm(x, scale):",
                "var = jnp.var(x, axis=-1, keepdims=True)",
                "return (x - mean) * lax.rsqrt(var + 1e-06) * scale",
                "result = layer_norm(x, scale)",
            ],
        ),
        (
            with_bias,
            (X, SCALE, BIAS),
            [
                "return (x - mean) / jnp.sqrt(var + 1e-05) * scale + bias",
                "result = layer_norm(x, scale, bias)",
            ],
        ),
        (
            from_squares,
            (floats(8, 4, 16), SCALE, BIAS),
            [
                "var = jnp.maximum(squares - jnp.square(mean), 0.0)",
                "result = jnp.sin(layer_norm(x, scale, bias))",
            ],
        ),
        (
            rms_norm_in_bfloat16,
            (X.astype(HALF), SCALE.astype(HALF)),
            [
                "def rms_norm(x):",
                "return x * lax.rsqrt(squares + 1e-05)",
                "rms_norm(wide).astype(jnp.bfloat16) * (scale + 1.0)",
            ],
        ),
        (
            lambda x: jnp.sin(jax.nn.standardize(x)),
            (X,),
            ["result = jnp.sin(jax.nn.standardize(x))"],
        ),
    ],
)
def test_a_normalization_of_one_device_is_one_call(fun, args, expected):
    text = unjitted(fun, *args).as_python()
    assert [line for line in expected if line not in text] == []
    code = re.sub(r"#.*", "", text)
    assert code.count("sqrt(") <= 1


def mean_of(x):
    return jnp.mean(x, axis=-1, keepdims=True)


def mean_by_multiplication(x):
    return jnp.sum(x, axis=-1, keepdims=True) * (1 / x.shape[-1])


VARIANCES = {
    "var": lambda x, mean: jnp.var(x, axis=-1, keepdims=True),
    "mean of squares": lambda x, mean: mean((x - mean(x)) ** 2),
    "squares minus mean": lambda x, mean: mean(x * x) - mean(x) * mean(x),
    "at least 0": lambda x, mean: jnp.maximum(0.0, mean(x * x) - mean(x) ** 2),
}
ENDS = {
    "(x * root) * scale + bias": lambda x, var, s, b: x * lax.rsqrt(var + 1e-6) * s + b,
    "x * (root * scale) + bias": lambda x, var, s, b: x * (lax.rsqrt(var + 1e-6) * s) + b,
    "scale * (x * root) + bias": lambda x, var, s, b: s * (x * lax.rsqrt(var + 1e-6)) + b,
    "bias + (x * scale) * root": lambda x, var, s, b: b + (x * s) * lax.rsqrt(1e-6 + var),
    "x / sqrt * scale": lambda x, var, s, b: x / jnp.sqrt(var + 1e-6) * s,
    "x * (1 / sqrt) * scale": lambda x, var, s, b: x * (1 / jnp.sqrt(var + 1e-6)) * s,
    "x * (scale / sqrt) - bias": lambda x, var, s, b: x * (s / jnp.sqrt(var + 1e-6)) - b,
    "(x * root + bias) * scale": lambda x, var, s, b: (x * lax.rsqrt(var + 1e-6) + b) * s,
}


def layer_norms():
    """Spellings of a layer norm: the name, the variance, the end, and the mean."""
    variances = list(VARIANCES.values())
    for k, (name, end) in enumerate(ENDS.items()):
        yield f"{name}, {list(VARIANCES)[k % 4]}", variances[k % 4], end, mean_of
    for name, variance in VARIANCES.items():
        end = ENDS["x * (root * scale) + bias"]
        yield f"mean by multiplication, {name}", variance, end, mean_by_multiplication


def same_bits(fun, *args):
    """The source of a function, which has to round as the function itself does."""
    made = unjitted(fun, *args)
    source = jax.jit(made.shard_map())
    for given in (args, [each * 1.01 + 0.1 for each in args]):
        given = [each.astype(arg.dtype) for each, arg in zip(given, args, strict=True)]
        np.testing.assert_array_equal(source(*given), made.compiled(*given))
    return made.as_python()


WIDE = floats(8, 3, 24), floats(24), floats(24)


@pytest.mark.parametrize(
    ("variance", "end", "mean"),
    [pytest.param(*rest, id=name) for name, *rest in layer_norms()],
)
def test_a_layer_norm_rounds_as_it_is_written(variance, end, mean):
    def fun(x, scale, bias):
        return jnp.sin(end(x - mean(x), variance(x, mean), scale, bias))

    assert "def layer_norm(" in same_bits(fun, *WIDE)


@pytest.mark.parametrize("end", [pytest.param(end, id=name) for name, end in ENDS.items()])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_an_rms_norm_rounds_as_it_is_written(end, dtype):
    def fun(x, scale, bias):
        x = x.astype(jnp.float32)
        normed = end(x, mean_of(x * x), scale.astype(jnp.float32), bias.astype(jnp.float32))
        return jnp.sin(normed.astype(dtype))

    assert "def rms_norm(" in same_bits(fun, *(each.astype(dtype) for each in WIDE))


@pytest.mark.parametrize(
    "fun",
    [
        lambda x, mean, var: (x - mean) * lax.rsqrt(mean_of(x * (x - mean)) + 1e-6),
        lambda x, mean, var: x * lax.rsqrt(var + 1e-6) - mean * lax.rsqrt(var + 1e-6),
    ],
)
def test_what_no_function_rounds_like_is_left_as_it_is(fun):
    def whole(x):
        return jnp.sin(fun(x, mean_of(x), jnp.var(x, axis=-1, keepdims=True)))

    assert "def layer_norm(" not in same_bits(whole, WIDE[0])


def test_two_normalizations_share_a_function_and_have_its_gradient():
    def twice(x, first, second):
        return layer_norm(jnp.tanh(layer_norm(x, first)), second)

    made = unjitted(twice, X, SCALE, BIAS)
    text = made.as_python()
    assert text.count("def layer_norm") == 1
    assert "= layer_norm(x, first)" in text
    assert "= layer_norm(result, second)" in text
    ours, theirs = (
        jax.grad(lambda *args, f=f: jnp.sin(f(*args)).sum(), (0, 1, 2))(X, SCALE, BIAS)
        for f in (made.shard_map(), twice)
    )
    for found, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_function_has_a_name_of_its_own():
    text = unjitted(layer_norm, X, SCALE).as_python()
    assert "def layer_norm_2(x, scale):" in text
    assert "result = layer_norm_2(x, scale)" in text


def test_what_divides_by_something_else_is_left_as_it_is():
    text = unjitted(without_the_last_degree, X, SCALE).as_python()
    assert "def layer_norm" not in text
    assert "* lax.rsqrt(" in text


def test_what_divides_by_the_root_of_a_sum_is_no_normalization():
    def fun(x):
        return x * lax.rsqrt(jnp.sum(jnp.exp(x), axis=-1, keepdims=True) + 1e-5)

    text = unjitted(fun, X).as_python()
    assert "lax.rsqrt(" in text
    assert "def layer_norm" not in text


def test_a_normalization_of_a_split_axis_shows_its_sums():
    blocks = P("i", "j")
    text = unjitted(layer_norm, X, SCALE, ins=(blocks, P("j")), outs=blocks).as_python()
    assert 'mean_total = lax.psum(mean_sum, "j")' in text
    assert "result = (x - mean) * lax.rsqrt(var + 1e-06) * scale" in text
    assert "reshape" not in text
    assert "jnp.nan" not in text


def test_a_derivative_uses_the_lines_of_a_normalization():
    def gradient(x, scale):
        return jax.grad(lambda x: jnp.sin(layer_norm(x, scale)).sum())(x)

    text = unjitted(gradient, X, SCALE).as_python()
    assert "def layer_norm" not in text
    assert "lax.rsqrt(" in text
