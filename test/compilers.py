"""Compiling in tests: quickly, and with the compilers of the extras `tpu` and `gpu`."""

import importlib.util

import jax
import pytest

# Programs that run once take longer to compile than to run. XLA's own passes run as always; only
# LLVM optimizes less, so results may differ in the last bit.
FAST = {"xla_backend_optimization_level": 0}


def fast_jit(function, **options):
    return jax.jit(function, compiler_options=FAST, **options)


def run_together(functions, *args):
    """The results of each function: one program for all compiles faster than one for each."""
    return fast_jit(lambda *args: [function(*args) for function in functions])(*args)


def needs(module, extra):
    """Skips a test of a compiler that is not installed."""
    return pytest.mark.skipif(
        importlib.util.find_spec(module) is None,
        reason=f"no module {module}: pip install 'shmap_compiler[{extra}]'",
    )


def needs_tpu_compiler(test):
    return pytest.mark.tpu(pytest.mark.subprocess(needs("libtpu", "tpu")(test)))


def needs_gpu_compiler(test):
    return pytest.mark.subprocess(needs("jax_cuda13_plugin", "gpu")(test))
