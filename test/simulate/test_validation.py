"""Validation: right pipelines pass; of wrong passes it names pass, result, device and line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P
from shmap_passes import PASSES
from wrong_passes import Cosine, Detour, FirstOperand, Hang, RightOrder, WrongAxis, WrongOrder

from shmap_compiler import SimulationError, Validation, passes, shard_map
from shmap_compiler.simulate.agreement import has_same_bits
from shmap_compiler.simulate.validate_stages import validate

mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
SPECS = {"mesh": mesh, "in_specs": P("i", "j"), "out_specs": {"a": P("i", "j"), "b": P()}}
x = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)


def f(block):
    first = lax.psum(jnp.sin(block), "i")
    second = lax.psum(first * block, "j")
    total = lax.psum(second * block, ("i", "j"))
    return {"a": second - block, "b": total}


LINE = f.__code__.co_firstlineno


def reference(x):
    first = jnp.tile(jnp.sin(x).reshape(4, 2, 8).sum(0), (4, 1))
    second = jnp.tile((first * x).reshape(8, 2, 4).sum(1), (1, 2))
    return {"a": second - x, "b": (second * x).reshape(4, 2, 2, 4).sum((0, 2))}


def lower(*added, partitioner="gspmd", **place):
    with passes(*added, **place):
        return shard_map(f, **SPECS).lower(x, partitioner=partitioner)


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_a_right_pipeline_is_equal_everywhere(partitioner):
    lowered = lower(partitioner=partitioner)
    validation = lowered.validate(x, reference=reference, seeds=2)
    assert isinstance(validation, Validation)
    assert validation.holds, str(validation)
    names = [name for name, _ in lowered.passes]
    assert [check.name for check in validation.checks] == [*names, "XLA", "reference"]
    promised = {cls.name for cls in PASSES if cls.keeps_bits}
    bitwise = {c.name: c.relative for c in validation.checks if c.name in promised}
    assert set(bitwise.values()) == {0.0}
    assert "PASS: all equal" in str(validation)
    alone = lowered.validate(x, xla=False).checks
    assert [check.name for check in alone] == names


def test_no_device_has_to_be_here():
    abstract = AbstractMesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
    lowered = shard_map(f, **{**SPECS, "mesh": abstract}).lower(x)
    validation = lowered.validate(x, reference=reference)
    assert validation.holds
    assert "XLA" not in [check.name for check in validation.checks]


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
def test_a_wrong_pass_is_named_with_result_device_and_line(partitioner):
    lowered = lower(WrongAxis(), partitioner=partitioner)
    validation = lowered.validate(x, xla=False)
    first = validation.first_difference
    assert first.name == "my-wrong-axis"
    assert (first.difference.what, first.difference.device) == ("result['a']", 0)
    assert first.difference.place.op == "stablehlo.all_reduce"
    assert first.difference.place.line.endswith(f"test_validation.py:{LINE + 2}")
    assert [c.name for c in validation.checks if c.difference] == ["my-wrong-axis"]
    assert "FAIL: my-wrong-axis differs" in str(validation)


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("ends", [lambda y: lax.psum(y, "i"), lambda y: y], ids=["sum", "end"])
def test_an_operation_of_another_kind_is_named(partitioner, ends):
    specs = {"mesh": mesh, "in_specs": P("i"), "out_specs": P("i"), "check_vma": False}
    with passes(Cosine()):
        mapped = shard_map(lambda b: ends(jnp.sin(b * 2)), **specs)
        lowered = mapped.lower(x, partitioner=partitioner)
    first = lowered.validate(x, xla=False).first_difference
    assert first.name == "my-cosine"
    assert (first.difference.place.op, first.difference.device) == ("stablehlo.cosine", 0)


def test_operations_that_a_pass_may_add_are_not_named():
    place = lower(Detour()).validate(x, xla=False).first_difference.difference.place
    assert place.op == "stablehlo.all_reduce"
    assert place.line.endswith(f":{LINE + 2}")


def test_a_wrong_program_differs_from_the_reference_only():
    validation = lower(WrongAxis(), before="shmap-verify").validate(x, reference=reference)
    failed = [check.name for check in validation.checks if check.difference]
    assert failed == ["my-wrong-axis", "reference"]


def test_promises_are_held_against_each_pass():
    wrong = lower(WrongOrder()).validate(x, xla=False)
    assert wrong.first_difference.name == "my-wrong-order"
    assert wrong.first_difference.difference.place.line.endswith(f":{LINE + 3}")
    assert 0 < wrong.first_difference.relative < 1e-5
    right = lower(RightOrder()).validate(x, xla=False)
    assert right.holds
    assert max(check.relative for check in right.checks) == wrong.first_difference.relative


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_whole_numbers_of_64_bits_are_compared_exactly(dtype):
    with jax.enable_x64(True):
        numbers = np.arange(8, dtype=dtype) + 2**60
        mapped = shard_map(
            lambda b: b + b.dtype.type(5), mesh=mesh, in_specs=P("i"), out_specs=P("i")
        )
        with passes(FirstOperand()):
            lowered = mapped.lower(numbers)
        validation = lowered.validate(numbers, xla=False, reference=lambda x: x + x.dtype.type(5))
        failed = [check.name for check in validation.checks if check.difference]
        assert failed == ["my-first-operand", "reference"]
        assert mapped.lower(numbers).validate(numbers).holds


def test_the_sign_of_zero_is_among_the_bits():
    zeros = np.zeros(8, np.float32)
    mapped = shard_map(lambda b: -b, mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    with passes(FirstOperand()):
        validation = mapped.lower(zeros).validate(zeros)
    assert validation.first_difference.name == "my-first-operand"
    assert "other bits" in str(validation)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.complex64, jnp.float8_e5m2])
def test_a_nan_has_the_bits_of_any_other(dtype):
    nan = complex(np.nan, np.nan) if dtype == np.complex64 else np.nan
    some = np.array([1.0, nan, 0.0]).astype(dtype)
    assert has_same_bits(some, -some) is False
    other = some.copy()
    other[1] = -other[1]
    assert other.tobytes() != some.tobytes()
    assert has_same_bits(some, other)


def test_blocks_of_empty_arrays_have_the_same_bits():
    mapped = shard_map(
        lambda b: b, mesh=mesh, in_specs=P(None, "j"), out_specs=P(None, "i"), check_vma=False
    )
    empty = np.zeros((0, 16), np.float32)
    assert mapped.lower(empty).validate(empty, xla=False).holds


def test_passes_of_mlir_may_round_differently():
    assert lower("canonicalize", "cse").validate(x, xla=False).holds


def test_a_pass_that_makes_devices_hang():
    difference = lower(Hang()).validate(x, xla=False).first_difference.difference
    assert difference.what == "the devices deadlock"
    assert difference.place.line.endswith(f":{LINE + 1}")


def test_devices_that_hang_before_all_passes_and_after_them():
    def body(b):
        return lax.cond(lax.axis_index("i") == 0, lambda b: lax.psum(b, "i"), lambda b: 2 * b, b)

    specs = {"in_specs": P("i", "j"), "out_specs": P("i", "j")}
    unsafe = {"check_vma": False, "check_hangs": False}
    lowered = shard_map(body, mesh=mesh, **specs, **unsafe).lower(x)
    validation = lowered.validate(x, reference=lambda x: x)
    assert not validation.holds
    assert validation.first_difference is None
    assert not {"XLA", "reference"} & {check.name for check in validation.checks}
    assert "FAIL: the devices deadlock, before the passes and after them\ndevice 0 (" in str(
        validation
    )
    assert len(validation.hang.positions) == mesh.size


def test_results_that_xla_or_a_reference_give_otherwise():
    lowered = lower()
    states, signature = lowered.snapshots.stages[:1], lowered.call.signature
    off = {"a": reference(x)["a"], "b": 1.01 * reference(x)["b"]}
    validation = validate(signature, states, [x], lambda _: off, lambda _: off["a"], 1, "gspmd")
    _, xla, structure = validation.checks
    assert (xla.name, xla.difference.what) == ("XLA", "result['b']")
    assert structure.difference.what.startswith("result (structure")


def test_gradients_that_sum_many_rows():
    dtype = jnp.bfloat16
    rows = np.random.default_rng(0).uniform(size=(8192, 4)).astype(dtype)
    w = np.full((4, 4), 0.25, dtype)

    def loss(b, w, rows):
        return jnp.mean((rows @ w + b).astype(jnp.float32) ** 2)

    def gradient(*args):
        return jax.grad(lambda *args: lax.pmean(loss(*args), ("i", "j")))(*args)

    specs = {"in_specs": (P(), P(), P(("i", "j"))), "out_specs": P()}
    args = np.zeros(4, dtype), w, rows
    lowered = shard_map(gradient, mesh=mesh, **specs).lower(*args)
    validation = lowered.validate(*args, reference=jax.grad(loss))
    assert validation.holds, str(validation)


def test_arguments_that_do_not_fit():
    with pytest.raises(SimulationError, match=r"args\[0\]"):
        lower().validate(x[:4], xla=False)


def test_inputs_that_the_program_does_not_use():
    mapped = shard_map(lambda a, b: a, mesh=mesh, in_specs=(P("i"), P("j")), out_specs=P("i"))
    lowered = mapped.lower(x, 2 * x)
    np.testing.assert_array_equal(lowered.simulate(x, 2 * x).results, x)
    assert lowered.validate(x, 2 * x).holds


def test_a_program_without_results():
    nothing = shard_map(lambda block: (), mesh=mesh, in_specs=P("i"), out_specs=())
    lowered = nothing.lower(x)
    assert "func.func public @main()" in lowered.as_text("body")
    assert lowered.simulate(x).results == ()
    assert lowered.validate(x).holds
