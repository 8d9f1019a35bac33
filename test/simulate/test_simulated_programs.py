"""Programs in the simulator: equal to what XLA computes, in every form, with every exchange."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from example_programs import MODULES, arguments
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from run_module import jax_partitioner
from shmap_passes.ir.mesh import Mesh

from shmap_compiler import Simulation, call_stablehlo, shard_map, simulate_module
from shmap_compiler.base.errors import SimulationError
from shmap_compiler.simulate.part_axes import AxisPart, FinerMesh, ImpossiblePart

mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
on_mesh = partial(shard_map, mesh=mesh)
x = jnp.arange(64.0).reshape(8, 8) / 7


def with_lines(lowered):
    return lowered.as_text(debug_info=True)


def assert_close(found, expected):
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        wide = np.asarray(theirs).astype(np.complex128)
        largest = np.abs(wide).max(initial=0.0)
        eps = 4 * float(ml_dtypes.finfo(theirs.dtype).eps) if theirs.dtype.kind in "fcV" else 0
        difference = np.abs(np.asarray(ours).astype(np.complex128) - wide).max(initial=0.0)
        assert difference <= eps * largest, difference / largest


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("fft_by_all_to_all", "poisson"),
        ("mixture_of_experts", "mixture"),
        ("transformer_2d", "transformer_layer"),
    ],
)
def test_examples_equal_the_compiled_program_in_every_form(file, name):
    f, args = getattr(MODULES[file], name), arguments(file, name)
    lowered = f.lower(*args, partitioner="shardy")
    body = lowered.simulate(*args, stage="body")
    assert_close(body.results, lowered.compile()(*args))
    for partitioner in ("gspmd", "shardy"):
        last = f.lower(*args, partitioner=partitioner, groups="ids").simulate(*args)
        assert last.hang is None
        assert not last.unequal
        for ours, theirs in zip(last.arrays, body.arrays, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@jax.jit
def summed(b):
    return lax.psum(b, "j")


FLOAT8 = [
    *(jnp.float8_e3m4, jnp.float8_e4m3, jnp.float8_e4m3fn, jnp.float8_e4m3fnuz),
    *(jnp.float8_e4m3b11fnuz, jnp.float8_e5m2, jnp.float8_e5m2fnuz),
]


def in_every_float8(b):
    """Rounded, sent, multiplied in 8 bits, and compared with what is not a multiple of 1/8."""
    sent = [lax.ppermute((b - 3.3).astype(t), "i", [(0, 1), (2, 3)]) for t in FLOAT8]
    return sum(((s * s).astype(b.dtype) + s.astype(b.dtype)) * 2**k for k, s in enumerate(sent))


COLLECTIVES = {
    "psum": lambda b: lax.psum(b, "i"),
    "pmax over both": lambda b: lax.pmax(b, ("j", "i")),
    "psum of groups": lambda b: lax.psum(b, "i", axis_index_groups=[[0, 2], [1, 3]]),
    "all_gather": lambda b: lax.all_gather(b, ("i", "j"), axis=1, tiled=True)[:, :4],
    "psum_scatter": lambda b: jnp.tile(lax.psum_scatter(b, "j", tiled=True), (2, 1)),
    "all_to_all": lambda b: lax.all_to_all(b, "j", 0, 1, tiled=True).reshape(2, 4),
    "ppermute": lambda b: lax.ppermute(b, "i", [(0, 3), (2, 1)]),
    "axis_index": lambda b: b + lax.axis_index(("j", "i")),
    "loop": lambda b: lax.fori_loop(0, 3, lambda k, c: lax.ppermute(c, "j", [(0, 1)]) + k, b),
    "branch": lambda b: lax.cond(
        lax.psum(b, ("i", "j"))[0, 0] > 1, lambda c: lax.psum(c, "i"), jnp.sin, b
    ),
    "call": lambda b: summed(b) + summed(2 * b),
    "booleans": lambda b: lax.pmax(b > 3, "i").astype(b.dtype),
    "bfloat16": lambda b: lax.psum(jnp.round(b).astype(jnp.bfloat16) * 3, "i").astype(b.dtype),
    "float8": lambda b: lax.all_gather(b.astype(jnp.float8_e4m3fn), "i")[2].astype(b.dtype),
    "every float8": in_every_float8,
    "int4": lambda b: lax.ppermute(b.astype(jnp.int4), "i", [(0, 1)]).astype(b.dtype),
    "complex": lambda b: jnp.abs(lax.psum(jnp.exp(1j * b), "i")),
    "random": lambda b: b + jax.random.normal(jax.random.key(3), b.shape),
    "rbg": lambda b: b + jax.random.normal(jax.random.key(3, impl="rbg"), b.shape),
}  # fmt: skip


@pytest.mark.parametrize("name", COLLECTIVES)
def test_operations_equal_those_of_xla_in_modules_of_ours_and_of_jax(name):
    specs = {"mesh": mesh, "in_specs": P("i", "j"), "out_specs": P("i", "j")}
    ours = shard_map(COLLECTIVES[name], **specs)
    theirs = jax.jit(jax.shard_map(COLLECTIVES[name], check_vma=False, **specs))
    expected = theirs(x)
    simulated = simulate_module(with_lines(theirs.lower(x)), [x])
    assert simulated.axes == {"i": 4, "j": 2}
    assert_close(simulated.results[0], expected)
    for partitioner in ("gspmd", "shardy"):
        lowered = ours.lower(x, partitioner=partitioner)
        assert_close(lowered.simulate(x).results, expected)
        whole = simulate_module(with_lines(lowered.jax_lowered), [x], axes=dict(mesh.shape))
        assert_close(whole.results[0], expected)


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("stage", ["body", None])
def test_regions_that_are_manual_over_some_axes(partitioner, stage):
    def f(b):
        return lax.psum(b * lax.axis_index("i"), "i")

    mapped = on_mesh(f, in_specs=P("i"), out_specs=P(), axis_names={"i"})
    lowered = mapped.lower(x, partitioner=partitioner)
    assert_close(lowered.simulate(x, stage=stage).results, lowered.compile()(x))


def test_regions_in_regions_and_what_is_around_them():
    def inner(b):
        return lax.psum(b * lax.axis_index("j"), ("i", "j"))

    def outer(b):
        inside = jax.shard_map(inner, in_specs=P(None, "j"), out_specs=P(), axis_names={"j"})
        return inside(jnp.sin(b))

    mapped = jax.shard_map(outer, mesh=mesh, in_specs=P("i"), out_specs=P(), axis_names={"i"})
    jitted = jax.jit(lambda x: mapped(x + 1) * 2)
    simulated = simulate_module(with_lines(jitted.lower(x)), [x])
    assert_close(simulated.results[0], jitted(x))
    assert [e.group for e in simulated.exchanges] == [tuple(range(8))]


def test_every_exchange_is_recorded():
    def f(b):
        return lax.fori_loop(0, 2, lambda _, c: lax.psum(c, "j") / 2, b)

    lowered = on_mesh(f, in_specs=P("i", "j"), out_specs=P("i", "j")).lower(x)
    exchanges = lowered.simulate(x).exchanges
    assert len(exchanges) == 2 * 4
    first = exchanges[0]
    assert (first.kind, first.axes, first.group) == ("all_reduce", ("j",), (0, 1))
    assert (first.shapes, first.dtypes, first.bytes) == (((2, 4),), ("float32",), 32)
    assert first.line.startswith("test/simulate/test_simulated_programs.py:")
    assert [e.rounds for e in exchanges if e.group == (0, 1)] == [(0,), (1,)]


def test_results_of_each_device():
    def f(b):
        return {"rank": lax.axis_index("i") + jnp.zeros(1, jnp.int32), "sum": lax.psum(b, "j")}

    mapped = on_mesh(f, in_specs=P("i", "j"), out_specs={"rank": P("i"), "sum": P("i")})
    simulation = mapped.lower(x).simulate(x)
    assert isinstance(simulation, Simulation)
    assert [simulation.on_device(d)["rank"].item() for d in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert simulation.results["rank"].tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(simulation.on_device(5)["sum"], x[4:6, :4] + x[4:6, 4:])


def reduced_by(reduction, element="f32", operand=None, kind="all_reduce"):
    """A module that reduces the halves of an array of `operand` elementwise."""
    t, given = f"tensor<{element}>", f"tensor<4x{operand or element}>"
    scatters = kind == "reduce_scatter"
    result = f"tensor<{2 if scatters else 4}x{element}>"
    config = "scatter_dimension = 0 : i64, " if scatters else ""
    out = '"i"' if scatters else ""
    return f"""
    sdy.mesh @mesh = <["i"=2]>
    func.func public @main(%arg0: {given} {{sdy.sharding = #sdy.sharding<@mesh, [{{"i"}}]>}})
        -> ({result} {{sdy.sharding = #sdy.sharding<@mesh, [{{{out}}}]>}})
        attributes {{sdy.manual_axes = #sdy<manual_axes{{"i"}}>}} {{
      %k = stablehlo.constant dense<3> : tensor<i32>
      %0 = "stablehlo.{kind}"(%arg0) <{{
          {config}replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}}> ({{
      ^bb0(%a: {t}, %b: {t}):
        {reduction}
        stablehlo.return %r : {t}
      }}) : ({given}) -> {result}
      return %0 : {result}
    }}
    func.func private @total(%a: {t}, %b: {t}) -> {t} {{
      %0 = func.call @add(%a, %b) : ({t}, {t}) -> {t}
      return %0 : {t}
    }}
    func.func private @add(%a: {t}, %b: {t}) -> {t} {{
      %0 = stablehlo.add %a, %b : {t}
      return %0 : {t}
    }}"""


@pytest.mark.parametrize("kind", ["all_reduce", "reduce_scatter"])
@pytest.mark.parametrize(
    "reduction",
    [
        "%r = stablehlo.add %a, %b : tensor<f32>",
        """%c = stablehlo.negate %a : tensor<f32>
        %r = stablehlo.subtract %b, %c : tensor<f32>""",
    ],
)
def test_elements_are_converted_to_the_type_of_the_reduction(reduction, kind):
    full = np.array([60000, 1, 2, 3, 60000, 5, 6, 7], np.float16)
    (found,) = simulate_module(reduced_by(reduction, "f32", "f16", kind), [full]).results
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [120000, 6, 8, 10])


@pytest.mark.parametrize("dtype", [jnp.bfloat16, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("scatters", [False, True])
def test_sums_over_devices_of_narrow_types_are_rounded_once(dtype, scatters):
    """If each addition were rounded, the ones would not change the first summand."""
    first = 2 / float(jnp.finfo(dtype).eps)
    full = np.repeat(np.array([first, *[1] * 7], dtype), 8)

    def f(block):
        reduce = partial(lax.psum_scatter, tiled=True) if scatters else lax.psum
        return reduce(block, ("i", "j"))

    out = P(("i", "j")) if scatters else P()
    mapped = on_mesh(f, in_specs=P(("i", "j")), out_specs=out)
    found = mapped.lower(full).simulate(full).results
    np.testing.assert_array_equal(found, np.full(8, first + 7).astype(dtype))


def test_a_reduction_that_is_more_than_one_operation():
    module = reduced_by("""
        %1 = stablehlo.add %a, %b : tensor<f32>
        %r = stablehlo.multiply %1, %b : tensor<f32>""")
    full = np.arange(8, dtype=np.float32)
    found = simulate_module(module, [full]).results[0]
    np.testing.assert_array_equal(found, (full[:4] + full[4:]) * full[4:])


def test_a_reduction_that_calls_a_function():
    pair = "(tensor<f32>, tensor<f32>) -> tensor<f32>"
    module = reduced_by(f"%r = func.call @total(%a, %b) : {pair}")
    full = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(simulate_module(module, [full]).results[0], full[:4] + full[4:])


def test_a_reduction_that_divides_by_zero():
    module = reduced_by("%r = stablehlo.divide %a, %b : tensor<i32>", "i32")
    full = np.array([7, 7, 0, -(2**31), 2, 0, 0, -1], np.int32)
    np.testing.assert_array_equal(simulate_module(module, [full]).results[0], [3, -1, -1, -(2**31)])


@pytest.mark.parametrize(
    ("reduction", "found"),
    [
        ("%r = stablehlo.subtract %a, %k : tensor<i32>", "a value from outside of its region"),
        (
            "%r = stablehlo.custom_call @f(%a, %b) : (tensor<i32>, tensor<i32>) -> tensor<i32>",
            "the reference interpreter failed in its reduction: Unsupported op",
        ),
    ],
)
def test_reductions_that_cannot_be_simulated(reduction, found):
    with pytest.raises(SimulationError, match=f"stablehlo.all_reduce at[^@]*found:  .*{found}"):
        simulate_module(reduced_by(reduction, "i32"), [np.arange(8, dtype=np.int32)])


def test_devices_that_a_broadcast_leaves_out_receive_zeros():
    module = """
    sdy.mesh @mesh = <["i"=4]>
    func.func public @main(%x: tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
        -> (tensor<2xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
        attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
      %0 = "stablehlo.collective_broadcast"(%x) <{replica_groups = dense<[[2, 0]]>
          : tensor<1x2xi64>}> : (tensor<2xf32>) -> tensor<2xf32>
      return %0 : tensor<2xf32>
    }"""
    found = simulate_module(module, [np.arange(1, 9, dtype=np.float32)])
    assert found.results[0].tolist() == [5, 6, 0, 0, 5, 6, 0, 0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sorts_order_nans_as_xla_does(dtype):
    """Sorts compare by TOTALORDER."""
    numbers = np.array([3, np.nan, -np.inf, -0.0, 0.0, np.inf, -np.nan, -1], dtype)

    def f(b):
        everything = lax.all_gather(b, "i", tiled=True)
        order = lax.lt_to_p.bind(everything[:, None], everything[None])
        return jnp.sort(everything), jnp.argsort(-everything), order

    mapped = on_mesh(f, in_specs=P("i"), out_specs=P())
    expected = jax.jit(mapped)(numbers)
    for ours, theirs in zip(mapped.lower(numbers).simulate(numbers).results, expected, strict=True):
        ours, theirs = np.asarray(ours, np.float32), np.asarray(theirs, np.float32)
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(
            np.signbit(ours) & (ours == 0), np.signbit(theirs) & (theirs == 0)
        )


def test_reductions_in_total_order():
    """The larger of two numbers, where NaN is larger than infinity."""
    module = """
    sdy.mesh @mesh = <["i"=2]>
    func.func public @main(%x: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"i"}]>})
        -> (tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}]>})
        attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
      %0 = "stablehlo.all_reduce"(%x) <{replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>}> ({
      ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %1 = stablehlo.compare GT, %a, %b, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
        %2 = stablehlo.select %1, %a, %b : tensor<i1>, tensor<f32>
        stablehlo.return %2 : tensor<f32>
      }) : (tensor<4xf32>) -> tensor<4xf32>
      return %0 : tensor<4xf32>
    }"""
    numbers = [np.nan, 1, -np.inf, 0.0, np.inf, np.nan, -np.nan, -0.0]
    found = simulate_module(module, [np.array(numbers, np.float32)]).results[0]
    np.testing.assert_array_equal(found, [np.nan, np.nan, -np.inf, 0.0])
    assert not np.signbit(found[3])


PARTS = """
sdy.mesh @mesh = <["i"=8]>
func.func public @main(%arg0: tensor<8x2xf32>) -> tensor<8x2xf32> {{
  %0 = sdy.manual_computation(%arg0)
      in_shardings=[<@mesh, [{{"i":(1)2}}, {{}}]>] out_shardings=[<@mesh, [{{"i":(1)2}}, {{}}]>]
      manual_axes={{"i"}} (%arg1: tensor<4x2xf32>) {{
    %1 = stablehlo.partition_id : tensor<ui32>
    %2 = stablehlo.convert %1 : (tensor<ui32>) -> tensor<f32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<f32>) -> tensor<4x2xf32>
    %4 = stablehlo.add %arg1, %3 : tensor<4x2xf32>
    %5 = "stablehlo.all_reduce"(%4) <{{replica_groups = #stablehlo.replica_group_mesh_axes<
        mesh = @mesh, axes = [{axes}]>}}> ({{
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %6 = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %6 : tensor<f32>
    }}) : (tensor<4x2xf32>) -> tensor<4x2xf32>
    sdy.return %5 : tensor<4x2xf32>
  }} : (tensor<8x2xf32>) -> tensor<8x2xf32>
  return %0 : tensor<8x2xf32>
}}
"""


def sub_axis(before, size):
    return f'#stablehlo.axis_ref<name = "i", sub_axis_info = ({before}){size}>'


def test_parts_of_axes():
    full = np.zeros((8, 2), np.float32)
    inner = simulate_module(PARTS.format(axes=sub_axis(2, 4)), [full])
    assert [e.group for e in inner.exchanges] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [e.axes for e in inner.exchanges] == [None, None]
    with pytest.raises(ImpossiblePart, match="up to 2 and 3 devices"):
        FinerMesh(Mesh("mesh", (("i", 12),)), [AxisPart("i", 2, 2), AxisPart("i", 3, 4)])
    np.testing.assert_array_equal(inner.results[0][:, 0], [6] * 4 + [22] * 4)
    assert not inner.unequal
    both = simulate_module(PARTS.format(axes=f"{sub_axis(4, 2)}, {sub_axis(1, 2)}"), [full])
    assert [e.group for e in both.exchanges] == [(0, 4, 1, 5), (2, 6, 3, 7)]
    assert len(both.unequal) == 4


def test_operations_that_the_interpreter_lacks():
    def f(b):
        square = b[:, :2] @ b[:, :2].T + 9 * jnp.eye(2)
        return jnp.linalg.cholesky(square), jnp.linalg.cholesky(square, upper=True)

    mapped = jax.shard_map(f, mesh=mesh, in_specs=P("i", "j"), out_specs=P("i", "j"))
    # On a TPU, there are no custom calls of LAPACK.
    lowered = jax.jit(mapped).trace(x).lower(lowering_platforms=("tpu",))
    assert_close(simulate_module(with_lines(lowered), [x]).results, list(jax.jit(mapped)(x)))


@pytest.mark.parametrize(
    "dtype", ["int8", "int32", "int64", "int4", "uint8", "uint32", "uint64", "uint4"]
)
def test_integers_are_divided_as_xla_divides_them(dtype):
    """By zero, and the smallest by -1, which StableHLO leaves open."""
    least, most = jnp.iinfo(dtype).min, jnp.iinfo(dtype).max
    dividends = [least, least, 5, 5, most, most, 0, 7]
    divisors = [0, max(least, -1), 0, 2, 0, max(least, -1), 0, max(least, -3)]

    def divided(a, b):
        return lax.div(a, b), lax.rem(a, b), jnp.where(b != 0, a // b, 0)

    with jax.enable_x64(dtype in ("int64", "uint64")):
        args = jnp.array(dividends, dtype), jnp.array(divisors, dtype)
        divide = on_mesh(divided, in_specs=P(("i", "j")), out_specs=P(("i", "j")))
        for found, expected in zip(
            divide.lower(*args).simulate(*args).results, jax.jit(divide)(*args), strict=True
        ):
            np.testing.assert_array_equal(np.asarray(found), np.asarray(expected))


def test_complex_numbers_to_the_power_of_zero_are_one():
    bases = np.array([0, 2j, np.inf, complex(np.nan, 1)], np.complex64)
    lowered = jax.jit(lax.pow).lower(bases, np.zeros_like(bases))
    found = simulate_module(with_lines(lowered), [bases, np.zeros_like(bases)]).results[0]
    np.testing.assert_array_equal(found, np.ones(4))


@pytest.mark.parametrize("mantissa", [0, 3])
def test_nan_is_not_rounded_to_infinity(mantissa):
    values = np.array([np.nan, 1.5, -np.inf], np.float32)
    lowered = jax.jit(lambda x: lax.reduce_precision(x, 5, mantissa)).lower(values)
    found = simulate_module(with_lines(lowered), [values]).results[0]
    np.testing.assert_array_equal(found, [np.nan, 1.5 if mantissa else 2, -np.inf])


@pytest.mark.parametrize("function", [lax.erf, lax.erf_inv])
@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_special_functions_of_float8(function, dtype):
    values = jnp.array([0.5, -0.25, 0.75, 0], dtype)
    lowered = jax.jit(function).lower(values)
    found = simulate_module(with_lines(lowered), [values]).results[0]
    np.testing.assert_array_equal(found, np.asarray(lowered.compile()(values)))


def test_transforms_of_empty_dimensions_are_empty():
    transform = on_mesh(lambda b: jnp.fft.fft(b, axis=1), in_specs=P("i"), out_specs=P("i"))
    assert transform.lower(x[:, :0]).simulate(x[:, :0]).results.shape == (8, 0)


def test_the_counter_of_random_bits_is_carried_over():
    def f(by):
        return lax.rng_bit_generator(jnp.array([7, 2**64 - 2], jnp.uint64) + by, (3, 5))

    with jax.enable_x64(True):
        lowered = jax.jit(f).lower(np.uint64(0))
        expected = lowered.compile()(np.uint64(0))
    found = simulate_module(with_lines(lowered), [np.uint64(0)]).arrays
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64"])
@pytest.mark.parametrize("algorithm", ["DEFAULT", "PHILOX"])
def test_random_bits_are_those_of_xla(dtype, algorithm):
    key = np.array([7, 2**32 - 2], np.uint32)

    def f(by):
        new, bits = lax.rng_bit_generator(
            jnp.concatenate([by, jnp.asarray(key)]),
            (3, 5),
            dtype,
            algorithm=getattr(lax.RandomAlgorithm, f"RNG_{algorithm}"),
        )
        return new, bits

    with jax.enable_x64(True):
        first = np.array([2**32 - 1, 3], np.uint32)
        lowered = jax.jit(f).lower(first)
        new, bits = lowered.compile()(first)
    found = simulate_module(with_lines(lowered), [first]).arrays
    np.testing.assert_array_equal(found[0], new)
    np.testing.assert_array_equal(found[1], bits)
    assert found[1].dtype == dtype


def positive(b):
    return b @ b.mT.conj() + 9 * jnp.eye(b.shape[-1], dtype=b.dtype)


ROUTINES = {
    "getrf": lambda b: lax.linalg.lu(b)[:2],
    "getrf of tall matrices": lambda b: lax.linalg.lu(b[..., :2])[:2],
    "potrf": lambda b: (jnp.linalg.cholesky(positive(b)), jnp.linalg.cholesky(positive(b).mT)),
    "trsm": lambda b: (
        lax.linalg.triangular_solve(b, b, left_side=True, lower=True),
        lax.linalg.triangular_solve(b, b, lower=False, transpose_a=True, unit_diagonal=True),
        lax.linalg.triangular_solve(b, b, conjugate_a=True, transpose_a=True),
    ),
    "geqrf": lambda b: jnp.linalg.qr(b[..., :2]),
    "geqrf, whole": lambda b: jnp.linalg.qr(b[..., :2], mode="complete"),
    "gesdd": lambda b: jnp.linalg.svd(b[..., :2], full_matrices=False),
    "gesdd, whole": lambda b: jnp.linalg.svd(b[..., :2]),
    "gesdd without vectors": lambda b: jnp.linalg.svd(b, compute_uv=False),
    "syevd": lambda b: jnp.linalg.eigh(positive(b)),
    "geev": lambda b: jnp.linalg.eig(b),
    "geev, values": lambda b: jnp.linalg.eigvals(b),
    "gees": lambda b: lax.linalg.schur(b),
    "gees without vectors": lambda b: lax.linalg.schur(b, compute_schur_vectors=False),
    "gehrd": lambda b: lax.linalg.hessenberg(b),
    "sytrd": lambda b: lax.linalg.tridiagonal(b + b.mT.conj()),
    "sytrd of upper triangles": lambda b: lax.linalg.tridiagonal(b + b.mT.conj(), lower=False),
    "gtsv": lambda b: lax.linalg.tridiagonal_solve(b[..., 0], b[..., 1] + 4, b[..., 2], b),
    "syevd of upper triangles": lambda b: jnp.linalg.eigh(positive(b), UPLO="U"),
}


@pytest.mark.parametrize("name", ROUTINES)
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_routines_of_lapack(name, dtype):
    rng = np.random.default_rng(5)
    size = (16, 3, 3)  # two matrices on each device
    full = rng.normal(size=size) + (1j * rng.normal(size=size) if "c" in dtype else 0)
    full = full.astype(dtype)

    def f(b):
        return jnp.concatenate(
            [part.reshape(b.shape[0], -1) for part in jax.tree.leaves(run(b))], 1
        )

    run = ROUTINES[name]
    lowered = on_mesh(f, in_specs=P(("i", "j")), out_specs=P(("i", "j"))).lower(full)
    assert_close(lowered.simulate(full).results, lowered.compile()(full))


def test_what_jax_writes_beside_automatic_axes():
    """It marks values, also in the reduction of a scatter, and names an empty mesh."""

    def f(b, by):
        scattered = jnp.zeros(8).at[jnp.arange(4) % 3].add(b[0, :4] * by)
        return lax.psum(lax.ppermute(scattered, "i", [(0, 1), (1, 0)]), "i") + b

    mapped = jax.shard_map(f, mesh=mesh, in_specs=(P("i"), P()), out_specs=P("i"), axis_names={"i"})
    args = x, jnp.float32(2)
    lowered = jax.jit(mapped).lower(*args)
    text = lowered.as_text()
    assert "sdy.mesh @empty_mesh" in text
    assert re.search(r'"stablehlo.scatter".*\n.*\^bb0.*\n.*sdy.sharding_constraint', text)
    assert_close(simulate_module(with_lines(lowered), args).results, [lowered.compile()(*args)])


def test_what_jax_writes_beside_automatic_axes_for_gspmd():
    """Custom calls, also in reductions, and in functions that these call."""

    def f(b):
        product = lax.reduce(b, 1.0, lambda a, c: jax.jit(jnp.multiply)(a, c) * 1, (1,))
        return lax.psum(b, "i"), lax.pmax(b, "i"), lax.sort(b), lax.psum(product, "i")

    specs = {"in_specs": P("i"), "axis_names": {"i"}, "out_specs": (P(), P(), P("i"), P())}
    with jax_partitioner("gspmd"):
        lowered = jax.jit(jax.shard_map(f, mesh=mesh, **specs)).lower(x)
    text = with_lines(lowered)
    assert re.search(r'"stablehlo.all_reduce".*\n.*\^bb0.*\n.*add.*\n.*@Sharding', text)
    blocks = x.reshape(4, 2, 8)
    expected = [blocks.sum(0), blocks.max(0), jnp.sort(x), blocks.prod(2).sum(0)]
    assert_close(simulate_module(text, [x]).results, expected)
    ours = on_mesh(f, **specs).lower(x, partitioner="gspmd")
    assert_close(ours.simulate(x).results, tuple(expected))


def test_large_arrays_are_moved_as_the_interpreter_moves_small_ones(monkeypatch):
    from shmap_compiler.simulate import by_numpy

    def f(x, at):
        y = lax.dynamic_slice(x, (at, at - 5, 0), (3, 2, 2))
        z = lax.dynamic_update_slice(x, y * 2, (at, 1, at + 1))
        w = lax.slice(z, (1, 0, 0), (4, 4, 3), (2, 1, 2)).transpose(2, 0, 1).reshape(4, 4)
        v = lax.broadcast_in_dim(w[:, :1], (3, 4, 2), (1, 2))
        t = stablehlo_broadcast(w)
        return lax.concatenate([v, lax.broadcast(w[0, 0], (3, 4, 5))], 2), y, z, t

    def stablehlo_broadcast(w):
        module = """
        func.func @main(%x: tensor<4x4xbf16>) -> tensor<4x2x4xbf16> {
          %y = stablehlo.broadcast_in_dim %x, dims = [2, 0]
              : (tensor<4x4xbf16>) -> tensor<4x2x4xbf16>
          return %y : tensor<4x2x4xbf16>
        }"""
        return call_stablehlo(module, w)

    x = jnp.arange(5 * 4 * 3).reshape(5, 4, 3).astype(jnp.bfloat16)
    lowered = jax.jit(f).lower(x, 3)
    small = simulate_module(with_lines(lowered), [x, 3]).arrays
    monkeypatch.setattr(by_numpy, "LARGE", 1)
    large = simulate_module(with_lines(lowered), [x, 3]).arrays
    for ours, theirs, xla in zip(large, small, lowered.compile()(x, 3), strict=True):
        np.testing.assert_array_equal(ours, theirs)
        np.testing.assert_array_equal(ours, xla)


def test_what_devices_share_is_computed_once_and_memory_is_bounded(monkeypatch):
    """Results are the same where nothing is kept."""
    from shmap_compiler.simulate import device

    lowered = on_mesh(COLLECTIVES["loop"], in_specs=P("i", "j"), out_specs=P("i", "j")).lower(x)
    expected = lowered.simulate(x).results
    monkeypatch.setattr(device, "_KEPT_BYTES", 0)
    np.testing.assert_array_equal(lowered.simulate(x).results, expected)


def test_arguments_that_jax_would_narrow():
    lowered = on_mesh(lambda b, n: b + n, in_specs=(P("i"), P()), out_specs=P("i")).lower(
        np.arange(8), 3
    )
    np.testing.assert_array_equal(lowered.simulate(np.arange(8), 3).results, np.arange(8) + 3)
