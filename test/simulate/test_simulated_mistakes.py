"""What the simulator finds: deadlocks, unequal copies, NaN; and programs that it rejects."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from shmap_compiler import SimulationError, TargetError, shard_map, simulate_module
from shmap_compiler.simulate import interpreter

mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
split = {"mesh": mesh, "in_specs": P("i", "j"), "out_specs": P("i", "j")}
x = jnp.arange(64.0).reshape(8, 8)


def leaves_late(b):
    def goes_on(state):
        return (state[1] < 3) | ((lax.axis_index("i") == 2) & (state[1] < 4))

    return lax.while_loop(goes_on, lambda s: (lax.psum(s[0], "i"), s[1] + 1), (b, 0))[0]


def of_jax(f, **changes):
    return jax.jit(jax.shard_map(f, check_vma=False, **{**split, **changes}))


def simulate_jax(f, **changes):
    return simulate_module(of_jax(f, **changes).lower(x).as_text(debug_info=True), [x])


def test_a_deadlock_of_jax_shard_map_is_shown_with_the_line_of_each_device():
    simulation = simulate_jax(leaves_late)
    assert len(simulation.exchanges) == 6
    lines = str(simulation.hang).splitlines()
    assert lines[0] == "device 0 (i=0, j=0) has returned"
    line = leaves_late.__code__.co_firstlineno + 4
    waits = f"waits in stablehlo.all_reduce at test/simulate/test_simulated_mistakes.py:{line}"
    assert lines[4] == f"device 4 (i=2, j=0) {waits}, round 4, for devices 0, 2, 6"
    assert [p.place is None for p in simulation.hang.positions] == [True] * 4 + [False] * 2 + [
        True
    ] * 2
    assert "FAIL: deadlock after 6 exchanges" in str(simulation)
    for look in (lambda: simulation.results, lambda: simulation.on_device(0)):
        with pytest.raises(SimulationError, match=r"device 5 \(i=2, j=1\) waits"):
            look()


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_a_deadlock_of_ours_is_the_same_in_every_form(partitioner):
    mapped = shard_map(leaves_late, check_hangs=False, **split)
    lowered = mapped.lower(x, partitioner=partitioner)
    for stage, _ in lowered.passes:
        assert [p.place is None for p in lowered.simulate(x, stage=stage).hang.positions] == [
            True, True, True, True, False, False, True, True,
        ]  # fmt: skip


def test_devices_in_different_collectives_wait_for_each_other():
    def f(b):
        return lax.cond(
            lax.axis_index("j") == 0, lambda c: lax.psum(c, "j"), lambda c: lax.pmax(c, "j"), b
        )

    positions = simulate_jax(f).hang.positions
    assert [p.absent for p in positions[:2]] == [(1,), (0,)]
    assert positions[0].place.line != "" != positions[1].place.line


def test_calls_of_one_function_are_different_collectives():
    """As in XLA, which inlines them."""
    summed = jax.jit(lambda c: lax.psum(c, "j"))

    def f(b):
        return lax.cond(lax.axis_index("j") == 0, summed, lambda c: summed(2 * c), b)

    assert simulate_jax(f).hang is not None


def test_devices_that_meet_in_different_rounds_are_reported():
    def f(b):
        def step(k, c):
            mine = (k == 0) | ((k == 1) == (lax.axis_index("j") == 0)) & (k < 3)
            return lax.cond(mine, lambda d: lax.psum(d, "j") / 2, lambda d: d, c)

        return lax.fori_loop(0, 3, step, b)

    simulation = simulate_jax(f)
    assert simulation.hang is None
    assert [e.out_of_step for e in simulation.exchanges[:2]] == [False, True]
    assert "WARNING: devices met in different rounds of a loop" in str(simulation)


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_copies_that_differ(partitioner):
    mapped = shard_map(lambda b: b, **{**split, "out_specs": P("i")}, check_vma=False)
    lowered = mapped.lower(x, partitioner=partitioner)
    for stage in ("body", None):
        unequal = lowered.simulate(x, stage=stage).unequal
        assert [(u.result, u.devices) for u in unequal] == [(0, (d, d + 1)) for d in (0, 2, 4, 6)]
        assert (unequal[1].index, unequal[1].values) == ((0, 0), (16.0, 20.0))
    text = "FAIL: result 0 should be equal on devices 2 and 3, but at [0, 0] of their blocks it is"
    assert text in str(lowered.simulate(x))


def test_the_first_nan_and_the_first_infinity():
    def f(b):
        masked = jnp.where(b > 1000, b, -jnp.inf)  # an infinity that the user wrote
        return jnp.maximum(jnp.log(b - 12), masked) + 1

    found = simulate_jax(f).non_finite
    line = f.__code__.co_firstlineno + 2
    assert (found.kind, found.place.op, found.device) == ("NaN", "stablehlo.log", 0)
    assert found.place.line.endswith(f":{line}")
    found = simulate_jax(lambda b: lax.psum(1 / (b - 42), "i") + b).non_finite
    assert (found.kind, found.place.op, found.device) == ("infinity", "stablehlo.divide", 4)
    assert simulate_jax(lambda b: jnp.where(b > 1000, b, -jnp.inf)).non_finite is None


def test_the_first_nan_that_infinities_make():
    def masked(b):
        scores = jnp.where(lax.axis_index("i") != 2, b, -jnp.inf)
        return jax.nn.softmax(scores)

    line = masked.__code__.co_firstlineno + 2
    ours = shard_map(masked, **split).lower(x).simulate(x)
    for found in (simulate_jax(masked).non_finite, ours.non_finite):
        assert (found.kind, found.place.op, found.device) == ("NaN", "stablehlo.subtract", 4)
        assert found.place.line.endswith(f"test_simulated_mistakes.py:{line}")


@pytest.mark.parametrize(
    ("given", "f", "made"),
    [
        ({5: np.inf}, lambda b: b - b, ("NaN", "stablehlo.subtract", 4)),
        ({1: np.inf, 5: -np.inf}, lambda b: lax.psum(b, "i"), ("NaN", "stablehlo.all_reduce", 0)),
        ({5: np.inf}, lambda b: lax.psum(b, "i"), None),
        ({5: np.nan}, lambda b: lax.pmax(b, "i"), None),
        ({5: -np.inf}, lambda b: lax.pmax(b, "i") * jnp.log(b - 90), ("NaN", "stablehlo.log", 0)),
    ],
    ids=["subtracted", "summed", "infinity passed on", "NaN passed on", "another NaN"],
)
def test_operations_that_pass_on_what_is_not_finite_are_not_blamed(given, f, made):
    """Nor is a collective, on a device that receives it."""
    full = np.array(x)
    for row, value in given.items():
        full[row, 0] = value
    found = simulate_module(of_jax(f).lower(full).as_text(debug_info=True), [full]).non_finite
    assert (found and (found.kind, found.place.op, found.device)) == made


def test_buffers_without_contents_are_noticed_where_they_are_read():
    module = """
    func.func public @main(%arg0: tensor<2xf32>) -> (tensor<4xf32>, tensor<4xi32>) {
      %at = stablehlo.constant dense<1> : tensor<i32>
      %0 = stablehlo.custom_call @AllocateBuffer() : () -> tensor<4xf32>
      %1 = stablehlo.dynamic_update_slice %0, %arg0, %at
          : (tensor<4xf32>, tensor<2xf32>, tensor<i32>) -> tensor<4xf32>
      %2 = stablehlo.custom_call @AllocateBuffer() : () -> tensor<4xi32>
      return %1, %2 : tensor<4xf32>, tensor<4xi32>
    }"""
    simulation = simulate_module(module, [np.ones(2, np.float32)])
    np.testing.assert_array_equal(simulation.arrays[0], [np.nan, 1, 1, np.nan])
    assert (simulation.arrays[1] == 2**31 - 1).all()
    assert simulation.non_finite is None


def test_nan_in_a_loop_and_in_a_collective():
    def f(b):
        return lax.fori_loop(0, 5, lambda k, c: jnp.sqrt(c - 2), b + 5)

    assert simulate_jax(f).non_finite.place.op == "stablehlo.sqrt"
    huge = simulate_jax(lambda b: lax.psum(b * 2e36 + 1e38, "j")).non_finite
    assert (huge.kind, huge.place.op) == ("infinity", "stablehlo.all_reduce")


# ------------------------------------------------------------------------- what it cannot play

REJECTED = {
    "callback": (lambda b: (jax.debug.print("{}", b), b)[1], "a call back into Python"),
    "custom call": (
        lambda b: b + jax.ffi.ffi_call("their_kernel", b)(b),
        r"the custom call @.*, whose meaning is not known",
    ),
    "interpreter": (
        lambda b: b + lax.rng_uniform(jnp.float32(0), jnp.float32(1), shape=(2, 4)),
        r"the reference interpreter failed: Operation stablehlo\.rng is unsupported",
    ),
    "random bits": (
        lambda b: b + lax.rng_bit_generator(jnp.zeros(4, jnp.uint32), (2, 4), algorithm=1)[1],
        r"random bits by .*THREE_FRY.*, which is not XLA's default on CPUs",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REJECTED)
def test_what_cannot_be_played_is_an_error_with_its_line(name):
    f, message = REJECTED[name]
    with pytest.raises(SimulationError, match=message) as raised:
        simulate_jax(f)
    assert "test_simulated_mistakes.py:" in raised.value.problems[0].where
    # A new worker has taken the place of one that died.
    assert simulate_jax(lambda b: b + 1).results[0][0, 0] == 1.0


def test_an_evaluation_that_takes_too_long(monkeypatch):
    monkeypatch.setattr(interpreter.Interpreter.evaluate, "__defaults__", (0.3,))
    with pytest.raises(SimulationError, match=r"it ran for more than 0\.3 s"):
        simulate_jax(lambda b: lax.while_loop(lambda c: c[0, 0] < 1e9, lambda c: c * 0, b))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func.func", "needed: a StableHLO module"),
        ("func.func private @f() { return }", "needed: a function @main"),
        (
            "func.func public @main(%a: tensor<?xf32>) -> tensor<?xf32> {\n"
            "%0 = stablehlo.sine %a : tensor<?xf32> return %0 : tensor<?xf32> }",
            "a value of type tensor<.xf32>",
        ),
        (
            "func.func public @main(%a: tensor<2xf4E2M1FN>) -> tensor<2xf4E2M1FN> {\n"
            "return %a : tensor<2xf4E2M1FN> }",
            "an array of element type f4E2M1FN",
        ),
    ],
)
def test_modules_that_cannot_be_read(text, message):
    with pytest.raises(SimulationError, match=message):
        simulate_module(text, [np.zeros(2)])


def test_arguments_that_do_not_fit():
    lowered = shard_map(jnp.sin, **split).lower(x)
    with pytest.raises(SimulationError, match="found:  arguments with the structure"):
        lowered.simulate(x, x)
    with pytest.raises(SimulationError, match=r"args\[0\]\n *found:  float32\[2, 2\]"):
        lowered.simulate(x[:2, :2])
    with pytest.raises(TargetError, match="stage='hlo'"):
        lowered.simulate(x, stage="hlo")
    with pytest.raises(SimulationError, match="2 arrays"):
        simulate_module(lowered.snapshots.body, [x, x])


def test_symbols_of_meshes_do_not_reach_the_interpreter():
    """Ops inside of a region may carry shardings over automatic axes."""
    inside = partial(lax.with_sharding_constraint, shardings=jax.sharding.NamedSharding(mesh, P()))
    f = jax.jit(lambda x: inside(jnp.sin(x)) + 1)
    found = simulate_module(f.lower(x).as_text(debug_info=True), [x]).results[0]
    np.testing.assert_allclose(found, np.sin(x) + 1, atol=1e-6)


def test_another_static_argument_is_not_that_of_the_program():
    scaled = shard_map(lambda b, n: b * n, mesh=mesh, in_specs=(P("i"), None), out_specs=P("i"))
    lowered = scaled.lower(x, 2)
    np.testing.assert_array_equal(lowered.simulate(x, 2).results, 2 * x)
    with pytest.raises(SimulationError, match="found:  3, an int"):
        lowered.simulate(x, 3)
