"""The programs in `examples/`, their arguments and their references.

Programs are found by the command line's convention: `name` is the shard_mapped function,
`name_args` its arguments or a function that returns them, `name_reference` the same function on one
device.
"""

import importlib.util
import re
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType

import jax
import numpy as np

FOLDER = Path(__file__).parents[1] / "examples"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"examples_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODULES = {path.stem: load(path) for path in sorted(FOLDER.glob("*.py"))}
EXAMPLES = [
    (file, name.removesuffix("_args"))
    for file, module in MODULES.items()
    for name in vars(module)
    if name.endswith("_args")
]


LOOPS_IN_PYTHON = ("digits", "halo_stencil")
"""Their references have long loops: not one program to compile."""


@cache
def arguments(file, name):
    args = getattr(MODULES[file], f"{name}_args")
    return args() if callable(args) else args


@cache
def reference(file, name):
    function = getattr(MODULES[file], f"{name}_reference")
    run = function if file in LOOPS_IN_PYTHON else jax.jit(function)
    return run(*arguments(file, name))


@cache
def executable(file, name, partitioner):
    lowered = getattr(MODULES[file], name).lower(*arguments(file, name), partitioner=partitioner)
    return lowered.compile()


# Largest error allowed, in units of the result's largest magnitude.
#
# float32: sums of up to a few hundred products in another order; 16 units in the last place.
# bfloat16: a sharded sum rounds each partial sum and each addition, the reference rounds once. A
# rounding is at most half a unit in the last place (2^-8), and the examples make four at most on
# the way from one tight sum to the next: 2^-6. Each example has a float32 variant for the rest.
TOLERANCE = {"float32": 16 * 2.0**-23, "bfloat16": 2.0**-6}


def assert_equals_reference(results, references):
    """Same trees, shapes and dtypes; integers equal, floats within `TOLERANCE`."""
    assert jax.tree.structure(results) == jax.tree.structure(references)
    for result, reference in zip(
        jax.tree.leaves(results), jax.tree.leaves(references), strict=True
    ):
        assert (result.shape, result.dtype) == (reference.shape, reference.dtype)
        error = np.abs(np.asarray(result, np.float64) - np.asarray(reference, np.float64)).max()
        scale = np.abs(np.asarray(reference, np.float64)).max()
        assert error <= TOLERANCE.get(result.dtype.name, 0.0) * scale


def collectives(hlo: str) -> Counter:
    """How often each collective occurs in an optimized HLO module."""
    kinds = "all-reduce|all-gather|reduce-scatter|(?:ragged-)?all-to-all|collective-\\w+|send|recv"
    return Counter(re.findall(rf" ({kinds})(?:-start)?\(", hlo))
