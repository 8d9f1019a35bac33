"""EagerTrace: runs every primitive the user's function applies, as soon as it is applied."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Trace, eval_context
from jax.extend import core as jex_core
from jax.extend import source_info_util
from jax.sharding import PartitionSpec

from shmap_compiler.base import specs
from shmap_compiler.base.caches import Cache
from shmap_compiler.base.jax_compat import (
    call_subfunction,
    lowering_config,
    no_mesh,
    setting,
    shaped_array,
    special_value,
    varies_along,
    varying_type,
    varying_types,
    with_manual_axes,
)
from shmap_compiler.base.source_lines import shown_source
from shmap_compiler.eager.callbacks import Once, run_on_each_device
from shmap_compiler.eager.layout import EagerProgram, Layout, Operand, Operation
from shmap_compiler.eager.refs import Reference, concerns_references, process
from shmap_compiler.eager.value import Blocks, Constant, EagerValue
from shmap_compiler.eager.varying import Axes, infer_varying
from shmap_compiler.graph.callbacks import is_callback
from shmap_compiler.graph.structural_keys import (
    parameters_key,
    primitives_in,
    transposes_in,
    type_key,
)
from shmap_compiler.lowering.added_passes import added_passes
from shmap_compiler.lowering.watchdog import is_watching
from shmap_compiler.tracing.canonicalize_collectives import COLLECTIVE_NAMES, normalize
from shmap_compiler.tracing.vma_erasure import ManualType, trace_with_types

PROGRAMS: Cache[EagerProgram] = Cache(maxsize=4096)
"""Compiled operations, by layout, primitive, parameters and types of operands."""

VARYING: Cache[tuple[Axes, ...]] = Cache(maxsize=16384)
"""Along which axes results vary, by the above and the axes along which operands vary."""

_SCALARS: Cache[jax.Array] = Cache(maxsize=1024)

_NOWHERE: Axes = frozenset()

_OF_THE_MESH = COLLECTIVE_NAMES | {"shard_map"}
"""Primitives whose results may differ between devices though their operands do not."""

_CHECKS_OF_VALUES = {jax.debug_nans: "jax_debug_nans", jax.debug_infs: "jax_debug_infs"}

_MOVES = {"device_put", "reshard", "mesh_cast"}


class Differentiates(BaseException):
    """A body without types in its values takes a reverse-mode derivative, which depends on them.

    No error: the body is run again. It is no Exception, so that the body does not catch it.
    """


@dataclass(frozen=True)
class Rules:
    """
    Attributes:
      refuse_hangs: see `infer_varying`.
      typed: the types of values say along which axes they vary (see `varying_types`).
      watch: raise Differentiates if the body takes a derivative for which types are needed.
    """

    refuse_hangs: bool
    typed: bool
    watch: bool


class EagerTrace(Trace):
    """Interprets primitives on values with one block on each device.

    What a function computes from constants alone is computed once.

    Args:
      layout: how the values lie on the devices.
      who: the user's function, for error messages.
      rules: what it allows and tracks.
      once: what the body's calls of Python gave in an earlier run.

    Attributes:
      closed_over: by identity, references that the function closes over and what stands for them.
    """

    def __init__(self, layout: Layout, who: str, rules: Rules, once: Once):
        super().__init__()
        self.layout = layout
        self.who = who
        self.body_mesh = with_manual_axes(layout.mesh, layout.axes)
        self.rules = rules
        self.once = once
        self._whole: dict[int, tuple[Any, jax.Array]] = {}
        self.closed_over: dict[int, tuple[Any, Reference]] = {}
        # JAX turns these off where it evaluates a jaxpr.
        self._checks = [check for check, name in _CHECKS_OF_VALUES.items() if setting(name)]

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """JAX works in this context as it does around the call."""
        with eval_context(), jax.disable_jit(False), no_mesh(), varying_types(False):
            yield

    # ---------------------------------------------------------------------------------- entering

    def enter(self, array: Any, spec: PartitionSpec) -> Blocks:
        """The blocks of a full array."""
        full = jax.typeof(array)
        shape = specs.shard_shape(full.shape, spec, self.layout.mesh)
        aval = shaped_array(shape, full.dtype, full.weak_type)
        varying = frozenset(a for a in specs.mentioned(spec) if self.layout.mesh.shape[a] > 1)
        rows = self.layout.enter(array, spec)
        return Blocks(self, self._typed(aval, varying), rows, varying, type_key(aval))

    def stage_value(self, val: Any) -> Blocks:
        """The value of which every device has the block `val`."""
        if isinstance(val, Blocks):
            return val
        with self.outside():
            return self.enter(_plain(val), PartitionSpec())

    def constant(self, value: Any) -> Constant:
        """A value that does not depend on any argument."""
        with self.outside():
            return Constant(self, self.layout.whole(jnp.asarray(value)))

    def reference(self, ref: Any) -> Reference:
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
        if self.rules.watch and (_transposes_here() or transposes_in(params)):
            raise Differentiates
        inner = primitives_in(params)
        of_mesh = primitive.name in _OF_THE_MESH or any(p.name in _OF_THE_MESH for p in inner)
        calls_python = is_callback(primitive) or any(map(is_callback, inner))
        if primitive.name in _MOVES and not _names_devices(params):
            results = [self._moved(x) for x in operands]
        elif calls_python:
            results = self._call_python(primitive, operands, params, of_mesh)
        elif of_mesh or any(type(x) is Blocks for x in operands):
            results = self._by_program(primitive, operands, params)
        else:
            results = self._once(primitive, operands, params)
        return results if primitive.multiple_results else results[0]

    def _call_python(self, primitive, operands, params, of_mesh: bool) -> list[Blocks]:
        """Applies a primitive that calls Python, or takes what it gave in an earlier run."""
        alone = self.layout.is_local and not of_mesh
        run = self._on_each_device if alone else self._by_program
        results = self.once.get(lambda: run(primitive, operands, params))
        return [
            Blocks(self, self._typed(v.aval, v.varying), v.rows, v.varying, v.type_key)
            for v in results
        ]

    def _by_program(self, primitive, operands, params) -> list[Blocks]:
        """Applies a primitive to all blocks, by a program that is kept."""
        types = self._result_types(primitive, operands, params)
        key = (
            self.layout,
            primitive,
            parameters_key(primitive, params),
            tuple(map(_operand_key, operands)),
            lowering_config(),
            is_watching(),
            added_passes(),
        )
        varying = tuple(x.varying if type(x) is Blocks else _NOWHERE for x in operands)
        arrays = [x.rows if type(x) is Blocks else self._constant(x) for x in operands]

        def inferred():
            with self._outside_for(primitive, operands, params) as (operation, known):
                return infer_varying(self.layout, operation, known, self.rules.refuse_hangs)

        def compiled():
            with self._outside_for(primitive, operands, params) as (operation, known):
                return self.layout.compile(operation, known)

        axes = VARYING.get((key, varying, self.rules.refuse_hangs), inferred)
        program = PROGRAMS.get(key, compiled)
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(eval_context())
                stack.enter_context(jax.disable_jit(False))
                for check in self._checks:
                    stack.enter_context(check(True))
                results = program.run(*arrays)
        except Exception as error:
            special = special_value(error)
            if special is None:
                raise
            where = f"{primitive} at {shown_source(source_info_util.current())}"
            raise FloatingPointError(f"invalid value ({special}) encountered in {where}") from None
        return [
            Blocks(self, *each)
            for each in zip(types or program.types, results, axes, program.type_keys, strict=True)
        ]

    def _on_each_device(self, primitive, operands, params) -> list[Blocks]:
        """Applies a primitive to one block after the other, since it calls Python."""
        arrays = [x.rows if type(x) is Blocks else _plain(x) for x in operands]
        with self._outside_for(primitive, operands, params) as (operation, known):
            results = run_on_each_device(self.layout, operation, known, arrays)
            axes = infer_varying(self.layout, operation, known, False) if results else ()
        types = [shaped_array(r.shape[1:], r.dtype, r.aval.weak_type) for r in results]
        return [
            Blocks(self, self._typed(t, a), r, a, type_key(t))
            for t, r, a in zip(types, results, axes, strict=True)
        ]

    def _typed(self, aval: Any, varying: Axes) -> Any:
        return varying_type(aval, self.body_mesh, varying) if self.rules.typed else aval

    def _result_types(self, primitive, operands, params) -> list[Any]:
        """The types JAX gives the results, if it tracks in types what varies; or else none.

        Derivatives need exactly these: for JAX more may vary than by our rules.
        """
        if not self.rules.typed:
            return []
        types, _ = primitive.abstract_eval(*map(jax.typeof, operands), **params)
        return list(types) if primitive.multiple_results else [types]

    @contextlib.contextmanager
    def _outside_for(
        self, primitive: Any, operands: Sequence[Any], params: dict[str, Any]
    ) -> Iterator[tuple[Operation, list[Operand]]]:
        """The context `outside`, with a primitive as an operation, and what is known of operands.

        Where it is traced, it seems to come from the user's line.
        """
        users_line = source_info_util.current()

        def apply(*blocks):
            with source_info_util.user_context(users_line.traceback):
                out = primitive.bind(*blocks, **params)
            return out if primitive.multiple_results else [out]

        known = [_operand(x) for x in operands]
        with self.outside():
            fun = self._without_types(apply, operands) if self.rules.typed else apply
            yield Operation(primitive.name, self.who, fun), known

    def _without_types(self, fun: Callable[..., Any], operands: Sequence[Any]) -> Callable:
        """The same function of blocks whose types do not say along which axes they vary.

        JAX's primitives that change what a type says exist only with such types.
        """
        axes = self.layout.axes
        types = [_operand(x).type for x in operands]
        varying = [self.layout.in_order(varies_along(jax.typeof(x))) for x in operands]
        manual_types = [ManualType(tuple(v)) for v in varying]
        jaxpr = trace_with_types(fun, self.body_mesh, axes, types, manual_types)
        return jex_core.jaxpr_as_fun(normalize(jaxpr, self.body_mesh, axes, self.who))

    def _once(self, primitive, operands, params):
        """Applies a primitive to constants."""
        with eval_context(), no_mesh():
            out = primitive.bind(*map(_plain, operands), **params)
        results = out if primitive.multiple_results else [out]
        return [Constant(self, r) if isinstance(r, jax.Array) else r for r in results]

    def _moved(self, value: Any) -> EagerValue:
        """A value as an array, of the same type: that of a Python number is weak."""
        if isinstance(value, Blocks):
            return value
        if isinstance(value, (Constant, jax.Array)):
            return Constant(self, self._constant(value))
        return self.constant(value)

    def _constant(self, value: Any) -> jax.Array:
        """A value all devices have, where the layout wants it."""
        value = _plain(value)
        if isinstance(value, jax.Array):
            # The operations of one call often share constants.
            known = self._whole.get(id(value))
            if known is None:
                with self.outside():
                    known = self._whole[id(value)] = (value, self.layout.whole(value))
            return known[1]
        with self.outside():
            if np.ndim(value) == 0:
                dtype = jax.typeof(value).dtype
                scalar = np.asarray(value, dtype)
                key = (self.layout, dtype, scalar.tobytes())
                return _SCALARS.get(key, lambda: self.layout.whole(scalar))
            return self.layout.whole(value)

    # --------------------------------------------------------------- calls with a function inside

    # The function is run in this trace. Its derivative rule is not needed: an outer derivative
    # would have turned the whole eager call into a compiled one.

    def process_call(self, primitive, fun, operands, params, /):
        return self._call(fun, operands)

    def process_custom_jvp_call(self, primitive, fun, jvp, operands, /, **params):
        return self._call(fun, operands)

    def process_custom_vjp_call(self, primitive, fun, fwd, bwd, operands, /, **params):
        return self._call(fun, operands)

    def _call(self, fun: Any, operands: Sequence[Any]) -> Any:
        with jex_core.set_current_trace(self):
            return call_subfunction(fun, operands)


def _transposes_here() -> bool:
    """Whether the primitive at hand comes from a reverse-mode derivative."""
    return "transpose(" in str(source_info_util.current_name_stack())


def _plain(x: Any) -> Any:
    """A value without blocks, as JAX knows it outside of this trace."""
    return x.array if type(x) is Constant else x


def _operand_key(x: Any) -> Hashable:
    return x.type_key if type(x) is Blocks else ("whole", type_key(jax.typeof(x)))


def _operand(x: Any) -> Operand:
    aval = jax.typeof(x)
    block = shaped_array(aval.shape, aval.dtype, aval.weak_type)
    if type(x) is Blocks:
        return Operand(block, whole=False, varying=x.varying)
    return Operand(block, whole=True, varying=_NOWHERE)


def _names_devices(params: dict[str, Any]) -> bool:
    return any(d is not None for d in params.get("devices", ()))
