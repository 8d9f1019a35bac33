"""Wraps the per-device body in a program on full arrays, which XLA's partitioner reads.

The module is the program of one device, but XLA compiles programs on full arrays. This pass states
how the full arrays are split for the body and how its results are assembled.

Before:  func.func public @main(%arg0: tensor<2x8xf32> {sdy.sharding = <@mesh, [{"i"}, {}]>}) -> ...
             attributes {sdy.manual_axes = #sdy<manual_axes{"i", "j"}>} { body }
After, partitioner=gspmd:
         func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
           %0 = custom_call @Sharding(%arg0) {mhlo.sharding = "{devices=[4,1,2]<=..."}
           %1 = custom_call @SPMDFullToShardShape(%0) {mhlo.sharding = "{manual}"} : tensor<2x8xf32>
           %2 = call @shmap_body(%1)
           %3 = custom_call @Sharding(%2) {mhlo.sharding = "{manual}"}
           %4 = custom_call @SPMDShardToFullShape(%3) {mhlo.sharding = "{devices=[4,1,2]<=..."}
           return %4
         }
         func.func private @shmap_body(%arg0: tensor<2x8xf32>) -> tensor<2x8xf32> { body }
After, partitioner=shardy:
         func.func public @main(%arg0: tensor<8x8xf32>) -> tensor<8x8xf32> {
           %0 = sdy.manual_computation(%arg0) in_shardings=[<@mesh, [{"i"}, {}]>]
                    out_shardings=[<@mesh, [{"i"}, {}]>] manual_axes={"i", "j"} (...) { body }
           return %0
         }
Needs:   body form; legalized collectives (an axis index cannot be legalized after this); for GSPMD,
         no unreduced array that anything but a sum reduces.
Leaves:  @main on full types, without `sdy.sharding` and `sdy.manual_axes`; for GSPMD, the number of
         devices in `mhlo.num_partitions` of the module, because shardings need not list them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxlib.mlir.dialects.builtin import ModuleOp

from ..base import Pass, PassRefused, Violation
from ..ir.body_form import OWN_ATTRIBUTES, BodyForm, read_body_form
from .full_main import remove_attributes, without_sharding
from .manual_computation import wrap_in_manual_computation
from .manual_custom_calls import wrap_in_custom_calls


@dataclass(frozen=True)
class WrapManual(Pass):
    """Wraps the per-device body in a program on full arrays, which XLA's partitioner reads."""

    name = "shmap-wrap-manual"
    code = "SHM-P11"
    keeps_bits = True
    needs_body_form = True
    ends_body_form = True

    partitioner: Literal["gspmd", "shardy"] = "gspmd"

    def run(self, module: ModuleOp) -> None:
        form = read_body_form(module)
        if form.mesh.size == 1:
            _leave_unwrapped(form)
        elif self.partitioner == "gspmd":
            _require_sums(form)
            wrap_in_custom_calls(form, module)
        else:
            wrap_in_manual_computation(form)


def _require_sums(form: BodyForm) -> None:
    """Refuses what GSPMD would sum instead."""
    sides = {"argument": form.inputs, "result": form.outputs}
    violations = [
        Violation(
            form.main.location,
            f"{kind} {number} of @main is unreduced, to be combined by another operation than a "
            "sum, which the shardings of GSPMD cannot express; use partitioner=shardy, or reduce "
            "it in the body",
        )
        for kind, boundaries in sides.items()
        for number, boundary in enumerate(boundaries)
        if boundary.unreduced.axes and not boundary.unreduced.is_sum
    ]
    if violations:
        raise PassRefused(violations)


def _leave_unwrapped(form: BodyForm) -> None:
    """On one device, blocks are full arrays, and XLA does not run a partitioner."""
    main = form.main
    main.attributes["arg_attrs"] = without_sharding(main, "arg_attrs", len(form.inputs))
    main.attributes["res_attrs"] = without_sharding(main, "res_attrs", len(form.outputs))
    remove_attributes(main, *OWN_ATTRIBUTES)
