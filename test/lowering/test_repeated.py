"""What programs in one module share while they are lowered changes nothing of the module."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import passes, shard_map
from shmap_compiler.base.jax_compat.lowering import _Lowerings
from shmap_compiler.lowering import lower_graph
from shmap_compiler.lowering.emit_module import emit
from shmap_compiler.lowering.repeated import repeated

MESH = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
ONE = jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)


def mapped(f, mesh=MESH, **kwargs):
    return shard_map(f, mesh=mesh, in_specs=P("data"), out_specs=P("data"), **kwargs)


def of_sums(x):
    return lax.psum(jnp.tanh(x), "data") * lax.axis_index("data") + jnp.sort(x)


def of_functions(x):
    return jax.jit(jnp.sin)(lax.all_gather(x, "model", axis=1, tiled=True)[:, :8])


def of_callbacks(x):
    io_callback(lambda x: None, None, x, ordered=True)
    return lax.ppermute(x, "data", [(0, 1), (1, 0)])


def of_programs(x):
    inner = shard_map(
        lambda x: lax.psum(x, "model"), in_specs=P(), out_specs=P(), axis_names={"model"}
    )
    return inner(inner(x))


def four_times(f):
    def program(x):
        x = f(x)
        with jax.named_scope("second"):
            x = f(x)
        y = f(2 * x)
        with jax.named_scope("fourth"):
            return lax.cond(x[0, 0] > 0, f, lambda x: x, y)

    return program


PROGRAMS = {
    "sums": mapped(of_sums),
    "functions": mapped(of_functions, check_vma=False),
    "callbacks": mapped(of_callbacks, check_vma=False),
    "programs": mapped(of_programs, axis_names={"data"}),
    "one device": mapped(of_sums, ONE),
    "vmapped": jax.vmap(mapped(lambda x: lax.pmax(x, "model")), 1, 1),
}


@pytest.fixture(params=[True, False], ids=["shardy", "gspmd"])
def partitioner(request):
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", request.param)
    yield
    jax.config.update("jax_use_shardy_partitioner", before)


@jax.jit
def halved(x):
    return x / 2


@functools.partial(lax.composite, name="test.halved")
def composed(x):
    return x / 2


def is_large(x):
    return x[0, 0] > 1


def with_functions(x):
    """Programs that have equations in common which call functions of their modules."""

    def looped(k, x):
        return lax.while_loop(is_large, composed, lax.while_loop(is_large, halved, x)) * k

    for k in range(3):
        x = mapped(functools.partial(looped, k), check_vma=False)(x)
    return x


def different_programs(x):
    """They share operations: with and without functions, regions, callbacks and custom calls."""

    def number(k, x):
        found = lax.while_loop(lambda y: y.sum() < k, lambda y: jnp.sort(y * y + 1), x)
        io_callback(lambda x: None, None, x)
        ones = jnp.linalg.cholesky(jnp.eye(4) * lax.psum(jnp.abs(x[0, 0]) + 1, "data"))
        return jax.nn.silu(lax.erf(found) + x.at[0, 1].set(k)) + lax.top_k(x, 8)[0] + ones[1, 1]

    for k in range(3):
        x = mapped(functools.partial(number, k))(x)
    return x


@pytest.mark.usefixtures("partitioner")
@pytest.mark.parametrize("program", [with_functions, different_programs])
def test_what_jax_keeps_of_other_modules(monkeypatch, program):
    texts = []
    for get in (_Lowerings.get, dict.get):
        monkeypatch.setattr(_Lowerings, "get", get)
        texts.append(text(program))
    assert texts[0] == texts[1]


def test_operations_are_lowered_once(monkeypatch):
    asked = []
    monkeypatch.setattr(_Lowerings, "__setitem__", lambda *args: asked.append(1))
    text(lambda x: mapped(lambda x: x * x)(mapped(lambda x: (x * x) * x)(x)))
    assert len(asked) == 3  # nothing is kept
    asked.clear()
    monkeypatch.undo()
    kept = _Lowerings.__setitem__
    counting = lambda *args: asked.append(1) or kept(*args)  # noqa: E731
    monkeypatch.setattr(_Lowerings, "__setitem__", counting)
    text(lambda x: mapped(lambda x: x * x)(mapped(lambda x: (x * x) * x)(x)))
    assert len(asked) == 1


def text(program):
    # A new function is traced again.
    return jax.jit(lambda x: program(x)).lower(X).as_text(debug_info=True)


@pytest.mark.usefixtures("partitioner")
@pytest.mark.parametrize("name", PROGRAMS)
def test_copies_are_what_each_program_would_be(monkeypatch, name):
    ran, program, texts = [], four_times(PROGRAMS[name]), []
    monkeypatch.setattr(lower_graph, "emit", lambda *args: ran.append(1) or emit(*args))
    for keep in (repeated, lambda ctx, key, make: make()):
        monkeypatch.setattr(lower_graph, "repeated", keep)
        texts.append((len(ran), text(program)))
    (_, found), (count, expected) = texts
    assert found == expected
    # Each call in a vmap is a program of its own; a nested program also occurs twice in each.
    assert count == {"one device": 4, "callbacks": 4, "vmapped": 4, "programs": 2 + 4}.get(name, 2)


def test_passes_run_on_each(monkeypatch):
    ran = []
    monkeypatch.setattr(lower_graph, "emit", lambda *args: ran.append(1) or emit(*args))
    text(four_times(PROGRAMS["sums"]))
    assert len(ran) == 2
    with passes("canonicalize"):
        text(four_times(PROGRAMS["sums"]))
    assert len(ran) == 2 + 4
