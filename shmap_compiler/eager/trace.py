"""EagerTrace: runs every primitive that the user's function applies, as soon as it is applied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jex_core
from jax.extend import source_info_util
from jax.extend.core import Primitive
from jax.sharding import PartitionSpec
from jax.typing import ArrayLike

from shmap_compiler.base import specs
from shmap_compiler.base.jax_compat import (
    call_subfunction,
    is_future,
    settled,
    shaped_array,
    trace_region_of_jax,
)
from shmap_compiler.base.jax_compat.name_stacks import transforms
from shmap_compiler.base.untyped import AnyValue, Function, Parameter
from shmap_compiler.eager.callbacks import Once
from shmap_compiler.eager.layout import Layout
from shmap_compiler.eager.operations import OperationTrace, Rules, plain
from shmap_compiler.eager.refs import Reference, concerns_references, process
from shmap_compiler.eager.value import Blocks, Constant, EagerValue
from shmap_compiler.graph.callbacks import is_callback
from shmap_compiler.graph.structural_keys import primitives_in, transposes_in, type_key
from shmap_compiler.jaxprs.held_programs import JITS
from shmap_compiler.jaxprs.transposed import is_solver_with
from shmap_compiler.tracing.canonicalize_collectives import COLLECTIVE_NAMES, STARTS, expansion
from shmap_compiler.tracing.regions_of_jax import with_graphs_of_regions

_OF_THE_MESH = COLLECTIVE_NAMES | {"shard_map", "sharding_constraint"}
"""Primitives whose results may differ between devices though their operands do not, or that refer
to the mesh of the body, which outside of it has no manual axes.
"""

_MOVES = {"device_put", "reshard", "mesh_cast"}


class Differentiates(BaseException):
    """A body on values without varying types takes a reverse-mode derivative, which needs them.

    Not an error: the body is run again. Not an `Exception` either, so that no body catches it.
    """


class EagerTrace(OperationTrace):
    """Interprets the primitives of one call of a user's function.

    What the function computes from constants alone is computed once.

    Args:
      layout, who, rules: see `OperationTrace`.
      once: the results of the body's Python callbacks in an earlier run.

    Attributes:
      closed_over: by their identities, the references that the function closes over, and what
        stands for each in the call.
    """

    def __init__(self, layout: Layout, who: str, rules: Rules, once: Once):
        super().__init__(layout, who, rules)
        self.once = once
        self.closed_over: dict[int, tuple[Any, Reference]] = {}

    def enter(self, array: ArrayLike, spec: PartitionSpec) -> Blocks:
        """The blocks of a full array."""
        full = jax.typeof(array)
        shape = specs.shard_shape(full.shape, spec, self.layout.mesh)
        aval = shaped_array(shape, full.dtype, full.weak_type)
        varying = frozenset(a for a in specs.mentioned(spec) if self.layout.mesh.shape[a] > 1)
        rows = self.layout.enter(array, spec)
        return Blocks(self, self.typed(aval, varying), rows, varying, type_key(aval))

    def stage_value(self, val: ArrayLike) -> Blocks:
        """The value whose block on every device is `val`."""
        if isinstance(val, Blocks):
            return val
        with self.outside():
            return self.enter(plain(val), PartitionSpec())

    def constant(self, value: ArrayLike) -> Constant:
        """A value that does not depend on any argument."""
        with self.outside():
            return Constant(self, self.layout.whole(jnp.asarray(value)))

    def reference(self, ref: AnyValue) -> Reference:
        """What stands for a reference that the function closes over."""
        if id(ref) not in self.closed_over:
            with self.outside():
                value = ref[...]
            made: Any = jax.new_ref(self.constant(value))
            self.closed_over[id(ref)] = ref, made
        return self.closed_over[id(ref)][1]

    # -------------------------------------------------------------------------------- primitives

    def process_primitive(self, primitive, operands, params, /):
        if concerns_references(primitive, operands):
            with jex_core.set_current_trace(self):
                return process(self, primitive, operands, params)
        if primitive.name in STARTS:
            return self._started(primitive, operands, params)
        if any(type(x) is Blocks and is_future(x.aval) for x in operands):
            return self._settled(operands)
        if self.rules.watch and _takes_derivative(primitive, params):
            raise Differentiates
        if self.checks and primitive.name in JITS:  # to find the operation inside of it
            with self.called_here(), jex_core.set_current_trace(self):
                return jex_core.jaxpr_as_fun(params["jaxpr"])(*operands)
        inner = primitives_in(params)
        of_mesh = primitive.name in _OF_THE_MESH or any(p.name in _OF_THE_MESH for p in inner)
        calls_python = is_callback(primitive) or any(map(is_callback, inner))
        if primitive.name in _MOVES and not _names_devices(params):
            results = [self._moved(x) for x in operands]
        elif calls_python:
            results = self._call_python(primitive, operands, params, of_mesh)
        elif of_mesh or any(type(x) is Blocks for x in operands):
            results = self.by_program(primitive, operands, params)
        else:
            results = self.on_constants(primitive, operands, params)
        return results if primitive.multiple_results else results[0]

    def _started(self, primitive, operands, params) -> Blocks:
        """The future of a collective, which is done at once."""
        with jex_core.set_current_trace(self):
            run = expansion(primitive.name, params, self.layout.mesh)
            value = self.stage_value(run(*operands))
        type_, _ = primitive.abstract_eval(*map(jax.typeof, operands), **params)
        return Blocks(self, type_, value.rows, value.varying, value.type_key)

    def _settled(self, operands) -> Blocks:
        (future,) = operands
        return Blocks(self, settled(future.aval), future.rows, future.varying, future.type_key)

    def _call_python(self, primitive, operands, params, of_mesh: bool) -> list[Blocks]:
        """Applies a primitive that calls Python, or takes its results of an earlier run."""
        alone = self.layout.is_local and not of_mesh
        run = self.on_each_device if alone else self.by_program
        results = self.once.get(lambda: run(primitive, operands, params))
        return [
            Blocks(self, self.typed(v.aval, v.varying), v.rows, v.varying, v.type_key)
            for v in results
        ]

    def _moved(self, value: ArrayLike) -> EagerValue:
        """A value as an array, of the same type: that of a Python number is weak."""
        if isinstance(value, Blocks):
            return value
        if isinstance(value, (Constant, jax.Array)):
            return Constant(self, self.placed(value))
        return self.constant(value)

    # --------------------------------------------------------------- calls with a function inside

    # The function is run in this trace. Its derivative rule is not needed: an outer derivative
    # would have turned the whole eager call into a compiled one.

    def process_call(self, primitive, fun, operands, params, /):
        return self._call(fun, operands)

    def process_custom_jvp_call(self, primitive, fun, jvp, operands, /, **params):
        return self._call(fun, operands)

    def process_custom_vjp_call(self, primitive, fun, fwd, bwd, operands, /, **params):
        return self._call(fun, operands)

    def process_shard_map(self, primitive, fun, operands, /, **params):
        """A shard_map of JAX's own runs as one of ours does: by its program."""
        jaxpr, returned = trace_region_of_jax(
            primitive, fun, list(map(jax.typeof, operands)), params
        )
        program = with_graphs_of_regions(
            jaxpr,
            self.layout.mesh,
            self.layout.axes,
            self.who,
            check_hangs=self.rules.refuse_hangs,
        )
        with jex_core.set_current_trace(self):
            return returned(jex_core.jaxpr_as_fun(program)(*operands))

    def _call(self, fun: Function, operands: Sequence[AnyValue]) -> AnyValue:
        with jex_core.set_current_trace(self):
            return call_subfunction(fun, operands)


def _takes_derivative(primitive: Primitive, params: dict[str, Parameter]) -> bool:
    """Whether the current primitive comes from a reverse-mode derivative, or contains one.

    So does a solver whose operator communicates, for which types matter; see `vma_typing`.
    """
    return (
        transforms(source_info_util.current_name_stack(), "transpose") > 0
        or transposes_in(primitive.name, params)
        or is_solver_with(primitive.name, params, COLLECTIVE_NAMES)
    )


def _names_devices(params: dict[str, Parameter]) -> bool:
    return any(d is not None for d in params.get("devices", ()))
