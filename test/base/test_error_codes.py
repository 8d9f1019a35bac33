"""Codes of errors, their copies, and what `repr` prints of programs: short and stable."""

import copy
import pickle
import re
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from jaxlib.mlir import ir
from shmap_passes import PASSES, Diagnostic, PassFailure, make_context, parse_pipeline, run

import shmap_compiler
from shmap_compiler import ShmapError, load, shard_map
from shmap_compiler.base.errors import ProgramName, errors_of

DOCS = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
ERRORS = [
    value
    for value in vars(shmap_compiler).values()
    if isinstance(value, type) and issubclass(value, ShmapError)
]


def test_every_error_class_is_exported():
    classes, found = [ShmapError], set()
    while classes:
        cls = classes.pop()
        found.add(cls)
        classes += cls.__subclasses__()
    assert found == set(ERRORS)
    assert {cls.__name__ for cls in ERRORS} <= set(shmap_compiler.__all__)


def test_every_code_is_used_once_and_documented():
    codes = [cls.code for cls in (*ERRORS, *PASSES)]
    assert len(set(codes)) == len(codes)
    headings = re.findall(r"^### (SHM-\w+)$", DOCS, re.M)
    assert sorted(headings) == sorted([*codes, "SHM-U01", "SHM-U02"])


@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("who", [None, "`f` (f.py:1)"])
def test_a_message_ends_with_its_code(cls, who):
    problem = shmap_compiler.Problem("where", "found", "needed", "fix")
    last = str(cls(who, [problem])).splitlines()[-1]
    assert last.strip() == f"[{cls.code}: docs/errors.md#{cls.code.lower()}]"
    section = DOCS.partition(f"### {cls.code}\n")[2].partition("###")[0]
    assert f"`{cls.__name__}`" in section


def _pickled(error):
    return pickle.loads(pickle.dumps(error))


COPIES = pytest.mark.parametrize("make_copy", [_pickled, copy.copy, copy.deepcopy])


@COPIES
@pytest.mark.parametrize("cls", ERRORS, ids=lambda cls: cls.__name__)
def test_errors_can_be_pickled_and_copied(cls, make_copy):
    problem = shmap_compiler.Problem("where", "found", "needed", "fix")
    for who in (None, "`f` (f.py:1)", ProgramName("f.mlir")):
        with errors_of("pmap"):
            error = cls(who, [problem] * 30)
        error.add_note("a note")
        found = make_copy(error)
        assert type(found) is cls
        assert str(found) == str(error)
        assert found.args == error.args
        assert vars(found) == vars(error)
        assert type(found.who) is type(who)


@COPIES
def test_failures_of_passes_can_be_pickled_and_copied(make_copy):
    error = PassFailure([Diagnostic("f.py:1:2", "error", "wrong")], "shmap-opt f.mlir")
    error.add_note("a note")
    found = make_copy(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


@pytest.mark.parametrize("cls", PASSES, ids=lambda cls: cls.name)
def test_a_diagnostic_of_a_pass_ends_with_its_code(cls):
    section = DOCS.partition(f"### {cls.code}\n")[2].partition("###")[0]
    assert f"`{cls.name}`" in section
    if not cls.needs_body_form:
        return
    with make_context() as context:
        module = ir.Module.parse("module {}", context)
        with pytest.raises(PassFailure, match=re.escape(f"[{cls.code}: docs/errors.md#")):
            run(module, parse_pipeline(f"builtin.module({cls.name})", PASSES))


def test_the_version_is_that_of_the_package():
    assert shmap_compiler.__version__ == version("shmap_compiler")
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", shmap_compiler.__version__)


def test_repr_of_a_program_is_one_short_line(tmp_path):
    mesh = jax.make_mesh((4, 2), ("i", "j"), axis_types=(AxisType.Auto,) * 2)

    def layer(x):
        for _ in range(50):
            x = lax.psum(x, "j") * 2
        return x

    lowered = shard_map(layer, mesh=mesh, in_specs=P("i"), out_specs=P("i")).lower(np.ones((8, 4)))
    lowered.save(tmp_path / "f")
    executable = lowered.compile()
    programs = lowered, lowered.graph, lowered.call, executable, load(tmp_path / "f")
    for program in programs:
        text = repr(program)
        assert "layer" in text
        assert "mesh(i=4, j=2)" in text
        assert "\n" not in text
        assert len(text) < 250
    assert (
        repr(lowered.graph)
        == "<Graph of `layer` on mesh(i=4, j=2): 1 input, 1 output, 100 equations>"
    )
    assert str(lowered.graph).count("psum") == 50
