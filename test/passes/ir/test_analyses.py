"""What a pass finds in a module is kept until a pass changes the module."""

import io
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import shmap_passes
from jaxlib.mlir import ir
from shmap_passes import PASSES, ChooseOverlap, Pass, PassRefused
from shmap_passes.checks.verify import Verify
from shmap_passes.ir.analyses import analysis, keeping_analyses
from shmap_passes.ir.body_form import read_body_form
from shmap_passes.ir.collective_ops import collectives_of
from shmap_passes.overlap.find.exchange_blocks import exchange_blocks_of
from shmap_passes.overlap.find.exchanges import exchanges_of
from shmap_passes.overlap.find.row_blocks import row_blocks_of

LIT = Path(__file__).parents[1]
MODULE = """
module {
  func.func public @main() { return }
}
"""

found = []


@analysis
def functions_of(module):
    names = [op.name.value for op in module.body.operations]
    found.append(names)
    return names


@dataclass(frozen=True)
class Look(Pass):
    """Looks for functions."""

    name = "test-look"
    says: bool = True

    def run(self, module):
        functions_of(module)
        return False if self.says else None


@dataclass(frozen=True)
class Rename(Pass):
    """Renames @main."""

    name = "test-rename"

    def run(self, module):
        module.body.operations[0].attributes["sym_name"] = ir.StringAttr.get("other")
        return True


def looked(*passes):
    """What each look of a pipeline found that did not take what was known."""
    found.clear()
    with shmap_passes.make_context():
        shmap_passes.run(ir.Module.parse(MODULE), passes)
    return list(found)


def test_passes_that_change_nothing_keep_what_is_found():
    assert looked(Look(), Look(), Look()) == [["main"]]


def test_a_pass_that_changes_the_module_keeps_nothing():
    assert looked(Look(), Rename(), Look(), Look()) == [["main"], ["other"]]


def test_a_pass_that_does_not_say_keeps_nothing():
    assert looked(Look(says=False), Look()) == [["main"], ["main"]]


def test_beside_passes_of_mlir_nothing_is_kept():
    assert looked(Look(), "canonicalize", Look()) == [["main"], ["main"]]


def test_nothing_is_kept_outside_of_a_run_or_for_another_module():
    found.clear()
    with shmap_passes.make_context():
        first, second = (ir.Module.parse(MODULE).operation.opview for _ in range(2))
        functions_of(first), functions_of(first)
        assert len(found) == 2
        with keeping_analyses():
            functions_of(first), functions_of(second), functions_of(first)
        assert len(found) == 4


def modules():
    """Those of the lit tests of all simplifications."""
    for path in sorted((LIT / "simplify").glob("*.mlir")):
        for number, text in enumerate(re.split(r"(?m)^// -----", path.read_text())):
            yield pytest.param(text, id=f"{path.stem}-{number}")


def text_of(module):
    file = io.StringIO()
    module.operation.print(file=file, enable_debug_info=True, print_generic_op_form=True)
    return file.getvalue()


SIMPLIFICATIONS = {each for each in PASSES if ".simplify." in each.__module__}


def test_no_simplification_says_that_it_changed_nothing_when_it_did():
    changed = set()
    for module in modules():
        with shmap_passes.make_context(), ir.Location.unknown():
            try:
                parsed = ir.Module.parse(module.values[0]).operation.opview
                Verify().run(parsed)
            except (ir.MLIRError, PassRefused):
                continue  # shmap-verify runs before all of these passes
            for cls in (each for each in PASSES if each in SIMPLIFICATIONS):
                before = text_of(parsed)
                says = cls().run(parsed)
                if text_of(parsed) != before:
                    assert says, f"{cls.name} on {module.id}"
                    changed.add(cls)
    assert changed == SIMPLIFICATIONS


def test_what_is_kept_while_overlap_is_chosen_still_holds():
    """The pass that chooses forms writes them on operations, and says that analyses hold."""
    kept_with_forms = 0
    analyses = (read_body_form, collectives_of, row_blocks_of, exchange_blocks_of, exchanges_of)
    for path in sorted((LIT / "overlap").glob("*.mlir")):
        for text in re.split(r"(?m)^// -----", path.read_text()):
            with shmap_passes.make_context(), ir.Location.unknown(), keeping_analyses():
                try:
                    module = ir.Module.parse(text).operation.opview
                    Verify().run(module)
                except (ir.MLIRError, PassRefused):
                    continue
                kept = [each(module) for each in analyses]
                if ChooseOverlap(effort="force", may_round=True).run(module) is False:
                    kept_with_forms += "shmap.overlap" in text_of(module)
                    assert kept == [each.__wrapped__(module) for each in analyses], path
    assert kept_with_forms
