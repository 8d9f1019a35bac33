"""What a new JAX release can break: the functions of `jax_compat`, and what the product imports."""

import ast
import contextlib
import importlib
import inspect
import os
import subprocess
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.core import Trace
from jax.experimental import checkify
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend import core as jex_core
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from shmap_compiler import shard_map
from shmap_compiler.base import jax_compat
from shmap_compiler.graph.primitive import shmap_p
from shmap_compiler.jaxprs.contents import equations

ROOT = Path(__file__).parents[2]
MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
ABSTRACT = MESH.abstract_mesh


def manual(*axes):
    return jax_compat.with_manual_axes(MESH, axes)


# ----------------------------------------------------------------------------------------- meshes


def test_abstract_mesh():
    assert isinstance(jax_compat.abstract_mesh(MESH), AbstractMesh)
    assert jax_compat.abstract_mesh(MESH).shape == MESH.shape
    assert jax_compat.abstract_mesh(ABSTRACT) is ABSTRACT


def test_axis_types():
    mixed = jax.make_mesh((2, 2), ("a", "b"), axis_types=(AxisType.Auto, AxisType.Explicit))
    assert jax_compat.axis_types(mixed) == {"a": AxisType.Auto, "b": AxisType.Explicit}
    assert jax_compat.axis_types(mixed.abstract_mesh) == jax_compat.axis_types(mixed)


def test_with_manual_axes():
    assert jax_compat.axis_types(manual("j")) == {"i": AxisType.Auto, "j": AxisType.Manual}
    again = jax_compat.with_manual_axes(manual("j"), ["i"])
    assert jax_compat.axis_types(again) == {"i": AxisType.Manual, "j": AxisType.Manual}


def test_without_manual_axes():
    both = jax_compat.with_manual_axes(MESH, ["i", "j"])
    assert jax_compat.without_manual_axes(both) == ABSTRACT
    assert jax_compat.without_manual_axes(ABSTRACT) == ABSTRACT


def test_mesh_in_scope():
    assert jax_compat.mesh_in_scope() is None
    with jax.set_mesh(MESH):
        assert jax_compat.mesh_in_scope() == ABSTRACT
    with jax.sharding.use_abstract_mesh(manual("i")):
        assert jax_compat.mesh_in_scope() == manual("i")


def test_concrete_mesh_in_scope():
    assert jax_compat.concrete_mesh_in_scope() is None
    with jax.set_mesh(MESH):
        assert jax_compat.concrete_mesh_in_scope() == MESH
        inside_jit = []
        jax.jit(lambda: inside_jit.append(jax_compat.concrete_mesh_in_scope()))()
        assert inside_jit == [None]
        with jax.sharding.use_abstract_mesh(AbstractMesh((4, 2), ("k", "l"))):
            mesh = jax_compat.concrete_mesh_in_scope()
        assert mesh == Mesh(MESH.devices.reshape(4, 2), ("k", "l"))


def test_with_axis_types_of():
    assert jax_compat.with_axis_types_of(ABSTRACT, MESH) is MESH
    other = jax_compat.with_axis_types_of(manual("i"), MESH)
    assert jax_compat.axis_types(other) == {"i": AxisType.Manual, "j": AxisType.Auto}
    assert list(other.devices.flat) == list(MESH.devices.flat)


def test_closes_over_explicit():
    mesh = jax.make_mesh((1,), ("i",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jnp.ones(2)
        with pytest.raises(NotImplementedError, match="Closing over inputs") as raised:
            jax.shard_map(lambda y: x * y, out_specs=P())(x)
    assert jax_compat.closes_over_explicit(raised.value)
    assert not jax_compat.closes_over_explicit(NotImplementedError("another"))


def test_is_of_other_mesh():
    x = jax.ShapeDtypeStruct((8,), np.float32)

    def body(x):
        with jax.sharding.use_abstract_mesh(manual("i", "j")):
            return jnp.sin(x)

    with (
        pytest.raises(ValueError, match="aval mesh") as raised,
        jax.sharding.use_abstract_mesh(manual("i")),
    ):
        jax.make_jaxpr(lambda x: body(x + 1))(x)
    assert jax_compat.is_of_other_mesh(raised.value)
    assert not jax_compat.is_of_other_mesh(ValueError("another"))


def test_enclosing_manual_axes():
    assert jax_compat.enclosing_manual_axes(MESH) == ()
    with jax.sharding.use_abstract_mesh(manual("j")):
        assert jax_compat.enclosing_manual_axes(MESH) == ("j",)
        other = jax.make_mesh((8,), ("k",), axis_types=(AxisType.Auto,))
        assert jax_compat.enclosing_manual_axes(other) == ()


# ----------------------------------------------------------------------------------------- jaxprs

SIN = jax.make_jaxpr(jnp.sin)(1.0)
TWICE = jax.make_jaxpr(lambda x: 2 * x)(1.0)
W = np.arange(3.0, dtype=np.float32)
WITH_CONSTANT = jax.make_jaxpr(lambda x: x + jnp.asarray(W))(W)


def test_is_jaxpr():
    assert jax_compat.is_jaxpr(SIN)
    assert jax_compat.is_jaxpr(jax_compat.open_jaxpr(SIN))
    assert not jax_compat.is_jaxpr(jnp.sin)
    assert not jax_compat.is_jaxpr(SIN.eqns)


def test_replace_jaxprs_in():
    class Pair(NamedTuple):
        first: Any
        second: Any

    params = {"a": SIN, "b": [1, SIN], "c": Pair(None, SIN), "d": 2.0}
    assert jax_compat.replace_jaxprs_in(params, lambda jaxpr: jaxpr) is params
    new = jax_compat.replace_jaxprs_in(params, lambda jaxpr: TWICE)
    assert new == {"a": TWICE, "b": [1, TWICE], "c": Pair(None, TWICE), "d": 2.0}
    assert type(new["c"]) is Pair


def test_jaxprs_in():
    assert jax_compat.jaxprs_in({"a": SIN, "b": (1, SIN), "c": [SIN.eqns], "d": 2.0}) == [SIN, SIN]


def test_transpose():
    def flat(a, x, y):
        return a * x + 2 * y, x

    def with_a_loop(a, x, y):
        return a * x + 2 * y, lax.fori_loop(0, 2, lambda _, z: a * z, y)

    for program, expected in ((flat, [4.0, 2.0]), (with_a_loop, [3.0, 11.0])):
        closed = jax.make_jaxpr(program)(1.0, 1.0, 1.0)
        found = jax_compat.transpose(closed, [False, True, True], [3.0], [1.0, 1.0])
        assert list(map(float, found)) == expected


def test_is_defined_in_jax():
    assert jax_compat.is_defined_in_jax(
        jax.make_jaxpr(jax.nn.relu)(1.0).eqns[0].params["call_jaxpr"]
    )
    assert not jax_compat.is_defined_in_jax(jax.make_jaxpr(lambda x: x)(1.0))


def test_defining_file():
    assert jax_compat.defining_file(jax.make_jaxpr(lambda x: x)(1.0)) == __file__


def test_has_usual_rule():
    def program(x):
        return jax.nn.relu(x), jax.nn.softmax(x), jax.nn.logsumexp(x)

    def is_usual(fun):
        names = ("custom_jvp_call", "stop_gradient")
        return [
            jax_compat.has_usual_rule(eqn)
            for eqn in equations(jax.make_jaxpr(fun)(jnp.ones(3)))
            if eqn.primitive.name in names
        ]

    assert set(is_usual(program)) == {True}
    assert is_usual(jax.lax.stop_gradient) == [False]
    halved = jax.custom_jvp(jnp.sin)
    halved.defjvp(lambda x, t: (halved(*x), t[0] / 2))
    assert is_usual(halved) == [False]


def test_saved_operands():
    @jax.custom_vjp
    def product(x, y):
        return x * y

    product.defvjp(lambda x, y: (x * y, (y, jnp.sin(x))), lambda kept, ct: (ct, ct))
    (call,) = jax.make_jaxpr(product)(1.0, 2.0).eqns

    def forward():
        call.params["fwd_jaxpr_thunk"].call_wrapped(True, True)
        return ()

    jax.make_jaxpr(forward)()
    assert jax_compat.saved_operands(call) == [1, None]


def test_is_closed():
    assert jax_compat.is_closed(SIN)
    (call,) = jax.make_jaxpr(jax.jit(jnp.sin))(1.0).eqns
    assert jax_compat.is_closed(call.params["jaxpr"])


def test_open_jaxpr():
    opened = jax_compat.open_jaxpr(SIN)
    assert isinstance(opened, jex_core.Jaxpr)
    assert [e.primitive.name for e in opened.eqns] == ["sin"]
    assert jax_compat.open_jaxpr(opened) is opened


def test_replace_jaxpr():
    for jaxpr in (SIN, jax_compat.open_jaxpr(SIN)):
        (eqn,) = jaxpr.eqns
        changed = jax_compat.replace_jaxpr(jaxpr, eqns=[eqn.replace(primitive=lax.cos_p)])
        assert type(changed) is type(jaxpr)
        assert [e.primitive.name for e in changed.eqns] == ["cos"]
        assert [e.primitive.name for e in jaxpr.eqns] == ["sin"]


def test_replace_jaxpr_keeps_the_constants_of_replaced_variables():
    constvars = list(jax_compat.open_jaxpr(WITH_CONSTANT).constvars)
    changed = jax_compat.replace_jaxpr(WITH_CONSTANT, constvars=constvars)
    assert len(jax_compat.open_jaxpr(changed).invars) == 1
    assert len(changed.consts) == 1


def test_program_of_equations():
    jaxpr = jax.make_jaxpr(lambda x: jnp.cos(jnp.sin(x)) + 1)(W)
    inner = jax_compat.open_jaxpr(jaxpr)
    sine, cosine, _ = inner.eqns
    program = jax_compat.program_of_equations(
        jaxpr, [sine, cosine], inner.invars, [cosine.outvars[0], sine.outvars[0]]
    )
    assert [e.primitive.name for e in program.eqns] == ["sin", "cos"]
    assert list(program.consts) == []
    found = jex_core.jaxpr_as_fun(program)(W)
    np.testing.assert_allclose(found, [np.cos(np.sin(W)), np.sin(W)], rtol=1e-6)


def test_close_jaxpr():
    closed = jax_compat.close_jaxpr(jax_compat.open_jaxpr(SIN))
    assert jax_compat.is_closed(closed)
    assert list(closed.consts) == []
    assert jax_compat.close_jaxpr(closed) is closed
    assert jex_core.jaxpr_as_fun(closed)(0.0) == [0.0]


def test_constants_to_inputs():
    closed, constants = jax_compat.constants_to_inputs(WITH_CONSTANT)
    assert list(closed.consts) == []
    assert [np.asarray(c).tolist() for c in constants] == [[0.0, 1.0, 2.0]]
    (result,) = jex_core.jaxpr_as_fun(closed)(*constants, W)
    np.testing.assert_array_equal(result, 2 * W)
    assert jax_compat.constants_to_inputs(SIN) == (SIN, [])


def with_psum():
    return jax_compat.trace_with_axes(lambda x: lax.psum(x, "i"), manual("i", "j"), ["i", "j"], [W])


def test_is_axis_effect():
    (effect,) = with_psum().effects
    assert jax_compat.is_axis_effect(effect, ["i"])
    assert not jax_compat.is_axis_effect(effect, ["j"])
    (printing,) = jax.make_jaxpr(lambda x: jax.debug.print("{}", x))(W).effects
    assert not jax_compat.is_axis_effect(printing, ["i"])


def test_axis_of_effect():
    (effect,) = with_psum().effects
    assert jax_compat.axis_of_effect(effect) == "i"
    (printing,) = jax.make_jaxpr(lambda x: jax.debug.print("{}", x))(W).effects
    assert jax_compat.axis_of_effect(printing) is None


def with_reference():
    def body(x):
        ref = jax.new_ref(x)
        ref[...] += 1
        return ref[...]

    return jax.make_jaxpr(body)(W)


def test_is_ref_effect():
    (effect, *_) = [e for eqn in with_reference().eqns for e in eqn.effects]
    assert jax_compat.is_ref_effect(effect)
    (psum,) = with_psum().effects
    assert not jax_compat.is_ref_effect(psum)


def test_is_ref():
    outputs = [v.aval for eqn in with_reference().eqns for v in eqn.outvars]
    assert [jax_compat.is_ref(aval) for aval in outputs].count(True) == 1
    assert not jax_compat.is_ref(SIN.in_avals[0])


def test_value_type():
    (made, *_) = [v.aval for eqn in with_reference().eqns for v in eqn.outvars]
    found = jax_compat.value_type(made)
    assert (found.shape, found.dtype, found.weak_type) == (W.shape, W.dtype, False)
    assert jax_compat.value_type(SIN.in_avals[0]) is SIN.in_avals[0]


def test_ref_view():
    def body(x, k):
        return jax.new_ref(x)[k, 1:3]

    (get,) = [
        e for e in jax.make_jaxpr(body)(jnp.ones((4, 4)), 0).eqns if e.primitive.name == "get"
    ]
    (window,) = jax_compat.ref_view(get.params["tree"], get.invars[1:])
    assert (window.sizes, window.left_out) == ((1, 2), (0,))
    assert window.starts[1] == 1
    unknown = jax.tree.structure(("a part that no step leads to",))
    assert jax_compat.ref_view(unknown, [0]) is None


def test_policy_saves():
    policies = jax.checkpoint_policies
    assert jax_compat.policy_saves(policies.everything_saveable(lax.sin_p))
    assert not jax_compat.policy_saves(policies.nothing_saveable(lax.sin_p))
    assert not jax_compat.policy_saves(offloaded("device", "pinned_host"))


def offloaded(source, target):
    policy = jax.checkpoint_policies.offload_dot_with_no_batch_dims(source, target)
    return policy(lax.dot_general_p, dimension_numbers=(((1,), (0,)), ((), ())))


def test_offload_spaces():
    spaces = jax.memory.Space
    found = jax_compat.offload_spaces(offloaded("device", "pinned_host"))
    assert found == (spaces.Device, spaces.Host)
    assert jax_compat.offload_spaces(True) is None
    with pytest.raises(ValueError, match="from 'device' to 'disk'; these must be among 'device'"):
        jax_compat.offload_spaces(offloaded("device", "disk"))


def test_in_memory_space():
    def zeros_on_host(x):
        host = jax.typeof(jax.device_put(x, jax.memory.Space.Host))
        return jax_compat.in_memory_space(jnp.zeros(3), host)

    (kept,) = jax.make_jaxpr(zeros_on_host)(jnp.zeros(3)).out_avals
    assert kept.memory_space == jax.memory.Space.Host


def on_host():
    device = jax.devices()[0]
    host = jax.sharding.SingleDeviceSharding(device, memory_kind=jax_compat.HOST_KIND)
    return jax.device_put(jnp.zeros(3), host)


def test_memory_space():
    spaces = jax.memory.Space
    assert jax_compat.memory_space(jax.typeof(on_host())) == spaces.Host
    assert jax_compat.memory_space(jax.typeof(jnp.zeros(3))) == spaces.Device
    assert jax_compat.memory_space(jax.ShapeDtypeStruct((3,), "int8")) == spaces.Device
    named = jax.ShapeDtypeStruct((3,), "int8", sharding=on_host().sharding)
    assert jax_compat.memory_space(named) == spaces.Host


def test_is_on_host():
    assert jax_compat.is_on_host(on_host())
    assert jax_compat.is_on_host(jax.typeof(on_host()))
    assert not any(map(jax_compat.is_on_host, (jnp.zeros(3), 1.0, "static")))


def test_memory_kinds():
    there, here = jax.typeof(on_host()), jax.typeof(jnp.zeros(3))
    assert jax_compat.memory_kinds([here, there]) == (None, "pinned_host")
    assert jax_compat.memory_kinds([]) == ()


def test_space_of():
    device = jax.devices()[0]
    for kind in (None, *(memory.kind for memory in device.addressable_memories())):
        sharding = jax.sharding.SingleDeviceSharding(device, memory_kind=kind)
        type_ = jax.typeof(jax.device_put(jnp.zeros(3), sharding))
        assert jax_compat.space_of(kind) == type_.memory_space


def test_scan_counts():
    def body(x, c):
        return lax.scan(lambda carry, row: ((carry[0] + row * c, carry[1] + 1), -row), (x[0], 1), x)

    jaxpr = jax.make_jaxpr(body)(W, 2.0)
    (scan,) = [e for e in jaxpr.eqns if e.primitive.name == "scan"]
    consts, carries = jax_compat.scan_counts(scan.params)
    inner = scan.params["jaxpr"]
    assert (consts, len(inner.in_avals) - consts - carries) == (1, 1)
    assert len(scan.outvars) == carries + 1


def test_shaped_array():
    plain = jax_compat.shaped_array([2, 3], np.dtype("int8"), True)
    assert (plain.shape, plain.dtype, plain.weak_type) == ((2, 3), np.int8, True)
    explicit = jax.make_mesh((8,), ("k",), axis_types=(AxisType.Explicit,)).abstract_mesh
    placed = jax_compat.shaped_array([8], np.dtype("int8"), False, NamedSharding(explicit, P("k")))
    assert placed.sharding.spec == P("k")


# --------------------------------------------------------------------------------------- lowering


def lowered_with(rule):
    """Runs `rule(ctx)` as the lowering rule of a primitive in a jit, and gives its result."""
    seen = []
    primitive = Primitive("probe")
    primitive.def_abstract_eval(lambda x: x)

    def lowering(ctx, x):
        seen.append(rule(ctx))
        return [x]

    mlir.register_lowering(primitive, lowering)
    jax.jit(primitive.bind).lower(W)
    return seen[0]


def test_fresh_module_context():
    def rule(ctx):
        with ir.Location.unknown(ctx.module_context.context):
            module = ir.Module.create()
        outer = ctx.module_context
        outer.cached_primitive_lowerings["a function"] = outer.lowering_cache["sin"] = None
        inner = jax_compat.fresh_module_context(outer, module, MESH, ["i"])
        assert inner.module is module
        assert inner.symbol_table is not outer.symbol_table
        assert "a function" not in inner.cached_primitive_lowerings
        assert inner.lowering_cache == {}
        assert inner.host_callbacks is outer.host_callbacks
        assert inner.keepalives is outer.keepalives
        return inner.axis_context.manual_axes

    assert lowered_with(rule) == {"i"}


def test_fresh_module_contexts_of_one_mesh_share_lowerings():
    def rule(ctx):
        def lowerings(mesh, *manual):
            with ir.Location.unknown(ctx.module_context.context):
                module = ir.Module.create()
            return jax_compat.fresh_module_context(
                ctx.module_context, module, mesh, manual
            ).lowering_cache

        block = types.SimpleNamespace(operations=[])
        function = types.SimpleNamespace(regions=[types.SimpleNamespace(blocks=[block])])
        found = types.SimpleNamespace(inline=True, func=function)
        lowerings(MESH, "i")["sin"] = found
        lowerings(MESH, "i")["a call"] = types.SimpleNamespace(inline=False)
        other = Mesh(MESH.devices.T, MESH.axis_names)
        return [
            lowerings(MESH, "i").get("sin") is found,
            lowerings(MESH, "i").get("a call"),
            lowerings(MESH, "i", "j").get("sin"),
            lowerings(other, "i").get("sin"),
        ]

    assert lowered_with(rule) == [True, None, None, None]


def test_kept_with_module():
    def rule(ctx):
        kept = jax_compat.kept_with_module(ctx.module_context)
        kept["a program"] = 1
        with ir.Location.unknown(ctx.module_context.context):
            module = ir.Module.create()
        inner = jax_compat.fresh_module_context(ctx.module_context, module, MESH, ["i"])
        assert jax_compat.kept_with_module(inner) == {}
        return jax_compat.kept_with_module(ctx.module_context.replace(module=module))

    assert lowered_with(rule) == {"a program": 1}
    assert lowered_with(lambda ctx: dict(jax_compat.kept_with_module(ctx.module_context))) == {}


def test_manual_axes_of():
    def rule(ctx):
        with ir.Location.unknown(ctx.module_context.context):
            module = ir.Module.create()
        context = jax_compat.fresh_module_context(ctx.module_context, module, MESH, ["j", "i"])
        return jax_compat.manual_axes_of(context)

    assert lowered_with(rule) == {"i", "j"}


@pytest.mark.parametrize("check_vma", [False, True])
def test_region_of_jax(check_vma):
    def summed(x):
        return lax.psum(x, "j")

    f = jax.shard_map(
        summed, mesh=MESH, in_specs=P("j"), out_specs=P(), axis_names={"j"}, check_vma=check_vma
    )
    (eqn,) = jax.make_jaxpr(f)(np.zeros(4)).eqns
    region = jax_compat.region_of_jax(eqn)
    assert (region.name, region.manual_axes, region.check_vma) == ("summed", {"j"}, check_vma)
    assert (region.in_specs, region.out_specs) == ((P("j"),), (P(),))
    assert jax_compat.is_closed(region.jaxpr)
    assert [v.shape for v in region.jaxpr.in_avals] == [(2,)]


def test_trace_region_of_jax():
    """As a trace of ours would be asked to run a shard_map of JAX's own."""

    class Asked(Trace):
        def process_shard_map(self, primitive, fun, operands, /, **params):
            types = [jax.typeof(x) for x in operands]
            jaxpr, returned = jax_compat.trace_region_of_jax(primitive, fun, types, params)
            asked.append(jaxpr)
            return returned([10, 20])

    asked = []
    f = jax.shard_map(lambda x: {"a": x, "b": (x,)}, mesh=MESH, in_specs=P("j"), out_specs=P("j"))
    with jex_core.set_current_trace(Asked()):
        assert f(np.zeros(4)) == {"a": 10, "b": (20,)}
    assert [eqn.primitive.name for eqn in asked[0].eqns] == ["shard_map"]


def test_lower_program():
    program = jax.make_jaxpr(lambda x: (jnp.sin(x), jnp.full(2, 3.0)))(1.0)

    def rule(ctx):
        with ir.Location.unknown(ctx.module_context.context):
            operand = mlir.ir_constant(np.float32(1))
            results, tokens = jax_compat.lower_program(
                ctx.module_context, program, {}, (), [operand]
            )
        assert tokens == {}
        return [str(r.type) for r in results], results[0].owner.name

    assert lowered_with(rule) == (["tensor<f32>", "tensor<2xf32>"], "stablehlo.sine")


def test_lowering_mesh():
    def rule(ctx):
        with ir.Location.unknown(ctx.module_context.context):
            module = ir.Module.create()
        inner = jax_compat.fresh_module_context(ctx.module_context, module, MESH, ["i"])
        return jax_compat.lowering_mesh(ctx.replace(module_context=inner))

    assert lowered_with(rule) == MESH


def type_of_axis_index():
    """Its type inside a region that is manual along i: it varies along i, if JAX tracks that."""
    return jax_compat.run_with_axes(lambda: jax.typeof(lax.axis_index("i")), manual("i"), ["i"])


def test_varying_types():
    assert type_of_axis_index().manual_axis_type.varying == frozenset()
    with jax_compat.varying_types():
        assert type_of_axis_index().manual_axis_type.varying == {"i"}
        with jax_compat.varying_types(False):
            assert type_of_axis_index().manual_axis_type.varying == frozenset()
    assert type_of_axis_index().manual_axis_type.varying == frozenset()


def test_tracks_varying_types():
    assert not jax_compat.tracks_varying_types()
    with jax_compat.varying_types():
        assert jax_compat.tracks_varying_types()
    assert not jax_compat.tracks_varying_types()


def test_unchecked_backward_rules():
    """JAX checks what a backward rule gives against the type of the argument."""

    @jax.custom_vjp
    def double(x):
        return 2 * x

    double.defvjp(lambda x: (2 * x, None), lambda _, ct: (jnp.concatenate([ct, ct]),))
    with pytest.raises(ValueError, match="must produce an output"):
        jax.grad(lambda x: double(x).sum())(W)
    with jax_compat.unchecked_backward_rules():
        assert jax.grad(lambda x: double(x).sum())(W).shape == (2 * len(W), *W.shape[1:])


def test_varying_type():
    both = manual("i", "j")
    varying = jax_compat.varying_type(jax.typeof(W), both, ["j"])
    assert (varying.shape, varying.dtype) == (W.shape, W.dtype)
    assert varying.sharding.mesh == both
    assert varying.manual_axis_type.varying == {"j"}
    mesh = jax.make_mesh((4, 2), ("i", "k"), axis_types=(AxisType.Auto, AxisType.Explicit))
    inside = jax_compat.with_manual_axes(mesh, ["i"])
    split = jax_compat.type_on_mesh(inside, [("k",)], (4,), np.float32, False)
    assert jax_compat.varying_type(split, both, ["i"]).sharding == split.sharding


def test_varies_along():
    assert jax_compat.varies_along(jax.typeof(W)) == frozenset()
    assert jax_compat.varies_along(jax_compat.varying_type(jax.typeof(W), manual("i"), ["i"])) == {
        "i"
    }


def test_without_varying_type():
    with jax_compat.varying_types():
        varying = type_of_axis_index()
    plain = jax_compat.without_varying_type(varying)
    assert varying.manual_axis_type != plain.manual_axis_type
    assert (plain.shape, plain.dtype) == ((), np.int32)
    assert plain.manual_axis_type.varying == frozenset()
    assert jax_compat.without_varying_type(plain) is plain


def test_setting():
    with jax.enable_x64(True):
        assert jax_compat.setting("jax_enable_x64") is True
    assert jax_compat.setting("jax_enable_x64") is False


def test_shardy_is_on():
    for name, on in (("shardy", True), ("gspmd", False)):
        with jax_compat.partitioner(name):
            assert jax_compat.shardy_is_on() is on
            sharding = NamedSharding(MESH, P("i"))
            text = jax.jit(lambda x: x, in_shardings=sharding).lower(np.zeros(8)).as_text()
            assert ("sdy.sharding" in text) is on


def test_partitioner():
    before = jax_compat.shardy_is_on()
    with pytest.raises(ZeroDivisionError, match="division"), jax_compat.partitioner("gspmd"):
        1 / 0  # noqa: B018
    assert jax_compat.shardy_is_on() == before


def lowered_text():
    on_i = NamedSharding(jax.make_mesh((8,), ("i",)), P("i"))
    return jax.jit(lambda x: x, in_shardings=on_i).lower(np.zeros(8)).as_text()


def test_partitioner__leaves_other_threads_as_they_are():
    before = jax_compat.shardy_is_on()
    with ThreadPoolExecutor(1) as other, jax_compat.compiling_for("gspmd" if before else "shardy"):
        assert jax_compat.shardy_is_on() != before
        assert other.submit(jax_compat.shardy_is_on).result() == before
        assert ("sdy." in other.submit(lowered_text).result()) == before
        assert ("sdy." in lowered_text()) != before


def test_compile_lowered():
    lowered, before = jax.jit(jnp.sin).lower(1.0), jax.config.jax_optimization_level
    assert jax_compat.compile_lowered(lowered, {"optimization_level": "O1"})(0.0) == 0
    assert jax.config.jax_optimization_level == before
    with pytest.raises(jax.errors.JaxRuntimeError, match="No such compile option: 'bogus'"):
        jax_compat.compile_lowered(lowered, {"bogus": 1})


def test_options_of_jit():
    options = jax_compat.options_of_jit({"optimization_level": "O1", "other": 1})
    assert options["other"] == 1
    known = {name: value for name, value in options.items() if name != "other"}
    assert jax.jit(jnp.sin, compiler_options=known)(0.0) == 0


def test_compiling_for():
    before = jax_compat.shardy_is_on()
    for name in ("gspmd", "shardy"):
        with jax_compat.compiling_for(name):
            assert jax_compat.shardy_is_on() == (name == "shardy")
    assert jax_compat.shardy_is_on() == before


# XLA logs to the standard error of a process, up to jaxlib 0.10 in each compilation for GSPMD and
# later in the first one.
COMPILES_FOR_GSPMD = """
import logging, sys, jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from shmap_compiler.base import jax_compat

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_logging_level", sys.argv[1])
logging.getLogger("jax").setLevel(logging.CRITICAL)
sharding = NamedSharding(jax.make_mesh((2,), ("i",)), P("i"))
with jax_compat.compiling_for("gspmd"):
    jax.jit(lambda x: x, in_shardings=sharding).lower(np.zeros(2)).compile()
assert logging.getLogger("jax").level == logging.CRITICAL
assert jax.config.jax_logging_level == sys.argv[1]
"""


@pytest.mark.subprocess
@pytest.mark.parametrize(("level", "warns"), [("NOTSET", False), ("WARNING", True)])
def test_compiling_for__shows_the_deprecation_of_gspmd_only_at_a_log_level_of_the_user(
    level, warns
):
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    command = [sys.executable, "-c", COMPILES_FOR_GSPMD, level]
    stderr = subprocess.run(
        command,
        env=environment | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    ).stderr
    assert ("GSPMD sharding propagation is going to be deprecated" in stderr) == warns
    assert warns or not stderr


@pytest.mark.subprocess
def test_importing_the_passes_before_jax_leaves_its_log_level():
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    command = [sys.executable, "-c", "import shmap_passes, jax; jax.devices()"]
    done = subprocess.run(
        command,
        env=environment | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stderr == ""


# ---------------------------------------------------------------------------------------- tracing


def test_trace_with_axes():
    jaxpr = with_psum()
    assert [e.primitive.name.startswith("psum") for e in jaxpr.eqns] == [True]
    assert jaxpr.out_avals[0].shape == (3,)
    with pytest.raises(NameError, match="unbound axis name"):
        jax_compat.trace_with_axes(lambda x: lax.psum(x, "i"), manual("j"), ["j"], [W])
    with pytest.raises(NameError, match="unbound axis name"):
        lax.axis_size("i")


def test_trace_in_scope():
    jaxpr = jax_compat.trace_in_scope(lambda x: lax.psum(x, ("i", "j")), [("i", 2), ("j", 4)], [W])
    assert jaxpr.out_avals == jaxpr.in_avals
    with pytest.raises(NameError, match="unbound axis name"):
        jax_compat.trace_in_scope(lambda x: lax.psum(x, "k"), [("i", 2)], [W])


def test_trace_in_scope_makes_no_trace_of_its_own(monkeypatch):
    def body(x):
        assert not jex_core.unsafe_am_i_under_a_vmap_DO_NOT_USE()
        return lax.axis_index(("k", "l")) + x

    monkeypatch.delattr(jax, "make_jaxpr")  # takes several times as long
    scalar = jax.ShapeDtypeStruct((), np.int32)
    jaxpr = jax_compat.trace_in_scope(body, [("k", 2), ("l", 3)], [scalar])
    assert not jex_core.unsafe_get_axis_names_DO_NOT_USE()
    assert [str(t) for t in jaxpr.out_avals] == ["int32[]"]


def test_trace_in_scope_tells_equal_names_of_different_types_apart():
    class Name(str):
        pass

    for name in ("k", Name("k")):
        found: list[Any] = []

        def body(found=found):
            found += jex_core.unsafe_get_axis_names_DO_NOT_USE()
            return ()

        jax_compat.trace_in_scope(body, [(name, 2)], [])
        assert [type(each) for each in found] == [type(name)]


def test_trace_in_scope_keeps_the_axes_that_are_in_scope():
    def outer(x):
        inner = jax_compat.trace_in_scope(lambda y: lax.psum(y, ("i", "j")), [("j", 4)], [x])
        assert inner.out_avals == inner.in_avals
        return x

    jax_compat.trace_in_scope(outer, [("i", 2)], [W])


@pytest.fixture
def filtered_tracebacks():
    """As JAX shows them by default; the commands that other tests call turn this off."""
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "auto")
    yield
    jax.config.update("jax_traceback_filtering", before)


@pytest.mark.usefixtures("filtered_tracebacks")
def test_trace_with_axes_ends_tracebacks_in_the_users_code():
    def wrong(x):
        return lax.add(x, jnp.ones(5))

    with pytest.raises(TypeError, match="incompatible shapes") as raised:
        jax_compat.trace_with_axes(wrong, manual("i"), ["i"], [W])
    assert raised.traceback[-1].name == "wrong"


def test_trace_with_axes_under_jax_checks():
    """Here JAX checks a program with constants, in which collectives stand."""

    def outer(w):
        jaxpr = jax_compat.trace_with_axes(lambda x: lax.psum(x * w, "i"), manual("i"), ["i"], [W])
        assert len(jaxpr.consts) == 1
        return w

    with jax.enable_checks(True):
        jax.make_jaxpr(outer)(W)


def test_run_with_axes():
    sizes = jax_compat.run_with_axes(
        lambda: lax.axis_size(("i", "j")), manual("i", "j"), ["i", "j"]
    )
    assert sizes == 8


# --------------------------------------------------------------------------- sharding in types

MIXED = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Explicit, AxisType.Auto))
I8 = np.dtype("int8")


def test_explicit_axes():
    assert jax_compat.explicit_axes(MESH) == ()
    assert jax_compat.explicit_axes(MIXED) == ("i",)
    assert jax_compat.explicit_axes(MIXED.abstract_mesh) == ("i",)


def test_type_on_mesh():
    typed = jax_compat.type_on_mesh(manual("i"), [("i",)], (8, 2), I8, False)
    assert typed.sharding == NamedSharding(manual("i"), P(None, None))
    typed = jax_compat.type_on_mesh(MIXED, [("i", "j")], (8, 2), I8, True)
    assert typed.sharding == NamedSharding(MIXED.abstract_mesh, P("i", None))
    assert (typed.shape, typed.dtype, typed.weak_type) == ((8, 2), I8, True)


def test_type_split():
    typed = jax_compat.type_on_mesh(MIXED, [(), ("j", "i")], (8, 8), I8, False)
    assert jax_compat.type_split(typed) == ((), ("i",))
    assert not any(jax_compat.type_split(jax.typeof(np.zeros((8, 8)))))


# ------------------------------------------------------------------------------------------ eager


def test_is_tracing():
    assert not jax_compat.is_tracing()
    seen = []
    jax.jit(lambda: seen.append(jax_compat.is_tracing()))()
    jax.vmap(lambda x: seen.append(jax_compat.is_tracing()) or x)(W)
    assert seen == [True, True]


def test_no_mesh():
    with jax.sharding.use_abstract_mesh(manual("i")):
        with jax_compat.no_mesh():
            assert jax.sharding.get_abstract_mesh().empty
            assert jax_compat.enclosing_manual_axes(MESH) == ()
        assert jax_compat.enclosing_manual_axes(MESH) == ("i",)


def test_no_devices_in_scope():
    with jax.set_mesh(MESH):
        with jax_compat.no_devices_in_scope():
            assert jax_compat.concrete_mesh_in_scope() is None
            elsewhere = jax.device_put(W, jax.devices()[7])
            assert jax.jit(jnp.sin)(elsewhere).devices() == {jax.devices()[7]}
        assert jax_compat.concrete_mesh_in_scope() == MESH


def test_in_scope_if_abstract():
    with jax_compat.in_scope_if_abstract(MESH.abstract_mesh):
        assert jax_compat.mesh_in_scope() == MESH.abstract_mesh
    with jax_compat.in_scope_if_abstract(MESH):
        assert jax_compat.mesh_in_scope() is None


def test_lowering_config():
    before = jax_compat.lowering_config()
    assert hash(before) == hash(jax_compat.lowering_config())
    with jax.default_matmul_precision("highest"):
        assert jax_compat.lowering_config() != before
    with jax.enable_x64(True):
        assert jax_compat.lowering_config() != before
    assert jax_compat.lowering_config() == before


def test_tracing_context():
    before = jax_compat.tracing_context()
    assert hash(before) == hash(jax_compat.tracing_context())
    scopes = (
        jax.default_matmul_precision("highest"),
        jax.numpy_rank_promotion("raise"),
        jax.sharding.use_abstract_mesh(MESH.abstract_mesh),
        set_xla_metadata(a="b"),
    )
    for scope in scopes:
        with scope:
            assert jax_compat.tracing_context() != before
    assert jax_compat.tracing_context() == before
    found = []
    for size in (2, 2, 3):
        jax.vmap(lambda _: found.append(jax_compat.tracing_context()), axis_name="b")(
            jnp.ones(size)
        )
    assert found[0] == found[1]
    assert len({before, *found}) == 3


def test_checkify_rules():
    """Those of primitives whose names do not differ between versions."""
    rules = jax_compat.checkify_rules()
    assert {"check", "cond", "scan", "while"} <= {p.name for p in rules}
    assert shmap_p in rules


@pytest.mark.parametrize("again", [False, True])
def test_add_device_errors(again):
    """To an error without any of their kinds, whose arrays are kept; and to one that has them."""

    def check(x):
        checkify.check(x < 2, "{}", x)

    def checked(error, x):
        found = jax.vmap(checkify.checkify(check))(x)[0]
        return jax_compat.add_device_errors(error, found, add)

    def add(error, new):
        fields = ("_pred", "_code", "_metadata", "_payload")
        return checkify.Error(*({**getattr(error, f), **getattr(new, f)} for f in fields))

    x = jnp.arange(4.0)
    error = jax.jit(checked)(checkify.init_error, x)
    error = jax.jit(checked)(error, x + 1) if again else error
    shapes = [leaf.shape for leaf in jax.tree.leaves(error)]
    assert (() in shapes) == again
    lines = [f"at mapped index {i}: {i + again}.0 (`check` failed)" for i in range(2 - again, 4)]
    assert error.get() == "\n".join(lines)
    with pytest.raises(checkify.JaxRuntimeError, match="at mapped index 3"):
        error.throw()


def test_print_equations_as():
    """With the table `pp_eqn_rules` and the rule `_pp_eqn` of `jax.core`, which are private."""
    primitive = Primitive("held")
    primitive.def_abstract_eval(lambda x, program, secret: x)
    program = jax.make_jaxpr(jnp.sin)(1.0)
    jax_compat.print_equations_as(primitive, lambda eqn: {"program": eqn.params["program"]})
    bind = lambda x: primitive.bind(x, program=program, secret="hidden")  # noqa: E731
    text = str(jax.make_jaxpr(bind)(1.0))
    assert "held[" in text
    assert "= sin " in text
    assert "hidden" not in text


@pytest.mark.parametrize(
    ("name", "readable"),
    [
        ("i", True),
        ("a b", True),
        ("@x", True),
        ("a\\", False),
        ("it's", jax.__version_info__ < (0, 11)),
    ],
)
def test_is_readable_name(name, readable):
    assert jax_compat.is_readable_name(name) == readable


def test_is_high_type():
    class Pair(importlib.import_module("jax.experimental.hijax").HiType):
        pass

    assert jax_compat.is_high_type(Pair())
    assert not any(map(jax_compat.is_high_type, [jax.typeof(W), jax.typeof(jax.new_ref(W))]))


def test_forbidden_axes():
    assert jax_compat.forbidden_axes() == set()
    if hasattr(jax.sharding, "no_collectives"):
        with jax.sharding.no_collectives({"i"}):
            assert jax_compat.forbidden_axes() == {"i"}


def test_forbidden_axes_at():
    (eqn,) = jax.make_jaxpr(jnp.sin)(W).eqns
    assert jax_compat.forbidden_axes_at(eqn) == set()
    if hasattr(jax.sharding, "no_collectives"):
        with jax.sharding.no_collectives({"i"}):
            (eqn,) = jax.make_jaxpr(jnp.sin)(W).eqns
        assert jax_compat.forbidden_axes_at(eqn) == {"i"}


def test_is_forbidden():
    assert not jax_compat.is_forbidden(ValueError("no"))
    if hasattr(jax.sharding, "no_collectives"):
        f = jax.shard_map(lambda x: jax.lax.psum(x, "i"), mesh=MESH, in_specs=P(), out_specs=P())
        with (
            pytest.raises(Exception, match="no_collectives") as raised,
            jax.sharding.no_collectives({"i"}),
        ):
            jax.eval_shape(f, W)
        assert jax_compat.is_forbidden(raised.value)


def test_equation_context():
    (plain,) = jax.make_jaxpr(jnp.sin)(W).eqns
    (again,) = jax.make_jaxpr(jnp.sin)(W).eqns
    with jax.threefry_partitionable(False):
        (other,) = jax.make_jaxpr(jnp.sin)(W).eqns
    key = jax_compat.equation_context(plain)
    assert key == jax_compat.equation_context(again)
    assert hash(key) == hash(jax_compat.equation_context(again))
    assert key != jax_compat.equation_context(other)


def test_call_subfunction():
    assert jax_compat.call_subfunction(lambda x, y: x - y, (5, 3)) == 2

    class Wrapped:
        def call_wrapped(self, x, y):
            return x + y

    assert jax_compat.call_subfunction(Wrapped(), (5, 3)) == 8


def test_is_key_type():
    assert jax_compat.is_key_type(jax.typeof(jax.random.key(0)))
    assert not jax_compat.is_key_type(jax.typeof(jnp.zeros(3, jnp.bfloat16)))


def test_forget_failed_effects():
    def fail(value):
        raise KeyError("of this callback")

    def program(x):
        jax.debug.callback(fail, x)
        return x

    with contextlib.suppress(jax.errors.JaxRuntimeError):
        jax.block_until_ready(jax.jit(program)(1.0))
    jax_compat.forget_failed_effects()
    jax.effects_barrier()


@pytest.mark.parametrize(("numerator", "kind"), [(0.0, "nan"), (1.0, "inf")])
def test_special_value(numerator, kind):
    with jax.debug_nans(True), jax.debug_infs(True):
        compiled = jax.jit(lambda x, y: x / y).lower(numerator, 0.0).compile()
        with pytest.raises(Exception, match=kind) as raised:
            compiled(numerator, 0.0)
    assert jax_compat.special_value(raised.value) == kind
    assert jax_compat.special_value(ValueError("nan")) is None


SUMS = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Explicit,) * 2)
SUMMED = P("i", unreduced={"j"})


def test_reductions():
    found = jax_compat.reductions(SUMMED)
    assert (found.unreduced, found.reduced) == ({"j"}, set())
    assert found.over(["j"]) == found
    assert not found.over(["i"])
    assert not jax_compat.reductions(P("i"))
    other = jax_compat.reductions(P(reduced={"i"}))
    assert (found | other) == jax_compat.reductions(P(unreduced={"j"}, reduced={"i"}))


def test_with_reductions():
    assert jax_compat.with_reductions(P("i"), jax_compat.reductions(SUMMED)) == SUMMED
    assert jax_compat.with_reductions(SUMMED, jax_compat.Reductions()) == P("i")


def test_type_reductions():
    aval = jax.ShapeDtypeStruct((8,), np.float32, sharding=NamedSharding(SUMS, SUMMED))
    assert jax_compat.type_reductions(aval) == jax_compat.reductions(SUMMED)
    assert not jax_compat.type_reductions(np.float32(1))
    full = jax_compat.type_on_mesh(
        SUMS, [("i",)], (8,), np.dtype(np.float32), False, jax_compat.reductions(SUMMED)
    )
    assert full.sharding.spec == SUMMED


def test_manual_type_reductions():
    found = []

    def body(x):
        found.append(jax_compat.manual_type_reductions(jax.typeof(x)))
        return lax.psum(x, "j")

    aval = jax.ShapeDtypeStruct((8,), np.float32, sharding=NamedSharding(SUMS, SUMMED))
    jax.eval_shape(jax.shard_map(body, mesh=SUMS, in_specs=SUMMED, out_specs=P("i")), aval)
    assert found == [jax_compat.reductions(SUMMED)]
    assert not jax_compat.manual_type_reductions(jax.typeof(1.0))


def test_reduction_kind():
    assert jax_compat.reduction_kind(None) is None
    assert jax_compat.reduction_kind("sum") == jax_compat.reductions(SUMMED).kind
    if not hasattr(jax.sharding, "UnreducedKind"):
        with pytest.raises(ValueError, match="unreduced as a max"):
            jax_compat.reduction_kind("max")


def test_refuses_unreduced():
    aval = jax.ShapeDtypeStruct((8,), np.float32, sharding=NamedSharding(SUMS, SUMMED))
    with pytest.raises(Exception, match="unreduced") as raised:
        jax.eval_shape(jnp.sin, aval)
    assert jax_compat.refuses_unreduced(raised.value)
    with pytest.raises(ValueError, match="unreduced") as own:
        raise ValueError("unreduced")
    assert not jax_compat.refuses_unreduced(own.value)


def test_needs_varying_types():
    with pytest.raises(ValueError, match="unreduced") as raised:
        jax_compat.run_with_axes(
            lambda: lax.pcast(jnp.ones(2), "i", to="unreduced"),
            jax_compat.with_manual_axes(SUMS, ("i", "j")),
            ("i", "j"),
        )
    assert jax_compat.needs_varying_types(raised.value)
    assert not jax_compat.needs_varying_types(ValueError("another"))


def test_shows_varying_type():
    def body(b):
        return lax.scan(lambda c, _: (c + lax.axis_index("j"), None), jnp.zeros(()), length=2)[0]

    f = jax.shard_map(lambda b: b + body(b), mesh=MESH, in_specs=P("j"), out_specs=P("j"))
    with pytest.raises(TypeError, match="carry") as refused:
        jax.eval_shape(f, np.zeros(4))
    assert jax_compat.shows_varying_type(refused.value)
    assert not jax_compat.shows_varying_type(TypeError("float32[2]"))


def future_type():
    """The type of what `psum_scatter_start` returns; None if this JAX has none."""
    if not hasattr(lax, "psum_scatter_start"):
        return None
    types = []

    def body(b):
        future = lax.psum_scatter_start(b, "i", scatter_dimension=0, tiled=True)
        types.append(jax.typeof(future))
        return future.done()

    jax.eval_shape(jax.shard_map(body, mesh=MESH, in_specs=P("i"), out_specs=P("i")), np.ones(16))
    return types[0]


def test_is_future():
    assert not jax_compat.is_future(jax.typeof(W))
    future = future_type()
    assert future is None or jax_compat.is_future(future)


def test_settled():
    assert jax_compat.settled(jax.typeof(W)) == jax.typeof(W)
    future = future_type()
    assert future is None or jax_compat.settled(future).shape == (1,)


def test_wants_future():
    with pytest.raises(AttributeError, match="done") as refused:
        jax.eval_shape(lambda x: x.done(), W)
    assert jax_compat.wants_future(refused.value)
    assert not jax_compat.wants_future(AttributeError("no attribute shape"))


def test_tensor_sharding():
    with ir.Context() as context:
        sdy.register_dialect(context)
        dims = [sdy.DimensionShardingAttr.get([sdy.AxisRefAttr.get("i")], is_closed=True)]
        made = jax_compat.tensor_sharding("mesh", dims, jax_compat.reductions(SUMMED), SUMS)
        assert str(made) == '#sdy.sharding<@mesh, [{"i"}], unreduced={"j"}>'


def test_unreduced_axes():
    """Shardy has names of what combines summands where JAX has several."""
    reduces = jax_compat.reductions(SUMMED)
    kind = None if reduces.kind is None else sdy.ReductionOp.SUM
    assert jax_compat.unreduced_axes(reduces, SUMS) == (("j",), kind)
    assert jax_compat.unreduced_axes(jax_compat.reductions(P("i")), SUMS) == ((), None)


def test_groups_among_other_meshes():
    """What goes wrong with "axes" is in test_other_meshes.py."""
    assert jax_compat.groups_among_other_meshes() == (
        "one-axis" if hasattr(sdy, "ReductionOp") else "ids"
    )


def test_keep_unreduced():
    """JAX refuses to lower what makes an unreduced value without the constraint."""

    def text(spec):
        f = shard_map(lambda x: x, mesh=SUMS, in_specs=spec, out_specs=spec)
        sharding = NamedSharding(SUMS, spec)
        return jax.jit(f).lower(jax.ShapeDtypeStruct((8,), np.float32, sharding=sharding)).as_text()

    last = text(SUMMED).rpartition("return")[0].splitlines()[-2]
    assert "sdy.sharding_constraint" in last
    assert 'unreduced={"j"}' in last
    assert "unreduced" not in text(P("i"))


@pytest.mark.parametrize(
    ("dtype", "bits"), [("int4", 4), ("bool", 8), ("uint8", 8), ("bfloat16", 16), ("float64", 64)]
)
def test_bits_of(dtype, bits):
    assert jax_compat.bits_of(jnp.dtype(dtype)) == bits


@pytest.mark.parametrize("dtype", ["int4", "float32"])
def test_ahead_of_time(dtype):
    x = jnp.arange(4).astype(dtype)
    function = jax_compat.ahead_of_time(jax.jit(lambda x: x + x), [jax.typeof(x)])
    np.testing.assert_array_equal(np.asarray(function(x), int), [0, 2, 4, 6])


@pytest.mark.filterwarnings("ignore:.*with mesh")
def test_is_axis_of_with_mesh():
    with MESH:
        found = [jax_compat.is_axis_of_with_mesh(name) for name in ("i", "j", "k")]
    assert found == [True, True, False]
    assert not jax_compat.is_axis_of_with_mesh("i")


@pytest.mark.parametrize("dtype", ["int4", "float32"])
def test_call_compiled(dtype):
    x = jax.device_put(jnp.arange(4).astype(dtype), NamedSharding(MESH, P("i")))
    compiled = jax.jit(lambda x: x + x).lower(x).compile()
    found = jax_compat.call_compiled(compiled, [x])
    np.testing.assert_array_equal(np.asarray(found, int), [0, 2, 4, 6])
    with pytest.raises(TypeError, match=r"float32\[3\]"):
        jax_compat.call_compiled(compiled, [jnp.ones(3)])


def test_once_per_type():
    made: list[int] = []

    @jax_compat.once_per_type
    def double(x: int) -> int:
        """Doubles."""
        made.append(x)
        return 2 * x

    setting = "jax_remove_size_one_mesh_axis_from_type"
    before = jax_compat.setting(setting)
    assert [double(1), double(1), double(2)] == [2, 2, 4]
    assert made == [1, 2]
    assert double.__doc__ == "Doubles."
    try:
        jax.config.update(setting, not before)
        assert double(1) == 2
    finally:
        jax.config.update(setting, before)
    assert made == [1, 2, 1]


def test_every_function_has_a_test():
    functions = {
        name
        for name, value in vars(jax_compat).items()
        if inspect.isfunction(value) and value.__module__.startswith(jax_compat.__name__)
    }
    public = {name for name in functions if not name.startswith("_")}
    assert len(public) > 15
    assert {name for name in public if f"test_{name}" not in globals()} == set()


# ----------------------------------------------------------------------------- what may be imported

PRODUCT = sorted(
    p for room in ("shmap_compiler", "passes", "tools") for p in (ROOT / room).rglob("*.py")
)
for_each_file = pytest.mark.parametrize(
    "path", PRODUCT, ids=[str(p.relative_to(ROOT)) for p in PRODUCT]
)


def imported(tree):
    """Every module that is imported, and every name taken from one, in full: `jax.lax.psum`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def dotted(tree):
    """Every name and dotted name in use."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Name, ast.Attribute)):
            yield ast.unparse(node)


def violations(text, path):
    tree = ast.parse(text)
    used = {*imported(tree), *dotted(tree)}
    text_of_strings = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    for name in used:
        if "jax._src" in name or "jaxlib._src" in name:
            yield f"{name}: private module"
        if name in ("jax.shard_map", "jax.pmap") or name.startswith("jax.experimental.shard_map"):
            yield f"{name}: only tests may call the oracle"
        if path.is_relative_to(ROOT / "passes") and (name == "jax" or name.startswith("jax.")):
            yield f"{name}: passes know MLIR only"
    for text in text_of_strings:
        if isinstance(text, str) and text.startswith(("jax._src", "jaxlib._src")):
            yield f"{text!r}: private module by its name"


@for_each_file
def test_imports_keep_the_walls(path):
    assert list(violations(path.read_text(), path)) == []


@pytest.mark.parametrize(
    "text",
    [
        "import jax._src.core",
        "from jax._src import core",
        "import jax\njax._src.core.Jaxpr",
        "from jax import shard_map",
        "import jax\njax.shard_map(f)",
        "from jax.experimental.shard_map import shard_map",
        "import jax\njax.pmap(f)",
        "import importlib\nimportlib.import_module('jax._src.core')",
        "import jax",
        "from jax.interpreters import mlir",
    ],
)
def test_import_check_sees_violations(text):
    assert list(violations(text, ROOT / "passes" / "any.py"))


@pytest.mark.subprocess
def test_passes_run_without_jax():
    """What the imports promise, seen in a fresh interpreter."""
    program = "import sys, shmap_passes; shmap_passes.pipeline(); print('jax' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout == "False\n"


def test_without_high_primitives():
    mesh = jax_compat.with_manual_axes(MESH, MESH.axis_names)
    jaxpr = jax.make_jaxpr(lambda x: jnp.searchsorted(jnp.arange(4.0), x))(np.zeros(3, np.float32))
    lowered = jax_compat.without_high_primitives(jaxpr, mesh, MESH.axis_names)
    assert not getattr(lowered, "is_high", False)
    assert (lowered is jaxpr) == (not getattr(jaxpr, "is_high", False))


def test_holds_functions():
    def root(b):
        return jax.lax.custom_root(
            lambda y: y - b, b, lambda f, y: y - f(y), lambda g, y: y / g(jnp.ones_like(y))
        )

    eqns = jax.make_jaxpr(root)(1.0).eqns
    from_0_11_on = jax.__version_info__ >= (0, 11)
    assert [jax_compat.holds_functions(eqn) for eqn in eqns].count(True) == from_0_11_on
    assert not any(map(jax_compat.holds_functions, jax.make_jaxpr(jnp.sin)(1.0).eqns))


def doubled():
    """An equation that has a backward rule, on flat values."""
    call = jax.custom_vjp(lambda x: {"twice": 2 * x})
    call.defvjp(
        lambda x: ({"twice": 2 * x}, None), lambda _, g: (3 * g["twice"],), generic_batching=True
    )
    (eqn,) = jax.make_jaxpr(call)(1.0).eqns
    return eqn


SINCE_012 = pytest.mark.skipif(jax.__version_info__ < (0, 12), reason="new in JAX 0.12")


@SINCE_012
def test_has_backward_rule():
    assert jax_compat.has_backward_rule(doubled())
    assert not any(map(jax_compat.has_backward_rule, jax.make_jaxpr(jnp.sin)(1.0).eqns))


@SINCE_012
def test_setting_of_form():
    assert jax_compat.setting_of_form(doubled()) == "jax_custom_vjp3"
    assert not any(map(jax_compat.setting_of_form, jax.make_jaxpr(jnp.sin)(1.0).eqns))


def test_with_types_in():
    eqn = jax.make_jaxpr(lambda x: jnp.searchsorted(jnp.arange(4.0), x))(1.0).eqns[-1]
    while eqn.primitive.name != jax_compat.HIGH_PRIMITIVE and "jaxpr" in eqn.params:
        eqn = eqn.params["jaxpr"].eqns[-1]
    params = jax_compat.with_types_in(eqn, lambda _: "a type")
    if eqn.primitive.name != jax_compat.HIGH_PRIMITIVE:
        assert params is eqn.params
        return
    held = params["_prim"]
    assert held == eqn.params["_prim"]
    assert held.in_avals_flat == ["a type"] * len(eqn.invars)
    assert (held.out_aval, held.out_avals_flat) == ("a type", ["a type"])
    assert eqn.params["_prim"].out_aval != "a type"


@SINCE_012
def test_run_expanded():
    assert jax_compat.run_expanded(doubled(), [4.0]) == [8.0]


@SINCE_012
def test_run_forward_rule():
    results, _residuals = jax_compat.run_forward_rule(doubled(), [4.0], [True])
    assert results == [8.0]


@SINCE_012
def test_run_backward_rule():
    eqn = doubled()
    _results, residuals = jax_compat.run_forward_rule(eqn, [4.0], [True])
    assert jax_compat.run_backward_rule(eqn, residuals, [jnp.float32(1.0)]) == [3.0]


def test_described_as():
    def user(params, *rest):
        return params

    def flat(*blocks):
        return blocks[0] if blocks[1] else -blocks[0]

    described = jax_compat.described_as(flat, user, 3, ["args[0]['a']", "args[2]"])
    with pytest.raises(jax.errors.TracerBoolConversionError, match=r"function user .*rest\[1\]"):
        jax.make_jaxpr(described)(1.0, 2.0)


def test_described_alike():
    def user(x):
        return x

    def outer(x):
        return x if x else -x

    inner = jax_compat.described_as(lambda x: x, user, 1, ["args[0]"])
    with pytest.raises(jax.errors.TracerBoolConversionError, match="function user "):
        jax.make_jaxpr(jax_compat.described_alike(outer, inner))(1.0)
    assert not hasattr(jax_compat.described_alike(lambda x: x, user), "__fun_debug_info__")
