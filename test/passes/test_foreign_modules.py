"""Small modules in the style of other producers, through everything that reads modules.

Each file of import_/Inputs is imported, verified, checked, simplified, exported for both
partitioners and imported again. All of these must compute what the module itself computes, as the
simulator plays it.
"""

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
import shmap_passes
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, sdy
from run_module import passed
from shmap_passes import PASSES, parse_pipeline

from shmap_compiler import simulate_module

FILES = sorted((Path(__file__).parent / "import_" / "Inputs").glob("*.mlir"))
INLINED_FOR_GSPMD = {"shardy_nested"}
"""Those with regions in the region, which GSPMD's form does not keep together."""


def run(text, pipeline):
    return passed(text, parse_pipeline(f"builtin.module({pipeline})", PASSES))


def importer_of(text):
    is_shardys = "sdy.manual_computation" in text or "sdy.GlobalToLocalShape" in text
    return "shardy" if is_shardys else "gspmd"


def back(text, mesh):
    """A module in body form, from an exported one; GSPMD's form lost the names of axes."""
    if importer_of(text) == "shardy":
        return run(text, "shmap-import-manual-computation")
    return run(text, f"shmap-import-custom-calls{{mesh={mesh}}}")


def mesh_of(body):
    axes = re.findall(r'"([^"]+)"=(\d+)', re.findall(r"sdy\.mesh @mesh = <\[(.*?)\]>", body)[0])
    return ",".join(f"{name}={size}" for name, size in axes)


def random_arguments(text):
    kinds = {"f32": np.float32, "bf16": jnp.bfloat16, "i64": np.int64}
    rng = np.random.default_rng(0)
    with shmap_passes.make_context():
        functions = [
            op for op in ir.Module.parse(text).body.operations if isinstance(op, func.FuncOp)
        ]
        types = functions[0].type.inputs
        tensors = [type_ for type_ in types if isinstance(type_, ir.RankedTensorType)]
        return [
            (rng.integers(0, 8, tensor.shape) - 2).astype(kinds[str(tensor.element_type)])
            for tensor in tensors
        ]


def results(text, args):
    simulation = simulate_module(text, args)
    assert simulation.hang is None
    assert simulation.unequal == ()
    return [np.asarray(result, np.float64) for result in simulation.results]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_module_of_another_producer(file):
    text = file.read_text()
    args = random_arguments(text)
    expected = results(text, args)
    assert any(np.ptp(result) for result in expected)
    body = (
        back(text, "") if importer_of(text) == "shardy" else run(text, "shmap-import-custom-calls")
    )
    run(body, "shmap-verify,shmap-check-replication")
    texts = {"body": body}
    for partitioner in ("gspmd", "shardy"):
        for groups in ("axes", "ids"):
            texts[partitioner, groups] = passed(body, shmap_passes.pipeline(partitioner, groups))
        legalize = f"shmap-legalize-collectives{{groups=ids partitioner={partitioner}}}"
        wrapped = run(body, f"{legalize},shmap-wrap-manual{{partitioner={partitioner}}}")
        if partitioner == "shardy" or file.stem not in INLINED_FOR_GSPMD:
            assert back(wrapped, mesh_of(body)) == body
        else:
            assert "sdy.manual_computation" not in wrapped
    for name, other in texts.items():
        for found, wanted in zip(results(other, args), expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-6, err_msg=str(name))


def test_what_gspmd_would_sum_is_refused():
    """An array of which devices hold parts of a maximum; an earlier Shardy knows sums only."""
    reductions = ["max", "min"] if hasattr(sdy, "ReductionOp") else []
    for reduction in ["", *reductions]:
        body = f"""
        sdy.mesh @mesh = <["i"=2, "j"=2]>
        func.func public @main(%x: tensor<2xf32> {{sdy.sharding =
            #sdy.sharding<@mesh, [{{"i"}}], unreduced={reduction}{{"j"}}>}}) -> (tensor<2xf32>
            {{sdy.sharding = #sdy.sharding<@mesh, [{{"i"}}], unreduced={reduction}{{"j"}}>}})
            attributes {{sdy.manual_axes = #sdy<manual_axes{{"i", "j"}}>}} {{
          return %x : tensor<2xf32>
        }}"""
        assert f"unreduced={reduction}{{" in passed(body, shmap_passes.pipeline("shardy", "ids"))
        if reduction:
            with pytest.raises(shmap_passes.PassFailure, match="by another operation than a sum"):
                passed(body, shmap_passes.pipeline("gspmd", "ids"))
        else:
            assert "unreduced" in passed(body, shmap_passes.pipeline("gspmd", "ids"))
