"""To add a collective, a pass or a target takes what "Map of the code" in the README says.

The test makes these changes, and no others, in a copy of the project, and runs the tests of what it
added there.
"""

import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from shmap_passes.ir import collective_ops

from shmap_compiler import BodyError, collectives, shard_map
from shmap_compiler.collectives import base
from shmap_compiler.collectives.record import Collective, Combines, Result, Waits

ROOT = Path(__file__).parents[2]
ADDED = Path(__file__).parent / "Inputs" / "additions"
PACKAGES = {"shmap_compiler": "shmap_compiler", "shmap_passes": "passes", "shmap_tools": "tools"}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the packages under the names that Python imports them by, and of the settings of
    the tests."""
    folder = tmp_path_factory.mktemp("copy")
    for name, source in PACKAGES.items():
        shutil.copytree(ROOT / source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "test").mkdir()
    for name in ("lit.cfg.py", "forked_tools.py", "conftest.py"):
        shutil.copy(ROOT / "test" / name, folder / "test")
    return folder


def edit(file, *changes):
    text = file.read_text()
    for after, added in changes:
        assert text.count(after) == 1, (file, after)
        text = text.replace(after, after + added)
    file.write_text(text)


def add_collective(copy):
    shutil.copy(ADDED / "pprod.py", copy / "shmap_compiler" / "collectives")
    edit(
        copy / "shmap_compiler" / "collectives" / "__init__.py",
        (
            "from jax.extend.core import Primitive\n\n",
            "from shmap_compiler.collectives.pprod import PPROD\n",
        ),
        ("    AXIS_INDEX,\n", "    PPROD,\n"),
    )


def add_pass(copy):
    shutil.copy(ADDED / "elide_double_negations.py", copy / "shmap_passes" / "simplify")
    imported = "from .simplify.elide_double_negations import ElideDoubleNegations\n"
    edit(
        copy / "shmap_passes" / "pipeline.py",
        ("from .ir.printing import PassPrinting\n", imported),
        ("    CombineAllReduces,\n", "    ElideDoubleNegations,\n"),
        ("        CombineAllReduces(),\n", "        ElideDoubleNegations(),\n"),
    )
    tests = copy / "test" / "passes" / "simplify"
    tests.mkdir(parents=True)
    shutil.copy(ADDED / "elide_double_negations.mlir", tests)


def add_target(copy):
    shutil.copy(ADDED / "socket.py", copy / "shmap_compiler" / "targets")
    edit(
        copy / "shmap_compiler" / "targets" / "__init__.py",
        (
            "from shmap_compiler.targets.local import LocalTarget\n",
            "from shmap_compiler.targets.socket import SocketTarget\n",
        ),
        ('    "Nodes",\n', '    "SocketTarget",\n'),
    )


def run(copy, *command):
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *command],
        cwd=copy, env=environment, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.subprocess
def test_a_collective_a_pass_and_a_target_are_added_as_the_readme_says(copy):
    for add in (add_collective, add_pass, add_target):
        add(copy)
    shutil.copy(ADDED / "uses.py", copy / "test" / "test_uses.py")
    done = run(copy, "-m", "pytest", "-q", "-p", "no:xdist", "test/test_uses.py")
    assert done.returncode == 0, done.stdout + done.stderr
    lit = shutil.which("lit", path=str(Path(sys.executable).parent))
    done = run(copy, lit, "-v", "test/passes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Passed: +1\b", done.stdout), done.stdout


# -------------------------------------------------- what is left out is noticed, and not harmless


def test_a_collective_that_is_not_in_the_list_is_rejected():
    unlisted_p = Primitive("unlisted")
    base.define(
        unlisted_p,
        lambda x, *, axes: x,
        lambda ctx, x, *, axes: [x],
        base.same_dimension_batcher(unlisted_p),
    )
    mesh = jax.make_mesh((8,), ("i",), axis_types=(AxisType.Auto,))
    f = shard_map(
        lambda x: unlisted_p.bind(x, axes=("i",)), mesh=mesh, in_specs=P("i"), out_specs=P("i")
    )
    with pytest.raises(BodyError, match="a collective that shmap_compiler does not know"):
        jax.jit(f).lower(np.ones(8))


def record(**changed):
    facts = {
        "primitive": Primitive("some"), "result": Result.SAME, "waits": Waits.GROUP,
        "hlo": "all-reduce", "forms": (), "on_rows": None, "functions": (),
    }  # fmt: skip
    facts.update(changed)
    return Collective(**{k: v for k, v in facts.items() if v is not ...})


@pytest.mark.parametrize("fact", ["result", "waits", "hlo", "forms", "on_rows", "functions"])
def test_a_record_names_what_the_checks_depend_on(fact):
    record()
    with pytest.raises(TypeError, match=fact):
        record(**{fact: ...})


@pytest.mark.parametrize(
    "contradiction",
    [
        {"waits": Waits.NOBODY},
        {"hlo": None},
        {"combines": Combines.SUM},
        {"transpose": Primitive("other")},
    ],
)
def test_facts_that_contradict_each_other_are_no_record(contradiction):
    with pytest.raises(ValueError, match="some: "):
        record(**contradiction)


def test_every_primitive_of_the_folder_has_a_record():
    """But for marks, which no device waits in: to_reduced, and those that no Graph contains."""
    never = {"shmap_pvary", "shmap_psum_invariant", "shmap_all_gather_invariant"}
    found = {
        value
        for module in pkgutil.iter_modules(collectives.__path__)
        for value in vars(importlib.import_module(f"{collectives.__name__}.{module.name}")).values()
        if isinstance(value, Primitive)
    }
    assert {p.name for p in found - set(collectives.COLLECTIVES)} == {"to_reduced", *never}


def test_a_primitive_of_jax_stands_for_one_collective():
    forms = [form.name for record in collectives.RECORDS for form in record.forms]
    assert len(set(forms)) == len(forms) == len(collectives.JAX_FORMS)


def test_the_passes_know_the_operations_of_all_collectives():
    """Those but ragged_all_to_all, which is a custom call, and what communicates nothing."""
    names = {r.hlo for r in collectives.RECORDS if r.hlo} - {"ragged-all-to-all"}
    assert {f"stablehlo.{n.replace('-', '_')}" for n in names} == collective_ops.COLLECTIVES
