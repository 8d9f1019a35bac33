"""Applies one primitive to values with a block on each device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.core import Trace, eval_context
from jax.extend import core as jex_core
from jax.extend import source_info_util
from jax.extend.core import Primitive
from jax.typing import ArrayLike

from shmap_compiler.base.caches import Cache
from shmap_compiler.base.jax_compat import (
    lowering_config,
    no_mesh,
    once_per_type,
    setting,
    shaped_array,
    special_value,
    varies_along,
    varying_type,
    varying_types,
    with_manual_axes,
)
from shmap_compiler.base.meshes import Axes
from shmap_compiler.base.source_lines import shown_source
from shmap_compiler.base.untyped import AnyValue, Aval, Function, Parameter, SourceInfo
from shmap_compiler.collectives import kept_types
from shmap_compiler.eager.callbacks import run_on_each_device
from shmap_compiler.eager.layout import EagerProgram, Layout, Operand, Operation
from shmap_compiler.eager.value import Blocks, Constant
from shmap_compiler.eager.varying import infer_varying
from shmap_compiler.graph.structural_keys import parameters_key, type_key
from shmap_compiler.lowering.added_passes import added_passes
from shmap_compiler.lowering.watchdog import is_watching
from shmap_compiler.tracing.canonicalize_collectives import normalize
from shmap_compiler.tracing.vma_erasure import trace_with_types

PROGRAMS: Cache[EagerProgram] = Cache(maxsize=4096)
"""Compiled operations, by layout, primitive, parameters and types of operands."""

VARYING: Cache[tuple[Axes, ...]] = Cache(maxsize=16384)
"""The axes along which results vary, by the above and the axes along which operands vary."""

_SCALARS: Cache[jax.Array] = Cache(maxsize=1024)

_NOWHERE: Axes = frozenset()

_on_mesh = once_per_type(varying_type)

_CHECKS_OF_VALUES = {jax.debug_nans: "jax_debug_nans", jax.debug_infs: "jax_debug_infs"}


@dataclass(frozen=True)
class Rules:
    """
    Attributes:
      refuse_hangs: see `infer_varying`.
      typed: the types of values say along which axes they vary (see `varying_types`).
      watch: raise Differentiates if the body takes a derivative for which types are needed.
      keeps_weak_types: see `collectives.kept_types`.
    """

    refuse_hangs: bool
    typed: bool
    watch: bool
    keeps_weak_types: bool = False


class OperationTrace(Trace):
    """Applies primitives to values with one block on each device, each as a program of its own.

    Args:
      layout: how the values are placed on the devices.
      who: the user's function, for error messages.
      rules: what the call allows and tracks.
    """

    def __init__(self, layout: Layout, who: str, rules: Rules):
        super().__init__()
        self.layout = layout
        self.who = who
        self.body_mesh = with_manual_axes(layout.mesh, layout.axes)
        self.rules = rules
        self._placed: dict[int, tuple[Any, jax.Array]] = {}
        # JAX turns these off where it evaluates a jaxpr.
        self.checks = [check for check, name in _CHECKS_OF_VALUES.items() if setting(name)]
        self._caller: SourceInfo | None = None

    @contextlib.contextmanager
    def outside(self) -> Iterator[None]:
        """A context in which JAX works as it does around the call."""
        with eval_context(), jax.disable_jit(False), no_mesh(), varying_types(False):
            yield

    @contextlib.contextmanager
    def called_here(self) -> Iterator[None]:
        """A context for the operations of a function that is called in the current line.

        Those of a jitted function of JAX's have no line of the user's, as it is traced once for
        all calls.
        """
        around, self._caller = self._caller, self._source()
        try:
            yield
        finally:
            self._caller = around

    def _source(self) -> SourceInfo:
        """Of the current operation, or of the nearest call around it that has a user's line."""
        here = source_info_util.current()
        return here if self._caller is None or shown_source(here) else self._caller

    def by_program(self, primitive, operands, params) -> list[Blocks]:
        """Applies a primitive to all blocks, by a program that is cached."""
        types = self._result_types(primitive, operands, params)
        key = (
            self.layout,
            primitive,
            parameters_key(primitive, params),
            tuple(map(_operand_key, operands)),
            lowering_config(),
            self.rules.keeps_weak_types,
            is_watching(),
            added_passes(),
        )
        varying = tuple(x.varying if type(x) is Blocks else _NOWHERE for x in operands)
        arrays = [x.rows if type(x) is Blocks else self.placed(x) for x in operands]

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
                for check in self.checks:
                    stack.enter_context(check(True))
                results = program.run(*arrays)
        except Exception as error:
            special = special_value(error)
            if special is None:
                raise
            where = f"{primitive} at {shown_source(self._source())}"
            raise FloatingPointError(f"invalid value ({special}) encountered in {where}") from None
        types = types or [self.typed(t, _NOWHERE) for t in program.types]
        return [
            Blocks(self, *each)
            for each in zip(types, results, axes, program.type_keys, strict=True)
        ]

    def on_each_device(self, primitive, operands, params) -> list[Blocks]:
        """Applies a primitive that calls Python, to one block after the other."""
        arrays = [x.rows if type(x) is Blocks else plain(x) for x in operands]
        with self._outside_for(primitive, operands, params) as (operation, known):
            results = run_on_each_device(self.layout, operation, known, arrays)
            axes = infer_varying(self.layout, operation, known, False) if results else ()
        types = [shaped_array(r.shape[1:], r.dtype, r.aval.weak_type) for r in results]
        return [
            Blocks(self, self.typed(t, a), r, a, type_key(t))
            for t, r, a in zip(types, results, axes, strict=True)
        ]

    def typed(self, aval: Aval, varying: Axes) -> Aval:
        """The type of a value of the body, as it is in programs that the body traces."""
        return _on_mesh(aval, self.body_mesh, varying if self.rules.typed else _NOWHERE)

    def _result_types(self, primitive, operands, params) -> list[Aval]:
        """The types of the results by JAX's rules, if types say what varies; otherwise none.

        Derivatives need exactly these: by JAX's rules more may vary than by ours.
        """
        if not self.rules.typed:
            return []
        types, _ = primitive.abstract_eval(*map(jax.typeof, operands), **params)
        return list(types) if primitive.multiple_results else [types]

    @contextlib.contextmanager
    def _outside_for(
        self, primitive: Primitive, operands: Sequence[AnyValue], params: dict[str, Parameter]
    ) -> Iterator[tuple[Operation, list[Operand]]]:
        """The context `outside`, with a primitive as an operation, and what is known of operands.

        When the operation is traced, its equations get the user's line.
        """
        users_line = self._source()

        def apply(*blocks):
            keeps = self.rules.keeps_weak_types
            with (
                source_info_util.user_context(users_line.traceback),
                kept_types.kept(keeps),
            ):
                out = primitive.bind(*blocks, **params)
            return out if primitive.multiple_results else [out]

        known = [_operand(x) for x in operands]
        with self.outside():
            fun = self._without_types(apply, operands) if self.rules.typed else apply
            yield Operation(primitive.name, self.who, fun), known

    def _without_types(self, fun: Function, operands: Sequence[AnyValue]) -> Callable:
        """The same function of blocks whose types do not say along which axes they vary.

        JAX's primitives that cast these types exist only where values have them.
        """
        axes = self.layout.axes
        types = [
            varying_type(_operand(x).type, self.body_mesh, varies_along(jax.typeof(x)))
            for x in operands
        ]
        jaxpr = trace_with_types(fun, self.body_mesh, axes, types)
        return jex_core.jaxpr_as_fun(normalize(jaxpr, self.body_mesh, axes, self.who))

    def on_constants(self, primitive, operands, params):
        """Applies a primitive to constants."""
        with eval_context(), no_mesh():
            out = primitive.bind(*map(plain, operands), **params)
        results = out if primitive.multiple_results else [out]
        return [Constant(self, r) if isinstance(r, jax.Array) else r for r in results]

    def placed(self, value: ArrayLike) -> jax.Array:
        """A value that all devices have, as an array on the devices of the layout."""
        value = plain(value)
        if isinstance(value, jax.Array):
            # The operations of one call often share constants.
            known = self._placed.get(id(value))
            if known is None:
                with self.outside():
                    known = self._placed[id(value)] = (value, self.layout.whole(value))
            return known[1]
        with self.outside():
            if np.ndim(value) == 0:
                dtype = jax.typeof(value).dtype
                scalar = np.asarray(value, dtype)
                key = (self.layout, dtype, scalar.tobytes())
                return _SCALARS.get(key, lambda: self.layout.whole(scalar))
            return self.layout.whole(value)


def plain(x: AnyValue) -> AnyValue:
    """A value without blocks, as JAX knows it outside of a trace."""
    return x.array if type(x) is Constant else x


def _operand_key(x: AnyValue) -> Hashable:
    return x.type_key if type(x) is Blocks else ("whole", type_key(jax.typeof(x)))


def _operand(x: AnyValue) -> Operand:
    aval = jax.typeof(x)
    block = shaped_array(aval.shape, aval.dtype, aval.weak_type)
    if type(x) is Blocks:
        return Operand(block, whole=False, varying=x.varying)
    return Operand(block, whole=True, varying=_NOWHERE)
