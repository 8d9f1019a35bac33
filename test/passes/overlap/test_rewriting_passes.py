"""The frame of the passes that rewrite sites: which are rewritten, and what becomes of forms."""

import dataclasses
import types
from typing import ClassVar

import pytest
import shmap_passes
from jaxlib.mlir import ir
from shmap_passes.ir.collective_ops import ALL_GATHER
from shmap_passes.ir.find_ops import find_ops
from shmap_passes.overlap.form import FORM, Form, read, write
from shmap_passes.overlap.rewrite.rewriting import RewritingPass
from shmap_passes.pipeline import overlap_passes

MODULE = """module {{
  sdy.mesh @mesh = <["i"=4, "j"=2]>
  func.func public @main(
      %x: tensor<4x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{"i"}}, {{}}]>}})
      -> (tensor<16x8xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{}}, {{}}]>}})
      attributes {{sdy.manual_axes = #sdy<manual_axes{{{manual}}}>}} {{
    %y = "stablehlo.all_gather"(%x) <{{all_gather_dim = 0 : i64,
        replica_groups = #stablehlo.replica_group_mesh_axes<mesh = @mesh,
            axes = [#stablehlo.axis_ref<name = "i">]>}}>
        : (tensor<4x8xf32>) -> tensor<16x8xf32>
    return %y : tensor<16x8xf32>
  }}
}}"""


@dataclasses.dataclass(frozen=True)
class Recording(RewritingPass):
    """Notes the forms of the gathers that it should rewrite."""

    name = "shmap-recording"
    forms = ("ring", "rows")
    op_name = ALL_GATHER
    rewritten: ClassVar[list] = []
    form: str = "chosen"
    parts: int = 0

    def sites(self, ops, body):
        return (types.SimpleNamespace(op=op) for op in ops)

    def rewrite(self, site, body, form):
        self.rewritten.append(form)


def rewritten(pass_, form, manual='"i", "j"'):
    """(what the pass is to rewrite, whether a form is left) if a form is written on the gather."""
    Recording.rewritten.clear()
    with shmap_passes.make_context():
        module = ir.Module.parse(MODULE.format(manual=manual))
        (op,) = find_ops(module.operation, [ALL_GATHER])
        if form is not None:
            write(op, form)
        pass_.run(module.operation.opview)
        return list(Recording.rewritten), FORM in op.attributes


def test_what_has_a_form_of_the_pass_is_rewritten():
    ring = Form("ring", order=(0, 2, 1, 3))
    assert rewritten(Recording(), ring) == ([ring], False)
    assert rewritten(Recording(), Form("columns")) == ([], True)
    assert rewritten(Recording(), None) == ([], False)


def test_a_form_for_all_sites_has_the_options_of_the_pass():
    given = Recording(form="rows", parts=2)
    assert rewritten(given, None) == ([Form("rows", 2)], False)
    assert rewritten(given, Form("ring")) == ([Form("rows", 2)], False)


def test_beside_automatic_axes_the_form_is_removed():
    assert rewritten(Recording(), Form("ring"), manual='"i"') == ([], False)


@pytest.mark.parametrize("pass_", overlap_passes(), ids=lambda each: each.name)
def test_options_are_fields_of_forms(pass_):
    options = {field.name for field in dataclasses.fields(pass_)} - {"form"}
    assert options <= {field.name for field in dataclasses.fields(Form)}


def test_a_form_with_an_attribute_that_the_bindings_lack():
    """They raise a TypeError for it; as any other attribute of a wrong kind, it is not read."""
    with shmap_passes.make_context():
        module = ir.Module.parse(MODULE.format(manual='"i"'))
        (gather,) = find_ops(module.operation, [ALL_GATHER])
        text = '{name = "ring", order = array<ui32: 0, 1>}'
        gather.attributes[FORM] = ir.Attribute.parse(text)
        assert read(gather) == Form("ring")
