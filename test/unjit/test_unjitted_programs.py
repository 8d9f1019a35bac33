"""Source of jitted programs: it computes the same, with the same collectives and derivatives."""

import dataclasses
import functools
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import jitted_networks
import jitted_operations
import jitted_programs
import numpy as np
import pytest
from compilers import needs_gpu_compiler, needs_tpu_compiler
from jax import export, lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from jitted_programs import EMBEDDED, ROWS, Jitted, floats, mesh
from shmap_tools.cli.hlo_collectives import collectives

from shmap_compiler import TargetError, UnjitError, search_shardings, shard_map, unjit, xmap
from shmap_compiler.simulate.agreement import compare, default_tolerance
from shmap_compiler.simulate.rounding import with_rounding
from shmap_compiler.targets.gpu import GpuTarget
from shmap_compiler.unjit.layout import call
from shmap_compiler.unjit.partitioned import Partitioned
from shmap_compiler.unjit.refusals import missing_call, refuse_processes
from shmap_compiler.unjit.rounding import is_explained
from shmap_compiler.unjit.same_results import same_call
from shmap_compiler.unjit.spelling.table import SPELLINGS

PROGRAMS: dict[str, Jitted] = {
    **jitted_programs.PROGRAMS,
    **jitted_networks.PROGRAMS,
    **jitted_operations.PROGRAMS,
}
X = np.arange(128, dtype=np.float32).reshape(8, 16)
RUFF = Path(sys.executable).with_name("ruff")


def prints(x):
    jax.debug.print("{}", x.sum())
    return x * 2


def calls_a_library(x):
    return jax.ffi.ffi_call("no_such_library", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


@functools.cache
def unjitted(name):
    program = PROGRAMS[name]
    return unjit(program.jitted(), *program.args)


def named(names):
    return [pytest.param(n, marks=pytest.mark.long) if PROGRAMS[n].is_long else n for n in names]


@pytest.mark.subprocess
@pytest.mark.parametrize("name", named(PROGRAMS))
def test_the_source_computes_the_same_with_the_same_collectives(name, tmp_path):
    program, made = PROGRAMS[name], unjitted(name)
    validation = made.validate()
    assert validation.holds
    assert validation.simulation is not None, validation.not_simulated
    lowered = made._mapped.lower(*made.given(program.args))
    assert collective_ops(lowered.as_text("body")) == collective_ops(made.as_text())
    counts = [
        Counter({c.kind: c.count for c in collectives(hlo)})
        for hlo in (lowered.compile().as_text(), made.compiled.as_text())
    ]
    if not program.more:
        assert counts[0] == counts[1]
    assert bool(made.embedded) == (name in EMBEDDED)
    assert formatter_complaints(made.as_python(), tmp_path) == ""


def collective_ops(body):
    """How often each kind of collective stands in a module."""
    return Counter(re.findall(r"stablehlo\.(all_\w+|reduce_scatter|collective_\w+)", body))


def formatter_complaints(source, folder):
    (folder / "by_hand.py").write_text(source)
    found = ""
    for command in (["format", "--diff"], ["check", "--quiet"]):
        run = subprocess.run(
            [RUFF, *command, "--isolated", "."], capture_output=True, text=True, cwd=folder
        )
        found += run.stdout + (run.stderr if run.returncode else "")
    return found


@pytest.mark.parametrize("name", named(n for n, each in PROGRAMS.items() if each.differentiable))
def test_the_gradient_is_the_same(name):
    program, made = PROGRAMS[name], unjitted(name)
    diffable = [k for k, arg in enumerate(program.args) if is_float(arg)]
    assert diffable

    def gradient(fun):
        def loss(*args):
            leaves = [leaf for leaf in jax.tree.leaves(fun(*args)) if is_float(leaf)]
            weights = [np.cos(np.arange(leaf.size, dtype=leaf.dtype)) for leaf in leaves]
            pairs = zip(leaves, weights, strict=True)
            return sum(jnp.sum(leaf * w.reshape(leaf.shape)) for leaf, w in pairs)

        return jax.jit(jax.grad(loss, argnums=diffable))(*program.args)

    ours, theirs = gradient(made.shard_map()), gradient(program.jitted())
    ours, theirs = (map(np.asarray, jax.tree.leaves(each)) for each in (ours, theirs))
    for found, expected in zip(ours, theirs, strict=True):
        largest = float(np.max(np.abs(expected))) or 1.0
        np.testing.assert_allclose(found / largest, expected / largest, atol=program.tolerance)


def is_float(tree):
    return all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in jax.tree.leaves(tree))


def test_names_and_lines_are_those_of_the_user():
    text = unjitted("mlp").as_python()
    assert "def mlp(params, x):" in text
    assert 'h = jnp.tanh(x @ params["w1"]) # the hidden layer' in text
    assert "    h = jnp.tanh(x @ w1)  # f32[2,16]" in text
    assert '    y = lax.psum(h @ w2, "j")  # f32[2,16]' in text


def test_loops_over_rows_are_scans():
    forward, reverse = unjitted("scan_over_layers").as_python(), unjitted("deep_step").as_python()
    assert "lax.scan(step, x, (weights_0, weights_1))" in forward
    assert "lax.scan(step_2, grad, (rows, weights), reverse=True)" in reverse
    assert (
        "lax.scan(step, jnp.zeros((8, 4), jnp.float32), xs)" in unjitted("accumulate").as_python()
    )
    assert "lax.fori_loop(0, k, step, x)" in unjitted("updates_in_a_loop").as_python()


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("attention_sequence", "jax.nn.softmax("),
        ("attention_sequence", 'jnp.einsum("bsd,dhk->bhsk", x, wq)'),
        ("contrastive", "jax.nn.log_softmax(logits)"),
        ("gelu", "jax.nn.gelu("),
        ("gated_mlp", "jax.nn.silu("),
        ("einsum_of_three", 'jnp.einsum("ab,bc,cd->ad", a, b, c)'),
        ("contrastive", "jnp.linalg.norm(images, axis=-1, keepdims=True)"),
    ],
)
def test_calls_of_the_library_are_those_of_the_user(name, call):
    assert call in unjitted(name).as_python()


def test_routines_that_are_embedded_can_be_simulated_again():
    def solve(x, y):
        return jnp.linalg.solve(x.T @ x, x.T @ y), jnp.linalg.qr(x.T @ x)

    program = Jitted(solve, (floats(32, 6), floats(32, 2)), (ROWS, ROWS), P())
    made = unjit(program.jitted(), *program.args)
    given = made.given(program.args)
    assert made._mapped.lower(*given).validate(*given).holds


def test_donated_arguments_are_still_there():
    given = jax.device_put(floats(8, 16), NamedSharding(mesh(), ROWS))
    step = jax.jit(lambda key, x: x * 2 + x.sum(), donate_argnums=1)
    made = unjit(step, jax.random.key(0), given)
    assert made.validate().source == 0.0
    assert not given.is_deleted()


def test_badly_conditioned_programs_have_fewer_digits():
    """Of four systems, as by how much one differs depends on the processor."""

    def solve(x, y):
        x = jnp.concatenate([x, x[:, :1] + 0.04 * x[:, :1] ** 2], 1)
        return jnp.linalg.solve(x.T @ x, x.T @ y)

    def solve_all(x, y):
        return jnp.stack([solve(each, y) for each in jnp.split(x, 4, axis=1)])

    rng = np.random.default_rng(3)
    args = [jnp.asarray(rng.standard_normal((32, n)), jnp.float32) for n in (24, 2)]
    program = Jitted(solve_all, tuple(args), (ROWS, ROWS), P())
    validation = unjit(program.jitted(), *program.args).validate()
    assert validation.holds
    assert validation.simulation is not None
    assert validation.simulation > default_tolerance(np.dtype(np.float32))


def test_enlarged_rounding_is_no_excuse_for_mistakes():
    exact, wrong = [np.float32([1, 2])], [np.float32([1, 2.1])]
    found, one = compare(wrong, exact), [np.float32(1)]
    assert not with_rounding(found, lambda x: [exact[0] * x], one, exact, 64)[0].holds
    worst = with_rounding(found, lambda x: [exact[0] * 9], one, exact, 64)
    assert not worst[0].holds, "half of the digits differ"


def signs_of_rounding(x, w):
    gradient = jnp.sum(jax.nn.softmax(x @ w), axis=1) - 1
    return gradient / (jnp.abs(gradient) + 1e-12)


def narrow_products(x, w):
    x, w = x.astype(jnp.bfloat16), w.astype(jnp.bfloat16)
    return (x + jax.nn.silu(x @ w) @ w.T).astype(jnp.float32)


@pytest.mark.parametrize("fun", [signs_of_rounding, narrow_products])
def test_what_rounding_changes_a_lot_is_shown_if_the_source_is_bitwise_equal(fun):
    rng = np.random.default_rng(0)
    args = [jnp.asarray(rng.standard_normal((n, 64)), jnp.float32) for n in (32, 64)]
    program = Jitted(fun, tuple(args), (ROWS, P(None, "j")), P("i"))
    validation = unjit(program.jitted(), *program.args).validate()
    assert validation.source == 0
    assert validation.rounding == "result[0]"
    assert f"{validation.simulation:.1e} apart, first in result[0], about as far" in str(validation)


def test_what_rounding_does_not_explain_is_a_difference():
    x, exact = np.ones(4, np.float32), [np.ones(4, np.float32)]
    found = compare([np.float32([1, 1, 1, 1.1])], exact)

    def explained(run_source, run=lambda x: [x**9], body="tensor<4xbf16>", found=found):
        return is_explained(found, run, run_source, [x], exact, body)

    assert explained(lambda x: [x**9])
    assert not explained(lambda x: [x[::-1] ** 9]), "equal numbers hide it"
    assert not explained(lambda x: [x**9], body="tensor<4xf32>")
    assert not explained(lambda x: [x], lambda x: [x])
    other = [dataclasses.replace(found[0], problem="of type float16")]
    assert not explained(lambda x: [x**9], found=other)


def order_of_arguments(*args):
    found = same_call(*args)
    return None if found is None else found.order


def test_a_call_is_shown_only_if_it_computes_the_same():
    module = jax.jit(jax.nn.gelu).lower(jnp.ones(16)).as_text()
    one = (16,), "float32"
    assert order_of_arguments("jax.nn.gelu({})", module, (one,), one) == (0,)
    assert order_of_arguments("jax.nn.gelu({}, approximate=False)", module, (one,), one) is None
    assert order_of_arguments("jnp.sum({})", module, (one,), one) is None
    begins = "(lambda v: jnp.concatenate([jnp.{}(v[:1] - 1e9), v[1:]]))"
    module = jax.jit(eval(begins.format("sqrt"))).lower(jnp.ones(16)).as_text()
    text = begins.format("log") + "({})"
    assert order_of_arguments(text, module, (one,), one) is None, "NaN equals NaN"

    def softmax(x):
        return jnp.exp(x - jax.nn.logsumexp(x))

    module = jax.jit(softmax).lower(jnp.ones(16)).as_text()
    assert order_of_arguments("jax.nn.softmax({})", module, (one,), one) is None, "rounds otherwise"
    difference = jax.jit(lambda a, b: b - a).lower(jnp.ones(16), jnp.ones(16)).as_text()
    assert order_of_arguments("jnp.subtract({}, {})", difference, (one, one), one) == (1, 0)


def test_a_call_is_not_shown_for_what_common_numbers_do_not_tell_apart():
    def order(fun, text, like):
        module, one = jax.jit(fun).lower(like).as_text(), (like.shape, like.dtype.name)
        return order_of_arguments(text, module, (one,), one)

    numbers, integers = jnp.ones(16), jnp.ones(16, jnp.int32)
    assert order(lambda v: jnp.sqrt(v) + 1e-9, "jnp.sqrt({})", numbers) is None
    assert order(lambda k: (abs(k) + 5) % 1000 - 5, "jnp.abs({})", integers) is None
    softmax = "jax.nn.softmax({})"
    assert order(lambda v: jax.nn.softmax(v) + 1e-9, softmax, numbers) is None
    assert order(jax.nn.softmax, softmax, numbers) == (0,)
    assert order(jnp.sqrt, "jnp.sqrt({})", numbers) == (0,)
    assert order(jnp.abs, "jnp.abs({})", integers) == (0,)


def test_a_call_is_shown_only_for_numbers_that_it_is_defined_for():
    square = (8, 8), "float32"

    def order(fun, text="jnp.linalg.cholesky({})"):
        module = jax.jit(fun).lower(jnp.ones(square[0])).as_text()
        return order_of_arguments(text, module, (square,), square)

    assert order(jnp.linalg.cholesky) == (0,)
    # Of most matrices both are NaN, and of these all are.
    assert order(lambda a: jnp.linalg.cholesky(a) / 2) is None
    assert order(lambda a: jnp.log(-1 - a**2) / 2, "jnp.log(-1 - {} ** 2)") is None


def test_a_call_may_differ_where_it_is_not_finite():
    """The call of the user's has all operations with which it does not, if there are such."""

    def other(x):
        return jnp.where(jnp.isinf(x), 0, lax.lgamma(x))

    one = (16,), "float32"
    whole, part = (jax.jit(fun).lower(jnp.ones(16)).as_text() for fun in (lax.lgamma, other))
    assert same_call("lax.lgamma({})", whole, (one,), one) == ((0,), True)
    assert same_call("lax.lgamma({})", part, (one,), one) == ((0,), False)


@pytest.mark.parametrize(
    ("fun", "call"),
    [
        (lambda x: lax.lgamma(x) + 1, "lax.lgamma(x)"),
        (lambda x: jax.scipy.special.digamma(x) + 1, "jax.scipy.special.digamma(x)"),
        (lambda x: lax.erf_inv(jnp.tanh(x) / 2), "lax.erf_inv("),
        (lambda x: lax.cumlogsumexp(x, axis=1), "lax.cumlogsumexp(x, axis=1)"),
    ],
    ids=["lgamma", "digamma", "erf_inv", "cumlogsumexp"],
)
def test_functions_of_which_xla_has_polynomials_or_windows_are_calls(fun, call):
    """With the rules of their derivatives, and without the tables of their polynomials."""
    program = Jitted(fun, (floats(8, 16),), (ROWS,), ROWS)
    made = unjit(program.jitted(), *program.args)
    source = made.as_python()
    assert call in source
    assert made.hidden_rules == ()
    assert "gradients" not in source
    assert "table" not in source
    assert len(source.splitlines()) < 30
    assert made.validate().holds


def test_a_call_is_shown_only_if_all_arguments_matter():
    """With one point `jnp.interp` returns its value, and so does a select of what is not NaN."""

    def canonical(a, nan, zero):
        return jnp.where(jnp.isnan(a), nan, jnp.where(a == 0, zero, a))

    one = (1,), "float32"
    module = jax.jit(canonical).lower(*[jnp.ones(1)] * 3).as_text()
    assert order_of_arguments("jnp.interp({}, {}, {})", module, (one,) * 3, one) is None


def layer_norm_of_rows(x):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return jnp.maximum((x - mean) / jnp.sqrt(var + 1e-5), -3.0)


NORMAL = np.random.default_rng(1).standard_normal((8, 16)).astype(np.float32)
ZEROS = np.zeros((8, 16), np.float32)
IDS = 57 * np.arange(128, dtype=np.int32).reshape(8, 16)
ONE_FAR = np.where(np.arange(16) == 0, np.float32(-100), ZEROS)
# A function that ends with a number, arguments to unjit it with, and others at which it tells
# whether the number is there.
NUMBERS_AFTER_CALLS = {
    "adam": (
        lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8),
        (NORMAL, NORMAL, NORMAL**2),
        (NORMAL, ZEROS, ZEROS),
    ),
    "sum": (lambda ids: jnp.sum(ids, axis=1) % 1000, (IDS,), (IDS,)),
    "cumsum": (lambda x: jnp.cumsum(x, axis=1) & 255, (IDS,), (IDS,)),
    "abs": (lambda x: jnp.abs(x) % 100, (IDS,), (-IDS,)),
    "logsumexp": (
        lambda x: jax.nn.logsumexp(x, axis=1) % 64.0,
        (NORMAL,),
        (300 * NORMAL,),
    ),
    "var": (lambda x: jax.lax.rsqrt(jnp.var(x, axis=1) + 1e-6), (NORMAL,), (ZEROS,)),
    "std": (lambda x: x.std(1, keepdims=True) + 1e-6, (NORMAL,), (ZEROS,)),
    "norm": (
        lambda x: jnp.linalg.norm(x, axis=1, keepdims=True) + 1e-6,
        (NORMAL,),
        (ZEROS,),
    ),
    "softmax": (
        lambda x: jnp.log(jax.nn.softmax(x, axis=1) + 1e-7),
        (NORMAL,),
        (300 * NORMAL,),
    ),
    "where": (
        lambda c, a, b: jnp.where(c > 0, a, b) + 1e-6,
        (NORMAL, NORMAL, NORMAL),
        (NORMAL, ZEROS, ZEROS),
    ),
    "relu": (lambda x: jax.nn.relu(x) + 1e-6, (NORMAL,), (-NORMAL,)),
    "tanh": (
        lambda x: jnp.tanh(x) * 1.01,
        (NORMAL.astype(jnp.bfloat16),),
        (NORMAL.astype(jnp.bfloat16),),
    ),
    "layer_norm": (layer_norm_of_rows, (NORMAL,), (ONE_FAR,)),
}


@pytest.mark.parametrize("name", NUMBERS_AFTER_CALLS)
def test_numbers_after_a_call_are_kept(name):
    fun, args, telling = NUMBERS_AFTER_CALLS[name]
    made = unjit(Jitted(fun, args, (ROWS,) * len(args)).jitted(), *args)
    found, expected = (
        np.asarray(f(*telling), np.float64) for f in (jax.jit(made.shard_map()), made.compiled)
    )
    rounding = 5e-3 if name == "tanh" else 1e-4
    np.testing.assert_allclose(found, expected, rtol=rounding, atol=1e-9)


def test_calls_stand_beside_what_the_derivative_needs():
    def loss(w, x):
        h = jax.nn.gelu(x @ w)
        return jnp.mean(jax.nn.softmax(h) ** 2)

    program = Jitted(jax.value_and_grad(loss), (floats(16, 8), floats(8, 16)), (P(), ROWS))
    text = unjit(program.jitted(), *program.args).as_python()
    assert "h = jax.nn.gelu(h_dot)" in text
    assert "jax.nn.softmax(h)" in text
    assert "h_tanh = jnp.tanh(" in text


def test_tables_of_many_numbers_are_embedded():
    table = np.arange(8 * 16, dtype=np.float32).reshape(8, 16) ** 2
    made = unjit(Jitted(lambda x: x @ (x.T * 2) @ table, (), (ROWS,)).jitted(), floats(8, 16))
    assert made.validate().source == 0.0
    assert made.embedded == ("stablehlo.constant",)
    assert jax.grad(lambda x: made.shard_map()(x).sum())(floats(8, 16)).shape == (8, 16)


def test_products_over_all_devices_are_gathered():
    program = Jitted(lambda x: jnp.prod(x, 0), (), (ROWS,)).jitted()
    made = unjit(program, floats(8, 16))
    assert 'lax.reduce(lax.all_gather(result_reduced, "i"), 1.0, lax.mul, (0,))' in made.as_python()
    x = floats(8, 16)
    ours, theirs = (jax.grad(lambda x, f=f: f(x).sum())(x) for f in (made.shard_map(), program))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_places_are_written_by_mesh_axes():
    text = unjitted("constrained").as_python()
    assert re.search(
        r'lax\.dynamic_slice_in_dim\(\s*\w+, lax\.axis_index\("i"\) \* 2, 2, axis=0', text
    )


@pytest.mark.parametrize(("is_x64", "first"), [(False, "0"), (True, "jnp.int32(0)")])
def test_the_places_of_blocks_of_two_dimensions_are_of_one_type(is_x64, first):
    args = (floats(3, 8, 8),)
    with jax.enable_x64(is_x64):
        jitted = Jitted(jnp.sin, args, (P(),), P(None, "i", "j")).jitted()
        made = unjit(jitted, *args)
        np.testing.assert_array_equal(jax.jit(made.shard_map())(*args), made.compiled(*args))
    text = "".join(made.as_python().split())
    assert f'({first},lax.axis_index("i")*' in text


def test_states_of_optimizers_are_lists_in_the_source_only():
    program, made = PROGRAMS["state"], unjitted("state")
    assert "state_mean = state[1]" in made.as_python()
    w, state = made.shard_map()(*program.args)
    assert type(state) is type(program.args[1])
    assert w.shape == program.args[0].shape


def test_a_source_that_computes_something_else_is_refused_with_its_line(monkeypatch):
    monkeypatch.setitem(SPELLINGS, "stablehlo.tanh", lambda op: call("jnp.sin", op.exact(0)))
    program = PROGRAMS["mlp"]
    line = r"the first variable to differ is h, on device 0, in line \d+: h = jnp\.sin\(x @ w1\)"
    with pytest.raises(UnjitError, match=line):
        unjit(program.jitted(), *program.args)


def test_sums_of_many_rows_are_simulated_as_xla_computes_them():
    """The gradient of a bias in bf16 adds up as many rows as the batch has."""
    rows, whole = NamedSharding(mesh(), P(("i", "j"))), NamedSharding(mesh(), P())
    x = np.random.default_rng(0).uniform(size=(8192, 4)).astype(jnp.bfloat16)
    b = np.zeros(4, jnp.bfloat16)

    def loss(b, x):
        return jnp.mean((x + b).astype(jnp.float32) ** 2)

    source = unjit(jax.jit(jax.grad(loss), in_shardings=(whole, rows)), b, x)
    validation = source.validate()
    assert validation.simulation is not None, validation.not_simulated
    assert validation.simulation <= default_tolerance(b.dtype)


@pytest.mark.slow
@needs_tpu_compiler
def test_what_the_partitioner_of_tpus_does_is_simulated_here():
    program = PROGRAMS["fsdp"]
    made = unjit(program.jitted(), *program.args, target="tpu:v5e:2x4")
    assert "as XLA's partitioner divides it for tpu:v5e:2x4" in made.as_python()
    validation = made.validate()
    assert validation.holds
    assert validation.simulation is not None
    assert collective_ops(made.as_text())["all_gather"] == 3
    theirs, ours = made.prices()
    assert ours.target == theirs.target == "tpu:v5e:2x4"
    assert ours.totals.step_seconds is not None
    assert ours.totals.sent_bytes == theirs.totals.sent_bytes


@pytest.mark.slow
@needs_gpu_compiler
def test_what_the_partitioner_of_gpus_does_is_simulated_here():
    program = PROGRAMS["mlp"]
    made = unjit(program.jitted(), *program.args, target="gpu:h100:8")
    assert "as XLA's partitioner divides it for gpu:h100:8" in made.as_python()
    validation = made.validate()
    assert validation.holds
    assert validation.simulation is not None


@pytest.mark.parametrize(
    ("fun", "found"),
    [
        (jax.jit(jnp.sin), "a program for one device"),
        (Jitted(prints, (), (ROWS,)).jitted(), "a call back into Python"),
        (Jitted(calls_a_library, (), (ROWS,)).jitted(), "a call of no_such_library"),
    ],
)
def test_programs_that_have_no_source_are_refused(fun, found):
    with pytest.raises(UnjitError, match=found):
        unjit(fun, jax.ShapeDtypeStruct((8, 16), jnp.float32))


def test_static_arguments_are_refused():
    rows = NamedSharding(mesh(), ROWS)
    fun = jax.jit(lambda n, x, m: n * x + m, in_shardings=rows, static_argnums=(0, -1))
    with pytest.raises(UnjitError, match=r"found: +2 that jax\.jit takes as static, of 3"):
        unjit(fun, 2, jnp.ones((8, 16)), 3)


def test_what_is_mapped_already_is_refused():
    sums = functools.partial(lax.psum, axis_name="i")
    by_shard_map = shard_map(sums, mesh=mesh(), in_specs=P("i"), out_specs=P())
    by_xmap = xmap(sums, in_axes=["i", ...], out_axes=[...], axis_resources={"i": "i"}, mesh=mesh())
    for mapped, kind in ((by_shard_map, "ShardMapped"), (by_xmap, "XMapped")):
        with pytest.raises(UnjitError, match=f"found: +an? {kind}: its collectives are those you"):
            unjit(mapped, jnp.ones(8))


def test_what_a_library_jitted_in_its_own_way_is_refused():
    class JitWrapped:
        lower = staticmethod(lambda x: SimpleNamespace(lowered=jax.jit(jnp.sin).lower(x)))

    with pytest.raises(UnjitError, match=r"found: +a JitWrapped\n(.*\n)+.*flax\.nnx\.split"):
        unjit(JitWrapped(), jnp.ones(8))


def test_calls_that_only_another_platform_has_are_named():
    # As a program that libtpu partitioned has one for `jnp.linalg.eigh`.
    said = "NOT_FOUND: No registered implementation for untyped custom call to EighTpu for Host"
    refused = missing_call("unjit of `f`", RuntimeError(said), is_targets=True)
    assert refused is not None
    assert refused.problems[0].found == "a call of EighTpu, which these devices do not have"
    assert "without a target" in refused.problems[0].fix


def test_shapes_have_to_be_numbers():
    (rows,) = export.symbolic_shape("rows")
    with pytest.raises(UnjitError, match=r"args\[0\]\n +found: +the shape \(rows, 16\)"):
        unjit(PROGRAMS["transpose"].jitted(), jax.ShapeDtypeStruct((rows, 16), jnp.float32))


def test_meshes_of_several_processes_are_refused():
    devices = np.array([SimpleNamespace(process_index=k // 4) for k in range(8)])
    with pytest.raises(UnjitError, match="devices of 2 processes"):
        refuse_processes("f", SimpleNamespace(is_multi_process=True, devices=devices))


def test_programs_in_the_compilation_cache_are_partitioned_again(compilation_cache):
    program = PROGRAMS["matmul"]
    sources = []
    for _ in range(3):
        jax.clear_caches()
        sources.append(unjit(program.jitted(), *program.args).as_python())
    assert sources[0] == sources[1] == sources[2]


@pytest.mark.parametrize("scale", [0.1, jnp.asarray(0.1)], ids=["number", "array"])
def test_numbers_stay_weakly_typed_for_a_target(scale):
    def step(w, scale):
        return lax.fori_loop(0, 3, lambda _, w: w - scale * jnp.sin(w), w)

    w = jnp.linspace(0, 1, 64, dtype=jnp.bfloat16)
    program = Jitted(step, (w, scale), (ROWS, P()), ROWS)
    made = unjit(program.jitted(), *program.args, target="cpu:8")
    assert made.shard_map()(w, scale).dtype == jnp.bfloat16
    theirs, ours = made.prices()
    assert theirs.memory.results == ours.memory.results == 2 * 64 // 4


def test_programs_have_to_fit_their_target():
    with pytest.raises(TargetError, match="8 devices in the mesh"):
        unjit(PROGRAMS["matmul"].jitted(), *PROGRAMS["matmul"].args, target="tpu:v5e:4x4")


def test_targets_need_their_compilers(monkeypatch):
    monkeypatch.setattr(GpuTarget, "module", "no_such_plugin")
    program = PROGRAMS["matmul"]
    found = r"no module 'no_such_plugin', which brings its compiler\n +needed: the extra 'gpu'"
    with pytest.raises(TargetError, match=found):
        unjit(program.jitted(), *program.args, target="gpu:h100:8")
    with pytest.raises(TargetError, match=found):
        search_shardings(program.fun, *program.args, target="gpu:h100:8")


def test_other_stages_than_the_body_are_refused():
    with pytest.raises(UnjitError, match="needed: 'body'"):
        unjitted("matmul").as_text("hlo")
    assert "stablehlo.replica_group_mesh_axes" in unjitted("matmul").as_text("body")


@pytest.mark.parametrize("spec", [P(), P("i")], ids=str)
def test_arrays_without_rows_keep_their_columns(spec):
    program = Jitted(lambda x, w: jnp.sin(x) @ w, (np.zeros((0, 8)), np.ones((8, 4))), (spec, P()))
    made = unjit(program.jitted(), *program.args)
    assert "jnp.zeros((0, 4), jnp.float32)" in made.as_python()


@pytest.mark.parametrize("start", [-12, -1, 1, 12])
def test_slices_begin_where_xla_begins_them(start):
    def both(x, k):
        part = jax.lax.dynamic_slice(x, (k, 0), (2, 4), allow_negative_indices=False)
        return jax.lax.dynamic_update_slice(x, 2 * part, (k, 0))

    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    program = Jitted(both, (x, np.int32(1)), (P("j"), P()), P("j"))
    made = unjit(program.jitted(), *program.args)
    found = jax.jit(made.shard_map())(x, np.int32(start))
    np.testing.assert_array_equal(found, made.compiled(x, np.int32(start)))


REGIONS_WITH_CONSTANTS = {
    "lexsort": lambda x: jnp.lexsort((x[0], x[1])),
    "two_keys": lambda x: jax.lax.sort((x, x[::-1], x * 2), num_keys=2),
    "complex_sort": lambda x: jnp.sort(x + 1j),
    "unique_rows": lambda x: jnp.unique(x[:, :4], axis=0, size=4),
    "reduce_window": lambda x: jax.lax.reduce_window(
        x, 0.0, lambda a, b: a + 0.5 * b, (1, 2), (1, 1), "VALID"
    ),
    "scatter_apply": lambda x: jax.lax.scatter_apply(
        x,
        jnp.array([[3]]),
        lambda a: a * a + 2,
        jax.lax.ScatterDimensionNumbers((1,), (0,), (0,)),
        update_shape=(1, 16),
    ),
}


@pytest.mark.parametrize("name", REGIONS_WITH_CONSTANTS)
def test_embedded_operations_keep_the_constants_of_their_regions(name):
    program = Jitted(REGIONS_WITH_CONSTANTS[name], (X,), (ROWS,)).jitted()
    made = unjit(program, X)
    assert made.embedded
    expected = np.asarray(made.compiled(X))
    for function in (made.shard_map(), jax.jit(made.shard_map())):
        np.testing.assert_array_equal(function(X), expected, strict=True)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "float32", "int64"])
@pytest.mark.parametrize("fun", [jnp.sum, jnp.prod, jnp.cumprod], ids=lambda fun: fun.__name__)
def test_sums_in_narrow_types_stay_narrow_in_64_bits(dtype, fun):
    with jax.enable_x64(True):
        x = jnp.asarray(X % 5 + 1, dtype)
        program = Jitted(lambda x: fun(x, axis=1, dtype=dtype), (x,), (ROWS,)).jitted()
        made = unjit(program, x)
        found = jax.jit(made.shard_map())(x)
        assert found.dtype == dtype
        np.testing.assert_allclose(found, made.compiled(x), rtol=1e-6)


def test_results_of_another_type_are_a_difference(monkeypatch):
    def row(op):
        return call("jnp.tanh", call("jnp.float16", op.exact(0)))

    monkeypatch.setitem(SPELLINGS, "stablehlo.tanh", row)
    program = Jitted(jnp.tanh, (X,), (ROWS,)).jitted()
    found = r"result\[0\] of the source, of type float16; the first variable to differ is tanh_2"
    with pytest.raises(UnjitError, match=found):
        unjit(program, jnp.zeros_like(X))


@pytest.mark.parametrize(
    "fun",
    [
        lambda a, b: (a + b[3:4]).reshape(16) * 2,
        lambda a, b: (a * b[2:3]).squeeze(0),
        lambda a, b: jnp.outer((a * b[2:3]).squeeze(0), b[0]),
        lambda a, b: a[0] * (-b[2:3]).reshape(16),
    ],
    ids=["sum", "product", "argument", "negative"],
)
def test_rows_are_taken_of_slices_only(fun):
    columns = P(None, "i")
    program = Jitted(fun, (X[:1], X), (columns, columns))
    made = unjit(program.jitted(), *program.args)
    found, expected = (f(*program.args) for f in (jax.jit(made.shard_map()), made.compiled))
    np.testing.assert_array_equal(found, expected)


NARROW = {
    "product": lambda x: x * 3,
    "quotient": lambda x: x // 3,
    "maximum": lambda x: jnp.maximum(x, 1),
    "where": lambda x: jnp.where(x > 1, x, 0),
    "gather": lambda x: x[jnp.array([1, 3])],
    "bits": lambda x: (x & 1) ^ (x << 1),
    "cast": lambda x: (x.astype(jnp.float32) * 1.5).astype(x.dtype),
    "sort": lambda x: jnp.sort(x, 0),
    "sorted": lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1), 1),
    "join": lambda x: jnp.concatenate([x, x]),
    "table": lambda x: x + jnp.asarray(np.arange(16) % 2, x.dtype),
}
# The JAX before lets a compiled program take no integers of 4 bits.
NARROW_INTEGERS = ("int4", "uint4") if jax.__version_info__ >= (0, 11) else ("int8", "uint8")
OF_FLOATS = ["product", "maximum", "gather", "cast", "sort", "sorted", "join", "table"]


@pytest.mark.parametrize("dtype", [*NARROW_INTEGERS, "float8_e5m2"])
def test_numbers_of_few_bits(dtype):
    names = OF_FLOATS if dtype.startswith("float") else NARROW

    def computed(x):
        return {name: NARROW[name](x) for name in names}

    x = np.asarray(X % 7, dtype)
    made = unjit(Jitted(computed, (x,), (ROWS,)).jitted(), x)
    found, expected = jax.jit(made.shard_map())(x), made.compiled(x)
    for name in names:
        assert found[name].dtype == expected[name].dtype
        np.testing.assert_array_equal(
            np.asarray(found[name]), np.asarray(expected[name]), err_msg=name
        )


def doubled_onto_another_mesh(shape, spec):
    """From a mesh to that of the same devices in the same order, and the axes in the other."""
    devices = np.array(jax.devices()[: np.prod(shape)])
    first = jax.sharding.Mesh(devices.reshape(shape), ("i", "j"))
    second = jax.sharding.Mesh(devices.reshape(shape[::-1]), ("j", "i"))
    ins, outs = NamedSharding(first, P("i", "j")), NamedSharding(second, spec)
    return jax.jit(lambda x: x * 2, in_shardings=(ins,), out_shardings=outs)


@pytest.mark.parametrize("spec", [P("i"), P("j", "i"), P(("i", "j"))], ids=str)
def test_axes_of_another_mesh_are_those_of_the_same_devices(spec):
    made = unjit(doubled_onto_another_mesh((2, 2), spec), X)
    np.testing.assert_array_equal(jax.jit(made.shard_map())(X), made.compiled(X))


def test_collectives_of_a_manual_region_have_their_own_groups():
    # They share one channel. Averages of equal numbers are the same over all axes.
    program = jax.shard_map(
        lambda x, w: (lax.pmean(x, "i"), lax.pmean(w, "j")),
        mesh=mesh(),
        in_specs=(P("i"), P(None, "j")),
        out_specs=(P(), P()),
    )
    arrays = ((jnp.ones((8, 4)), P("i")), (jnp.ones((8, 4)), P(None, "j")))
    args = [jax.device_put(x, NamedSharding(mesh(), spec)) for x, spec in arrays]
    text = unjit(jax.jit(program), *args).as_python()
    assert 'lax.psum(x, "i")' in text
    assert 'lax.psum(w, "j")' in text


@pytest.mark.parametrize("axes", ["'i'", "'j':(2)2,'i'"])
def test_groups_are_told_apart_by_channels_and_axes(axes):
    plain, turned = (
        f"replica_groups=mesh['i'=2,'j'=4]{devices} {{{axes}}}, dimensions={{0}}\n"
        for devices in ("", ", device_ids=([4,2]T(1,0))")
    )
    both = Partitioned(b"", f"channel_id=1, {plain}channel_id=2, {turned}", ()).groups(8)
    assert [channel for channel, _ in both] == [1, 2]
    assert len(set(both.values())) == 2
    with pytest.raises(ValueError, match="one channel on two orders of the devices"):
        Partitioned(b"", f"channel_id=1, {plain}channel_id=1, {turned}", ()).groups(8)


def test_parts_of_axes_are_refused():
    with pytest.raises(UnjitError, match="needed: one along whole axes of the mesh"):
        unjit(doubled_onto_another_mesh((4, 2), P("i", "j")), X)
