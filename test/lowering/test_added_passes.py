"""The user's own passes in the pipeline of shard_map, and what a failing pass leaves behind."""

import importlib.util
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import shmap_passes
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from shmap_passes import Pass, PassFailure, PassRefused, Violation

import shmap_compiler
from shmap_compiler import ShmapError, load, passes, shard_map

SINE_PASSES = Path(__file__).parent / "Inputs" / "sine_passes.py"
spec = importlib.util.spec_from_file_location("sine_passes", SINE_PASSES)
sine_passes = importlib.util.module_from_spec(spec)
sys.modules["sine_passes"] = sine_passes  # dataclasses look their module up by name
spec.loader.exec_module(sine_passes)
ProductForSum = sine_passes.ProductForSum
COSINE, DOUBLE = sine_passes.CosineForSine(), sine_passes.DoubleCosines()

mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
x = np.linspace(0, 1, 8, dtype=np.float32)
SIN, COS = np.sin(x), np.cos(x)
close = np.testing.assert_allclose


def sine(x):
    return jnp.sin(x)


def sine_program():
    return shard_map(sine, mesh=mesh, in_specs=P("i"), out_specs=P("i"))


@pytest.fixture(scope="module")
def mapped():
    return sine_program()


def test_a_jitted_function_has_the_passes_inside_and_only_inside(mapped):
    traced = []

    @jax.jit
    def f(x):
        traced.append(1)
        return mapped(x)

    close(f(x), SIN, 1e-6)
    with passes(COSINE):
        close(f(x), COS, 1e-6)
        count = len(traced)
        close(f(x), COS, 1e-6)
    assert len(traced) == count
    close(f(x), SIN, 1e-6)
    with passes(sine_passes.CosineForSine()):  # equal passes: the program that was compiled above
        close(f(x), COS, 1e-6)
    assert len(traced) == count


def test_a_program_compiled_inside_first_does_not_stay(mapped):
    f = jax.jit(lambda x: mapped(x) + 1)
    with passes(COSINE):
        close(f(x), COS + 1, 1e-6)
    close(f(x), SIN + 1, 1e-6)


def test_operations_outside_of_jit_have_the_passes(monkeypatch):
    """Where arguments stay on their devices; small ones are stacked on the host of a CPU mesh."""
    monkeypatch.setattr("shmap_compiler.eager.run.LARGE", -1)
    eager = shard_map(lambda x: lax.psum(x, "j"), mesh=mesh, in_specs=P("i"), out_specs=P("i"))
    close(eager(x), 2 * x, 1e-6)
    with passes(ProductForSum()):
        close(eager(x), x * x, 1e-6)
    close(eager(x), 2 * x, 1e-6)


def test_derivatives_outside_of_jit_have_the_passes(mapped):
    derivative = jax.grad(lambda x: mapped(x).sum())
    close(derivative(x), COS, 1e-6)
    with passes(DOUBLE):
        close(derivative(x), 2 * COS, 1e-6)
    close(derivative(x), COS, 1e-6)


def test_lowered_programs_differ_and_keep_their_passes(mapped, tmp_path):
    lowered = mapped.lower(x)
    with passes(COSINE):
        changed = mapped.lower(x)
        assert mapped.lower(x) is changed
    assert mapped.lower(x) is lowered
    assert "stablehlo.sine" in lowered.as_text()
    assert "stablehlo.cosine" in changed.as_text()
    close(changed.compile()(x), COS, 1e-6)
    changed.save(tmp_path / "program")  # lowers again, outside of the context
    close(load(tmp_path / "program").compile()(x), COS, 1e-6)
    names = [name for name, _ in changed.passes]
    assert names.index("my-cosine-for-sine") + 1 == names.index("shmap-legalize-collectives")


def test_places_and_order_of_added_passes(mapped):
    with (
        passes(COSINE, before="shmap-merge-equal-collectives"),
        passes(DOUBLE, "cse", "shmap-check-replication", before="shmap-merge-equal-collectives"),
        passes("canonicalize", after="shmap-inline-meshes"),
    ):
        lowered = mapped.lower(x)
    names = [name for name, _ in lowered.passes]
    place = names.index("my-cosine-for-sine")
    assert names[place - 1 : place + 5] == [
        "shmap-elide-invariant-reductions",
        "my-cosine-for-sine",
        "my-double-cosines",
        "cse",
        "shmap-check-replication",
        "shmap-merge-equal-collectives",
    ]
    assert names[-2:] == ["shmap-inline-meshes", "canonicalize"]
    close(lowered.compile()(x), 2 * COS, 1e-6)


def test_what_an_added_pass_breaks_is_rejected_by_the_next_pass(mapped):
    @dataclass(frozen=True)
    class DropManualAxes(Pass):
        name = "my-drop-manual-axes"

        def run(self, module):
            main = next(op for op in module.body.operations if "sym_name" in op.attributes)
            for op in module.body.operations:
                if "sdy.manual_axes" in op.attributes:
                    main = op
            del main.attributes["sdy.manual_axes"]

    with passes(DropManualAxes()), pytest.raises(PassFailure, match=r"no sdy\.manual_axes"):
        mapped.lower(x)


def wrong_options():
    @dataclass(frozen=True)
    class Unhashable(Pass):
        name = "my-unhashable"
        values: tuple = ()

        def run(self, module):
            pass

    return Unhashable([1])


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((sine_passes.CosineForSine,), {}, r"write CosineForSine\(\)"),
        ((3,), {}, "3, an int.*an instance of shmap_passes.Pass"),
        (("canonicalise",), {}, "does not refer to a registered pass"),
        (("shmap-verfy",), {}, "did you mean shmap-verify"),
        ((wrong_options(),), {}, "unhashable type: 'list'.*tuples instead of lists"),
        ((COSINE,), {"before": "cse"}, "'cse', a str.*shmap-verify, shmap-elide"),
        ((COSINE,), {"before": "shmap-verify", "after": "shmap-verify"}, "one of the two"),
    ],
)
def test_what_is_not_a_pass_or_a_place_is_rejected(args, named, message):
    with (
        pytest.raises(ShmapError, match=re.compile(message, re.DOTALL)) as caught,
        passes(*args, **named),
    ):
        pass
    assert "fix:" in str(caught.value)


# ------------------------------------------------------------------------------- reproducers


def command_in(message):
    return shlex.split(re.search("to reproduce: (.*)", message).group(1))


def run_again(command):
    tool = Path(sys.executable).with_name(command[0])
    return subprocess.run([tool, *command[1:]], capture_output=True, text=True, check=False)


@pytest.mark.subprocess
def test_a_rejecting_pass_inside_jit_leaves_a_reproducer(mapped):
    with (
        passes(sine_passes.RejectSines("not a")),
        pytest.raises(PassFailure, match=r"not a sine, please\nto reproduce: shmap-opt") as caught,
    ):
        jax.jit(lambda x: mapped(x) * 3)(x)
    command = command_in(str(caught.value))
    assert shlex.split(caught.value.reproducer) == command
    text = Path(command[1]).read_text()
    assert text.startswith("// shmap-opt ")
    assert "sdy.manual_axes" in text
    assert "test_added_passes.py" in text  # locations
    again = run_again(command)
    assert again.returncode == 1
    assert "error: not a sine, please" in again.stderr
    Path(command[1]).unlink()


@pytest.mark.parametrize(
    "use", [lambda f: jax.jit(f)(x), lambda f: f.lower(x)], ids=["jit", "lower"]
)
def test_a_pass_with_a_mistake_leaves_the_module_as_it_was_before(use):
    with passes(sine_passes.FailOnSines()), pytest.raises(KeyError, match="sine") as caught:
        use(sine_program())
    command = command_in("\n".join(caught.value.__notes__))
    text = Path(command[1]).read_text()
    assert "stablehlo.sine" in text
    assert "half-done" not in text
    Path(command[1]).unlink()


@pytest.mark.subprocess
def test_a_failing_pass_of_our_own_leaves_a_reproducer(monkeypatch):
    def refuse(self, module):
        raise PassRefused([Violation(module.operation.location, "a planted refusal")])

    fold = next(cls for cls in shmap_passes.PASSES if cls.name == "shmap-fold-all-reduces")
    monkeypatch.setattr(fold, "run", refuse)
    with pytest.raises(PassFailure, match="a planted refusal") as caught:
        jax.jit(sine_program())(x)
    command = command_in(str(caught.value))
    assert "--load-pass" not in command
    monkeypatch.undo()
    assert run_again(command).returncode == 0
    Path(command[1]).unlink()


def test_the_example_of_the_documentation_runs(mapped, tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "passes.md").read_text()
    file = tmp_path / "my_pass.py"
    file.write_text(re.search("```python\n(.*?)```", page, re.DOTALL).group(1))
    module = {"__name__": "my_pass"}
    sys.modules["my_pass"] = sys.modules[__name__]  # dataclasses look their module up by name
    exec(compile(file.read_text(), file, "exec"), module)
    limit = module["LimitCollectives"]
    many = shard_map(lambda x: lax.psum(x, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    with passes(limit(), after="shmap-fold-all-reduces"):
        many.lower(x)
    with (
        passes(limit(most=0), after="shmap-fold-all-reduces"),
        pytest.raises(PassFailure, match="1 all_reduces, more than 0"),
    ):
        many.lower(x)


def test_passes_is_exported():
    assert "passes" in shmap_compiler.__all__
