"""Saved programs: loaded and run in a new process, without the source of the program."""

import io
import re
import subprocess
import sys
import textwrap
import zipfile
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shmap_compiler import (
    PARTITIONERS,
    ArtifactError,
    Executable,
    Portable,
    TargetTypeError,
    load,
    shard_map,
)
from shmap_compiler.artifacts.container import Container, pack, unpack

MESH = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)
A = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)
B = np.arange(16 * 4, dtype=np.float32).reshape(16, 4)

for_both_partitioners = pytest.mark.parametrize("partitioner", PARTITIONERS)


class Weights(NamedTuple):
    left: jax.Array
    right: jax.Array


def matmul(a, b):
    return lax.psum(a @ b, "j")


MATMUL = shard_map(matmul, mesh=MESH, in_specs=(P("i", "j"), P("j")), out_specs=P("i"))


def on_rows(fun, **options):
    return shard_map(fun, mesh=MESH, in_specs=P("i"), out_specs=P("i"), **options)


def portable(lowered, path):
    lowered.save(path)
    return load(path).compile("cpu:8")


def executable(lowered, path):
    lowered.compile().save(path)
    return load(path)


for_both_kinds = pytest.mark.parametrize("saved", [portable, executable])


def refused(where, found, needed, fix):
    """The error with these four parts, each literal."""
    parts = (where, f"found:  {found}", f"needed: {needed}", f"fix:    {fix}")
    return pytest.raises(ArtifactError, match="(?s)" + ".*".join(map(re.escape, parts)))


def in_new_process(code, *arguments):
    """Runs code that has `arguments` in sys.argv, and none of this file's definitions."""
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


# --------------------------------------------------------------------------- in a new process


@pytest.mark.subprocess
@for_both_partitioners
@for_both_kinds
def test_runs_in_a_new_process(saved, partitioner, tmp_path):
    path = tmp_path / "matmul"
    saved(MATMUL.lower(A, B, partitioner=partitioner), path)
    np.savez(tmp_path / "data.npz", a=A, b=B, expected=A @ B)
    code = """
        import sys
        import numpy as np
        import shmap_compiler
        program = shmap_compiler.load(sys.argv[1])
        data = np.load(sys.argv[2])
        if isinstance(program, shmap_compiler.Portable):
            program = program.compile()
        result = program(data["a"], data["b"])
        np.testing.assert_array_equal(result, data["expected"])
        print(tuple(result.sharding.spec)[0], dict(result.sharding.mesh.shape))
    """
    assert in_new_process(code, path, tmp_path / "data.npz") == "i {'i': 4, 'j': 2}\n"


@for_both_kinds
def test_results_stay_weakly_typed(saved, tmp_path):
    out_specs = (P(), P("i"), P(), P("i"))
    mapped = shard_map(
        lambda s, a: (s * 2, a, 5, a * s), mesh=MESH, in_specs=(P(), P("i")), out_specs=out_specs
    )
    lowered = mapped.lower(1.5, A)
    program = saved(lowered, tmp_path / "f")
    assert jax.tree.map(lambda t: t.weak_type, program.out_info) == (True, False, True, False)
    for found, expected in zip(program(1.5, A), jax.jit(mapped)(1.5, A), strict=True):
        assert found.weak_type == expected.weak_type
        assert (found * jnp.bfloat16(3)).dtype == (expected * jnp.bfloat16(3)).dtype


def test_results_stay_weakly_typed_on_other_devices():
    mesh = jax.make_mesh((4,), ("i",), (AxisType.Auto,), devices=jax.devices()[4:])
    mapped = shard_map(lambda s: s * 2, mesh=mesh, in_specs=P(), out_specs=P())
    assert (mapped.lower(1.5).compile("cpu:4")(1.5) * jnp.bfloat16(3)).dtype == jnp.bfloat16


def again(lowered, path):
    """Lowered once more, for the same devices."""
    return lowered.compile(overlap="auto")


@pytest.mark.parametrize("saved", [portable, executable, again])
def test_runs_on_64_bit_numbers_where_they_are_switched_off(saved, tmp_path):
    numbers = np.arange(8) / 3
    with jax.enable_x64(True):
        weights = jnp.asarray(numbers)
        mapped = shard_map(
            lambda x, s: x * weights[1] + s, mesh=MESH, in_specs=(P("i"), P()), out_specs=P("i")
        )
        lowered = mapped.lower(numbers, 0.1)
        expected = lowered.compile()(numbers, 0.1)
    program = saved(lowered, tmp_path / "f")
    for _ in range(2):
        result = program(numbers, 0.1)
        assert result.dtype == np.float64
        np.testing.assert_array_equal(result, expected)
    with pytest.raises(TargetTypeError, match=r"found: *f32\[8\]\s*needed: f64\[8\]"):
        program(numbers.astype(np.float32), 0.1)
    # Not of the same object: JAX may still have that on the devices, with 64 bits.
    with pytest.raises(TargetTypeError, match=r"found: *f32\[8\]\s*needed: f64\[8\]"):
        program(jnp.asarray(numbers.copy()), 0.1)


@for_both_partitioners
@for_both_kinds
def test_results_without_elements(saved, partitioner, tmp_path):
    empty = np.zeros((0, 3), np.float32)
    lowered = on_rows(lambda x: x).lower(empty, partitioner=partitioner)
    result = saved(lowered, tmp_path / "empty")(empty)
    assert (result.shape, result.dtype) == (empty.shape, empty.dtype)
    assert result.sharding == NamedSharding(MESH, P("i"))


@pytest.mark.subprocess
def test_runs_in_a_new_process_through_jax_export(tmp_path):
    shardings = NamedSharding(MESH, P("i", "j")), NamedSharding(MESH, P("j"))
    exported = jax.export.export(jax.jit(MATMUL, in_shardings=shardings))(A, B)
    (tmp_path / "exported").write_bytes(exported.serialize())
    np.savez(tmp_path / "data.npz", a=A, b=B, expected=A @ B)
    code = """
        import sys
        import jax
        import jax.export
        import numpy as np
        from jax.sharding import NamedSharding, PartitionSpec as P
        with open(sys.argv[1], "rb") as file:
            exported = jax.export.deserialize(file.read())
        mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
        data = np.load(sys.argv[2])
        a = jax.device_put(data["a"], NamedSharding(mesh, P("i", "j")))
        b = jax.device_put(data["b"], NamedSharding(mesh, P("j")))
        np.testing.assert_array_equal(jax.jit(exported.call)(a, b), data["expected"])
        print(exported.nr_devices)
    """
    assert in_new_process(code, tmp_path / "exported", tmp_path / "data.npz") == "8\n"


# ------------------------------------------------------------------------------ what is kept


@for_both_kinds
def test_structures_and_classes(saved, tmp_path):
    mapped = shard_map(
        lambda tree, w: ({3: tree["x"][0] + w.left, 4: None}, Weights(w.right, (tree["y"],))),
        mesh=MESH,
        in_specs=P("i"),
        out_specs=P("i"),
    )
    args = {"x": [A, None], "y": -A}, Weights(2 * A, 3 * A)
    result = saved(mapped.lower(*args), tmp_path / "f")(*args)
    assert set(result[0]) == {3, 4}
    np.testing.assert_array_equal(result[0][3], 3 * A)
    # A class of the file, which has the fields of the user's.
    assert (type(result[1]).__name__, type(result[1])._fields) == ("Weights", ("left", "right"))
    np.testing.assert_array_equal(result[1].left, 3 * A)
    np.testing.assert_array_equal(result[1].right[0], -A)


@for_both_kinds
def test_elements_of_less_than_a_byte_in_a_class_that_is_not_loaded(saved, tmp_path):
    given = Weights(*jnp.arange(16).astype(jnp.int4).reshape(2, 8))
    program = saved(on_rows(lambda w: w.left + w.right).lower(given), tmp_path / "program.bin")
    np.testing.assert_array_equal(program(given), given.left + given.right)


@for_both_kinds
def test_arguments_of_another_structure(saved, tmp_path):
    mapped = on_rows(lambda tree: tree["x"])
    program = saved(mapped.lower({"x": A}), tmp_path / "f")
    with pytest.raises(ValueError, match=r"the arguments args\[0\]\n"):
        program(A)


@for_both_kinds
@pytest.mark.parametrize(
    "called",
    [{"w": [A], "n": ()}, {"w": (A,), "n": None}, {"w": [A]}, {"w": [A], "n": None, "m": None}],
)
def test_arguments_of_another_structure_with_equal_paths(saved, called, tmp_path):
    mapped = on_rows(lambda tree: tree["w"][0])
    program = saved(mapped.lower({"w": [A], "n": None}), tmp_path / "f")
    np.testing.assert_array_equal(program({"n": None, "w": [A]}), A)
    with pytest.raises(ValueError, match=r"(?s)the structure .*for which this exec"):
        program(called)


@for_both_kinds
def test_arguments_of_another_class(saved, tmp_path):
    program = saved(on_rows(lambda w: w.left).lower(Weights(A, A)), tmp_path / "f")
    np.testing.assert_array_equal(program(Weights(A, A)), A)

    class Others(NamedTuple):
        left: jax.Array
        right: jax.Array

    with pytest.raises(ValueError, match=r"(?s)args\[0\]\n.*Others.*needed: .*Weights"):
        program(Others(A, A))


@for_both_kinds
def test_values_closed_over(saved, tmp_path):
    half, key = jnp.asarray(A[:1], jnp.bfloat16), jax.random.key(3)
    mapped = on_rows(lambda x: x * half + jax.random.uniform(key, (16,)))
    program = saved(mapped.lower(A), tmp_path / "f")
    np.testing.assert_array_equal(program(A), mapped(A))


@for_both_kinds
@pytest.mark.parametrize("dtype", ["bfloat16", "uint8", "bool", "float8_e4m3fn", "complex64"])
def test_element_types(saved, dtype, tmp_path):
    x = jnp.asarray(A % 2, dtype)
    program = saved(on_rows(lambda x: x).lower(x), tmp_path / "f")
    result = program(x)
    assert result.dtype == x.dtype
    assert bool((result == x).all())


@for_both_kinds
def test_random_keys(saved, tmp_path):
    keys = jax.random.split(jax.random.key(0), 8)
    mapped = on_rows(lambda keys: jax.vmap(lambda k: jax.random.uniform(k, (2,)))(keys))
    np.testing.assert_array_equal(saved(mapped.lower(keys), tmp_path / "f")(keys), mapped(keys))


@for_both_kinds
def test_arguments_that_are_no_arrays(saved, tmp_path):
    mapped = shard_map(
        lambda x, mode, n: x * n if mode == "times" else x + n,
        mesh=MESH,
        in_specs=(P("i"), None, None),
        out_specs=P("i"),
    )
    program = saved(mapped.lower(A, "times", 3), tmp_path / "f")
    np.testing.assert_array_equal(program(A, "times", 3), 3 * A)
    with pytest.raises(ValueError, match="'plus', a str"):
        program(A, "plus", 3)
    program = saved(mapped.lower(A, "plus", float("nan")), tmp_path / "f")
    assert np.isnan(program(A, "plus", float("nan"))).all()


@for_both_kinds
def test_arguments_without_use_and_results_without_arguments(saved, tmp_path):
    mapped = shard_map(
        lambda a, unused: (a, lax.axis_index("i")[None]),
        mesh=MESH,
        in_specs=P("i"),
        out_specs=P("i"),
    )
    result = saved(mapped.lower(A, -A), tmp_path / "f")(A, -A)
    np.testing.assert_array_equal(result[0], A)
    np.testing.assert_array_equal(result[1], np.arange(4))


@for_both_partitioners
def test_automatic_axes(partitioner, tmp_path):
    mapped = shard_map(
        lambda x: lax.psum(x, "i"), mesh=MESH, in_specs=P("i"), out_specs=P(), axis_names={"i"}
    )
    expected = A.reshape(4, 2, 16).sum(0)
    program = portable(mapped.lower(A, partitioner=partitioner), tmp_path / "f")
    np.testing.assert_array_equal(program(A), expected)


def without_frames(hlo: str) -> str:
    """The program without its numbered stack frames: XLA saves only those that it uses."""
    tables = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
    parts = [part for part in hlo.split("\n\n") if not part.strip().startswith(tables)]
    return re.sub(r" stack_frame_id=\d+", "", "\n\n".join(parts))


def test_analyses_are_those_of_the_program_saved(tmp_path):
    lowered = MATMUL.lower(A, B)
    before = lowered.compile()
    after = executable(lowered, tmp_path / "f")
    assert isinstance(after, Executable)
    assert without_frames(after.as_text()) == without_frames(before.as_text())
    assert after.input_shardings == before.input_shardings
    assert after.memory_analysis().argument_size_in_bytes == 4 * (2 * 8 + 8 * 4)


@for_both_partitioners
def test_equal_programs_give_equal_files(partitioner, tmp_path):
    for name in "xy":
        MATMUL.lower(A, B, partitioner=partitioner).save(tmp_path / name)
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_size_does_not_grow_with_the_devices(tmp_path):
    def saved(count):
        mesh = jax.sharding.AbstractMesh((count, 2), ("i", "j"))
        types = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8192, 16), (16, 4))]
        MATMUL.replace(mesh=mesh).lower(*types).save(tmp_path / "f")
        return len(load(tmp_path / "f").module)

    assert abs(saved(4096) - saved(4)) < 64


def test_loaded_program_can_be_saved_again(tmp_path):
    MATMUL.lower(A, B).save(tmp_path / "x")
    program = load(tmp_path / "x")
    assert isinstance(program, Portable)
    program.save(tmp_path / "y")
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


# --------------------------------------------------------------------------------- bad input


def test_no_such_file(tmp_path):
    with refused("file '", "No such file or directory", "a file written by save()", "check the"):
        load(tmp_path / "none")


def test_file_of_something_else(tmp_path):
    (tmp_path / "f").write_text("text")
    with refused("file '", "something else", "a file written by save()", "save it again"):
        load(tmp_path / "f")


def test_part_of_a_file(tmp_path):
    MATMUL.lower(A, B).save(tmp_path / "f")
    (tmp_path / "f").write_bytes((tmp_path / "f").read_bytes()[:500])
    with refused("file '", "something else, or a part", "a file written by save()", "save it"):
        load(tmp_path / "f")


def changed(path, **header):
    """Rewrites a file with other values in its header."""
    container = unpack(path)
    path.write_bytes(pack(replace(container, header={**container.header, **header})))


def test_file_of_a_later_format(tmp_path):
    MATMUL.lower(A, B).save(tmp_path / "f")
    changed(tmp_path / "f", format=2)
    with refused("file '", "format 2", "format 1", "use the versions that wrote it: {'shmap"):
        load(tmp_path / "f")


def test_program_compiled_by_other_versions(tmp_path):
    MATMUL.lower(A, B).compile().save(tmp_path / "f")
    versions = {**unpack(tmp_path / "f").header["versions"], "jaxlib": "0.9.0"}
    changed(tmp_path / "f", versions=versions)
    with refused("file '", "compiled by jaxlib 0.9.0", "jaxlib 0.1", "compile it again here"):
        load(tmp_path / "f")


def test_program_compiled_for_other_devices(tmp_path):
    MATMUL.lower(A, B).compile().save(tmp_path / "f")
    changed(tmp_path / "f", device_kind="TPU v5 lite", target="tpu:v5e:2x4")
    with refused(
        "file '",
        "8 devices here, of kind cpu",
        "the 8 devices of kind TPU v5 lite it was compiled for, tpu:v5e:2x4",
        "load it on a machine that has them",
    ):
        load(tmp_path / "f")


def test_program_lowered_for_another_platform(tmp_path):
    MATMUL.lower(A, B).save(tmp_path / "f", platform="tpu")
    with pytest.raises(ValueError, match=r"(?s)a program lowered for 'tpu'.*platform='cpu'"):
        load(tmp_path / "f").compile("cpu:8")


@for_both_kinds
def test_program_that_calls_back(saved, tmp_path):
    def body(x):
        jax.debug.callback(lambda v: None, x)
        return x

    with pytest.raises(ValueError, match=r"(?s)debug_callback at test.*a call back into Python"):
        saved(on_rows(body).lower(A), tmp_path / "f")


@for_both_kinds
def test_nested_function_that_calls_back(saved, tmp_path):
    """Loading such a program and calling it would end the process."""

    def body(x):
        jax.debug.callback(lambda v: None, x)
        return x

    def outer(x):
        return shard_map(body, in_specs=P(None, "j"), out_specs=P(None, "j"), axis_names={"j"})(x)

    with pytest.raises(ValueError, match=r"(?s)debug_callback at test.*a call back into Python"):
        saved(on_rows(outer, axis_names={"i"}).lower(A), tmp_path / "f")


def sines():
    """Lowers a function that is defined anew, so that no cache in memory has it."""

    def sines(x):
        return 2 * jnp.sin(x) + x

    return on_rows(sines).lower(A)


NO_CODE = re.compile(r"(?s)a program for CPUs that was read from a file or .*copy the file")


def test_loaded_executable_is_not_saved_again(tmp_path):
    """XLA would write it without its machine code."""
    loaded = executable(sines(), tmp_path / "f")
    with pytest.raises(ArtifactError, match=NO_CODE):
        loaded.save(tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_loaded_executable_without_machine_code_is_saved_again(tmp_path):
    executable(MATMUL.lower(A, B), tmp_path / "f").save(tmp_path / "again")
    assert np.array_equal(load(tmp_path / "again")(A, B), A @ B)


def test_executable_from_the_compilation_cache_is_not_saved(compilation_cache, tmp_path):
    sines().compile().save(tmp_path / "f")
    again = sines().compile()
    with pytest.raises(ArtifactError, match=NO_CODE):
        again.save(tmp_path / "again")
    assert np.array_equal(load(tmp_path / "f")(A), again(A))


@jax.tree_util.register_pytree_node_class
class Nameless:
    """A container of whose parts JAX knows no names."""

    def __init__(self, x):
        self.x = x

    def tree_flatten(self):
        return (self.x,), None

    @classmethod
    def tree_unflatten(cls, _, children):
        return cls(*children)


@for_both_kinds
def test_all_that_cannot_be_saved_at_once(saved, tmp_path):
    mapped = shard_map(
        lambda tree, mode: {"y": Nameless(tree["x"].x)},
        mesh=MESH,
        in_specs=(P("i"), None),
        out_specs=P("i"),
    )
    lowered = mapped.lower({"x": Nameless(A)}, frozenset())
    with refused("(3 problems)", "a Nameless", "tuples, lists, dicts", "convert it") as caught:
        saved(lowered, tmp_path / "f")
    places = [problem.where for problem in caught.value.problems]
    assert places == ["args[0]['x']", "result['y']", "args[1]"]
    assert not (tmp_path / "f").exists()


@jax.tree_util.register_dataclass
@dataclass
class Scaled:
    array: jax.Array
    factor: int = field(metadata={"static": True})


@for_both_kinds
def test_metadata_of_classes_is_not_saved(saved, tmp_path):
    """A named tuple, as which the class is read back, does not have it."""
    lowered = on_rows(lambda x: Scaled(x.array * x.factor, 5)).lower(Scaled(A, 2))
    with refused("(2 problems)", "a Scaled with metadata", "containers without", "pass") as caught:
        saved(lowered, tmp_path / "f")
    assert [problem.where for problem in caught.value.problems] == ["args[0]", "result"]


def test_container_keeps_its_contents(tmp_path):
    (tmp_path / "f").write_bytes(pack(Container("kind", {"a": [1]}, {"part": b"x"})))
    container = unpack(tmp_path / "f")
    assert (container.kind, container.header["a"], container.parts) == ("kind", [1], {"part": b"x"})


def test_container_holds_a_fixed_time():
    data = pack(Container("kind", {}, {"part": b"x"}))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert {info.date_time for info in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


@jax.tree_util.register_pytree_with_keys_class
class Named:
    """As a FrozenDict of flax: JAX knows its parts by the keys of a dict, in its own order."""

    def __init__(self, parts):
        self.parts = parts

    def tree_flatten_with_keys(self):
        return [(jax.tree_util.DictKey(k), v) for k, v in self.parts.items()], tuple(self.parts)

    @classmethod
    def tree_unflatten(cls, keys, values):
        return cls(dict(zip(keys, values, strict=True)))


@for_both_kinds
@pytest.mark.parametrize("container", [OrderedDict, Named])
def test_containers_whose_keys_are_not_sorted(saved, container, tmp_path):
    def body(tree):
        parts = getattr(tree, "parts", tree)
        return container({"b": 10 * parts["b"], "a": parts["a"]})

    given = container({"b": A, "a": A + 1})
    loaded = saved(on_rows(body).lower(given), tmp_path / "f")
    found = loaded(given if container is OrderedDict else OrderedDict(b=A, a=A + 1))
    assert list(found) == ["b", "a"]
    np.testing.assert_array_equal(found["b"], 10 * A)
    np.testing.assert_array_equal(found["a"], A + 1)
