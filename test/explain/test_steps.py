"""Training steps of several libraries, as `shmap explain FILE.py:step` sees them.

`steps/` has the programs: flax.nnx and Equinox with optax, and losses that are an xmap and a pmap.
"""

import argparse
import json
import lzma
from pathlib import Path

import pytest
from shmap_passes.cost.machine import Machine
from shmap_tools.cli import explain

from shmap_compiler import Target
from shmap_compiler.explain import hlo, schedule
from shmap_compiler.explain.memory_use import memory_use

STEPS = Path(__file__).parent / "steps"


def explained(name, capsys, *options):
    """What the command prints, without a process of its own: it would import JAX again."""
    parser = argparse.ArgumentParser()
    explain.add_arguments(parser)
    words = [f"{STEPS / name}.py:step", "--target", "cpu:8", "--json", *options]
    assert explain.execute(parser.parse_args(words)) == 0
    return json.loads(capsys.readouterr().out)


def line_of(name, text):
    lines = (STEPS / f"{name}.py").read_text().splitlines()
    (number,) = [k for k, line in enumerate(lines, start=1) if text in line]
    return number


def at(found, name):
    """The numbers of the lines of the file that something comes from.

    What a pmap does around its function has the line that calls it, which is in this file.
    """
    here = Path(__file__).name
    found = [entry for entry in found if f"/{here}:" not in entry["source"]]
    files = {entry["source"].rpartition(":")[0].rpartition("/")[2] for entry in found}
    assert files <= {f"{name}.py"}, files
    return {int(entry["source"].rpartition(":")[2]) for entry in found}


@pytest.mark.parametrize(
    ("name", "mesh", "axes", "text", "scope"),
    [
        ("equinox_mlp", {"data": 8}, ["data"], "lax.pmean(", "eqx.nn.MLP/eqx.nn.Linear"),
        ("xmap_step", {"data": 4, "model": 2}, ["data"], "lax.psum(", "row_error"),
        ("pmap_step", {"devices": 8}, ["devices"], "lax.pmean(", "update"),
    ],
)
def test_steps_of_other_libraries(name, mesh, axes, text, scope, capsys):
    found = explained(name, capsys)
    assert found["mesh"] == mesh
    written = [c for c in found["collectives"] if c["written"]]
    assert [c["axes"] for c in written] == [axes] * len(written)
    assert written
    assert any(scope in cost["scope"] for cost in found["compute"] if cost["flops"])
    # No figure comes from a line of a library, or of this package.
    at([c for c in found["collectives"] if c["source"]], name)
    at([c for c in found["compute"] if c["source"]], name)
    at([a for a in found["memory_use"]["live"] if a["source"]], name)
    assert found["memory_use"]["peak_bytes"] <= found["memory"]["total"]


def test_the_step_of_a_flax_transformer(capsys):
    """The shard_mapped MLP sums over "model", and the partitioner adds the sums over "data"."""
    name = "nnx_transformer"
    found = explained(name, capsys)
    assert found["mesh"] == {"data": 4, "model": 2}
    collectives = [c for c in found["collectives"] if c["payload_bytes"] > 2**20]
    inside = range(line_of(name, "hidden = jax.nn.gelu"), line_of(name, "hidden @ down") + 1)
    of_mlp = [c for c in collectives if c["written"]]
    assert at(of_mlp, name) <= {*inside}
    assert {tuple(c["axes"]) for c in of_mlp} == {("model",)}
    added = [c for c in collectives if not c["written"]]
    assert ("data",) in {tuple(c["axes"]) for c in added}
    scopes = {cost["scope"].split("/")[0] for cost in found["compute"] if cost["flops"]}
    assert {"layer_0", "layer_1", "logits"} <= scopes
    assert found["totals"]["flops"] == pytest.approx(needed(), rel=0.01)


def needed():
    """Operations of one device, by hand: 6 for each token and weight, and those of the attention.

    The causal half of the attention is not left out.
    """
    layer = 4 * 1024**2 + 2 * 1024 * 4096
    attention = 2 * 2 * 1024 * 1024 * 3
    tokens = 16 * 1024
    return tokens * (6 * (2 * layer + 16384 * 1024) + 2 * attention) / 8


@pytest.mark.parametrize("target", ["tpu:v5e:2x4", "tpu:v6e:2x4"])
def test_the_step_of_a_flax_transformer_on_a_target(target):
    """The schedules that libtpu makes of it, stored, are what the documentation tells."""
    chip = target.split(":")[1]
    text = lzma.decompress((STEPS / f"nnx_transformer_{chip}.hlo.xz").read_bytes()).decode()
    header = json.loads(text.splitlines()[0].removeprefix("// "))
    places = [tuple(place) for place in header["places"]]
    parsed = Target.parse(target)
    run = schedule.run(hlo.parse(text), Machine(parsed.chip, parsed.network, tuple(places)), 8)
    # Products with a batch of heads are convolutions here.
    assert run.flops == pytest.approx(needed(), rel=0.01)
    memory = header["memory"]
    use = memory_use(run, 95, memory["argument_size_in_bytes"], True)
    exposed = sum(o.trips * o.exposed for o in run.occurrences)
    page = (Path(__file__).parents[2] / "docs" / "explain.md").read_text()
    (row,) = [
        line for line in page.splitlines() if line.startswith(f"| `{target}` | ") and "GiB" in line
    ]
    _, _, *cells = [cell.strip() for cell in row.split("|")]
    times = (run.computing, run.sending, exposed)
    assert cells[:3] == [f"{1e3 * seconds:.2f} ms" for seconds in times]
    assert cells[3] == f"{1e3 * run.seconds:.3g} ms"
    assert cells[5] == f"{use.peak_bytes / 2**20:.0f} MiB"
    reserved = sum(memory[f"{part}_size_in_bytes"] for part in ("argument", "output", "temp"))
    assert use.peak_bytes < reserved
