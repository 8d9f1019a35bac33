"""The passes as a set: names, files, docstrings, and what they may import."""

import dataclasses
import importlib
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import shmap_passes
from jaxlib.mlir import ir
from shmap_passes import PASSES
from shmap_passes.checks.verify import Verify
from shmap_passes.diagnostics import file_line_col

HERE = Path(__file__).parent
ROOMS = ("import_", "checks", "simplify", "overlap", "export")
by_name = pytest.mark.parametrize("cls", PASSES, ids=lambda cls: cls.name)


def source(cls):
    return Path(importlib.import_module(cls.__module__).__file__)


def lit_folder(cls):
    """The folder of a pass's lit tests mirrors its room."""
    return HERE / source(cls).parent.name


@by_name
def test_the_four_spellings_of_a_name_agree(cls):
    words = cls.name.removeprefix("shmap-").split("-")
    assert cls.name == "shmap-" + "-".join(words)
    assert cls.__name__ == "".join(word.capitalize() for word in words)
    assert source(cls).name == "_".join(words) + ".py"
    assert source(cls).parent.name in ROOMS
    assert (lit_folder(cls) / f"{'_'.join(words)}.mlir").is_file()


@by_name
def test_a_pass_that_can_refuse_has_a_test_of_what_it_refuses(cls):
    can_refuse = re.search(r"PassRefused|needs_body_form", source(cls).read_text()) is not None
    assert (lit_folder(cls) / f"{source(cls).stem}_invalid.mlir").is_file() == can_refuse


@by_name
def test_a_pass_is_a_frozen_dataclass_with_one_summary(cls):
    assert cls.__dataclass_params__.frozen
    module = importlib.import_module(cls.__module__)
    assert cls.summary() == module.__doc__.splitlines()[0]
    for field in dataclasses.fields(cls):
        assert field.default is not dataclasses.MISSING


@by_name
def test_a_pass_file_says_what_goes_in_and_what_comes_out(cls):
    headings = re.findall(r"^(Before|After|Needs|Leaves)\b", source(cls).read_text(), re.M)
    assert sorted(set(headings), key=headings.index) == ["Before", "After", "Needs", "Leaves"]


def test_every_file_of_lit_tests_is_about_a_pass():
    for path in HERE.rglob("*.mlir"):
        if path.parent.name == "Inputs":
            continue  # modules that Python tests read
        stems = {source(cls).stem for cls in PASSES if lit_folder(cls) == path.parent}
        assert any(path.stem == stem or path.stem.startswith(f"{stem}_") for stem in stems), path


@pytest.mark.parametrize("partitioner", ["gspmd", "shardy"])
@pytest.mark.parametrize("groups", ["axes", "ids"])
def test_the_pipeline_runs_in_the_order_of_the_table(partitioner, groups):
    classes = [type(each) for each in shmap_passes.pipeline(partitioner, groups)]
    assert classes == sorted(classes, key=PASSES.index)


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("module", "slow"),
    [
        ("shmap_passes", "jax."),
        ("shmap_tools.opt.main", "jax."),
        ("shmap_tools.cli.main", "jax."),
        ("shmap_compiler", "scipy."),
    ],
)
def test_what_is_slow_to_import_is_imported_when_it_is_needed(module, slow):
    check = f"import sys, {module}; print([n for n in sys.modules if n.startswith('{slow}')])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_refusal_is_raised_with_every_place():
    text = """module {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"j", "k"}>} {
    return
  }
}"""
    with shmap_passes.make_context():
        module = ir.Module.parse(text)
        with pytest.raises(shmap_passes.PassFailure, match='manual axis "j"') as caught:
            shmap_passes.run(module, shmap_passes.pipeline())
    assert [each.place for each in caught.value.diagnostics] == ["-:3:3", "-:3:3"]


def test_an_option_is_checked_where_a_pass_is_made():
    with pytest.raises(
        shmap_passes.PipelineError, match="groups=both is not one of axes, one-axis, ids"
    ):
        shmap_passes.pipeline(groups="both")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("shmap-verify", r"must read builtin.module\("),
        ("builtin.module(shmap-verify", r"must read builtin.module\("),
        ("builtin.module(cse))", "brackets or quotes do not match"),
        ("builtin.module(func.func(cse)", "brackets or quotes do not match"),
        ("builtin.module(shmap-verfy)", "no pass is named shmap-verfy; did you mean shmap-verify"),
        ("builtin.module(shmap-wrap-manual{part=x})", "has no option 'part'; its options: part"),
        ("builtin.module(shmap-wrap-manual{partitioner=x})", "x is not one of gspmd, shardy"),
        ("builtin.module(shmap-verify{x=1})", "has no option 'x'; its options: none"),
    ],
)
def test_a_pipeline_that_cannot_be_read(text, complaint):
    with pytest.raises(shmap_passes.PipelineError, match=complaint):
        shmap_passes.parse_pipeline(text, PASSES)


def test_a_pass_and_its_text_are_the_same():
    for pass_ in shmap_passes.pipeline("shardy", "ids"):
        assert shmap_passes.parse_pipeline(f"builtin.module({pass_})", PASSES) == (pass_,)


def test_elements_of_others_stay_text():
    text = "builtin.module(canonicalize{top-down=true region-simplify=normal}, func.func(cse,cse))"
    assert shmap_passes.parse_pipeline(text, PASSES) == (
        "canonicalize{top-down=true region-simplify=normal}",
        "func.func(cse,cse)",
    )


def test_what_others_changed_is_verified_again(monkeypatch):
    runs = []
    monkeypatch.setattr(Verify, "run", lambda self, module: runs.append(self))
    text = """module {
  sdy.mesh @mesh = <["i"=4]>
  func.func public @main() attributes {sdy.manual_axes = #sdy<manual_axes{"i"}>} {
    return
  }
}"""
    elide = next(cls for cls in PASSES if cls.name == "shmap-elide-trivial-collectives")
    with shmap_passes.make_context():
        module = ir.Module.parse(text)
        shmap_passes.run(module, [Verify(), elide()])
        assert len(runs) == 1
        shmap_passes.run(module, [Verify(), "cse", elide()])
        assert len(runs) == 3


def test_the_place_of_an_inlined_op_is_that_in_the_function():
    with shmap_passes.make_context():
        inner, outer = (ir.Location.file("-", line, 1) for line in (7, 3))
        assert file_line_col(ir.Location.callsite(inner, [outer])) == "-:7:1"


def test_the_page_of_passes_is_made_from_their_docstrings():
    maker = Path(__file__).parents[2] / "docs" / "make_passes.py"
    made = runpy.run_path(str(maker))
    assert made["PAGE"].read_text() == made["page"](), "run: python docs/make_passes.py"
