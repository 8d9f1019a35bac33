"""Primitives that hold programs or name mesh axes are known to all rules, refused, or safe."""

import functools
import importlib
import inspect
import pkgutil
import sys

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src import core
from jax._src.lax import parallel
from jax.experimental import compute_on, scheduling_groups
from jax.extend import core as jex_core
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import BodyError, HangError, shard_map
from shmap_compiler.base.jax_compat import is_jaxpr, replace_jaxpr, with_manual_axes
from shmap_compiler.jaxprs.held_programs import ALWAYS_RUN, CALLS, KERNELS, called_program
from shmap_compiler.replication.region_dataflow import _WIRINGS
from shmap_compiler.tracing.canonicalize_collectives import (
    _LOWERED_BY_JAX,
    COLLECTIVE_NAMES,
    normalize,
)

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
X = np.arange(32, dtype=np.float32).reshape(8, 4) / 16
ON_I = P("i")


def mapped(fun, **options):
    return shard_map(fun, mesh=MESH, in_specs=ON_I, out_specs=ON_I, **options)


# ------------------------------------------------------------------------ primitives of this JAX


@pytest.fixture(scope="module")
def primitives():
    """Name -> names of parameters, of the primitives of JAX's public modules."""
    modules = [m.name for m in pkgutil.iter_modules(jax.experimental.__path__) if not m.ispkg]
    for name in (*modules, "pallas", "pallas.tpu", "pallas.triton"):
        importlib.import_module(f"jax.experimental.{name}")
    found = {}
    of_jax = [m for name, m in list(sys.modules.items()) if name.partition(".")[0] == "jax"]
    for each in (value for module in of_jax for value in list(vars(module).values())):
        if isinstance(each, core.Primitive):
            found.setdefault(each.name, set()).update(parameters(each))
    return found


def parameters(primitive):
    """The parameters that its type rule or its implementation takes, through all wrappers."""
    rules = [primitive.abstract_eval, primitive.impl, getattr(primitive, "to_lojax", None)]
    stack, seen, found = rules, set(), set()
    while stack:
        fun = stack.pop()
        if id(fun) in seen or not callable(fun):
            continue
        seen.add(id(fun))
        try:
            signature = inspect.signature(fun)
        except (TypeError, ValueError):
            continue
        found |= {k for k, v in signature.parameters.items() if v.kind == v.KEYWORD_ONLY}
        cells = getattr(fun, "__closure__", None) or ()
        stack += [cell.cell_contents for cell in cells if filled(cell)]
        stack += [getattr(fun, name) for name in ("func", "__wrapped__") if hasattr(fun, name)]
    return found


def filled(cell):
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def holds_programs(names):
    return any("jaxpr" in n or n in ("branches", "call", "callee") for n in names)


IN_KERNELS = {"emit_pipeline", "parallel_loop", "pipeline_body", "run_scoped", "scatter"}
ONE_DEVICE = {"cudnn_fusion", "custom_fusion", "custom_partitioning", "fusible"}
SAFE = {
    **dict.fromkeys(IN_KERNELS, "stands in kernels only, which are not looked into"),
    **dict.fromkeys(ONE_DEVICE, "taken to run its programs any number of times"),
    "remat_opt": "exists inside derivatives of JAX only, taken to run its programs any number of"
    " times",
    "shard_map": "JAX's own, taken to run its program any number of times",
}


def test_every_primitive_that_holds_programs_is_in_a_table(primitives):
    holding = {name for name, names in primitives.items() if holds_programs(names)}
    assert {"jit", "scan", "pallas_call", "custom_linear_solve"} <= holding
    # The language of `thunky` compiles its programs by itself, for one GPU.
    holding = {name for name in holding if not name.startswith("thunky.")}
    known = CALLS | ALWAYS_RUN | KERNELS | set(_WIRINGS) | set(SAFE)
    assert holding <= known, f"new primitives that hold programs: {sorted(holding - known)}"


def test_every_collective_of_jax_is_rewritten_or_refused(primitives):
    """A primitive that names axes is one of ours, or `normalize` refuses it."""
    family = [p for p in vars(parallel).values() if isinstance(p, core.Primitive)]
    family += [p for p in vars(core).values() if isinstance(p, core.Primitive)]
    naming = {p for p in family if {"axes", "axis_name"} & primitives[p.name]}
    assert {"psum", "ppermute", "axis_index"} <= {p.name for p in naming}
    unknown = [p for p in naming if p.name not in COLLECTIVE_NAMES | _LOWERED_BY_JAX]
    for primitive in unknown:
        for parameter in {"axes", "axis_name"} & primitives[primitive.name]:
            with pytest.raises(BodyError, match="a collective that shmap_compiler does not know"):
                normalized(primitive, {parameter: ("i",)})


def test_collective_known_by_its_effect_only():
    primitive = jex_core.Primitive("hidden")
    with pytest.raises(BodyError, match=r"(?s)hidden over 'i' .*does not know"):
        normalized(primitive, {}, {core.NamedAxisEffect("i")})


def normalized(primitive, params, effects=frozenset()):
    program = jax.make_jaxpr(jnp.sin)(1.0)
    (eqn,) = program.jaxpr.eqns
    eqn = eqn.replace(primitive=primitive, params=params, effects=set(effects))
    axes = ("i", "j")
    program = replace_jaxpr(program, eqns=[eqn])
    return normalize(program, with_manual_axes(MESH, axes), axes, "`f`")


def test_no_primitive_is_in_two_tables():
    tables = [CALLS, ALWAYS_RUN, KERNELS, set(_WIRINGS)]
    assert len(set().union(*tables)) == sum(map(len, tables))


# ------------------------------------------------------------------------------------- unknown

mystery_p = jex_core.Primitive("mystery")
mystery_p.multiple_results = True
mystery_p.def_abstract_eval(lambda *types, jaxpr: jaxpr.out_avals)


def mystery(fun, *args):
    return mystery_p.bind(*args, jaxpr=jax.make_jaxpr(fun, axis_env=[("i", 4)])(*args))[0]


def test_collective_in_an_unknown_primitive_may_hang():
    def body(x):
        return mystery(lambda y: lax.psum(y, "i"), x)

    with pytest.raises(HangError, match=r"(?s)psum over 'i' .*inside the mystery"):
        mapped(body).trace(X)
    assert mapped(body, check_hangs=False).trace(X)


def test_results_of_an_unknown_primitive_vary_with_all_it_holds():
    def body(x):
        return mystery(lambda y: y * lax.axis_index("i"), jnp.ones(()))[None]

    assert mapped(body).trace(X).replication.outputs == ({"i"},)


# ------------------------------------------------------------------------------------------ calls


def scheduled(fun):
    return scheduling_groups.scheduling_group("together")(fun)


def ordered(fun):
    overlap = pytest.importorskip("jax.experimental.overlap")
    return overlap.program_order(fun, enforce=True)


def on_the_host(fun):
    if "out_memory_spaces" in inspect.signature(compute_on.compute_on).parameters:
        space = jax.memory.Space.Device
        return compute_on.compute_on(fun, compute_type="device_host", out_memory_spaces=space)
    return compute_on.compute_on("device_host")(jax.jit(fun))


WRAPPERS = [scheduled, ordered, on_the_host, jax.jit, jax.checkpoint, jax.named_call]
GRADIENT_WRAPPERS = pytest.mark.parametrize("wrap", WRAPPERS, ids=lambda w: w.__name__)


@GRADIENT_WRAPPERS
def test_collective_in_a_call(wrap):
    """It ends variation, stops no device, and has a derivative."""
    summed = wrap(lambda x: lax.psum(jnp.sin(x), "i"))

    def loss(shard_map, x):
        total = shard_map(
            lambda x: (summed(x) * x, summed(x)),
            mesh=MESH,
            in_specs=ON_I,
            out_specs=(ON_I, P()),
        )
        return sum(jnp.sum(y**2) for y in total(x))

    ours, theirs = (
        jax.jit(jax.value_and_grad(functools.partial(loss, each)))(X)
        for each in (shard_map, jax.shard_map)
    )
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-6)
    np.testing.assert_allclose(ours[1], theirs[1], rtol=1e-5)


def test_composite():
    def body(x):
        return lax.composite(lambda y: lax.psum(y, "i"), "my.sum")(x)

    program = shard_map(body, mesh=MESH, in_specs=ON_I, out_specs=P())
    expected = X.reshape(4, 2, 4).sum(0)
    np.testing.assert_allclose(jax.jit(program)(X), expected)
    np.testing.assert_allclose(program(X), expected)


def test_calls_hold_one_program():
    graph = mapped(lambda x: jax.jit(jnp.sin)(x)).trace(X)
    (eqn,) = graph.jaxpr.jaxpr.eqns
    assert is_jaxpr(eqn.params[called_program(eqn)])
    assert called_program(eqn.params["jaxpr"].jaxpr.eqns[0]) is None
