"""Runs the text of a module on eight devices, the way a user's `jit` would run it.

    run_module(text, args, mesh_shape, partitioner)     ->  [NumPy result, ...]
    run_and_count(text, args, mesh_shape, partitioner)  ->  the same, and the collectives in the HLO

`text` is a module on full arrays, as the pass pipeline leaves it. It is merged into the module of
an enclosing `jit`, as JAX merges what primitives lower to. `in_child` calls a function in another
process, for modules on which XLA may end the process; `run_in_child` so calls `run_module`.
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

import jax
import numpy as np
import shmap_passes
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func
from shmap_tools.cli.hlo_collectives import collectives

_DTYPES = {"f32": np.float32, "f64": np.float64, "i32": np.int32, "ui32": np.uint32}

_module_p = Primitive("test_module")
_module_p.multiple_results = True
_module_p.def_abstract_eval(lambda *_, text, out: list(out))


def _lower(ctx, *args, text, out):
    here = ctx.module_context
    with here.context, ir.Location.unknown(here.context):
        name = mlir.merge_mlir_modules(
            here.module, "test_module", ir.Module.parse(text), dst_symtab=here.symbol_table
        )
        types = [mlir.aval_to_ir_type(here, aval) for aval in out]
        return func.CallOp(types, ir.FlatSymbolRefAttr.get(name), list(args)).results


mlir.register_lowering(_module_p, _lower)


def passed(text, passes):
    """The text of the module `text` after `passes`."""
    with shmap_passes.make_context():
        module = ir.Module.parse(text)
        shmap_passes.run(module, passes)
        return str(module)


def run_module(text, args, mesh_shape, partitioner):
    """Runs @main of `text` on full arrays; `mesh_shape` is {axis: size} over the first devices."""
    return run_and_count(text, args, mesh_shape, partitioner)[0]


def run_and_count(text, args, mesh_shape, partitioner):
    size = int(np.prod(list(mesh_shape.values())))
    devices = np.array(jax.devices()[:size]).reshape(tuple(mesh_shape.values()))
    mesh = Mesh(devices, tuple(mesh_shape), axis_types=(AxisType.Auto,) * len(mesh_shape))
    # The sharding of the arguments is what tells `jit` on how many devices to compile.
    whole = NamedSharding(mesh, PartitionSpec())
    out = _result_types(text)

    def program(*args):
        return _module_p.bind(*args, text=text, out=out)

    with jax_partitioner(partitioner):
        compiled = jax.jit(program, in_shardings=whole).lower(*args).compile()
    results = [np.asarray(result) for result in compiled(*jax.device_put(args, whole))]
    return results, collectives(compiled.as_text())


_pool = None


def run_in_child(*args):
    return in_child(run_module, *args)


def in_child(function, *args):
    """`function(*args)` in a child process; if XLA aborts there, raises BrokenProcessPool."""
    global _pool
    if _pool is None:
        _pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    try:
        return _pool.submit(function, *args).result(timeout=300)
    except Exception:
        _pool.shutdown(wait=False, cancel_futures=True)
        _pool = None
        raise


def _result_types(text):
    with shmap_passes.make_context():
        module = ir.Module.parse(text)
        (main,) = [op for op in module.body.operations if op.name.value == "main"]
        tensors = [ir.RankedTensorType(type_) for type_ in main.type.results]
        return tuple(
            jax.core.ShapedArray(tuple(tensor.shape), _DTYPES[str(tensor.element_type)])
            for tensor in tensors
        )


@contextmanager
def jax_partitioner(name):
    """JAX lowers and compiles for this one of XLA's partitioners."""
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", name == "shardy")
    try:
        yield
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
