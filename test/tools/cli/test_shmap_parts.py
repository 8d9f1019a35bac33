"""What `shmap` is made of, where a command alone would not show it."""

import argparse
import dataclasses
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from shmap_tools.cli import array_type, compile, explain, imports, program_files, random_data
from shmap_tools.cli.hlo_collectives import Collectives, collectives
from shmap_tools.usage import UsageError

from shmap_compiler import Lowered, Target
from shmap_compiler.simulate import agreement

MATMUL = Path(__file__).parents[3] / "examples" / "matmul.py"


@pytest.mark.parametrize(
    ("text", "dtype", "shape"),
    [
        ("f32[8,16]", "float32", (8, 16)),
        (" f32 [ 8 , 16 ] ", "float32", (8, 16)),
        ("f32[]", "float32", ()),
        ("i32", "int32", ()),
        ("f32[0]", "float32", (0,)),
        ("bf16[4]", "bfloat16", (4,)),
        ("bfloat16[4]", "bfloat16", (4,)),
        ("u8[4]", "uint8", (4,)),
        ("s32[4]", "int32", (4,)),
        ("pred[4]", "bool", (4,)),
        ("bool[4]", "bool", (4,)),
        ("c64[4]", "complex64", (4,)),
        ("f8e4m3fn[4]", "float8_e4m3fn", (4,)),
        ("float8_e4m3fn[4]", "float8_e4m3fn", (4,)),
        ("f64[4]", "float64", (4,)),
    ],
)
def test_type_is_read(text, dtype, shape):
    type_ = array_type.parse(text)
    assert (type_.dtype, type_.shape) == (jnp.dtype(dtype), shape)


@pytest.mark.parametrize(
    "text", ["", "f32[", "f32]", "f32[8,,8]", "f32[8,]", "f32[-1]", "f32[8 8]", "f32x8", "[8]"]
)
def test_type_is_refused(text):
    with pytest.raises(UsageError, match=r"needed: ELEMENT\[SIZE,\.\.\.\]"):
        array_type.parse(text)


def test_collectives_are_counted_with_bytes():
    hlo = """HloModule m
ENTRY %main (x: f32[2,32]) -> f32[] {
  %a = f32[2,32]{1,0} all-reduce(%x), channel_id=1, metadata={op_name="all-reduce("}
  %b = (bf16[4]{0}, pred[3]{0}) all-reduce(%x, %y), channel_id=2
  %c = (f32[8]{0}, f32[16]{0}) all-gather-start(%x), channel_id=3
  %d = f32[16]{0:T(8,128)} all-gather-done(%c)
  %e = s4[5]{0} collective-permute(%x)
  ROOT %f = f32[] fusion(%a), calls=%all-to-all, metadata={op_name="all-to-all(x)"}
}
"""
    assert collectives(hlo) == [
        Collectives("all-gather", 1, 64),
        Collectives("all-reduce", 2, 256 + 8 + 3),
        Collectives("collective-permute", 1, 3),
    ]


def test_compile_prints_the_notes(monkeypatch, capsys):
    compile_plain = Lowered.compile

    def compile_noted(self, *args, **options):
        return dataclasses.replace(compile_plain(self, *args, **options), notes=("first", "second"))

    monkeypatch.setattr(Lowered, "compile", compile_noted)
    parser = argparse.ArgumentParser()
    compile.add_arguments(parser)
    compile.execute(parser.parse_args([f"{MATMUL}:matmul_basic", "--target", "cpu:8"]))
    assert capsys.readouterr().out.endswith("\n\nnote: first\n\nnote: second\n")


def compare_one(result, reference, **options):
    (found,) = agreement.compare(result, reference, **options)
    return found


def test_error_is_relative_to_the_largest_magnitude_of_the_reference():
    found = compare_one(np.float32([1.0, 102.0]), np.float32([0.0, 100.0]))
    assert (found.absolute, found.relative, found.holds) == (2.0, 0.02, False)
    assert compare_one(np.float32([1.0]), np.float32([2.0]), tolerance=0.5).holds


@pytest.mark.parametrize(
    ("result", "reference", "holds"),
    [
        ([np.nan, 1.0], [np.nan, 1.0], True),
        ([np.inf, 1.0], [np.inf, 1.0], True),
        ([np.nan, 1.0], [0.0, 1.0], False),
        ([0.0, 1.0], [np.nan, 1.0], False),
        ([np.inf, 1.0], [-np.inf, 1.0], False),
        ([1e-30], [0.0], False),
        ([], [], True),
    ],
)
def test_values_that_have_no_relative_error(result, reference, holds):
    assert compare_one(np.float32(result), np.float32(reference)).holds is holds


@pytest.mark.parametrize(
    ("dtype", "allowed", "refused"),
    [("float32", 2.0**-18, 2.0**-16), ("bfloat16", 2.0**-6, 2.0**-5), ("int32", 0, 1)],
)
def test_tolerance_goes_by_the_type_of_the_result(dtype, allowed, refused):
    one = jnp.ones(1, dtype)
    assert compare_one(one + jnp.asarray(allowed, dtype), one).holds
    assert not compare_one(one + jnp.asarray(refused, dtype), one).holds


@pytest.mark.parametrize("name", ["f32", "bf16", "i2", "u4", "i32", "pred", "c64", "f8e4m3fn"])
def test_random_data_varies_and_repeats(name):
    types = (array_type.parse(f"{name}[64]"), 3)
    (first, three), (again, _), (other, _) = (random_data.fill(types, seed) for seed in (0, 0, 1))
    assert (first.dtype, first.shape, three) == (types[0].dtype, (64,), 3)
    assert len(np.unique(np.asarray(first).astype(np.complex64))) > 1
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    if jnp.issubdtype(first.dtype, jnp.integer):
        assert np.max(np.abs(first.astype(np.int32))) <= 8


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
def test_random_keys_vary_and_are_of_the_generator_of_their_type(generator):
    type_ = jax.ShapeDtypeStruct((3, 2), jax.random.key(0, impl=generator).dtype)
    first, again, other = (random_data.fill(type_, seed) for seed in (0, 0, 1))
    assert (first.dtype, first.shape) == (type_.dtype, (3, 2))
    words = [np.asarray(jax.random.key_data(keys)) for keys in (first, again, other)]
    np.testing.assert_array_equal(words[0], words[1])
    assert len(np.unique(np.stack([words[0], words[2]]))) == 2 * words[0].size


@pytest.mark.parametrize("size", [8 * 10**12, 10**19 - 1])
def test_random_data_that_does_not_fit_into_memory_is_refused(size):
    with pytest.raises(UsageError, match=rf"args\[1\]\n    found:  float32\[{size}\],"):
        random_data.fill((3, array_type.parse(f"f32[{size}]")), 0)


def test_what_a_program_is_compared_with():
    target = Target.parse("cpu:8")
    for text in ("other.mlir", "folder/other.py:f"):
        options = argparse.Namespace(against=text, target="one.mlir", mesh="i=4")
        assert explain._other(options, target) == (
            argparse.Namespace(against=text, target=text, mesh="i=4"),
            target,
        )
    options = argparse.Namespace(against="cpu:4", target="one.mlir")
    assert explain._other(options, target) == (options, Target.parse("cpu:4"))


@pytest.fixture
def imports_undone(monkeypatch):
    """Undoes what programs import in a test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(imports, "_scopes", {})
    monkeypatch.setattr(imports, "_entered", [])
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.usefixtures("imports_undone")
@pytest.mark.parametrize("on_path", [False, True], ids=["", "on_path"])
def test_each_program_imports_what_is_beside_it(tmp_path, monkeypatch, on_path):
    if on_path:  # as with PYTHONPATH
        monkeypatch.syspath_prepend(tmp_path / "one")
    text = """
import os, sys
sys.path.append(os.path.join(os.path.dirname(__file__), "..", "{name}-vendored"))
import helpers.inner, vendored_of_both

def f():
    import late
    return helpers.inner.name, vendored_of_both.name, late.name
"""
    for name in ("one", "two"):
        helpers, vendored = tmp_path / name / "helpers", tmp_path / f"{name}-vendored"
        helpers.mkdir(parents=True)
        vendored.mkdir()
        (helpers / "__init__.py").touch()
        for module in (helpers / "inner", vendored / "vendored_of_both", helpers.parent / "late"):
            module.with_suffix(".py").write_text(f"name = {name!r}")
        (tmp_path / name / "program.py").write_text(text.format(name=name))
    programs = [
        program_files.load(f"{tmp_path / name / 'program.py'}:f", any_function=True)
        for name in ("one", "two", "one")
    ]
    found = [each.guarded(each.mapped, "calling f") for each in programs]
    assert found == [("one",) * 3, ("two",) * 3, ("one",) * 3]
    assert programs[0].mapped is programs[2].mapped


@pytest.mark.usefixtures("imports_undone")
def test_programs_share_the_libraries_that_they_import(tmp_path, monkeypatch):
    libraries = tmp_path / "one" / ".venv"  # inside of the folder of a program
    libraries.mkdir(parents=True)
    (tmp_path / "two").mkdir()
    monkeypatch.syspath_prepend(libraries)
    (libraries / "library_of_both.py").write_text("def f(): pass")
    loaded = []
    for name in ("one", "two"):
        (tmp_path / name / "program.py").write_text("from library_of_both import f")
        target = f"{tmp_path / name / 'program.py'}:f"
        loaded.append(program_files.load(target, any_function=True).mapped)
    assert loaded[0] is loaded[1]
